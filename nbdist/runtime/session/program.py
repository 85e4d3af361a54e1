"""A piece of a plan, compiled where it runs: on a task's variables, with ways to send and to receive.

program = PieceProgram(piece, store, Containers("worker"), kernels, scratch)
results = program.run(feeds)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

import numpy as np

from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.graph.backend import Array, backend, to_device, to_host
from nbdist.graph.compile.buffers import slab
from nbdist.graph.compile.locking import Lock
from nbdist.graph.compile.partition import Edge, Piece, describe
from nbdist.graph.compile.program import Kernels, Program, compile_program
from nbdist.graph.device import DeviceSpec
from nbdist.graph.gpu_errors import GPU_LOST_ADVICE, SizedTensor, lost_gpu, out_of_memory
from nbdist.graph.op import fits, show
from nbdist.graph.ops.datasets import READS
from nbdist.graph.tensor import Tensor, Variable
from nbdist.metrics.timeline import BY_EVENTS, Span
from nbdist.runtime.session.store import Cell, Store


@dataclass(frozen=True, slots=True)
class Containers:
    """Where variables are kept: those that name no container in ``default``, and all behind ``prefix``."""

    default: str
    prefix: str = ""

    def of(self, kept: Tensor) -> str:
        """Return the container of a variable, or of what else is kept."""
        return self.named(kept.container)

    def named(self, container: str | None) -> str:
        """Return the full name of a container; of the default one if none is named."""
        return self.prefix + (container or self.default)


class PieceProgram:
    """The part of a step on one device. ``fence`` is entered for each change of a variable, and may raise."""

    def __init__(
        self,
        piece: Piece,
        store: Store,
        containers: Containers,
        kernels: Kernels,
        scratch: Scratch,
        fence: Lock | None = None,
    ) -> None:
        self._fence = fence
        self.device, self._store = piece.device, store
        kind = piece.device.rpartition("device:")[2]
        self._xp = backend(kind)
        self._cells: dict[Variable, Cell] = {}
        for v in piece.variables():
            try:
                self._cells[v] = store.cell(containers.of(v), v.name, v.spec, kind)
            except NbdistError as error:
                raise type(error)(f"{error}; it is {describe(v)} on {piece.device}") from None
            except MemoryError as error:
                text = out_of_memory(
                    error, piece.device, [*self._sizes(), SizedTensor(describe(v), v.shape, v.dtype)]
                )
                raise ResourceExhaustedError(f"no memory for {describe(v)}: {text}") from None
        for v in _locked(piece.order):
            store.lock(self._cells[v])
        self._piece, self._kernels, self._scratch = piece, kernels, scratch
        self._feeds = [leaf for _, leaf in piece.feeds]
        self._program = self._compiled()
        self._sets, self._needs = _first_uses(piece.order)
        self._unready = list(self._needs)
        self.source = self._program.source
        self.buffer_bytes, self.value_bytes = self._program.buffer_bytes, self._program.value_bytes

    def run(self, feeds: Sequence[Array], marks: list[Mark] | None = None) -> tuple[Array, ...]:
        """Run one step; the next overwrites the returned arrays. ``marks`` collects what took how long."""
        if self._unready:
            self._check_ready()
        if self._seen_locks != self._store.locked:
            self._look_at_locks()
        for array, leaf in zip(feeds, self._feeds, strict=True):  # from another process, perhaps
            if array.dtype != leaf.dtype or (array.shape != leaf.shape and not fits(array.shape, leaf.shape)):
                raise InvalidArgumentError(
                    f"{leaf.name!r} is fed {show(array.shape)} {array.dtype}; this step was registered for "
                    f"{show(leaf.shape)} {leaf.dtype}"
                )
        if self._xp is not np:
            feeds = [to_device(a, self._xp) for a in feeds]
        try:
            if marks is None:
                results = self._program(*feeds)
            else:
                results, found = self._program.traced(*feeds)
                marks.extend(found)
        except Exception as error:
            node = self._program.node_at(error.__traceback__)
            if node is None:
                raise
            raise located(error, node, self.device, self._sizes()) from error
        if self._sets:
            self._mark_ready()
        return results if self._xp is np else tuple(to_host(a) for a in results)

    def _compiled(self) -> Program:
        """Return the program, with the locks that its variables have now."""
        piece, self._seen_locks = self._piece, self._store.locked
        self._locks = {v: cell.lock for v, cell in self._cells.items() if cell.lock is not None}
        try:
            return compile_program(
                [t for _, t in piece.fetches],
                feeds=self._feeds,
                shapes=[leaf.shape for leaf in self._feeds],
                values={v: cell.array for v, cell in self._cells.items()},
                xp=self._xp,
                order=piece.order,
                kernels=self._kernels,
                memory=self._scratch.take,
                locks=self._locks,
                fence=self._fence,
                capture=None,
            )
        except ResourceExhaustedError as error:
            raise ResourceExhaustedError(f"{piece.device}: {error}") from None
        except MemoryError as error:
            text = out_of_memory(error, piece.device, self._sizes())
            raise ResourceExhaustedError(f"no memory for the program on {piece.device}: {text}") from None

    def _sizes(self) -> list[SizedTensor]:
        """Return the variables that the piece uses."""
        return [SizedTensor(describe(v), c.array.shape, c.array.dtype) for v, c in self._cells.items()]

    def _look_at_locks(self) -> None:
        """Take the locks from now on that others have put on variables."""
        if sum(cell.lock is not None for cell in self._cells.values()) > len(self._locks):
            self._program = self._compiled()
        else:
            self._seen_locks = self._store.locked

    def _check_ready(self) -> None:
        for v in self._unready:
            cell = self._cells[v]
            if not cell.ready:
                there = self._store.names(cell.container, ready=True)
                known = f"; initialised there: {', '.join(there[:8])}" if there else ""
                raise FailedPreconditionError(
                    f"variable {describe(v)} is not initialised on {self.device} in container "
                    f"{cell.container!r}{known}. Run global_variables_initializer() first; if another "
                    "worker does, look whether both build the same graph"
                )
        self._unready = []

    def _mark_ready(self) -> None:
        for v in self._sets:
            self._cells[v].ready = True
        self._sets = []


def _locked(order: Sequence[Tensor]) -> Iterator[Variable]:
    """Yield the variables that are changed with ``use_locking``."""
    for node in order:
        if node.op is not None and node.attrs.get("use_locking"):
            for i in node.op.writes:
                v = node.inputs[i]
                if isinstance(v, Variable):
                    yield v


def _first_uses(order: Sequence[Tensor]) -> tuple[list[Variable], list[Variable]]:
    """Return the variables that the piece sets, and those that have to be there before it runs."""
    sets: dict[Variable, None] = {}
    needs: dict[Variable, None] = {}
    for node in order:
        if node.op is None:
            continue
        for i, t in enumerate(node.inputs):
            if not isinstance(t, Variable) or t in sets or i in node.op.shape_only:
                continue
            if node.op.replaces and i in node.op.writes:
                sets[t] = None
            else:
                needs[t] = None
    return list(sets), list(needs)


def located(error: Exception, node: Tensor, device: str, tensors: Sequence[SizedTensor] = ()) -> Exception:
    """Return an error that says which op failed, on which device, and where the user made it.

    ``tensors`` are those of the program, of which the largest are named if memory has run out.
    """
    if isinstance(error, AbortedError):
        return error
    where = f"{describe(node)} on {device}"
    if isinstance(error, NbdistError):
        return type(error)(f"{error}, at {where}")
    if isinstance(error, MemoryError):
        return ResourceExhaustedError(f"out of memory at {where}: {out_of_memory(error, device, tensors)}")
    if reason := lost_gpu(error):
        return UnavailableError(f"the GPU of {device} is lost: {reason}, at {where}. {GPU_LOST_ADVICE}")
    return InvalidArgumentError(f"{type(error).__name__} at {where}: {error}")


# Scratch memory that the programs of one thread share: they run one at a time.


class Scratch:
    """Slabs of a thread's programs, counted against the task's limit before they are taken.

    What a program has left there is overwritten by the next that runs. A program that needs more than all
    before it gets a larger slab; theirs stays, for they point into it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._slab: Array | None = None

    def take(self, xp: ModuleType, nbytes: int) -> Array:
        """Return so many bytes, aligned; ResourceExhaustedError if they are over the limit."""
        if self._slab is None or nbytes > self._slab.size:
            self._store.take(self, nbytes, "the buffers of a program")
            self._slab = slab(xp, nbytes)
        return self._slab[:nbytes]

    def close(self) -> None:
        """Free all memory; no program may run afterwards."""
        self._store.give_back(self)
        self._slab = None


# The rendezvous of sends and receives: values by (plan, step, edge), each taken once.
#
# A plan's number is drawn at random when its pieces are registered on tasks of certain incarnations. A
# restarted task has no such plan, so stale values match nothing.


@dataclass(frozen=True, slots=True)
class RendezvousKey:
    """The full name of a value on an edge in a step, for messages; on the wire it is three numbers."""

    source: str
    incarnation: int
    target: str
    name: str
    step: int

    @classmethod
    def of(cls, edge: Edge, incarnation: int, step: int) -> RendezvousKey:
        """Return the key of an edge in a step; ``incarnation`` is that of the source's task."""
        return cls(edge.source, incarnation, edge.target, edge.name, step)

    def __str__(self) -> str:
        return f"{self.source};{self.incarnation:016x};{self.target};{self.name};{self.step}"


class Rendezvous:
    """Values that have arrived and were not taken yet, of one plan.

    >>> meeting = Rendezvous()
    >>> meeting.begin(5)
    >>> meeting.put(4, 0, ()), meeting.put(5, 0, ("late is dropped, this is kept",))
    (False, True)
    >>> meeting.take(0)
    ('late is dropped, this is kept',)
    """

    __slots__ = ("_values", "arrived", "step")

    def __init__(self) -> None:
        self.step = -1
        self.arrived: dict[int, float] = {}
        """When the value of an edge was filed, in seconds of time.perf_counter; of the newest steps."""
        self._values: dict[tuple[int, int], tuple[Array, ...]] = {}

    def begin(self, step: int) -> None:
        """Look at this step now; what belongs to earlier ones is forgotten."""
        self.step = step
        if self._values:
            self._values = {key: value for key, value in self._values.items() if key[0] >= step}

    def put(self, step: int, edge: int, value: tuple[Array, ...]) -> bool:
        """Keep what has arrived; False if its step is over."""
        if step < self.step:
            return False
        self._values[step, edge] = value
        self.arrived[edge] = time.perf_counter()
        return True

    def take(self, edge: int) -> tuple[Array, ...] | None:
        """Return what has arrived on an edge in this step, once, or None."""
        return self._values.pop((self.step, edge), None)


# Tracing: the spans of a step, for a timeline.

Mark: TypeAlias = tuple[Tensor, float, float]
"""A call of a program: what it computes, and when it began and ended, in seconds of time.perf_counter."""


EFFECTS = ("assign", "apply")  # what such an op's name begins with


def spans_of(device: str, step: int, marks: Iterable[Mark], arrived: Mapping[int, float]) -> list[Span]:
    """Return the spans of one device in a step; ``arrived`` says when the value of an edge was there."""
    spec = DeviceSpec.from_string(device)
    task, lane = f"/job:{spec.job}/task:{spec.task}", f"{spec.device_type}:{spec.device_index}"
    if spec.device_type == "GPU":
        lane += BY_EVENTS
    found = []
    for t, begun, ended in marks:
        if t.type in ("receive", "await"):
            there = min(max(arrived.get(t.attrs["edge"], ended), begun), ended)
            found.append(Span(task, lane, "wait", f"for {edge_name(t)}", begun, there - begun, step))
            found.append(Span(task, lane, "receive", edge_name(t), there, ended - there, step))
        elif t.type in ("send", "signal"):
            found.append(Span(task, lane, "send", edge_name(t), begun, ended - begun, step))
        else:
            kind = "data" if t.type in READS else "apply" if t.type.startswith(EFFECTS) else "compute"
            if t.op is not None and t.op.waits:
                kind = "wait"
            found.append(Span(task, lane, kind, t.name, begun, ended - begun, step))
    return found


def edge_name(t: Tensor) -> str:
    """Return what both ends of an edge call it: the value's name and the edge's number."""
    return f"{t.name.partition('^')[0]} #{t.attrs['edge']}"
