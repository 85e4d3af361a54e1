"""Liveness of a program's values, and which values share memory. Pure.

    layout = lay_out(steps, values, chains)
    layout.peak_bytes, layout.slots, layout.owners[hidden]

A step is one op, or the ops of a chain, which run block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nbdist.graph.compile.buffers import Slot, peak
from nbdist.graph.compile.elementwise import Chain, Registers, assign
from nbdist.graph.compile.specs import size_of
from nbdist.graph.compile.values import ValueKind, Values, may_overwrite, scratch_dtype
from nbdist.graph.op import Spec
from nbdist.graph.tensor import Tensor


@dataclass
class MemoryPlan:
    """Which slot of memory each planned value has, and each step's scratch memory."""

    slots: list[Slot] = field(default_factory=list)
    owners: dict[Tensor, int] = field(default_factory=dict)
    scratch: dict[Tensor, int] = field(default_factory=dict)
    registers: dict[Tensor, Registers] = field(default_factory=dict)
    """Scratch memory and registers, by the last op of the step."""
    value_bytes: int = 0
    """Bytes of all values without sharing."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at one step."""
        return peak(self.slots)


def last_uses(steps: Sequence[Sequence[Tensor]], values: Values) -> dict[Tensor, int]:
    """Return the step at which each root is read or written for the last time.

    Fetches and targets are read after the last step: fetches are returned then, and targets that no kernel
    can write (views, leaves) are copied then.
    """
    last = {values.roots[one]: now for now, one in _uses(steps, values)}
    for t in values.wanted:
        last[values.roots[t]] = len(steps)
    return last


def _uses(steps: Sequence[Sequence[Tensor]], values: Values) -> Iterator[tuple[int, Tensor]]:
    """Yield each value that an op reads or makes, with its step."""
    for now, step in enumerate(steps):
        for node in step:
            for one in (*values.reads(node), node):
                yield now, one


def unneeded_after(steps: Sequence[Sequence[Tensor]], values: Values) -> dict[int, list[Tensor]]:
    """Return, by step, the values that no later step reads."""
    last = {one: now for now, one in _uses(steps, values)}
    found: dict[int, list[Tensor]] = {}
    for node, now in last.items():
        if node not in values.wanted:
            found.setdefault(now, []).append(node)
    return found


def settled_after(steps: Sequence[Sequence[Tensor]], values: Values) -> dict[int, list[Tensor]]:
    """Return, by step, the targets whose memory no later step writes or reads."""
    roots = ((now, values.roots[one]) for now, one in _uses(steps, values))
    last = {root: now for now, root in roots if root in values.targets}
    found: dict[int, list[Tensor]] = {}
    for target, now in last.items():
        found.setdefault(now, []).append(target)
    return found


def lay_out(steps: Sequence[Sequence[Tensor]], values: Values, chains: Mapping[Tensor, Chain]) -> MemoryPlan:
    """Give each computed value a slot: that of an input which it may overwrite, or a new one.

    ``chains`` holds, by their last op, the steps that run block by block. A value that only such a step uses
    has no slot: it lies in the step's scratch memory.
    """
    layout, last = MemoryPlan(), last_uses(steps, values)
    ending: dict[int, set[Tensor]] = {}
    for now, step in enumerate(steps):
        chain = chains.get(step[-1])
        dying = _Dying(step, values, ending.pop(now, set()))
        for place, node in enumerate(step):
            if values.kinds[node] is not ValueKind.COMPUTED or node in values.elsewhere:
                continue
            size = size_of(values.specs[node])
            layout.value_bytes += size
            if chain is not None and node in chain.inner:
                continue
            ending.setdefault(last[node], set()).add(node)
            owner = dying.take(node, place)
            if owner is None:
                layout.slots.append(Slot(size, now, last[node]))
                layout.owners[node] = len(layout.slots) - 1
            else:
                layout.owners[node] = layout.owners[owner]
                layout.slots[layout.owners[node]].last = last[node]
        if chain is not None:
            registers = assign(chain, values, dying.free) if chain.bounds else Registers()
            layout.registers[step[-1]] = registers
            scratch = registers.count * chain.block_bytes or None
        else:
            dtype = scratch_dtype(step[-1], values)
            scratch = None if dtype is None else size_of(Spec(values.specs[step[-1]].shape, dtype))
        if scratch is not None:  # a kernel takes scratch memory for no elements, too
            layout.scratch[step[-1]] = len(layout.slots)
            layout.slots.append(Slot(scratch, now, now))
    return layout


class _Dying:
    """The inputs of a step that no later step needs: its results may overwrite them.

    ``free`` has, for each result, the index of the step's op from which on the result's memory is unused.
    """

    def __init__(self, step: Sequence[Tensor], values: Values, dying: set[Tensor]) -> None:
        self._step, self._values, self._left = step, values, dying
        self.free: dict[Tensor, int] = {}

    def take(self, node: Tensor, place: int) -> Tensor | None:
        """Remove and return an input that the step's op at ``place`` may overwrite; None if there is none."""
        self.free[node] = 0
        for other in self._step[: place + 1]:
            for i in self._values.reads(other):
                if i in self._left and self._fits(node, place, i):
                    self._left.discard(i)
                    reads = [n for n, other in enumerate(self._step) if i in set(self._values.reads(other))]
                    self.free[node] = 1 + max(reads)
                    return i
        return None

    def _fits(self, node: Tensor, place: int, i: Tensor) -> bool:
        values = self._values
        if values.specs[i] != values.specs[node]:
            return False
        for at, other in enumerate(self._step):
            aliases = {j for j in values.reads(other) if values.roots[j] is i}
            if aliases - {i} or (aliases and at > place):
                return False
        return may_overwrite(node, i)
