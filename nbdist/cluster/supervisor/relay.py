"""The line between the head's supervisor and those of other hosts: JSON lines, carried over CURVE.

    host b                                               head
    supervisor ── socket pair ── HostRelay ═══ CURVE ═══ HeadRelay ── supervisor.sock ── supervisor

A supervisor stays single-threaded, because it forks (`process.py`), and ZeroMQ has threads. So a process of
its own, the relay, holds the encrypted socket on each side. To the head's supervisor each host is one more
connection to its socket; to a host's supervisor the relay is the client that started it. Hosts dial the head,
which their engines have to reach in any case.

A connection may break and be made again, so the lines are numbered. Each message carries the lines that the
other side has not confirmed yet, and the number of lines received from it (`Outbox`); lines that arrive twice
are dropped. Either side takes the other for lost after some seconds without a message: the head then closes
the host's connection, and refuses this incarnation of the host's relay for good; the relay ends, and with it
the host's tasks. So a host that is cut off for longer never returns as a second owner of its ranks. A relay
and the supervisor of its host watch each other, too: behind a frozen relay tasks would live on that the head
takes for lost. The other one kills it.
"""

from __future__ import annotations

import math
import os
import secrets
import select
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbdist.errors import NbdistError, UnavailableError
from nbdist.wire.hosts import address_towards
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer, wait_any
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.rpc.server import Caller, Listener

# Without a message. A host ends its tasks before the head replaces them; the heartbeats of controller and
# engines allow 10 s.
HOST_SECONDS, HEAD_SECONDS = 6.0, 8.0
PING, PONG = b'{"id": "ping", "request": "ping"}', b'{"reply": "ping"}'
BEAT_SECONDS = 1.0
AGAIN_SECONDS = 0.1  # between two attempts to connect
CLOSING_SECONDS = 1.0  # for the last lines of a supervisor that has ended
MAX_LINE = (1 << 20) - (1 << 12)  # bytes; a frame's meta has at most 1 MB
MOST_WAITING = 16 << 20  # bytes of lines that the other side has not confirmed
MOST_IN_MESSAGE = 1 << 18  # bytes of lines, unless the first is longer
MAX_MESSAGE = 1 << 20


@dataclass
class Outbox:
    """One end of a numbered stream of lines, in both directions. Pure.

    >>> here, there = Outbox(), Outbox()
    >>> here.add(b"one"); here.add(b"two")
    >>> there.take(here.message())
    [b'one', b'two']
    >>> there.take(here.message()), there.message()["received"]
    ([], 2)
    >>> here.take(there.message()), len(here.waiting)
    ([], 0)
    """

    first: int = 0
    """The number of the first line that waits."""
    waiting: deque[bytes] = field(default_factory=deque)
    received: int = 0
    size: int = 0

    def add(self, line: bytes) -> None:
        """Add a line to send; raises UnavailableError if the other side confirms none for too long."""
        self.size += len(line)
        if self.size > MOST_WAITING:
            raise UnavailableError(f"{self.size:,} bytes wait for a host that does not confirm them")
        self.waiting.append(line)

    def message(self) -> dict[str, Any]:
        """Return the entries of the next message: the lines that are not confirmed, as many as fit."""
        lines: list[bytes] = []
        size = 0
        for line in self.waiting:
            size += len(line)
            if lines and size > MOST_IN_MESSAGE:
                break
            lines.append(line)
        return {"first": self.first, "lines": lines, "received": self.received}

    def take(self, message: dict[str, Any]) -> list[bytes]:
        """Take a message of the other side; return its lines that are new."""
        while self.waiting and self.first < message["received"]:
            self.first += 1
            self.size -= len(self.waiting.popleft())
        lines: list[bytes] = message["lines"][max(0, self.received - message["first"]) :]
        self.received += len(lines)
        return lines


class Lines:
    """The lines from and to a supervisor, through a connected Unix socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.closed = False
        self._incomplete = b""

    def read(self) -> list[bytes]:
        """Return the complete lines that have arrived; never blocks."""
        try:
            received = self.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            received = b""
        if not received:
            self.closed = True
        *lines, self._incomplete = (self._incomplete + received).split(b"\n")
        if len(self._incomplete) > MAX_LINE:
            self.closed = True
        return lines

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines to the supervisor, which always reads."""
        try:
            for line in lines:
                self.connection.sendall(line + b"\n")
        except OSError:
            self.closed = True

    def close(self) -> None:
        """Close the connection, which the supervisor notices."""
        self.closed = True
        self.connection.close()


def parse(frame: Frame) -> dict[str, Any] | None:
    """Return the entries of a message of lines, None if it is another or invalid."""
    meta = frame.meta
    numbers = [meta.get("first"), meta.get("received")]
    lines = meta.get("lines")
    if frame.kind != "relay.lines" or not isinstance(lines, list):
        return None
    if not all(isinstance(one, int) and one >= 0 for one in numbers):
        return None
    return meta if all(isinstance(line, bytes) for line in lines) else None


class HostRelay:
    """The relay of a host's supervisor; ``name`` is the host's.

    ``heads`` are the head's addresses, the likeliest first. `connect` finds one that answers, and `run`
    returns when the supervisor has ended or the head is lost.
    """

    def __init__(self, name: str, heads: Sequence[str], keys: ClusterKeys, supervisor: socket.socket) -> None:
        self.name, self.heads, self.keys = name, list(heads), keys
        self.incarnation = secrets.token_hex(8)
        self.lines = Lines(supervisor)
        self.outbox = Outbox()
        self.peer: Peer | None = None
        self.own_address = ""
        """The address of this host towards the head, once it is connected."""

    def connect(self, timeout: float) -> str:
        """Connect to the head, and return the address that has answered.

        Raises UnavailableError if none accepts a connection within ``timeout`` seconds, NotAllowedError if
        the process that answers does not hold the cluster's keys.
        """
        refused: Exception | None = None
        for address in first_to_accept(self.heads, timeout):
            peer = Peer(address, self.keys, name="the head of the cluster")
            try:
                peer.wait_connected()
            except NbdistError as error:  # another service has that port
                refused = error
                peer.close()
                continue
            self.peer, self.own_address = peer, address_towards([address])
            return address
        raise refused or UnavailableError(
            f"it cannot reach the head of the cluster at {', '.join(self.heads)} within {timeout:g} s: a "
            "firewall drops the connection, or no route leads there; open the head's ports for this host"
        )

    def run(self) -> None:
        """Carry lines until one side has ended."""
        assert self.peer is not None
        peer, heard, ends_at = self.peer, time.monotonic(), None
        sent = asked = 0.0  # the last message to the head, the last `PING` to the supervisor
        fileno, answered = self.lines.connection.fileno(), math.inf
        while time.monotonic() < heard + HOST_SECONDS and (ends_at is None or time.monotonic() < ends_at):
            if time.monotonic() > answered + HOST_SECONDS:
                return
            changed = False
            watched = () if self.lines.closed else (fileno,)
            with suppress(UnavailableError):
                wait_any([peer], max(0.0, min(sent, asked) + BEAT_SECONDS - time.monotonic()), *watched)
            if not self.lines.closed:
                for line in self.lines.read():
                    if line == PONG:  # the first comes when it has imported its libraries
                        answered = time.monotonic()
                    else:
                        self.outbox.add(line)
                        changed = True
            if self.lines.closed and ends_at is None:
                ends_at, changed = time.monotonic() + CLOSING_SECONDS, True
            with suppress(UnavailableError):  # the connection is being made again
                while (frame := peer.receive(0.0)) is not None:
                    if frame.kind == "relay.refused":
                        return
                    if (message := parse(frame)) is not None:
                        heard = time.monotonic()
                        lines = self.outbox.take(message)
                        changed = changed or bool(lines)
                        if not self.lines.closed:
                            self.lines.write(lines)
            if time.monotonic() - asked >= BEAT_SECONDS:
                asked = time.monotonic()
                if not self.lines.closed:
                    self.lines.write([PING])
            if changed or time.monotonic() - sent >= BEAT_SECONDS:
                sent = time.monotonic()
                message = self.outbox.message()
                ended = ends_at is not None and len(message["lines"]) == len(self.outbox.waiting)
                with suppress(UnavailableError):
                    about = {"host": f"{self.name} {self.incarnation}", "ended": ended}
                    peer.send("relay.lines", {**about, **message})


def first_to_accept(addresses: Sequence[str], timeout: float) -> list[str]:
    """Return the addresses (host:port) that accept a TCP connection within ``timeout`` seconds, in order.

    Once one has accepted, the others get a moment more.
    """
    deadline, accepted = time.monotonic() + timeout, set[str]()
    waiting: dict[str, socket.socket] = {}
    while (left := deadline - time.monotonic()) > 0:
        for address in dict.fromkeys(addresses):
            if address not in accepted and address not in waiting:
                with suppress(OSError):  # an unknown name
                    waiting[address] = begin_connection(address)
        poller = select.poll()
        for one in waiting.values():
            poller.register(one, select.POLLOUT)
        poller.poll(min(left, AGAIN_SECONDS) * 1000)
        for address, one in [*waiting.items()]:
            failed = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            with suppress(OSError):
                one.getpeername()
                accepted.add(address)
                deadline = min(deadline, time.monotonic() + AGAIN_SECONDS)
            if failed or address in accepted:  # refused: the head may not listen yet
                waiting.pop(address).close()
        if accepted.issuperset(addresses):
            break
    for one in waiting.values():
        one.close()
    return sorted(accepted, key=list(addresses).index)


def begin_connection(address: str) -> socket.socket:
    """Return a socket that is connecting to an address (host:port)."""
    host, _, port = address.rpartition(":")
    family, _, _, _, where = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setblocking(False)
    one.connect_ex(where)
    return one


class HeadRelay:
    """The relay of the head's supervisor, in ``folder``; ``port`` is where hosts dial it."""

    def __init__(self, folder: Path, keys: ClusterKeys, bind: str, port: int) -> None:
        self.folder = folder
        self.listener = Listener(keys, bind, port, MAX_MESSAGE)
        self.hosts: dict[str, _Host] = {}
        self.refused: set[str] = set()
        self.selector = selectors.DefaultSelector()
        for descriptor in self.listener.descriptors():
            self.selector.register(descriptor, selectors.EVENT_READ)

    def run(self) -> None:
        """Carry lines until a signal ends this process, or its supervisor does."""
        while True:
            for key, _ in self.selector.select(BEAT_SECONDS):
                if key.data is not None:
                    self._read(key.data)
            while self.listener.pending():
                self.listener.poll(0)
                while (received := self.listener.receive()) is not None:
                    self._receive(*received)
            now = time.monotonic()
            for host in [one for one in self.hosts.values() if now - one.heard > HEAD_SECONDS]:
                self._remove(host)

    def _receive(self, caller: Caller, frame: Frame) -> None:
        message, name = parse(frame), str(frame.meta.get("host", ""))[:200]
        if message is None or not name:
            return
        host = self.hosts.get(name)
        if host is None and name not in self.refused:
            host = self._add(name)
        if host is None:
            self._refuse(caller)
            return
        host.caller, host.heard = caller, time.monotonic()
        host.lines.write(host.outbox.take(message))
        host.send()
        if message.get("ended"):
            self._remove(host)
            self._refuse(caller)
        elif host.lines.closed:
            self._remove(host)

    def _refuse(self, caller: Caller) -> None:
        with suppress(UnavailableError):
            caller.push(Frame("relay.refused"))

    def _add(self, name: str) -> _Host | None:
        from nbdist.cluster.supervisor.process import connect_supervisor

        try:
            lines = Lines(connect_supervisor(self.folder))
        except OSError:  # it is ending
            return None
        host = self.hosts[name] = _Host(name, lines)
        self.selector.register(lines.connection, selectors.EVENT_READ, host)
        return host

    def _read(self, host: _Host) -> None:
        lines = host.lines.read()
        try:
            for line in lines:
                host.outbox.add(line)
        except UnavailableError:
            host.lines.closed = True
        if lines:
            host.send()
        if host.lines.closed:
            self._remove(host)

    def _remove(self, host: _Host) -> None:
        """Close the connection of a host that has ended or is lost, and never take it again."""
        if self.hosts.pop(host.name, None) is not None:
            self.selector.unregister(host.lines.connection)
            host.lines.close()
            self.refused.add(host.name)


@dataclass(eq=False)
class _Host:
    """A host that has dialled the head."""

    name: str
    lines: Lines
    outbox: Outbox = field(default_factory=Outbox)
    caller: Caller | None = None
    heard: float = field(default_factory=time.monotonic)

    def send(self) -> None:
        """Send the lines that the host has not confirmed; also a heartbeat, without any."""
        if self.caller is not None:
            with suppress(UnavailableError):  # it will connect again, or is lost
                self.caller.push(Frame("relay.lines", self.outbox.message()))


def run_head_relay(folder: Path, keys: dict[str, str], bind: str, port: int) -> None:
    """Be the head's relay. Runs in a fresh fork of the supervisor, which ends it."""
    os.umask(0o077)
    HeadRelay(folder, ClusterKeys.from_dict(keys), bind, port).run()
