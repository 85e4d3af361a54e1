"""Several replicas in one process: one thread each, with collectives in this process's memory."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from nbdist.errors import InvalidArgumentError
from nbdist.graph.device import DeviceSpec
from nbdist.runtime.groups import World
from nbdist.train.context import Context
from nbdist.train.strategy import Strategy
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.local import thread_group


class Threads:
    """The replicas of a strategy on devices of this process, numbered in the order of ``devices``.

    The ``world`` must be of one process: raises InvalidArgumentError otherwise.
    """

    def __init__(self, devices: Sequence[str], world: World) -> None:
        if isinstance(devices, str) or not devices:
            raise InvalidArgumentError(
                f"devices is a list of devices of this process, such as ['GPU:0', 'GPU:1'], got {devices!r}"
            )
        if world.size > 1:
            raise InvalidArgumentError(
                f"devices= names devices of one process, and the run has {world.size} replicas: drop devices="
            )
        self.devices = [_short(device) for device in devices]
        self._groups: list[Collective] = []

    def companions(self, strategy: Strategy, context: Context) -> list[Context]:
        """Return the contexts of the replicas beside the first, which begin a training together."""
        names = [f"device {device}" for device in self.devices]
        self._groups = thread_group(names, check=context.control.check)
        context.device = self.devices[0]
        return [self._companion(strategy, context, number) for number in range(1, len(self.devices))]

    def group(self, number: int) -> Collective:
        """Return a replica's end of the group that the last call of `companions` made."""
        return self._groups[number]

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
