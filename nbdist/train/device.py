"""A replica that computes on another device than where its strategy keeps parameters.

    parameters: server -> pinned memory -> GPU        one copy, in order before the step's program
    gradients:  GPU -> pinned memory -> server        one copy, beside what the GPU computes next

Parameters and gradients have one flat buffer each on the GPU, and one in pinned host memory, which a GPU
copies from and to while the host continues. The host waits once a step for the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from nbdist.graph.backend import Array, backend, device_scope, pinned_buffer
from nbdist.runtime.layout import Layout
from nbdist.train.strategy import Replica, ReplicaState, Trainable, layout_of


def on_device(replica: Replica, device: str) -> Replica:
    """Return a replica whose arrays are on ``device``; the same one if they are there."""
    there = replica.resident or replica.computes_elsewhere or backend(device) is np
    return replica if there else DeviceReplica(replica, device)


class DeviceReplica(Replica):
    """Copies parameters to the device after each pull, and gradients back before each push."""

    def __init__(self, inner: Replica, device: str) -> None:
        self._inner, self._device = inner, device
        xp = backend(device)
        with device_scope(device):
            self._layout, self._source, self._receives_pinned = _memory_of(inner, xp)
            layout = self._layout
            self._parameters: Any = layout.buffer(xp)
            self._gradient: Any = layout.buffer(xp)
            self._sent = pinned_buffer(layout.size, xp)
            self._stream, self._current = xp.cuda.Stream(non_blocking=True), xp.cuda.get_current_stream
            self._computed, self._copied, self._uploaded = (
                xp.cuda.Event(disable_timing=True) for _ in range(3)
            )
        self.values, self._gradients = layout.views(self._parameters), layout.views(self._gradient)
        self._flats, self._sent_views = layout.flats(self._gradient), layout.views(self._sent)
        self._is_copying = False
        self.notes, self.push_is = inner.notes, inner.push_is
        self.pull_is = inner.pull_is or ("receive", "parameters from the host")
        self.global_step, self.by_updates = inner.global_step, inner.by_updates
        self.adds_measures, self.measure = inner.adds_measures, inner.measure  # type: ignore[method-assign]
        self._upload()

    def program(
        self, model: Trainable, shapes: tuple[tuple[int, ...], ...]
    ) -> Callable[..., tuple[Array, ...]]:
        """Return the step's program, after which the gradients are on their way to the host."""
        program = super().program(model, shapes)

        def run(*arrays: Array) -> tuple[Array, ...]:
            results = program(*arrays)
            self._copy_gradient()
            return results

        return run

    def pull(self) -> None:
        """Bring the newest parameters to the device."""
        self._receive(self._inner.pull)

    def fetch(self) -> None:
        """Bring the newest parameters to the device in any case."""
        self._receive(self._inner.fetch)

    def newest(self) -> None:
        """Bring the newest parameters to the device, for a checkpoint."""
        self._receive(self._inner.newest)

    def gradients(self) -> Sequence[Array]:
        """Return the device's gradient buffers."""
        return self._gradients

    def flat_gradients(self) -> Sequence[Array]:
        """Return the memory of the device's gradients, one array per dtype of a server."""
        return self._flats

    def push(self) -> None:
        """Wait for the gradients, and hand them over."""
        if not self._is_copying:  # a replica without an example has run no program
            self._copy_gradient()
        self._copied.synchronize()
        self._is_copying = False
        for target, gradient in zip(self._inner.gradients(), self._sent_views, strict=True):
            np.copyto(target, gradient)
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
        self._is_copying = False
        self._inner.skip()
        self._note()

    def overflow(self) -> None:
        """Have all replicas leave out this step that make it together."""
        self._is_copying = False
        self._inner.overflow()
        self._note()

    def ask_state(self) -> bool:
        """Return whether :meth:`state` can be called now."""
        return self._inner.ask_state()

    def restore_slots(self, slots: Sequence[Mapping[str, Array]]) -> None:
        """Have the optimizer continue with these slots."""
        self._inner.restore_slots(slots)

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
            self._receive(self._inner.renew)

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
        self._receive(self._inner.finish)

    def close(self) -> None:
        """Let go of what the strategy holds."""
        self._inner.close()

    def _receive(self, receive: Callable[[], None]) -> None:
        """Receive parameters on the host and copy them to the device."""
        self._uploaded.synchronize()  # the last copy reads the memory that they arrive in
        receive()
        self._upload()
        self._note()

    def _upload(self) -> None:
        if not self._receives_pinned:
            for target, source in zip(self._layout.views(self._source), self._inner.values, strict=True):
                np.copyto(target, source)
        with device_scope(self._device):  # other threads, too, ask for the newest parameters
            stream = self._current()
            self._parameters.set(self._source, stream)
            self._uploaded.record(stream)

    def _copy_gradient(self) -> None:
        """Begin to copy the gradients to the host, after what was queued so far."""
        self._computed.record(self._current())
        self._stream.wait_event(self._computed)
        self._gradient.get(self._stream, out=self._sent, blocking=False)
        self._copied.record(self._stream)
        self._is_copying = True

    def _note(self) -> None:
        """Take over what the inner replica knows of its steps."""
        self.global_step, self.staleness = self._inner.global_step, self._inner.staleness
        self.waited, self.dropped = self._inner.waited, self._inner.dropped
        self.unmade, self.overflows = self._inner.unmade, self._inner.overflows
        self.measured, self.nonfinite = self._inner.measured, self._inner.nonfinite


def _memory_of(inner: Replica, xp: ModuleType) -> tuple[Layout, Array, bool]:
    """Return where parameters lie in which pinned memory, and whether they arrive in it."""
    if inner.memory is not None:
        return *inner.memory, True
    layout = layout_of([(str(number), value) for number, value in enumerate(inner.values)])
    return layout, pinned_buffer(layout.size, xp), False
