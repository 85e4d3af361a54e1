"""The spans of a replica's steps, as the training loop records them."""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.data import Dataset
from nbdist.metrics.timeline import Timeline
from nbdist.nn import Dense, Sequential
from nbdist.optim import SGD
from nbdist.train.context import Context, use
from nbdist.train.step_timing import SHORTEST, Part, StepLog, filled, step_spans

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = np.arange(40) % 3


def fit(context: Context, epochs: int = 6, **more: object) -> None:
    model = Sequential([Dense(8, "tanh"), Dense(3, "softmax")])
    model.compile(SGD(0.1), "sparse_categorical_crossentropy")
    with use(context):
        model.fit(Dataset.from_arrays(X, Y).batch(10), epochs=epochs, **more)  # type: ignore[arg-type]


def test_recorded_steps_add_up_to_what_was_spent() -> None:
    context = Context(step_log=StepLog("CPU:0"), quiet=True)
    fit(context)
    timeline = Timeline(context.step_log.spans("worker"))  # type: ignore[union-attr]
    assert timeline.steps == tuple(range(1, 25))
    spent = timeline.totals()["worker"]
    assert spent["compute"] == pytest.approx(context.progress.spent["compute"], rel=1e-6)
    assert spent["data"] == pytest.approx(context.progress.spent["data"], rel=1e-6)
    assert spent["apply"] <= context.progress.spent["exchange"] * 1.000001
    assert set(spent) == {"data", "compute", "apply"}
    assert timeline.lanes("worker") == ("CPU:0",)


def test_parts_of_a_step_follow_each_other_without_gaps() -> None:
    context = Context(step_log=StepLog("CPU:0"), quiet=True)
    fit(context)
    by_step = defaultdict(list)
    for span in Timeline(context.step_log.spans("worker")).spans:  # type: ignore[union-attr]
        by_step[span.step].append(span)
    for spans in by_step.values():
        assert [span.kind for span in spans] == ["data", "compute", "apply"]
        # One device has an empty pull.
        assert spans[1].start >= spans[0].end - 1e-9
        assert spans[2].start == pytest.approx(spans[1].end, abs=1e-9)


def test_step_numbers_continue_in_later_trainings() -> None:
    context = Context(step_log=StepLog("CPU:0"), quiet=True)
    fit(context, epochs=1)
    fit(context, epochs=2)
    assert Timeline(context.step_log.spans("worker")).steps == tuple(range(1, 13))  # type: ignore[union-attr]


def test_validation_is_compute_outside_of_steps() -> None:
    context = Context(step_log=StepLog("CPU:0"), quiet=True)
    fit(context, epochs=2, validation_data=(X, Y))
    between = [s for s in context.step_log.spans("worker") if s.step is None]  # type: ignore[union-attr]
    assert [(span.kind, span.name) for span in between] == [("compute", "validation")] * 2


def test_empty_spans_are_not_recorded() -> None:
    log = StepLog("CPU:0")
    log.note("wait", "the other replicas", 1.0, 1.0 + SHORTEST / 2)
    log.note("wait", "the other replicas", 1.0, 2.0)
    assert [span.seconds for span in log.spans("worker")] == [1.0]


def test_a_pull_waits_and_then_receives_and_a_push_waits_and_then_sends() -> None:
    row = (7, 0.5, 10.0, 2.0, 13.0, 17.0, 0.75, 18.0)
    spans = list(step_spans([row], "worker", "CPU:0", ("receive", "parameters"), ("send", "gradient")))
    assert [(s.kind, s.name, s.start, s.seconds, s.step) for s in spans] == [
        ("data", "next batch", 9.5, 0.5, 7),
        ("wait", "gradient under way", 10.0, 2.0, 7),
        ("receive", "parameters", 12.0, 1.0, 7),
        ("compute", "step", 13.0, 4.0, 7),
        ("wait", "the other replicas", 17.0, 0.75, 7),
        ("send", "gradient", 17.75, 0.25, 7),
    ]


def test_it_is_read_while_it_is_written() -> None:
    log, stop = StepLog("CPU:0"), threading.Event()

    def write() -> None:
        step = 0
        while not stop.is_set():
            step += 1
            log.add((step, 0.0, step, 0.0, step, step, 0.0, step + 0.5))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(15):
            steps = [span.step for span in log.spans("worker") if span.kind == "compute"]
            assert steps == sorted(set(steps))  # type: ignore[type-var]
    finally:
        stop.set()
        writer.join()


@given(st.lists(st.integers(0, 30), max_size=8, unique=True), st.integers(0, 30))
def test_the_parts_of_a_step_follow_each_other_without_gaps(times: list[int], updating: int) -> None:
    times = sorted(times)[: len(times) // 2 * 2]
    waits: list[Part] = [
        ("wait", "", since, until) for since, until in zip(times[::2], times[1::2], strict=True)
    ]
    parts = list(filled(0, waits, updating, 30))
    assert [part for part in parts if part[0] == "wait"] == waits
    assert [since for _, _, since, _ in parts] == [0, *(until for *_, until in parts[:-1])]
    assert parts[-1][3] == 30
    assert all(until <= updating for kind, _, _, until in parts if kind == "compute")
    assert all(since >= updating for kind, _, since, _ in parts if kind == "apply")
