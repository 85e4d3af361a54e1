"""Sessions on engines: from the client, from bodies, and when tasks are killed, frozen or interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psutil
import pytest
from freezing import freeze
from runtime_tasks import begin
from tiers import matrix
from waiting import PATIENCE, limit, until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import AbortedError, FailedPreconditionError, NbdistError, UnavailableError
from nbdist.graph.scopes import container, device
from nbdist.graph.tensor import Graph, Tensor, Variable, placeholder
from nbdist.runtime.session import session as sessions
from nbdist.runtime.session.dispatch import FanOutRequest
from nbdist.runtime.session.session import Session

pytestmark = pytest.mark.engines
Start = Callable[..., Cluster]


def shipped(function: Any) -> Any:
    """Let a function travel by its code, as one from a notebook does, not by the name of this module."""
    function.__module__ = "__main__"
    return function


@shipped
def what_is_here() -> tuple[list[str], list[str]]:
    """Return the names of an engine's variables, and of its threads for sessions."""
    import threading

    from nbdist.runtime.task import current

    threads = [one.name for one in threading.enumerate() if one.name.startswith("nbdist session")]
    return current().server.sessions.store.names(), threads


def pid_of(cluster: Cluster, name: str) -> int:
    return next(info.pid for info in cluster.tasks if info.name == name)


def rank_of(cluster: Cluster, name: str) -> int:
    return next(info.rank for info in cluster.tasks if info.name == name)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process with all its threads, and let it continue in the end if it still exists."""
    freeze(pid)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class InThread:
    """A run on a thread of its own; ``waiting`` once it has asked all tasks."""

    def __init__(self, session: Session, fetch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting, self.error, self.value = threading.Event(), None, None
        collect = FanOutRequest.collect

        def noting(request: FanOutRequest) -> Any:
            self.waiting.set()
            return collect(request)

        def work() -> None:
            try:
                self.value = session.run(fetch)
            except NbdistError as error:
                self.error = error

        monkeypatch.setattr(FanOutRequest, "collect", noting)
        self._thread = threading.Thread(target=work)
        self._thread.start()
        assert self.waiting.wait(limit(10))

    def seconds(self, limit: float) -> float:
        """Wait for the end; return how long that took."""
        begun = time.monotonic()
        self._thread.join(limit + PATIENCE)
        assert not self._thread.is_alive(), f"no end within {limit} s"
        return time.monotonic() - begun


@pytest.mark.parametrize("transport", matrix(["auto"], rest=["socket"]))
def test_variables_and_work_are_on_their_engines(cluster: Cluster, graph: Graph, transport: Any) -> None:
    names = [f"/job:worker/task:{n}" for n in range(3)]
    x = placeholder(np.float64, (None, 2), name="x")
    with container("on engines"):
        with device("/job:ps/task:0"):
            w = Variable(np.array([1.0, 2.0]), name="w")
        with device("/job:worker/task:2"):
            v = Variable(5.0, name="v")
    sums: list[Tensor] = []
    for name in names:
        with device(name):
            sums.append(np.sum(x @ w) + v)
    with Session(cluster.target, transport=transport) as session:
        begin(session)
        for rows in (1, 4, 4, 20_000):
            values, timeline = session.trace(sums, {x: np.ones((rows, 2))})
            assert values == [3.0 * rows + 5] * 3
        assert {span.task for span in timeline.spans} >= {"/job:ps/task:0", *names}
        here = dict(
            zip((info.name for info in cluster.tasks), cluster.submit(what_is_here).results(), strict=True)
        )
        assert "w" in here["/job:ps/task:0"][0]
        assert "v" in here["/job:worker/task:2"][0]
        assert here["/job:worker/task:0"][0] == []
        assert all(len(threads) == 1 for _, threads in here.values())
    Session.reset(cluster.target, ["on engines"])
    until(lambda: all(found == ([], []) for found in cluster.submit(what_is_here).results()))


@shipped
def train(steps: int) -> tuple[float, int, float]:
    """Be one of the workers that drive a replica each and meet in the variables of the parameter servers."""
    import threading

    import numpy as np

    import nbdist as nb

    setter = nb.train.replica_device_setter(
        cluster=nb.task.cluster, worker_device=f"/job:worker/task:{nb.task.index}"
    )
    with nb.Graph().as_default(), nb.container("trained in bodies"), nb.device(setter):
        x = nb.placeholder(np.float64, (None, 2), name="x")
        w = nb.Variable(np.zeros(2), name="w")
        step = nb.train.get_or_create_global_step()
        loss = np.mean(np.square(x @ w - x @ np.array([1.0, -1.0])))
        (g,) = nb.gradients(loss, [w])
        with nb.control_dependencies([w.assign_sub(0.1 * g)]), nb.colocate_with(step):
            train = step.assign_add(1)
        rng = np.random.default_rng(nb.task.index)
        with nb.Session(nb.task.server.target) as session:
            if nb.task.is_chief:
                session.run(nb.global_variables_initializer())
            while True:  # until the chief has
                try:
                    session.run(step)
                    break
                except nb.errors.FailedPreconditionError:
                    threading.Event().wait(0.01)
            seen = 0
            for _ in range(steps):
                value, seen = session.run([loss, train], {x: rng.normal(size=(16, 2))})
            return float(value), int(seen), float(session.run(w)[0])


def test_bodies_train_between_graphs(cluster: Cluster) -> None:
    workers = [info.rank for info in cluster.tasks if info.job == "worker"]
    found = cluster.submit(train, 60, on=workers).results(60)
    assert max(seen for _, seen, _ in found) == 60 * len(workers)
    assert all(abs(w - 1) < 0.05 for _, _, w in found)
    assert all(loss < 0.05 for loss, _, _ in found)
    Session.reset(cluster.target, ["trained in bodies"])
    until(lambda: all(found == ([], []) for found in cluster.submit(what_is_here).results()))


@shipped
def on_another_task() -> list[str]:
    """Return the devices that ops without one are on, in sessions of each task."""
    import numpy as np

    import nbdist as nb

    with nb.Graph().as_default():
        y = nb.constant(np.ones(3)) * 2
        found = []
        for info in nb.task.roster:
            with nb.Session(f"nbdist://{info.address}") as session:
                assert session.run(y).tolist() == [2, 2, 2]
                found.append(session.plan(y).placement[y.name])
        return found


def test_a_body_may_use_any_task(cluster: Cluster) -> None:
    ((*found,),) = cluster.submit(on_another_task, on=1).results(20)
    names = [info.name.replace("/task", "/replica:0/task") + "/device:CPU:0" for info in cluster.tasks]
    assert found == names


def test_a_task_is_killed(start: Start, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = start(workers=3, ps=1)
    with device("/job:ps/task:0"):
        kept = Variable(1.0, name="kept")
    with device("/job:worker/task:2"):
        lost = Variable(2.0, name="lost")
    with device("/job:worker/task:1"):
        total = kept + lost
        alone = kept * 10
    with Session(cluster.target) as session, Session(cluster.target) as other:
        begin(session)
        assert session.run(total) == other.run(total) == 3
        pid = pid_of(cluster, "/job:worker/task:2")
        with frozen(pid):
            run = InThread(session, total, monkeypatch)
            os.kill(pid, signal.SIGKILL)
            assert run.seconds(10) < limit(2)
        for words in (
            f"/job:worker/task:2 (pid {pid} on ",
            "receives no more messages",
            "make a new session",
            "the other tasks continue",
        ):
            assert words in str(run.error)
        for one in (session, other):  # it was killed before this step
            begun = time.monotonic()
            with pytest.raises(UnavailableError, match="/job:worker/task:2"):
                one.run(total)
            assert time.monotonic() - begun < limit(2.5)
            assert one.run([alone, kept]) == [10, 1]
            assert one.run(kept.assign_add(0)) == 1
        monkeypatch.setattr(sessions, "RESET_SECONDS", 1.0)
        with pytest.raises(UnavailableError, match="/job:worker/task:2"):
            Session.reset(cluster.target)  # the others are reset
        with pytest.raises(AbortedError, match="reset"):
            session.run(kept)
        cluster.submit(what_is_here, on=rank_of(cluster, "/job:ps/task:0")).results(10)


def test_a_task_is_frozen_and_comes_back(start: Start, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = start(workers=1, ps=1)
    with device("/job:ps"):
        w = Variable(1.0, name="w")
    with device("/job:worker"):
        y = w.assign_add(1.0) * 10
        mine = Variable(3.0, name="mine")
    with Session(cluster.target) as session:
        begin(session)
        pid = pid_of(cluster, "/job:ps/task:0")
        with frozen(pid):
            run = InThread(session, y, monkeypatch)
            assert run.seconds(20) < limit(10)
            assert isinstance(run.error, UnavailableError)
            assert f"/job:ps/task:0 (pid {pid} on " in str(run.error)
            assert "frozen" in str(run.error)
            assert session.run(mine) == 3
        before = session.run(w)
        assert before in (1, 2)  # the step that was given up may or may not have been done
        assert session.run(y) == 10 * (session.run(w))


@shipped
def wait_for(frozen_pid: int) -> tuple[float, float]:
    """Freeze the parameter server and use it; return how long an interrupt took, and what comes after it."""
    import contextlib
    import os
    import signal
    import time

    import numpy as np

    import nbdist as nb

    with nb.Graph().as_default():
        with nb.device("/job:ps"):
            w = nb.Variable(np.float64(4.0), name="w")
        y = w * 2
        with nb.Session(nb.task.server.target) as session:
            session.run(nb.global_variables_initializer())
            session.run(y)
            begun = time.monotonic()
            try:  # it is seen to be frozen, and the interrupt comes then: perhaps before the next line
                os.kill(frozen_pid, signal.SIGSTOP)
                while True:  # a thread of it may have continued for a moment
                    with contextlib.suppress(nb.errors.UnavailableError):  # the interrupt comes late
                        session.run(y)
            except KeyboardInterrupt:
                waited = time.monotonic() - begun
                os.kill(frozen_pid, signal.SIGCONT)
                return waited, float(session.run(y))


@shipped
def run_for_ever() -> None:
    """Run steps until the process is killed."""
    import nbdist as nb

    with nb.Graph().as_default():
        with nb.device("/job:ps"):
            w = nb.Variable(1.0, name="w")
        y = w * 2
        with nb.Session(nb.task.server.target, isolate=True) as session:
            session.run(nb.global_variables_initializer())
            while True:
                session.run(y)


def test_a_body_is_interrupted_and_another_is_killed(start: Start) -> None:
    cluster = start(workers=1, ps=1)
    pid = pid_of(cluster, "/job:ps/task:0")
    ps, worker = rank_of(cluster, "/job:ps/task:0"), rank_of(cluster, "/job:worker/task:0")
    try:
        calls = cluster.submit(wait_for, pid, on=worker)
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, 20)
        cluster.signal(worker, signal.SIGINT)
        ((waited, value),) = calls.results(20)
        assert waited < limit(5)
        assert value == 8
    finally:
        os.kill(pid, signal.SIGCONT)
    cluster.submit(run_for_ever, on=worker)
    until(lambda: len(cluster.submit(what_is_here, on=ps).results()[0][1]) == 1)
    os.kill(pid_of(cluster, "/job:worker/task:0"), signal.SIGKILL)
    until(lambda: cluster.submit(what_is_here, on=ps).results() == [(["w"], [])])  # the first body's


def test_a_session_waits_in_vain_for_a_task_that_was_killed(start: Start, graph: Graph) -> None:
    cluster = start(workers=1, ps=1)
    os.kill(pid_of(cluster, "/job:ps/task:0"), signal.SIGKILL)
    until(lambda: bool(cluster.dead()))
    with device("/job:ps"):
        w = Variable(1.0, name="w")
    with pytest.raises(NbdistError, match=r"/job:ps/task:0 at .* did not answer within 1.5 s"):
        Session(cluster.target, timeout=1.5)
    with device("/job:worker"), Graph().as_default():
        mine = Variable(1.0, name="mine")
        with Session(cluster.target) as session:
            with pytest.raises(FailedPreconditionError):
                session.run(mine)
            begin(session)
            assert session.run(mine) == 1
    assert w.device == "/job:ps"
