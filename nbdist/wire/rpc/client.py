"""Calls from task to task: a Peer calls a Listener; both ends prove that they hold the cluster's keys.

    task A    Peer  ── call, send ──►  Listener    task B
              Peer  ◄─ reply, push ──  Listener

Every byte is encrypted and authenticated by CURVE. ZeroMQ's own threads send heartbeats and detect a
connection to a process that ended or stopped responding, so a task that holds the interpreter lock for long
is not mistaken for a dead one.
"""

from __future__ import annotations

import errno
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from math import ceil
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from nbdist.errors import NotAllowedError, UnavailableError
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.proxy import keep_open, use_proxy
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

__all__ = ["Caller", "Listener", "Peer", "wait_any"]
RECONNECT_SECONDS = 2.0
CONNECT_SECONDS = 3.0  # for the first TCP connection, which the remote kernel accepts
HANDSHAKE_SECONDS = 30.0  # for the CURVE handshake on it; a busy remote process answers it late
LOST = zmq.EVENT_DISCONNECTED
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
HANDSHAKE_BROKEN = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
CONNECTED = zmq.EVENT_CONNECTED
WATCHED = LOST | REFUSED | HANDSHAKE_BROKEN | CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
RESET_ERRORS = (errno.EPIPE, errno.ECONNRESET)
MAX_RESETS = 3  # handshakes that were reset; a task that ends, or starts, may reset one or two
PendingCall = tuple[int, str]  # sequence number and kind of a call without an answer
_context: zmq.Context[zmq.Socket[bytes]] | None = None
_context_lock = threading.Lock()


class Peer:
    """A connection to one task's Listener; several threads may share it, one call at a time.

    `name` is the task's name in error messages. Runs on a client or a task.
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
        self._connected = False  # TCP connection made
        self._authenticated = False
        self._lost = False
        self.was_lost = False
        """Whether the connection was ever lost, and perhaps messages with it."""
        self._resets = 0  # handshakes that the remote process has reset
        self._created = time.monotonic()
        self._socket = process_context().socket(zmq.DEALER)
        set_limits(self._socket)
        self._socket.curve_publickey = self._socket.curve_serverkey = keys.public.encode()
        self._socket.curve_secretkey = keys.secret.encode()
        reachable = use_proxy(self._socket, keys.proxy)
        self._proxied = reachable and bool(keys.proxy)
        self._monitor = _monitor_of(self._socket)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        if reachable:
            self._socket.connect(f"tcp://{address}")

    @property
    def authenticated(self) -> bool:
        """Whether the CURVE handshake has been completed at least once."""
        return self._authenticated

    def call(
        self,
        kind: str,
        meta: dict[str, Any] | None = None,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
    ) -> Frame:
        """Send a frame and return the reply.

        Raises the error that the remote handler raised, or UnavailableError with the task's name when the
        connection breaks or no reply arrives in time. The remote task may or may not have executed the call
        then.
        """
        with self._lock:
            return self.answer(self.ask(kind, meta, arrays, timeout), timeout)

    def ask(
        self,
        kind: str,
        meta: dict[str, Any] | None = None,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
    ) -> PendingCall:
        """Send a frame and return without waiting; `answer` waits for the reply.

        Use it to call several tasks in parallel, each through its own Peer. `answer` drops the replies to
        other calls of the same Peer, so answer one call before the next `ask`.
        """
        with self._lock:
            self._sequence += 1
            deadline = time.monotonic() + self._effective_timeout(timeout)
            self._transmit(CALL, self._sequence, Frame(kind, meta or {}, tuple(arrays)), deadline)
            return self._sequence, kind

    def answer(self, pending: PendingCall, timeout: float | None = None) -> Frame:
        """Wait for the reply to a call that `ask` sent; raises as `call` does."""
        sequence, kind = pending
        with self._lock:
            seconds = self._effective_timeout(timeout)
            deadline = time.monotonic() + seconds
            while True:
                message = self._next(deadline, kind)
                if message is None:
                    raise UnavailableError(
                        f"{self.name} at {self.address} did not answer {kind!r} within {seconds:.1f} s; "
                        "check that its process runs and is not busy"
                    )
                role, number, frame = message
                if role == PUSH:
                    self._pushed.append(frame)
                elif number == sequence:  # else a late reply to a call that timed out
                    if role == FAILURE:
                        raise error_from(frame)
                    return frame

    def send(self, kind: str, meta: dict[str, Any] | None = None, arrays: Sequence[Array] = ()) -> None:
        """Send a frame that expects no reply; the arrays may be changed once this returns."""
        with self._lock:
            deadline = time.monotonic() + self.timeout
            self._transmit(SEND, 0, Frame(kind, meta or {}, tuple(arrays)), deadline)

    def receive(self, timeout: float | None = None) -> Frame | None:
        """Return the next frame that the Listener pushed; None after `timeout` seconds without one.

        Raises UnavailableError when the connection breaks, because frames pushed before it is restored are
        lost, and when it is not made within `CONNECT_SECONDS`.
        """
        with self._lock:
            deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
            while not self._pushed:
                message = self._next(deadline, "receive")
                if message is None:
                    self._check_authenticated(HANDSHAKE_SECONDS)
                    return None
                if message[0] == PUSH:
                    self._pushed.append(message[2])
            return self._pushed.popleft()

    def check(self, handshake_seconds: float = HANDSHAKE_SECONDS) -> None:
        """Raise UnavailableError if the connection broke or was not made in time; never waits.

        A busy remote process may take `handshake_seconds` for the first handshake; messages sent before it
        completes stay in the queue.
        """
        with self._lock:
            if self._socket.closed:
                raise UnavailableError(f"the connection to {self.name} at {self.address} was closed here")
            broken = self._lost and self._authenticated
            while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # a tenth of what a poll costs
                try:
                    self._note_events("check")
                except UnavailableError:
                    broken = broken or self._authenticated
            if broken:
                raise UnavailableError(
                    f"the connection to {self.name} at {self.address} was lost, and perhaps messages with "
                    "it: its process ended or is frozen, or the network failed"
                )
            self._check_authenticated(handshake_seconds)

    def wait_connected(self) -> None:
        """Wait until the remote task has authenticated the connection; its end is noticed from then on.

        Raises UnavailableError if it cannot be reached within `CONNECT_SECONDS`, or is too busy for a
        handshake within `HANDSHAKE_SECONDS`.
        """
        with self._lock:
            while not self._authenticated:
                self._check_authenticated(HANDSHAKE_SECONDS)
                self._monitor.poll(100)
                self._note_events("connect")

    def close(self, linger: float = 0.0) -> None:
        """Close the connection; a background thread sends queued messages for `linger` s, then drops them.

        May be called twice.
        """
        with self._lock:
            if not self._socket.closed:
                self._socket.monitor(None, 0)
                self._monitor.close(linger=0)
                if self._proxied and not self._connected:
                    keep_open(self._socket)
                    self._socket = process_context().socket(zmq.DEALER)
                self._socket.close(linger=int(linger * 1000))

    def _effective_timeout(self, timeout: float | None) -> float:
        seconds = self.timeout if timeout is None else timeout
        # A task that restarts accepts connections again within RECONNECT_SECONDS.
        return min(seconds, RECONNECT_SECONDS) if self._lost else seconds

    def _check_authenticated(self, handshake_seconds: float) -> None:
        for _ in range(2):
            limit = handshake_seconds if self._connected else min(handshake_seconds, CONNECT_SECONDS)
            if self._authenticated or time.monotonic() - self._created <= limit:
                return
            self._note_events("connect")  # it may be this thread that comes late
        raise UnavailableError(
            f"{self.name} at {self.address} could not be reached within {limit:.0f} s; check that its "
            "process runs and is not busy, and that this host can reach the address"
        )

    def _transmit(self, role: int, sequence: int, frame: Frame, deadline: float) -> None:
        if self._socket.closed:
            raise UnavailableError(f"the connection to {self.name} at {self.address} was closed here")
        parts = encode(frame)
        parts[0] = ENVELOPE.pack(role, sequence) + parts[0]
        wait = max(0, int((deadline - time.monotonic()) * 1000))
        if len(parts) == 1:  # a small message: try to send without a poll for room first
            with suppress(zmq.Again):
                send_parts(self._socket, parts, share=False)
                return
        if not self._socket.poll(wait, zmq.POLLOUT):
            self._note_events(frame.kind)
            raise UnavailableError(
                f"{self.name} at {self.address} does not read its messages and the queue is full; check that "
                "its process runs and is not stopped"
            )
        send_parts(self._socket, parts, share=role == CALL)

    def _next(self, deadline: float, doing: str) -> tuple[int, int, Frame] | None:
        """Return the next message, or None at the deadline; raise when the connection is lost or closed."""
        if self._socket.closed:
            raise UnavailableError(f"the connection to {self.name} at {self.address} was closed here")
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
            if event & CONNECTED:
                self._connected = True
                continue
            if event & HANDSHAKE_BROKEN:
                # A Listener with other keys cannot decrypt the handshake and resets the connection. A task
                # that ends or starts resets one too, so only repeated resets count as a refusal.
                self._resets += message["value"] in RESET_ERRORS
                if self._authenticated or message["value"] not in RESET_ERRORS or self._resets < MAX_RESETS:
                    continue
            if event & (REFUSED | HANDSHAKE_BROKEN):
                raise NotAllowedError(
                    f"{self.name} at {self.address} rejected the cluster key, "
                    "or is not a task of this cluster"
                )
            self._lost = bool(event & LOST)
            self._authenticated = self._authenticated or not self._lost
            if self._lost:
                self.was_lost = True
                raise UnavailableError(
                    f"the connection to {self.name} at {self.address} was lost during {doing!r}: its process "
                    "ended or is frozen, or the network failed"
                )

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_poller"):
            self.close()

    def __repr__(self) -> str:
        return f"<Peer of {self.name} at {self.address}>"


def wait_any(peers: Sequence[Peer], seconds: float, *others: int) -> None:
    """Wait until a peer has a message or a connection event, or a descriptor of ``others`` is readable.

    Returns after ``seconds`` at the latest. Holds the locks of the peers, so that another thread that closes
    one waits for the return: ZeroMQ must not poll a closed socket. Raises UnavailableError for a peer that is
    closed already.
    """
    poller = zmq.Poller()
    with ExitStack() as held:
        for peer in peers:
            held.enter_context(peer._lock)
            if peer._socket.closed:
                raise UnavailableError(f"the connection to {peer.name} at {peer.address} was closed here")
            poller.register(peer._socket, zmq.POLLIN)
            poller.register(peer._monitor, zmq.POLLIN)
        for descriptor in others:
            poller.register(descriptor, zmq.POLLIN)
        poller.poll(max(0, int(seconds * 1000)))


def _monitor_of(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return a socket that receives the connection events of another one.

    It has no limit: an address that accepts connections and closes them, as a tunnel to a dead process does,
    makes thousands of events, and a full queue would block the thread that serves all sockets of the context.
    """
    address = f"inproc://monitor-{uuid.uuid4().hex}"
    socket.monitor(address, WATCHED)
    events = process_context().socket(zmq.PAIR)
    events.rcvhwm = 0
    events.connect(address)
    return events


def process_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return this process's ZeroMQ context for peers; ipyparallel's sockets use another one."""
    global _context
    with _context_lock:
        if _context is None or _context.closed:
            _context = zmq.Context()
        return _context
