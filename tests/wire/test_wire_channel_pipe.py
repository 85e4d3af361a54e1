"""The pipe between two tasks of a host: full, without a reader, with garbage in it, or missing."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from channel_peers import HOST, KEYS, Open, arrived, ring

from nbdist.errors import AbortedError, UnavailableError
from nbdist.wire.channel.sender import Address, MessageReceiver, MessageSender
from nbdist.wire.shm import shared_folder


def test_a_sender_waits_while_the_pipe_is_full(receiver: MessageReceiver, opened: Open) -> None:
    sender = opened()

    def write() -> None:
        for step in range(3000):
            sender.send(1, 7, step, 0, [np.full(100, step)])

    thread = threading.Thread(target=write)
    thread.start()
    for step in range(3000):
        message = arrived(receiver)
        assert message.step == step
        assert message.arrays[0].tolist() == [step] * 100
    thread.join()


def test_a_pipe_that_stays_full_is_an_error_and_loses_nothing(
    receiver: MessageReceiver, opened: Open
) -> None:
    sender = opened(timeout=0.05, name="/job:worker/task:1")
    sent = 0
    with pytest.raises(UnavailableError, match="/job:worker/task:1 has read nothing for"):  # noqa: PT012
        while True:
            sender.send(1, 7, sent, 0, [np.zeros(400)])
            sent += 1
    sender.check()
    assert sent > 5
    for step in range(sent):
        assert arrived(receiver).step == step
    sender.send(1, 7, sent)
    assert arrived(receiver).step == sent


def test_a_wait_for_room_calls_its_abort_check(
    receiver: MessageReceiver, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbdist.wire.channel.sender.CHECK_EVERY", 0.1)
    checks: list[int] = []

    def check() -> None:
        checks.append(len(checks))
        if len(checks) == 2:
            raise AbortedError("no longer needed")

    sender = MessageSender(
        receiver.address, KEYS, host_identity=HOST, prefix=prefix, timeout=20, abort_check=check
    )
    with pytest.raises(AbortedError, match="no longer needed"):  # noqa: PT012 - how much fits is not known
        for step in range(10_000):
            sender.send(1, plan=1, step=step, arrays=[np.zeros(400)])
    assert checks == [0, 1]
    assert arrived(receiver).step == 0  # the sender can be used again
    sender.send(1, plan=1, step=0, arrays=[np.zeros(4)])
    sender.close()


def test_wake_works_while_the_pipe_is_full(receiver: MessageReceiver, opened: Open) -> None:
    sender = opened(timeout=0)
    with pytest.raises(UnavailableError):  # noqa: PT012
        while True:
            sender.send(1, 7, 1)
    receiver.wake()
    assert receiver.next(0) is None
    assert arrived(receiver).step == 1


def test_two_threads_that_write_to_each_other_do_not_deadlock(prefix: str) -> None:
    ready = threading.Barrier(2, timeout=20)
    addresses: list[Address] = []
    sums: list[int] = []

    def run() -> None:
        receiver = MessageReceiver(KEYS, prefix, host_identity=HOST)
        addresses.append(receiver.address)
        ready.wait()
        other = next(one for one in addresses if one != receiver.address)
        sender = MessageSender(other, KEYS, host_identity=HOST, prefix=prefix, receiver=receiver, timeout=20)
        for step in range(2000):
            sender.send(1, 7, step, 0, [np.full(100, step)])
        sums.append(sum(int(arrived(receiver).arrays[0][0]) for _ in range(2000)))
        ready.wait()
        sender.close()
        receiver.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [sum(range(2000))] * 2


def test_garbage_in_the_pipe_loses_no_message(
    receiver: MessageReceiver, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    sender = opened()
    for step, garbage in enumerate((b"x", b"\0" * 4096, b"NBL1", b"NBL1" + b"\xff" * 60, os.urandom(3000))):
        ring(receiver, garbage)
        sender.send(1, 7, step)
        assert arrived(receiver).step == step
        assert receiver.damaged == step + 1
    assert "refused a message (1 so far)" in caplog.text


def test_without_room_for_a_pipe_the_socket_is_used(
    prefix: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkfifo", full)
    receiver = MessageReceiver(KEYS, prefix, host_identity=HOST)
    assert receiver.address.bell == ""
    assert "No space left on device" in receiver.notes[0]
    sender = opened(receiver.address)
    assert sender.kind == "socket"
    sender.send(1, 7, 1, 0, [np.ones(3)])
    assert arrived(receiver).step == 1
    threading.Timer(0.02, receiver.wake).start()
    assert receiver.next(None) is None
    receiver.close()
    receiver.wake()


def test_a_pipe_without_a_reader_raises_immediately(
    receiver: MessageReceiver, opened: Open, prefix: str
) -> None:
    unread = shared_folder() / f"{prefix}-unread"
    os.mkfifo(unread, 0o600)
    with pytest.raises(UnavailableError, match="no task reads"):
        opened(Address(HOST, unread.name, receiver.address.socket))
    unread.unlink()


def test_messages_on_the_socket_do_not_overtake_the_pipe(
    receiver: MessageReceiver, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = opened()
    sender._connect("for this test")
    sender.send(1, 7, 1)
    while not receiver._listener.pending() or not receiver._listener.poll(0):
        pass  # the handshake, then the message
    sender._peer, peer = None, sender._peer
    sender.send(1, 7, 0)
    sender._peer = peer
    receiver._look_at_socket = True  # before the pipe is read
    assert [arrived(receiver).step for _ in range(2)] == [0, 1]
