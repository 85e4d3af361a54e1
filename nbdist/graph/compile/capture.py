"""Captures a CuPy program as a CUDA graph: its calls are recorded once and launched as one.

    program = compile_program([loss], feeds=[x], shapes=[(100, 64)], into=[g], xp=cupy, capture=True)

Small ops take a GPU less time than Python and the driver take to launch them; a graph is one launch. It uses
the memory addresses of the recorded calls: each call copies feeds to there, and targets from there.

This follows CuPy's documentation (Stream.begin_capture, Graph.launch) and is tested with a stand-in for CuPy.
It has not run on a GPU yet; therefore a program is captured only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.compile.values import ValueKind, Values
from nbdist.graph.op import Spec
from nbdist.graph.tensor import Tensor


def check_capture(steps: Iterable[Sequence[Tensor]], values: Values) -> None:
    """Raise InvalidArgumentError if a program has an op whose work cannot be the same at every call.

    An op that reads values on the host is found only during recording: CuPy refuses it.
    """
    if values.xp is np:
        raise InvalidArgumentError("capture=True is for programs on a GPU; this one is compiled for NumPy")
    for step in (values.fed, *steps):
        for node in step:
            reason = _not_recordable(node, values)
            if reason:
                raise InvalidArgumentError(
                    f"{node.name!r} ({node.type}) {reason}, so the program cannot be a CUDA graph; "
                    "compile it without capture=True"
                )


def _not_recordable(node: Tensor, values: Values) -> str:
    if node.op is not None and node.op.external and node not in values.fed:
        return "communicates with other devices"
    if not values.specs.exact(node):
        return "has a shape that is known only at run time"
    if values.kinds.get(node) in (ValueKind.MADE, ValueKind.COMPUTED) and not node.inputs:
        return "is computed on the host"
    return ""


class Captured:
    """A program's function: the first call runs it, the second records it, all later ones launch the graph.

    In the first run CuPy compiles its kernels and cuBLAS allocates its workspace; neither is possible during
    recording. All allocations come from a memory pool of the program's own, which keeps them: the graph
    continues to use those addresses.
    """

    def __init__(
        self, function: Callable[..., tuple[Array, ...]], xp: ModuleType, feeds: list[Spec], into: list[Spec]
    ) -> None:
        self._function, self._xp, self._fed = function, xp, len(feeds)
        self._own = [xp.empty(tuple(n or 0 for n in s.shape), s.dtype) for s in (*feeds, *into)]
        self._stream = xp.cuda.Stream(non_blocking=True)  # the default one cannot be recorded
        self._pool = xp.cuda.MemoryPool()
        self._warm = False
        self._graph: Any = None
        self._results: tuple[Array, ...] = ()

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Run the program on the current stream; feeds first, then the arrays to write into."""
        if len(arrays) != len(self._own):
            raise InvalidArgumentError(f"the program takes {len(self._own)} arrays, got {len(arrays)}")
        for own, given in zip(self._own[: self._fed], arrays, strict=False):
            self._xp.copyto(own, given)
        if not self._warm:
            self._apart(self._run)
            self._warm = True
        else:
            if self._graph is None:
                self._apart(self._record)
            self._graph.launch()
        for own, target in zip(self._own[self._fed :], arrays[self._fed :], strict=True):
            self._xp.copyto(target, own)
        return self._results

    def _run(self) -> None:
        self._results = self._function(*self._own)

    def _record(self) -> None:
        self._stream.begin_capture()
        try:
            self._run()
        except Exception as error:
            with suppress(Exception):  # an incomplete recording is of no use
                self._stream.end_capture()
            error.add_note("This happened while the program was recorded as a CUDA graph (capture=True).")
            raise
        self._graph = self._stream.end_capture()

    def _apart(self, work: Callable[[], None]) -> None:
        """Run ``work`` on the program's own stream and memory pool; synchronizes before and after."""
        cuda = self._xp.cuda
        cuda.get_current_stream().synchronize()
        with cuda.using_allocator(self._pool.malloc), self._stream:
            work()
        self._stream.synchronize()
