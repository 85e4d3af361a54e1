"""Tasks get other processes under their ranks: one that has died, or one that is to be ended.

    tasks = [named(cluster.tasks, "worker:1")]
    check_unused(cluster, tasks)                 # refuses while a run is on them
    replacement = cluster.replace(tasks)         # they are killed now
    while not replacement.look():                # forked, registered, opened, known to all
        ...
    replacement.tasks                            # the new ones

Nothing blocks for long, so that who follows a run looks now and then. All others keep their namespaces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbdist.cluster import tasks as on_task
from nbdist.cluster.connect import HubEngines
from nbdist.cluster.folder import read_description, write_description
from nbdist.cluster.link import KeeperLink, describe_exit
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    UnavailableError,
)
from nbdist.runtime.task import Roster, TaskInfo
from nbdist.wire.frames import Frame

if TYPE_CHECKING:
    from nbdist.cluster.handle import Cluster

START_SECONDS = 30.0  # for another process to come up, however busy the host is
ANSWER_SECONDS = 1.0  # for the other tasks together; what is sent to one that is frozen reaches it later
LOOK_SECONDS = 0.002


class Replacement:
    """Ends tasks, if they live, and starts others in their places; ``look`` until it returns True.

    ``tasks`` are the new ones then, and ``seconds`` how long it took. ``notes`` say what is not as before.
    """

    def __init__(
        self, cluster: Cluster, link: KeeperLink, old: Sequence[TaskInfo], timeout: float = START_SECONDS
    ) -> None:
        self.old = list(old)
        self.tasks: list[TaskInfo] = []
        self.notes: list[str] = []
        self.seconds = 0.0
        self.done = False
        self._cluster, self._link, self._client = cluster, link, cluster.client
        self._begun = time.monotonic()
        self._deadline = self._begun + timeout
        self._link.ask("end", pids={info.rank: info.pid for info in self.old})
        self._past: dict[int, int] = {}  # rank -> pid of the process that has ended
        self._steps = self._replace()

    def look(self) -> bool:
        """Do what can be done now; whether all is done. Raises what went wrong; the tasks are dead then."""
        if self.done:
            return True
        try:
            next(self._steps)
        except StopIteration:
            self.done, self.seconds = True, time.monotonic() - self._begun
        except BaseException:
            self.done = True
            with suppress(NbdistError):  # what went wrong first is what is raised
                self._link.ask("roster", tasks=None)
            raise
        return self.done

    def wait(self) -> list[TaskInfo]:
        """Look until all is done; return the new tasks."""
        try:
            while not self.look():
                self._link.listen(LOOK_SECONDS)
        except KeyboardInterrupt:
            self.give_up()
            raise
        return self.tasks

    def give_up(self) -> None:
        """Leave the tasks dead, if they are not replaced yet."""
        if not self.done:
            self.done = True
            self._link.ask("roster", tasks=None)

    def _replace(self) -> Iterator[None]:
        ranks = {info.rank for info in self.old}
        yield from self._until(self._have_ended, "to end")
        engines = HubEngines(self._client)
        yield from self._until(lambda: _none_of(ranks, engines.ids()), "to be forgotten by the hub")
        for info in self.old:
            reply = self._link.ask("fork", rank=info.rank)
            if reply["outside_world"]:
                self.notes.append(
                    f"{info.name} is not in the MPI world any more, which takes no process in later: "
                    "collective 'mpi' needs a new cluster (%cluster stop, %cluster start --launcher mpi)"
                )
        yield from self._until(lambda: ranks <= (engines.ids() or set()), "to register")
        views = {info.rank: self._client.direct_view(info.rank, block=False) for info in self.old}
        keys, cluster_id = self._cluster.keys.to_dict(), self._cluster.id
        opening = [
            views[info.rank].apply_async(
                on_task.open_task, info.job, info.index, info.rank, info.device, keys, cluster_id=cluster_id
            )
            for info in self.old
        ]
        yield from self._until(lambda: all(call.ready() for call in opening), "to open its Server")
        opened = [TaskInfo.from_dict(self._result(call)) for call in opening]
        new = {info.rank: info for info in opened}
        roster = tuple(new.get(info.rank, info) for info in self._cluster.tasks)
        entries = [info.to_dict() for info in roster]
        joining = [view.apply_async(on_task.join_roster, entries, cluster_id) for view in views.values()]
        yield from self._until(lambda: all(call.ready() for call in joining), "to join the others")
        for call in joining:
            self._result(call)
        self._tell(roster, ranks)
        description = read_description(self._cluster.folder)
        write_description(self._cluster.folder, {**description, "tasks": entries})
        self._link.ask("roster", tasks=entries)
        self.tasks = opened

    def _result(self, call: Any) -> Any:
        try:
            return call.get(0)
        except Exception as error:
            names = ", ".join(info.name for info in self.old)
            raise UnavailableError(f"{names}: the Server did not start again: {error}") from error

    def _have_ended(self) -> bool:
        said = self._link.ask("status")
        if any(str(info.rank) in said["pids"] for info in self.old):
            return False
        self._past = {int(rank): how["pid"] for rank, how in said["exits"].items()}
        return True

    def _until(self, condition: Callable[[], bool], what: str) -> Iterator[None]:
        """Yield until the condition holds; raises if a new process dies meanwhile, or the time is up."""
        while not condition():
            ended = self._link.ended()
            for info in self.old:
                how = ended.get(info.rank)
                if how is not None and self._past and how["pid"] != self._past.get(info.rank):
                    raise UnavailableError(
                        f"the process (pid {how['pid']}) that was to replace {info.name} did not start: "
                        f"{describe_exit(how)}; its log ends with:\n{how['log'].strip() or '(nothing)'}"
                    )
            if time.monotonic() > self._deadline:
                names = ", ".join(info.name for info in self.old)
                raise DeadlineExceededError(
                    f"{names}: waited {time.monotonic() - self._begun:.0f} s for it {what}; try again with "
                    "%cluster restart"
                )
            yield

    def _tell(self, roster: Roster, but: set[int]) -> None:
        """Tell the other tasks that live; what one that is frozen is told, it hears when it goes on."""
        dead = {info.rank for info in self._cluster.dead()}
        others = [info for info in roster if info.rank not in dead | but]
        list(_asked(self._cluster, others, "task.roster", {"tasks": [info.to_dict() for info in roster]}))


def _none_of(ranks: set[int], found: set[int] | None) -> bool:
    return found is not None and not ranks & found


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


def check_unused(cluster: Cluster, tasks: Sequence[TaskInfo]) -> None:
    """Raise FailedPreconditionError while a run is using one of the tasks.

    Any task of a run tells; one that does not answer at all, for it is frozen say, is not waited for. What a
    run has lost and goes on without, it does not use.
    """
    dead = {info.rank for info in cluster.dead()}
    living = [info for info in cluster.tasks if info.rank not in dead]
    answers = [answer.meta for answer in _asked(cluster, living, "run.using") if answer.meta["run"]]
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


def _asked(
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


def describe(replacement: Replacement) -> str:
    """Return what became of the tasks, for people."""
    what = ", ".join(
        f"{old.name} (pid {old.pid} -> {new.pid})"
        for old, new in zip(replacement.old, replacement.tasks, strict=True)
    )
    return "\n".join([f"restarted in {replacement.seconds:.2f} s: {what}", *replacement.notes])
