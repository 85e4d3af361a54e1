"""Interrupts are held back from a block, and handled afterwards by the handler that was there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from nbdist import interrupts
from nbdist.interrupts import HeldInterrupts


def signalled() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The interrupts that a handler of the user's gets."""
    found: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_delayed() -> None:
    done: list[object] = []

    def interrupted() -> None:
        with HeldInterrupts():
            signalled()
            done.append("all")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    thread = threading.Thread(target=lambda: done.append(HeldInterrupts().__enter__()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_that_is_replaced_gets_each_interrupt(handled: list[int]) -> None:
    with HeldInterrupts(), HeldInterrupts():
        signalled(), signalled(), signalled()
        assert handled == []
    assert handled == [signal.SIGINT] * 3


def test_a_block_that_hangs_is_cut_off_once(handled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    with HeldInterrupts():
        signalled(), signalled(), signalled()
        now[0] = interrupts.HELD_SECONDS
        with pytest.raises(KeyboardInterrupt):
            signalled()
        assert handled == [signal.SIGINT] * 4
        signalled(), signalled()
    assert handled == [signal.SIGINT] * 6
