"""Accumulators and queues of tokens in a graph: their rules, what they share, and how waiting ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from runtime_tasks import ONE, PS, TWO, WAYS, Tasks, all_ways, begin, interrupted_when, one_way
from tiers import matrix
from waiting import PATIENCE, limit

from nbdist.errors import (
    AbortedError,
    DeadlineExceededError,
    InvalidArgumentError,
    NbdistError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.graph.ops.accumulators import ConditionalAccumulator, SparseConditionalAccumulator
from nbdist.graph.ops.tokens import TokenQueue
from nbdist.graph.placement import replica_device_setter
from nbdist.graph.scopes import container, device
from nbdist.graph.sparse import IndexedSlices
from nbdist.graph.tensor import Graph, Tensor, Variable, constant, placeholder
from nbdist.runtime.session import store
from nbdist.runtime.session.session import Session
from nbdist.runtime.session.store import Waiting


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when an op waits."""
    reached = threading.Event()
    plain = Waiting.until

    def until_noted(waiting: Waiting, shared: Any, attempt: Any, *given: Any, **more: Any) -> Any:
        def noting(state: Any) -> Any:
            found = attempt(state)
            if found is None:
                reached.set()
            return found

        return plain(waiting, shared, noting, *given, **more)

    monkeypatch.setattr(Waiting, "until", until_noted)
    return reached


class Running:
    """A run on a thread of its own."""

    def __init__(self, session: Session, fetch: Any) -> None:
        self.value: Any = None
        self.error: BaseException | None = None

        def work() -> None:
            try:
                self.value = session.run(fetch)
            except NbdistError as error:
                self.error = error

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def end(self, limit: float = 5.0) -> Running:
        self._thread.join(limit + PATIENCE)
        assert not self._thread.is_alive(), f"no end within {limit} s"
        return self


def test_taking_gives_the_mean_of_all(graph: Graph) -> None:
    """Fact 6."""
    for reduction, expected in (("MEAN", 15), ("SUM", 30)):
        accumulator = ConditionalAccumulator(np.float32, (), reduction)
        step = placeholder(np.int64, ())
        value = placeholder(np.float32, ())
        apply, take, count = (
            accumulator.apply_grad(value, step), accumulator.take_grad(1), accumulator.num_accumulated()
        )  # fmt: skip
        with Session() as session:
            assert session.run(apply, {value: 10.0, step: 0})
            assert session.run(apply, {value: 20.0, step: 0})
            assert session.run(count) == 2
            taken = session.run(take)
            assert (taken, taken.dtype) == (expected, np.float32)
            assert session.run(count) == 0
            assert not session.run(apply, {value: 1.0, step: 0})
            assert session.run([count, accumulator.num_dropped()]) == [0, 1]
            assert session.run(apply, {value: 7.0, step: 1})
            assert session.run(take) == 7
            session.run(accumulator.set_global_step(9))
            assert not session.run(apply, {value: 7.0, step: 8})
            assert session.run(apply, {value: 7.0, step: 9})


def test_rows(graph: Graph) -> None:
    accumulator = SparseConditionalAccumulator(np.float64, (6, 2))
    first = accumulator.apply_grad([1, 3], [[2.0, 2.0], [4.0, 4.0]])
    second = accumulator.apply_indexed_slices_grad(
        IndexedSlices(constant([[8.0, 8.0]]), constant(np.array([3])), (6, 2))
    )
    with Session() as session:
        assert session.run([first, second]) == [True, True]
        assert session.run(first)
        taken = session.run(accumulator.take_indexed_slices_grad(2))
        assert taken.indices.tolist() == [1, 3]
        np.testing.assert_allclose(taken.values, [[2, 2], [16 / 3, 16 / 3]])
        assert not session.run(first)
        assert session.run(accumulator.num_dropped()) == 1


def test_ops_of_a_step_come_in_order_of_creation(graph: Graph) -> None:
    accumulator = ConditionalAccumulator(np.float64)
    given = [accumulator.apply_grad(n) for n in range(3)]
    before = accumulator.num_accumulated()
    taken = accumulator.take_grad(3)
    after = accumulator.num_accumulated()
    with Session() as session:
        assert session.run([after, taken, before, *given]) == [0, 1.0, 3, True, True, True]
        assert session.run(given[0]) == False  # noqa: E712  # a NumPy bool


def test_what_does_not_fit_is_refused(graph: Graph) -> None:
    accumulator = ConditionalAccumulator(np.float32, (2,), name="acc")
    for gradient, step, words in (
        (np.zeros(3), 0, r"a gradient \(3,\) float32 does not fit an accumulator \(2,\) float32"),
        (constant(np.zeros(2)), 0, r"a gradient \(2,\) float64 does not fit"),
        (np.zeros(2), 0.5, "a step or a row is a whole number, got 0.5"),
        (np.zeros(2), [1, 2], "a step is one whole number"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            accumulator.apply_grad(gradient, step)
    with pytest.raises(InvalidArgumentError, match="take at least 1 gradient, got 0"):
        accumulator.take_grad(0)
    with pytest.raises(InvalidArgumentError, match="no reduction_type 'MAX'; choose from MEAN, SUM"):
        ConditionalAccumulator(np.float32, (), "MAX")
    with pytest.raises(InvalidArgumentError, match="gradients of int64 have no MEAN"):
        ConditionalAccumulator(np.int64)
    with pytest.raises(InvalidArgumentError, match="a single number has no rows"):
        SparseConditionalAccumulator(np.float32)
    rows = SparseConditionalAccumulator(np.float32, (4, 2))
    with pytest.raises(InvalidArgumentError, match="2 rows have"):
        rows.apply_grad([1], np.zeros((2, 2)))
    with pytest.raises(InvalidArgumentError, match="does not fit"):
        rows.apply_grad([1], np.zeros((1, 3)))


@one_way
def test_sessions_share_it_and_different_graphs_get_an_error(tasks: Tasks) -> None:
    def built(shape: tuple[int, ...]) -> tuple[Graph, Tensor, Tensor]:
        with Graph().as_default() as graph, device(PS):
            accumulator = ConditionalAccumulator(np.float64, shape, name="shared")
            with device(ONE):
                gradient = constant(np.full(shape, 4.0)) * 2
            return graph, accumulator.apply_grad(gradient), accumulator.take_grad(2)

    (one, apply, _), (two, again, take), (other, odd, _) = built((3,)), built((3,)), built((4,))
    with tasks.session(one) as session, tasks.session(two) as second, tasks.session(other) as third:
        assert session.run(apply)
        assert second.run(again)
        np.testing.assert_array_equal(second.run(take), [8.0] * 3)
        with pytest.raises(
            InvalidArgumentError,
            match=r"'shared' in container 'ps' is an accumulator \(MEAN\) of \(3,\) float64",
        ):
            third.run(odd)


def test_it_lives_in_a_container_and_a_setter_places_it(graph: Graph, tasks: Tasks) -> None:
    with device(replica_device_setter(ps_tasks=1, worker_device=ONE)), container("apart"):
        accumulator, queue = ConditionalAccumulator(np.float64), TokenQueue()
    assert accumulator.handle.device == queue.handle.device == PS
    with tasks.session() as session, tasks.session(isolate=True) as alone:
        session.run(accumulator.apply_grad(1.0))
        assert session.run(accumulator.num_accumulated()) == 1
        assert alone.run(accumulator.num_accumulated()) == 0
        assert session.plan(accumulator.num_accumulated()).placement[accumulator.name].startswith("/job:ps")
    Session.reset(tasks.target, ["apart"], keys=tasks.keys)
    with tasks.session() as session:
        assert session.run(accumulator.num_accumulated()) == 0


def test_what_is_collected_counts_as_memory(graph: Graph, tasks: Tasks) -> None:
    store = tasks["ps0"].sessions.store
    store.limit = 20_000
    with device(PS):
        accumulator = ConditionalAccumulator(np.float64, (1000,))
    with tasks.session() as session:
        apply = accumulator.apply_grad(np.ones(1000))
        session.run(apply)
        session.run(apply)
        before = store.used()
        with pytest.raises(ResourceExhaustedError, match="a gradient in 'conditional_accumulator'"):
            session.run(apply)
        assert store.used() <= store.limit
        session.run(accumulator.take_grad(1))
        assert store.used() == before - 16_000


# Waiting


def waiting_ops() -> list[Tensor]:
    """Return ops that wait on the parameter server, for others to bring something."""
    with device(PS):
        accumulator = ConditionalAccumulator(np.float64, name="acc")
        rows = SparseConditionalAccumulator(np.float64, (3, 1), name="rows")
        queue = TokenQueue()
        step = Variable(np.int64(0), name="step")
    return [accumulator.take_grad(2), rows.take_grad(1).indices, queue.dequeue(step), queue.join(ONE)]


def wait_and_way(which: int, way: ParameterSet) -> ParameterSet:
    return pytest.param(which, *way.values, marks=way.marks, id=f"{which}-{way.id}")


each_wait = pytest.mark.parametrize("which", range(4))
each_wait_each_way = pytest.mark.parametrize(
    ("which", "tasks"),
    matrix(
        [*(wait_and_way(which, WAYS[0]) for which in range(4)), wait_and_way(2, WAYS[1])],
        rest=[wait_and_way(n, way) for way in WAYS[1:] for n in range(4) if (n, way) != (2, WAYS[1])],
    ),
    indirect=["tasks"],
)
"""All waits through shared memory, and one over sockets: what ends them comes the same way."""


@each_wait_each_way
def test_a_wait_ends_with_the_session(graph: Graph, tasks: Tasks, waits: threading.Event, which: int) -> None:
    op = waiting_ops()[which]
    session, other = tasks.session(), tasks.session()
    begin(session)
    run = Running(session, op)
    assert waits.wait(PATIENCE)
    assert other.run(constant(2.0) * 3) == 6  # no other session waits
    begun = time.monotonic()
    session.close()
    assert isinstance(run.end().error, AbortedError)
    assert time.monotonic() - begun < limit(2)
    other.close()


@each_wait
def test_a_wait_ends_with_a_session_of_the_very_task(
    graph: Graph, tasks: Tasks, waits: threading.Event, which: int
) -> None:
    """There is only the caller's own thread to raise it in."""
    op = waiting_ops()[which]
    session = tasks.session(target=tasks["ps0"].target)
    begin(session)
    run = Running(session, op)
    assert waits.wait(PATIENCE)
    session.close()
    assert isinstance(run.end(2).error, AbortedError)


@each_wait
def test_a_wait_ends_with_a_session_of_this_process(graph: Graph, waits: threading.Event, which: int) -> None:
    with device(None):
        op = waiting_here()[which]
    session = Session()
    begin(session)
    run = Running(session, op)
    assert waits.wait(PATIENCE)
    session.close()
    assert isinstance(run.end(2).error, AbortedError)


def waiting_here() -> list[Tensor]:
    accumulator, queue = ConditionalAccumulator(np.float64, name="acc"), TokenQueue()
    rows = SparseConditionalAccumulator(np.float64, (3, 1), name="rows")
    return [accumulator.take_grad(2), rows.take_grad(1).indices, queue.dequeue(), queue.join("")]


@each_wait_each_way
def test_a_wait_ends_with_a_reset(graph: Graph, tasks: Tasks, waits: threading.Event, which: int) -> None:
    op = waiting_ops()[which]
    with tasks.session() as session:
        begin(session)
        run = Running(session, op)
        assert waits.wait(PATIENCE)
        Session.reset(tasks.target, keys=tasks.keys)
        assert "reset" in str(run.end(2).error)
        assert isinstance(run.error, AbortedError)


@each_wait_each_way
def test_a_wait_ends_with_its_task(graph: Graph, tasks: Tasks, waits: threading.Event, which: int) -> None:
    op = waiting_ops()[which]
    with tasks.session() as session:
        begin(session)
        run = Running(session, op)
        assert waits.wait(PATIENCE)
        tasks["ps0"].close()
        assert isinstance(run.end(3).error, UnavailableError)


@each_wait_each_way
@pytest.mark.parametrize("target", ["worker0", "ps0"])
def test_a_wait_is_interrupted(
    graph: Graph, tasks: Tasks, waits: threading.Event, which: int, target: str
) -> None:
    op = waiting_ops()[which]
    with tasks.session(target=tasks[target].target) as session:
        begin(session)
        begun = time.monotonic()
        with interrupted_when(waits):
            session.run(op)
        assert time.monotonic() - begun < limit(3)
        assert session.run(constant(2.0) * 3) == 6


@each_wait_each_way
def test_a_wait_ends_with_an_error_elsewhere(
    graph: Graph, tasks: Tasks, waits: threading.Event, which: int
) -> None:
    op = waiting_ops()[which]
    x = placeholder(np.float64, (2, 2))
    with device(TWO):
        bad = np.linalg.inv(x)
    with tasks.session() as session:
        begin(session)
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises(InvalidArgumentError, match="Singular"):
                session.run([op, bad], {x: np.zeros((2, 2))})
            assert time.monotonic() - begun < limit(2)


@pytest.mark.parametrize(
    ("which", "words"),
    [
        (0, ["0 of 2 gradients of step 0 are there", "'acc/accumulator_take'"]),
        (1, ["0 of 1 gradients of step 0"]),
        (2, ["/job:ps/task:0 waits for a token"]),
        (3, ["the chief has not begun the training"]),
    ],
)
@one_way
def test_a_wait_ends_at_the_operation_timeout(
    graph: Graph, tasks: Tasks, which: int, words: list[str]
) -> None:
    op = waiting_ops()[which]
    with tasks.session(operation_timeout=0.2) as session:
        begin(session)
        begun = time.monotonic()
        with pytest.raises(DeadlineExceededError, match=r"nothing arrived within 0\.2 s") as caught:
            session.run(op)
        assert time.monotonic() - begun < limit(2)
        assert all(one in str(caught.value) for one in words), caught.value
        assert session.run(constant(2.0) * 3) == 6
    with pytest.raises(InvalidArgumentError, match="operation_timeout is in seconds above 0"):
        Session(operation_timeout=0)


def test_a_patient_one_waits_longer(graph: Graph, waits: threading.Event) -> None:
    accumulator = ConditionalAccumulator(np.float64)
    impatient, patient = accumulator.take_grad(1), accumulator.take_grad(1, patient=True)
    with Session(operation_timeout=0.05) as session:
        run = Running(session, patient)
        assert waits.wait(PATIENCE)
        with pytest.raises(DeadlineExceededError):
            session.run(impatient)
        session.run(accumulator.apply_grad(3.0))
        assert run.end().value == 3


@all_ways
def test_a_waiting_session_is_woken(
    graph: Graph, tasks: Tasks, waits: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, not when it looks the next time."""
    monkeypatch.setattr(store, "LOOK_EVERY", 10 * PATIENCE)
    with device(PS):
        queue = TokenQueue()
        accumulator = ConditionalAccumulator(np.float64)
    put, get = queue.enqueue_many([4, 5]), queue.dequeue()
    close, ends = queue.close(), accumulator.close()
    apply, take = accumulator.apply_grad(2.0), accumulator.take_grad(2)

    def woken(fetch: Tensor, by: Callable[[], object]) -> Running:
        waits.clear()
        run = Running(session, fetch)
        assert waits.wait(PATIENCE)
        begun = time.monotonic()
        by()
        run.end()
        assert time.monotonic() - begun < limit(1)
        return run

    with tasks.session() as session, tasks.session() as other:
        other.run([queue.size(), accumulator.num_accumulated()])
        assert woken(get, lambda: other.run(put)).value == 4
        assert session.run(get) == 5
        other.run(apply)
        assert woken(take, lambda: other.run(apply)).value == 2
        assert isinstance(woken(get, lambda: other.run(close)).error, OutOfRangeError)
        assert isinstance(woken(take, lambda: other.run(ends)).error, OutOfRangeError)


@one_way
def test_all_waiting_replicas_get_the_error_of_an_aborted_chief(
    graph: Graph, tasks: Tasks, waits: threading.Event
) -> None:
    with device(PS):
        queue = TokenQueue("tokens")
        never = ConditionalAccumulator(np.float64).take_grad(1)
    start, serve, get = queue.begin(2), queue.serve(), queue.dequeue()
    for where in ("in a step", "between steps"):
        with tasks.session() as session:  # a session of an earlier beginning has no part in the next one
            chief = tasks.session()
            chief.run(start)
            run = Running(session, get)
            assert waits.wait(PATIENCE)
            waits.clear()
            if where == "in a step":
                serving = Running(chief, [serve, never])
                assert waits.wait(PATIENCE)
            else:
                chief.run(serve)
            chief.close()
            assert isinstance(run.end(2).error, AbortedError)
            assert "the chief, which serves 'tokens', was aborted: " in str(run.error)
            if where == "in a step":
                serving.end()
            waits.clear()


def test_waits_are_in_the_timeline(graph: Graph, tasks: Tasks) -> None:
    with device(PS):
        queue = TokenQueue()
    with tasks.session() as session:
        session.run(queue.enqueue_many([1]))
        _, timeline = session.trace(queue.dequeue())
    assert [span.kind for span in timeline.spans if "dequeue" in span.name] == ["wait"]


def test_what_waits_comes_after_all_that_others_may_wait_for(graph: Graph, tasks: Tasks) -> None:
    """Two towers of one step: each gives a gradient and takes a token, which come when both have given."""
    with device(PS):
        accumulator, queue = ConditionalAccumulator(np.float64), TokenQueue()
    done = []
    for place in (ONE, TWO):
        with device(place):
            gradient = constant(1.0) * 2
            for _ in range(3 if place == TWO else 0):  # there and back again
                with device(PS):
                    gradient = gradient + 0
                with device(TWO):
                    gradient = gradient + 0
        given = accumulator.apply_grad(gradient)
        token = queue.dequeue()
        token.control_inputs = (given,)
        done.append(token)
    both = accumulator.take_grad(2)
    put = queue.enqueue_many([1, 1])
    put.control_inputs = (both,)
    with tasks.session() as session:
        chief = Running(session, put)
        assert session.run(done) == [1, 1]
        assert chief.end().error is None
