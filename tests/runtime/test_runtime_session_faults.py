"""When something fails in a session: the first error is raised, all end the step, and the next one works."""

from __future__ import annotations

import signal
import socket
import threading
import time

import numpy as np
import pytest
from runtime_tasks import ONE, PS, TWO, Gate, Put, Tasks, all_ways, begin, executor_threads
from waiting import PATIENCE, limit, until

from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    UnavailableError,
)
from nbdist.graph.ops.tokens import TokenQueue
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, Tensor, Variable, constant, placeholder
from nbdist.runtime.server import Server
from nbdist.runtime.session import dispatch, executor
from nbdist.wire.rpc import client
from nbdist.wire.rpc.server import Listener

PLACES = (PS, ONE, TWO)


def chain() -> tuple[Tensor, Tensor, Tensor]:
    """Return a feed, which of the three tasks fails (-1: none), and a sum that goes through all of them."""
    x, broken = placeholder(np.float64, (), name="x"), placeholder(np.int64, (), name="broken")
    total: Tensor = x
    for n, place in enumerate(PLACES):
        with device(place):
            regular = np.where(np.equal(broken, n), np.zeros((2, 2)), np.eye(2))
            total = total + 1 + 0 * np.sum(np.linalg.inv(regular))
    for n, place in enumerate(PLACES):
        with device(place):
            total = total * 10 + n
    return x, broken, total


@all_ways
def test_an_error_names_op_device_and_line_and_the_next_step_works(graph: Graph, tasks: Tasks) -> None:
    x, broken, total = chain()
    with tasks.session() as session:
        for step in range(12):
            which = step % 4 - 1
            if which < 0:
                assert session.run(total, {x: float(step), broken: which}) == (step + 3) * 1000 + 12
                continue
            with pytest.raises(InvalidArgumentError) as caught:
                session.run(total, {x: float(step), broken: which})
            job, task = PLACES[which].strip("/").split("/")
            for words in ("LinAlgError at 'inv", f"{__file__}:", f"/{job}/replica:0/{task}/device:CPU:0"):
                assert words in str(caught.value)
            assert "Singular matrix" in str(caught.value)
        assert len(executor_threads()) <= 3  # the same executors all along


@all_ways
def test_a_task_that_waits_for_a_failed_one_gets_its_error(graph: Graph, tasks: Tasks) -> None:
    x = placeholder(np.float64, (2, 2), name="x")
    counts = []
    with device(PS):
        bad = np.linalg.inv(x)
    for place in (ONE, TWO):
        with device(place):
            count = Variable(0.0, name=f"count {place[-1]}".replace(" ", ""))
            counts.append(count)
    with device(TWO):
        y = counts[1].assign_add(np.sum(bad))
    with tasks.session() as session, tasks.session() as other:
        begin(session)
        for _ in range(3):
            begun = time.monotonic()
            with pytest.raises(InvalidArgumentError, match="Singular"):
                session.run(y, {x: np.zeros((2, 2))})
            assert time.monotonic() - begun < limit(2)
            assert other.run(counts[1]) == 0  # what waited has not run
        assert session.run(y, {x: np.eye(2)}) == 2


def test_a_sender_that_waits_for_room_in_a_pipe_ends_with_the_step(
    graph: Graph, tasks: Tasks, gate: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "ABORT_SECONDS", 0.5)
    busy, failing = Gate(), Gate()
    with device(PS):
        values = [Variable(np.full(480, float(n)), name=f"v{n}") for n in range(60)]  # more than a pipe holds
    with device(TWO):
        total = sum((v * 1.0 for v in values), gate(constant(np.zeros(480)) * 1, busy))
    with device(ONE):
        bad = np.linalg.inv(gate(constant(np.ones((2, 2))) * 1, failing))
    with tasks.session() as session:
        begin(session)
        (on_ps,) = (one for one in threading.enumerate() if one.name.startswith("nbdist session on /job:ps"))
        opener = threading.Thread(target=lambda: busy.reached.wait(PATIENCE) and failing.open())
        opener.start()
        with pytest.raises(InvalidArgumentError, match="Singular"):
            session.run([total, bad])
        opener.join()
        on_ps.join(PATIENCE)  # it has received that the session gave up that step, and its executors
        assert not on_ps.is_alive()
        busy.open()
        np.testing.assert_array_equal(session.run(total), np.full(480, 59 * 30.0))


def interrupt_when(gate: Gate) -> threading.Thread:
    """Interrupt the main thread, as ctrl-C does, once a gate is reached."""

    def wait() -> None:
        assert gate.reached.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("isolate", [False, True])
@all_ways
@pytest.mark.slow
def test_an_interrupt_in_a_long_step(
    graph: Graph, tasks: Tasks, gate: Put, isolate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isolate or tasks.transport == "socket":  # one waits as long as users do
        monkeypatch.setattr(dispatch, "INTERRUPT_SECONDS", 0.1)
    with device(PS):
        w = Variable(1.0, name="w")
    with device(TWO):
        gates = [Gate(), Gate()]
        long = [gate(w * 2, one) + 1 for one in gates]
    with device(ONE):
        waiting = [one + 1 for one in long]
    with tasks.session(isolate=isolate) as session:
        begin(session)
        session.run(w.assign(3.0))
        for n in range(2):
            helper = interrupt_when(gates[n])
            begun = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                session.run(waiting[n])
            assert time.monotonic() - begun < limit(5)
            helper.join()
            assert session.run(w) == 3  # while the task is busy still
        gates[0].open()
        assert session.run(waiting[0]) == 8


@all_ways
def test_a_session_that_is_closed_in_the_middle_of_a_step(graph: Graph, tasks: Tasks, gate: Put) -> None:
    one = Gate()
    with device(TWO):
        long = gate(constant(1.0) * 2, one)
    with device(ONE):
        waiting = long + 1
    session = tasks.session()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            session.run(waiting)
        except NbdistError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert one.reached.wait(PATIENCE)
    session.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert isinstance(errors[0], AbortedError)
    assert "the session was closed" in str(errors[0])
    with pytest.raises(FailedPreconditionError, match="closed"):
        session.run(waiting)
    one.open()
    until(lambda: executor_threads() == [])


@all_ways
def test_a_server_that_is_closed_in_the_middle_of_a_step(
    graph: Graph, tasks: Tasks, gate: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_SECONDS", 0.2)
    with device(PS):
        w = Variable(1.0, name="w")
    one = Gate()
    with device(ONE):
        slow = gate(w * 1, one)
    with device(TWO):
        y = slow + 1  # waits for it, in the middle of the step
        alone = constant(2.0) * 3
    with tasks.session() as session, tasks.session(target=tasks["ps0"].target) as other:
        begin(session)
        closer = threading.Thread(target=lambda: one.reached.wait(PATIENCE) and tasks["worker1"].close())
        closer.start()
        opener = threading.Thread(target=lambda: closer.join() or one.open())
        opener.start()
        with pytest.raises(UnavailableError) as caught:
            session.run(y)
        opener.join()
        for words in ("/job:worker/task:1 (pid ", " on ", "make a new session and "):
            assert words in str(caught.value)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="/job:worker/task:1"):
                session.run(alone)  # and so does what is new
            assert session.run(slow) == 1  # what does not need it continues
            assert other.run(w) == 1


@all_ways
def test_a_task_that_was_started_again_is_another(graph: Graph, tasks: Tasks) -> None:
    with device(TWO):
        w = Variable(1.0, name="w")
    with tasks.session() as session:
        begin(session)
        old = tasks["worker1"]
        old.close()
        again = Server(old.cluster, "worker", 1, keys=tasks.keys)
        tasks.servers["worker1"] = again
        with pytest.raises(UnavailableError, match="/job:worker/task:1"):
            session.run(w)
        for _ in range(2):
            with pytest.raises(
                AbortedError, match=r"/job:worker/task:1 was started again.*make a new session"
            ):
                session.run(w)
        with tasks.session() as new:
            with pytest.raises(FailedPreconditionError, match="'w'"):
                new.run(w)
            begin(new)
            assert new.run(w) == 1


@pytest.mark.parametrize("by", ["messages", "the next executor"])
@all_ways
def test_a_late_part_of_a_step_that_was_given_up_changes_nothing(
    graph: Graph, tasks: Tasks, gate: Put, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "messages":
        monkeypatch.setattr(dispatch, "ABORT_SECONDS", 2 * executor.LOOK_AFTER)
    else:
        monkeypatch.setattr(dispatch, "ABORT_SECONDS", 0.0)
        monkeypatch.setattr(executor, "LOOK_AFTER", float("inf"))
    slow, failing = Gate(), Gate()
    with device(TWO):
        v, chained = Variable(np.zeros(3), name="v"), Variable(np.zeros(3), name="chained")
        queue = TokenQueue(name="tokens")
        x = gate(constant(np.arange(3)) * 1, slow)
        late = [v.assign_add(x * 1.0), chained.assign(np.tanh(x * 2.0) + 1), queue.enqueue_many(x)]
        tokens = queue.size()
    with device(ONE):
        bad = np.linalg.inv(gate(constant(np.zeros((2, 2))) * 1, failing))
    with tasks.session() as session, tasks.session() as other:
        begin(session)
        opener = threading.Thread(target=lambda: slow.reached.wait(PATIENCE) and failing.open())
        opener.start()
        with pytest.raises(InvalidArgumentError, match="Singular"):
            session.run([*late, bad])
        opener.join()
        executors = [one for one in threading.enumerate() if one.name.startswith("nbdist session")]
        if by == "the next executor":
            np.testing.assert_array_equal(session.run(v), np.zeros(3))
        slow.open()
        until(lambda: not any(one.is_alive() for one in executors))
        *found, put = other.run([v, chained, tokens])
        np.testing.assert_array_equal(found, np.zeros((2, 3)))
        assert put == 0


def test_the_next_steps_may_use_the_port_of_abandoned_ones(
    graph: Graph, tasks: Tasks, gate: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may assign the port of a closed receiver again: the new executors still change variables."""
    monkeypatch.setattr(dispatch, "ABORT_SECONDS", 0.0)
    bind, ports = Listener._bind, []

    def bind_the_first_port_again(listener: Listener, host: str, port: int) -> int:
        mine = threading.current_thread() is threading.main_thread()
        until(lambda: not (mine and ports) or free(ports[0]))
        bound = bind(listener, host, ports[0] if mine and ports else port)
        if mine:
            ports.append(bound)
        return bound

    def free(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    slow = Gate()
    with device(TWO):
        v = Variable(0.0, name="v")
        late = v.assign_add(gate(constant(1.0) * 1, slow))
    with device(ONE):
        bad = np.linalg.inv(constant(np.zeros((2, 2))) * 1)
    with tasks.session() as session, tasks.session() as other:
        begin(other)
        monkeypatch.setattr(Listener, "_bind", bind_the_first_port_again)
        with pytest.raises(InvalidArgumentError, match="Singular"):
            session.run([late, bad])
        assert session.run(v.assign_add(2.0)) == 2
        slow.open()
        assert ports == [ports[0]] * 2
