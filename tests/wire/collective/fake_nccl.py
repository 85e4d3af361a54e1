"""A fake of CuPy with NCCL, on host memory, for tests without a GPU.

Each thread is a rank with a GPU and a stream of queued work. An NCCL call completes when all ranks have
reached it on their streams; later work on the stream runs after it. A call that a rank never makes stays
incomplete until it is aborted. Different calls that are matched, which would hang or corrupt memory on GPUs,
are recorded in `clashes`.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import fake_cupy
import numpy as np
from fake_cupy import DeviceArray, FakeCupy

DTYPES = {1: "i1", 2: "u1", 3: "i4", 4: "u4", 5: "i8", 6: "u8", 7: "f2", 8: "f4", 9: "f8"}
OPS: dict[int, np.ufunc] = {1: np.add, 2: np.multiply, 3: np.maximum, 4: np.minimum}


class GpuArray(DeviceArray):
    """An array on a GPU, with the attributes that NCCL needs; assignments run in stream order."""

    __module__ = "cupy"  # as in CuPy's own arrays

    nbytes = property(lambda self: self.host.nbytes)
    flags = property(lambda self: types.SimpleNamespace(c_contiguous=self.host.flags.c_contiguous))
    data = property(lambda self: types.SimpleNamespace(ptr=self.host.ctypes.data))
    T = property(lambda self: GpuArray(self.host.T))

    def __reduce__(self) -> Any:
        return GpuArray, (self.host,)

    def __setitem__(self, key: Any, value: Any) -> None:
        def assign() -> bool:
            self.host[key] = value.host if isinstance(value, DeviceArray) else value
            return True

        stream().put(assign)


class Queue:
    """A stream: executes its work in order, until an item that cannot complete yet."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], bool]] = deque()
        self.put_so_far = self.done_so_far = 0
        self.ptr = id(self)

    def put(self, work: Callable[[], bool]) -> None:
        self._waiting.append(work)
        self.put_so_far += 1
        self.advance()

    def advance(self) -> None:
        while self._waiting and self._waiting[0]():
            self._waiting.popleft()
            self.done_so_far += 1


_here = threading.local()


def stream() -> Queue:
    if not hasattr(_here, "stream"):
        _here.stream = Queue()
    queue: Queue = _here.stream
    return queue


class Event:
    def __init__(self, disable_timing: bool = False) -> None:
        self._stream, self._at = stream(), 0

    def record(self, queue: Queue) -> None:
        self._stream, self._at = queue, queue.put_so_far

    @property
    def done(self) -> bool:
        self._stream.advance()
        return self._stream.done_so_far >= self._at


class Device(fake_cupy.Device):
    """A device; each thread has its own PCI bus id."""

    @property
    def pci_bus_id(self) -> str:
        return getattr(_here, "place", None) or f"0000:{threading.get_ident():x}"


class NcclError(RuntimeError):
    pass


class CUDARuntimeError(RuntimeError):
    pass


class Meeting:
    """One NCCL call of all ranks."""

    def __init__(self, size: int) -> None:
        self.here: dict[int, tuple[Any, ...]] = {}
        self.size, self.done = size, False


class FakeNccl:
    """The fake of `cupy.cuda.nccl`."""

    available = True
    NcclError = NcclError
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = OPS

    def __init__(self) -> None:
        for number, name in DTYPES.items():
            size = f"{np.dtype(name).itemsize * 8}"
            kind = {"i": "INT", "u": "UINT", "f": "FLOAT"}[name[0]]
            setattr(self, f"NCCL_{kind}{size}", number)
        self._ids = itertools.count(1)
        self._lock = threading.RLock()
        self._worlds: dict[bytes, threading.Barrier] = {}
        self._meetings: dict[tuple[bytes, int], Meeting] = {}
        self.clashes: list[str] = []
        self.calls = 0
        self.NcclCommunicator = lambda size, name, rank: Communicator(self, size, name, rank)

    def get_unique_id(self) -> bytes:
        return next(self._ids).to_bytes(128, "little")

    def groupStart(self) -> None:
        pass

    def groupEnd(self) -> None:
        pass

    def enter(self, name: bytes, size: int) -> None:
        with self._lock:
            barrier = self._worlds.setdefault(name, threading.Barrier(size, timeout=20))
        barrier.wait()

    def meet(self, name: bytes, number: int, size: int, rank: int, call: tuple[Any, ...]) -> bool:
        """Join a call; return whether it is complete."""
        with self._lock:
            meeting = self._meetings.setdefault((name, number), Meeting(size))
            meeting.here[rank] = call
            if len(meeting.here) == size and not meeting.done:
                meeting.done = True
                self.calls += 1
                calls = [meeting.here[other] for other in range(size)]
                if len({one[:-2] for one in calls}) > 1:
                    self.clashes.append(f"{[one[:-2] for one in calls]}")
                else:
                    perform(calls)
            return meeting.done


def perform(calls: list[tuple[Any, ...]]) -> None:
    """Move values as NCCL would; a call is (what, count, type, op, root, source, destination)."""
    what, count, kind, op, root = calls[0][:-2]
    size, dtype = len(calls), np.dtype(DTYPES[kind])

    def at(place: int, items: int = count) -> np.ndarray[Any, Any]:
        raw = (ctypes.c_char * (items * dtype.itemsize)).from_address(place)
        return np.frombuffer(raw, dtype)

    if what == "broadcast":
        values = [at(calls[root][-2]).copy()] * size
    elif what == "allGather":
        values = [np.concatenate([at(call[-2]) for call in calls])] * size
    elif what == "reduceScatter":
        total = OPS[op].reduce([at(call[-2], count * size) for call in calls], dtype=dtype)
        values = list(total.reshape(size, -1))
    else:
        values = [OPS[op].reduce([at(call[-2]) for call in calls], dtype=dtype)] * size
    for rank, (call, value) in enumerate(zip(calls, values)):
        if what != "reduce" or rank == root:
            np.copyto(at(call[-1], value.size), value)


class Communicator:
    """One rank's communicator."""

    def __init__(self, nccl: FakeNccl, size: int, name: bytes, rank: int) -> None:
        if type(name) is not bytes or len(name) != 128:
            raise TypeError(f"Argument 'commId' has incorrect type or length: {type(name).__name__}")
        self._nccl, self._size, self._rank, self._name = nccl, size, rank, name
        self._calls, self.aborted, self.destroyed = 0, False, False
        nccl.enter(self._name, size)

    def _put(self, *call: Any) -> None:
        number = self._calls
        self._calls += 1
        stream().put(
            lambda: self.aborted or self._nccl.meet(self._name, number, self._size, self._rank, call)
        )

    def allReduce(self, given: int, taken: int, count: int, kind: int, op: int, stream: int) -> None:
        self._put("allReduce", count, kind, op, 0, given, taken)

    def reduceScatter(self, given: int, taken: int, count: int, kind: int, op: int, stream: int) -> None:
        self._put("reduceScatter", count, kind, op, 0, given, taken)

    def reduce(self, given: int, taken: int, count: int, kind: int, op: int, root: int, stream: int) -> None:
        self._put("reduce", count, kind, op, root, given, taken)

    def allGather(self, given: int, taken: int, count: int, kind: int, stream: int) -> None:
        self._put("allGather", count, kind, 0, 0, given, taken)

    def broadcast(self, given: int, taken: int, count: int, kind: int, root: int, stream: int) -> None:
        self._put("broadcast", count, kind, 0, root, given, taken)

    def check_async_error(self) -> None:
        if self._nccl.clashes:
            raise NcclError("NCCL_ERROR_INTERNAL_ERROR")

    def abort(self) -> None:
        self.aborted = True  # the ranks' streams advance when their events are polled

    def destroy(self) -> None:
        self.destroyed = True


class FakeGpus(FakeCupy):
    """The fake of `cupy`, with one GPU for each thread.

    ``nccl`` stands in for the module `cupy.cuda.nccl`, which `cupy.cuda` lacks until it is imported.
    """

    def __init__(self) -> None:
        super().__init__()
        self.devices, self.nccl = 1, FakeNccl()
        self.cuda = types.SimpleNamespace(
            Device=Device,
            Event=Event,
            get_current_stream=stream,
            runtime=types.SimpleNamespace(
                getDeviceCount=lambda: self.devices, CUDARuntimeError=CUDARuntimeError
            ),
        )

    def asarray(self, value: Any, dtype: Any = None, order: Any = "K") -> DeviceArray:
        return value if isinstance(value, GpuArray) else GpuArray(np.array(value, dtype, order=order))

    def __getattr__(self, name: str) -> Any:
        if name == "empty":
            return lambda shape, dtype: GpuArray(np.empty(shape, dtype))
        if name == "ascontiguousarray":
            return lambda v, dtype=None: GpuArray(np.ascontiguousarray(v.host, dtype))
        if name == "true_divide":
            return divide_in_order
        return super().__getattr__(name)


def divide_in_order(one: GpuArray, other: Any, out: GpuArray) -> GpuArray:
    def divide() -> bool:
        np.true_divide(one.host, other, out=out.host)
        return True

    stream().put(divide)
    return out
