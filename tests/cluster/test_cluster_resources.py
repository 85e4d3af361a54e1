from __future__ import annotations

from typing import Any

import pytest

from nbdist.cluster.resources import (
    MEMORY_VARIABLE,
    THREAD_VARIABLES,
    parse_memory,
    plan_tasks,
)
from nbdist.errors import InvalidArgumentError
from nbdist.machine import count_cores


def test_ranks_are_workers_then_parameter_servers() -> None:
    plans = plan_tasks(3, 2, cores=4)
    assert [plan.name for plan in plans] == [
        "/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2", "/job:ps/task:0", "/job:ps/task:1",
    ]  # fmt: skip
    assert [plan.rank for plan in plans] == [0, 1, 2, 3, 4]
    assert plans[3].environment["NBDIST_JOB"] == "ps"
    assert plans[3].environment["NBDIST_INDEX"] == "0"
    assert plans[3].environment["NBDIST_RANK"] == "3"


@pytest.mark.parametrize(
    ("workers", "ps", "cores", "threads", "expected"),
    [
        (1, 0, 8, None, "8"),
        (2, 0, 8, None, "4"),
        (3, 1, 8, None, "2"),
        (3, 1, 2, None, "1"),
        (3, 1, 2, 6, "6"),
    ],
)
def test_cores_are_shared(workers: int, ps: int, cores: int, threads: int | None, expected: str) -> None:
    for plan in plan_tasks(workers, ps, cores=cores, threads=threads):
        assert {plan.environment[name] for name in THREAD_VARIABLES} == {expected}


def test_each_worker_gets_a_gpu_and_no_parameter_server_does() -> None:
    plans = plan_tasks(3, 1, cores=4, gpus=("2", "3"), gpu_memory=0.4)
    assert [plan.environment["CUDA_VISIBLE_DEVICES"] for plan in plans] == ["2", "3", "2", "-1"]
    assert [plan.device for plan in plans] == ["GPU:0", "GPU:0", "GPU:0", "CPU:0"]
    assert plans[0].environment["CUPY_GPU_MEMORY_LIMIT"] == "40%"
    assert "CUPY_GPU_MEMORY_LIMIT" not in plans[3].environment
    assert {plan.device for plan in plan_tasks(2, 1, cores=4)} == {"CPU:0"}
    assert {plan.environment["CUDA_VISIBLE_DEVICES"] for plan in plan_tasks(2, 1, cores=4)} == {"-1"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": -1}, "workers"),
        ({"workers": 1.5}, "workers"),
        ({"workers": True}, "workers"),
        ({"workers": 1, "ps": -1}, "ps"),
        ({"workers": 1, "data": -1}, "data"),
        ({"workers": 1, "threads": 0}, "threads"),
        ({"workers": 1, "gpu_memory": 0}, "gpu_memory"),
        ({"workers": 1, "gpu_memory": 1.5}, "gpu_memory"),
    ],
)
def test_invalid_numbers(values: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        plan_tasks(**values, cores=2)


def test_counting_this_host() -> None:
    assert count_cores() >= 1


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, None),
        (500_000, 500_000),
        ("300M", 300 << 20),
        ("2g", 2 << 30),
        ("64.5 KB", 66048),
        ("7MiB", 7 << 20),
    ],
)
def test_memory_is_a_number_of_bytes_or_a_text(asked: str | int | None, expected: int | None) -> None:
    assert parse_memory(asked) == expected


@pytest.mark.parametrize("asked", [0, -1, True, "much", "3T", "1.5.2M", ""])
def test_invalid_memory(asked: str | int) -> None:
    with pytest.raises(InvalidArgumentError, match="memory is a number of bytes or a text such as 300M"):
        parse_memory(asked)


@pytest.mark.parametrize("asked", [12, "12", "1K", "63.9K"])
def test_memory_that_holds_nothing(asked: str | int) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 64K; M and G stand for"):
        parse_memory(asked)


@pytest.mark.parametrize("asked", ["9" * 30 + "G", "9" * 400 + "G", 1 << 60])
def test_memory_that_no_host_has(asked: str | int) -> None:
    with pytest.raises(InvalidArgumentError, match="more than any host has"):
        parse_memory(asked)


def test_each_task_has_its_memory_limit() -> None:
    for task in plan_tasks(2, 1, cores=4, memory=1000):
        assert task.environment[MEMORY_VARIABLE] == "1000"
    assert MEMORY_VARIABLE not in plan_tasks(1, cores=4)[0].environment
