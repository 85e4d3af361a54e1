"""A copy of the parameters on every device of one host; gradients are summed by all-reduce.

In a run each worker is a device. Without one, the devices of this process are driven by a thread each:

    strategy = MirroredStrategy(["GPU:0", "GPU:1"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nbdist.distribute import multi_worker
from nbdist.distribute.all_reduce import AllReduceStrategy
from nbdist.distribute.threads import Threads
from nbdist.errors import InvalidArgumentError
from nbdist.optim import Optimizer
from nbdist.runtime.groups import World
from nbdist.train.context import Context
from nbdist.train.trainable import Trainable
from nbdist.wire.collective.base import Collective


class MirroredStrategy(AllReduceStrategy):
    """Train with a copy of the parameters on each of several devices of one host.

    Runs on the workers, or with ``devices`` in any process. Source: synchronous data parallelism, as in
    TensorFlow's class of this name.

    - ``devices``: devices of this process, such as ["GPU:0", "GPU:1"]; a CPU may occur several times. None
      takes those of the workers of the surrounding run, which have to be on one host
    - ``collective``: the kind of all-reduce between workers: "auto" (shared memory, and NCCL if each worker
      has a GPU), or one of "shm", "ring", "hierarchical", "nccl", "mpi". Between the threads of ``devices``:
      "auto" (NCCL if each has a GPU of its own, else host memory), "local" (host memory) or "nccl"
    - ``world``: the replicas; None for those of the surrounding run

    Raises InvalidArgumentError for workers on several hosts, a name that is not a device, ``devices`` in a
    run of several workers, or a collective that they do not have. Training raises UnavailableError if "nccl"
    is not available, or two of ``devices`` are one GPU.

    >>> MirroredStrategy(["CPU:0", "CPU:0"]).num_replicas_in_sync
    2
    """

    name = "mirrored"

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        collective: str = "auto",
        *,
        world: World | None = None,
    ) -> None:
        super().__init__(collective, world=world)
        self._threads = Threads(devices, self.world, collective) if devices is not None else None
        if self._threads is not None:
            self.num_replicas_in_sync = len(self._threads.devices)
            self.takes_rows = all(name.startswith("CPU") for name in self._threads.devices)  # all alike
        hosts = set(self.world.hosts)
        if len(hosts) > 1:
            raise InvalidArgumentError(
                f"strategy mirrored is for the devices of one host, and the run's workers are on "
                f"{len(hosts)}; use --strategy multi_worker, or choose workers of one host with --on"
            )

    @property
    def devices(self) -> Sequence[str]:
        """The device of each replica."""
        return super().devices if self._threads is None else self._threads.devices

    def companions(self, context: Context, model: Trainable, optimizer: Optimizer) -> list[Context]:
        """Return the contexts of the other devices' threads."""
        return [] if self._threads is None else self._threads.companions(self, context)

    def form_value_group(self) -> Collective:
        """Return this replica's end of a group for values other than gradients."""
        if self._threads is None:
            return super().form_value_group()
        return self._threads.value_groups[self.replica_index]

    def form(self) -> Collective:
        """Return this replica's end of a group of all."""
        return super().form() if self._threads is None else self._threads.groups[self.replica_index]


SPEC = replace(  # between the tasks of a run it is the same, on one host
    multi_worker.SPEC,
    name=MirroredStrategy.name,
    make=lambda config: MirroredStrategy(world=config.world, **config.settings),
)
