"""Runs with faults: a dead task, mismatched bodies, a failing view, a full disk."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from tiers import matrix
from waiting import PATIENCE, limit, until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    TaskDiedError,
    WorkerError,
)
from nbdist.run.options import Options
from nbdist.run.progress import Standing
from nbdist.run.protocols import RunCalls
from nbdist.run.recovery import shutdown
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.ui.display.run import RunView

pytestmark = pytest.mark.engines

MODEL = """
import numpy as np
x, y = np.eye(6, 4, dtype=np.float32), np.arange(6) % 3
model = nb.nn.Sequential([nb.nn.Dense(3, activation="softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
"""
# While a test waits for something else, the engines need the processor little.
ENDLESS = (
    MODEL
    + """
import threading
def slow(*batch):
    threading.Event().wait(0.005)
    return batch
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(2).map(slow), epochs=10_000_000)
"""
)


def until_it_trains(run: Run) -> Run:
    until(lambda: len(run.store.replicas) == len(run.tasks), during=run)
    return run


def kill(cluster: Cluster, name: str) -> int:
    pid = next(info.pid for info in cluster.tasks if info.name == name)
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_fit_over_the_memory_of_its_task_is_refused(start: Callable[..., Cluster]) -> None:
    """The limit of ``start_cluster(memory=)`` holds for each task; smaller ones succeed before and after."""
    cluster = start(workers=1, ps=1, memory="1M")
    wanted = {
        8: None,
        30_000: r"the training: weights, a copy, gradients .*for dense/kernel \(4, 30000\)",
        100_000: r"the model's weights \(the largest is dense/kernel \(4, 100000\) with 1,600,000 bytes\)",
        9: None,
    }
    for width, words in wanted.items():
        body = MODEL.replace("Dense(3,", f"Dense({width},")
        body += "losses = model.fit(nb.data.Dataset.from_arrays(x, y).batch(2))['loss']"
        run = start_run(body, Options(strategy="ps"), cluster=cluster)
        if words is None:
            assert run.wait().status == "finished"
            continue
        with pytest.raises(WorkerError, match=words) as caught:
            run.wait()
        assert "ResourceExhaustedError" in str(caught.value)
        assert "limit of 1,048,576 bytes" in str(caught.value)
        assert "start_cluster(memory=...)" in str(caught.value)


@pytest.mark.parametrize(
    "options",
    matrix(
        [pytest.param(Options(synchronous=True, max_restarts=0), id="sync")],
        rest=[pytest.param(Options(max_restarts=0), id="async")],
    ),
)
def test_a_dead_parameter_server_ends_the_run(start: Callable[..., Cluster], options: Options) -> None:
    cluster = start(workers=2, ps=1)
    run = until_it_trains(start_run(ENDLESS, options, cluster=cluster))
    began = time.monotonic()
    pid = kill(cluster, "/job:ps/task:0")
    with pytest.raises(TaskDiedError) as caught:
        run.wait()
    assert time.monotonic() - began < limit(5)
    assert f"/job:ps/task:0 (pid {pid}) died: killed by SIGKILL" in str(caught.value)
    assert str(run.folder) in str(caught.value)
    assert "The parameters are lost: start it again with %cluster restart ps:0" in str(caught.value)
    assert "--on" not in str(caught.value)
    with pytest.raises(TaskDiedError, match=r"has died\. The parameters are lost: start it again"):
        start_run("print(1)", Options(), cluster=cluster)
    cluster.restart("ps:0", report=lambda line: None)
    until_it_trains(start_run(ENDLESS, options, cluster=cluster)).stop()


def test_a_dead_worker_is_named_and_the_others_stay_usable(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=2, ps=1)
    options = Options(synchronous=True, max_restarts=0)
    run = until_it_trains(start_run(ENDLESS, options, cluster=cluster))
    began = time.monotonic()
    pid = kill(cluster, "/job:worker/task:1")
    with pytest.raises(TaskDiedError, match="killed by SIGKILL") as caught:
        run.wait()
    assert time.monotonic() - began < limit(2.5)
    assert f"/job:worker/task:1 (pid {pid})" in str(caught.value)
    assert "Run without it with --on, or start it again with %cluster restart worker:1" in str(caught.value)
    assert start_run("n = 3", Options(on="worker:0"), cluster=cluster).wait().results == {"n": 3}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_fit_that_not_every_worker_calls_is_an_error(cluster: Cluster, rank: int) -> None:
    body = MODEL + f"if nb.task.rank == {rank}:\n    model.fit(x, y)"
    with pytest.raises(
        FailedPreconditionError, match=r"is waiting in fit\(\) call 1, but .* finished after 0"
    ):
        start_run(body, Options(on="worker:0-1"), cluster=cluster).wait()
    assert start_run("n = 4", Options(), cluster=cluster).wait().results == {"n": 4}


def test_updates_of_all_fits_are_counted(cluster: Cluster) -> None:
    body = MODEL + "for batch_size in (2, 3):\n    model.fit(x, y, batch_size=batch_size)"
    run = start_run(body, Options(synchronous=True), cluster=cluster).wait()
    assert run.global_step == 3 + 2


def test_a_model_with_layers_defined_on_tasks_is_not_fetched(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    body = MODEL + (
        "from nbdist.nn.layers import Layer\n"
        "class Twice(Layer):\n"
        "    def call(self, x, weights): return x * 2.0\n"
        "model = nb.nn.Sequential([Twice(), nb.nn.Dense(3, activation='softmax')])\n"
        "model.compile()\n"
        "history = model.fit(x, y)"
    )
    run = start_run(body, Options(), cluster=cluster).wait()
    assert (run.status, run.model) == ("finished", None)
    assert run.history is not None
    assert "model stayed on /job:worker/task:0: no layer 'Twice'" in capsys.readouterr().out


class BrokenView:
    """A view with methods that all raise."""

    def tick(self) -> None:
        raise OSError("no page")

    def progress(self, standing: Standing) -> None:
        raise OSError("no page")

    def output(self, task: str, text: str) -> None:
        raise OSError("no page")

    def end(self, run: Run) -> None:
        raise OSError("no page")


def test_results_survive_a_failing_view(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    run = start_run("n = 5", Options(), cluster=cluster, make_view=lambda run: BrokenView()).wait()
    assert run.results == {"n": 5}
    assert f"the view of run {run.id} failed: OSError: no page" in capsys.readouterr().out


def test_a_training_of_one_step_has_no_staleness_and_is_shown(
    cluster: Cluster,
) -> None:
    run = start_run(MODEL + "model.fit(x, y)", Options(), cluster=cluster, make_view=RunView).wait()
    assert "staleness" not in run.store.series
    assert run.notes == []


class Withheld:
    """Calls with results that never arrive."""

    def ready_ranks(self) -> list[int]:
        return []

    def done(self) -> bool:
        return False


class LateCalls:
    """Calls with a result that arrives right after the first poll."""

    def __init__(self, calls: RunCalls) -> None:
        self.calls, self.looks = calls, 0

    def ready_ranks(self) -> list[int]:
        self.looks += 1
        return self.calls.ready_ranks() if self.looks > 2 else []

    def outcome(self, rank: int) -> Any:
        return self.calls.outcome(rank)

    def done(self) -> bool:
        return self.calls.done()


def test_an_outcome_that_arrives_after_the_poll_is_not_lost(cluster: Cluster) -> None:
    run = start_run("n = 8", Options(on="worker:0"), cluster=cluster)
    until(lambda: run._followed.calls.ready_ranks())
    run._followed.calls = LateCalls(run._followed.calls)  # type: ignore[assignment]
    while not run.members.ended_bodies:
        run._monitor.inbox.receive(run.members.chief)
    assert run.wait().results == {"n": 8}


def test_an_interrupt_during_the_fetch_of_results_sends_no_signal(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 0.0)
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 0.0)
    signalled: list[int] = []
    monkeypatch.setattr(cluster, "signal", lambda rank, number: signalled.append(rank))
    run = start_run("n = 6", Options(on="worker:0"), cluster=cluster)
    calls, run._followed.calls = run._followed.calls, Withheld()  # type: ignore[assignment]
    deadline = time.monotonic() + 10 + PATIENCE
    while not run.members.ended_bodies:
        run.poll()
        assert time.monotonic() < deadline
    run.interrupt()
    for _ in range(3):
        assert not run.poll()
    run._followed.calls = calls
    assert run.wait().results == {"n": 6}
    assert signalled == []


def test_a_folder_that_cannot_be_written_is_named_and_the_tasks_are_free(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(record: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("nbdist.run.start.write_run", full)
        with pytest.raises(ResourceExhaustedError, match=r"cannot be written: No space left.*make room"):
            start_run("n = 7", Options(), cluster=cluster)
    assert start_run("n = 7", Options(), cluster=cluster).wait().results == {"n": 7}


@pytest.mark.parametrize(
    ("options", "words"),
    [({"epochs": "3"}, "got '3'"), ({"epochs": True}, "got True"), ({"seed": 1.5}, "got 1.5")],
)
def test_options_of_a_wrong_type(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Options(**options)


def test_a_body_is_text_or_a_function() -> None:
    with pytest.raises(InvalidArgumentError, match="source text or a function, not 5"):
        start_run(5, Options())  # type: ignore[arg-type]


def test_a_run_ends_when_a_second_task_dies_before_the_first_death_has_ended_it(
    start: Callable[..., Cluster],
) -> None:
    """The death of the second was left open for ever: the run had failed, and decided nothing more."""
    cluster = start(workers=2, ps=1)
    body = "import os, time\ntime.sleep(0.2 * nb.task.rank)\nos._exit(3)"
    with pytest.raises(TaskDiedError, match="exited with code 3"):
        start_run(body, Options(), cluster=cluster).wait()
