"""Sessions on a cluster: each op where its device is, variables on their tasks, values from task to task."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from runtime_tasks import ONE, PS, TWO, Tasks, all_ways, begin, one_way
from waiting import PATIENCE, until

from nbdist.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from nbdist.graph.gradients import gradients
from nbdist.graph.ops.state import group
from nbdist.graph.placement import replica_device_setter
from nbdist.graph.scopes import colocate_with, container, control_dependencies, device
from nbdist.graph.tensor import Graph, Variable, placeholder, record
from nbdist.graph.variables import get_or_create_global_step
from nbdist.runtime.session.session import MOST_SHAPES, Session


@all_ways
def test_a_model_over_three_tasks_gives_what_one_gives(graph: Graph, tasks: Tasks) -> None:
    x = placeholder(np.float64, (None, 4), name="x")
    with device(PS):
        w = Variable(np.linspace(-1, 1, 12).reshape(4, 3), name="w")
        b = Variable(np.zeros(3), name="b")
    with device(ONE):
        hidden = np.tanh(x @ w + b)
    with device(TWO):
        loss = np.mean(np.square(hidden - 0.5))
    steps = [v.assign_sub(0.1 * g) for v, g in zip((w, b), gradients(loss, [w, b]), strict=True)]
    train = group(*steps)
    found: list[list[Any]] = []
    for session in (tasks.session(), Session(tasks.target, isolate=True), Session(allow_soft_placement=True)):
        for t in graph.tensors:
            if not session.target:
                t.device = ""
        with session:
            begin(session)
            values = []
            for rows in (3, 3, 5, 1, 3):
                batch = np.arange(4.0 * rows).reshape(rows, 4) / 10
                values.append(session.run([loss, train], {x: batch})[0])
            found.append([*values, session.run(w), session.run(b)])
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@all_ways
def test_fetches_and_feeds_of_every_task(graph: Graph, tasks: Tasks) -> None:
    x = placeholder(np.float32, (2,), name="x")
    values = []
    for place in (PS, ONE, TWO):
        with device(place):
            values.append(x * 2)
    with device(TWO):
        total = values[0] + values[1]
        done = group(*values)
    with tasks.session() as session:
        for n in range(3):
            fetched = session.run({"all": values, "total": total, "none": done, "x": x}, {x: [n, 1]})
            for value in fetched["all"]:
                np.testing.assert_array_equal(value, [2 * n, 2])
                value[:] = 99  # it is the caller's
            np.testing.assert_array_equal(fetched["total"], [4 * n, 4])
            np.testing.assert_array_equal(fetched["x"], [n, 1])
            assert fetched["none"] is None
        np.testing.assert_array_equal(session.run(total, {values[0]: [1, 1], x: [0, 0]}), [1, 1])


@all_ways
def test_control_dependencies_order_what_tasks_do(graph: Graph, tasks: Tasks) -> None:
    with device(PS):
        count = Variable(np.int64(0), name="count")
    with device(ONE):
        w = Variable(np.zeros(2), name="w")
    with control_dependencies([w.assign_add(np.ones(2))]), device(TWO):
        raised = count.assign_add(1)
    with control_dependencies([raised]), device(TWO):
        after = w * 10 + count.read_value()
    with tasks.session() as session:
        begin(session)
        for n in range(1, 20):
            np.testing.assert_array_equal(session.run(after), [11 * n, 11 * n])


@all_ways
def test_big_values_and_sizes_known_only_at_run_time(graph: Graph, tasks: Tasks) -> None:
    ids = placeholder(np.int64, (None,), name="ids")
    with device(PS):
        table = Variable(np.zeros((1 << 16, 10)), name="table")  # 5 MB
        doubled = table + 1
        wanted = record("distinct_rows", ids, rows=1 << 16)
    with device(TWO):
        total = np.sum(doubled)
        rows = record("gather_rows", table, wanted)
        sent_back = table.assign_add(doubled)
    with device(ONE):
        count = rows * 0 + 1
    with tasks.session() as session:
        begin(session)
        for n in range(3):
            value = 2.0**n - 1
            size, again, _ = session.run([total, doubled, sent_back], {ids: [1]})
            assert size == (1 << 16) * 10 * (value + 1)
            assert again.shape == (1 << 16, 10)
            assert (again == value + 1).all()
        for wanted_ids in ([5, 5, 2], [7], [], list(range(1000))):
            assert session.run(count, {ids: wanted_ids}).shape == (len(set(wanted_ids)), 10)
        np.testing.assert_array_equal(session.run(table), np.full((1 << 16, 10), 7.0))


@one_way
def test_batches_of_many_sizes(graph: Graph, tasks: Tasks) -> None:
    """More than are planned for one by one: then values of unknown size cross."""
    x = placeholder(np.float64, (None, 2), name="x")
    with device(PS):
        doubled = x * 2
    with device(TWO):
        last = np.sum(doubled, axis=0) + doubled[-1]
    with tasks.session() as session:
        for rows in range(1, MOST_SHAPES + 5):
            value = session.run(last, {x: np.arange(2.0 * rows).reshape(rows, 2)})
            batch = np.arange(2.0 * rows).reshape(rows, 2) * 2
            np.testing.assert_array_equal(value, batch.sum(0) + batch[-1])
        plan = session.plan(last, {x: np.zeros((1, 2))})
        assert [edge.bytes for edge in plan.edges] == [16]


@all_ways
def test_small_values_of_many_variables_in_both_directions(graph: Graph, tasks: Tasks) -> None:
    """More than the pipes hold, from two tasks to each other: no sender waits for ever for room."""
    here, there = [], []
    for n in range(60):
        with device(PS):
            here.append(Variable(np.full(480, float(n)), name=f"a{n}"))
        with device(TWO):
            there.append(Variable(np.full(480, float(n)), name=f"b{n}"))
    with device(TWO):
        one = sum(v * 1.0 for v in here)
    with device(PS):
        other = sum(v * 1.0 for v in there)
    with tasks.session() as session:
        begin(session)
        for _ in range(5):
            for value in session.run([one, other]):
                np.testing.assert_array_equal(value, np.full(480, 59 * 30.0))


# Variables


def test_sessions_share_variables_unless_they_are_isolated(graph: Graph, tasks: Tasks) -> None:
    with device(PS):
        w = Variable(1.0, name="w")
    with device(ONE):
        v = Variable(1.0, name="v")
    with tasks.session() as first, tasks.session(target=tasks["ps0"].target) as second:
        begin(first)
        first.run([w.assign(5.0), v.assign(6.0)])
        assert second.run([w, v]) == [5, 6]
        with tasks.session(isolate=True) as alone:
            with pytest.raises(FailedPreconditionError, match="container 'isolated-"):
                alone.run(w)
            begin(alone)
            assert alone.run([w, v]) == [1, 1]
            alone.run([w.assign(9.0), v.assign(9.0)])
            assert first.run([w, v]) == [5, 6]
            assert len([n for s in tasks.servers.values() for n in s.sessions.store.names()]) == 4
        kept = tasks["ps0"].sessions.store.names
        until(lambda: kept() == ["w"])  # its variables went with it
        until(lambda: tasks["worker0"].sessions.store.names() == ["v"])
        assert first.run([w, v]) == [5, 6]
    with tasks.session() as later:
        assert later.run([w, v]) == [5, 6]


def test_containers(graph: Graph, tasks: Tasks) -> None:
    with device(PS), container("experiment"):
        a = Variable(1.0, name="a")
    with device(PS):
        b = Variable(2.0, name="b")
    with tasks.session() as session:
        begin(session)
        store = tasks["ps0"].sessions.store
        assert store.names("experiment") == ["a"]
        assert store.names("ps") == ["b"]  # the job's name
        with Graph().as_default(), device(PS), container("another"):
            twin = Variable(3.0, name="a")
            with (
                tasks.session() as other,
                pytest.raises(FailedPreconditionError, match=r"'a'.* in container 'another'"),
            ):
                other.run(twin)
        Session.reset(tasks.target, ["experiment"])
        with tasks.session() as new:
            assert new.run(b) == 2
            with pytest.raises(FailedPreconditionError, match=r"'a'.* in container 'experiment'"):
                new.run(a)


@one_way
def test_open_sessions_end_with_a_reset(graph: Graph, tasks: Tasks) -> None:
    with device(PS):
        w = Variable(1.0, name="w")
    with device(ONE):
        v = Variable(1.0, name="v")
    sessions = [tasks.session(), tasks.session(), tasks.session(isolate=True)]
    for session in (sessions[0], sessions[2]):
        begin(session)
        session.run([w, v])
    Session.reset(tasks.target, keys=tasks.keys)
    for session in sessions:
        for fetch in (w, v, [w, v], w + 1, v + 1, w.initializer):  # what it ran before, and what is new
            with pytest.raises(AbortedError, match=r"reset.*make a new session"):
                session.run(fetch)
    for session in sessions:
        session.close()
    with tasks.session() as session:
        with pytest.raises(FailedPreconditionError, match="'w'"):
            session.run(w)
        begin(session)
        assert session.run([w, v]) == [1, 1]


@one_way
def test_an_uninitialised_variable_is_named_with_its_place(graph: Graph, tasks: Tasks) -> None:
    with device(PS):
        w, other = Variable(1.0, name="w"), Variable(1.0, name="other")
    with device(TWO):
        y = w * 2
    with tasks.session() as session:
        session.run(other.initializer)
        with pytest.raises(FailedPreconditionError) as caught:
            session.run(y)
        for words in ("'w'", __file__, "/job:ps/replica:0/task:0", "container 'ps'", "there: other"):
            assert words in str(caught.value)
        begin(session)
        assert session.run(y) == 2


@pytest.mark.parametrize("value", [np.zeros(3), np.zeros((2, 2), np.float32)])
def test_two_workers_that_build_different_graphs_get_an_error(tasks: Tasks, value: Any) -> None:
    with Graph().as_default(), device(PS):
        Variable(np.zeros((2, 2)), name="w")
        with tasks.session() as session:
            begin(session)
    with Graph().as_default(), device(PS):
        w = Variable(value, name="w")
        with tasks.session(target=tasks["worker1"].target) as session:
            with pytest.raises(InvalidArgumentError) as caught:
                session.run(w)
            for words in (
                "'w' in container 'ps' is float64 (2, 2) here",
                f"{value.dtype} {'(3,)' if value.ndim == 1 else '(2, 2)'} in this graph",
                "were different graphs built",
                __file__,
                "/job:ps/replica:0/task:0",
            ):
                assert words in str(caught.value)


@one_way
def test_between_graph_workers_meet_in_the_variables(tasks: Tasks) -> None:
    """Two threads run one program: each builds its graph, and drives its own replica."""
    meet = threading.Barrier(2)
    found: list[int] = []

    def program(index: int) -> None:
        setter = replica_device_setter(
            cluster=tasks["ps0"].cluster, worker_device=f"/job:worker/task:{index}"
        )
        with Graph().as_default(), device(setter):
            x = placeholder(np.float64, (2,), name="x")
            w = Variable(np.zeros(2), name="w")
            step = get_or_create_global_step()
            pushed = w.assign_add(x)
            with control_dependencies([pushed]), colocate_with(step):
                raised = step.assign_add(1)
            with tasks.session(target=tasks[f"worker{index}"].target) as session:
                if index == 0:
                    begin(session)
                meet.wait(PATIENCE)
                for _ in range(50):
                    found.append(int(session.run(raised, {x: [1.0, index]})))
                meet.wait(PATIENCE)
                np.testing.assert_array_equal(session.run(w), [100, 50])
                assert session.run(step) == 100

    threads = [threading.Thread(target=program, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(found) == 100
    assert len(found) == 100
