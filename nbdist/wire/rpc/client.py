"""Task to task: a Peer calls, a Listener is called; both ends prove that they hold the cluster's keys.

    task A    Peer  ── call, send ──►  Listener    task B
              Peer  ◄─ reply, push ──  Listener

Every byte is encrypted and authenticated by CURVE. A connection whose far end is gone or frozen is noticed
by ZeroMQ's own threads, so a task that holds the interpreter lock for long is not mistaken for a dead one.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from nbdist.errors import NotAllowedError, UnavailableError
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.envelope import (
    CALL,
    ENVELOPE,
    FAILURE,
    PUSH,
    SEND,
    error_from,
    read_envelope,
    read_frame,
    receive_parts,
    send_parts,
    set_limits,
)
from nbdist.wire.rpc.frame import MAX_BYTES, Array, Frame, encode
from nbdist.wire.rpc.server import Caller, Listener

__all__ = ["Caller", "Listener", "Peer"]
RECONNECT_SECONDS = 2.0
REACH_SECONDS = 3.0  # for a first connection, which the far side's kernel accepts
PATIENCE_SECONDS = 30.0  # for the handshake on it, which a far side that is busy answers late
LOST = zmq.EVENT_DISCONNECTED
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
CUT_SHORT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
REACHED = zmq.EVENT_CONNECTED
WATCHED = LOST | REFUSED | CUT_SHORT | REACHED | zmq.EVENT_HANDSHAKE_SUCCEEDED
HUNG_UP = (errno.EPIPE, errno.ECONNRESET)
MOST_HUNG_UP = 3  # handshakes; a task that ends, or begins, may cut one short
Asked = tuple[int, str]  # number and kind of a call that is under way
_context: zmq.Context[zmq.Socket[bytes]] | None = None
_context_lock = threading.Lock()


class Peer:
    """A connection to one task's Listener; several threads may share it, one call at a time.

    `name` says in errors which task did not answer. Runs on a client or a task.
    """

    def __init__(
        self, address: str, keys: ClusterKeys, name: str = "", timeout: float = 10.0, limit: int = MAX_BYTES
    ) -> None:
        self.address = address
        self.name = name or address
        self.timeout = timeout
        self._limit = limit
        self._lock = threading.RLock()
        self._sequence = 0
        self._pushed: deque[Frame] = deque()
        self._reached = self._met = self._lost = False
        self._hung_up = 0  # handshakes that the far side has ended
        self._begun = time.monotonic()
        self._socket = process_context().socket(zmq.DEALER)
        set_limits(self._socket)
        self._socket.curve_publickey = self._socket.curve_serverkey = keys.public.encode()
        self._socket.curve_secretkey = keys.secret.encode()
        self._monitor = self._socket.get_monitor_socket(WATCHED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.connect(f"tcp://{address}")

    def call(
        self,
        kind: str,
        meta: dict[str, Any] | None = None,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
    ) -> Frame:
        """Send a frame and return the reply.

        Raises the error that the far handler raised, or UnavailableError, which names the task, when the
        connection breaks or no reply comes in time: the call may then have happened or not.
        """
        with self._lock:
            return self.answer(self.ask(kind, meta, arrays, timeout), timeout)

    def ask(
        self,
        kind: str,
        meta: dict[str, Any] | None = None,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
    ) -> Asked:
        """Send a frame whose reply `answer` waits for: to ask several tasks at once.

        One call at a time: what was asked before must have been answered, or is given up.
        """
        with self._lock:
            self._sequence += 1
            deadline = time.monotonic() + self._patience(timeout)
            self._transmit(CALL, self._sequence, Frame(kind, meta or {}, tuple(arrays)), deadline)
            return self._sequence, kind

    def answer(self, asked: Asked, timeout: float | None = None) -> Frame:
        """Wait for the reply to what was asked; raises as `call` does."""
        sequence, kind = asked
        with self._lock:
            seconds = self._patience(timeout)
            deadline = time.monotonic() + seconds
            while True:
                message = self._next(deadline, kind)
                if message is None:
                    raise UnavailableError(
                        f"{self.name} at {self.address} did not answer {kind!r} within {seconds:.1f} s; "
                        "see whether its process is alive and busy"
                    )
                role, number, frame = message
                if role == PUSH:
                    self._pushed.append(frame)
                elif number == sequence:  # else: a late reply to a call that was given up
                    if role == FAILURE:
                        raise error_from(frame)
                    return frame

    def send(self, kind: str, meta: dict[str, Any] | None = None, arrays: Sequence[Array] = ()) -> None:
        """Send a frame that expects no reply; the arrays may be changed once this returns."""
        with self._lock:
            deadline = time.monotonic() + self.timeout
            self._transmit(SEND, 0, Frame(kind, meta or {}, tuple(arrays)), deadline)

    def receive(self, timeout: float | None = None) -> Frame | None:
        """Return the next frame that the far side pushed, or None when none came within `timeout` seconds.

        Raises UnavailableError when the connection breaks, for what was pushed meanwhile is lost, or is not
        made in `REACH_SECONDS`.
        """
        with self._lock:
            deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
            while not self._pushed:
                message = self._next(deadline, "receive")
                if message is None:
                    self._require_met(PATIENCE_SECONDS)
                    return None
                if message[0] == PUSH:
                    self._pushed.append(message[2])
            return self._pushed.popleft()

    def check(self, patience: float = PATIENCE_SECONDS) -> None:
        """Raise UnavailableError if the connection broke or was not made in time; never waits.

        A far side that is busy may take `patience` s for the first handshake: what is sent meanwhile is kept.
        """
        with self._lock:
            if self._socket.closed:
                raise UnavailableError(f"the connection to {self.name} at {self.address} was closed here")
            broken = self._lost and self._met
            while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # a tenth of what a poll costs
                try:
                    self._note_events("check")
                except UnavailableError:
                    broken = broken or self._met
            if broken:
                raise UnavailableError(
                    f"the connection to {self.name} at {self.address} was lost, and perhaps messages with "
                    "it: its process is gone, frozen or cut off"
                )
            self._require_met(patience)

    def wake(self, poller: zmq.Poller) -> None:
        """Have a poll of the caller's own end when something has come, to wait for several peers at once."""
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)

    def close(self, linger: float = 0.0) -> None:
        """Close the connection; what was not sent within `linger` s, behind the scenes, is dropped.

        May be called twice.
        """
        with self._lock:
            if not self._socket.closed:
                self._socket.disable_monitor()
                self._monitor.close(linger=0)
                self._socket.close(linger=int(linger * 1000))

    def _patience(self, timeout: float | None) -> float:
        seconds = self.timeout if timeout is None else timeout
        # It was there and went away: a task that is coming back needs only a moment.
        return min(seconds, RECONNECT_SECONDS) if self._lost else seconds

    def _require_met(self, patience: float) -> None:
        patience = patience if self._reached else min(patience, REACH_SECONDS)
        if not self._met and time.monotonic() - self._begun > patience:
            raise UnavailableError(
                f"{self.name} at {self.address} could not be reached within {patience:.0f} s; see whether "
                "its process is alive and busy, and whether the network leads there"
            )

    def _transmit(self, role: int, sequence: int, frame: Frame, deadline: float) -> None:
        if self._socket.closed:
            raise UnavailableError(f"the connection to {self.name} at {self.address} was closed here")
        parts = encode(frame)
        parts[0] = ENVELOPE.pack(role, sequence) + parts[0]
        wait = max(0, int((deadline - time.monotonic()) * 1000))
        if len(parts) == 1:  # the usual small message needs no look whether there is room
            with suppress(zmq.Again):
                send_parts(self._socket, parts, share=False)
                return
        if not self._socket.poll(wait, zmq.POLLOUT):
            self._note_events(frame.kind)
            raise UnavailableError(f"{self.name} at {self.address} takes no more messages; is it frozen?")
        send_parts(self._socket, parts, share=role == CALL)

    def _next(self, deadline: float, doing: str) -> tuple[int, int, Frame] | None:
        """Return the next message, or None at the deadline; raise when the connection is gone."""
        while True:
            ready = self._poller.poll(max(0, ceil((deadline - time.monotonic()) * 1000)))
            for socket, _ in ready:
                if socket is self._socket:
                    parts, total = receive_parts(self._socket, self._limit)
                    role, sequence = read_envelope(parts)
                    return role, sequence, read_frame(parts, total, self._limit)
            if not ready:
                return None
            self._note_events(doing)

    def _note_events(self, doing: str) -> None:
        while self._monitor.poll(0):
            message = parse_monitor_message(self._monitor.recv_multipart())
            event = int(message["event"])
            if event & REACHED:
                self._reached = True
                continue
            if event & CUT_SHORT:  # by who cannot read a word, for it has other keys; or for another reason
                self._hung_up += message["value"] in HUNG_UP
                if self._met or message["value"] not in HUNG_UP or self._hung_up < MOST_HUNG_UP:
                    continue
            if event & (REFUSED | CUT_SHORT):
                raise NotAllowedError(
                    f"{self.name} at {self.address} refused our key or is no task of this cluster"
                )
            self._lost = bool(event & LOST)
            self._met = self._met or not self._lost
            if self._lost:
                raise UnavailableError(
                    f"the connection to {self.name} at {self.address} was lost during {doing!r}: "
                    "its process is gone, frozen or cut off"
                )

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_poller"):
            self.close()

    def __repr__(self) -> str:
        return f"<Peer of {self.name} at {self.address}>"


def process_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return this process's context for peers, which is not the one of ipyparallel's sockets."""
    global _context
    with _context_lock:
        if _context is None or _context.closed:
            _context = zmq.Context()
        return _context
