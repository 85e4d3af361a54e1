"""Links over shared memory and over sockets, each tested with the contract."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
from reset_proxy import ResetProxy
from tiers import matrix
from waiting import until

from nbdist.errors import ResourceExhaustedError, UnavailableError
from nbdist.optim import SGD
from nbdist.runtime.ps.mailbox import SLOTS
from nbdist.testing.link import (
    PATIENCE,
    Array,
    LinkContract,
    LocalParameterServer,
    push,
    unfailing,
    view,
)
from nbdist.testing.waiting import together
from nbdist.wire.shm import Doorbell, Segment


class TestSharedMemory(LinkContract):
    shared, kind = True, "shared memory"

    def test_without_room_it_travels_over_sockets_and_says_so(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(prefix: str, size: int) -> Segment:
            raise ResourceExhaustedError(f"/dev/shm has no room for {size:,} bytes")

        monkeypatch.setattr(Segment, "create", full)
        link = ps.open()
        assert link.kind == "socket"
        assert "parameters travel over sockets: /dev/shm has no room for" in link.note
        link.pull()
        push(link, 1.0)
        assert link.wait(0) == 0
        link.leave()
        link.close()
        assert ps.files() == []

    def test_without_room_for_a_doorbell_too(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(prefix: str) -> Doorbell:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Doorbell, "create", full)
        link = ps.open()
        assert link.kind == "socket"
        assert "parameters travel over sockets: no doorbell can be made" in link.note
        link.close()

    def test_a_replica_that_cannot_see_the_memory_uses_a_socket(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another container of the same host: its doorbell is not where the server looks."""
        chief = ps.open(0, 2)
        monkeypatch.setattr("nbdist.runtime.ps.hosted_shard.Ringer", _no_ringer)
        other = ps.open(1, 2)
        assert [chief.kind, other.kind] == ["shared memory", "socket"]
        assert "parameters travel over sockets" in other.note
        for link in (chief, other):
            link.pull()
            push(link, 1.0)
            link.wait(0)
        chief.pull()
        other.pull()
        assert view(chief)[0] == view(other)[0] == -2
        assert len(together(2, lambda i: (chief, other)[i].leave())) == 2
        chief.close()
        other.close()

    @pytest.mark.parametrize("synchronous", [False, True])
    def test_both_kinds_meet_in_one_shard(self, ps: LocalParameterServer, synchronous: bool) -> None:
        def work(replica: int) -> Array:
            link = ps.open(replica, 4, synchronous=synchronous, shared=replica % 2 == 0)
            assert link.kind == ("socket" if replica % 2 else "shared memory")
            for _ in range(30):
                link.pull()
                push(link, 1.0 + replica)
                link.wait(0)
            link.leave()
            link.close()
            return view(link).copy()

        for final in unfailing(together(4, work)):
            np.testing.assert_array_equal(final, np.full(3, -300.0))


class TestSocket(LinkContract):
    shared, kind = False, "socket"

    @pytest.mark.parametrize("seed", matrix([0, 1], rest=[2, 3]))
    def test_resets_lose_and_repeat_no_gradient(self, ps: LocalParameterServer, seed: int) -> None:
        """The connection is reset again and again, somewhere in a message of either side."""
        host, _, port = ps.server.address.rpartition(":")
        proxy, steps = ResetProxy(host, host, int(port)), 60
        size = np.random.default_rng(seed)
        link = ps.open(
            initial=[np.zeros(2_000, np.float32)], counts=seed % 2 == 0, optimizer=SGD(1.0, momentum=0.0),
            address=proxy.address,
        )  # fmt: skip
        reset = proxy.reset_after(int(size.integers(1, 60_000)))
        under_way: deque[int] = deque()
        staleness = []
        for step in range(steps):
            if reset.is_set():
                reset = proxy.reset_after(int(size.integers(20_000, 60_000)))
            link.pull()
            push(link, 1.0, step % SLOTS)
            under_way.append(step % SLOTS)
            if len(under_way) == SLOTS:
                staleness.append(link.wait(under_way.popleft()))
        staleness += [link.wait(slot) for slot in under_way]
        if seed % 2:
            for _ in range(steps):
                link.count()
        link.set_rate(0.5)
        left = link.leave()
        assert proxy.resets > 3
        assert None not in staleness
        assert len(staleness) == left["updates"] == left["global_step"] == steps
        assert left["statistics"]["made"] == [steps]
        np.testing.assert_array_equal(view(link), np.full(2_000, -float(steps), np.float32))
        link.close()
        proxy.close()
        until(lambda: not ps.service._hosted)

    def test_a_step_of_all_waits_for_a_reset_connection(self, ps: LocalParameterServer) -> None:
        host, _, port = ps.server.address.rpartition(":")
        proxy = ResetProxy(host, host, int(port))

        def work(replica: int) -> Array:
            address = proxy.address if replica else ""
            link = ps.open(replica, 2, initial=[np.zeros(500, np.float32)], synchronous=True, address=address)
            for step in range(20):
                if replica and step % 5 == 0:
                    proxy.reset_after(1_000)
                link.pull()
                push(link, 1.0)
                assert link.wait(0) == 0
            link.leave()
            link.close()
            return view(link).copy()

        for final in unfailing(together(2, work)):
            np.testing.assert_array_equal(final, np.full(500, -2 * 20.0, np.float32))
        assert proxy.resets == 4
        proxy.close()

    def test_final_values_that_a_reset_has_lost_are_sent_again(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nbdist.runtime.ps.hosted_shard.RECONNECT_SECONDS", PATIENCE)
        host, _, port = ps.server.address.rpartition(":")
        proxy = ResetProxy(host, host, int(port))
        near = ps.open(0, 2)
        far = ps.open(1, 2, address=proxy.address)
        near.pull()
        push(near, 1.0)
        assert near.wait(0) == 0
        far.announce_done()
        hosted = ps.service._hosted["r/0"]
        until(lambda: hosted.replicas[1].leaver is not None)
        proxy.reset()
        assert near.leave()["updates"] == 1
        assert [one.is_reading for one in hosted.replicas] == [False, True]
        assert far.leave()["updates"] == 1
        np.testing.assert_array_equal(view(far), np.full(3, -1.0))
        until(lambda: not ps.service._hosted)
        for one in (near, far):
            one.close()
        proxy.close()

    def test_an_error_that_a_reset_has_lost_is_raised(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Replica 2 is lost while the connection of replica 1 is down."""
        monkeypatch.setattr("nbdist.runtime.ps.hosted_shard.RECONNECT_SECONDS", PATIENCE)
        host, _, port = ps.server.address.rpartition(":")
        proxy = ResetProxy(host, host, int(port))
        links = [ps.open(i, 3, synchronous=True, address=proxy.address if i == 1 else "") for i in range(3)]
        for link in links[:2]:
            link.pull()
            push(link, 1.0)
        hosted, done = ps.service._hosted["r/0"], threading.Event()
        until(lambda: hosted.shard is not None and hosted.shard.accumulator.count == 2)
        proxy.reset()

        def lose() -> None:
            hosted.lose(2)
            done.set()

        ps.server.post(lose)
        assert done.wait(PATIENCE)
        for link in links[:2]:
            with pytest.raises(UnavailableError, match="replica 2 is dead, and a synchronous step takes 3"):
                link.wait(0)
        for link in links:
            link.close()
        proxy.close()

    def test_a_replica_that_connects_again_too_late_is_refused(
        self, ps: LocalParameterServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nbdist.runtime.ps.hosted_shard.RECONNECT_SECONDS", 0.0)
        host, _, port = ps.server.address.rpartition(":")
        proxy = ResetProxy(host, host, int(port))
        near = ps.open(0, 2, synchronous=True)
        far = ps.open(1, 2, synchronous=True, address=proxy.address)
        near.pull()
        far.pull()
        push(near, 1.0)
        proxy.reset()
        shard = ps.shard("r/0")
        until(lambda: shard.evicted == {1})
        push(far, 1.0)
        with pytest.raises(UnavailableError, match="replica 1 was frozen or cut off"):
            far.wait(0)
        with pytest.raises(UnavailableError, match="a synchronous step takes 2 gradients"):
            near.wait(0)
        for one in (near, far):
            one.close()
        proxy.close()


def _no_ringer(name: str) -> Any:
    from nbdist.errors import NotFoundError

    raise NotFoundError(f"shared file {name!r} was removed")
