"""Every replica keeps a copy of the parameters; gradients are summed over all, and applied alike everywhere.

In each step a replica works on its share of the batch, its gradients are summed with the others' by one
all-reduce per bucket, and each applies the same sums to the same parameters: copies stay equal bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.distribute.agreement import same_variables
from nbdist.distribute.sharing import one_order
from nbdist.optim import Optimizer
from nbdist.runtime.groups import World
from nbdist.runtime.layout import ALIGNMENT
from nbdist.train.context import current
from nbdist.train.strategy import Replica, Strategy
from nbdist.train.trainable import Trainable
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.buckets import Bucket, Buckets, plan_buckets

Array: TypeAlias = np.ndarray[Any, Any]
STOP = "stop"
OVER_NETWORK = ("ring", "hierarchical", "nccl", "mpi")


class AllReduceStrategy(Strategy):
    """Keep a copy of the parameters on each replica of ``world``, by default that of the surrounding run.

    ``collective`` says how gradients are reduced: "auto" is the best there is.
    """

    name = "all_reduce"

    def __init__(self, collective: str = "auto", *, world: World | None = None) -> None:
        self.world = current().world if world is None else world
        self.collective = collective
        self.num_replicas_in_sync, self.replica_index = self.world.size, self.world.index

    def dataset(self, dataset: Dataset, seed: int | None) -> Dataset:
        """Return the dataset in one order for all, of which each replica takes its share of every batch."""
        return one_order(dataset, seed, self.num_replicas_in_sync)

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer) -> Replica:
        """Begin to train: all replicas get the chief's values."""
        return AllReduceReplica(self.form(), variables, optimizer, self.world.local_size)

    def form(self) -> Collective:
        """Return a new group of all replicas; every one asks for it."""
        return self.world.group("gradients", self.collective)


class AllReduceReplica(Replica):
    """One copy of the parameters. ``local`` replicas share the cores of this host."""

    pull_is = None
    push_is = ("send", "all-reduce")

    def __init__(
        self,
        group: Collective,
        variables: Sequence[tuple[str, Array]],
        optimizer: Optimizer,
        local: int = 1,
    ) -> None:
        self._group, self._optimizer = group, optimizer
        try:
            same_variables(group, variables)
            plan = _plan(variables)
            overlap = len(plan) > 1 and (group.kind in OVER_NETWORK or _cores() >= 2 * local)
            self._buckets = Buckets(group, plan, "sum", overlap=overlap)
            self._begin(plan, variables)
        except BaseException as error:
            self.abort(error)
            self.close()
            raise
        said = f"{group.size} replicas, gradients by all-reduce ({group.kind})"
        self.notes = [*([said] if group.rank == 0 else []), *group.notes]

    def _begin(self, plan: Sequence[Bucket], variables: Sequence[tuple[str, Array]]) -> None:
        group, names = self._group, [str(number) for number in range(len(variables))]
        flats = [_aligned(bucket.count, bucket.dtype) for bucket in plan]
        views = {
            place.name: flat[place.start : place.stop].reshape(place.shape)
            for bucket, flat in zip(plan, flats, strict=True)
            for place in bucket.places
        }
        self.values = [views[name] for name in names]
        for view, (_, value) in zip(self.values, variables, strict=True):
            np.copyto(view, value)
        for flat in flats:
            group.broadcast(flat, root=0, out=flat)
        self._gradients = [self._buckets.views[name] for name in names]
        self._names, self._unmarked = names, set(names)
        self._stop = self._buckets.views[STOP]
        self._stops = False
        ends = [bucket.places[-1].start if bucket is plan[-1] else bucket.count for bucket in plan]
        self._flats = [
            (flat[:end], row[:end], self._optimizer.new_slots(flat[:end]))
            for flat, row, end in zip(flats, self._buckets.rows, ends, strict=True)
        ]

    def pull(self) -> None:
        """Do nothing: the parameters are here."""

    def program(
        self, model: Trainable, shapes: tuple[tuple[int, ...], ...]
    ) -> Callable[..., tuple[Array, ...]]:
        """Return the step's program, which tells of each gradient as soon as it is there."""
        return model.training_program(shapes, self.values, self._ready)

    def gradients(self) -> Sequence[Array]:
        """Return the places of the gradients in their buckets."""
        return self._gradients

    def push(self) -> None:
        """Sum the gradients over all replicas, and apply them."""
        waited = self._group.waited
        for name in self._unmarked:
            self._buckets.mark(name)
        self._buckets.mark(STOP)
        self._buckets.finish()
        self._unmarked = set(self._names)
        self.waited += self._group.waited - waited
        self._stops = bool(self._stop[0])
        self.global_step += 1
        for parameters, gradient, slots in self._flats:
            self._optimizer.apply(parameters, gradient, slots, self.global_step)

    def agree(self, stop: bool) -> bool:
        """Return whether any replica was asked to stop before the last step; tell the others in the next."""
        self._stop[0] = stop
        return self._stops

    def end_epoch(self, stop: bool) -> bool:
        """Return whether any replica wants to end the training."""
        return bool(self._group.all_reduce(np.array(stop or self._stops), "max"))

    def finish(self) -> None:
        """Do nothing: every update is applied when ``push`` returns."""

    def abort(self, error: BaseException) -> None:
        """Break the group, with the reason: the others must not wait for this replica."""
        self._group.abort(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Leave the group."""
        if hasattr(self, "_buckets"):
            self._buckets.close()
        self._group.close()

    def _ready(self, number: int) -> None:
        name = self._names[number]
        self._unmarked.discard(name)
        self._buckets.mark(name)


def _plan(variables: Sequence[tuple[str, Array]]) -> tuple[Bucket, ...]:
    """Return the buckets: gradients come last layer first, and the word on stopping goes with the last."""
    tensors = [(str(number), value.shape, value.dtype) for number, (_, value) in enumerate(variables)]
    last = tensors[0][2]
    return plan_buckets([*reversed(tensors), (STOP, (1,), last)], align=ALIGNMENT)


def _aligned(count: int, dtype: np.dtype[Any]) -> Array:
    """Return zeros that begin on a cache line."""
    raw = np.zeros(count * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count * dtype.itemsize].view(dtype)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
