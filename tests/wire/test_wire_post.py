"""Inbox and Outbox: one contract for both ways that letters travel."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from wire_post import Open, arrived, expect_gone, process

from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.wire.channel.message import Letter
from nbdist.wire.channel.sender import Address, Inbox, Outbox
from nbdist.wire.rpc.frame import DTYPES


class PostContract:
    """What holds however letters travel."""

    transport: str

    @pytest.fixture
    def outbox(self, opened: Open) -> Outbox:
        return opened(transport=self.transport)

    def test_a_letter_arrives_as_it_was_sent(self, inbox: Inbox, outbox: Outbox) -> None:
        arrays = [np.arange(6).reshape(2, 3).astype(dtype) for dtype in DTYPES]
        arrays += [np.array(2.5), np.zeros((3, 0, 2), np.int8), np.arange(12.0).reshape(3, 4).T[::2]]
        meta = {"error": "none", "shape": [1, 2], "raw": b"\x00\xff", "nothing": None}
        outbox.send(200, 2**63, 2**40, 70_000, arrays, meta)
        letter = arrived(inbox)
        assert (letter.kind, letter.plan, letter.step, letter.edge) == (200, 2**63, 2**40, 70_000)
        assert letter.meta == meta
        assert len(letter.arrays) == len(arrays)
        for ours, theirs in zip(arrays, letter.arrays):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(theirs, ours)
            with pytest.raises(ValueError, match="read-only"):
                theirs[...] = 0

    def test_plain_numbers_arrive_as_arrays(self, inbox: Inbox, outbox: Outbox) -> None:
        outbox.send(1, 7, 1, 0, [2.5, 3, True, np.float32(1)])  # type: ignore[list-item]
        letter = arrived(inbox)
        assert [one.shape for one in letter.arrays] == [()] * 4
        assert [one.item() for one in letter.arrays] == [2.5, 3, True, 1]

    def test_the_smallest_letter(self, inbox: Inbox, outbox: Outbox) -> None:
        outbox.send(0, 0, 0)
        assert arrived(inbox) == Letter(0, 0, 0, 0, (), {})

    @pytest.mark.parametrize("size", [0, 1, 500, 4000, 4096, 5000, 1 << 20, (1 << 22) + 3])
    def test_arrays_of_any_size(self, inbox: Inbox, outbox: Outbox, size: int) -> None:
        array = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        outbox.send(1, 7, 1, 0, [array, array[:3], array[::-1]])
        letter = arrived(inbox)
        for theirs, ours in zip(letter.arrays, (array, array[:3], array[::-1]), strict=True):
            np.testing.assert_array_equal(theirs, ours)

    def test_many_arrays_and_much_meta(self, inbox: Inbox, outbox: Outbox) -> None:
        meta = {"graph": os.urandom(3 << 20), "error": "é" * 10_000}
        outbox.send(1, 7, 1, 0, [np.full(number % 5, number) for number in range(1000)], meta)
        letter = arrived(inbox)
        assert letter.meta == meta
        assert [one.tolist() for one in letter.arrays] == [[n] * (n % 5) for n in range(1000)]

    def test_letters_of_one_outbox_keep_their_order(self, inbox: Inbox, outbox: Outbox) -> None:
        sizes = [3, 700, 0, 100]  # at most one of 700 in memory at once
        for step in range(200):
            outbox.send(1, 7, step, 0, [np.full(sizes[step % 4], step)])
            if step % 4 == 3:
                for number in range(step - 3, step + 1):
                    letter = arrived(inbox)
                    assert letter.step == number
                    assert letter.arrays[0].tolist() == [number] * sizes[number % 4]

    def test_what_was_sent_may_be_changed(self, inbox: Inbox, outbox: Outbox) -> None:
        small, large = np.ones(3), np.ones(100_000)
        outbox.send(1, 7, 1, 0, [small, large])
        small[:] = large[:] = 5
        for array in arrived(inbox).arrays:
            assert array.max() == 1

    def test_one_slot_takes_other_shapes_at_each_step(self, inbox: Inbox, outbox: Outbox) -> None:
        random = np.random.default_rng(0)
        for step in range(30):
            arrays = [random.random(random.integers(0, 3000)) for _ in range(step % 4)]
            meta = {"text": "x" * int(random.integers(0, 9000))}
            outbox.send(1, 7, step, 0, arrays, meta)
            letter = arrived(inbox)
            assert letter.meta == meta
            for theirs, ours in zip(letter.arrays, arrays, strict=True):
                np.testing.assert_array_equal(theirs, ours)

    def test_kinds_plans_and_edges_do_not_meet(self, inbox: Inbox, outbox: Outbox) -> None:
        keys = [(kind, plan, edge) for kind in range(2) for plan in range(2) for edge in range(3)]
        for number, (kind, plan, edge) in enumerate(keys):
            outbox.send(kind, plan, 0, edge, [np.full(2000, number)])
        letters = [arrived(inbox) for _ in keys]
        assert [(one.kind, one.plan, one.edge) for one in letters] == keys
        assert [one.arrays[0].mean() for one in letters] == list(range(len(keys)))

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
    def test_what_cannot_travel_is_refused_and_the_next_is_not(
        self, inbox: Inbox, outbox: Outbox, wrong: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            outbox.send(**{"kind": 1, "plan": 1, "step": 1, **wrong})
        outbox.send(1, 7, 2)
        assert arrived(inbox).step == 2

    def test_no_letter_within_the_time(self, inbox: Inbox, outbox: Outbox) -> None:
        assert inbox.next(0) is None
        begun = time.monotonic()
        assert inbox.next(0.05) is None
        assert 0.05 <= time.monotonic() - begun < 5
        outbox.send(1, 7, 1)
        assert arrived(inbox).step == 1
        assert inbox.next(0) is None

    def test_another_thread_wakes(self, inbox: Inbox, outbox: Outbox) -> None:
        inbox.wake()
        inbox.wake()
        assert inbox.next(None) is None
        thread = threading.Timer(0.02, inbox.wake)
        thread.start()
        assert inbox.next(None) is None
        thread.join()
        outbox.send(1, 7, 1)
        assert arrived(inbox).step == 1

    def test_several_writers(self, inbox: Inbox, opened: Open) -> None:
        def write(plan: int) -> None:
            outbox = opened(transport=self.transport)
            for step in range(300):
                outbox.send(1, plan, step, step, [np.full(800 if step % 50 == 0 else 20, plan)])

        threads = [threading.Thread(target=write, args=(plan,)) for plan in range(4)]
        for thread in threads:
            thread.start()
        steps: dict[int, list[int]] = {plan: [] for plan in range(4)}
        for _ in range(4 * 300):
            letter = arrived(inbox)
            steps[letter.plan].append(letter.step)
            assert set(letter.arrays[0].tolist()) == {letter.plan}
        for thread in threads:
            thread.join()
        assert steps == {plan: list(range(300)) for plan in range(4)}
        assert inbox.damaged == 0

    def test_a_closed_inbox_is_noticed(self, inbox: Inbox, outbox: Outbox) -> None:
        outbox.check()
        outbox.send(1, 7, 1)
        arrived(inbox)
        outbox.check()
        inbox.close()
        inbox.close()
        inbox.wake()  # nobody is there, and nothing happens
        expect_gone(outbox)
        with pytest.raises(UnavailableError):
            outbox.send(1, 7, 2)
        with pytest.raises(UnavailableError):
            outbox.check()

    def test_last_words_arrive(self, inbox: Inbox, outbox: Outbox) -> None:
        for step in range(3):
            outbox.send(1, 7, step, 0, [np.full(9, step)])
        outbox.close()
        assert [arrived(inbox).step for _ in range(3)] == [0, 1, 2]

    def test_a_closed_outbox_says_so(self, inbox: Inbox, outbox: Outbox) -> None:
        outbox.close()
        outbox.close()
        for act in (outbox.check, lambda: outbox.send(1, 7, 1)):
            with pytest.raises(UnavailableError, match="was closed here"):
                act()

    def test_processes_write_and_die(self, inbox: Inbox, outbox: Outbox, prefix: str) -> None:
        with process(inbox.address, f"{prefix}-writer", self.transport):
            for step in range(2000):
                assert arrived(inbox).step == step
        outbox.send(9, 7, 1)
        while (letter := arrived(inbox)).kind != 9:
            assert letter.step > step
        assert inbox.damaged == 0

    def test_a_reader_that_is_killed_is_noticed(self, prefix: str, opened: Open, inbox: Inbox) -> None:
        with process(inbox.address, f"{prefix}-reader", "") as reader:
            assert reader.stdout
            address = Address.from_dict(json.loads(reader.stdout.readline()))
            outbox = opened(address, transport=self.transport)
            outbox.send(1, 7, 3)
            assert arrived(inbox).step == 3
            outbox.check()
            reader.kill()
            expect_gone(outbox)


class TestThroughSharedMemory(PostContract):
    transport = "auto"

    def test_it_is_used_on_one_host(self, outbox: Outbox) -> None:
        assert outbox.kind == "shared memory"
        assert outbox.notes == []


class TestThroughSockets(PostContract):
    transport = "socket"

    def test_it_is_used_when_asked_for(self, outbox: Outbox) -> None:
        assert outbox.kind == "socket"
        assert outbox.slot(1, 7, 0, 100) is None
        assert outbox.notes == []


def test_an_address_travels_as_plain_values(inbox: Inbox) -> None:
    assert Address.from_dict(json.loads(json.dumps(inbox.address.to_dict()))) == inbox.address
    for wrong in ({}, {"host": 1, "bell": "", "socket": ""}, {**inbox.address.to_dict(), "more": ""}):
        with pytest.raises(InvalidArgumentError, match="an address has the texts"):
            Address.from_dict(wrong)


def test_the_transport_has_two_names(opened: Open) -> None:
    with pytest.raises(InvalidArgumentError, match="'auto' or 'socket', not 'pigeon'"):
        opened(transport="pigeon")
