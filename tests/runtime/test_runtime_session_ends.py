"""Sessions side by side, and their ends: nothing stays of one that is closed, forgotten or killed."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_tasks import ONE, PS, TWO, Gate, Put, Tasks, all_ways, begin, executor_threads
from tiers import matrix
from waiting import PATIENCE, until

from nbdist.graph.op import OPS, Op
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, Variable, constant, placeholder, record
from nbdist.runtime.session import session as session_thread
from nbdist.wire.channel.sender import MessageSender
from nbdist.wire.shm import remove_all


def descriptors() -> list[str]:
    """Return what this process has open."""
    return os.listdir("/proc/self/fd")


def shared_files(tasks: Tasks) -> list[str]:
    prefixes = tuple(server.sessions.config.prefix for server in tasks.servers.values())
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(prefixes)]


def use(tasks: Tasks, **options: Any) -> None:
    """Use a session for all that a session does."""
    with Graph().as_default():
        x = placeholder(np.float64, (None,), name="x")
        with device(PS):
            w = Variable(np.zeros(5000), name="w")
        with device(TWO):
            y = w + x
        with device(ONE):
            z = np.sum(y)
        with tasks.session(**options) as session:
            begin(session)
            for n in range(3):
                assert session.run(z, {x: np.full(5000, float(n))}) == 5000 * n


@all_ways
def test_nothing_is_left_of_a_session(tasks: Tasks) -> None:
    use(tasks)  # ZeroMQ opens some things once
    until(lambda: executor_threads() == [])
    before = threading.active_count(), len(descriptors())
    for isolate in (False, True) * 2:
        use(tasks, isolate=isolate)
    until(lambda: executor_threads() == [])
    until(lambda: shared_files(tasks) == [])
    until(lambda: threading.active_count() <= before[0])
    until(lambda: len(descriptors()) <= before[1])  # memory that was shared is among them
    assert tasks["ps0"].sessions.store.names() == ["w"]


@all_ways
def test_a_garbage_collected_session_leaves_nothing(graph: Graph, tasks: Tasks) -> None:
    with device(PS):
        w = Variable(1.0, name="w")
    session = tasks.session()
    begin(session)
    assert len(executor_threads()) == 1
    del session, w
    gc.collect()
    until(lambda: executor_threads() == [])
    until(lambda: shared_files(tasks) == [])


@all_ways
def test_two_sessions_run_on_one_task_at_the_same_time(graph: Graph, tasks: Tasks, gate: Put) -> None:
    gates = [Gate(), Gate()]
    with device(TWO):
        values = [gate(constant(float(n)) * 2, one) for n, one in enumerate(gates)]
    found: list[Any] = []

    def work(n: int) -> None:
        with tasks.session(graph) as session:
            found.append(session.run(values[n]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for one in gates:
        assert one.reached.wait(PATIENCE)  # both, before either is opened
    for one in gates:
        one.open()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 2]


@all_ways
def test_what_does_not_depend_on_each_other_runs_at_the_same_time(
    graph: Graph, tasks: Tasks, gate: Put
) -> None:
    gates = [Gate(), Gate()]
    values = []
    for place, one in zip((PS, TWO), gates, strict=True):
        with device(place):
            values.append(gate(constant(1.0) * 2, one))
    with device(ONE):
        total = values[0] + values[1]

    def open_both() -> None:
        for one in gates:
            assert one.reached.wait(PATIENCE)  # both, before either is opened
        for one in gates:
            one.open()

    opener = threading.Thread(target=open_both)
    opener.start()
    with tasks.session() as session:
        assert session.run(total) == 4
    opener.join()


@all_ways
def test_one_session_runs_in_several_threads_at_once(graph: Graph, tasks: Tasks, gate: Put) -> None:
    gates = [Gate(), Gate()]
    x = placeholder(np.float64, (), name="x")
    with device(PS):
        w = Variable(1.0, name="w")
        held = [gate(w * 1, one) for one in gates]
    with device(TWO):
        slow = [value + x for value in held]
        y = w * x
    found: list[Any] = []
    with tasks.session() as session:
        begin(session)

        def work(n: int) -> None:
            found.append(session.run(slow[n], {x: float(n)}))
            for step in range(20):
                assert session.run(y, {x: step + n / 2}) == step + n / 2

        threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for one in gates:
            assert one.reached.wait(PATIENCE)
        assert session.run(y, {x: 5.0}) == 5  # the third, at the same time
        for one in gates:
            one.open()
        for thread in threads:
            thread.join()
        assert sorted(found) == [1, 2]
    until(lambda: executor_threads() == [])


def test_a_task_runs_its_own_part_on_the_callers_thread(graph: Graph, tasks: Tasks) -> None:
    names: dict[int, str] = {}

    def note(xp: Any, x: Any, number: int) -> Any:
        names[number] = threading.current_thread().name
        return x.copy()

    OPS["note"] = Op("note", forward=note, spec=lambda x, number: x)
    try:
        x = placeholder(np.float64, (), name="x")
        fetches = []
        for number, place in enumerate((ONE, TWO)):
            with device(place):
                fetches.append(record("note", x * 1, number=number))
        with tasks.session() as session:
            session.run(fetches, {x: 1.0})
    finally:
        del OPS["note"]
    assert names[0] == threading.current_thread().name
    assert names[1].startswith("nbdist session on /job:worker/task:1")


@pytest.mark.parametrize("transport", ["auto", "socket"])
def test_the_transport_is_the_one_that_was_asked_for(
    tasks: Tasks, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: set[str] = set()
    send = MessageSender.send

    def noting(sender: MessageSender, *given: Any, **more: Any) -> None:
        kinds.add(sender.kind)
        send(sender, *given, **more)

    monkeypatch.setattr(MessageSender, "send", noting)
    use(tasks, transport=transport)
    assert kinds == {"shared memory" if transport == "auto" else "socket"}


def test_only_so_many_plans_stay_ready(graph: Graph, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_thread, "MOST_PLANS", 3)
    with device(PS):
        w = Variable(np.ones(1000), name="w")
        steps = [np.sum(w * n) for n in range(8)]
    with tasks.session() as session:
        begin(session)
        for _ in range(2):
            for n, step in enumerate(steps):
                assert session.run(step) == 1000 * n
        store = tasks["ps0"].sessions.store
        until(lambda: store.used() <= 8000 + 3 * 8192)
        assert len(store._taken) <= 3
    until(lambda: store.used() == 8000)


CLIENT = """
import json, sys, threading
import numpy as np
import nbdist as nb
from nbdist.wire.keys import ClusterKeys
said = json.loads(sys.stdin.readline())
with nb.device("/job:ps"):
    w = nb.Variable(np.zeros(5000), name="w")
with nb.device("/job:worker/task:1"):
    y = w * 2
keys = ClusterKeys.from_dict(said["keys"])
session = nb.Session(said["target"], keys=keys, isolate=said["isolate"], transport=said["transport"])
session.run(nb.global_variables_initializer())
session.run(y)
print("ready", flush=True)
if said["busy"]:
    while True:
        session.run(y)
threading.Event().wait()
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("transport", "busy", "isolate"),
    matrix(
        [("auto", True, True), ("socket", False, False)],
        rest=[
            ("auto", False, False),
            ("auto", False, True),
            ("auto", True, False),
            ("socket", False, True),
            ("socket", True, False),
            ("socket", True, True),
        ],
    ),
)
def test_a_client_that_is_killed_leaves_no_thread_and_no_isolated_variable(
    tasks: Tasks, busy: bool, isolate: bool, transport: str
) -> None:
    command, pipe = [sys.executable, "-c", CLIENT], subprocess.PIPE
    client = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert client.stdin is not None
    assert client.stdout is not None
    try:
        said = {
            "target": tasks.target, "keys": tasks.keys.to_dict(), "busy": busy, "isolate": isolate,
            "transport": transport,
        }  # fmt: skip
        client.stdin.write(json.dumps(said) + "\n")
        client.stdin.flush()
        assert client.stdout.readline() == "ready\n"
        assert len(executor_threads()) == 2
        client.send_signal(signal.SIGKILL)
        client.wait(10)
        until(lambda: executor_threads() == [])
        assert tasks.variables() == (set() if isolate else {"w"})
        use(tasks)
    finally:
        client.kill()
        client.communicate()
        for server in tasks.servers.values():
            remove_all(server.sessions.config.prefix)  # what the client had no time to
