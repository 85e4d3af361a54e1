"""What runs the ops on accumulators and queues of tokens, which live in a task's containers.

resources = Resources(store, containers, "CPU:0", waiting)
kernel = resources.kernel(node, np)     # the function for such an op, None for others
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from nbdist.errors import AbortedError, FailedPreconditionError
from nbdist.graph.backend import Array, to_device, to_host
from nbdist.graph.device import DeviceSpec
from nbdist.graph.op import show
from nbdist.graph.tensor import Tensor
from nbdist.runtime.collected import Collected, CollectedRows
from nbdist.runtime.pieceprogram import Containers
from nbdist.runtime.store import Store
from nbdist.runtime.tokens import Tokens
from nbdist.runtime.waiting import Shared, Waiting

Kernel = Callable[..., Any]
DONE = np.array(True)


class Resources:
    """The kernels of one thread, on one device."""

    def __init__(self, store: Store, containers: Containers, device: str, waiting: Waiting) -> None:
        self._store, self._containers, self._device, self._waiting = store, containers, device, waiting

    def kernel(self, node: Tensor, xp: ModuleType) -> Kernel | None:
        """Return what computes ``node`` if it is an op on what sessions share."""
        if node.type in ("Accumulator", "TokenQueue"):
            self._shared(node)
            return lambda: DONE
        kind = node.type.partition("_")[0]
        if kind not in ("accumulator", "token"):
            return None
        shared = self._shared(node.inputs[0])
        ops: Any = (
            _OnTokens(shared, self._waiting, node)
            if kind == "token"
            else _OnGradients(shared, self._waiting, node, self._store, xp)
        )
        kernel: Kernel = getattr(ops, node.type.removeprefix(f"{kind}_"))
        return lambda handle, *inputs: kernel(*inputs)

    def _shared(self, handle: Tensor) -> Shared[Any]:
        container = self._containers.of(handle)
        if handle.type == "TokenQueue":
            return self._store.shared(container, handle.name, "a queue of tokens", Tokens, self._device)
        shape, dtype = handle.attrs["shape"], handle.attrs["dtype"]
        reduction, sparse = handle.attrs["reduction"], handle.attrs["sparse"]
        kind = f"{'a sparse' if sparse else 'an'} accumulator ({reduction}) of {show(tuple(shape))} {dtype}"
        make = CollectedRows if sparse else Collected
        return self._store.shared(
            container,
            handle.attrs["key"] or handle.name,
            kind,
            lambda: make(tuple(shape), reduction == "MEAN"),
            self._device,
        )


@dataclass
class _OnGradients:
    """The ops on one accumulator, by the rest of their names."""

    shared: Shared[Collected]
    waiting: Waiting
    node: Tensor
    store: Store
    xp: ModuleType

    def apply(self, *inputs: Array) -> Array:
        *gradient, step = inputs
        arrays = [np.array(to_host(part)) for part in gradient]  # what came is overwritten by the next step
        replica = origin(self.node.inputs[-1])
        room = sum(array.nbytes for array in arrays)
        self.store.take(self.shared, room, f"a gradient in {self.node.inputs[0].name!r}")
        with self.shared.changing() as collected:
            accepted = collected.offer(replica, arrays, int(step))
            self._count(collected)
        return np.array(accepted)

    apply_rows = apply

    def take(self, needed: Array) -> Array:
        return to_device(self._take(int(needed))[0], self.xp)

    def take_rows(self, needed: Array) -> Array:
        rows, at = self._take(int(needed))
        _taken.__dict__[self.node.name] = rows
        return to_device(at, self.xp)

    def rows(self, at: Array) -> Array:
        rows = _taken.__dict__.pop(self.node.inputs[1].name, None)
        if rows is None:
            raise FailedPreconditionError("the rows of a sparse gradient are taken with their positions")
        return to_device(rows, self.xp)

    def count(self) -> Array:
        return np.array(self.shared.look(lambda collected: collected.count), np.int64)

    def dropped(self) -> Array:
        return np.array(self.shared.look(lambda collected: collected.dropped), np.int64)

    def set_step(self, step: Array) -> None:
        with self.shared.changing() as collected:
            collected.step = int(step)

    def begin(self, step: Array) -> None:
        with self.shared.changing() as collected:
            collected.begin(int(step))
            self._count(collected)

    def close(self) -> None:
        with self.shared.changing() as collected:
            collected.closed = True

    def _take(self, needed: int) -> list[Array]:
        taken = self.waiting.until(
            self.shared,
            lambda collected: collected.take(needed),
            lambda collected: collected.missing(needed),
            patient=self.node.attrs["patient"],
        )
        self.shared.look(self._count)
        return taken

    def _count(self, collected: Collected) -> None:
        """Count what is collected against the task's limit of memory."""
        self.store.holds(self.shared, collected.bytes)


_taken = threading.local()  # the rows of a step, by the op that took their positions


@dataclass
class _OnTokens:
    """The ops on one queue of tokens, by the rest of their names."""

    shared: Shared[Tokens]
    waiting: Waiting
    node: Tensor

    def enqueue_many(self, tokens: Array) -> None:
        with self.shared.changing() as queue:
            queue.put(to_host(tokens).tolist(), self.node.attrs["first"])

    def dequeue(self, local_step: Array) -> Array:
        replica, step = origin(self.node.inputs[-1]), int(local_step)
        self.shared.look(lambda tokens: tokens.waiting.update([replica]))
        try:
            token = self.waiting.until(
                self.shared,
                lambda tokens: tokens.take(replica, step, time.monotonic()),
                lambda tokens: f"{replica} waits for a token; {tokens.missing(time.monotonic())}",
            )
        finally:
            self.shared.look(lambda tokens: tokens.waiting.subtract([replica]))
        return np.array(token, np.int64)

    def count(self) -> Array:
        return np.array(self.shared.look(len), np.int64)

    def is_open(self) -> Array:
        return np.array(self.shared.look(lambda tokens: tokens.open))

    def begin(self) -> None:
        with self.shared.changing() as tokens:
            tokens.begin(self.node.attrs["replicas"], self.node.attrs["one_each"])

    def join(self) -> None:
        replica = task_of(self.node.attrs["replica"])
        self.waiting.until(
            self.shared,
            lambda tokens: tokens.join(replica, time.monotonic()) or None,
            lambda tokens: "the chief has not begun the training; see whether it runs",
        )

    def serve(self) -> None:
        turn = self.shared.look(lambda tokens: tokens.serve())
        name = self.node.inputs[0].name

        def cut_off(error: BaseException) -> None:
            text = f"the chief, which serves {name!r}, was cut off: {str(error) or type(error).__name__}. "
            again = "When it is there again, make a new session"
            with self.shared.changing() as tokens:
                tokens.cut_off(turn, AbortedError(text + again))

        self.waiting.tell_if_cut_off(cut_off)

    def close(self) -> None:
        with self.shared.changing() as tokens:
            tokens.close(
                AbortedError("the chief cannot go on: the error that it has raised says why")
                if self.node.attrs["failed"]
                else None
            )


def origin(value: Tensor) -> str:
    """Return the task that a value comes from: another one if it was received, this one if not."""
    return task_of(str(value.attrs["device"] if value.type == "receive" else value.device))


def task_of(device: str) -> str:
    """Return the task of a device as text; the device itself if it names none.

    >>> task_of("/job:worker/replica:0/task:1/device:CPU:0")
    '/job:worker/task:1'
    """
    spec = DeviceSpec.from_string(device)
    return device if spec.job is None or spec.task is None else f"/job:{spec.job}/task:{spec.task}"
