"""Gradients that accumulators collect, whole and by rows, and tokens: pure state machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import AbortedError, InvalidArgumentError, OutOfRangeError
from nbdist.runtime.session.resources import (
    Client,
    Giver,
    GradientAccumulator,
    RowGradientAccumulator,
    Tokens,
)

A, B = "/job:worker/task:0", "/job:worker/task:1"


def rows(values: Any, at: Any) -> list[Any]:
    return [np.array(values, float), np.array(at)]


def test_the_error_names_what_is_missing() -> None:
    collected = GradientAccumulator((), mean=True)
    for name in (A, B):
        collected.offer(name, [np.array(1.0)], 0)
    assert collected.take(2) == [1]
    collected.offer(A, [np.array(1.0)], 1)
    assert collected.take(2) is None
    assert (
        collected.missing(2)
        == f"1 of 2 gradients of step 1 are there, from {A}; none from {B} (last: step 0)"
    )
    assert collected.bytes == 8


def test_a_closed_one_gives_nothing_and_one_that_begins_again_has_forgotten_all() -> None:
    collected = GradientAccumulator((), mean=False)
    collected.offer(A, [np.array(1.0)], 0)
    collected.closed = True
    with pytest.raises(OutOfRangeError, match="has ended"):
        collected.take(1)
    collected.begin(7)
    assert (collected.rule.step, collected.rule.count, collected.rule.dropped, collected.bytes) == (
        7,
        0,
        0,
        0,
    )
    assert not collected.offer(A, [np.array(1.0)], 6)
    assert collected.offer(A, [np.array(5.0)], 7)
    assert collected.take(1) == [5]
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        collected.take(0)


def test_a_row_is_divided_by_the_number_of_gradients_that_hold_it() -> None:
    collected = RowGradientAccumulator((5, 2), mean=True)
    collected.offer(A, rows([[1, 1], [2, 2], [3, 3]], [4, 0, 4]), 0)  # row 4 twice in one gradient
    collected.offer(B, rows([[10, 10], [8, 8]], [0, 2]), 0)
    values, at = collected.take(2) or []
    assert at.tolist() == [0, 2, 4]
    np.testing.assert_array_equal(values, [[6, 6], [8, 8], [4, 4]])
    collected = RowGradientAccumulator((5, 2), mean=False)
    collected.offer(A, rows([[1, 1], [2, 2]], [4, 0]), 0)
    collected.offer(B, rows([[10, 10]], [0]), 0)
    values, at = collected.take(2) or []
    np.testing.assert_array_equal(values, [[12, 12], [1, 1]])


def test_no_rows_at_all_are_a_gradient_as_well() -> None:
    collected = RowGradientAccumulator((5, 2), mean=True)
    collected.offer(A, rows(np.zeros((0, 2)), np.zeros(0, int)), 0)
    values, at = collected.take(1) or []
    assert (values.shape, at.shape) == ((0, 2), (0,))
    with pytest.raises(InvalidArgumentError, match="id 5 is outside the table"):
        collected.offer(A, rows([[1, 1]], [5]), 1)


@given(st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_a_mean_does_not_depend_on_the_order_of_arrival(replicas: int, seed: int) -> None:
    """Bit for bit, and in the order of the tasks' numbers."""
    rng = np.random.default_rng(seed)
    names = [f"/job:worker/task:{n}" for n in range(replicas)]
    gradients = [rng.normal(size=4).astype(np.float32) for _ in names]
    expected = gradients[0].copy()
    for gradient in gradients[1:]:
        expected += gradient
    for _ in range(3):
        collected = GradientAccumulator((4,), mean=False)
        for n in rng.permutation(replicas):
            collected.offer(names[n], [gradients[n].copy()], 0)
        (found,) = collected.take(replicas) or []
        assert found.tobytes() == expected.tobytes()


# Tokens


def test_tokens_are_taken_in_order() -> None:
    tokens = Tokens()
    assert tokens.take(A, 0, 0.0) is None
    tokens.put([3, 4])
    assert [tokens.take(A, 0, 0.0), tokens.take(B, 0, 0.0), tokens.take(B, 0, 0.0)] == [3, 4, None]


def test_no_replica_takes_two_tokens_of_a_step_that_has_one_for_each() -> None:
    tokens = Tokens()
    tokens.begin(3, one_each=True)
    tokens.put([1, 1, 1])
    assert tokens.take(A, 0, 0.0) == 1
    assert tokens.take(A, 1, 0.0) is None  # the others' are not its
    tokens.put([2, 2, 2])
    assert len(tokens) == 3  # what was not taken is of no use any more
    assert [tokens.take(A, 1, 0.0), tokens.take(B, 0, 0.0), tokens.take(A, 2, 0.0)] == [2, 2, None]


def test_with_several_for_each_any_replica_takes_what_there_is() -> None:
    tokens = Tokens()
    tokens.begin(2, one_each=False)
    tokens.put([1, 1, 1])
    assert [tokens.take(A, 0, 0.0), tokens.take(A, 1, 0.0), tokens.take(B, 0, 0.0)] == [1, 1, 1]


def test_the_first_tokens_are_for_any_replica_and_are_taken_first() -> None:
    tokens = Tokens()
    tokens.begin(2, one_each=True)
    tokens.put([5, 5], first=True)
    assert [tokens.take(A, 5, 0.0), tokens.take(A, 5, 0.0), tokens.take(B, 5, 0.0)] == [5, 5, None]
    tokens.begin(2, one_each=True)
    tokens.put([5, 5], first=True)
    tokens.put([6, 6])
    assert [tokens.take(A, 5, 0.0), tokens.take(A, 5, 0.0), tokens.take(B, 5, 0.0)] == [5, 5, 6]
    tokens.begin(2, one_each=True)
    tokens.put([5], first=True)
    tokens.put([6, 6])
    # The first token would take A back to step 5, and then to the second token of step 6.
    assert [tokens.take(A, 6, 0.0), tokens.take(B, 5, 0.0), tokens.take(B, 5, 0.0)] == [None, 5, 6]
    tokens.begin(2, one_each=False)
    tokens.put([5], first=True)
    tokens.put([6, 6])
    assert [tokens.take(A, 5, 0.0), tokens.take(A, 5, 0.0)] == [5, 6]


def test_what_is_there_is_taken_before_the_end_is_raised() -> None:
    tokens = Tokens()
    tokens.begin(2)
    tokens.put([1])
    tokens.close()
    assert tokens.take(A, 0, 0.0) == 1
    with pytest.raises(OutOfRangeError, match="the training has ended"):
        tokens.take(A, 0, 0.0)
    with pytest.raises(OutOfRangeError):
        tokens.put([2])
    assert not tokens.open
    tokens.begin(2)
    assert tokens.open
    assert tokens.take(A, 0, 0.0) is None


def test_the_end_of_an_earlier_training_is_not_that_of_this_one() -> None:
    tokens = Tokens()
    tokens.begin(2)
    first = tokens.serve()
    tokens.begin(2)
    tokens.cut_off(first, AbortedError("long ago"))
    assert tokens.open
    before, last = tokens.serve(), tokens.serve()
    tokens.cut_off(before, AbortedError("another has continued"))
    assert tokens.open
    tokens.cut_off(last, AbortedError("now"))
    tokens.close()
    with pytest.raises(AbortedError, match="now"):
        tokens.take(A, 0, 0.0)


def test_the_error_names_replicas_that_do_not_return() -> None:
    tokens = Tokens()
    assert not tokens.join(A, 0.0)
    tokens.begin(3)
    assert tokens.join(A, 1.0)
    tokens.put([5, 6])
    tokens.take(B, 0, 2.0)
    tokens.waiting[A] += 1
    assert tokens.missing(9.0) == (
        f"not waiting for one: {B} (took token 5 7.0 s ago), 1 of 3 replicas that never took part"
    )
    tokens.waiting[B] += 1
    tokens.waiting["C"] += 1
    assert tokens.missing(9.0) == "every known replica waits"


class Session:
    """Identifies a session at the queue."""


def test_a_session_of_before_the_queue_was_begun_again_takes_part_anew() -> None:
    tokens, chief, old, new = Tokens(), Session(), Session(), Session()
    tokens.begin(2, one_each=True, session=chief)
    assert tokens.join(A, 0.0, old)
    tokens.begin(2, one_each=True, session=new)
    for refused in (lambda: tokens.take(A, 0, 0.0, old), lambda: tokens.put([1, 1], session=chief)):
        with pytest.raises(AbortedError, match="the chief has begun the training again"):
            refused()
    assert tokens.join(A, 0.0, old)
    tokens.put([1, 1], session=new)
    assert tokens.take(A, 0, 0.0, old) == 1


def test_a_replica_that_had_a_part_does_not_wait_for_a_training_that_has_ended() -> None:
    tokens, training = Tokens(), ("run", "folder")
    assert not tokens.join(A, 0.0, training=training)  # the chief has not begun
    tokens.begin(2, training=training)
    tokens.close(AbortedError("the chief has died"))
    assert not tokens.join(A, 0.0, training=training)
    tokens.begin(2, training=training)
    tokens.close()
    assert not tokens.join(A, 0.0)
    assert not tokens.join(A, 0.0, training=("the next run", "folder"))
    with pytest.raises(OutOfRangeError, match="the training has ended"):
        tokens.join(A, 0.0, training=training)


def test_rows_of_a_replaced_process_are_withdrawn() -> None:
    collected = RowGradientAccumulator((5, 1), mean=True)
    old, new = Giver(Client(B, 1), "a"), Giver(Client(B, 2), "b")
    collected.offer(A, rows([[1]], [0]), 0, Giver(Client(A, 1), "c"))
    collected.offer(B, rows([[2], [2]], [0, 1]), 0, old)
    collected.withdraw(new)
    assert (collected.rule.count, collected.bytes) == (1, 16)
    collected.offer(B, rows([[4]], [0]), 0, new)
    values, at = collected.take(2) or []
    assert (values.tolist(), at.tolist()) == ([[2.5]], [0])


class Worker:
    """One replica as a sequence of small actions between which its process may be killed."""

    def __init__(self, crew: Crew, name: str, incarnation: int) -> None:
        self.crew, self.name = crew, name
        self.giver = Giver(Client(name, incarnation), f"{name} {incarnation}")
        self.actions = self.work()
        self.begin()

    def begin(self) -> None:
        self.session, self.aborted = Session(), False
        self.actions = self.work()

    def work(self) -> Any:
        crew = self.crew
        while not crew.tokens.join(self.name, 0.0, self.session):
            yield False
        yield True
        for part in crew.parts if crew.one_each else ():
            part.withdraw(self.giver)
            yield True
        local_step = crew.step
        while True:
            yield True
            for part in crew.parts:
                part.offer(self.name, [np.array(1.0)], local_step, self.giver)
                yield True
            while (token := crew.tokens.take(self.name, local_step, 0.0, self.session)) is None:
                yield False
            yield True  # a process that is killed here has lost its token
            local_step = token

    def act(self) -> bool:
        """Do the next action; return False if it waits."""
        try:
            return bool(next(self.actions))
        except AbortedError:
            self.begin()
            return True


class Crew:
    """Replicas, two accumulators and the queue; the chief's aggregation is a sequence of actions, too."""

    def __init__(self, needed: int, total: int) -> None:
        self.needed, self.total, self.one_each = needed, total, needed <= total
        self.tokens, self.step = Tokens(), 0
        self.parts = [GradientAccumulator((), mean=True) for _ in range(2)]
        self.born = total
        self.workers = [Worker(self, f"/job:worker/task:{n}", n) for n in range(total)]
        self.chief = self.aggregate()

    def aggregate(self) -> Any:
        session = Session()
        for part in self.parts:
            part.begin(self.step)
            yield True
        self.tokens.begin(self.total, self.one_each, session)
        self.tokens.put([self.step] * max(0, self.needed - self.total), first=True)
        while True:
            self.turn = self.tokens.serve()
            for part in self.parts:
                while (taken := part.take(self.needed)) is None:
                    yield False
                assert taken[0] == 1
                yield True
            self.step += 1
            yield True
            self.tokens.put([self.step] * max(self.needed, self.total), session=session)

    def kill(self, n: int, noticed: bool) -> None:
        """Replace a worker, and with worker 0 the chief's aggregation, which waiting replicas may notice."""
        self.born += 1
        self.workers[n] = Worker(self, self.workers[n].name, self.born)
        if n == 0:
            if noticed and hasattr(self, "turn"):
                self.tokens.cut_off(self.turn, AbortedError("the chief was aborted"))
            self.chief = self.aggregate()


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_no_death_of_a_worker_or_of_the_chief_makes_the_others_wait(
    needed: int, total: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    crew = Crew(needed, total)
    for _ in range(300):
        actors = [*crew.workers, None]
        for n in rng.permutation(len(actors)):
            actor = actors[n]
            for _ in range(rng.integers(1, 4)):
                if not (next(crew.chief) if actor is None else actor.act()):
                    break
        if rng.random() < 0.2:
            crew.kill(int(rng.integers(total)), bool(rng.random() < 0.5))
    before = crew.step
    for _ in range(60):
        progress = [next(crew.chief), *(worker.act() for worker in crew.workers)]
        assert any(progress), "all wait"
    assert crew.step > before
