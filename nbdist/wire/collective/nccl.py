"""Collectives of ranks with one GPU each: NCCL moves CuPy arrays, a control group does everything else.

    group = form(member, exchange, "nccl")      # or "auto", if every rank has its own GPU
    group.all_reduce(gradient, out=gradient)    # on the current stream; returns when the result is complete
    groups = gpu_thread_group(names, [0, 1])    # or the ranks are threads of this process

The control group (shared memory, sockets, or the memory of the threads' process) executes calls on NumPy
arrays, barriers, and the reductions that NCCL does not have: int16, uint16, and products, minima and maxima
of complex numbers; these copy the values through host memory. It also detects ranks that have died. A call
on GPUs that `CallHistory` expects costs no message; any other one is compared between the ranks first. So is
a call in host memory after one on GPUs, in which a rank may still wait; further ones cost no more than in the
control group alone. NCCL combines ranks in its own order, and its minimum and maximum may ignore NaNs.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from nbdist.wire.collective.local import thread_group
from nbdist.wire.rpc.frame import Array

SPINS = 2000  # polls of an event before the thread sleeps between them
POLL_SECONDS = 50e-6
CHECK_SECONDS = 0.02  # between two checks of the other ranks
END_SECONDS = 2.0  # for NCCL to abort or to destroy a communicator
GRACE_SECONDS = 1.0  # for a call to complete after another rank has left
UNIQUE_ID_BYTES = 128
INTERFACE = "NCCL_SOCKET_IFNAME"
LOOPBACK = "=lo"
_chosen: list[str] = []  # the value that this process has set, if any


class NcclCollective(Collective):
    """A rank of a group with one GPU for each rank."""

    kind = "nccl"
    over_network = True

    def __init__(
        self,
        member: Member,
        control: Collective,
        gpu: CupyDevice,
        ends: list[threading.Thread] | None = None,
    ) -> None:
        super().__init__(member.rank, member.labels, member.check)
        # Ranks that are threads of one process share `ends`, and the interpreter's lock, which polls hold:
        # all together they poll as often as one process does.
        self._spins, self._pause = (
            (SPINS, POLL_SECONDS) if ends is None else (1, 2 * POLL_SECONDS * self.size)
        )
        self._enders = 1 if ends is None else self.size
        self._ends: list[threading.Thread] = [] if ends is None else ends
        self._hosts, self._bind = member.hosts, member.bind
        self._control, self._gpu = control, gpu
        control.parent = self
        self.notes += control.notes
        self._timeout = member.timeout
        self._deadline: float | None = None
        self._history = CallHistory()
        self._after_gpus = False
        """Whether the last call was one on GPUs, so that other ranks may still wait in it."""
        self._communicator: Any = None
        self._launch: Launch | None = None

    def _look(self) -> None:
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
                self._perform_here(call, x, out)
        except BaseException as error:
            self._drop()
            if isinstance(error, self._gpu.nccl.NcclError):
                what = f"NCCL failed on {self._me} in {self.doing}: {error}"
                raise GroupBroken.by("UnavailableError", what) from error
            if isinstance(error, NbdistError):
                raise GroupBroken.by(type(error).__name__, self._explain(str(error))) from None
            raise

    def _perform_here(self, call: CollectiveCall, x: Array, out: Array) -> None:
        compared, self._after_gpus = self._after_gpus, False
        if compared:
            self._agree(call.text)
        self._history.note(call.digest)
        if not compared or call.what != "barrier":  # the comparison is one
            self._control._run(call, x, out)

    def _explain(self, text: str) -> str:
        """Return the control group's message about calls that differ, with this group's names for them.

        A rank that waits in a call on GPUs takes part in a comparison, which is an all-gather.
        """
        comparison = self._control._call("all_gather", to_record(0, "")).text
        text = text.replace(f"calls {comparison}", "makes a call on GPUs")
        return text.replace(f"collective #{self._control.sequence}", f"collective #{self.sequence}")

    def symmetric_buffer(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return one of the control group, in shared memory on one host, for calls in host memory."""
        if self._after_gpus:
            self.barrier()  # after it no rank waits in a call on GPUs
        return self._control.symmetric_buffer(shape, dtype)

    def _perform_there(self, call: CollectiveCall, x: Any, out: Any) -> None:
        text, digest, self._after_gpus = f"{call.text} on GPUs", -call.digest, True
        if not self._history.expects(digest):
            self._agree(text)
        self._history.note(digest)
        if self._launch is None:
            self._connect()
            self._launch = Launch(self._gpu, self._communicator, self.rank)
        done, _in_use = self._launch(call, x, out)
        for _ in range(self._spins):
            if done():
                return
        checked = time.monotonic()
        compare_at = float("inf")
        while not done():
            time.sleep(self._pause)
            now = time.monotonic()
            if now - checked >= CHECK_SECONDS:
                checked = now
                self._communicator.check_async_error()
                self._check_wait(now)
                state = self._control.peek()
                if state == "left":  # it may have left after this call, which then completes here soon
                    compare_at = min(compare_at, now + GRACE_SECONDS)
                if state == "waits" or now >= compare_at:
                    self._compare_calls(text)

    def _agree(self, text: str) -> None:
        """Return once all ranks are in the same call; raise GroupBroken if their calls differ."""
        while not self._compare_calls(text):
            pass

    def _compare_calls(self, text: str) -> bool:
        """Exchange the ranks' current calls; return False if one is still in the call before."""
        together, failure = verdict(self._control.all_gather(to_record(self.sequence, text)), self.labels)
        if failure:
            raise GroupBroken.by("InvalidArgumentError", failure)
        return together

    def _check_wait(self, now: float) -> None:
        """Raise the reason if this rank waits in vain."""
        self._control.check()
        self.abort_check()
        if self._failure is not None:
            raise GroupBroken(self._failure)
        if self._deadline is not None and now >= self._deadline:
            raise GroupBroken.by(
                "DeadlineExceededError",
                f"{self._me} waited for the other ranks beyond the time limit: {self.doing}",
            )

    def _connect(self) -> None:
        """Make the communicator, in the first call that needs it; all ranks are in this call."""
        cupy, nccl = self._gpu.cupy, self._gpu.nccl
        choose_interface(self._hosts, self._bind)
        made: list[Any] = []
        left = threading.Event()
        own = nccl.get_unique_id() if self.rank == 0 else bytes(UNIQUE_ID_BYTES)
        name = self._control.broadcast(np.frombuffer(own, np.uint8), 0).tobytes()

        def connect() -> None:
            try:
                cupy.cuda.Device(self._gpu.number).use()
                made.append(nccl.NcclCommunicator(self.size, name, self.rank))
                if left.is_set():
                    made[0].abort()  # its group is broken: it would stay on the GPU
            except BaseException as error:
                made.append(error)

        # In a thread, because NCCL waits here for all ranks and this wait cannot be cancelled.
        thread = threading.Thread(target=connect, name="nbdist nccl", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(CHECK_SECONDS)
                self._check_wait(time.monotonic())
        except BaseException:
            left.set()
            raise
        if isinstance(made[0], BaseException):
            raise made[0]
        self._communicator = made[0]
        # A group that is never closed; CuPy would destroy it, and so wait for ranks that this thread keeps.
        self._unclosed = weakref.finalize(self, _abort_quietly, made[0])

    def _drop(self) -> None:
        """Abort the communicator's work on the GPU.

        Where a peer was killed, NCCL's abort itself may hang (NVIDIA/nccl #829, #863, #1013). So it is left
        behind after two seconds; the next group has another communicator.
        """
        if self._communicator is not None:
            self._end("abort").join(END_SECONDS)

    def _end(self, how: str) -> threading.Thread:
        """Abort or destroy the communicator, in a thread of its own."""
        communicator, self._communicator, self._launch = self._communicator, None, None
        self._unclosed.detach()

        def end() -> None:
            try:
                with self._gpu.cupy.cuda.Device(self._gpu.number):
                    getattr(communicator, how)()
            except Exception as error:  # the call that failed is raised; the next group is a new one
                self.notes.append(f"NCCL's {how} failed on {self._me}: {error}")

        thread = threading.Thread(target=end, name=f"nbdist nccl {how}", daemon=True)
        thread.start()
        return thread

    def _is_broken(self) -> bool:
        try:
            self.check()
        except NbdistError:
            return True
        return False

    def _announce_failure(self, failure: GroupFailure) -> None:
        self._control.break_with(failure)

    def _release(self) -> None:
        """Destroy the communicator; the last of a process's ranks waits.

        NCCL waits for all ranks of the host there. One thread may close all ranks of a process in turn, and a
        rank of another process may be late, so that this has a time limit.
        """
        if self._is_broken():
            self._drop()
        if self._communicator is not None:
            self._ends.append(self._end("destroy"))
        self._control.close()
        if len(self._ends) == self._enders:
            limit = time.monotonic() + END_SECONDS
            for thread in self._ends:
                thread.join(max(0.0, limit - time.monotonic()))


def _abort_quietly(communicator: Any) -> None:
    with suppress(Exception):  # at the end of the process CUDA may have ended
        communicator.abort()


def gpu_thread_group(
    names: Sequence[str], gpus: Sequence[int], check: Callable[[], None] | None = None
) -> list[Collective]:
    """Return the ranks of a group of threads of this process, one for each of CuPy's GPUs with these numbers.

    NumPy arrays are reduced in the memory of the process. `check` is that of a Member, for all ranks. Each
    thread connects to NCCL by itself, in its first call that needs it; such calls have to come from a thread
    of their own for each rank, all in one order, as those of processes do. Raises UnavailableError if two
    ranks have the same GPU, or without NCCL, and MissingExtra without CuPy.
    """
    found = [gpu_here(number) for number in gpus]
    control = thread_group(names, check=check)
    ends: list[threading.Thread] = []
    members = [
        Member(
            rank=rank,
            hosts=("here",) * len(names),
            names=tuple(names),
            incarnation=0,
            prefix="",
            check=local.abort_check,
        )
        for rank, local in enumerate(control)
    ]
    if failure := not_one_each(members[0], [{"gpu": gpu.place} for gpu in found]):
        raise UnavailableError(f"NCCL is not available: {failure}")
    return [NcclCollective(*each, ends) for each in zip(members, control, found, strict=True)]


class NcclEndpoint(Endpoint):
    """A rank's GPU and its endpoint in the control group, which `make_control` makes.

    If not every rank has its own GPU, `join` returns the control group, unless NCCL is `needed`. Raises
    MissingExtra without CuPy, UnavailableError without its NCCL or without a GPU.
    """

    def __init__(
        self, member: Member, make_control: Callable[[Member], Endpoint], needed: bool = True
    ) -> None:
        self._gpu, self._needed = gpu_here(), needed
        self._member = replace(member, check=AbortCheck.of(member.check))
        self._control = make_control(self._member)

    @property
    def info(self) -> dict[str, Any]:
        """The info of the control group's endpoint, and the GPU's PCI bus id."""
        return {**self._control.info, "gpu": self._gpu.place}

    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Connect the control group; NCCL itself is set up in the first call that needs it."""
        failure = not_one_each(self._member, infos)
        if failure and self._needed:
            self.close()
            raise UnavailableError(f"collective 'nccl' is not available: {failure}")
        control = self._control.join(infos, timeout)
        return control if failure else NcclCollective(self._member, control, self._gpu)

    def close(self) -> None:
        """Close the endpoint in the control group."""
        self._control.close()


def choose_interface(hosts: Sequence[str], bind: str) -> None:
    """Set the network interface of NCCL: the loopback on one host, else the one with the address ``bind``.

    By default NCCL listens on every interface that it finds, without authentication. It reads
    NCCL_SOCKET_IFNAME once, at the first communicator of a process. A value that the user has set is kept.
    Raises FailedPreconditionError if the first group was on one host and this one is on several.
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
            f"NCCL in this process uses the interface {_chosen[0][1:]} of its first group, but this group of "
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
        f"no interface of this host has the address {address} that NCCL needs; set {INTERFACE}"
    )


def gpu_here(number: int | None = None) -> CupyDevice:
    """Return a GPU of this process, by default this thread's current one.

    Raises MissingExtra or UnavailableError if it cannot use NCCL.
    """
    cupy = _cupy()
    try:
        seen = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UnavailableError(f"CuPy finds no GPU: {error}") from error
    if not seen:
        raise UnavailableError("CuPy finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES")
    nccl = _nccl()
    if not nccl.available:
        raise UnavailableError(
            'CuPy finds no NCCL; install the one of its CUDA version: pip install "nbdist[gpu]" brings '
            "nvidia-nccl-cu13"
        )
    device = cupy.cuda.Device() if number is None else cupy.cuda.Device(number)
    return CupyDevice(cupy, nccl, device.id, device.pci_bus_id)


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingExtra("gpu", "NCCL") from error
    return cupy


def _nccl() -> Any:
    """Return CuPy's module for NCCL, which `import cupy` does not load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without the library it warns, and `available` is False
        return importlib.import_module("cupy.cuda.nccl")


# One collective call on a GPU's stream, as a call to NCCL.
#
#     launch = Launch(gpu, communicator, rank)
#     done, in_use = launch(call, x, out)         # keep `in_use` alive until done() is true
#
# A dtype that NCCL does not have is sent as another one: a boolean as a byte ("or" is a maximum, "and" is a
# minimum), a complex number as two real numbers in sums and means, and any dtype as bytes if it is only
# copied.

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
    """The NCCL representation of an item: `each` values of NCCL's `type`, combined by `op`."""

    type: str
    each: int
    op: str = ""


def nccl_format(call: CollectiveCall) -> NcclFormat | None:
    """Return the NCCL representation of a call's items, or None if there is none."""
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
        """Begin a call; return a function that tests its completion, and the arrays to keep until then."""
        cupy = self._cupy
        with cupy.cuda.Device(self._number):  # the calling thread's current device may be another
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
        nccl = nccl_format(call)
        assert nccl is not None
        there, comm = taken.data.ptr, self._communicator
        kind = getattr(self._nccl, nccl.type)
        op = getattr(self._nccl, nccl.op) if nccl.op else 0
        count = call.count * nccl.each
        if call.what == "all_reduce":
            comm.allReduce(given.data.ptr, there, count, kind, op, stream)
        elif call.what == "all_gather":
            comm.allGather(given.data.ptr, there, count, kind, stream)
        elif call.what == "broadcast":
            comm.broadcast(given.data.ptr, there, count, kind, call.root, stream)
        elif call.shape[0] % call.size == 0:
            comm.reduceScatter(given.data.ptr, there, count // call.size, kind, op, stream)
        else:
            self._reduce_to_each(call, given, there, nccl.each, kind, op, stream)

    def _reduce_to_each(
        self, call: CollectiveCall, given: Any, there: int, each: int, kind: int, op: int, stream: int
    ) -> None:
        """Reduce each rank's rows to that rank, in one NCCL group.

        NCCL's own reduce-scatter requires the same number of rows on all ranks.
        """
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
    """Return whether NCCL may write directly to `out`.

    It has to be C-contiguous, of the dtype `work`, and either the input itself or disjoint from it.
    """
    if not out.flags.c_contiguous or out.dtype != call.work:
        return False
    begin, there = given.data.ptr, out.data.ptr
    if call.what == "all_reduce" and begin == there:
        return True
    apart: bool = begin + given.nbytes <= there or there + out.nbytes <= begin
    return apart


# The history of the calls that all ranks have made, which predicts the next one. Pure.
#
#     history = CallHistory()
#     if not history.expects(call):       # the same result on every rank, because all have the same history
#         ...compare the calls of all ranks...
#     history.note(call)
#
# A rank that makes the expected call starts it immediately. A rank that makes another call starts a
# comparison through the control group and moves no value. The ranks that started the expected call cannot
# complete it without that rank; while they wait, they find it in the control group and take part in the
# comparison. So no call completes on which the ranks do not agree, and a training step that repeats the calls
# of the step before costs no comparison.

REMEMBERED = 16  # previous calls that predict the next one: more than equal calls in a row within a step
KNOWN = 4096
RECORD_BYTES = 512
NUMBER_BYTES = 8


class CallHistory:
    """The past calls of a group."""

    def __init__(self) -> None:
        self._before: deque[int] = deque(maxlen=REMEMBERED)
        self._after: dict[tuple[int, ...], int] = {}

    def expects(self, digest: int) -> bool:
        """Return whether a call with this digest followed the last time after the same calls."""
        return self._after.get(tuple(self._before)) == digest

    def note(self, digest: int) -> None:
        """Record a call that all ranks make."""
        if len(self._after) >= KNOWN:
            self._after.clear()
        self._after[tuple(self._before)] = digest
        self._before.append(digest)


def to_record(sequence: int, text: str) -> Array:
    """Return the number and text of a rank's current call, as bytes of fixed length."""
    raw = sequence.to_bytes(NUMBER_BYTES, "little") + text.encode()
    return np.frombuffer(raw[:RECORD_BYTES].ljust(RECORD_BYTES, b"\0"), np.uint8)


def verdict(records: Array, labels: Sequence[str]) -> tuple[bool, str]:
    """Return whether all ranks are at the same call number, and the error message if their calls differ.

    A rank with a lower number has not yet seen the completion of the call before, on which all agreed.

    >>> check = lambda *calls: verdict(np.stack([to_record(*call) for call in calls]), ["a", "b"])
    >>> check((3, "barrier()"), (3, "barrier()")), check((3, "barrier()"), (4, "all_gather(...)"))
    ((True, ''), (False, ''))
    """
    raws = [record.tobytes() for record in records]
    sequences = [int.from_bytes(raw[:NUMBER_BYTES], "little") for raw in raws]
    if len(set(sequences)) > 1:
        return False, ""
    texts = {rank: raw[NUMBER_BYTES:].rstrip(b"\0").decode(errors="ignore") for rank, raw in enumerate(raws)}
    return True, compare(texts, sequences[0], labels)


# GPU assignment: the GPU of a rank, and whether every rank has its own.

DEVICES = ("/dev/nvidiactl", "/dev/dxg")


@dataclass(frozen=True)
class CupyDevice:
    """A GPU that this process can use: CuPy, its NCCL, CuPy's number of the GPU, and its PCI bus id."""

    cupy: Any
    nccl: Any
    number: int
    place: str


def is_likely() -> bool:
    """Return whether this host may have a GPU, so that loading CuPy is worthwhile."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return "cupy" in sys.modules or has_driver()


def has_driver() -> bool:
    """Return whether a driver for NVIDIA's GPUs is loaded, also in WSL (Linux)."""
    return any(Path(one).exists() for one in DEVICES)


def not_one_each(member: Member, infos: Sequence[dict[str, Any]]) -> str:
    """Return the reason if not every rank has its own GPU, by their endpoint infos; else an empty text."""
    found: dict[tuple[str, Any], int] = {}
    for rank, info in enumerate(infos):
        if not info.get("gpu"):
            return f"{member.labels[rank]} has no GPU that CuPy and NCCL can use"
        first = found.setdefault((member.hosts[rank], info["gpu"]), rank)
        if first != rank:
            return (
                f"{member.labels[first]} and {member.labels[rank]} share GPU {info['gpu']}; give each its "
                "own, for example with CUDA_VISIBLE_DEVICES"
            )
    return ""
