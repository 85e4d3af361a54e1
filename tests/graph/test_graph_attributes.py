"""Attributes as plain data: they arrive as they were, and what others send instead is refused."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from graph_travel import ANYTHING, Array, travelled
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbdist.errors import DataLossError, InvalidArgumentError, NbdistError
from nbdist.graph.serialize.attributes import DTYPES, MAX_DEPTH, MAX_TEXT, Beside, from_plain, pack, to_plain
from nbdist.graph.serialize.encode import encode
from nbdist.graph.tensor import Graph, constant, record

PLAIN = (
    st.none() | st.booleans() | st.integers() | st.integers(-(1 << 300), 1 << 300) | st.floats()
    | st.complex_numbers() | st.text(max_size=20) | st.binary(max_size=20) | st.just(...)
    | st.sampled_from(sorted(DTYPES)).map(np.dtype)
    | st.sampled_from(sorted(DTYPES)).flatmap(lambda text: hnp.from_dtype(np.dtype(text)))
    | hnp.arrays(st.sampled_from(sorted(DTYPES)), hnp.array_shapes(min_dims=0, min_side=0, max_side=9))
    | st.builds(slice, *[st.none() | st.integers()] * 3)
)  # fmt: skip
KEYS = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def assert_equal(one: Any, other: Any) -> None:
    """Equal, and of one type all the way down; a NaN equals a NaN of the same bits."""
    assert type(one) is type(other)
    if isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_equal(a, b)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (np.ndarray, np.generic)):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, (float, complex)):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    else:
        assert one == other


@given(VALUES)
def test_attributes_arrive_as_they_were(value: Any) -> None:
    arrays: list[Array] = []
    plain = msgpack.unpackb(pack(to_plain(value, arrays)), raw=False)
    beside = Beside(arrays)
    assert_equal(from_plain(plain, beside), value)
    beside.finish()


def test_equal_dicts_are_equal_bytes_and_one_is_not_true() -> None:
    assert pack(to_plain({"a": 1, "b": 2}, [])) == pack(to_plain({"b": 2, "a": 1}, []))
    distinct = [1, True, 1.0, np.int64(1), np.int32(1), (1,), [1], "1", b"1", -0.0, 0.0, None, ..., slice(1)]
    assert len({pack(to_plain(v, [])) for v in distinct}) == len(distinct)


@pytest.mark.parametrize("given_as", [np.float32, "float32", np.dtype(np.float32)])
def test_a_class_of_numbers_is_a_dtype(given_as: Any) -> None:
    with Graph().as_default() as graph:
        record("cast", constant(1.0), dtype=given_as)
    assert travelled(graph.tensors)[1].dtype == np.float32


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda x: x, "function"),
        (object(), "object"),
        (np.array([object()]), "dtype|object"),
        (np.longdouble(1), "longdouble|float128"),
        (np.dtype("M8[s]"), "datetime64"),
        (nested(MAX_DEPTH + 1), "deep"),
        ("x" * (MAX_TEXT + 1), "characters"),
        (b"x" * (MAX_TEXT + 1), "characters"),
        ("\ud800", "surrogate"),
        (1 << 9999, "int of"),
        ({1, 2}, "set"),
        (np.str_("x"), "<U1"),
        (range(3), "range"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_values_that_are_not_plain_data_are_refused_by_the_sender(value: Any, why: str) -> None:
    with Graph().as_default() as graph:
        made = np.tanh(constant(1.0))
    made.attrs["odd"] = value
    with pytest.raises(InvalidArgumentError, match=f"tanh 'tanh' cannot be serialized.*({why})"):
        encode(graph.tensors)


def test_nesting_up_to_the_limit_travels() -> None:
    value = nested(MAX_DEPTH)
    assert from_plain(to_plain(value, []), Beside([])) == value


@given(ANYTHING)
def test_any_attribute_may_be_anything(plain: Any) -> None:
    try:
        value = from_plain(plain, Beside([]))
    except NbdistError:
        return
    assert pack(to_plain(value, [])) is not None


@pytest.mark.parametrize(
    "plain",
    [
        ["slice", None, None], ["slice", 1.5, None, None], ["slice", "a", None, None], ["...", 1],
        ["complex", 1, 2.0], ["complex", 1.0], ["int", "12"], ["int", b"x" * 65], ["int"], ["dtype"],
        ["dtype", "O"], ["dtype", 3], ["dtype", "V8"], ["scalar", "<f4", b"abc"], ["scalar", "<f4"],
        ["scalar", "<f4", "abcd"], ["array", "<f4", b"", 1], ["array", "<f4", b"abcd", -1, -1],
        ["array", "<f4", b"", 0, 1 << 62, 1 << 62], ["array", "<f4", b"abcd", *[1] * 33],
        ["array", "<f4", b"abcd", True], ["array", "<f4"], ["dict", 1], ["dict", 1, 2, 1, 3],
        ["dict", ["list"], 1], ["beside", 0, 0], ["beside", None, 0], ["beside"], [1, 2], [], {"a": 1}, {},
        ["eval", "1"], ["tuple", ["tuple", ["os.system"]]], "x" * (MAX_TEXT + 1),
        ["tuple", to_plain(nested(MAX_DEPTH), [])],
        msgpack.Timestamp(1), msgpack.ExtType(5, b""),
    ],
    ids=lambda plain: repr(plain)[:40],
)  # fmt: skip
def test_attributes_that_are_not_what_they_say(plain: Any) -> None:
    with pytest.raises(DataLossError):
        from_plain(plain, Beside([]))
