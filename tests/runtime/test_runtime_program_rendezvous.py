"""Where values meet: each is taken once, in the step and by the plan that it was sent for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nbdist.graph.compile.partition import Edge
from nbdist.graph.op import Spec
from nbdist.runtime.session.program import Rendezvous, RendezvousKey

ONE, TWO = (np.zeros(1),), (np.ones(2),)


def test_a_value_is_taken_once() -> None:
    meeting = Rendezvous()
    meeting.begin(1)
    assert meeting.take(0) is None
    assert meeting.put(1, 0, ONE)
    assert meeting.put(1, 7, TWO)
    assert meeting.take(7) is TWO
    assert meeting.take(0) is ONE
    assert meeting.take(0) is None


def test_what_comes_early_is_kept_and_what_comes_late_is_not() -> None:
    meeting = Rendezvous()
    meeting.begin(1)
    assert meeting.put(2, 0, TWO)  # its sender began step 2 before this task
    assert meeting.take(0) is None
    meeting.put(1, 3, ONE)  # it is never taken: step 1 was cut off
    meeting.begin(2)
    assert meeting.take(3) is None
    assert meeting.take(0) is TWO
    assert not meeting.put(1, 0, ONE)
    assert meeting.take(0) is None


@given(st.lists(st.tuples(st.sampled_from(("begin", "put", "take")), st.integers(0, 5), st.integers(0, 2))))
def test_no_step_ever_takes_another_steps_value(moves: list[tuple[str, int, int]]) -> None:
    meeting, now = Rendezvous(), -1
    sent: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}
    for what, step, edge in moves:
        if what == "begin" and step >= now:
            now = step
            meeting.begin(step)
        elif what == "put":
            value = (np.array([step, edge]),)
            if meeting.put(step, edge, value):
                sent[step, edge] = value
        elif what == "take":
            assert meeting.take(edge) is sent.pop((now, edge), None)


def test_a_key_names_both_ends_the_incarnation_and_the_step() -> None:
    edge = Edge(3, "w/read", "/job:ps/task:0", "/job:worker/task:1", Spec((2,), np.dtype(np.float32)))
    key = RendezvousKey.of(edge, incarnation=0xABC, step=9)
    assert str(key) == "/job:ps/task:0;0000000000000abc;/job:worker/task:1;w/read;9"
    assert key == RendezvousKey.of(edge, 0xABC, 9)
    assert len({key, RendezvousKey.of(edge, 0xABD, 9), RendezvousKey.of(edge, 0xABC, 10)}) == 3
