"""A run as the panel shows it: everything known of it, as plain JSON. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from nbdist.lab.pace import Pace, rounded
from nbdist.lab.record import GOING, Record
from nbdist.runs.history import Labels, error_line

LONGEST_ERROR = 2_000  # characters
LONGEST_NAME = 200
COMMANDS = ("stop", "pause", "resume", "set", "delete")
"""The commands for a run; "set" changes its learning rate."""
UNDER_WAY = "it is under way: stop it first"
OVER = "it has ended"
IN_GRAPH = (
    "the notebook's own process drives its towers (--replication in-graph): use the controls of its live "
    "view there, or run.pause(), run.set(learning_rate=...) and run.stop()"
)


@dataclass(frozen=True)
class Seen:
    """What a look at a run has found beside its run.json."""

    folder: str
    browse: str | None
    tensorboard: bool
    reachable: bool
    """Whether what the run needs to go on is there: its cluster, or the process that drives it."""
    quiet: bool
    """Whether nothing was written for a while."""
    metric: str | None
    curve: tuple[list[int], list[float]]
    last_step: int | None
    notes: Sequence[str]
    replicas: int
    labels: Labels = field(default_factory=Labels)
    bytes: int | None = None
    """The bytes of its folder; None while they change."""


def item_of(record: Record, pace: Pace, seen: Seen) -> dict[str, Any]:
    """Return the item of a run; see `status_of`."""
    status, note = status_of(record, pace, seen)
    standing = pace.standing()
    going = status in GOING
    step = seen.last_step if standing is None else standing.step
    rate = None
    if going and status != "paused" and standing is not None and pace.knows_rate:
        rate = rounded(max(0.0, standing.steps_per_second))
    why = why_not(record, status, is_training(record, seen))
    return {
        "id": record.id,
        # Without its name it can still be opened.
        "name": seen.labels.name or record.name[:LONGEST_NAME] or record.id,
        "tags": list(seen.labels.tags),
        "remark": seen.labels.note or None,
        "training": is_training(record, seen),
        "bytes": seen.bytes,
        "status": status,
        "created": record.created,
        "ended": None if going else record.ended,
        "paused": round(pace.paused_seconds if record.goes_on else record.paused, 1),
        "cluster": record.cluster,
        "strategy": record.strategy,
        "replicas": seen.replicas,
        "step": step,
        "total": None if standing is None else standing.total,
        "seconds_left": seconds_left(step, standing.total, rate) if standing is not None else None,
        "steps_per_second": rate,
        "learning_rate": None if standing is None else standing.learning_rate,
        "metric": seen.metric,
        "value": seen.curve[1][-1] if seen.curve[1] else None,
        "curve": {"x": seen.curve[0], "y": seen.curve[1]},
        "error": shortened(record.error) or None,
        "error_line": error_line(record.error) or None,
        "note": "; ".join([*note, *seen.notes]) or None,
        "session": session_of(record),
        "folder": seen.folder,
        "browse": seen.browse,
        "tensorboard": seen.tensorboard,
        "attach": attach_code(record.id),
        "can": {command: command not in why for command in COMMANDS},
        "why": why,
    }


def is_training(record: Record, seen: Seen) -> bool:
    """Return whether a run trains or logs metrics, as far as its files show; a plain cell does neither."""
    if record.trained is not None:
        return record.trained
    return seen.metric is not None or bool(record.options.get("strategy") or record.options.get("epochs"))


def status_of(record: Record, pace: Pace, seen: Seen) -> tuple[str, list[str]]:
    """Return a run's status, and what to say of it.

    A run.json says that a run goes on until the client that drives it writes its end: where nobody can do
    that any more, or nobody does, what the tasks have written tells more.
    """
    if not record.goes_on:
        return record.status, []
    if pace.done and (seen.quiet or not seen.reachable):
        return "finished", [f"all workers have finished; to fetch its results, run {again(record.id)}"]
    if not seen.reachable:
        lost = "the notebook's process that drove it" if record.in_graph else f"its cluster {record.cluster}"
        return "lost", [f"{lost} has ended"]
    return ("paused" if pace.paused else record.status), []


def why_not(record: Record, status: str, trains: bool) -> dict[str, str]:
    """Return why the server cannot do some of the `COMMANDS` to a run now, by command.

    >>> why_not(Record("r", "running", 0.0), "running", True)
    {'resume': 'it is not paused', 'delete': 'it is under way: stop it first'}
    """
    if status not in GOING:
        over = "its cluster has ended" if status == "lost" else OVER
        return {command: over for command in COMMANDS if command != "delete"}
    if record.in_graph:
        return {command: IN_GRAPH for command in COMMANDS if command != "delete"} | {"delete": UNDER_WAY}
    if trains and status == "paused":
        stands = {"pause": "it is paused already", "set": "it is paused: resume it first"}
    elif trains:
        stands = {"resume": "it is not paused"}
    else:
        stands = dict.fromkeys(("pause", "resume", "set"), "it does not train")
    return {**stands, "delete": UNDER_WAY}


def seconds_left(step: int | None, total: int | None, rate: float | None) -> float | None:
    """Return the seconds until the last step, None where that is not known.

    >>> seconds_left(40, 100, 30.0), seconds_left(40, 100, 0.0), seconds_left(40, None, 3.0)
    (2, None, None)
    """
    if step is None or total is None or not rate:
        return None
    return math.ceil(max(0, total - step) / rate)


def browse_path(folder: Path, root: Path | None) -> str | None:
    """Return a folder's path below the root of Jupyter's file browser; None if it does not show it.

    >>> browse_path(Path("/home/me/nbdist/runs/r1"), Path("/home/me"))
    'nbdist/runs/r1'
    >>> browse_path(Path("/home/me/.local/share/nbdist/runs/r1"), Path("/home/me"))
    """
    if root is None or not folder.is_relative_to(root):
        return None
    parts = folder.relative_to(root).parts
    return None if any(part.startswith(".") for part in parts) else str(PurePosixPath(*parts))


def attach_code(name: str) -> str:
    """Return what a cell needs to say to have the run, or the sweep, by its id."""
    return f"import nbdist as nb\n\nnb.attach({json.dumps(name)})"


def again(name: str) -> str:
    """Return how it is attached to, in a sentence."""
    return f"nb.attach({name!r})"


def session_of(record: Record) -> str:
    """Return the notebook that has started a run, "" if that is not known."""
    found = record.owner.get("session")
    return found if isinstance(found, str) else ""


def shortened(error: str) -> str:
    """Return an error with its middle left out if it is long."""
    if len(error) <= LONGEST_ERROR:
        return error
    half = LONGEST_ERROR // 2
    return f"{error[:half]}\n... {len(error) - 2 * half:,} characters left out ...\n{error[-half:]}"
