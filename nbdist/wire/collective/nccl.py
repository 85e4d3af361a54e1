"""Collectives of ranks that have a GPU each: NCCL moves CuPy arrays, a control group does the rest.

    group = form(member, exchange, "nccl")      # or "auto", where every rank has a GPU of its own
    group.all_reduce(gradient, out=gradient)    # on the current stream; returns when the result is there

The control group (shared memory or sockets) carries NumPy arrays, barriers, and what NCCL cannot add up:
int16, uint16, and products, minima and maxima of complex numbers; those go through the host. Its ranks notice
who died. A call that is expected (`agreement.History`) costs no message; another is agreed on first. NCCL
combines ranks in an order of its own; its minimum and maximum may pass over NaNs.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MissingExtra,
    NbdistError,
    UnavailableError,
)
from nbdist.wire.collective.agreement import History, to_record, verdict
from nbdist.wire.collective.base import Broken, Collective, Member, Seat, Trouble
from nbdist.wire.collective.calls import Call
from nbdist.wire.collective.device import check_out, is_on_device
from nbdist.wire.collective.gpus import Gpu, not_one_each
from nbdist.wire.collective.launch import Launch, travels
from nbdist.wire.collective.lookout import Lookout
from nbdist.wire.frames import Array

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

    def __init__(self, member: Member, control: Collective, gpu: Gpu) -> None:
        super().__init__(member.rank, member.called, member.check)
        self._hosts, self._bind = member.hosts, member.bind
        self._control, self._gpu = control, gpu
        control.within = self
        self.notes += control.notes
        self._timeout = member.timeout
        self._deadline: float | None = None
        self._history = History()
        self._communicator: Any = None
        self._launch: Launch | None = None

    def check(self) -> None:
        """Raise the reason if the group is broken, or a rank is seen to have died."""
        super().check()
        self._control.check()

    def _on_device(self, call: Call, x: Any, out: Any) -> Array:
        if travels(call) is None:
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

    def _perform(self, call: Call, x: Array, out: Array) -> None:
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
                raise Broken(Trouble("UnavailableError", what)) from error
            if isinstance(error, NbdistError):
                raise Broken(Trouble(type(error).__name__, str(error))) from None
            raise

    def _perform_there(self, call: Call, x: Any, out: Any) -> None:
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
        together, trouble = verdict(self._control.all_gather(to_record(self.sequence, text)), self.called)
        if trouble:
            raise Broken(Trouble("InvalidArgumentError", trouble))
        return together

    def _look(self, now: float) -> None:
        """Raise why there is no point in waiting, if so."""
        self._control.check()
        self.lookout()
        if self._trouble is not None:
            raise Broken(self._trouble)
        if self._deadline is not None and now >= self._deadline:
            raise Broken(
                Trouble(
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

    def _spread(self, trouble: Trouble) -> None:
        self._control.break_with(trouble)

    def _leave(self) -> None:
        """The control group says it as it is closed."""

    def _release(self) -> None:
        if self._communicator is not None:
            self._communicator.destroy()
            self._communicator = self._launch = None
        self._control.close()


class NcclSeat(Seat):
    """A rank's GPU and its seat in the control group, which `sit` makes.

    Where not every rank has a GPU of its own the control group is the group, unless NCCL is `needed`. Raises
    MissingExtra without CuPy, UnavailableError without its NCCL or without a GPU.
    """

    def __init__(self, member: Member, sit: Callable[[Member], Seat], needed: bool = True) -> None:
        self._gpu, self._needed = gpu_here(), needed
        self._member = replace(member, check=Lookout.of(member.check))
        self._control = sit(self._member)

    @property
    def card(self) -> dict[str, Any]:
        """That of the seat in the control group, and which GPU it is."""
        return {**self._control.card, "gpu": self._gpu.place}

    def join(self, cards: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Meet the others; NCCL itself is set up at the first call that needs it."""
        trouble = not_one_each(self._member, cards)
        if trouble and self._needed:
            self.close()
            raise UnavailableError(f"no collective 'nccl': {trouble}")
        control = self._control.join(cards, timeout)
        return control if trouble else NcclCollective(self._member, control, self._gpu)

    def close(self) -> None:
        """Give up the seat in the control group."""
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


def gpu_here() -> Gpu:
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
    return Gpu(cupy, nccl, device.id, device.pci_bus_id)


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingExtra("gpu", "NCCL") from error
    return cupy
