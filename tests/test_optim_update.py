"""Clipping, accumulation and decay by variable, compared with Keras's formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist import nn, optim
from nbdist.data import Dataset
from nbdist.errors import InvalidArgumentError
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Variable
from nbdist.nn.layers import Embedding
from nbdist.optim import SGD, Adam, AdamW, Optimizer
from nbdist.optim.base import Part
from nbdist.runtime.session.session import Session

Array = np.ndarray[Any, Any]
SIZES = {"dense/kernel": 5, "dense/bias": 2, "norm/gamma": 3}
CLIP = {
    "clipnorm": lambda g, most: {k: v * min(1, most / max(np.linalg.norm(v), 1e-300)) for k, v in g.items()},
    "clipvalue": lambda g, most: {k: np.clip(v, -most, most) for k, v in g.items()},
    "global_clipnorm": lambda g, most: {
        k: v * min(1, most / max(np.sqrt(sum((w**2).sum() for w in g.values())), 1e-300))
        for k, v in g.items()
    },
}


def keras(gradients: list[dict[str, Array]], rate: float, setting: dict[str, Any], keeps: set[str]) -> Any:
    """The updates of plain gradient descent in the order of keras.optimizers.Optimizer.apply."""
    p = {name: np.ones(size) for name, size in SIZES.items()}
    count, decay = setting.get("gradient_accumulation_steps", 1), setting.get("weight_decay", 0.0)
    total = {name: np.zeros(size) for name, size in SIZES.items()}
    for number, g in enumerate(gradients, 1):
        total = {name: total[name] + g[name] for name in p}
        if number % count:
            continue
        mean = {name: one / count for name, one in total.items()}
        for name, clip in CLIP.items():
            mean = clip(mean, setting[name]) if name in setting else mean
        for name in p:
            p[name] = p[name] * (1 - rate * decay * (name not in keeps)) - rate * mean[name]
        total = {name: np.zeros(size) for name, size in SIZES.items()}
    return p


def updated(optimizer: Optimizer, gradients: list[dict[str, Array]]) -> dict[str, Array]:
    """Return the variables after updates of one flat array, in which they lie one after another."""
    at = np.cumsum([0, *SIZES.values()])
    flat = np.ones(at[-1])
    slots = optimizer.all_slots(flat)
    for step, given_ in enumerate(gradients, 1):
        g = np.concatenate([given_[name] for name in SIZES])
        parts = [Part(i, name, flat[at[i] : at[i + 1]], g[at[i] : at[i + 1]]) for i, name in enumerate(SIZES)]
        optimizer.update([(flat, g, slots)], step, lambda parts=parts: parts)
    return {name: flat[at[i] : at[i + 1]] for i, name in enumerate(SIZES)}


clips = st.dictionaries(st.sampled_from(sorted(CLIP)), st.floats(0.01, 20), max_size=1)


@given(
    clip=clips,
    steps=st.sampled_from([None, 2, 3]),
    decay=st.sampled_from([None, 0.0, 0.3]),
    keeps=st.sets(st.sampled_from(sorted(SIZES))),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(200))
def test_an_update_is_that_of_keras(clip: Any, steps: Any, decay: Any, keeps: set[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    gradients = [{name: rng.normal(size=size) * 5 for name, size in SIZES.items()} for _ in range(7)]
    asked = {"gradient_accumulation_steps": steps, "weight_decay": decay}
    setting = {**clip, **{name: value for name, value in asked.items() if value is not None}}
    optimizer = SGD(0.1, **setting)
    optimizer.exclude_from_weight_decay(var_names=sorted(keeps))
    found = updated(optim.from_config(optimizer.to_config()), gradients)
    for name, expected in keras(gradients, 0.1, setting, keeps).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-9)


def test_adamw_decays_what_is_not_excluded() -> None:
    nothing = [{name: np.zeros(size) for name, size in SIZES.items()}] * 2
    optimizer = AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma"])
    found = updated(optimizer, nothing)
    assert [round(float(one[0]), 6) for one in found.values()] == [0.9025, 1.0, 1.0]
    assert optimizer.weight_decay == 0.5


def test_squares_that_a_float32_does_not_hold_are_clipped_to_the_norm() -> None:
    p, g = np.zeros(2, np.float32), np.array([3e25, 4e25], np.float32)
    optimizer = SGD(1.0, clipnorm=5.0)
    optimizer.update([(p, g, {})], 1, lambda: [Part(0, "w", p, g)])
    np.testing.assert_allclose(p, [-3, -4], rtol=1e-6)


@pytest.mark.parametrize("setting", [{name: 0.7} for name in CLIP] + [{"weight_decay": 0.4}], ids=str)
def test_a_graph_updates_alike(setting: dict[str, float]) -> None:
    starts = [np.array([3.0, -4.0]), np.array([1.0])]
    with Graph().as_default():
        v, w = (Variable(start, name=name) for start, name in zip(starts, ("v", "w"), strict=True))
        optimizer = SGD(0.1, **setting)  # type: ignore[arg-type]
        if "weight_decay" in setting:
            optimizer.exclude_from_weight_decay(var_list=[w])
        step = optimizer.minimize(np.sum(v * v) + np.sum(w * w))
        with Session() as session:
            session.run(group(v.initializer, w.initializer))
            session.run(step)
            found = session.run([v, w])
    g = {str(i): 2 * start for i, start in enumerate(starts)}
    for name, clip in CLIP.items():
        g = clip(g, setting[name]) if name in setting else g
    decay = [setting.get("weight_decay", 0.0), 0.0]
    for i, start in enumerate(starts):
        np.testing.assert_allclose(found[i], start * (1 - 0.1 * decay[i]) - 0.1 * g[str(i)], rtol=1e-12)


def test_tables_are_clipped_as_a_whole() -> None:
    """A table's gradient is not sent as rows then; it is that of a dense variable."""

    def train(optimizer: Optimizer) -> list[Array]:
        model = nn.Sequential([Embedding(20, 3), nn.Flatten(), nn.Dense(1)], seed=1)
        model.compile(optimizer, "mse")
        x = np.arange(12).reshape(6, 2)
        model.fit(Dataset.from_arrays(x, np.ones((6, 1), np.float32)).batch(3), epochs=2)
        return model.get_weights()

    for setting in ({"clipnorm": 1e9}, {"weight_decay": 0.0, "global_clipnorm": 1e9}):
        for kept, one in zip(train(SGD(0.1)), train(SGD(0.1, **setting)), strict=True):  # type: ignore[arg-type]
            np.testing.assert_allclose(one, kept, rtol=1e-5, atol=1e-7)
    assert not np.allclose(train(SGD(0.1))[0], train(SGD(0.1, clipnorm=1e-3))[0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGD(clipnorm=0), "clipnorm must be above 0: with 0 no gradient is left"),
        (lambda: SGD(clipnorm="1"), "clipnorm is a number, got '1'"),  # type: ignore[arg-type]
        (lambda: SGD(clipnorm=1, clipvalue=1), "SGD takes one of clipnorm, clipvalue, not several"),
        (lambda: Adam(gradient_accumulation_steps=1), "whole number of 2 or more, or None, got 1"),
        (lambda: Adam(weight_decay=-1), "weight_decay must be 0 or more"),
        (lambda: SGD().exclude_from_weight_decay(var_names="bias"), r"is a list, such as \['bias'\]"),
        (lambda: SGD().exclude_from_weight_decay(var_names=["("]), r"'\(' is no regular expression"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        make()


def test_a_name_that_no_variable_has_is_refused() -> None:
    optimizer = SGD(0.1, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bais"])
    model = nn.Sequential([nn.Dense(1)])
    model.compile(optimizer, "mse")
    with pytest.raises(
        InvalidArgumentError, match="'bais' fits no variable; there are dense/kernel, dense/bias"
    ):
        model.fit(np.ones((2, 2), np.float32), np.ones((2, 1), np.float32))
