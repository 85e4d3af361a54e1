"""When a cluster's time is over: the pure decisions, with the time passed in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import nbdist as nb
from nbdist.checkpoint.manager import CheckpointManager, Interval
from nbdist.cluster.next_job import NextJob, next_slots
from nbdist.cluster.supervisor.hosts import Hosts, RemoteHost
from nbdist.cluster.supervisor.process import SupervisorProcess
from nbdist.cluster.time_limits import SAVE_AT_VARIABLE, IdleTimeout, parse_seconds
from nbdist.errors import InvalidArgumentError


@pytest.mark.parametrize("value", ["", "5 years", "-1", -1.0, True, None, float("nan"), "1e9", [5]])
def test_what_is_no_time_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match="idle is a time such as 90s, 5m or 1h"):
        parse_seconds("idle", value)  # type: ignore[arg-type]


def test_a_cluster_in_use_starts_to_count_at_its_end() -> None:
    timeout = IdleTimeout(600.0, used=0.0)
    assert [timeout.expired(now, busy) for now, busy in ((500, True), (1099, False), (1100, False))] == [
        False, False, True,
    ]  # fmt: skip
    assert IdleTimeout(None, 0.0).next_check(1e9) is None
    assert IdleTimeout(600.0, 0.0).next_check(0.0) == 10.0


@pytest.mark.parametrize(
    ("interval", "last", "due"),
    [
        (None, 30.0, [False, False, True]),
        (None, -5.0, [True, True, True]),
        (Interval(steps=2), 1e6, [False, True, True]),
        (None, None, [False, False, False]),
    ],
)
def test_one_more_state_is_due_before_the_end(
    tmp_path: Path, interval: Interval | None, last: float | None, due: list[bool]
) -> None:
    now = [0.0]
    manager = CheckpointManager(tmp_path, interval, last=last, clock=lambda: now[0])
    found = []
    for step, now[0] in ((1, 10.0), (2, 29.0), (3, 30.0)):
        found.append(manager.is_due(step))
    assert found == due
    assert not manager.is_due(0)


def test_hosts_of_the_next_job_take_the_places_of_the_lost_ones() -> None:
    assert next_slots({"n1": 2, "n2": 1}, ["n3"]) == {"n3": 2}
    assert next_slots({}, ["n3"]) == {"n3": 1}


def test_a_task_that_dies_during_a_job_waits_for_no_other_one() -> None:
    supervisor = Mock(awaits_job=False, hosts={"n1": {}})
    cluster = Mock(id="c", tasks=[])
    cluster.dead.return_value = []
    following = NextJob(cluster, supervisor, print)
    cluster.dead.return_value = ["worker 1"]
    assert not following.pending
    supervisor.awaits_job = True
    assert following.pending


def test_the_run_continues_whichever_client_has_started_the_tasks() -> None:
    supervisor = Mock(awaits_job=False, hosts={"n1": {}}, closed=False, stopping="")
    supervisor.take.side_effect = lambda event: [{}] if event == "next_job" else []
    supervisor.ask.return_value = {"awaited": []}
    continued = []

    def continue_run(over: float) -> None:
        assert not following.pending
        continued.append(over)
        supervisor.closed = True

    cluster = Mock(id="c", stopped=False, on_next_job={"run": continue_run})
    cluster.dead.return_value = []  # the other client was faster
    following = NextJob(cluster, supervisor, print)
    following.run()
    assert len(continued) == 1
    cluster.restart.assert_not_called()


def test_a_next_job_may_follow_while_the_command_runs_and_no_host_is_left() -> None:
    hosts = Hosts(Mock(plan={"requeue": True}))
    assert not hosts.between_jobs
    hosts.commands.append(Mock())
    assert hosts.between_jobs
    host = hosts.by_name["n1"] = RemoteHost("n1", {}, Mock())
    assert not hosts.between_jobs
    hosts.receive(host, {"event": "stopping"})  # as at the end of its job
    assert hosts.between_jobs


def test_flags_that_cannot_be_obeyed_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no time is known at which a job ends"):
        nb.start_cluster(launcher="local", save_before="5m")
    with pytest.raises(InvalidArgumentError, match="it submits no job a second time"):
        nb.start_cluster(launcher="local", requeue=True)
    with pytest.raises(InvalidArgumentError, match="idle is a time"):
        nb.start_cluster(launcher="local", idle="soon")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"timeout": float("inf")}, "timeout is a number of seconds above 0, not inf"),
        ({"timeout": "60"}, "timeout is a number of seconds above 0, not '60'"),
        ({"timeout": None}, "timeout is a number of seconds above 0, not None"),
        ({"orphan_timeout": "1h"}, "orphan_timeout is a number of seconds above 0, not '1h'"),
        ({"requeue": "no"}, "requeue is True or False, not 'no'"),
        ({"detached": 0}, "detached is True or False, not 0"),
        ({"cluster_id": ""}, "a cluster id is 1 to 48 letters, digits and _, not ''"),
        ({"cluster_id": 3}, "a cluster id is 1 to 48 letters, digits and _, not 3"),
        ({"threads": 10**20}, "threads is a whole number of 1 to 4,096"),
        ({"launcher": "ssh", "hosts": "a", "gpus": "two"}, "gpus is 'auto', 'none', a number, or UUIDs"),
    ],
    ids=str,
)
def test_an_argument_of_a_start_is_obeyed_or_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{expected}"):
        nb.start_cluster(report=None, **options)


def test_a_state_is_written_in_time_on_a_host_with_a_wrong_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock()
    head = Hosts(Mock(plan={"save_before": 300.0}))
    head.by_name["a"], head.ends, head.ask = Mock(), time.time() + 900.0, asked  # type: ignore[method-assign]
    head.start("a", {"rank": 0, "environment": {}}, Mock())
    task = asked.call_args.kwargs["task"]
    with monkeypatch.context() as there:  # the host's clock is a year behind
        now = time.time()
        there.setattr(time, "time", lambda: now - 365 * 86_400.0)
        host = Mock(plan={"tasks": []})
        SupervisorProcess._answer(host, {"request": "start", "task": task}, Mock(), Mock())
        environment = host.start_task.call_args.args[0]["environment"]
        assert float(environment[SAVE_AT_VARIABLE]) - time.monotonic() == pytest.approx(600.0, abs=60.0)
