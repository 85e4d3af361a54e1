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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from nbdist.cluster import tasks as on_task
from nbdist.cluster.connect import HubEngines
from nbdist.cluster.folder import read_description, write_description
from nbdist.cluster.link import CONTROLLER, KeeperLink, describe_exit
from nbdist.cluster.listing import list_for_others
from nbdist.cluster.resources import TaskPlan
from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NbdistError, UnavailableError
from nbdist.runtime.task import Roster, TaskInfo
from nbdist.wire.frames import Frame

if TYPE_CHECKING:
    from nbdist.cluster.handle import Cluster

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
