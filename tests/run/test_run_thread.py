"""A body on a thread of this process: its outcome, and an interrupt that reaches no other thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from nbdist.errors import FailedPreconditionError
from nbdist.run.in_graph.thread import BodyThread, Gate

PATIENCE = 10.0


def start_body(body: Callable[[], Any], after: Callable[[], object] = lambda: None) -> BodyThread:
    thread = BodyThread(3, body, after, "a body")
    thread.start()
    return thread


def outcome(thread: BodyThread) -> Any:
    assert thread.wait(PATIENCE)
    assert thread.join(PATIENCE)
    return thread.outcome(3)


def test_a_returned_value_is_the_outcome() -> None:
    ended: list[str] = []
    thread = start_body(lambda: {"x": 1}, lambda: ended.append(threading.current_thread().name))
    assert outcome(thread) == {"x": 1}
    assert (thread.ready_ranks(), thread.done(), ended) == ([3], True, ["a body"])


def test_a_raised_error_is_the_outcome() -> None:
    def body() -> None:
        raise SystemExit(4)

    assert isinstance(outcome(start_body(body)), SystemExit)


def test_a_running_body_has_no_outcome() -> None:
    go = threading.Event()
    thread = start_body(lambda: go.wait(PATIENCE))
    assert thread.begun
    assert thread.ready_ranks() == []
    with pytest.raises(FailedPreconditionError, match="the body is still running"):
        thread.outcome(3)
    go.set()
    assert outcome(thread) is True
    assert not BodyThread(0, lambda: 1, lambda: None, "never").begun


def test_the_thread_has_a_copy_of_the_callers_context() -> None:
    cell: ContextVar[str] = ContextVar("cell", default="none")
    cell.set("this one")

    def body() -> str:
        found = cell.get()
        cell.set("the body's own")
        return found

    assert outcome(start_body(body)) == "this one"
    assert cell.get() == "this one"


# The gate.


def looping(gate: Gate, inside: threading.Event) -> str:
    try:
        with gate:
            inside.set()
            while True:
                pass
    except KeyboardInterrupt:
        return "interrupted"


def test_an_interrupt_reaches_the_thread_inside() -> None:
    gate, inside = Gate(), threading.Event()
    thread = start_body(lambda: looping(gate, inside))
    assert inside.wait(PATIENCE)
    assert gate.interrupt()
    assert outcome(thread) == "interrupted"
    assert not gate.interrupt()  # the body has ended


def test_no_interrupt_arrives_before_or_after_the_gate() -> None:
    gate = Gate()
    assert not gate.interrupt()
    with gate:
        pass
    assert not gate.interrupt()
    for _ in range(100):
        pass


def test_a_swallowed_interrupt_is_not_repeated() -> None:
    gate, inside, go = Gate(), threading.Event(), threading.Event()

    def body() -> str:
        with gate:
            try:
                inside.set()
                while True:
                    pass
            except KeyboardInterrupt:
                go.wait(PATIENCE)
        return "to the end"

    thread = start_body(body)
    assert inside.wait(PATIENCE)
    assert gate.interrupt()
    assert not gate.interrupt()
    go.set()
    assert outcome(thread) == "to the end"


def test_an_interrupt_at_any_moment_arrives_inside_or_not_at_all() -> None:
    """An interrupt at any moment of a short body never reaches the code after it."""
    for _ in range(300):
        gate, ready = Gate(), threading.Event()
        after: list[str] = []

        def body(gate: Gate = gate, ready: threading.Event = ready, after: list[str] = after) -> str:
            how = "ended"
            try:
                with gate:
                    ready.set()
                    sum(range(50))
            except KeyboardInterrupt:
                how = "interrupted"
            for _ in range(200):
                after.append("x")
            return how

        thread = start_body(body)
        ready.wait(PATIENCE)
        sent = gate.interrupt()
        found = outcome(thread)
        assert found in ("ended", "interrupted")
        assert len(after) == 200
        assert sent or found == "ended"


PROFILED = """
import cProfile, threading, time
from nbdist.run.in_graph.thread import Gate

def body(gate, interrupted):
    try:
        with gate:
            begun.set()
            while interrupted:
                time.sleep(0.001)
    except KeyboardInterrupt:
        print("interrupted")

for interrupted in (False, True):
    gate, begun = Gate(), threading.Event()
    thread = threading.Thread(target=body, args=(gate, interrupted))
    thread.start()
    begun.wait()
    if interrupted:
        assert gate.interrupt()
    thread.join()
    cProfile.Profile().runcall(lambda: print("profiled"))
"""


@pytest.mark.processes
def test_a_profiler_of_the_notebook_runs_after_a_body() -> None:
    """CPython 3.11 begins no profiled call while it wants to raise an exception in some thread."""
    ended = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["profiled", "interrupted", "profiled"], ended.stderr
