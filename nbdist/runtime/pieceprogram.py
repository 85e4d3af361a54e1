"""A piece of a plan, compiled where it runs: on a task's variables, with ways to send and to receive.

program = PieceProgram(piece, store, Containers("worker"), kernels, scratch)
results = program.run(feeds)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    ResourceExhaustedError,
)
from nbdist.graph.backend import Array, backend, to_device, to_host
from nbdist.graph.locking import Lock
from nbdist.graph.op import fits, show
from nbdist.graph.partition import Piece, describe
from nbdist.graph.program import Kernels, Program, compile_program
from nbdist.graph.tensor import Tensor, Variable
from nbdist.runtime.scratch import Scratch
from nbdist.runtime.store import Cell, Store
from nbdist.runtime.tracing import Mark


@dataclass(frozen=True, slots=True)
class Containers:
    """Where variables are kept: those that name no container in ``default``, and all behind ``prefix``."""

    default: str
    prefix: str = ""

    def of(self, kept: Tensor) -> str:
        """Return the container of a variable, or of what else is kept."""
        return self.prefix + (kept.container or self.default)


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
            raise located(error, node, self.device) from error
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
            )
        except ResourceExhaustedError as error:
            raise ResourceExhaustedError(f"{piece.device}: {error}") from None
        except MemoryError as error:
            raise ResourceExhaustedError(f"no memory for the program on {piece.device}: {error}") from None

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


def located(error: Exception, node: Tensor, device: str) -> Exception:
    """Return an error that says which op failed, on which device, and where the user made it."""
    if isinstance(error, AbortedError):
        return error
    where = f"{describe(node)} on {device}"
    if isinstance(error, NbdistError):
        return type(error)(f"{error}, at {where}")
    if isinstance(error, MemoryError):
        return ResourceExhaustedError(f"out of memory at {where}: {error}")
    return InvalidArgumentError(f"{type(error).__name__} at {where}: {error}")
