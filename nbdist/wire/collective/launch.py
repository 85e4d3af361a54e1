"""One collective call on a GPU's stream: what of it NCCL does, and how.

    launch = Launch(gpu, communicator, rank)
    done, in_use = launch(call, x, out)         # keep what is in use until done() is true

A value that NCCL has no type for travels as one that it has: a boolean as a byte (or is a maximum, and is a
minimum), a complex number as two real ones, where parts may be added up apart, and what is only copied as
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbdist.wire.collective.calls import REDUCING, Call
from nbdist.wire.collective.gpus import Gpu

TYPES = {
    "i1": "NCCL_INT8",
    "u1": "NCCL_UINT8",
    "i4": "NCCL_INT32",
    "u4": "NCCL_UINT32",
    "i8": "NCCL_INT64",
    "u8": "NCCL_UINT64",
    "f2": "NCCL_FLOAT16",
    "f4": "NCCL_FLOAT32",
    "f8": "NCCL_FLOAT64",
}
OPS = {
    "sum": "NCCL_SUM",
    "mean": "NCCL_SUM",
    "min": "NCCL_MIN",
    "max": "NCCL_MAX",
    "product": "NCCL_PROD",
}
BOOLEAN_OPS = {"sum": "NCCL_MAX", "max": "NCCL_MAX", "product": "NCCL_MIN", "min": "NCCL_MIN"}


@dataclass(frozen=True)
class Travel:
    """How items go through NCCL: as `each` of its `type` for one of ours, combined by `op`."""

    type: str
    each: int
    op: str = ""


def travels(call: Call) -> Travel | None:
    """Return how a call's items go through NCCL, None if they cannot."""
    work = call.work
    if call.what not in REDUCING:
        return Travel("NCCL_UINT8", work.itemsize)
    if work.kind == "b":
        return Travel("NCCL_UINT8", 1, BOOLEAN_OPS[call.op])
    if work.kind == "c" and call.op in ("sum", "mean"):
        part = TYPES.get(f"f{work.itemsize // 2}")
        return Travel(part, 2, "NCCL_SUM") if part else None
    kind = TYPES.get(work.str[1:])
    return Travel(kind, 1, OPS[call.op]) if kind else None


class Launch:
    """Puts calls on the current stream of a GPU."""

    def __init__(self, gpu: Gpu, communicator: Any, rank: int) -> None:
        self._cupy, self._nccl, self._number = gpu.cupy, gpu.nccl, gpu.number
        self._communicator, self._rank = communicator, rank

    def __call__(self, call: Call, x: Any, out: Any) -> tuple[Callable[[], bool], Any]:
        """Begin a call; return whether it is done, as a function, and what must stay until then."""
        cupy = self._cupy
        with cupy.cuda.Device(self._number):  # of this thread, which may have another
            stream = cupy.cuda.get_current_stream()
            given = cupy.ascontiguousarray(x, call.work)
            taken = out if _fits(call, given, out) else cupy.empty(out.shape, call.work)
            if call.count:
                self._send(call, given, taken, stream.ptr)
            if call.op == "mean":
                cupy.true_divide(taken, call.size, out=taken)
            if taken is not out:
                out[...] = taken
            event = cupy.cuda.Event(disable_timing=True)
            event.record(stream)
        return lambda: bool(event.done), (given, taken)

    def _send(self, call: Call, given: Any, taken: Any, stream: int) -> None:
        travel = travels(call)
        assert travel is not None
        there, comm = taken.data.ptr, self._communicator
        kind = getattr(self._nccl, travel.type)
        op = getattr(self._nccl, travel.op) if travel.op else 0
        count = call.count * travel.each
        if call.what == "all_reduce":
            comm.allReduce(given.data.ptr, there, count, kind, op, stream)
        elif call.what == "all_gather":
            comm.allGather(given.data.ptr, there, count, kind, stream)
        elif call.what == "broadcast":
            comm.broadcast(given.data.ptr, there, count, kind, call.root, stream)
        elif call.shape[0] % call.size == 0:
            comm.reduceScatter(given.data.ptr, there, count // call.size, kind, op, stream)
        else:
            self._reduce_to_each(call, given, there, travel.each, kind, op, stream)

    def _reduce_to_each(
        self, call: Call, given: Any, there: int, each: int, kind: int, op: int, stream: int
    ) -> None:
        """Reduce every rank's rows to it, at once; NCCL's own reduce-scatter gives all the same number."""
        self._nccl.groupStart()
        try:
            for root, (low, high) in enumerate(call.shares(1)):
                if low < high:
                    own = there if root == self._rank else 0
                    self._communicator.reduce(
                        given.data.ptr + low * call.work.itemsize,
                        own,
                        (high - low) * each,
                        kind,
                        op,
                        root,
                        stream,
                    )
        finally:
            self._nccl.groupEnd()


def _fits(call: Call, given: Any, out: Any) -> bool:
    """Whether NCCL may write straight to `out`: it is a row of the right items, and not partly the input."""
    if not out.flags.c_contiguous or out.dtype != call.work:
        return False
    begin, there = given.data.ptr, out.data.ptr
    if call.what == "all_reduce" and begin == there:
        return True
    apart: bool = begin + given.nbytes <= there or there + out.nbytes <= begin
    return apart
