"""Runs on real engines: results, output, errors, stops, dead tasks."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet
import pytest
from recording_view import RecordingView
from tiers import exhaustive, matrix
from waiting import PATIENCE, limit, until

from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MissingExtra,
    NotFoundError,
    TaskDiedError,
    UnavailableError,
    WorkerError,
)
from nbdist.metrics.run_folder import read_run
from nbdist.metrics.store import columns_from_logs
from nbdist.run.export.registry import EXPORTERS
from nbdist.run.history import runs
from nbdist.run.options import Options
from nbdist.run.recovery import shutdown
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.terminal.ansi import ERROR, USUAL
from nbdist.ui.api import launch

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

TRAIN = """
import numpy as np
rng = np.random.default_rng(0)
y = np.arange(60) % 3
x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.SGD(0.3), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(20), epochs={epochs})
"""
# While a test waits for something else, the engines need the processor little.
ENDLESS = """
import threading
def slow(*batch):
    threading.Event().wait(0.005)
    return batch
""" + TRAIN.replace(".batch(20)", ".batch(20).map(slow)").format(epochs=1_000_000)


@pytest.fixture
def view() -> RecordingView:
    return RecordingView()


@pytest.fixture
def begin(cluster: Cluster, view: RecordingView) -> Callable[..., Run]:
    def begin_one(body: Any, **options: Any) -> Run:
        return start_run(body, Options(**options), cluster=cluster, make_view=lambda run: view)

    return begin_one


@pytest.fixture
def no_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends the body, however long a busy machine takes for that: no process is replaced."""
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 60.0)


def training(run: Run, steps: int = 1) -> Callable[[], bool]:
    """Return a condition: every replica has made ``steps`` steps."""
    replicas = range(len(run.tasks))
    return lambda: (
        "loss" in run.store.series
        and all((last := run.store.last(i, "loss")) is not None and last.step >= steps for i in replicas)
    )


def ended_within(run: Run, seconds: float) -> Run:
    """Wait for the run to end; fail if that takes longer than ``seconds``."""
    began = time.monotonic()
    try:
        return run.wait()
    finally:
        assert time.monotonic() - began < limit(seconds)


def points_of(columns: dict[str, Any]) -> set[tuple[int, str, int, float]]:
    keys = ("replica", "series", "step", "value")
    return set(zip(*(columns[key].tolist() for key in keys), strict=True))


@pytest.mark.parametrize(
    "options",
    matrix(
        [
            {},
            {"strategy": "ps"},
            {"strategy": "ps", "synchronous": True},
            {"strategy": "ps", "transport": "socket"},
            {"strategy": "one_device"},
        ],
        rest=[{"strategy": "ps", "synchronous": True, "transport": "socket"}],
    ),
    ids=str,
)
def test_a_body_trains_and_its_results_are_fetched(
    begin: Callable[..., Run], view: RecordingView, options: dict[str, Any]
) -> None:
    run = begin(TRAIN.format(epochs=5), seed=4, **options).wait()
    assert (run.status, view.ended) == ("finished", ["finished"])
    last = run.standing()
    assert (last.state, last.seconds_left) == ("finished", None)
    assert run.standing() == last  # the clock has stopped
    assert run.tasks == [f"/job:worker/task:{i}" for i in range(3)]
    steps = 15 if options.get("synchronous") or options.get("strategy") == "one_device" else 45
    assert run.global_step == run.history.global_step == steps  # type: ignore[union-attr]
    assert run.history is run.results["history"]
    assert len(run.history["accuracy"]) == 5  # type: ignore[index]
    x, y = run.results["x"], run.results["y"]
    assert x.shape == (60, 4)
    assert run.model.predict(x).shape == (60, 3)
    assert run.model.evaluate(x, y)["accuracy"] > 0.9
    again = begin("import numpy as np\nweights = np.concatenate([w.ravel() for w in model.weights])").wait()
    np.testing.assert_array_equal(
        again.results["weights"], np.concatenate([w.ravel() for w in run.model.weights])
    )
    assert "rng" not in run.results  # it cannot be serialized, and `fetch` does not name it
    if options.get("transport") == "socket" or options == {"strategy": "ps"}:
        assert any(s.step > 0 and s.total for s in view.standings)


def test_the_run_folder_agrees_with_the_run(begin: Callable[..., Run]) -> None:
    run = begin(TRAIN.format(epochs=3), strategy="ps", name="Same here!", seed=2).wait()
    record = read_run(run.id)
    assert (record.status, record.seed, record.error) == ("finished", 2, "")
    assert record.code == TRAIN.format(epochs=3)
    assert record.ended is not None
    assert record.ended > record.created
    assert record.options["name"] == "Same here!"
    assert "same-here" in run.id
    assert record.cluster["tasks"] == [
        f"/job:{j}/task:{i}" for j, i in (("worker", 0), ("worker", 1), ("worker", 2), ("ps", 0))
    ]
    assert record.versions["numpy"] == np.__version__
    assert runs()[0].id == run.id
    logged = columns_from_logs(run.folder)
    assert points_of(logged) == points_of(run.metrics())
    assert len(logged["step"]) >= 3 * 9 * 3
    for path in run.folder.iterdir():
        with suppress(FileNotFoundError):  # a task may still put its part of the timeline in its place
            assert path.stat().st_mode & 0o077 == 0, path
    assert run.steps_per_second > 0
    for rank in range(3):  # the progress files, for readers without the run
        progress = json.loads((run.folder / f"progress-{rank:04d}.json").read_text())
        assert (progress["state"], progress["step"], progress["total"]) == ("finished", 9, 9)
    assert json.loads((run.folder / "run.json").read_text())["id"] == run.id


def test_equal_seeds_give_equal_trainings(begin: Callable[..., Run]) -> None:
    losses = [
        begin(TRAIN.format(epochs=3), strategy="ps", synchronous=True, seed=seed).wait().history["loss"]  # type: ignore[index]
        for seed in (7, 7, 8)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_the_runs_epochs_override_those_of_fit(begin: Callable[..., Run]) -> None:
    assert begin(TRAIN.format(epochs=50), epochs=2).wait().history.epoch == [0, 1]  # type: ignore[union-attr]


def test_each_rank_prints_under_its_own_name(begin: Callable[..., Run], view: RecordingView) -> None:
    run = begin(
        "import sys\nprint('I am', nb.task.rank)\nprint('warning', file=sys.stderr)\nnb.task.index * 10"
    ).wait()
    assert view.text == {
        f"/job:worker/task:{i}": f"I am {i}\n{ERROR}warning\n{USUAL}{i * 10}\n" for i in range(3)
    }
    for i in range(3):
        assert (run.folder / f"output-{i:04d}.log").read_text() == view.text[f"/job:worker/task:{i}"]


def test_a_plain_cell_shares_the_engines_namespace(begin: Callable[..., Run], view: RecordingView) -> None:
    begin("kept = nb.task.rank + 100").wait()
    run = begin("kept += 1\nsmall = 5\n_hidden = 1\nmodule = nb\nprint(kept)").wait()
    assert view.text["/job:worker/task:2"] == "103\n"
    assert run.results == {"kept": 101, "small": 5}
    assert begin("small = 5\nif small > 9:\n    kept = 0").wait().results == {
        "small": 5
    }  # a name that the body binds again is fetched again


def test_serializable_variables_are_fetched(begin: Callable[..., Run]) -> None:
    body = """
import numpy as np
array = np.arange(6).reshape(2, 3)
number, text, nothing, flag = np.float32(1.5), "text", None, True
nested = {"a": [1, (2.0, "b")], 3: array}
function = lambda: 1
def named(): pass
class Thing: pass
thing = Thing()
for loop in range(3):
    inside = loop
with open("/dev/null") as handle:
    pass
"""
    results = begin(body).wait().results
    np.testing.assert_array_equal(results["array"], [[0, 1, 2], [3, 4, 5]])
    assert (results["number"], results["text"], results["nothing"], results["flag"]) == (
        1.5,
        "text",
        None,
        True,
    )
    assert results["nested"]["a"] == [1, (2.0, "b")]
    np.testing.assert_array_equal(results["nested"][3], results["array"])
    assert (results["loop"], results["inside"]) == (2, 2)
    assert set(results).isdisjoint({"function", "named", "Thing", "thing", "handle", "np"})


def test_names_in_fetch_must_exist(begin: Callable[..., Run]) -> None:
    run = begin("import numpy as np\nearlier = 3").wait()
    assert begin("later = 4", fetch=("earlier", "later")).wait().results == {"earlier": 3, "later": 4}
    with pytest.raises(
        WorkerError, match="InvalidArgumentError: --fetch absent: the body defined no 'absent'"
    ):
        begin("x = 1", fetch=("absent",)).wait()
    with pytest.raises(WorkerError, match="--fetch f: a function cannot be fetched"):
        begin("def f(): pass", fetch=("f",)).wait()
    assert run.status == "finished"


def test_a_function_is_a_body_too(cluster: Cluster) -> None:
    def body() -> Any:
        import nbdist as nb

        print("hello from", nb.task.rank)
        return {"rank": nb.task.rank, "three": 3}

    body.__module__ = "__main__"  # as in a notebook; a function of a module is sent as its name
    run = launch(body, cluster=cluster, live=False)
    assert run.results == {"result": {"rank": 0, "three": 3}, "rank": 0, "three": 3}


@pytest.mark.parametrize(
    ("on", "tasks"),
    [("worker", [0, 1, 2]), ("worker:1", [1]), ("worker:0-1", [0, 1]), ("worker:0,2", [0, 2])],
)
def test_a_body_runs_on_the_selected_workers(
    begin: Callable[..., Run], view: RecordingView, on: str, tasks: list[int]
) -> None:
    run = begin("print(nb.task.rank)\nmine = nb.task.rank", on=on).wait()
    assert set(view.text) == set(run.tasks)
    assert run.tasks == [f"/job:worker/task:{i}" for i in tasks]
    assert run.results == {"mine": tasks[0]}


def test_two_of_three_workers_train(begin: Callable[..., Run]) -> None:
    run = begin(TRAIN.format(epochs=2), on="worker:1-2", strategy="ps", synchronous=True).wait()
    assert run.global_step == 6
    assert set(run.metrics()["replica"].tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("body", "options", "words"),
    [
        ("", {}, "the body is empty"),
        (" \n\n", {}, "the body is empty"),
        ("1", {"on": "worker:7"}, "no task 7 in job 'worker'; it has 0 to 2"),
        ("1", {"on": "evaluator"}, "the cluster has no job 'evaluator'; its jobs are ps, worker"),
        ("1", {"on": "ps"}, "a body runs on workers"),
        ("1", {"strategy": "one_device", "synchronous": True}, "one_device make steps of their own"),
    ],
)
def test_a_run_that_cannot_start_leaves_no_folder(
    begin: Callable[..., Run], body: str, options: dict[str, Any], words: str
) -> None:
    before = {run.id for run in runs()}
    with pytest.raises(InvalidArgumentError, match=words):
        begin(body, **options)
    assert {run.id for run in runs()} == before


def test_a_body_with_a_strategy_must_train(begin: Callable[..., Run]) -> None:
    for options in ({"strategy": "ps"}, {"synchronous": True}, {"epochs": 3}):
        run = begin("x = 1", **options)
        with pytest.raises(
            FailedPreconditionError, match=r"never trained under its strategy.*no model\.fit.*torch\.wrap"
        ):
            run.wait()
        assert run.results == {"x": 1}
        assert read_run(run.id).status == "failed"


# Failures.


def test_one_rank_fails_and_its_traceback_comes_first(begin: Callable[..., Run]) -> None:
    run = begin("import numpy as np\nif nb.task.rank == 1:\n    a = {}\n    a['missing']\nprint('fine')")
    with pytest.raises(WorkerError) as caught:
        ended_within(run, 5)
    error = caught.value
    assert (error.task, error.ename, error.evalue) == ("/job:worker/task:1", "KeyError", "'missing'")
    lines = str(error).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "line 4, in <module>" in lines[1]
    assert lines[2].strip() == "a['missing']"
    assert lines[-1].startswith("raised on /job:worker/task:1 (pid ")
    assert run.status == read_run(run.id).status == "failed"
    assert "KeyError" in read_run(run.id).error


FAILS = """
import threading
class Fail(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        if nb.task.rank == 2 and epoch == 1:
            raise ValueError("mine")
"""


@pytest.mark.parametrize(
    ("synchronous", "transport"),
    matrix([(True, "auto"), (False, "socket")], rest=[(True, "socket"), (False, "auto")]),
)
def test_an_error_aborts_workers_that_wait_in_a_step(
    begin: Callable[..., Run], synchronous: bool, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shutdown, "SIGNAL_AFTER", 60.0
    )  # all bodies stop at the abort message, without a signal
    monkeypatch.setattr(shutdown, "FAILED_AFTER", 60.0)
    body = FAILS + TRAIN.format(epochs="1_000_000, callbacks=[Fail()]")
    run = begin(body, strategy="ps", synchronous=synchronous, transport=transport)
    with pytest.raises(WorkerError, match="ValueError: mine") as caught:
        ended_within(run, 5)
    assert caught.value.task == "/job:worker/task:2"
    outcomes = [run.outcomes[i].get("error", {}) for i in range(3)]
    assert [outcome["type"] for outcome in outcomes] == ["AbortedError", "AbortedError", "ValueError"]
    assert "/job:worker/task:2 failed" in outcomes[0]["message"]
    after = begin("left = model.weights[0].shape").wait()  # namespaces and tasks are usable
    assert after.results == {"left": (4, 8)}


def test_a_mistake_in_the_code_shows_the_users_line(begin: Callable[..., Run]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        begin("x = 1\ny = = 2\n")
    assert str(caught.value) == "SyntaxError in line 2 of the body: invalid syntax\n    y = = 2\n        ^"


def test_a_traceback_shows_the_lines_of_functions_of_earlier_runs(begin: Callable[..., Run]) -> None:
    begin("def divide(a, b):\n    return a / b  # here").wait()
    with pytest.raises(WorkerError, match="return a / b  # here"):
        begin("divide(1, 0)").wait()


def test_a_nan_loss_is_reported_with_rank_and_step(begin: Callable[..., Run]) -> None:
    body = "import numpy as np\n" + TRAIN.format(epochs=3).replace(
        "model =", "x[25] = np.nan if nb.task.rank == 1 else 0\nmodel ="
    )
    with pytest.raises(WorkerError, match="NanLossError: the loss is NaN at step ") as caught:
        begin(body, strategy="ps").wait()
    assert caught.value.task == "/job:worker/task:1"
    assert begin(TRAIN.format(epochs=2)).wait().status == "finished"


@pytest.mark.parametrize(
    ("synchronous", "rank"), matrix([(True, 0), (False, 1)], rest=[(True, 1), (False, 0)])
)
def test_a_worker_that_does_not_train_is_named(
    begin: Callable[..., Run], rank: int, synchronous: bool
) -> None:
    lines = TRAIN.format(epochs=2).strip().splitlines()
    body = "\n".join([*lines[:-1], f"if nb.task.rank != {rank}:", f"    {lines[-1]}"])
    run = begin(body, strategy="ps", synchronous=synchronous)
    with pytest.raises(FailedPreconditionError, match=rf"but /job:worker/task:{rank} finished after 0"):
        ended_within(run, 6)
    assert begin(TRAIN.format(epochs=1)).wait().status == "finished"


def test_different_models_are_named(begin: Callable[..., Run]) -> None:
    body = TRAIN.format(epochs=1).replace("Dense(8", "Dense(8 + nb.task.rank")
    with pytest.raises(WorkerError, match=r"variable 0 is dense/kernel \(4, \d+\) <f4 on replica \d"):
        ended_within(begin(body, strategy="ps"), 6)


# Stopping.


@pytest.mark.parametrize("synchronous", [True, False])
def test_stopping_keeps_what_was_trained(
    begin: Callable[..., Run], synchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 60.0)  # a busy machine may need longer for a step
    run = begin(ENDLESS, strategy="ps", synchronous=synchronous)
    until(training(run, steps=5), during=run)
    run.stop()
    ended_within(run, 4)
    assert run.status == read_run(run.id).status == "stopped"
    assert run.history is not None
    assert run.history.global_step == run.global_step >= 5
    assert run.model.predict(run.results["x"]).shape == (60, 3)
    run.stop()  # no effect after the end
    assert run.status == "stopped"


@pytest.mark.usefixtures("no_replacement")
def test_a_stop_before_the_first_step_takes_effect(begin: Callable[..., Run]) -> None:
    run = begin(ENDLESS, strategy="ps", synchronous=True)
    run.stop()
    ended_within(run, 4)
    assert run.status == "stopped"
    assert begin(TRAIN.format(epochs=1)).wait().global_step == 9


@pytest.mark.usefixtures("no_replacement")
def test_a_body_without_stop_checks_is_interrupted(begin: Callable[..., Run], view: RecordingView) -> None:
    run = begin("before = 1\nprint('looping')\nwhile True:\n    pass")
    until(lambda: len(view.text) == 3, during=run)
    run.interrupt()
    ended_within(run, 5)
    assert run.status == "stopped"
    assert {outcome["error"]["type"] for outcome in run.outcomes.values()} == {"KeyboardInterrupt"}
    assert begin("after = before").wait().results == {"after": 1}


@pytest.mark.usefixtures("no_replacement")
def test_a_second_interrupt_does_not_wait(
    begin: Callable[..., Run], view: RecordingView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 60.0)  # a single interrupt would wait this long
    run = begin("print('looping')\nwhile True:\n    pass")
    until(lambda: len(view.text) == 3, during=run)
    run.interrupt()
    run.interrupt()
    ended_within(run, 3)
    assert run.status == "stopped"


@pytest.mark.usefixtures("no_replacement")
def test_an_interrupt_while_others_wait_in_a_step(begin: Callable[..., Run]) -> None:
    """Rank 1 is in an endless loop between two steps; the others wait for it."""
    body = """
class Busy(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        while nb.task.rank == 1 and epoch == 1:
            pass
""" + TRAIN.format(epochs="1_000_000, callbacks=[Busy()]")
    run = begin(body, strategy="ps", synchronous=True)
    until(training(run, steps=6), during=run)
    run.interrupt()
    ended_within(run, 5)
    assert run.status == "stopped"
    assert begin(TRAIN.format(epochs=1)).wait().status == "finished"


def test_one_run_at_a_time(begin: Callable[..., Run]) -> None:
    first = begin(ENDLESS, strategy="ps", name="first")
    before = {run.id for run in runs()}
    for options in ({}, {"on": "worker:2"}):
        with pytest.raises(
            FailedPreconditionError, match=rf"/job:worker/task:\d is busy with run {first.id}"
        ):
            begin("1", **options)
    assert {run.id for run in runs()} == before
    first.stop()
    first.wait()
    assert begin("x = 2").wait().results == {"x": 2}


def test_runs_on_different_tasks_are_independent(begin: Callable[..., Run]) -> None:
    first = begin(ENDLESS, on="worker:0", strategy="ps")
    second = begin(TRAIN.format(epochs=3), on="worker:1-2", strategy="ps").wait()
    assert second.global_step == 18
    first.stop()
    first.wait()
    assert first.status == "stopped"


def test_results_survive_a_view_that_cannot_be_created(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(run: Run) -> Any:
        raise ImportError("no widgets here")

    run = start_run("x = 4", Options(), cluster=cluster, make_view=broken).wait()
    assert run.results == {"x": 4}
    assert "ImportError: no widgets here" in capsys.readouterr().out


def test_endless_output_is_bounded(begin: Callable[..., Run], view: RecordingView) -> None:
    run = begin("for i in range(200_000):\n    print('x' * 100)\nprint('the end')", on="worker:0").wait()
    text = view.text["/job:worker/task:0"]
    assert text.startswith("x" * 100)
    assert text.endswith(("the end\n", "printed faster than they can be shown, and dropped]\n"))
    assert (run.folder / "output-0000.log").read_text() == text


def test_long_and_invalid_text_arrives(begin: Callable[..., Run], view: RecordingView) -> None:
    begin("print('\\N{snowman}' * 700_000, '\\ud800', end='')", on="worker:0").wait()
    assert view.text == {"/job:worker/task:0": "\N{SNOWMAN}" * 700_000 + " ?"}


def test_runs_leave_no_shared_memory_or_descriptors(begin: Callable[..., Run], cluster: Cluster) -> None:
    def segments() -> int:
        for info in cluster.tasks:  # after the releases: a connection keeps its order
            cluster.peer(info.rank).call("run.hello")
        names = [path.lstat() for path in Path("/dev/shm").glob(f"nbdist-{cluster.id}-*")]
        return sum(info.st_size > 0 for info in names)

    def descriptors() -> list[int]:
        return cluster.run("import os; len(os.listdir('/proc/self/fd'))")

    begin(TRAIN.format(epochs=1), strategy="ps").wait()
    with pytest.raises(WorkerError):
        begin(TRAIN.format(epochs=1) + "\n1 / 0", strategy="ps").wait()
    with pytest.raises(WorkerError):
        begin(FAILS + TRAIN.format(epochs="9, callbacks=[Fail()]"), strategy="ps").wait()
    assert segments() == 0
    before = descriptors()
    for _ in range(3):
        begin(TRAIN.format(epochs=1), strategy="ps").wait()
    # The peer closes its end of a connection a little later than this process.
    deadline, pause = time.monotonic() + PATIENCE, threading.Event()
    while max(np.subtract(descriptors(), before)) > 3:
        assert time.monotonic() < deadline, (before, descriptors())
        pause.wait(0.05)


# Dead tasks: each test has its own cluster.


@pytest.mark.parametrize(
    ("victim", "options"),
    matrix(
        [("/job:ps/task:0", {"transport": "socket", "max_restarts": 0})],
        rest=[  # a worker, and synchronous servers: in test_run_monitor_faults.py
            ("/job:worker/task:1", {"synchronous": True, "max_restarts": 0}),
            ("/job:ps/task:0", {"strategy": "ps", "max_restarts": 0}),
            ("/job:ps/task:0", {"synchronous": True, "max_restarts": 0}),
            ("/job:ps/task:0", {"max_restarts": 0}),
        ],
    ),
    ids=str,
)
def test_a_dead_task_is_reported_within_two_seconds(
    start: Callable[..., Cluster], victim: str, options: dict[str, Any]
) -> None:
    cluster = start(workers=2, ps=1)
    run = start_run(ENDLESS, Options(**options), cluster=cluster)
    until(training(run), during=run)
    pid = next(info.pid for info in cluster.tasks if info.name == victim)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TaskDiedError, match=rf"{victim} \(pid {pid}\)"):
        ended_within(run, 2.5)
    assert run.status == "failed"
    with pytest.raises(TaskDiedError, match=rf"{victim} \(pid {pid}\)"):
        start_run("1", Options(), cluster=cluster)
    if victim.startswith("/job:worker"):
        assert start_run("x = 3", Options(on="worker:0"), cluster=cluster).wait().results == {"x": 3}
    else:
        assert start_run("x = 3", Options(strategy="one_device"), cluster=cluster).status == "running"


UNSTOPPABLE = """
print(1)
while nb.task.rank == 1:
    try:
        while True:
            x = 1
    except BaseException:
        x = 2
"""


def test_a_task_that_can_neither_stop_nor_be_replaced_is_named(
    start: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, view: RecordingView
) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 0.1)
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 0.6)
    monkeypatch.setattr(shutdown, "RETRY_SECONDS", 0.2)
    cluster = start(workers=3, ps=1)
    run = start_run(UNSTOPPABLE, Options(on="worker:0-1"), cluster=cluster, make_view=lambda run: view)
    until(lambda: len(view.text) == 2 and 0 in run.outcomes, during=run)  # rank 0 has ended by itself
    other = cluster.replace(cluster.tasks[2:3])  # a cluster allows one replacement at a time
    run.interrupt()
    pid = cluster.tasks[1].pid
    with pytest.raises(
        UnavailableError, match=rf"task:1 \(pid {pid}\) did not stop .*%cluster restart worker:1"
    ):
        ended_within(run, 5)
    assert run.status == read_run(run.id).status == "failed"
    other.wait()
    with pytest.raises(FailedPreconditionError, match=f"task:1 is busy with run {run.id}"):
        start_run("1", Options(), cluster=cluster)
    assert start_run("x = 1", Options(on="worker:0"), cluster=cluster).wait().results == {"x": 1}
    cluster.stop()  # the task would compute beside all later tests


@exhaustive  # test_a_later_cluster_with_the_same_id_is_not_confused uses one again
def test_a_cluster_id_can_be_used_again(start: Callable[..., Cluster]) -> None:
    for _ in range(2):
        cluster = start(workers=1, cluster_id="again")
        assert start_run("x = 3", Options(), cluster=cluster).wait().results == {"x": 3}
        cluster.stop()


def test_without_a_parameter_server(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=1, ps=0)
    for options, words in (
        ({"strategy": "ps"}, "needs a parameter server and the cluster has none"),
        ({"staleness": 1}, "needs a parameter server and the cluster has none"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            start_run("1", Options(**options), cluster=cluster)
    assert start_run(TRAIN.format(epochs=2), Options(), cluster=cluster).wait().global_step == 6


def test_stopping_the_cluster_ends_its_run(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=1, ps=0)
    run = start_run(ENDLESS, Options(), cluster=cluster)
    while not run.store.series:
        run.poll()
    cluster.stop()
    with pytest.raises(TaskDiedError, match=r"the cluster was stopped here\. What run .* logged is in"):
        run.wait()
    assert (run.status, read_run(run.id).status) == ("failed", "failed")
    assert len(columns_from_logs(run.folder)["step"])


def test_an_unknown_run(cluster: Cluster) -> None:
    with pytest.raises(NotFoundError, match="no run"):
        read_run("nothing-of-that-name")


def test_a_callback_of_the_chief_ends_the_training_on_all_workers(cluster: Cluster) -> None:
    body = (
        TRAIN.format(epochs=1)
        + """
class Enough(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        self.stop_training = nb.task.is_chief and epoch == 1

data = nb.data.Dataset.from_arrays(x, y).batch(20)
first = model.fit(data, epochs=1_000_000, callbacks=[Enough()])
second = model.fit(data, epochs=3)
print(len(first.epoch) < 1_000_000, len(second.epoch))
"""
    )
    view = RecordingView()
    run = start_run(body, Options(strategy="ps"), cluster=cluster, make_view=lambda run: view).wait()
    assert run.status == "finished"
    assert set(view.text.values()) == {"True 3\n"}


def test_synchronous_replicas_refuse_a_shard(cluster: Cluster) -> None:
    body = TRAIN.format(epochs=1).replace(".shuffle(60)", ".shard(3, nb.task.rank)")
    with pytest.raises(WorkerError, match=r"one of 3 shards: synchronous replicas share each batch"):
        launch(body, strategy="ps", sync=True, live=False, cluster=cluster)
    assert launch(body, strategy="ps", live=False, cluster=cluster).status == "finished"


@pytest.mark.usefixtures("no_replacement")
def test_stop_from_another_thread_interrupts_a_busy_body(cluster: Cluster) -> None:
    view = RecordingView()
    body = "print('begun', flush=True)\nwhile True: pass"
    run = start_run(body, Options(), cluster=cluster, make_view=lambda run: view)
    while len(view.text) < 3:
        run.poll()
    stopper = threading.Thread(target=run.stop)
    stopper.start()
    run.wait()
    stopper.join()
    assert run.status == "stopped"
    assert launch("1", live=False, cluster=cluster).status == "finished"


def test_without_a_view_output_is_printed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    launch("print('hello'); print('open', end='')", live=False, on="worker:1", cluster=cluster)
    assert capsys.readouterr().out == "[worker 1] hello\n[worker 1] open\n"


ALLOCATE = """
import os
import numpy as np

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

before = resident()
arrays = [np.ones(1 << 20) for _ in range(4)]  # 32 MB
del arrays
after = resident()
"""


def test_a_worker_keeps_freed_memory_until_the_end_of_the_run(begin: Callable[..., Run]) -> None:
    for _ in range(2):  # the first run's memory is back at the system before the second begins
        results = begin(ALLOCATE).wait().results
        assert results["after"] - results["before"] > 24


def test_a_run_that_failed_is_exported_at_its_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: False)  # the interrupt ends it

    def broken(*given: Any) -> Any:
        raise RuntimeError("no route to the server")

    for name, write in (("trackio", interrupted), ("wandb", broken)):
        changed = replace(EXPORTERS[name], write=write, package="")
        monkeypatch.setitem(EXPORTERS, name, changed)
    options = Options(log_to=("trackio", "wandb", "parquet"), max_restarts=0)
    run = start_run(TRAIN.format(epochs=1) + "raise ValueError('late')", options, cluster=cluster)
    with pytest.raises(WorkerError, match="late"):
        run.wait()
    assert run.status == read_run(run.id).status == "failed"
    trackio, wandb, parquet = run.notes[-3:]
    assert trackio.startswith("--log-to trackio: it was interrupted. run.export(to='trackio')")
    assert "could not be exported to wandb: RuntimeError: no route to the server" in wandb
    assert f"points exported to parquet, {run.folder / 'exports' / 'points.parquet'}" in parquet
    assert parquet in capsys.readouterr().out
    file = pyarrow.parquet.read_table(run.folder / "exports" / "points.parquet")
    assert len(file) == len(columns_from_logs(run.folder)["step"]) > 0


def test_log_to_is_checked_before_the_run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPORTERS, "mlflow", replace(EXPORTERS["mlflow"], package="nothing_of_this_name"))
    with pytest.raises(MissingExtra, match="exports to mlflow"):
        start_run("1", Options(log_to=("mlflow",)), cluster=cluster)
    with pytest.raises(InvalidArgumentError, match="no export to 'csv'; choose from zip, trackio"):
        Options(log_to=("csv",))


def test_artifacts_of_all_replicas_are_in_the_runs_folder(cluster: Cluster, tmp_path: Path) -> None:
    body = f"""
path = f"{tmp_path}/rank.txt" + str(nb.task.rank)
with open(path, "w") as file:
    print("of rank", nb.task.rank, file=file)
nb.save_artifact(path, "rank.txt")
"""
    run = start_run(body, Options(artifact_quota=2), cluster=cluster).wait()
    texts = {name: path.read_text() for name, path in run.artifacts.items()}
    assert texts["rank.txt"] == "of rank 0\n"
    assert texts["worker-1/rank.txt"] == "of rank 1\n"
    (listed,) = [one for one in runs() if one.id == run.id]
    assert listed.artifacts.keys() == texts.keys()
