"""Attaching to a run: every point once, printed output, controls and results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from recording_view import RecordingView
from waiting import until

from nbdist.cluster.cluster import Cluster, set_current
from nbdist.cluster.description import change_description, read_description
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    NbdistError,
    NotFoundError,
    UnavailableError,
    WorkerError,
)
from nbdist.metrics.run_folder import RunFile, read_run, run_folder, write_run
from nbdist.metrics.store import RunStore, columns_from_logs
from nbdist.metrics.table import parts_from_logs
from nbdist.run import monitor
from nbdist.run.attach import attach_run
from nbdist.run.files.place import RunPlace
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.run.task.body import RunSpec, run_body
from nbdist.run.values.outcome import outcome_path
from nbdist.runtime.task import TaskInfo

if TYPE_CHECKING:
    Start = Callable[..., Cluster]

pytestmark = pytest.mark.engines

BODY = """
import numpy as np, os, threading
rng = np.random.default_rng(0)
y = np.arange(60) % 3
x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
print(f"hello from {{nb.task.rank}}")
class Gate(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        if epoch == 1 and {deaf}:
            from nbdist.run.task.agent import agent
            agent().subscribers._of.clear()
            print("while not reading")
        if epoch == 3:
            while not os.path.exists({gate!r}):
                threading.Event().wait(0.005)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.SGD(0.3), "sparse_categorical_crossentropy", metrics=["accuracy"])
data = nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(20)
history = model.fit(data, epochs={epochs}, callbacks=[Gate()])
print("bye")
big = np.arange(3_000_000.0)
"""
PATIENCE = 60.0


def wait(run: Run, seconds: float = PATIENCE) -> Run:
    """Wait for a run's end, with a limit."""
    until(run.poll, seconds)
    return run.wait()


def all_at_gate(folder: Path, replicas: int) -> bool:
    """Return whether all replicas have logged the twelve steps before the gate."""
    columns = columns_from_logs(folder)
    losses = columns["replica"][columns["series"] == "loss"]
    return all(np.count_nonzero(losses == replica) == 12 for replica in range(replicas))


def losses(run: Run) -> list[float]:
    assert run.history is not None
    return run.history["loss"]


def check_points_equal_logs(run: Run) -> None:
    """Check that the client has every logged point once and in order."""
    logged = RunStore()
    for part in parts_from_logs(run.folder):
        logged.extend(*part)
    theirs, ours = logged.columns(), run.store.columns()
    assert len(theirs["step"]) == len(ours["step"]) > 0
    orders = [np.lexsort((columns["series"].astype(str), columns["replica"])) for columns in (theirs, ours)]
    for name in theirs:
        assert np.array_equal(theirs[name][orders[0]], ours[name][orders[1]]), name


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "open"


def begin(cluster: Cluster, gate: Path, epochs: int = 6, **options: Any) -> Run:
    body = BODY.format(gate=str(gate), epochs=epochs, deaf=options.pop("deaf", False))
    return start_run(body, Options(**{"seed": 3, **options}), cluster=cluster)


def test_a_second_client_has_all_output_and_both_see_the_end(cluster: Cluster, gate: Path) -> None:
    first = begin(cluster, gate)
    until(lambda: first.poll() or all_at_gate(first.folder, 3))
    view = RecordingView()
    second = attach_run(first.id, make_view=lambda run: view)
    assert second.status == "running"
    assert set(view.text) == {info.name for info in cluster.tasks if info.job == "worker"}
    gate.touch()
    wait(second)
    check_points_equal_logs(second)
    wait(first)
    assert (first.status, second.status) == ("finished", "finished")
    assert view.text["/job:worker/task:1"] == "hello from 1\nbye\n"
    assert view.ended == ["finished"]
    assert np.array_equal(first.model.get_weights()[0], second.model.get_weights()[0])
    assert np.array_equal(second.results["big"], np.arange(3_000_000.0))
    assert losses(second) == losses(first)
    assert read_run(first.id).status == "finished"


def test_each_of_two_clients_may_stop_the_run(cluster: Cluster, gate: Path) -> None:
    gate.touch()
    first = begin(cluster, gate, epochs=10**6, strategy="one_device")
    until(lambda: first.poll() or len(first.store.replicas) == 3)
    second = attach_run(first.id)
    second.stop()
    wait(second)
    wait(first)
    assert (first.status, second.status) == ("stopped", "stopped")
    assert read_run(first.id).status == "stopped"
    check_points_equal_logs(second)
    assert np.array_equal(first.model.get_weights()[0], second.model.get_weights()[0])


@pytest.mark.parametrize("ends", [False, True])
def test_a_client_that_stopped_reading_catches_up(
    cluster: Cluster, gate: Path, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a notebook that computes for minutes without polling."""
    monkeypatch.setattr(monitor, "LAST_MESSAGE_SECONDS", 60.0)  # it asks again after 2 s, on a busy machine
    if ends:
        gate.touch()
    view = RecordingView()
    run = begin(cluster, gate, deaf=True, strategy="one_device")
    run.show_in(view)
    until(lambda: run.poll() or all("while not reading" in view.text.get(name, "") for name in run.tasks))
    gate.touch()
    wait(run)
    check_points_equal_logs(run)
    assert run.status == "finished"
    for rank in range(3):
        assert view.text[f"/job:worker/task:{rank}"] == f"hello from {rank}\nwhile not reading\nbye\n"


def test_attach_to_a_failed_run_has_its_error(cluster: Cluster) -> None:
    first = start_run("if nb.task.rank == 1: raise LookupError('lost')", Options(), cluster=cluster)
    with pytest.raises(WorkerError):
        wait(first)
    again = attach_run(first.id)
    assert again.status == "failed"
    assert isinstance(again.error, WorkerError)
    assert "LookupError: lost" in str(again.error)
    assert again.error.task == "/job:worker/task:1"


def test_attach_to_a_finished_run_has_its_results(cluster: Cluster, gate: Path) -> None:
    gate.touch()
    first = wait(begin(cluster, gate, epochs=2, name="early"))
    before = read_run(first.id)
    again = attach_run(first.id)
    assert again.status == "finished"
    assert np.array_equal(
        again.model.get_weights()[0], first.model.get_weights()[0]
    )  # the task still keeps the outcome
    wait(start_run("print(1)", Options(), cluster=cluster))
    view = RecordingView()
    again = attach_run(first.id, make_view=lambda run: view)
    assert (again.status, view.ended) == ("finished", ["finished"])
    assert again.model is None
    assert losses(again) == losses(first)
    assert [again.last_epoch(i) for i in range(3)] == [first.last_epoch(i) for i in range(3)]
    assert view.text["/job:worker/task:2"] == "hello from 2\nbye\n"
    check_points_equal_logs(again)
    assert read_run(first.id) == before
    assert attach_run().id > first.id  # the latest run


def test_the_error_for_an_unknown_run_names_the_latest(cluster: Cluster) -> None:
    latest = wait(start_run("n = 1", Options(name="known"), cluster=cluster))
    with pytest.raises(NotFoundError, match=f"no run 'nope'; the latest are {latest.id}"):
        attach_run("nope")


def test_the_error_for_a_busy_task_says_how_to_attach(cluster: Cluster, gate: Path) -> None:
    first = begin(cluster, gate)
    with pytest.raises(
        FailedPreconditionError, match=rf"nb.attach\('{first.id}'\) returns it in any notebook"
    ):
        start_run("print(1)", Options(), cluster=cluster)
    gate.touch()
    wait(first)


STARTER = """
import os, sys, time
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.launch import start_cluster
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.runtime.task import TaskInfo
body, folder = open(sys.argv[1]).read(), sys.argv[2]
options, id = eval(sys.argv[3])
if id:
    cluster = Cluster.attach(id)
else:
    cluster = start_cluster(workers=2, ps=1, report=None, orphan_timeout=60.0)
run = start_run(body, Options(**options), cluster=cluster)
deadline = time.monotonic() + 60
while not run.poll() and time.monotonic() < deadline and len(run.store.replicas) < 2:
    time.sleep(0.01)
print(cluster.id, run.id, flush=True)
os.kill(os.getpid(), 9)
"""


class AbandonedRun:
    """A run that continues after its client was killed.

    ``on`` is its cluster; None for one that the killed client has started. ``first`` begins the body.
    """

    def __init__(
        self, tmp_path: Path, gate: Path, on: Cluster | None, epochs: int = 6, first: str = "", **options: Any
    ) -> None:
        body, self.with_cluster = tmp_path / "body.py", on is None
        body.write_text(first + BODY.format(gate=str(gate), epochs=epochs, deaf=False))
        settings = {"seed": 3, **options}, on and on.id
        done = subprocess.run(
            [sys.executable, "-c", STARTER, str(body), str(tmp_path), repr(settings)],
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.stdout, done.stderr
        self.cluster, self.run = done.stdout.split()
        self.folder = run_folder(self.run)
        set_current(None)  # only clients of their own know it: this process attaches to it

    def stop(self) -> None:
        """Stop the cluster."""
        self.disconnect()
        with suppress(NotFoundError):
            Cluster.attach(self.cluster).stop()

    def disconnect(self) -> None:
        with suppress(NotFoundError):
            if Cluster.current().id == self.cluster:
                Cluster.current().close()


@pytest.fixture
def leave(start: Start, tmp_path: Path, gate: Path) -> Iterator[Callable[..., AbandonedRun]]:
    left: list[AbandonedRun] = []

    def leave_one(epochs: int = 6, with_cluster: bool = False, **options: Any) -> AbandonedRun:
        on = None if with_cluster else start(workers=2, ps=1)
        left.append(AbandonedRun(tmp_path, gate, on, epochs, **options))
        return left[-1]

    yield leave_one
    for one in left:
        one.stop() if one.with_cluster else one.disconnect()


@pytest.fixture
def reserved(cluster: Cluster, gate: Path) -> Iterator[RunSpec]:
    """A run whose client has ended: run.json and reservations that have expired are left."""
    short = "import nbdist.run.task.agent as agents\nagents.RESERVED_SECONDS = {seconds}"
    record = read_run(start_run("1", Options(), cluster=cluster).wait().id)
    reserved = replace(record, id=f"{record.id}-reserved", status="running", ended=None)
    folder = run_folder(reserved.id)
    folder.mkdir(mode=0o700)
    write_run(reserved)
    workers = [info.rank for info in cluster.tasks if info.job == "worker"]
    for rank in workers:
        cluster.peer(rank).call("run.reserve", {"run": reserved.id})
    cluster.run(short.format(seconds=0.0), on=workers)
    yield RunSpec(reserved.id, RunPlace(str(folder)), tuple(workers), Options(seed=1), "one_device")
    gate.touch()
    cluster.run(short.format(seconds=30.0), on=workers)


def test_a_run_that_was_reserved_and_has_never_begun_says_so(reserved: RunSpec) -> None:
    run = attach_run(reserved.run)
    with pytest.raises(UnavailableError, match=f"run {reserved.run} has never begun"):
        wait(run)
    assert read_run(reserved.run).status == "failed"
    with pytest.raises(NbdistError, match="has never begun"):
        attach_run(reserved.run).wait()


def test_a_body_that_waits_in_the_queue_of_its_engine_is_awaited(
    cluster: Cluster, reserved: RunSpec, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent while a cell ran there that takes longer than the reservation lasts."""
    submit, asked = Cluster.submit, set[Any]()
    cell = ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.01; done', str(gate)]
    cluster.submit(subprocess.call, cell, on=reserved.ranks)
    cluster.submit(run_body, reserved, "y = 7", on=reserved.ranks)

    def noted(self: Cluster, *given: Any, on: Any) -> Any:
        asked.add(on)
        return submit(self, *given, on=on)

    monkeypatch.setattr(Cluster, "submit", noted)  # of any client: this one need not be the current cluster's
    run = attach_run(reserved.run)
    until(lambda: run.poll() or asked == set(reserved.ranks))
    assert not run.over
    gate.touch()
    wait(run)
    assert (run.status, run.results["y"]) == ("finished", 7)


def test_a_run_survives_its_killed_client_and_can_be_fetched(
    leave: Callable[..., AbandonedRun], gate: Path
) -> None:
    left = leave(with_cluster=True)
    view = RecordingView()
    run = attach_run(make_view=lambda run: view)
    assert run.id == left.run
    gate.touch()
    wait(run)
    assert run.status == "finished"
    check_points_equal_logs(run)
    assert view.text["/job:worker/task:0"] == "hello from 0\nbye\n"
    assert run.model is not None
    assert len(losses(run)) == 6
    assert read_run(run.id).status == "finished"


def test_results_of_an_abandoned_run_outlive_its_cluster(
    leave: Callable[..., AbandonedRun], gate: Path
) -> None:
    left = leave(first="from nbdist.run.task import agent\nagent.FETCH_SECONDS = 0.1\n")
    gate.touch()
    until(lambda: all(outcome_path(left.folder, rank).exists() for rank in (0, 1)))
    first = attach_run(left.run)
    assert first.status == "finished"
    check_points_equal_logs(first)
    record = read_run(left.run)
    assert record.status == "finished"
    write_run(
        RunFile(**{**record.__dict__, "status": "running", "ended": None})
    )  # as if no client had attached
    left.stop()
    second = attach_run(left.run)
    assert second.status == "finished"
    assert np.array_equal(first.model.get_weights()[0], second.model.get_weights()[0])
    check_points_equal_logs(second)
    assert read_run(left.run).status == "finished"


def test_a_run_has_failed_if_its_cluster_ended_first(leave: Callable[..., AbandonedRun]) -> None:
    left = leave()
    until(lambda: all_at_gate(left.folder, 2))
    until(lambda: all((left.folder / f"output-000{rank}.log").exists() for rank in (0, 1)))
    left.stop()
    view = RecordingView()
    run = attach_run(left.run, make_view=lambda run: view)
    assert run.status == "failed"
    assert isinstance(run.error, UnavailableError)
    assert f"cluster {left.cluster} of run {left.run} has ended; its log ends on 20" in str(run.error)
    assert "step 12 of replica 0" in str(run.error)
    assert view.text["/job:worker/task:1"] == "hello from 1\n"
    check_points_equal_logs(run)
    record = read_run(left.run)
    assert record.status == "failed"
    assert record.error == str(run.error)
    with pytest.raises(UnavailableError):
        run.wait()
    assert attach_run(left.run).status == "failed"  # the status is kept


def test_attach_reports_a_worker_that_died_without_a_client(
    leave: Callable[..., AbandonedRun], gate: Path
) -> None:
    """Synchronous replicas wait for it until a client reports the death."""
    left = leave(epochs=6, strategy="multi_worker")
    until(lambda: all_at_gate(left.folder, 2))
    cluster = Cluster.attach(left.cluster)
    os.kill(cluster.tasks[1].pid, 9)
    until(lambda: len(cluster.dead()) == 1)
    view = RecordingView()
    run = attach_run(left.run, make_view=lambda run: view)
    gate.touch()
    wait(run)
    assert run.status == "finished"
    assert "killed by SIGKILL; training continues on 1 worker" in view.text["/job:worker/task:1"]
    assert run.global_step == 18
    check_points_equal_logs(run)


def test_an_in_graph_run_ends_with_its_kernel_and_frees_its_towers(
    leave: Callable[..., AbandonedRun],
) -> None:
    left = leave(replication="in-graph")
    view = RecordingView()
    run = attach_run(left.run, make_view=lambda run: view)
    assert run.status == "failed"
    assert run.tasks == ["/job:worker/task:0", "/job:worker/task:1"]
    assert "ended with it; its log ends on" in str(run.error)
    check_points_equal_logs(run)
    assert Cluster.current().id == left.cluster
    free = wait(start_run("n = nb.task.rank", Options(), cluster=Cluster.current()))
    assert free.results["n"] == 0


def test_a_later_cluster_with_the_same_id_is_not_confused(start: Start, gate: Path) -> None:
    gate.touch()
    first = start(workers=1, cluster_id="again")
    run = wait(begin(first, gate, epochs=1))
    write_run(RunFile(**{**read_run(run.id).__dict__, "status": "running", "ended": None}))
    outcome_path(run.folder, 0).unlink()
    first.stop()
    second = start(workers=1, cluster_id="again")
    later = attach_run(run.id)
    assert later.status == "failed"
    assert f"cluster again of run {run.id} has ended" in str(later.error)
    assert start_run("x = 3", Options(), cluster=second).wait().results == {"x": 3}


def test_a_cluster_of_another_version_is_refused(start: Start, gate: Path) -> None:
    cluster = start(workers=2, ps=1)
    run = begin(cluster, gate)
    versions = read_description(cluster.folder).versions
    change_description(cluster.folder, versions={**versions, "numpy": "1"})
    set_current(None)
    with pytest.raises(
        FailedPreconditionError, match=rf"run {run.id} cannot be reached.*(\n.*)*numpy +\d+ +1"
    ):
        attach_run(run.id)
    change_description(cluster.folder, versions=versions)
    gate.touch()
    wait(run)


def test_a_run_of_an_older_version_can_be_attached(own_home: Path, tmp_path: Path) -> None:
    """Its run.json has only the names of its cluster's tasks."""
    folder = run_folder("200101-000000-old")
    folder.mkdir(mode=0o700, exist_ok=True)
    write_run(
        RunFile(
            "200101-000000-old", status="finished", ended=2.0, created=1.0,
            cluster={"id": "ended", "tasks": ["/job:worker/task:0", "/job:worker/task:1", "/job:ps/task:0"]},
            options={"strategy": "ps", "epochs": 2, "live": ["loss"], "colour": "blue"},
        )
    )  # fmt: skip
    run = attach_run("200101-000000-old")
    assert (run.status, run.history, run.tasks) == (
        "finished",
        None,
        ["/job:worker/task:0", "/job:worker/task:1"],
    )
    assert run.wait() is run


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"workers": [0, 7]}, r"the ranks \[0, 7\] of its cluster, and the cluster's members are 0, 1"),
        ({"workers": [9]}, r"the ranks \[9\]"),
        ({"workers": []}, r"the ranks \[\]"),
        (
            {"workers": [0], "members": [{"job": "worker"}]},
            "a member of its cluster is not a task description",
        ),
    ],
)
def test_workers_that_are_not_members_are_damage(
    own_home: Path, cluster: dict[str, Any], message: str
) -> None:
    name = "200101-000002-damaged"
    run_folder(name).mkdir(mode=0o700, exist_ok=True)
    members = [TaskInfo("worker", n, n, "here", 1, "127.0.0.1:1", "CPU:0", 1).to_dict() for n in range(2)]
    write_run(
        RunFile(name, status="finished", ended=2.0, created=1.0, cluster={"members": members, **cluster})
    )
    with pytest.raises(DataLossError, match=rf"{name}/run.json is damaged: .*{message}"):
        attach_run(name)


def test_an_in_graph_run_of_a_dead_kernel_has_failed(own_home: Path) -> None:
    from nbdist.cluster.folder import this_process

    name = "200101-000001-towers"
    run_folder(name).mkdir(mode=0o700, exist_ok=True)
    owner = {**this_process(), "started": 1.0}
    cluster = {"id": "ended", "tasks": ["/job:client/task:0", "/job:worker/task:0"], "owner": owner}
    options = {"replication": "in-graph"}
    write_run(RunFile(name, status="running", created=1.0, cluster=cluster, options=options))
    run = attach_run(name)
    assert run.status == "failed"
    assert "--replication in-graph asks, and ended with it; nothing was logged" in str(run.error)
    assert run.tasks == ["/job:worker/task:0"]
    alive = {**cluster, "owner": this_process()}
    write_run(RunFile(name, status="running", created=1.0, cluster=alive, options=options))
    with pytest.raises(FailedPreconditionError, match="is running in this very notebook"):
        attach_run(name)
