"""SyncReplicasOptimizer: workers that each drive a session, in threads against Servers of this process."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from runtime_tasks import ONE, PS, TWO, Tasks, all_ways, begin, interrupted_when, one_way
from waiting import PATIENCE, limit, until

from nbdist.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    OutOfRangeError,
    UnavailableError,
)
from nbdist.graph.partitioners import fixed_size_partitioner
from nbdist.graph.placement import replica_device_setter
from nbdist.graph.scopes import device
from nbdist.graph.sparse import IndexedSlices
from nbdist.graph.tensor import Graph, Tensor, Variable, constant, placeholder
from nbdist.graph.variables import (
    get_or_create_global_step,
    get_variable,
    global_variables,
    global_variables_initializer,
)
from nbdist.nn.functional import embedding_lookup
from nbdist.optim import SGD, Adam
from nbdist.runtime.session.resources import Client
from nbdist.runtime.session.session import Session
from nbdist.train import SyncReplicasOptimizer

Build = Callable[["Worker"], list[tuple[Any, Variable]]]


class Worker:
    """One replica: a graph of its own, a session on its own task. The first is the chief."""

    def __init__(
        self, tasks: Tasks, index: int, build: Build, needed: int, total: int | None = None, **options: Any
    ) -> None:
        self.index, self.chief = index, index == 0
        self.variables: dict[str, Variable] = {}
        num_tokens, make = options.pop("num_tokens", -1), options.pop("make", lambda: SGD(2.0))
        ps = sum(name.startswith("ps") for name in tasks.servers)
        with Graph().as_default() as self.graph, device(
            replica_device_setter(ps_tasks=ps, worker_device=f"/job:worker/task:{index}")
        ):  # fmt: skip
            self.step = get_or_create_global_step()
            pairs = build(self)
            self.optimizer = SyncReplicasOptimizer(make(), needed, total)
            self.train = self.optimizer.apply_gradients(pairs, global_step=self.step)
        self.hook = self.optimizer.make_session_run_hook(self.chief, num_tokens)
        begun = options.pop("begun", True)
        self.session = tasks.session(self.graph, tasks[f"worker{index}"].target, **options)
        if self.chief and begun:
            begin(self.session)

    @property
    def local_step(self) -> int:
        (step,) = self.graph.local_variables
        return int(self.session.run(step))

    def values(self) -> list[Any]:
        return list(self.session.run(list(self.variables.values())))

    def until_step(self, step: int) -> None:
        until(lambda: int(self.session.run(self.step)) == step)


class Crew:
    """Workers that have begun; all end with the block."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)
        self._stack = ExitStack()

    def __enter__(self) -> list[Worker]:
        for worker in self.workers:
            self._stack.enter_context(worker.session)
        for worker in self.workers:
            self._stack.enter_context(worker.hook.training(worker.session))
        return self.workers

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def together(*work: Callable[[], object], limit: float = 20.0) -> list[BaseException | None]:
    """Do each in a thread; return what each raised."""
    errors: list[BaseException | None] = [None] * len(work)

    def one(n: int) -> None:
        try:
            work[n]()
        except NbdistError as error:
            errors[n] = error

    threads = [threading.Thread(target=one, args=(n,)) for n in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
        assert not thread.is_alive(), f"no end within {limit} s"
    return errors


def steps(worker: Worker, count: int, feeds: Any = None) -> Callable[[], None]:
    def work() -> None:
        for n in range(count):
            worker.session.run(worker.train, feeds(n) if feeds else None)

    return work


def three(worker: Worker) -> list[tuple[Any, Variable]]:
    """The gradients of fact 7, and a sparse one, which do not change."""
    k = worker.index
    v0, v1 = Variable(0.0, name="v0"), Variable(1.0, name="v1")
    v2 = Variable(np.array([[3.0], [4.0]]), name="v2")
    worker.variables = {"v0": v0, "v1": v1, "v2": v2}
    rows = IndexedSlices(constant(np.array([[0.1 + 0.2 * k]])), constant(np.array([1])), (2, 1))
    return [(constant(0.1 + 0.2 * k), v0), (constant(0.9 + 0.2 * k), v1), (rows, v2)]


def check(worker: Worker, v0: float, v1: float, row: float) -> None:
    found = worker.values()
    np.testing.assert_allclose(found[:2], [v0, v1], atol=1e-12)
    np.testing.assert_allclose(found[2], [[3.0], [row]], atol=1e-12)


two_servers = pytest.mark.parametrize("tasks", [{"ps": 2}], indirect=True)


@pytest.mark.parametrize("tasks", [{"ps": 1}, {"ps": 2}], indirect=True)
def test_two_workers(tasks: Tasks) -> None:
    """Fact 7, and what comes after the first step, as in TensorFlow's own test."""
    with Crew([Worker(tasks, n, three, 2, num_tokens=2) for n in range(2)]) as (one, two):
        one.session.run(one.train)  # one by one, for there are tokens to begin with
        two.session.run(two.train)
        one.until_step(1)
        check(one, -0.4, -1.0, 3.6)
        check(two, -0.4, -1.0, 3.6)
        assert (one.local_step, two.local_step) == (0, 0)
        one.session.run(one.train)  # too late, and it receives the number of the current step
        two.session.run(two.train)
        assert (one.local_step, two.local_step) == (1, 1)
        assert one.session.run(one.optimizer.dropped) == two.session.run(two.optimizer.dropped) == 2
        check(one, -0.4, -1.0, 3.6)
        together(steps(one, 1), steps(two, 1))  # from here on they need each other
        one.until_step(2)
        check(two, -0.8, -3.0, 3.2)
        assert one.session.run(one.optimizer.dropped) == 2


@all_ways
def test_the_first_step(tasks: Tasks) -> None:
    """Fact 7, however what crosses travels; each gets its answer as soon as the step is made."""
    with Crew([Worker(tasks, n, three, 2, num_tokens=0) for n in range(2)]) as (one, two):
        assert together(steps(one, 1), steps(two, 1)) == [None, None]
        check(one, -0.4, -1.0, 3.6)
        assert one.session.run(one.step) == 1
        assert (one.local_step, two.local_step) == (1, 1)
        assert together(steps(one, 4), steps(two, 4)) == [None, None]
        assert two.session.run([two.step, two.optimizer.dropped]) == [5, 0]


@pytest.mark.parametrize("tasks", [{"workers": 3}], indirect=True)
def test_a_backup_that_comes_late_is_dropped_and_counted(tasks: Tasks) -> None:
    with Crew([Worker(tasks, n, three, 2, 3, num_tokens=3) for n in range(3)]) as (one, late, two):
        one.session.run(one.train)
        two.session.run(two.train)
        one.until_step(1)
        check(one, -(0.1 + 0.5), 1 - (0.9 + 1.3), 4 - 0.6)  # the two fastest, 0 and 2
        assert one.session.run(one.optimizer.dropped) == 0
        late.session.run(late.train)
        assert late.session.run([late.step, late.optimizer.dropped]) == [1, 1]
        check(late, -(0.1 + 0.5), 1 - (0.9 + 1.3), 4 - 0.6)


def part(worker: Worker, last: int, feeds: Any = None) -> Callable[[], None]:
    """Return a worker's part until a global step; the chief's end is everybody's."""

    def work() -> None:
        with worker.session as session, worker.hook.training(session):
            try:
                while session.run(worker.step) < last:
                    session.run(worker.train, feeds)
            except OutOfRangeError:
                assert not worker.chief

    return work


@pytest.mark.parametrize("tasks", [{"workers": 3}], indirect=True)
def test_backups_let_training_continue_without_one(tasks: Tasks) -> None:
    one, left, two = (Worker(tasks, n, three, 2, 3, num_tokens=0) for n in range(3))

    def go() -> None:
        with left.session as session, left.hook.training(session):
            session.run(left.train)

    assert together(part(one, 30), part(two, 30), go) == [None, None, None]
    with tasks.session(one.graph) as session:
        assert 30 <= session.run(one.step) <= 31
        assert session.run(one.optimizer.dropped) <= 2


def linear(worker: Worker) -> list[tuple[Any, Variable]]:
    """A model of which each worker sees its own rows."""
    x, y = placeholder(np.float64, (None, 3), name="x"), placeholder(np.float64, (None,), name="y")
    w, b = Variable(np.ones(3), name="w"), Variable(0.5, name="b")
    worker.variables = {"w": w, "b": b}
    loss = np.mean(np.square(np.tanh(x @ w + b) - y))
    return SGD(0.1).compute_gradients(loss, [w, b])


def batches(count: int, rows: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(rows, 3)), rng.normal(size=rows)) for _ in range(count)]


def alone(make: Callable[[], Any], data: Sequence[tuple[Any, Any]]) -> list[Any]:
    with Graph().as_default() as graph:
        x, y = placeholder(np.float64, (None, 3)), placeholder(np.float64, (None,))
        w, b = Variable(np.ones(3), name="w"), Variable(0.5, name="b")
        train = make().minimize(np.mean(np.square(np.tanh(x @ w + b) - y)), get_or_create_global_step())
        with Session(graph=graph) as session:
            begin(session)
            for xs, ys in data:
                session.run(train, {x: xs, y: ys})
            return list(session.run([w, b]))


def share_of(
    worker: Worker, data: Sequence[tuple[Any, Any]], shares: int, which: int
) -> Callable[[int], Any]:
    x, y = worker.graph.tensor("x"), worker.graph.tensor("y")

    def feeds(n: int) -> Any:
        xs, ys = data[n]
        size = len(xs) // shares
        part = slice(which * size, (which + 1) * size)
        return {x: xs[part], y: ys[part]}

    return feeds


@pytest.mark.parametrize("make", [lambda: SGD(0.3, momentum=0.9), lambda: Adam(0.05)])
def test_replicas_equal_one_on_the_same_global_batches(tasks: Tasks, make: Any) -> None:
    data = batches(12, 16)
    workers = [Worker(tasks, n, linear, 2, num_tokens=0, make=make) for n in range(2)]
    with Crew(workers) as (one, two):
        errors = together(*(steps(w, 12, share_of(w, data, 2, n)) for n, w in enumerate(workers)))
        assert errors == [None, None]
        for found, expected in zip(two.values(), alone(make, data), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert one.session.run([one.step, one.optimizer.dropped]) == [12, 0]


def test_with_more_gradients_than_replicas_each_gives_several_batches(tasks: Tasks) -> None:
    """Four make a step of two replicas."""
    ((x, y),) = batches(1, 16)  # whose batch is in which step is not said, so all are alike
    workers = [Worker(tasks, n, linear, 4, 2, num_tokens=2, make=lambda: SGD(0.3)) for n in range(2)]
    feeds = [{w.graph.tensor("x"): x, w.graph.tensor("y"): y} for w in workers]
    assert together(*(part(w, 6, feed) for w, feed in zip(workers, feeds, strict=True))) == [None, None]
    with tasks.session(workers[0].graph) as session:
        *found, step, dropped = session.run(
            [*workers[0].variables.values(), workers[0].step, workers[0].optimizer.dropped]
        )
    assert (step, dropped) == (6, 0)
    for value, expected in zip(found, alone(lambda: SGD(0.3), [(x, y)] * 6), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-9)


@two_servers
def test_tables_in_shards_are_trained_row_by_row(tasks: Tasks) -> None:
    def lookup(worker: Worker) -> list[tuple[Any, Variable]]:
        table: Any = get_variable(
            "table", initializer=np.zeros((6, 2)), partitioner=fixed_size_partitioner(2)
        )
        worker.variables = {shard.name: shard for shard in table.shards}
        ids = constant(np.array([0, 5]) if worker.chief else np.array([5, 2]))
        loss = np.sum(embedding_lookup(table, ids)) * (1.0 + worker.index)
        pairs = SGD(1.0).compute_gradients(loss)
        assert all(isinstance(gradient, IndexedSlices) for gradient, _ in pairs)
        return pairs

    workers = [Worker(tasks, n, lookup, 2, num_tokens=0, make=lambda: SGD(1.0)) for n in range(2)]
    with Crew(workers) as (one, two):
        assert together(steps(one, 1), steps(two, 1)) == [None, None]
        found = np.concatenate(one.values())[:, 0]
        np.testing.assert_allclose(found, [-1, 0, -2, 0, 0, -1.5])  # each row by its own count


# In one graph


def test_towers_of_one_graph(graph: Graph, tasks: Tasks) -> None:
    with device(PS):
        v = Variable(0.0, name="v")
        step = get_or_create_global_step()
    optimizer, trains = SyncReplicasOptimizer(SGD(1.0), 2), []
    for n, place in enumerate((ONE, TWO)):
        with device(place):
            gradient = constant(1.0 + n) * 1.0
            trains.append(optimizer.apply_gradients([(gradient, v)], step))
    hook = optimizer.make_session_run_hook(True, num_tokens=0)
    with tasks.session() as session:
        begin(session)
        with hook.training(session):
            session.run(trains)  # in one run
            assert session.run([v, step]) == [-1.5, 1]
            for _ in range(3):  # or in a thread each
                assert together(*(lambda t=t: session.run(t) for t in trains)) == [None, None]
            assert session.run([v, step, optimizer.dropped]) == [-6, 4, 0]
        assert len(graph.local_variables) == 2


def test_without_a_cluster(graph: Graph) -> None:
    v = Variable(0.0, name="v")
    optimizer = SyncReplicasOptimizer(SGD(1.0), 2)
    trains = [optimizer.apply_gradients([(constant(2.0), v)], get_or_create_global_step()) for _ in range(2)]
    hook = optimizer.make_session_run_hook(True, num_tokens=0)
    with Session() as session:
        begin(session)
        for again in range(2):  # and once more
            with hook.training(session):
                assert together(*(lambda t=t: session.run(t) for t in trains)) == [None, None]
            assert session.run(v) == -2 * (again + 1)
        assert not any(t.name.startswith("nbdist runs") for t in threading.enumerate())


def test_names_and_places(graph: Graph) -> None:
    with device(replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:3")):
        step = get_or_create_global_step()
        v = Variable(np.zeros(2, np.float32), name="v")
        gradient = constant(np.ones(2))  # float64, which is converted where it is
        optimizer = SyncReplicasOptimizer(Adam(), 2, 3)
        train = optimizer.apply_gradients([(gradient, v), (None, Variable(0.0, name="unused"))], step)
    (local,) = graph.local_variables
    assert (local.device, local.name, local.dtype) == (
        "/job:worker/task:3",
        "sync_rep_local_step",
        step.dtype,
    )
    assert local not in dict.fromkeys(global_variables())
    assert local.initializer not in dict.fromkeys(global_variables_initializer().control_inputs)
    assert graph.tensor("v/grad_accum").device == v.device == "/job:ps/task:1"
    assert graph.tensor("sync_token_q").device == step.device == "/job:ps/task:0"
    assert graph.tensor("v/grad_accum").attrs["dtype"] == np.float32
    assert train.name == "sync_replicas"
    assert all(optimizer.get_slot(v, name).device == v.device for name in optimizer.get_slot_names())
    assert optimizer.chief_init_op is optimizer.chief_init_op
    assert repr(optimizer).endswith("replicas_to_aggregate=2, total_num_replicas=3)")


# What cannot be


def test_invalid_arguments_are_refused_at_once(graph: Graph) -> None:
    step, v = get_or_create_global_step(), Variable(0.0, name="v")
    for wrong in (0, -1, 1.5, "two", True):
        with pytest.raises(ValueError, match=r"replicas_to_aggregate is .*; expected"):
            SyncReplicasOptimizer(SGD(), wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="total_num_replicas is 0; expected at least 1"):
        SyncReplicasOptimizer(SGD(), 2, 0)
    with pytest.raises(InvalidArgumentError, match="wraps an optimizer, got 'sgd'"):
        SyncReplicasOptimizer("sgd", 2)  # type: ignore[arg-type]
    optimizer = SyncReplicasOptimizer(SGD(), 3, 2)
    for early in (
        lambda: optimizer.dropped,
        lambda: optimizer.chief_init_op,
        optimizer.get_init_tokens_op,
        optimizer.get_chief_queue_runner,
        optimizer.make_session_run_hook(True).begin,
    ):
        with pytest.raises(FailedPreconditionError, match="call apply_gradients or minimize first"):
            early()
    with pytest.raises(ValueError, match="the list of gradients is empty"):
        optimizer.apply_gradients([], step)
    with pytest.raises(ValueError, match="there is no gradient for any of v"):
        optimizer.apply_gradients([(None, v)], step)
    with pytest.raises(ValueError, match="needs global_step"):
        optimizer.apply_gradients([(constant(1.0), v)])
    with pytest.raises(ValueError, match="global_step is a variable that holds one whole number"):
        optimizer.apply_gradients([(constant(1.0), v)], v)
    optimizer.apply_gradients([(constant(1.0), v)], step)
    with pytest.raises(
        ValueError, match="too few tokens for the first step: num_tokens=0, and 1 are needed for 2"
    ):
        optimizer.get_init_tokens_op(0)
    for chief in (True, False):
        with pytest.raises(ValueError, match="too few tokens"):
            optimizer.make_session_run_hook(chief, num_tokens=0).begin()


def test_replicas_of_one_graph_have_the_same_variables(graph: Graph) -> None:
    step, v, w = get_or_create_global_step(), Variable(np.zeros(2), name="v"), Variable(0.0, name="w")
    optimizer = SyncReplicasOptimizer(SGD(), 2)
    g = constant(np.ones(2))
    optimizer.apply_gradients([(g, v)], step)
    for pairs, by, words in (
        ([(g, v), (constant(1.0), w)], step, "so far of 'v', now of 'v', 'w'"),
        (
            [(g, v)],
            Variable(np.int64(0), name="other"),
            "replicas count one step: 'global_step' so far, now 'other'",
        ),
        ([(IndexedSlices(g, constant(np.array([0, 1])), (2,)), v)], step, "rows in one replica and dense"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            optimizer.apply_gradients(pairs, by)
    with Graph().as_default(), pytest.raises(InvalidArgumentError, match="was used in another one"):
        optimizer.apply_gradients([(1.0 * constant(1.0), Variable(0.0))], get_or_create_global_step())


# How it ends


@one_way
def test_the_error_of_a_waiting_replica_names_the_one_that_left(tasks: Tasks) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0, operation_timeout=0.7) for n in range(2))
    with Crew([one, two]):
        assert together(steps(one, 2), steps(two, 2)) == [None, None]
        two.session.close()
        begun = time.monotonic()
        with pytest.raises(DeadlineExceededError) as caught:
            one.session.run(one.train)
        assert 0.5 < time.monotonic() - begun < limit(3)
        assert "/job:worker/task:0 waits for a token" in str(caught.value)
        assert "not waiting for one: /job:worker/task:1 (took token 2 " in str(caught.value)
        assert one.session.run(one.step) == 2  # the chief's thread has not given up


def test_an_error_names_the_replica_without_a_gradient(tasks: Tasks) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0, operation_timeout=0.3) for n in range(2))
    with Crew([one, two]), pytest.raises(DeadlineExceededError, match=r"/job:worker/task:1 \(joined"):
        one.session.run(one.train)


def test_a_worker_that_begins_before_the_chief_waits_for_it(tasks: Tasks) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0, begun=False) for n in range(2))
    late = Worker(tasks, 1, three, 2, operation_timeout=0.2)
    with late.session, pytest.raises(DeadlineExceededError, match="the chief has not begun the training"):
        late.hook.training(late.session).__enter__()
    assert not one.session.run(one.optimizer.ready_for_local_init_op)
    joining = threading.Event()

    def wait_then_begin() -> None:
        assert joining.wait(PATIENCE)
        begin(one.session)
        part(one, 3)()

    def join() -> None:
        watcher = threading.Thread(target=lambda: (until(lambda: count_waiting(tasks) == 1), joining.set()))
        watcher.start()
        part(two, 3)()
        watcher.join()

    assert together(join, wait_then_begin) == [None, None]
    with tasks.session(one.graph, operation_timeout=5.0) as session:
        assert session.run(one.step) == 3


def count_waiting(tasks: Tasks) -> int:
    """Return how many wait for something to happen to the queue of tokens."""
    shared = tasks["ps0"].sessions.store._shared
    return sum(len(queue._bells) for key, (_, queue) in shared.items() if key[2] == "sync_token_q")


@one_way
@pytest.mark.parametrize("how", ["ends", "closes", "fails"])
def test_waiting_replicas_get_an_error_when_the_chief_ends(
    tasks: Tasks,
    how: str,
) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0) for n in range(2))
    with two.session:
        block = one.hook.training(one.session)
        block.__enter__()
        with two.hook.training(two.session):
            errors: list[BaseException | None] = []
            thread = threading.Thread(target=lambda: errors.extend(together(steps(two, 1))))
            thread.start()
            until(lambda: waiting_on(tasks) == 1)
            begun = time.monotonic()
            if how == "ends":
                block.__exit__(None, None, None)
            elif how == "closes":
                one.session.close()
            else:
                assert not block.__exit__(RuntimeError, RuntimeError("the user's own"), None)
            thread.join(10 + PATIENCE)
            assert not thread.is_alive()
            assert time.monotonic() - begun < limit(2)
            (error,) = errors
            if how == "closes":
                assert isinstance(error, AbortedError)
                assert "the chief, which serves 'sync_token_q', was aborted" in str(error)
            else:
                assert isinstance(error, OutOfRangeError)
                assert "the training has ended" in str(error)
        one.session.close()


def waiting_on(tasks: Tasks) -> int:
    """Return how many replicas wait for a token."""
    shared = tasks["ps0"].sessions.store._shared
    queues = [queue for key, (_, queue) in shared.items() if key[2] == "sync_token_q"]
    return sum(queue.look(lambda tokens: sum(tokens.waiting.values())) for queue in queues)


def test_an_error_in_the_aggregation_is_raised_at_the_chief_and_all_replicas(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0) for n in range(2))

    def broken(*given: Any) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(SGD, "apply", broken)
    errors: list[BaseException | None] = []

    def both() -> None:
        with one.hook.training(one.session):
            two.hook.begin()
            two.hook.after_create_session(two.session)
            errors.extend(together(steps(one, 1), steps(two, 1)))
            raise errors[0] or AssertionError("there was no error")

    with one.session, two.session:
        with pytest.raises(InvalidArgumentError, match=r"ZeroDivisionError at .*boom"):
            both()
        assert all(isinstance(error, AbortedError) for error in errors)
        assert "was aborted: ZeroDivisionError at" in str(errors[1])
        with pytest.raises(InvalidArgumentError, match="boom"):
            one.hook.after_run(None, None)
        monkeypatch.undo()
        with one.hook.training(one.session), two.hook.training(two.session):  # and once more
            assert together(steps(one, 2), steps(two, 2)) == [None, None]


@all_ways
def test_an_interrupt_while_a_token_is_waited_for(tasks: Tasks) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0) for n in range(2))
    with Crew([one, two]):
        reached = threading.Event()
        watcher = threading.Thread(target=lambda: (until(lambda: waiting_on(tasks) == 1), reached.set()))
        watcher.start()
        begun = time.monotonic()
        with interrupted_when(reached):
            two.session.run(two.train)
        watcher.join()
        assert time.monotonic() - begun < limit(5)
        together(steps(one, 1))  # its gradient has come
        assert one.session.run(one.step) == 1
        with two.hook.training(two.session):  # it takes its step anew
            assert two.local_step == 1
            assert together(steps(one, 3), steps(two, 3)) == [None, None]
        assert two.session.run(two.step) == 4


@one_way
def test_a_reset_ends_it_for_all(tasks: Tasks) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0) for n in range(2))
    with one.session, two.session:
        block = one.hook.training(one.session)
        block.__enter__()
        errors: list[BaseException | None] = []
        thread = threading.Thread(target=lambda: errors.extend(together(steps(one, 1))))
        thread.start()
        until(lambda: waiting_on(tasks) == 1)
        Session.reset(tasks.target, keys=tasks.keys)
        thread.join(10 + PATIENCE)
        assert "reset" in str(errors[0])
        with pytest.raises(AbortedError, match="reset"):
            block.__exit__(None, None, None)


@two_servers
def test_all_workers_notice_a_parameter_server_that_ends(tasks: Tasks) -> None:
    """The second, which has no tokens; so waiting workers wait on the first."""
    one, two = (Worker(tasks, n, three, 2, num_tokens=0) for n in range(2))
    with one.session, two.session:
        block = one.hook.training(one.session)
        block.__enter__()
        errors: list[BaseException | None] = []
        thread = threading.Thread(target=lambda: errors.extend(together(steps(one, 1))))
        thread.start()
        until(lambda: waiting_on(tasks) == 1)
        begun = time.monotonic()
        tasks["ps1"].close()
        thread.join(10 + PATIENCE)
        assert time.monotonic() - begun < limit(3)
        assert re.search("/job:ps/(replica:0/)?task:1", str(errors[0]))
        with pytest.raises(UnavailableError, match=r"/job:ps/(replica:0/)?task:1"):
            block.__exit__(None, None, None)


def test_a_worker_that_comes_again_takes_the_place_of_the_first(tasks: Tasks) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0) for n in range(2))
    with Crew([one, two]):
        together(steps(one, 2), steps(two, 2))
        two.session.close()
        again = Worker(tasks, 1, three, 2, num_tokens=0)
        with again.session as session, again.hook.training(session):
            assert again.local_step == 2
            assert together(steps(one, 3), steps(again, 3)) == [None, None]
            assert session.run([again.step, again.optimizer.dropped]) == [5, 0]


@one_way
def test_a_new_process_of_a_worker_ends_what_the_former_one_does(tasks: Tasks) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0) for n in range(2))
    with one.session, one.hook.training(one.session), two.session:
        in_process(two, 7)
        two.hook.begin()
        two.hook.after_create_session(two.session)
        errors: list[BaseException | None] = []
        thread = threading.Thread(target=lambda: errors.extend(together(steps(two, 1))))
        thread.start()
        until(lambda: waiting_on(tasks) == 1)
        again = Worker(tasks, 1, three, 2, num_tokens=0)
        in_process(again, 8)
        with again.session as session, again.hook.training(session):
            thread.join(10 + PATIENCE)
            assert not thread.is_alive()
            assert isinstance(errors[0], (AbortedError, UnavailableError))
            assert session.run(again.optimizer.dropped) == 1  # the gradient that the former one gave
            assert together(steps(one, 3), steps(again, 3)) == [None, None]
            assert session.run([again.step, again.optimizer.dropped]) == [3, 1]
            late = Worker(tasks, 1, three, 2, num_tokens=0)
            in_process(late, 7)
            with (
                late.session,
                pytest.raises(FailedPreconditionError, match="was replaced by another process"),
            ):
                late.session.run(late.train)


def in_process(worker: Worker, incarnation: int) -> None:
    """Let a worker's session be one of another process of its task."""
    engine = worker.session._engine
    assert engine is not None
    engine._client = Client(f"/job:worker/task:{worker.index}", incarnation)


def test_a_chief_that_comes_again_begins_where_the_variables_are(tasks: Tasks) -> None:
    one, two = (Worker(tasks, n, three, 2, num_tokens=0) for n in range(2))
    with two.session:
        with one.session as session, one.hook.training(session), two.hook.training(two.session):
            together(steps(one, 2), steps(two, 2))
        assert isinstance(together(steps(two, 1))[0], OutOfRangeError)
        with Worker(tasks, 0, three, 2, num_tokens=0).session:  # its variables are begun anew, by ``begin``
            pass
        again = Worker(tasks, 0, three, 2, num_tokens=0)
        again.session.run([v.assign(2) for v in [again.step]])
        with again.session as session, again.hook.training(session), two.hook.training(two.session):
            assert two.local_step == 2
            assert together(steps(again, 1), steps(two, 1)) == [None, None]
            assert session.run(again.step) == 3


def test_workers_on_one_task_have_steps_of_their_own(tasks: Tasks) -> None:
    """Whose sessions are all on one server, whichever device scope there is."""
    workers: list[Any] = []
    for n in range(2):
        with Graph().as_default() as graph:
            step, v = get_or_create_global_step(), Variable(0.0, name="v")
            optimizer = SyncReplicasOptimizer(SGD(1.0), 2)
            train: Tensor = optimizer.apply_gradients([(constant(1.0), v)], step)
        hook = optimizer.make_session_run_hook(n == 0, num_tokens=0)
        workers.append((tasks.session(graph), hook, train, v))
    with workers[0][0] as one, workers[1][0] as two:
        begin(one)
        with workers[0][1].training(one), workers[1][1].training(two):
            for _ in range(3):
                errors = together(lambda: one.run(workers[0][2]), lambda: two.run(workers[1][2]))
                assert errors == [None, None]
            assert two.run(workers[1][3]) == -3
