"""Several replicas in one process: one thread each, with collectives through NCCL or this process's memory.

threads = Threads(["GPU:0", "GPU:1"], world)
contexts = threads.companions(strategy, context)     # of the replicas beside the first
group = threads.groups[1]                            # in the second one's thread
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from nbdist.errors import InvalidArgumentError, MissingExtra, UnavailableError, choices
from nbdist.graph.backend import device_scope
from nbdist.graph.device import DeviceSpec
from nbdist.runtime.groups import World
from nbdist.train.context import Context
from nbdist.train.strategy import Strategy
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.local import thread_group
from nbdist.wire.collective.nccl import gpu_thread_group

KINDS = ("auto", "local", "nccl")


class Threads:
    """The replicas of a strategy on devices of this process, numbered in the order of ``devices``.

    ``collective`` is what sums their gradients: "local", the memory of the process; "nccl", for a GPU for
    each; or "auto", NCCL if it is there and each has its own GPU. Raises InvalidArgumentError for others, or
    if the ``world`` is of several processes.
    """

    def __init__(self, devices: Sequence[str], world: World, collective: str = "local") -> None:
        if isinstance(devices, str) or not devices:
            raise InvalidArgumentError(
                f"devices is a list of devices of this process, such as ['GPU:0', 'GPU:1'], got {devices!r}"
            )
        if world.size > 1:
            raise InvalidArgumentError(
                f"devices= names devices of one process, and the run has {world.size} replicas: drop devices="
            )
        if collective not in KINDS:
            raise InvalidArgumentError(
                f"the devices of one process have no collective {collective!r}; {choices(collective, KINDS)}"
            )
        self.devices = [_short(device) for device in devices]
        self._collective = collective
        self.groups: list[Collective] = []
        """Each replica's end of the group for gradients that the last call of `companions` made."""
        self.value_groups: list[Collective] = []
        """Its end of the group for other values, which are in host memory."""

    def check_devices(self) -> None:
        """Raise what `device_scope` raises for a device that this process does not have."""
        for device in self.devices:
            with device_scope(device):
                pass

    def companions(self, strategy: Strategy, context: Context) -> list[Context]:
        """Return the contexts of the replicas beside the first, which begin a training together."""
        self.check_devices()
        self.groups = self._form(context.control.check)
        self.value_groups = thread_group(self._names, check=context.control.check)
        context.device = self.devices[0]
        return [self._companion(strategy, context, number) for number in range(1, len(self.devices))]

    @property
    def _names(self) -> list[str]:
        return [f"device {device}" for device in self.devices]

    def _form(self, check: Callable[[], None]) -> list[Collective]:
        gpus = [int(device.removeprefix("GPU:")) for device in self.devices if device.startswith("GPU:")]
        note = ""
        if self._collective == "nccl" or (self._collective == "auto" and gpus and len(self.devices) > 1):
            try:
                if len(gpus) < len(self.devices):
                    devices = ", ".join(self.devices)
                    raise UnavailableError(f"NCCL needs a GPU for each replica, got {devices}")
                return gpu_thread_group(self._names, gpus, check)
            except (MissingExtra, UnavailableError) as error:
                if self._collective == "nccl":
                    raise
                note = f"gradients travel through host memory: {error}"
        groups = thread_group(self._names, check=check)
        groups[0].notes += [note] if note else []
        return groups

    def _companion(self, strategy: Strategy, context: Context, number: int) -> Context:
        own = copy(strategy)
        own.replica_index, own.keeps_values = number, False
        return context.derive(strategy=own, device=self.devices[number], trainings=context.trainings)


def _short(device: str) -> str:
    """Return a device of this process as CPU:0 or GPU:1.

    >>> _short("/gpu:1"), _short("CPU:0")
    ('GPU:1', 'CPU:0')
    """
    spec = DeviceSpec.from_string(device if device.startswith("/") else f"/{device}")
    if spec.device_type is None or spec.job is not None:
        raise InvalidArgumentError(f"{device!r} is not a device of this process; give one such as CPU:0")
    return f"{spec.device_type}:{spec.device_index or 0}"
