"""What a run may be asked for, which tasks it runs on, and when it is pressed to end. Pure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.distribute.registry import STRATEGIES
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, TaskDiedError
from nbdist.run.options import Options, check_numbers, parse_on, select
from nbdist.run.recovery.shutdown import ABORT_SECONDS, GIVE_UP_AFTER, REPLACE_AFTER, SIGNAL_AFTER, Escalation
from nbdist.run.start import check_alive, start_run
from nbdist.runtime.task import TaskInfo


def task(job: str, index: int) -> TaskInfo:
    return TaskInfo(job, index, index, "host", 1, "127.0.0.1:1", "CPU:0", 1)


ROSTER = (task("ps", 0), *(task("worker", i) for i in (2, 0, 1, 5)), task("chief", 0))


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (None, [0, 1, 2, 5]),
        ("worker", [0, 1, 2, 5]),
        ("worker:1", [1]),
        ("worker:0-2", [0, 1, 2]),
        ("worker:5,0", [0, 5]),
        ("worker:0-1,1-2,5", [0, 1, 2, 5]),
        ("chief", [0]),
    ],
)
def test_selections(on: str | None, expected: list[int]) -> None:
    chosen = select(ROSTER, on)
    assert [info.index for info in chosen] == expected
    assert {info.job for info in chosen} == {"chief" if on == "chief" else "worker"}


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("worker:", r"--on takes a job and task numbers such as worker:0-2 or worker:0,2, got 'worker:'"),
        ("worker:a", "got 'worker:a'"),
        ("worker:1-", "got 'worker:1-'"),
        ("worker:-1", "got 'worker:-1'"),
        ("worker:1,,2", "got 'worker:1,,2'"),
        ("worker 1", "no job 'worker 1'"),
        (":1", "got ':1'"),
        ("worker:2-1", "2-1 counts backwards"),
        ("evaluator", "no job 'evaluator'; its jobs are chief, ps, worker"),
        ("worker:3-4", "no task 3, 4 in job 'worker'; it has 0 to 5"),
        ("ps:0", "a body runs on workers; parameter servers only keep parameters"),
    ],
)
def test_selections_that_select_nothing(on: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        select(ROSTER, on)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_a_selection_says_what_it_selects(numbers: list[int]) -> None:
    assert parse_on("w:" + ",".join(map(str, numbers))) == ("w", sorted(set(numbers)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"strategy": "pss"},
            f"no --strategy 'pss'; choose from {', '.join(STRATEGIES)}; did you mean ps?",
        ),
        ({"replication": "in"}, "no --replication 'in'; choose from between-graph, in-graph"),
        ({"replication": "in-graph", "strategy": "one_device"}, "drop one of the two"),
        ({"replication": "in-graph", "strategy": "mirrored"}, "or take --strategy central or ps"),
        ({"replication": "in-graph", "backups": 1}, "--backups 1 belongs to --replication between-graph"),
        ({"strategy": "multi_worker", "synchronous": False}, "multi_worker make every step together: drop"),
        ({"strategy": "elastic", "synchronous": True}, "elastic make steps of their own: drop --sync"),
        ({"strategy": "ps", "every": 3}, "--every belongs to --strategy elastic, not ps"),
        ({"strategy": "ps", "backups": 1}, "--backups belongs to --sync"),
        ({"strategy": "ps", "synchronous": True, "staleness": 1}, "--staleness belongs to --async"),
        ({"synchronous": True, "backups": 1, "aggregate": 2}, "say the same .*: give one"),
        ({"synchronous": True, "backups": -1}, "--backups is a whole number of 0 or more, got -1"),
        ({"synchronous": True, "aggregate": 0}, "--aggregate is a whole number of 1 or more, got 0"),
        ({"staleness": 1.5}, "--staleness is a whole number of 0 or more, got 1.5"),
        ({"every": 0}, "--every is a whole number of 1 or more, got 0"),
        ({"alpha": 2.0}, "--alpha is a number above 0 and at most 1, got 2.0"),
        ({"stage": 4}, "--stage is 1, 2 or 3, got 4"),
        ({"collective": "smoke"}, "no --collective 'smoke'; choose from auto, local, shm, ring"),
        ({"replication": "in-graph", "data": "disk"}, "no --data 'disk'; choose from client, workers"),
        ({"data": "workers"}, "--data workers belongs to --replication in-graph; .* drop --data"),
        (
            {"data": "service", "replication": "in-graph"},
            "--data service belongs to --replication between-graph",
        ),
        ({"transport": "pigeon"}, "no --transport 'pigeon'; choose from auto, socket"),
        ({"epochs": 0}, "--epochs is a whole number of 1 or more, got 0"),
        ({"seed": -1}, "--seed is a whole number of 0 or more, got -1"),
        ({"on": "worker:x"}, "--on takes a job"),
        ({"on": ""}, r"--on takes a job and task numbers.*got ''"),
        ({"ps_replicas": 2}, "--ps-replicas is 0 or 1, got 2"),
        ({"fetch": ("a", "b c")}, "--fetch takes names of variables, such as --fetch x,y; got 'b c'"),
        (
            {"strategy": "multi_worker", "collective": "mpi", "max_restarts": 2},
            "--max-restarts 2 with --collective mpi: an MPI world takes no new process, .* --collective ring",
        ),
        (
            {"strategy": "central", "max_restarts": 2},
            "--max-restarts 2 belongs to --strategy .*multi_worker.*; central replaces no workers: drop it",
        ),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Options(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"synchronous": True, "backups": 3}, "--backups 3 of 3 workers leaves none .* at most 2 can be"),
        ({"collective": "local"}, "--collective local is for one worker alone, and 3 take part"),
        ({"strategy": "mirrored", "min_workers": 4}, "--min-workers 4: only 3 workers take part"),
        ({"ps_replicas": 1}, "--ps-replicas 1 .* the cluster has 1: restart it with 2 or more"),
    ],
)
def test_more_than_there_are(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        check_numbers(Options(**options), 3, 1)


def test_a_strategy_that_was_not_chosen_limits_no_workers() -> None:
    check_numbers(Options(), 3, 1)
    check_numbers(Options(strategy="multi_worker"), 3, 0)
    with pytest.raises(InvalidArgumentError, match="--strategy tpu trains in one process"):
        check_numbers(Options(strategy="tpu"), 3, 0)


def test_which_options_ask_for_training() -> None:
    assert not Options().wants_training
    plain = Options(seed=3, on="worker:0", fetch=("a",), live=("loss",), collective="ring")
    assert not plain.wants_training
    for options in (
        {"strategy": "one_device"},
        {"synchronous": True},
        {"staleness": 3},
        {"epochs": 2},
        {"replication": "in-graph", "data": "workers"},
    ):
        assert Options(**options).wants_training  # type: ignore[arg-type]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_escalation_signals_and_then_replaces() -> None:
    clock = Clock()
    escalation = Escalation(clock)
    assert escalation.due() is None
    escalation.begin()
    clock.now += SIGNAL_AFTER - 0.1
    assert escalation.due() is None
    clock.now += 0.2
    assert escalation.due() == "signal"
    assert escalation.due() is None
    clock.now += REPLACE_AFTER
    assert escalation.due() == "replace"
    assert escalation.due() is None


def test_a_second_interrupt_hurries_to_the_signal_only() -> None:
    clock = Clock()
    escalation = Escalation(clock)
    assert escalation.interrupt()
    assert not escalation.interrupt()
    assert escalation.due() == "signal"
    assert not escalation.interrupt()
    assert escalation.due() is None
    clock.now += REPLACE_AFTER
    assert escalation.due() == "replace"


def test_an_escalation_that_aborts_does_so_before_it_signals() -> None:
    clock = Clock()
    escalation = Escalation(clock, aborts=True)
    assert escalation.interrupt()
    clock.now += SIGNAL_AFTER
    assert (escalation.due(), escalation.due()) == ("abort", None)
    clock.now += ABORT_SECONDS
    assert (escalation.due(), escalation.due()) == ("signal", None)
    clock.now += GIVE_UP_AFTER
    assert escalation.due() == "give up"


def test_a_second_interrupt_hurries_through_abort_and_signal() -> None:
    escalation = Escalation(Clock(), aborts=True)
    assert escalation.interrupt()
    assert not escalation.interrupt()
    assert (escalation.due(), escalation.due(), escalation.due()) == ("abort", "signal", None)


def test_an_abort_does_not_start_the_clock_again() -> None:
    clock = Clock()
    escalation = Escalation(clock)
    escalation.interrupt()
    clock.now += SIGNAL_AFTER
    assert escalation.due() == "signal"
    clock.now += REPLACE_AFTER - SIGNAL_AFTER - 0.1
    escalation.begin()
    assert escalation.due() is None
    clock.now += 0.2
    assert escalation.due() == "replace"


def test_an_interrupt_after_an_abort_hurries_too() -> None:
    escalation = Escalation(Clock())
    escalation.begin()
    assert not escalation.interrupt()
    assert escalation.due() == "signal"


def test_a_run_beside_one_whose_task_has_died() -> None:
    """Another run under way handles the death: to restart the task by hand would be in its way."""
    workers = [task("worker", 0), task("worker", 1)]
    cluster: Any = SimpleNamespace(
        id="c", tasks=workers, active_runs={"a_run"}, check_running=lambda: None, dead=lambda: workers[1:],
        check_job=lambda: None,
    )  # fmt: skip
    check_alive(cluster, workers[:1])
    with pytest.raises(
        FailedPreconditionError, match=r"has died, and run a_run.*attach\('a_run'\)\.wait\(\)"
    ):
        check_alive(cluster, workers)
    cluster.active_runs.clear()
    with pytest.raises(TaskDiedError, match=r"%cluster restart worker:1"):
        check_alive(cluster, workers)


def test_an_unknown_run_is_refused_before_a_cluster_is_started() -> None:
    said: list[str] = []
    with pytest.raises(NotFoundError, match=r"--resume: no run .never-was"):
        start_run("x = 1", Options(resume="never-was"), report=said.append)
    assert said == []
