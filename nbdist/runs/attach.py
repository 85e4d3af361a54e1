"""Attaches to a run that another process has started, or this one before its kernel was restarted.

run.json       ──► the run's options, its cluster, its tasks
each task      ──► run.watch: how much is in its log, what it has printed; all that follows comes as news
run's folder   ──► points up to there
each task      ──► run.outcome, when its body is over; from the run's folder where the task is gone
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
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
from nbdist.runs.ending import ENDED
from nbdist.runs.following import View
from nbdist.runs.history import runs
from nbdist.runs.late import Gone, Joined, Outcomes
from nbdist.runs.options import Options, select
from nbdist.runs.reach import Tasks
from nbdist.runs.run import Run
from nbdist.runs.sofar import fill, last_words, printed
from nbdist.runtime.task import TaskInfo
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
                    answers[info.rank] = joined.peer(info.rank).call("run.watch", {"run": self.record.id})
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
    tasks: Tasks = joined or Gone(found.members)
    outcomes = Outcomes(
        record.id, found.folder, joined, found.workers, lambda rank, known: found.lacking(run, rank, known)
    )
    at_end = partial(_let_go, joined, record.id) if joined is not None else lambda: None
    run = Run(
        tasks, record, found.folder, found.workers, found.options, outcomes, None,
        towers=found.towers, at_end=at_end,
    )  # fmt: skip
    outcomes.over = run.through
    if joined is not None:
        joined.cluster.going_on.add(record.id)
    if make_view is not None:
        try:
            run.show_in(make_view(run))
        except Exception as error:  # the run matters more than how it is shown
            run.notes.append(f"the view of run {run.id} failed: {type(error).__name__}: {error}")
    run.notes.extend(fill(run.store, found.folder, answers))
    for info in found.workers:
        answer = answers.get(info.rank)
        if answer is not None and "progress" in answer.meta:
            run.join(info, answer)
        else:
            run.hear_text(info, _printed_by(found, info))
    run.began(time.monotonic() - max(0.0, (record.ended or time.time()) - record.created))
    if joined is None or len(run.through) == len(found.workers):
        deadline = time.monotonic() + OVER_SECONDS
        while not run.pump() and time.monotonic() < deadline:
            time.sleep(0.002)
    return run


def _printed_by(found: _Found, info: TaskInfo) -> str:
    return printed(found.folder, 0 if found.towers else info.rank)


def _let_go(joined: Joined, run: str) -> None:
    joined.cluster.going_on.discard(run)
    joined.close()


def _selected(members: list[TaskInfo], options: Options) -> list[TaskInfo]:
    try:
        return select(tuple(members), options.on)
    except InvalidArgumentError:  # an old run.json that names no tasks: its points are shown all the same
        return [_named("/job:worker/task:0", 0)]


def _named(name: str, rank: int) -> TaskInfo:
    _, job, task = name.split("/")
    return TaskInfo(job.partition(":")[2], int(task.partition(":")[2]), rank, "", 0, "", "", 0)
