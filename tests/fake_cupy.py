"""A fake CuPy on NumPy: its arrays refuse host arrays as operands, and its streams record calls.

A recording stream records calls without executing them; a launch of the graph executes them, on the same
memory. The host cannot read arrays during the recording.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class DeviceArray:
    """Holds an array as a GPU would: NumPy cannot touch it, and it takes no host array as an operand."""

    __array_priority__ = 100

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.host = host

    shape = property(lambda self: self.host.shape)
    dtype = property(lambda self: self.host.dtype)
    size = property(lambda self: self.host.size)
    ndim = property(lambda self: self.host.ndim)
    T = property(lambda self: DeviceArray(self.host.T))

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, key: Any) -> DeviceArray:
        return on_device(lambda a, k: np.asarray(a[k]), self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        on_device(_set, self, key, value)

    def __float__(self) -> float:
        return float(self.get())

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed; use .get()")

    def get(self) -> np.ndarray[Any, Any]:
        if Stream.recording is not None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported")
        return self.host.copy()

    def view(self, dtype: Any) -> DeviceArray:
        return DeviceArray(self.host.view(dtype))

    def reshape(self, *shape: Any) -> DeviceArray:
        return on_device(lambda a: a.reshape(*shape), self)

    def astype(self, dtype: Any) -> DeviceArray:
        return on_device(lambda a: a.astype(dtype), self)

    def fill(self, value: Any) -> None:
        on_device(lambda a: a.fill(value), self)

    def __bool__(self) -> bool:
        return bool(self.get())

    def min(self) -> DeviceArray:
        return on_device(np.min, self)

    def max(self) -> DeviceArray:
        return on_device(np.max, self)

    def all(self) -> DeviceArray:
        return on_device(np.all, self)


def _set(array: np.ndarray[Any, Any], key: Any, value: Any) -> None:
    array[key] = value


def down(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, tuple):
        return tuple(down(v) for v in value)
    return value


def up(value: Any) -> Any:
    return DeviceArray(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def on_device(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a NumPy function on device arrays, now or when the graph is launched that is being recorded."""

    def call(convert: Callable[[Any], Any] = down) -> Any:
        return function(*map(convert, args), **{name: convert(v) for name, v in kwargs.items()})

    if Stream.recording is None:
        return up(call())
    copies: dict[int, np.ndarray[Any, Any]] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, DeviceArray):
            return copies.setdefault(id(value), value.host.copy())
        return tuple(copied(v) for v in value) if isinstance(value, tuple) else down(value)

    result = call(copied)  # on copies: only to find the memory of the result
    if not isinstance(result, (np.ndarray, np.generic)):
        Stream.recording.append(call)
        return result
    for value in (*args, *kwargs.values()):
        if isinstance(value, DeviceArray) and result is copies.get(id(value)):
            Stream.recording.append(call)
            return value
    if any(np.shares_memory(result, copy) for copy in copies.values()):
        return up(call())  # a view is not a device operation
    made = DeviceArray(np.empty_like(np.asarray(result)))
    Stream.recording.append(lambda: np.copyto(made.host, call()))
    return made


def _operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "neg", "eq", "gt", "ge", "lt", "le", "and"):
        for own in (f"__{name}__", f"__r{name}__"):
            if hasattr(np.ndarray, own):
                method = getattr(np.ndarray, own)
                setattr(DeviceArray, own, lambda self, *other, call=method: on_device(call, self, *other))


_operators()


class Graph:
    """Recorded calls."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self.calls, self.launches = calls, 0

    def launch(self, stream: Any = None) -> None:
        self.launches += 1
        for call in self.calls:
            call()


class Stream:
    """A stream; the recording is a state of the process, which has one thread."""

    recording: list[Callable[[], Any]] | None = None
    graphs: list[Graph] = []

    def __init__(self, non_blocking: bool = False) -> None:
        self.non_blocking, self.current = non_blocking, False

    def __enter__(self) -> Stream:
        self.current = True
        return self

    def __exit__(self, *error: object) -> None:
        self.current = False

    def begin_capture(self) -> None:
        assert self.non_blocking, "cannot capture on the default (legacy) stream"
        assert self.current
        assert Stream.recording is None
        Stream.recording = []

    def end_capture(self) -> Graph:
        assert Stream.recording is not None
        Stream.graphs.append(Graph(Stream.recording))
        Stream.recording = None
        return Stream.graphs[-1]

    def synchronize(self) -> None:
        assert Stream.recording is None, "cudaErrorStreamCaptureUnsupported"


class MemoryPool:
    def malloc(self, size: int) -> None:
        raise AssertionError("NumPy allocates here")


@contextmanager
def using_allocator(allocator: Callable[[int], Any]) -> Iterator[None]:
    assert callable(allocator)
    yield


class FakeCupy(types.ModuleType):
    def __init__(self) -> None:
        super().__init__("cupy")
        default = Stream()
        self.cuda = types.SimpleNamespace(
            Stream=Stream,
            MemoryPool=MemoryPool,
            using_allocator=using_allocator,
            get_current_stream=lambda: default,
        )

    def __getattr__(self, name: str) -> Any:
        if name == "asarray":
            return lambda v, dtype=None: v if isinstance(v, DeviceArray) else DeviceArray(np.array(v, dtype))
        if name.startswith("__"):
            raise AttributeError(name)
        function = getattr(np, name)
        return lambda *args, **kwargs: on_device(function, *args, **kwargs)
