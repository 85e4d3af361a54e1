"""Which stage is the bottleneck: the pure decision, and what a meter counts while a dataset is read."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.data import Dataset, InputPipeline, StageReading
from nbdist.data.meter import Meter
from nbdist.errors import InvalidArgumentError


def pipeline(*stages: StageReading, **more: Any) -> InputPipeline:
    """Return stages one after the other, of which 100 elements were taken in 10 seconds."""
    linked = [replace(one, inputs=(n - 1,) if n else ()) for n, one in enumerate(stages)]
    return InputPipeline(tuple(linked), **{"elements": 100, "seconds": 10.0, "waited": 9.0, **more})


SOURCE = StageReading("text_lines", "text_lines", elements=100, busy=1.0)
MAP = StageReading("map", "map(decode)", elements=100, busy=3.0)
BATCH = StageReading("batch", "batch(32)", elements=100, busy=2.5)
PREFETCH = StageReading("prefetch", "prefetch(2)", elements=100, waited=1.0, buffer=2, ready=0.5)


def test_stages_of_one_thread_add_up_and_threads_and_prefetches_divide() -> None:
    inline = pipeline(SOURCE, MAP, BATCH)
    assert (inline.bottleneck, inline.limit) == (inline.stages[1], 100 / 6.5)
    assert "end with prefetch(nb.data.AUTOTUNE)" in " ".join(inline.advice)
    four = pipeline(SOURCE, replace(MAP, threads=4, buffer=8), BATCH)  # 0.75 s a thread; the others 3.5
    assert four.bottleneck == four.stages[2]
    assert four.limit == pytest.approx(100 / 3.5)
    two = pipeline(SOURCE, replace(MAP, busy=3.0), PREFETCH, replace(BATCH, busy=3.5))
    assert two.bottleneck == two.stages[1]  # before the prefetch 4 s, after it 3.5
    assert not any("prefetch" in one for one in two.advice)


def test_a_training_that_hardly_waits_is_the_bottleneck_itself() -> None:
    busy = pipeline(SOURCE, MAP, BATCH, waited=0.1, training=True)
    assert busy.bottleneck is None
    assert not busy.advice
    assert busy.verdict == (
        "training is the bottleneck: it waits for data 1.0% of the time; it could make 15.4 elements/s"
    )
    little = pipeline(SOURCE, MAP, BATCH, waited=0.9, training=True)
    assert (little.bottleneck, little.advice) == (None, [])
    assert little.verdict.startswith("training is the bottleneck: it waits for data 9.0% of the time")
    waits = pipeline(SOURCE, MAP, BATCH, waited=6.5, training=True)
    assert waits.verdict == (
        "map(decode) is the bottleneck: busy 30% of the time, and training waits for data 65% of the time"
    )
    idle = pipeline(replace(SOURCE, busy=0.4), PREFETCH, waited=3.4, training=True)  # it opens a file, say
    assert (idle.bottleneck, idle.advice) == (None, [])
    assert idle.verdict == (
        "no stage is the bottleneck: training waits for data 34% of the time, and the stages work for less "
        "than half of that"
    )
    assert InputPipeline(()).verdict == "nothing was read yet"
    assert str(InputPipeline(())).endswith("yet")


@pytest.mark.parametrize(
    ("stage", "word"),
    [
        (MAP, "num_parallel_calls=nb.data.AUTOTUNE"),
        (replace(MAP, threads=1, buffer=2), "AUTOTUNE, not 1"),
        (replace(MAP, threads=1, buffer=2, tunes=True), "workers=4, not threads"),
        (replace(MAP, threads=2, processes=True, buffer=4), "workers=4: this process may use 4 cores"),
        (replace(SOURCE, busy=9.0), "interleave(nb.data.Dataset.text_lines"),
        (StageReading("from_generator", "from_generator", busy=9.0), "move the work to a map"),
        (StageReading("interleave", "interleave(open)", busy=9.0), "num_parallel_calls=4"),
        (StageReading("shuffle", "shuffle(9)", busy=9.0), "smaller buffer"),
        (replace(BATCH, busy=9.0), "before batches"),
    ],
)
def test_the_advice_names_the_stage_and_what_to_write(stage: StageReading, word: str) -> None:
    found = pipeline(stage, cores=4)
    assert word in " ".join(found.advice)
    assert found.advice[-1] == f"add cache() after {stage.name} if its elements are the same in every pass"


stages = st.builds(
    StageReading,
    st.sampled_from(["map", "batch", "shuffle", "prefetch", "csv"]),
    st.sampled_from(["map(f)", "<b>"]),
    st.just(()),
    st.integers(0, 1000),
    st.integers(0, 999).map(lambda n: n / 8),
    st.floats(0, 100),
    st.integers(0, 8),
    st.booleans(),
    st.integers(0, 64),
    st.floats(0, 64),
    st.booleans(),
)


@given(st.lists(stages, min_size=1, max_size=6), st.integers(1, 100), st.floats(0.1, 100), st.data())
def test_the_bottleneck_limits_the_pipeline(
    found: list[StageReading], elements: int, seconds: float, data: st.DataObject
) -> None:
    whole = pipeline(*found, elements=elements, seconds=seconds, waited=seconds)
    assert whole.limit >= 0
    assert 0 <= whole.waits <= 1
    slowest = whole.bottleneck
    if slowest is None:
        assert all(stage.busy == 0 for stage in found)
        return
    # Another stage that gets quicker never makes the pipeline faster than the bottleneck's own segment.
    assert whole.limit <= elements * max(1, slowest.threads) / slowest.busy * (1 + 1e-9)
    quicker = data.draw(st.sampled_from(range(len(found))))
    changed = pipeline(
        *(replace(one, busy=one.busy / 2) if n == quicker else one for n, one in enumerate(found)),
        elements=elements,
        seconds=seconds,
        waited=seconds,
    )
    assert changed.limit >= whole.limit * (1 - 1e-9)
    assert len(str(whole).splitlines()) >= len(found) + 2
    assert whole._repr_html_().count("<tr>") == len(found) + 1


@given(st.lists(stages, min_size=1, max_size=6))
def test_a_reading_travels_as_plain_values(found: list[StageReading]) -> None:
    whole = pipeline(*found, cores=2, training=True)
    again = InputPipeline.from_config(json.loads(json.dumps(whole.to_config())))
    assert again.to_config() == whole.to_config()
    assert again.verdict.split(":")[0] == whole.verdict.split(":")[0]
    with pytest.raises(ValueError, match="not before it"):
        InputPipeline.from_config(
            {**whole.to_config(), "stages": [{"kind": "a", "name": "a", "inputs": [0]}]}
        )


# The meter


class Clock:
    """A clock that only what is measured moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        for module in ("meter", "parallel"):
            clock = SimpleNamespace(perf_counter=lambda: self.now, thread_time=lambda: self.now)
            monkeypatch.setattr(f"nbdist.data.{module}.time", clock)

    def works(self, seconds: float) -> Any:
        def work(element: Any) -> Any:
            self.now += seconds
            return element

        return work


def test_each_stage_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    quick, slow = clock.works(0.001), clock.works(0.004)
    found = Dataset.range(40).map(quick).filter(slow).batch(10).profile(100.0)
    assert [(one.kind, one.elements) for one in found.stages] == [
        ("from_arrays", 40), ("map", 40), ("filter", 39), ("batch", 4),
    ]  # fmt: skip
    assert [round(one.busy, 6) for one in found.stages] == [0, 0.04, 0.16, 0]
    assert found.bottleneck is found.stages[2]
    assert found.stages[2].name == "filter(work)"
    assert (round(found.seconds, 6), found.elements) == (0.2, 4)


def test_threads_count_their_own_time_and_queues_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    work = clock.works(0.5)
    found = Dataset.range(8).map(work, num_parallel_calls=1).batch(2).prefetch(1).profile(100.0)
    mapped, prefetch = found.stages[1], found.stages[-1]
    assert (mapped.threads, mapped.busy, mapped.buffer) == (1, 4.0, 2)
    assert prefetch.buffer == 1
    assert 0 <= prefetch.ready <= 1
    assert prefetch.busy == 0
    assert found.bottleneck is mapped


def test_processes_report_their_own_time() -> None:
    found = Dataset.range(4).map(lambda n: n + 1, workers=1).profile()
    assert found.stages[1].processes
    assert found.stages[1].busy > 0


@given(st.lists(st.sampled_from(["map", "filter", "batch", "unbatch", "shuffle"]), max_size=5))
def test_a_meter_changes_no_element_and_counts_them_all(steps: list[str]) -> None:
    dataset, batched = Dataset.range(300), 0
    for step in steps:
        if step == "batch" and not batched:
            dataset, batched = dataset.batch(7), batched + 1
        elif step == "unbatch" and batched:
            dataset, batched = dataset.unbatch(), batched - 1
        elif step == "shuffle":
            dataset = dataset.shuffle(50, seed=3)
        elif step == "map":
            dataset = dataset.map(lambda *parts: parts[0])
        elif step == "filter":
            dataset = dataset.filter(lambda *parts: True)
    meter = Meter()
    plain, measured = list(dataset.iterate(epoch=0)), list(dataset.iterate(epoch=0, meter=meter))
    assert [np.asarray(one).tolist() for one in plain] == [np.asarray(one).tolist() for one in measured]
    assert meter.reading().elements == len(plain)


def test_inner_datasets_and_branches_have_one_row_each() -> None:
    inner = Dataset.range(10).interleave(lambda n: Dataset.range(int(n)), cycle_length=2)
    both = Dataset.zip(inner, Dataset.range(100)).prefetch(2)
    found = both.profile()
    assert [one.kind for one in found.stages] == [
        "from_arrays",
        "interleave",
        "from_arrays",
        "zip",
        "prefetch",
    ]
    assert [one.inputs for one in found.stages] == [(), (0,), (), (1, 2), (3,)]
    assert found.stages[3].elements == 45


def test_profile_leaves_the_passes_as_they_are() -> None:
    dataset = Dataset.range(20).shuffle(20, seed=1)
    first = [int(n) for n in Dataset.range(20).shuffle(20, seed=1)]
    dataset.profile()
    assert [int(n) for n in dataset] == first
    for wrong in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentError, match="seconds is"):
            dataset.profile(wrong)
