"""The process managers of an MPI world, without MPI: ranks here are the ends of their sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from nbdist.cluster.launchers.mpi import HostRanks, PmiBarrier, ProcessManager, process_mapping
from nbdist.errors import InvalidArgumentError


def as_sent(value: Any) -> Any:
    """Return a message as it arrives at another host."""
    return json.loads(json.dumps(value))


class World:
    """A world whose ranks are on the hosts that are named, one letter each."""

    def __init__(self, places: str) -> None:
        self.places, self.barrier = places, PmiBarrier(places)
        self.sent: list[tuple[str, Any]] = []
        self.parts = {host: HostRanks.from_dict(as_sent(part)) for host, part in self.barrier.begin().items()}
        self.managers = {host: self._manager(host, part) for host, part in self.parts.items()}
        self._ends = [self.managers[host]._theirs[rank] for rank, host in enumerate(places)]

    def _manager(self, host: str, part: HostRanks) -> ProcessManager:
        return ProcessManager(part, "eth7", lambda entries: self.sent.append((host, as_sent(entries))))

    def ask(self, rank: int, request: str) -> bytes:
        """Send a request of a rank; return what the rank has received since."""
        manager = self.managers[self.places[rank]]
        self._ends[rank].sendall(request.encode() + b"\n")
        manager.answer(manager.connections[rank])
        return self.heard(rank)

    def heard(self, rank: int) -> bytes:
        with suppress(BlockingIOError):
            return self._ends[rank].recv(1 << 16, socket.MSG_DONTWAIT)
        return b""

    def deliver(self) -> list[str]:
        """Carry the messages of the hosts to the head, and its answers back; return the hosts released."""
        released = []
        while self.sent:
            for host, merged in self.barrier.receive(*self.sent.pop(0)).items():
                self.managers[host].release(as_sent(merged))
                released.append(host)
        return released

    def close(self) -> None:
        for one in [
            *self._ends,
            *(c for manager in self.managers.values() for c in manager.connections.values()),
        ]:
            one.close()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.close()


def on(places: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", [places], indirect=True)


@on("aabab")
def test_what_ranks_publish_reaches_all_hosts_at_their_barrier(world: World) -> None:
    assert {host: list(part.ranks) for host, part in world.parts.items()} == {"a": [0, 1, 3], "b": [2, 4]}
    assert {part.mapping for part in world.parts.values()} == {"(vector,(0,1,2),(1,1,1),(0,2,1))"}
    for turn in range(2):  # one barrier follows another
        for rank in range(5):
            put = world.ask(rank, f"cmd=put kvsname=x key={turn}.{rank} value={rank}")
            assert put == b"cmd=put_result rc=0 msg=success\n"
        assert b"key_not_found" in world.ask(0, f"cmd=get kvsname=x key={turn}.2")
        for rank in (4, 0, 1, 2):
            assert world.ask(rank, "cmd=barrier_in") == b""
        assert [host for host, _ in world.sent] == ["b"]  # all of its ranks wait
        assert world.deliver() == []
        assert world.ask(3, "cmd=barrier_in") == b""
        assert sorted(world.deliver()) == ["a", "b"]
        assert [world.heard(rank) for rank in range(5)] == [b"cmd=barrier_out rc=0\n"] * 5
        for rank in range(5):
            assert b"value=2\n" in world.ask(rank, f"cmd=get kvsname=x key={turn}.2")


@on("aab")
def test_ranks_know_their_world_and_the_interface_between_hosts(world: World) -> None:
    assert world.managers["a"].environment(1).items() >= {
        "PMI_RANK": "1", "PMI_SIZE": "3", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth7"
    }.items()  # fmt: skip
    names = {world.ask(rank, "cmd=get_my_kvsname") for rank in range(3)}
    assert len(names) == 1
    assert b"size=3" in world.ask(2, "cmd=get_universe_size")
    here = ProcessManager(HostRanks.alone(1))
    assert here.environment(0).items() >= {"FI_PROVIDER": "shm"}.items()
    here.hand_over(0)
    here.connections[0].close()


@on("ab")
def test_a_host_that_leaves_a_barrier_of_others_is_refused(world: World) -> None:
    for host in "ac":
        world.barrier.receive("a", {}) if host == "a" else None
        with pytest.raises(ValueError, match="in a barrier that they have left"):
            world.barrier.receive(host, {})


@on("abababab")
def test_what_all_publish_fits_into_one_message(world: World) -> None:
    value = "1" * 900
    for rank in range(8):
        for number in range(100):
            if rank in world.managers[world.places[rank]].connections:
                world.ask(rank, f"cmd=put kvsname=x key={rank}.{number} value={value}")
    assert not any(manager.connections for manager in world.managers.values())  # each has published too much
    entries = [manager._published for manager in world.managers.values()]
    assert 0 < len(json.dumps(entries[0] | entries[1])) < 1 << 20


@on("aaaaa")
def test_a_rank_that_breaks_the_protocol_loses_its_connection_only(world: World) -> None:
    connections = world.managers["a"].connections
    for rank, request in enumerate(["cmd=rubbish", "\xff", "cmd=get"]):
        world.ask(rank, request)
    while 3 in connections:
        world.ask(3, f"cmd=put key=a value={'1' * 60_000}")
    assert list(connections) == [4]
    assert world.ask(
        4, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get kvsname=x key=none"
    ).splitlines() == [
        b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
        b"cmd=get_result rc=-1 msg=key_not_found value=unknown",
    ]
    manager, connection = world.managers["a"], connections[4]
    for rank in range(5):
        manager.hand_over(rank)
    assert not manager.answer(connection)


def test_hosts_that_pmi_cannot_describe_are_refused() -> None:
    places = [host for number in range(200) for host in [f"h{number}"] * (1 + number % 2)]
    with pytest.raises(InvalidArgumentError, match="give all hosts the same number of workers"):
        process_mapping(places)
    assert process_mapping(["a", "b", *places[:150:3]]).startswith("(vector,(0,")
