"""The format of messages: a round trip keeps them, and invalid bytes are refused."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.wire.channel.message import (
    CALL_TO_WAKE,
    END,
    ENTRIES,
    HEAD,
    MAGIC,
    ROOM,
    Message,
    PipeBuffer,
    Pointer,
    decode,
    encode,
    encode_pointer,
    from_frame,
    pack_values,
    to_frame,
)
from nbdist.wire.rpc.frame import DTYPES, unpack_meta
from nbdist.wire.rpc.frame import decode as decode_frame
from nbdist.wire.rpc.frame import encode as encode_frame

Array = np.ndarray[Any, Any]

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
arrays = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
turned = arrays.map(np.transpose) | arrays.map(lambda array: array[..., ::2] if array.ndim else array)
numbers = st.tuples(
    st.integers(0, 255), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
metas = st.dictionaries(st.text(max_size=8), plain, max_size=4)


def same(message: Message | Pointer | None, expected: Message) -> None:
    assert isinstance(message, Message)
    assert (message.kind, message.plan, message.step, message.edge) == (
        expected.kind, expected.plan, expected.step, expected.edge
    )  # fmt: skip
    assert message.meta == expected.meta
    assert len(message.arrays) == len(expected.arrays)
    for got, given_one in zip(message.arrays, expected.arrays):
        assert (got.dtype, got.shape) == (given_one.dtype.newbyteorder("<"), given_one.shape)
        assert got.tobytes() == given_one.astype(got.dtype).tobytes()
        assert not got.flags.writeable
        assert got.flags.aligned


@given(numbers, st.lists(arrays | turned, max_size=4), metas)
def test_round_trip_through_a_pipe(head: tuple[int, int, int, int], some: list[Array], meta: Any) -> None:
    message = encode(*head, some, pack_values(meta, head[0]))
    if message is None:  # it has to be too long
        assert sum(64 + 8 * one.ndim + one.nbytes for one in some) + len(pack_values(meta, 0)) > ROOM - 100
        return
    assert len(message) <= ROOM
    same(decode(message), Message(*head, tuple(some), meta))


@given(numbers, st.lists(arrays | turned, max_size=4), metas)
def test_round_trip_through_a_socket(head: tuple[int, int, int, int], some: list[Array], meta: Any) -> None:
    frame = to_frame(*head, some, pack_values(meta, head[0]))
    same(from_frame(decode_frame(encode_frame(frame))), Message(*head, tuple(some), meta))


def test_the_longest_message_and_one_byte_more() -> None:
    most = ROOM - HEAD.size - ENTRIES[1].size - len(END)
    for size in range(most - 20, most + 9):
        message = encode(1, 2, 3, 4, [np.arange(size, dtype=np.uint8)])
        assert (message is None) == (size > most)
        if message is not None:
            same(decode(message), Message(1, 2, 3, 4, (np.arange(size, dtype=np.uint8),)))


def test_big_endian_arrays_and_scalars_are_sent_as_little_endian() -> None:
    some = (np.arange(3, dtype=">f8"), np.array(5, ">i2"))
    message = encode(1, 2, 3, 4, [*some, np.float32(2.5)])  # type: ignore[list-item]
    assert message is not None
    same(decode(message), Message(1, 2, 3, 4, (*some, np.array(2.5, np.float32))))


@pytest.mark.parametrize(
    ("head", "some"),
    [
        ((256, 0, 0, 0), []),
        ((-1, 0, 0, 0), []),
        ((0, 2**64, 0, 0), []),
        ((0, 0, -1, 0), []),
        ((0, 0, 0, 2**32), []),
        ((0, 0, 0, 0), [np.array([None])]),
        ((0, 0, 0, 0), [np.array(["text"])]),
        ((0, 0, 0, 0), [np.zeros(2, "datetime64[s]")]),
    ],
)
def test_invalid_numbers_and_dtypes_are_refused(head: tuple[int, int, int, int], some: list[Array]) -> None:
    with pytest.raises(InvalidArgumentError):
        encode(*head, some)
    with pytest.raises(InvalidArgumentError):
        encode_frame(to_frame(*head, some, b""))


@given(st.binary(min_size=HEAD.size, max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_changed_bytes_are_refused_or_decoded(extra: bytes, at: int, value: int) -> None:
    message = encode(3, 1, 1, 1, [np.arange(6.0).reshape(2, 3), np.array(True)], pack_values({"a": [1]}, 3))
    assert message is not None
    changed = bytearray(message)
    changed[at % len(message)] = value
    for one in (bytes(changed), message[: -8 * (at % 5 + 1)], MAGIC + extra):
        with suppress(DataLossError):
            decode(one)


@pytest.mark.parametrize("shape", [(2**63, 2**63), (2**62, 4), (2**40, 0, 2**40), (7,), (2**64 - 1,)])
def test_a_shape_larger_than_its_bytes_is_refused(shape: tuple[int, ...]) -> None:
    message = bytearray(encode(0, 0, 0, 0, [np.zeros((1,) * len(shape))]) or b"")
    for index, side in enumerate(shape):
        message[HEAD.size + 16 + 8 * index : HEAD.size + 24 + 8 * index] = side.to_bytes(8, "little")
    with pytest.raises(DataLossError, match="an array of shape"):
        decode(bytes(message))


def test_round_trip_of_pointers() -> None:
    for length in range(1, 60):
        pointer = Pointer(1, 2**60, 3, 4, 5, "n" * length, 2**50)
        assert decode(encode_pointer(pointer)) == pointer
    with pytest.raises(DataLossError):
        decode(encode_pointer(pointer)[:-8])
    with pytest.raises(DataLossError, match="not text"):
        decode(encode_pointer(Pointer(1, 2, 3, 4, 5, "name", 6)).replace(b"name", b"\xff\xff\xff\xff"))


@pytest.mark.parametrize(
    ("meta", "some"),
    [
        ({}, []),
        ({"message": 5, "meta": b""}, []),
        ({"message": [1, 2, 3], "meta": b""}, []),
        ({"message": [1, 2, 3, -4], "meta": b""}, []),
        ({"message": [1, 2, 3, "4"], "meta": b""}, []),
        ({"message": [1, 2, 3, True], "meta": b""}, []),
        ({"message": [1, 2, 3, 4]}, []),
        ({"message": [1, 2, 3, 4]}, [np.zeros(3)]),
        ({"message": [1, 2, 3, 4], "meta": "text"}, []),
        ({"message": [1, 2, 3, 4], "meta": b"\xc1"}, []),
    ],
)
def test_frames_without_a_valid_message_are_refused(meta: dict[str, Any], some: list[Array]) -> None:
    frame = to_frame(1, 2, 3, 4, some, b"")
    frame.meta.clear()
    frame.meta.update(meta)
    with pytest.raises(DataLossError):
        from_frame(frame)


def messages_of(unread: PipeBuffer) -> list[int]:
    return [message.step for message in iter(unread.take, None) if isinstance(message, Message)]


def some_messages(count: int) -> list[bytes]:
    sizes = itertools.cycle([0, 1, 13, 400])
    return [encode(1, 0, step, 0, [np.full(next(sizes), step)]) or b"" for step in range(count)]


@given(st.lists(st.integers(1, 900), min_size=1, max_size=40))
def test_messages_in_arbitrary_pieces_are_joined(cuts: list[int]) -> None:
    stream, unread, got = b"".join(some_messages(12)), PipeBuffer(), []
    at = 0
    for size in cuts:
        unread.add(stream[at : at + size], whole=False)
        got += messages_of(unread)
        at += size
    unread.add(stream[at:], whole=True)
    assert got + messages_of(unread) == list(range(12))
    assert unread.damaged == 0


garbage = st.binary(min_size=1, max_size=80).filter(lambda piece: MAGIC[:1] not in piece)
# By less than the shortest message: if whole messages replaced the missing bytes exactly, it would be valid.
cut_off = st.integers(1, 63).map(lambda size: some_messages(4)[2][:-size])
lying = st.integers(0, 2**16 - 1).map(lambda size: HEAD.pack(MAGIC, size, 1, 0, 0, 0, 0, 0, 0))


@given(st.dictionaries(st.integers(0, 12), garbage | cut_off | lying, max_size=4))
def test_garbage_between_messages_loses_no_message(pieces: dict[int, bytes]) -> None:
    stream = some_messages(12)
    for place, piece in sorted(pieces.items(), reverse=True):
        stream.insert(place, piece)
    unread = PipeBuffer()
    unread.add(b"".join(stream), whole=True)
    assert messages_of(unread) == list(range(12))
    assert bool(unread.damaged) == bool(unread.failure) == bool(pieces)


def test_a_head_with_too_large_a_length_does_not_hide_the_next_message() -> None:
    message = some_messages(2)[1]
    for count in (0, 1):
        unread = PipeBuffer()
        unread.add(HEAD.pack(MAGIC, HEAD.size + len(message), 1, 0, count, 0, 0, 0, 0) + message, whole=True)
        assert messages_of(unread) == [1]
        assert unread.damaged == 1


def test_a_wake_up_is_not_a_message() -> None:
    unread = PipeBuffer()
    unread.add(CALL_TO_WAKE + some_messages(2)[1] + CALL_TO_WAKE, whole=True)
    assert messages_of(unread) == [1]
    assert unread.take() is None
    assert unread.damaged == 0


def test_meta_may_be_larger_than_a_frames_limit() -> None:
    large = {"text": "x" * 3_000_000}
    assert unpack_meta(pack_values(large, 1)) == large
    frame = decode_frame(encode_frame(to_frame(1, 2, 3, 4, [np.ones(2)], pack_values(large, 1))))
    same(from_frame(frame), Message(1, 2, 3, 4, (np.ones(2),), large))
    with pytest.raises(InvalidArgumentError, match="not plain data"):
        pack_values({"function": print}, 1)
