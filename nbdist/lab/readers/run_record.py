"""A run as its run.json describes it, whoever wrote that: what does not fit is left out, never raised. Pure.

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
from nbdist.run.history import Labels, error_line
from nbdist.run.progress import BUSY, PAUSED, ProgressTracker, Standing

LONGEST = run_folder.LONGEST
GOING = ("preparing", "running", "paused")
MOST_TASKS = 10_000
LARGEST_PID = 1 << 31


@dataclass(frozen=True)
class Record:
    """What is known of a run beside its numbers. Times are in seconds since 1970."""

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
    """Names of the tasks of its cluster."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Of the same tasks, by rank."""
    workers: tuple[int, ...] = ()
    """Ranks of those that are replicas, in order."""
    incarnations: frozenset[int] = frozenset()
    owner: Mapping[str, Any] = field(default_factory=dict)
    trained: bool | None = None
    """Whether it trained or logged metrics; None where its run.json does not say."""

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended, as far as its run.json knows."""
        return self.status in GOING

    @property
    def in_graph(self) -> bool:
        """Whether the notebook's own process drives all towers."""
        return self.options.get("replication") == "in-graph"

    @property
    def synchronous(self) -> bool:
        """Whether its replicas make every update together."""
        return self.options.get("synchronous") is True

    @property
    def strategy(self) -> str | None:
        """How its replicas train together, None for a plain cell."""
        return text(self.options.get("strategy")) or ("in-graph" if self.in_graph else None)


def record_of(run_id: str, content: bytes, changed: float) -> Record:
    """Return what a run.json says; one that cannot be read has the status "damaged", and says why.

    ``changed`` is when it was written, in case it does not say so itself.
    """
    try:
        found = json.loads(content) if len(content) <= LONGEST else f"has over {LONGEST:,} bytes"
    except (ValueError, RecursionError) as error:
        return damaged(run_id, str(error), changed)
    if not isinstance(found, dict) or found.get("id") != run_id:
        told = found if isinstance(found, str) else f"does not describe run {run_id}"
        return damaged(run_id, f"it {told}", changed)
    status = found.get("status")
    if status == "done":  # the word of earlier versions
        status = "finished"
    if status not in STATUSES:
        return damaged(run_id, f"its status is {status!r:.80}: a newer nbdist may have written it", changed)
    cluster = mapping(found.get("cluster"))
    members = [mapping(one) for one in listed(cluster.get("members"))]
    ranked = {rank: one for one in members if (rank := whole(one.get("rank"))) is not None}
    workers = [rank for one in listed(cluster.get("workers")) if (rank := whole(one)) is not None]
    created = number(found.get("created"))
    return Record(
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
    )


def damaged(run_id: str, why: str, changed: float) -> Record:
    """Return what is known of a run whose run.json cannot be read."""
    return Record(run_id, "damaged", changed, error=f"run.json is damaged: {why}")


def owner_of(value: object) -> Mapping[str, Any]:
    """Return the process that started a run, {} if that is not said as it should be."""
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
    """Return an object of JSON, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """Return a list of JSON, as far as it can be meant; an empty one for anything else."""
    return value[:MOST_TASKS] if isinstance(value, list) else []


# The item of a run in the sidebar, as plain JSON. Pure.

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

    >>> browse_path(Path("/home/me/nbdist/run/r1"), Path("/home/me"))
    'nbdist/run/r1'
    >>> browse_path(Path("/home/me/.local/share/nbdist/run/r1"), Path("/home/me"))
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


# Progress and speed of a run, from its replicas' progress files. Pure: the time is an argument.
#
# What a run's driver hears ten times a second stands here in files, so that this feeds the same sums: a
# first word is heard as two (at the start of what it tells of, and now), and one that does not change is
# heard again with the time that has passed, so that a rate falls to 0 when nothing goes on.

SPENT = (*BUSY, "wait")
LONGEST_PROGRESS = 1 << 16  # bytes of a progress file
SILENT_SECONDS = 2.5  # without a new word, after which the old one is heard again
NOTHING = RunStore(limit=1, recent=1)  # progress alone tells how far a run is


@dataclass(frozen=True)
class Word:
    """What a replica's progress file says; times in seconds, ``time`` since 1970 on the replica's clock."""

    state: str
    step: int
    total: int | None
    training: int
    spent: Mapping[str, float]
    time: float
    global_step: int = 0
    learning_rate: float | None = None
    """The current rate; None if the replicas have several."""
    rested: float = 0.0
    """Seconds of the pauses that a step has followed."""

    def heard(self, step: int | None = None) -> dict[str, Any]:
        """Return it as replicas send it; with ``step`` 0, as it was when the replica began."""
        return {
            "step": self.step if step is None else step,
            "total": self.total,
            "examples": 0,
            "state": self.state,
            "spent": self.spent if step is None else {},
            "trainings": self.training,
            "rested": self.rested,
            "learning_rate": self.learning_rate,
        }


def word_of(content: bytes) -> Word | None:
    """Return what a progress file says; None for what is none, whatever it is.

    >>> word_of(b'{"version": 1, "state": "running", "step": 3, "total": 9, "time": 1e9}').step
    3
    >>> word_of(b'["rubbish"]')
    """
    try:
        found = mapping(json.loads(content)) if len(content) <= LONGEST_PROGRESS else {}
    except (ValueError, RecursionError):
        return None
    state, step, time = text(found.get("state")), whole(found.get("step")), number(found.get("time"))
    if not state or step is None or time is None:
        return None
    spent = mapping(found.get("spent"))
    return Word(
        state=state[:40],
        step=step,
        total=whole(found.get("total")),
        training=whole(found.get("training")) or 0,
        spent={part: max(0.0, number(spent.get(part)) or 0.0) for part in SPENT},
        time=time,
        global_step=whole(found.get("global_step")) or 0,
        learning_rate=number(found.get("learning_rate")),
        rested=max(0.0, number(found.get("rested")) or 0.0),
    )


class Pace:
    """Adds up the words of a run's replicas, by their index."""

    def __init__(self, replicas: int, synchronous: bool) -> None:
        self.words: dict[int, Word] = {}
        """The last of each replica."""
        self._replicas, self._synchronous = replicas, synchronous
        self._tally = self._new()
        self._heard: dict[int, float] = {}
        self._told: set[int] = set()  # replicas of which two words are known, so that a rate is
        self._latest = 0.0  # seconds since 1970, on the replicas' clock

    def hear(self, replica: int, word: Word, now: float) -> None:
        """Take in a replica's new word; ``now`` is the reader's own clock, in seconds."""
        if not 0 <= replica < self._replicas:
            return
        before = self.words.get(replica)
        if before is not None and (word.time < before.time or word.step < before.step):
            # Its clock was put right, or another process goes on in its place: what was measured is void.
            self._tally, self._told, self._latest = self._new(), set(), 0.0
            words, self.words = {**self.words, replica: word}, {}
            for other, last in words.items():
                self.hear(other, last, self._heard.get(other, now))
            self._heard[replica] = now
            return
        took = sum(word.spent.values())
        if before is None and took > 0:
            self._tally.update(replica, word.heard(step=0), word.time - took)
        if before is not None or took > 0:
            self._told.add(replica)
        self._tally.update(replica, word.heard(), word.time)
        self.words[replica], self._heard[replica] = word, now
        self._latest = max(self._latest, word.time)

    def _new(self) -> ProgressTracker:
        return ProgressTracker(self._replicas, self._synchronous)

    def pass_time(self, now: float) -> None:
        """Let replicas that say nothing new be as far as they were, at this later time."""
        for replica, word in self.words.items():
            silent = now - self._heard[replica]
            if silent > SILENT_SECONDS:
                self._tally.update(replica, word.heard(), word.time + silent)
                self._latest = max(self._latest, word.time + silent)

    def standing(self) -> Standing | None:
        """Return how far the run is; None before any replica has said so."""
        return self._tally.standing(0.0, NOTHING) if self.words else None

    @property
    def knows_rate(self) -> bool:
        """Whether rates are known, and not only 0 because nothing was measured yet."""
        return bool(self._told)

    @property
    def paused(self) -> bool:
        """Whether all that have not ended rest."""
        states = {word.state for word in self.words.values()} - {"finished"}
        return states == {PAUSED}

    @property
    def paused_seconds(self) -> float:
        """Seconds of all pauses so far, also of the current one."""
        return self._tally.paused(self._latest) if self.words else 0.0

    @property
    def done(self) -> bool:
        """Whether every replica has said that its body is over."""
        return len(self.words) == self._replicas and {word.state for word in self.words.values()} == {
            "finished"
        }

    def by_replica(self) -> dict[int, dict[str, Any]]:
        """Return the state, step, steps per second and slowness of each replica that has said something."""
        standing = self.standing()
        if standing is None:
            return {}
        return {
            replica: {
                "state": word.state,
                "step": word.step,
                "steps_per_second": rounded(max(0.0, standing.replicas[replica].steps_per_second))
                if replica in self._told and word.state != PAUSED
                else None,
                "straggler": standing.replicas[replica].slowness,
            }
            for replica, word in sorted(self.words.items())
        }


def rounded(value: float, digits: int = 3) -> float:
    """Return a number with so many significant digits: what does not matter is no news.

    >>> rounded(1234.56), rounded(0.012345)
    (1230.0, 0.0123)
    """
    return float(f"{value:.{digits}g}")
