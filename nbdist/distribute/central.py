"""One copy of the parameters in the memory of one host; replicas send their gradients there, for one update.

In a run the chief's task keeps it, as a parameter server of all workers, which must be on its host. Outside
of a run, one thread per device of this process computes, and all threads share the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from nbdist.distribute.parameter_server import ParameterServerStrategy
from nbdist.distribute.sharing import WorkerStrategy
from nbdist.distribute.spec import StrategySpec, TransportOptions
from nbdist.distribute.threads import Threads
from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import backend, pinned_buffer, scoped_device
from nbdist.optim import Optimizer
from nbdist.runtime.groups import World
from nbdist.runtime.task import find_rank
from nbdist.train.capabilities import Agreement, ArrayMemory, StepSpans
from nbdist.train.context import Context
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy, layout_of
from nbdist.train.replica import Replica, itself, push_zeros
from nbdist.train.strategy import Strategy
from nbdist.train.trainable import Trainable
from nbdist.wire.collective.base import Collective

Array: TypeAlias = np.ndarray[Any, Any]


class CentralStorageStrategy(WorkerStrategy):
    """Train with the parameters in the memory of one host, or of the only GPU, for all its replicas.

    Runs on the workers, or with ``devices`` in any process.

    - ``devices``: devices of this process that compute, such as ["CPU:0", "CPU:0"]; None takes the workers of
      the surrounding run, which have to be on one host
    - ``world``: the replicas; None for those of the surrounding run
    - ``prefix``: the beginning of the names of the run's shared memory
    - ``transport``: how parameters travel, "auto" (shared memory) or "socket"

    Raises InvalidArgumentError for workers on several hosts, or a name that is not a device.

    >>> CentralStorageStrategy(["CPU:0", "CPU:0"]).num_replicas_in_sync
    2
    """

    name = "central"
    continues = True
    calls_update = True

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        *,
        world: World | None = None,
        prefix: str = "",
        transport: str = "auto",
    ) -> None:
        super().__init__(world)
        self._threads = Threads(devices, self.world) if devices is not None else None
        self._parameters: Array = np.zeros(0, np.uint8)
        self._served: Strategy = OneDeviceStrategy()
        if self._threads is not None:
            self.num_replicas_in_sync = len(self._threads.devices)
            return
        if len(set(self.world.hosts)) > 1:
            raise InvalidArgumentError(
                f"strategy central keeps parameters in the memory of one host, and the run's workers are on "
                f"{len(set(self.world.hosts))}; use --strategy ps, or choose workers of one host with --on"
            )
        if self.world.task is not None:
            self._served = ParameterServerStrategy(
                self.world.task,
                ranks=self.world.ranks,
                run=self.world.run,
                prefix=prefix or self.world.task.segment_prefix,
                check=self.world.check,
                synchronous=True,
                transport=transport,
                servers=[find_rank(self.world.task.roster, self.world.ranks[0])],
            )
        self.keeps_slots = self._served.keeps_slots

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer) -> Replica:
        """Begin to train: the parameters get the chief's values."""
        if self._threads is None:
            self._served.restored = self.restored
            return self._served.replica(variables, optimizer)
        return SharingReplica(
            self._threads.groups[self.replica_index], variables, optimizer, self._parameters
        )

    def companions(self, context: Context, model: Trainable, optimizer: Optimizer) -> list[Context]:
        """Return the contexts of the other devices' threads."""
        if self._threads is None:
            return []
        self._threads.check_devices()  # before memory is allocated for them
        layout, gpus = layout_of(model.variables), [d for d in self._threads.devices if backend(d) is not np]
        # The same for the copies of this that follow.
        self._parameters = pinned_buffer(layout.size, backend(gpus[0])) if gpus else layout.buffer()
        return self._threads.companions(self, context)

    def form_value_group(self) -> Collective:
        """Return this replica's end of a group for values other than gradients."""
        if self._threads is None:
            return super().form_value_group()
        return self._threads.value_groups[self.replica_index]


class SharingReplica(OneDeviceReplica, Agreement):
    """A thread that computes gradients for parameters which all threads read and the first one changes."""

    spans = StepSpans(pull=None, push=("send", "gradients to the central storage"))
    agreement = itself

    def __init__(
        self,
        group: Collective,
        variables: Sequence[tuple[str, Array]],
        optimizer: Optimizer,
        parameters: Array,
    ) -> None:
        super().__init__(variables, optimizer, parameters)
        if backend(scoped_device()) is not np:
            self.memory = ArrayMemory(pinned=(self._layout, parameters))
        self._group, self.report.measures_share = group, group.size > 1
        self._flags, self._stops = np.zeros(2, np.int64), False  # whether to stop; whether this overflowed

    def push(self) -> None:
        """Sum the gradients of all; the first thread applies them."""
        group, waited = self._group, self._group.waited
        for _, gradient, _ in self._flats:
            group.all_reduce(gradient, "sum", out=gradient)
        stops, overflowed = group.all_reduce(self._flags, "max")
        self._stops, self._flags[1] = bool(stops), 0
        if overflowed:
            self.report.overflows += 1
        elif group.rank == 0:
            super().push()
        else:
            self.report.global_step += 1
        group.barrier()
        self.report.waited += group.waited - waited

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update, on the thread that makes it."""
        return super().learning_rate if self._group.rank == 0 else None

    def set_learning_rate(self, rate: float) -> None:
        """Change the rate of the first thread, which makes the updates."""
        if self._group.rank == 0:
            super().set_learning_rate(rate)

    def skip(self) -> None:
        """Push zeros: take no part in this step's update."""
        push_zeros(self)

    def overflow(self) -> None:
        """Have all threads leave this step out."""
        self._flags[1] = 1
        self.skip()

    def agree(self, stop: bool) -> bool:
        """Return whether any replica was asked to stop before the last step; the next push sends ``stop``."""
        self._flags[0] = stop
        return self._stops

    def end_epoch(self, stop: bool) -> bool:
        """Return whether any replica wants to end the training."""
        return bool(self._group.all_reduce(np.array(stop or self._stops), "max"))

    def abort(self, error: BaseException) -> None:
        """Break the group, with the reason."""
        self._group.abort(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Leave the group."""
        self._group.close()


SPEC = StrategySpec(
    CentralStorageStrategy.name,
    make=lambda config: CentralStorageStrategy(world=config.world, prefix=config.prefix, **config.settings),
    synchronous=True,
    in_graph=True,
    options=TransportOptions,
)
