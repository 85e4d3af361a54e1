"""Values in shared memory: read in place, checked before they are used, removed when released."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from channel_peers import Open, arrived, files, ring
from hypothesis import given

from nbdist.errors import ResourceExhaustedError
from nbdist.wire.channel import slots
from nbdist.wire.channel.message import SLOT, Pointer, decode, encode_pointer
from nbdist.wire.channel.sender import MessageReceiver
from nbdist.wire.channel.slots import LINE
from nbdist.wire.rpc.frame import DTYPES
from nbdist.wire.shm import Segment, shared_folder


def resident(receiver: MessageReceiver) -> int:
    return len(receiver._mappings._mappings)


def forged(segment: Segment, sequence: int = 1, count: int = 1) -> bytes:
    return encode_pointer(Pointer(1, 7, 5, 0, count, segment.name, sequence))


def test_a_value_is_read_without_a_copy(receiver: MessageReceiver, opened: Open, prefix: str) -> None:
    sender = opened()
    sender.send(1, 7, 1, 0, [np.full(1000, 1.0)])
    (first,) = arrived(receiver).arrays
    sender.send(1, 7, 2, 0, [np.full(1000, 2.0)])
    assert first.max() == 2  # as documented: valid until the next message of its kind, plan and edge
    assert arrived(receiver).arrays[0] is first
    assert len(files(prefix)) == 2  # the pipe and one slot, however many steps


def test_a_slot_grows_and_received_arrays_stay_valid(
    receiver: MessageReceiver, opened: Open, prefix: str
) -> None:
    sender = opened()
    for step, size in enumerate((1000, 900, 50_000, 60_000, 10)):
        sender.send(1, 7, step, 0, [np.full(size, step)])
        (array,) = arrived(receiver).arrays
        assert array.min() == array.max() == step
        assert len(files(prefix)) == 2
        assert resident(receiver) == 1
    sender.close()
    sender.close()
    assert files(prefix) == [receiver.address.bell]
    assert array.shape == (10,)
    receiver.release()
    assert resident(receiver) == 0


def test_a_plan_is_released_at_both_ends(receiver: MessageReceiver, opened: Open, prefix: str) -> None:
    sender = opened()
    for plan in (1, 2):
        assert sender.slot(3, plan, 0, 100) is not None
        sender.send(1, plan, 0, 0, [np.ones(1000)])
        arrived(receiver)
    assert len(files(prefix)) == 5
    sender.release(1)
    receiver.release()
    assert len(files(prefix)) == 3
    assert resident(receiver) == 1
    for plan in (1, 2):
        sender.send(1, plan, 1, 0, [np.full(1000, plan)])
        assert arrived(receiver).arrays[0].max() == plan


def test_a_value_made_in_shared_memory_is_not_copied(receiver: MessageReceiver, opened: Open) -> None:
    sender = opened()
    memory = sender.slot(1, 7, 0, 8000)
    assert memory is not None
    assert memory.nbytes == 8000
    assert not memory.any()
    one, two = memory[:4000].view(np.float64).reshape(5, 100), memory[4000:4016].view(np.int32)
    for step in range(3):
        one[:], two[:] = step, -step
        sender.send(1, 7, step, 0, [one, two], {"step": step})
        message = arrived(receiver)
        assert message.meta == {"step": step}
        assert [array.shape for array in message.arrays] == [(5, 100), (4,)]
        assert message.arrays[0].max() == step
        assert message.arrays[1].min() == -step
    one[0, 0] = 99
    assert message.arrays[0][0, 0] == 99
    with pytest.raises(ValueError, match="read-only"):
        message.arrays[0][0, 0] = 0
    again = sender.slot(1, 7, 0, 4000)
    assert again is not None
    assert np.shares_memory(again, memory)
    larger = sender.slot(1, 7, 0, 100_000)
    assert larger is not None
    larger[:] = 3
    sender.send(1, 7, 4, 0, [larger])
    assert arrived(receiver).arrays[0].tolist() == larger.tolist()


def test_arrays_outside_the_slot_are_copied(receiver: MessageReceiver, opened: Open) -> None:
    sender = opened()
    memory = sender.slot(1, 7, 0, 8000)
    assert memory is not None
    direct, own = memory.view(np.float64).reshape(10, 100), np.full(1000, 7.0)
    direct[:] = np.arange(1000).reshape(10, 100)
    for arrays in (
        [direct, own],
        [direct.T],
        [own],
        [direct[:, :50]],
        [memory[1:9].view(np.float64)],
        [direct],
    ):
        for meta in ({}, {"much": "x" * 5000}):
            sender.send(1, 7, 1, 0, arrays, meta)  # type: ignore[arg-type]
            message = arrived(receiver)
            assert message.meta == meta
            for theirs, ours in zip(message.arrays, arrays, strict=True):
                np.testing.assert_array_equal(theirs, ours)


shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
arrays_of_any_kind = st.sampled_from(DTYPES).flatmap(
    lambda dtype: (
        hnp.arrays(dtype.newbyteorder(), shapes, elements=hnp.from_dtype(dtype), fill=st.nothing())
        | hnp.arrays(dtype, shapes, fill=st.just(dtype.type(1))).map(np.transpose)
        | hnp.arrays(dtype, shapes, fill=st.just(dtype.type(0))).map(
            lambda one: one[..., ::-2] if one.ndim else one
        )
    )
)
contents = st.tuples(st.lists(arrays_of_any_kind, max_size=4), st.binary(max_size=5000))


@given(st.lists(contents, min_size=1, max_size=6))
def test_a_slot_returns_the_arrays_and_meta_written_to_it(steps: list[tuple[list[Any], bytes]]) -> None:
    sender, receiver = slots.MessageSlots(f"nbdist-test{secrets.token_hex(4)}"), slots.SlotMappings()
    try:
        for step, (arrays, meta) in enumerate(steps):
            pointer = decode(sender.fill(1, 7, step, 0, arrays, meta))
            assert isinstance(pointer, Pointer)
            got, got_meta = receiver.read(pointer)
            assert got_meta == meta
            for theirs, ours in zip(got, arrays, strict=True):
                assert (theirs.dtype, theirs.shape) == (ours.dtype.newbyteorder("<"), ours.shape)
                assert theirs.tobytes() == ours.astype(theirs.dtype).tobytes()
                assert theirs.ctypes.data % LINE == 0
    finally:
        sender.release()


def test_a_message_that_was_overwritten_is_refused(receiver: MessageReceiver, opened: Open) -> None:
    sender = opened()
    for step in range(3):
        sender.send(1, 7, step, 0, [np.full(1000, step)])
    message = arrived(receiver)
    assert message.step == 2
    assert message.arrays[0].max() == 2
    assert receiver.next(0) is None
    assert receiver.damaged == 2


def test_the_contents_of_a_slot_are_checked(
    receiver: MessageReceiver, opened: Open, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = opened()
    segment = Segment.create(prefix, 4096)

    def write(sequence: int, at: int, table: bytes, table_length: int, meta_length: int) -> None:
        segment.bytes[:] = 0
        segment.bytes[: SLOT.size] = np.frombuffer(
            SLOT.pack(sequence, at, table_length, meta_length), np.uint8
        )
        segment.bytes[LINE : LINE + len(table)] = np.frombuffer(table, np.uint8)

    def entry(code: int, start: int, *shape: int) -> bytes:
        ndim = len(shape)
        return bytes([code, ndim]) + bytes(6) + b"".join(n.to_bytes(8, "little") for n in (start, *shape))

    def refused() -> None:
        before = receiver.damaged
        ring(receiver, forged(segment))
        sender.send(2, 7, 1)
        assert arrived(receiver).kind == 2
        assert receiver.damaged == before + 1

    good = entry(10, 128, 3)
    write(1, LINE, good, len(good), 0)
    ring(receiver, forged(segment))
    assert arrived(receiver).arrays[0].tolist() == [0, 0, 0]
    for wrong in (
        entry(10, 4096 - 8, 3), entry(10, 129, 3), entry(99, 128, 3), entry(10, 128, 2**63),
        entry(10, 2**63, 3), entry(10, 128, 2**40, 2**40), entry(10, 128, 2**50, 0),
        good + good, good[:20], b"", bytes([10, 200]) * 20,
    ):  # fmt: skip
        write(1, LINE, wrong, len(wrong), 0)
        refused()
    for numbers in ((2, LINE, 24, 0), (1, 5000, 24, 0), (1, 2**64 - 8, 24, 0), (1, LINE, 2**63, 0),
                    (1, LINE, 24, 2**40), (1, LINE, 24, 9)):  # fmt: skip
        write(numbers[0], numbers[1], good, numbers[2], numbers[3])
        if numbers[3] == 9:
            segment.bytes[LINE + 24] = 0xC1  # not a valid first byte in msgpack
        refused()
    write(1, LINE, good, len(good), 0)
    ring(receiver, forged(segment))
    assert arrived(receiver).kind == 1
    segment.close()


def test_only_private_segments_of_this_user_are_opened(
    receiver: MessageReceiver, opened: Open, prefix: str
) -> None:
    sender = opened()

    def refused(name: str) -> None:
        before = receiver.damaged
        ring(receiver, encode_pointer(Pointer(1, 7, 5, 0, 0, name, 0)))
        sender.send(2, 7, 1)
        assert arrived(receiver).kind == 2
        assert receiver.damaged == before + 1

    for name in (
        "",
        "..",
        "/etc/passwd",
        "../../etc/passwd",
        f"{prefix}-none",
        receiver.address.bell,
        "a\0b",
        "x" * 300,
    ):
        refused(name)
    with Segment.create(prefix, 4096) as open_to_all:
        (shared_folder() / open_to_all.name).chmod(0o644)
        refused(open_to_all.name)
    with Segment.create(prefix, 10) as short:
        refused(short.name)
    empty = shared_folder() / f"{prefix}-empty"
    os.close(os.open(empty, os.O_CREAT | os.O_WRONLY, 0o600))
    refused(empty.name)
    empty.unlink()
    if os.geteuid() == 0:
        with Segment.create(prefix, 4096) as foreign:
            os.chown(shared_folder() / foreign.name, 65534, 65534)
            refused(foreign.name)


def no_room(*arguments: object) -> Segment:
    raise ResourceExhaustedError("the host has no room for 8,000 bytes of shared memory")


def test_a_sender_uses_its_socket_once_shared_memory_is_full(
    receiver: MessageReceiver, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = opened(name="/job:ps/task:0")
    sender.send(1, 7, 0, 0, [np.full(1000, 0.0)])
    sender.send(1, 7, 1)
    monkeypatch.setattr(slots.Segment, "create", no_room)
    for step in range(2, 6):
        sender.send(1, 7, step, 1, [np.full(1000, step)])
    assert sender.kind == "socket"
    (note,) = sender.notes
    assert note.startswith("messages to /job:ps/task:0 travel over a socket: the host has no room")
    for step in range(6):
        message = arrived(receiver)
        assert message.step == step
        assert step == 1 or message.arrays[0].max() == step
    other = opened()
    assert other.kind == "shared memory"
    assert other.slot(1, 7, 0, 8000) is None
    assert other.kind == "socket"
    assert len(other.notes) == 1
