"""Messages between tasks and clients: an MessageReceiver receives, an MessageSender sends to one of them.

    inbox = MessageReceiver(keys, "nbdist-c1", host_identity=host)                           # here
    outbox = MessageSender(inbox.address, keys, host_identity=host, prefix="nbdist-c1")   # there
    outbox.send(1, plan=7, step=0, arrays=[x])
    message = inbox.next(timeout=1.0)

On one host a message is one write to a named pipe, with its contents or with the place in shared memory where
they are; a hop costs three system calls. Between hosts, and where shared memory is full, it is a frame on an
authenticated socket. Neither is ever split, and those of one MessageSender arrive in order.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from nbdist.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError, UnavailableError
from nbdist.wire.channel.message import Message, encode, pack_values, to_frame
from nbdist.wire.channel.receiver import Address, MessageReceiver
from nbdist.wire.channel.slots import MessageSlots
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import MAX_ARRAYS, MAX_BYTES, Array
from nbdist.wire.shm import open_bell

__all__ = ["Address", "Message", "MessageReceiver", "MessageSender"]
NUMPY = (np.ndarray, np.generic)
LOOK_EVERY = 0.5  # seconds


class MessageSender:
    """Sends messages to one MessageReceiver; one thread uses it. Runs on a task or a client.

    `transport` "auto" uses shared memory where both ends are on one host, "socket" never does. `name` is the
    far side in errors; `timeout` (seconds) is how long a send waits for a far side that does not read.
    `receiver` is this thread's own: a send that waits reads it, so that two tasks that write to each other do
    not deadlock. `meanwhile` is called during the wait, too, and may raise to end it. Raises UnavailableError
    if no process reads the far pipe.
    """

    def __init__(
        self,
        address: Address,
        keys: ClusterKeys,
        *,
        host_identity: str,
        transport: Literal["auto", "socket"] = "auto",
        prefix: str,
        name: str = "",
        timeout: float = 10.0,
        receiver: MessageReceiver | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        if transport not in ("auto", "socket"):
            raise InvalidArgumentError(f"transport is 'auto' or 'socket', not {transport!r}")
        self.address = address
        self.name = name or address.socket
        self.timeout = timeout
        self.notes: list[str] = []
        """What people should know, such as that shared memory is full."""
        self._keys = keys
        self._gone: UnavailableError | None = None
        self._pipe = -1
        self._peer: Peer | None = None
        self._slots = MessageSlots(prefix)
        self._receiver, self._meanwhile = receiver, meanwhile
        self._errors, self._room = select.poll(), select.poll()
        if transport == "auto" and address.bell and address.host == host_identity:
            self._open_pipe()
        if self._pipe < 0:
            self._connect()

    @property
    def kind(self) -> str:
        """How messages travel, for people: "shared memory" or "socket"."""
        return "socket" if self._peer is not None else "shared memory"

    def send(
        self,
        kind: int,
        plan: int,
        step: int,
        edge: int = 0,
        arrays: Sequence[Array] = (),
        meta: dict[str, Any] | None = None,
    ) -> None:
        """Send a message; its arrays may be changed once this returns, but for those in a `slot`.

        Contents beyond one write to a pipe are in shared memory that the next message of the same kind, plan
        and edge overwrites: send that only when this one was read. Raises UnavailableError when the far side
        is gone, for good, or does not read within `timeout`; InvalidArgumentError for what cannot travel.
        """
        if self._gone is not None:
            raise self._gone
        if len(arrays) > MAX_ARRAYS:
            raise InvalidArgumentError(f"a message has at most {MAX_ARRAYS} arrays, not {len(arrays)}")
        arrays = [one if isinstance(one, NUMPY) else np.asarray(one) for one in arrays]
        packed = pack_values(meta, kind) if meta else b""
        if self._peer is None:
            message = self._encoded(kind, plan, step, edge, arrays, packed)
            if message is not None:
                self._write(message)
                return
        self._transmit(kind, plan, step, edge, arrays, packed)

    def slot(self, kind: int, plan: int, edge: int, nbytes: int) -> Array | None:
        """Return `nbytes` shared uint8 to write a value to, which `send` need not copy; None over a socket.

        Send C-contiguous views of it (`slot.view(dtype).reshape(shape)`), and nothing else, as the arrays of
        messages of this kind, plan and edge. Ask once and keep it; asking for more gives other memory.
        """
        if self._peer is not None:
            return None
        try:
            return self._slots.lend(kind, plan, edge, nbytes)
        except ResourceExhaustedError as error:
            self._connect(str(error))
            return None

    def release(self, plan: int) -> None:
        """Give up the shared memory of a plan, when nobody will look at its messages any more."""
        self._slots.release(plan)

    def check(self) -> None:
        """Raise UnavailableError if the far side is gone; never blocks."""
        if self._gone is not None:
            raise self._gone
        if self._pipe >= 0 and self._errors.poll(0):
            self._fail("its process has closed or lost its pipe")
        if self._peer is not None:
            try:
                self._peer.check()
            except UnavailableError as error:
                self._gone = error
                raise

    def close(self) -> None:
        """Let go of the pipe, the socket and the slots. Safe to repeat.

        Small ones still arrive: a pipe keeps them, a socket tries for a second in the background. Those in
        shared memory that were not read are lost.
        """
        self._gone = UnavailableError(f"the outbox to {self.name} was closed here")
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._peer is not None:
            self._peer.close(linger=1.0)
        self._slots.release()

    def _open_pipe(self) -> None:
        try:
            self._pipe = open_bell(self.address.bell)
        except NotFoundError:
            self.notes.append(f"messages to {self.name} travel over a socket: its pipe is not visible here")
        else:
            self._errors.register(self._pipe, 0)  # that nobody reads is told unasked
            self._room.register(self._pipe, select.POLLOUT)
            if self._receiver is not None:
                self._room.register(self._receiver, select.POLLIN)

    def _connect(self, reason: str = "") -> None:
        if reason:
            self.notes.append(f"messages to {self.name} travel over a socket: {reason}")
        self._peer = Peer(self.address.socket, self._keys, self.name, self.timeout)

    def _encoded(
        self, kind: int, plan: int, step: int, edge: int, arrays: Sequence[Array], meta: bytes
    ) -> bytes | None:
        """Return the bytes for the pipe; None, from then on, if there is no room in shared memory."""
        message = encode(kind, plan, step, edge, arrays, meta)
        if message is not None:
            return message
        try:
            return self._slots.fill(kind, plan, step, edge, arrays, meta)
        except ResourceExhaustedError as error:
            self._connect(str(error))
            return None

    def _write(self, message: bytes) -> None:
        """Write a message whole, waiting for room if the pipe is full."""
        deadline = 0.0
        while True:
            try:
                os.write(self._pipe, message)
                return
            except BrokenPipeError:
                self._fail("its process is gone or has closed its pipe")
            except BlockingIOError:
                now = time.monotonic()
                deadline = deadline or now + self.timeout
                if now >= deadline:
                    raise UnavailableError(
                        f"{self.name} has read nothing for {self.timeout:.1f} s and its pipe is full; "
                        "see whether its process is alive and busy"
                    ) from None
                left = deadline - now
                self._room.poll(1000 * (left if self._meanwhile is None else min(left, LOOK_EVERY)))
                if self._receiver is not None:
                    self._receiver.take_in()
                if self._meanwhile is not None:
                    self._meanwhile()

    def _transmit(
        self, kind: int, plan: int, step: int, edge: int, arrays: Sequence[Array], meta: bytes
    ) -> None:
        assert self._peer is not None
        nbytes = sum(array.nbytes for array in arrays) + len(meta)
        if nbytes > MAX_BYTES // 2:
            raise ResourceExhaustedError(
                f"a message of {nbytes:,} bytes to {self.name} is over a socket's limit of {MAX_BYTES // 2:,}"
            )
        self.check()
        frame = to_frame(kind, plan, step, edge, arrays, meta)
        try:
            self._peer.send(frame.kind, frame.meta, frame.arrays)
        except KeyboardInterrupt:  # perhaps between two parts: the next message would be taken for their rest
            self._gone = UnavailableError(f"a message to {self.name} was interrupted; open another outbox")
            raise

    def _fail(self, what: str) -> None:
        self._gone = UnavailableError(f"{self.name} takes no more messages: {what}; start that task again")
        raise self._gone
