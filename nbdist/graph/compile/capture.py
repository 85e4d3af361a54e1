"""Captures a CuPy program as CUDA graphs: recorded calls are launched together.

    program = compile_program([loss], feeds=[x], shapes=[(100, 64)], into=[g], xp=cupy, capture=None)

Small ops take a GPU less time than Python and the driver take to launch them; a graph is one launch. The
first call of a program runs it: CuPy compiles its kernels. The second tries to record each call, and then
records as few graphs as possible. All later calls launch these.

What is between the graphs. CuPy refuses to record calls of cuBLAS and cuSOLVER ("calling cuBLAS API during
stream capture is currently unsupported", CuPy 13 and 14), and what reads values on the host or copies host
memory. Such calls run between two graphs, as vLLM and torch.compile do it ("piecewise CUDA graphs"); so do
calls that communicate or hold locks, and gradients are announced there.

What a graph must not contain. It repeats calls with the same addresses and the same numbers. So feeds are
copied to memory of the program's own; a call with other targets records again; and a copy of host memory
raises while a thread records. CuPy would record it from a staging buffer that is reused afterwards, and a
launch would read other data, without an error. CuPy takes all staging buffers from one allocator:
`_refuse_staging` puts a check in front of it.

Memory. A graph writes to the addresses of the arrays that calls allocated while it was recorded. They come
from a memory pool that never gives memory back, one for all programs of a thread on a GPU. This pool takes
its memory from the pool that the thread allocates from, so that ``CUPY_GPU_MEMORY_LIMIT`` counts it.
Programs of one thread run one after the other, so they may share it.

This follows CuPy's documentation and source (Stream.begin_capture, Graph.launch, MemoryPool). It is tested
with a stand-in for CuPy, and has run on one GPU (docs/gpus.md). ``NBDIST_CUDA_GRAPHS=0`` switches it off.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array, backend_of
from nbdist.graph.compile.locking import Lock
from nbdist.graph.compile.specs import Specs
from nbdist.graph.op import Spec
from nbdist.graph.tensor import Tensor

SWITCH = "NBDIST_CUDA_GRAPHS"
Note: TypeAlias = Callable[[str], object]


def captures(xp: ModuleType, capture: bool | None) -> bool:
    """Return whether to capture a program for ``xp``; None is as ``NBDIST_CUDA_GRAPHS`` says, by default yes.

    >>> captures(np, None)
    False
    """
    if capture is None:
        chosen = os.environ.get(SWITCH, "1")
        if chosen not in ("0", "1"):
            raise InvalidArgumentError(f"{SWITCH}={chosen!r}; choose 1 (the default) or 0")
        return xp is not np and chosen == "1"
    if capture and xp is np:
        raise InvalidArgumentError("capture=True is for programs on a GPU; this one is compiled for NumPy")
    return capture


def check_capture(nodes: Iterable[Tensor], specs: Specs) -> None:
    """Raise InvalidArgumentError if a program has a value whose memory cannot be the same at every call."""
    for node in nodes:
        if not specs.exact(node):
            raise InvalidArgumentError(
                f"{node.name!r} ({node.type}) has a shape that is known only at run time"
            )


_thread = threading.local()
_printed: set[str] = set()


@contextmanager
def notes_to(note: Note) -> Iterator[None]:
    """A context in which this thread's programs send their notes to ``note``."""
    before = getattr(_thread, "note", None)
    _thread.note = note
    try:
        yield
    finally:
        _thread.note = before


def _say(text: str) -> None:
    """Send a note to where this thread's notes go; a process prints it once if that is nowhere."""
    note = getattr(_thread, "note", None)
    if note is not None:
        note(text)
    elif text not in _printed:
        _printed.add(text)
        print(text)


REFUSALS = (RuntimeError, NotImplementedError, MemoryError)
"""What CUDA (CUDARuntimeError is a RuntimeError) and CuPy raise for a call that cannot be recorded."""
LEAST = 16  # calls: a graph of fewer is not cut to announce gradients


@dataclass(frozen=True)
class Line:
    """A line of a program: its call, and what follows it in the same line."""

    node: Tensor
    text: str
    call: CodeType
    notify: CodeType | None
    """Announces that gradients are in their arrays."""
    forget: CodeType | None
    """Deletes values that have no later use."""

    @classmethod
    def of(cls, text: str, number: int, node: Tensor, file: str) -> Line:
        """Compile a line of a program's function; ``number`` is its line there, from 1 on."""
        call, *rest = text.strip().split("; ")
        forget = [part for part in rest if part.startswith("del ")]
        notify = [part for part in rest if part not in forget]

        def compiled(*parts: str) -> CodeType:
            return compile("\n" * (number - 1) + "; ".join(parts), file, "exec")

        return cls(
            node,
            call,
            compiled(call),
            compiled(*notify) if notify else None,
            compiled(*forget) if forget else None,
        )

    @property
    def makes(self) -> str:
        """The name of its value, if that is not in planned memory; else ""."""
        return self.text.partition(" = ")[0] if " = " in self.text else ""

    def reads(self, names: Collection[str]) -> set[str]:
        """Return which of these names it reads."""
        return set(self.call.co_names) & set(names)


@dataclass(frozen=True)
class Text:
    """A program's function: its compiled form, its lines, and the names of what it returns."""

    function: Callable[..., tuple[Array, ...]]
    lines: Sequence[Line]
    results: Sequence[str]
    scope: dict[str, Any]

    @classmethod
    def of(
        cls,
        function: Callable[..., tuple[Array, ...]],
        source: str,
        nodes: Sequence[Tensor],
        scope: dict[str, Any],
    ) -> Text:
        """Take a program's source apart."""
        _, *lines, last = source.splitlines()
        compiled = [
            Line.of(line, number + 2, node, "<nbdist program, by lines>")
            for number, (line, node) in enumerate(zip(lines, nodes, strict=True))
        ]
        names = last.strip().removeprefix("return (").removesuffix(")").split(", ")
        return cls(function, compiled, [name for name in names if name], dict(scope))


@dataclass(frozen=True)
class CaptureRules:
    """The nodes of a program that are captured in another way than most, or not at all."""

    uncaptured: Collection[Tensor] = ()
    """They communicate, or hold locks: they are not recorded."""
    views: Collection[Tensor] = ()
    """They launch nothing."""
    fenced: Collection[Tensor] = ()
    """They change variables: their graph is launched within ``fence``."""
    fence: Lock | None = None


class Captured:
    """A program's function: the first call runs it, the second records graphs, all later ones launch them.

    With a ``problem`` the program runs as it is, and a note says why.
    """

    def __init__(
        self,
        text: Text,
        xp: ModuleType,
        feeds: Sequence[Spec],
        targets: int = 0,
        nodes: CaptureRules = CaptureRules(),
        problem: str = "",
    ) -> None:
        self._text, self._xp, self._nodes = text, xp, nodes
        self._specs = [(tuple(n or 0 for n in spec.shape), spec.dtype) for spec in feeds]
        self._count = len(feeds) + targets
        self._problem, self._warm, self._plain = problem, False, False
        self._between: dict[int, str] | None = None
        """By number, the lines that run between graphs, and why; None before that was tried."""
        self._steady: dict[str, Array] = {}
        """Values of lines between graphs, in memory that graphs read."""
        self._own: dict[str, Array] = {}
        """The feeds that graphs read."""
        self._given: dict[str, Array] = {}
        """The feeds and targets of the current call, by name."""
        self._recorded: _Recorded | None = None

    @property
    def graphs(self) -> int:
        """How many graphs a call launches; 0 as long as none is recorded."""
        return self._recorded.graphs if self._recorded is not None else 0

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Run the program on the current stream; feeds first, then the arrays to write into."""
        if len(arrays) != self._count:
            raise InvalidArgumentError(f"the program takes {self._count} arrays, got {len(arrays)}")
        if self._plain or not self._warm:
            self._warm = True
            return self._text.function(*arrays)
        targets = arrays[len(self._specs) :]
        self._given = {f"f{i}": array for i, array in enumerate(arrays[: len(self._specs)])}
        self._given |= {f"o{i}": array for i, array in enumerate(targets)}
        try:
            if self._problem:
                raise _Refused(self._problem)
            if self._between is None:
                return self._try(targets)
            if self._recorded is None or not self._recorded.fits(targets):
                self._recorded = self._record(targets)
        except _Refused as error:
            self._plain, self._recorded, self._own, self._steady = True, None, {}, {}
            _say(f"a program of {len(self._text.lines)} calls runs without CUDA graphs: {error}")
            return self._text.function(*arrays)
        for name, own in self._own.items():
            self._fill(own, self._given[name])
        for action in self._recorded.actions:
            action()
        return self._recorded.results

    def _fill(self, own: Array, given: Array) -> None:
        if backend_of(given) is np:
            own[...] = self._xp.asarray(given)
        else:
            self._xp.copyto(own, given)

    def _try(self, targets: Sequence[Array]) -> tuple[Array, ...]:
        """Run the program line by line, each after an attempt to record it; then record graphs."""
        text, between = self._text, dict[int, str]()
        own = {f"f{i}": self._xp.zeros(*spec) for i, spec in enumerate(self._specs)}
        values = dict(self._given)
        with _recorder(self._xp) as stream:
            for number, line in enumerate(text.lines):
                if line.node in self._nodes.uncaptured:
                    between[number] = ""
                elif line.node not in self._nodes.views:
                    reason = self._refusal(stream, line, {**values, **own})
                    if reason is not None:
                        between[number] = reason
                exec(line.call, text.scope, values)
                if number in between and line.makes:
                    self._steady[line.makes] = values[line.makes]
                for code in (line.notify, line.forget):
                    if code is not None:
                        exec(code, text.scope, values)
        read = set(text.results).union(
            *(ln.reads(own) for n, ln in enumerate(text.lines) if n not in between)
        )
        self._between, self._own = between, {name: own[name] for name in own if name in read}
        results = self._results(values)
        try:
            self._recorded = self._record(targets)
        except _Refused as error:
            self._problem = str(error)  # the next call gives up
        else:
            self._explain()
        return results

    def _refusal(self, stream: Any, line: Line, values: dict[str, Any]) -> str | None:
        """Return why a line cannot be recorded; None if it can."""
        try:
            _graph(stream, [line], self._text.scope, values)
        except REFUSALS as error:
            return str(error).partition("\n")[0] or type(error).__name__
        return None

    def _record(self, targets: Sequence[Array]) -> _Recorded:
        """Record graphs that write into these targets; this executes nothing on the GPU."""
        assert self._between is not None
        text, values = self._text, {**self._given, **self._own}
        found = _Recorded(tuple(targets), threading.get_ident())
        waiting, announced = list[Line](), list[_Call]()
        with _recorder(self._xp) as stream:

            def close() -> None:
                if waiting:
                    changes = any(line.node in self._nodes.fenced for line in waiting)
                    graph = _graph(stream, waiting, text.scope, values)
                    found.add_graph(graph, self._nodes.fence if changes else None)
                found.actions.extend(announced)
                waiting.clear()
                announced.clear()

            try:
                for number, line in enumerate(text.lines):
                    if number in self._between:
                        close()
                        found.actions.append(self._action(line, values))
                        values |= {name: a for name, a in self._steady.items() if name == line.makes}
                        if line.forget is not None:
                            exec(line.forget, text.scope, values)
                    elif waiting or line.node not in self._nodes.views:
                        waiting.append(line)
                    else:
                        exec(line.call, text.scope, values)
                        if line.forget is not None:
                            exec(line.forget, text.scope, values)
                    if line.notify is not None:
                        announced.append(_Call(line.notify, text.scope))
                        if len(waiting) >= LEAST:
                            close()
                close()
            except REFUSALS as error:
                raise _Refused(f"{type(error).__name__}: {error}") from error
        calls = sum(line.node not in self._nodes.views for line in text.lines)
        if found.graphs + len(self._between) + len(self._own) >= calls:
            raise _Refused(self._reasons() or "it has too few calls")
        found.results = self._results(values)
        return found

    def _results(self, values: dict[str, Any]) -> tuple[Array, ...]:
        scope = self._text.scope
        return tuple(values[name] if name in values else scope[name] for name in self._text.results)

    def _action(self, line: Line, values: dict[str, Any]) -> Callable[[], object]:
        """Return a call of a line between two graphs."""
        known = {name: values[name] for name in line.reads(values)}
        fed = [name for name in known if name in self._given and name.startswith("f")]
        call = _Call(line.call, self._text.scope, known)
        steady = self._steady.get(line.makes)

        def run() -> None:
            for name in fed:  # on the host, perhaps, and it may be read there
                known[name] = self._given[name]
            call()
            if steady is not None:
                xp = np if isinstance(steady, np.ndarray) else self._xp  # a session's resource is on the host
                xp.copyto(steady, known.pop(line.makes))

        return run

    def _reasons(self) -> str:
        """Return which calls run between graphs, and why, in words."""
        assert self._between is not None
        reasons = Counter(
            (self._text.lines[n].node.type, why or "it communicates or holds locks")
            for n, why in self._between.items()
        )
        return "; ".join(
            f"{count} call{'s' * (count > 1)} of {op} ({why})" for (op, why), count in reasons.items()
        )

    def _explain(self) -> None:
        count, between = len(self._text.lines), self._reasons()
        graphs = f"{self.graphs} CUDA graph{'s' * (self.graphs > 1)}"
        _say(f"a program of {count} calls runs as {graphs}{'; not recorded: ' * bool(between)}{between}")


class _Refused(Exception):
    """A program cannot be recorded."""


@dataclass
class _Recorded:
    """What a call does, for these targets: it launches graphs, and runs the lines between them."""

    targets: tuple[Array, ...]
    thread: int
    """Where it was recorded: temporary memory is shared with other programs of that thread."""
    actions: list[Callable[[], object]] = field(default_factory=list)
    results: tuple[Array, ...] = ()
    graphs: int = 0

    def fits(self, targets: Sequence[Array]) -> bool:
        """Whether it writes into these arrays, and this thread has recorded it."""
        same = all(a is b for a, b in zip(targets, self.targets, strict=True))
        return same and self.thread == threading.get_ident()

    def add_graph(self, graph: Any, fence: Lock | None) -> None:
        """Launch a graph on the current stream next, within the fence if there is one."""

        def launch() -> None:
            assert fence is not None
            with fence:
                graph.launch()

        self.actions.append(graph.launch if fence is None else launch)
        self.graphs += 1


class _Call:
    """A line of a program that runs as it is."""

    def __init__(self, code: CodeType, scope: dict[str, Any], values: dict[str, Any] | None = None) -> None:
        self._code, self._scope, self._values = code, scope, {} if values is None else values

    def __call__(self) -> None:
        exec(self._code, self._scope, self._values)


def _graph(stream: Any, lines: Sequence[Line], scope: dict[str, Any], values: dict[str, Any]) -> Any:
    """Return the graph of some lines; ``values`` gets their results."""
    _thread.records = True
    stream.begin_capture()
    try:
        for line in lines:
            exec(line.call, scope, values)
            if line.forget is not None:
                exec(line.forget, scope, values)
    except BaseException:
        with suppress(Exception):  # an incomplete recording is of no use
            stream.end_capture()
        raise
    finally:
        _thread.records = False
    return stream.end_capture()


# Memory, and the stream that records.


@contextmanager
def _recorder(xp: ModuleType) -> Iterator[Any]:
    """A context in which this thread works on a stream that can record, with memory that graphs may keep.

    Waits for the GPU before and after.
    """
    cuda = xp.cuda
    _refuse_staging(xp)
    known: dict[tuple[int, int], tuple[Any, Any]] = _thread.__dict__.setdefault("recorders", {})
    key = (id(xp), cuda.Device().id)
    if key not in known:
        pool = cuda.MemoryPool(cuda.get_allocator())
        pool.set_limit(size=0)  # the pool below it has the limit; at a limit a pool gives memory back
        known[key] = (pool, cuda.Stream(non_blocking=True))  # the default stream cannot be recorded
    pool, stream = known[key]
    cuda.get_current_stream().synchronize()
    with cuda.using_allocator(pool.malloc), stream:
        yield stream
    stream.synchronize()


_refusing: WeakSet[ModuleType] = WeakSet()


def _refuse_staging(xp: ModuleType) -> None:
    """Have CuPy raise if a thread that records asks for a staging buffer, to copy host memory."""
    if xp in _refusing:
        return
    _refusing.add(xp)
    malloc = xp.get_default_pinned_memory_pool().malloc

    def checked(size: int) -> Any:
        if getattr(_thread, "records", False):
            raise RuntimeError("it copies host memory at each call")
        return malloc(size)

    xp.cuda.set_pinned_memory_allocator(checked)
