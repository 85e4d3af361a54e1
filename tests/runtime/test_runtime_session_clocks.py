"""A traced step of tasks with different clocks: all spans are on the client's clock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runtime_tasks import ONE, PS
from trace_rules import problems

from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, placeholder
from nbdist.runtime.server import Server
from nbdist.runtime.session import cluster
from nbdist.runtime.session.session import Session
from nbdist.runtime.spec import ClusterSpec
from nbdist.wire.keys import ClusterKeys

pytestmark = pytest.mark.processes


@pytest.fixture(params=["inside", "outside"])
def worker(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A worker here, in a cluster with a parameter server with a clock 5,000 s ahead."""
    keys = ClusterKeys.create()
    script = [sys.executable, str(Path(__file__).with_name("task_elsewhere.py"))]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        print(json.dumps(keys.to_dict()), file=other.stdin, flush=True)
        address = other.stdout.readline().strip()
        server = Server({"worker": {0: "127.0.0.1:0"}}, "worker", 0, keys=keys)
        server.cluster = ClusterSpec({"worker": {0: server.address}, "ps": {0: address}})
        if request.param == "outside":
            cluster._here.pop(server.target)
        yield server
        server.close()


def test_a_trace_is_on_the_clients_clock(worker: Server, graph: Graph) -> None:
    x = placeholder(np.float64, (None,), name="x")
    with device(PS):
        there = np.tanh(x)
    with device(ONE):
        here = np.sum(there)
    with Session(worker.target, graph, report=lambda line: None) as session:
        begun = time.perf_counter()
        value, timeline = session.trace(here, {x: np.zeros(5)})
        ended = time.perf_counter()
    assert value == 0
    assert {span.task for span in timeline.spans} >= {PS, ONE}
    error = (
        ended - begun
    )  # a clock that was asked is wrong by half a round trip at most, which is within this
    assert all(begun - error <= span.start <= span.end <= ended + error for span in timeline.spans)
    assert problems(timeline.chrome_trace()) == []
