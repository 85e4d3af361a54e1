"""Requests that an engine answers while a call has its main thread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from waiting import until

from nbdist.cluster.control_channel import Request
from nbdist.errors import NbdistError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines
OFFER = """
import numpy, threading
from nbdist.cluster.control_channel import serve
from nbdist.errors import NotFoundError
def answer(argument):
    if argument == "lock":
        return threading.Lock()
    if argument == "missing":
        raise NotFoundError("nothing is missing")
    if argument == "bug":
        raise ZeroDivisionError("one over nothing")
    return {"array": numpy.arange(300_000), "function": lambda n: n + 1}
serve("test", answer)
"""
BUSY = """
import os, time
while not os.path.exists({gate!r}):
    time.sleep(0.005)
"""


def ask(cluster: Cluster, argument: str) -> Any:
    request = Request(cluster.client, 1, "test", argument)
    until(request.done)
    return request.result()


def test_an_engine_answers_while_a_call_runs(cluster: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    cluster.run(OFFER, on=1)
    busy = cluster.submit(exec, BUSY.format(gate=str(gate)), on=1)
    try:
        found = ask(cluster, "function")
        assert found["function"](2) == 3
        np.testing.assert_array_equal(found["array"], np.arange(300_000))
        with pytest.raises(NotFoundError, match="nothing is missing"):
            ask(cluster, "missing")
        with pytest.raises(
            UnavailableError, match="rank 1 did not answer 'test': ZeroDivisionError: one over"
        ):
            ask(cluster, "bug")
        with pytest.raises(UnavailableError, match="cannot pickle"):
            ask(cluster, "lock")
        assert not busy.done()
    finally:
        gate.touch()
    busy.results(timeout=30)


def test_a_rank_without_an_engine_is_named(cluster: Cluster) -> None:
    with pytest.raises(NbdistError, match="rank 99 has no engine"):
        Request(cluster.client, 99, "test", "")
