"""Elements that are encoded are decoded as they were, whatever way their parts take."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nbdist.data.encoding import decode, encode, write

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.text(max_size=2),
    st.binary(max_size=2),
    st.integers(0, 9).map(np.int64),
    st.integers(0, 9).map(np.float32),
    st.sampled_from(
        [np.arange(3), np.ones(3), np.zeros((2, 0)), np.zeros((2, 3), "f4"), np.array(4), np.array("ab")]
    ),
    st.sampled_from([np.bool_(True), np.str_("a"), np.datetime64("2024-01-01")]),
)
PARTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    ),
    max_leaves=6,
)


@given(st.lists(PARTS, max_size=3), st.integers(0, 3), st.booleans())
def test_elements_are_decoded_as_they_were(parts: list[object], times: int, copy: bool) -> None:
    element = parts * times  # alike, or not
    head, arrays, size = encode(element)
    memory = bytearray(size)
    write(memoryview(memory), arrays)
    found = decode(head, memory, copy=copy)
    assert repr(found) == repr(element)
    assert told(found) == told(element)


def told(value: object) -> object:
    """Return the types and dtypes of an element."""
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [told(part) for part in value]
    if isinstance(value, dict):
        return [(key, told(part)) for key, part in value.items()]
    return type(value).__name__, getattr(value, "dtype", None)
