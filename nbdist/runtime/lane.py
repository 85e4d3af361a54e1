"""One thread's way through a session: what it has planned, ready to run again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from nbdist.graph.backend import Array
from nbdist.graph.partition import Plan
from nbdist.graph.tensor import Tensor
from nbdist.metrics.timeline import Span
from nbdist.runtime.line import Line, Registered
from nbdist.runtime.pieceprogram import Containers, PieceProgram
from nbdist.runtime.resources import Resources
from nbdist.runtime.scratch import Scratch
from nbdist.runtime.sources import Sources
from nbdist.runtime.store import Store
from nbdist.runtime.tracing import Mark, spans_of
from nbdist.runtime.waiting import Bell, Waiting

MOST_PLANS = 128  # that stay ready


class Lane:
    """Runs plans over a line to a cluster, or in this process where there is none.

    ``patience`` is how many seconds an op of this process may wait for other threads.
    """

    def __init__(
        self, line: Line | None, store: Store, sources: Sources, patience: float | None = None
    ) -> None:
        self._line, self._store, self._sources = line, store, sources
        self._bell = Bell()
        self._waiting = self._bell.waiting(patience)
        self._scratch = Scratch(store)
        self._ready: OrderedDict[Hashable, Registered | _Here] = OrderedDict()

    @property
    def broken(self) -> bool:
        """Whether a task did not end a step: this lane is of no use any more."""
        return self._line is not None and self._line.broken

    def run(
        self,
        key: Hashable,
        cut: Callable[[], Plan],
        feeds: Sequence[Array],
        spans: list[Span] | None,
    ) -> list[Any]:
        """Run what ``key`` stands for, with ``cut`` to plan it at the first time; results are copies."""
        ready = self._ready.get(key)
        if ready is None:
            plan = cut()
            if self._line is not None:
                ready = self._line.register(plan)
            else:
                ready = _Here(plan, self._store, self._sources, self._scratch, self._waiting)
            self._ready[key] = ready
            if len(self._ready) > MOST_PLANS:
                self._release(self._ready.popitem(last=False)[1])
        else:
            self._ready.move_to_end(key)
        if isinstance(ready, Registered):
            assert self._line is not None
            results = self._line.run(ready, feeds, spans)
        else:
            results = ready.run(feeds, spans)
        return [None if value is None else value[()] for value in results]

    def cancel(self) -> None:
        """Cut off the step that waits for others, if one does; from any thread."""
        self._bell.cancel()
        if self._line is not None:
            self._line.cancel()

    def close(self) -> None:
        """Let go of all plans."""
        self._ready.clear()
        self._scratch.close()
        if self._line is not None:
            self._line.close()

    def _release(self, ready: Registered | _Here) -> None:
        if isinstance(ready, Registered) and self._line is not None:
            self._line.release(ready)


class _Here:
    """A plan that runs in this process: one piece at most."""

    def __init__(
        self, plan: Plan, store: Store, sources: Sources, scratch: Scratch, waiting: Waiting
    ) -> None:
        self._plan, self._steps, self._waiting = plan, 0, waiting
        containers = Containers("localhost")
        resources = Resources(store, containers, "CPU:0", waiting)

        def kernels(node: Tensor) -> Callable[..., Any]:
            kernel = sources.kernel(node, np) or resources.kernel(node, np)
            if kernel is None:
                raise NotImplementedError(f"{node!r} crosses no device here")
            return kernel

        self._programs = [PieceProgram(piece, store, containers, kernels, scratch) for piece in plan.pieces]

    def run(self, feeds: Sequence[Array], spans: list[Span] | None) -> list[Array | None]:
        results: list[Array | None] = [None] * self._plan.fetches
        self._steps += 1
        self._waiting.begin()
        for piece, program in zip(self._plan.pieces, self._programs, strict=True):
            marks: list[Mark] | None = None if spans is None else []
            try:
                values = program.run([feeds[i] for i, _ in piece.feeds], marks)
            except BaseException as error:
                self._waiting.cut_off(error)
                raise
            if spans is not None and marks is not None:
                spans += spans_of(piece.device, self._steps, marks, {})
            for (i, _), value in zip(piece.fetches, values, strict=True):
                results[i] = value.copy()
        return results
