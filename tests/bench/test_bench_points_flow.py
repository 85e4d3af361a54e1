"""P12's parts: what it counts, and a short run of it on a real cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiers import exhaustive

from bench import points_flow
from bench.points_flow import Sample
from nbdist.metrics.log import log_path
from nbdist.metrics.recorder import Recorder

ROOT = Path(__file__).parent.parent.parent


def write_log(folder: Path, replica: int, steps: int, wrong: int = -1) -> None:
    recorder = Recorder(log_path(folder, replica), replica=replica)
    for step in range(steps):
        for series in range(points_flow.SERIES):
            recorder.add(recorder.series(f"s{series}"), step, step * 1000.0 + series + (step == wrong))
    recorder.close()


def test_points_that_are_missing_or_wrong_are_counted(tmp_path: Path) -> None:
    write_log(tmp_path, 0, 20)
    write_log(tmp_path, 1, 20)
    assert points_flow.arrived(tmp_path, 20) == 2 * 20 * points_flow.SERIES
    write_log(tmp_path, 2, 19, wrong=3)
    assert points_flow.arrived(tmp_path, 20) == (2 * 20 + 18) * points_flow.SERIES


def test_what_is_steady_and_what_is_in_the_middle() -> None:
    samples = [Sample(float(second), second / 10, second) for second in range(20)]
    assert [sample.time for sample in points_flow.steady(samples, 15)] == [points_flow.WARM_UP, 14.0]
    assert points_flow.middle(np.sort([1.0] * 19 + [100.0])) == 1.0


@exhaustive
@pytest.mark.engines
def test_every_point_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(points_flow, "WARM_UP", 0)
    found = points_flow.measure(2, 3, tmp_path)
    assert found["points lost on disk"] == 0
    assert 0 < found["messages to the browser"] <= 12
    assert found["CPU of the kernel"] > 0
