"""SIGINT: it ends a body, and never what comes before and after."""

from __future__ import annotations

import signal
import threading

import pytest

from nbdist.run.task.signals import bodies_only, forget, interruptible


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_body_is_interrupted_and_nothing_else() -> None:
    before = signal.getsignal(signal.SIGINT)
    with bodies_only():
        with pytest.raises(KeyboardInterrupt), interruptible():
            interrupt()
        interrupt()  # too late
    assert signal.getsignal(signal.SIGINT) is before


def test_one_that_came_early_is_for_the_body_that_follows() -> None:
    with bodies_only():
        interrupt()
        with pytest.raises(KeyboardInterrupt), interruptible():
            raise AssertionError("it began")
        forget()
        with interruptible():  # this is the next one
            pass


def test_one_for_a_body_that_is_over_is_forgotten() -> None:
    with bodies_only():
        with interruptible():
            pass
        interrupt()
        forget()
        with interruptible():
            pass
    interrupted = False
    try:
        interrupt()
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted


def test_a_thread_without_it_is_as_it_was() -> None:
    done = threading.Event()

    def body() -> None:
        with interruptible():
            done.set()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done.is_set()
