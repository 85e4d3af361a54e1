"""What a session waits for, and what a task refuses: absent tasks, other keys, invalid pieces."""

from __future__ import annotations

import signal
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest
from runtime_tasks import PS, TWO, Tasks, begin, executor_threads, one_way, open_tasks
from waiting import limit, until

from nbdist.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotAllowedError,
)
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, Variable
from nbdist.runtime.server import Server
from nbdist.runtime.session import cluster, dispatch
from nbdist.runtime.session.session import Session
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer


def held_port(address: str) -> socket.socket:
    """Return a socket that keeps a free port from other processes, and accepts nothing."""
    host, _, port = address.rpartition(":")
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, int(port)))
    return held


@pytest.mark.slow
def test_a_task_that_is_not_there_is_waited_for_and_named(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "REPORT_EVERY", 0.3)
    tasks = open_tasks(workers=2, ps=1)
    closed = tasks["worker1"]
    closed.close()
    held = held_port(closed.address)
    said: list[str] = []
    with device(PS):
        w = Variable(1.0, name="w")
    try:
        with tasks.session(report=said.append, timeout=0.5) as session:  # does not need it
            begin(session)
            assert session.run(w) == 1
            with device("/job:worker"):  # any worker
                assert session.run(w * 2) == 2
            assert said == []
            with device(TWO):
                y = w * 2
            begun = time.monotonic()
            with pytest.raises(DeadlineExceededError) as caught:
                session.run(y)
            assert 0.5 <= time.monotonic() - begun < limit(4)
            for words in (
                f"/job:worker/task:1 at {closed.address}",
                "within 0.5 s",
                "see whether its process",
            ):
                assert words in str(caught.value)
            assert said
            assert f"waiting for /job:worker/task:1 at {closed.address}" in said[0]
        with pytest.raises(DeadlineExceededError, match="/job:worker/task:1"):
            tasks.session(report=said.append, timeout=0.2)  # its graph needs it now
        held.close()
        helper = threading.Thread(
            target=lambda: (
                until(lambda: len(said) > 1)
                and tasks.servers.update(worker1=Server(closed.cluster, "worker", 1, keys=tasks.keys))
            )
        )
        del said[1:]
        helper.start()
        with tasks.session(report=said.append, timeout=20.0) as session:  # it comes late
            assert session.run(y) == 2
        helper.join()
    finally:
        held.close()
        for server in tasks.servers.values():
            server.close()


def test_other_keys_are_refused(graph: Graph, tasks: Tasks) -> None:
    begun = time.monotonic()
    for call in (Session, Session.reset):
        with pytest.raises(
            NotAllowedError, match="rejected the cluster key, or is not a task of this cluster"
        ):
            call(tasks.target, keys=ClusterKeys.create())
    assert time.monotonic() - begun < limit(5)


HOSTILE: list[Any] = [
    {},
    {"device": "x", "graph": {}, "order": [], "feeds": [], "fetches": [], "executors": {}},
    {"graph": {"format": 10**9, "nbdist": "x"}},
    {"device": "/job:ps", "graph": None, "order": None},
    {"graph": {"format": 1, "nbdist": "0", "columns": {}, "types": ["__import__"]}},
]


@pytest.mark.parametrize("garbage", HOSTILE, ids=range(len(HOSTILE)))
@one_way
def test_a_piece_that_is_none_raises_at_its_sender_only(
    graph: Graph, tasks: Tasks, garbage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device(PS):
        w = Variable(1.0, name="w")
    with tasks.session(target=tasks["worker1"].target) as hostile, tasks.session() as other:
        begin(other)
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "pack_piece", lambda piece, executors: (garbage, [np.zeros(3)]))
            with pytest.raises((DataLossError, FailedPreconditionError)):
                hostile.run(w)
        assert other.run(w) == 1
        assert hostile.run(w) == 1
    until(lambda: tasks["ps0"].sessions.store.used() == 8)


def test_a_malformed_request_for_an_executor_is_refused(tasks: Tasks) -> None:
    ps = tasks["ps0"]
    address = {"host": "h", "bell": "", "socket": "127.0.0.1:1"}
    good = {
        "client": address, "dispatcher": "d", "device": "/job:ps/replica:0/task:0/device:CPU:0",
        "session": "s", "isolate": "", "transport": "auto", "incarnation": ps.incarnation, "resets": 0,
    }  # fmt: skip
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({}, DataLossError),
        (good | {"client": 3}, DataLossError),
        (good | {"client": {"host": "h"}}, InvalidArgumentError),
        (good | {"isolate": None}, DataLossError),
        (good | {"session": None}, DataLossError),
        (good | {"dispatcher": 1}, DataLossError),
        (good | {"transport": "pigeon"}, DataLossError),
        (good | {"more": 1}, DataLossError),
        (good | {"resets": True}, DataLossError),
        (good | {"device": "/job:ps/replica:0/task:0/device:GPU:0"}, InvalidArgumentError),
        (good | {"incarnation": 1}, AbortedError),
        (good | {"client": address | {"bell": "../../etc/passwd", "host": ps.sessions.config.host_identity}},
         NbdistError),
    ]  # fmt: skip
    with Peer(ps.address, tasks.keys) as peer:
        for meta, kind in wrong:
            with pytest.raises(kind):
                peer.call("session.open", meta)
        until(lambda: executor_threads() == [])  # one that fails says so before it ends


def test_waiting_for_a_task_can_be_interrupted(
    graph: Graph, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "REPORT_EVERY", 0.1)
    tasks["worker1"].close()
    with device(PS):
        w = Variable(1.0, name="w")

    def interrupt(line: str) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with held_port(tasks["worker1"].address), tasks.session(report=interrupt) as session:
        begin(session)
        with device(TWO):
            y = w * 2
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            session.run(y)
        assert time.monotonic() - begun < limit(3)
        assert session.run(w) == 1
