"""A replica is killed in the middle of training: its server learns of it, and no other waits for it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from freezing import freeze
from tiers import matrix

from nbdist.errors import UnavailableError
from nbdist.optim import SGD
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps import service
from nbdist.runtime.ps.client import Link, ShardRequest, open_link
from nbdist.runtime.ps.service import ParameterService
from nbdist.runtime.ps.sync import Rules
from nbdist.runtime.server import Server
from nbdist.wire.rpc.client import Peer
from nbdist.wire.shm import remove_all

pytestmark = pytest.mark.processes

LAYOUT = Layout.of([("v", (3,), "<f4")])
PREFIX = "nbdist-killtest"
STEPS = 10  # far more than the bound, so that the others would be stuck

VICTIM = """
import json, sys
from test_runtime_service_killed_replica import opened
from nbdist.wire.keys import ClusterKeys
from nbdist.runtime.ps.sync import Rules

order = json.loads(sys.stdin.readline())
link = opened(order["address"], ClusterKeys(**order["keys"]), 1, Rules(**order["rules"]), order["prefix"])
link.pull()
link.push(0)
print(link.kind, flush=True)
sys.stdin.readline()
try:  # until it is refused, which is sooner than the end of all these steps
    for _ in range(10_000):
        link.pull()
        link.push(1)
        link.wait(1)
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""


def opened(
    address: str,
    keys: Any,
    replica: int,
    rules: Rules,
    prefix: str | None,
    pids: tuple[int, ...] = (),
    lost: Callable[[Mapping[int, int]], object] = print,
) -> Link:
    initial = (np.zeros(3, np.float32),) if replica == 0 else None
    request = ShardRequest("r/0", replica, rules, LAYOUT, SGD(1.0), True, initial, pids=pids)
    connect = partial(Peer, address, keys, name="/job:ps/task:0")
    return open_link(connect, request, prefix=prefix, check=lambda: None, timeout=20, lost=lost)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server.create_local_server()
    service = ParameterService(server, PREFIX)
    yield server
    service.close()
    server.close()
    remove_all(PREFIX)  # of the killed one's, which is the cluster's to do


@contextmanager
def victim(server: Server, rules: Rules, shared: bool) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that is replica 1, and has pushed a gradient; the caller opens replica 0."""
    prefix = PREFIX if shared else None
    order = {
        "address": server.address, "keys": asdict(server.keys), "rules": rules.to_wire(), "prefix": prefix,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def steps_of(link: Link) -> int:
    """Make some steps, and leave; return how many updates the shard has had."""
    for _ in range(STEPS):
        link.pull()
        link.push(0)
        link.wait(0)
    return int(link.leave()["updates"])


def with_one_killed(server: Server, rules: Rules, shared: bool) -> tuple[Link, int]:
    """Return a replica's link, and the steps it made after the other was killed."""
    with victim(server, rules, shared) as process:
        link = opened(server.address, server.keys, 0, rules, PREFIX if shared else None)
        assert said(process) == link.kind
        process.send_signal(signal.SIGKILL)
        process.wait()
    return link, steps_of(link)


def with_one_frozen(
    server: Server, rules: Rules, shared: bool, reported: list[int]
) -> tuple[Link, int, list[str]]:
    """Return a replica's link, the steps it made while the other was frozen, and the other's last words."""
    with victim(server, rules, shared) as process:
        link = opened(
            server.address,
            server.keys,
            0,
            rules,
            PREFIX if shared else None,
            (0, process.pid),
            reported.extend,
        )
        assert said(process) == link.kind
        freeze(process.pid)
        words = []
        try:
            made = steps_of(link)
        finally:
            process.send_signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            words.append(said(process))
    return link, made, words


RULES = {
    "asynchronous": Rules(2),
    "in step": Rules(2, staleness=0),
    "bounded": Rules(2, staleness=2),
    "backup": Rules(2, True, 1),
}


def rules_and_transports(*first: tuple[str, bool]) -> pytest.MarkDecorator:
    """Test all rules over shared memory and over a socket; only `first` in the first tier."""
    every = [(name, shared) for name in RULES for shared in (True, False)]

    def cases(pairs: Iterable[tuple[str, bool]]) -> list[Any]:
        return [
            pytest.param(RULES[name], shared, id=f"{name}-{'shared memory' if shared else 'socket'}")
            for name, shared in pairs
        ]

    rest = [pair for pair in every if pair not in first]
    return pytest.mark.parametrize(("rules", "shared"), matrix(cases(first), cases(rest)))


@rules_and_transports(("asynchronous", True), ("in step", False), ("backup", False))
def test_the_others_continue(server: Server, rules: Rules, shared: bool) -> None:
    link, made = with_one_killed(server, rules, shared)
    assert made in (STEPS, STEPS + 1)  # its gradient may not have left it
    link.close()


@pytest.mark.parametrize(
    "shared", matrix([pytest.param(False, id="socket")], rest=[pytest.param(True, id="shared memory")])
)
def test_a_step_of_all_ends_with_an_error(server: Server, shared: bool) -> None:
    with pytest.raises(UnavailableError, match="replica 1 is dead, and a synchronous step takes 2 gradients"):
        with_one_killed(server, Rules(2, True), shared)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a process that is stopped for a tenth of a second for frozen."""
    monkeypatch.setattr(service, "RANK_FROZEN_SECONDS", 0.1)
    monkeypatch.setattr(service, "LOOK_SECONDS", 0.05)


@pytest.mark.usefixtures("quickly")
@rules_and_transports(("bounded", False), ("backup", True))
def test_the_others_continue_without_a_frozen_one_which_is_refused(
    server: Server, rules: Rules, shared: bool
) -> None:
    reported: list[int] = []
    link, made, words = with_one_frozen(server, rules, shared, reported)
    assert made in (STEPS, STEPS + 1)  # its gradients are refused after it continues
    assert reported == [1]
    assert words[0].startswith(("UnavailableError", "AbortedError"))
    link.close()


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize(
    "shared", matrix([pytest.param(True, id="shared memory")], rest=[pytest.param(False, id="socket")])
)
def test_a_step_of_all_ends_with_an_error_that_names_a_frozen_one(server: Server, shared: bool) -> None:
    reported: list[int] = []
    with pytest.raises(
        UnavailableError, match="replica 1 is frozen, and a synchronous step takes 2 gradients"
    ):
        with_one_frozen(server, Rules(2, True), shared, reported)
    assert reported == [1]


@pytest.mark.usefixtures("quickly")
def test_one_that_is_back_while_the_others_train_is_refused(server: Server) -> None:
    reported: list[int] = []
    with victim(server, Rules(2), True) as process:
        link = opened(server.address, server.keys, 0, Rules(2), PREFIX, (0, process.pid), reported.extend)
        assert said(process) == link.kind
        freeze(process.pid)
        updates = 0
        while not reported:
            link.pull()
            link.push(0)
            link.wait(0)
            updates += 1
        process.send_signal(signal.SIGCONT)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        # The error has the server's own name, or the name that the link has for it.
        refused = r"have continued without it: /job:(local|ps)/task:0 refuses its gradients"
        assert re.search(refused, said(process))
        left = link.leave()
    assert left["statistics"]["made"][0] == updates
    assert left["statistics"]["made"][1] <= 1  # the one of before
    link.close()


@pytest.mark.usefixtures("quickly")
def test_a_replica_that_was_frozen_before_it_opened_the_shard_is_not_waited_for(server: Server) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as late:
        freeze(late.pid)
        try:
            link = opened(server.address, server.keys, 0, Rules(2), PREFIX, (0, late.pid), [].extend)
            assert steps_of(link) == STEPS
        finally:
            late.kill()
    link.close()
