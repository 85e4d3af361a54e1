"""Tasks for tests of sessions; when one ends, nothing of its sessions may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from runtime_tasks import Gate, Tasks, executor_threads, gates, open_tasks
from waiting import until

from nbdist.graph.tensor import Graph, Tensor


@pytest.fixture
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph


@pytest.fixture
def tasks(request: pytest.FixtureRequest) -> Iterator[Tasks]:
    """Two workers and a parameter server; a parameter gives other options of ``open_tasks``."""
    tasks = open_tasks(**getattr(request, "param", {}))
    yield tasks
    for server in tasks.servers.values():
        server.close()
    until(lambda: executor_threads() == [])


@pytest.fixture
def gate() -> Iterator[Callable[[Tensor, Gate], Tensor]]:
    with gates() as put:
        yield put
