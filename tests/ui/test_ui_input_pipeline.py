"""The input pipeline of a run, as a view shows it and as a saved output keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from nbdist.data import InputPipeline, StageReading
from nbdist.metrics.store import RunStore
from nbdist.ui.frozen.run import RUN, frozen
from nbdist.ui.frozen.summary import Summary
from nbdist.ui.input_pipeline import input_shown

TASKS = ["/job:worker/task:0", "/job:worker/task:1"]


def reading(waited: float, name: str = "map(f)") -> dict[str, Any]:
    stages = (StageReading("map", name, (), 10, 4.0),)
    return InputPipeline(stages, 10, 5.0, waited, 2, training=True).to_config()


def test_the_replica_that_waits_longest_is_shown() -> None:
    shown = input_shown({0: reading(1.0), 1: reading(4.0)}, TASKS)
    assert shown is not None
    assert shown["task"] == "worker 1"
    assert shown["verdict"].endswith("training waits for data 80% of the time")
    assert shown["rows"] == [
        {"stage": "▶ map(f)", "runs in": "", "elements/s": "2", "busy": "80%", "queue": ""}
    ]


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        {},
        {"stages": 3},
        {**reading(1.0), "elements": "many"},
        {**reading(1.0), "stages": [{"kind": "map"}]},
        {**reading(1.0), "stages": [{"kind": 1, "name": 2, "busy": "x"}]},
        InputPipeline((), training=True).to_config(),
    ],
)
def test_what_is_damaged_or_empty_is_left_out(damaged: Any) -> None:
    assert input_shown({0: damaged}, TASKS) is None
    shown = input_shown({0: damaged, 1: reading(1.0)}, TASKS)
    assert shown is not None


def test_a_saved_output_has_it_escaped() -> None:
    shown = input_shown({0: reading(4.0, "map(<b>)")}, TASKS)
    bundle = frozen(RunStore(), Summary("r", "t", "finished", TASKS, step=10, rows=[{"a": 1}], input=shown))
    assert "Input of worker 0: map(<b>) is the bottleneck" in bundle["text/plain"]
    assert "map(&lt;b&gt;) is the bottleneck" in bundle["text/html"]
    assert "map(<b>)" not in bundle["text/html"]
    assert bundle[RUN]["input"] == shown
