"""The called side of the wire: a socket that only holders of the cluster's keys can reach."""

from __future__ import annotations

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
    """Where a task is called; used by one thread, which polls and receives.

    Binds the loopback address unless told another; CURVE is on in any case. Port 0 lets the system pick.
    """

    def __init__(
        self, keys: ClusterKeys, host: str = "127.0.0.1", port: int = 0, max_message_bytes: int = MAX_BYTES
    ) -> None:
        if not 0 <= port <= 65535:  # ZeroMQ would take it modulo 65536
            raise InvalidArgumentError(f"a port is a number from 0 to 65535, not {port!r}")
        self.refused = 0  # handshakes turned away
        self.damaged = 0  # messages that were no frames
        self._thread = threading.get_ident()  # of whoever polls
        self._limit = max_message_bytes
        self._public = keys.public.encode()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = self._context.socket(zmq.REP)
        self._gate.linger = 0
        self._gate.bind("inproc://zeromq.zap.01")  # before anything can knock
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
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._gate, zmq.POLLIN)

    def wake_on(self, descriptor: int) -> None:
        """Let `poll` return also when a file descriptor becomes readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def descriptors(self) -> tuple[int, int]:
        """Return what becomes readable when something happens, for a poll of one's own.

        It says so once: then call `poll(0)` and `receive` until nothing is `pending`.
        """
        return int(self._socket.fd), int(self._gate.fd)

    def pending(self) -> bool:
        """Return whether a message or a handshake waits to be dealt with."""
        return any(int(one.getsockopt(zmq.EVENTS)) & zmq.POLLIN for one in (self._socket, self._gate))

    def poll(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: for ever); return whether a message is there.

        Answers the handshakes of those who knock while it waits.
        """
        self._thread = threading.get_ident()
        ready = dict(self._poller.poll(None if timeout is None else ceil(timeout * 1000)))
        if self._gate in ready:
            self._answer_knock()
        return self._socket in ready

    def receive(self) -> tuple[Caller, Frame] | None:
        """Return the next message, or None if none is there; what is no frame is answered and dropped."""
        while True:
            try:
                identity = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if not self._socket.rcvmore:  # the last part of a message whose others an interrupt took along
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
            raise UnavailableError("a peer does not read what it is sent; it was skipped") from None
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise UnavailableError("the peer is not connected any more") from None
            raise
        send_parts(self._socket, parts, share=False)

    def close(self) -> None:
        """Close the port and end the context's threads. May be called twice."""
        if not self._context.closed:
            self._socket.close(linger=0)
            self._gate.close(linger=0)
            self._context.term()

    def _bind(self, host: str, port: int) -> int:
        try:
            interface = "*" if host in WILDCARDS else sockets.getaddrinfo(host, None)[0][4][0]
            if ":" in str(interface):
                self._socket.ipv6 = True
                interface = f"[{interface}]"
            self._socket.bind(f"tcp://{interface}:{port or '*'}")
        except (OSError, zmq.ZMQError) as error:
            raise self._cannot_bind(host, port, error) from None
        endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return int(endpoint.rsplit(":", 1)[1])

    def _cannot_bind(self, host: str, port: int, error: Exception) -> FailedPreconditionError:
        self.close()
        if getattr(error, "errno", None) == zmq.EADDRINUSE:
            return FailedPreconditionError(
                f"port {port} on {host} is in use by another process; "
                "choose another port, or 0 for any free one"
            )
        return FailedPreconditionError(f"cannot listen on {host}:{port}: {error}")

    def _answer_knock(self) -> None:
        """Answer one handshake (ZeroMQ's ZAP, RFC 27): only the cluster's own key is let in."""
        request = self._gate.recv_multipart()
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
        self._gate.send_multipart([b"1.0", request_id, *status, b""])

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            self.close()


class Caller:
    """Who sent a message; answers go back through it, on the thread that polls the Listener."""

    __slots__ = ("_listener", "_sequence", "identity")

    def __init__(self, listener: Listener, identity: bytes, sequence: int) -> None:
        self._listener = listener
        self._sequence = sequence
        self.identity = identity

    @property
    def waits(self) -> bool:
        """Whether the message was a call that has no answer yet."""
        return self._sequence > 0

    def reply(self, frame: Frame) -> None:
        """Answer a call, once; a message that was no call is not answered."""
        self._answer(REPLY, frame)

    def fail(self, error: BaseException, where: str = "") -> None:
        """Answer a call with an error, which the caller raises."""
        self._answer(FAILURE, error_frame(error, where))

    def push(self, frame: Frame) -> None:
        """Send an unasked frame, which the far Peer returns from `receive`.

        Raises UnavailableError when that peer has gone or does not read; forget it then.
        """
        self._listener.transmit(self.identity, PUSH, 0, frame)

    def _answer(self, role: int, frame: Frame) -> None:
        sequence, self._sequence = self._sequence, 0
        if sequence:
            with suppress(UnavailableError):  # whoever asked is gone, so nobody waits for the answer
                self._listener.transmit(self.identity, role, sequence, frame)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caller) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)
