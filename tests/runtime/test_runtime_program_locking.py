"""use_locking: sessions that change a variable at the same time lose nothing, and read nothing by halves."""

from __future__ import annotations

import threading
from typing import Any

import graph_steps
import numpy as np
import pytest
from examples import examples
from graph_steps import Meaning, Pieces, Step, cut, steps
from hypothesis import given, settings
from runtime_tasks import PS, TWO, Tasks, all_ways, begin
from waiting import PATIENCE

from nbdist.graph.compile.program import compile_program
from nbdist.graph.op import OPS
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, Tensor, Variable, constant, record
from nbdist.graph.variables import get_or_create_global_step, get_variable
from nbdist.nn.functional import embedding_lookup
from nbdist.optim import SGD, Adam, from_config
from nbdist.runtime.session.program import PieceProgram
from nbdist.runtime.session.session import Session


class Halves:
    """SGD that stops in the middle of its work on a variable, once, until a test lets it continue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open, self._first = threading.Event(), threading.Event(), True

        def apply(rule: SGD, p: Any, g: Any, slots: Any, step: int) -> None:
            half = len(p) // 2
            p[:half] -= g[:half]
            if self._first:
                self._first = False
                self.reached.set()
                assert self._open.wait(PATIENCE)
            p[half:] -= g[half:]

        monkeypatch.setattr(SGD, "apply", apply)

    def open(self) -> None:
        self._open.set()


def built(use_locking: bool) -> tuple[Graph, Variable, Tensor, Tensor]:
    """Return a variable of a parameter server, the op that changes it, and what another task makes of it."""
    with Graph().as_default() as graph:
        with device(PS):
            w = Variable(np.zeros(4), name="w")
        change = SGD(1.0, use_locking=use_locking).apply_gradients([(constant(-np.ones(4)), w)])
        with device(TWO):
            elsewhere = w * 10.0
        return graph, w, change, elsewhere


READS = ("the variable", "elsewhere", "where it lives", "rows")


def reading(which: str, w: Variable, elsewhere: Tensor) -> Any:
    with w.graph.as_default(), device(PS):
        if which == "rows":
            return embedding_lookup(w, constant(np.arange(4))) * 10.0
        return {"the variable": w, "elsewhere": elsewhere, "where it lives": np.tanh(w + 0.0) * 1.0}[which]


@pytest.mark.parametrize("which", READS)
@all_ways
def test_no_thread_reads_it_half_changed(tasks: Tasks, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    halves = Halves(monkeypatch)
    (one, _, change, _), (two, w, _, elsewhere) = built(True), built(True)
    read = reading(which, w, elsewhere)
    with tasks.session(one) as writer, tasks.session(two) as reader:
        begin(writer)
        before = reader.run(read)  # a program from before there was a lock
        work = threading.Thread(target=lambda: writer.run(change))
        work.start()
        assert halves.reached.wait(PATIENCE)
        begun, found = threading.Event(), []
        run = PieceProgram.run

        def noting(program: PieceProgram, *given: Any) -> Any:
            begun.set()
            return run(program, *given)

        monkeypatch.setattr(PieceProgram, "run", noting)
        look = threading.Thread(target=lambda: found.append(reader.run(read)))
        look.start()
        assert begun.wait(PATIENCE)
        halves.open()
        look.join(PATIENCE)
        work.join(PATIENCE)
        assert (before == 0).all()
        assert len(set(found[0])) == 1  # all before the change, or all after it
        assert len(set(reader.run(read))) == 1


def test_without_it_a_read_may_find_half_of_a_change(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the documentation says; nothing waits."""
    halves = Halves(monkeypatch)
    (one, _, change, _), (two, w, _, elsewhere) = built(False), built(False)
    with tasks.session(one) as writer, tasks.session(two) as reader:
        begin(writer)
        work = threading.Thread(target=lambda: writer.run(change))
        work.start()
        assert halves.reached.wait(PATIENCE)
        assert reader.run(w).tolist() == [1, 1, 0, 0]
        assert reader.run(elsewhere).tolist() == [10, 10, 0, 0]
        halves.open()
        work.join(PATIENCE)
        assert reader.run(w).tolist() == [1] * 4


def test_two_changes_follow_each_other(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the second begins while the first is at work, with slots and without, and of rows."""
    size, count = 200_000, 25
    workers = []
    for _ in range(3):
        with Graph().as_default() as graph, device(PS):
            w, table = Variable(np.zeros(size), name="w"), get_variable("t", (5_000, 20), initializer=0.0)
            step = get_or_create_global_step()
            rows = embedding_lookup(table, constant(np.arange(5_000)))
            rule = SGD(1.0, use_locking=True)
            ((sparse, _),) = rule.compute_gradients(-np.sum(rows), [table])
            pairs = [(constant(-np.ones(size)), w), (sparse, table)]
            workers.append((tasks.session(graph), rule.apply_gradients(pairs, step), [w, table, step]))
    begin(workers[0][0])

    def train(session: Session, change: Tensor) -> None:
        for _ in range(count):
            session.run(change)

    threads = [threading.Thread(target=train, args=worker[:2]) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session, _, fetches = workers[0]
    found, table_found, steps_made = session.run(fetches)
    assert steps_made == 3 * count
    assert (found == 3 * count).all()
    assert (table_found == 3 * count).all()
    for one, *_ in workers:
        one.close()


def test_an_error_gives_the_lock_back(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, w, change, _ = built(True)
    with tasks.session(graph) as session:
        begin(session)

        def broken(*given: Any) -> None:
            raise ZeroDivisionError("boom")

        with monkeypatch.context() as patch:
            patch.setattr(SGD, "apply", broken)
            with pytest.raises(ValueError, match=r"ZeroDivisionError at 'w/sgd/apply' .*boom"):
                session.run(change)
        session.run(change)
        assert session.run(w).tolist() == [1] * 4


def test_what_may_wait_holds_no_lock_and_is_given_a_copy() -> None:
    lock, seen, array = threading.Lock(), list[Any](), np.arange(3.0)
    with Graph().as_default():
        w = Variable(array, name="w")
        send = record("send", w, edge=0, device=TWO)
    program = compile_program(
        [],
        values={w: array},
        order=[w, send],
        kernels=lambda node: lambda value: seen.append((lock.locked(), value)),
        locks={w: lock},
    )
    program()
    ((held, value),) = seen
    assert not held
    assert not np.shares_memory(value, array)
    assert value.tolist() == [0, 1, 2]


def test_it_is_said_where_it_is_asked_for() -> None:
    assert "use_locking" not in SGD(0.1).to_config()
    assert from_config(Adam(0.1, use_locking=True).to_config()) == Adam(0.1, use_locking=True)
    with Graph().as_default():
        w = Variable(np.zeros(2), name="w")
        for use_locking in (False, True):
            SGD(0.1, use_locking=use_locking).apply_gradients([(constant(np.ones(2)), w)])
        found = [t.attrs.get("use_locking") for t in w.graph.tensors if t.type == "apply_gradient_0"]
    assert found == [None, True]


class Once:
    """A lock that its holder may not take again, and that may not be taken in two orders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        assert self._lock.acquire(timeout=20), "two wait for each other"

    def __exit__(self, *error: Any) -> None:
        self._lock.release()


@given(steps())
@settings(max_examples=examples(60))
def test_steps_mean_the_same_with_locks(step: Step) -> None:
    locks: dict[str, Once] = {v.name: Once() for v in step.values}

    def locked(*given: Any, values: Any, **more: Any) -> Any:
        return compile_program(*given, values=values, locks={v: locks[v.name] for v in values}, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_steps, "compile_program", locked)
        patch.setitem(OPS, "exchange", graph_steps.EXCHANGE)
        arrays = {v.name: value.copy() for v, value in step.values.items()}
        found = Pieces.of(cut(step), arrays).run(list(step.feeds.values()))
    meaning = Meaning(step)
    for value, expected in zip(found, meaning.fetched(), strict=True):
        np.testing.assert_array_equal(value, expected)
    for name, value in meaning.afterwards().items():
        np.testing.assert_array_equal(arrays[name], value)
