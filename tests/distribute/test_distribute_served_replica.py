"""A replica with several servers that give scripted answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from nbdist.distribute.served_replica import ServedReplica
from nbdist.errors import UnavailableError
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import Link, StepStopped
from nbdist.runtime.ps.mailbox import SLOTS
from nbdist.runtime.ps.sync import APPLIED, DROPPED, KEPT, STEPPED, STOPPED, TAKEN, Rules

Array = np.ndarray[Any, Any]
LAYOUT = Layout.of([("v", (1,), "<f4")])


class Waits(Exception):
    """The replica waits for an answer outside of the script."""


class Written(Link):
    """Answers with (what, slot), in order; (STEPPED, n) says that there have been n updates."""

    kind = "written"

    def __init__(self, answers: Sequence[tuple[int, int]]) -> None:
        no_sockets: Any = None
        super().__init__(LAYOUT, lambda: None, no_sockets, {})
        self.answers = deque(answers)
        self.pushed: list[int] = []
        self.updates = 0
        self.buffers = [LAYOUT.buffer() for _ in range(SLOTS)]

    def pull(self) -> None:
        self.version = self.global_step = self.updates

    def gradient(self, slot: int) -> Array:
        return self.buffers[slot]

    def push(self, slot: int) -> None:
        self._number(slot)
        self.pushed.append(slot)

    def count(self) -> None:
        self._counted += 1

    def _receive(self) -> None:
        if not self.answers:
            raise Waits
        what, slot = self.answers.popleft()
        if what == STEPPED:
            self.updates = slot
        else:
            self._note(what, slot, 0)

    def _newest(self) -> int:
        return self.updates

    def close(self) -> None:
        """Free nothing."""


class Dead(Written):
    """A link whose server dies when the replica waits for its answer."""

    def _receive(self) -> None:
        raise UnavailableError("its process ended")


class DeadAtPush(Written):
    """A link whose server is found to be dead when the replica sends a gradient."""

    def push(self, slot: int) -> None:
        super().push(slot)
        raise UnavailableError("its process ended")


def replica(rules: Rules, *answers: Sequence[tuple[int, int]]) -> tuple[ServedReplica, list[Written]]:
    links = [Written(one) for one in answers]
    return ServedReplica(links, list(range(len(links))), rules, replica=0), links


def step(one: ServedReplica) -> None:
    one.pull()
    one.push()


BACKUPS = Rules(4, True, 2, servers=2)


def test_a_gradient_dropped_by_one_server_is_not_awaited_at_the_other() -> None:
    """The other server's step may wait for a replica that waits for this one at the first server."""
    one, links = replica(BACKUPS, [(TAKEN, 0)], [(DROPPED, 0)])
    step(one)
    step(one)
    assert [link.pushed for link in links] == [[0, 1], [0, 1]]  # an accepted gradient is not overwritten
    assert one.report.dropped == 1


def test_a_free_slot_is_used_again() -> None:
    one, links = replica(BACKUPS, [(TAKEN, 0), (DROPPED, 1)], [(DROPPED, 0), (DROPPED, 1)])
    step(one)
    step(one)
    with pytest.raises(Waits):
        one.pull()
    links[0].answers.append((APPLIED, 0))
    one, links = replica(
        BACKUPS, [(TAKEN, 0), (DROPPED, 1), (APPLIED, 0)], [(DROPPED, 0), (DROPPED, 1), (DROPPED, 0)]
    )
    for _ in range(3):
        step(one)
    assert links[0].pushed == [0, 1, 0]
    assert one.report.dropped == 2


def test_a_gradient_accepted_by_all_servers_is_awaited() -> None:
    one, _ = replica(BACKUPS, [(TAKEN, 0)], [(TAKEN, 0), (APPLIED, 0)])
    step(one)
    with pytest.raises(Waits):
        one.pull()
    one, links = replica(BACKUPS, [(TAKEN, 0), (APPLIED, 0)], [(APPLIED, 0)])
    step(one)
    step(one)
    assert links[1].pushed == [0, 1]
    assert one.report.dropped == 0


def test_a_stop_at_one_server_stops_the_replica() -> None:
    one, _ = replica(BACKUPS, [(APPLIED, 0)], [(STOPPED, 0)])
    step(one)
    with pytest.raises(StepStopped):
        one.pull()
    assert one.report.dropped == 1


def test_only_the_first_server_says_when_to_wait_for_a_step() -> None:
    """An accepted gradient lets the replica continue; a step ends when all other servers have ended it."""
    one, links = replica(Rules(2, True, 3, servers=2), [(KEPT, 0)], [(KEPT, 0)])
    step(one)
    step(one)
    links[0].answers.append((APPLIED, 0))
    links[1].answers.append((KEPT, 0))
    with pytest.raises(Waits):
        one.pull()
    one, links = replica(
        Rules(2, True, 3, servers=2), [(KEPT, 0), (APPLIED, 0)], [(KEPT, 0), (KEPT, 0), (STEPPED, 1)]
    )
    for _ in range(3):
        step(one)
    assert links[1].pushed == [0, 0, 0]
    assert links[1].version == 1


def test_a_new_process_sends_its_gradient_only_to_servers_without_that_step() -> None:
    """One server had the gradient of its former process, and has made the step."""
    links = [Written([]), Written([(APPLIED, 0), (APPLIED, 0)])]
    links[0].made, links[0].updates = 5, 5
    links[1].made, links[1].updates = 4, 4
    asked: list[tuple[int, int]] = []

    def borrow(number: int, version: int) -> Array:
        asked.append((number, version))
        return np.full_like(LAYOUT.buffer(), 7)

    rules = Rules(2, True, servers=2, awaits=True)
    one = ServedReplica(links, [0, 1], rules, replica=1, rejoins=True, borrow=borrow)
    assert (one.joins_at, asked) == (4, [(0, 4)])
    assert (links[0].parameters == 7).all()
    step(one)
    assert (links[0].parameters == 7).all()  # the program has read the parameters of before
    assert [link.pushed for link in links] == [[], [0]]
    links[0].answers.append((APPLIED, 0))
    step(one)
    assert [link.pushed for link in links] == [[0], [0, 0]]
    one.pull()
    assert not links[0].answers


@pytest.mark.parametrize(("restored_at", "sent"), [(4, [0, 0]), (5, [0])])
def test_a_gradient_is_sent_again_to_a_server_that_is_restored_without_it(
    restored_at: int, sent: list[int]
) -> None:
    dead, new = Dead([]), Written([(APPLIED, 0), (APPLIED, 0)])
    dead.updates, new.opened_at, new.updates = 4, restored_at, restored_at

    def reopen(number: int, old: Link, error: UnavailableError, done: bool) -> Link:
        assert (number, old, done) == (0, dead, False)
        return new

    rules = Rules(2, True, awaits=True)
    one = ServedReplica([dead], [0], rules, replica=1, reopen=reopen)
    one.pull()
    one.gradients()[0][:] = 7
    one.push()
    assert dead.pushed == [0]
    one.pull()
    assert (one.gradients()[0] == 7).all()
    assert new.version == restored_at
    one.push()
    assert new.pushed == sent


def test_a_step_that_had_been_answered_is_made_again() -> None:
    """The replica had the answer of the old process, and the copy that restores the new one is older."""
    dead, new = Written([(APPLIED, 0)]), Written([(APPLIED, 0)])
    dead.updates, new.opened_at, new.updates = 4, 4, 4
    rules = Rules(2, True, awaits=True)
    one = ServedReplica([dead], [0], rules, replica=1, reopen=lambda *death: new)
    step(one)
    one._retire()
    dead.pull = lambda: (_ for _ in ()).throw(UnavailableError("its process ended"))  # type: ignore[method-assign]
    one.pull()
    assert new.pushed == [0]
    assert not new.answers


def test_a_gradient_with_an_answer_is_not_counted_again_when_another_server_dies_too() -> None:
    """The replica has the first server's answer, and waits for the second one, when both die."""
    old = [Written([(APPLIED, 0)]), Dead([])]
    rules = Rules(2, False, servers=2)
    one = ServedReplica(old, [0, 1], rules, replica=0, reopen=lambda *death: reopen(*death))
    later = [number % one._slots for number in range(1, 2 * one._slots)]
    new = [Written([(APPLIED, slot) for slot in later]) for _ in old]

    def reopen(number: int, former: Link, error: UnavailableError, done: bool) -> Link:
        if number == 1:  # meanwhile it looks at the others
            one._survive(0, error)
        return new[number]

    step(one)
    one._retire()
    for _ in later:
        step(one)
        one._retire()
    assert one.report.dropped == 1  # by the second server
    assert new[0]._counted == len(later)  # each gradient is an update, or is dropped
    assert not any(link.answers for link in new)


def test_a_gradient_that_one_server_has_dropped_is_no_update() -> None:
    """With it, updates and dropped gradients were more than were made."""
    one, links = replica(
        Rules(2, False, servers=2), [(DROPPED, 0), (APPLIED, 1)], [(APPLIED, 0), (APPLIED, 1)]
    )
    for _ in range(2):
        step(one)
        one._retire()
    assert (links[0]._counted, one.report.dropped) == (1, 1)


def test_a_gradient_that_is_not_sent_yet_is_not_dropped_when_both_servers_die() -> None:
    old, new = [DeadAtPush([]), Written([])], [Written([]), Written([(APPLIED, 0)])]
    rules = Rules(2, False, servers=2)
    one = ServedReplica(old, [0, 1], rules, replica=0, reopen=lambda *death: reopen(*death))

    def reopen(number: int, former: Link, error: UnavailableError, done: bool) -> Link:
        if number == 0:
            one._survive(1, error)
        return new[number]

    step(one)
    one._retire()
    assert one.report.dropped == 1
    assert [link.pushed for link in new] == [[], [0]]
    assert not new[1].answers
