"""The called side: a socket that accepts only holders of the cluster's keys."""

from __future__ import annotations

import os
import socket as sockets
import threading
from contextlib import suppress
from math import ceil

import zmq
from zmq.utils import z85

from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.envelope import (
    CALL,
    ENVELOPE,
    FAILURE,
    PUSH,
    REPLY,
    SEND,
    error_frame,
    read_envelope,
    read_frame,
    receive_parts,
    send_parts,
    set_limits,
)
from nbdist.wire.rpc.frame import MAX_BYTES, Buffer, Frame, encode

DOMAIN = b"nbdist"
WILDCARDS = ("0.0.0.0", "::", "*", "")


class Listener:
    """The socket on which a task receives calls; one thread polls it and receives.

    Binds the loopback address unless `host` is another; CURVE is always on. Port 0 takes any free port.
    """

    def __init__(
        self, keys: ClusterKeys, host: str = "127.0.0.1", port: int = 0, max_message_bytes: int = MAX_BYTES
    ) -> None:
        if not 0 <= port <= 65535:  # ZeroMQ would take it modulo 65536
            raise InvalidArgumentError(f"a port is a number from 0 to 65535, not {port!r}")
        self.refused = 0  # handshakes refused
        self.damaged = 0  # messages that were not frames
        self._thread = threading.get_ident()  # the thread that polls
        self._limit = max_message_bytes
        self._public = keys.public.encode()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._zap = self._context.socket(zmq.REP)  # ZeroMQ's authentication requests (ZAP, RFC 27)
        self._zap.linger = 0
        self._zap.bind("inproc://zeromq.zap.01")  # before the socket accepts connections
        self._socket = self._context.socket(zmq.ROUTER)
        set_limits(self._socket)
        self._socket.router_mandatory = True
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.secret.encode()
        self._socket.zap_domain = DOMAIN
        self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self.host = sockets.gethostname() if host in WILDCARDS else host
        self.port = self._bind(host, port)
        self.address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        self._pipe = -1
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._zap, zmq.POLLIN)

    def wake_on(self, descriptor: int) -> None:
        """Let `poll` return also when a pipe becomes readable, and empty it."""
        self._pipe = descriptor
        self._poller.register(descriptor, zmq.POLLIN)

    def descriptors(self) -> tuple[int, int]:
        """Return the file descriptors that become readable on an event, for the caller's own poll.

        They are edge-triggered (ZMQ_FD): after one becomes readable, call `poll(0)` and `receive` until
        `pending` returns False.
        """
        return int(self._socket.fd), int(self._zap.fd)

    def pending(self) -> bool:
        """Return whether a message or a handshake is waiting."""
        return any(int(one.getsockopt(zmq.EVENTS)) & zmq.POLLIN for one in (self._socket, self._zap))

    def poll(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: without a limit); return whether a message is waiting.

        Answers the handshakes of new connections too.
        """
        self._thread = threading.get_ident()
        ready = dict(self._poller.poll(None if timeout is None else ceil(timeout * 1000)))
        if self._zap in ready:
            self._authenticate()
        if self._pipe in ready:
            with suppress(BlockingIOError):
                os.read(self._pipe, 4096)
        return self._socket in ready

    def receive(self) -> tuple[Caller, Frame] | None:
        """Return the next message, or None if none is waiting.

        A message that is not a valid frame is dropped; if it was a call, the caller receives the error.
        """
        while True:
            try:
                first = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            identity = first.bytes
            if not first.more:  # the last part of a message; an interrupt discarded its first parts
                self.damaged += 1
                continue
            sender = Caller(self, identity, 0)
            try:
                parts, total = receive_parts(self._socket, self._limit)
                role, sequence = read_envelope(parts)
                sender = Caller(self, identity, sequence if role == CALL else 0)
                frame = read_frame(parts, total, self._limit)
            except (DataLossError, ResourceExhaustedError) as error:
                self.damaged += 1
                sender.fail(error)
                continue
            if role in (CALL, SEND):
                return sender, frame
            self.damaged += 1

    def transmit(self, identity: bytes, role: int, sequence: int, frame: Frame) -> None:
        """Send a frame to one connected peer; never blocks."""
        if threading.get_ident() != self._thread:
            raise FailedPreconditionError(
                "replies and pushes go out on the Server's own thread; "
                "use server.post(lambda: sender.push(...))"
            )
        parts: list[Buffer] = encode(frame)
        parts[0] = ENVELOPE.pack(role, sequence) + parts[0]
        try:
            self._socket.send(identity, zmq.NOBLOCK | zmq.SNDMORE)
        except zmq.Again:
            raise UnavailableError("a peer does not read its messages; this one was not sent") from None
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise UnavailableError("the peer is no longer connected") from None
            raise
        send_parts(self._socket, parts, share=False)

    def close(self) -> None:
        """Close the port and end the context's threads. May be called twice."""
        if not self._context.closed:
            self._socket.close(linger=0)
            self._zap.close(linger=0)
            self._context.term()

    def _bind(self, host: str, port: int) -> int:
        try:
            interface = "*" if host in WILDCARDS else sockets.getaddrinfo(host, None)[0][4][0]
            if ":" in str(interface):
                self._socket.ipv6 = True
                interface = f"[{interface}]"
            self._socket.bind(f"tcp://{interface}:{port or '*'}")
        except (OSError, zmq.ZMQError) as error:
            self.close()
            why = f"cannot listen on {host}:{port}: {error}"
            if getattr(error, "errno", None) == zmq.EADDRINUSE:
                why = (
                    f"port {port} on {host} is in use by another process; choose another port, or 0 for any "
                    "free one"
                )
            raise FailedPreconditionError(why) from None
        endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return int(endpoint.rsplit(":", 1)[1])

    def _authenticate(self) -> None:
        """Answer one authentication request (ZAP, RFC 27): accept the cluster's own key only."""
        request = self._zap.recv_multipart()
        version, request_id = (*request, b"", b"")[:2]
        admitted = (
            len(request) == 7
            and version == b"1.0"
            and request[2] == DOMAIN
            and request[5] == b"CURVE"
            and z85.encode(request[6]) == self._public
        )
        self.refused += not admitted
        status = (b"200", b"OK", b"task") if admitted else (b"400", b"unknown key", b"")
        self._zap.send_multipart([b"1.0", request_id, *status, b""])

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            self.close()


class Caller:
    """The sender of a message, and the way back to it, on the thread that polls the Listener."""

    __slots__ = ("_listener", "_sequence", "identity")

    def __init__(self, listener: Listener, identity: bytes, sequence: int) -> None:
        self._listener = listener
        self._sequence = sequence
        self.identity = identity

    @property
    def waits(self) -> bool:
        """Whether the message is a call that has not been answered."""
        return self._sequence > 0

    def reply(self, frame: Frame) -> None:
        """Answer a call, once; does nothing for a message that was not a call."""
        self._answer(REPLY, frame)

    def fail(self, error: BaseException, where: str = "") -> None:
        """Answer a call with an error, which the calling Peer raises."""
        self._answer(FAILURE, error_frame(error, where))

    def push(self, frame: Frame) -> None:
        """Send a frame that answers no call; the Peer returns it from `receive`.

        Raises UnavailableError when the peer is disconnected or does not read; do not push to it again.
        """
        self._listener.transmit(self.identity, PUSH, 0, frame)

    def _answer(self, role: int, frame: Frame) -> None:
        sequence, self._sequence = self._sequence, 0
        if sequence:
            with suppress(UnavailableError):  # the caller is disconnected and does not need the answer
                self._listener.transmit(self.identity, role, sequence, frame)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caller) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)
