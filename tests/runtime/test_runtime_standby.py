"""A standby of a shard is equal to it to the bit, and answers leave when the standby has their updates."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE, until

from nbdist.distribute.served_training import offering_initial
from nbdist.errors import NotFoundError, UnavailableError
from nbdist.optim import SGD, Adam, Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps import replicator
from nbdist.runtime.ps.client import Link, ShardRequest, open_link
from nbdist.runtime.ps.mailbox import COUNTERS
from nbdist.runtime.ps.service import ParameterService
from nbdist.runtime.ps.shard import ParameterShard
from nbdist.runtime.ps.standby import StandbyShard
from nbdist.runtime.ps.sync import APPLIED, Rules
from nbdist.runtime.server import Server
from nbdist.runtime.tables import RowGradient
from nbdist.runtime.task import TaskInfo
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Caller, Peer
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import remove_all, shared_folder

Array = np.ndarray[Any, Any]
INITIAL = (np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(5, np.float64))
TABLE = ("table", np.arange(8, dtype=np.float32).reshape(4, 2))
LAYOUT = Layout.of((f"v{i}", a.shape, a.dtype) for i, a in enumerate(INITIAL))


class Pair:
    """Two parameter servers in this process, each with the standby of the other's shard."""

    def __init__(self) -> None:
        self.prefix = f"nbdist-pair{secrets.token_hex(4)}"
        self.keys = ClusterKeys.create()
        self.servers: list[Server] = []
        self.services: list[ParameterService] = []
        self.old: list[Server] = []
        for number in range(2):
            self.start(number)

    def start(self, number: int, *, serves: bool = True) -> None:
        """Start a server, or the new process of one; ``serves``: its service is there, too."""
        server = Server({"ps": ["127.0.0.1:0"]}, keys=self.keys)
        self.servers[number:] = [server, *self.servers[number + 1 :]]
        if serves:
            self.serve(number)

    def serve(self, number: int) -> None:
        """Start the service of a server."""
        service = ParameterService(self.servers[number], self.prefix, self.locate)
        self.services[number:] = [service, *self.services[number + 1 :]]

    def kill(self, number: int) -> None:
        """Close a server as its death does: its shards are not released."""
        self.old.append(self.servers[number])
        self.servers[number].close()

    def locate(self, rank: int) -> TaskInfo:
        server = self.servers[rank]
        return TaskInfo("ps", rank, rank, host_identity(), 0, server.address, "CPU:0", server.incarnation)

    def request(self, replica: int = 0, replicas: int = 1, **changes: Any) -> ShardRequest:
        chief = replica == 0 and "offer" not in changes
        request = ShardRequest(
            shard="r/0", replica=replica, rules=Rules(replicas), layout=LAYOUT, optimizer=Adam(0.1),
            counts=True, initial=INITIAL if chief else None,
            standby={"rank": 1, "of": 0, "shared": True},
        )  # fmt: skip
        return replace(request, **changes)

    def open(self, request: ShardRequest, shared: bool = True) -> Link:
        def connect() -> Peer:
            return Peer(self.servers[0].address, self.keys, name="/job:ps/task:0")

        prefix = self.prefix if shared else None
        return open_link(connect, request, prefix=prefix, check=lambda: None, timeout=20)

    def primary(self) -> ParameterShard:
        shard = self.services[0]._hosted["r/0"].shard
        assert shard is not None
        return shard

    def standby(self) -> StandbyShard | None:
        return self.services[1]._standbys._standbys.get("r/0/0")

    def close(self) -> None:
        for service, server in zip(self.services, self.servers, strict=True):
            service.close()
            server.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()
    remove_all(pair.prefix)  # of servers that were "killed"; their last threads may remove some now


def push(link: Link, slot: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for view in link.layout.views(link.gradient(slot)):
        view[...] = random.normal(size=view.shape)
    if link.tables:
        values = random.normal(size=(3, 2)).astype(np.float32)
        link.take([RowGradient(random.integers(0, 4, 3), values)])
    link.push(slot)


def step(link: Link, seed: int) -> None:
    link.pull()
    push(link, 0, seed)
    assert link.wait(0) is not None


def equal(one: ParameterShard, other: ParameterShard) -> bool:
    with one.lock, other.lock:
        pairs = zip(one.buffers(), other.buffers(), strict=True)
        return all(a.tobytes() == b.tobytes() for a, b in pairs) and one.snapshot() == other.snapshot()


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "sockets"])
@pytest.mark.parametrize("tables", [(), (TABLE,)], ids=["variables", "table"])
@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), Adam(0.1, amsgrad=True)])
def test_a_standby_and_what_is_restored_from_it_are_equal_to_the_bit(
    pair: Pair, shared: bool, tables: tuple[Any, ...], optimizer: Optimizer
) -> None:
    standby = {"rank": 1, "of": 0, "shared": shared}
    request = pair.request(tables=tables, optimizer=optimizer, standby=standby)
    link = pair.open(request, shared)
    for seed in range(20):
        step(link, seed)
        if seed % 7 == 3:
            link.set_rate(1.0 / (seed + 2))
            link.count()
    link.wait_counted()
    found = pair.standby()
    assert found is not None
    assert bool(found.slots) == (shared and not tables)
    assert equal(pair.primary(), found.shard)

    alone = ParameterShard(
        LAYOUT, LAYOUT.buffer(), np.zeros(COUNTERS, np.int64), optimizer, Rules(1), counts=True,
        tables=[array.copy() for _, array in tables],
    )  # fmt: skip
    for view, value in zip(LAYOUT.views(alone.memory), INITIAL, strict=True):
        np.copyto(view, value)
    for seed in range(20):
        random = np.random.default_rng(seed)
        buffer = LAYOUT.buffer()
        for view in LAYOUT.views(buffer):
            view[...] = random.normal(size=view.shape)
        values = random.normal(size=(3, 2)).astype(np.float32) if tables else None
        rows = [] if values is None else [RowGradient(random.integers(0, 4, 3), values)]
        alone.offer(0, 0, [*LAYOUT.flats(buffer), *rows], alone.updates)
        if seed % 7 == 3:
            alone.set_rate(1.0 / (seed + 2))
    for one, other in zip(alone.buffers(), found.shard.buffers(), strict=True):
        assert one.tobytes() == other.tobytes()

    before = pair.primary()
    push(link, 0, 100)  # applied and acknowledged, but the replica has not read the answer
    until(lambda: equal(before, found.shard) and before.updates == 21)
    pair.kill(0)
    pair.start(0)
    offer = link.offer(0, done=False)
    again = replace(request, initial=None, offer=offer, copy=link.parameters)
    new = pair.open(again, shared)
    new.take_over(link)
    assert new.restored is not None
    assert (new.restored["lost"], new.restored["standby"]) == (0, "/job:ps/task:1")
    assert new.outcome(0)[0] == APPLIED  # it was sent again, and not taken again
    assert pair.primary().updates == 21
    assert equal(before, pair.primary())
    step(new, 101)
    assert equal(pair.primary(), found.shard)  # the same standby continues
    assert new.offer(0, done=False).made == 22


@pytest.mark.slow
def test_training_continues_without_the_standby_until_its_new_process_is_filled(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    link = pair.open(pair.request())
    for seed in range(5):
        step(link, seed)
    pair.kill(1)
    for seed in range(5, 10):  # the first answer is held until the death is noticed
        step(link, seed)
    asked = threading.Event()

    def not_yet(frame: Frame, sender: Caller) -> None:
        asked.set()
        raise NotFoundError("/job:ps/task:1 answers no 'ps.hello'")

    pair.start(1, serves=False)  # a process that has not started its service is asked again
    pair.servers[1].on("ps.hello", not_yet)
    assert asked.wait(PATIENCE)
    pair.serve(1)
    until(lambda: pair.standby() is not None)
    for seed in range(10, 15):
        step(link, seed)
    found = pair.standby()
    assert found is not None
    assert found.number < 15
    assert equal(pair.primary(), found.shard)
    link.announce_done()
    link.leave()
    until(lambda: pair.standby() is None)
    lost, again = capsys.readouterr().out.splitlines()
    assert "keeps no replica of the parameters on /job:ps/task:0: its process has ended. Updates are" in lost
    assert again == "/job:ps/task:1 keeps a replica of the parameters on /job:ps/task:0 again"


def test_a_standby_that_stalls_is_given_up_and_the_run_says_so(
    pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = pair.open(pair.request())
    until(lambda: pair.standby() is not None)
    step(link, 0)
    monkeypatch.setattr(replicator, "STALL_SECONDS", 0.3)
    with monkeypatch.context() as patch:
        patch.setattr(replicator.Replicator, "acknowledge", lambda self, meta: None)
        step(link, 1)  # the answer leaves all the same
    link.announce_done()
    link.leave()
    assert "it has acknowledged nothing for 0.3 s. Updates are lost if" in capsys.readouterr().out


def test_the_copy_of_a_replica_restores_a_server_that_dies_together_with_its_standby(pair: Pair) -> None:
    request = pair.request(optimizer=SGD(1.0))
    link = pair.open(request, shared=False)
    for seed in range(3):
        step(link, seed)
    link.pull()
    copy = link.parameters.copy()
    step(link, 3)  # its result is in no copy but that of the standby
    for number in range(2):
        pair.kill(number)
        pair.start(number)
    again = replace(request, initial=None, offer=replace(link.offer(0, False), version=3), copy=copy)
    new = pair.open(again, shared=False)
    assert new.restored is not None
    assert (new.restored["lost"], "standby" in new.restored) == (1, False)
    assert pair.primary().memory.tobytes() == copy.tobytes()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tables": (TABLE,)}, "no worker has all rows of its tables"),
        ({"rules": Rules(1, synchronous=True)}, "its steps were synchronous"),
    ],
)
def test_an_error_says_what_is_lost_if_a_server_and_its_standby_die_together(
    pair: Pair, changes: dict[str, Any], why: str
) -> None:
    request = pair.request(**changes)
    link = pair.open(request, shared=False)
    step(link, 0)
    for number in range(2):
        pair.kill(number)
        pair.start(number)
    again = replace(request, initial=None, offer=link.offer(0, False), copy=link.parameters)
    with pytest.raises(UnavailableError, match=f"died together, and {why}: .* --checkpoint-every can be res"):
        pair.open(again, shared=False)


def test_a_server_that_dies_while_it_is_opened_has_the_values_of_the_chief_or_newer_ones(pair: Pair) -> None:
    """The chief does not know whether others had begun to train."""
    requests = [replace(pair.request(i, 2), standby=None) for i in range(2)]
    link = pair.open(requests[0])
    assert link.has_copy
    assert LAYOUT.views(link.parameters)[0].tobytes() == INITIAL[0].tobytes()
    pair.kill(0)
    pair.start(0)
    results: list[Link] = []
    opened = threading.Thread(target=lambda: results.append(pair.open(requests[1])))
    opened.start()
    results.append(pair.open(offering_initial(requests[0])))
    opened.join(PATIENCE)
    assert len(results) == 2
    for one in results:
        one.pull()
        for view, value in zip(LAYOUT.views(one.parameters), INITIAL, strict=True):
            assert view.tobytes() == value.tobytes()

    for seed in range(3):
        step(results[-1], seed)
    pair.kill(0)
    pair.start(0)
    offer = results[-1].offer(1, False)
    assert offer.version == 2
    other = replace(requests[1], offer=replace(offer, generation=1), copy=results[-1].parameters)
    again: list[Link] = []
    opened = threading.Thread(target=lambda: again.append(pair.open(offering_initial(requests[0]))))
    opened.start()
    again.append(pair.open(other))
    opened.join(PATIENCE)
    assert pair.primary().memory.tobytes() == results[-1].parameters.tobytes()


def test_the_new_process_of_a_worker_may_be_the_first_to_open_a_server_that_has_a_standby(pair: Pair) -> None:
    link = pair.open(pair.request())
    for seed in range(3):
        step(link, seed)
    before = pair.primary().memory.copy()
    pair.kill(0)
    pair.start(0)
    new = pair.open(replace(pair.request(), initial=None, rejoins=True, pids=(0,)))
    new.pull()
    assert new.made == 3
    assert new.parameters.tobytes() == before.tobytes()


def test_a_shard_that_ends_while_its_standby_is_filled_leaves_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, ended = threading.Event(), threading.Event()
    wait_connected = Peer.wait_connected

    def slow(peer: Peer) -> None:
        wait_connected(peer)
        reached.set()
        assert ended.wait(PATIENCE)

    monkeypatch.setattr(Peer, "wait_connected", slow)
    pair.open(pair.request(), shared=False)
    assert reached.wait(PATIENCE)
    replicator = pair.services[0]._hosted["r/0"].replicator
    assert replicator is not None
    pair.servers[0].post(lambda: pair.services[0].drop_run("r"))
    until(lambda: replicator._closed)
    ended.set()
    until(lambda: not replicator._fills)
    assert replicator._peer is None
    until(lambda: not pair.services[1]._standbys._filling)
    assert not [path for path in shared_folder().glob(f"{pair.prefix}-*") if path.is_file()]
