"""Classifies the values of an ordered graph: fed, held, a view of another value, or computed. Pure.

values = Values(order, specs, fed={x}, held={w: array}, wanted={loss}, targets=set(), xp=np)
values.kinds[y], values.roots[y]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.compile.buffers import dummy
from nbdist.graph.compile.specs import Specs
from nbdist.graph.op import show
from nbdist.graph.tensor import Constant, Placeholder, Tensor, Variable


class ValueKind(Enum):
    """Where a value comes from."""

    FED = "fed"
    HELD = "held"
    """A variable or a constant: its memory exists already."""
    VIEW = "view"
    """It shares the memory of its first input."""
    CHANGED = "changed"
    """Its first input, a variable, after a call that changes it."""
    MADE = "made"
    """A call returns it, in new memory."""
    COMPUTED = "computed"
    """A kernel writes it into memory that the program provides."""


class Values:
    """Kind and root of each value; a root is the value whose memory it shares, or may share."""

    def __init__(
        self,
        order: Sequence[Tensor],
        specs: Specs,
        fed: Collection[Tensor],
        held: Mapping[Variable, Array],
        wanted: Collection[Tensor],
        targets: Collection[Tensor],
        xp: ModuleType,
    ) -> None:
        self.specs, self.fed, self.wanted, self.targets, self.xp = specs, fed, wanted, targets, xp
        self._held = held
        self.kinds: dict[Tensor, ValueKind] = {}
        self.roots: dict[Tensor, Tensor] = {}
        self.arrays: dict[Tensor, Array] = {}
        """The memory of values that are held."""
        self.known: set[Tensor] = set()
        """Values whose memory is known before the program is called."""
        self._layouts: dict[Tensor, Array] = {}
        for node in order:
            kind = self.kinds[node] = self._kind(node)
            shares = kind in (ValueKind.VIEW, ValueKind.CHANGED) or (
                kind is ValueKind.MADE and self._moves_nothing(node) and not self._has_exact_inputs(node)
            )
            self.roots[node] = self.roots[node.inputs[0]] if shares else node
            if kind in (ValueKind.VIEW, ValueKind.CHANGED):
                known = node.inputs[0] in self.known
            else:
                known = kind is ValueKind.HELD or (kind is ValueKind.COMPUTED and node not in targets)
            if known:
                self.known.add(node)
        self.direct = computed_into_variables(order, self)
        """By value: the variable that it is assigned to and computed directly into."""
        self.elsewhere = frozenset(
            [*(t for t in targets if self.kinds[t] is ValueKind.COMPUTED), *self.direct]
        )
        """Values that are computed into memory that exists already: a target's or a variable's."""

    def reads(self, node: Tensor) -> list[Tensor]:
        """Return the inputs whose values are needed; a fed value needs none."""
        return [] if node in self.fed else self.specs.reads(node)

    def silent(self, node: Tensor) -> bool:
        """Whether the program makes no call for a value."""
        kind = self.kinds[node]
        if kind is ValueKind.CHANGED:
            return node.op is not None and node.op.replaces and node.inputs[1] in self.direct
        return kind in (ValueKind.FED, ValueKind.HELD) or (kind is ValueKind.VIEW and node in self.known)

    def rest(self, node: Tensor) -> list[Array]:
        """Return arrays without memory for all inputs of a view but the first: only their shapes are used."""
        return [dummy(self.specs[i]) for i in node.inputs[1:]]

    def memory(self, node: Tensor) -> Array:
        """Return an array with the strides that a value will have, in other memory."""
        found = self._layouts.get(node)
        if found is not None:
            return found
        if self.kinds[node] is ValueKind.CHANGED:
            return self.memory(node.inputs[0])
        array = self.arrays.get(node)
        return array if isinstance(array, np.ndarray) else dummy(self.specs[node])

    def _kind(self, node: Tensor) -> ValueKind:
        if node in self.fed:
            return ValueKind.FED
        if node.op is None:
            self.arrays[node] = self._leaf(node)
            return ValueKind.HELD
        if node.op.view and not self.reads(node):  # depends on shapes only: a constant
            shapes = [dummy(self.specs[i]) for i in node.inputs]
            self.arrays[node] = node.op.forward(self.xp, *shapes, **node.attrs)
            return ValueKind.HELD
        if self._is_view(node):
            return ValueKind.VIEW
        if node.op.external:
            return ValueKind.MADE
        if node.op.writes:
            return ValueKind.CHANGED
        # A kernel may plan at its first call: use it only where all shapes, those of inputs too, are fixed.
        planned = node.op.into is not None and self.specs.exact(node) and self._has_exact_inputs(node)
        return ValueKind.COMPUTED if planned else ValueKind.MADE

    def _leaf(self, node: Tensor) -> Array:
        if isinstance(node, Placeholder):
            raise InvalidArgumentError(
                f"placeholder {node.name!r} {show(node.shape)} {node.dtype} has to be fed"
            )
        if isinstance(node, Variable):
            if node not in self._held:
                raise FailedPreconditionError(f"variable {node.name!r} is not initialised")
            return self._held[node]
        if isinstance(node, Constant):
            return self.xp.asarray(node.value)  # type: ignore[no-any-return]
        raise InvalidArgumentError(f"{node!r} is made by no op and holds no value")

    def _is_view(self, node: Tensor) -> bool:
        """Whether a value shares its first input's memory, if the layout of that memory is known."""
        assert node.op is not None
        if not self._moves_nothing(node) or not self._has_exact_inputs(node):
            return False
        before = _readable(self.memory(node.inputs[0]))
        after = node.op.forward(np, before, *self.rest(node), **node.attrs)
        if after.size and not np.shares_memory(after, before):
            return False
        self._layouts[node] = after
        return True

    def _moves_nothing(self, node: Tensor) -> bool:
        """Whether an op makes a view; an op with a kernel makes one only if the spec stays the same."""
        if node.op is None or not node.op.view or not any(i is node.inputs[0] for i in self.reads(node)):
            return False
        return node.op.into is None or self.specs[node.inputs[0]] == self.specs[node]

    def _has_exact_inputs(self, node: Tensor) -> bool:
        return all(self.specs.exact(i) for i in node.inputs)


def computed_into_variables(order: Sequence[Tensor], values: Values) -> dict[Tensor, Variable]:
    """Return, by value, the variable that it is assigned to and can be computed directly into.

    An example is an initial value: no other op uses it, and none reads the variable before the assignment.
    """
    if not any(node.op is not None and node.op.replaces for node in order):
        return {}
    users: dict[Tensor, list[int]] = {}  # indices of the ops that read a value
    looks: dict[Tensor, list[int]] = {}  # indices of the ops that read a root's memory
    for now, node in enumerate(order):
        for i in values.reads(node):
            users.setdefault(i, []).append(now)
            looks.setdefault(values.roots[i], []).append(now)
    places = {node: now for now, node in enumerate(order)}
    found: dict[Tensor, Variable] = {}
    for now, node in enumerate(order):
        if node.op is None or not node.op.replaces or values.kinds[node] is not ValueKind.CHANGED:
            continue
        variable, value = node.inputs
        if not isinstance(variable, Variable) or values.kinds[variable] is not ValueKind.HELD:
            continue
        alone = (
            users[value] == [now] and value not in values.wanted and values.kinds[value] is ValueKind.COMPUTED
        )
        if not alone or values.specs[value] != values.specs[variable]:
            continue
        if not any(places[value] <= then < now for then in looks.get(variable, ())):
            found[value] = variable
    return found


def may_overwrite(node: Tensor, i: Tensor) -> bool:
    """Whether the op allows its value to be written over an input."""
    assert node.op is not None
    places = [n for n, other in enumerate(node.inputs) if other is i]
    if node.op.in_place is not None:
        return all(n in node.op.in_place for n in places)
    return node.op.elementwise


def scratch_dtype(node: Tensor, values: Values) -> np.dtype[Any] | None:
    """Return the dtype of the scratch memory that a value's kernel takes; None if it takes none."""
    op = node.op
    if (
        values.xp is not np
        or op is None
        or op.scratch is None
        or values.kinds[node] is not ValueKind.COMPUTED
    ):
        return None
    return op.scratch(*(values.specs[i] for i in node.inputs), **node.attrs)


def _readable(array: Array) -> Array:
    """Return a readable array of the same layout: an op may have to copy it."""
    if array.flags.c_contiguous or array.base is None or not array.size:
        return array  # an op never copies these
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.zeros(high - low, np.uint8)  # zeros take no memory until they are read
    start = array.__array_interface__["data"][0] - low
    return np.ndarray(array.shape, array.dtype, memory, start, array.strides)
