"""Trends: exact means, whatever the pieces in which points come."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nbdist.metrics.series import Trend
from nbdist.metrics.store import RunStore


@given(st.integers(0, 3000), st.lists(st.integers(1, 400), max_size=20), st.integers(1, 9))
def test_buckets_hold_exact_means_however_points_are_split(count: int, cuts: list[int], buckets: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    steps = np.arange(count) * 3
    trend, start = Trend(buckets), 0
    for cut in [*cuts, count]:
        trend.extend(steps[start : start + cut], values[start : start + cut])
        start = min(start + cut, count)
    got_steps, means = trend.curve()
    if not count:
        assert len(means) == 0
        return
    width = next(w for w in (2**k for k in range(20)) if w * 2 * buckets >= count)
    octaves = [0, *(2**k for k in range(20) if 2**k < width)] if width > 1 else []
    starts = [*octaves, *range(width if octaves else 0, count, width)]
    ends = [*starts[1:], count]
    assert len(starts) <= 2 * buckets + len(octaves)
    expected = [values[start:end].mean() for start, end in zip(starts, ends, strict=True)]
    np.testing.assert_allclose(means, expected, rtol=1e-9, atol=1e-9)
    assert list(got_steps) == [steps[end - 1] for end in ends]


def test_a_long_series_begins_at_its_first_step() -> None:
    steps = np.arange(100_000)
    trend = Trend()
    trend.extend(steps, np.exp(-steps / 50))
    got, means = trend.curve()
    assert (got[0], means[0]) == (0, 1.0)
    assert (np.abs(means - np.exp(-got / 50)) < 0.25).all()  # the steep start is drawn as it was


def test_the_mean_of_a_noisy_run_is_smooth_and_unbiased() -> None:
    store = RunStore()
    rng = np.random.default_rng(0)
    for replica in range(3):
        steps = np.arange(50_000, dtype="u4")
        store.extend(replica, "loss", steps, 1 + rng.exponential(1.0, 50_000), np.full(50_000, 1e9))
    _, values = store.aggregate("loss")
    assert abs(values.mean() - 2) < 0.02
    assert values.std() < 0.1
