from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.events import Direction
from nbdist.sweep.pruners import AshaPruner, MedianPruner, NoPruner, Pruner, make_pruner
from nbdist.sweep.reports import KEPT, Reports

values = some.floats(-10, 10) | some.sampled_from([math.nan, math.inf, -math.inf])
reported = some.lists(some.tuples(some.integers(0, 12), some.integers(0, 40), values), max_size=60)
"""(trial, step, value), in the order in which they came."""
directions = some.sampled_from(["max", "min"])


def collect(reported: list[tuple[int, int, float]], direction: Direction, complete: set[int]) -> Reports:
    reports = Reports(direction)
    for number, step, value in reported:
        reports.add(number, step, value)
    for number in sorted(complete):
        reports.finish(number)
    return reports


every_pruner = pytest.mark.parametrize(
    "pruner",
    [NoPruner(), MedianPruner(startup=2), AshaPruner(min_resource=1, eta=3)],
    ids=lambda one: type(one).__name__,
)
"""What every pruner keeps; a new one is tested when it stands here."""


@every_pruner
@given(reported, directions, some.sets(some.integers(0, 12)))
def test_incremental_decisions_equal_those_of_all_reports(
    pruner: Pruner, reported: list[tuple[int, int, float]], direction: Direction, complete: set[int]
) -> None:
    following = Reports(direction)
    for place, (number, step, value) in enumerate(reported):
        following.add(number, step, value)
        if place == len(reported) // 2:
            for one in sorted(complete):
                following.finish(one)
        here = complete if place >= len(reported) // 2 else set()
        fresh = collect(reported[: place + 1], direction, here)
        decision = pruner.decide(following, number, step)
        assert decision == pruner.decide(fresh, number, step)
        assert decision == pruner.decide(following, number, step), "asking changed the answer"


@every_pruner
@given(reported, directions, some.sets(some.integers(0, 12)), some.floats(11, 100))
def test_the_best_at_every_step_is_never_pruned(
    pruner: Pruner,
    reported: list[tuple[int, int, float]],
    direction: Direction,
    complete: set[int],
    best: float,
) -> None:
    reported = [(number, step, value) for number, step, value in reported if math.isfinite(value)]
    reports = collect(reported, direction, complete)
    for step in range(41):
        reports.add(13, step, best if direction == "max" else -best)
        assert pruner.decide(reports, 13, step) == "keep"


@every_pruner
@given(reported, directions, some.sets(some.integers(0, 12)))
def test_both_directions_are_mirror_images(
    pruner: Pruner, reported: list[tuple[int, int, float]], direction: Direction, complete: set[int]
) -> None:
    one = collect(reported, "max", complete)
    other = collect([(number, step, -value) for number, step, value in reported], "min", complete)
    for number, step, _ in reported:
        assert pruner.decide(one, number, step) == pruner.decide(other, number, step)


@every_pruner
def test_equal_trials_continue_together(pruner: Pruner) -> None:
    reports = collect(
        [(number, step, 0.5) for number in range(9) for step in range(28)], "max", set(range(6))
    )
    for number in range(9):
        assert all(pruner.decide(reports, number, step) == "keep" for step in range(28))


@every_pruner
def test_a_trial_without_reports_continues(pruner: Pruner) -> None:
    assert pruner.decide(Reports("max"), 3, 0) == "keep"


class TestMedian:
    pruner = MedianPruner(startup=2)

    def test_the_worse_half_is_pruned_once_enough_are_complete(self) -> None:
        reported = [(number, step, number / 10) for number in range(5) for step in (1, 2)]
        reports = collect(reported, "max", {0, 1, 2})
        reports.add(5, 1, 0.05)
        assert MedianPruner(startup=4).decide(reports, 5, 1) == "keep"
        assert MedianPruner(startup=3).decide(reports, 5, 1) == "prune"
        assert MedianPruner(startup=3, warmup=2).decide(reports, 5, 1) == "keep"
        assert MedianPruner(startup=3, every=2).decide(reports, 5, 1) == "keep"
        reports.add(5, 2, 0.1)
        assert MedianPruner(startup=3).decide(reports, 5, 2) == "keep"  # as good as the median
        reports.add(5, 3, 0.0)
        reports.add(0, 3, 0.0)
        reports.add(1, 3, 0.09)
        reports.add(2, 3, 0.2)
        assert MedianPruner(startup=3).decide(reports, 5, 3) == "keep"  # its best so far counts

    def test_of_an_even_number_the_worse_of_the_two_in_the_middle_counts(self) -> None:
        reports = collect(
            [(0, 1, 0.1), (1, 1, 0.2), (2, 1, 0.4), (3, 1, 0.5), (4, 1, 0.3)], "max", {0, 1, 2, 3}
        )
        assert self.pruner.decide(reports, 4, 1) == "keep"
        reports.add(4, 1, 0.19)
        assert self.pruner.decide(reports, 4, 1) == "prune"

    def test_nothing_but_nan_is_pruned(self) -> None:
        reports = collect([(0, 1, 1.0), (1, 1, 2.0), (2, 1, math.nan)], "min", {0, 1})
        assert self.pruner.decide(reports, 2, 1) == "prune"


class TestAsha:
    pruner = AshaPruner(min_resource=1, eta=3)

    def test_at_a_rung_the_best_fraction_continues(self) -> None:
        reports = Reports("min")
        decisions = []
        for number, value in enumerate([0.5, 0.4, 0.6, 0.3, 0.45, 0.2, 0.35]):
            reports.add(number, 1, value)
            decisions.append(self.pruner.decide(reports, number, 1))
        # The first continues; then one of up to five, and two of six and more.
        assert decisions == ["keep", "keep", "prune", "keep", "prune", "keep", "prune"]

    def test_each_rung_is_judged_once(self) -> None:
        reports = collect([(0, step, 1.0) for step in range(1, 30)], "max", set())
        for step in range(1, 30):
            reports.add(1, step, 0.0)
            expected = "prune" if step in (1, 3, 9, 27) else "keep"
            assert self.pruner.decide(reports, 1, step) == expected

    def test_a_report_that_passes_rungs_is_judged_at_the_last(self) -> None:
        reports = collect([(0, 1, 5.0), (0, 3, 5.0), (0, 10, 5.0), (1, 1, 9.0)], "max", set())
        reports.add(2, 10, 6.0)
        assert self.pruner.decide(reports, 2, 10) == "keep"
        assert list(reports.at(3)[[0, 2]]) == [5.0, 6.0]

    def test_nan_is_pruned_even_alone(self) -> None:
        reports = collect([(0, 1, math.nan)], "max", set())
        assert self.pruner.decide(reports, 0, 1) == "prune"

    def test_a_trial_that_starts_again_is_judged_again(self) -> None:
        reports = collect([(0, 1, 1.0), (1, 1, 0.0)], "max", set())
        assert self.pruner.decide(reports, 1, 1) == "prune"
        reports.forget(0)
        assert self.pruner.decide(reports, 1, 1) == "keep"


def test_settings_are_checked() -> None:
    assert make_pruner("asha", {"min_resource": 2, "eta": 4}) == AshaPruner(2, 4)
    for name, settings, message in (
        ("hyperband", {}, "no pruner 'hyperband'; choose from none, median, asha"),
        ("asha", {"factor": 3}, "has no setting 'factor'; it has min_resource, eta, skip"),
        ("none", {"eta": 3}, "it has none"),
        ("asha", {"eta": 1}, "eta of .* must be 2 or more"),
        ("asha", {"eta": 2.5}, "eta must be a whole number"),
        ("median", {"startup": "x"}, "startup must be a whole number"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            make_pruner(name, settings)


def test_a_curve_of_very_many_reports_stays_bounded_and_keeps_its_extremes() -> None:
    reports = Reports("max")
    for step in range(20_000):
        reports.add(0, step, 1e9 if step == 777 else math.sin(step))
    curve = reports.curves[0]
    assert len(curve.steps) <= 2 * KEPT
    assert curve.count == 20_000
    assert curve.steps[-1] == 19_999
    assert reports.best(0, 19_999) == 1e9
    assert curve.steps == sorted(set(curve.steps))


def test_evicted_columns_are_computed_again() -> None:
    reports = Reports("max")
    for number in range(5):
        for step in range(300):
            reports.add(number, step, number * step)
    before = [reports.at(step).tolist() for step in range(300)]
    reports.add(0, 300, 1.0)
    assert [reports.at(step).tolist() for step in range(300)] == before
