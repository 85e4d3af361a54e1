"""A replica that computes on another device than where its strategy keeps parameters.

    parameters: server -> pinned memory -> GPU        one copy, in order before the step's program
    gradients:  GPU -> pinned memory -> server        one copy, beside what the GPU computes next

Parameters and gradients have one flat buffer each on the GPU, and one in pinned host memory, which a GPU
copies from and to while the host continues. The host waits once a step for the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from nbdist.errors import FailedPreconditionError
from nbdist.graph.backend import Array, backend, device_scope, pinned_buffer
from nbdist.runtime.layout import Layout
from nbdist.train.capabilities import ArrayMemory, Programs, Reads, StepChecks
from nbdist.train.one_device import layout_of
from nbdist.train.replica import Replica, itself, tables_in
from nbdist.train.trainable import Program, ProgramSpec, Shapes, Trainable


def on_device(replica: Replica, device: str) -> Replica:
    """Return a replica whose arrays are on ``device``; the same one if they are there."""
    return replica if replica.memory.in_place or backend(device) is np else DeviceReplica(replica, device)


class DeviceReplica(Replica, Programs, Reads, StepChecks):
    """Copies parameters to the device after each pull, and gradients back before each push.

    All else is the inner replica's: see `OF_INNER`. Raises FailedPreconditionError for one with tables.
    """

    programs = reads = checks = itself
    memory = ArrayMemory(in_place=True)

    def __init__(self, inner: Replica, device: str) -> None:
        if tables_in(inner):
            raise FailedPreconditionError(f"{type(inner).__name__} has tables, whose rows stay on the host")
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
        for name in OF_INNER:
            setattr(self, name, getattr(inner, name))
        self.spans = replace(inner.spans, pull=inner.spans.pull or ("receive", "parameters from the host"))
        self._upload()

    def program(self, model: Trainable, shapes: Shapes) -> Program:
        """Return the step's program, after which the gradients are on their way to the host."""
        program = model.training_program(ProgramSpec(shapes, self.values))

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
        self._receive(self._inner.reads.fetch)

    def fetch_together(self, wanted: bool) -> None:
        """Bring the newest parameters to the device where they are wanted; all replicas call it."""
        self._receive(partial(self._inner.reads.fetch_together, wanted))

    def ask_values(self) -> bool:
        """Return whether the host has all parameters now; if not, the next step brings them there."""
        return self._inner.reads.ask_values()

    def newest(self) -> None:
        """Bring the newest parameters to the device, for a checkpoint."""
        self._receive(self._inner.reads.newest)

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

    def skip(self) -> None:
        """Have no part in this step's update."""
        self._is_copying = False
        self._inner.checks.skip()

    def overflow(self) -> None:
        """Have all replicas leave out this step that make it together."""
        self._is_copying = False
        self._inner.checks.overflow()

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


OF_INNER = (
    "agreement", "hooks", "measures", "membership", "notes", "overlap", "pending", "rate", "report", "state",
)  # fmt: skip
"""What the inner replica has and does, on the host: nothing of it is on the device."""


def _memory_of(inner: Replica, xp: ModuleType) -> tuple[Layout, Array, bool]:
    """Return where parameters lie in which pinned memory, and whether they arrive in it."""
    if inner.memory.pinned is not None:
        return *inner.memory.pinned, True
    layout = layout_of([(str(number), value) for number, value in enumerate(inner.values)])
    return layout, pinned_buffer(layout.size, xp), False
