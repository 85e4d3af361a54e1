"""The hosts of a cluster as rows and text, and which tasks a name of the user means."""

from __future__ import annotations

import re

import pytest

from nbdist.cluster.host_status import describe_host, host_rows, tasks_named, time_left
from nbdist.errors import InvalidArgumentError
from nbdist.runtime.task import TaskInfo


def task(rank: int, node: str) -> TaskInfo:
    return TaskInfo("worker", rank, rank, f"identity of {node}", 7, "10.0.0.1:80", "CPU:0", 1, node=node)


GPU_HOST = {"hostname": "gpu1", "address": "10.0.0.1", "cores": 8, "gpus": ["GPU-1", "GPU-2"]}
OWN = {"hostname": "laptop", "address": "127.0.0.1", "cores": 1, "gpus": ()}


@pytest.mark.parametrize(
    ("reports", "slots", "nodes", "expected"),
    [
        ({}, [], ["", ""], [("", "up", [0, 1], "this host (127.0.0.1): 1 core")]),
        (
            {"b": GPU_HOST, "a": {**GPU_HOST, "gpus": []}},
            ["a", "b"],
            ["a", "b", "a"],
            [
                ("a", "up", [0, 2], "host a (10.0.0.1): 8 cores"),
                ("b", "up", [1], "host b (10.0.0.1): 8 cores, 2 GPUs"),
            ],
        ),
        ({}, ["a"], ["a"], [("a", "lost", [0], "host a: lost")]),
        ({}, ["a"], [], [("a", "absent", [], "host a: has not come")]),
        # Names that the cluster was not started on: those of a job's nodes, that an older file does not have.
        ({"n1": GPU_HOST}, [], ["n1"], [("n1", "up", [0], "host n1 (10.0.0.1): 8 cores, 2 GPUs")]),
    ],
)
def test_rows_of_hosts(
    reports: dict[str, dict[str, object]],
    slots: list[str],
    nodes: list[str],
    expected: list[tuple[str, str, list[int], str]],
) -> None:
    rows = host_rows(reports, slots, [task(*one) for one in enumerate(nodes)], OWN, 5000.0)
    assert [(row["name"], row["state"], row["tasks"], describe_host(row)) for row in rows] == expected
    assert [row["ends"] for row in rows] == [5000.0 if row["name"] else None for row in rows]
    assert all((row["cores"] is None) == (row["state"] != "up") for row in rows)


def test_when_the_job_ends() -> None:
    assert time_left(100.0, 55.0) == "job ends in 45.0 s"
    assert time_left(100.0, 100.0) == "job has ended"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("c", "no task 'c'; the tasks are worker:0 (rank 0), worker:1 (rank 1); the hosts are a, 1, empty"),
        ("a:1", "no task 'a:1'"),
        (3, "no task 3"),
        ("1", "'1' names both /job:worker/task:1 and a host: say /job:worker/task:1 for the task"),
        ("empty", "host empty has no task"),
    ],
)
def test_names_that_are_refused(name: int | str, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(problem)):
        tasks_named([task(0, "a"), task(1, "1")], name, ["a", "1", "empty"])


def test_a_rank_is_never_a_host() -> None:
    tasks = [task(0, "a"), task(1, "1")]
    assert tasks_named(tasks, 1, ["a", "1"]) == [tasks[1]]
    assert tasks_named(tasks, " a ", ["a", "1"]) == [tasks[0]]
