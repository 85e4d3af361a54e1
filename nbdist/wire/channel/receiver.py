"""Where messages arrive: one named pipe and one authenticated socket, looked at together."""

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
READ_BYTES = 1 << 16  # a pipe's usual capacity, so that one read takes all that is there


@dataclass(frozen=True, slots=True)
class Address:
    """Where a MessageReceiver is reached: host identity, name of the doorbell there, ip:port of the socket.

    `bell` is empty where no pipe could be made.
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
    """Where messages arrive; one thread creates, polls and closes it. Runs on a task or a client.

    `prefix` starts the names of shared files; `host_identity` is equal for all who share this host's memory.
    """

    def __init__(
        self, keys: ClusterKeys, prefix: str, host: str = "127.0.0.1", *, host_identity: str
    ) -> None:
        self.notes: list[str] = []
        """What people should know, such as that there is no room for a pipe."""
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
            self._pipe, self._pipe_in = os.pipe()  # to be woken by
            os.set_blocking(self._pipe, False)
            os.set_blocking(self._pipe_in, False)
        self._look_at_socket = True
        self._poll = select.poll()
        for descriptor in (self._pipe, *self._listener.descriptors()):
            self._poll.register(descriptor, select.POLLIN)
        self.address = Address(host_identity, self._bell.name if self._bell else "", self._listener.address)

    @property
    def damaged(self) -> int:
        """How many messages were refused because they were none, or pointed at what is not there."""
        return self._unread.damaged + self._refused + self._listener.damaged

    def next(self, timeout: float | None = None) -> Message | None:
        """Return the next message; None after `timeout` seconds (None: never) and when woken.

        Its arrays are read-only. Those that came through shared memory are valid until the sender's next
        message of the same kind, plan and edge: copy what is to be kept for longer.
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
                    self.take_in()
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
        """Return what becomes readable when a message is in the pipe; those of the socket do not show."""
        return self._pipe

    def take_in(self) -> None:
        """Take into memory what is in the pipe, for `next` to return; never waits."""
        try:
            chunk = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return
        self._unread.add(chunk, whole=len(chunk) < READ_BYTES)

    def release(self) -> None:
        """Let go of shared memory that senders have removed, as when a plan has ended."""
        self._mappings.release()

    def close(self) -> None:
        """Close the pipe and the port; messages that were not read are lost. May be called twice."""
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
        """Return the next message of those that were read from the pipe."""
        while True:
            damaged = self._unread.damaged
            message = self._unread.take()
            if self._unread.damaged != damaged:
                self._report(self._unread.trouble)
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
        """Return the next message, one that came by socket or, for those may be older, one of the pipe."""
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
        self.take_in()
        older = self._from_pipe()
        if older is not None:
            return older
        message, self._held = self._held, None
        return message

    def _report(self, trouble: str) -> None:
        """Log what was refused: the first, the second, the fourth, ..., for there may be floods of it."""
        self._reported += 1
        if self._reported & (self._reported - 1) == 0:
            log.warning("refused a message (%d so far): %s", self._reported, trouble)
