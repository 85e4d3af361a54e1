"""A replica that computes on another device than where its strategy keeps parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nbdist.graph.backend import Array, backend, device_scope, to_device, to_host
from nbdist.train.strategy import Replica, ReplicaState


def on_device(replica: Replica, device: str) -> Replica:
    """Return a replica whose arrays are on ``device``; the same one if they are there."""
    return replica if replica.resident or backend(device) is np else DeviceReplica(replica, device)


class DeviceReplica(Replica):
    """Copies parameters to the device after each pull, and gradients back before each push."""

    def __init__(self, inner: Replica, device: str) -> None:
        self._inner, self._device, self._xp = inner, device, backend(device)
        with device_scope(device):
            self.values = [to_device(value, self._xp) for value in inner.values]
            self._gradients = [self._xp.empty_like(value) for value in self.values]
        self.notes, self.push_is = inner.notes, inner.push_is
        self.pull_is = inner.pull_is or ("receive", "parameters from the host")
        self.global_step, self.by_updates = inner.global_step, inner.by_updates

    def pull(self) -> None:
        """Bring the newest parameters to the device."""
        self._inner.pull()
        self._bring()

    def gradients(self) -> Sequence[Array]:
        """Return the device's gradient buffers."""
        return self._gradients

    def push(self) -> None:
        """Copy the gradients to the host and hand them over."""
        for target, gradient in zip(self._inner.gradients(), self._gradients, strict=True):
            np.copyto(target, to_host(gradient))
        self._inner.push()
        self._note()

    def settle(self) -> None:
        """Wait until the step of the last push is made."""
        try:
            self._inner.settle()
        finally:
            self._note()

    def skip(self) -> None:
        """Have no part in this step's update."""
        self._inner.skip()
        self._note()

    def newest(self) -> None:
        """Bring the newest parameters to the device, for a checkpoint."""
        self._inner.newest()
        self._bring()

    def state(self) -> ReplicaState:
        """Return what continues the training: the host has it between two steps."""
        return self._inner.state()

    @property
    def slots(self) -> list[dict[str, Array]]:
        """What the optimizer keeps for each variable, on the host."""
        return self._inner.slots

    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates, at a learning rate."""
        self._inner.resume(updates, rate, mark)
        self._note()

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update."""
        return self._inner.learning_rate

    def set_learning_rate(self, rate: float) -> None:
        """Make updates at another rate from the next step on."""
        self._inner.set_learning_rate(rate)

    def agree(self, stop: bool) -> bool:
        """Return whether to stop before the next step."""
        return self._inner.agree(stop)

    def renew(self) -> None:
        """Begin to make steps with processes that were admitted to the loop."""
        if self._inner.stale:
            self._inner.renew()
            self._bring()

    def admit(self, leave: bool = False) -> bool:
        """Have new processes join before the next step."""
        return self._inner.admit(leave)

    @property
    def joint(self) -> bool:
        """Whether ``agree`` stops all replicas together."""
        return self._inner.joint

    def end_epoch(self, stop: bool) -> bool:
        """Return whether to end the training after this epoch."""
        return self._inner.end_epoch(stop)

    def abort(self, error: BaseException) -> None:
        """Notify the replicas that wait for this one."""
        self._inner.abort(error)

    def finish(self) -> None:
        """Wait for all updates and bring the final parameters."""
        self._inner.finish()
        self._bring()

    def close(self) -> None:
        """Let go of what the strategy holds."""
        self._inner.close()

    def _bring(self) -> None:
        with device_scope(self._device):  # other threads, too, ask for the newest parameters
            for value, source in zip(self.values, self._inner.values, strict=True):
                value[...] = self._xp.asarray(source)
        self._note()

    def _note(self) -> None:
        self.global_step, self.staleness = self._inner.global_step, self._inner.staleness
        self.waited, self.dropped = self._inner.waited, self._inner.dropped
        self.unmade = self._inner.unmade
