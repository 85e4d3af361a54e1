"""Parameter servers: variables live on ps tasks, replicas push gradients to them.

Asynchronous: each replica reads all the data in its own order, and the servers apply its gradients on
arrival. Synchronous: replicas share each batch; the servers sum their gradients and apply the sum once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from nbdist.data import Dataset
from nbdist.distribute.sharing import one_order
from nbdist.distribute.spec import TRANSPORT, Setting, StrategyConfig, StrategySpec, whole_number
from nbdist.errors import InvalidArgumentError, NotFoundError, UnavailableError
from nbdist.graph.placement import round_robin
from nbdist.numbers import is_whole
from nbdist.optim import Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import (
    Link,
    ShardRequest,
    ShardState,
    StepStopped,
    TrainingOver,
    open_link,
)
from nbdist.runtime.ps.mailbox import SLOTS
from nbdist.runtime.ps.restore import Offer
from nbdist.runtime.ps.shard import GradientStatistics
from nbdist.runtime.ps.sync import APPLIED, DROPPED, Rules
from nbdist.runtime.ps.trace import gradient_of, parameters_for
from nbdist.runtime.tables import RowGradient
from nbdist.runtime.task import Task, TaskInfo, find_rank
from nbdist.train.context import Context, current
from nbdist.train.strategy import Replica, ReplicaLeft, ReplicaState, Strategy, interleaved
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame

Array: TypeAlias = np.ndarray[Any, Any]
NEW_SECONDS = 12.0  # for a silent server to be replaced: a frozen one is, after 10 s
BACK_SECONDS = 60.0  # for the service of a server's new process to answer
MOST_ADDED = 64  # workers that can be added to an asynchronous run
POLL_SECONDS = 0.05  # between two looks at the roster
HELLO_SECONDS = 1.0  # for the service of a new process to answer; it is asked again
PING_SECONDS = 0.1  # for a server to answer, when the connection to it has broken; it is asked again
SAY_SECONDS = 1.0  # of a wait for its new process, after which a replica prints it


class ParameterServerStrategy(Strategy):
    """Train with variables on the cluster's ps tasks, placed round robin in order of creation.

    ``synchronous=False`` applies every gradient on arrival. ``staleness=S`` then lets no replica be more
    than S steps ahead of the slowest; None sets no bound.

    ``synchronous=True`` makes an update of ``aggregate=R`` gradients: by default one of each of the N
    replicas. With R < N there are N - R backups: the fastest R make the step, and the late ones are
    dropped and counted. With R > N replicas contribute several batches to a step; its global batch is R
    shares.

    ``locking=True`` has a replica read each server's parameters as they are between two updates. Otherwise a
    read through shared memory may come in the middle of one; updates are made one at a time in both cases.

    ``transport`` is "auto" (shared memory on one host, else a socket) or "socket"; ``servers`` are tasks that
    keep the variables instead. ``rejoins`` is for the new process of a task that was lost during the run: it
    continues each training at the step that the servers have counted for its replica; with backups not before
    the slowest of the others, and among synchronous replicas without backups at the step that they wait in.
    With ``awaits`` they wait, in ``fit``, for the new process of a lost replica that a step needs: the run
    replaces it. Runs on the workers.

    A training survives the death of a server, unless it trains tables: each replica waits for the server's
    new process, and the one with the newest copy of the parameters sends it (`nbdist.runtime.ps.restore`).
    Synchronous replicas, which survive it with ``awaits`` in ``fit``, send their gradients of the current
    step to it again. The optimizer's slots there are those of the last state that the run has saved, or begin
    anew.

    ``ps_replicas=1`` keeps a standby of each server's shard on the next server
    (`nbdist.runtime.ps.replicator`). The new process of a server that dies continues with it: nothing that
    was acknowledged is lost, and tables and synchronous replicas survive, too. It needs 2 servers or more.
    Raises InvalidArgumentError for an invalid value, and if the cluster has no parameter server.
    """

    name = "ps"
    takes_rows = True
    pulls_rows = True
    keeps_slots = False
    continues = True

    def __init__(
        self,
        task: Task,
        *,
        ranks: Sequence[int],
        run: str,
        prefix: str,
        check: Callable[[], None],
        synchronous: bool = False,
        aggregate: int | None = None,
        staleness: int | None = None,
        locking: bool = False,
        transport: str = "auto",
        servers: Sequence[TaskInfo] = (),
        rejoins: bool = False,
        awaits: bool = False,
        ps_replicas: int = 0,
        numbers: Sequence[int] = (),
        began_with: int | None = None,
        spare: int = 0,
    ) -> None:
        self._servers = list(servers) or [info for info in task.roster if info.job == "ps"]
        if not self._servers:
            raise InvalidArgumentError(
                "--strategy ps needs a parameter server and the cluster has none; "
                "start one with %cluster start --workers N --ps 1"
            )
        if transport not in ("auto", "socket"):
            raise InvalidArgumentError(f"no transport {transport!r}; choose from auto, socket")
        self._task, self._run, self._prefix, self._check = task, run, prefix, check
        self.synchronous, self._transport, self._rejoins = synchronous, transport, rejoins
        self._awaits = awaits
        numbers = numbers or range(len(ranks))
        self.replica_index = numbers[list(ranks).index(task.rank)]
        self._workers = {n: find_rank(task.roster, rank) for n, rank in zip(numbers, ranks, strict=True)}
        self.replicas = began_with or len(ranks)
        self.rules = Rules(
            self.replicas + spare, synchronous, aggregate, staleness, locking, len(self._servers), spare=spare
        )
        if self.replica_index >= self.rules.replicas:
            raise InvalidArgumentError(
                f"{task.name} is worker number {self.replica_index + 1} of a run that began with "
                f"{self.replicas}: {spare} can be added to it. Stop the run and start it again, with "
                "--resume if it has saved its state"
            )
        self.num_replicas_in_sync = self.replicas if synchronous else 1
        self._trainings = 0
        self._replicates = bool(ps_replicas)
        if self._replicates:
            require_standbys(len(self._servers))
            if self.rules.several:
                raise InvalidArgumentError(
                    f"aggregate={aggregate} of {self.replicas} replicas acknowledges gradients before they "
                    "are part of an update, and ps_replicas=1 keeps updates: give an aggregate of "
                    f"{self.replicas} or less, or ps_replicas=0"
                )

    @property
    def family(self) -> str:
        """The states that it continues: asynchronous replicas' have the steps of each."""
        return "synchronous" if self.synchronous else "asynchronous"

    @property
    def keeps_pace(self) -> bool:
        """Whether replicas wait for each other: synchronous ones, or ones with a staleness bound."""
        return self.synchronous or self.rules.staleness is not None

    def dataset(self, dataset: Dataset, seed: int | None) -> Dataset:
        """Return the dataset in one order for all (synchronous), or in this replica's own order."""
        if self.synchronous:
            return one_order(dataset, seed, self.replicas)
        return dataset if seed is None else dataset.with_seed(seed, self.replica_index)

    def share(self, size: int) -> slice:
        """Return this replica's part of a batch: all of it if replicas are asynchronous."""
        return super().share(size) if self.synchronous else slice(0, size)

    def replica(
        self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer, tables: Sequence[int] = ()
    ) -> Replica:
        """Begin to train: variables go to the ps tasks, with the chief's values.

        ``tables`` are numbers of variables. Of each table, sockets carry only the rows that a batch looks up,
        and their gradients; a replica's copy is complete after ``fetch``, ``newest`` and ``finish``.
        Raises InvalidArgumentError if a step takes more gradients than all replicas together will make, and
        TrainingOver in a process that rejoins a training that has ended.
        """
        self._require_supply()
        number = self._trainings
        self._trainings += 1
        server_of = round_robin(len(variables), len(self._servers))
        links: list[Link] = []
        context = current()
        progress = context.progress
        awaits = self._awaits and context.fitting and self.synchronous and not self.rules.several
        restores = not tables and (awaits or not self.synchronous)
        survives = self._replicates or restores
        rules = dataclasses.replace(self.rules, awaits=awaits)
        waiting = StepWait(context, {i: info.name for i, info in self._workers.items()}, self._check)

        def lost(frozen: Mapping[int, int]) -> None:
            for replica, pid in frozen.items():
                info = self._now().get(replica)
                if info is None:  # it was added since, and the client finds it by itself
                    continue
                if info.pid == pid and info.incarnation not in progress.lost:  # not its new process
                    progress.lost = [*progress.lost, info.incarnation]

        def opened(request: ShardRequest, index: int, info: TaskInfo) -> Link:
            here = info.host == self._task.info.host and self._transport == "auto"
            here = here and self.replica_index < rules.first  # the others have no place in the memory
            connect = partial(Peer, info.address, self._task.keys, name=info.name)
            return open_link(
                connect, request, prefix=self._prefix if here else None, check=waiting.check, lost=lost
            )

        requests: list[ShardRequest] = []
        replica: ServedReplica | None = None
        first = [info.incarnation for info in self._servers]
        progress.restores = survives

        def opened_at_first(request: ShardRequest, index: int, info: TaskInfo) -> Link:
            if request.initial is not None and survives and info.incarnation != first[index]:
                request = offering_initial(request)  # other replicas may have trained with the former process
            request = dataclasses.replace(request, pids=self._pids_on(info.host))
            link = opened(request, index, info)
            report(index, link)
            return link

        def report(index: int, link: Link) -> None:
            if link.restored is not None:
                progress.restored = [*progress.restored, self._described(index, link.restored, optimizer)]

        try:
            for index, info in enumerate(self._servers):
                mine = [v for i, v in enumerate(variables) if server_of[i] == index and i not in tables]
                own = tuple(variables[i] for i in tables if server_of[i] == index)
                request = ShardRequest(
                    shard=f"{self._run}/{number}",
                    replica=self.replica_index,
                    called=f"({self._task.name}, pid {self._task.info.pid} on {socket.gethostname()})",
                    rules=rules,
                    layout=Layout.of((n, a.shape, a.dtype) for n, a in mine),
                    optimizer=optimizer,
                    counts=index == 0 and (self.synchronous or len(self._servers) == 1),
                    first=index == 0,
                    initial=tuple(a for _, a in mine)
                    if self.replica_index == 0 and not self._rejoins
                    else None,
                    pids=self._pids_on(info.host),
                    tables=own,
                    restored=self._restored_of(server_of, index, variables, tables),
                    rejoins=self._rejoins,
                    standby=self._standby_of(index),
                )
                requests.append(request)
                if survives:
                    links.append(self._opened_when_back(index, partial(opened_at_first, request, index)))
                else:
                    links.append(opened(request, index, info))
        except BaseException as error:
            progress.restores = False
            for link in links:
                if isinstance(error, TrainingOver):  # on one server, while another waited for this replica
                    link.announce_done()
                link.close()
            raise

        def reopened(index: int, old: Link, error: UnavailableError, done: bool) -> Link:
            state = progress.state
            progress.state = f"waiting for {self._servers[index].name}"
            try:
                return restored(index, old, error, done)
            finally:
                progress.state = state

        def restored(index: int, old: Link, error: UnavailableError, done: bool) -> Link:
            if old.address == self._servers[index].address:  # else another training has waited for it
                self._wait_for_new(index, error)
            if self.synchronous and not self._replicates:
                copy, version = old.remains()
            elif self.synchronous:  # the standby has all that was answered, with the optimizer's slots
                copy, version = old.parameters, old.version
            else:
                old.salvage()
                copy, version = old.parameters, old.version
            has_copy = old.has_copy or copy is not old.parameters
            old.close()
            numbers = [i for i in range(len(variables)) if server_of[i] == index]
            request = dataclasses.replace(
                requests[index],
                initial=None,
                restored=None,
                rejoins=False,
                pids=self._pids_on(self._servers[index].host),
                offer=old.offer(self.replica_index, done, version) if has_copy else None,
                copy=copy,
                saved=lambda: requests[index].restored or self._saved_of(replica, numbers, old.layout),
            )
            link = self._opened_when_back(index, partial(opened, request, index))
            report(index, link)
            if self.replica_index == 0:  # another replica may not know the newest rate
                link.set_rate(float(optimizer.learning_rate))
            return link

        shard = f"{self._run}/{number}"
        replica = ServedReplica(
            links, server_of, rules, replica=self.replica_index, optimizer=optimizer, tables=tables,
            rejoins=self._rejoins, reopen=reopened if survives else None, waiting=waiting,
            borrow=partial(self._borrowed, shard),
        )  # fmt: skip
        server, lends = self._task.server, awaits and len(links) > 1
        if lends:
            server.on(EARLIER, lambda frame, sender: lend(replica, shard, frame))
        progress.awaits = awaits

        def closed() -> None:
            progress.restores = False
            if lends:
                server.off(EARLIER)

        replica.at_close = closed
        return replica

    def _borrowed(self, shard: str, number: int, version: int) -> Array:
        """Return another replica's copy of a server's parameters of an earlier version.

        Raises UnavailableError if there is none.
        """
        meta = {"shard": shard, "server": number, "version": version}
        for now in self._now().values():
            if now.rank != self._task.rank:
                try:
                    with Peer(now.address, self._task.keys, name=now.name) as peer:
                        return peer.call(EARLIER, meta).arrays[0]
                except (NotFoundError, UnavailableError, InvalidArgumentError):
                    continue
        raise UnavailableError(
            f"{self._task.name} cannot take the place of its former process: {self._servers[number].name} "
            f"has made step {version + 1:,}, another parameter server has not, and no other worker has the "
            "parameters of before. Run the cell again; with --checkpoint-every it can be resumed"
        )

    def _standby_of(self, index: int) -> dict[str, Any] | None:
        """Return where the standby of a server's shard is: on the next server."""
        if not self._replicates:
            return None
        other = self._servers[(index + 1) % len(self._servers)]
        return {"rank": other.rank, "of": self._servers[index].rank, "shared": self._transport == "auto"}

    def _pids_on(self, host: str) -> tuple[int, ...]:
        """Return the processes of the replicas on a host, as they are now; 0 for those on other hosts."""
        now = self._now()
        found = (now.get(number) for number in range(self.rules.replicas))
        return tuple(one.pid if one is not None and one.host == host else 0 for one in found)

    def _now(self) -> dict[int, TaskInfo]:
        """Return the replicas' tasks, with their present processes, without those that were removed."""
        roster = {info.rank: info for info in self._task.roster}
        return {n: roster[info.rank] for n, info in self._workers.items() if info.rank in roster}

    def _opened_when_back(self, index: int, open_shard: Callable[[TaskInfo], Link]) -> Link:
        """Open a shard on a server, or on the process that replaces it if it dies."""
        until = time.monotonic() + BACK_SECONDS
        while True:
            info = self._servers[index]
            try:
                with Peer(info.address, self._task.keys, name=info.name, timeout=HELLO_SECONDS) as peer:
                    peer.call("ps.hello")
            except (NotFoundError, UnavailableError):  # it starts, or was replaced
                if time.monotonic() > until:
                    raise
                self._check()
                threading.Event().wait(POLL_SECONDS)
                self._servers[index] = find_rank(self._task.roster, info.rank)
                continue
            try:
                return open_shard(info)
            except UnavailableError as error:
                self._wait_for_new(index, error)
                until = time.monotonic() + BACK_SECONDS

    def _wait_for_new(self, index: int, error: UnavailableError) -> None:
        """Wait until a server has another process; raise the error if it still answers, or has none in time.

        Raises AbortedError when the run ends, as it does if the server is not replaced.
        """
        old = self._servers[index]
        begun, said = time.monotonic(), False
        while (new := find_rank(self._task.roster, old.rank)).incarnation == old.incarnation:
            self._check()
            if time.monotonic() > begun + NEW_SECONDS or answers(old, self._task.keys):
                raise error
            if not said and time.monotonic() > begun + SAY_SECONDS:
                said = True
                print(f"{old.name} (pid {old.pid}) does not answer: training waits for its new process")
        self._servers[index] = new

    def _saved_of(
        self, replica: ServedReplica | None, numbers: Sequence[int], layout: Layout
    ) -> ShardState | None:
        """Return the slots of a server's variables in the newest state that the run has saved."""
        saved = None if replica is None or replica.saved is None else replica.saved()
        if saved is None or not saved.slots:
            return None
        slots: dict[str, Array] = {}
        for name in saved.slots[0]:
            slots[name] = layout.buffer()
            for view, i in zip(layout.views(slots[name]), numbers, strict=True):
                np.copyto(view, saved.slots[i][name].reshape(view.shape))
        return ShardState(saved.updates, slots)

    def _described(self, index: int, restored: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        """Return how a server was restored, as plain values for the client."""
        info, slots = self._servers[index], restored.get("slots")
        names = " and ".join(optimizer.get_slot_names())
        if restored.get("standby"):
            what = f"restored from its replica on {restored['standby']}"
        elif slots is None:
            what = ""
        elif slots == "anew":
            what = f"its slots of the optimizer ({names}) began anew"
        else:
            what = f"its slots of the optimizer ({names}) are those after update {int(slots):,}"
        return {
            "task": info.name,
            "incarnation": info.incarnation,
            "lost": int(restored["lost"]),
            "step": int(restored["global_step"]),
            "slots": what,
        }

    def _restored_of(
        self,
        server_of: Sequence[int],
        index: int,
        variables: Sequence[tuple[str, Array]],
        tables: Sequence[int],
    ) -> ShardState | None:
        """Return the part of the restored slots that one server keeps; None unless the chief continues."""
        restored = self.restored
        if restored is None or self.replica_index:
            return None
        numbers = [i for i in range(len(variables)) if server_of[i] == index]
        rest = [i for i in numbers if i not in tables]
        layout = Layout.of((variables[i][0], variables[i][1].shape, variables[i][1].dtype) for i in rest)
        slots: dict[str, Array] = {}
        for name in restored.slots[0] if restored.slots else ():
            slots[name] = layout.buffer()
            for view, i in zip(layout.views(slots[name]), rest, strict=True):
                np.copyto(view, restored.slots[i][name].reshape(view.shape))
        return ShardState(
            restored.updates, slots, tuple(restored.slots[i] if slots else {} for i in tables if i in numbers)
        )

    def _require_supply(self) -> None:
        progress = current().progress
        steps = (progress.total or 0) - progress.step  # not above 0 where it is not known
        if self.synchronous and 0 < steps * self.replicas < self.rules.needed:
            raise InvalidArgumentError(
                f"aggregate={self.rules.needed}: a step takes {self.rules.needed} gradients, and "
                f"{self.replicas} replicas with {steps} batches each never make so many; give a smaller one, "
                "or more epochs"
            )


EARLIER = "ps.earlier"
"""A message from one worker to another: it asks for the parameters of a server before its last update."""


def lend(replica: ServedReplica, shard: str, frame: Frame) -> Frame:
    """Answer a new process that needs parameters which a server has no longer; on the Server's thread.

    The training's thread does not change the copy meanwhile: it waits for the gradient of that process.
    Raises NotFoundError if this replica has other parameters.
    """
    number, version = int(frame.meta["server"]), int(frame.meta["version"])
    copy = replica.copy_of(number, version) if frame.meta["shard"] == shard else None
    if copy is None:
        raise NotFoundError(f"no copy of the parameters of {frame.meta['shard']} after update {version} here")
    return Frame(EARLIER, {}, (copy,))


class StepWait:
    """What a replica does while it waits: it shows which lost ones it waits for, and obeys a stop."""

    def __init__(self, context: Context, names: Mapping[int, str], check: Callable[[], None]) -> None:
        self._context, self._names, self._check = context, names, check
        self._links: Sequence[Link] = ()
        self._before: str | None = None
        self.look_at_servers: Callable[[], object] = lambda: None

    def watch(self, links: Sequence[Link]) -> None:
        """Check these links from now on."""
        self._links = links

    def check(self) -> None:
        """Check servers and awaited replicas, often; raises AbortedError if the run has ended."""
        self._check()
        self.look_at_servers()
        awaited = sorted({replica for link in self._links for replica in link.awaited})
        self._show(awaited)
        if awaited and self._context.control.stop_requested:
            for link in self._links:
                with contextlib.suppress(UnavailableError):  # that server has died, and no step is made there
                    link.announce_done(stops=True)

    def end(self) -> None:
        """Wait no longer."""
        for link in self._links:
            link.awaited = []
        self._show([])

    def _show(self, awaited: Sequence[int]) -> None:
        progress = self._context.progress
        if awaited:
            self._before = progress.state if self._before is None else self._before
            names = " and ".join(self._names[replica] for replica in awaited)
            progress.state = f"waiting for {names}'s new process"
        elif self._before is not None:
            progress.state, self._before = self._before, None


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


def require_standbys(servers: int) -> None:
    """Raise InvalidArgumentError unless there are servers enough for each to have a replica elsewhere."""
    if servers < 2:
        raise InvalidArgumentError(
            "--ps-replicas 1 keeps a replica of each parameter server on the next one, and the cluster has "
            f"{servers}: restart it with 2 or more (%cluster stop, then %cluster start --workers N --ps 2), "
            "or drop --ps-replicas"
        )


def answers(info: TaskInfo, keys: ClusterKeys) -> bool:
    """Return whether a task's process still answers."""
    with Peer(info.address, keys, name=info.name, timeout=PING_SECONDS) as peer:
        try:
            return bool(peer.call("ping").meta["incarnation"] == info.incarnation)
        except UnavailableError:
            return False


T = TypeVar("T")
Reopen = Callable[[int, Link, UnavailableError, bool], Link]
"""Opens a server's shard again, on its new process: from its number, the old link, the error of that one, and
whether this replica has made all of its steps."""


class ServedReplica(Replica):
    """One replica of parameters that are kept by several links' shards; the first counts the global step."""

    def __init__(
        self,
        links: Sequence[Link],
        server_of: Sequence[int],
        rules: Rules,
        *,
        replica: int,
        optimizer: Optimizer | None = None,
        tables: Sequence[int] = (),
        rejoins: bool = False,
        reopen: Reopen | None = None,
        waiting: StepWait | None = None,
        borrow: Callable[[int, int], Array] | None = None,
    ) -> None:
        self._reopen, self._waiting, self._borrow = reopen, waiting, borrow
        self.at_close: Callable[[], object] = lambda: None
        self._ahead: set[int] = set()
        """Servers that have already made the step at which this new process begins."""
        self.tables, self._table_servers = tuple(tables), [server_of[i] for i in tables]
        self._links, self._rules, self._number, self._optimizer = [*links], rules, replica, optimizer
        self.pull_is, self.push_is = ("receive", parameters_for(replica)), ("send", gradient_of(replica))
        self._counts_apart = len(links) > 1 and not rules.synchronous
        self._under_way: deque[int] = deque()
        self._slot = 0
        self._slots = SLOTS if rules.judged_apart else rules.depth
        self._pending: dict[int, list[int]] = {}
        """By slot: the servers that have a gradient of it for a step that is not complete."""
        self.dropped = 0
        """How many of this replica's gradients were dropped so far, by one server at least."""
        self._server_of = list(server_of)
        self._retiring = False
        self._reopening: set[int] = set()
        self._over: set[int] = set()
        """Servers that all replicas have left."""
        self._done = False
        """Whether this replica has made all of its steps."""
        if waiting is not None:
            waiting.watch(self._links)
        self.statistics: list[GradientStatistics] = []
        """What each server did with the gradients of all replicas; available after ``finish``."""
        for number in range(len(links)):  # a failure before the first step must not leave zeros in the model
            self._on(number, lambda link: link.pull())
        links = self._links
        if rejoins:
            self._continue_from(links)
        self.by_updates = rules.synchronous and rules.backups > 0
        self.notes = [link.note for link in links if link.note]
        of_rest = [server for i, server in enumerate(server_of) if i not in self.tables]
        rest = self._in_order([link.layout.views(link.parameters) for link in links], of_rest)
        own = self._in_order([link.tables for link in links], [server_of[i] for i in self.tables])
        self.values = interleaved(own, rest, self.tables)
        self._gradients = self._gradient_views()
        if waiting is not None and reopen is not None and rules.synchronous:
            waiting.look_at_servers = self._look_at_servers

    def _gradient_views(self) -> list[list[Array]]:
        """Return the gradients of each slot, in the order of the variables."""
        of_rest = [server for i, server in enumerate(self._server_of) if i not in self.tables]
        return [
            self._in_order([link.layout.views(link.gradient(slot)) for link in self._links], of_rest)
            for slot in range(SLOTS)
        ]

    def _on(self, number: int, act: Callable[[Link], T]) -> T:
        """Do something with a link; if its server has died, do it with that of the new process."""
        while True:
            link = self._links[number]
            try:
                return act(link)
            except UnavailableError as error:
                if self._links[number] is link:  # else it was opened again while this replica waited
                    self._survive(number, error)

    def _look_at_servers(self) -> None:
        """Open a shard again whose server has died, while this replica waits for another one.

        That one may wait for a replica that waits until all have opened this one.
        """
        for number, link in enumerate(self._links):
            if number in self._reopening | self._over:
                continue
            try:
                link.look()
            except UnavailableError as error:
                try:
                    self._survive(number, error, self._done)
                except TrainingOver:  # the others have the last update, and this replica lacks it
                    raise error from None

    def _survive(self, number: int, error: UnavailableError, done: bool = False) -> None:
        """Wait for the new process of a server that has died, and continue with it.

        Asynchronous gradients under way to the old one are not sent again: it may have applied them, and the
        copy that restores the new one may contain them. Synchronous ones are, if they are not part of it.
        """
        if self._reopen is None:
            raise error
        begun, old = time.perf_counter(), self._links[number]
        self._reopening.add(number)
        try:
            new = self._reopen(number, old, error, done)
        finally:
            self._reopening.discard(number)
        again: set[int] = set()
        if self._rules.synchronous and not new.is_from_standby:
            again = new.repeat_step(old, exact=not self._rules.backups)
            if number in self._ahead and self.joins_at == new.opened_at:
                self._ahead.discard(number)  # its copy is of the step before
        else:
            new.take_over(old, self._under_way)
        self._links[number] = new
        self._gradients = self._gradient_views()
        if not self._retiring:  # which counts it
            self.waited += time.perf_counter() - begun
        if self._done:
            new.announce_done()
        for slot in again:  # its step was complete, and is made once more
            self._on(number, lambda link, slot=slot: link.outcome(slot))  # type: ignore[misc]

    def _continue_from(self, links: Sequence[Link]) -> None:
        """Take the place that this replica's former process had in the training.

        If it died between two servers, one of them has applied its last gradient and another has not. Among
        asynchronous replicas, and with backups, the step counts as made, and is not repeated. Otherwise the
        others wait in it: this process makes the gradient again, for the servers that lack it, from the
        parameters of before, which the others have.
        """
        if self._rules.synchronous and not self._rules.backups:
            at = self.joins_at = min(link.made for link in links)
            self._ahead = {number for number, link in enumerate(links) if link.made > at}
            for number in self._ahead:
                assert self._borrow is not None
                np.copyto(links[number].parameters, self._borrow(number, at))
                links[number].version = at
            return
        made, self.joins_at = max(link.made for link in links), max(link.place for link in links)
        self.left_out = self.joins_at - made
        if self._counts_apart:
            for _ in range(made - links[0].counted):
                links[0].count()

    @property
    def transports(self) -> list[str]:
        """How each shard is reached, for people."""
        return [link.kind for link in self._links]

    def want(self, ids: Sequence[Array]) -> None:
        """Request the rows of each table that the next pull returns."""
        for link, numbered in self._by_link(ids):
            for number, one in enumerate(numbered):
                link.want(number, one)

    def take(self, gradient: Sequence[RowGradient]) -> None:
        """Take the gradients of the tables' rows, for the next push."""
        for link, rows in self._by_link(gradient):
            link.take(rows)

    def _by_link(self, ones: Sequence[T]) -> list[tuple[Link, list[T]]]:
        """Return the items of each link's tables, in the link's order."""
        found: dict[int, tuple[Link, list[T]]] = {}
        for number, one in zip(self._table_servers, ones, strict=True):
            found.setdefault(number, (self._links[number], []))[1].append(one)
        return list(found.values())

    def pull(self) -> None:
        """Bring the newest parameters, once there is room for another gradient under way.

        Raises StepStopped once a step of this replica was not made, also if a state or a fetch noticed it.
        """
        if self.unmade:
            raise StepStopped
        self._bring()

    def _bring(self) -> None:
        while len(self._under_way) >= self._rules.depth:
            self._retire()
        if self._slot in self._pending:
            begun = time.perf_counter()
            for number in self._pending.pop(self._slot):
                self._on(number, lambda link: link.wait(self._slot))
            self.waited += time.perf_counter() - begun
        for number in range(len(self._links)):
            if number not in self._ahead:
                self._on(number, lambda link: link.pull())
        self.global_step = self._links[0].global_step

    def copy_of(self, number: int, version: int) -> Array | None:
        """Return a copy of a server's parameters as this replica has them, if they are of this version."""
        link = self._links[number]
        copy = link.parameters.copy()
        return copy if link.version == version and not link.tables else None

    def fetch(self) -> None:
        """Pull the newest parameters and the complete tables."""
        self._bring()
        for number in range(len(self._links)):
            self._on(number, lambda link: link.fetch_tables())

    def newest(self) -> None:
        """Bring the parameters as each server has them between two updates.

        With synchronous replicas all servers' parameters are those of one step. With backups, and with
        asynchronous replicas, one server's may be a step newer than another's.
        """
        for number in range(len(self._links)):
            self._on(number, lambda link: link.fetch())
        if self._rules.synchronous and not self._rules.judged_apart:
            newest = max(link.version for link in self._links)
            for number in range(len(self._links)):  # all gradients of that step are sent to each server
                while self._links[number].version < newest:
                    self._on(number, lambda link: link.reach(newest))
                    self._on(number, lambda link: link.fetch())
        self.global_step = self._links[0].global_step

    def state(self) -> ReplicaState:
        """Return the parameters and slots of all servers, and the steps of each replica that are in them.

        With synchronous replicas, unless there are backups, it is the state after this replica's last step:
        no server can make the next one without its gradient. Other replicas' servers are asked one after the
        other, and each answers as it is between two updates.
        """
        while self._under_way:
            self._retire()
        names = [] if self._optimizer is None else self._optimizer.get_slot_names()
        found = [self._on(n, lambda link: link.fetch_state(names)) for n in range(len(self._links))]
        if self._rules.synchronous and not self._rules.judged_apart:
            newest = max(link.version for link in self._links)
            for number in range(len(self._links)):
                while self._links[number].version < newest:
                    self._on(number, lambda link: link.reach(newest))
                    found[number] = self._on(number, lambda link: link.fetch_state(names))
        self.global_step = self._links[0].global_step
        apart = self._rules.synchronous is False
        return ReplicaState(
            self.values,
            self._slots_of(names, found),
            self.global_step,
            self._steps_of(found[0]) if apart else None,
        )

    def settle(self) -> None:
        """Wait until the step of the last push is made, of synchronous replicas without backups."""
        if self._rules.synchronous and self._rules.needed == self._rules.replicas:
            while self._under_way:
                self._retire()

    def _steps_of(self, found: ShardState) -> tuple[int, ...]:
        """Return the steps of each replica, without the last spare ones that were not added."""
        last = max((number for number, steps in enumerate(found.steps) if steps), default=0)
        return found.steps[: max(self._rules.first, last + 1)]

    def admit(self, leave: bool = False) -> bool:
        """Have an asynchronous replica leave, once its gradients are applied.

        The servers continue without it, as without one that has died, and have all that it gave.
        """
        if leave and not self._rules.synchronous:
            while self._under_way:
                self._retire()
            for number in range(len(self._links)):
                self._on(number, lambda link: link.wait_counted())
            raise ReplicaLeft
        return False

    def _slots_of(self, names: Sequence[str], found: Sequence[ShardState]) -> list[dict[str, Array]]:
        """Return the optimizer's slots of each variable, given those of each server."""
        of_rest = [server for i, server in enumerate(self._server_of) if i not in self.tables]
        of_tables = [self._server_of[i] for i in self.tables]
        slots: list[dict[str, Array]] = [{} for _ in self._server_of]
        for name in names:
            views = [link.layout.views(one.slots[name]) for link, one in zip(self._links, found, strict=True)]
            rest = self._in_order(views, of_rest)
            own = self._in_order([[table[name] for table in one.tables] for one in found], of_tables)
            for slot, array in zip(slots, interleaved(own, rest, self.tables), strict=True):
                slot[name] = array
        return slots

    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates: the servers have the slots and the learning rate already."""
        self.global_step = updates

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update, on the first replica."""
        return None if self._number or self._optimizer is None else self._optimizer.learning_rate

    def set_learning_rate(self, rate: float) -> None:
        """Change the rate on all servers between two updates; only the first replica sends it.

        Synchronous replicas' servers change between the same two: none of them can complete a step without
        the first replica's next gradient, unless there are backups.
        """
        if self._optimizer is not None:
            self._optimizer.learning_rate = rate  # also of a replica that restores a server
        if self._number:
            return
        while self._rules.synchronous and self._under_way:
            self._retire()
        for number in range(len(self._links)):
            self._on(number, lambda link: link.set_rate(rate))

    def gradients(self) -> Sequence[Array]:
        """Return the arrays of the next free slot: in the server's own memory where it is shared."""
        return self._gradients[self._slot]

    def push(self) -> None:
        """Send this step's gradients."""
        self._under_way.append(self._slot)
        for number, link in enumerate(self._links):
            if number in self._ahead:
                link.count_as_applied(self._slot)
                continue
            try:
                link.push(self._slot)
            except UnavailableError as error:
                self._survive(number, error)
        self._ahead = set()
        self._slot = (self._slot + 1) % self._slots

    def skip(self) -> None:
        """Take no part in this step's update; servers that count this replica's steps get zeros."""
        if self._rules.synchronous or self._rules.staleness is not None:
            super().skip()

    def finish(self) -> None:
        """Wait for all gradients of all replicas, and bring the final parameters."""
        while self._under_way:
            # A stopped step cannot complete any more; its gradient is dropped.
            with contextlib.suppress(StepStopped):
                self._retire()
        for number in range(len(self._links)):
            self._on(number, lambda link: link.wait_counted())
        self._done = True
        # To all before the first leave(): another replica may wait for this one at any of them.
        for number in range(len(self._links)):
            self._on(number, lambda link: link.announce_done())
        self.statistics = [self._leave(number) for number in range(len(self._links))]
        # Gradients collected for a step that was never completed count as dropped only now.
        self.dropped = max(self.dropped, *(one.dropped[self._number] for one in self.statistics))
        self.global_step = self._links[0].global_step

    def _leave(self, number: int) -> GradientStatistics:
        """Wait until all replicas have left a server; return what it did with their gradients.

        If it dies then, and all replicas have made their steps, the parameters are those of the copy here.
        """
        while True:
            link = self._links[number]
            try:
                left = link.leave()
                self._over.add(number)
                return GradientStatistics.from_wire(left["statistics"])
            except UnavailableError as error:
                if self._links[number] is not link:
                    continue
                try:
                    self._survive(number, error, done=True)
                except TrainingOver:
                    if self._rules.synchronous:
                        raise error from None  # the others have the last update, and this replica lacks it
                    statistics = GradientStatistics.of(self._rules.replicas)
                    statistics.made[self._number] = self._links[number].offer(self._number, True).made
                    return statistics

    @property
    def outcome(self) -> str:
        """How many gradients were applied and dropped, in words; empty before ``finish``."""
        if len(self.statistics) == 1:
            return str(self.statistics[0])
        return "; ".join(f"on server {i}: {one}" for i, one in enumerate(self.statistics))

    def close(self) -> None:
        """Close the links."""
        self.at_close()
        for link in self._links:
            link.close()

    def _retire(self) -> None:
        """Wait until the oldest unacknowledged gradient is applied or dropped."""
        begun, self._retiring = time.perf_counter(), True
        try:
            self._settle(self._under_way[0])
        except StepStopped:
            self.dropped += 1
            self.unmade += self._rules.synchronous and self._rules.needed == self._rules.replicas
            raise
        finally:
            self._under_way.popleft()  # not before: a server that dies now does not answer it any more
            if self._waiting is not None:
                self._waiting.end()
            self.waited, self._retiring = self.waited + time.perf_counter() - begun, False
        if self._counts_apart:  # all its shards together are one update
            try:
                self._links[0].count()
            except UnavailableError as error:  # what was counted is part of the offer to the new process
                self._survive(0, error)

    def _settle(self, slot: int) -> None:
        everywhere = range(len(self._links))
        if self._rules.judged_apart and not all(
            self._on(number, lambda link: link.taken(slot)) for number in everywhere
        ):
            # One of the servers has dropped it. The next gradient is not kept from that one until the others'
            # steps are complete: they may wait for a replica that waits for this one there.
            self.dropped += 1
            self._pending[slot] = [number for number in everywhere if self._still_taken(number, slot)]
            return
        first, *others = [self._on(number, lambda link: link.outcome(slot)) for number in everywhere]
        if first[0] == DROPPED:
            self.dropped += 1
            return
        self.staleness = first[1]
        if others and self._rules.several and first[0] == APPLIED:
            for link in self._links[1:]:  # which keep every gradient; the first one has ended the step
                link.reach(link.version + 1)

    def _still_taken(self, number: int, slot: int) -> bool:
        """Whether a gradient waits in a slot for its step on a server; one that was dropped does not."""
        if self._on(number, lambda link: link.taken(slot)):
            return True
        self._on(number, lambda link: link.wait(slot))
        return False

    @staticmethod
    def _in_order(by_link: Sequence[Sequence[Array]], links: Sequence[int]) -> list[Array]:
        """Return what each link has, in the order of the variables."""
        following = [iter(arrays) for arrays in by_link]
        return [next(following[link]) for link in links]


def _make(config: StrategyConfig) -> ParameterServerStrategy:
    world = config.world
    assert world.task is not None
    settings = dict(config.settings)
    backups = settings.pop("backups", None)
    if backups is not None:
        settings["aggregate"] = world.size - backups
    return ParameterServerStrategy(
        world.task,
        ranks=world.ranks,
        run=world.run,
        prefix=config.prefix,
        check=world.check,
        synchronous=config.training.synchronous,
        transport=config.training.transport,
        rejoins=world.rejoins,
        numbers=world.numbers,
        began_with=world.began_with,
        spare=0 if config.training.synchronous else MOST_ADDED,
        awaits=config.training.awaits,
        **settings,
    )


def _check(settings: Mapping[str, Any], workers: int | None) -> None:
    backups = settings.get("backups")
    if backups is not None and settings.get("aggregate") is not None:
        raise InvalidArgumentError(
            "--backups N and --aggregate R say the same (R is the workers less the backups): give one"
        )
    if workers is not None and backups is not None and backups >= workers:
        raise InvalidArgumentError(
            f"--backups {backups} of {workers} workers leaves none whose gradients make a step; "
            f"at most {workers - 1} can be"
        )


def _needed(settings: Mapping[str, Any], synchronous: bool, workers: int) -> int:
    """Return how many gradients make a step."""
    aggregate: int | None = settings.get("aggregate")
    if not synchronous:
        return 1
    return workers - (settings.get("backups") or 0) if aggregate is None else aggregate


SPEC = StrategySpec(
    ParameterServerStrategy.name,
    make=_make,
    synchronous=None,
    survives_worker_loss=True,
    takes_new_workers=True,
    resizes=True,
    awaits_new_workers=True,
    in_graph=True,
    uses_parameter_servers=True,
    settings=(
        whole_number(
            "backups", "N", "--sync: of the workers N are backups; late gradients go", 0, synchronous=True
        ),
        whole_number(
            "aggregate", "R", "--sync: R gradients make a step (default: one a worker)", 1, synchronous=True
        ),
        whole_number(
            "staleness", "S", "--async: steps ahead of the slowest that one may be", 0, synchronous=False
        ),
        Setting(
            "ps_replicas",
            "1: a replica of each server on the next one; none of its updates is lost",
            shows="0|1",
            is_valid=lambda value: is_whole(value, 0, 1),
            expected="0 or 1",
        ),
        Setting(
            "locking", "no replica reads parameters in the middle of an update", read=None, default=False
        ),
        TRANSPORT,
    ),
    check=_check,
    needed=_needed,
)
