"""Messages between tasks and clients: a MessageReceiver receives, a MessageSender sends to one receiver.

    receiver = MessageReceiver(keys, "nbdist-c1", host_identity=host)                         # one process
    sender = MessageSender(receiver.address, keys, host_identity=host, prefix="nbdist-c1")    # another one
    sender.send(1, plan=7, step=0, arrays=[x])
    message = receiver.next(timeout=1.0)

On one host a message is one write to a named pipe, with its contents inline or with a pointer to them in
shared memory; a hop costs three system calls. Between hosts, and when shared memory is full, it is a frame on
an authenticated socket. The messages of one MessageSender arrive whole and in order.
"""

# Design.
#
# Doorbell. Each receiver has one named pipe (FIFO) that all senders of its host write to. A message has at
# most PIPE_BUF (4,096) bytes, and the kernel writes those atomically: messages of several writers never mix,
# and a writer that dies leaves either the whole message or nothing. The receiver polls the pipe together with
# its socket; an idle receiver sleeps in the kernel.
#
# Slots. Contents that do not fit inline are in a shared segment, one per (kind, plan, edge) of a sender
# (slots.py); the message in the pipe has the segment's name and a sequence number.
#
# Memory ordering. A sender writes the slot, then calls write(2) on the pipe; a receiver returns from read(2),
# then reads the slot. Both system calls take the pipe's lock in the kernel: its release in write(2) and its
# acquire in read(2) order the slot's stores before the receiver's loads on every architecture. So no fence is
# needed here, unlike in the collectives (collective/shm/segment.py), which do not enter the kernel for each
# message.
#
# Rounds. A slot is reused by the next message of the same kind, plan and edge, without a second buffer. The
# caller has to know that step n was read before it sends step n + 1: the session's client starts a step only
# after every task has answered the one before. The sequence number detects a caller that breaks this rule:
# the sender increments it before it changes the contents, and the receiver compares it with the number in
# the pipe's message, so an overwritten message is refused and counted in `damaged`. This is a check for bugs,
# not a lock: arrays that the receiver has already decoded are views of the slot and are not protected.
# Messages of an abandoned step have another step or plan number; the reader drops them by that.
#
# Order. A sender changes from the pipe to its socket at most once (shared memory is full) and never back, and
# the receiver empties the pipe before it returns a message from the socket.
#
# A peer that dies:
#
# - The receiver: the pipe has no reader. `check` sees POLLERR, `send` gets EPIPE, and the sender raises
#   UnavailableError from then on. A stopped receiver is different: the pipe fills up, `send` waits for
#   `timeout` and raises, and the sender can be used again.
# - The sender: the receiver keeps its own write end of the pipe open, so it reads no end of file; supervision
#   (heartbeats, pidfds) has to report the death. Complete messages stay readable, and so do mapped segments;
#   a pointer to a segment that was not mapped yet and was removed is refused. The cluster removes the files
#   (`shm.remove_all`).
# - On a socket ZeroMQ's heartbeat finds either within about 5 s (rpc/envelope.py).
#
# Two tasks that write to each other with full pipes would deadlock; so a send that waits for room reads its
# own receiver's pipe into memory (`receiver`).

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
CHECK_EVERY = 0.5  # seconds between two calls of `abort_check`


class MessageSender:
    """Sends messages to one MessageReceiver; one thread uses it. Runs on a task or a client.

    `transport` "auto" uses shared memory if both ends are on one host, "socket" never does. `name` is the
    remote task's name in error messages; `timeout` (seconds) is how long a send waits for a remote task that
    does not read. `receiver` is this thread's own: a send that waits reads it, so that two tasks that write
    to each other do not deadlock. `abort_check` is called every 0.5 s during the wait and may raise to end
    it. Raises UnavailableError if no process reads the remote pipe.
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
        abort_check: Callable[[], object] | None = None,
    ) -> None:
        if transport not in ("auto", "socket"):
            raise InvalidArgumentError(f"transport is 'auto' or 'socket', not {transport!r}")
        self.address = address
        self.name = name or address.socket
        self.timeout = timeout
        self.notes: list[str] = []
        """Notes for the user, for example that shared memory is full."""
        self._keys = keys
        self._failure: UnavailableError | None = None
        self._pipe = -1
        self._peer: Peer | None = None
        self._slots = MessageSlots(prefix)
        self._receiver, self._abort_check = receiver, abort_check
        self._errors, self._room = select.poll(), select.poll()
        if transport == "auto" and address.bell and address.host == host_identity:
            self._open_pipe()
        if self._pipe < 0:
            self._connect()

    @property
    def kind(self) -> str:
        """The transport, for the user: "shared memory" or "socket"."""
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
        """Send a message; its arrays may be changed once this returns, except those in a `slot`.

        Contents over 4 KiB are in shared memory, and the next message of the same kind, plan and edge
        overwrites them: send it only after this one was read. Raises UnavailableError if the remote task has
        ended (permanently) or does not read within `timeout`; InvalidArgumentError for values that cannot be
        sent.
        """
        if self._failure is not None:
            raise self._failure
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
        """Return `nbytes` of shared uint8 memory for a value that `send` does not copy; None on a socket.

        Send C-contiguous views of it (`slot.view(dtype).reshape(shape)`), and nothing else, as the arrays of
        messages of this kind, plan and edge. Keep the array: a call with a larger `nbytes` returns other
        memory.
        """
        if self._peer is not None:
            return None
        try:
            return self._slots.reserve(kind, plan, edge, nbytes)
        except ResourceExhaustedError as error:
            self._connect(str(error))
            return None

    def release(self, plan: int) -> None:
        """Remove the shared memory of a plan, after its last message was read."""
        self._slots.release(plan)

    def check(self) -> None:
        """Raise UnavailableError if the remote task has ended; never blocks."""
        if self._failure is not None:
            raise self._failure
        if self._pipe >= 0 and self._errors.poll(0):
            self._fail("its process has closed or lost its pipe")
        if self._peer is not None:
            try:
                self._peer.check()
            except UnavailableError as error:
                self._failure = error
                raise

    def close(self) -> None:
        """Close the pipe and the socket, and remove the slots. May be called twice.

        Inline messages still arrive: the pipe keeps them, and a socket sends for up to 1 s in the background.
        Unread messages in shared memory are lost.
        """
        self._failure = UnavailableError(f"the channel to {self.name} was closed here")
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
            self._errors.register(self._pipe, 0)  # POLLERR, a pipe without a reader, is always reported
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
        """Return the bytes for the pipe; None, and a socket from then on, if shared memory is full."""
        message = encode(kind, plan, step, edge, arrays, meta)
        if message is not None:
            return message
        try:
            return self._slots.fill(kind, plan, step, edge, arrays, meta)
        except ResourceExhaustedError as error:
            self._connect(str(error))
            return None

    def _write(self, message: bytes) -> None:
        """Write a message in one piece; wait for room if the pipe is full."""
        deadline = 0.0
        while True:
            try:
                os.write(self._pipe, message)
                return
            except BrokenPipeError:
                self._fail("its process has ended or closed its pipe")
            except BlockingIOError:
                now = time.monotonic()
                deadline = deadline or now + self.timeout
                if now >= deadline:
                    raise UnavailableError(
                        f"{self.name} has read nothing for {self.timeout:.1f} s and its pipe is full; "
                        "check that its process runs and is not busy"
                    ) from None
                left = deadline - now
                self._room.poll(1000 * (left if self._abort_check is None else min(left, CHECK_EVERY)))
                if self._receiver is not None:
                    self._receiver.read_pipe()
                if self._abort_check is not None:
                    self._abort_check()

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
        except KeyboardInterrupt:  # perhaps between two parts: the peer would append the next message to them
            self._failure = UnavailableError(
                f"a message to {self.name} was interrupted; open another channel to it"
            )
            raise

    def _fail(self, what: str) -> None:
        self._failure = UnavailableError(f"{self.name} receives no more messages: {what}; restart that task")
        raise self._failure
