"""Parameters that a replica has for a while: its part for good, and units that are gathered (ZeRO stage 3).

    gathers.need(unit)                   # before the first layer that reads it: an all-gather
    ...                                  # compute
    gathers.release(unit, again=True)    # after the last one; the backward pass gathers it again

A unit is a bucket of parameters: 4 MB of consecutive ones, or a larger one. Each has memory at an address of
its own for good, and pages only while it is here (`TransientBuffer`): programs and tensors have its address.
Source: stage 3 of ZeRO (Rajbhandari et al. 2020); PyTorch's FSDP (Zhao et al., VLDB 2023) gathers and frees
units around the forward and the backward pass alike.

Why replicas cannot wait for each other for ever. All replicas make the same gathers in the same order, which
follows from the variables alone (`schedule_of`): units from the first layer to the last, then back. What a
replica computes, and in which order, only decides when it continues in that order: ``need`` gathers all units
up to the one that is asked for, and ``end_step`` those that are left. A module that uses its layers in
another order, or not all of them, takes more memory for a while, and gets right results; a replica without an
example gathers as the others do. Gathers have a group of their own, for gradients are reduced on another
thread meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbdist.errors import FailedPreconditionError
from nbdist.train.trainable import Gathers, ParameterReads
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.buckets import Bucket
from nbdist.wire.pages import TransientBuffer

Array = np.ndarray[Any, Any]


def schedule_of(plan: Sequence[Bucket], reads: ParameterReads) -> list[int]:
    """Return the units in the order of their gathers in one forward and backward pass.

    ``plan`` has the last layer's parameters first; places are named by the numbers of variables. A unit that
    ends the forward pass and begins the backward pass is gathered once.

    >>> from nbdist.wire.collective.buckets import plan_buckets
    >>> plan = plan_buckets([(name, (4,), "f4") for name in "210"], limit=16, first=16)
    >>> schedule_of(plan, ParameterReads(frozenset([0, 1, 2]), frozenset([1, 2])))
    [2, 1, 0, 1]
    """
    numbers = [{int(place.name) for place in bucket.places} for bucket in plan]
    backward = [unit for unit, own in enumerate(numbers) if own & reads.backward]
    forward = [unit for unit, own in reversed([*enumerate(numbers)]) if own & reads.forward]
    if forward and backward[:1] == forward[-1:]:
        backward = backward[1:]
    return [*forward, *backward]


class ParameterGathers(Gathers):
    """The parameters of one replica; one thread uses it.

    - ``group``: all replicas; no other calls are made on it
    - ``plan``: the units, each with one part for each rank
    - ``buffers``: the memory of the units
    - ``parts``: this replica's part of each
    - ``whole``: an array for each variable, which :meth:`gather_all` writes
    - ``reads``: what a pass reads
    """

    def __init__(
        self,
        group: Collective,
        plan: Sequence[Bucket],
        buffers: Sequence[TransientBuffer],
        parts: Sequence[Array],
        whole: Sequence[Array],
        reads: ParameterReads,
    ) -> None:
        self._group, self._plan, self._buffers, self._parts = group, plan, buffers, parts
        self._whole, self.is_whole = whole, False
        self._rows = [buffer.array.reshape(group.size, -1) for buffer in buffers]
        self._schedule, self._passes = schedule_of(plan, reads), reads.passes
        self._last = {unit: at for at, unit in enumerate(self._schedule)}
        self.units = {int(place.name): unit for unit, bucket in enumerate(plan) for place in bucket.places}
        self.present: list[bool] = [False] * len(plan)
        self.watch: Callable[[int, bool], object] = lambda unit, present: None
        self.watch_whole: Callable[[], object] = lambda: None
        self._next, self._passes_left = 0, self._passes

    def need(self, unit: int) -> None:
        """Gather a unit, after those that all replicas gather before it; do nothing if it is here."""
        while not self.present[unit]:
            if self._next == len(self._schedule):
                raise FailedPreconditionError(
                    "a step reads parameters after their gradients are complete, and --stage 3 has given "
                    "their memory back: take --stage 2"
                )
            self._gather_next()

    def release(self, unit: int, again: bool = False) -> None:
        """Give a unit's memory back, unless it is read ``again`` and this pass gathers it no more."""
        if self.present[unit] and not (again and self._next > self._last.get(unit, -1)):
            self._set(unit, False)

    def begin_step(self) -> None:
        """Begin a step, without any unit."""
        if self.is_whole:
            self.is_whole = False
            for unit in range(len(self._rows)):
                self.watch(unit, False)
        self._next, self._passes_left = 0, self._passes

    def end_pass(self) -> None:
        """Make the gathers of this pass that are left, and release all units."""
        while self._next < len(self._schedule):
            unit = self._schedule[self._next]
            self._gather_next()
            self._set(unit, False)
        for unit, present in enumerate(self.present):
            if present:
                self._set(unit, False)
        self._next, self._passes_left = 0, self._passes_left - 1

    def end_step(self) -> None:
        """Make the gathers of all passes that are left."""
        while self._passes_left:
            self.end_pass()

    def gather_all(self, keeps: bool) -> None:
        """Gather all units between two steps, one by one; into ``whole`` if this replica ``keeps`` them."""
        for unit, bucket in enumerate(self._plan):
            self._gather(unit)
            flat = self._buffers[unit].array
            for place in bucket.places if keeps else ():
                self._whole[int(place.name)][...] = flat[place.start : place.stop].reshape(place.shape)
            self._set(unit, False)
        if keeps:
            self.is_whole = True
            self.watch_whole()

    def close(self) -> None:
        """Leave the group."""
        self._group.close()

    def _gather_next(self) -> None:
        self._gather(self._schedule[self._next])
        self._next += 1

    def _gather(self, unit: int) -> None:
        self._group.all_gather(self._parts[unit], out=self._rows[unit])
        if not self.present[unit]:
            self._set(unit, True)

    def _set(self, unit: int, present: bool) -> None:
        self.present[unit] = present
        if not present:
            self._buffers[unit].release()
        self.watch(unit, present)
