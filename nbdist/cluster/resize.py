"""What all changes of a running cluster's tasks have in common: whose turn it is, bringing up, telling all.

    change = Replacement(cluster, link, tasks)       # or Growth, or Shrinking
    while not change.look():                         # forked, registered, opened, known to all
        ...
    change.tasks                                     # the tasks that it was about

Nothing blocks for long, so that who follows a run looks now and then. Until the keeper has the new roster
the change can be given up; from then on it is whole.
"""

from __future__ import annotations

import secrets
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from nbdist.cluster import task_setup as on_task
from nbdist.cluster.folder import read_description, runs_on, write_description
from nbdist.cluster.hub import HubEngines, list_for_others
from nbdist.cluster.resources import (
    MOST_TASKS,
    TaskPlan,
    count_cores,
    environment_of,
    parse_memory,
    share_of,
)
from nbdist.cluster.supervisor.client import CONTROLLER, KeeperLink, describe_exit
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    UnavailableError,
)
from nbdist.runtime.task import Roster, TaskInfo
from nbdist.wire.rpc.frame import Frame

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

START_SECONDS = 30.0  # for a process to come up, however busy the host is
ANSWER_SECONDS = 1.0  # for the other tasks together; what is sent to one that is frozen reaches it later
LOOK_SECONDS = 0.002
CHANGED = "another client has changed the cluster at this moment; try again"


class Change(ABC):
    """A change of a cluster's tasks on its way; ``look`` until it returns True.

    ``tasks`` are those that it was about then, and ``seconds`` how long it took. ``notes`` say what is not as
    one may think.
    """

    again = "try again"
    """What to do if it took too long."""

    def __init__(self, cluster: Cluster, link: KeeperLink, timeout: float = START_SECONDS) -> None:
        self.tasks: list[TaskInfo] = []
        self.notes: list[str] = []
        self.seconds = 0.0
        self.done = False
        self._cluster, self._link, self._client = cluster, link, cluster.client
        self._begun = time.monotonic()
        self._deadline = self._begun + timeout
        self._turn = secrets.token_hex(8)
        self._forked: dict[int, int] = {}  # rank -> pid of a process that comes up
        self._coming: Sequence[TaskInfo | TaskPlan] = ()
        self._steps = self._change()

    def look(self) -> bool:
        """Do what can be done now; whether all is done. Raises what went wrong, with the change given up."""
        if self.done:
            return True
        try:
            next(self._steps)
        except StopIteration:
            self.done, self.seconds = True, time.monotonic() - self._begun
        except BaseException:
            self.done = True
            with suppress(NbdistError):  # what went wrong first is what is raised
                self._ask("roster", tasks=None)
            raise
        return self.done

    def wait(self) -> list[TaskInfo]:
        """Look until all is done; return the tasks that it was about."""
        try:
            while not self.look():
                self._link.listen(LOOK_SECONDS)
        except KeyboardInterrupt:
            self.give_up()
            raise
        return self.tasks

    def give_up(self) -> None:
        """Let the change come to nothing, if it is not done yet."""
        if not self.done:
            self.done = True
            with suppress(UnavailableError):  # it was not its turn yet
                self._ask("roster", tasks=None)

    @abstractmethod
    def _change(self) -> Iterator[None]:
        """Make the change, step by step; yield where there is something to wait for."""

    def _did_not_start(self, info: TaskInfo | TaskPlan, pid: int) -> str:
        """Return which process it was, for a message that says how it ended."""
        return f"{info.name} (pid {pid})"

    def _ask(self, request: str, **entries: Any) -> dict[str, Any]:
        return self._link.ask(request, turn=self._turn, **entries)

    def _bring_up(self, coming: Sequence[TaskInfo | TaskPlan]) -> Iterator[None]:
        """Fork processes, make them tasks, and have all others know them."""
        self._coming, ranks = coming, {info.rank for info in coming}
        yield from self._until(lambda: not self._living(ranks), "to end")  # given up just now
        engines = HubEngines(self._client)
        yield from self._until(lambda: none_of(ranks, engines.ids()), "to be forgotten by the hub")
        for info in coming:
            reply = self._ask("fork", rank=info.rank)
            self._forked[info.rank] = reply["pid"]
            if reply["outside_world"]:
                self.notes.append(
                    f"{info.name} is no longer in the MPI world, which cannot add processes: "
                    "collective 'mpi' needs a new cluster (%cluster stop, %cluster start --launcher mpi)"
                )
        yield from self._until(lambda: ranks <= (engines.ids() or set()), "to register")
        views = {info.rank: self._client.direct_view(info.rank, block=False) for info in coming}
        keys, cluster_id = self._cluster.keys.to_dict(), self._cluster.id
        opening = [
            views[info.rank].apply_async(
                on_task.open_task, info.job, info.index, info.rank, info.device, keys, cluster_id=cluster_id
            )
            for info in coming
        ]
        yield from self._until(lambda: all(call.ready() for call in opening), "to open its Server")
        opened = [TaskInfo.from_dict(self._result(call)) for call in opening]
        now = {info.rank: info for info in (*self._cluster.tasks, *opened)}
        roster = tuple(now[rank] for rank in sorted(now))
        entries = [info.to_dict() for info in roster]
        joining = [view.apply_async(on_task.join_roster, entries, cluster_id) for view in views.values()]
        yield from self._until(lambda: all(call.ready() for call in joining), "to join the others")
        for call in joining:
            self._result(call)
        self.tasks = opened
        self._make_known(roster, ranks)

    def _living(self, ranks: set[int]) -> bool:
        """Whether the keeper has a process of one of the ranks."""
        living = self._link.ask("status")["pids"]
        return any(str(rank) in living for rank in ranks)

    def _make_known(self, roster: Roster, but: set[int]) -> None:
        """Tell the tasks but some, and the keeper, who tells all clients; an interrupt comes before or after.

        The keeper's word is what counts: a client that dies before it leaves the cluster as it was.
        """
        with uninterrupted():
            self._tell(roster, but)
            self._ask("roster", tasks=[info.to_dict() for info in roster])
            try:
                self._describe(roster)
            except OSError as error:
                self.notes.append(
                    f"{self._cluster.folder}/cluster.json could not be written: {error.strerror}"
                )

    def _tell(self, roster: Roster, but: set[int]) -> None:
        """Tell the other tasks that live; what one that is frozen is told, it hears when it goes on."""
        dead = {info.rank for info in self._cluster.dead()}
        others = [info for info in roster if info.rank not in dead | but]
        list(asked(self._cluster, others, "task.roster", {"tasks": [info.to_dict() for info in roster]}))

    def _describe(self, roster: Roster) -> None:
        folder = self._cluster.folder
        before = read_description(folder)
        description = {**before, "tasks": [info.to_dict() for info in roster]}
        for key, job in (("workers", "worker"), ("ps", "ps")):
            description[key] = sum(info.job == job for info in roster)
        if len(roster) != len(before["tasks"]):
            description["listing"] = list_for_others(folder, self._link.pids[CONTROLLER], roster)
        write_description(folder, description)

    def _result(self, call: Any) -> Any:
        try:
            return call.get(0)
        except Exception as error:
            raise UnavailableError(f"{self._names()}: the Server did not start: {error}") from error

    def _until(self, condition: Callable[[], bool], what: str) -> Iterator[None]:
        """Yield until the condition holds; raises if a new process dies meanwhile, or the time is up."""
        while not condition():
            ended = self._link.ended()
            for info in self._coming:
                how = ended.get(info.rank)
                if how is not None and how["pid"] == self._forked.get(info.rank):
                    raise UnavailableError(
                        f"{self._did_not_start(info, how['pid'])} did not start: {describe_exit(how)}; "
                        f"its log ends with:\n{how['log'].strip() or '(nothing)'}"
                    )
            if self._link.gone:
                raise UnavailableError(f"cluster {self._cluster.id} has ended: its cluster process has died")
            if time.monotonic() > self._deadline:
                waited = time.monotonic() - self._begun
                raise DeadlineExceededError(
                    f"{self._names()}: waited {waited:.0f} s for it {what}; {self.again}"
                )
            yield

    def _names(self) -> str:
        return ", ".join(info.name for info in self._coming)


def none_of(ranks: set[int], found: set[int] | None) -> bool:
    """Whether it is known that none of the ranks is among those found."""
    return found is not None and not ranks & found


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interrupt back inside a ``with`` that is short; it comes at its end."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    heard: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            before(*heard[-1])


def check_unused(cluster: Cluster, tasks: Sequence[TaskInfo]) -> None:
    """Raise FailedPreconditionError while a run is using one of the tasks.

    Any task of a run tells; one that does not answer at all, for it is frozen say, is not waited for. What a
    run has lost and goes on without, it does not use.
    """
    dead = {info.rank for info in cluster.dead()}
    living = [info for info in cluster.tasks if info.rank not in dead]
    answers = [answer.meta for answer in asked(cluster, living, "run.using") if answer.meta["run"]]
    lost = {(meta["run"], rank) for meta in answers for rank in meta["lost"]}
    for meta in answers:
        run, ranks = meta["run"], meta["ranks"]
        used = [
            info.name
            for info in tasks
            if (ranks is None or info.rank in ranks) and (run, info.rank) not in lost
        ]
        if used:
            raise FailedPreconditionError(
                f"run {run} is using {', '.join(used)}: end it first (its stop button, run.stop() or an "
                f"interrupt; from another notebook, nb.attach({run!r}).stop()); a task that does not stop is "
                "replaced then"
            )


def asked(
    cluster: Cluster, tasks: Sequence[TaskInfo], kind: str, meta: dict[str, Any] | None = None
) -> Iterator[Frame]:
    """Ask tasks, all at once, and yield the answers of those that give one."""
    until = time.monotonic() + ANSWER_SECONDS
    calls = []
    for info in tasks:
        with suppress(NbdistError):
            peer = cluster.peer(info.rank)
            calls.append((peer, peer.ask(kind, meta, timeout=ANSWER_SECONDS)))
    for peer, call in calls:
        with suppress(NbdistError):  # it is frozen or has died just now, or knows no such question
            yield peer.answer(call, timeout=max(0.05, until - time.monotonic()))


#     A running cluster gets more workers; see :meth:`Cluster.grow`.
#
# A new worker is like one that was there from the start: its rank is the next free one, after the parameter
# servers, its index follows that of the last worker, and every task hears of it. What goes on goes on.


def grow(cluster: Cluster, link: KeeperLink, workers: int, report: Callable[[str], object]) -> list[TaskInfo]:
    """Start so many more workers on a cluster and return them when all tasks know them."""
    tasks = cluster.tasks
    check_more(workers, len(tasks))
    description = read_description(cluster.folder)
    if description["asked"]["launcher"] == "mpi":
        raise FailedPreconditionError(
            f"cluster {cluster.id} is one MPI world (launcher 'mpi'), which cannot add processes: "
            f"end it (%cluster stop) and start a larger one (%cluster start --launcher mpi --workers "
            f"{sum(info.job == 'worker' for info in tasks) + workers})"
        )
    plans = plan_more(
        tasks, workers, description["asked"], cores=count_cores(), gpus=description.get("gpus", ())
    )
    growth = Growth(cluster, link, plans)
    new = growth.wait()
    report(describe(growth, cluster))
    return new


class Growth(Change):
    """Starts processes for tasks that there were not; given up, it leaves the cluster as it was."""

    again = "the cluster is as it was; try again with %cluster grow"

    def __init__(
        self, cluster: Cluster, link: KeeperLink, plans: Sequence[TaskPlan], timeout: float = START_SECONDS
    ) -> None:
        super().__init__(cluster, link, timeout)
        self.plans = list(plans)

    def _change(self) -> Iterator[None]:
        tasks = [{"rank": plan.rank, "environment": dict(plan.environment)} for plan in self.plans]
        self._ask("grow", tasks=tasks)
        if next_places(self._cluster.tasks, len(tasks)) != [(plan.index, plan.rank) for plan in self.plans]:
            raise UnavailableError(CHANGED)
        yield from self._bring_up(self.plans)

    def _did_not_start(self, info: TaskInfo | TaskPlan, pid: int) -> str:
        return f"the cluster is as it was: the new {info.name} (pid {pid})"


def plan_more(
    tasks: Sequence[TaskInfo],
    workers: int,
    asked: Mapping[str, Any],
    *,
    cores: int,
    gpus: Sequence[str] = (),
) -> tuple[TaskPlan, ...]:
    """Return so many more workers for a cluster of these tasks, which was ``asked`` for as it says.

    Each gets what it would have in a cluster that was as large from the start: its share of the cores, and
    the next of the cluster's GPUs, in turn. What the others have stays.

    >>> one = TaskInfo("worker", 0, 0, "here", 7, "127.0.0.1:80", "CPU:0", 1)
    >>> ps = TaskInfo("ps", 0, 1, "here", 8, "127.0.0.1:81", "CPU:0", 2)
    >>> [(plan.name, plan.rank) for plan in plan_more([one, ps], 2, {}, cores=2)]
    [('/job:worker/task:1', 2), ('/job:worker/task:2', 3)]
    """
    share = share_of(cores, len(tasks) + workers, asked.get("threads"))
    plans = []
    for index, rank in next_places(tasks, workers):
        gpu = gpus[index % len(gpus)] if gpus else None
        environment = environment_of(
            "worker", index, rank, share, gpu, asked.get("gpu_memory"), parse_memory(asked.get("memory"))
        )
        plans.append(TaskPlan("worker", index, rank, "CPU:0" if gpu is None else "GPU:0", environment))
    return tuple(plans)


def next_places(tasks: Sequence[TaskInfo], workers: int) -> list[tuple[int, int]]:
    """Return index and rank of the next so many workers: indices without a gap, the lowest free ranks."""
    first = 1 + max((info.index for info in tasks if info.job == "worker"), default=-1)
    taken = {info.rank for info in tasks}
    ranks = [rank for rank in range(len(tasks) + workers) if rank not in taken]
    return list(zip(range(first, first + workers), ranks, strict=False))


def check_more(workers: int, tasks: int) -> None:
    """Raise InvalidArgumentError for a number of workers that a cluster of so many tasks cannot get.

    >>> check_more(509, 3)
    """
    most = MOST_TASKS - tasks
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= most:
        raise InvalidArgumentError(
            f"workers is a whole number of 1 to {most}, not {workers!r}: a host may have {MOST_TASKS} tasks"
        )


def describe(growth: Growth, cluster: Cluster) -> str:
    """Return what has come to the cluster, for people."""
    new = ", ".join(f"{info.name} (rank {info.rank}, pid {info.pid})" for info in growth.tasks)
    lines = [f"grown in {growth.seconds:.2f} s by {new}: {cluster.counted}", *growth.notes]
    share = growth.plans[0].threads
    before = read_description(cluster.folder)["asked"]["threads"] or share_of(
        count_cores(), len(cluster.tasks) - len(growth.tasks)
    )
    if share != before:
        each = f"{share} thread{'s' * (share > 1)}"
        lines.append(f"the new ones compute on {each} each (cores / tasks); the others keep what they have")
    for run in runs_on(cluster.folder, [info.pid for info in cluster.tasks]):
        lines.append(f"run {run} continues on the tasks that it has; the next one has the new ones too")
    return "\n".join(lines)


# A running cluster gets fewer workers; see :meth:`Cluster.shrink`.


def shrink(
    cluster: Cluster, link: KeeperLink, workers: int, report: Callable[[str], object]
) -> list[TaskInfo]:
    """End the last so many workers of a cluster, if no run is using them; return which they were."""
    leaving = last_workers(cluster.tasks, workers)
    if read_description(cluster.folder)["asked"]["launcher"] == "mpi":
        raise FailedPreconditionError(
            f"cluster {cluster.id} is one MPI world (launcher 'mpi'), which keeps the processes that it "
            "began with: end it (%cluster stop) and start a smaller one, or use fewer with --on worker:0-1"
        )
    check_unused(cluster, leaving)
    shrinking = Shrinking(cluster, link, leaving)
    shrinking.wait()
    names = ", ".join(f"{info.name} (pid {info.pid})" for info in leaving)
    lines = [f"shrunk in {shrinking.seconds:.2f} s by {names}: {cluster.counted}", *shrinking.notes]
    report("\n".join(lines))
    return leaving


class Shrinking(Change):
    """Has tasks leave: first all others know a cluster without them, then they end."""

    def __init__(self, cluster: Cluster, link: KeeperLink, leaving: Sequence[TaskInfo]) -> None:
        super().__init__(cluster, link)
        self.tasks = list(leaving)
        self._coming = self.tasks

    def _change(self) -> Iterator[None]:
        ranks = {info.rank for info in self.tasks}
        self._ask("shrink", pids={info.rank: info.pid for info in self.tasks})
        if last_workers(self._cluster.tasks, len(ranks)) != self.tasks:
            raise UnavailableError(CHANGED)
        check_unused(self._cluster, self.tasks)  # again: a run may have begun since
        self._make_known(tuple(info for info in self._cluster.tasks if info.rank not in ranks), set())
        engines = HubEngines(self._client)
        yield from self._until(lambda: none_of(ranks, engines.ids()), "to be forgotten by the hub")


def last_workers(tasks: Sequence[TaskInfo], workers: int) -> list[TaskInfo]:
    """Return the last so many workers by index; InvalidArgumentError unless one, the first, is left.

    >>> tasks = [TaskInfo("worker", i, i, "here", 7, "127.0.0.1:80", "CPU:0", i) for i in range(3)]
    >>> [info.name for info in last_workers(tasks, 2)]
    ['/job:worker/task:1', '/job:worker/task:2']
    """
    all_workers = sorted((info for info in tasks if info.job == "worker"), key=lambda info: info.index)
    most = len(all_workers) - 1
    if not most:
        raise FailedPreconditionError(
            "the cluster has one worker, the chief, who stays; %cluster stop ends it"
        )
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= most:
        raise InvalidArgumentError(
            f"workers is a whole number of 1 to {most}, not {workers!r}: the cluster has {most + 1} workers, "
            "and the first, the chief, stays"
        )
    return all_workers[-workers:]


#     Tasks get other processes under their ranks: one that has died, or one that is to be ended.
#
#     tasks = [named(cluster.tasks, "worker:1")]
#     check_unused(cluster, tasks)                 # refuses while a run is on them
#     replacement = cluster.replace(tasks)         # they are killed now
#     while not replacement.look():
#         ...
#     replacement.tasks                            # the new ones
#
# All others keep their namespaces.


class Replacement(Change):
    """Ends tasks, if they live, and starts others in their places; given up, it leaves them dead."""

    again = "try again with %cluster restart"

    def __init__(
        self, cluster: Cluster, link: KeeperLink, old: Sequence[TaskInfo], timeout: float = START_SECONDS
    ) -> None:
        super().__init__(cluster, link, timeout)
        self.old = list(old)
        self._coming = self.old
        self._ask("end", pids={info.rank: info.pid for info in self.old})

    def _change(self) -> Iterator[None]:
        yield from self._bring_up(self.old)

    def _did_not_start(self, info: TaskInfo | TaskPlan, pid: int) -> str:
        return f"the process (pid {pid}) that was to replace {info.name}"


def named(roster: Sequence[TaskInfo], task: int | str) -> TaskInfo:
    """Return the task that a rank or a name means; InvalidArgumentError lists those there are.

    >>> roster = [TaskInfo("worker", 1, 0, "here", 7, "127.0.0.1:80", "CPU:0", 1)]
    >>> [named(roster, name).pid for name in (0, "0", "worker:1", "/job:worker/task:1")]
    [7, 7, 7, 7]
    """
    for info in roster:
        if str(task).strip() in (str(info.rank), short_name(info), info.name):
            return info
    known = ", ".join(f"{short_name(info)} (rank {info.rank})" for info in roster)
    raise InvalidArgumentError(f"no task {task!r}; the tasks are {known}")


def short_name(info: TaskInfo) -> str:
    """Return a task's name as one types it, such as worker:1."""
    return f"{info.job}:{info.index}"


def describe_replacing(replacement: Replacement) -> str:
    """Return what became of the tasks, for people."""
    what = ", ".join(
        f"{old.name} (pid {old.pid} -> {new.pid})"
        for old, new in zip(replacement.old, replacement.tasks, strict=True)
    )
    return "\n".join([f"restarted in {replacement.seconds:.2f} s: {what}", *replacement.notes])
