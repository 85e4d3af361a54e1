"""A task of this process with its agent, and a client's connection to it: no engine, real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nbdist.run.task.agent import Agent
from nbdist.runtime import task as tasks
from nbdist.runtime.server import Server
from nbdist.runtime.task import Task, TaskInfo
from nbdist.wire.rpc.client import Peer


@pytest.fixture
def task() -> Iterator[Task]:
    server = Server.create_local_server()
    info = TaskInfo("worker", 0, 0, "here", 1, server.address, "CPU:0", 1)
    task = Task(info, (info,), server, server.keys, "agents")
    tasks.set_current(task)
    yield task
    tasks.set_current(None)
    task.close()


@pytest.fixture
def agent(task: Task) -> Iterator[Agent]:
    one = Agent(task)
    yield one
    one.parameters.close()


@pytest.fixture
def client(task: Task, agent: Agent) -> Iterator[Peer]:
    with Peer(task.server.address, task.keys, name=task.name) as one:
        yield one
