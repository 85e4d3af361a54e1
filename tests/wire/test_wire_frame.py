"""Frames: a round trip keeps every value; garbage raises DataLossError."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbdist.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from nbdist.wire.rpc.frame import DTYPES, MAX_META, Frame, decode, encode

plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(),
        st.binary(),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
some_arrays = st.lists(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    ),
    max_size=4,
)


@given(st.text(max_size=30), st.dictionaries(st.text(), plain, max_size=4), some_arrays)
def test_round_trip(kind: str, meta: dict, arrays: list) -> None:
    sent = Frame(kind, meta, tuple(arrays))
    got = decode([bytes(part) for part in encode(sent)])
    assert (got.kind, got.meta) == (kind, meta)
    assert len(got.arrays) == len(arrays)
    for ours, theirs in zip(arrays, got.arrays, strict=True):
        assert theirs.dtype == ours.dtype
        assert theirs.shape == ours.shape
        assert theirs.tobytes() == ours.tobytes()


@given(st.lists(st.binary(max_size=64), max_size=4))
def test_garbage_raises(parts: list[bytes]) -> None:
    with pytest.raises(DataLossError):
        decode(parts)


EXAMPLE = [
    bytes(part)
    for part in encode(
        Frame("step", {"name": "w", "n": [1, 2.5, None], "b": b"x"}, (np.eye(3, dtype="f4"), np.arange(4)))
    )
]


@settings(max_examples=examples(500))
@given(st.data())
def test_a_changed_frame_raises_or_is_decoded(data: st.DataObject) -> None:
    parts = [bytearray(part) for part in EXAMPLE]
    for _ in range(data.draw(st.integers(1, 4))):
        part = parts[data.draw(st.integers(0, len(parts) - 1))]
        change = data.draw(st.sampled_from(["flip", "cut", "grow"]))
        if change == "flip" and part:
            part[data.draw(st.integers(0, len(part) - 1))] ^= data.draw(st.integers(1, 255))
        elif change == "cut":
            del part[data.draw(st.integers(0, len(part))) :]
        else:
            part += data.draw(st.binary(min_size=1, max_size=16))
    try:
        got = decode(parts)
    except DataLossError:
        return
    assert sum(array.nbytes for array in got.arrays) == sum(len(part) for part in parts[1:])


def test_contiguous_arrays_are_not_copied_and_others_keep_their_values() -> None:
    array = np.arange(12, dtype=np.float64).reshape(3, 4)
    assert np.shares_memory(np.frombuffer(encode(Frame("x", {}, (array,)))[1], np.float64), array)
    for odd in (array.T, array[:, ::2], np.asfortranarray(array), array.astype(">f8"), np.array(3.5)):
        back = decode(encode(Frame("x", {}, (odd,)))).arrays[0]
        np.testing.assert_array_equal(back, odd)
        assert back.shape == odd.shape


def test_received_arrays_are_views_and_read_only() -> None:
    parts = [bytes(part) for part in encode(Frame("x", {}, (np.arange(100.0),)))]
    array = decode(parts).arrays[0]
    assert np.shares_memory(array, np.frombuffer(parts[1], np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    "frame",
    [
        Frame("x", {"f": object()}),
        Frame("x", {"n": 1 << 70}),
        Frame("x", {"big": b"0" * (MAX_META + 1)}),
        Frame("x", {}, (np.array([object()]),)),
        Frame("x", {}, (np.array(["text"]),)),
        Frame("k" * 1000),
    ],
)
def test_values_that_a_frame_cannot_carry_are_refused(frame: Frame) -> None:
    with pytest.raises(InvalidArgumentError):
        encode(frame)


def test_a_shape_that_overflows_is_refused() -> None:
    head = bytearray(EXAMPLE[0])
    at = head.index((3).to_bytes(8, "little"))
    head[at : at + 16] = (2**63).to_bytes(8, "little") * 2  # 2**126 elements of 4 bytes are 0 modulo 2**64
    with pytest.raises(DataLossError, match="came with"):
        decode([bytes(head), b"", EXAMPLE[2]])


def test_zero_beside_a_huge_dimension_is_refused() -> None:
    head = bytearray(EXAMPLE[0])
    at = head.index((3).to_bytes(8, "little"))
    head[at : at + 16] = (0).to_bytes(8, "little") + (2**62).to_bytes(8, "little")
    with pytest.raises(DataLossError):
        decode([bytes(head), b"", EXAMPLE[2]])


def test_the_limit_is_checked_before_anything_is_read() -> None:
    with pytest.raises(ResourceExhaustedError, match="over the limit of 10"):
        decode(EXAMPLE, limit_bytes=10)


def test_pickles_and_extension_types_are_refused() -> None:
    import msgpack

    from nbdist.wire.rpc.frame import MAGIC, PRELUDE

    for meta in (msgpack.packb({"a": msgpack.ExtType(5, b"x")}), b"\x80\x04K\x01.", msgpack.packb([1])):
        with pytest.raises(DataLossError):
            decode([PRELUDE.pack(MAGIC, 0, 0, len(meta)) + meta])
