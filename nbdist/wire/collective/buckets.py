"""Small tensors are reduced together, in buckets, as soon as all of a bucket's are there.

    plan = plan_buckets([("w2", (10, 5), "float32"), ("b2", (5,), "float32"), ("w1", ...), ...])
    reducer = Buckets(group, plan)                # the same plan on every rank
    for name, gradient in gradients_as_they_come:
        reducer.put(name, gradient)               # at once; a thread reduces full buckets meanwhile
    means = reducer.finish()

Gradients come last layer first, so list them in that order: the first bucket is then full early, and travels
while the backward pass still runs (Li et al., "PyTorch Distributed", VLDB 2020). All ranks reduce the buckets
in the order of the plan, whatever order their gradients come in.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from queue import SimpleQueue
from typing import Any

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.wire.collective.base import Collective
from nbdist.wire.rpc.frame import Array

BUCKET_BYTES = 1 << 22
FIRST_BYTES = 1 << 20  # the first one is small, so that something travels early


@dataclass(frozen=True)
class BucketSlice:
    """Where a tensor stands in its bucket, in items."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Tensors of one dtype that are reduced together, as one row."""

    dtype: np.dtype[Any]
    places: tuple[BucketSlice, ...]

    @property
    def count(self) -> int:
        """How many items it has."""
        return self.places[-1].stop if self.places else 0


def plan_buckets(
    tensors: Iterable[tuple[str, Sequence[int], Any]],
    limit: int = BUCKET_BYTES,
    first: int = FIRST_BYTES,
    align: int = 1,
) -> tuple[Bucket, ...]:
    """Return which tensors (name, shape, dtype) are reduced together, in the order given.

    A bucket holds one dtype and at most `limit` bytes (the first one `first`), but for a single tensor that
    is larger; each tensor begins at a multiple of ``align`` bytes. It depends on nothing but the arguments,
    so that all ranks plan alike.

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
            raise InvalidArgumentError(f"two tensors are called {name!r}; every name is in one bucket")
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
    """Reduces the buckets of a plan, step after step, in a thread of its own; runs on a task.

    Every rank makes them at once. While a step's gradients come, nobody else may use the group. A tensor may
    also be written straight to its place in ``views`` and then marked. With ``overlap`` False there is no
    thread: ``finish`` reduces, which is less work where no core is idle meanwhile.
    """

    def __init__(
        self, group: Collective, plan: Sequence[Bucket], op: str = "mean", overlap: bool = True
    ) -> None:
        self._group, self._plan, self._op, self._overlap = group, plan, op, overlap
        self.rows: list[Array] = [group.symmetric_buffer((bucket.count,), bucket.dtype) for bucket in plan]
        """The buckets themselves, flat."""
        self._places: dict[str, tuple[int, Array]] = {
            place.name: (number, row[place.start : place.stop].reshape(place.shape))
            for number, (bucket, row) in enumerate(zip(plan, self.rows))
            for place in bucket.places
        }
        self.views: Mapping[str, Array] = {name: place for name, (_, place) in self._places.items()}
        """Where each tensor stands in its bucket."""
        self._put: set[str] = set()
        self._missing = [len(bucket.places) for bucket in plan]
        self._full = [threading.Event() for _ in plan]
        self._work: SimpleQueue[bool] = SimpleQueue()  # True: a step begins; False: no more
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def put(self, name: str, gradient: Any) -> None:
        """Give a gradient of this step, which may be overwritten afterwards."""
        if name not in self._places or name in self._put:
            known = "was given already in this step" if name in self._put else "is not in the plan"
            raise InvalidArgumentError(f"gradient {name!r} {known}")
        number, place = self._places[name]
        if np.shape(gradient) != place.shape:
            raise InvalidArgumentError(
                f"gradient {name!r} has the shape {np.shape(gradient)}, in the plan it is {place.shape}"
            )
        if not self._put:
            self._begin()
        np.copyto(place, gradient, casting="same_kind")
        self._note(name, number)

    def mark(self, name: str) -> None:
        """Say that this step's tensor of a name is in its place in ``views``."""
        if not self._put:
            self._begin()
        self._note(name, self._places[name][0])

    def _note(self, name: str, number: int) -> None:
        self._put.add(name)
        self._missing[number] -= 1
        if not self._missing[number] and self._overlap:
            self._full[number].set()

    def finish(self) -> Mapping[str, Array]:
        """Return all reduced gradients, once all are; they are valid until the next step's first `put`.

        Raises what the collective raised, and FailedPreconditionError if a gradient was not given.
        """
        missing = sorted(self._places.keys() - self._put)
        if missing:
            raise FailedPreconditionError(f"these gradients were not given: {', '.join(missing)}")
        if self._places:
            error = self._done.get() if self._overlap else None
            self._put.clear()
            if error is not None:
                raise error
            if not self._overlap:
                for row in self.rows:
                    self._group.all_reduce(row, self._op, out=row)
        return self.views

    def close(self) -> None:
        """End the thread; the group stays. A step that was begun and cannot end breaks the group."""
        self._stopped = True
        if self._put:
            self._group.abort("its gradients of this step did not all come")
        for event in self._full:
            event.set()
        self._work.put(False)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _begin(self) -> None:
        if self._stopped:
            raise FailedPreconditionError("these buckets are closed; make others")
        self._missing = [len(bucket.places) for bucket in self._plan]
        if not self._overlap:
            return
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
                for row, full in zip(self.rows, self._full):
                    full.wait()
                    if self._stopped:
                        return
                    self._group.all_reduce(row, self._op, out=row)
            except BaseException as caught:  # raised where the step ends
                error = caught
            self._done.put(error)
