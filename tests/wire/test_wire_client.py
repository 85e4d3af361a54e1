"""Peer and Listener: answers, pushes, errors, lost connections, and authentication."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq
from waiting import PATIENCE

from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotAllowedError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc import client
from nbdist.wire.rpc.client import Caller, Listener, Peer, wait_any
from nbdist.wire.rpc.envelope import ENVELOPE, PIECE
from nbdist.wire.rpc.frame import MAX_ARRAYS, MAX_BYTES, Frame

Handler = Callable[[Frame, Caller], None]


class Echo:
    """A Listener on its own thread: echoes, fails, pushes or does not answer, by the kind of the call."""

    def __init__(self, **options: object) -> None:
        self.keys = ClusterKeys.create()
        self.listener = Listener(self.keys, **options)  # type: ignore[arg-type]
        self.seen: list[str] = []
        self.ended = False
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while not self.ended:
            if self.listener.poll(0.05):
                while (message := self.listener.receive()) is not None:
                    self.answer(*message)
        self.listener.close()

    def answer(self, sender: Caller, frame: Frame) -> None:
        self.seen.append(frame.kind)
        if frame.kind == "echo":
            sender.reply(frame)
        elif frame.kind == "fail":
            sender.fail(NotFoundError("no variable 'w'"))
        elif frame.kind == "bug":
            sender.fail(ZeroDivisionError("division by zero"), "/job:ps/task:0")
        elif frame.kind == "push":
            for number in range(3):
                sender.push(Frame("pushed", {"n": number}, (np.full(2, number),)))
            sender.reply(Frame("ok"))

    def close(self) -> None:
        self.ended = True
        self.thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    one = Echo()
    yield one
    one.close()


@pytest.fixture
def peer(echo: Echo) -> Iterator[Peer]:
    with Peer(echo.listener.address, echo.keys, name="/job:ps/task:0") as one:
        yield one


def test_a_call_returns_the_reply(peer: Peer) -> None:
    arrays = (np.arange(6.0).reshape(2, 3), np.zeros((0, 4), np.int8), np.array(True))
    reply = peer.call("echo", {"name": "w", "shape": [2, 3], "none": None}, arrays)
    assert reply.meta == {"name": "w", "shape": [2, 3], "none": None}
    for ours, theirs in zip(arrays, reply.arrays, strict=True):
        np.testing.assert_array_equal(theirs, ours)
        assert theirs.dtype == ours.dtype


def test_large_arrays_arrive(peer: Peer) -> None:
    array = np.random.default_rng(0).random(1_000_000)
    np.testing.assert_array_equal(peer.call("echo", {}, [array]).arrays[0], array)


def test_remote_errors_keep_their_class(peer: Peer) -> None:
    with pytest.raises(NotFoundError, match="no variable 'w'"):
        peer.call("fail")
    with pytest.raises(NbdistError, match="ZeroDivisionError on /job:ps/task:0: division by zero"):
        peer.call("bug")
    assert peer.call("echo").kind == "echo"


def test_pushed_frames_are_received_in_order(peer: Peer) -> None:
    peer.call("push")
    numbers = []
    for _ in range(3):
        frame = peer.receive(5)
        assert frame is not None
        numbers.append((frame.meta["n"], frame.arrays[0].tolist()))
    assert numbers == [(0, [0, 0]), (1, [1, 1]), (2, [2, 2])]
    assert peer.receive(0.01) is None


def test_send_has_no_reply(echo: Echo, peer: Peer) -> None:
    peer.send("echo", {"one": "way"})
    assert peer.call("echo", {"n": 2}).meta == {"n": 2}
    assert echo.seen == ["echo", "echo"]


def test_a_call_that_is_not_answered_names_the_task_and_later_calls_work(peer: Peer) -> None:
    with pytest.raises(
        UnavailableError, match=r"/job:ps/task:0 at .* did not answer 'silence' within 0\.1 s"
    ):
        peer.call("silence", timeout=0.1)
    assert peer.call("echo", {"n": 1}).meta == {"n": 1}


def test_many_threads_may_share_a_peer(peer: Peer) -> None:
    wrong: list[int] = []

    def calls(number: int) -> None:
        wrong.extend(number for _ in range(50) if peer.call("echo", {"n": number}).meta["n"] != number)

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_closed_listener_is_detected_before_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RECONNECT_SECONDS", 0.3)
    echo = Echo()
    with Peer(echo.listener.address, echo.keys, timeout=30) as peer:
        peer.call("echo")
        threading.Timer(0.1, echo.close).start()
        begun = time.monotonic()
        with pytest.raises(UnavailableError, match="was lost during 'silence'"):
            peer.call("silence")
        with pytest.raises(UnavailableError, match=r"did not answer|was lost"):
            peer.call("echo")  # still closed: the call waits for RECONNECT_SECONDS only
        assert time.monotonic() - begun < 15  # either call may take 30 s


def test_check_does_not_wait() -> None:
    echo = Echo()
    with Peer(echo.listener.address, echo.keys, name="/job:ps/task:0") as peer:
        peer.check()
        peer.call("echo")
        peer.check()
        echo.close()
        deadline = time.monotonic() + 20
        with pytest.raises(UnavailableError, match=r"/job:ps/task:0 at .* was lost, and"):  # noqa: PT012
            while time.monotonic() < deadline:
                peer.check()
        with pytest.raises(UnavailableError, match="was lost"):
            peer.check()


def test_waiting_for_several_peers_ends_at_the_first_message(echo: Echo, peer: Peer) -> None:
    with Peer(echo.listener.address, echo.keys) as other:
        pending = other.ask("echo")
        wait_any([peer, other], 60.0)
        assert other.answer(pending).kind == "echo"
    readable, writable = os.pipe()
    os.write(writable, b".")
    wait_any([peer], 60.0, readable)
    os.close(readable)
    os.close(writable)


def test_a_peer_is_not_closed_while_another_thread_waits_for_it(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls, closed_then = threading.Event(), []

    class Poller(zmq.Poller):
        def poll(self, timeout: int | None = None) -> list[tuple[object, int]]:
            polls.set()
            found = super().poll(timeout)
            closed_then.append(peer._socket.closed)
            return found

    peer = Peer(echo.listener.address, echo.keys, name="/job:worker/task:0")
    peer.call("echo")
    monkeypatch.setattr(client.zmq, "Poller", Poller)
    readable, writable = os.pipe()
    waiter = threading.Thread(target=wait_any, args=([peer], 60.0, readable))
    closer = threading.Thread(target=peer.close)
    waiter.start()
    assert polls.wait(20)
    closer.start()
    closer.join(0.1)
    os.write(writable, b".")
    for one in (waiter, closer):
        one.join(20)
    assert closed_then == [False]
    with pytest.raises(UnavailableError, match=r"worker/task:0 at .* was closed here"):
        wait_any([peer], 0.0)
    os.close(readable)
    os.close(writable)


def test_a_closed_peer_raises(echo: Echo) -> None:
    peer = Peer(echo.listener.address, echo.keys)
    peer.close()
    peer.close()
    for act in (lambda: peer.call("echo"), peer.check):
        with pytest.raises(UnavailableError, match="closed here"):
            act()


def test_values_that_cannot_be_encoded_are_not_sent(echo: Echo, peer: Peer) -> None:
    with pytest.raises(InvalidArgumentError):
        peer.call("echo", {"f": print})
    assert peer.call("echo").kind == "echo"
    assert echo.seen == ["echo"]


def test_a_port_in_use_is_named_in_the_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FailedPreconditionError, match=f"port {port} on 127.0.0.1 is in use"):
            Listener(ClusterKeys.create(), port=port)
    for host in ("no.such.host.invalid", "192.0.2.1"):
        with pytest.raises(FailedPreconditionError, match="cannot listen"):
            Listener(ClusterKeys.create(), host=host)
    with pytest.raises(InvalidArgumentError, match="70000"):
        Listener(ClusterKeys.create(), port=70000)


def test_other_keys_are_not_admitted(echo: Echo, peer: Peer) -> None:
    peer.call("echo")
    stranger = ClusterKeys.create()
    # A client without the server's key, and one with it but with another key of its own.
    half = ClusterKeys(stranger.public, stranger.secret)
    for server_key in (stranger.public, echo.keys.public):
        with Peer(echo.listener.address, half) as other:
            other._socket.disconnect(f"tcp://{other.address}")
            other._socket.curve_serverkey = server_key.encode()
            other._socket.connect(f"tcp://{other.address}")
            with pytest.raises((UnavailableError, NotAllowedError)):
                other.call("echo", {"from": "stranger"})
            deadline = time.monotonic() + 10
            while server_key == echo.keys.public and not echo.listener.refused:
                # The call above may have failed because of the end of the first connection.
                assert time.monotonic() < deadline
                with pytest.raises((UnavailableError, NotAllowedError)):
                    other.call("echo", {"from": "stranger"})
    assert echo.seen == ["echo"]
    assert peer.call("echo").kind == "echo"


def test_other_keys_raise_not_allowed_after_three_attempts(echo: Echo) -> None:
    """A Listener cannot decrypt such a handshake and resets the connection; the third reset is an answer."""
    errors: list[NbdistError] = []
    with Peer(echo.listener.address, ClusterKeys.create(), name="/job:ps/task:0") as other:
        for _ in range(3):
            try:
                other.call("echo", timeout=5.0)
            except NbdistError as error:
                errors.append(error)
    assert [type(error) for error in errors] == [UnavailableError, UnavailableError, NotAllowedError]
    assert "/job:ps/task:0" in str(errors[-1])
    assert "rejected the cluster key, or is not a task of this cluster" in str(errors[-1])
    assert echo.seen == []


def test_only_the_curve_mechanism_is_accepted(echo: Echo, peer: Peer) -> None:
    context: zmq.Context = zmq.Context()
    with context.socket(zmq.DEALER) as null, context.socket(zmq.DEALER) as plain:
        plain.plain_username, plain.plain_password = b"user", b"pass"
        poller = zmq.Poller()
        for one in (null, plain):
            one.linger = 0
            one.connect(f"tcp://{echo.listener.address}")
            with suppress(zmq.Again):  # it was refused already, and does not connect again
                one.send(b"hello", zmq.NOBLOCK)
            poller.register(one, zmq.POLLIN)
        assert poller.poll(300) == []
    context.term()
    assert echo.seen == []
    assert peer.call("echo").kind == "echo"


def test_damaged_messages_are_answered_and_dropped(echo: Echo, peer: Peer) -> None:
    with peer._lock:
        for garbage in ([b""], [b"x"], [b"\x80\x04garbage" * 3], [ENVELOPE.pack(9, 0) + b"NBD1"]):
            peer._socket.send_multipart(garbage)
        peer._socket.send_multipart([ENVELOPE.pack(1, 2**40) + b"not a frame"])
        message = peer._next(time.monotonic() + 5, "test")
    assert message is not None
    assert message[2].meta["type"] == DataLossError.__name__
    assert peer.call("echo").kind == "echo"
    assert echo.listener.damaged == 5


@pytest.mark.parametrize("arrays", [0, 1, 3])
def test_the_rest_of_a_message_that_was_cut_off_by_an_interrupt_is_dropped(arrays: int) -> None:
    keys = ClusterKeys.create()
    listener = Listener(keys)
    with Peer(listener.address, keys) as peer:
        peer.send("first", {}, [np.zeros(3)] * arrays)
        deadline = time.monotonic() + 10
        while not listener.poll(0.1):
            assert time.monotonic() < deadline
        listener._socket.recv()  # the part that was read when the interrupt came is lost
        peer.send("second", {}, [np.ones(2)])
        while (message := listener.receive()) is None:
            assert time.monotonic() < deadline
            listener.poll(0.1)
        assert message[1].kind == "second"
        assert listener.damaged == 1
    listener.close()


def test_a_message_of_too_many_parts_is_dropped_and_the_next_one_is_not(echo: Echo, peer: Peer) -> None:
    most = 2 + MAX_ARRAYS + MAX_BYTES // PIECE
    with peer._lock:
        peer._socket.send_multipart([ENVELOPE.pack(1, 7) + b"NBD1", *[b""] * (most + 500)])
    assert peer.call("echo").kind == "echo"
    assert echo.listener.damaged == 1
    assert echo.seen == ["echo"]


def test_oversized_messages_are_refused_and_the_next_one_is_not() -> None:
    echo = Echo(max_message_bytes=3 << 20)
    try:
        with Peer(echo.listener.address, echo.keys) as peer:
            for size in (1 << 22, 1 << 23):
                with pytest.raises(ResourceExhaustedError, match="over the limit of 3,145,728"):
                    peer.call("echo", {}, [np.zeros(size, np.uint8)])
            assert peer.call("echo", {}, [np.zeros(1 << 21, np.uint8)]).arrays[0].nbytes == 1 << 21
    finally:
        echo.close()


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7])
def test_parts_of_any_size_are_split_and_joined(peer: Peer, size: int) -> None:
    array = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    reply = peer.call("echo", {"size": size}, [array, np.arange(3.0), array])
    assert [one.shape for one in reply.arrays] == [(size,), (3,), (size,)]
    np.testing.assert_array_equal(reply.arrays[0], array)
    np.testing.assert_array_equal(reply.arrays[2], array)


def test_a_client_that_is_not_admitted_cannot_exhaust_memory(echo: Echo, peer: Peer) -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    host, _, port = echo.listener.address.rpartition(":")
    before = psutil.Process().memory_info().rss
    with socket.create_connection((host, int(port))) as one:
        one.sendall(greeting + b"\x06" + (1 << 29).to_bytes(8, "big"))
        with pytest.raises(OSError):  # noqa: PT012 - which of the writes fails varies
            one.settimeout(10)
            for _ in range(1 << 9):
                one.sendall(bytes(1 << 20))
    assert psutil.Process().memory_info().rss - before < 32e6
    assert peer.call("echo").kind == "echo"


AS_OTHER_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
ATTACK = (Path(__file__).parent.parent / "attack.py").read_text()


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_call_nor_read(echo: Echo, peer: Peer) -> None:
    secret = np.frombuffer(b"SECRET PAYLOAD " * 1000, np.uint8)
    peer.call("echo", {}, [secret])
    before = psutil.Process().memory_info().rss
    host, _, port = echo.listener.address.rpartition(":")
    command = [*AS_OTHER_USER, sys.executable, "-c", ATTACK, host, port, echo.keys.public]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/") as attack:
        while attack.poll() is None:  # the cluster works during the attack
            np.testing.assert_array_equal(peer.call("echo", {}, [secret]).arrays[0], secret)
        got = attack.communicate()[0]
    assert attack.returncode == 0
    assert b"SECRET" not in got
    assert b"ANSWERED" not in got
    assert set(echo.seen) == {"echo"}
    assert psutil.Process().memory_info().rss - before < 100e6


def test_receive_raises_if_the_address_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.05)
    with (
        Peer("127.0.0.1:9", ClusterKeys.create(), name="/job:ps/task:0") as peer,
        pytest.raises(UnavailableError, match=r"/job:ps/task:0 at 127\.0\.0\.1:9 could not be reached"),
    ):
        list(iter(lambda: peer.receive(0.02), "no frame comes"))


def test_a_slow_handshake_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Peer(address, ClusterKeys.create()) as peer:
            assert peer.receive(0.2) is None
            monkeypatch.setattr(client, "HANDSHAKE_SECONDS", 0.2)
            with pytest.raises(UnavailableError, match="could not be reached within"):
                peer.receive(0.1)


def test_a_peer_waits_until_it_is_connected(echo: Echo) -> None:
    with Peer(echo.listener.address, echo.keys) as peer:
        peer.wait_connected()
        peer.wait_connected()
        assert peer.call("echo", {"a": 1}).meta == {"a": 1}


def test_a_thread_that_comes_late_finds_the_connection_made(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.0)
    with Peer(echo.listener.address, echo.keys) as peer:
        assert peer._monitor.poll(int(PATIENCE * 1000))
        peer.wait_connected()


def test_a_peer_that_cannot_be_reached_does_not_wait_forever(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbdist.wire.rpc.client.CONNECT_SECONDS", 0.3)
    with (
        Peer("127.0.0.1:1", echo.keys) as peer,
        pytest.raises(UnavailableError, match="could not be reached"),
    ):
        peer.wait_connected()


def test_an_address_that_hangs_up_blocks_no_other_connection(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes more events than ZeroMQ's queues hold, and nothing reads them."""

    def hurried(socket: zmq.Socket[bytes]) -> None:
        limits(socket)
        socket.reconnect_ivl = socket.reconnect_ivl_max = 1

    limits = client.set_limits
    monkeypatch.setattr(client, "set_limits", hurried)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        peer = Peer(f"127.0.0.1:{server.getsockname()[1]}", echo.keys)
        for _ in range(800):  # with three events each; the queues held 2,000
            server.accept()[0].close()
        peer.close()


OTHER = """
import sys
from nbdist.errors import UnavailableError
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Listener
from nbdist.wire.rpc.frame import Frame

listener = Listener(ClusterKeys.load(sys.argv[1]), "127.0.0.1", 0)
print(listener.address, flush=True)
while (got := listener.receive()) is None:
    listener.poll(60)
number = 0
while number < 5000:
    try:
        got[0].push(Frame("news", {"number": number}))
        number += 1
    except UnavailableError:
        listener.poll(0.01)
print("pushed", flush=True)
listener.poll(60)
"""
READER = """
import subprocess, sys
from nbdist.errors import UnavailableError
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc import envelope
from nbdist.wire.rpc.client import Peer

envelope.HEARTBEAT_MS = 20
other = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], stdout=subprocess.PIPE, text=True)
peer = Peer(other.stdout.readline().strip(), ClusterKeys.load(sys.argv[1]))
peer.send("hello")
assert other.stdout.readline() == "pushed\\n"
peer.wait_connected()
other.kill()
other.wait()
peer._monitor.poll(10_000)  # its end is noticed; the process would have ended at the next heartbeat
read = 0
try:
    while peer.receive(10) is not None:
        read += 1
except UnavailableError:
    print(read)
"""


@pytest.mark.slow
def test_unread_messages_do_not_end_the_process_when_the_other_one_dies(tmp_path: Path) -> None:
    keys = ClusterKeys.create()
    keys.save(tmp_path / "keys")
    command = [sys.executable, "-c", READER, str(tmp_path / "keys"), OTHER]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert 1000 < int(ended.stdout) <= 5000  # ZeroMQ's own limit is 1,000
