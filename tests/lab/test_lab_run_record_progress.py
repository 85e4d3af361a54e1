"""Progress and speed of a run, from reports that its replicas write once a second."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.lab.readers.run_record import ReplicaProgress, RunProgress, ended_replicas, parse_progress


def report(step: int, time: float, busy: float, *, wait: float = 0.0, **more: Any) -> ReplicaProgress:
    spent = {"data": 0.0, "compute": busy, "exchange": 0.0, "wait": wait}
    return ReplicaProgress(**{"state": "running", "step": step, "total": 1000, "training": 1, "spent": spent,
                   "time": 1e9 + time, **more})  # fmt: skip


def test_a_rate_is_measured_between_reports() -> None:
    progress = RunProgress(1, synchronous=True)
    for second in range(6):
        progress.add(0, report(20 * second, second, second * 1.0), 500.0 + second)
    standing = progress.standing()
    assert standing is not None
    assert (standing.step, standing.total) == (100, 1000)
    assert standing.steps_per_second == pytest.approx(20)
    assert standing.seconds_left == pytest.approx(45)


def test_the_first_report_alone_gives_a_rate() -> None:
    progress = RunProgress(1, synchronous=True)
    progress.add(0, report(300, 0.0, 2.0, wait=1.0), 7.0)
    assert progress.by_replica()[0]["steps_per_second"] == pytest.approx(100)


def test_a_first_report_without_times_gives_no_rate() -> None:
    progress = RunProgress(1, synchronous=True)
    progress.add(0, report(300, 0.0, 0.0), 7.0)
    assert not progress.knows_rate
    assert progress.by_replica()[0]["steps_per_second"] is None


def test_rates_of_independent_replicas_add_up() -> None:
    for synchronous, steps, total in ((True, 30, 1000), (False, 50, 2000)):
        progress = RunProgress(2, synchronous)
        progress.add(0, report(20, 1.0, 1.0), 0.0)
        progress.add(1, report(30, 1.0, 1.0), 0.0)
        standing = progress.standing()
        assert standing is not None
        assert (standing.step, standing.total) == (steps, total)


def test_a_rate_falls_without_steps_and_recovers() -> None:
    progress = RunProgress(1, synchronous=True)
    for second in range(4):
        progress.add(0, report(10 * second, second, second * 1.0), second)
    for later in range(4, 20):
        progress.advance(later)
    assert progress.by_replica()[0]["steps_per_second"] == 0
    for second in range(20, 26):
        progress.add(0, report(10 * second, second, second * 1.0), second)
    assert progress.by_replica()[0]["steps_per_second"] == pytest.approx(10)


def test_a_pause_does_not_change_the_rate() -> None:
    progress = RunProgress(2, synchronous=True)
    for second in range(4):
        for replica in range(2):
            progress.add(replica, report(10 * second, second, second * 1.0), second)
    for replica in range(2):
        progress.add(replica, report(30, 4.0, 3.0, state="paused"), 4.0)
    assert progress.paused
    for later in range(4, 60):
        progress.advance(later)
    for replica in range(2):
        progress.add(replica, report(31, 60.0, 3.1), 60.0)
    assert not progress.paused
    assert progress.by_replica()[0]["steps_per_second"] > 3


def test_a_replica_slower_by_thirty_percent_is_found_in_seconds() -> None:
    """Reports once a second, with noise: fifteen percent between two steps, and a pause for the garbage."""
    chance = random.Random(3)
    progress, named = RunProgress(4, synchronous=True), None
    busy = [0.0] * 4
    step = 0
    for second in range(1, 20):
        for _ in range(50):  # synchronous replicas step at the slowest one's pace
            step += 1
            for replica in range(4):
                pause = 0.2 if chance.random() < 0.002 else 0.0
                busy[replica] += 0.013 * (1.3 if replica == 2 else 1.0) * chance.uniform(0.85, 1.15) + pause
        for replica in range(4):
            progress.add(replica, report(step, second, busy[replica]), second)
        shown = {replica: one["straggler"] for replica, one in progress.by_replica().items()}
        assert all(slow is None for replica, slow in shown.items() if replica != 2)
        if shown[2] is not None and named is None:
            named = second
            assert 1.2 <= shown[2] <= 1.45
    assert named is not None
    assert named <= 5


def test_a_clock_set_back_restarts_the_measurement() -> None:
    progress = RunProgress(2, synchronous=True)
    for second in range(4):
        for replica in range(2):
            progress.add(replica, report(10 * second, second, second * 1.0), second)
    for second in range(4, 8):
        for replica in range(2):
            progress.add(replica, report(10 * second, second - 3600, second * 1.0), second)
    for one in progress.by_replica().values():
        assert one["step"] == 70
        assert 9 < one["steps_per_second"] < 11


def test_a_clock_set_forward_distorts_rates_for_seconds() -> None:
    progress = RunProgress(1, synchronous=True)
    for second in range(12):
        progress.add(0, report(10 * second, second + (1e6 if second > 4 else 0), second * 1.0), second)
    assert progress.by_replica()[0]["steps_per_second"] == pytest.approx(10)


def test_an_unknown_replica_number_is_ignored() -> None:
    progress = RunProgress(2, synchronous=True)
    progress.add(7, report(1, 1.0, 1.0), 0.0)
    assert progress.by_replica() == {}
    assert progress.standing() is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = ("version", "state", "step", "total", "training", "spent", "time", "global_step")


@given(st.binary(max_size=60))
def test_invalid_bytes_never_raise(content: bytes) -> None:
    parse_progress(content)


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, JSON)), max_size=6), st.floats(0, 1e6))
def test_any_json_never_raises(contents: list[dict[str, Any]], now: float) -> None:
    good = {"state": "running", "step": 1, "time": 1.0, "spent": {"compute": 1.0}}
    progress = RunProgress(2, synchronous=False)
    for content in contents:
        for shown in (content, {**good, **content}):
            found = parse_progress(json.dumps(shown).encode())
            if found is not None:
                progress.add(0, found, now)
                progress.advance(now + 10)
    json.dumps(progress.by_replica(), allow_nan=False)
    progress.standing()


def test_deeply_nested_json_is_ignored() -> None:
    assert parse_progress(b"[" * 60_000) is None


def test_replicas_that_were_lost_stopped_reporting_before_the_others() -> None:
    done = report(90, 60.0, 1.0, state="finished")
    reports = {0: report(100, 60.0, 1.0), 1: report(50, 46.0, 1.0), 2: report(20, 44.0, 1.0), 3: done}
    assert ended_replicas(reports, finished=False) == {2}
    assert ended_replicas({**reports, 0: done}, finished=True) == {1, 2}
    assert ended_replicas({}, finished=True) == frozenset()
