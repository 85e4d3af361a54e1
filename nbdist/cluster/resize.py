"""Resize a running cluster: `ScaleUp` adds workers, `ScaleDown` removes them, `ReplaceTask` restarts tasks.

    change = ReplaceTask(cluster, supervisor, tasks)
    while not change.poll():                         # forked, registered, Server opened, committed
        ...
    change.tasks                                     # the tasks that were started

`poll` never blocks for long, so that a client can follow a run in the same thread. A change takes the
supervisor's lock (`ChangeLock` in `supervisor/process.py` gives the reason), starts the new processes, sends
the new roster to all tasks, and commits it at the supervisor. Until the commit it can be aborted; the commit
is atomic.

All other tasks keep their namespaces, threads and runs. A new worker has the next free rank, after the
parameter servers, and the index after that of the last worker.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbdist.cluster import task_setup as on_task
from nbdist.cluster.affinity import worker_cores
from nbdist.cluster.calls import open_server
from nbdist.cluster.description import change_description, read_description
from nbdist.cluster.folder import runs_on
from nbdist.cluster.hub import EXIT_SECONDS, HubEngines, is_engine_death, write_ipyparallel_files
from nbdist.cluster.launchers.registry import find_launcher
from nbdist.cluster.placement import place_more
from nbdist.cluster.resources import (
    HERE,
    MOST_TASKS,
    HostResources,
    TaskPlan,
    parse_memory,
    plan_task,
    resources_of,
    share_of,
)
from nbdist.cluster.supervisor.client import CONTROLLER, SupervisorClient, describe_exit
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    UnavailableError,
)
from nbdist.interrupts import HeldInterrupts
from nbdist.machine import count_cores
from nbdist.numbers import is_whole
from nbdist.runtime.task import Roster, TaskInfo
from nbdist.wire.rpc.frame import Frame

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

ASK_SECONDS = 5.0  # for the supervisor to answer
START_SECONDS = 30.0  # limit for a process to start on a busy host
ANSWER_SECONDS = 1.0  # for all other tasks together; a frozen one receives the message later
POLL_SECONDS = 0.002
LEAVE_SECONDS = 25.0  # for workers that train to make the step after which they leave a run
BODY_SECONDS = 3.0  # for workers whose bodies are not in fit, or paused
LEAVING_SECONDS = 0.03  # between two checks of whether they have left
LEFT_SECONDS = 0.2  # for the outcomes of workers that have left to reach the client of the run
NOT_LEFT = {
    "paused": ". It is paused, and its workers leave it between two steps: let it continue",
    "body": ". Its workers leave it between two steps of fit(), and have not reached one in time",
}
CHANGED = "another client has just changed the cluster; try again"


class Change(ABC):
    """A change of a cluster's tasks in progress; call ``poll`` until it returns True.

    Then ``tasks`` are the tasks that were started or removed, ``seconds`` is how long it took, and ``notes``
    are sentences for the user.
    """

    retry_advice = "try again"
    """The end of the error message of a change that took too long."""

    def __init__(
        self, cluster: Cluster, supervisor: SupervisorClient, timeout: float = START_SECONDS
    ) -> None:
        self.tasks: list[TaskInfo] = []
        self.notes: list[str] = []
        self.seconds = 0.0
        self.done = False
        self._cluster, self._supervisor, self._client = cluster, supervisor, cluster.client
        self._begun = time.monotonic()
        self._deadline = self._begun + timeout
        self._change_id = secrets.token_hex(8)
        self._forked: dict[int, int] = {}  # rank -> pid of a process that is starting
        self._starting: Sequence[TaskInfo | TaskPlan] = ()
        self._steps = self._run()

    @property
    def begun(self) -> bool:
        """Whether it has begun to start processes."""
        return bool(self._forked)

    def poll(self) -> bool:
        """Take the steps that are possible now; return whether the change is committed.

        If a step fails, the change is aborted and the error is raised.
        """
        if self.done:
            return True
        try:
            next(self._steps)
        except StopIteration:
            self.done, self.seconds = True, time.monotonic() - self._begun
        except BaseException:
            self.done = True
            with suppress(NbdistError):  # the first error is the one to raise
                self._ask("abort")
            raise
        return self.done

    def wait(self) -> list[TaskInfo]:
        """Poll until the change is committed; return its tasks. An interrupt aborts it."""
        try:
            while not self.poll():
                self._supervisor.listen(POLL_SECONDS)
        except KeyboardInterrupt:
            self.abort()
            raise
        return self.tasks

    def abort(self) -> None:
        """Abort the change, unless it is committed."""
        if not self.done:
            self.done = True
            self._steps.close()
            with suppress(UnavailableError):  # it did not hold the lock yet
                self._ask("abort")

    @abstractmethod
    def _run(self) -> Generator[None, None, None]:
        """Make the change; yield wherever it has to wait."""

    def _describe_failed(self, info: TaskInfo | TaskPlan, pid: int) -> str:
        """Return the subject of the message that says how a new process ended."""
        return f"{info.name} (pid {pid})"

    def _ask(self, request: str, timeout: float = ASK_SECONDS, **entries: Any) -> dict[str, Any]:
        return self._supervisor.ask(request, timeout, change=self._change_id, **entries)

    def _start_tasks(self, starting: Sequence[TaskInfo | TaskPlan]) -> Iterator[None]:
        """Fork processes, open their Servers, and commit the roster that has them."""
        self._starting, ranks = starting, {info.rank for info in starting}
        yield from self._until(lambda: not self._living(ranks), "to end")  # of a change that was aborted
        engines = HubEngines(self._client)
        yield from self._until(lambda: none_of(ranks, engines.ids()), "to be forgotten by the hub")
        places: dict[int, str] = {}
        for info in starting:
            left = max(1.0, self._deadline - time.monotonic())  # a host may still import its libraries
            reply = self._ask("fork", left, rank=info.rank)
            self._forked[info.rank], places[info.rank] = reply["pid"], reply["host"]
            self.notes += [f"{info.name}: {reply['note']}"] if reply.get("note") else []
        yield from self._until(lambda: ranks <= (engines.ids() or set()), "to register")
        views = {info.rank: self._client.direct_view(info.rank, block=False) for info in starting}
        keys, cluster_id = self._cluster.keys.to_dict(), self._cluster.id
        opening = [
            open_server(
                views[info.rank], info, keys, self._supervisor.place_of(places[info.rank]), cluster_id
            )
            for info in starting
        ]
        yield from self._until(lambda: all(call.ready() for call in opening), "to open its Server")
        opened = []
        for call in opening:
            opened.append(TaskInfo.from_dict((yield from self._result(call))))
        now = {info.rank: info for info in (*self._cluster.tasks, *opened)}
        roster = tuple(now[rank] for rank in sorted(now))
        entries = [info.to_dict() for info in roster]
        joining = [view.apply_async(on_task.join_roster, entries, cluster_id) for view in views.values()]
        yield from self._until(lambda: all(call.ready() for call in joining), "to join the others")
        for call in joining:
            yield from self._result(call)
        self.tasks = opened
        self._commit(roster, ranks)

    def _living(self, ranks: set[int]) -> bool:
        """Return whether a process of one of the ranks lives."""
        living = self._supervisor.ask("status")["pids"]
        return any(str(rank) in living for rank in ranks)

    def _commit(self, roster: Roster, but: set[int]) -> None:
        """Send the roster to all tasks except ``but``, then to the supervisor, which sends it to all clients.

        An interrupt is handled before or after. The supervisor's commit decides: a client that dies before it
        leaves the cluster as it was.
        """
        with HeldInterrupts():
            self._send_roster(roster, but)
            self._ask("commit", tasks=[info.to_dict() for info in roster])
            try:
                self._write_description(roster)
            except OSError as error:
                self.notes.append(
                    f"{self._cluster.folder}/cluster.json could not be written: {error.strerror}"
                )

    def _send_roster(self, roster: Roster, but: set[int]) -> None:
        """Send the roster to the other living tasks; a frozen one receives it when it continues."""
        dead = {info.rank for info in self._cluster.dead()}
        others = [info for info in roster if info.rank not in dead | but]
        list(ask_tasks(self._cluster, others, "task.roster", {"tasks": [info.to_dict() for info in roster]}))

    def _write_description(self, roster: Roster) -> None:
        folder = self._cluster.folder
        before = read_description(folder)
        now = before.now(roster)
        changes: dict[str, Any] = {name: getattr(now, name) for name in ("workers", "ps", "data")}
        if len(roster) != len(before.tasks):
            changes["listing"] = write_ipyparallel_files(folder, self._supervisor.pids[CONTROLLER], roster)
        change_description(folder, tasks=[info.to_dict() for info in roster], **changes)

    def _result(self, call: Any) -> Generator[None, None, Any]:
        try:
            return call.get()
        except Exception as error:
            if is_engine_death(error):
                given_up = time.monotonic() + EXIT_SECONDS
                yield from self._until(lambda: time.monotonic() > given_up, "to end")
            raise UnavailableError(f"{self._names()}: the Server did not start: {error}") from error

    def _until(self, condition: Callable[[], bool], what: str) -> Iterator[None]:
        """Yield until the condition holds; raises if a new process dies, or at the deadline."""
        while not condition():
            ended = self._supervisor.ended()
            for info in self._starting:
                how = ended.get(info.rank)
                if how is not None and how["pid"] == self._forked.get(info.rank):
                    raise UnavailableError(
                        f"{self._describe_failed(info, how['pid'])} did not start: {describe_exit(how)}; "
                        f"its log ends with:\n{how['log'].strip() or '(nothing)'}"
                    )
            if self._supervisor.closed:
                raise UnavailableError(f"cluster {self._cluster.id} has ended: its cluster process has died")
            if time.monotonic() > self._deadline:
                waited = time.monotonic() - self._begun
                raise DeadlineExceededError(
                    f"{self._names()}: waited {waited:.0f} s for it {what}; {self.retry_advice}"
                )
            yield

    def _names(self) -> str:
        return ", ".join(info.name for info in self._starting)


def none_of(ranks: set[int], found: set[int] | None) -> bool:
    """Return whether ``found`` is known and has none of the ranks."""
    return found is not None and not ranks & found


def check_unused(cluster: Cluster, tasks: Sequence[TaskInfo]) -> None:
    """Raise FailedPreconditionError while a run is using one of the tasks."""
    for run, used in users_of(cluster, tasks).items():
        raise in_use(run, used.tasks)


def in_use(run: str, tasks: Sequence[TaskInfo], why: str = "") -> FailedPreconditionError:
    """Return the error for tasks that a run uses; ``why`` says why they cannot leave it."""
    return FailedPreconditionError(
        f"run {run} is using {', '.join(info.name for info in tasks)}: end it first (its stop button, "
        f"run.stop() or an interrupt; from another notebook, nb.attach({run!r}).stop()); a task that does "
        f"not stop is replaced then{why}"
    )


@dataclass
class Used:
    """The tasks that a run uses, and why no worker can leave it: empty if they can, None if not known."""

    tasks: list[TaskInfo]
    fixed: str | None

    def check(self, run: str) -> None:
        """Raise FailedPreconditionError unless they can leave it."""
        if self.fixed != "":
            raise in_use(
                run, self.tasks, f". Its workers cannot leave it: {self.fixed}" if self.fixed else ""
            )


def users_of(cluster: Cluster, tasks: Sequence[TaskInfo]) -> dict[str, Used]:
    """Return which of the tasks each run uses.

    One answer of any task of the run is enough; a task that does not answer in a second, for example a frozen
    one, is skipped. A run does not use the tasks that it has lost and continues without, nor those that have
    left it.
    """
    answers = answers_of(cluster)
    unused = {(meta["run"], rank) for _, meta in answers for rank in meta["lost"]}
    unused |= {(meta["left"], info.rank) for info, meta in answers}
    found: dict[str, Used] = {}
    for _, meta in answers:
        run, ranks = meta["run"], meta["ranks"]
        used = [
            info for info in tasks if (ranks is None or info.rank in ranks) and (run, info.rank) not in unused
        ]
        if run and used:
            one = found.setdefault(run, Used([], meta["fixed"]))
            one.tasks += [info for info in used if info not in one.tasks]
            one.fixed = meta["fixed"] if one.fixed is None else one.fixed
    return found


def answers_of(cluster: Cluster) -> list[tuple[TaskInfo, dict[str, Any]]]:
    """Return each living task of a cluster with its answer to ``run.using``."""
    dead = {info.rank for info in cluster.dead()}
    living = [info for info in cluster.tasks if info.rank not in dead]
    by_rank = {info.rank: info for info in living}
    answers = [answer.meta for answer in ask_tasks(cluster, living, "run.using")]
    return [(by_rank[meta["rank"]], meta) for meta in answers]


def ask_tasks(
    cluster: Cluster, tasks: Sequence[TaskInfo], kind: str, meta: dict[str, Any] | None = None
) -> Iterator[Frame]:
    """Send a request to tasks, all at once, and yield the answers that arrive in time."""
    until = time.monotonic() + ANSWER_SECONDS
    calls = []
    for info in tasks:
        with suppress(NbdistError):
            peer = cluster.peer(info.rank)
            calls.append((peer, peer.ask(kind, meta, timeout=ANSWER_SECONDS)))
    for peer, call in calls:
        with suppress(NbdistError):  # it is frozen, has just died, or does not know the request
            yield peer.answer(call, timeout=max(0.05, until - time.monotonic()))


# More workers: `Cluster.grow`.


def grow(
    cluster: Cluster, supervisor: SupervisorClient, workers: int, report: Callable[[str], object]
) -> list[TaskInfo]:
    """Start more workers on a cluster and return them when all tasks have the new roster."""
    tasks = cluster.tasks
    check_more(workers, len(tasks))
    description = read_description(cluster.folder)
    if (spec := find_launcher(description.launcher)).fixed_size:
        raise FailedPreconditionError(
            f"cluster {cluster.id} cannot grow: {spec.fixed_size}. End it (%cluster stop) and start a larger "
            f"one (%cluster start --launcher {spec.name} --workers "
            f"{sum(info.job == 'worker' for info in tasks) + workers})"
        )
    if description.slots:
        gpus = description.asked.get("gpus", "auto")
        usable = [one for one in supervisor.hosts.values() if one["versions"] == dict(description.versions)]
        if not usable:
            cluster.check_job()
            raise UnavailableError(f"cluster {cluster.id} has no host left: stop it (%cluster stop)")
        slots = {report["name"]: description.slots.get(report["name"], 1) for report in usable}
        used = [info.node for info in tasks if info.job == "worker"]
        after = Counter([*used, *place_more([info.node for info in tasks], used, slots, workers)])
        hosts = {report["name"]: resources_of(report, gpus, after[report["name"]]) for report in usable}
    else:
        count = 1 + max(index for index, _ in free_positions(tasks, workers))
        gpus = description.gpus
        hosts, slots = {HERE: HostResources(count_cores(), gpus, worker_cores(count, gpus))}, {HERE: count}
    plans = plan_more(tasks, workers, description.asked, hosts, slots)
    change = ScaleUp(cluster, supervisor, plans)
    new = change.wait()
    report(describe_scale_up(change, cluster))
    return new


class ScaleUp(Change):
    """Adds tasks; aborted, it leaves the cluster as it was."""

    retry_advice = "the cluster is as it was; try again with %cluster grow"

    def __init__(
        self,
        cluster: Cluster,
        supervisor: SupervisorClient,
        plans: Sequence[TaskPlan],
        timeout: float = START_SECONDS,
    ) -> None:
        super().__init__(cluster, supervisor, timeout)
        self.plans = list(plans)

    def _run(self) -> Generator[None, None, None]:
        self._ask("scale_up", tasks=[plan.to_dict() for plan in self.plans])
        if free_positions(self._cluster.tasks, len(self.plans)) != [
            (plan.index, plan.rank) for plan in self.plans
        ]:
            raise UnavailableError(CHANGED)
        yield from self._start_tasks(self.plans)

    def _describe_failed(self, info: TaskInfo | TaskPlan, pid: int) -> str:
        return f"the cluster is as it was: the new {info.name} (pid {pid})"


def plan_more(
    tasks: Sequence[TaskInfo],
    workers: int,
    asked: Mapping[str, Any],
    hosts: Mapping[str, HostResources],
    slots: Mapping[str, int],
) -> tuple[TaskPlan, ...]:
    """Return the plans of that many more workers, for a cluster of these tasks with the options ``asked``.

    ``hosts`` are what its hosts have, and ``slots`` how many workers each may have. Each new one gets what it
    would have in a cluster that was as large from the start: its share of the cores, and the next of its
    host's GPUs, in turn. The other tasks keep what they have.

    >>> one = TaskInfo("worker", 0, 0, "here", 7, "127.0.0.1:80", "CPU:0", 1)
    >>> ps = TaskInfo("ps", 0, 1, "here", 8, "127.0.0.1:81", "CPU:0", 2)
    >>> more = plan_more([one, ps], 2, {}, {HERE: HostResources(2)}, {HERE: 3})
    >>> [(plan.name, plan.rank) for plan in more]
    [('/job:worker/task:1', 2), ('/job:worker/task:2', 3)]
    """
    places, threads = [info.node for info in tasks], asked.get("threads")
    used = [info.node for info in tasks if info.job == "worker"]
    new = place_more(places, used, slots, workers)
    on_host, plans = Counter([*places, *new]), []
    for (index, rank), host in zip(free_positions(tasks, workers), new, strict=True):
        own = hosts[host]
        plans.append(
            plan_task(
                "worker", index, rank, share_of(own.cores, on_host[host], threads), host=host,
                slot=used.count(host), gpus=own.gpus, threads=threads, bound=own.bound,
                gpu_memory=asked.get("gpu_memory"), memory=parse_memory(asked.get("memory")),
            )
        )  # fmt: skip
        used.append(host)
    return tuple(plans)


def free_positions(tasks: Sequence[TaskInfo], workers: int) -> list[tuple[int, int]]:
    """Return the index and rank of the next workers: indices without a gap, the lowest free ranks."""
    first = 1 + max((info.index for info in tasks if info.job == "worker"), default=-1)
    taken = {info.rank for info in tasks}
    ranks = [rank for rank in range(len(tasks) + workers) if rank not in taken]
    return list(zip(range(first, first + workers), ranks, strict=False))


def check_more(workers: int, tasks: int) -> None:
    """Raise InvalidArgumentError for a number of workers that cannot be added to ``tasks`` tasks.

    Raises FailedPreconditionError if there is room for none.

    >>> check_more(509, 3)
    """
    most = MOST_TASKS - tasks
    if most < 1:
        raise FailedPreconditionError(
            f"the cluster has {tasks} tasks, as many as a host may have: no worker can be added"
        )
    if not is_whole(workers, 1, most):
        fewer = "; %cluster shrink ends workers" if is_whole(workers, most=-1) else ""
        raise InvalidArgumentError(
            f"workers is a whole number of 1 to {most}, not {workers!r}: a host may have {MOST_TASKS} "
            f"tasks{fewer}"
        )


def describe_scale_up(change: ScaleUp, cluster: Cluster) -> str:
    """Return the message that lists the new tasks."""
    new = ", ".join(f"{info.name} (rank {info.rank}, pid {info.pid})" for info in change.tasks)
    lines = [f"grown in {change.seconds:.2f} s by {new}: {cluster.counted}", *change.notes]
    share = change.plans[0].threads
    before = read_description(cluster.folder).asked.get("threads") or share_of(
        count_cores(), len(cluster.tasks) - len(change.tasks)
    )
    if share != before:
        each = f"{share} thread{'s' * (share > 1)}"
        lines.append(f"the new ones compute on {each} each (cores / tasks); the others keep what they have")
    runs = runs_on(cluster.folder)
    resizing = {meta["run"] for _, meta in answers_of(cluster) if meta["fixed"] == ""} if runs else ()
    for run in runs:
        if run in resizing:
            lines.append(f"run {run} continues; the new ones join it between two steps of its training")
        else:
            lines.append(f"run {run} continues on its tasks; the next run uses the new ones too")
    return "\n".join(lines)


# Fewer workers: `Cluster.shrink`.


def shrink(
    cluster: Cluster, supervisor: SupervisorClient, workers: int, report: Callable[[str], object]
) -> list[TaskInfo]:
    """End the last ``workers`` workers of a cluster, which leave the run that uses them; return them."""
    leaving = last_workers(cluster.tasks, workers)
    if why := find_launcher(read_description(cluster.folder).launcher).fixed_size:
        raise FailedPreconditionError(
            f"cluster {cluster.id} cannot shrink: {why}. End it (%cluster stop) and start a smaller one, or "
            "use fewer workers with --on worker:0-1"
        )
    for run, used in users_of(cluster, leaving).items():
        used.check(run)
    change = ScaleDown(cluster, supervisor, leaving)
    change.wait()
    names = ", ".join(f"{info.name} (pid {info.pid})" for info in leaving)
    lines = [f"shrunk in {change.seconds:.2f} s by {names}: {cluster.counted}", *change.notes]
    lines += [
        f"run {run} continues without {'it' if len(leaving) == 1 else 'them'}" for run in sorted(change.left)
    ]
    report("\n".join(lines))
    return leaving


class ScaleDown(Change):
    """Removes tasks: they leave the run that uses them, all others receive the roster, and then they end.

    ``left`` are the runs that tasks have left.
    """

    def __init__(self, cluster: Cluster, supervisor: SupervisorClient, leaving: Sequence[TaskInfo]) -> None:
        super().__init__(cluster, supervisor)
        self.left: set[str] = set()
        self.tasks = list(leaving)
        self._starting = self.tasks

    def _run(self) -> Generator[None, None, None]:
        ranks = {info.rank for info in self.tasks}
        self._ask("scale_down", pids={info.rank: info.pid for info in self.tasks})
        if last_workers(self._cluster.tasks, len(ranks)) != self.tasks:
            raise UnavailableError(CHANGED)
        yield from self._leave_runs()
        self._commit(tuple(info for info in self._cluster.tasks if info.rank not in ranks), set())
        engines = HubEngines(self._client)
        yield from self._until(lambda: none_of(ranks, engines.ids()), "to be forgotten by the hub")

    def _leave_runs(self) -> Iterator[None]:
        """Have the tasks leave the runs that use them, between two steps; those that die have left.

        Raises FailedPreconditionError if a run does not let them, or they have not left in time, because
        their bodies are not in ``fit``. They stay then, but for those that have left already.
        """
        begun, ranks = time.monotonic(), [info.rank for info in self.tasks]
        asked: dict[str, list[TaskInfo]] = {}
        try:
            while used := users_of(self._cluster, self.tasks):
                states: set[str] = set()
                dead = self._cluster.dead()
                for run, one in used.items():
                    one.check(run)
                    asked[run] = one.tasks
                    meta = {"run": run, "ranks": ranks, "leaves": True}
                    for peer in (self._cluster.peer(info.rank) for info in one.tasks if info not in dead):
                        with suppress(UnavailableError):  # it has just died
                            states.add(peer.call("run.leave", meta, timeout=ANSWER_SECONDS).meta["state"])
                if all(info in dead for one in used.values() for info in one.tasks):
                    break
                limit = LEAVE_SECONDS if states <= {"fits", "free"} else BODY_SECONDS
                if time.monotonic() > begun + limit:
                    run, one = next(iter(used.items()))
                    raise in_use(run, one.tasks, NOT_LEFT["paused" if "paused" in states else "body"])
                until = time.monotonic() + LEAVING_SECONDS
                while time.monotonic() < until:
                    yield
        except BaseException:
            for run, tasks in asked.items():
                meta = {"run": run, "ranks": ranks, "leaves": False}
                list(ask_tasks(self._cluster, tasks, "run.leave", meta))
            raise
        self.left, until = set(asked), time.monotonic() + LEFT_SECONDS
        while asked and time.monotonic() < until:
            yield


def last_workers(tasks: Sequence[TaskInfo], workers: int) -> list[TaskInfo]:
    """Return the last ``workers`` workers by index; InvalidArgumentError unless the first one stays.

    >>> tasks = [TaskInfo("worker", i, i, "here", 7, "127.0.0.1:80", "CPU:0", i) for i in range(3)]
    >>> [info.name for info in last_workers(tasks, 2)]
    ['/job:worker/task:1', '/job:worker/task:2']
    """
    all_workers = sorted((info for info in tasks if info.job == "worker"), key=lambda info: info.index)
    most = len(all_workers) - 1
    if not most:
        raise FailedPreconditionError(
            "the cluster has one worker, the chief, which stays; %cluster stop ends it"
        )
    if not is_whole(workers, 1, most):
        raise InvalidArgumentError(
            f"workers is a whole number of 1 to {most}, not {workers!r}: the cluster has {most + 1} workers, "
            "and the first, the chief, stays"
        )
    return all_workers[-workers:]


# Another process for a task: `Cluster.restart` and `Cluster.replace`.


class ReplaceTask(Change):
    """Kills the processes of tasks and starts others under their ranks; aborted, it leaves them dead."""

    retry_advice = "try again with %cluster restart"

    def __init__(
        self,
        cluster: Cluster,
        supervisor: SupervisorClient,
        old: Sequence[TaskInfo],
        timeout: float = START_SECONDS,
    ) -> None:
        super().__init__(cluster, supervisor, timeout)
        spec = find_launcher(read_description(cluster.folder).launcher)
        if spec.not_replaced:
            raise FailedPreconditionError(
                f"cluster {cluster.id} cannot replace the process of a task: {spec.not_replaced}. End it "
                f"(%cluster stop) and start a new one (%cluster start --launcher {spec.name})"
            )
        self.old = list(old)
        if spec.lost_by_replacement:
            self.notes = [f"{info.name} {spec.lost_by_replacement}" for info in self.old]
        self._starting = self.old
        self._ask("replace", pids={info.rank: info.pid for info in self.old})

    def _run(self) -> Generator[None, None, None]:
        yield from self._start_tasks(self.old)

    def _describe_failed(self, info: TaskInfo | TaskPlan, pid: int) -> str:
        return f"the process (pid {pid}) that was to replace {info.name}"


def find_task(roster: Sequence[TaskInfo], task: int | str) -> TaskInfo:
    """Return the task of a rank or a name; InvalidArgumentError lists the tasks if there is none.

    >>> roster = [TaskInfo("worker", 1, 0, "here", 7, "127.0.0.1:80", "CPU:0", 1)]
    >>> [find_task(roster, name).pid for name in (0, "0", "worker:1", "/job:worker/task:1")]
    [7, 7, 7, 7]
    """
    for info in roster:
        if str(task).strip() in (str(info.rank), short_name(info), info.name):
            return info
    known = ", ".join(f"{short_name(info)} (rank {info.rank})" for info in roster)
    raise InvalidArgumentError(f"no task {task!r}; the tasks are {known}")


def short_name(info: TaskInfo) -> str:
    """Return a task's short name, such as worker:1."""
    return f"{info.job}:{info.index}"


def describe_replacement(replacement: ReplaceTask) -> str:
    """Return the message that lists the replaced tasks."""
    what = ", ".join(
        f"{old.name} (pid {old.pid} -> {new.pid})"
        for old, new in zip(replacement.old, replacement.tasks, strict=True)
    )
    return "\n".join([f"restarted in {replacement.seconds:.2f} s: {what}", *replacement.notes])
