"""What the files of a run say: its run.json, its replicas' progress files, and its item in the sidebar. Pure.

Another version, another program or a crash may have written these files, so no content raises an error:
invalid values are left out, and an unreadable run.json gives a record with the status "damaged".

>>> record_of("r1", b'{"id": "r1", "name": "mnist", "status": "finished", "created": 1e9}', 0.0).status
'finished'
>>> record_of("r1", b'{"id": "r1", "na', 5.0).status
'damaged'
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from nbdist.metrics import run_folder
from nbdist.metrics.run_folder import STATUSES
from nbdist.metrics.store import RunStore
from nbdist.run.devices import ReplicaDevice
from nbdist.run.history import Labels, error_line
from nbdist.run.progress import BUSY, PAUSED, ProgressTracker, Standing
from nbdist.text import cut_middle

LONGEST = run_folder.LONGEST
ACTIVE = ("preparing", "running", "paused")
MOST_TASKS = 10_000
LARGEST_PID = 1 << 31


@dataclass(frozen=True)
class RunRecord:
    """The content of a run.json. Times are in seconds since 1970."""

    id: str
    status: str
    created: float
    name: str = ""
    ended: float | None = None
    paused: float = 0.0
    """Seconds of pauses, written when the run ends."""
    error: str = ""
    code: str = ""
    seed: int | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None
    tasks: tuple[str, ...] = ()
    """Names of its cluster's tasks."""
    names: Mapping[int, str] = field(default_factory=dict)
    """The same names by rank."""
    workers: tuple[int, ...] = ()
    """Ranks of its replicas, in order."""
    incarnations: frozenset[int] = frozenset()
    owner: Mapping[str, Any] = field(default_factory=dict)
    trained: bool | None = None
    """Whether it trained or logged metrics; None if its run.json does not say."""
    resumed_from: str = ""
    """The run whose training it continues."""
    places: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """The device that each task was started with, and its host, by rank."""
    devices: tuple[ReplicaDevice, ...] = ()
    """Where its replicas trained, written when the run ends."""

    @property
    def active(self) -> bool:
        """Whether it has not ended according to its run.json."""
        return self.status in ACTIVE

    @property
    def in_graph(self) -> bool:
        """Whether the notebook's process runs all towers."""
        return self.options.get("replication") == "in-graph"

    @property
    def synchronous(self) -> bool:
        """Whether its replicas update synchronously."""
        return self.options.get("synchronous") is True

    @property
    def strategy(self) -> str | None:
        """Its strategy, or the framework with whose own distribution it trains; None for a plain cell."""
        named = text(self.options.get("framework")) or text(self.options.get("strategy"))
        return named or ("in-graph" if self.in_graph else None)


def record_of(run_id: str, content: bytes, changed: float) -> RunRecord:
    """Return the record in a run.json; the status is "damaged", with an error, if it cannot be read.

    ``changed`` (seconds since 1970) is the file's modification time, used if it has no creation time.
    """
    try:
        found = json.loads(content) if len(content) <= LONGEST else f"has over {LONGEST:,} bytes"
    except (ValueError, RecursionError) as error:
        return damaged(run_id, str(error), changed)
    if not isinstance(found, dict) or found.get("id") != run_id:
        problem = found if isinstance(found, str) else f"does not describe run {run_id}"
        return damaged(run_id, f"it {problem}", changed)
    status = found.get("status")
    if status == "done":  # the name in earlier versions
        status = "finished"
    if status not in STATUSES:
        return damaged(run_id, f"its status is {status!r:.80}: a newer nbdist may have written it", changed)
    cluster = mapping(found.get("cluster"))
    members = [mapping(one) for one in listed(cluster.get("members"))]
    ranked = {rank: one for one in members if (rank := whole(one.get("rank"))) is not None}
    workers = [rank for one in listed(cluster.get("workers")) if (rank := whole(one)) is not None]
    created = number(found.get("created"))
    return RunRecord(
        id=run_id,
        status=status,
        created=changed if created is None else created,
        name=text(found.get("name")),
        ended=number(found.get("ended")),
        paused=max(0.0, number(found.get("paused")) or 0.0),
        error=text(found.get("error")),
        code=text(found.get("code")),
        seed=whole(found.get("seed")),
        versions=mapping(found.get("versions")),
        options=mapping(found.get("options")),
        cluster=text(cluster.get("id")) or None,
        tasks=tuple(one for one in listed(cluster.get("tasks")) if isinstance(one, str)),
        names={rank: f"/job:{one.get('job')}/task:{one.get('index')}" for rank, one in ranked.items()},
        workers=tuple(dict.fromkeys(workers)),
        incarnations=frozenset(n for one in members if (n := whole(one.get("incarnation"))) is not None),
        owner=owner_of(cluster.get("owner")),
        trained=found["trained"] if isinstance(found.get("trained"), bool) else None,
        resumed_from=text(found.get("resumed_from")),
        places={rank: (text(one.get("device")), text(one.get("host"))) for rank, one in ranked.items()},
        devices=tuple(
            one for entries in listed(found.get("devices")) if (one := ReplicaDevice.from_config(entries))
        ),
    )


def damaged(run_id: str, why: str, changed: float) -> RunRecord:
    """Return the record of a run with an unreadable run.json."""
    return RunRecord(run_id, "damaged", changed, error=f"run.json is damaged: {why}")


def owner_of(value: object) -> Mapping[str, Any]:
    """Return the process that started a run, {} if the value is invalid."""
    found = mapping(value)
    pid = whole(found.get("pid"))
    whole_process = pid is not None and 0 < pid < LARGEST_PID and number(found.get("started")) is not None
    return found if whole_process and isinstance(found.get("host"), str) else {}


def text(value: object) -> str:
    """Return a text, "" for anything else."""
    return value if isinstance(value, str) else ""


def number(value: object) -> float | None:
    """Return a finite number, None for anything else.

    >>> number(2), number(float("inf")), number(True), number(10**400)
    (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: object) -> int | None:
    """Return a whole number from 0 to 2**64, None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 64 else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, {} for anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """Return a JSON list, shortened to `MOST_TASKS`; [] for anything else."""
    return value[:MOST_TASKS] if isinstance(value, list) else []


# The item of a run in the sidebar, as plain JSON. Pure.

LONGEST_ERROR = 2_000  # characters
LONGEST_NAME = 200
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
    last_step: int | None
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
    step = folder_status.last_step if standing is None else standing.step
    rate = None
    if active and status != "paused" and standing is not None and progress.knows_rate:
        rate = rounded(max(0.0, standing.steps_per_second))
    training = is_training(record, progress, folder_status)
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
        "cluster": record.cluster,
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
        "error": cut_middle(record.error, LONGEST_ERROR) or None,
        "error_line": error_line(record.error) or None,
        "note": "; ".join([*note, *folder_status.notes]) or None,
        "session": session_of(record),
        "folder": folder_status.folder,
        "browse": folder_status.browse,
        "tensorboard": folder_status.tensorboard,
        "resumed_from": record.resumed_from or None,
        "attach": attach_code(record.id),
        "can": {command: command not in why for command in COMMANDS},
        "why": why,
    }


def is_training(record: RunRecord, progress: RunProgress, folder_status: FolderStatus) -> bool:
    """Return whether a run trains or logs metrics, as far as its files show; a plain cell does neither."""
    if record.trained is not None:
        return record.trained
    asked = record.options.get("strategy") or record.options.get("epochs")
    return folder_status.metric is not None or progress.has_session or bool(asked)


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
        lost = "the notebook's process that drove it" if record.in_graph else f"its cluster {record.cluster}"
        return "lost", [f"{lost} has ended"]
    return ("paused" if progress.paused else record.status), []


def why_not(
    record: RunRecord, status: str, trains: bool, resumable: bool = False, in_session: bool = False
) -> dict[str, str]:
    """Return the `COMMANDS` that a run does not accept now, with the reason.

    A run that has ended without finishing, and is ``resumable``, can be resumed. One that trains
    ``in_session`` has no learning rate here.

    >>> why_not(RunRecord("r", "running", 0.0), "running", True)
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


def session_of(record: RunRecord) -> str:
    """Return the notebook that started a run, "" if unknown."""
    found = record.owner.get("session")
    return found if isinstance(found, str) else ""


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
    try:
        found = mapping(json.loads(content)) if len(content) <= MAX_PROGRESS_BYTES else {}
    except (ValueError, RecursionError):
        return None
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
