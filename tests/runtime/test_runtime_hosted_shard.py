"""A parameter server looks at the replicas of a shard: which are dead, and which are only not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from nbdist.errors import UnavailableError
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps import hosted_shard
from nbdist.runtime.ps.hosted_replica import Presence
from nbdist.runtime.ps.hosted_shard import HostedShard
from nbdist.runtime.ps.restore import Offer
from nbdist.runtime.ps.sync import Rules
from nbdist.runtime.ps.trace import ServiceLog
from nbdist.wire.collective.shm.sync import ProcessMonitor
from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.frame import Frame

LAYOUT = Layout.of([("v", (3,), "<f4")])


@dataclass
class FakeSender:
    """A connected replica: keeps the frames that it receives."""

    frames: list[Frame] = field(default_factory=list)

    def push(self, frame: Frame) -> None:
        self.frames.append(frame)

    def kinds(self) -> list[str]:
        return [frame.kind for frame in self.frames]


@dataclass
class FakeWatch:
    """Processes by rank, of which some are seen from here."""

    seen_ranks: set[int]
    unseen_ranks: set[int]

    def seen(self) -> list[int]:
        return sorted(self.seen_ranks)

    def unseen(self) -> list[int]:
        return sorted(self.unseen_ranks)

    def dead(self) -> list[int]:
        return []

    def frozen(self, seconds: float) -> list[int]:
        return []

    def pid_of(self, replica: int) -> int:
        return 0

    def replace(self, replica: int, pid: int) -> None:
        self.unseen_ranks.discard(replica)
        self.seen_ranks.add(replica)


def hosted(rules: Rules, joined: dict[int, FakeSender], seen: set[int], unseen: set[int]) -> HostedShard:
    def now(call: Callable[[], object]) -> None:
        call()

    one = HostedShard("v", 1, rules, LAYOUT, "replica 0", "ps:0", ServiceLog(rules.replicas), now)
    one.processes = cast(ProcessMonitor, FakeWatch(seen, unseen))
    meta = {
        "optimizer": {"name": "sgd", "learning_rate": 1.0},
        "shared": False,
        "counts": True,
        "first": True,
    }
    one.make(meta, (np.zeros(3, np.float32),), "")
    for number, sender in joined.items():
        one.replicas[number].sender = cast(Caller, sender)
    return one


def awaited(one: HostedShard) -> list[int]:
    return [replica.number for replica in one.those(Presence.AWAITED)]


def send_gradient(one: HostedShard, replica: int) -> list[Any]:
    assert one.shard is not None
    buffer = LAYOUT.buffer()
    LAYOUT.views(buffer)[0][:] = 1
    assert one.receive(replica, 0, one.replicas[replica].received + 1)
    answers = one.shard.offer(replica, 0, [*LAYOUT.flats(buffer)], version=0)[1]
    for answer in answers:
        one.answer(answer)
    return answers


def test_a_replica_that_died_before_it_joined_delays_no_other() -> None:
    """It has no process to watch; those that joined are seen, so it would be as well if it were alive."""
    first, second = FakeSender(), FakeSender()
    one = hosted(Rules(3, synchronous=True, aggregate=2), {0: first, 1: second}, {0, 1}, {2})
    assert send_gradient(one, 0) == []
    one.look(8.0)
    assert one.lost == {2}
    assert "ps.applied" not in first.kinds()
    send_gradient(one, 1)
    assert "ps.applied" in first.kinds()
    assert "ps.applied" in second.kinds()


def test_a_step_that_needs_it_ends_with_an_error_that_names_it() -> None:
    first = FakeSender()
    one = hosted(Rules(2, synchronous=True), {0: first}, {0}, {1})
    send_gradient(one, 0)
    one.look(8.0)
    assert one.lost == {1}
    said = str(first.frames[-1].meta)
    assert "replica 1 is dead" in said
    assert "takes 2 gradients of the 2 replicas" in said


class GoneSender(FakeSender):
    """A replica whose connection is lost."""

    def push(self, frame: Frame) -> None:
        raise UnavailableError("the peer is no longer connected")


def test_a_lost_connection_may_be_made_again() -> None:
    """The server looks again once for each connection that it finds lost, and forgets what has no effect."""
    first = FakeSender()
    one = hosted(Rules(2, synchronous=True), {0: first, 1: GoneSender()}, {0, 1}, set())
    send_gradient(one, 0)
    assert [one.look(8.0) for _ in range(3)] == [True, False, False]
    known = one.reconnect(1, cast(Caller, FakeSender()))
    assert (known["received"], known["answers"], known["version"], known["frozen"]) == (0, [], 0, [])
    assert one.look(8.0) is False
    assert one.lost == set()
    one.replicas[1].sender = cast(Caller, GoneSender())
    assert one.look(8.0)
    send_gradient(one, 1)  # it had arrived: nothing waits any more
    assert one.look(8.0) is False
    assert one.replicas[1].gone_since is None


def test_gradients_of_a_socket_are_taken_in_order_and_once() -> None:
    one = hosted(Rules(2), {0: FakeSender()}, {0}, {1})
    taken = [one.receive(0, token=number % 2, number=number) for number in (1, 1, 3, 2, 3, 2)]
    assert taken == [True, False, False, True, True, False]
    assert one.reconnect(0, cast(Caller, FakeSender()))["received"] == 3
    one.rejoin(0, pid=7)
    assert one.receive(0, token=0, number=1)  # of its new process


def test_nothing_is_looked_for_while_no_replica_waits() -> None:
    one = hosted(Rules(2, synchronous=True), {0: FakeSender()}, {0}, {1})
    one.look(8.0)
    assert one.lost == set()


@pytest.mark.parametrize(
    ("joined", "seen", "unseen"),
    [
        ({0}, set(), {0, 1}),  # all in other PID namespaces, or on other hosts: nothing is known of them
        ({0}, {1}, {0}),  # the joined replica is not seen either, so an unseen replica may be alive
        ({0, 1}, {0}, {1}),  # not seen, but joined: its connection shows whether it is alive
        ({0}, {0, 1}, set()),  # alive, and late
        ({0}, {0}, set()),  # its process id is unknown
    ],
)
def test_a_replica_that_may_be_alive_is_waited_for(
    joined: set[int], seen: set[int], unseen: set[int]
) -> None:
    one = hosted(Rules(2, synchronous=True), {n: FakeSender() for n in joined}, seen, unseen)
    send_gradient(one, 0)
    one.look(8.0)
    assert one.lost == set()


@pytest.mark.parametrize(
    ("replicas", "offers", "seconds", "lacks"),
    [
        ({0: True}, [], 1.0, False),  # the others may have copies of a shard whose server has died as well
        ({0: True}, [], 31.0, True),
        ({0: True, 1: True}, [1], 31.0, False),
        ({0: True, 1: True, 2: True}, [], 1.0, True),  # all are new processes
        ({0: True, 1: False}, [], 1.0, True),  # the training had not begun
        ({1: False, 2: False}, [], 31.0, False),  # the chief lives
    ],
)
def test_the_chiefs_new_process_waits_for_a_copy(
    replicas: dict[int, bool], offers: list[int], seconds: float, lacks: bool
) -> None:
    """``replicas`` are those that have opened the shard, and whether each is a new process."""
    log = ServiceLog(replicas=3)
    one = HostedShard("r/0", 1, Rules(3), LAYOUT, "replica 0", "/job:ps/task:0", log, lambda act: act())
    for replica, rejoins in replicas.items():
        one.opening[replica] = cast(Caller, FakeSender()), {"rejoins": rejoins}
    one.offers = {replica: Offer(replica, 1, 1, 1, 1) for replica in offers}
    one.chief_waits_since = 5.0
    assert one.lacks_values(5.0 + seconds) is lacks


def test_a_dead_replica_that_a_step_needs_is_awaited_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = FakeSender()
    one = hosted(Rules(2, synchronous=True, awaits=True), {0: first}, {0}, {1})
    send_gradient(one, 0)
    one.look(8.0)
    assert (awaited(one), one.lost, one.all_left()) == ([1], set(), False)
    assert first.frames[-1].meta == {"replicas": [1]}
    one.rejoin(1, pid=7)
    assert first.frames[-1].meta == {"replicas": []}
    assert not awaited(one)
    one.look(8.0)
    assert first.kinds().count("error") == 0
    monkeypatch.setattr(hosted_shard, "AWAIT_SECONDS", 1e-9)
    one.lose(1, seconds=hosted_shard.AWAIT_SECONDS)
    one.look(8.0)
    assert one.lost == {1}
    assert "no new process has joined in its place in time" in str(first.frames[-1].meta)


def test_a_replica_that_lives_and_has_closed_its_connection_is_not_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosted_shard, "RECONNECT_SECONDS", 0.0)
    first, rules = FakeSender(), Rules(2, synchronous=True, awaits=True)
    one = hosted(rules, {0: first, 1: GoneSender()}, {0, 1}, set())
    send_gradient(one, 0)
    one.look(8.0)
    assert (one.lost, awaited(one)) == ({1}, [])
    assert "replica 1 is dead" in str(first.frames[-1].meta)
    elsewhere = hosted(rules, {0: FakeSender(), 1: GoneSender()}, {0}, set())
    send_gradient(elsewhere, 0)
    elsewhere.look(8.0)
    assert (elsewhere.lost, awaited(elsewhere)) == (set(), [1])  # it may have died
