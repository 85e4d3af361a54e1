"""A fake of CuPy with NCCL, on host memory, for tests without a GPU.

An NCCL call completes when all ranks have reached it on their streams; later work on the stream runs after
it. A call that a rank never makes stays incomplete until it is aborted. Different calls that are matched,
which would hang or corrupt memory on GPUs, are recorded in `clashes`. A call refuses arguments that are not
integers of C, types and operations that NCCL lacks, and memory that is too small or on another GPU than its
communicator's. The ranks of a communicator are threads: of one process with `FakeCupy` and its devices, each
of a process of its own with `FakeGpus`.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import fake_cupy
import numpy as np
from fake_cupy import FakeCupy, Stream, add_count, current_device, memory_at

DTYPES = {1: "i1", 2: "u1", 3: "i4", 4: "u4", 5: "i8", 6: "u8", 7: "f2", 8: "f4", 9: "f8"}
OPS: dict[int, np.ufunc] = {1: np.add, 2: np.multiply, 3: np.maximum, 4: np.minimum}
SECONDS = 20


class NcclError(RuntimeError):
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

    def __init__(self, place: Callable[[], str] = lambda: fake_cupy.Device().pci_bus_id) -> None:
        self.place = place
        for number, name in DTYPES.items():
            size = f"{np.dtype(name).itemsize * 8}"
            kind = {"i": "INT", "u": "UINT", "f": "FLOAT"}[name[0]]
            setattr(self, f"NCCL_{kind}{size}", number)
        self._ids = itertools.count(1)
        self._lock = threading.RLock()
        self._worlds: dict[bytes, World] = {}
        self._meetings: dict[tuple[bytes, int], Meeting] = {}
        self.communicators: list[Communicator] = []
        self.clashes: list[str] = []
        self.calls = 0
        self.NcclCommunicator = lambda size, name, rank: Communicator(self, size, name, rank)

    def get_unique_id(self) -> bytes:
        return next(self._ids).to_bytes(128, "little")

    def groupStart(self) -> None:
        pass

    def groupEnd(self) -> None:
        pass

    def enter(self, name: bytes, size: int, rank: int) -> World:
        """Connect a rank; return when all have."""
        with self._lock:
            world = self._worlds.setdefault(name, World(size))
            world.places[rank] = self.place()
        world.all_here.wait()
        if len(set(world.places.values())) < size:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: duplicate GPU detected")
        return world

    def release(self) -> None:
        """End the threads that wait for ranks which never come."""
        for world in self._worlds.values():
            world.all_here.abort()

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


class World:
    """The ranks of a communicator: the GPU of each, and whether all have come and gone."""

    def __init__(self, size: int) -> None:
        self.places: dict[int, str] = {}
        self.all_here = threading.Barrier(size, timeout=SECONDS)
        self.all_gone = threading.Barrier(size, timeout=SECONDS)


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
        self._device = current_device()
        self._world = nccl.enter(name, size, rank)
        nccl.communicators.append(self)

    def _put(
        self, what: str, count: int, kind: int, op: int, root: int, sent: int, taken: int, stream: int
    ) -> None:
        """Queue a call, if it is one that NCCL accepts."""
        gone = self.aborted or self.destroyed
        assert not gone, "the communicator is gone"
        for number in (count, kind, op, root, sent, taken, stream):
            if isinstance(number, bool) or operator.index(number) < 0:
                raise TypeError(f"{what}: {number!r} is not a size, a number or an address")
        if kind not in DTYPES or op not in (0, *OPS) or not root < self._size:
            raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: {what} of type {kind}, op {op}, root {root}")
        queue = Stream.at(stream)
        if queue.device != self._device:
            raise NcclError(
                f"{what} on a stream of GPU {queue.device}, the communicator is on {self._device}"
            )
        one = count * np.dtype(DTYPES[kind]).itemsize
        self._check(what, sent, one * self._size if what == "reduceScatter" else one)
        if what != "reduce" or self._rank == root:
            self._check(what, taken, one * self._size if what == "allGather" else one)
        number, call = self._calls, (what, count, kind, op, root, sent, taken)
        self._calls += 1
        add_count("launch")
        queue.put(lambda: self.aborted or self._nccl.meet(self._name, number, self._size, self._rank, call))

    def _check(self, what: str, address: int, nbytes: int) -> None:
        device, room = memory_at(address)
        if device != self._device:
            raise NcclError(f"{what}: memory of GPU {device}, the communicator is on {self._device}")
        assert room >= nbytes, f"{what} of {nbytes} bytes, the array has {room}"

    def allReduce(self, given: int, taken: int, count: int, kind: int, op: int, stream: int) -> None:
        self._put("allReduce", count, kind, op, 0, given, taken, stream)

    def reduceScatter(self, given: int, taken: int, count: int, kind: int, op: int, stream: int) -> None:
        self._put("reduceScatter", count, kind, op, 0, given, taken, stream)

    def reduce(self, given: int, taken: int, count: int, kind: int, op: int, root: int, stream: int) -> None:
        self._put("reduce", count, kind, op, root, given, taken, stream)

    def allGather(self, given: int, taken: int, count: int, kind: int, stream: int) -> None:
        self._put("allGather", count, kind, 0, 0, given, taken, stream)

    def broadcast(self, given: int, taken: int, count: int, kind: int, root: int, stream: int) -> None:
        self._put("broadcast", count, kind, 0, root, given, taken, stream)

    def check_async_error(self) -> None:
        if self._nccl.clashes:
            raise NcclError("NCCL_ERROR_INTERNAL_ERROR")

    def abort(self) -> None:
        self.aborted = True  # the ranks' streams advance when their events are polled
        self._world.all_gone.abort()

    def destroy(self) -> None:
        """Wait for the ranks of this host, which have to destroy theirs too."""
        with suppress(threading.BrokenBarrierError):
            self._world.all_gone.wait()
        self.destroyed = True


_here = threading.local()


class Device(fake_cupy.Device):
    """A device; each thread has its own PCI bus id."""

    @property
    def pci_bus_id(self) -> str:
        return getattr(_here, "place", None) or f"0000:{threading.get_ident():x}"


class FakeGpus(FakeCupy):
    """The fake of `cupy`, with one GPU for each thread, which stands for a process.

    ``nccl`` stands in for the module `cupy.cuda.nccl`, which `cupy.cuda` lacks until it is imported.
    """

    def __init__(self) -> None:
        super().__init__()
        self.devices, self.nccl = 1, FakeNccl(lambda: Device().pci_bus_id)
        self.cuda.Device, self.cuda.runtime.getDeviceCount = Device, lambda: self.devices
