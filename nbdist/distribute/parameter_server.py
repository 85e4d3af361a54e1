"""Parameter servers: variables live on ps tasks, replicas push gradients to them.

Asynchronous: each replica reads all the data in its own order, and the servers apply its gradients on
arrival. Synchronous: replicas share each batch; the servers sum their gradients and apply the sum once.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.distribute.served_training import ServedTasks, ServedTraining, TrainingPlan
from nbdist.distribute.sharing import one_order, own_order
from nbdist.distribute.spec import StrategyConfig, StrategySpec, TransportOptions
from nbdist.errors import InvalidArgumentError
from nbdist.numbers import is_whole
from nbdist.optim import Optimizer
from nbdist.runtime.ps.sync import Rules
from nbdist.runtime.task import Task, TaskInfo, find_rank
from nbdist.train.context import current
from nbdist.train.options import option, whole
from nbdist.train.replica import Replica
from nbdist.train.strategy import Strategy

Array: TypeAlias = np.ndarray[Any, Any]
MOST_ADDED = 64  # workers that can be added to an asynchronous run


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
    calls_update = True
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
        servers = list(servers) or [info for info in task.roster if info.job == "ps"]
        if not servers:
            raise InvalidArgumentError(
                "--strategy ps needs a parameter server and the cluster has none; "
                "start one with %cluster start --workers N --ps 1"
            )
        if transport not in ("auto", "socket"):
            raise InvalidArgumentError(f"no transport {transport!r}; choose from auto, socket")
        shares = transport == "auto"
        self._task, self._run, self._prefix = task, run, prefix if shares else None
        self.synchronous, self._rejoins, self._awaits = synchronous, rejoins, awaits
        numbers = numbers or range(len(ranks))
        self.replica_index = numbers[list(ranks).index(task.rank)]
        workers = {n: find_rank(task.roster, rank) for n, rank in zip(numbers, ranks, strict=True)}
        self._tasks = ServedTasks(task, servers, workers, check)
        self.takes_rows = all(info.device.startswith("CPU") for info in workers.values())  # all alike
        self.replicas = began_with or len(ranks)
        self.rules = Rules(
            self.replicas + spare, synchronous, aggregate, staleness, locking, len(servers), spare=spare
        )
        if self.replica_index >= self.rules.replicas:
            raise InvalidArgumentError(
                f"{task.name} is worker number {self.replica_index + 1} of a run that began with "
                f"{self.replicas}: {spare} can be added to it. Stop the run and start it again, with "
                "--resume if it has saved its state"
            )
        self.num_replicas_in_sync = self.replicas if synchronous else 1
        self._trainings = 0
        self._standbys: list[dict[str, Any]] = []
        """Where each server's standby is: on the next one."""
        if ps_replicas:
            require_standbys(len(servers))
            if self.rules.several:
                raise InvalidArgumentError(
                    f"aggregate={aggregate} of {self.replicas} replicas acknowledges gradients before they "
                    "are part of an update, and ps_replicas=1 keeps updates: give an aggregate of "
                    f"{self.replicas} or less, or ps_replicas=0"
                )
            following = [*servers[1:], servers[0]]
            self._standbys = [
                {"rank": other.rank, "of": info.rank, "shared": shares}
                for info, other in zip(servers, following, strict=True)
            ]

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
        servers = len(self._tasks.servers)
        if optimizer.global_clipnorm and servers > 1:
            raise InvalidArgumentError(
                f"global_clipnorm={optimizer.global_clipnorm:g}: strategy {self.name} has {servers} "
                "parameter servers, each with the gradients of its own variables, so that none knows the "
                "norm of all: take one server (--ps 1), clipnorm, which is of each variable, or --strategy "
                "multi_worker"
            )
        self._require_supply()
        context, task, shard = current(), self._task, f"{self._run}/{self._trainings}"
        self._trainings += 1
        awaits = self._awaits and context.fitting and self.synchronous and not self.rules.several
        plan = TrainingPlan(
            shard=shard,
            replica=self.replica_index,
            rules=dataclasses.replace(self.rules, awaits=awaits),
            variables=variables,
            optimizer=optimizer,
            tables=tables,
            called=f"({task.name}, pid {task.info.pid} on {socket.gethostname()})",
            rejoins=self._rejoins,
            standbys=self._standbys,
            restored=None if self.replica_index else self.restored,
        )
        return ServedTraining(plan, self._tasks, context, self._prefix).begin()

    def _require_supply(self) -> None:
        progress = current().progress
        steps = (progress.total or 0) - progress.step  # not above 0 where it is not known
        if self.synchronous and 0 < steps * self.replicas < self.rules.needed:
            raise InvalidArgumentError(
                f"aggregate={self.rules.needed}: a step takes {self.rules.needed} gradients, and "
                f"{self.replicas} replicas with {steps} batches each never make so many; give a smaller one, "
                "or more epochs"
            )


def require_standbys(servers: int) -> None:
    """Raise InvalidArgumentError unless there are servers enough for each to have a replica elsewhere."""
    if servers < 2:
        raise InvalidArgumentError(
            "--ps-replicas 1 keeps a replica of each parameter server on the next one, and the cluster has "
            f"{servers}: restart it with 2 or more (%cluster stop, then %cluster start --workers N --ps 2), "
            "or drop --ps-replicas"
        )


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
