"""MessageReceiver and MessageSender: the same contract tests for shared memory and for sockets."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from channel_peers import Open, arrived, expect_closed, process

from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.wire.channel.message import Message
from nbdist.wire.channel.sender import Address, MessageReceiver, MessageSender
from nbdist.wire.rpc.frame import DTYPES


class ChannelContract:
    """Tests that hold for every transport."""

    transport: str

    @pytest.fixture
    def sender(self, opened: Open) -> MessageSender:
        return opened(transport=self.transport)

    def test_a_message_arrives_as_it_was_sent(self, receiver: MessageReceiver, sender: MessageSender) -> None:
        arrays = [np.arange(6).reshape(2, 3).astype(dtype) for dtype in DTYPES]
        arrays += [np.array(2.5), np.zeros((3, 0, 2), np.int8), np.arange(12.0).reshape(3, 4).T[::2]]
        meta = {"error": "none", "shape": [1, 2], "raw": b"\x00\xff", "nothing": None}
        sender.send(200, 2**63, 2**40, 70_000, arrays, meta)
        message = arrived(receiver)
        assert (message.kind, message.plan, message.step, message.edge) == (200, 2**63, 2**40, 70_000)
        assert message.meta == meta
        assert len(message.arrays) == len(arrays)
        for ours, theirs in zip(arrays, message.arrays):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(theirs, ours)
            with pytest.raises(ValueError, match="read-only"):
                theirs[...] = 0

    def test_plain_numbers_arrive_as_arrays(self, receiver: MessageReceiver, sender: MessageSender) -> None:
        sender.send(1, 7, 1, 0, [2.5, 3, True, np.float32(1)])  # type: ignore[list-item]
        message = arrived(receiver)
        assert [one.shape for one in message.arrays] == [()] * 4
        assert [one.item() for one in message.arrays] == [2.5, 3, True, 1]

    def test_the_smallest_message(self, receiver: MessageReceiver, sender: MessageSender) -> None:
        sender.send(0, 0, 0)
        assert arrived(receiver) == Message(0, 0, 0, 0, (), {})

    @pytest.mark.parametrize("size", [0, 1, 500, 4000, 4096, 5000, 1 << 20, (1 << 22) + 3])
    def test_arrays_of_any_size(self, receiver: MessageReceiver, sender: MessageSender, size: int) -> None:
        array = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        sender.send(1, 7, 1, 0, [array, array[:3], array[::-1]])
        message = arrived(receiver)
        for theirs, ours in zip(message.arrays, (array, array[:3], array[::-1]), strict=True):
            np.testing.assert_array_equal(theirs, ours)

    def test_many_arrays_and_much_meta(self, receiver: MessageReceiver, sender: MessageSender) -> None:
        meta = {"graph": os.urandom(3 << 20), "error": "é" * 10_000}
        sender.send(1, 7, 1, 0, [np.full(number % 5, number) for number in range(1000)], meta)
        message = arrived(receiver)
        assert message.meta == meta
        assert [one.tolist() for one in message.arrays] == [[n] * (n % 5) for n in range(1000)]

    def test_messages_of_one_sender_keep_their_order(
        self, receiver: MessageReceiver, sender: MessageSender
    ) -> None:
        sizes = [3, 700, 0, 100]  # at most one of 700 items in the slot at a time
        for step in range(200):
            sender.send(1, 7, step, 0, [np.full(sizes[step % 4], step)])
            if step % 4 == 3:
                for number in range(step - 3, step + 1):
                    message = arrived(receiver)
                    assert message.step == number
                    assert message.arrays[0].tolist() == [number] * sizes[number % 4]

    def test_sent_arrays_may_be_changed(self, receiver: MessageReceiver, sender: MessageSender) -> None:
        small, large = np.ones(3), np.ones(100_000)
        sender.send(1, 7, 1, 0, [small, large])
        small[:] = large[:] = 5
        for array in arrived(receiver).arrays:
            assert array.max() == 1

    def test_one_slot_takes_other_shapes_at_each_step(
        self, receiver: MessageReceiver, sender: MessageSender
    ) -> None:
        random = np.random.default_rng(0)
        for step in range(30):
            arrays = [random.random(random.integers(0, 3000)) for _ in range(step % 4)]
            meta = {"text": "x" * int(random.integers(0, 9000))}
            sender.send(1, 7, step, 0, arrays, meta)
            message = arrived(receiver)
            assert message.meta == meta
            for theirs, ours in zip(message.arrays, arrays, strict=True):
                np.testing.assert_array_equal(theirs, ours)

    def test_kinds_plans_and_edges_have_separate_slots(
        self, receiver: MessageReceiver, sender: MessageSender
    ) -> None:
        keys = [(kind, plan, edge) for kind in range(2) for plan in range(2) for edge in range(3)]
        for number, (kind, plan, edge) in enumerate(keys):
            sender.send(kind, plan, 0, edge, [np.full(2000, number)])
        messages = [arrived(receiver) for _ in keys]
        assert [(one.kind, one.plan, one.edge) for one in messages] == keys
        assert [one.arrays[0].mean() for one in messages] == list(range(len(keys)))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"kind": 256}, {"kind": -1}, {"plan": 2**64}, {"step": -1}, {"edge": 2**32},
            {"arrays": [np.array([None])]}, {"arrays": [np.zeros(9000, "S3")]},
            {"arrays": [np.zeros(9000), np.array(["text"])]}, {"arrays": [np.zeros(1)] * 5000},
            {"meta": {"function": print}},
        ],
        ids=str,
    )  # fmt: skip
    def test_an_invalid_message_is_refused_and_the_next_one_is_sent(
        self, receiver: MessageReceiver, sender: MessageSender, wrong: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            sender.send(**{"kind": 1, "plan": 1, "step": 1, **wrong})
        sender.send(1, 7, 2)
        assert arrived(receiver).step == 2

    def test_next_returns_none_at_its_timeout(self, receiver: MessageReceiver, sender: MessageSender) -> None:
        assert receiver.next(0) is None
        begun = time.monotonic()
        assert receiver.next(0.05) is None
        assert 0.05 <= time.monotonic() - begun < 5
        sender.send(1, 7, 1)
        assert arrived(receiver).step == 1
        assert receiver.next(0) is None

    def test_another_thread_can_wake_the_receiver(
        self, receiver: MessageReceiver, sender: MessageSender
    ) -> None:
        receiver.wake()
        receiver.wake()
        assert receiver.next(None) is None
        thread = threading.Timer(0.02, receiver.wake)
        thread.start()
        assert receiver.next(None) is None
        thread.join()
        sender.send(1, 7, 1)
        assert arrived(receiver).step == 1

    def test_several_writers(self, receiver: MessageReceiver, opened: Open) -> None:
        def write(plan: int) -> None:
            sender = opened(transport=self.transport)
            for step in range(300):
                sender.send(1, plan, step, step, [np.full(800 if step % 50 == 0 else 20, plan)])

        threads = [threading.Thread(target=write, args=(plan,)) for plan in range(4)]
        for thread in threads:
            thread.start()
        steps: dict[int, list[int]] = {plan: [] for plan in range(4)}
        for _ in range(4 * 300):
            message = arrived(receiver)
            steps[message.plan].append(message.step)
            assert set(message.arrays[0].tolist()) == {message.plan}
        for thread in threads:
            thread.join()
        assert steps == {plan: list(range(300)) for plan in range(4)}
        assert receiver.damaged == 0

    def test_a_closed_receiver_is_detected(self, receiver: MessageReceiver, sender: MessageSender) -> None:
        sender.check()
        sender.send(1, 7, 1)
        arrived(receiver)
        sender.check()
        receiver.close()
        receiver.close()
        receiver.wake()  # no effect after close
        expect_closed(sender)
        with pytest.raises(UnavailableError):
            sender.send(1, 7, 2)
        with pytest.raises(UnavailableError):
            sender.check()

    def test_messages_sent_just_before_close_arrive(
        self, receiver: MessageReceiver, sender: MessageSender
    ) -> None:
        for step in range(3):
            sender.send(1, 7, step, 0, [np.full(9, step)])
        sender.close()
        assert [arrived(receiver).step for _ in range(3)] == [0, 1, 2]

    def test_a_closed_sender_raises(self, receiver: MessageReceiver, sender: MessageSender) -> None:
        sender.close()
        sender.close()
        for act in (sender.check, lambda: sender.send(1, 7, 1)):
            with pytest.raises(UnavailableError, match="was closed here"):
                act()

    @pytest.mark.processes
    def test_messages_of_a_killed_writer_stay_readable(
        self, receiver: MessageReceiver, sender: MessageSender, prefix: str
    ) -> None:
        with process(receiver.address, f"{prefix}-writer", self.transport):
            for step in range(2000):
                assert arrived(receiver).step == step
        sender.send(9, 7, 1)
        while (message := arrived(receiver)).kind != 9:
            assert message.step > step
        assert receiver.damaged == 0

    @pytest.mark.processes
    def test_a_killed_reader_is_detected(self, prefix: str, opened: Open, receiver: MessageReceiver) -> None:
        with process(receiver.address, f"{prefix}-reader", "") as reader:
            assert reader.stdout
            address = Address.from_dict(json.loads(reader.stdout.readline()))
            sender = opened(address, transport=self.transport)
            sender.send(1, 7, 3)
            assert arrived(receiver).step == 3
            sender.check()
            reader.kill()
            expect_closed(sender)


class TestThroughSharedMemory(ChannelContract):
    transport = "auto"

    def test_it_is_used_on_one_host(self, sender: MessageSender) -> None:
        assert sender.kind == "shared memory"
        assert sender.notes == []


class TestThroughSockets(ChannelContract):
    transport = "socket"

    def test_it_is_used_when_asked_for(self, sender: MessageSender) -> None:
        assert sender.kind == "socket"
        assert sender.slot(1, 7, 0, 100) is None
        assert sender.notes == []


def test_an_address_is_converted_to_plain_values_and_back(receiver: MessageReceiver) -> None:
    assert Address.from_dict(json.loads(json.dumps(receiver.address.to_dict()))) == receiver.address
    for wrong in ({}, {"host": 1, "bell": "", "socket": ""}, {**receiver.address.to_dict(), "more": ""}):
        with pytest.raises(InvalidArgumentError, match="an address has the texts"):
            Address.from_dict(wrong)


def test_an_unknown_transport_is_refused(opened: Open) -> None:
    with pytest.raises(InvalidArgumentError, match="'auto' or 'socket', not 'pigeon'"):
        opened(transport="pigeon")
