"""The item of a run in the sidebar, from its record and its replicas' progress files. Pure.

Another version, another program or a crash may have written these files, so no content raises an error:
invalid values are left out (see `nbdist.metrics.run_folder.parse_run` for the run.json).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from nbdist.json_values import mapping, number, object_in, text, whole
from nbdist.metrics.store import RunStore
from nbdist.run.history import TASK, Labels, error_line
from nbdist.run.progress import BUSY, PAUSED, ProgressTracker, Standing
from nbdist.run.record import ACTIVE, RunRecord
from nbdist.text import cut_middle

LONGEST_ERROR = 2_000  # characters
LONGEST_NAME = 200
MOST_LOST = 100  # names of tasks
COMMANDS = ("stop", "pause", "resume", "set", "delete")
"""The commands for a run; "set" changes its learning rate."""


UNFINISHED = ("failed", "stopped", "lost")
UNDER_WAY = "it is running: stop it first"
OVER = "it has ended"
IN_GRAPH = (
    "the notebook's process runs its towers (--replication in-graph): use the controls of its live "
    "view, or run.pause(), run.set(learning_rate=...) and run.stop()"
)
IN_SESSION = "it trains in a session: its graph has the learning rate"


@dataclass(frozen=True)
class FolderStatus:
    """What a poll found in a run's folder beside its run.json."""

    folder: str
    browse: str | None
    tensorboard: bool
    reachable: bool
    """Whether the run can continue: its cluster lives, and so does the process of an in-graph run."""
    quiet: bool
    """Whether no progress was written for `QUIET_SECONDS`."""
    metric: str | None
    curve: tuple[list[int], list[float]]
    steps: int | None
    notes: Sequence[str]
    replicas: int
    labels: Labels = field(default_factory=Labels)
    bytes: int | None = None
    """The bytes of its folder; None while they change."""
    resumable: bool = False
    """Whether its folder has a state of its training, or that of the run it resumed has, and its body."""


def item_of(record: RunRecord, progress: RunProgress, folder_status: FolderStatus) -> dict[str, Any]:
    """Return the item of a run; see `status_of`."""
    status, note = status_of(record, progress, folder_status)
    standing = progress.standing()
    active = status in ACTIVE
    step = folder_status.steps if standing is None else standing.step
    rate = None
    if active and status != "paused" and standing is not None and progress.knows_rate:
        rate = rounded(max(0.0, standing.steps_per_second))
    training = record.trained
    if training is None:  # as far as its files show
        asked = record.options.get("strategy") or record.options.get("epochs")
        training = folder_status.metric is not None or progress.has_session or bool(asked)
    why = why_not(record, status, training, folder_status.resumable, in_session=progress.has_session)
    return {
        "id": record.id,
        # A damaged run has no name: its id can still be opened.
        "name": folder_status.labels.name or record.name[:LONGEST_NAME] or record.id,
        "tags": list(folder_status.labels.tags),
        "remark": folder_status.labels.note or None,
        "training": training,
        "bytes": folder_status.bytes,
        "status": status,
        "created": record.created,
        "ended": None if active else record.ended,
        "paused": round(progress.paused_seconds if record.active else record.paused, 1),
        "cluster": record.cluster_id,
        "strategy": record.strategy,
        "replicas": folder_status.replicas,
        "step": step,
        "total": None if standing is None else standing.total,
        "seconds_left": seconds_left(step, standing.total, rate) if standing is not None else None,
        "steps_per_second": rate,
        "learning_rate": None if standing is None else standing.learning_rate,
        "metric": folder_status.metric,
        "value": folder_status.curve[1][-1] if folder_status.curve[1] else None,
        "curve": {"x": folder_status.curve[0], "y": folder_status.curve[1]},
        "lost": lost_tasks(record),
        "error": cut_middle(record.error, LONGEST_ERROR) or None,
        "error_line": error_line(record.error) or None,
        "note": "; ".join([*note, *folder_status.notes]) or None,
        "session": text(record.owner.get("session")),
        "folder": folder_status.folder,
        "browse": folder_status.browse,
        "tensorboard": folder_status.tensorboard,
        "resumed_from": record.resumed_from or None,
        "attach": attach_code(record.id),
        "can": {command: command not in why for command in COMMANDS},
        "why": why,
    }


def lost_tasks(record: RunRecord) -> list[str]:
    """Return the tasks that a run has lost so far and continued, one short name for each loss.

    >>> lost_tasks(RunRecord("r", losses=[{"task": "/job:worker/task:1", "how": "it was killed"}]))
    ['worker 1']
    """
    return [TASK.sub(r"\1 \2", text(one.get("task"), LONGEST_NAME)) for one in record.losses[:MOST_LOST]]


def status_of(record: RunRecord, progress: RunProgress, folder_status: FolderStatus) -> tuple[str, list[str]]:
    """Return a run's status and notes.

    A run.json says "running" until the client that drives the run writes its end. If that client has died or
    left, the status follows from the cluster's liveness and the tasks' progress files.
    """
    if not record.active:
        return record.status, []
    if progress.done and (folder_status.quiet or not folder_status.reachable):
        return "finished", [f"all workers have finished; to fetch its results, run {attach_call(record.id)}"]
    if not folder_status.reachable:
        lost = (
            "the notebook's process that drove it" if record.in_graph else f"its cluster {record.cluster_id}"
        )
        return "lost", [f"{lost} has ended"]
    return ("paused" if progress.paused else record.status), []


def why_not(
    record: RunRecord, status: str, trains: bool, resumable: bool = False, in_session: bool = False
) -> dict[str, str]:
    """Return the `COMMANDS` that a run does not accept now, with the reason.

    A run that has ended without finishing, and is ``resumable``, can be resumed. One that trains
    ``in_session`` has no learning rate here.

    >>> why_not(RunRecord("r", status="running"), "running", True)
    {'resume': 'it is not paused', 'delete': 'it is running: stop it first'}
    """
    if status not in ACTIVE:
        over = "its cluster has ended" if status == "lost" else OVER
        accepted = ("delete", "resume") if resumable and status in UNFINISHED else ("delete",)
        return {command: over for command in COMMANDS if command not in accepted}
    if record.in_graph:
        return {command: IN_GRAPH for command in COMMANDS if command != "delete"} | {"delete": UNDER_WAY}
    if trains and status == "paused":
        refused = {"pause": "it is paused already", "set": "it is paused: resume it first"}
    elif trains:
        refused = {"resume": "it is not paused"}
    else:
        refused = dict.fromkeys(("pause", "resume", "set"), "it does not train")
    if in_session:
        refused["set"] = IN_SESSION
    return {**refused, "delete": UNDER_WAY}


def seconds_left(step: int | None, total: int | None, rate: float | None) -> float | None:
    """Return the seconds until the last step, None if unknown.

    >>> seconds_left(40, 100, 30.0), seconds_left(40, 100, 0.0), seconds_left(40, None, 3.0)
    (2, None, None)
    """
    if step is None or total is None or not rate:
        return None
    return math.ceil(max(0, total - step) / rate)


def browse_path(folder: Path, root: Path | None) -> str | None:
    """Return a folder's path below the root of Jupyter's file browser; None if the browser hides it.

    >>> browse_path(Path("/home/me/nbdist/run/r1"), Path("/home/me"))
    'nbdist/run/r1'
    >>> browse_path(Path("/home/me/.local/share/nbdist/run/r1"), Path("/home/me"))
    """
    if root is None or not folder.is_relative_to(root):
        return None
    parts = folder.relative_to(root).parts
    return None if any(part.startswith(".") for part in parts) else str(PurePosixPath(*parts))


def attach_code(name: str) -> str:
    """Return the code of a cell that attaches to a run or a sweep."""
    return f"import nbdist as nb\n\nnb.attach({json.dumps(name)})"


def attach_call(name: str) -> str:
    """Return the call that attaches to a run or a sweep, for a message."""
    return f"nb.attach({name!r})"


# Progress and rate of a run, from its replicas' progress files. Pure: the time is an argument.
#
# The run monitor in the client receives progress messages ten times a second and adds them up in a
# `ProgressTracker`. Here a file about once a second replaces the messages, and feeds the same tracker:
#
# - The first report of a replica is added as two messages (at the beginning of the time that it covers, and
#   now), so that it already gives a rate.
# - A report that does not change for REPEAT_SECONDS is added again with a later time, so that the rate of a
#   hanging replica falls to 0.
# - If a replica's clock or step goes back (a corrected clock, a replaced process), the measurement restarts.

SPENT = (*BUSY, "wait")
MAX_PROGRESS_BYTES = 1 << 16  # bytes of a progress file
QUIET_SECONDS = 15.0  # without a report: then finished replicas count as abandoned by their client
REPEAT_SECONDS = 2.5  # then an unchanged report is added again
NO_METRICS = RunStore(limit=1, recent=1)  # the tracker wants a store; progress files suffice


@dataclass(frozen=True)
class ReplicaProgress:
    """A replica's progress file; times in seconds, ``time`` since 1970 on the replica's clock."""

    state: str
    step: int
    total: int | None
    training: int
    spent: Mapping[str, float]
    time: float
    global_step: int = 0
    learning_rate: float | None = None
    """The current learning rate; None if the replicas differ."""
    rested: float = 0.0
    """Seconds of the pauses that a step has followed."""
    sessions: int = 0
    """The monitored sessions that its body has made."""
    together: bool = False
    """Whether the replicas make each step together, as a framework's own distribution does."""

    def as_message(self, step: int | None = None) -> dict[str, Any]:
        """Return the report as a progress message; with ``step`` 0, as at the start of the replica."""
        return {
            "step": self.step if step is None else step,
            "total": self.total,
            "examples": 0,
            "state": self.state,
            "spent": self.spent if step is None else {},
            "trainings": self.training,
            "rested": self.rested,
            "learning_rate": self.learning_rate,
            "together": self.together,
        }


def parse_progress(content: bytes) -> ReplicaProgress | None:
    """Return the report in a progress file; None for invalid content.

    >>> parse_progress(b'{"version": 1, "state": "running", "step": 3, "total": 9, "time": 1e9}').step
    3
    >>> parse_progress(b'["rubbish"]')
    """
    found = object_in(content) if len(content) <= MAX_PROGRESS_BYTES else {}
    state, step, time = text(found.get("state")), whole(found.get("step")), number(found.get("time"))
    if not state or step is None or time is None:
        return None
    spent = mapping(found.get("spent"))
    return ReplicaProgress(
        state=state[:40],
        step=step,
        total=whole(found.get("total")),
        training=whole(found.get("training")) or 0,
        spent={part: max(0.0, number(spent.get(part)) or 0.0) for part in SPENT},
        time=time,
        global_step=whole(found.get("global_step")) or 0,
        learning_rate=number(found.get("learning_rate")),
        rested=max(0.0, number(found.get("rested")) or 0.0),
        sessions=max(0, whole(found.get("sessions")) or 0),
        together=found.get("together") is True,
    )


def ended_replicas(reports: Mapping[int, ReplicaProgress], finished: bool) -> frozenset[int]:
    """Return which replicas were lost or have left, as far as their last reports tell.

    Their last state is not "finished": in a run that has ``finished``, or `QUIET_SECONDS` before the newest
    report of another.
    """
    newest = max((one.time for one in reports.values()), default=0.0)
    return frozenset(
        number
        for number, one in reports.items()
        if one.state != "finished" and (finished or newest - one.time > QUIET_SECONDS)
    )


class RunProgress:
    """Adds up the progress reports of a run's replicas, by their index."""

    def __init__(self, replicas: int, synchronous: bool) -> None:
        self.latest: dict[int, ReplicaProgress] = {}
        """The latest report of each replica."""
        self._replicas, self._synchronous = replicas, synchronous
        self._tracker = self._new()
        self._received: dict[int, float] = {}
        self._rated: set[int] = set()  # replicas with two reports, which give a rate
        self._latest = 0.0  # seconds since 1970, on the replicas' clock

    def add(self, replica: int, report: ReplicaProgress, now: float) -> None:
        """Add a replica's new report; ``now`` is the reader's own clock, in seconds."""
        if not 0 <= replica < self._replicas:
            return
        before = self.latest.get(replica)
        if before is not None and (report.time < before.time or report.step < before.step):
            # A corrected clock, or another process of the same rank: measure anew.
            self._tracker, self._rated, self._latest = self._new(), set(), 0.0
            latest, self.latest = {**self.latest, replica: report}, {}
            for other, last in latest.items():
                self.add(other, last, self._received.get(other, now))
            self._received[replica] = now
            return
        took = sum(report.spent.values())
        if before is None and took > 0:
            self._tracker.update(replica, report.as_message(step=0), report.time - took)
        if before is not None or took > 0:
            self._rated.add(replica)
        self._tracker.update(replica, report.as_message(), report.time)
        self.latest[replica], self._received[replica] = report, now
        self._latest = max(self._latest, report.time)

    def _new(self) -> ProgressTracker:
        return ProgressTracker(self._replicas, self._synchronous)

    def advance(self, now: float) -> None:
        """Add old reports again, with a later time, so that the rates of hanging replicas fall."""
        for replica, report in self.latest.items():
            age = now - self._received[replica]
            if age > REPEAT_SECONDS:
                self._tracker.update(replica, report.as_message(), report.time + age)
                self._latest = max(self._latest, report.time + age)

    def standing(self) -> Standing | None:
        """Return the step, total and rate of the run; None before the first report."""
        return self._tracker.standing(0.0, NO_METRICS) if self.latest else None

    @property
    def knows_rate(self) -> bool:
        """Whether a rate was measured."""
        return bool(self._rated)

    @property
    def paused(self) -> bool:
        """Whether all replicas that have not finished are paused."""
        states = {report.state for report in self.latest.values()} - {"finished"}
        return states == {PAUSED}

    @property
    def paused_seconds(self) -> float:
        """Seconds of all pauses, including the current one."""
        return self._tracker.paused(self._latest) if self.latest else 0.0

    @property
    def has_session(self) -> bool:
        """Whether a body trains in a monitored session, and none with a strategy."""
        reports = self.latest.values()
        return any(report.sessions for report in reports) and not any(report.training for report in reports)

    @property
    def done(self) -> bool:
        """Whether all replicas have finished."""
        return len(self.latest) == self._replicas and {report.state for report in self.latest.values()} == {
            "finished"
        }

    def by_replica(self) -> dict[int, dict[str, Any]]:
        """Return the state, step, steps per second and slowdown of each replica with a report."""
        standing = self.standing()
        if standing is None:
            return {}
        return {
            replica: {
                "state": report.state,
                "step": report.step,
                "steps_per_second": rounded(max(0.0, standing.replicas[replica].steps_per_second))
                if replica in self._rated and report.state != PAUSED
                else None,
                "straggler": standing.replicas[replica].slowness,
            }
            for replica, report in sorted(self.latest.items())
        }


def rounded(value: float, digits: int = 3) -> float:
    """Return a number rounded to significant digits, so that noise causes no update.

    >>> rounded(1234.56), rounded(0.012345)
    (1230.0, 0.0123)
    """
    return float(f"{value:.{digits}g}")
