"""Fuses chains of elementwise ops, so that the values between them stay in the cache.

    for chain in find_chains(order, values, BlockSizes()):
        registers = assign(chain, values, free={result: 0})  # where the chain keeps its inner values
        run = Blockwise(chain, kernels, operands)
        run(batch, gradient)  # the operands that are passed at each call

An op by itself reads its inputs from memory and writes its value to memory. A chain does all its ops on one
block of rows before it starts the next block, so a value that only the chain uses never takes more than one
block. On a GPU a chain is one kernel (`fused_kernel` in `nbdist.graph.compile.source`), and such a value
takes no memory. `find_chains`, `assign` and the cutting into blocks (`splits_of`, `cut_of`) are pure
decisions; `Blockwise` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from nbdist.graph.backend import Array
from nbdist.graph.compile.buffers import aligned
from nbdist.graph.compile.specs import size_of
from nbdist.graph.compile.values import ValueKind, Values, may_overwrite, scratch_dtype
from nbdist.graph.op import Shape
from nbdist.graph.tensor import Tensor


@dataclass(frozen=True)
class Chain:
    """Ops that run block by block, in order. ``inner`` are the values that only the chain uses.

    The first ``leading`` axes count as one axis of rows, which ``bounds`` cut into blocks. A block of any
    value takes at most ``block_bytes``. A chain that runs as one kernel has no ``bounds``.
    """

    members: tuple[Tensor, ...]
    inner: frozenset[Tensor]
    shape: tuple[int, ...]
    leading: int
    bounds: Bounds
    block_bytes: int

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.shape[self.leading :]

    def cut(self, layout: Array) -> Cut:
        """Return how an operand with the memory layout of ``layout`` is cut."""
        return cut_of(layout, self.shape, self.leading, self.bounds)


def find_chains(order: Sequence[Tensor], values: Values, sizes: BlockSizes) -> list[Chain]:
    """Return the chains in an order. Each can run in the place of its last op."""
    finder = _Finder(order, values, sizes)
    for node in order:
        finder.look(node)
    finder.close()
    return finder.chains


MOST_FUSED = 16
"""Ops of one kernel on a GPU: a longer one needs more registers than leave many threads in flight."""
MOST_OPERANDS = 40
"""Arrays of one kernel: of four dimensions they take 3.2 of the 4 KB of a kernel's arguments."""
FUSED_TYPES = {"bool": "bool", "float16": "float16", "float32": "float", "float64": "double"}
"""The dtypes that a fused op may have, by their names in CUDA C."""


def fusible(node: Tensor, values: Values) -> bool:
    """Return whether an op can be a part of a kernel on a GPU.

    A value that is computed into a variable cannot: another op of the kernel may read a view of that memory.
    """
    op = node.op
    return (
        op is not None
        and op.cuda is not None
        and values.kinds[node] is ValueKind.COMPUTED
        and node not in values.direct
        and values.specs[node].dtype.name in FUSED_TYPES
        and all(values.specs[i].dtype.kind in "biuf" for i in values.reads(node))
    )


class _Finder:
    """Collects consecutive ops into a run, which may contain several independent chains."""

    def __init__(self, order: Sequence[Tensor], values: Values, sizes: BlockSizes) -> None:
        self.values, self.sizes = values, sizes
        self.fuses = values.xp is not np
        """Whether a chain is one kernel, and not run block by block."""
        self.kept = {values.roots[t] for t in values.wanted} | values.elsewhere
        self.users: dict[Tensor, list[Tensor]] = {}
        for node in order:
            for i in values.reads(node):
                self.users.setdefault(values.roots[i], []).append(node)
        self.chains: list[Chain] = []
        self.run: dict[Tensor, None] = {}
        self.splits: frozenset[int] = frozenset()

    def look(self, node: Tensor) -> None:
        """Take the next op of the order into the run, pass it over, or end the run before it."""
        if self.values.silent(node):
            return
        splits = self._splits(node)
        if not splits:
            if self.run and not self._may_stand_between(node):
                self.close()
            return
        if self.run and not (splits & self.splits and self._joins(node)):
            self.close()
        self.splits = splits & self.splits if self.run else splits
        self.run[node] = None
        if node in self.values.elsewhere or (self.fuses and len(self.run) == MOST_FUSED):
            # That memory may be a variable's: an op that was passed over may have to read it first.
            self.close()

    def close(self) -> None:
        """End the run: each connected part of it is a chain, if that saves memory traffic."""
        for members in _connected(list(self.run), self.values):
            own = frozenset(members)
            inner = frozenset(t for t in members if self._is_inner(t, own))
            if self.fuses:
                if len(members) > 1 and self._operands(members, inner) <= MOST_OPERANDS:
                    shape = _exact(self.values.specs[members[0]].shape)
                    self.chains.append(Chain(members, inner, shape, 0, (), 0))
            elif inner and self._touched(members, inner) > self.sizes.cache_bytes:
                self.chains.append(self._chain(members, inner))
        self.run = {}

    def _splits(self, node: Tensor) -> frozenset[int]:
        """Return the numbers of leading axes that blocks can cut; none if the op cannot be in a chain."""
        values, op = self.values, node.op
        if self.fuses:
            return frozenset({0}) if fusible(node, values) else frozenset()
        if op is None or not op.elementwise or values.kinds[node] is not ValueKind.COMPUTED:
            return frozenset()
        shape = _exact(values.specs[node].shape)
        widest = max(values.specs[t].dtype.itemsize for t in (node, *values.reads(node)))
        if prod(shape) * widest < self.sizes.least_bytes:
            return frozenset()
        found = {k for k in range(1, len(shape) + 1) if prod(shape[k:]) * widest <= self.sizes.block_bytes}
        for i in values.reads(node):
            found &= splits_of(values.memory(i), shape)
        return frozenset(found)

    def _joins(self, node: Tensor) -> bool:
        """Whether an op can join the run: it has the same shape, and reads no views of the run's values."""
        values = self.values
        if values.specs[node].shape != values.specs[self._first].shape:
            return False
        return all(i in self.run or values.roots[i] not in self.run for i in values.reads(node))

    def _may_stand_between(self, node: Tensor) -> bool:
        """Whether an op can run before the whole run: it is small, and reads none of the run's values."""
        values, op = self.values, node.op
        if op is None or op.writes or op.external or node in values.elsewhere or not values.specs.exact(node):
            return False
        if any(values.roots[i] in self.run for i in values.reads(node)):
            return False
        own = 0 if self.fuses or values.kinds[node] is ValueKind.VIEW else size_of(values.specs[node])
        return 16 * own <= size_of(values.specs[self._first])

    def _operands(self, members: Sequence[Tensor], inner: Collection[Tensor]) -> int:
        own = set(members)
        inputs = {i for node in members for i in self.values.reads(node) if i not in own}
        return len(inputs) + len(members) - len(inner)

    @property
    def _first(self) -> Tensor:
        return next(iter(self.run))

    def _is_inner(self, t: Tensor, members: Collection[Tensor]) -> bool:
        users = self.users.get(t, [])
        return t not in self.kept and bool(users) and all(u in members for u in users)

    def _touched(self, members: Sequence[Tensor], inner: Collection[Tensor]) -> int:
        """Return how many bytes the ops would touch one by one: inputs, and the peak of their values."""
        values = self.values
        size = {t: size_of(values.specs[t]) for node in members for t in (node, *values.reads(node))}
        last = {i: n for n, node in enumerate(members) for i in values.reads(node)}
        own = frozenset(members)
        outside = {values.roots[i]: size[i] for i in last if i not in own}
        alive = most = 0
        for n, node in enumerate(members):
            done = [i for i in set(values.reads(node)) if i in inner and last[i] == n]
            alive += size[node] - sum(size[i] for i in done)
            most = max(most, alive)
        return most + sum(min(n, size_of(values.specs[root])) for root, n in outside.items())

    def _chain(self, members: tuple[Tensor, ...], inner: frozenset[Tensor]) -> Chain:
        specs = self.values.specs
        shape = _exact(specs[members[0]].shape)
        leading = max(self.splits)
        dtypes = [specs[t].dtype for t in members] + [scratch_dtype(t, self.values) for t in members]
        widest = max(dtype.itemsize for dtype in dtypes if dtype is not None)
        row_bytes = prod(shape[leading:]) * widest
        rows = max(self.sizes.block_bytes // row_bytes, 1)
        if leading == len(shape):
            rows = max(rows // 64 * 64, min(rows, 64))  # a multiple of any SIMD width
        blocks = bounds(prod(shape[:leading]), rows)
        longest = aligned(max(stop - start for start, stop in blocks) * row_bytes)
        return Chain(members, inner, shape, leading, blocks, longest)


def _exact(shape: Shape) -> tuple[int, ...]:
    return tuple(n or 0 for n in shape)


def _connected(run: Sequence[Tensor], values: Values) -> Iterable[tuple[Tensor, ...]]:
    """Return the parts of a run that read each other's values, each in order."""
    group: dict[Tensor, list[Tensor]] = {}
    for node in run:
        mine = [node]
        group[node] = mine
        for i in values.reads(node):
            if i in group and group[i] is not mine:
                mine[:0] = group[i]
                for t in group[i]:
                    group[t] = mine
    parts = {id(members): members for members in group.values()}
    places = {node: n for n, node in enumerate(run)}
    return [tuple(sorted(members, key=places.__getitem__)) for members in parts.values()]


# Registers: the block-sized memory of a chain's inner values, either a result's block or separate.
#
# Computing in a result's own memory uses less of the cache than copying the last value there.

Register = int | Tensor
"""The number of a separate register, or the result whose memory is used."""


@dataclass
class Registers:
    """The register of each inner value, and of each kernel's scratch memory."""

    values: dict[Tensor, Register] = field(default_factory=dict)
    scratch: dict[Tensor, Register] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many separate ones there are."""
        return len({r for r in (*self.values.values(), *self.scratch.values()) if isinstance(r, int)})


def assign(chain: Chain, values: Values, free: Mapping[Tensor, int]) -> Registers:
    """Return registers; ``free`` has the index of the op from which on a result's memory is unused."""
    assigner = _Assigner(chain, values, free)
    for place, node in enumerate(chain.members):
        assigner.next(place, node)
    return assigner.found


class _Assigner:
    def __init__(self, chain: Chain, values: Values, free: Mapping[Tensor, int]) -> None:
        self.chain, self.values, self.free = chain, values, free
        self.found = Registers()
        self.places = {node: n for n, node in enumerate(chain.members)}
        self.last = {i: n for n, node in enumerate(chain.members) for i in values.reads(node)}
        self.busy: dict[Register, int] = {}
        """The index of the last op that uses a register."""
        self.made = 0

    def next(self, place: int, node: Tensor) -> None:
        """Give one op's value a register, and its kernel scratch memory, if they need one."""
        if node in self.chain.inner:
            register = self._over(place, node)
            if register is None:
                register = self._unused(place, node, self.last[node], self._size(node))
            self.found.values[node] = register
            self.busy[register] = self.last[node]
        dtype = scratch_dtype(node, self.values)
        if dtype is not None:
            register = self._unused(place, None, place, dtype.itemsize)
            self.found.scratch[node] = register
            self.busy[register] = max(self.busy.get(register, place), place)

    def _over(self, place: int, node: Tensor) -> Register | None:
        """Return the register of an input that the value may be written over."""
        specs = self.values.specs
        for i in self.values.reads(node):
            register = self.found.values.get(i)
            dies = register is not None and self.last[i] == place
            if dies and specs[i].dtype == specs[node].dtype and may_overwrite(node, i):
                assert register is not None
                if isinstance(register, int) or self._leaves(node, self.last[node], register):
                    return register
        return None

    def _unused(self, place: int, node: Tensor | None, until: int, size: int) -> Register:
        """Return an unused register: memory of a result that is not computed yet, or a separate one."""
        for result, begin in self.free.items():
            fits = self._size(result) == size and begin <= place < self.places[result]
            if fits and self.busy.get(result, -1) < place and self._leaves(node, until, result):
                return result
        for register in range(self.made):
            if self.busy[register] < place:
                return register
        self.made += 1
        return self.made - 1

    def _leaves(self, node: Tensor | None, until: int, result: Tensor) -> bool:
        """Whether a value's last use is before the result is written, or is the op that overwrites it."""
        end = self.places[result]
        if until == end and node is not None:
            return self.values.specs[node].dtype == self.values.specs[result].dtype and may_overwrite(
                result, node
            )
        return until < end

    def _size(self, node: Tensor) -> int:
        return self.values.specs[node].dtype.itemsize


# Blocks: arrays that broadcast to one shape are cut to the same number of blocks.
#
# splits = splits_of(array, shape)            # how many leading axes may count as one axis of rows
# cut = cut_of(array, shape, 1, bounds(1000, 64))
# parts = cut.parts(array, 15)

Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """When ops run block by block, and how large a block of one value is; measured in bench/NOTES.md."""

    cache_bytes: int = 1 << 24
    """Ops that touch no more than this run whole: all fits the last-level cache, and calls cost more."""
    least_bytes: int = 1 << 20
    """Values smaller than this are always computed whole."""
    block_bytes: int = 1 << 18
    """A block of one value: two or three of them fit a usual second-level cache."""


@dataclass(frozen=True)
class Cut:
    """How an array is cut: by its rows, or not at all where each block needs all of it."""

    narrow: tuple[slice, ...]
    """An index that takes one element of each axis along which the array is repeated."""
    shape: tuple[int, ...]
    bounds: Bounds | None

    def parts(self, array: Array, blocks: int) -> Sequence[Array]:
        """Return the part of an array for each block."""
        whole = (array[self.narrow] if self.narrow else array).reshape(self.shape)
        if self.bounds is None:
            return [whole] * blocks
        return [whole[start:stop] for start, stop in self.bounds]


def cut_of(layout: Array, shape: tuple[int, ...], leading: int, bounds: Bounds) -> Cut:
    """Return how an array with the memory layout of ``layout`` is cut if ``leading`` axes are one of rows."""
    narrow, effective = _effective(layout, len(shape))
    rows, row = effective[:leading], effective[leading:]
    if rows == shape[:leading]:
        return Cut(narrow, (prod(rows), *row), bounds)
    return Cut(narrow, row, None)


def splits_of(layout: Array, shape: tuple[int, ...]) -> set[int]:
    """Return the numbers of leading axes of ``shape`` that an array has fully, in one piece, or not at all.

    >>> import numpy as np
    >>> splits_of(np.zeros((2, 3, 4)), (2, 3, 4)), splits_of(np.zeros(4), (2, 3, 4))
    ({1, 2, 3}, {1, 2})
    """
    narrow, effective = _effective(layout, len(shape))
    strides = (0,) * (len(shape) - layout.ndim) + (layout[narrow] if narrow else layout).strides
    return {
        k
        for k in range(1, len(shape) + 1)
        if (effective[:k] == shape[:k] and _one_piece(effective[:k], strides[:k]))
        or all(n == 1 for n in effective[:k])
    }


def bounds(rows: int, step: int) -> Bounds:
    """Return blocks of ``step`` rows; the last is up to twice as long, so that none is very short.

    >>> bounds(10, 4)
    ((0, 4), (4, 10))
    """
    count = max(rows // step, 1)
    return tuple((n * step, (n + 1) * step if n < count - 1 else rows) for n in range(count))


def _effective(layout: Array, ndim: int) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Return an index that removes an array's repetitions, and the shape after it, with ``ndim`` axes."""
    repeated = [stride == 0 and n > 1 for n, stride in zip(layout.shape, layout.strides, strict=True)]
    narrow = tuple(slice(0, 1) if again else slice(None) for again in repeated) if any(repeated) else ()
    shape = tuple(1 if again else n for n, again in zip(layout.shape, repeated, strict=True))
    return narrow, (1,) * (ndim - len(shape)) + shape


def _one_piece(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether axes can be merged into one without a copy."""
    long = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n > 1]
    return all(outer == n * inner for (_, outer), (n, inner) in pairwise(long))


# Execution.
#
# run = Blockwise(chain, kernels, operands)
# run(batch, gradient)         # the operands that are passed at each call

Arguments = list[tuple[Array, ...]]
"""The arguments of a kernel, by block."""


@dataclass(frozen=True)
class CallOperand:
    """An operand that is passed at each call: the index of the argument, and how it is cut."""

    position: int
    cut: Cut


Operand = CallOperand | Sequence[Array]
"""A kernel's argument: a part for each block, or an array that is passed at each call."""


class Blockwise:
    """The calls of a chain: all kernels on one block, then all on the next."""

    def __init__(
        self,
        chain: Chain,
        kernels: Sequence[Callable[..., Any]],
        operands: Sequence[Sequence[Operand]],
        outputs: Sequence[CallOperand] = (),
    ) -> None:
        self.members, self.blocks = chain.members, len(chain.bounds)
        self._kernels, self._operands, self._outputs = kernels, operands, outputs
        self._given = {
            o.position: o.cut for arguments in operands for o in arguments if isinstance(o, CallOperand)
        }
        self._fixed = [
            None if any(isinstance(o, CallOperand) for o in arguments) else _by_block(arguments, [])
            for arguments in operands
        ]
        self.failed: Tensor | None = None
        """The tensor that could not be computed, after a call has raised."""

    def __call__(self, *given: Array) -> None:
        """Compute all values; ``given`` are the arrays that are passed at each call."""
        parts = [self._given[n].parts(array, self.blocks) for n, array in enumerate(given)]
        calls = [
            fixed if fixed is not None else _by_block(operands, parts)
            for fixed, operands in zip(self._fixed, self._operands, strict=True)
        ]
        member = 0
        try:
            for block in zip(*calls, strict=True):
                for member, (kernel, arguments) in enumerate(zip(self._kernels, block)):  # noqa: B007
                    kernel(*arguments)
        except Exception:
            self.failed = self.members[member]
            raise
        for output in self._outputs:
            array, blocks = given[output.position], parts[output.position]
            if not np.may_share_memory(array, blocks[0]):  # copies: leading axes could not be merged
                np.copyto(array, np.concatenate(blocks).reshape(array.shape))


def _by_block(operands: Sequence[Operand], given: Sequence[Sequence[Array]]) -> Arguments:
    return list(zip(*(given[o.position] if isinstance(o, CallOperand) else o for o in operands), strict=True))
