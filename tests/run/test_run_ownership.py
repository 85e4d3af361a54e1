"""A client that attaches to a run whose starter has died replaces its lost tasks; others only observe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from recording_view import RecordingView
from tiers import matrix
from waiting import PATIENCE, limit, until

from nbdist.cluster.cluster import Cluster, set_current
from nbdist.cluster.supervisor.client import CONTROLLER
from nbdist.errors import FailedPreconditionError, NotFoundError, TaskDiedError, UnavailableError
from nbdist.metrics.run_folder import read_run, run_folder
from nbdist.run import remote
from nbdist.run.attach import attach_run
from nbdist.run.recovery.ownership import LOCK, Handover, OwnerLock, RunOwnership
from nbdist.run.remote import EndedTasks, RemoteOutcomes
from nbdist.run.run import Run
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.frame import Frame

STEPS, EPOCHS = 8, 40
HELD = 3 * STEPS - 4  # steps that workers make without the gate, at least: their input is ahead of them
# From about its fourth epoch on, a worker waits before each batch until the gate is open.
BODY = """
import os, threading
import numpy as np
random = np.random.default_rng(0)
x = random.random((96, 5), np.float32) * np.float32({scale})
model = nb.nn.Sequential([nb.nn.Dense(8, activation="tanh"), nb.nn.Dense(1)])
model.compile(nb.optim.SGD(0.01), "mse")
passed = 0
def gated(*batch):
    global passed
    passed += 1
    while passed > 3 * {steps} and not os.path.exists({gate!r}):
        threading.Event().wait(0.005)
    if os.path.exists({gate!r} + "-slow"):  # a new process joins between two steps
        threading.Event().wait(0.1)
    return batch
data = nb.data.Dataset.from_arrays(x, x[:, :1]).shuffle(96).batch(12).map(gated)
history = model.fit(data, epochs={epochs})
"""
STARTER = """
import os, sys, time
from nbdist.cluster.cluster import Cluster
from nbdist.run.values.delivery import Given
from nbdist.run.options import Options
from nbdist.run.start import start_run
body, settings = open(sys.argv[1]).read(), eval(sys.argv[2])
cluster = Cluster.attach(settings.pop("cluster"))
given = Given(names={"scale": settings.pop("scale")})
if settings.pop("function"):
    def closed(source, scale):
        def body():
            exec(source, names := {"scale": scale, "nb": __import__("nbdist")})
            return names["model"]
        return body
    body = closed(body, given.names.pop("scale"))
run = start_run(body, Options(seed=3, **settings), cluster=cluster, given=given)
deadline = time.monotonic() + 60
while not run.poll() and time.monotonic() < deadline:
    if all(one.step >= HELD for one in run.standing().replicas):
        break
    time.sleep(0.01)
print(cluster.id, run.id, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), 9)
"""


class Started:
    """A run that a subprocess has started on a cluster, which waits and can be killed.

    Only clients of their own know the run and the cluster: this process attaches to both.
    """

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        function: bool = False,
        epochs: int = EPOCHS,
        **options: Any,
    ) -> None:
        self.gate, path = folder / "gate", folder / "body.py"
        path.write_text(BODY.format(gate=str(self.gate), steps=STEPS, epochs=epochs, scale="scale"))
        settings = {
            "cluster": cluster.id,
            "function": function,
            "scale": np.ones((96, 1)).tolist(),
            **options,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", STARTER.replace("HELD", str(HELD)), str(path), repr(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.cluster_id, self.run = self._process.stdout.readline().split()
        self.folder = run_folder(self.run)
        set_current(None)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        self.kill()
        with suppress(NotFoundError):
            Cluster.current().close()


@pytest.fixture
def begin(start: Callable[..., Cluster], tmp_path: Path) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def begin_one(tasks: tuple[int, int], **options: Any) -> Started:
        started.append(Started(tmp_path, start(*tasks), **options))
        return started[-1]

    yield begin_one
    for one in started:
        one.stop()


def kill(name: str) -> int:
    """Kill a task of the current cluster with SIGKILL; return its pid."""
    pid = next(info.pid for info in Cluster.current().tasks if info.name == name)
    os.kill(pid, signal.SIGKILL)
    return pid


def pid_of(name: str) -> int:
    return next(info.pid for info in Cluster.current().tasks if info.name == name)


def restarts(run: Run) -> list[dict[str, Any]]:
    return [dict(one) for one in read_run(run.id).restarts]


def joined(run: Run, number: int = 1) -> bool:
    found = restarts(run)
    return len(found) == number and found[-1]["step"] is not None


@pytest.mark.engines
@pytest.mark.parametrize(
    ("tasks", "options"),
    [((2, 1), {"strategy": "ps"}), ((2, 0), {"strategy": "multi_worker", "function": True})],
)
def test_an_attached_client_replaces_a_worker_after_its_starters_death(
    begin: Callable[..., Started], tasks: tuple[int, int], options: dict[str, Any]
) -> None:
    left, view = begin(tasks, **options), RecordingView()
    left.kill()
    run = attach_run(left.run, make_view=lambda run: view)
    name = "/job:worker/task:1"
    pid = kill(name)
    slow = left.gate.with_name("gate-slow")
    slow.touch()
    until(lambda: restarts(run), during=run)
    left.gate.touch()  # in multi_worker it joins at a step
    until(lambda: joined(run), during=run)
    slow.unlink()
    run.wait()
    assert run.status == "finished"
    (restart,) = restarts(run)
    assert joined(run)
    assert (restart["task"], restart["pid"], restart["problem"]) == (name, pid_of(name), "")
    note = f"{name} (pid {pid} -> {pid_of(name)}): it was replaced after "
    assert any(one.startswith(note) and one.endswith("(restart 1 of 3)") for one in run.notes)
    workers = 1 if options["strategy"] == "multi_worker" else 2
    assert run.global_step == workers * STEPS * EPOCHS  # as if no worker had died
    assert run.model is not None
    assert read_run(run.id).status == "finished"
    assert not (run.folder / LOCK).exists()


@pytest.mark.engines
def test_what_was_lost_without_a_client_is_replaced_and_the_restarts_are_counted_on(
    begin: Callable[..., Started],
) -> None:
    left = begin((2, 1), strategy="ps", max_restarts=2)
    watching = attach_run(left.run)  # while its starter lives
    assert not watching._followed.decides
    left.kill()
    until(lambda: watching._followed.decides, during=watching)
    kill("/job:worker/task:1")
    until(lambda: joined(watching), during=watching)
    watching._ownership.release()  # type: ignore[union-attr]  # as the end of its process does
    kill("/job:ps/task:0")
    until(lambda: len(Cluster.current().dead()) == 1)
    run = attach_run(left.run)
    until(lambda: len(restarts(run)) == 2, during=run)
    assert [one["task"] for one in restarts(run)] == ["/job:worker/task:1", "/job:ps/task:0"]
    kill("/job:worker/task:1")
    until(lambda: any("restart budget is spent (--max-restarts 2)" in one for one in run.notes), during=run)
    left.gate.touch()
    run.wait()
    assert run.status == "finished"
    assert run.standing().servers[0].startswith("/job:ps/task:0 was replaced after ")


@pytest.mark.engines
def test_a_client_that_is_not_the_owner_shows_what_the_owner_does(begin: Callable[..., Started]) -> None:
    left, view = begin((2, 1), strategy="ps"), RecordingView()
    left.kill()
    owner = attach_run(left.run)
    second = attach_run(left.run, make_view=lambda run: view)
    assert (owner._followed.decides, second._followed.decides) == (True, False)
    both = Both(owner, second)
    names = ["/job:worker/task:1", "/job:worker/task:0"]
    pids = []
    for number, name in enumerate(names, 1):
        pids.append(kill(name))
        until(lambda n=number: joined(owner, n), during=both)  # type: ignore[misc]
        until(lambda n=number: shown(second) == n, during=both)  # type: ignore[misc]
    server = "/job:ps/task:0"
    kill(server)
    until(lambda: len(restarts(owner)) == 3, during=both)
    left.gate.touch()
    until(both.poll)
    assert (owner.status, second.status) == ("finished", "finished"), (owner.error, second.error)
    for name, pid in zip(names, pids, strict=True):
        assert f"{name} (pid {pid} -> {pid_of(name)}): it was replaced after " in view.text[name]
    assert f"; replaced after {second.standing().servers[0].split(' after ')[1]}\n" in view.text[server]
    assert [one.restarts for one in second.standing().replicas] == [1, 1]
    assert second.model is not None
    assert second.global_step == owner.global_step
    assert len(restarts(owner)) == 3


@pytest.mark.engines
def test_a_paused_run_stays_paused_while_its_worker_is_replaced(begin: Callable[..., Started]) -> None:
    left = begin((2, 1), strategy="ps", epochs=1_000_000)
    left.gate.touch()
    run = attach_run(left.run)
    run.pause()
    until(lambda: run.standing().state == "paused", during=run)
    run._ownership.release()  # type: ignore[union-attr]  # as the end of its process does
    left.kill()
    kill("/job:worker/task:1")
    until(lambda: len(Cluster.current().dead()) == 1)
    again = attach_run(left.run)
    until(lambda: joined(again), during=again)
    until(lambda: {one.state for one in again.standing().replicas} == {"paused"}, during=again)
    assert again.standing().state == "paused"
    step = again.standing().step
    again.resume()
    until(lambda: again.standing().step > step + 100, during=again)
    again.stop()
    assert again.wait().status == "stopped"


@pytest.mark.engines
@pytest.mark.parametrize("name", matrix(["/job:ps/task:0"], rest=["/job:worker/task:0"]))
def test_a_client_that_is_not_the_owner_fails_with_the_owner(
    begin: Callable[..., Started], name: str
) -> None:
    left = begin((2, 1), strategy="ps", max_restarts=0)
    left.kill()
    owner, second = attach_run(left.run), attach_run(left.run)
    kill(name)
    until(lambda: second.members.away, during=second)  # it has seen it first, and leaves it to the owner
    until(Both(second, owner).poll)
    assert (owner.status, second.status) == ("failed", "failed")
    assert f"{name} (pid " in str(owner.error)
    assert str(second.error) == str(owner.error)


@pytest.mark.engines
def test_a_dead_controller_is_named_to_all_clients_and_leaves_no_engine(
    begin: Callable[..., Started],
) -> None:
    left = begin((2, 1), strategy="ps")
    left.kill()
    owner, second = attach_run(left.run), attach_run(left.run)
    cluster = Cluster.current()
    engines = [psutil.Process(info.pid) for info in cluster.tasks]
    began = time.monotonic()
    os.kill(cluster._supervisor.pids[CONTROLLER], signal.SIGKILL)
    until(Both(owner, second).poll)
    assert time.monotonic() - began < limit(10)
    for run in (owner, second):
        assert f"the cluster of run {left.run} has ended: killed by SIGKILL" in str(run.error)
    assert not psutil.wait_procs(engines, timeout=PATIENCE)[1]
    assert restarts(owner) == []


def shown(run: Run) -> int:
    """Return how many workers a client shows as replaced."""
    return sum(one.restarts for one in run.standing().replicas)


class Both:
    """Two clients of one run."""

    def __init__(self, *runs: Run) -> None:
        self.runs = runs

    @property
    def error(self) -> object:
        return [run.error for run in self.runs]

    def poll(self) -> bool:
        over = [run.poll() for run in self.runs]
        return all(over)


# Without engines.

WORKERS = [TaskInfo("worker", n, n, "here", 7, "127.0.0.1:80", "CPU:0", n) for n in range(3)]


class Answers:
    """Tasks of which 0 is frozen, 1 has another run, and 2 has the body."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def done(self) -> bool:
        return self.rank > 0

    def result(self) -> Any:
        if self.rank == 1:
            raise NotFoundError("it has another run")
        return "the body"


def test_the_body_is_asked_of_one_task_after_the_other() -> None:
    now = [0.0]
    handover = Handover(Answers, lambda: WORKERS, clock=lambda: now[0])
    assert not handover.poll()
    now[0] = 10.0
    assert handover.poll()
    assert (handover.found, handover.problem) == ("the body", "")
    nothing = Handover(Answers, lambda: WORKERS[1:2])
    assert nothing.poll()
    assert nothing.found is None
    assert nothing.problem == "/job:worker/task:1 did not hand over the body: it has another run"


def test_the_outcome_of_a_worker_that_has_left_the_cluster_is_not_awaited(tmp_path: Path) -> None:
    known = EndedTasks(WORKERS[:1])
    outcomes = RemoteOutcomes("r", tmp_path, known, WORKERS[:2], lambda rank, known: {}, lambda: False)
    assert outcomes.ready_ranks() == [1]
    assert isinstance(outcomes.outcome(1), TaskDiedError)


class Reserved(EndedTasks):
    """Tasks that are reserved, each with the answer to ``run.outcome`` and what its engine has returned."""

    def __init__(self) -> None:
        super().__init__(WORKERS)
        self.states = dict.fromkeys([0, 1, 2], "expired")
        self.returned: dict[int, Any] = {}

    def peer(self, rank: int) -> Any:
        answer = Frame("run.outcome", {"state": self.states[rank]})
        return SimpleNamespace(call=lambda *given, **more: answer)

    def queue(self, rank: int) -> Any:
        ready = lambda: [rank] if rank in self.returned else []
        return SimpleNamespace(ready_ranks=ready, outcome=self.returned.get)


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> Reserved:
    monkeypatch.setattr(remote, "POLL_SECONDS", 0.0)
    return Reserved()


def test_a_run_whose_tasks_never_got_its_body_is_not_awaited(tmp_path: Path, reserved: Reserved) -> None:
    """Its body may be in the queues of the engines: only behind these it is known that it was not sent."""
    outcomes = RemoteOutcomes("r", tmp_path, reserved, WORKERS, lambda rank, known: {}, queue=reserved.queue)
    reserved.returned = {0: False, 1: False}
    for _ in range(3):
        assert outcomes.ready_ranks() == []
    reserved.returned[2] = TimeoutError()
    for _ in range(3):
        assert outcomes.ready_ranks() == []
    reserved.returned[2] = False
    assert [outcomes.ready_ranks() for _ in range(2)][-1] == [0, 1, 2]
    assert "run r has never begun" in str(outcomes.outcome(0))


@pytest.mark.parametrize("elsewhere", ["coming", "owned"])
def test_a_run_that_has_begun_or_has_an_owner_is_awaited(
    tmp_path: Path, reserved: Reserved, elsewhere: str
) -> None:
    reserved.returned = dict.fromkeys([0, 1, 2], False)
    if elsewhere == "coming":
        reserved.states[1] = "coming"
    queue = reserved.queue if elsewhere == "coming" else lambda rank: None
    outcomes = RemoteOutcomes("r", tmp_path, reserved, WORKERS, lambda rank, known: {}, queue=queue)
    for _ in range(4):
        assert outcomes.ready_ranks() == []


def test_an_expired_reservation_of_a_run_that_has_ended_is_not_awaited(
    tmp_path: Path, reserved: Reserved
) -> None:
    outcomes = RemoteOutcomes("r", tmp_path, reserved, WORKERS, lambda rank, known: {})
    assert outcomes.ready_ranks() == [0, 1, 2]


def test_an_engine_that_is_not_there_hands_over_nothing() -> None:
    def ask(rank: int) -> Any:
        raise UnavailableError(f"rank {rank} has no engine")

    handover = Handover(ask, lambda: WORKERS)
    assert handover.poll()
    assert handover.problem.endswith("did not hand over the body: rank 2 has no engine")


def test_the_lock_of_an_owner_ends_with_its_process_and_not_with_its_children(tmp_path: Path) -> None:
    lock, other = OwnerLock(tmp_path), RunOwnership(tmp_path)
    assert lock.take()
    assert not other.poll()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.read(read, 1)
        os._exit(0)
    try:
        lock.release()
        until(lambda: other.poll())
        assert (other.is_owner, OwnerLock(tmp_path).take()) == (True, False)
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        other.release()


def test_a_client_does_not_start_a_run_that_another_one_owns(tmp_path: Path) -> None:
    first, second = RunOwnership(tmp_path), RunOwnership(tmp_path)
    first.begin()
    with pytest.raises(FailedPreconditionError, match=rf"another client owns .*{tmp_path.name}"):
        second.begin()
    assert not second.is_owner
    first.release()
    second.begin()
    second.release()
