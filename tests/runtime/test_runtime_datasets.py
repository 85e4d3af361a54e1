"""Datasets that ops read: in this process, and on the tasks of a cluster, whose arrays travel once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE, until

from nbdist.data import Dataset
from nbdist.data.recipe import describe
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NanLossError,
    OutOfRangeError,
    ResourceExhaustedError,
)
from nbdist.graph.compile.program import compile_program
from nbdist.graph.ops.datasets import DatasetSource
from nbdist.graph.scopes import Graph, control_dependencies, device
from nbdist.graph.serialize.decode import decode
from nbdist.graph.serialize.encode import encode
from nbdist.graph.tensor import Tensor, Variable, placeholder, record
from nbdist.runtime.server import Server
from nbdist.runtime.session.session import Session
from nbdist.train.graph_dataset import next_batch
from nbdist.wire.channel.sender import MessageSender
from nbdist.wire.keys import ClusterKeys

X, Y = np.arange(20.0).reshape(10, 2), np.arange(10)


def rows(**changes: Any) -> Dataset:
    return Dataset.from_arrays(X, Y).shuffle(10, **changes).batch(4)


def one_pass(session: Session, fetches: Any) -> list[Any]:
    """Return what the runs of one pass give."""
    found = []
    while True:
        try:
            found.append(session.run(fetches))
        except OutOfRangeError:
            return found


def listed(batches: Any) -> list[Any]:
    return [tuple(np.asarray(array).tolist() for array in batch) for batch in batches]


@pytest.fixture
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph


@pytest.fixture
def servers() -> Iterator[Callable[[int], list[Server]]]:
    made: list[Server] = []

    def start(workers: int) -> list[Server]:
        keys = ClusterKeys.create()
        made.extend(Server({"worker": {i: "127.0.0.1:0"}}, "worker", i, keys=keys) for i in range(workers))
        for one in made:
            one.cluster = type(one.cluster)({"worker": {o.index: o.address for o in made}})
        return made

    yield start
    for one in made:
        one.close()


# In this process


def test_passes_are_those_of_the_dataset(graph: Graph) -> None:
    x, y = next_batch(rows())
    total = np.sum(x, axis=1)
    dataset = rows()  # without a seed: another order
    with Session() as session:
        first, second = one_pass(session, (x, y)), one_pass(session, (x, y, total))
    assert [len(labels) for _, labels in first] == [4, 4, 2]
    for batch in [*first, *second]:
        np.testing.assert_array_equal(batch[0], X[batch[1]])
    assert listed(first) != listed(batch[:2] for batch in second)
    assert listed(first) != listed(dataset)
    assert all((batch[2] == batch[0].sum(axis=1)).all() for batch in second)


def test_every_session_begins_at_the_first_pass(graph: Graph) -> None:
    dataset = rows(seed=3)
    tensors = next_batch(dataset)
    for _ in range(2):
        with Session() as session:
            assert listed(one_pass(session, tensors)) == listed(dataset.iterate(epoch=0))
            assert listed(one_pass(session, tensors)) == listed(dataset.iterate(epoch=1))


def test_plans_of_one_session_share_the_pass(graph: Graph) -> None:
    x, y = next_batch(Dataset.from_arrays(X, Y).batch(4))
    with Session() as session:
        assert session.run(y).tolist() == [0, 1, 2, 3]
        assert session.run(np.sum(x, axis=1) * 0 + y).tolist() == [4, 5, 6, 7]
        assert session.run([y])[0].tolist() == [8, 9]
        with pytest.raises(
            OutOfRangeError, match=r"'dataset' has ended after 3 batches.*at 'dataset/next_batch'"
        ):
            session.run(x)
        assert session.run(x).tolist() == X[:4].tolist()


def test_datasets_do_not_disturb_each_other(graph: Graph) -> None:
    (a,), (b,) = (next_batch(Dataset.range(6).batch(2), name="numbers") for _ in range(2))
    with Session() as session:
        assert session.run(a).tolist() == [0, 1]
        assert [v.tolist() for v in session.run([a, b])] == [[2, 3], [0, 1]]
    assert {a.name, b.name} == {"numbers/batch_part", "numbers_1/batch_part"}


def test_shares_of_one_batch(graph: Graph) -> None:
    parts = [next_batch(Dataset.range(10).batch(5), share=(i, 2))[0] for i in range(2)]
    with Session() as session:
        assert [p.tolist() for p in session.run(parts)] == [[0, 1, 2], [3, 4]]
        assert [p.tolist() for p in session.run(parts)] == [[5, 6, 7], [8, 9]]


def test_what_is_known_of_the_tensors(graph: Graph) -> None:
    x, y = next_batch(Dataset.from_arrays({"x": X, "deep": (Y,)}).repeat().batch(4))
    assert (x.shape, x.dtype, y.shape) == ((4, 2), np.dtype("f8"), (4,))
    (part,) = next_batch(Dataset.range(10).batch(5, drop_remainder=True), share=(1, 2))
    assert part.shape == (2,)
    assert next_batch(rows())[0].shape == (None, 2)


def test_each_thread_has_the_batch_that_it_asked_for(graph: Graph) -> None:
    x, y = next_batch(Dataset.from_arrays(X, Y).shuffle(10).repeat().batch(3))
    wrong: list[Any] = []
    with Session() as session:

        def follow() -> None:
            for _ in range(200):
                a, b = session.run((x, y))
                if not np.array_equal(a, X[b]):
                    wrong.append((a, b))

        threads = [threading.Thread(target=follow) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_thread_that_works_ahead_ends_with_the_session(graph: Graph) -> None:
    (y,) = next_batch(Dataset.range(100).batch(2).prefetch(3))
    with Session() as session:
        session.run(y)
    until_ended("nbdist-prefetch")


def until_ended(name: str) -> None:
    for thread in [t for t in threading.enumerate() if t.name == name]:
        thread.join(PATIENCE)
    assert name not in [t.name for t in threading.enumerate()]


def test_a_pass_can_be_begun_at_will(graph: Graph) -> None:
    dataset = rows(seed=1)
    steps, arrays = describe(dataset)
    source = DatasetSource(steps, arrays)
    count = source.next()
    y = source.part(count, 1, (None,), np.int64)
    opened = placeholder(np.int64, (None,))
    begin = source.begin(opened)
    with Session() as session:
        for epoch in (0, 4, 1):
            assert session.run(begin, {opened: [epoch]}) is None
            _, expected = next(iter(dataset.iterate(epoch=epoch)))
            assert session.run([count, y])[1].tolist() == expected.tolist()
        with pytest.raises(
            InvalidArgumentError, match=r"2 counts of openings .* 1 shuffles, at 'dataset/begin"
        ):
            session.run(begin, {opened: [1, 2]})


def test_loading_waits_for_nothing_and_reading_may_wait(graph: Graph) -> None:
    counter = Variable(0, name="counter")
    with control_dependencies([counter.assign_add(1)]):
        (y,) = next_batch(Dataset.range(4).batch(2))
    with Session() as session:
        session.run(counter.initializer)
        session.run(y)
        session.run(y)
        assert session.run(counter) == 2


def test_an_op_without_a_value_can_be_run_by_itself(graph: Graph) -> None:
    check = record("check_finite", placeholder(np.float64, (), name="x"))
    with Session() as session, pytest.raises(NanLossError):
        session.run(check, {check.inputs[0]: np.nan})


def test_what_is_fed_needs_no_data(graph: Graph) -> None:
    (y,) = next_batch(Dataset.range(4).batch(2, drop_remainder=True))
    with Session() as session:
        assert session.run(y + 1, {y: [5, 6]}).tolist() == [6, 7]
        assert session.run(y).tolist() == [0, 1]


def test_data_counts_towards_a_tasks_memory(servers: Callable[[int], list[Server]], graph: Graph) -> None:
    (server,) = servers(1)
    (y,) = next_batch(Dataset.range(1000).batch(10))
    with Session(server.target) as session:
        session.run(y)
        assert server.sessions.store.used() >= 8000
    assert server.sessions.store.used() == 0
    server.sessions.store.limit = 4000
    with (
        Session(server.target) as session,
        pytest.raises(
            ResourceExhaustedError, match="8,000 bytes are needed for the arrays of dataset 'dataset'"
        ),
    ):
        session.run(y)


# What is refused


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Dataset.range(4).batch(2).map(np.negative), "map.* feed from the client"),
        (Dataset.range(4), "has single examples.* add .batch"),
    ],
)
def test_what_cannot_be_read_elsewhere(graph: Graph, dataset: Dataset, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        next_batch(dataset)
    with pytest.raises(InvalidArgumentError, match="share 2 of 2"):
        next_batch(Dataset.range(4).batch(2), share=(2, 2))


def test_it_runs_in_sessions_only(graph: Graph) -> None:
    (y,) = next_batch(Dataset.range(4).batch(2))
    with pytest.raises(InvalidArgumentError, match="runs only in a session"):
        compile_program([y])
    with pytest.raises(RuntimeError, match="the executor of its program performs it"):
        y.op.forward(np)  # type: ignore[union-attr]


def test_steps_are_checked_where_they_are_carried_out(graph: Graph) -> None:
    source = DatasetSource([("from_arrays", 0), ("map", "os.system")], [Y])
    with (
        Session() as session,
        pytest.raises(InvalidArgumentError, match=r"cannot send transform 'map'.*'dataset/load'"),
    ):
        session.run(source.next())


def test_a_batch_of_another_shape_is_said_so(graph: Graph) -> None:
    steps, arrays = describe(Dataset.from_arrays(X, Y).batch(4))
    source = DatasetSource(steps, arrays)
    for index, shape, dtype in ((0, (3, 2), np.float64), (1, (4,), np.float32), (0, (None,), np.float64)):
        part = source.part(source.next(), index, shape, dtype)
        with (
            Session() as session,
            pytest.raises(
                InvalidArgumentError,
                match=rf"array {index} of a batch of dataset 'dataset' is .* was expected",
            ),
        ):
            session.run(part)


def test_ops_of_datasets_travel_as_any_other(graph: Graph) -> None:
    next_batch(rows(seed=1))
    other = decode(*encode(graph.tensors))
    assert [(t.type, t.name, t.spec) for t in other.tensors] == [
        (t.type, t.name, t.spec) for t in graph.tensors
    ]
    assert next(t for t in other.tensors if t.type == "load_dataset").attrs["steps"][2] == ("batch", 4, False)


# On the tasks of a cluster


def on(task: int, dataset: Dataset, **options: Any) -> tuple[Tensor, ...]:
    with device(f"/job:worker/task:{task}"):
        return next_batch(dataset, **options)


def test_workers_read_their_shares_of_the_same_batches(
    graph: Graph, servers: Callable[[int], list[Server]]
) -> None:
    made = servers(2)
    dataset = rows(seed=5).repeat(2)
    parts = [on(i, dataset, share=(i, 2))[1] for i in range(2)]
    with Session(made[0].target) as session:
        found = [np.concatenate(session.run(parts)) for _ in range(6)]
    assert [labels.tolist() for labels in found] == [labels.tolist() for _, labels in dataset]


def test_arrays_travel_once(
    graph: Graph, servers: Callable[[int], list[Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = servers(2)
    big = np.arange(50_000.0)
    with device("/job:worker/task:1"):
        (y,) = next_batch(Dataset.from_arrays(big).batch(100))
        highest = [np.max(y), np.max(y * 2) / 2]  # plans of several kinds
    sent: list[int] = []
    own = MessageSender.send

    def counting(self: MessageSender, *message: Any, **meta: Any) -> None:
        sent.append(sum(np.asarray(a).nbytes for a in message[4]) if len(message) > 4 else 0)
        own(self, *message, **meta)

    monkeypatch.setattr(MessageSender, "send", counting)
    with Session(made[0].target) as session:
        assert session.run(highest[0]) == 99
        loading = sum(sent)
        assert big.nbytes <= loading < big.nbytes + 4000
        for i in range(1, 9):
            assert session.run(highest[i % 2]) == 100 * i + 99
        assert sum(sent) - loading < 400


def test_threads_of_a_session_share_a_workers_pass(
    graph: Graph, servers: Callable[[int], list[Server]]
) -> None:
    made = servers(2)
    y = on(1, Dataset.range(40).batch(2))[0]
    found: list[int] = []
    with Session(made[0].target) as session:

        def follow() -> None:
            for _ in range(5):
                found.extend(session.run(y).tolist())

        threads = [threading.Thread(target=follow) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(40))
        assert made[1].sessions.store.used() >= 320
    until(lambda: made[1].sessions.store.used() == 0)


def test_sessions_do_not_share_passes(graph: Graph, servers: Callable[[int], list[Server]]) -> None:
    made = servers(2)
    y = on(1, Dataset.range(6).batch(2))[0]
    with Session(made[0].target) as one, Session(made[0].target) as other:
        assert one.run(y).tolist() == [0, 1]
        assert other.run(y).tolist() == [0, 1]
        assert one.run(y).tolist() == [2, 3]


def test_the_end_of_a_pass_names_op_and_device(graph: Graph, servers: Callable[[int], list[Server]]) -> None:
    made = servers(2)
    y = on(1, Dataset.range(2).batch(2))[0]
    with Session(made[0].target) as session:
        session.run(y)
        with pytest.raises(
            OutOfRangeError, match=r"after 1 batches.*'dataset/next_batch' .*/job:worker/.*task:1"
        ):
            session.run(y)
        assert session.run(y).tolist() == [0, 1]


def test_the_error_names_a_dataset_that_was_closed(
    graph: Graph, servers: Callable[[int], list[Server]]
) -> None:
    made = servers(2)
    y = on(1, Dataset.range(2).batch(2))[0]
    with Session(made[0].target) as session:
        session.run(y)
        for thread in made[1].sessions._executors:
            thread.sources.close()
        with pytest.raises(FailedPreconditionError, match="'dataset' is not on this task any more"):
            session.run(y)
