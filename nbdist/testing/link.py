"""The contract of a replica's link to a parameter shard, against a real parameter service.

    class TestMine(LinkContract):
        kind = "infiniband"

        def open_link(self, connect, request, *, prefix, check, timeout):
            return open_my_link(connect, request, check, timeout)

The server is a `LocalParameterServer` in the process of the tests, and replicas are its threads.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from nbdist.errors import AbortedError, InvalidArgumentError, NbdistError, UnavailableError
from nbdist.optim import SGD, Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps import hosted_shard
from nbdist.runtime.ps.client import Link, ShardRequest, StepStopped, TrainingOver, open_link
from nbdist.runtime.ps.mailbox import SLOTS
from nbdist.runtime.ps.service import ParameterService
from nbdist.runtime.ps.shard import GradientStatistics, ParameterShard
from nbdist.runtime.ps.sync import APPLIED, KEPT, Rules
from nbdist.runtime.server import Server
from nbdist.testing.waiting import together, until
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Segment, remove_all, shared_folder

Array = np.ndarray[Any, Any]
PATIENCE = 20.0
"""Seconds until a replica counts as hanging."""


class LocalParameterServer:
    """A parameter server in this process, with replicas as threads; the contract opens links to it.

    - ``open_link``: returns a link, as :meth:`LinkContract.open_link` does
    - ``shared``: whether replicas share memory with the server, unless they say otherwise
    """

    def __init__(self, open_link: Callable[..., Link], shared: bool) -> None:
        self.server = Server.create_local_server()
        self.prefix = f"nbdist-links{secrets.token_hex(4)}"
        self.shared = shared
        self.service = ParameterService(self.server, self.prefix)
        self._open_link, self._links = open_link, list[Link]()
        self.aborted = threading.Event()
        """Ends every wait of a replica with AbortedError."""
        self.looked = threading.Event()
        """Set whenever a replica that waits has looked whether its run was aborted."""

    def shard(self, name: str) -> ParameterShard:
        """Return a shard that is open here."""
        shard = self.service._hosted[name].shard
        assert shard is not None
        return shard

    def check(self) -> None:
        """Raise AbortedError if the run was aborted; a replica that waits calls it."""
        self.looked.set()
        if self.aborted.is_set():
            raise AbortedError("run r was aborted")

    def open(
        self,
        replica: int = 0,
        replicas: int = 1,
        *,
        initial: Sequence[Array] = (np.zeros(3, np.float32),),
        chief: bool | None = None,
        shard: str = "r/0",
        synchronous: bool = False,
        counts: bool = True,
        optimizer: Optimizer | None = None,
        shared: bool | None = None,
        names: Sequence[str] = (),
        timeout: float = PATIENCE,
        first: bool = True,
        rejoins: bool = False,
        address: str = "",
        **rules: Any,
    ) -> Link:
        """Connect one replica, by default to the server's own address; the first is the chief by default."""
        names = names or [f"v{i}" for i in range(len(initial))]
        request = ShardRequest(
            shard=shard,
            replica=replica,
            rules=Rules(replicas, synchronous, **rules),
            layout=Layout.of((n, a.shape, a.dtype) for n, a in zip(names, initial, strict=True)),
            optimizer=optimizer or SGD(1.0),
            counts=counts,
            first=first,
            rejoins=rejoins,
            pids=(0,) * replicas if rejoins else (),
            initial=tuple(initial) if (replica == 0 if chief is None else chief) else None,
        )
        use_memory = self.shared if shared is None else shared
        connect = partial(Peer, address or self.server.address, self.server.keys, name="/job:ps/task:0")
        prefix = self.prefix if use_memory else None
        link = self._open_link(connect, request, prefix=prefix, check=self.check, timeout=timeout)
        self._links.append(link)
        return link

    def drop(self, run: str) -> int:
        """Drop the shards of a run, as its end does; return their number."""
        dropped: SimpleQueue[int] = SimpleQueue()
        self.server.post(lambda: dropped.put(self.service.drop_run(run)))
        return dropped.get(timeout=PATIENCE)

    def files(self) -> list[str]:
        """Return the names of this server's shared files."""
        return [path.name for path in shared_folder().glob(f"{self.prefix}-*")]

    def close(self) -> None:
        """Close all links, the service and its server."""
        for link in self._links:
            link.close()
        self.service.close()
        self.server.close()


def unfailing(results: list[Any]) -> list[Any]:
    """Return the results of `together`, or raise the first exception among them."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def view(link: Link) -> Array:
    """Return the first variable in a link's copy of the parameters."""
    return link.layout.views(link.parameters)[0]


def made_step(link: Link, value: float = 1.0) -> int | None:
    """Make a step with a gradient of one value; return its staleness, None for a late one."""
    begin_step(link, value)
    return link.wait(0)


def begin_step(link: Link, value: float = 1.0, slot: int = 0) -> None:
    """Pull, and send a gradient of one value."""
    link.pull()
    push(link, value, slot)


def push(link: Link, value: float, slot: int = 0) -> None:
    """Send a gradient with one value everywhere."""
    for gradient in link.layout.views(link.gradient(slot)):
        gradient[...] = value
    link.push(slot)


ASKED = {
    "shard": "r/0", "replica": 0, "rules": {"replicas": 1}, "layout": [["w", [3], "<f4"]], "chief": True,
    "shared": True, "bell": None, "optimizer": SGD(1.0).to_config(), "counts": True, "first": True,
}  # fmt: skip


def opened(peer: Peer, changes: dict[str, Any]) -> Frame:
    """Return the service's answer to a chief that asks for a shard."""
    peer.send("ps.open", ASKED | changes, [np.zeros(3, np.float32)])
    answer = peer.receive(PATIENCE)
    assert answer is not None
    return answer


class LinkContract:
    """What a link promises to a replica, whatever carries its messages.

    A pull brings whole parameters with their version; no gradient is lost or applied twice; its staleness is
    the number of updates in between; synchronous steps, bounds and backups wait for those that they need and
    no other; a link that waits ends with the run's abort or the server's error; nothing is left behind.

    The inheriting class gives ``kind`` and, for a link of its own, :meth:`open_link`. Its own tests get the
    server from the fixture ``ps``.
    """

    kind: str
    """The ``kind`` of the links."""
    shared = False
    """Whether the links share memory with the server."""

    def open_link(
        self,
        connect: Callable[[], Peer],
        request: ShardRequest,
        *,
        prefix: str | None,
        check: Callable[[], None],
        timeout: float,
    ) -> Link:
        """Return a replica's link, as `nbdist.runtime.ps.client.open_link` does, which is the default.

        - ``connect``: returns a connection to the server, which the link closes
        - ``request``: the shard, the replica and its rules
        - ``prefix``: of the names of shared files; None for a replica without shared memory
        - ``check``: raises AbortedError when the run has ended; the link calls it while it waits
        - ``timeout``: seconds to wait for the chief's initial values
        """
        return open_link(connect, request, prefix=prefix, check=check, timeout=timeout)

    @pytest.fixture
    def ps(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalParameterServer]:
        """A parameter server; at its end nothing of it may be left."""
        monkeypatch.setattr("nbdist.runtime.ps.service.LOOK_SECONDS", 0.05)
        ps = LocalParameterServer(self.open_link, self.shared)
        yield ps
        ps.close()
        assert not ps.files()
        assert remove_all(ps.prefix) == []

    def test_a_pull_brings_the_initial_values(self, ps: LocalParameterServer) -> None:
        link = ps.open(initial=[np.arange(3, dtype=np.float32), np.ones((2, 2))])
        assert link.kind == self.kind
        assert link.note == ""
        link.pull()
        np.testing.assert_array_equal(link.layout.views(link.parameters)[0], [0, 1, 2])
        np.testing.assert_array_equal(link.layout.views(link.parameters)[1], np.ones((2, 2)))
        assert (link.version, link.global_step) == (0, 0)

    def test_a_gradient_is_applied_and_counted(self, ps: LocalParameterServer) -> None:
        link = ps.open(initial=[np.full(3, 5.0, np.float32)], optimizer=SGD(0.5))
        for step in range(1, 4):
            assert made_step(link, 2.0) == 0
            link.pull()
            np.testing.assert_array_equal(view(link), np.full(3, 5.0 - step))
            assert (link.version, link.global_step) == (step, step)
        counts = link.leave()
        statistics = counts.pop("statistics")
        assert counts == {"updates": 3, "global_step": 3, "dropped": 0}
        assert GradientStatistics.from_wire(statistics).made == [3]

    def test_two_gradients_may_be_under_way_and_are_late_by_one(self, ps: LocalParameterServer) -> None:
        link = ps.open()
        link.pull()
        for slot in range(SLOTS):
            push(link, 1.0, slot)
        assert [link.wait(slot) for slot in reversed(range(SLOTS))] == [1, 0]
        link.pull()
        np.testing.assert_array_equal(view(link), np.full(3, -2.0))

    def test_staleness_is_what_others_applied_in_between(self, ps: LocalParameterServer) -> None:
        slow, fast = ps.open(0, 2), ps.open(1, 2)
        slow.pull()
        for _ in range(3):
            assert made_step(fast) == 0
        push(slow, 1.0)
        assert slow.wait(0) == 3
        slow.pull()
        assert view(slow)[0] == -4

    def test_many_replicas_at_once_lose_nothing(self, ps: LocalParameterServer) -> None:
        def work(replica: int) -> tuple[dict[str, Any], Array, int]:
            link = ps.open(replica, 3)
            waiting: list[int] = []
            for step in range(60):
                if len(waiting) == SLOTS:
                    assert link.wait(waiting.pop(0)) is not None
                begin_step(link, 1.0, step % SLOTS)
                waiting.append(step % SLOTS)
            for slot in waiting:
                link.wait(slot)
            counts = link.leave()
            final = view(link).copy()
            return counts, final, link.global_step

        for counts, final, global_step in unfailing(together(3, work)):
            statistics = GradientStatistics.from_wire(counts.pop("statistics"))
            assert counts == {"updates": 180, "global_step": 180, "dropped": 0}
            assert statistics.made == [60] * 3
            assert global_step == 180
            np.testing.assert_array_equal(final, np.full(3, -180.0))

    def test_a_new_process_continues_a_replica_and_the_old_one_is_refused(
        self, ps: LocalParameterServer
    ) -> None:
        zero = ps.open(replica=0, replicas=2)
        old = ps.open(replica=1, replicas=2)
        for _ in range(3):
            made_step(old)
        new = ps.open(replica=1, replicas=2, rejoins=True)
        assert (new.made, zero.made, old.made) == (3, 0, 0)
        push(old, 100.0)
        with pytest.raises(UnavailableError, match="replica 1 was frozen or cut off, and the others"):
            old.wait(0)
        new.pull()
        np.testing.assert_array_equal(view(new), np.full(3, -3.0))  # the late gradient changed nothing
        push(new, 1.0)
        assert new.wait(0) is not None
        left = unfailing(together(2, lambda i: (zero, new)[i].leave()))
        assert [one["updates"] for one in left] == [4, 4]
        with pytest.raises(TrainingOver):
            ps.open(replica=1, replicas=2, rejoins=True)

    def test_a_new_process_of_a_synchronous_replica_gives_its_own_gradient(
        self, ps: LocalParameterServer
    ) -> None:
        rules: dict[str, Any] = {"replicas": 3, "synchronous": True, "aggregate": 2}
        zero, old, two = (ps.open(replica=i, **rules) for i in range(3))
        for link in (zero, old, two):
            link.pull()
        shard = ps.shard("r/0")
        push(old, 100.0)  # is collected, and its process dies
        until(lambda: shard.accumulator.count == 1)
        new = ps.open(replica=1, rejoins=True, **rules)
        new.pull()
        push(zero, 1.0)
        push(new, 1.0)
        assert new.wait(0) is not None
        assert zero.wait(0) is not None
        new.pull()
        np.testing.assert_allclose(view(new), np.full(3, -3.0))  # of both, for 3 replicas
        assert shard.statistics.made == [1, 1, 0]
        assert shard.statistics.dropped == [0, 1, 0]

    def test_with_two_shards_the_first_counts_whole_updates(self, ps: LocalParameterServer) -> None:
        shards = [ps.open(shard=f"r/{i}", counts=False) for i in range(2)]
        for _ in range(5):
            for link in shards:
                begin_step(link)
            for link in shards:
                link.wait(0)
            shards[0].count()
        shards[0].wait_counted()
        shards[0].pull()
        assert (shards[0].version, shards[0].global_step) == (5, 5)
        shards[1].pull()
        assert (shards[1].version, shards[1].global_step) == (5, 0)
        for link in shards:
            link.leave()

    def test_a_synchronous_step_waits_for_all(self, ps: LocalParameterServer) -> None:
        order: list[str] = []
        here = threading.Barrier(2)

        def work(replica: int) -> Array:
            link = ps.open(replica, 2, synchronous=True)
            link.pull()
            here.wait(PATIENCE)
            if replica == 1:
                push(link, 1.0)
                link.wait(0)
                order.append("done")
            else:
                order.append("first pushed long ago")
                push(link, 2.0)
                link.wait(0)
            link.pull()
            seen = view(link).copy()
            link.leave()
            return seen

        for seen in unfailing(together(2, work)):
            np.testing.assert_array_equal(seen, np.full(3, -3.0))
        assert order == ["first pushed long ago", "done"]

    def test_two_synchronous_workers_and_a_rate_of_two(self, ps: LocalParameterServer) -> None:
        """The mean of two gradients, as each replica's share of the batch makes it."""
        initial = [np.array([0.0], np.float32), np.array([1.0], np.float32)]

        def work(k: int) -> tuple[list[float], int]:
            link = ps.open(k, 2, synchronous=True, initial=initial, optimizer=SGD(2.0))
            link.pull()
            g0, g1 = link.layout.views(link.gradient(0))
            g0[:], g1[:] = (0.1 + 0.2 * k) / 2, (0.9 + 0.2 * k) / 2
            link.push(0)
            link.wait(0)
            link.pull()
            values = [float(v[0]) for v in link.layout.views(link.parameters)]
            step = link.global_step
            link.leave()
            return values, step

        for values, step in unfailing(together(2, work)):
            assert values == pytest.approx([-0.4, -1.0])
            assert step == 1

    def test_synchronous_steps_stay_together(self, ps: LocalParameterServer) -> None:
        def work(replica: int) -> Array:
            link = ps.open(replica, 3, synchronous=True)
            for step in range(40):
                link.pull()
                assert (link.version, link.global_step) == (step, step)
                push(link, 10.0**replica)
                assert link.wait(0) == 0
            link.leave()
            return view(link).copy()

        for final in unfailing(together(3, work)):
            np.testing.assert_array_equal(final, np.full(3, -40 * 111.0))

    def test_a_replica_that_waits_for_one_that_leaves_gets_an_error(self, ps: LocalParameterServer) -> None:
        pushed = threading.Event()

        def work(replica: int) -> tuple[dict[str, Any], Array]:
            link = ps.open(replica, 2, synchronous=True)
            link.pull()
            if replica == 1:
                push(link, 1.0)
                pushed.set()
                with pytest.raises(StepStopped):
                    link.wait(0)
            else:
                assert pushed.wait(PATIENCE)
            counts = link.leave()
            return counts, view(link).copy()

        for counts, final in unfailing(together(2, work)):
            assert GradientStatistics.from_wire(counts.pop("statistics")).dropped == [0, 1]
            assert counts == {"updates": 0, "global_step": 0, "dropped": 1}
            np.testing.assert_array_equal(final, np.zeros(3))

    def test_a_push_after_another_left_gets_an_error(self, ps: LocalParameterServer) -> None:
        left = threading.Event()

        def work(replica: int) -> dict[str, Any]:
            link = ps.open(replica, 2, synchronous=True)
            link.pull()
            if replica == 1:
                assert left.wait(PATIENCE)
                while True:  # until the server has received it
                    push(link, 1.0)
                    try:
                        ps.aborted.wait(0)
                        link.wait(0)
                    except StepStopped:
                        break
            else:
                left.set()
            return link.leave()

        for counts in unfailing(together(2, work)):
            assert counts["updates"] == 0

    def test_the_late_gradient_of_a_backup_is_dropped_and_it_continues(
        self, ps: LocalParameterServer
    ) -> None:
        links = [ps.open(i, 3, synchronous=True, aggregate=2) for i in range(3)]
        for link in links:
            link.pull()
        for i in (0, 1):
            push(links[i], 1.0)
        assert [links[i].wait(0) for i in (0, 1)] == [0, 0]
        push(links[2], 100.0)
        assert links[2].wait(0) is None
        links[2].pull()
        assert (links[2].version, view(links[2])[0]) == (1, -3)  # two shares of three, of which each is 1
        push(links[2], 1.0)
        begin_step(links[0])
        assert [links[i].wait(0) for i in (0, 2)] == [0, 0]
        for counts in unfailing(together(3, lambda i: links[i].leave())):
            assert GradientStatistics.from_wire(counts["statistics"]) == GradientStatistics(
                [2, 1, 1], [0, 0, 1], [0] * 3, [0] * 3
            )
            assert (counts["updates"], counts["global_step"], counts["dropped"]) == (2, 2, 1)
        for link in links:
            np.testing.assert_array_equal(view(link), np.full(3, -6.0))

    def test_the_others_continue_until_a_step_cannot_complete(self, ps: LocalParameterServer) -> None:
        links = [ps.open(i, 3, synchronous=True, aggregate=2) for i in range(3)]
        links[2].announce_done()
        for _ in range(3):
            for link in links[:2]:
                begin_step(link)
            assert [link.wait(0) for link in links[:2]] == [0, 0]
        begin_step(links[0])
        links[1].announce_done()
        with pytest.raises(StepStopped):
            links[0].wait(0)
        for counts in unfailing(together(3, lambda i: links[i].leave())):
            assert (counts["updates"], counts["dropped"]) == (3, 1)

    def test_replicas_contribute_several_batches_to_a_step(self, ps: LocalParameterServer) -> None:
        fast, slow = (ps.open(i, 2, synchronous=True, aggregate=4) for i in range(2))
        for value in (1.0, 2.0):
            fast.pull()
            assert fast.version == 0
            push(fast, value)
            assert fast.outcome(0) == (KEPT, 0)
        begin_step(fast, 3.0)
        begin_step(slow, 4.0)
        assert fast.outcome(0) == slow.outcome(0) == (APPLIED, 0)
        fast.pull()
        assert (fast.version, fast.global_step, view(fast)[0]) == (1, 1, -5)
        slow.announce_done()
        for _ in range(4):
            assert made_step(fast) == 0
        assert fast.leave()["updates"] == 2
        slow.leave()

    def test_a_replica_that_is_ahead_waits_for_the_slowest(self, ps: LocalParameterServer) -> None:
        """A bound of 2 with one gradient under way: the second's answer waits for the other's first."""
        done: list[int] = []

        def work(replica: int) -> dict[str, Any]:
            link = ps.open(replica, 2, staleness=2)
            if replica == 0:
                for step in range(8):
                    made_step(link)
                    done.append(step)
            else:
                for step in range(4):
                    shard = ps.shard("r/0")
                    while not shard.waited_for:  # until the other one is held back
                        ps.aborted.wait(0.001)
                    assert len(done) == step + 1
                    assert made_step(link) is not None
            return link.leave()

        for counts in unfailing(together(2, work)):
            assert counts["updates"] == 12
            assert GradientStatistics.from_wire(counts["statistics"]).staleness[1] <= 4

    def test_a_bound_of_none_at_all_is_a_step_of_all(self, ps: LocalParameterServer) -> None:
        def work(replica: int) -> dict[str, Any]:
            link = ps.open(replica, 3, staleness=0)
            for step in range(20):
                link.pull()
                assert 3 * step <= link.version <= 3 * step + 2  # others of this step may be there already
                push(link, 1.0)
                assert (link.wait(0) or 0) <= 2
            return link.leave()

        for counts in unfailing(together(3, work)):
            assert counts["updates"] == 60
            assert GradientStatistics.from_wire(counts["statistics"]).staleness[1] <= 2

    def test_a_pull_waits_for_the_whole_of_an_update(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reached, may_continue = threading.Event(), threading.Event()

        def half_way(self: SGD, parameters: Array, gradient: Array, *rest: Any) -> None:
            parameters[:2] -= gradient[:2]
            reached.set()
            assert may_continue.wait(PATIENCE)
            parameters[2:] -= gradient[2:]

        writer, reader = (ps.open(i, 2, locking=True) for i in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(SGD, "apply", half_way)
            begin_step(writer)
            assert reached.wait(PATIENCE)
            ps.looked.clear()
            thread = threading.Thread(target=reader.pull, daemon=True)
            thread.start()
            if self.shared:
                assert ps.looked.wait(PATIENCE)  # it has tried, and asks the server
            may_continue.set()
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the reader hangs in its pull"
            writer.wait(0)
        np.testing.assert_array_equal(view(reader), np.full(3, -1.0))
        assert (reader.version, reader.global_step) == (1, 1)

    @pytest.mark.parametrize("rules", [{"staleness": 1}, {"synchronous": True, "aggregate": 1}], ids=str)
    def test_one_that_has_left_delays_no_other(
        self, ps: LocalParameterServer, rules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hosted_shard, "RECONNECT_SECONDS", 0.1)
        left, other = (ps.open(i, 2, **rules) for i in range(2))
        left.pull()
        left.close()
        for _ in range(5):
            assert made_step(other) == 0
        assert other.leave()["updates"] == 5

    def test_a_step_that_needs_one_that_is_gone_is_an_error(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hosted_shard, "RECONNECT_SECONDS", 0.1)
        left, *others = (ps.open(i, 3, synchronous=True) for i in range(3))
        left.close()
        for link in others:
            begin_step(link)
        for link in others:
            with pytest.raises(
                UnavailableError, match="replica 0 is dead, and a synchronous step takes 3 grad"
            ):
                link.wait(0)

    @pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.1, "0.1", True, None])
    def test_a_rate_that_is_no_rate_is_refused(self, ps: LocalParameterServer, rate: Any) -> None:
        ps.open()
        with Peer(ps.server.address, ps.server.keys) as peer:
            with pytest.raises(InvalidArgumentError, match="a learning rate is a finite number of 0 or more"):
                peer.call("ps.rate", {"shard": "r/0", "learning_rate": rate})
            assert peer.call("ps.rate", {"shard": "r/0", "learning_rate": 2}).kind == "ps.rated"
        assert ps.shard("r/0").optimizer.learning_rate == 2.0

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"layout": [["w", [-3], "<f4"]]}, r"variable 'w' has shape \(-3,\)"),
            ({"layout": [["w", [-3, -3], "<f4"]]}, "its sizes are 0 or more"),
            ({"layout": [["w", [0, 1 << 40, 1 << 40], "<f4"]]}, "at most 281,474,976,710,656 bytes"),
            ({"rules": {"replicas": -1}}, "replicas=-1: a training has 1 to 65,535 replicas"),
            ({"rules": {"replicas": 2.5}}, "replicas=2.5"),
            ({"rules": {"replicas": 1, "servers": 0}}, "servers=0"),
            ({"replica": 1}, "replica 1 of 1: they are numbered from 0"),
            ({"replica": -1}, "replica -1 of 1"),
            ({"optimizer": {"name": "none"}}, ""),
            ({"layout": [["w", [4], "<f4"]]}, r"initial values of shapes \[\(3,\)\]"),
            ({"bell": "../bell"}, "'../bell' is not a plain name of a shared file"),
            ({"bell": 5}, "5 is not a plain name of a shared file"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_made_leaves_nothing(
        self, ps: LocalParameterServer, changes: Any, match: str
    ) -> None:
        with Peer(ps.server.address, ps.server.keys) as peer:
            answer = opened(peer, changes)
            assert answer.kind == "error"
            assert re.search(match, answer.meta["message"])
            assert ps.files() == []
            assert ps.service._hosted == {}
            assert opened(peer, {}).kind == "ps.opened"

    def test_what_fails_after_the_memory_is_there_gives_it_back(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: Any, **options: Any) -> None:
            raise MemoryError("no room for slots")

        monkeypatch.setattr(hosted_shard, "ParameterShard", fail)
        rules = {"rules": {"replicas": 2}}
        address, keys = ps.server.address, ps.server.keys
        with Peer(address, keys) as waits, Peer(address, keys) as chief:
            waits.send("ps.open", ASKED | rules | {"replica": 1, "chief": False})
            waits.call("ping")
            answers = [opened(chief, rules), waits.receive(PATIENCE)]
            assert all("no room for slots" in answer.meta["message"] for answer in answers if answer)
            assert None not in answers
            assert ps.files() == []
            assert ps.service._hosted == {}
            monkeypatch.undo()
            assert opened(chief, rules).kind == "ps.opened"

    def test_what_replicas_ask_for_must_agree(self, ps: LocalParameterServer) -> None:
        ps.open(0, 2, synchronous=True)
        with pytest.raises(
            InvalidArgumentError, match=r"replica 1 asks for .*aggregate=1.* and replica 0 for"
        ):
            ps.open(1, 2, synchronous=True, aggregate=1)

    def test_the_chief_may_come_late(self, ps: LocalParameterServer) -> None:
        waiting = threading.Event()

        def work(replica: int) -> float:
            if replica == 0:
                assert waiting.wait(PATIENCE)
            else:
                waiting.set()
            link = ps.open(replica, 3, initial=[np.full(3, 4.0 + replica, np.float32)])
            link.pull()
            seen = float(view(link)[0])
            link.leave()
            return seen

        assert unfailing(together(3, work)) == [4.0, 4.0, 4.0]

    def test_a_chief_that_does_not_come_is_missed(self, ps: LocalParameterServer) -> None:
        with pytest.raises(AbortedError, match=r"'r/0' within 0 s: the chief \(worker 0\) has not reached"):
            ps.open(1, 2, timeout=0.3)
        assert ps.files() == []

    def test_an_abort_ends_every_kind_of_waiting(self, ps: LocalParameterServer) -> None:
        ready = threading.Barrier(4)

        def waits_for_the_chief() -> None:
            ready.wait(PATIENCE)
            ps.open(1, 2, shard="no chief/0")

        def waits_for_a_step() -> None:
            link = ps.open(0, 2, shard="step/0", synchronous=True)
            begin_step(link)
            ready.wait(PATIENCE)
            link.wait(0)

        def waits_for_the_others_to_leave() -> None:
            link = ps.open(0, 2, shard="leave/0")
            ready.wait(PATIENCE)
            link.leave()

        waits = (waits_for_the_chief, waits_for_a_step, waits_for_the_others_to_leave)

        def work(index: int) -> None:
            if index == len(waits):
                ready.wait(PATIENCE)
                ps.aborted.set()
            else:
                waits[index]()

        results = together(4, work)
        assert [type(r) for r in results] == [AbortedError] * 3 + [type(None)]

    def test_different_models_are_named_on_the_one_that_differs(self, ps: LocalParameterServer) -> None:
        ps.open(0, 3, initial=[np.zeros((4, 2), np.float32)], names=["dense/kernel"])
        with pytest.raises(InvalidArgumentError) as caught:
            ps.open(1, 3, initial=[np.zeros((4, 3), np.float32)], names=["dense/kernel"])
        assert "variable 0 is dense/kernel (4, 2) <f4 on replica 0" in str(caught.value)
        assert "and dense/kernel (4, 3) <f4 on replica 1; build the same model" in str(caught.value)
        with pytest.raises(InvalidArgumentError, match=r"variable 1 is nothing on replica 0 and bias \(3,\)"):
            ps.open(
                2, 3, initial=[np.zeros((4, 2), np.float32), np.zeros(3, np.float32)],
                names=["dense/kernel", "bias"],
            )  # fmt: skip

    def test_a_chief_with_another_model_than_the_waiting_replicas_gets_an_error(
        self, ps: LocalParameterServer
    ) -> None:
        waiting = threading.Event()

        def work(replica: int) -> None:
            if replica == 0:
                assert waiting.wait(PATIENCE)
                while not ps.service._hosted:
                    ps.aborted.wait(0.001)
                try:
                    ps.open(0, 2, initial=[np.zeros(5)])
                finally:
                    ps.aborted.set()
            else:
                waiting.set()
                ps.open(1, 2, initial=[np.zeros(4)])

        chief, other = together(2, work)
        assert isinstance(chief, InvalidArgumentError)
        assert "(4,) <f8 on replica 1 and v0 (5,) <f8 on replica 0" in str(chief)
        assert isinstance(other, AbortedError)

    def test_an_error_on_the_server_is_raised_at_once(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_memory(self: Layout) -> Array:
            raise MemoryError("cannot take 10 TB")

        monkeypatch.setattr(Layout, "buffer", no_memory)
        monkeypatch.setattr(Segment, "create", no_memory)
        with pytest.raises(NbdistError, match="MemoryError on /job:local/task:0: cannot take 10 TB"):
            ps.open(initial=[np.zeros(3, np.float32)])
        assert ps.files() == []

    def test_a_gradient_that_cannot_be_applied_is_an_error_not_a_hang(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_memory(self: SGD, *arguments: Any) -> None:
            raise MemoryError("cannot take 10 TB")

        broken, fine = ps.open(shard="a/0"), ps.open(shard="b/0")
        with monkeypatch.context() as patch:
            patch.setattr(SGD, "apply", no_memory)
            begin_step(broken)
            with pytest.raises(NbdistError, match="MemoryError on /job:local/task:0: cannot take 10 TB"):
                broken.wait(0)
        assert made_step(fine) == 0  # the server continues for the others

    def test_a_shard_that_is_gone_is_an_error_not_a_hang(self, ps: LocalParameterServer) -> None:
        link = ps.open(shard="a/0")
        assert ps.drop("a") == 1
        with pytest.raises(AbortedError, match=r"the parameters of 'a/0' are not here \(any more\)"):
            link.leave()

    def test_a_server_that_goes_away_is_noticed(self, ps: LocalParameterServer) -> None:
        link = ps.open(0, 2, synchronous=True)
        begin_step(link)
        ps.server.close()
        with pytest.raises(UnavailableError, match="/job:ps/task:0"):
            link.wait(0)

    def test_a_run_that_is_dropped_ends_the_waiting_replicas(self, ps: LocalParameterServer) -> None:
        started = threading.Event()

        def work(index: int) -> Any:
            if index == 0:
                started.set()
                ps.open(1, 2, shard="r/0")
            assert started.wait(PATIENCE)
            while not (dropped := ps.drop("r")):
                pass  # until replica 0 has asked for it
            return dropped

        results = together(2, work)
        assert isinstance(results[0], AbortedError)
        assert "the run of r/0 has ended" in str(results[0])
        assert results[1] == 1

    def test_dropping_one_run_leaves_the_others(self, ps: LocalParameterServer) -> None:
        _, second = ps.open(shard="a/0"), ps.open(shard="ab/0")
        assert ps.drop("a") == 1
        assert made_step(second) == 0

    def test_a_shard_may_hold_nothing(self, ps: LocalParameterServer) -> None:
        """With more parameter servers than variables, some have none."""
        link = ps.open(initial=[])
        for _ in range(2):
            link.pull()
            link.push(0)
            assert link.wait(0) == 0
        assert link.leave()["updates"] == 2

    def test_links_close_twice(self, ps: LocalParameterServer) -> None:
        link = ps.open()
        link.close()
        link.close()

    def test_closing_the_service_leaves_no_file(self, ps: LocalParameterServer) -> None:
        links = [ps.open(shard=f"r/{i}") for i in range(3)]
        assert bool(ps.files()) == self.shared
        for link in links:
            link.close()
        ps.service.close()
        assert ps.files() == []
