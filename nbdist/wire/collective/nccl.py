"""Collectives of ranks that have a GPU each: NCCL moves CuPy arrays, a control group does the rest.

    group = form(member, exchange, "nccl")      # or "auto", where every rank has a GPU of its own
    group.all_reduce(gradient, out=gradient)    # on the current stream; returns when the result is there

The control group (shared memory or sockets) carries NumPy arrays, barriers, and what NCCL cannot add up:
int16, uint16, and products, minima and maxima of complex numbers; those go through the host. Its ranks notice
who died. A call that is expected (`agreement.CallHistory`) costs no message; another is agreed on first. NCCL
combines ranks in an order of its own; its minimum and maximum may pass over NaNs.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MissingExtra,
    NbdistError,
    UnavailableError,
)
from nbdist.wire.collective.base import AbortCheck, Collective, Endpoint, GroupBroken, GroupFailure, Member
from nbdist.wire.collective.call import REDUCING, CollectiveCall, check_out, compare, is_on_device
from nbdist.wire.rpc.frame import Array

SPINS = 2000  # looks at an event before it is left to the scheduler
NAP_SECONDS = 50e-6
LOOK_SECONDS = 0.02  # between two looks at the other ranks
GRACE_SECONDS = 1.0  # for a call to be done after a rank was seen to have left
UNIQUE_ID_BYTES = 128
INTERFACE = "NCCL_SOCKET_IFNAME"
LOOPBACK = "=lo"
_chosen: list[str] = []  # the interface that this process has set, if any


class NcclCollective(Collective):
    """A rank of a group whose ranks have a GPU each."""

    kind = "nccl"
    over_network = True

    def __init__(self, member: Member, control: Collective, gpu: CupyDevice) -> None:
        super().__init__(member.rank, member.labels, member.check)
        self._hosts, self._bind = member.hosts, member.bind
        self._control, self._gpu = control, gpu
        control.parent = self
        self.notes += control.notes
        self._timeout = member.timeout
        self._deadline: float | None = None
        self._history = CallHistory()
        self._communicator: Any = None
        self._launch: Launch | None = None

    def check(self) -> None:
        """Raise the reason if the group is broken, or a rank is seen to have died."""
        super().check()
        self._control.check()

    def _on_device(self, call: CollectiveCall, x: Any, out: Any) -> Array:
        if nccl_format(call) is None:
            return super()._on_device(call, x, out)
        check_out(call, out, self.rank)
        for one in (x, out):
            if one is not None and one.device.id != self._gpu.number:
                raise InvalidArgumentError(
                    f"{call.text} of an array on GPU {one.device.id}; {self._me} formed its group on GPU "
                    f"{self._gpu.number}"
                )
        if out is None:
            out = self._gpu.cupy.empty(call.out_shape(self.rank), call.result)
        return self._run(call, x, out)

    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        self._deadline = None if self._timeout is None else time.monotonic() + self._timeout
        try:
            if is_on_device(x):
                self._perform_there(call, x, out)
            else:
                self._agree(call.text)
                self._history.note(call.digest)
                if call.what != "barrier":  # which it was
                    self._control._run(call, x, out)
        except BaseException as error:
            self._drop()
            if isinstance(error, self._gpu.nccl.NcclError):
                what = f"NCCL failed on {self._me} in {self.doing}: {error}"
                raise GroupBroken(GroupFailure("UnavailableError", what)) from error
            if isinstance(error, NbdistError):
                raise GroupBroken(GroupFailure(type(error).__name__, str(error))) from None
            raise

    def _perform_there(self, call: CollectiveCall, x: Any, out: Any) -> None:
        text, digest = f"{call.text} on GPUs", -call.digest
        if not self._history.expects(digest):
            self._agree(text)
        self._history.note(digest)
        if self._launch is None:
            self._connect()
            self._launch = Launch(self._gpu, self._communicator, self.rank)
        done, _in_use = self._launch(call, x, out)
        for _ in range(SPINS):
            if done():
                return
        looked = time.monotonic()
        alone_at = float("inf")
        while not done():
            time.sleep(NAP_SECONDS)
            now = time.monotonic()
            if now - looked >= LOOK_SECONDS:
                looked = now
                self._communicator.check_async_error()
                self._look(now)
                seen = self._control.peek()
                if seen == "left":  # after this call, perhaps, which then is done here in a moment
                    alone_at = min(alone_at, now + GRACE_SECONDS)
                if seen == "waits" or now >= alone_at:
                    self._ask(text)

    def _agree(self, text: str) -> None:
        """Return when all ranks are in this very call."""
        while not self._ask(text):
            pass

    def _ask(self, text: str) -> bool:
        """Exchange what call each rank is in; return False if one is still in the call before."""
        together, failure = verdict(self._control.all_gather(to_record(self.sequence, text)), self.labels)
        if failure:
            raise GroupBroken(GroupFailure("InvalidArgumentError", failure))
        return together

    def _look(self, now: float) -> None:
        """Raise why there is no point in waiting, if so."""
        self._control.check()
        self.abort_check()
        if self._failure is not None:
            raise GroupBroken(self._failure)
        if self._deadline is not None and now >= self._deadline:
            raise GroupBroken(
                GroupFailure(
                    "DeadlineExceededError", f"other ranks did not come to {self._me} in time: {self.doing}"
                )
            )

    def _connect(self) -> None:
        """Make the communicator, at the first call that needs it; all ranks are there."""
        cupy, nccl = self._gpu.cupy, self._gpu.nccl
        choose_interface(self._hosts, self._bind)
        made: list[Any] = []
        secret = np.array(nccl.get_unique_id() if self.rank == 0 else [0] * UNIQUE_ID_BYTES, np.int8)
        name = tuple(self._control.broadcast(secret, 0).tolist())

        def connect() -> None:
            try:
                cupy.cuda.Device(self._gpu.number).use()
                made.append(nccl.NcclCommunicator(self.size, name, self.rank))
            except BaseException as error:
                made.append(error)

        # A thread, as this waits for all ranks and cannot be told that one has died.
        thread = threading.Thread(target=connect, name="nbdist nccl", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            self._look(time.monotonic())
        if isinstance(made[0], BaseException):
            raise made[0]
        self._communicator = made[0]

    def _drop(self) -> None:
        """End what still runs on the GPU; in this rank's own thread, lest another is in a call to NCCL."""
        if self._communicator is not None:
            self._communicator.abort()
            self._communicator = self._launch = None

    def _announce_failure(self, failure: GroupFailure) -> None:
        self._control.break_with(failure)

    def _leave(self) -> None:
        """The control group says it as it is closed."""

    def _release(self) -> None:
        if self._communicator is not None:
            self._communicator.destroy()
            self._communicator = self._launch = None
        self._control.close()


class NcclEndpoint(Endpoint):
    """A rank's GPU and its endpoint in the control group, which `sit` makes.

    Where not every rank has a GPU of its own the control group is the group, unless NCCL is `needed`. Raises
    MissingExtra without CuPy, UnavailableError without its NCCL or without a GPU.
    """

    def __init__(self, member: Member, sit: Callable[[Member], Endpoint], needed: bool = True) -> None:
        self._gpu, self._needed = gpu_here(), needed
        self._member = replace(member, check=AbortCheck.of(member.check))
        self._control = sit(self._member)

    @property
    def info(self) -> dict[str, Any]:
        """That of the endpoint in the control group, and which GPU it is."""
        return {**self._control.info, "gpu": self._gpu.place}

    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Meet the others; NCCL itself is set up at the first call that needs it."""
        failure = not_one_each(self._member, infos)
        if failure and self._needed:
            self.close()
            raise UnavailableError(f"no collective 'nccl': {failure}")
        control = self._control.join(infos, timeout)
        return control if failure else NcclCollective(self._member, control, self._gpu)

    def close(self) -> None:
        """Give up the endpoint in the control group."""
        self._control.close()


def choose_interface(hosts: Sequence[str], bind: str) -> None:
    """Set the network interface of NCCL: the loopback on one host, else the one with the address ``bind``.

    NCCL would listen on every interface that it finds, without authentication. It reads NCCL_SOCKET_IFNAME
    once, at the first communicator of a process; a value that the user has set stays. Raises
    FailedPreconditionError if the first group was of one host and this one is of several.
    """
    set_already = os.environ.get(INTERFACE)
    if set_already is not None and _chosen != [set_already]:
        return
    alone = len(set(hosts)) == 1
    if alone and _chosen:
        return
    wanted = LOOPBACK if alone else f"={interface_of(bind)}"
    if _chosen and _chosen != [wanted]:
        raise FailedPreconditionError(
            f"NCCL of this process uses {_chosen[0][1:]}, as its first group did, and this group of "
            f"{len(set(hosts))} hosts needs {wanted[1:]}; set {INTERFACE} to the network's interface before "
            "the workers start"
        )
    os.environ[INTERFACE] = wanted
    _chosen[:] = [wanted]


def interface_of(address: str) -> str:
    """Return the name of the interface of this host that has an address; UnavailableError if none has."""
    import psutil

    try:
        own = {str(entry[4][0]) for entry in socket.getaddrinfo(address, None)}
    except OSError:
        own = {address}
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] in own for entry in entries):
            return name
    raise UnavailableError(
        f"no interface of this host has the address {address}, which NCCL is to use; set {INTERFACE}"
    )


def gpu_here() -> CupyDevice:
    """Return this thread's current GPU; raise MissingExtra or UnavailableError if it cannot use NCCL."""
    cupy = _cupy()
    nccl = getattr(cupy.cuda, "nccl", None)
    if not getattr(nccl, "available", False):
        raise UnavailableError(
            "CuPy finds no NCCL; install the package of NCCL that goes with its CUDA version"
        )
    try:
        seen = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UnavailableError(f"CuPy finds no GPU: {error}") from error
    if not seen:
        raise UnavailableError("CuPy finds no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES")
    device = cupy.cuda.Device()
    return CupyDevice(cupy, nccl, device.id, device.pci_bus_id)


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingExtra("gpu", "NCCL") from error
    return cupy


# One collective call on a GPU's stream, in the terms of NCCL.
#
#     launch = Launch(gpu, communicator, rank)
#     done, in_use = launch(call, x, out)         # keep what is in use until done() is true
#
# A value that NCCL has no type for travels as one that it has: a boolean as a byte (or is a maximum, and is a
# minimum), a complex number as two real ones, where parts may be added up apart, and what is only copied as
# bytes.

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
class NcclFormat:
    """How items go through NCCL: as `each` of its `type` for one of ours, combined by `op`."""

    type: str
    each: int
    op: str = ""


def nccl_format(call: CollectiveCall) -> NcclFormat | None:
    """Return how a call's items go through NCCL, None if they cannot."""
    work = call.work
    if call.what not in REDUCING:
        return NcclFormat("NCCL_UINT8", work.itemsize)
    if work.kind == "b":
        return NcclFormat("NCCL_UINT8", 1, BOOLEAN_OPS[call.op])
    if work.kind == "c" and call.op in ("sum", "mean"):
        part = TYPES.get(f"f{work.itemsize // 2}")
        return NcclFormat(part, 2, "NCCL_SUM") if part else None
    kind = TYPES.get(work.str[1:])
    return NcclFormat(kind, 1, OPS[call.op]) if kind else None


class Launch:
    """Puts calls on the current stream of a GPU."""

    def __init__(self, gpu: CupyDevice, communicator: Any, rank: int) -> None:
        self._cupy, self._nccl, self._number = gpu.cupy, gpu.nccl, gpu.number
        self._communicator, self._rank = communicator, rank

    def __call__(self, call: CollectiveCall, x: Any, out: Any) -> tuple[Callable[[], bool], Any]:
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

    def _send(self, call: CollectiveCall, given: Any, taken: Any, stream: int) -> None:
        travel = nccl_format(call)
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
        self, call: CollectiveCall, given: Any, there: int, each: int, kind: int, op: int, stream: int
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


def _fits(call: CollectiveCall, given: Any, out: Any) -> bool:
    """Whether NCCL may write straight to `out`: it is a row of the right items, and not partly the input."""
    if not out.flags.c_contiguous or out.dtype != call.work:
        return False
    begin, there = given.data.ptr, out.data.ptr
    if call.what == "all_reduce" and begin == there:
        return True
    apart: bool = begin + given.nbytes <= there or there + out.nbytes <= begin
    return apart


# The history of calls that all ranks have agreed on and need not compare again. Pure.
#
#     history = CallHistory()
#     if not history.expects(call):       # the same answer on every rank, as all have made the same calls
#         ...compare the calls of all ranks, once all are there...
#     history.note(call)
#
# A rank that makes the call that is expected goes ahead. One that makes another asks the others first and
# moves nothing; those that went ahead cannot finish without it, find it asking, and answer. So no value
# moves on which not all agree, and a training step that makes the calls of the step before asks nobody.

REMEMBERED = 16  # calls before one, by which it is expected: more than a step has alike in a row
KNOWN = 4096
RECORD_BYTES = 512
NUMBER_BYTES = 8


class CallHistory:
    """The calls of a group so far."""

    def __init__(self) -> None:
        self._before: deque[int] = deque(maxlen=REMEMBERED)
        self._after: dict[tuple[int, ...], int] = {}

    def expects(self, digest: int) -> bool:
        """Return whether a call of this digest came last time after the same calls."""
        return self._after.get(tuple(self._before)) == digest

    def note(self, digest: int) -> None:
        """Remember that all ranks make this call."""
        if len(self._after) >= KNOWN:
            self._after.clear()
        self._after[tuple(self._before)] = digest
        self._before.append(digest)


def to_record(sequence: int, text: str) -> Array:
    """Return what a rank says of the call that it is in, as bytes of one length."""
    raw = sequence.to_bytes(NUMBER_BYTES, "little") + text.encode()
    return np.frombuffer(raw[:RECORD_BYTES].ljust(RECORD_BYTES, b"\0"), np.uint8)


def verdict(records: Array, labels: Sequence[str]) -> tuple[bool, str]:
    """Return whether all ranks are in one call, and what to tell everyone if it is not the same for all.

    A rank that is not there yet has still to find that the call before is done, in which all agreed.

    >>> ask = lambda *said: verdict(np.stack([to_record(*one) for one in said]), ["a", "b"])
    >>> ask((3, "barrier()"), (3, "barrier()")), ask((3, "barrier()"), (4, "all_gather(...)"))
    ((True, ''), (False, ''))
    """
    said = [record.tobytes() for record in records]
    sequences = [int.from_bytes(raw[:NUMBER_BYTES], "little") for raw in said]
    if len(set(sequences)) > 1:
        return False, ""
    texts = {rank: raw[NUMBER_BYTES:].rstrip(b"\0").decode(errors="ignore") for rank, raw in enumerate(said)}
    return True, compare(texts, sequences[0], labels)


# GPU assignment: which GPU a rank has, and whether every rank has one of its own.

DEVICES = ("/dev/nvidiactl", "/dev/dxg")


@dataclass(frozen=True)
class CupyDevice:
    """A GPU that this process can use: CuPy and its NCCL, CuPy's number of it, and its place on the host."""

    cupy: Any
    nccl: Any
    number: int
    place: str


def is_likely() -> bool:
    """Return whether it is worth while to load CuPy and ask it for a GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return "cupy" in sys.modules or any(Path(one).exists() for one in DEVICES)


def not_one_each(member: Member, infos: Sequence[dict[str, Any]]) -> str:
    """Return why ranks with these cards have not one GPU each; empty if they have."""
    found: dict[tuple[str, Any], int] = {}
    for rank, info in enumerate(infos):
        if not info.get("gpu"):
            return f"{member.labels[rank]} has no GPU that CuPy and NCCL can use"
        first = found.setdefault((member.hosts[rank], info["gpu"]), rank)
        if first != rank:
            return (
                f"{member.labels[first]} and {member.labels[rank]} share GPU {info['gpu']}; give each one of "
                "its own, as with CUDA_VISIBLE_DEVICES"
            )
    return ""
