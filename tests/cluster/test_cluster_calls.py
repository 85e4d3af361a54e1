"""Calls without engines: futures that a test completes."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from nbdist.cluster.calls import Calls, OpeningCall, remote_error
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TaskDiedError,
    WorkerError,
)
from nbdist.runtime.task import TaskInfo

TASKS = {rank: TaskInfo("worker", rank, rank, "host", 100 + rank, "a:1", "CPU:0", 1) for rank in range(3)}


class FakeFuture:
    """A future that is done after a given number of waits."""

    def __init__(self, value: Any, waits: int = 0) -> None:
        self.value, self.waits = value, waits

    def done(self) -> bool:
        return self.waits <= 0

    def wait(self, timeout: float) -> None:
        self.waits -= 1

    def result(self) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class Remote(Exception):
    def __init__(self, ename: str, evalue: str) -> None:
        self.ename, self.evalue, self.traceback = ename, evalue, f"\x1b[31mTraceback\x1b[0m of {ename}"


def calls(*promises: FakeFuture, died: dict[int, TaskDiedError] | None = None) -> Calls:
    return Calls(dict(enumerate(promises)), TASKS, lambda: died or {})


def test_values_by_rank() -> None:
    two = calls(FakeFuture("a", waits=2), FakeFuture("b"))
    assert not two.done()
    assert two.ready_ranks() == [1]
    assert two.outcome(1) == "b"
    with pytest.raises(FailedPreconditionError, match="it is running"):
        two.outcome(0)
    assert two.results() == ["a", "b"]
    assert two.done()


def test_the_last_outcome_and_every_failure_call_back() -> None:
    futures: list[Future[str]] = [Future() for _ in range(4)]
    seen: list[int] = []
    calls = Calls(dict(enumerate(futures)), TASKS, dict)
    calls.when_done(lambda: seen.append(sum(one.done() for one in futures)), failed=lambda one: one == "bad")
    futures[1].set_result("good")
    assert not seen
    futures[2].set_exception(Remote("ValueError", "wrong"))
    futures[0].set_result("bad")
    futures[3].set_result("good")
    assert seen == [2, 3, 4]


def test_an_exception_is_an_outcome_and_ends_results_early() -> None:
    two = calls(FakeFuture("never", waits=1000), FakeFuture(Remote("ValueError", "bad")))
    with pytest.raises(WorkerError, match="ValueError on /job:worker/task:1"):
        two.results()
    assert isinstance(two.outcome(1), WorkerError)
    assert list(two.errors()) == [1]
    assert two.wait(1, first_error=True)
    assert not two.wait(0)


def test_a_dead_task_is_an_outcome_of_its_open_future() -> None:
    died = {0: TaskDiedError("/job:worker/task:0 died")}
    two = calls(FakeFuture("never", waits=1000), FakeFuture("b", waits=1), died=died)
    assert two.wait(5)
    assert two.outcome(0) is died[0]
    assert two.outcome(1) == "b"


def test_a_result_before_a_death_counts() -> None:
    died = {0: TaskDiedError("/job:worker/task:0 died")}
    assert calls(FakeFuture("a"), died=died).outcome(0) == "a"
    lost = type("EngineError", (Exception,), {})("engine died while running")
    assert calls(FakeFuture(lost), died=died).outcome(0) is died[0]


def test_a_timeout_names_the_missing_tasks() -> None:
    with pytest.raises(DeadlineExceededError, match="/job:worker/task:0"):
        calls(FakeFuture("never", waits=1000), FakeFuture("b")).results(timeout=0)


def test_errors_of_nbdist_keep_their_class_and_others_carry_their_traceback() -> None:
    assert isinstance(remote_error(Remote("NotFoundError", "no w"), TASKS[0]), NotFoundError)
    for ename in ("MissingExtra", "KeyError", "annotations"):
        error = remote_error(Remote(ename, "x"), TASKS[2])
        assert isinstance(error, WorkerError)
        assert str(error).startswith(f"Traceback of {ename}")
        assert str(error).endswith(f"{ename} on /job:worker/task:2 (pid 102): x")


def test_an_object_of_a_class_of_the_notebook_is_named() -> None:
    error = Remote("AttributeError", "Can't get attribute 'Settings' on <module '__main__'>")
    assert isinstance(remote_error(error, TASKS[1]), WorkerError)  # the function's own pickle, say
    error.traceback = "line 145, in do_apply\n    unpack_apply_message(bufs)\nAttributeError: ..."
    refused = remote_error(error, TASKS[1])
    assert isinstance(refused, InvalidArgumentError)
    assert str(refused).startswith("the function holds an object of Settings, a class of the notebook")


class FakeView:
    """A view whose calls are dropped, except the one of a given number."""

    def __init__(self, answered: int) -> None:
        self.sent, self._answered = list[tuple[Any, ...]](), answered

    def apply_async(self, function: Any, *arguments: Any) -> Any:
        self.sent.append(arguments)
        number = len(self.sent)
        return SimpleNamespace(
            ready=lambda: number == self._answered,
            get=lambda timeout: function(*arguments),
            wait=lambda timeout: None,
        )


def test_the_first_call_of_an_engine_is_sent_again_until_one_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view = FakeView(answered=3)
    call = OpeningCall(view, pow, 2, 5)
    for now[0], sent in [(0.0, 1), (2.0, 1), (2.1, 2), (6.0, 2)]:
        assert not call.ready()
        assert len(view.sent) == sent
    now[0] = 6.2
    call.ready()
    assert view.sent == [(2, 5)] * 3
    assert call.ready()
    assert call.get() == 32
    now[0] = 100.0
    assert call.ready()
    assert len(view.sent) == 3
