"""Gradient buckets: small tensors are reduced together, as soon as a bucket is full.

    plan = plan_buckets([("w2", (10, 5), "float32"), ("b2", (5,), "float32"), ("w1", ...), ...])
    reducer = Buckets(group, plan)                # the same plan on every rank
    for name, gradient in backward_pass():
        reducer.put(name, gradient)               # returns immediately; a thread reduces full buckets
    means = reducer.finish()

The backward pass computes the last layer's gradients first, so list the tensors in that order: the first
bucket is then full early, and its reduction overlaps with the rest of the backward pass (Li et al., "PyTorch
Distributed", VLDB 2020). All ranks reduce the buckets in the order of the plan, in whatever order their
gradients are put.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.wire.collective.base import Collective
from nbdist.wire.pages import TransientBuffer
from nbdist.wire.rpc.frame import Array

BUCKET_BYTES = 1 << 22
MOST_PENDING = BUCKET_BYTES  # of full transient buckets that wait to be reduced, if they are several
LONGEST_WAIT = 1.0  # seconds
FIRST_BYTES = 1 << 20  # the first bucket is smaller, so that its reduction starts early


@dataclass(frozen=True)
class BucketSlice:
    """A tensor's position in its bucket, in items."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Tensors of one dtype that are reduced together, as one row, with ``padding`` items after them."""

    dtype: np.dtype[Any]
    places: tuple[BucketSlice, ...]
    padding: int = 0

    @property
    def count(self) -> int:
        """The number of items."""
        return self.padding + (self.places[-1].stop if self.places else 0)

    def padded(self, size: int, align: int = 1) -> Bucket:
        """Return it with as much padding as makes ``size`` equal parts, each a multiple of ``align`` bytes.

        >>> Bucket(np.dtype("f4"), (BucketSlice("w", (5,), 0, 5),)).padded(2, align=8).count
        8
        """
        step = size * max(1, align // self.dtype.itemsize)
        return replace(self, padding=-(self.count - self.padding) % step)


def plan_buckets(
    tensors: Iterable[tuple[str, Sequence[int], Any]],
    limit: int = BUCKET_BYTES,
    first: int = FIRST_BYTES,
    align: int = 1,
) -> tuple[Bucket, ...]:
    """Return the buckets of some tensors (name, shape, dtype), in the order given.

    A bucket holds one dtype and at most `limit` bytes (the first one `first`); a larger tensor has a bucket
    of its own. Each tensor begins at a multiple of ``align`` bytes. The result depends only on the arguments,
    so that all ranks have the same plan.

    >>> [[place.name for place in bucket.places] for bucket in plan_buckets(
    ...     [("a", (3,), "f4"), ("b", (2, 2), "f4"), ("c", (9,), "f4"), ("d", (), "i8")], limit=40, first=40)]
    [['a', 'b'], ['c'], ['d']]
    """
    buckets: list[Bucket] = []
    names: set[str] = set()
    places: list[BucketSlice] = []
    dtype: np.dtype[Any] | None = None
    at = 0
    for name, shape, given in tensors:
        if name in names:
            raise InvalidArgumentError(f"two tensors have the name {name!r}; names have to be unique")
        names.add(name)
        kind, count = np.dtype(given), prod(shape)
        room = limit if buckets else first
        if places and (kind != dtype or (at + count) * kind.itemsize > room):
            assert dtype is not None
            buckets.append(Bucket(dtype, tuple(places)))
            places, at = [], 0
        dtype = kind
        places.append(BucketSlice(name, tuple(shape), at, at + count))
        step = max(1, align // kind.itemsize)
        at += -(-count // step) * step
    if places:
        assert dtype is not None
        buckets.append(Bucket(dtype, tuple(places)))
    return tuple(buckets)


class Buckets:
    """Reduces the buckets of a plan in each training step, in its own thread; runs on a task.

    All ranks construct it together. Between a step's first ``put`` and its ``finish`` no other code may use
    the group. A tensor may also be written directly to its view in ``views`` and then marked. With
    ``overlap`` False there is no thread and ``finish`` reduces, which is faster if no core is idle during the
    backward pass.

    With ``scatter`` a rank has the result of its part of each bucket only (``parts``), and the rest of the
    bucket is undefined: parts are as long as each other (`Bucket.padded`), and in the order of ranks.

    With ``transient``, which goes with ``scatter``, parts have memory of their own, and a bucket takes memory
    only from its first tensor of a step until it is reduced. It then has zeros. ``mark`` and ``put`` wait
    while full buckets take more than ``MOST_PENDING``: a rank that is ahead of the others would have all of
    its gradients in memory. They wait only for a bucket that is full on this rank, so that ranks which fill
    buckets in different orders do not wait for each other; and not for longer than ``LONGEST_WAIT``, because
    another rank may need this one for something else first.

    With ``xp`` CuPy the buckets are on the GPU that the constructing thread works for, and the thread reduces
    on a stream of its own: a bucket waits for the work that was queued before its last tensor was marked, and
    the backward pass continues beside it.
    """

    def __init__(
        self,
        group: Collective,
        plan: Sequence[Bucket],
        op: str = "mean",
        overlap: bool = True,
        xp: ModuleType = np,
        scatter: bool = False,
        transient: bool = False,
    ) -> None:
        self._group, self._plan, self._op, self._overlap = group, plan, op, overlap
        self._scatter = scatter
        self._stream = None if xp is np or not overlap else BucketStream(xp, len(plan))
        self._memory = [TransientBuffer(one.count, one.dtype) for one in plan] if transient else []
        self.rows: list[Array] = [one.array for one in self._memory] or [
            group.symmetric_buffer((bucket.count,), bucket.dtype)
            if xp is np
            else xp.zeros(bucket.count, bucket.dtype)
            for bucket in plan
        ]
        """The buckets' arrays, one row each."""
        self.parts: list[Array] = [
            np.zeros(bucket.count // group.size, bucket.dtype)
            if transient
            else row.reshape(group.size, -1)[group.rank]
            for bucket, row in zip(plan, self.rows)
            if scatter
        ]
        """With ``scatter``, this rank's part of each bucket's result."""
        self._places: dict[str, tuple[int, Array]] = {
            place.name: (number, row[place.start : place.stop].reshape(place.shape))
            for number, (bucket, row) in enumerate(zip(plan, self.rows))
            for place in bucket.places
        }
        self.views: Mapping[str, Array] = {name: place for name, (_, place) in self._places.items()}
        """Each tensor's view of its bucket."""
        self._put: set[str] = set()
        self._missing = [len(bucket.places) for bucket in plan]
        self._full = [threading.Event() for _ in plan]
        self._work: SimpleQueue[bool] = SimpleQueue()  # True: a step begins; False: no more
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._sizes = [bucket.count * bucket.dtype.itemsize for bucket in plan]
        self._reduced, self._progress = 0, threading.Condition()  # how many, in the order of the plan
        self._stopped = False
        self._thread: threading.Thread | None = None

    def put(self, name: str, gradient: Any) -> None:
        """Copy a gradient of this step to its bucket; the gradient may be overwritten afterwards."""
        if name not in self._places or name in self._put:
            known = "was put already in this step" if name in self._put else "is not in the plan"
            raise InvalidArgumentError(f"gradient {name!r} {known}")
        number, place = self._places[name]
        if np.shape(gradient) != place.shape:
            raise InvalidArgumentError(
                f"gradient {name!r} has the shape {np.shape(gradient)}, but {place.shape} in the plan"
            )
        if not self._put:
            self._begin()
        np.copyto(place, gradient, casting="same_kind")
        self._note(name, number)

    def mark(self, name: str, waits: bool = True) -> None:
        """Mark this step's tensor of a name as written to its view in ``views``.

        Without ``waits`` it waits for no rank; it is for tensors after which the step writes no others.
        """
        if not self._put:
            self._begin()
        self._note(name, self._places[name][0], waits)

    def _note(self, name: str, number: int, waits: bool = True) -> None:
        self._put.add(name)
        self._missing[number] -= 1
        if not self._missing[number] and self._overlap:
            if self._stream is not None:
                self._stream.filled(number)
            self._full[number].set()
            if self._memory and waits:
                with self._progress:
                    self._progress.wait_for(self._has_room, LONGEST_WAIT)

    def _has_room(self) -> bool:
        """Return whether the next tensor may be written before more buckets are reduced."""
        done = self._reduced
        if done == len(self._plan) or not self._full[done].is_set():
            return True
        waiting = [size for size, full in zip(self._sizes[done:], self._full[done:]) if full.is_set()]
        return len(waiting) == 1 or sum(waiting) <= MOST_PENDING

    def finish(self) -> Mapping[str, Array]:
        """Wait for all buckets and return the reduced gradients, valid until the next step's first `put`.

        Raises the error of the collective, and FailedPreconditionError if a gradient is missing.
        """
        missing = sorted(self._places.keys() - self._put)
        if missing:
            raise FailedPreconditionError(f"these gradients of the step are missing: {', '.join(missing)}")
        if self._places:
            error = self._done.get() if self._overlap else None
            self._put.clear()
            if error is not None:
                raise error
            if not self._overlap:
                with np.errstate(all="ignore"):  # inf and nan are values here, as in programs
                    for number in range(len(self.rows)):
                        self._reduce(number)
        return self.views

    def _reduce(self, number: int) -> None:
        row = self.rows[number]
        if self._scatter:
            rows = row.reshape(self._group.size, -1)
            self._group.reduce_scatter(rows, self._op, out=self.parts[number][np.newaxis])
        else:
            self._group.all_reduce(row, self._op, out=row)
        if self._memory:
            self._memory[number].release()

    def close(self) -> None:
        """End the thread; the group stays open. Breaks the group if a step is unfinished."""
        self._stopped = True
        if self._put:
            self._group.abort("it closed its gradient buckets in the middle of a step")
        for event in self._full:
            event.set()
        self._work.put(False)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _begin(self) -> None:
        if self._stopped:
            raise FailedPreconditionError("these buckets are closed; make new ones")
        self._missing = [len(bucket.places) for bucket in self._plan]
        if not self._overlap:
            return
        self._reduced = 0
        for event in self._full:
            event.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._reduce_steps, name="nbdist buckets", daemon=True)
            self._thread.start()
        self._work.put(True)

    def _reduce_steps(self) -> None:
        while self._work.get():
            error: BaseException | None = None
            try:
                for number, full in enumerate(self._full):
                    full.wait()
                    if self._stopped:
                        return
                    after = nullcontext() if self._stream is None else self._stream.after(number)
                    with after, np.errstate(all="ignore"):
                        self._reduce(number)
                    if self._memory:
                        self._count_reduced(number + 1)
            except BaseException as caught:  # `finish` raises it
                error = caught
                self._count_reduced(len(self._plan))
            self._done.put(error)

    def _count_reduced(self, count: int) -> None:
        with self._progress:
            self._reduced = count
            self._progress.notify_all()


class BucketStream:
    """The stream of a GPU on which buckets are reduced, beside the stream of the backward pass."""

    def __init__(self, xp: ModuleType, buckets: int) -> None:
        self._device, self._current = xp.cuda.Device(), xp.cuda.get_current_stream
        self._stream = xp.cuda.Stream(non_blocking=True)
        self._events = [xp.cuda.Event(disable_timing=True) for _ in range(buckets)]

    def filled(self, number: int) -> None:
        """Record that what was queued so far fills a bucket; from the thread of the backward pass."""
        self._events[number].record(self._current())

    @contextmanager
    def after(self, number: int) -> Iterator[None]:
        """A context of another thread, whose work on the GPU comes after a bucket is filled."""
        with self._device, self._stream:
            self._stream.wait_event(self._events[number])
            yield
