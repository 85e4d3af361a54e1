"""The receiving end of a channel: one named pipe and one authenticated socket, polled together."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.wire.channel.message import CALL_TO_WAKE, Message, PipeBuffer, Pointer, from_frame
from nbdist.wire.channel.slots import SlotMappings
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.frame import unpack_meta
from nbdist.wire.rpc.server import Listener
from nbdist.wire.shm import Doorbell

log = logging.getLogger(__name__)
READ_BYTES = 1 << 16  # a pipe's default capacity on Linux, so that one read empties it


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a MessageReceiver: host identity, name of its doorbell, ip:port of its socket.

    `bell` is empty if no pipe could be made.
    """

    host: str
    bell: str
    socket: str

    def to_dict(self) -> dict[str, str]:
        """Return plain values, for a message."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> Address:
        """Return the address that `to_dict` described."""
        if set(entries) != {"host", "bell", "socket"} or not all(
            isinstance(e, str) for e in entries.values()
        ):
            raise InvalidArgumentError(f"an address has the texts host, bell and socket, not {entries!r}")
        return cls(**entries)


class MessageReceiver:
    """Receives messages; one thread creates, polls and closes it. Runs on a task or a client.

    `prefix` starts the names of shared files. Processes with equal `host_identity` can share memory.
    """

    def __init__(
        self, keys: ClusterKeys, prefix: str, host: str = "127.0.0.1", *, host_identity: str
    ) -> None:
        self.notes: list[str] = []
        """Notes for the user, for example that no pipe could be made."""
        self._unread = PipeBuffer()
        self._held: Message | None = None
        self._mappings = SlotMappings()
        self._refused = self._reported = 0
        self._woken = self._closed = False
        self._waking = threading.Lock()
        self._listener = Listener(keys, host)
        self._bell: Doorbell | None = None
        try:
            self._bell = Doorbell.create(prefix)
            self._pipe = self._pipe_in = self._bell.fileno()
        except OSError as error:
            self.notes.append(f"messages travel over sockets: no pipe can be made in shared memory: {error}")
            self._pipe, self._pipe_in = os.pipe()  # for `wake`
            os.set_blocking(self._pipe, False)
            os.set_blocking(self._pipe_in, False)
        self._look_at_socket = True
        self._poll = select.poll()
        for descriptor in (self._pipe, *self._listener.descriptors()):
            self._poll.register(descriptor, select.POLLIN)
        self.address = Address(host_identity, self._bell.name if self._bell else "", self._listener.address)

    @property
    def damaged(self) -> int:
        """How many messages were refused: invalid bytes, or a pointer to contents that cannot be read."""
        return self._unread.damaged + self._refused + self._listener.damaged

    def next(self, timeout: float | None = None) -> Message | None:
        """Return the next message; None after `timeout` seconds (None: no limit) and after `wake`.

        Its arrays are read-only. Arrays in shared memory are valid until the sender's next message of the
        same kind, plan and edge: copy values that are needed longer.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._woken:
                self._woken = False
                return None
            message = self._from_pipe() or (self._from_socket() if self._look_at_socket else None)
            if message is not None:
                return message
            wait = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = self._poll.poll(wait)
            for descriptor, _ in ready:
                if descriptor == self._pipe:
                    self.read_pipe()
                else:
                    self._look_at_socket = True
            if not ready and wait is not None:
                return None

    def wake(self) -> None:
        """Let `next` return None soon; may be called from any thread."""
        with self._waking:
            if not self._closed:
                self._woken = True
                with suppress(BlockingIOError):  # a full pipe wakes as well
                    os.write(self._pipe_in, CALL_TO_WAKE)

    def fileno(self) -> int:
        """Return the descriptor that is readable while the pipe holds a message; the socket has its own."""
        return self._pipe

    def read_pipe(self) -> None:
        """Read the pipe's contents into memory, for `next` to return; never waits."""
        try:
            chunk = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return
        self._unread.add(chunk, whole=len(chunk) < READ_BYTES)

    def release(self) -> None:
        """Unmap shared memory that senders have removed, for example when a plan has ended."""
        self._mappings.release()

    def close(self) -> None:
        """Close the pipe and the port; unread messages are lost. May be called twice."""
        with self._waking:
            if self._closed:
                return
            self._closed = True
            if self._bell is not None:
                self._bell.close()
            else:
                os.close(self._pipe)
                os.close(self._pipe_in)
        self._listener.close()
        self._mappings.close()

    def _from_pipe(self) -> Message | None:
        """Return the next message that was read from the pipe."""
        while True:
            damaged = self._unread.damaged
            message = self._unread.take()
            if self._unread.damaged != damaged:
                self._report(self._unread.failure)
            if not isinstance(message, Pointer):
                return message
            try:
                arrays, meta = self._mappings.read(message)
                return Message(
                    message.kind, message.plan, message.step, message.edge, arrays, unpack_meta(meta)
                )
            except DataLossError as error:
                self._refused += 1
                self._report(str(error))

    def _from_socket(self) -> Message | None:
        """Return the next message from the socket, or from the pipe, whose messages may be older.

        A sender that changes from its pipe to a socket sends everything later on the socket. So the pipe is
        read once more before a message from the socket is returned.
        """
        while self._held is None:
            received = self._listener.receive()
            if received is None:
                if not self._listener.pending():
                    self._look_at_socket = False
                    return None
                self._listener.poll(0)  # a handshake
                continue
            try:
                self._held = from_frame(received[1])
            except DataLossError as error:
                self._refused += 1
                received[0].fail(error)
                self._report(str(error))
        self.read_pipe()
        older = self._from_pipe()
        if older is not None:
            return older
        message, self._held = self._held, None
        return message

    def _report(self, failure: str) -> None:
        """Log the first, second, fourth, ... refused message, so that a flood of them stays readable."""
        self._reported += 1
        if self._reported & (self._reported - 1) == 0:
            log.warning("refused a message (%d so far): %s", self._reported, failure)
