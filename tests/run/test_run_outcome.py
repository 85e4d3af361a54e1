"""Outcomes as bytes: they round-trip, and invalid bytes are refused."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.run.values import outcome as outcomes
from nbdist.run.values.outcome import (
    LEAST,
    MAGIC,
    SIZES,
    decode,
    encode,
    light,
    outcome_path,
    pack,
    page,
    read_outcome,
    whole_size,
    write_outcome,
)
from nbdist.train.callbacks import History

TEXT = st.text(st.characters(codec=None), max_size=20)  # surrogates too
DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.floating_dtypes(), hnp.complex_number_dtypes(),
    hnp.unicode_string_dtypes(max_len=4), hnp.byte_string_dtypes(max_len=4), hnp.datetime64_dtypes(),
)  # fmt: skip
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.complex_numbers() | ARRAYS
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(TEXT | st.integers(-9, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type, dtype and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(
            one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, (float, complex)):
        return np.complex128(one).tobytes() == np.complex128(other).tobytes() or bool(
            np.isnan(one) and np.isnan(other)
        )
    return bool(one == other)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_outcomes_round_trip(outcome: dict[str, Any]) -> None:
    assert same(decode(b"".join(encode(outcome))), outcome)


@given(st.lists(st.binary(max_size=9), max_size=5), st.integers(0, 30), st.integers(0, 30))
def test_a_page_is_a_part_of_the_whole(pieces: list[bytes], start: int, most: int) -> None:
    assert page(pieces, start, most) == b"".join(pieces)[start : start + most]


@given(st.binary(max_size=80))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DataLossError):
        decode(data)


@given(st.data())
def test_a_flipped_byte_is_noticed(data: st.DataObject) -> None:
    whole = bytearray(b"".join(encode({"rank": 1, "results": {"x": np.arange(5.0)}})))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DataLossError):
        decode(bytes(whole))


@given(st.integers(0, 400))
def test_truncated_bytes_are_refused(length: int) -> None:
    whole = b"".join(encode({"rank": 1, "results": {"x": np.arange(30.0)}}))
    with pytest.raises(DataLossError):
        decode(whole[: min(length, len(whole) - 1)])


@given(st.binary(max_size=60))
def test_a_header_with_wrong_sizes_is_refused(head: bytes) -> None:
    """Even with a right checksum a claimed size allocates no memory."""
    import zlib

    whole = MAGIC + SIZES.pack(len(head), 0, zlib.crc32(head)) + head
    try:
        found = decode(whole)
    except DataLossError:
        return
    assert isinstance(found, dict)


@pytest.mark.parametrize(
    "place", [["<f8", [1 << 60], 0], ["<f8", [-1], 0], ["<f8", [2], 8], ["|O", [1], 0], ["<f8", [1] * 40, 0]]
)
def test_a_missing_array_is_refused(place: list[Any]) -> None:
    room = memoryview(b"\0" * 16)
    with pytest.raises(DataLossError, match="is not in its outcome"):
        outcomes._array_in(room, place)


def test_a_claim_is_checked_before_memory_is_taken() -> None:
    with pytest.raises(DataLossError, match="claims"):
        whole_size(MAGIC + SIZES.pack(1 << 40, 0, 0))
    assert whole_size(MAGIC + SIZES.pack(5, 6, 0)) == LEAST + 11


def test_results_that_cannot_be_written_are_named() -> None:
    from datetime import date

    packed = {"kind": "plain", "value": date(2026, 11, 20)}
    found = decode(b"".join(encode({"task": "worker 0", "results": {"day": packed, "n": 3}})))
    assert found["results"] == {"n": 3}
    assert found["left"] == ["day stayed on worker 0: it cannot be written: a date is not a plain value"]
    with pytest.raises(InvalidArgumentError):
        encode({"day": date(2026, 11, 20)})


def test_subclasses_arrive_as_what_they_stand_for() -> None:
    class Name(str):
        __slots__ = ()

    given_ = {"a": np.float32(0.5), "b": OrderedDict(x=Name("y")), "c": np.int8(3), "d": np.bool_(True)}
    assert decode(b"".join(encode(given_))) == {"a": 0.5, "b": {"x": "y"}, "c": 3, "d": True}


def test_of_a_fetched_outcome_the_history_is_kept() -> None:
    history = pack(History())
    outcome = {"rank": 0, "results": {"history": history, "w": pack(3)}, "left": ["x"], "step": 4}
    assert light(outcome) == {"rank": 0, "results": {"history": history}, "step": 4}
    own = light({"rank": 3, "values": {"h": History(), "n": 3}})
    assert list(own["results"]) == ["h"]


def test_a_file_is_private_whole_and_checked(tmp_path: Path) -> None:
    assert read_outcome(tmp_path, 2) is None
    path = write_outcome(tmp_path, 2, {"rank": 2})
    assert path == outcome_path(tmp_path, 2)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_outcome(tmp_path, 2) == {"rank": 2}
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DataLossError, match=r"outcome-0002\.bin is damaged: it was cut"):
        read_outcome(tmp_path, 2)
    path.write_bytes(b"")
    with pytest.raises(DataLossError, match="not an outcome"):
        read_outcome(tmp_path, 2)
    path.unlink()
    path.symlink_to("elsewhere")
    with pytest.raises(DataLossError, match="cannot be read"):
        read_outcome(tmp_path, 2)
