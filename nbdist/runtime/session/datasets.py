"""The datasets that a session reads in one process: arrays, and the position in each.

sources = Sources(store)
kernel = sources.kernel(node, np)       # the function for an op that loads or reads one, None for others
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from nbdist.data.dataset import Dataset
from nbdist.data.recipe import rebuild
from nbdist.data.shares import share_of
from nbdist.data.structure import leaves_of
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from nbdist.graph.backend import Array, to_device, to_host
from nbdist.graph.op import Shape, show
from nbdist.graph.tensor import Tensor
from nbdist.runtime.session.store import Store

Kernel = Callable[..., Any]


class Sources:
    """Datasets by name. Several threads may run steps; each reads the batches that it has asked for."""

    def __init__(self, store: Store) -> None:
        self._store, self._readers, self._lock = store, dict[str, Reader](), threading.Lock()
        self._kernels: dict[str, Callable[[Tensor, ModuleType], Kernel]] = {
            "load_dataset": lambda node, xp: partial(self._load, **node.attrs),
            "begin_pass": lambda node, xp: lambda opened: self._of(node).begin(to_host(opened).tolist()),
            "next_batch": lambda node, xp: lambda: to_device(np.array(self._of(node).next(), np.int64), xp),
            "batch_part": self._part,
        }

    def kernel(self, node: Tensor, xp: ModuleType) -> Kernel | None:
        """Return what computes ``node`` if it loads or reads a dataset; its arrays are those of ``xp``."""
        make = self._kernels.get(node.type)
        return make(node, xp) if make is not None else None

    def close(self) -> None:
        """Forget all datasets."""
        with self._lock:
            readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            self._forget(reader)

    def _load(self, resource: str, steps: Sequence[Any], arrays: Sequence[Array]) -> None:
        reader = Reader(resource, rebuild(steps, arrays))
        self._store.take(reader, sum(a.nbytes for a in arrays), f"the arrays of dataset {resource!r}")
        with self._lock:
            before, self._readers[resource] = self._readers.get(resource), reader
        if before is not None:
            self._forget(before)

    def _forget(self, reader: Reader) -> None:
        reader.close()
        self._store.give_back(reader)

    def _part(self, node: Tensor, xp: ModuleType) -> Kernel:
        index, share = node.attrs["index"], tuple(node.attrs["share"])
        shape, dtype = node.shape, node.dtype
        return lambda rows: to_device(self._of(node).part(index, share, shape, dtype), xp)

    def _of(self, node: Tensor) -> Reader:
        name = node.attrs["resource"]
        reader = self._readers.get(name)
        if reader is None:
            raise FailedPreconditionError(
                f"dataset {name!r} is not on this task any more: make a new session"
            )
        return reader


class Reader:
    """The position in one dataset."""

    def __init__(self, name: str, dataset: Dataset) -> None:
        self.name, self.dataset = name, dataset
        self._pass: Iterator[Any] | None = None
        self._batches = 0
        self._lock = threading.Lock()
        self._own = threading.local()  # the batch of the step that a thread is in

    def begin(self, opened: Sequence[int]) -> None:
        """Begin the pass that follows from ``opened``, whether or not the last has ended."""
        with self._lock:
            self._end()
            self._pass = self.dataset.iterate(opened=opened)

    def next(self) -> int:
        """Move to the next batch and return its number of rows; the end of a pass raises OutOfRangeError."""
        with self._lock:
            if self._pass is None:
                self._pass = self.dataset.iterate()
            batch = next(self._pass, None)
            if batch is None:
                passed = self._batches
                self._end()
                raise OutOfRangeError(
                    f"dataset {self.name!r} has ended after {passed} batches; the next run begins another "
                    "pass, and .repeat() makes a dataset without end"
                )
            self._batches += 1
        self._own.leaves = leaves_of(batch)
        return len(self._own.leaves[0])

    def part(self, index: int, share: tuple[int, int], shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return an array of the last batch of this thread, or a share of it."""
        whole: Array = self._own.leaves[index]
        which, shares = share
        found: Array = whole[share_of(len(whole), shares, which)]
        fits = found.ndim == len(shape) and all(
            n in (None, m) for n, m in zip(shape, found.shape, strict=True)
        )
        if not fits or found.dtype != dtype:
            raise InvalidArgumentError(
                f"array {index} of a batch of dataset {self.name!r} is {found.dtype} {found.shape}, and "
                f"{dtype} {show(shape)} was expected"
            )
        return found

    def close(self) -> None:
        """End the pass, and with it a thread that works ahead."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._pass is not None:
            self._pass.close()  # type: ignore[attr-defined]  # a generator
        self._pass, self._batches = None, 0
