"""`attach_run`: attaches to a run that another process started, or this one before its kernel was restarted.

run.json       ──► options, cluster and tasks of the run
each task      ──► run.subscribe: position in its log, its output; later messages follow
run's folder   ──► points up to there
each task      ──► run.outcome, when its body has ended; if the task has ended too, from the run's folder
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.control_channel import Request
from nbdist.cluster.folder import is_process_alive, is_this_process, living
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
    UnavailableError,
)
from nbdist.metrics.run_folder import RunFile, read_run, run_folder
from nbdist.run.files.left import Left
from nbdist.run.files.mirror import Mirror
from nbdist.run.files.place import marked
from nbdist.run.finish import ENDED, keep_timeline
from nbdist.run.follow import View
from nbdist.run.history import known_run, runs
from nbdist.run.membership import MembershipRules
from nbdist.run.options import Options, select
from nbdist.run.protocols import RunCalls, RunTasks
from nbdist.run.record import RunRecord
from nbdist.run.recovery.member import Members
from nbdist.run.recovery.ownership import Handover, RunOwnership
from nbdist.run.recovery.replacement import BodyLauncher
from nbdist.run.remote import EndedTasks, RemoteOutcomes, RemoteTasks
from nbdist.run.resumable import members_of, named_task, options_of
from nbdist.run.run import Run, left_workers
from nbdist.run.start import RunLauncher, continue_after, opened, prepare
from nbdist.run.task.agent import BODY_REQUEST, install
from nbdist.run.values.backfill import backfill_store, log_end, printed
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.frame import Frame

OVER_SECONDS = 30.0  # limit for fetching the results of a run that has ended
COPY_SECONDS = 5.0  # for the logs of tasks on other hosts


def attach_run(run_id: str | None = None, *, make_view: Callable[[Run], View] | None = None) -> Run:
    """Return a run that another process started, with all that it has logged and printed so far.

    - ``run_id``: the run's id; None for the latest that is under way, else the latest
    - ``make_view``: returns the view that shows the run; None for no view

    The caller follows it or waits for it. A run that has ended is returned with its history and those of its
    results that were stored. Raises NotFoundError for an unknown id, and
    FailedPreconditionError where another version of nbdist, or another process, has the run.
    """
    record = find_run(run_id)
    found = _RecordedRun(record)
    cluster = found.cluster()
    if cluster is None:
        with suppress(NotFoundError):
            cluster = Cluster.current()
        return _opened_as_left(found, cluster, make_view)
    remote = RemoteTasks(cluster)
    if found.towers:  # the process that drove them has ended
        found.release(remote)
        return _opened(found, None, {}, make_view)
    answers = found.ask(remote)
    mirror = Mirror.of(marked(found.folder), cluster)
    if not any(answer.meta["state"] != "unknown" for answer in answers.values()):
        if not found.settled:
            found.why = f"the tasks of cluster {cluster.id} do not know it"
        remote.close()
        return _opened_as_left(found, cluster, make_view, own=True)
    if mirror.place.token:
        for rank in found.living(remote):
            mirror.add(rank)
        mirror.catch_up(COPY_SECONDS)
        for rank, answer in answers.items():
            if "log" in answer.meta:
                size = int(answer.meta["size"])
                answer.meta["log"] = mirror.log(rank, answer.meta["log"], size, COPY_SECONDS).name
    return _opened(found, remote, answers, make_view, mirror)


def find_run(run_id: str | None) -> RunFile:
    """Return the record of a run; without an id, of the latest that is under way, else of the latest."""
    if run_id is not None:
        return known_run(run_id)
    known = [run for run in runs() if run.kind == "run" and run.status != "damaged"]
    if not known:
        raise NotFoundError("no run is on record; %%distribute starts one")
    return latest_of(known, living())


def latest_of(known: list[RunFile], alive: list[str]) -> RunFile:
    """Return the first run, newest first, whose cluster is alive and that has no end; else the newest.

    >>> old = RunFile("1", status="running", cluster={"id": "a"})
    >>> latest_of([RunFile("2", status="finished", cluster={"id": "a"}), old], ["a"]).id
    '1'
    """
    going = [run for run in known if run.status not in ENDED and run.cluster.get("id") in alive]
    return (going or known)[0]


class _RecordedRun:
    """A run as its run.json describes it: its tasks, and whether they can still be reached."""

    def __init__(self, record: RunFile) -> None:
        self.record, self.folder, self.left = RunRecord.of(record), run_folder(record.id), Left(record)
        options = options_of(record)
        self.settled = record.status in ENDED
        self.members = members_of(record)
        ranks = self.record.workers if "workers" in record.cluster else None
        chosen = [info for info in self.members if ranks is None or info.rank in ranks]
        if ranks is not None:  # their order numbers the replicas
            chosen.sort(key=lambda info: ranks.index(info.rank))
        if ranks is not None and (not ranks or {info.rank for info in chosen} != set(ranks)):
            there = ", ".join(str(info.rank) for info in self.members) or "none"
            raise DataLossError(
                f"{self.folder / 'run.json'} is damaged: the run's workers are the ranks {list(ranks)!r:.80} "
                f"of its cluster, and the cluster's members are {there}. nb.runs() still lists the run, and "
                "its delete() removes it"
            )
        self.workers = chosen if ranks is not None else _selected(self.members, options)
        self.towers: list[TaskInfo] = []
        self.why = f"cluster {record.cluster.get('id', '?')} of run {record.id} has ended"
        servers = sum(info.job == "ps" for info in self.members)
        self.rules = MembershipRules.of(options, len(self.workers), servers)
        if options.replicated.in_client:
            self.towers = self.workers
            self.workers = [
                named_task("/job:client/task:0", 1 + max((i.rank for i in self.members), default=0))
            ]
            self._look_at_owner()

    def _look_at_owner(self) -> None:
        """Check the owner of an in-graph run: the body runs in the process that started it."""
        owner = self.record.owner
        if not self.settled and owner and is_process_alive(owner):
            where = "in this very notebook" if is_this_process(owner) else f"in process {owner['pid']}"
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
        """Return the run's cluster, None if it has ended; FailedPreconditionError if it cannot be used."""
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
        """Whether the run was on that cluster, not on an earlier one of the same name."""
        known = {info.incarnation for info in self.members}
        return known == {0} or any(info.incarnation in known for info in cluster.tasks)

    def release(self, remote: RemoteTasks) -> None:
        """Release the tasks that the run has reserved; they write their parts of its timeline."""
        meta = {"run": self.record.id, **marked(self.folder).to_meta()}
        dead = {info.rank for info in remote.dead()}
        for info in remote.tasks:
            if info.rank not in dead:
                with suppress(NbdistError):
                    keep_timeline(self.folder, info, remote.peer(info.rank).call("run.release", meta))
        remote.close()

    def living(self, remote: RemoteTasks) -> list[int]:
        """Return the ranks of its workers that may have files of it."""
        there = {info.rank for info in remote.tasks} - {info.rank for info in remote.dead()}
        return [info.rank for info in self.workers if info.rank in there]

    def ask(self, remote: RemoteTasks) -> dict[int, Frame]:
        """Subscribe to every worker; return their backfills by rank."""
        answers = {}
        dead = {info.rank for info in remote.dead()}
        dead |= {info.rank for info, _ in left_workers(self.record, self.workers)}
        for info in self.workers:
            if info.rank not in dead:
                # A worker that dies now is noticed later; one that was replaced does not know the run.
                with suppress(NbdistError):
                    answers[info.rank] = remote.peer(info.rank).call("run.subscribe", {"run": self.record.id})
        for info in self.workers:
            answer = answers.get(info.rank)
            if info.rank not in dead and (answer is None or answer.meta["state"] == "unknown"):
                self.why = f"{info.name} does not know run {self.record.id}: it was replaced, or runs another"
        return answers

    def lacking(self, run: Run, rank: int, known: Mapping[int, Any]) -> Any:
        """Return what stands for an outcome that no task and no file has."""
        if self.settled:
            return {}
        chief = known.get(self.workers[0].rank)
        ended_well = isinstance(chief, dict) and not chief.get("error")
        if ended_well and self.rules.least() is not None:  # the others may continue without it
            return {}
        return UnavailableError(f"{self.why}; {log_end(run.store)}. What it logged is in {self.folder}")


def _opened_as_left(
    found: _RecordedRun, cluster: Cluster | None, make_view: Callable[[Run], View] | None, own: bool = False
) -> Run:
    """Return a run that no task knows any more, with what the hosts of a cluster still have of it."""
    missing = found.left.fetch(cluster, prepare, own)
    run = _opened(found, None, {}, make_view)
    run.notes.extend(missing)
    return run


def _opened(
    found: _RecordedRun,
    remote: RemoteTasks | None,
    answers: Mapping[int, Frame],
    make_view: Callable[[Run], View] | None,
    mirror: Mirror | None = None,
) -> Run:
    """Return the run with its points and output so far, and with its end if it has ended."""
    record = found.record
    tasks: RunTasks = remote or EndedTasks(found.members, not found.towers and found.left.has_end())
    owned = None
    if remote is not None and mirror is not None and not found.settled:
        owned = _AttachedRun(found, remote, mirror)
    outcomes = RemoteOutcomes(
        record.id, found.folder, remote, found.workers, lambda rank, known: found.lacking(run, rank, known),
        is_settled=(lambda: True) if owned is None else owned.is_settled,
        queue=None if owned is None else owned.queue,
    )  # fmt: skip
    at_end = partial(_release, remote, record.id) if remote is not None else lambda: None
    run = Run(
        tasks, record, found.folder, found.workers, found.rules, outcomes,
        towers=found.towers, at_end=at_end,
        ownership=None if owned is None else owned.ownership, takes_over=owned, mirror=mirror,
    )  # fmt: skip
    if owned is not None:
        owned.outcomes, owned.members = outcomes, run.members
    run.show_restarts()
    outcomes.over = lambda: run.members.ended_bodies
    if remote is not None:
        remote.cluster.active_runs.add(record.id)
        if not found.settled:
            continue_after(remote.cluster, run)
    opened(run, make_view)
    run.notes.extend(backfill_store(run.store, found.folder, answers))
    for info in found.workers:
        answer = answers.get(info.rank)
        if answer is not None and "progress" in answer.meta:
            run.apply_backfill(info, answer)
        else:
            run.show_printed(info, printed(found.folder, 0 if found.towers else info.rank))
            if found.settled:  # its task has run another body since, and says no more of this one
                body = run.members.worker(info.rank).body
                body.has_ended = body.is_silent = True
    run.show_displays()
    while run.becomes_owner():
        time.sleep(0.002)
    run.tally.set_began(time.monotonic() - max(0.0, (record.ended or time.time()) - record.created))
    if remote is None or len(run.members.ended_bodies) == len(found.workers):
        deadline = time.monotonic() + OVER_SECONDS
        while not run.poll() and time.monotonic() < deadline:
            time.sleep(0.002)
    return run


class _AttachedRun:
    """What an attached client does about lost tasks of a run: it observes its owner, or is the owner."""

    outcomes: RemoteOutcomes
    members: Members

    def __init__(self, found: _RecordedRun, remote: RemoteTasks, mirror: Mirror) -> None:
        self._found, self._remote, self._cluster = found, remote, remote.cluster
        self._mirror = mirror
        ask = partial(Request, self._cluster.client, kind=BODY_REQUEST, argument=found.record.id)
        self._handover = Handover(lambda rank: ask(rank=rank), self._living)
        self.ownership = RunOwnership(found.folder, self._handover)

    def launcher(self, workers: Sequence[TaskInfo]) -> BodyLauncher | None:
        """Return what starts the body of workers on new processes, None if no task has handed it over."""
        if self._handover.found is None:
            return None
        spec, body = self._handover.found
        rules = self._found.rules
        servers = [one.rank for one in rules.servers(self._cluster.tasks)]
        ranks = tuple(info.rank for info in workers)  # others than the task knew, if the run was resized
        made = RunLauncher(
            self._cluster, self._remote, dataclasses.replace(spec, ranks=ranks), body, None,
            self._mirror, [*ranks, *servers], rules.why_fixed,
        )  # fmt: skip
        for info, _ in left_workers(self._found.record, workers):
            made.remove(info.rank)
        return made

    def install_agent(self, info: TaskInfo) -> RunCalls:
        """Begin to create the agent of a task that runs no body."""
        return self._cluster.submit(install, on=info.rank)

    def expect(self, rank: int) -> RunCalls:
        """Return the call that knows the outcome of a rank's new process."""
        return self.outcomes.expect(rank)

    def is_settled(self) -> bool:
        """Whether no other client may replace a dead task: this one is the owner, or the run has ended."""
        if self.ownership.is_owner or self.ownership.problem or self._cluster.controller_died():
            return True
        with suppress(NbdistError):
            return read_run(self._found.record.id).status in ENDED
        return False

    def queue(self, rank: int) -> RunCalls | None:
        """Submit a call that does nothing to a rank's engine; None if another client may own the run."""
        with suppress(NbdistError):
            return self._cluster.submit(bool, on=rank) if self.ownership.is_owner else None
        return None

    def _living(self) -> list[TaskInfo]:
        dead = {info.rank for info in self._cluster.dead()}
        ranks = {info.rank for info in self.members.infos} - dead
        return [info for info in self._cluster.tasks if info.rank in ranks]


def _release(remote: RemoteTasks, run: str) -> None:
    remote.cluster.active_runs.discard(run)
    remote.close()


def _selected(members: list[TaskInfo], options: Options) -> list[TaskInfo]:
    try:
        return select(tuple(members), options.on)
    except InvalidArgumentError:  # an old run.json that names no tasks: its points are shown all the same
        return [named_task("/job:worker/task:0", 0)]
