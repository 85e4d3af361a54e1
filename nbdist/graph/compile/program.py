"""Compiles a subgraph to ordered kernel calls on planned buffers.

    program = compile_program([loss], feeds=[x], shapes=[(100, 64)], values={w: w_array}, into=[grad_w])
    (loss_value,) = program(batch, grad_buffer)
    print(program.source)

Compiling fixes every shape that can be known, so that intermediate arrays are allocated once, views are
taken once, and a step is one straight-line Python function: its cost above NumPy's own calls is the call.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.compile.buffers import slab
from nbdist.graph.compile.capture import Captured, CaptureRules, Text, captures, check_capture
from nbdist.graph.compile.elementwise import BlockSizes, Blockwise, find_chains
from nbdist.graph.compile.gathered import Gathered, runs_of
from nbdist.graph.compile.locking import Lock, Locks
from nbdist.graph.compile.memory import lay_out, settled_after, unneeded_after
from nbdist.graph.compile.memory_order import may_be_reordered, thrifty_order
from nbdist.graph.compile.partition import describe
from nbdist.graph.compile.source import FunctionSource, Kernels, Memory, Written
from nbdist.graph.compile.specs import Specs, size_of, value_order
from nbdist.graph.compile.values import ValueKind, Values
from nbdist.graph.gpu_errors import NAMED, SizedTensor, largest, megabytes
from nbdist.graph.op import Shape
from nbdist.graph.tensor import Tensor, Variable

__all__ = ["BlockSizes", "Kernels", "Program", "compile_program", "value_order"]
_numbers = itertools.count()


@dataclass(frozen=True)
class Program:
    """Compiled calls. ``program(*feeds, *into)`` runs them and returns the fetched arrays.

    The returned arrays are the program's own buffers: the next call overwrites them.
    """

    source: str
    function: Callable[..., tuple[Array, ...]]
    buffer_bytes: int
    """Memory that is allocated for intermediate values."""
    value_bytes: int
    """Memory that they would take without sharing: the sum of all values."""
    peak_live_bytes: int = 0
    """The most bytes alive at one time in this order: a lower bound for any plan of the buffers."""
    nodes: tuple[Tensor, ...] = field(repr=False, default=())
    """The tensor that each line of the source computes; of several, the last."""
    scope: dict[str, Any] = field(repr=False, default_factory=dict)
    chains: Mapping[Tensor, Blockwise] = field(repr=False, default_factory=dict)
    """The lines that compute several values block by block, by the last of them."""
    xp: ModuleType = field(repr=False, default=np)
    """The array module that it is compiled for."""
    uncaptured: frozenset[Tensor] = field(repr=False, default=frozenset())
    """Nodes that communicate, or hold locks while they run: no CUDA graph has them."""
    fenced: frozenset[Tensor] = field(repr=False, default=frozenset())
    """What enters the fence."""
    note: str = field(repr=False, default="")
    """Names the largest buffers: a note for the error if memory runs out."""

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Run the calls; feeds first, then the arrays to write into."""
        with np.errstate(all="ignore"):  # inf and nan are values here; the training loop checks the loss
            try:
                return self.function(*arrays)
            except MemoryError as error:
                error.add_note(self.note)
                raise

    def traced(self, *arrays: Array) -> tuple[tuple[Array, ...], list[tuple[Tensor, float, float]]]:
        """Run the calls; return the fetched arrays, and (tensor, start, end) in seconds for each call.

        On a GPU they run one by one, without CUDA graphs, and CUDA events measure them: a call returns when
        its kernels are queued. The host waits once, for the last.
        """
        clock = _HostClock() if self.xp is np else _GpuClock(self.xp)
        clock.mark()
        with np.errstate(all="ignore"):
            try:
                results = self._marking(clock.mark, *arrays)
            except MemoryError as error:
                error.add_note(self.note)
                raise
        marks = clock.times()
        spans = zip(self.nodes, marks[:-1], marks[1:], strict=True)
        return results, list(spans)

    def node_at(self, trace: TracebackType | None) -> Tensor | None:
        """Return the tensor whose call raised an exception."""
        while trace is not None:
            if trace.tb_frame.f_code.co_filename.startswith("<nbdist program"):
                node = self.nodes[trace.tb_lineno - 2]  # the first line is the function's head
                return self.chains[node].failed if node in self.chains else node
            trace = trace.tb_next
        return None

    @cached_property
    def _marking(self) -> Callable[..., tuple[Array, ...]]:
        first, *lines, last = self.source.splitlines()
        body = "".join(f"{line}; mark()\n" for line in lines)
        source = f"{first.replace('(', '(mark, ', 1)}\n{body}{last}\n"
        return _function(source, self.scope)


class _HostClock:
    """Times of calls, in seconds of time.perf_counter."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> None:
        """Take the time."""
        self._times.append(time.perf_counter())

    def times(self) -> list[float]:
        """Return all times."""
        return self._times


class _GpuClock:
    """Times at which a GPU has done what was queued, on the host's clock."""

    def __init__(self, xp: ModuleType) -> None:
        self._cuda = xp.cuda
        self._events: list[Any] = []

    def mark(self) -> None:
        """Take the time when the GPU has done all that is queued."""
        self._events.append(self._cuda.Event())
        self._events[-1].record(self._cuda.get_current_stream())

    def times(self) -> list[float]:
        """Wait for the last; return all times."""
        last = self._events[-1]
        last.synchronize()
        now = time.perf_counter()
        return [now - self._cuda.get_elapsed_time(event, last) / 1e3 for event in self._events]


def _function(source: str, scope: dict[str, Any]) -> Callable[..., tuple[Array, ...]]:
    own = dict(scope)
    exec(compile(source, f"<nbdist program {next(_numbers)}>", "exec"), own)
    return own.pop("step")  # type: ignore[no-any-return]  # not in its own globals: a reference cycle


def compile_program(
    fetches: Sequence[Tensor],
    *,
    feeds: Sequence[Tensor] = (),
    shapes: Sequence[Shape] = (),
    values: Mapping[Variable, Array] | None = None,
    into: Sequence[Tensor] = (),
    xp: ModuleType = np,
    order: Sequence[Tensor] | None = None,
    kernels: Kernels | None = None,
    blocks: BlockSizes = BlockSizes(),  # noqa: B008 (frozen)
    memory: Memory = slab,
    capture: bool | None = False,
    written: Written | None = None,
    locks: Locks | None = None,
    fence: Lock | None = None,
    gathered: Gathered | None = None,
) -> Program:
    """Compile what ``fetches`` and ``into`` need, for feeds of exactly these shapes.

    ``values`` holds each variable's array, which is read (and assigned) in place. The values of ``into`` are
    written to arrays that each call passes after the feeds (a gradient is written directly into the memory
    that it is sent from). ``order`` has the tensors to compute, inputs before users; ``kernels`` returns the
    function that is called for an external op, ``memory`` the bytes for intermediate values. ``written``
    holds functions that are called as soon as a value of ``into`` is in its array, and is not read there any
    more: gradients of a bucket can be sent while others are computed. ``locks`` are held while their
    variables are read or changed. ``fence`` is entered for each change of a variable: it raises if the step
    may no longer change variables. ``gathered`` variables are here only while the program reads them.
    ``capture`` makes CUDA graphs of a CuPy program; with None only where that is possible, and not with
    ``NBDIST_CUDA_GRAPHS=0``; see :mod:`nbdist.graph.compile.capture`.
    """
    for t in (*fetches[:1], *into[:1]):
        t.graph.check_half()
    wanted = _Wanted(tuple(fetches), tuple(into), tuple(feeds), Specs.fed(feeds, shapes), values or {}, xp)
    plan = _plan(wanted, order, blocks)
    if not captures(xp, capture):
        return plan.program(kernels, memory, written or {}, locks or {}, fence, gathered)
    problem = ""
    try:
        check_capture(dict.fromkeys([*wanted.feeds, *plan.order]), wanted.specs)
    except InvalidArgumentError as error:
        if capture:
            raise type(error)(
                f"{error}, so the program cannot be a CUDA graph; compile it without capture=True"
            ) from None
        problem = str(error)
    program = plan.program(kernels, memory, written or {}, locks or {}, fence, gathered)
    text = Text.of(program.function, program.source, program.nodes, program.scope)
    fed = [wanted.specs[t] for t in feeds]
    views = [t for t, kind in plan.values.kinds.items() if kind is ValueKind.VIEW]
    nodes = CaptureRules(program.uncaptured, frozenset(views), program.fenced, fence)
    return replace(program, function=Captured(text, xp, fed, len(into), nodes, problem))


def _plan(wanted: _Wanted, order: Sequence[Tensor] | None, blocks: BlockSizes) -> _Plan:
    """Return the plan for ``order``; if that is None, the one of two orders that takes less memory."""
    if order is not None:
        return _Plan(wanted, order, blocks)
    plain = _Plan(
        wanted, value_order([*wanted.fetches, *wanted.into], wanted.specs, frozenset(wanted.feeds)), blocks
    )
    if not may_be_reordered(plain.values, plain.order):
        return plain
    thrifty = _Plan(wanted, thrifty_order(plain.values, plain.order), blocks)
    return min(plain, thrifty, key=lambda plan: plan.layout.peak_bytes)


@dataclass(frozen=True)
class _Wanted:
    """What a program has to compute, and from what."""

    fetches: tuple[Tensor, ...]
    into: tuple[Tensor, ...]
    feeds: tuple[Tensor, ...]
    specs: Specs
    held: Mapping[Variable, Array]
    xp: ModuleType

    def values(self, order: Sequence[Tensor]) -> Values:
        """Classify the values of an order."""
        wanted, targets = frozenset([*self.fetches, *self.into]), frozenset(self.into)
        return Values(order, self.specs, frozenset(self.feeds), self.held, wanted, targets, self.xp)


class _Calls(dict[int, list[Callable[[], object]]]):
    """Calls by the number of a step."""


class _Plan:
    """A program that has no memory yet: its steps in order, and the plan of their memory."""

    def __init__(self, wanted: _Wanted, order: Sequence[Tensor], blocks: BlockSizes) -> None:
        self.wanted, self.order, self.values = wanted, order, wanted.values(order)
        self.chains = {chain.members[-1]: chain for chain in find_chains(order, self.values, blocks)}
        inside = {t for chain in self.chains.values() for t in chain.members[:-1]}
        self.steps = [
            self.chains[node].members if node in self.chains else (node,)
            for node in order
            if not self.values.silent(node) and node not in inside
        ]
        self.layout = lay_out(self.steps, self.values, self.chains)

    def largest_buffers(self) -> str:
        """Return the size of the planned buffers, and the largest values in them."""
        values = [
            node for node in self.order if self.values.kinds[node] in (ValueKind.COMPUTED, ValueKind.MADE)
        ]
        specs = self.values.specs
        most = sorted(values, key=lambda node: size_of(specs[node]), reverse=True)[:NAMED]
        named = [SizedTensor(describe(node), specs[node].shape, specs[node].dtype) for node in most]
        return (
            f"the program plans {megabytes(self.layout.peak_bytes)} of buffers; the largest: {largest(named)}"
        )

    def program(
        self,
        kernels: Kernels | None,
        memory: Memory,
        written: Written,
        locks: Locks,
        fence: Lock | None = None,
        gathered: Gathered | None = None,
    ) -> Program:
        """Allocate the memory; return the program."""
        try:
            return self._program(kernels, memory, written, locks, fence, gathered)
        except MemoryError as error:
            error.add_note(self.largest_buffers())
            raise

    def _program(
        self,
        kernels: Kernels | None,
        memory: Memory,
        written: Written,
        locks: Locks,
        fence: Lock | None,
        gathered: Gathered | None,
    ) -> Program:
        wanted = self.wanted
        source = FunctionSource(
            self.order,
            self.values,
            self.layout,
            wanted.feeds,
            wanted.into,
            kernels,
            memory,
            written,
            locks,
            fence,
        )
        unneeded, settled = unneeded_after(self.steps, self.values), settled_after(self.steps, self.values)
        runs: dict[Tensor, Blockwise] = {}
        needed, released = self._calls_of(gathered)
        for now, step in enumerate(self.steps):
            chain = self.chains.get(step[-1])
            source.call_before("need", needed.get(now, []))
            if chain is not None and chain.bounds:
                runs[step[-1]] = source.add_chain(chain)
            elif chain is not None:
                source.add_fused(chain)
            else:
                source.add(step[-1])
            source.call_after("release", released.get(now, []))
            source.settle(settled.get(now, []))
            source.forget(unneeded.get(now, []))
        source.call_before("need", needed.get(len(self.steps), []))
        source.copy_rest()
        source.call_after("release", released.get(len(self.steps), []))
        text = source.finish(wanted.fetches)
        return Program(
            source=text,
            function=_function(text, source.scope),
            buffer_bytes=source.bytes,
            value_bytes=self.layout.value_bytes,
            peak_live_bytes=self.layout.peak_bytes,
            nodes=tuple(source.nodes),
            scope=source.scope,
            chains=runs,
            xp=self.values.xp,
            uncaptured=frozenset(source.uncaptured),
            fenced=frozenset(source.fenced),
            note=self.largest_buffers(),
        )

    def _calls_of(self, gathered: Gathered | None) -> tuple[_Calls, _Calls]:
        """Return what has gathered variables be here before each step, and what releases them after it.

        The copies to targets that no kernel can write are a step after the last.
        """
        needed, released = _Calls(), _Calls()
        if gathered is None:
            return needed, released
        values, units = self.values, gathered.units
        for t in self.wanted.fetches:
            if values.roots[t] in units:
                raise InvalidArgumentError(
                    f"a program returns {t.name!r} itself, which is here only while the program reads it: "
                    "fetch a value that is computed from it"
                )
        reads = [[i for node in step for i in (*values.reads(node), node)] for step in self.steps]
        reads.append(list(self.wanted.into))
        roots = [{values.roots[i] for i in one} for one in reads]
        for run in runs_of([{units[root] for root in one if root in units} for one in roots]):
            needed.setdefault(run.first, []).append(partial(gathered.need, run.unit))
            released.setdefault(run.last, []).append(partial(gathered.release, run.unit, run.again))
        return needed, released
