"""A stand-in for CuPy that is as strict as CuPy: NumPy computes, the installed CuPy's signatures judge.

A call binds its arguments to the signature of the function, ufunc or method of the installed ``cupy``,
which can be imported without a GPU. It fails as it would on a GPU if CuPy lacks the name, the keyword or the
position (``cupy.matmul`` takes no positional ``out``), if an operand is a host array or on another GPU than
the thread's current one, or if ``ufunc.at`` has no atomic operation for the dtype. Kernels of our own are run
from their source (host_kernels.py); CuPy's kernels, their order and all speeds are not tested.

Work on a stream is done at once, unless a call before it waits for other ranks (fake_nccl.py); then it is
done after that call. Each thread has a default stream for each device.

A recording stream records its thread's calls without executing them; a launch of the graph executes them
again, on the same memory. While a thread records, CuPy refuses cuBLAS and cuSOLVER, waits for the GPU and
reads by the host raise as CUDA does, and the recording is invalid. A copy of host memory goes through a
staging buffer, which is reused afterwards: recording it is an error that only this stand-in sees.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
import time
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cupy
import cupyx
import host_kernels
import numpy as np

ATOMIC = "ilqILQefd"
"""Dtypes that CuPy's ``ufunc.at`` adds with atomic operations."""
C_TYPES = re.compile(r"\b(?:int|bool|Py_ssize_t|_ndarray_base)\s+(?=\w)")
"""Types before the names of parameters in the documentation of compiled methods."""


counts: Counter[str] = Counter()
"""What would happen on a GPU: "launch", "host wait", "bytes to host", "copy to device", "allocation", and
"pinned bytes" of host memory; "event wait": the host has polled an event."""
bytes_made: Counter[int] = Counter()
"""Bytes of arrays that were made so far, by GPU."""
_counting = threading.Lock()
_thread = threading.local()


def add_count(what: str, number: int = 1) -> None:
    """Add to `counts`, from any thread; a launch takes a GPU a millisecond here."""
    with _counting:
        counts[what] += number
    if what == "launch":
        _thread.milliseconds = milliseconds() + number


def milliseconds() -> float:
    """Return how long a GPU has computed for this thread."""
    return float(getattr(_thread, "milliseconds", 0.0))


class Device:
    """A GPU; the current one is a property of a thread, and GPU 0 at first."""

    def __init__(self, number: int | None = None) -> None:
        self.id = current_device() if number is None else number
        self._before: list[int] = []

    def use(self) -> Device:
        """Make it this thread's current device."""
        _thread.device = self.id
        return self

    def __enter__(self) -> Device:
        self._before.append(current_device())
        return self.use()

    def __exit__(self, *error: object) -> None:
        _thread.device = self._before.pop()

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id:02X}:00.0"


def current_device() -> int:
    """Return the number of this thread's current device."""
    number: int = getattr(_thread, "device", 0)
    return number


_memory: dict[int, tuple[int, int]] = {}
"""End and device of the memory of arrays whose address was taken, by their beginning."""


def address_of(array: DeviceArray) -> int:
    """Return the address of an array's memory, which `memory_at` knows from now on."""
    whole = array.host
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    begin, end = np.lib.array_utils.byte_bounds(whole)
    if begin not in _memory:
        weakref.finalize(whole, _memory.pop, begin, None)
    _memory[begin] = end, array.number
    address: int = array.host.ctypes.data
    return address


def memory_at(address: int) -> tuple[int, int]:
    """Return the device that an address is of, and the bytes from there to the end of the memory."""
    for begin, (end, device) in _memory.copy().items():
        if begin <= address < end:
            return device, end - address
    raise RuntimeError(f"cudaErrorIllegalAddress: {address:#x}")


class DeviceArray:
    """Holds an array as a GPU would: NumPy cannot touch it, and it takes no host array as an operand.

    Has the attributes and methods of ``cupy.ndarray``, with their parameters.
    """

    __module__ = "cupy"  # as in CuPy's own arrays
    __array_priority__ = 100

    def __init__(self, host: np.ndarray[Any, Any], number: int | None = None) -> None:
        self.host, self.number = host, current_device() if number is None else number
        with _counting:
            bytes_made[self.number] += host.nbytes

    def __reduce__(self) -> Any:
        return DeviceArray, (self.host,)

    @property
    def device(self) -> Device:
        return Device(self.number)

    shape = property(lambda self: self.host.shape)
    dtype = property(lambda self: self.host.dtype)
    size = property(lambda self: self.host.size)
    ndim = property(lambda self: self.host.ndim)
    nbytes = property(lambda self: self.host.nbytes)
    itemsize = property(lambda self: self.host.itemsize)
    strides = property(lambda self: self.host.strides)
    flags = property(lambda self: self.host.flags)
    data = property(lambda self: types.SimpleNamespace(ptr=address_of(self)))
    T = property(lambda self: DeviceArray(self.host.T, self.number))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        signature = signature_of(getattr(cupy.ndarray, name))

        def method(*args: Any, **kwargs: Any) -> Any:
            signature.bind(*args, **kwargs)
            return on_device(
                lambda a, *rest, **named: getattr(a, name)(*rest, **named), self, *args, **kwargs
            )

        return method

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, key: Any) -> DeviceArray:
        return on_device(lambda a, k: np.asarray(a[k]), self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        on_device(_set, self, key, value)

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __index__(self) -> int:
        return int(self.get().__index__())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Pass a call of NumPy's ufunc on to CuPy's, as CuPy does."""
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        function = Function(getattr(cupy, ufunc.__name__), ufunc)
        return function(*inputs, **kwargs) if method == "__call__" else NotImplemented

    def __array_function__(self, function: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        """Pass a call of NumPy's function on to CuPy's, as CuPy does."""
        real = cupy
        for name in [*function.__module__.split(".")[1:], function.__name__]:
            real = getattr(real, name)
        return Function(real, function)(*args, **kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed; use .get()")

    def get(
        self,
        stream: Stream | None = None,
        order: str = "C",
        out: np.ndarray[Any, Any] | None = None,
        blocking: bool = True,
    ) -> np.ndarray[Any, Any]:
        """Copy to the host; without ``blocking`` ``out`` has the values after an event of the stream."""
        if recording() is not None and blocking:
            raise RuntimeError("the current stream is capturing, so synchronous API calls are not allowed")
        assert recording() is None, "a copy to the host is recorded"
        add_count("bytes to host", self.nbytes)
        if out is None:
            assert blocking, "memory that is not pinned is not copied to in the background"
            out = np.empty(self.shape, self.dtype)
        assert isinstance(out, np.ndarray)
        assert (out.shape, out.dtype) == (self.shape, self.dtype)
        assert out.flags.c_contiguous
        if blocking:
            add_count("host wait")
            (stream or get_current_stream()).drain()
            np.copyto(out, self.host)
        else:
            assert stream is not None
            stream.pending.append(Copy(out, self.host))
        return out

    def set(self, arr: np.ndarray[Any, Any], stream: Stream | None = None) -> None:
        """Copy host values of the same shape and dtype here."""
        assert isinstance(arr, np.ndarray)
        assert (arr.shape, arr.dtype) == (self.shape, self.dtype)
        assert self.flags.c_contiguous
        if self.number != current_device():
            raise ValueError("Array device must be same as the current device")
        add_count("copy to device")
        np.copyto(self.host, arr)


def _set(array: np.ndarray[Any, Any], key: Any, value: Any) -> None:
    array[key] = value


@functools.cache
def signature_of(real: Any) -> inspect.Signature:
    """Return the signature of a function, ufunc or method of CuPy.

    Ufuncs and compiled methods have it in the first line of their documentation only.
    """
    if type(real).__name__ == "_GUFunc":  # takes its operands by position, and everything else by keyword
        kinds = inspect.Parameter
        named = [p for p in inspect.signature(real).parameters.values() if p.kind == kinds.KEYWORD_ONLY]
        return inspect.Signature([*(kinds(name, kinds.POSITIONAL_ONLY) for name in ("a", "b")), *named])
    if not isinstance(real, cupy.ufunc):
        try:
            return inspect.signature(real)
        except (ValueError, TypeError):
            pass
    line = (real.__doc__ or "").strip().splitlines()[0].replace("\\", "").partition("->")[0]
    parameters = C_TYPES.sub("", line.partition("(")[2].rpartition(")")[0])
    parameters = parameters.removeprefix("self").removeprefix(", ")
    defined: dict[str, Any] = {}
    exec(f"def function({parameters}): pass", {}, defined)
    return inspect.signature(defined["function"])


@functools.cache
def check_call(real: Any, positional: int, *names: str) -> None:
    """Raise as CuPy does if a function does not take so many arguments by position and these by name."""
    signature_of(real).bind(*range(positional), **dict.fromkeys(names))


def down(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        if value.number != current_device():
            raise ValueError(
                "Array device must be same as the current device: array device = "
                f"{value.number} while current = {current_device()}"
            )
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, tuple | list):
        return type(value)(down(v) for v in value)
    return value


def up(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(up(v) for v in value)
    return DeviceArray(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def count_call(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count a launch unless a call returned a view; and an allocation if its result has memory of its own."""
    if not isinstance(result, (np.ndarray, np.generic)):
        add_count("launch")
        return
    hosts = [one.host for one in (*args, *kwargs.values()) if isinstance(one, DeviceArray)]
    shares = isinstance(result, np.ndarray) and any(np.may_share_memory(result, host) for host in hosts)
    add_count("launch", not shares or any(result is host for host in hosts))
    add_count("allocation", not shares)


def on_device(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a NumPy function on device arrays, now or when the graph is launched that is being recorded."""

    def call(convert: Callable[[Any], Any] = down) -> Any:
        with np.errstate(all="ignore"):  # a GPU does not warn
            return function(*map(convert, args), **{name: convert(v) for name, v in kwargs.items()})

    put: Callable[[Callable[[], Any]], object]
    if (recorded := recording()) is not None:
        put = recorded.append
    elif get_current_stream().blocked:
        put = get_current_stream().put_call
    else:
        result = call()
        count_call(result, args, kwargs)
        return up(result)
    copies: dict[int, np.ndarray[Any, Any]] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, DeviceArray):
            return copies.setdefault(id(value), value.host.copy())
        return tuple(copied(v) for v in value) if isinstance(value, tuple) else down(value)

    with np.errstate(all="ignore"):
        result = call(copied)  # on copies: only to find the memory of the result
    if not isinstance(result, (np.ndarray, np.generic)):
        put(call)
        return result
    for value in (*args, *kwargs.values()):
        if isinstance(value, DeviceArray) and result is copies.get(id(value)):
            put(call)
            return value
    if any(np.shares_memory(result, copy) for copy in copies.values()):
        return up(call())  # a view is not a device operation
    made = DeviceArray(np.full_like(result, np.nan if np.asarray(result).dtype.kind in "fc" else 0))
    put(lambda: np.copyto(made.host, call()))
    return made


ARITHMETIC = "add sub mul truediv floordiv mod pow matmul neg pos abs"
LOGIC = "invert eq ne gt ge lt le and or xor"
IN_PLACE = "add sub mul truediv floordiv mod pow and or xor"


def _operators() -> None:
    own = [f"__{prefix}{name}__" for name in f"{ARITHMETIC} {LOGIC}".split() for prefix in ("", "r")]
    for name in [*own, *(f"__i{name}__" for name in IN_PLACE.split())]:
        method = getattr(np.ndarray, name, None)
        if method is not None:
            setattr(DeviceArray, name, lambda self, *other, call=method: on_device(call, self, *other))


_operators()


def bound(real: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that binds a call's arguments to the signature of a function of CuPy first."""

    def decorate(own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def call(*args: Any, **kwargs: Any) -> Any:
            check_call(real, len(args), *kwargs)
            return own(*args, **kwargs)

        return call

    return decorate


class Graph:
    """Recorded calls."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self.calls, self.launches = calls, 0

    @bound(cupy.cuda.Graph.launch)
    def launch(self, stream: Any = None) -> None:
        assert recording() is None, "a graph is launched while another is recorded"
        self.launches += 1
        add_count("launch")
        for call in self.calls:
            call()


class Copy:
    """A copy to the host that has been queued: it is made as late as an event allows."""

    def __init__(self, out: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        self._out, self._source, self.done = out, source, False

    def make(self) -> None:
        if not self.done:
            np.copyto(self._out, self._source)
            self.done = True


def recording() -> list[Callable[[], Any]] | None:
    """Return the calls that this thread's current stream records; None if it does not record."""
    return get_current_stream().recorded


def _streams() -> dict[int, Stream]:
    streams: dict[int, Stream] = _thread.__dict__.setdefault("streams", {})
    return streams


def get_current_stream() -> Stream:
    """Return this thread's current stream of its current device."""
    streams, device = _streams(), current_device()
    if device not in streams:
        streams[device] = Stream(null=True)
    return streams[device]


class Stream:
    """A stream of a GPU; the current one is a property of a thread and a GPU."""

    graphs: list[Graph] = []
    _streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()

    @bound(lambda self, null=False, non_blocking=False, ptds=False, priority=None: None)
    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.null, self.non_blocking, self.waits = null, non_blocking, 0
        self.recorded: list[Callable[[], Any]] | None = None
        self.invalid = False
        self.pending: list[Copy] = []
        self.device, self.ptr = current_device(), id(self)
        self._before: list[Stream] = []
        self._work: deque[Callable[[], bool]] = deque()
        self._lock = threading.RLock()
        self.put_so_far = self.done_so_far = 0
        Stream._streams[self.ptr] = self

    @classmethod
    def at(cls, ptr: int) -> Stream:
        """Return the stream with this handle."""
        return cls._streams[ptr]

    def __enter__(self) -> Stream:
        with Device(self.device):
            self._before.append(get_current_stream())
        _streams()[self.device] = self
        return self

    def __exit__(self, *error: object) -> None:
        assert _streams()[self.device] is self
        _streams()[self.device] = self._before.pop()

    def put(self, work: Callable[[], bool]) -> None:
        """Queue work, which returns whether it is done; it is tried until then."""
        with self._lock:
            self._work.append(work)
            self.put_so_far += 1
            self.advance()

    def put_call(self, call: Callable[[], Any]) -> None:
        """Queue a call, which is done when it returns."""
        device = current_device()

        def work() -> bool:
            with Device(device):
                call()
            return True

        self.put(work)

    def advance(self) -> None:
        """Do what can be done, in order."""
        with self._lock:
            while self._work and self._work[0]():
                self._work.popleft()
                self.done_so_far += 1

    @property
    def blocked(self) -> bool:
        """Whether work waits on this stream."""
        if self._work:
            self.advance()
        return bool(self._work)

    def drain(self) -> None:
        """Wait for all work."""
        limit = time.monotonic() + 20
        while self.blocked:
            assert time.monotonic() < limit, "the work of a stream does not end"
            time.sleep(1e-4)

    @bound(cupy.cuda.Stream.wait_event)
    def wait_event(self, event: Event) -> None:
        assert event.stream is not None, "the event has not been recorded"
        event.complete()
        if not event.reached:
            self.put(lambda: event.reached)

    @bound(cupy.cuda.Stream.begin_capture)
    def begin_capture(self, mode: int | None = None) -> None:
        if self.null:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        assert self.non_blocking, "cudaErrorStreamCaptureImplicit: it waits for the legacy stream"
        assert get_current_stream() is self, "calls go to another stream"
        assert self.recorded is None
        self.recorded, self.invalid = [], False

    @bound(cupy.cuda.Stream.end_capture)
    def end_capture(self) -> Graph:
        assert self.recorded is not None
        calls, self.recorded = self.recorded, None
        if self.invalid:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")
        Stream.graphs.append(Graph(calls))
        return Stream.graphs[-1]

    @bound(cupy.cuda.Stream.synchronize)
    def synchronize(self) -> None:
        if self.recorded is not None:
            self.invalid = True
            raise RuntimeError("cudaErrorStreamCaptureUnsupported")
        self.waits += 1
        Event().record(self).complete()
        self.drain()


class Event:
    """An event: it is done when the work before it is, and copies to pinned memory when one waits for it."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.timed, self.time = not disable_timing, 0.0
        self.stream: Stream | None = None
        self._at, self._polled = 0, False
        self._before: list[Copy] = []

    @bound(cupy.cuda.Event.record)
    def record(self, stream: Stream | None = None) -> Event:
        assert recording() is None, "cudaErrorCapturedEvent when it is used outside of the graph"
        self.time = milliseconds()
        self.stream = stream = stream or get_current_stream()
        self._at, self._polled = stream.put_so_far, False
        stream.pending = [copy for copy in stream.pending if not copy.done]
        self._before = list(stream.pending)
        return self

    @property
    def reached(self) -> bool:
        """Whether the stream has done the work before it, except for copies."""
        assert self.stream is not None
        self.stream.advance()
        return self.stream.done_so_far >= self._at

    @property
    def done(self) -> bool:
        if not self._polled:
            self._polled = True
            add_count("event wait")
        return self.reached and all(copy.done for copy in self._before)

    def synchronize(self) -> None:
        """Have the host wait for it."""
        add_count("host wait", not all(copy.done for copy in self._before))
        if self.stream is not None:
            self.stream.drain()
        self.complete()

    def complete(self) -> None:
        for copy in self._before:
            copy.make()


class CUDARuntimeError(RuntimeError):
    pass


@bound(cupy.cuda.get_elapsed_time)
def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return the milliseconds between two events that are done."""
    for event in (start_event, end_event):
        assert event.stream is not None, "cudaErrorInvalidResourceHandle"
        assert event.timed, "cudaErrorInvalidResourceHandle"
        assert event.done, "cudaErrorNotReady"
    return end_event.time - start_event.time


class PinnedMemory:
    """Host memory of its own, outside of CuPy's pool."""

    def __init__(self, size: int) -> None:
        assert size > 0
        add_count("pinned bytes", size)
        self.memory = np.full(size, 255, np.uint8)


def PinnedMemoryPointer(mem: PinnedMemory, offset: int) -> memoryview:
    """Return the memory from an offset on."""
    return mem.memory[offset:].data


class MemoryPool:
    """A pool with a base allocator, which has the limit of the environment unless another is set."""

    @bound(lambda self, allocator=None: None)
    def __init__(self, allocator: Callable[[int], Any] | None = None) -> None:
        self.allocator, self.limit = allocator, -1

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        assert size is not None
        self.limit = size

    @bound(cupy.cuda.MemoryPool.malloc)
    def malloc(self, size: int) -> None:
        raise AssertionError("NumPy allocates here")


def get_allocator() -> Callable[[int], Any]:
    """Return this thread's allocator."""
    own: list[Callable[[int], Any]] = _thread.__dict__.setdefault("allocators", [default_pool.malloc])
    return own[-1]


@contextmanager
def using_allocator(allocator: Callable[[int], Any]) -> Iterator[None]:
    assert callable(allocator)
    get_allocator()
    _thread.allocators.append(allocator)
    yield
    _thread.allocators.pop()


default_pool = MemoryPool()
LIBRARY_CALLS = {"matmul", "dot", "vdot", "inner", "tensordot", "einsum"}
"""Functions that call cuBLAS, beside those of ``linalg``."""
STAGED_CALLS = {"concatenate", "stack"}
"""Functions that send addresses to the GPU through a staging buffer."""


class Function:
    """A function or ufunc of CuPy: the real one judges the arguments, NumPy's computes."""

    def __init__(self, real: Any, numpy: Any) -> None:
        self._real, self._numpy = real, numpy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check_call(self._real, len(args), *kwargs)
        check_recording(self._real)
        if self._real is cupy.linalg.solve:
            check_solve(*args)
        if self._real is cupy.min and kwargs.get("out") is not None:  # CUB is given it as a dtype
            raise TypeError(
                "operand type(s) all returned NotImplemented from __array_ufunc__(<ufunc 'equal'>"
            )
        try:
            return on_device(self._numpy, *args, **kwargs)
        except np.linalg.LinAlgError:
            if cupyx.geterr()["linalg"] == "raise":
                raise
            return DeviceArray(np.full(args[0].shape, np.nan, args[0].dtype))  # garbage

    def at(self, array: DeviceArray, indices: Any, values: Any) -> None:
        """Update items of an array in place; only some dtypes have atomic operations."""
        assert hasattr(self._real, "at"), f"{self._real} has no method at"
        if array.dtype.char not in ATOMIC:
            raise TypeError(f"atomic operations are not supported for {array.dtype}")
        on_device(self._numpy.at, array, indices, values)


def check_recording(real: Any) -> None:
    """Raise as CuPy does if a call cannot be recorded."""
    if recording() is None:
        return
    if real.__name__ in LIBRARY_CALLS or real.__name__ in vars(cupy.linalg):
        library = "cuBLAS" if real.__name__ in LIBRARY_CALLS else "cuSOLVER"
        raise NotImplementedError(f"calling {library} API during stream capture is currently unsupported")
    if real.__name__ in STAGED_CALLS:
        stage(8)


def stage(size: int) -> None:
    """Take a staging buffer, as each copy of host memory does."""
    staging["allocator"](size)
    assert recording() is None, "a copy of host memory is recorded: its staging buffer will be reused"


staging: dict[str, Callable[[int], Any]] = {"allocator": lambda size: None}


def check_solve(a: DeviceArray, b: DeviceArray) -> None:
    """Raise as ``cupy.linalg.solve`` does, which does not broadcast."""
    if b.ndim > 1 and a.shape[:-1] != b.shape[:-1]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K)")


class ElementwiseKernel:
    """A kernel of our own: the real one judges name, parameters and types, the host runs its source."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._real = cupy.ElementwiseKernel(*args, **kwargs)

    def __call__(self, *args: Any, size: int = -1, block_size: int = 128) -> None:
        """Launch it on inputs and outputs; the real one also allocates outputs that are left out."""
        assert len(args) == self._real.nargs, f"{self._real.name} takes {self._real.nargs} arguments"
        assert all(isinstance(out, DeviceArray) for out in args[self._real.nin :])
        on_device(lambda *hosts: host_kernels.run(self._real, hosts, size, block_size), *args)


class FakeModule(types.ModuleType):
    """A module of CuPy with the functions that both it and NumPy have."""

    def __init__(self, real: types.ModuleType, numpy: Any) -> None:
        super().__init__(real.__name__)
        self._real, self._numpy = real, numpy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        real = getattr(self._real, name)
        if isinstance(real, types.ModuleType):
            return FakeModule(real, getattr(self._numpy, name))
        if isinstance(real, type) or not callable(real):
            return getattr(self._numpy, name)
        return Function(real, getattr(self._numpy, name))


class FakeCupy(FakeModule):
    """The module ``cupy`` with so many GPUs, and a stand-in for its streams."""

    def __init__(self, gpus: int = 2) -> None:
        super().__init__(cupy, np)
        self.ElementwiseKernel = ElementwiseKernel
        self.cuda = types.SimpleNamespace(
            Device=Device,
            runtime=types.SimpleNamespace(getDeviceCount=lambda: gpus, CUDARuntimeError=CUDARuntimeError),
            Event=Event,
            Stream=Stream,
            MemoryPool=MemoryPool,
            PinnedMemory=PinnedMemory,
            PinnedMemoryPointer=PinnedMemoryPointer,
            get_allocator=get_allocator,
            get_elapsed_time=get_elapsed_time,
            using_allocator=using_allocator,
            get_current_stream=get_current_stream,
            set_pinned_memory_allocator=self._stage_with,
        )
        self._stage_with(None)

    @staticmethod
    def _stage_with(allocator: Callable[[int], Any] | None = None) -> None:
        staging["allocator"] = allocator or (lambda size: None)

    @staticmethod
    def get_default_memory_pool() -> Any:
        return types.SimpleNamespace(total_bytes=lambda: bytes_made[current_device()])

    @staticmethod
    def get_default_pinned_memory_pool() -> Any:
        return types.SimpleNamespace(malloc=lambda size: None)

    def asarray(self, value: Any, dtype: Any = None, order: Any = "K") -> DeviceArray:
        """Return a device's copy of a host array; ``order`` "K" keeps the order of a Fortran array."""
        if isinstance(value, DeviceArray):
            return value if dtype in (None, value.dtype) else value.astype(dtype)
        stage(np.asarray(value).nbytes)
        add_count("copy to device")
        add_count("allocation")
        return DeviceArray(np.array(value, dtype, order=order))  # type: ignore[call-overload]

    def array(self, value: Any, dtype: Any = None, copy: bool = True, order: Any = "K") -> DeviceArray:
        """Return a copy of a host's or a device's array."""
        made = self.asarray(value, dtype, order)
        return made.copy() if made is value and copy else made
