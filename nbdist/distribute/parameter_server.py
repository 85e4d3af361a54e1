"""Parameter servers: variables live on ps tasks, replicas push gradients to them.

Asynchronous: each replica reads all the data in its own order, and the servers apply its gradients on
arrival. Synchronous: replicas share each batch; the servers sum their gradients and apply the sum once.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.distribute.served_replica import EARLIER, ServedReplica, StepWait, lend
from nbdist.distribute.sharing import one_order, own_order
from nbdist.distribute.spec import StrategyConfig, StrategySpec, TransportOptions
from nbdist.errors import InvalidArgumentError, NotFoundError, UnavailableError
from nbdist.graph.placement import round_robin
from nbdist.numbers import is_whole
from nbdist.optim import Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import (
    Link,
    ShardRequest,
    ShardState,
    TrainingOver,
    open_link,
)
from nbdist.runtime.ps.restore import Offer
from nbdist.runtime.ps.sync import Rules
from nbdist.runtime.task import Task, TaskInfo, find_rank
from nbdist.train.context import Tolerance, current
from nbdist.train.options import option, whole
from nbdist.train.replica import Replica
from nbdist.train.strategy import Strategy
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer

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
        self.takes_rows = all(info.device.startswith("CPU") for info in self._workers.values())  # all alike
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
    def in_step(self) -> bool:
        """Whether a step takes one gradient of each replica; with backups it does not wait for all."""
        return super().in_step and not self.rules.backups and not self.rules.several

    @property
    def keeps_pace(self) -> bool:
        """Whether replicas wait for each other: synchronous ones, or ones with a staleness bound."""
        return self.synchronous or self.rules.staleness is not None

    def dataset(self, dataset: Dataset, seed: int | None) -> Dataset:
        """Return the dataset in one order for all (synchronous), or in this replica's own order."""
        if self.synchronous:
            found = one_order(dataset, seed, self.replicas, self.replicas, self.replica_index)
            if found.apart and not self.in_step:
                raise InvalidArgumentError(
                    "with_auto_shard makes each batch of a piece of every worker, and with backups or "
                    "aggregate a step does not wait for all: drop them, or use policy 'data'"
                )
            return found
        return own_order(dataset, seed, self.replicas, self.replica_index)

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
        progress.tolerance |= Tolerance.RESTORES if survives else Tolerance.NOTHING

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
            progress.tolerance &= Tolerance.SESSION
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
        progress.tolerance |= Tolerance.AWAITS if awaits else Tolerance.NOTHING

        def closed() -> None:
            progress.tolerance &= Tolerance.SESSION
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
        saved = None if replica is None or replica.hooks.saved is None else replica.hooks.saved()
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
        if not self.synchronous and not restored.get("standby"):  # they are not sent again
            what = "; ".join(filter(None, ["gradients on their way to it count as dropped", what]))
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
        synchronous=config.synchronous,
        rejoins=world.rejoins,
        numbers=world.numbers,
        began_with=world.began_with,
        spare=0 if config.synchronous else MOST_ADDED,
        awaits=config.awaits,
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


@dataclass(frozen=True, kw_only=True)
class ServerOptions(TransportOptions):
    """The options of `ParameterServerStrategy`."""

    backups: int | None = option(
        None,
        "--sync: of the workers N are backups; late gradients go",
        "N",
        doc="with sync, how many of the workers are backups: a step takes the first gradients of the others, "
        "and later ones are dropped; None is 0",
        **whole(0),
        synchronous=True,
    )
    aggregate: int | None = option(
        None,
        "--sync: R gradients make a step (default: one a worker)",
        "R",
        doc="with sync, how many gradients make a step; None is one of each worker but the backups",
        **whole(1),
        synchronous=True,
    )
    staleness: int | None = option(
        None,
        "--async: steps ahead of the slowest that one may be",
        "S",
        doc="without sync, by how many steps a worker may be ahead of the slowest; None is any number",
        **whole(0),
        synchronous=False,
    )
    ps_replicas: int | None = option(
        None,
        "1: a replica of each server on the next one; none of its updates is lost",
        doc="1 keeps a replica of each parameter server on the next one, so that no update is lost if "
        "one dies; it needs 2 ps tasks",
        shows="0|1",
        is_valid=lambda value: is_whole(value, 0, 1),
        expected="0 or 1",
    )
    locking: bool = option(False, "no replica reads parameters in the middle of an update")


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
    options=ServerOptions,
    check=_check,
    needed=_needed,
)
