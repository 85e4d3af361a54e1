"""Schedules of a pipeline: order of work and idle time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
from nbdist.train.pipeline import SCHEDULES, Work, bubble_fraction, pipeline

SIZES = (st.integers(1, 6), st.integers(1, 9), st.sampled_from(SCHEDULES))


@given(*SIZES)
def test_every_stage_runs_each_task_once_after_its_inputs(
    stages: int, micro_batches: int, schedule: str
) -> None:
    work = pipeline(stages, micro_batches, schedule)
    ended: dict[tuple[int, int, bool], int] = {}
    busy = set()
    for one in work:
        assert (one.slot, one.stage) not in busy
        busy.add((one.slot, one.stage))
        needs = []
        if one.forward and one.stage:
            needs.append((one.stage - 1, one.micro_batch, True))
        if not one.forward:
            needs.append((one.stage, one.micro_batch, True))
            if one.stage < stages - 1:
                needs.append((one.stage + 1, one.micro_batch, False))
        assert all(ended[need] < one.slot for need in needs)
        ended[one.stage, one.micro_batch, one.forward] = one.slot
    assert len(ended) == len(work) == 2 * stages * micro_batches


@given(*SIZES)
def test_the_bubble_matches_the_papers(stages: int, micro_batches: int, schedule: str) -> None:
    """Both schedules end a step after M + S - 1 slots forward and as many backward."""
    assert bubble_fraction(stages, micro_batches, schedule) == pytest.approx(
        (stages - 1) / (micro_batches + stages - 1)
    )


@given(st.integers(1, 6), st.integers(1, 9))
def test_1f1b_keeps_fewer_micro_batches_in_flight(stages: int, micro_batches: int) -> None:
    def most(schedule: str, stage: int) -> int:
        under_way, largest = 0, 0
        for one in pipeline(stages, micro_batches, schedule):
            if one.stage == stage:
                under_way += 1 if one.forward else -1
                largest = max(largest, under_way)
        return largest

    for stage in range(stages):
        assert most("gpipe", stage) == micro_batches
        assert most("1f1b", stage) == min(micro_batches, stages - stage)


def test_an_unknown_schedule() -> None:
    with pytest.raises(InvalidArgumentError, match="no schedule 'both'; choose from gpipe, 1f1b"):
        pipeline(2, 2, "both")


def test_work_is_plain() -> None:
    assert pipeline(1, 1) == [Work(0, 0, 0, True), Work(1, 0, 0, False)]
