"""Replacements of tasks as procedures: each continues at every poll, on a cluster without processes."""

from __future__ import annotations

from typing import Any

import pytest

from nbdist.errors import FailedPreconditionError, UnavailableError
from nbdist.run.recovery.replacement import Procedure, Procedures
from nbdist.run.recovery.server_recovery import replace_server
from nbdist.run.remote import EndedTasks
from nbdist.runtime.task import TaskInfo


def waiting(times: int, result: Any) -> Procedure[Any]:
    for _ in range(times):
        yield
    if isinstance(result, Exception):
        raise result
    return result


def test_procedures_continue_beside_each_other_and_one_that_fails_ends() -> None:
    procedures = Procedures[str]()
    procedures.begin(waiting(2, "slow"))
    procedures.begin(waiting(1, UnavailableError("it is away")))
    procedures.begin(waiting(0, "at once"))
    assert procedures.poll() == ["at once"]
    with pytest.raises(UnavailableError, match="it is away"):
        procedures.poll()
    assert procedures
    assert procedures.poll() == ["slow"]
    assert not procedures


def test_a_failure_leaves_the_results_of_others() -> None:
    procedures = Procedures[str]()
    procedures.begin(waiting(0, "at once"))
    procedures.begin(waiting(0, UnavailableError("it is away")))
    with pytest.raises(UnavailableError, match="it is away"):
        procedures.poll()
    assert procedures
    assert procedures.poll() == ["at once"]
    assert not procedures
    assert procedures.poll() == []


def server(incarnation: int) -> TaskInfo:
    return TaskInfo("ps", 0, 2, "elsewhere", 100 + incarnation, "127.0.0.1:1", "CPU:0", incarnation)


class Prepared:
    """Has the agent of a process ready, or the reason why there is none."""

    def __init__(self, outcome: Any = None) -> None:
        self.ready, self._outcome = False, outcome

    def ready_ranks(self) -> list[int]:
        return [2] if self.ready else []

    def outcome(self, rank: int) -> Any:
        return self._outcome

    def done(self) -> bool:
        return self.ready


def test_a_server_that_another_client_has_replaced_gets_an_agent() -> None:
    prepared, asked = Prepared(), list[TaskInfo]()
    procedures = Procedures[Any]()

    def prepare(info: TaskInfo) -> Prepared:
        asked.append(info)
        return prepared

    procedures.begin(replace_server(EndedTasks([server(2)]), server(1), "it died", 0.0, 3, prepare))
    assert procedures.poll() == []
    prepared.ready = True
    (found,) = procedures.poll()
    assert asked == [server(2)]
    assert (found.old, found.new, found.how, found.number) == (server(1), server(2), "it died", 3)


@pytest.mark.parametrize(
    ("tasks", "error", "why"),
    [
        ([server(2)], UnavailableError, "its new process 102 could not be prepared: no memory"),
        ([], FailedPreconditionError, "the cluster was made smaller"),
    ],
)
def test_a_server_that_cannot_serve_again_is_an_error(
    tasks: list[TaskInfo], error: type[Exception], why: str
) -> None:
    prepared = Prepared(OSError("no memory"))
    prepared.ready = True
    procedures = Procedures[Any]()
    procedures.begin(replace_server(EndedTasks(tasks), server(1), "it died", 0.0, 1, lambda info: prepared))
    with pytest.raises(error, match=why):
        procedures.poll()
    assert not procedures
