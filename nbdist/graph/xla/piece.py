"""A piece of a session's step on a device of JAX: functions that XLA compiles, and calls on the host.

    program = XlaProgram(fetches, feeds=feeds, order=order, held={w: cell}, device="TPU:0", kernels=kernels)
    (loss_value,) = program(batch)              # arrays of NumPy in, arrays of NumPy out

A piece is one function wherever it can be. Between devices values are sent and received by the host, and ops
on queues, accumulators and datasets run there, so these are calls between functions: a piece that receives,
computes and sends is one function between two groups of calls, and one that then receives an answer is two.
`cut` moves a receive before and a send after what is computed between them, and never a send over a call
that may wait, so that the argument of `nbdist.graph.compile.schedule` (a step cannot deadlock) holds.

Variables are arrays of JAX on the device. They cannot be written to: a function takes their values and
returns new ones, and the program replaces them, under the lock of the device: a function of one session
reads all variables as another has left them.

Each shape of what is fed or received is compiled once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError, ResourceExhaustedError
from nbdist.graph.backend import Array, to_host
from nbdist.graph.compile.locking import Lock
from nbdist.graph.gpu_errors import SMALLER
from nbdist.graph.op import Shape
from nbdist.graph.tensor import Constant, Placeholder, Tensor, Variable
from nbdist.graph.xla.cache import compile_once
from nbdist.graph.xla.devices import jax_module, tpu_device, wide_types
from nbdist.graph.xla.trace import pure_function

Kernels: TypeAlias = Callable[[Tensor], Callable[..., Any]]
Mark: TypeAlias = tuple[Tensor, float, float]


class Held(Protocol):
    """A variable's memory."""

    array: Array


@dataclass(frozen=True)
class HostCall:
    """An op that runs on the host."""

    node: Tensor


@dataclass(frozen=True)
class Function:
    """Ops that XLA compiles together, in order.

    ``inputs`` are values that it takes beside variables, ``outputs`` those that are used after it,
    ``variables`` what it reads or assigns, and ``assigned`` the latter.
    """

    nodes: list[Tensor]
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    assigned: frozenset[Variable] = frozenset()


Part: TypeAlias = HostCall | Function


def on_host(node: Tensor) -> bool:
    """Whether an op of a piece runs on the host: what communicates, checks values, or needs no input.

    An op without inputs makes an initial value, which would be a constant of the compiled program.
    """
    return node.op is not None and (node.op.external or not node.op.has_value or not node.inputs)


def cut(order: Sequence[Tensor], fetches: Sequence[Tensor], feeds: Sequence[Tensor] = ()) -> list[Part]:
    """Return the parts of a piece, in order: as few functions as the calls between them allow."""
    parts: list[HostCall | list[Tensor]] = []
    pending: list[Tensor] = []
    sends: list[Tensor] = []
    fed = frozenset(feeds)

    def flush() -> None:
        if pending:
            parts.append([*pending])
            pending.clear()
        parts.extend(map(HostCall, sends))
        sends.clear()

    for node in order:
        if node.op is None or node in fed:
            continue
        if node.type in ("send", "signal"):
            pending.extend(i for i in node.inputs if isinstance(i, Variable))  # its value at this point
            sends.append(node)
        elif on_host(node):
            if sends or node.type not in ("receive", "await"):
                flush()
            parts.append(HostCall(node))
        else:
            pending.append(node)
    flush()
    return _with_values(parts, fetches)


def _with_values(parts: Sequence[HostCall | list[Tensor]], fetches: Sequence[Tensor]) -> list[Part]:
    """Return the parts, with what each function takes and returns."""
    used = set(fetches)
    found: list[Part] = []
    for part in reversed(parts):
        if isinstance(part, HostCall):
            used.update(part.node.inputs)
            found.append(part)
            continue
        inside, inputs = set(part), dict[Tensor, None]()
        constants, variables = dict[Tensor, None](), dict[Variable, None]()
        assigned = set()
        for node in part:
            for i, source in enumerate(() if node.op is None else node.inputs):
                assert node.op is not None
                if isinstance(source, Variable):
                    variables[source] = None
                    if i in node.op.writes:
                        assigned.add(source)
                elif isinstance(source, Constant):
                    constants[source] = None
                elif source not in inside and not _shape_only(node, i):
                    inputs[source] = None
            if isinstance(node, Variable):
                variables[node] = None
        outputs = [node for node in dict.fromkeys(part) if node in used]
        used.update(inputs)
        found.append(Function([*constants, *part], [*inputs], outputs, [*variables], frozenset(assigned)))
    return found[::-1]


def _shape_only(node: Tensor, i: int) -> bool:
    """Whether only the shape of an input is read, and is known."""
    assert node.op is not None
    source = node.inputs[i]
    return i in node.op.shape_only and isinstance(source, Placeholder) and None not in source.shape


class XlaProgram:
    """The program of a piece: called with feeds, it returns the fetched values, all as arrays of NumPy.

    ``held`` has the memory of each variable, ``kernels`` returns what is called for an external op, ``lock``
    is held while a function runs, and ``fence`` is entered before variables change: it may raise.
    """

    buffer_bytes = value_bytes = 0

    def __init__(
        self,
        fetches: Sequence[Tensor],
        *,
        feeds: Sequence[Tensor],
        order: Sequence[Tensor],
        held: Mapping[Variable, Held],
        device: str,
        kernels: Kernels,
        lock: Lock | None = None,
        fence: Lock | None = None,
    ) -> None:
        self._fetches, self._feeds, self._held = list(fetches), list(feeds), held
        self._device, self._lock, self._fence = device, lock or nullcontext(), fence or nullcontext()
        self.parts = cut(order, fetches, feeds)
        self._kernels = {
            part.node: _kernel(part.node, kernels) for part in self.parts if isinstance(part, HostCall)
        }
        self._compiled: dict[tuple[int, tuple[Shape, ...]], Any] = {}
        self._at: Tensor | None = None

    @property
    def source(self) -> str:
        """What the program does, one part a line."""
        return "\n".join(
            f"host: {part.node.name}"
            if isinstance(part, HostCall)
            else f"XLA: {', '.join(t.name for t in part.nodes)}"
            for part in self.parts
        )

    def __call__(self, *feeds: Array) -> tuple[Array, ...]:
        """Run the parts in order."""
        return self._run(feeds, None)

    def traced(self, *feeds: Array) -> tuple[tuple[Array, ...], list[Mark]]:
        """Run the parts; return the fetched arrays, and (tensor, start, end) in seconds for each part."""
        marks: list[Mark] = []
        return self._run(feeds, marks), marks

    def node_at(self, trace: object) -> Tensor | None:
        """Return the tensor whose call on the host has raised; an error of a function names its own."""
        return self._at

    def _run(self, feeds: Sequence[Array], marks: list[Mark] | None) -> tuple[Array, ...]:
        values: dict[Tensor, Any] = dict(zip(self._feeds, feeds, strict=True))
        for number, part in enumerate(self.parts):
            begun = time.perf_counter()
            if isinstance(part, HostCall):
                self._call(part.node, values)
                last = part.node
            else:
                self._compute(number, part, values)
                last = part.nodes[-1]
                if marks is not None:
                    jax_module().block_until_ready([values[t] for t in part.outputs])
            if marks is not None:
                marks.append((last, begun, time.perf_counter()))
        return tuple(self._host_value(t, values) for t in self._fetches)

    def _call(self, node: Tensor, values: dict[Tensor, Any]) -> None:
        arguments = [self._host_value(t, values) for t in node.inputs]
        self._at = node
        result = self._kernels[node](*arguments)
        self._at = None
        if node.op is not None and node.op.has_value:
            values[node] = np.asarray(result)

    def _host_value(self, t: Tensor, values: Mapping[Tensor, Any]) -> Array:
        if t not in values and isinstance(t, Variable):
            return to_host(self._held[t].array)
        if t not in values and isinstance(t, Constant):
            return t.value
        return to_host(values[t])

    def _compute(self, number: int, part: Function, values: dict[Tensor, Any]) -> None:
        jax, device = jax_module(), tpu_device(self._device)
        try:
            with wide_types():
                fed = jax.device_put([values[t] for t in part.inputs], device)
                function = self._function(number, part, fed)
                with self._lock:
                    held = [self._held[v] for v in part.variables]
                    outputs, new = function(fed, [one.array for one in held])
                    if part.assigned:
                        jax.block_until_ready(new)  # a step that fails leaves the variables as they were
                        with self._fence:
                            for one, value in zip(self._assigned(part), new, strict=True):
                                one.array = value
        except jax.errors.JaxRuntimeError as error:
            raise self._explained(error) from error
        values.update(zip(part.outputs, outputs, strict=True))

    def _assigned(self, part: Function) -> list[Held]:
        return [self._held[v] for v in part.variables if v in part.assigned]

    def _function(self, number: int, part: Function, fed: Sequence[Any]) -> Any:
        """Return the compiled function of a part for values of these shapes."""
        key = number, tuple(tuple(one.shape) for one in fed)
        if key not in self._compiled:
            jax, device = jax_module(), tpu_device(self._device)
            pure = pure_function(
                part.outputs,
                feeds=part.inputs,
                shapes=key[1],
                variables=part.variables,
                order=part.nodes,
            )

            def function(fed: Sequence[Any], held: Sequence[Any]) -> Any:
                outputs, after = pure(fed, held)
                changed = zip(part.variables, after, strict=True)
                return outputs, [value for v, value in changed if v in part.assigned]

            held = [self._held[v].array for v in part.variables]
            with jax.default_device(device):  # of a function that takes nothing
                jitted = jax.jit(function, keep_unused=True)
                self._compiled[key] = compile_once(jitted, (fed, held), [device])[0]
        return self._compiled[key]

    def _explained(self, error: Exception) -> Exception:
        text = str(error).splitlines()[0]
        if "RESOURCE_EXHAUSTED" in text:
            return ResourceExhaustedError(f"no memory is left on {self._device}: {text}. {SMALLER}")
        return InvalidArgumentError(f"XLA cannot run this part of the graph on {self._device}: {text}")


def _kernel(node: Tensor, kernels: Kernels) -> Callable[..., Any]:
    assert node.op is not None
    if node.op.external:
        return kernels(node)
    return partial(node.op.forward, np, **node.attrs)
