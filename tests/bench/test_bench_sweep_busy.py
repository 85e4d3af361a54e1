"""P10's share of time in trials, and a small sweep on real engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import nbdist_trials, sweep_busy


def test_the_share_counts_from_the_first_start_to_the_last_end() -> None:
    assert sweep_busy.share([(3, 5), (3, 5)], engines=2) == 1
    assert sweep_busy.share([(0, 4), (1, 5), (5, 8), (4, 8)], engines=2) == 15 / 16


@pytest.mark.engines
def test_short_trials_fill_the_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path))  # which measured() sets, to be taken back
    found = sweep_busy.measured(8, 0.2, tmp_path)
    assert found["trials not complete"] == 0
    # Each share is of the time from its own first start to its last end: either may be a little the larger.
    assert 0 < found["in trials, by their own clocks"] <= 100
    assert 0 < found["in trials, by the sweep's spans"] <= 100
    assert found["first start to last end"] >= 0.4


@pytest.mark.engines
def test_trivial_trials_are_all_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path))
    outcome = nbdist_trials.measured(20, tmp_path)
    assert outcome["check"] == {"all complete": True, "all right": True}
