"""In-graph runs on real engines: the body is on a thread of this process and drives a tower per worker."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from recording_view import RecordingView
from tiers import matrix
from waiting import PATIENCE, limit, until

import nbdist as nb
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NoTaskError,
    ResourceExhaustedError,
    TaskDiedError,
    UnavailableError,
    WorkerError,
)
from nbdist.graph.tensor import Graph
from nbdist.metrics.names import EPOCH, OF_TRAINING
from nbdist.metrics.run_folder import read_run
from nbdist.metrics.store import columns_from_logs
from nbdist.run import monitor
from nbdist.run.history import runs
from nbdist.run.options import Options
from nbdist.run.recovery import shutdown
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.runtime import task as tasks
from nbdist.terminal.ansi import ERROR, USUAL
from nbdist.train import context as contexts
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
# While a test waits for something else, the towers need the processor little.
ENDLESS = """
import threading
def slow(*batch):
    threading.Event().wait(0.005)
    return batch
""" + TRAIN.replace(".batch(20)", ".batch(20).map(slow)").format(epochs=1_000_000)
CLIENT = "/job:client/task:0"


@pytest.fixture
def view() -> RecordingView:
    return RecordingView()


@pytest.fixture
def begin(cluster: Cluster, view: RecordingView) -> Callable[..., Run]:
    def begin_one(body: Any, **options: Any) -> Run:
        asked = Options(replication="in-graph", **options)
        return start_run(body, asked, cluster=cluster, make_view=lambda run: view)

    return begin_one


@pytest.fixture(autouse=True)
def check_process_state() -> Iterator[None]:
    """After each test this process is as it was: threads, the screen, its task, its context."""
    before, screen = set(threading.enumerate()), (sys.stdout, sys.stderr)
    yield
    assert (sys.stdout, sys.stderr) == screen
    with pytest.raises(NoTaskError):
        tasks.current()
    assert contexts.current().towers is None
    left = [t for t in threading.enumerate() if t not in before and t.name.startswith("nbdist")]
    for thread in left:
        thread.join(PATIENCE)
    assert not [t.name for t in left if t.is_alive()]


def training(run: Run, steps: int = 1) -> Callable[[], bool]:
    """Return a condition: every tower has made ``steps`` steps."""
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


def counts(columns: dict[str, Any]) -> dict[tuple[int, str], int]:
    """The number of points by replica and series, without those that are taken at times of their own."""
    pairs = list(zip(columns["replica"].tolist(), columns["series"].tolist(), strict=True))
    return {pair: pairs.count(pair) for pair in pairs if pair[1] not in (EPOCH, *OF_TRAINING)}


# Runs and their results.


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_body_trains_towers_with_live_progress(
    begin: Callable[..., Run], view: RecordingView, synchronous: bool
) -> None:
    body = TRAIN.replace("epochs=", "validation_data=(x, y), epochs=").format(epochs=5)
    run = begin(body, seed=4, synchronous=synchronous, strategy="ps", name="towers").wait()
    assert (run.status, view.ended) == ("finished", ["finished"])
    assert run.tasks == [f"/job:worker/task:{i}" for i in range(3)]
    assert run.global_step == run.history.global_step == (15 if synchronous else 45)  # type: ignore[union-attr]  # trained
    assert run.model.evaluate(run.results["x"], run.results["y"])["accuracy"] > 0.9
    assert (run.history, run.model) == (run.results["history"], run.results["model"])
    own = {(i, name): 15 for i in range(3) for name in ("loss", "accuracy", "step_ms")}
    assert counts(run.metrics()) == own | {(0, "val_loss"): 5, (0, "val_accuracy"): 5}
    assert counts(columns_from_logs(run.folder)) == counts(run.metrics())
    assert "3 towers, one session" in view.text[CLIENT]
    assert set(view.text) == {CLIENT}
    last = view.standings[-1]
    assert (last.step, last.total) == (15, 15) if synchronous else (45, 45)
    assert [replica.step for replica in last.replicas] == [15, 15, 15]
    assert all(set(run.last_epoch(i)) >= {"loss", "accuracy"} for i in range(3))


def test_the_run_folder_describes_the_run(begin: Callable[..., Run]) -> None:
    run = begin(TRAIN.format(epochs=2), name="Same here!", seed=2).wait()
    record = read_run(run.id)
    assert (record.status, record.seed, record.code) == ("finished", 2, TRAIN.format(epochs=2))
    assert record.options["replication"] == "in-graph"
    assert record.cluster["tasks"][:2] == [CLIENT, "/job:worker/task:0"]
    names = {path.name for path in run.folder.iterdir()}
    assert names >= {"run.json", "output-0000.log", *(f"metrics-{i:04d}.log" for i in range(3))}
    for path in run.folder.iterdir():
        with suppress(FileNotFoundError):  # a tower may still put its part of the timeline in its place
            assert path.stat().st_mode & 0o077 == 0, path
    own = run.timeline()
    assert own.tasks[0] == CLIENT
    later = nb.timeline(run.id)  # read from the folder, as after the cluster's end
    assert list(later.tasks) == [task for task in own.tasks if task in later.tasks]


def test_the_flag_is_the_only_change(cluster: Cluster) -> None:
    """Synchronous towers train the weights of synchronous replicas and of one device, to float rounding."""
    weights = []
    for options in (
        {"on": "worker:0", "strategy": "one_device"},
        {"replication": "between-graph", "sync": True},
        {"replication": "in-graph", "sync": True},
    ):
        run = launch(TRAIN.format(epochs=3), seed=3, live=False, cluster=cluster, **options)
        weights.append(run.model.get_weights())
    for others in weights[1:]:
        for own, expected in zip(others, weights[0], strict=True):
            np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5)


def test_variables_without_a_parameter_server(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=1)
    run = launch(TRAIN.format(epochs=2), replication="in-graph", sync=True, live=False, cluster=cluster)
    assert run.global_step == 6
    with pytest.raises(InvalidArgumentError, match="needs a parameter server and the cluster has none"):
        launch("1", replication="in-graph", strategy="ps", live=False, cluster=cluster)


def test_on_selects_towers_and_the_runs_epochs_override_fit(begin: Callable[..., Run]) -> None:
    run = begin(TRAIN.format(epochs=50), on="worker:1-2", epochs=2, synchronous=True).wait()
    assert run.tasks == ["/job:worker/task:1", "/job:worker/task:2"]
    assert run.history.epoch == [0, 1]  # type: ignore[union-attr]
    assert set(run.metrics()["replica"].tolist()) == {0, 1}


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_tower_on_several_workers_reports_as_its_first(
    begin: Callable[..., Run], synchronous: bool
) -> None:
    body = TRAIN.format(epochs=3).replace('"softmax")])', '"softmax")], stages=2)')
    run = begin(body, synchronous=synchronous, on="worker:0-2").wait()
    assert set(run.metrics()["replica"].tolist()) == {0}
    last = run.tally.standing(time.monotonic(), run.store)
    assert (last.step, last.total) == (9, 9)
    assert [replica.state for replica in last.replicas] == ["finished", "part of a tower", "part of a tower"]


def test_results_are_the_bodys_objects_not_copies(begin: Callable[..., Run]) -> None:
    run = begin("function, thing = (lambda: 3), object()\nclass Named: pass\n_hidden = 1").wait()
    assert run.results["function"]() == 3
    assert set(run.results) == {"function", "thing"}
    with pytest.raises(WorkerError, match="--fetch absent: the body defined no 'absent'"):
        begin("x = 1", fetch=("absent",)).wait()


def test_a_function_is_a_body_too_and_shares_this_process(cluster: Cluster) -> None:
    made: list[Any] = []

    def body() -> Any:
        made.append(nb.task)
        model = nb.nn.Sequential([nb.nn.Dense(2, "softmax")])
        model.compile()
        return model, model.fit(np.ones((4, 3)), np.zeros(4, int)), made

    run = launch(body, replication="in-graph", live=False, cluster=cluster)
    assert run.results["result"][2] is made
    assert run.results["result"][0] is run.model
    assert run.history is run.results["result"][1]
    (task,) = made
    assert (task.name, task.info.pid, task.is_chief) == (CLIENT, os.getpid(), True)


def test_a_body_without_training_may_use_a_session(begin: Callable[..., Run], cluster: Cluster) -> None:
    body = """
import numpy as np
parts = []
for i in range(3):
    with nb.device(f"/job:worker/task:{i}"):
        parts.append(np.sum(nb.constant(np.arange(4.0)) * (i + 1)))
session = nb.Session(target)
total = session.run(sum(parts))
where = [part.device for part in parts]
session.close()
"""
    graph = Graph()
    with graph.as_default():
        run = begin(body.replace("target", repr(cluster.target))).wait()
    assert run.results["total"] == 36.0
    assert run.results["where"] == [f"/job:worker/task:{i}" for i in range(3)]
    assert run.results["parts"][0].graph is graph  # the notebook's own


def test_a_body_with_a_strategy_must_train(begin: Callable[..., Run]) -> None:
    with pytest.raises(
        FailedPreconditionError, match=r"the body never trained under its strategy.*no model\.fit"
    ):
        begin("x = 1", strategy="ps").wait()


# Output, tasks and threads.


def test_only_the_body_prints_to_the_run(
    begin: Callable[..., Run], view: RecordingView, capsys: pytest.CaptureFixture[str]
) -> None:
    go = threading.Event()

    def body() -> None:
        print("begun", nb.task.name, flush=True)
        print("a warning", file=sys.stderr)
        go.wait(PATIENCE)
        print("ended")

    run = begin(body)
    until(lambda: "begun" in view.text.get(CLIENT, ""), during=run)
    print("the notebook's")
    with pytest.raises(NoTaskError):
        _ = nb.task
    go.set()
    run.wait()
    assert view.text == {CLIENT: f"begun {CLIENT}\n{ERROR}a warning\n{USUAL}ended\n"}
    assert (run.folder / "output-0000.log").read_text() == view.text[CLIENT]
    assert capsys.readouterr().out == "the notebook's\n"


def test_output_of_towers_goes_to_the_run(begin: Callable[..., Run], view: RecordingView) -> None:
    body = TRAIN.replace(".shuffle(60)", ".map(tell)").replace("model =", "def tell(a, b):\n"
        "    print('element', nb.task.name)\n    return a, b\nmodel =")  # fmt: skip
    begin(body.format(epochs=1), on="worker:0-1").wait()
    assert view.text[CLIENT].count(f"element {CLIENT}\n") >= 2 * 60


def test_the_last_expression_is_shown(begin: Callable[..., Run], view: RecordingView) -> None:
    begin("x = 6\nx * 7").wait()
    assert view.text == {CLIENT: "42\n"}


# Errors.


def test_an_error_shows_the_users_lines_only(begin: Callable[..., Run]) -> None:
    run = begin("import numpy as np\na = {}\na['missing']")
    with pytest.raises(WorkerError) as caught:
        ended_within(run, 5)
    error = caught.value
    assert (error.task, error.ename, error.evalue) == (CLIENT, "KeyError", "'missing'")
    lines = str(error).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "line 3, in <module>" in lines[1]
    assert lines[2].strip() == "a['missing']"
    assert lines[-1] == f"raised on {CLIENT} (pid {os.getpid()})"
    assert run.status == read_run(run.id).status == "failed"
    with pytest.raises(InvalidArgumentError, match="SyntaxError in line 1 of the body: invalid syntax"):
        begin("x = = 2")

    def body() -> None:
        raise LookupError("lost")

    with pytest.raises(WorkerError, match="LookupError: lost") as caught:
        begin(body).wait()
    assert str(caught.value).count("File ") == 1


def test_a_nan_loss_is_reported_with_its_step(begin: Callable[..., Run]) -> None:
    body = TRAIN.format(epochs=3).replace("model =", "x[25] = np.nan\nmodel =")
    for synchronous in (True, False):
        with pytest.raises(WorkerError, match=r"NanLossError: .*at step \d"):
            begin(body, synchronous=synchronous).wait()
    assert begin(TRAIN.format(epochs=2)).wait().status == "finished"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on": "worker:7"}, "no task 7 in job 'worker'"),
        ({"on": "ps"}, "a body runs on workers"),
    ],
)
def test_a_run_that_cannot_start_leaves_no_folder(
    begin: Callable[..., Run], options: dict[str, Any], words: str
) -> None:
    before = {run.id for run in runs()}
    with pytest.raises(InvalidArgumentError, match=words):
        begin("1", **options)
    assert {run.id for run in runs()} == before


def test_a_strategy_that_cannot_be_created_leaves_no_folder(
    begin: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **named: object) -> Any:
        raise ResourceExhaustedError("no room for towers")

    before = {run.id for run in runs()}
    with monkeypatch.context() as patch:
        patch.setattr("nbdist.run.in_graph.start.in_graph_strategy", broken)
        with pytest.raises(ResourceExhaustedError, match="no room"):
            begin("1")
    assert {run.id for run in runs()} == before
    assert begin("x = 2").wait().results == {"x": 2}


# One run at a time.


def test_towers_are_reserved(
    begin: Callable[..., Run], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = "import nbdist.run.task.agent as agents\nagents.RESERVED_SECONDS = {seconds}"
    monkeypatch.setattr(monitor, "RESERVE_SECONDS", 0.05)
    first = begin(ENDLESS, on="worker:0-1", synchronous=True)
    try:
        cluster.run(short.format(seconds=2.0), on=[0, 1])
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 2.5, during=first)
        for replication in ("in-graph", "between-graph"):
            first.poll()  # poll() renews the reservation of the workers
            with pytest.raises(FailedPreconditionError, match=f"task:0 is busy with run {first.id}"):
                start_run("1", Options(replication=replication), cluster=cluster)
        second = begin("mine = nb.task.name", on="worker:2").wait()  # worker 2 is free
        assert second.results == {"mine": CLIENT}
    finally:
        cluster.run(short.format(seconds=30.0), on=[0, 1])
    first.stop()
    assert first.wait().status == "stopped"
    assert start_run("x = 2", Options(), cluster=cluster).wait().results == {"x": 2}


# Stopping.


@pytest.mark.parametrize("synchronous", [True, False])
def test_stopping_keeps_what_was_trained(
    begin: Callable[..., Run], synchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 60.0)  # a busy machine may need longer for a step
    run = begin(ENDLESS, synchronous=synchronous)
    until(training(run, steps=5), during=run)
    run.interrupt()
    ended_within(run, 4.9)
    assert run.status == read_run(run.id).status == "stopped"
    assert run.history.global_step == run.global_step >= 5  # type: ignore[union-attr]
    assert run.model.predict(run.results["x"]).shape == (60, 3)
    assert run.outcomes[4].get("error") is None  # it ended after a step, without an interrupt


def test_a_stop_before_the_first_step_takes_effect(begin: Callable[..., Run]) -> None:
    run = begin(ENDLESS, synchronous=True)
    stopper = threading.Thread(target=run.stop)  # from any thread
    stopper.start()
    stopper.join()
    ended_within(run, 4)
    assert run.status == "stopped"


def test_a_body_without_stop_checks_is_interrupted(begin: Callable[..., Run], view: RecordingView) -> None:
    run = begin("before = 1\nprint('looping')\nwhile True:\n    pass")
    until(lambda: view.text, during=run)
    run.interrupt()
    ended_within(run, 4)
    assert (run.status, run.results) == ("stopped", {"before": 1})
    assert run.outcomes[4]["error"]["type"] == "KeyboardInterrupt"


def test_a_second_interrupt_does_not_wait(
    begin: Callable[..., Run], view: RecordingView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 60.0)
    run = begin("print('looping')\nwhile True:\n    pass")
    until(lambda: view.text, during=run)
    run.interrupt()
    run.interrupt()
    ended_within(run, 3)
    assert run.status == "stopped"


def test_an_unstoppable_body_is_reported_and_ends_later(
    begin: Callable[..., Run], view: RecordingView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 0.6)
    monkeypatch.setattr(shutdown, "GIVE_UP_AFTER", 1.0)
    go, ended = threading.Event(), threading.Event()

    def body() -> None:
        print("waiting")
        try:
            go.wait(PATIENCE)  # in native code, where no exception is raised
            print("never")
        finally:
            ended.set()

    run = begin(body)
    until(lambda: view.text, during=run)
    run.interrupt()
    with pytest.raises(UnavailableError, match=rf"{CLIENT} \(pid {os.getpid()}\) did not stop within 5 s"):
        ended_within(run, 3)
    assert "Restart the kernel if it does not end" in str(run.error)
    assert run.status == "failed"
    after = begin("x = 3").wait()  # workers and notebook are free
    assert after.results == {"x": 3}
    assert not ended.is_set()
    go.set()
    assert ended.wait(PATIENCE)
    assert view.text == {CLIENT: "waiting\n"}


# Dead tasks: each test has its own cluster.


@pytest.mark.parametrize(
    ("victim", "synchronous", "late"),
    matrix(
        [
            ("/job:worker/task:0", True, False),
            ("/job:ps/task:0", False, False),
            ("/job:ps/task:0", True, True),
        ],
        rest=[("/job:worker/task:1", False, False), ("/job:ps/task:0", True, False)],
    ),
)
def test_a_dead_task_ends_the_run_and_is_named(
    start: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, victim: str, synchronous: bool, late: bool
) -> None:
    """``late``: its death is noticed after the body has ended with an error that it caused."""
    cluster = start(workers=2, ps=1)
    options = Options(replication="in-graph", synchronous=synchronous)
    run = start_run(ENDLESS, options, cluster=cluster)
    until(training(run), during=run)
    detector = run._monitor.detector
    found = detector.poll
    if late:
        monkeypatch.setattr(
            detector, "poll", lambda *given: found(*given) if run.members.ended_bodies else []
        )
    pid = next(info.pid for info in cluster.tasks if info.name == victim)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TaskDiedError, match=rf"{victim} \(pid {pid}\) died: killed by SIGKILL"):
        ended_within(run, 5)
    assert run.status == read_run(run.id).status == "failed"
    assert run.notes == []


def test_a_frozen_worker_does_not_block_the_notebook(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=2, ps=1)
    run = start_run(ENDLESS, Options(replication="in-graph", synchronous=True), cluster=cluster)
    until(training(run), during=run)
    pid = next(info.pid for info in cluster.tasks if info.name == "/job:worker/task:1")
    os.kill(pid, signal.SIGSTOP)
    try:
        run.interrupt()
        try:
            ended_within(run, 6)
        except UnavailableError as error:
            assert any(one in str(error) for one in ("did not stop", "is frozen"))  # noqa: PT017
    finally:
        os.kill(pid, signal.SIGCONT)


# Resources after a run.


def test_runs_leave_no_descriptors_or_shared_memory(begin: Callable[..., Run], cluster: Cluster) -> None:
    begin(TRAIN.format(epochs=1)).wait()
    with pytest.raises(WorkerError):
        begin(TRAIN.format(epochs=1) + "\n1 / 0").wait()
    own = psutil.Process()

    def open_counts() -> list[int]:
        """Return the numbers of this process's descriptors and connections, and each engine's descriptors."""
        engines = cluster.run("import os; len(os.listdir('/proc/self/fd'))")
        return [own.num_fds(), len(own.net_connections("tcp")), *engines]

    def segments() -> list[str]:
        found = []
        for one in Path("/dev/shm").glob(f"nbdist-{cluster.id}-*"):
            with suppress(FileNotFoundError):  # an engine has removed it just now
                found += [one.name] if one.lstat().st_size else []
        return found

    before = open_counts()
    for _ in range(3):
        begin(TRAIN.format(epochs=1), synchronous=True).wait()
    # The peer closes its end of a connection a little later than this process.
    deadline, pause = time.monotonic() + 10 + PATIENCE, threading.Event()
    while max(np.subtract(open_counts(), before)) > 3 or segments():
        assert time.monotonic() < deadline, (before, open_counts(), segments())
        pause.wait(0.05)
