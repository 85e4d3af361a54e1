"""Ranks and settings of added workers, and valid numbers to add or remove. Starts nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from nbdist.cluster.folder import FOLDER_VARIABLE
from nbdist.cluster.resize import check_more, last_workers, plan_more
from nbdist.cluster.resources import (
    HERE,
    MEMORY_VARIABLE,
    MOST_TASKS,
    HostResources,
    TaskPlan,
    blas_threads,
    plan_tasks,
    set_blas_threads,
)
from nbdist.cluster.supervisor.engine import run_engine
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.runtime.task import TaskInfo


def info(job: str, index: int, rank: int) -> TaskInfo:
    return TaskInfo(job, index, rank, "here", 7, "127.0.0.1:80", "CPU:0", rank + 1)


EIGHT = {HERE: HostResources(8)}
SMALL = [info("worker", 0, 0), info("worker", 1, 1), info("ps", 0, 2)]


def test_a_new_worker_has_the_next_rank_and_index() -> None:
    assert names_of(plan_more(SMALL, 2, {}, EIGHT, {HERE: 4})) == [(3, "worker:2"), (4, "worker:3")]
    left = [SMALL[0], SMALL[2]]
    assert names_of(plan_more(left, 2, {}, EIGHT, {HERE: 4})) == [(1, "worker:1"), (3, "worker:2")]


def names_of(plans: tuple[TaskPlan, ...]) -> list[tuple[int, str]]:
    return [(plan.rank, f"{plan.job}:{plan.index}") for plan in plans]


@pytest.mark.parametrize("asked", [{}, {"threads": 3}, {"memory": "2G", "gpu_memory": 0.5}])
@pytest.mark.parametrize("gpus", [(), ("4", "5", "6")])
def test_an_added_worker_has_the_settings_of_an_initial_one(
    asked: dict[str, Any], gpus: tuple[str, ...]
) -> None:
    """Except for its rank, which a cluster started with this size gives to the parameter server."""
    (plan,) = plan_more(SMALL, 1, asked, {HERE: HostResources(8, gpus)}, {HERE: 3})
    memory = 2 << 30 if asked.get("memory") else None
    given = {"threads": asked.get("threads"), "gpu_memory": asked.get("gpu_memory"), "memory": memory}
    first = plan_tasks(3, 1, cores=8, gpus=gpus, **given)[2]
    assert (plan.job, plan.index, plan.device) == (first.job, first.index, first.device)
    assert {**plan.environment, "NBDIST_RANK": "2"} == first.environment
    assert plan.threads == asked.get("threads", 2)
    assert (MEMORY_VARIABLE in plan.environment) == ("memory" in asked)


@pytest.mark.parametrize("workers", [0, -1, True, 1.0, "2", None, MOST_TASKS - 2, 10**9])
def test_invalid_numbers_are_refused(workers: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"number of 1 to {MOST_TASKS - 3}, not {workers!r}"):
        check_more(workers, 3)
    with pytest.raises(FailedPreconditionError, match=rf"has {MOST_TASKS} tasks, as many as a host may"):
        check_more(workers, MOST_TASKS)
    with pytest.raises(InvalidArgumentError, match=rf"1 to 1, not {workers!r}: .* has 2 workers"):
        last_workers(SMALL, workers)
    with pytest.raises(FailedPreconditionError, match="one worker, the chief, which stays"):
        last_workers(SMALL[::2], workers)
    with pytest.raises(InvalidArgumentError, match=r"not -2: .*; %cluster shrink ends workers"):
        check_more(-2, 3)


def test_the_last_workers_are_removed() -> None:
    tasks = [info("worker", 0, 0), info("worker", 3, 1), info("ps", 0, 2), info("worker", 1, 3)]
    assert [one.index for one in last_workers([*tasks, info("worker", 2, 4)], 2)] == [2, 3]


def test_a_loaded_blas_changes_its_number_of_threads() -> None:
    before = blas_threads()
    assert before is not None
    try:
        assert set_blas_threads(before + 1)
        assert blas_threads() == before + 1
    finally:
        set_blas_threads(before)
    assert blas_threads() == before


def test_a_task_has_its_threads_although_its_parent_set_the_variable_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = blas_threads()
    assert before is not None
    environment = {"OPENBLAS_NUM_THREADS": str(before + 1)}
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", str(before + 1))  # after OpenBLAS was loaded with another
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    monkeypatch.setattr(sys, "argv", sys.argv)
    try:
        with pytest.raises(InterruptedError):
            run_engine(0, environment, {}, "", 1.0, enter=_stop)
        assert blas_threads() == before + 1
    finally:
        set_blas_threads(before)


def _stop() -> None:
    raise InterruptedError
