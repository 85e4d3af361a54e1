"""Runs that outlive their processes: states while they train, and new runs that continue them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from recording_view import RecordingView
from tiers import matrix
from waiting import until

from nbdist.checkpoint.manager import state_files
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    TaskDiedError,
    WorkerError,
)
from nbdist.metrics.run_folder import read_run, runs_folder
from nbdist.metrics.store import columns_from_logs
from nbdist.run.attach import attach_run
from nbdist.run.history import runs
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import resume_run, start_run
from nbdist.ui.api import attach, launch

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

TRAIN = """
import threading
from pathlib import Path
import numpy as np

folder = Path({folder!r})

class Hold(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):  # all replicas: none may go on
        if epoch == 1 and (folder / "hold").exists():
            (folder / f"held-{{nb.task.rank}}").touch()
            while (folder / "hold").exists():
                threading.Event().wait(0.01)
            if (folder / "fail").exists():
                raise RuntimeError("the second epoch failed")

rng = np.random.default_rng(0)
y = np.arange(60) % 3
x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
layers = [nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.2), nb.nn.Dense(3, "softmax")]
model = nb.nn.Sequential(layers)
model.compile(nb.optim.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(14), epochs=4, callbacks=[Hold()])
"""


class Attempts:
    """Runs of one body, which waits at the end of its second epoch while the file "hold" is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.body = TRAIN.format(folder=str(folder))

    def start(self, cluster: Cluster, **options: Any) -> Run:
        wanted = {"strategy": "multi_worker", "checkpoint_every": 1, **options}
        return start_run(self.body, Options(**wanted), cluster=cluster, make_view=lambda run: RecordingView())

    def hold(self, cluster: Cluster, **options: Any) -> Run:
        """Start a run, and return it when its replicas wait and the state of step 10 is written."""
        (self.folder / "hold").touch()
        run = self.start(cluster, **options)
        until(lambda: any(self.folder.glob("held-0")), during=run)
        until(lambda: state_files(run.folder))
        return run

    def release(self, fail: bool = False) -> None:
        if fail:
            (self.folder / "fail").touch()
        (self.folder / "hold").unlink()


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def losses(run: Run) -> dict[tuple[int, int], float]:
    columns = columns_from_logs(run.folder)
    keys = zip(columns["replica"], columns["series"], columns["step"], columns["value"], strict=True)
    return {(int(r), int(s)): float(v) for r, name, s, v in keys if name == "loss"}


def kill_all(cluster: Cluster) -> None:
    """End every process of a cluster by SIGKILL: its supervisor, its controller, its engines."""
    supervisor = psutil.Process(cluster.tasks[0].pid).parent()
    assert supervisor is not None
    supervisor.suspend()  # it must not end the others in an orderly way, nor clean up
    everyone = [*supervisor.children(recursive=True), supervisor]
    assert len(everyone) >= len(cluster.tasks) + 2
    for one in everyone:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)
    psutil.wait_procs(everyone, timeout=20)


@pytest.fixture
def whole(cluster: Cluster, attempts: Attempts) -> Run:
    """A run on two workers that no process interrupts."""
    return attempts.start(cluster, on="worker:0-1", seed=3, checkpoint_every=None).wait()


@pytest.mark.parametrize("workers", matrix([2], rest=[1, 3]))
def test_a_run_outlives_all_processes_of_its_cluster(
    start: Callable[..., Cluster], attempts: Attempts, whole: Run, workers: int
) -> None:
    """Another cluster continues it: exactly on as many workers, up to the order of sums on others."""
    first = start(workers=2)
    held = attempts.hold(first, seed=3).wait_until(step=1)
    kill_all(first)
    attempts.release()
    with pytest.raises(NbdistError):
        held.wait()
    assert held.global_step == held.standing().step > 0  # what was logged: no task could tell
    second = start(workers=workers)
    again = held.resume() if workers == 2 else resume_run(held.id, cluster=second)
    again.wait()
    assert again.id != held.id
    assert read_run(again.id).resumed_from == held.id
    assert again.seed == 3
    assert min(step for _, step in losses(again)) in range(2, 12)
    assert again.tally.resumed_steps == min(step for _, step in losses(again)) - 1
    assert again.steps_per_second * again.seconds == pytest.approx(20 - again.tally.resumed_steps)
    assert again.model is not None
    assert whole.model is not None
    assert whole.history is not None
    assert again.history is not None
    compare = np.testing.assert_array_equal if workers == 2 else assert_close
    for a, b in zip(whole.model.weights, again.model.weights, strict=True):
        compare(a, b)
    if workers == 2:
        assert again.history.history == whole.history.history
        continued = losses(again)
        assert continued == {key: value for key, value in losses(whole).items() if key in continued}
    with pytest.raises(FailedPreconditionError, match="has finished"):
        again.resume()


def test_a_run_resumes_on_a_cluster_with_a_dead_task(
    start: Callable[..., Cluster], attempts: Attempts, whole: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = start(workers=2)
    held = attempts.hold(cluster, seed=3, max_restarts=0, min_workers=2)
    os.kill(cluster.tasks[1].pid, signal.SIGKILL)
    attempts.release()
    with pytest.raises(TaskDiedError):
        held.wait()
    again = held.resume().wait()
    assert "/job:worker/task:1" in capsys.readouterr().out  # which it has restarted
    assert again.model is not None
    assert whole.model is not None
    for a, b in zip(whole.model.weights, again.model.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_failed_run_resumes_on_its_cluster(cluster: Cluster, attempts: Attempts, whole: Run) -> None:
    """Also a run that was resumed, and has no state of its own: those of the first one continue."""
    run = attempts.hold(cluster, on="worker:0-1", seed=3)
    attempts.release(fail=True)
    with pytest.raises(WorkerError, match="the second epoch failed"):
        run.wait()
    for mark in ("hold", "held-0"):
        (attempts.folder / mark).unlink(missing_ok=True)
    (attempts.folder / "hold").touch()
    second = resume_run(run.id, cluster=cluster)
    until(lambda: (attempts.folder / "held-0").exists(), during=second)
    attempts.release(fail=True)
    with pytest.raises(WorkerError, match="the second epoch failed"):
        second.wait()
    for state in state_files(second.folder):
        state.unlink()
    third = attach(second.id).resume().wait()
    assert third.model is not None
    assert whole.model is not None
    for a, b in zip(whole.model.weights, third.model.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert third.id in repr(runs())
    assert "resumed from" in repr(runs())


@pytest.mark.parametrize(
    ("options", "exact"),
    matrix(
        [
            pytest.param({"strategy": "ps", "synchronous": True}, True, id="ps sync"),
            pytest.param({"strategy": "ps"}, False, id="ps async"),
            pytest.param({"strategy": "elastic", "every": 2}, False, id="elastic"),
        ],
        rest=[pytest.param({"strategy": "central"}, True, id="central")],
    ),
)
def test_other_strategies_resume(
    cluster: Cluster, attempts: Attempts, options: dict[str, Any], exact: bool
) -> None:
    given = {"on": "worker:0-1", "seed": 3, **options}
    whole = attempts.start(cluster, **given).wait()
    run = attempts.hold(cluster, **given)
    attempts.release(fail=True)
    with pytest.raises(WorkerError, match="the second epoch failed"):
        run.wait()
    again = resume_run(run.id, cluster=cluster).wait()
    assert again.model is not None
    assert whole.model is not None
    if exact:
        for a, b in zip(whole.model.weights, again.model.weights, strict=True):
            np.testing.assert_array_equal(a, b)
    assert max(step for _, step in losses(again)) == 20


LOOP = """
from pathlib import Path
import numpy as np
rng = np.random.default_rng(0)
y = np.arange(60) % 3
x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
strategy = nb.get_strategy()
with strategy.scope():
    model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.2), nb.nn.Dense(3, "softmax")])
    optimizer = nb.optim.Adam(0.02)

def step(x, y):
    each = nb.nn.losses.sparse_categorical_crossentropy(y, model(x, training=True))
    loss = nb.nn.compute_average_loss(each, 14)
    optimizer.minimize(loss)
    return loss

best = nb.train.state(loss=1e9)
data = strategy.distribute_dataset(nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(14))
for epoch in nb.train.epochs(4):
    for batch in data:
        loss = float(strategy.reduce("sum", strategy.run(step, batch)))
        best["loss"] = min(best["loss"], loss)
    if epoch == 2 and Path({fail!r}).exists():
        raise RuntimeError("the third epoch failed")
least = best["loss"]
"""


@pytest.mark.parametrize(
    "options", matrix([{"strategy": "multi_worker"}], rest=[{"strategy": "ps", "synchronous": True}]), ids=str
)
def test_a_loop_of_ones_own_resumes(cluster: Cluster, tmp_path: Path, options: dict[str, Any]) -> None:
    fail = tmp_path / "fail"
    body = LOOP.format(fail=str(fail))

    def run(**more: Any) -> Run:
        given = Options(on="worker:0-1", seed=3, fetch=("least",), **{**options, **more})
        return start_run(body, given, cluster=cluster, make_view=lambda run: RecordingView())

    whole = run().wait()
    fail.touch()
    failed = run(checkpoint_every=1)
    with pytest.raises(WorkerError, match="the third epoch failed"):
        failed.wait()
    fail.unlink()
    again = resume_run(failed.id, cluster=cluster).wait()
    assert again.model is not None
    assert whole.model is not None
    for a, b in zip(whole.model.weights, again.model.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.results["least"] == whole.results["least"]
    made = losses(again)
    assert made == {key: value for key, value in losses(whole).items() if key in made}
    other = start_run(body, Options(on="worker:0-2", resume=failed.id, **options), cluster=cluster).wait()
    for a, b in zip(whole.model.weights, other.model.weights, strict=True):
        assert_close(a, b)


def test_a_function_and_its_inputs_are_recorded(cluster: Cluster, tmp_path: Path) -> None:
    marker = tmp_path / "failed"

    def body(x: Any, path: str, scale: float = 1.0) -> Any:
        from pathlib import Path

        import nbdist as nb

        model = nb.nn.Sequential([nb.nn.Dense(1)])
        model.compile(nb.optim.SGD(0.1), "mse")
        model.fit(x, x.sum(1, keepdims=True) * scale, batch_size=4, epochs=2)
        if not Path(path).exists():
            Path(path).touch()
            raise RuntimeError("once")
        return float(offset) + len(model.get_weights())  # type: ignore[name-defined]  # noqa: F821

    body.__module__ = "__main__"  # as in a notebook
    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    options = {"strategy": "one_device", "on": "worker:0", "live": False, "checkpoint_every": "1h"}
    with pytest.raises(WorkerError, match="once"):
        launch(
            body, args=(x, str(marker)), kwargs={"scale": 0.5}, push={"offset": 4}, cluster=cluster,
            **options,
        )  # fmt: skip
    failed = runs()[0]
    recorded = runs_folder() / failed.id / "body.bin"
    assert recorded.stat().st_mode & 0o777 == 0o600
    again = attach_run(failed.id).resume().wait()
    assert again.results["result"] == 6.0
    assert again.global_step == 6


def test_what_cannot_be_recorded_is_said(cluster: Cluster) -> None:
    here = 1

    def body() -> Any:
        raise RuntimeError(here)

    run = start_run(body, Options(checkpoint_every=5, on="worker:0"), cluster=cluster)
    with pytest.raises(WorkerError):
        run.wait()
    with pytest.raises(FailedPreconditionError, match="it ended before the first state was written"):
        run.resume()
    (run.folder / "state-0001-000000000001.safetensors").touch()
    with pytest.raises(
        FailedPreconditionError, match=r"uses here of the function around it. Continue it where"
    ):
        run.resume()
    assert not (run.folder / "body.bin").exists()


def test_mistakes_are_said_before_anything_starts(cluster: Cluster) -> None:
    known = len(runs())
    for options, said in (
        ({"resume": "261123-000000-none"}, "no run '261123-000000-none'; the latest are"),
        ({"checkpoint_every": "soon"}, "got 'soon'"),
        ({"checkpoint_every": 5, "replication": "in-graph"}, "belongs to --replication between-graph"),
    ):
        with pytest.raises(NbdistError, match=said):
            start_run("print(1)", Options(**options), cluster=cluster)
    assert len(runs()) == known
    plain = start_run("print(1)", Options(), cluster=cluster).wait()
    with pytest.raises(FailedPreconditionError, match="started without --checkpoint-every"):
        start_run("print(1)", Options(resume=plain.id), cluster=cluster)
    with pytest.raises(InvalidArgumentError, match=r"--resume is the id of a run, as text.*, got 3"):
        start_run("print(1)", Options(resume=3), cluster=cluster)  # type: ignore[arg-type]


def test_names_of_earlier_cells_are_asked_for(cluster: Cluster, attempts: Attempts) -> None:
    run = attempts.start(cluster, on="worker:0", strategy="one_device").wait()
    with pytest.raises(WorkerError, match=r"Run the earlier cells first, then the cell with %%distribute"):
        start_run("prepared_by_a_cell()", Options(resume=run.id, on="worker:0"), cluster=cluster).wait()
