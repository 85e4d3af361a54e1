"""A replica is killed in the middle of training: its server learns of it, and nobody waits for it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from nbdist.errors import UnavailableError
from nbdist.optim import SGD
from nbdist.runtime.layout import Layout
from nbdist.runtime.linkopening import ShardRequest, open_link
from nbdist.runtime.links import Link
from nbdist.runtime.parameters import ParameterService
from nbdist.runtime.rules import Rules
from nbdist.runtime.server import Server
from nbdist.wire.peers import Peer
from nbdist.wire.shm import remove_all

LAYOUT = Layout.of([("v", (3,), "<f4")])
PREFIX = "nbdist-killtest"
STEPS = 10  # far more than the bound, so that the others would be stuck

VICTIM = """
import json, sys
from test_runtime_links_killed import opened
from nbdist.wire.keys import ClusterKeys
from nbdist.runtime.rules import Rules

order = json.loads(sys.stdin.readline())
link = opened(order["address"], ClusterKeys(**order["keys"]), 1, Rules(**order["rules"]), order["prefix"])
link.pull()
link.push(0)
print(link.kind, flush=True)
sys.stdin.read()
"""


def opened(address: str, keys: Any, replica: int, rules: Rules, prefix: str | None) -> Link:
    request = ShardRequest(
        "r/0", replica, rules, LAYOUT, SGD(1.0), True, (np.zeros(3, np.float32),) if replica == 0 else None
    )
    peer = Peer(address, keys, name="/job:ps/task:0")
    return open_link(peer, request, prefix=prefix, check=lambda: None, timeout=20)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server.create_local_server()
    service = ParameterService(server, PREFIX)
    yield server
    service.close()
    server.close()
    remove_all(PREFIX)  # of the killed one's, which is the cluster's to do


def with_one_killed(server: Server, rules: Rules, shared: bool) -> tuple[Link, int]:
    """Return a replica's link, and the steps it made after the other was killed."""
    prefix = PREFIX if shared else None
    link = opened(server.address, server.keys, 0, rules, prefix)
    order = {
        "address": server.address, "keys": asdict(server.keys), "rules": rules.to_wire(), "prefix": prefix,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
    ) as victim:
        assert victim.stdin is not None
        assert victim.stdout is not None
        victim.stdin.write(json.dumps(order) + "\n")
        victim.stdin.flush()
        assert victim.stdout.readline().strip() == link.kind
        victim.send_signal(signal.SIGKILL)
    for _ in range(STEPS):
        link.pull()
        link.push(0)
        link.wait(0)
    return link, link.leave()["updates"]


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "socket"])
@pytest.mark.parametrize(
    ("rules", "updates"),
    [
        (Rules(2), STEPS + 1),
        (Rules(2, staleness=0), STEPS + 1),
        (Rules(2, staleness=2), STEPS + 1),
        (Rules(2, True, 1), STEPS + 1),
    ],
    ids=["asynchronous", "in step", "bounded", "backup"],
)
def test_the_others_go_on(server: Server, rules: Rules, updates: int, shared: bool) -> None:
    link, made = with_one_killed(server, rules, shared)
    assert made in (updates - 1, updates)  # its gradient may not have left it
    link.close()


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "socket"])
def test_a_step_of_all_ends_with_an_error(server: Server, shared: bool) -> None:
    with pytest.raises(UnavailableError, match="replica 1 is gone, and a synchronous step takes 2 gradients"):
        with_one_killed(server, Rules(2, True), shared)
