"""A run as the panel shows it: everything known of it, as plain JSON. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nbdist.lab.pace import Pace, rounded
from nbdist.lab.record import GOING, Record

LONGEST_ERROR = 2_000  # characters
LONGEST_NAME = 200
IN_GRAPH = (
    "the notebook's own process drives its towers (--replication in-graph): stop it there, with the stop "
    "button of its cell or run.stop()"
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


def item_of(record: Record, pace: Pace, seen: Seen) -> dict[str, Any]:
    """Return the item of a run; see `status_of`."""
    status, note = status_of(record, pace, seen)
    standing = pace.standing()
    going = status in GOING
    step = seen.last_step if standing is None else standing.step
    rate = None
    if going and status != "paused" and standing is not None and pace.knows_rate:
        rate = rounded(max(0.0, standing.steps_per_second))
    stoppable, why = can_stop(record, status)
    return {
        "id": record.id,
        "name": record.name[:LONGEST_NAME] or record.id,  # without its name it can still be opened
        "status": status,
        "created": record.created,
        "ended": None if going else record.ended,
        "cluster": record.cluster,
        "strategy": record.strategy,
        "replicas": seen.replicas,
        "step": step,
        "total": None if standing is None else standing.total,
        "seconds_left": seconds_left(step, standing.total, rate) if standing is not None else None,
        "steps_per_second": rate,
        "metric": seen.metric,
        "value": seen.curve[1][-1] if seen.curve[1] else None,
        "curve": {"x": seen.curve[0], "y": seen.curve[1]},
        "error": shortened(record.error) or None,
        "note": "; ".join([*note, *seen.notes]) or None,
        "session": session_of(record),
        "folder": seen.folder,
        "browse": seen.browse,
        "tensorboard": seen.tensorboard,
        "attach": attach_code(record.id),
        "can": {"stop": stoppable},
        "why": {} if stoppable else {"stop": why},
    }


def status_of(record: Record, pace: Pace, seen: Seen) -> tuple[str, list[str]]:
    """Return a run's status, and what to say of it.

    A run.json says that a run goes on until the client that drives it writes its end: where nobody can do
    that any more, or nobody does, what the tasks have written tells more.
    """
    if not record.goes_on:
        return record.status, []
    if pace.done and (seen.quiet or not seen.reachable):
        return "done", [f"all its bodies are over, and nobody has taken its results home: {again(record.id)}"]
    if not seen.reachable:
        gone = "the notebook's process that drove it" if record.in_graph else f"its cluster {record.cluster}"
        return "lost", [f"{gone} is gone"]
    return ("paused" if pace.paused else record.status), []


def can_stop(record: Record, status: str) -> tuple[bool, str]:
    """Return whether a run can be stopped from here, and if not why."""
    if status not in GOING:
        return False, "its cluster is gone" if status == "lost" else "it is over"
    return (False, IN_GRAPH) if record.in_graph else (True, "")


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
