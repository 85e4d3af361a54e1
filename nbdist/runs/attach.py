"""Attaches to a run that another process has started, or this one before its kernel was restarted.

run.json       ──► the run's options, its cluster, its tasks
each task      ──► run.subscribe: position in its log, its output; later messages follow
run's folder   ──► points up to there
each task      ──► run.outcome, when its body is over; from the run's folder where the task is gone
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import is_this, lives, living
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
    UnavailableError,
)
from nbdist.metrics.run_folder import RunFile, read_run, run_folder
from nbdist.runs.backfill import fill, last_words, printed
from nbdist.runs.finish import ENDED
from nbdist.runs.follow import View
from nbdist.runs.history import runs
from nbdist.runs.options import Options, select
from nbdist.runs.outcome import MOST_BYTES, decode, read_outcome
from nbdist.runs.protocols import RunReplacement, RunTasks
from nbdist.runs.run import Run
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame

OVER_SECONDS = 30.0  # that the results of a run which is over may take to come home at once
MOST_NAMED = 5


def attach_run(run_id: str | None = None, *, make_view: Callable[[Run], View] | None = None) -> Run:
    """Return a run that others have started, with all that it has logged and printed; follow or wait for it.

    Without an id it is the latest that still goes on, else the latest. One that is over is there at once,
    with its history and what is left of its results. Raises NotFoundError for an unknown id, and
    FailedPreconditionError where another version of nbdist, or another process, has the run.
    """
    record = find_run(run_id)
    found = _Found(record)
    cluster = found.cluster()
    if cluster is None:
        return _opened(found, None, {}, make_view)
    joined = Joined(cluster)
    if found.towers:  # nobody drives them any more
        found.release(joined)
        return _opened(found, None, {}, make_view)
    answers = found.ask(joined)
    if not any(answer.meta["state"] != "unknown" for answer in answers.values()):
        if not found.settled:
            found.why = f"the tasks of cluster {cluster.id} know nothing of it any more"
        joined.close()
        return _opened(found, None, {}, make_view)
    return _opened(found, joined, answers, make_view)


def find_run(run_id: str | None) -> RunFile:
    """Return what run.json says of a run; without an id, of the latest that goes on, else of the latest."""
    if run_id is not None:
        try:
            return read_run(run_id)
        except NotFoundError:
            latest = ", ".join(run.id for run in runs()[:MOST_NAMED])
            raise NotFoundError(
                f"no run {run_id!r}; the latest are {latest or '(none)'}, nb.runs() lists all"
            ) from None
    known = [run for run in runs() if run.kind == "run" and run.status != "damaged"]
    if not known:
        raise NotFoundError("there is no run yet; %%distribute starts one")
    return latest_of(known, living())


def latest_of(known: list[RunFile], alive: list[str]) -> RunFile:
    """Return the first of the runs, newest first, that may go on: its cluster is alive; else the newest.

    >>> old = RunFile("1", status="running", cluster={"id": "a"})
    >>> latest_of([RunFile("2", status="finished", cluster={"id": "a"}), old], ["a"]).id
    '1'
    """
    going = [run for run in known if run.status not in ENDED and run.cluster.get("id") in alive]
    return (going or known)[0]


def options_of(record: RunFile) -> Options:
    """Return a run's options from its run.json; those that this version does not know are left out."""
    known = {one.name for one in dataclasses.fields(Options)}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in record.options.items()
        if name in known
    }
    return Options(**given)


def members_of(record: RunFile) -> list[TaskInfo]:
    """Return the tasks of a run's cluster as run.json has them; by their names alone in old ones."""
    if "members" in record.cluster:
        try:
            return [TaskInfo.from_dict(entries) for entries in record.cluster["members"]]
        except TypeError as error:
            raise DataLossError(
                f"{run_folder(record.id) / 'run.json'} is damaged: a member of its cluster is not a task "
                f"description: {error}"
            ) from None
    names = [name for name in record.cluster.get("tasks", ()) if not name.startswith("/job:client/")]
    return [_named(name, rank) for rank, name in enumerate(names)]


class _Found:
    """A run as its run.json describes it: who has had a part in it, and whether they are still there."""

    def __init__(self, record: RunFile) -> None:
        self.record, self.folder, self.options = record, run_folder(record.id), options_of(record)
        self.settled = record.status in ENDED
        self.members = members_of(record)
        ranks = record.cluster.get("workers")
        chosen = [info for info in self.members if ranks is None or info.rank in ranks]
        if ranks is not None and (not ranks or {info.rank for info in chosen} != set(ranks)):
            there = ", ".join(str(info.rank) for info in self.members) or "none"
            raise DataLossError(
                f"{self.folder / 'run.json'} is damaged: the run's workers are the ranks {ranks!r:.80} of "
                f"its cluster, and the cluster's members are {there}. nb.runs() still lists the run, and "
                "its delete() removes it"
            )
        self.workers = chosen if ranks is not None else _selected(self.members, self.options)
        self.towers: list[TaskInfo] = []
        self.why = f"cluster {record.cluster.get('id', '?')} of run {record.id} has ended"
        if self.options.replication == "in-graph":
            self.towers = self.workers
            self.workers = [_named("/job:client/task:0", 1 + max((i.rank for i in self.members), default=0))]
            self._look_at_owner()

    def _look_at_owner(self) -> None:
        """Of an in-graph run: its body was in the process that started it."""
        owner = self.record.cluster.get("owner", {})
        if not self.settled and owner and lives(owner):
            where = "in this very notebook" if is_this(owner) else f"in process {owner['pid']}"
            raise FailedPreconditionError(
                f"the body of run {self.record.id} is running {where}, which drives the towers itself "
                "(--replication in-graph): follow it there"
            )
        pid = f" (pid {owner['pid']})" if owner else ""
        self.why = (
            f"the body of run {self.record.id} was in a notebook's own process{pid}, as --replication "
            "in-graph asks, and ended with it"
        )

    def cluster(self) -> Cluster | None:
        """Return the run's cluster, None if it is gone; raises what keeps this process from it."""
        name = self.record.cluster.get("id")
        if not name or name not in living() or (self.towers and self.settled):
            return None
        with suppress(NotFoundError):
            if (current := Cluster.current()).id == name:
                return current if self._is_its(current) else None
        try:
            cluster = Cluster.attach(name)
        except FailedPreconditionError as error:
            if self.settled:
                return None
            raise FailedPreconditionError(f"run {self.record.id} cannot be reached: {error}") from None
        except NbdistError as error:  # it ends at this moment
            self.why = f"cluster {name} of run {self.record.id} has ended: {error}"
            return None
        if self._is_its(cluster):
            return cluster
        cluster.close()
        return None

    def _is_its(self, cluster: Cluster) -> bool:
        """Whether that is the cluster that the run was on, not a later one of its name."""
        known = {info.incarnation for info in self.members}
        return known == {0} or any(info.incarnation in known for info in cluster.tasks)

    def release(self, joined: Joined) -> None:
        """Free the tasks that the run has reserved; they write their parts of its timeline."""
        dead = {info.rank for info in joined.dead()}
        for info in joined.tasks:
            if info.rank not in dead:
                with suppress(NbdistError):
                    meta = {"run": self.record.id, "folder": str(self.folder)}
                    joined.peer(info.rank).call("run.release", meta)
        joined.close()

    def ask(self, joined: Joined) -> dict[int, Frame]:
        """Ask every worker to tell all that follows; returns what they say of what there was, by rank."""
        answers = {}
        dead = {info.rank for info in joined.dead()}
        for info in self.workers:
            if info.rank not in dead:
                with suppress(
                    NbdistError
                ):  # one that dies now is noticed later; one replaced knows of no run
                    answers[info.rank] = joined.peer(info.rank).call("run.subscribe", {"run": self.record.id})
        for info in self.workers:
            answer = answers.get(info.rank)
            if info.rank not in dead and (answer is None or answer.meta["state"] == "unknown"):
                self.why = f"{info.name} does not know run {self.record.id}: it was replaced, or runs another"
        return answers

    def lacking(self, run: Run, rank: int, known: Mapping[int, Any]) -> Any:
        """Return what stands for an outcome that nobody has."""
        if self.settled:
            return {}
        chief = known.get(self.workers[0].rank)
        if isinstance(chief, dict) and not chief.get("error"):
            servers = sum(info.job == "ps" for info in self.members)
            if self.options.least(len(self.workers), servers) is not None:  # the others may go on without it
                return {}
        return UnavailableError(f"{self.why}; {last_words(run.store)}. What it logged is in {self.folder}")


def _opened(
    found: _Found,
    joined: Joined | None,
    answers: Mapping[int, Frame],
    make_view: Callable[[Run], View] | None,
) -> Run:
    """Return the run, filled with what there was so far; of one that is over, with its end."""
    record = found.record
    tasks: RunTasks = joined or Gone(found.members)
    outcomes = Outcomes(
        record.id, found.folder, joined, found.workers, lambda rank, known: found.lacking(run, rank, known)
    )
    at_end = partial(_let_go, joined, record.id) if joined is not None else lambda: None
    run = Run(
        tasks, record, found.folder, found.workers, found.options, outcomes, None,
        towers=found.towers, at_end=at_end,
    )  # fmt: skip
    outcomes.over = run.ended_bodies
    if joined is not None:
        joined.cluster.active_runs.add(record.id)
    if make_view is not None:
        try:
            run.show_in(make_view(run))
        except Exception as error:  # the run matters more than how it is shown
            run.notes.append(f"the view of run {run.id} failed: {type(error).__name__}: {error}")
    run.notes.extend(fill(run.store, found.folder, answers))
    for info in found.workers:
        answer = answers.get(info.rank)
        if answer is not None and "progress" in answer.meta:
            run.apply_backfill(info, answer)
        else:
            run.show_printed(info, _printed_by(found, info))
    run.set_began(time.monotonic() - max(0.0, (record.ended or time.time()) - record.created))
    if joined is None or len(run.ended_bodies) == len(found.workers):
        deadline = time.monotonic() + OVER_SECONDS
        while not run.poll() and time.monotonic() < deadline:
            time.sleep(0.002)
    return run


def _printed_by(found: _Found, info: TaskInfo) -> str:
    return printed(found.folder, 0 if found.towers else info.rank)


def _let_go(joined: Joined, run: str) -> None:
    joined.cluster.active_runs.discard(run)
    joined.close()


def _selected(members: list[TaskInfo], options: Options) -> list[TaskInfo]:
    try:
        return select(tuple(members), options.on)
    except InvalidArgumentError:  # an old run.json that names no tasks: its points are shown all the same
        return [_named("/job:worker/task:0", 0)]


def _named(name: str, rank: int) -> TaskInfo:
    _, job, task = name.split("/")
    return TaskInfo(job.partition(":")[2], int(task.partition(":")[2]), rank, "", 0, "", "", 0)


# A run's tasks as a client meets them that comes late, and what their bodies have come to.

ASK_SECONDS = 1.0  # between two questions to a task that has not said that its body is over
COMING_SECONDS = 0.02  # and to one that has, and packs the results
ASK_TIMEOUT = 2.0
LAST_WORDS_SECONDS = 1.0


class Joined:
    """A cluster's tasks over connections of its own: who shares one would take another's news."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._making = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._closed = False

    @property
    def tasks(self) -> list[TaskInfo]:
        """The tasks of the cluster."""
        return self.cluster.tasks

    def peer(self, rank: int) -> Peer:
        """Return the connection to a task, made at the first use; all threads share it."""
        info = next(info for info in self.tasks if info.rank == rank)
        with self._making:
            if self._closed:
                raise UnavailableError(f"the connection to {info.name} is closed: the run is over")
            found = self._peers.get(rank)
            if found is None or found.address != info.address:
                found = self._peers[rank] = Peer(info.address, self.cluster.keys, name=info.name)
            return found

    def signal(self, rank: int, signum: int) -> bool:
        """Interrupt a task."""
        return self.cluster.signal(rank, signum)

    def replace(self, tasks: list[TaskInfo]) -> RunReplacement:
        """Begin to replace tasks that did not stop."""
        return self.cluster.replace(tasks)

    def dead(self) -> list[TaskInfo]:
        """Return the tasks that are gone."""
        return self.cluster.dead()

    def controller_died(self) -> str | None:
        """Return how the controller ended, if it has."""
        return self.cluster.controller_died()

    def status(self) -> list[dict[str, Any]]:
        """Return a row per task, with how it ended."""
        return self.cluster.status()

    def close(self) -> None:
        """Close the connections; the last words still go out."""
        with self._making:
            self._closed = True
            for peer in self._peers.values():
                peer.close(LAST_WORDS_SECONDS)


class Gone:
    """Stands for the tasks of a cluster that is gone, or that a run needs no more."""

    def __init__(self, tasks: Sequence[TaskInfo]) -> None:
        self.tasks = list(tasks)

    def peer(self, rank: int) -> Peer:
        """Raise UnavailableError: nobody is there."""
        raise UnavailableError("the tasks of this run have ended")

    def signal(self, rank: int, signum: int) -> bool:
        """Return False: there is no process."""
        return False

    def replace(self, tasks: list[TaskInfo]) -> RunReplacement:
        """Raise UnavailableError: there is nothing to be replaced."""
        raise UnavailableError("the tasks of this run have ended")

    def dead(self) -> list[TaskInfo]:
        """Return nothing: why there is no outcome is said once, for all."""
        return []

    def controller_died(self) -> str | None:
        """Return None, likewise."""
        return None

    def status(self) -> list[dict[str, Any]]:
        """Return no rows."""
        return []


class Outcomes:
    """What bodies that others have started came to, with the face of calls: from the tasks, else the folder.

    ``over`` are the ranks that have said that their bodies are over. ``lacking(rank)`` says what an outcome
    is that nobody has: an error, or {} where that is no harm; it is asked when all others are known.
    """

    def __init__(
        self,
        run: str,
        folder: Path,
        tasks: RunTasks | None,
        workers: Sequence[TaskInfo],
        lacking: Callable[[int, Mapping[int, Any]], Any],
    ) -> None:
        self.over: Collection[int] = ()
        self._run, self._folder, self._tasks, self._lacking = run, folder, tasks, lacking
        self._found: dict[int, Any] = {}
        self._missing: set[int] = set()
        self._pages: dict[int, bytearray] = {}
        self._asked: dict[int, float] = {}
        self._waiting = [info.rank for info in workers]

    def ready_ranks(self) -> list[int]:
        """Return the ranks whose outcome is known; asks for those of the others, a page at a time."""
        for rank in list(self._waiting):
            if self._due(rank):
                self._look(rank)
        if self._missing and not self._waiting:
            known = dict(self._found)
            self._found.update({rank: self._lacking(rank, known) for rank in sorted(self._missing)})
            self._missing.clear()
        return list(self._found)

    def outcome(self, rank: int) -> Any:
        """Return what a rank's body came to, or an exception."""
        if rank not in self._found:
            raise FailedPreconditionError(f"there is no outcome of rank {rank} yet")
        return self._found[rank]

    def _due(self, rank: int) -> bool:
        wait = COMING_SECONDS if rank in self.over else ASK_SECONDS
        return rank in self._pages or time.monotonic() - self._asked.get(rank, 0.0) >= wait

    def _look(self, rank: int) -> None:
        self._asked[rank] = time.monotonic()
        answer = self._ask(rank)
        if answer is None:
            self._settle(rank, self._written(rank))
        elif answer.meta["state"] == "here":
            self._take(rank, answer)

    def _ask(self, rank: int) -> Frame | None:
        """Return what a task says, None if it will never know."""
        if self._tasks is None or rank in {info.rank for info in self._tasks.dead()}:
            return None
        at = len(self._pages.get(rank, b""))
        try:
            answer = self._tasks.peer(rank).call(
                "run.outcome", {"run": self._run, "at": at}, timeout=ASK_TIMEOUT
            )
        except UnavailableError:  # a death is noticed soon; what is cut off for a moment is asked again
            return Frame("run.outcome", {"state": "coming"})
        except NbdistError:  # a task that has never had a run answers no such call
            return None
        return None if answer.meta["state"] == "unknown" else answer

    def _take(self, rank: int, answer: Frame) -> None:
        size = int(answer.meta["size"])
        pages = self._pages.setdefault(rank, bytearray())
        pages += answer.arrays[0].tobytes()
        if size > MOST_BYTES or len(pages) > size or not answer.arrays[0].size:
            self._settle(rank, DataLossError(f"the outcome of rank {rank} does not have the size it claims"))
        elif len(pages) == size:
            try:
                self._settle(rank, decode(memoryview(pages)))
            except DataLossError as error:
                self._settle(rank, error)

    def _written(self, rank: int) -> Any:
        try:
            return read_outcome(self._folder, rank)
        except DataLossError as error:
            return error

    def _settle(self, rank: int, found: Any) -> None:
        self._waiting.remove(rank)
        self._pages.pop(rank, None)
        if found is None:
            self._missing.add(rank)
        else:
            self._found[rank] = found
