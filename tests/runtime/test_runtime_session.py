"""A Session of this process: runs, feeds, variables of its own, and what it refuses."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.graph.gradients import gradients
from nbdist.graph.op import OPS, Op, register
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import container, control_dependencies, device, sessions
from nbdist.graph.tensor import Graph, Tensor, Variable, constant, placeholder, record
from nbdist.graph.variables import global_variables_initializer
from nbdist.nn import functional
from nbdist.runtime.session.program import Containers, PieceProgram, Scratch
from nbdist.runtime.session.session import HERE, MOST_SHAPES, Session
from nbdist.runtime.session.store import Store


@pytest.fixture
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph


@pytest.fixture
def session(graph: Graph) -> Iterator[Session]:
    with Session() as session:
        yield session


def begin(session: Session) -> None:
    session.run(global_variables_initializer(session.graph))


# What is fetched and fed


def test_the_result_has_the_form_of_the_question(session: Session) -> None:
    x = placeholder(np.float32, (None,), name="x")
    total, doubled = np.sum(x), x * 2
    value = session.run(total, {x: [1, 2, 3]})
    assert (value, type(value)) == (6.0, np.float32)
    results = session.run([total, doubled, total, x], {x: [1.0, 2.0]})
    assert results[0] == results[2] == 3
    np.testing.assert_array_equal(results[1], [2, 4])
    np.testing.assert_array_equal(results[3], [1, 2])
    feed = {x: [1.0, 2.0]}
    assert session.run({"loss": total, "all": [(total,), "sum"]}, feed) == {"loss": 3, "all": [(3,), 3]}
    assert session.run([]) == []
    assert session.run({}) == {}
    assert session.run((total,), {x: []}) == (0.0,)
    named = namedtuple("named", "a b")
    assert session.run(named(total, [total]), feed) == named(3, [3])


def test_what_is_run_for_its_effect_gives_none(session: Session) -> None:
    w = Variable(0.0, name="w")
    begin(session)
    assert session.run([group(w.assign(1.0)), w]) == [None, 0]  # from before the step
    assert session.run(["w", w.assign_add(2.0)]) == [1, 3]


def test_results_belong_to_the_caller(session: Session) -> None:
    w, c = Variable(np.ones(3)), constant(np.ones(3))
    begin(session)
    fetches = [w, w + 1, c, w[::-1], w.assign(w), w]
    first = session.run(fetches)
    for array in first:
        array[:] = 50
    for array, expected in zip(session.run(fetches), (1, 2, 1, 1, 1, 1), strict=True):
        np.testing.assert_array_equal(array, np.full(3, float(expected)))


def test_what_is_fed_belongs_to_the_caller(session: Session) -> None:
    x = placeholder(np.float64, (3,))
    w = Variable(np.zeros(3))
    array = np.arange(3.0)
    fetched, _ = session.run([x, w.assign(x)], {x: array})
    array[:] = 9
    np.testing.assert_array_equal(fetched, [0, 1, 2])
    np.testing.assert_array_equal(session.run(w), [0, 1, 2])


def test_any_value_may_be_fed_in_the_place_of_what_computes_it(session: Session) -> None:
    x = placeholder(np.float64, (2,), name="x")
    y = x * 2
    z, c = y + 1, constant(5.0)
    np.testing.assert_array_equal(session.run(z, {y: [10, 20]}), [11, 21])
    np.testing.assert_array_equal(session.run(z, {x: [1, 1], y: [10, 20]}), [11, 21])
    assert session.run(c * 2, {c: 7}) == 14
    np.testing.assert_array_equal(session.run([y, z], {z: [0, 0], x: [1, 2]})[0], [2, 4])


def test_feeds_of_another_precision_are_converted(session: Session) -> None:
    x = placeholder(np.float32, (2,), name="x")
    for value in ([1, 2], np.array([1.0, 2.0]), np.array([1, 2], np.uint8), [True, True]):
        assert session.run(x, {x: value}).dtype == np.float32
    i = placeholder(np.int64, (None,))
    assert session.run(np.sum(i), {i: []}) == 0  # an empty list has no kind of its own
    assert session.run(x[0], {x: [1, 2], i: [3]}) == 1  # a feed that is not needed is no harm


@pytest.mark.parametrize(
    ("dtype", "value", "words"),
    [
        (np.int64, 1.5, "takes no float64 values"),
        (np.float32, 1j, "takes no complex128 values"),
        (np.float32, "one", "takes no <U3 values"),
        (np.bool_, 1, r"\.astype\('bool'\)"),
        (np.int8, 300, "takes whole numbers from -128 to 127; got 300"),
        (np.uint8, -1, "takes whole numbers from 0 to 255; got -1"),
        (np.uint8, np.uint16(256), "takes whole numbers from 0 to 255; got 256"),
        (np.float32, [[1, 2], [3]], "lists of numbers of one length; got"),
    ],
)
def test_feeds_of_another_kind_are_refused(session: Session, dtype: Any, value: Any, words: str) -> None:
    x = placeholder(dtype, (), name="x")
    with pytest.raises(InvalidArgumentError, match=words):
        session.run(x, {x: value})


def test_whole_numbers_that_fit_are_converted(session: Session) -> None:
    x = placeholder(np.int8, (2,), name="x")
    np.testing.assert_array_equal(session.run(x, {x: [127, -128]}), [127, -128])
    unsigned = placeholder(np.uint8, (2,), name="unsigned")
    np.testing.assert_array_equal(session.run(unsigned, {unsigned: [0, 255]}), [0, 255])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"graph": 3}, "graph is an nb.Graph or None .* not 3"),
        ({"target": 3}, "target is the text .* not 3"),
        ({"operation_timeout": "a"}, "operation_timeout is in seconds above 0, not 'a'"),
        ({"timeout": -1}, "timeout is in seconds above 0, not -1"),
    ],
)
def test_options_of_a_session_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Session(**options)


@pytest.mark.parametrize("feed", [[], 3, "x", [(1, 2)]])
def test_a_feed_dict_is_a_dict(session: Session, feed: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="feed_dict is a dict of values by tensor"):
        session.run(constant(1.0), feed)


def test_what_cannot_be_fetched_or_fed(session: Session) -> None:
    x, w = placeholder(np.float32, (None, 3), name="x"), Variable(np.zeros(3), name="w")
    with Graph().as_default():
        foreign, foreign_feed = constant(1.0), placeholder(np.float32, ())
    for fetch in (foreign, [w, foreign], {"a": foreign}):
        with pytest.raises(InvalidArgumentError, match="is not a tensor of this session's graph"):
            session.run(fetch)
    for wrong in (3, None, [w, 2.5]):
        with pytest.raises(InvalidArgumentError, match="it is not a tensor; fetch tensors, their names"):
            session.run(wrong)
    with pytest.raises(NotFoundError, match=r"no tensor 'loss'; its last ones are x, w"):
        session.run("loss")
    with pytest.raises(InvalidArgumentError, match=rf"'x' .*{__file__}.*\(\?, 3\) and float32 has to be fed"):
        session.run(x + 1)
    for shape in ((2, 4), (3,)):
        with pytest.raises(InvalidArgumentError, match=r"declared with shape \(\?, 3\) and is fed \("):
            session.run(x, {x: np.zeros(shape)})
    with pytest.raises(InvalidArgumentError, match=r"cannot feed <Variable 'w'.*a variable has a value"):
        session.run(w, {w: 1})
    for effect in (w.assign(w), group(w.assign(w))):
        with pytest.raises(InvalidArgumentError, match="it is run for its effect"):
            session.run(x, {effect: w})
    with pytest.raises(InvalidArgumentError, match="belongs to another graph"):
        session.run(w, {foreign_feed: 1})
    with pytest.raises(InvalidArgumentError, match="the keys of feed_dict are tensors"):
        session.run(w, {"x": 1})  # type: ignore[dict-item]


# Shapes


def test_every_batch_size_runs(session: Session) -> None:
    x = placeholder(np.float64, (None, 2))
    y = np.mean(x, axis=0)
    for rows in (4, 1, 3, 4):
        np.testing.assert_array_equal(session.run(y, {x: np.full((rows, 2), rows)}), [rows, rows])


def test_a_run_whose_shapes_keep_changing_is_planned_once_for_all(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Any] = []
    cut = Session._cut
    monkeypatch.setattr(Session, "_cut", lambda *given: plans.append(given) or cut(*given))
    x, w = placeholder(np.float64, (None, 2)), Variable(np.ones(2))
    begin(session)
    plans.clear()
    total, last = np.sum(np.tanh(x) * w), w.assign(x[-1])
    for rows in range(1, 3 * MOST_SHAPES):
        value, _ = session.run([total, last], {x: np.full((rows, 2), 0.5)})
        assert value == pytest.approx(np.tanh(0.5) * (2 if rows == 1 else 1) * rows)
    assert len(plans) == MOST_SHAPES + 1
    session.run([total, last], {x: np.zeros((1, 2))})  # one of the first shapes has its plan still
    assert len(plans) == MOST_SHAPES + 1


def test_sizes_that_are_known_only_at_run_time(session: Session) -> None:
    x = placeholder(np.int64, (None,))
    distinct = record("distinct_rows", x, rows=10)
    for value, expected in (([3, 1, 3], [1, 3]), ([2, 2, 2], [2]), ([], [])):
        found, more = session.run([distinct, distinct + 1], {x: value})
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(more, np.array(expected) + 1)


# Variables


def test_a_variable_has_no_value_until_its_initializer_has_run(graph: Graph, session: Session) -> None:
    w, other = Variable(np.zeros(3), name="w"), Variable(np.ones(3), name="other")
    with container("elsewhere"):
        c = Variable(np.zeros(3), name="c")
    session.run(other.initializer)
    line = f"{__file__}:{w.line[1] if w.line else 0}"
    for fetch in (w, w * 2, w[::-1], w.assign_add(w), w.read_value(), other + w):
        with pytest.raises(FailedPreconditionError) as caught:
            session.run(fetch)
        for words in ("variable 'w'", line, f"not initialised on {HERE}", "container 'localhost'"):
            assert words in str(caught.value)
        assert "initialised there: other" in str(caught.value)
        assert "global_variables_initializer" in str(caught.value)
    with pytest.raises(FailedPreconditionError, match=r"variable 'c'.* in container 'elsewhere'"):
        session.run(c)
    np.testing.assert_array_equal(session.run(w.assign(np.ones(3))), np.ones(3))  # that is a value, too
    np.testing.assert_array_equal(session.run(w), np.ones(3))
    np.testing.assert_array_equal(session.run(np.zeros_like(c)), np.zeros(3))  # its shape is enough


def test_a_variable_may_be_assigned_and_then_read_in_its_first_step(session: Session) -> None:
    w = Variable(2.0, name="w")
    with control_dependencies([w.initializer]):
        y = w * 3
    assert session.run([w.initializer, y]) == [2, 6]


def test_a_step_that_fails_leaves_its_variables_uninitialised(session: Session) -> None:
    w, x = Variable(np.zeros((2, 2)), name="w"), placeholder(np.float64, (2, 2))
    with pytest.raises(InvalidArgumentError, match=rf"LinAlgError at 'inv' \(inv.*{__file__}.* on {HERE}"):
        session.run(w.assign(np.linalg.inv(x)), {x: np.zeros((2, 2))})
    with pytest.raises(FailedPreconditionError, match="'w'"):
        session.run(w)


def test_two_sessions_without_a_target_share_nothing(graph: Graph, session: Session) -> None:
    w = Variable(np.zeros((2, 2), np.float32), name="w")
    y = w * 3
    begin(session)
    session.set_value(w, [[1, 2], [3, 4]])  # whole numbers are no loss
    np.testing.assert_array_equal(session.run(y), [[3, 6], [9, 12]])
    with Session(graph=graph) as other:
        with pytest.raises(FailedPreconditionError):
            other.run(y)
        begin(other)
        np.testing.assert_array_equal(other.run(y), np.zeros((2, 2)))
    np.testing.assert_array_equal(session.run(y), [[3, 6], [9, 12]])


def test_what_cannot_be_set(session: Session) -> None:
    w = Variable(np.zeros((2, 3), np.float32), name="w")
    with pytest.raises(InvalidArgumentError, match=r"'w' \(2, 3\) float32> to a value of shape \(3,\)"):
        session.set_value(w, np.zeros(3))
    with pytest.raises(InvalidArgumentError, match="takes no complex128 values"):
        session.set_value(w, np.zeros((2, 3), complex))
    with Graph().as_default():
        other = Variable(0.0)
    for wrong in (w + 1, other):
        with pytest.raises(InvalidArgumentError, match="not a variable of this session's graph"):
            session.set_value(wrong, np.zeros((2, 3)))  # type: ignore[arg-type]


def test_training_by_hand(session: Session) -> None:
    """A session, a placeholder, a gradient and an assignment: all a first lesson needs."""
    x, w = placeholder(np.float64, (None, 2), name="x"), Variable(np.zeros(2), name="w")
    loss = np.mean(np.square(x @ w - np.array([1.0, 2.0, 3.0])))
    (g,) = gradients(loss, [w])
    assert g is not None
    step = w.assign_sub(0.2 * g)
    begin(session)
    data = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    for _ in range(400):
        value, _ = session.run([loss, step], {x: data})
    assert value < 1e-12
    np.testing.assert_allclose(session.run(w), [1, 2], atol=1e-6)


# Where ops run, and on which threads


def test_the_device_of_this_process(session: Session) -> None:
    assert session.devices == [HERE]
    with device("/job:localhost/task:0/cpu:0"):
        assert session.run(constant(1.0) * 2) == 2
    with device("/job:worker/task:1"):
        elsewhere = constant(1.0) * 2
    with pytest.raises(InvalidArgumentError, match=rf"multiply.*no device '/job:worker/task:1' here.*{HERE}"):
        session.run(elsewhere)
    with device("/device:GPU:0"):
        y = constant(1.0) * 2
    with pytest.raises(InvalidArgumentError, match="allow_soft_placement=True"):
        session.run(y)
    with Session(allow_soft_placement=True) as soft:
        assert soft.run(y) == 2


def test_eval_takes_the_session_of_the_block_around(graph: Graph) -> None:
    w = Variable(3.0, name="w")
    x = placeholder(np.float64, ())
    y: Tensor = w * x
    with pytest.raises(FailedPreconditionError, match=r"multiply.eval\(\) needs a session"):
        y.eval(feed_dict={x: 1})
    with Session() as outer:
        begin(outer)
        with Session() as inner:
            begin(inner)
            inner.set_value(w, 5.0)
            assert y.eval(feed_dict={x: 2}) == 10
            assert y.eval(outer, {x: 2}) == 6
        assert y.eval(feed_dict={x: 2}) == 6
        in_thread: list[Any] = []
        thread = threading.Thread(target=lambda: in_thread.append(sessions()))
        thread.start()
        thread.join()
        assert in_thread == [[]]  # a block is its thread's own
    assert sessions() == []


def test_one_session_runs_in_several_threads_at_once(session: Session) -> None:
    w, x = Variable(np.zeros(1000), name="w"), placeholder(np.float64, (1000,))
    begin(session)
    y = np.sum(x * 2 + w)
    meet = threading.Barrier(4)
    found: list[Any] = []

    def work(n: int) -> None:
        meet.wait(PATIENCE)
        for _ in range(50):
            found.append((n, session.run(y, {x: np.full(1000, float(n))})))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(found)) == [(n, 2000.0 * n) for n in range(4)]
    assert len(found) == 200


def test_a_closed_session_says_so(graph: Graph) -> None:
    session = Session()
    w = Variable(0.0)
    with session:
        begin(session)
    session.close()
    for call in (lambda: session.run(w), lambda: session.set_value(w, 1.0), lambda: w.eval(session)):
        with pytest.raises(FailedPreconditionError, match="the session is closed; make another"):
            call()


def test_a_trace_says_what_took_how_long(session: Session) -> None:
    x = placeholder(np.float64, (3,), name="x")
    y = np.sum(np.tanh(x))
    value, timeline = session.trace(y, {x: np.zeros(3)})
    assert value == 0
    assert [span.name for span in timeline.spans] == ["tanh", "sum"]


def test_a_target_that_is_none(graph: Graph) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no target 'localhost:2222'; a target is server.target"):
        Session("localhost:2222")
    with pytest.raises(InvalidArgumentError, match=r"the keys of nbdist://127.0.0.1:2222 are not known here"):
        Session("nbdist://127.0.0.1:2222")
    with pytest.raises(InvalidArgumentError, match="transport is 'auto' or 'socket', not 'pigeon'"):
        Session(transport="pigeon")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "feed",
    [np.zeros((4, 5, 5, 1)), np.zeros((2, 3, 3, 1)), np.zeros((4, 25)), np.zeros((4, 6, 6, 1), np.float32)],
)
def test_a_registered_step_checks_what_it_is_fed(session: Session, feed: Any) -> None:
    """A client may send another shape than it has registered; kernels take views of the planned one."""
    x, kernel = placeholder(np.float64, (None, None, None, 1), name="x"), constant(np.ones((3, 3, 1, 1)))
    plan = session.plan(functional.conv2d(x, kernel), {x: np.zeros((4, 6, 6, 1))})
    store = Store()
    program = PieceProgram(plan.pieces[0], store, Containers("localhost"), lambda node: None, Scratch(store))  # type: ignore[arg-type, return-value]
    assert program.run([np.zeros((4, 6, 6, 1))])[0].shape == (4, 4, 4, 1)
    with pytest.raises(InvalidArgumentError, match=r"registered for \(4, 6, 6, 1\) float64"):
        program.run([feed])


def test_an_op_with_another_shape_than_its_spec_is_stopped(session: Session) -> None:
    register(Op("wrong", forward=lambda xp, x: x[:1], spec=lambda x: x))
    try:
        x = placeholder(np.float64, (3,))
        with pytest.raises(InvalidArgumentError, match=r"its spec is \(3,\), its value is \(1,\)"):
            session.run(record("wrong", x) * 2, {x: np.zeros(3)})
    finally:
        del OPS["wrong"]
