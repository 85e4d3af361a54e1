"""The pipe between two tasks of a host: full, deserted, fed with garbage, or not there."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from wire_post import HOST, KEYS, Open, arrived, ring

from nbdist.errors import AbortedError, UnavailableError
from nbdist.wire.channel.sender import Address, Inbox, Outbox
from nbdist.wire.shm import shared_folder


def test_a_full_pipe_is_waited_for(inbox: Inbox, opened: Open) -> None:
    outbox = opened()

    def write() -> None:
        for step in range(3000):
            outbox.send(1, 7, step, 0, [np.full(100, step)])

    thread = threading.Thread(target=write)
    thread.start()
    for step in range(3000):
        letter = arrived(inbox)
        assert letter.step == step
        assert letter.arrays[0].tolist() == [step] * 100
    thread.join()


def test_a_pipe_that_stays_full_is_an_error_and_loses_nothing(inbox: Inbox, opened: Open) -> None:
    outbox = opened(timeout=0.05, name="/job:worker/task:1")
    sent = 0
    with pytest.raises(UnavailableError, match="/job:worker/task:1 has read nothing for"):  # noqa: PT012
        while True:
            outbox.send(1, 7, sent, 0, [np.zeros(400)])
            sent += 1
    outbox.check()
    assert sent > 5
    for step in range(sent):
        assert arrived(inbox).step == step
    outbox.send(1, 7, sent)
    assert arrived(inbox).step == sent


def test_who_waits_for_room_looks_around_and_may_give_up(inbox: Inbox, prefix: str) -> None:
    looks: list[int] = []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 2:
            raise AbortedError("not needed any more")

    outbox = Outbox(inbox.address, KEYS, host_identity=HOST, prefix=prefix, timeout=20, meanwhile=look)
    with pytest.raises(AbortedError, match="not needed"):  # noqa: PT012 - how much fits is not known
        for step in range(10_000):
            outbox.send(1, plan=1, step=step, arrays=[np.zeros(400)])
    assert looks == [0, 1]
    assert arrived(inbox).step == 0  # it can be written to again
    outbox.send(1, plan=1, step=0, arrays=[np.zeros(4)])
    outbox.close()


def test_a_full_pipe_wakes_too(inbox: Inbox, opened: Open) -> None:
    outbox = opened(timeout=0)
    with pytest.raises(UnavailableError):  # noqa: PT012
        while True:
            outbox.send(1, 7, 1)
    inbox.wake()
    assert inbox.next(0) is None
    assert arrived(inbox).step == 1


def test_two_who_write_to_each_other_do_not_wait_for_each_other(prefix: str) -> None:
    ready = threading.Barrier(2, timeout=20)
    addresses: list[Address] = []
    sums: list[int] = []

    def run() -> None:
        inbox = Inbox(KEYS, prefix, host_identity=HOST)
        addresses.append(inbox.address)
        ready.wait()
        other = next(one for one in addresses if one != inbox.address)
        outbox = Outbox(other, KEYS, host_identity=HOST, prefix=prefix, inbox=inbox, timeout=20)
        for step in range(2000):
            outbox.send(1, 7, step, 0, [np.full(100, step)])
        sums.append(sum(int(arrived(inbox).arrays[0][0]) for _ in range(2000)))
        ready.wait()
        outbox.close()
        inbox.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [sum(range(2000))] * 2


def test_garbage_in_the_pipe_costs_no_letter(
    inbox: Inbox, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = opened()
    for step, garbage in enumerate((b"x", b"\0" * 4096, b"NBL1", b"NBL1" + b"\xff" * 60, os.urandom(3000))):
        ring(inbox, garbage)
        outbox.send(1, 7, step)
        assert arrived(inbox).step == step
        assert inbox.damaged == step + 1
    assert "refused a letter (1 so far)" in caplog.text


def test_without_room_for_a_pipe_the_socket_is_used(
    prefix: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkfifo", full)
    inbox = Inbox(KEYS, prefix, host_identity=HOST)
    assert inbox.address.bell == ""
    assert "No space left on device" in inbox.notes[0]
    outbox = opened(inbox.address)
    assert outbox.kind == "socket"
    outbox.send(1, 7, 1, 0, [np.ones(3)])
    assert arrived(inbox).step == 1
    threading.Timer(0.02, inbox.wake).start()
    assert inbox.next(None) is None
    inbox.close()
    inbox.wake()


def test_a_pipe_that_nobody_reads_is_said_at_once(inbox: Inbox, opened: Open, prefix: str) -> None:
    deserted = shared_folder() / f"{prefix}-deserted"
    os.mkfifo(deserted, 0o600)
    with pytest.raises(UnavailableError, match="no task listens"):
        opened(Address(HOST, deserted.name, inbox.address.socket))
    deserted.unlink()


def test_what_comes_by_socket_does_not_overtake_the_pipe(
    inbox: Inbox, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = opened()
    outbox._connect("for this test")
    outbox.send(1, 7, 1)
    while not inbox._listener.pending() or not inbox._listener.poll(0):
        pass  # the handshake, then the letter
    outbox._peer, peer = None, outbox._peer
    outbox.send(1, 7, 0)
    outbox._peer = peer
    inbox._look_at_socket = True  # before the pipe was looked at
    assert [arrived(inbox).step for _ in range(2)] == [0, 1]
