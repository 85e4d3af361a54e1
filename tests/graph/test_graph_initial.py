"""Initial values: one table for layers and variables; what is drawn in blocks, for the whole or a part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
from nbdist.graph import initial as initial_values
from nbdist.graph.compile.program import compile_program
from nbdist.graph.initial import KINDS
from nbdist.graph.ops import random
from nbdist.graph.tensor import Graph, record

Array = np.ndarray[Any, Any]


def drawn(
    whole: tuple[int, ...],
    shape: tuple[int, ...] | None = None,
    start: tuple[int, ...] | None = None,
    draw: str = "uniform",
    dtype: Any = np.float32,
    seed: int = 7,
    scale: float = 0.5,
) -> Array:
    with Graph().as_default():
        value = record(
            "initial_value", draw=draw, scale=scale, dtype=np.dtype(dtype), seed=seed,
            shape=shape or whole, whole=whole, start=start or (0,) * len(whole),
        )  # fmt: skip
    (result,) = compile_program([value])()
    assert result.shape == value.shape == (shape or whole)
    assert result.dtype == value.dtype == dtype
    return result


@given(
    whole=st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple),
    data=st.data(),
    draw=st.sampled_from(["uniform", "normal", "truncated_normal", "constant"]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
@settings(deadline=None, max_examples=examples(150))
def test_a_part_holds_what_the_whole_holds_there(
    whole: tuple[int, ...], data: st.DataObject, draw: str, dtype: Any
) -> None:
    axis = data.draw(st.integers(0, len(whole) - 1))
    first = data.draw(st.integers(0, whole[axis] - 1))
    size = data.draw(st.integers(0, whole[axis] - first))
    shape = (*whole[:axis], size, *whole[axis + 1 :])
    start = (0,) * axis + (first,) + (0,) * (len(whole) - axis - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "BLOCK", 8)  # so that parts begin and end inside of blocks
        expected = drawn(whole, draw=draw, dtype=dtype).copy()
        part = drawn(whole, shape, start, draw=draw, dtype=dtype)
    np.testing.assert_array_equal(part, expected[(slice(None),) * axis + (slice(first, first + size),)])


def test_values_have_the_distribution() -> None:
    uniform, normal = drawn((300, 1000)), drawn((300, 1000), draw="normal")
    assert -0.5 <= uniform.min() < -0.4999
    assert 0.4999 < uniform.max() <= 0.5
    assert abs(uniform.mean()) < 0.002
    assert uniform.std() == pytest.approx(0.5 / np.sqrt(3), rel=0.005)
    assert abs(normal.mean()) < 0.004
    assert normal.std() == pytest.approx(0.5, rel=0.005)
    flat = uniform.reshape(-1)
    assert len(np.unique(flat[: 4 * random.BLOCK : random.BLOCK])) == 4  # blocks differ
    assert not drawn((), draw="constant", scale=0.0).any()
    assert drawn((3,), draw="constant", dtype=np.int64, scale=3.0).tolist() == [3, 3, 3]


@pytest.mark.parametrize("name", ["glorot_normal", "he_normal", "lecun_normal"])
def test_normal_kinds_that_follow_the_shape_are_truncated(name: str) -> None:
    """As in Keras: no value beyond two deviations, and the scale is that of the truncated values."""
    kind = KINDS[name]
    values = kind((300, 1000), np.random.default_rng(0))
    scale = kind.scale_for(values.shape)
    assert values.dtype == np.float32
    assert values.std() == pytest.approx(scale, rel=0.005)
    assert abs(values.mean()) < 0.005 * scale
    edge = 2 * scale / 0.87962566103423978
    assert 0.999 * edge < np.abs(values).max() <= edge * (1 + 1e-6)
    within = np.mean(np.abs(values) < edge / 2)  # one deviation before the truncation
    assert within == pytest.approx(math.erf(math.sqrt(0.5)) / math.erf(math.sqrt(2)), abs=0.003)
    drawn_there = drawn((300, 1000), draw=kind.draw, scale=scale)
    assert drawn_there.std() == pytest.approx(scale, rel=0.005)


def test_the_inverse_of_the_normal_distribution() -> None:
    expected = np.linspace(-2, 2, 41)
    block = np.array([(1 + math.erf(x / math.sqrt(2)) / initial_values.TRUNCATED) / 2 for x in expected])
    initial_values._truncated_normal(block, initial_values.DEVIATION)
    np.testing.assert_allclose(block, expected, atol=1e-6)


def test_values_of_layers_are_drawn_a_chunk_at_a_time() -> None:
    for name in ("glorot_uniform", "random_normal", "he_normal"):
        whole = KINDS[name]((7, 5), np.random.default_rng(0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(initial_values, "CHUNK", 8)
            np.testing.assert_array_equal(KINDS[name]((7, 5), np.random.default_rng(0)), whole)


def test_a_seed_is_a_sequence() -> None:
    np.testing.assert_array_equal(drawn((5, 5)).copy(), drawn((5, 5)))
    assert (drawn((5, 5)).copy() != drawn((5, 5), seed=8)).all()


def test_values_are_known_for_good() -> None:
    """What a seed means is the same on every machine and in every process."""
    np.testing.assert_allclose(drawn((3,)), [0.44490492, 0.12509543, 0.1841799], rtol=1e-6)
    np.testing.assert_allclose(drawn((3,), draw="normal"), [0.760985, -0.572053, 0.575081], rtol=1e-5)


def test_nothing_but_a_block_is_made_beside_the_values() -> None:
    with Graph().as_default():
        how = {"draw": "uniform", "scale": 1.0, "dtype": np.dtype(np.float32), "seed": 0, "start": (0, 0)}
        value = record("initial_value", shape=(4 * random.BLOCK, 1), whole=(4 * random.BLOCK, 1), **how)
    out = np.empty(value.shape, np.float32)
    program = compile_program([], into=[value])
    assert program.buffer_bytes == 0
    program(out)
    assert np.isfinite(out).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"draw": "gamma"}, "'gamma' values of float32; choose from constant, uniform, normal"),
        ({"dtype": np.dtype(np.int64)}, "'uniform' values of int64"),
        ({"shape": (3, 4), "start": (2, 0)}, r"\(3, 4\) from \(2, 0\) on is not a part of \(4, 4\)"),
        ({"shape": (3,)}, "is not a part"),
        ({"shape": (2, 2)}, "along more than one axis"),
    ],
)
def test_what_cannot_be_drawn(change: dict[str, Any], words: str) -> None:
    how: dict[str, Any] = {
        "draw": "uniform", "scale": 1.0, "dtype": np.dtype(np.float32), "seed": 0,
        "shape": (4, 4), "whole": (4, 4), "start": (0, 0),
    }  # fmt: skip
    with Graph().as_default(), pytest.raises(InvalidArgumentError, match=words):
        record("initial_value", **how | change)


def test_scales_follow_from_the_shape() -> None:
    assert KINDS["glorot_uniform"].scale_for((3, 5)) == pytest.approx(np.sqrt(6 / 8))
    assert KINDS["he_normal"].scale_for((3, 3, 2, 9)) == pytest.approx(np.sqrt(2 / 18))
    assert KINDS["lecun_normal"].scale_for(()) == 1
    assert KINDS["he_normal"].scale_for((0, 3)) == pytest.approx(np.sqrt(2))  # nothing to draw, no error
