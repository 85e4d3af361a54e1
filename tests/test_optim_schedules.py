"""Schedules of the learning rate compared with the formulas of Keras and PyTorch, and in graphs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist import nn, optim
from nbdist.errors import InvalidArgumentError
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Variable, placeholder
from nbdist.optim.schedules import (
    SCHEDULES,
    CosineDecay,
    CosineDecayRestarts,
    ExponentialDecay,
    LearningRateSchedule,
    OneCycle,
    PiecewiseConstantDecay,
    PolynomialDecay,
    from_config,
)
from nbdist.runtime.session.session import Session

rates, steps = st.floats(1e-6, 10), st.integers(0, 5000)
SOME: list[LearningRateSchedule] = [
    CosineDecay(0.01, 10, alpha=0.1, warmup_target=0.3, warmup_steps=4),
    CosineDecay(0.2, 7),
    CosineDecayRestarts(0.2, 3, t_mul=2.0, m_mul=0.7, alpha=0.05),
    CosineDecayRestarts(0.2, 5, t_mul=1.0),
    ExponentialDecay(0.2, 4, 0.5),
    ExponentialDecay(0.2, 4, 0.5, staircase=True),
    OneCycle(0.5, 15),
    OneCycle(0.5, 15, pct_start=0.4, anneal_strategy="linear"),
    PiecewiseConstantDecay([3, 8], [0.3, 0.2, 0.1]),
    PolynomialDecay(0.2, 9, 0.01, power=2.0),
]


@given(
    first=rates,
    decay=st.integers(1, 900),
    alpha=st.floats(0, 1),
    target=rates,
    warm=st.integers(0, 90),
    k=steps,
)
@settings(max_examples=examples(100))
def test_cosine_with_warm_up(
    first: float, decay: int, alpha: float, target: float, warm: int, k: int
) -> None:
    """Loshchilov and Hutter 2017, equation 5, with a line before it (Goyal et al. 2017)."""
    if k < warm:
        expected = first + (target - first) * k / warm
    else:
        part = min(k - warm, decay) / decay
        expected = target * ((1 - alpha) * 0.5 * (1 + math.cos(math.pi * part)) + alpha)
    found = CosineDecay(first, decay, alpha, warmup_target=target, warmup_steps=warm)(k)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(first=rates, length=st.integers(2, 400), t=st.sampled_from([1, 2, 3]), m=st.floats(0.1, 2), k=steps)
@settings(max_examples=examples(100))
def test_cosine_with_restarts(first: float, length: int, t: int, m: float, k: int) -> None:
    begins, period, now, height = 0, 0, length, first
    while k >= begins + now:
        begins, period = begins + now, period + 1
        now, height = now * t, height * m
    expected = height * 0.5 * (1 + math.cos(math.pi * (k - begins) / now))
    found = CosineDecayRestarts(first, length, t_mul=float(t), m_mul=m)(k)
    if k == begins:  # log() may find the end of the period before, as in Keras
        assert found == pytest.approx(expected, rel=1e-6) or found == pytest.approx(0, abs=1e-6 * height / m)
    else:
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(first=rates, length=st.integers(1, 900), rate=st.floats(0.1, 1.5), stairs=st.booleans(), k=steps)
@settings(max_examples=examples(100))
def test_exponential(first: float, length: int, rate: float, stairs: bool, k: int) -> None:
    expected = first * rate ** (k // length if stairs else k / length)
    assert ExponentialDecay(first, length, rate, stairs)(k) == pytest.approx(expected, rel=1e-9)


@given(
    at=st.lists(st.integers(0, 400), min_size=1, max_size=5, unique=True).map(sorted), k=st.integers(0, 500)
)
@settings(max_examples=examples(100))
def test_piecewise_constant(at: list[int], k: int) -> None:
    values = [float(number) for number in range(len(at) + 1)]
    assert PiecewiseConstantDecay(at, values)(k) == sum(k > boundary for boundary in at)


@given(top=rates, total=st.integers(3, 400), start=st.floats(0.1, 0.9), cos=st.booleans(), k=steps)
@settings(max_examples=examples(100))
def test_one_cycle(top: float, total: int, start: float, cos: bool, k: int) -> None:
    """Smith and Topin 2018, in two phases as PyTorch has them."""

    def between(a: float, b: float, part: float) -> float:
        return b + (a - b) / 2 * (1 + math.cos(math.pi * part)) if cos else a + (b - a) * part

    k, turn, low = min(k, total - 1), start * total - 1, top / 25
    up = k <= turn and turn > 0
    expected = between(low, top, k / turn) if up else between(top, low / 1e4, (k - turn) / (total - 1 - turn))
    found = OneCycle(top, total, start, anneal_strategy="cos" if cos else "linear")(k)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(first=rates, end=st.floats(0, 1), length=st.integers(1, 900), power=st.floats(0.5, 3), k=steps)
@settings(max_examples=examples(50))
def test_polynomial(first: float, end: float, length: int, power: float, k: int) -> None:
    expected = (first - end) * (1 - min(k, length) / length) ** power + end
    assert PolynomialDecay(first, length, end, power)(k) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("schedule", SOME, ids=repr)
def test_a_graph_follows_a_schedule_and_a_config_makes_it_again(schedule: LearningRateSchedule) -> None:
    assert from_config(schedule.to_config()) == schedule
    optimizer = optim.from_config(optim.SGD(schedule).to_config())
    assert optimizer.learning_rate == schedule
    with Graph().as_default():
        v = Variable(np.float64(0), name="v")
        step, start = optimizer.minimize(v), group(v.initializer)
        with Session() as session:
            session.run([start, *(one.initializer for one in v.graph.variables())])
            found = [0.0]
            for _ in range(20):
                session.run(step)
                found.append(float(session.run(v)))
    np.testing.assert_allclose(-np.diff(found), [schedule(k) for k in range(20)], atol=1e-12)


def test_a_model_keeps_its_schedule(tmp_path: Any) -> None:
    model = nn.Sequential([nn.Dense(1)])
    schedule = CosineDecay(0.1, 100)
    model.compile(optim.Adam(schedule), "mse")
    model.fit(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32))
    assert model.optimizer is not None
    assert model.optimizer.learning_rate is schedule
    loaded = nn.load(model.save(tmp_path / "model.safetensors"))
    assert loaded.optimizer == optim.Adam(schedule)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CosineDecay(-1, 10), "CosineDecay: initial_learning_rate must be 0 or more"),
        (lambda: CosineDecay(0.1, 0), "CosineDecay: decay_steps must be above 0"),
        (lambda: CosineDecay(0.1, "9"), "CosineDecay: decay_steps is a number, got '9'"),  # type: ignore[arg-type]
        (lambda: CosineDecay(0.1, 9, warmup_steps=5), "warmup_steps=5 needs warmup_target"),
        (lambda: CosineDecay(0.1, 9, name="x"), "CosineDecay has no name: schedules have"),  # type: ignore[call-arg]
        (lambda: CosineDecayRestarts(0.1, 9, t_mul=0.5), "t_mul must be 1 or more, got 0.5"),
        (lambda: ExponentialDecay(0.1, 9, math.inf), "decay_rate must be above 0 and finite"),
        (lambda: ExponentialDecay(0.1, 9, 0.5, rate=1), "ExponentialDecay has no rate: choose from"),  # type: ignore[call-arg]
        (lambda: PiecewiseConstantDecay([5, 2], [1, 2, 3]), r"boundaries must increase, got \[5, 2\]"),
        (lambda: PiecewiseConstantDecay([5], [1]), "one value more than boundaries, got 1 and 1"),
        (lambda: PiecewiseConstantDecay([5], [1, -1]), "values must be 0 or more and finite"),
        (lambda: PiecewiseConstantDecay(5, [1]), "are lists of numbers"),  # type: ignore[arg-type]
        (lambda: OneCycle(0.1, 1), "total_steps is a whole number of 2 or more, got 1"),
        (lambda: OneCycle(0.1, 9, pct_start=1.0), "pct_start is above 0 and below 1"),
        (lambda: OneCycle(0.1, 9, anneal_strategy="sin"), "no anneal_strategy='sin'; choose from"),
        (lambda: from_config({"name": "Cosine"}), "no schedule 'Cosine'; choose from CosineDecay"),
        (lambda: optim.SGD("fast"), "learning_rate is a number, got 'fast'"),
        (lambda: optim.SGD(lambda step: 0.1).to_config(), "give a number here, or one of nb.optim.schedules"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        make()


def test_a_schedule_takes_a_step_of_any_kind() -> None:
    assert set(SCHEDULES) == {type(one).__name__ for one in SOME}
    with Graph().as_default():
        step = placeholder(np.int32, ())
        rate = SOME[0](step)
        with Session() as session:
            assert session.run(rate, {step: np.int32(3)}) == pytest.approx(SOME[0](np.int64(3)))
