"""Generates the Python function that makes a program's kernel calls.

source = FunctionSource(order, values, layout, feeds, into, kernels, memory)
source.add(node)
source.copy_rest()
text = source.finish([loss])
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.compile.buffers import dummy, place
from nbdist.graph.compile.elementwise import (
    FUSED_TYPES,
    Blockwise,
    CallOperand,
    Chain,
    Operand,
    Register,
)
from nbdist.graph.compile.locking import Lock, Locks, fenced, guarded
from nbdist.graph.compile.memory import MemoryPlan
from nbdist.graph.compile.values import ValueKind, Values, scratch_dtype
from nbdist.graph.kernel import Kernel
from nbdist.graph.op import Op, fits, show
from nbdist.graph.tensor import Constant, Tensor

Kernels: TypeAlias = Callable[[Tensor], Callable[..., Any]]
Memory: TypeAlias = Callable[[ModuleType, int], Array]
Written: TypeAlias = Mapping[Tensor, Callable[[], object]]
"""Functions by target: each is called as soon as the target's value is in its array."""


class FunctionSource:
    """Lines of a function ``step(feeds, targets)``, and the values of the names in them.

    Memory that is known at compile time is in ``scope``: ``b3`` is an array, ``matmul_4`` a kernel. The
    values of one call are locals: ``f0`` is a feed, ``o0`` a target, ``t4`` the result of line 4.
    """

    def __init__(
        self,
        order: Sequence[Tensor],
        values: Values,
        layout: MemoryPlan,
        feeds: Sequence[Tensor],
        into: Sequence[Tensor],
        kernels: Kernels | None,
        memory: Memory,
        written: Written,
        locks: Locks,
        fence: Lock | None = None,
    ) -> None:
        self.values, self.layout, self.into, self.kernels = values, layout, into, kernels
        self._written, self._locks, self._fence = dict(written), locks, fence
        self.scope: dict[str, Any] = {"copyto": values.xp.copyto}
        self.lines: list[str] = []
        self._before: list[str] = []  # what the next line begins with
        self.nodes: list[Tensor] = []
        """The tensor that each line computes."""
        self.uncaptured: set[Tensor] = set()
        """Nodes that communicate, or hold locks while they run."""
        self.fenced: set[Tensor] = set()
        """What enters the fence."""
        self._offsets, self.bytes = place(layout.slots) if layout.slots else ([], 0)
        self._slab = memory(values.xp, self.bytes)
        self._names = {f: f"f{i}" for i, f in enumerate(feeds)}
        self._places = Counter(into)
        targets = {t: f"o{j}" for j, t in reversed(list(enumerate(into)))}
        self._names |= {t: name for t, name in targets.items() if values.kinds[t] is ValueKind.COMPUTED}
        self._arrays: dict[Tensor, Array] = {}
        for node in layout.owners:
            self._arrays[node] = self._planned(node)
        for node in order:
            if node in values.known and (
                values.kinds[node] is not ValueKind.COMPUTED or node in values.direct
            ):
                self._arrays[node] = self._known(node)
        self._parameters = [f"f{i}" for i in range(len(feeds))] + [f"o{j}" for j in range(len(into))]

    def add(self, node: Tensor) -> None:
        """Write the call of one op."""
        assert node.op is not None
        values, line = self.values, len(self.lines)
        arguments = [self._argument(node, i) for i in range(len(node.inputs))]
        result = ""
        kind = values.kinds[node]
        if kind is ValueKind.COMPUTED:
            assert node.op.into is not None
            kernel = node.op.into(values.xp, **node.attrs)
            arguments += [*self._scratch(node), self._name(node)]
        elif kind is ValueKind.VIEW:
            kernel, arguments = _view_of(node.op, values, node), arguments[:1]
        elif node.op.external:
            if self.kernels is None:
                raise InvalidArgumentError(f"{node.name!r} ({node.type}) runs only in a session")
            kernel = self.kernels(node)
            if node.op.has_value:
                kernel = _checked(kernel, values, node)
        else:
            kernel = _bound(node.op, values, node)
        if kind is not ValueKind.VIEW:
            bare = kernel
            inside = fenced(bare, [node], values, self._fence)
            kernel = guarded(inside, [node], values, self._locks)
            if inside is not bare:
                self.fenced.add(node)
            if kernel is not inside or node.op.external:
                self.uncaptured.add(node)
        if kind in (ValueKind.VIEW, ValueKind.MADE) and node.op.has_value:
            self._names[node] = f"t{line}"
            result = f"t{line} = "
        self._write(f"{result}{self._kernel(node.op.name, kernel)}({', '.join(arguments)})", node)

    def add_chain(self, chain: Chain) -> Blockwise:
        """Write the call of a chain."""
        values, given, outputs = self.values, list[str](), list[CallOperand]()
        registers, apart = self.layout.registers[chain.members[-1]], self._blocks_apart(chain)

        def kept(register: Register, dtype: np.dtype[Any]) -> Operand:
            if isinstance(register, int):
                return _blocks_of(apart[register], chain, dtype)
            cut = chain.cut(values.memory(register))
            return cut.parts(self._arrays[register].view(dtype), len(chain.bounds))

        def operand(t: Tensor) -> Operand:
            if t in chain.inner:
                return kept(registers.values[t], values.specs[t].dtype)
            cut = chain.cut(values.memory(t))
            if t in self._arrays:
                return cut.parts(self._arrays[t], len(chain.bounds))
            name = self._name(t)
            if name not in given:
                given.append(name)
            return CallOperand(given.index(name), cut)

        kernels, operands = [], []
        for node in chain.members:
            assert node.op is not None
            assert node.op.into is not None
            kernels.append(node.op.into(values.xp, **node.attrs))
            arguments = [operand(t) for t in node.inputs]
            dtype = scratch_dtype(node, values)
            if dtype is not None:
                arguments.append(kept(registers.scratch[node], dtype))
            out = operand(node)
            if isinstance(out, CallOperand):
                outputs.append(out)
            operands.append([*arguments, out])
        run = Blockwise(chain, kernels, operands, outputs)
        call = fenced(run, chain.members, values, self._fence)
        call = guarded(call, chain.members, values, self._locks)
        self._write(f"{self._kernel('chain', call)}({', '.join(given)})", chain.members[-1])
        return run

    def add_fused(self, chain: Chain) -> None:
        """Write the call of a chain that is one kernel."""
        values = self.values
        kernel, operands = fused_kernel(chain, values)
        bare = partial(kernel, values.xp)
        call = fenced(bare, chain.members, values, self._fence)
        call = guarded(call, chain.members, values, self._locks)
        if call is not bare:
            self.uncaptured.add(chain.members[-1])
        names = ", ".join(self._name(t) for t in operands)
        self._write(f"{self._kernel('fused', call)}({names})", chain.members[-1])

    def copy_rest(self) -> None:
        """Write the copies to the targets that no line has written."""
        for j, t in enumerate(self.into):
            if self._name(t) != f"o{j}":
                self._write(f"copyto(o{j}, {self._name(t)})", t)

    def finish(self, fetches: Sequence[Tensor]) -> str:
        """Call what waits for the remaining targets; return the function's text."""
        for t in dict.fromkeys(self.into):
            self._call_written(t)
        result = "".join(f"{self._name(t)}, " for t in fetches)
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return ({result})"])
        return f"def step({', '.join(self._parameters)}):\n{body}"

    def forget(self, nodes: Sequence[Tensor]) -> None:
        """Delete the locals of these tensors, in the line that was written last."""
        names = [self._names[t] for t in nodes if self._names.get(t, "").startswith("t")]
        if names:
            self.lines[-1] += f"; del {', '.join(names)}"

    def call_before(self, name: str, calls: Sequence[Callable[[], object]]) -> None:
        """Make these calls before the line that is written next."""
        self._before += [f"{self._kernel(name, call)}()" for call in calls]

    def call_after(self, name: str, calls: Sequence[Callable[[], object]]) -> None:
        """Make these calls after the line that was written last."""
        for call in calls:
            self.lines[-1] += f"; {self._kernel(name, call)}()"

    def _write(self, line: str, node: Tensor) -> None:
        self.lines.append("; ".join([*self._before, line]))
        self._before.clear()
        self.nodes.append(node)

    def settle(self, targets: Sequence[Tensor]) -> None:
        """Call what waits for these targets after the line that was written last: no later one uses them.

        A target that has several arrays is copied at the end.
        """
        for t in targets:
            if self._names.get(t, "").startswith("o") and self._places[t] == 1:
                self._call_written(t)

    def _call_written(self, target: Tensor) -> None:
        if target in self._written:
            self.call_after("written", [self._written.pop(target)])

    def _kernel(self, name: str, kernel: Any) -> str:
        full = f"{name if name.isidentifier() else 'call'}_{len(self.lines)}"
        if full in self.scope:
            full += f"_{len(self.scope)}"
        self.scope[full] = kernel
        return full

    def _name(self, node: Tensor) -> str:
        if node not in self._names:
            name = self._names[node] = f"b{len(self.scope)}"
            self.scope[name] = self._arrays[node]
        return self._names[node]

    def _argument(self, node: Tensor, i: int) -> str:
        assert node.op is not None
        source = node.inputs[i]
        if i not in node.op.shape_only or not self.values.specs.exact(source):
            return self._name(source)
        name = f"s{len(self.lines)}_{i}"
        self.scope[name] = dummy(self.values.specs[source])
        return name

    def _planned(self, node: Tensor) -> Array:
        return self._carved(self.layout.owners[node], node, self.values.specs[node].dtype)

    def _scratch(self, node: Tensor) -> list[str]:
        dtype = scratch_dtype(node, self.values)
        if dtype is None:
            return []
        name = f"s{len(self.lines)}"
        self.scope[name] = self._carved(self.layout.scratch[node], node, dtype)
        return [name]

    def _carved(self, slot: int, node: Tensor, dtype: np.dtype[Any]) -> Array:
        """Return a slot's memory as an array of a value's shape."""
        shape = tuple(n or 0 for n in self.values.specs[node].shape)
        start = self._offsets[slot]
        raw = self._slab[start : start + prod(shape) * dtype.itemsize]
        return raw.view(dtype).reshape(shape)

    def _blocks_apart(self, chain: Chain) -> list[Array]:
        """Return the memory of the chain's separate registers, each as large as a block."""
        if chain.members[-1] not in self.layout.scratch:
            return []
        slot = self.layout.scratch[chain.members[-1]]
        start, size = self._offsets[slot], chain.block_bytes
        count = self.layout.slots[slot].size // size
        return [self._slab[start + n * size : start + (n + 1) * size] for n in range(count)]

    def _known(self, node: Tensor) -> Array:
        """Return the known memory of a value: held, a view of known memory, or a changed variable."""
        values = self.values
        if node in values.arrays:
            return values.arrays[node]
        if node in values.direct:
            return values.arrays[values.direct[node]]
        source = self._arrays[node.inputs[0]]
        if values.kinds[node] is ValueKind.CHANGED:
            return source
        assert node.op is not None
        return node.op.forward(values.xp, source, *values.rest(node), **node.attrs)


def _blocks_of(register: Array, chain: Chain, dtype: np.dtype[Any]) -> list[Array]:
    """Return a register's memory as an array for each block."""
    found = []
    for start, stop in chain.bounds:
        shape = (stop - start, *chain.row)
        size = prod(shape) * dtype.itemsize
        found.append(register[:size].view(dtype).reshape(shape))
    return found


def _bound(op: Op, values: Values, node: Tensor) -> Callable[..., Array]:
    xp, attrs = values.xp, node.attrs
    call = lambda *arrays: op.forward(xp, *arrays, **attrs)
    return _checked(call, values, node) if values.kinds[node] is ValueKind.MADE and op.has_value else call


def _checked(call: Callable[..., Array], values: Values, node: Tensor) -> Callable[..., Array]:
    """Return a call that must return a value of the inferred shape.

    Kernels plan for that shape, and some take views that NumPy does not check against the memory.
    """
    shape = values.specs[node].shape

    def checked(*arrays: Array) -> Array:
        result = call(*arrays)
        found = np.shape(result)
        if found != shape and not fits(found, shape):
            raise InvalidArgumentError(
                f"{node.name!r} ({node.type}): its spec is {show(shape)}, its value is {show(found)}"
            )
        return result

    return checked


def _view_of(op: Op, values: Values, node: Tensor) -> Callable[[Array], Array]:
    xp, attrs, rest = values.xp, node.attrs, values.rest(node)
    return lambda x: op.forward(xp, x, *rest, **attrs)


# Chains of elementwise ops on a GPU: one kernel each, in which a value that only the chain uses stays in a
# register. A chain is not cut into blocks: a thread computes all of its ops for one element. The source is
# made of the ops' ``cuda`` expressions; each value is rounded to its dtype as without fusion. All inputs are
# read before an output is written, so an output may overwrite an input.


def fused_kernel(chain: Chain, values: Values) -> tuple[Kernel, list[Tensor]]:
    """Return the kernel of a chain, and its operands in order: those it reads, then those it writes."""
    made = set(chain.members)
    read = dict.fromkeys(i for node in chain.members for i in values.reads(node) if i not in made)
    inputs = [t for t in read if _literal(t) is None]
    outputs = [t for t in chain.members if t not in chain.inner]
    names = {t: f"v{n}" for n, t in enumerate([*inputs, *chain.members])}
    names |= {t: text for t in read if (text := _literal(t)) is not None}
    lines = [f"const auto {names[t]} = x{n};" for n, t in enumerate(inputs)]
    for node in chain.members:
        ctype = FUSED_TYPES[values.specs[node].dtype.name]
        lines.append(f"const {ctype} {names[node]} = ({ctype})({_expression(node, values, names)});")
    lines += [f"y{n} = {names[t]};" for n, t in enumerate(outputs)]

    def parameters(tensors: list[Tensor], letter: str) -> str:
        return ", ".join(f"{values.specs[t].dtype} {letter}{n}" for n, t in enumerate(tensors))

    kernel = Kernel(
        "fused_" + "_".join(dict.fromkeys(node.type for node in chain.members))[:60],
        parameters(inputs, "x"),
        parameters(outputs, "y"),
        "\n".join(lines),
        types={},
    )
    return kernel, [*inputs, *outputs]


def _expression(node: Tensor, values: Values, names: dict[Tensor, str]) -> str:
    """Return an op's expression, with its inputs converted to the type that it computes in."""
    assert node.op is not None
    assert node.op.cuda is not None
    dtype = values.specs[node].dtype
    if dtype.kind != "f":
        dtype = np.result_type(*(values.specs[i].dtype for i in values.reads(node)))
    wide = {"float64": "double", "bool": "bool", "uint64": "unsigned long long"}.get(
        dtype.name, "float" if dtype.kind == "f" else "long long"
    )
    operands = dict(zip("abc", node.inputs, strict=False))

    def replaced(match: re.Match[str]) -> str:
        return f"({wide})" if match[0] == "W" else f"(({wide}){names[operands[match[0]]]})"

    return re.sub(r"\b[abcW]\b", replaced, node.op.cuda)


def _literal(t: Tensor) -> str | None:
    """Return a constant number as text; it then takes no memory access."""
    if not isinstance(t, Constant) or t.shape != () or t.dtype.kind != "f":
        return None
    value: Any = float(t.value)
    return f"({value!r})" if math.isfinite(value) else None
