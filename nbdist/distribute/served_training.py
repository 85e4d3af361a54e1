"""Opens a replica's training on parameter servers, and its shard again where a server dies: `ServedTraining`.

    plan = TrainingPlan(shard="run/0", replica=1, rules=rules, variables=variables, optimizer=optimizer)
    replica = ServedTraining(plan, tasks, current(), prefix).begin()

begin    Each server opens its shard as the plan requests. The chief's requests have the initial values; a
         server that dies meanwhile has them offered, because others may have trained with its former process.
reopen   A server has died. This replica waits for its new process, and offers it its copy of the parameters.
         The server takes the newest one of all replicas (`nbdist.runtime.ps.restore`), or its standby.
lend     Another replica's new process needs the parameters of before the last update, which this one has.

`TrainingPlan` decides what a server is asked for, which copy it is offered, and what the training survives.
`ServedTasks` knows the tasks' present processes, and waits for those of servers.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from nbdist.distribute.served_replica import EARLIER, ServedReplica, StepWait, lend
from nbdist.errors import InvalidArgumentError, NotFoundError, UnavailableError
from nbdist.graph.placement import round_robin
from nbdist.optim import Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import Link, ShardRequest, ShardState, TrainingOver, open_link
from nbdist.runtime.ps.restore import Offer
from nbdist.runtime.ps.sync import Rules
from nbdist.runtime.task import Task, TaskInfo, find_rank
from nbdist.train.capabilities import RestoredState
from nbdist.train.context import Context, Tolerance
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer

Array: TypeAlias = np.ndarray[Any, Any]
NEW_SECONDS = 12.0  # for a silent server to be replaced: a frozen one is, after 10 s
BACK_SECONDS = 60.0  # for the service of a server's new process to answer
POLL_SECONDS = 0.05  # between two looks at the roster
HELLO_SECONDS = 1.0  # for the service of a new process to answer; it is asked again
PING_SECONDS = 0.1  # for a server to answer, when the connection to it has broken; it is asked again
SAY_SECONDS = 1.0  # of a wait for its new process, after which a replica prints it


class ServedTraining:
    """Opens the shards of one training, and opens them again until it ends.

    ``prefix`` begins the names of shared memory; None has all parameters travel over sockets.
    """

    def __init__(self, plan: TrainingPlan, tasks: ServedTasks, context: Context, prefix: str | None) -> None:
        self._plan, self._tasks, self._prefix = plan, tasks, prefix
        self._progress, self._tolerances = context.progress, context.tolerances
        self._first = [info.incarnation for info in tasks.servers]
        self._survives = Tolerance.RESTORES in plan.tolerance
        self._lends = Tolerance.AWAITS in plan.tolerance and plan.rules.servers > 1
        names = {number: info.name for number, info in tasks.workers.items()}
        self._waiting = StepWait(context, names, tasks.check)
        self._replica: ServedReplica | None = None
        self._links: list[Link] = []

    def begin(self) -> ServedReplica:
        """Open the shards of all servers.

        Raises TrainingOver in a process that rejoins a training that has ended.
        """
        plan, tolerances = self._plan, self._tolerances
        tolerances.open(self, plan.tolerance & Tolerance.RESTORES)
        try:
            for server in range(plan.rules.servers):
                open_first = partial(self._open_first, server)
                if self._survives:
                    self._links.append(self._tasks.when_it_serves(server, open_first))
                else:
                    self._links.append(open_first(self._tasks.servers[server]))
            replica = ServedReplica(
                self._links, plan.server_of, plan.rules, replica=plan.replica, optimizer=plan.optimizer,
                tables=plan.tables, rejoins=plan.rejoins, reopen=self._reopen if self._survives else None,
                waiting=self._waiting, borrow=partial(self._tasks.borrowed, plan.shard),
            )  # fmt: skip
        except BaseException as error:
            self._end()
            for link in self._links:
                if isinstance(error, TrainingOver):  # on one server, while another waited for this replica
                    with suppress(UnavailableError):
                        link.announce_done()
                link.close()
            raise
        self._replica, replica.at_close = replica, self._end
        if self._lends:
            self._tasks.task.server.on(EARLIER, lambda frame, sender: lend(replica, plan.shard, frame))
        tolerances.open(self, plan.tolerance)
        return replica

    def _open_first(self, server: int, info: TaskInfo) -> Link:
        request = self._plan.request(server)
        if request.initial is not None and self._survives and info.incarnation != self._first[server]:
            request = offering_initial(request)
        return self._open(request, info)

    def _open(self, request: ShardRequest, info: TaskInfo) -> Link:
        tasks, rules = self._tasks, self._plan.rules
        # Replicas that are added have no place in a server's memory.
        shares = tasks.task.info.host == info.host and self._plan.replica < rules.first
        here = {number: one.pid for number, one in tasks.workers_now().items() if one.host == info.host}
        link = open_link(
            partial(Peer, info.address, tasks.task.keys, name=info.name),
            dataclasses.replace(request, pids=tuple(here.get(n, 0) for n in range(rules.replicas))),
            prefix=self._prefix if shares else None,
            check=self._waiting.check,
            lost=self._note_lost,
        )
        if link.restored is not None:
            self._progress.restored = [*self._progress.restored, self._plan.report(info, link.restored)]
        return link

    def _reopen(self, server: int, old: Link, error: UnavailableError, done: bool) -> Link:
        """Open a shard whose server has died on the new process; see `nbdist.distribute.served_replica`."""
        tasks, progress = self._tasks, self._progress
        before, progress.state = progress.state, f"waiting for {tasks.servers[server].name}"
        try:
            if old.address == tasks.servers[server].address:  # else another training has waited for it
                tasks.wait_for_new(server, error)
            saved = None if self._replica is None else self._replica.hooks.saved
            request = self._plan.again(server, old, done, saved or (lambda: None))
            old.close()
            link = self._links[server] = tasks.when_it_serves(server, partial(self._open, request))
            if self._plan.replica == 0:  # another replica may not know the newest rate
                link.set_rate(float(self._plan.optimizer.learning_rate), self._plan.optimizer.factor)
            return link
        finally:
            progress.state = before

    def _note_lost(self, frozen: Mapping[int, int]) -> None:
        """Have the client know of replicas that a server has found frozen, by number, with their pids."""
        now, progress = self._tasks.workers_now(), self._progress
        for replica, pid in frozen.items():
            info = now.get(replica)
            if info is None:  # it was added since, and the client finds it by itself
                continue
            if info.pid == pid and info.incarnation not in progress.lost:  # not its new process
                progress.lost = [*progress.lost, info.incarnation]

    def _end(self) -> None:
        self._tolerances.close(self)
        if self._lends:
            self._tasks.task.server.off(EARLIER)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What a replica asks of the parameter servers in one training. Pure, but for `again`.

    - ``shard``: the name of the training; ``called``: where the replica is, for the errors of others
    - ``variables``: names and initial values, placed on the servers round robin
    - ``tables``: numbers of the variables of which sockets carry rows
    - ``rejoins``: whether this process replaces one that the replica had before
    - ``standbys``: where each server's standby is; empty for none
    - ``restored``: the optimizer's state that the training continues, from the chief only
    """

    shard: str
    replica: int
    rules: Rules
    variables: Sequence[tuple[str, Array]]
    optimizer: Optimizer
    tables: Sequence[int] = ()
    called: str = ""
    rejoins: bool = False
    standbys: Sequence[dict[str, Any]] = ()
    restored: RestoredState | None = None

    @cached_property
    def server_of(self) -> list[int]:
        """The server of each variable."""
        return round_robin(len(self.variables), self.rules.servers)

    @property
    def tolerance(self) -> Tolerance:
        """Which losses the training survives.

        A standby has all of a server's state. A replica's copy lacks rows of tables; that of a synchronous
        one restores a server only if the steps wait until it has.
        """
        copies = not self.tables and (self.rules.awaits or not self.rules.synchronous)
        found = Tolerance.RESTORES if self.standbys or copies else Tolerance.NOTHING
        return found | Tolerance.AWAITS if self.rules.awaits else found

    def request(self, server: int) -> ShardRequest:
        """Return the first request for a server's shard."""
        whole, tables = self._numbers_on(server)
        gives = self.replica == 0 and not self.rejoins
        return ShardRequest(
            shard=self.shard,
            replica=self.replica,
            called=self.called,
            rules=self.rules,
            layout=self._layout_of(whole),
            optimizer=self.optimizer,
            counts=server == 0 and (self.rules.synchronous or self.rules.servers == 1),
            first=server == 0,
            initial=tuple(self.variables[i][1] for i in whole) if gives else None,
            tables=tuple(self.variables[i] for i in tables),
            restored=self._slots_on(server, self.restored),
            rejoins=self.rejoins,
            standby=self.standbys[server] if self.standbys else None,
        )

    def again(
        self, server: int, old: Link, done: bool, newest: Callable[[], RestoredState | None]
    ) -> ShardRequest:
        """Return the request for a shard on a new process, with an offer if this replica has a copy.

        ``old`` is the link to the process that died; ``done`` says whether this replica has made all of its
        steps. ``newest`` returns the newest saved state of the optimizer. An asynchronous replica takes what
        the process has left in shared memory over into ``old`` (`Link.salvage`). Without a standby,
        synchronous ones offer it, and keep their own copy: the current step was computed from it.
        """
        if self.rules.synchronous and not self.standbys:
            copy, version = old.remains()
        else:
            if not self.rules.synchronous:
                old.salvage()
            copy, version = old.parameters, old.version
        has_copy = old.has_copy or copy is not old.parameters

        def saved() -> ShardState | None:
            state = newest()
            return self._slots_on(server, state if state is not None and state.slots else self.restored)

        return dataclasses.replace(
            self.request(server), initial=None, restored=None, rejoins=False, copy=copy, saved=saved,
            offer=old.offer(self.replica, done, version) if has_copy else None,
        )  # fmt: skip

    def _slots_on(self, server: int, state: RestoredState | None) -> ShardState | None:
        """Return a server's part of the optimizer's state."""
        if state is None:
            return None
        whole, tables = self._numbers_on(server)
        layout = self._layout_of(whole)
        slots: dict[str, Array] = {}
        for name in state.slots[0] if state.slots else ():
            slots[name] = layout.buffer()
            for view, i in zip(layout.views(slots[name]), whole, strict=True):
                np.copyto(view, state.slots[i][name].reshape(view.shape))
        return ShardState(state.updates, slots, tuple(state.slots[i] if slots else {} for i in tables))

    def _numbers_on(self, server: int) -> tuple[list[int], list[int]]:
        """Return the numbers of a server's variables that travel whole, and those of its tables."""
        whole = [i for i, at in enumerate(self.server_of) if at == server and i not in self.tables]
        return whole, [i for i in self.tables if self.server_of[i] == server]

    def _layout_of(self, numbers: Sequence[int]) -> Layout:
        chosen = [self.variables[i] for i in numbers]
        return Layout.of((name, array.shape, array.dtype) for name, array in chosen)

    def report(self, info: TaskInfo, restored: Mapping[str, Any]) -> dict[str, Any]:
        """Return how a server was restored, as plain values for the client."""
        standby, slots = restored.get("standby"), restored.get("slots")
        names = " and ".join(self.optimizer.get_slot_names())
        if standby:
            what = f"restored from its replica on {standby}"
        elif slots is None:
            what = ""
        elif slots == "anew":
            what = f"its slots of the optimizer ({names}) began anew"
        else:
            what = f"its slots of the optimizer ({names}) are those after update {int(slots):,}"
        if not self.rules.synchronous and not standby:  # they are not sent again
            what = "; ".join(filter(None, ["gradients on their way to it count as dropped", what]))
        return {
            "task": info.name,
            "incarnation": info.incarnation,
            "lost": int(restored["lost"]),
            "step": int(restored["global_step"]),
            "slots": what,
        }


def offering_initial(request: ShardRequest) -> ShardRequest:
    """Return a chief's first request as an offer of its initial values: those of a replica may be newer."""
    assert request.initial is not None
    copy = request.layout.buffer()
    for view, value in zip(request.layout.views(copy), request.initial, strict=True):
        np.copyto(view, value)
    before = 0 if request.restored is None else request.restored.updates
    offer = Offer(request.replica, 0, 0, before, 0, began=before)
    restored = request.restored
    return dataclasses.replace(
        request, initial=None, restored=None, offer=offer, copy=copy, saved=lambda: restored
    )


@dataclass
class ServedTasks:
    """The tasks of a run that trains on parameter servers, with their present processes.

    ``task`` is the one of this process. ``servers`` are renewed when one of them has another process;
    ``workers`` are the replicas' tasks by number, as they were at first. ``check`` raises AbortedError when
    the run has ended.
    """

    task: Task
    servers: list[TaskInfo]
    workers: Mapping[int, TaskInfo]
    check: Callable[[], None]

    def workers_now(self) -> dict[int, TaskInfo]:
        """Return the replicas' tasks, with their present processes, without those that were removed."""
        roster = {info.rank: info for info in self.task.roster}
        return {n: roster[info.rank] for n, info in self.workers.items() if info.rank in roster}

    def when_it_serves(self, server: int, open_shard: Callable[[TaskInfo], Link]) -> Link:
        """Open a shard on a server, or on the process that replaces it if it dies."""
        until = time.monotonic() + BACK_SECONDS
        while True:
            info = self.servers[server]
            try:
                with Peer(info.address, self.task.keys, name=info.name, timeout=HELLO_SECONDS) as peer:
                    peer.call("ps.hello")
            except (NotFoundError, UnavailableError):  # it starts, or was replaced
                if time.monotonic() > until:
                    raise
                self.check()
                threading.Event().wait(POLL_SECONDS)
                self.servers[server] = find_rank(self.task.roster, info.rank)
                continue
            try:
                return open_shard(info)
            except UnavailableError as error:
                self.wait_for_new(server, error)
                until = time.monotonic() + BACK_SECONDS

    def wait_for_new(self, server: int, error: UnavailableError) -> None:
        """Wait until a server has another process; raise the error if it still answers, or has none in time.

        Raises AbortedError when the run ends, as it does if the server is not replaced.
        """
        old = self.servers[server]
        begun, said = time.monotonic(), False
        while (new := find_rank(self.task.roster, old.rank)).incarnation == old.incarnation:
            self.check()
            if time.monotonic() > begun + NEW_SECONDS or answers(old, self.task.keys):
                raise error
            if not said and time.monotonic() > begun + SAY_SECONDS:
                said = True
                print(f"{old.name} (pid {old.pid}) does not answer: training waits for its new process")
        self.servers[server] = new

    def borrowed(self, shard: str, server: int, version: int) -> Array:
        """Return another replica's copy of a server's parameters of an earlier version.

        Raises UnavailableError if there is none.
        """
        meta = {"shard": shard, "server": server, "version": version}
        for now in self.workers_now().values():
            if now.rank != self.task.rank:
                try:
                    with Peer(now.address, self.task.keys, name=now.name) as peer:
                        return peer.call(EARLIER, meta).arrays[0]
                except (NotFoundError, UnavailableError, InvalidArgumentError):
                    continue
        raise UnavailableError(
            f"{self.task.name} cannot take the place of its former process: {self.servers[server].name} "
            f"has made step {version + 1:,}, another parameter server has not, and no other worker has the "
            "parameters of before. Run the cell again; with --checkpoint-every it can be resumed"
        )


def answers(info: TaskInfo, keys: ClusterKeys) -> bool:
    """Return whether a task's process still answers."""
    with Peer(info.address, keys, name=info.name, timeout=PING_SECONDS) as peer:
        try:
            return bool(peer.call("ping").meta["incarnation"] == info.incarnation)
        except UnavailableError:
            return False
