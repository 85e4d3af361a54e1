"""Stages and split layers: how layers are cut, and what is refused."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
from nbdist.nn import Dense, Model, Sequential
from nbdist.nn import stages as cutting
from nbdist.train.context import Context, use
from nbdist.train.one_device import OneDeviceStrategy


@settings(max_examples=examples(60))
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 4))
def test_the_dearest_stage_is_as_cheap_as_can_be(costs: list[int], number: int) -> None:
    if number > len(costs):
        with pytest.raises(InvalidArgumentError, match="cannot be cut into"):
            cutting.balanced(costs, number)
        return
    found = cutting.balanced(costs, number)
    assert found == sorted(found)
    assert set(found) == set(range(number))
    dearest = max(sum(c for c, s in zip(costs, found, strict=True) if s == k) for k in range(number))
    best = min(
        max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, len(costs)), strict=True))
        for cuts in combinations(range(1, len(costs)), number - 1)
    )
    assert dearest == best


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stages": 0}, "stages is a whole number above 0, got 0"),
        ({"stages": 2.5}, "stages is a whole number"),
        ({"stages": 2, "micro_batches": 0}, "micro_batches is a whole number above 0"),
        ({"stages": 2, "schedule": "zigzag"}, "no schedule 'zigzag'; choose from gpipe, 1f1b"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Sequential([Dense(2), Dense(2)], **settings)


def test_stages_that_do_not_fit_the_layers_are_refused_when_the_model_is_built() -> None:
    with pytest.raises(InvalidArgumentError, match="2 layers cannot be cut into 3 stages"):
        Sequential([Dense(2), Dense(2)], stages=3).build((4,))
    with pytest.raises(InvalidArgumentError, match=r"stages=\[1, 2\] are numbers of layers"):
        Sequential([Dense(2), Dense(2)], stages=[1, 2]).build((4,))
    with pytest.raises(InvalidArgumentError, match="not both"):
        Sequential([Dense(4, split="rows"), Dense(2)], stages=2).build((4,))


def test_stages_are_said_in_the_graph_and_survive_saving() -> None:
    model = Sequential([Dense(8), Dense(8), Dense(2)], stages=[1, 2], micro_batches=3, schedule="1f1b")
    model.build((4,))
    network = model._network
    assert network is not None
    assert [v.device for v in network.variables] == ["/task:0"] * 2 + ["/task:1"] * 4
    again = Model.from_config(model.to_config())
    assert again.pipeline == model.pipeline
    assert again.pipeline.number == 2


@pytest.mark.parametrize("activation", [None, "relu", "softmax"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_a_split_layer_computes_what_the_whole_one_does(activation: str | None, use_bias: bool) -> None:
    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)

    def model(split: bool) -> Sequential:
        first: dict[str, Any] = {"split": "columns", "shards": 3} if split else {}
        second: dict[str, Any] = {"split": "rows", "shards": 3} if split else {}
        layers = [
            Dense(11, "tanh", use_bias, **first),
            Dense(5, activation, use_bias, **second),
            Dense(4, activation, use_bias, **first),
        ]
        return Sequential(layers, seed=3).build((7,))  # type: ignore[return-value]  # build returns itself

    whole, split = model(False), model(True)
    np.testing.assert_allclose(split.predict(x), whole.predict(x), rtol=2e-6, atol=1e-6)
    assert split.count_params() == whole.count_params()


def test_rows_after_columns_take_the_parts_as_they_are() -> None:
    """Nothing is joined in between: the second layer's shard i reads what the first one's shard i made."""
    layers = [Dense(6, "relu", split="columns", shards=2), Dense(3, split="rows", shards=2)]
    model = Sequential(layers, seed=0).build((4,))
    network = model._network
    assert network is not None
    products = [t for t in network.graph.tensors if t.type == "matmul"]
    assert [t.device for t in products] == ["/task:0", "/task:1"] * 2
    assert [t.inputs[0].device for t in products[2:]] == ["/task:0", "/task:1"]
    assert all(t.inputs[0].type != "getitem" for t in products)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "diagonal"}, "no split 'diagonal'; choose from columns, rows"),
        ({"shards": 2}, "shards=2 needs split"),
        ({"split": "rows", "shards": 0}, "shards is a whole number above 0"),
    ],
)
def test_splits_that_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Dense(4, **settings)


def test_too_few_units_for_the_shards() -> None:
    with pytest.raises(InvalidArgumentError, match="2 columns of the kernel cannot be split into 3 shards"):
        Sequential([Dense(2, split="columns", shards=3)]).build((4,))


def test_on_one_device_a_staged_model_trains_whole_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.ones((8, 4), np.float32), np.arange(8) % 2
    with use(Context(strategy=OneDeviceStrategy(), seed=1)):
        model = Sequential([Dense(4, "relu"), Dense(2, "softmax")], stages=2)
        model.compile("sgd")
        model.fit(x, y, epochs=1)
    assert "parts for 2 tasks and is on one here" in capsys.readouterr().out
