"""Controls of a training on real engines: pause, resume, learning rate, checkpoint."""

from __future__ import annotations

import os
import signal
import stat
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from recording_view import RecordingView
from tiers import matrix
from waiting import until

from nbdist import nn
from nbdist.data import Dataset
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, WorkerError
from nbdist.metrics.names import GRADIENT_NORM, LEARNING_RATE
from nbdist.optim import SGD
from nbdist.run.options import Options
from nbdist.run.progress import LOST
from nbdist.run.recovery import shutdown
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.runtime.ps.client import StepStopped
from nbdist.train import context as contexts
from nbdist.train.context import Context
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

TRAIN = """
import numpy as np, os, time
def slow(*batch):  # the engines of a run that a test waits for need the processor little
    time.sleep(0.005)
    return batch
gate = ""
class AtTheGate(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        while epoch == 2 and not os.path.exists(gate):
            time.sleep(0.002)
rng = np.random.default_rng(0)
y = np.arange(60) % 3
x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dense(3, "softmax")], seed=5)
model.compile(nb.optim.SGD(0.03, momentum=0.5), "sparse_categorical_crossentropy")
data = nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(20).map(slow)
history = model.fit(data, epochs={epochs}, callbacks=[AtTheGate()] if gate else [])
"""
LOOP = """
import numpy as np, os, time
def slow(*batch):  # the engines of a run that a test waits for need the processor little
    time.sleep(0.005)
    return batch
gate = ""
rng = np.random.default_rng(0)
y = np.arange(60) % 3
x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
strategy = nb.distribute.get_strategy()
with strategy.scope():
    model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dense(3, "softmax")], seed=5)
    optimizer = nb.optim.SGD(0.03, momentum=0.5)
def step(x, y):
    each = nb.nn.losses.sparse_categorical_crossentropy(y, model(x, training=True))
    loss = nb.nn.compute_average_loss(each, 20)
    optimizer.minimize(loss)
    return loss
data = strategy.distribute_dataset(nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(20).map(slow))
for epoch in range({epochs}):
    while epoch == 3 and gate and not os.path.exists(gate):
        time.sleep(0.002)
    for batch in data:
        strategy.run(step, batch)
"""
ENDLESS = 1_000_000
SEED = 4
PATIENCE = 30.0

INDEPENDENT = [{"strategy": "one_device"}, {"strategy": "ps"}, {"strategy": "elastic"}]
SYNCHRONOUS = [
    {"strategy": "ps", "synchronous": True},
    {"strategy": "ps", "synchronous": True, "transport": "socket"},
    {"strategy": "multi_worker"},
    {"strategy": "mirrored"},
    {"strategy": "central"},
]
IN_GRAPH = [
    {"replication": "in-graph", "synchronous": True},
    {"replication": "in-graph", "synchronous": True, "data": "workers"},
]
IN_GRAPH_ASYNC = [{"replication": "in-graph"}]


def body_params(
    options: list[dict[str, Any]], fits: list[dict[str, Any]], loops: list[dict[str, Any]]
) -> list[Any]:
    """Return parameters for fit and, between graphs, for a custom loop, with each of the options.

    The first tier has those in ``fits`` and in ``loops``.
    """
    first, rest = [], []
    for one in options:
        (first if one in fits else rest).append(pytest.param(TRAIN, one, id=f"fit {one}"))
        if "replication" not in one:
            (first if one in loops else rest).append(pytest.param(LOOP, one, id=f"loop {one}"))
    return matrix(first, rest)


@pytest.fixture
def view() -> RecordingView:
    return RecordingView()


@pytest.fixture
def begin(cluster: Cluster, view: RecordingView) -> Iterator[Callable[..., Run]]:
    begun: list[Run] = []

    def begin_one(body: Any, **options: Any) -> Run:
        options = {"seed": SEED, **options}
        if options.get("data") == "workers":
            body = body.replace(".map(slow)", "")  # towers that read their own batches map by ops only
        begun.append(start_run(body, Options(**options), cluster=cluster, make_view=lambda run: view))
        return begun[-1]

    yield begin_one
    for run in begun:
        if not run.over:  # after a failed test, free the cluster for the next one
            run.stop()
            run.wait()


def steps_of(run: Run) -> list[int]:
    return [one.step for one in run.standing().replicas]


def states_of(run: Run) -> set[str]:
    return {one.state for one in run.standing().replicas}


def wait_for_reports(run: Run, rounds: int = 3) -> None:
    """Wait for ``rounds`` progress reports of every replica that is not lost."""
    for _ in range(rounds):
        before = {i: latest.at for i, latest in enumerate(run.tally._latest) if latest.state != LOST}
        until(lambda before=before: all(run.tally._latest[i].at > at for i, at in before.items()), during=run)


def with_gate(body: str, gate: Path) -> str:
    """Return the body with a wait for the file ``gate`` after nine steps, so that it cannot end earlier."""
    return body.replace('gate = ""', f"gate = {str(gate)!r}")


def paused(run: Run, gate: Path | None = None) -> list[int]:
    """Pause a run after all replicas have begun to train, and return the steps of each."""
    until(lambda: min(steps_of(run)) > 2, during=run)
    run.pause()
    if gate is not None:
        for info in run.members.infos:  # a task processes messages in order
            run._cluster.peer(info.rank).call("run.hello")
        gate.touch()
    until(lambda: states_of(run) == {"paused"}, during=run)
    wait_for_reports(run, 1)  # the reports may lag by a step
    return steps_of(run)


def weights_after(rates: Callable[[int], float], steps: int) -> list[np.ndarray[Any, Any]]:
    """Return one device's weights after ``steps`` steps on the same data, at ``rates(step)``."""

    class ScheduledDevice(OneDeviceReplica):
        def pull(self) -> None:
            if self.report.global_step == steps:
                raise StepStopped
            self.set_learning_rate(rates(self.report.global_step + 1))

    class ScheduledStrategy(OneDeviceStrategy):
        def replica(self, variables: Any, optimizer: Any) -> ScheduledDevice:
            return ScheduledDevice(variables, optimizer)

    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
    with contexts.use(Context(strategy=ScheduledStrategy(), seed=SEED, quiet=True)):
        model = nn.Sequential([nn.Dense(8, "tanh"), nn.Dense(3, "softmax")], seed=5)
        model.compile(SGD(0.03, momentum=0.5))
        data = Dataset.from_arrays(x, y).shuffle(60).batch(20)
        model.fit(data, epochs=steps // 3 + 1)
    return model.get_weights()


# Those that make steps together are paused by test_a_new_learning_rate_applies_from_the_next_step, too.
@pytest.mark.parametrize(
    ("body", "options"),
    body_params(
        INDEPENDENT + SYNCHRONOUS + IN_GRAPH + IN_GRAPH_ASYNC,
        fits=[
            {"strategy": "one_device"},
            {"strategy": "elastic"},
            {"strategy": "multi_worker"},
            *IN_GRAPH_ASYNC,
        ],
        loops=[{"strategy": "ps"}],
    ),
)
def test_a_paused_run_makes_no_steps_and_resumes(
    begin: Callable[..., Run], options: dict[str, Any], body: str
) -> None:
    run = begin(body.format(epochs=ENDLESS), **options)
    steps = paused(run)
    wait_for_reports(run)
    assert steps_of(run) == steps
    assert run.standing().state == "paused"
    run.resume()
    until(lambda: min(steps_of(run)) > max(steps) + 2, during=run)
    assert run.standing().state == "running"
    run.stop()
    assert run.wait().status == "stopped"


@pytest.mark.parametrize(
    ("how", "options"),
    matrix(
        [
            ("stop", {"strategy": "multi_worker"}),
            ("stop", IN_GRAPH_ASYNC[0]),
            ("interrupt", {"strategy": "ps"}),
            ("interrupt", IN_GRAPH[0]),
        ],
        rest=[
            ("stop", {"strategy": "ps"}),
            ("stop", IN_GRAPH[0]),
            ("interrupt", {"strategy": "multi_worker"}),
            ("interrupt", IN_GRAPH_ASYNC[0]),
        ],
    ),
    ids=str,
)
def test_a_paused_run_can_be_stopped(
    begin: Callable[..., Run], options: dict[str, Any], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 5 * PATIENCE)  # the stop needs no signal
    monkeypatch.setattr(shutdown, "GIVE_UP_AFTER", 5 * PATIENCE)
    run = begin(TRAIN.format(epochs=ENDLESS), **options)
    paused(run)
    run.stop() if how == "stop" else run.interrupt()
    assert run.wait().status == "stopped"
    assert run.model.get_weights()[0].shape == (4, 8)
    assert "paused" not in {one.state for one in run.standing().replicas}


def test_a_paused_run_can_be_aborted(begin: Callable[..., Run], view: RecordingView) -> None:
    """A body that fails on one worker ends the others, which are paused."""
    body = """
if nb.task.index == 1:
    import threading
    from nbdist.train.context import current
    control = current().control
    with control._changed:
        control._changed.wait_for(lambda: control.paused)
    raise RuntimeError("on purpose")
"""
    run = begin(body + TRAIN.format(epochs=ENDLESS), strategy="one_device")
    until(lambda: run.trains and max(steps_of(run)) > 2, during=run)
    run.pause()
    with pytest.raises(WorkerError, match="on purpose"):
        run.wait()


def test_sigint_interrupts_a_paused_engine(begin: Callable[..., Run]) -> None:
    run = begin(TRAIN.format(epochs=ENDLESS), strategy="one_device")
    paused(run)
    run.interrupt()
    for info in run.members.infos:
        os.kill(info.pid, signal.SIGINT)
    run.wait()
    assert run.status == "stopped"


@pytest.mark.parametrize(
    ("body", "options"),
    body_params(
        SYNCHRONOUS + IN_GRAPH,
        fits=[SYNCHRONOUS[1], {"strategy": "multi_worker"}, {"strategy": "central"}, IN_GRAPH[1]],
        loops=[SYNCHRONOUS[0], {"strategy": "mirrored"}],
    ),
)
def test_a_new_learning_rate_applies_from_the_next_step(
    begin: Callable[..., Run], options: dict[str, Any], body: str, tmp_path: Path
) -> None:
    """The weights are those of one device that changes its rate before the chief's next step."""
    epochs, gate = 25, tmp_path / "gate"
    run = begin(with_gate(body.format(epochs=epochs), gate), **options)
    until(lambda: run.standing().learning_rate == 0.03, during=run)
    chief, *_ = paused(run, gate)
    path = run.checkpoint()
    step = (run.tally.checkpoint or {})["step"]
    assert path == run.folder / "checkpoints" / f"step-{step}" / "model.safetensors"
    run.set(learning_rate=0.007)
    run.resume()
    assert run.wait().status == "finished"
    assert run.standing().learning_rate == 0.007
    rated = [one for one in run.events if one.kind == "rate"]
    assert [(one.step, one.text) for one in rated] == [(chief, "learning rate 0.03 → 0.007, set by the user")]
    assert {"pause", "checkpoint", "resume"} <= {one.kind for one in run.events}
    assert {LEARNING_RATE, GRADIENT_NORM} - {*run.store.series} <= (
        {GRADIENT_NORM} if "replication" in options else set()  # the towers keep their gradients
    )
    assert (
        chief - 1 <= step <= chief < run.global_step == 3 * epochs
    )  # the servers may lack the last gradient
    before = weights_after(lambda _: 0.03, step)
    for a, b in zip(nn.load(path).get_weights(), before, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    after = weights_after(lambda number: 0.03 if number <= chief else 0.007, 3 * epochs)
    other = weights_after(lambda _: 0.03, 3 * epochs)
    for a, b, c in zip(run.model.get_weights(), after, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        assert not np.allclose(a, c, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", matrix(INDEPENDENT[1:] + IN_GRAPH_ASYNC, rest=INDEPENDENT[:1]), ids=str)
def test_a_new_learning_rate_applies_to_independent_replicas(
    begin: Callable[..., Run], options: dict[str, Any]
) -> None:
    """At a rate of 0 the weights stay constant: two checkpoints equal the final model."""
    run = begin(TRAIN.format(epochs=ENDLESS).replace(", momentum=0.5", ""), **options)
    until(lambda: min(steps_of(run)) > 2, during=run)
    run.set(learning_rate=0)
    until(lambda: run.standing().learning_rate == 0, during=run)
    if options.get("strategy") == "elastic":
        run.stop()
        assert run.wait().model.optimizer.learning_rate == 0
        return
    first = run.checkpoint()
    until(lambda: min(steps_of(run)) > 2 + max(steps_of(run)) // 2, during=run)
    second = run.checkpoint()
    assert first != second
    run.stop()
    run.wait()
    for a, b, c in zip(
        nn.load(first).get_weights(), nn.load(second).get_weights(), run.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(b, c)
    assert run.model.optimizer.learning_rate == 0


@pytest.mark.parametrize(
    "options", [{"strategy": "ps", "synchronous": True}, {"strategy": "multi_worker"}], ids=str
)
def test_a_checkpoint_has_the_weights_of_its_step(begin: Callable[..., Run], options: dict[str, Any]) -> None:
    run = begin(TRAIN.format(epochs=ENDLESS), **options)
    found = [(run.checkpoint(), (run.tally.checkpoint or {})["step"]) for _ in range(3)]
    run.stop()
    assert run.wait().status == "stopped"
    steps = [step for _, step in found]
    assert steps == sorted(steps)
    for path, step in found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        for a, b in zip(nn.load(path).get_weights(), weights_after(lambda _: 0.03, step), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)
    names = {one.name for one in (run.folder / "checkpoints").iterdir()}
    assert names == {f"step-{step}" for step in steps}  # no temporary files


FROZEN_AFTER_0_S = """
from nbdist.wire.collective.shm.sync import ProcessMonitor
kept, ProcessMonitor.frozen.__defaults__ = ProcessMonitor.frozen.__defaults__, (0.0,)  # seconds
try:
{body}
finally:
    ProcessMonitor.frozen.__defaults__ = kept
"""


def set_look_seconds(seconds: float) -> float:
    """Set how often a parameter server looks for dead replicas, in seconds; return the previous value."""
    from nbdist.runtime.ps import service

    before, service.LOOK_SECONDS = service.LOOK_SECONDS, seconds
    return before


set_look_seconds.__module__ = "__main__"  # sent by value: engines cannot import this file


@pytest.mark.parametrize(
    "options",
    matrix(
        [
            {"strategy": "multi_worker"},
            {"strategy": "ps", "synchronous": True},
            {"strategy": "ps", "staleness": 1},
        ],
        rest=[{"strategy": "ps", "transport": "socket"}, {"strategy": "elastic"}],
    ),
    ids=str,
)
def test_a_paused_replica_does_not_count_as_frozen(
    begin: Callable[..., Run], cluster: Cluster, options: dict[str, Any], tmp_path: Path
) -> None:
    """The others wait for the paused chief and check that it lives; all make their exact number of steps."""
    servers = [info.rank for info in cluster.tasks if info.job == "ps"]
    before = cluster.submit(set_look_seconds, 0.02, on=servers).results(timeout=PATIENCE)
    try:
        epochs, gate = 20, tmp_path / "gate"
        body = textwrap.indent(with_gate(TRAIN.format(epochs=epochs), gate), "    ")
        run = begin(FROZEN_AFTER_0_S.format(body=body), **options)
        steps = paused(run, gate)
        wait_for_reports(run, rounds=12)
        assert steps_of(run) == steps
        assert states_of(run) == {"paused"}
        run.resume()
        assert run.wait().status == "finished"
    finally:
        cluster.submit(set_look_seconds, before[0], on=servers).results(timeout=PATIENCE)
    assert run.members.away == set()
    assert steps_of(run) == [3 * epochs] * 3
    shared = options["strategy"] != "elastic" and not options.get("synchronous")
    assert run.global_step == 3 * epochs * (3 if shared and options["strategy"] == "ps" else 1)


def test_a_resumed_run_continues_without_a_worker_that_died_in_the_pause(
    start: Callable[..., Cluster],
) -> None:
    """A learning rate set during the pause applies to the next step of the others."""
    cluster = start(workers=3, ps=1)
    run = start_run(
        TRAIN.format(epochs=ENDLESS),
        Options(strategy="multi_worker", min_workers=2, seed=SEED),
        cluster=cluster,
    )
    paused(run)
    run.set(learning_rate=0.001)
    os.kill(cluster.tasks[2].pid, signal.SIGKILL)
    until(lambda: run.members.away == {cluster.tasks[2].rank}, during=run)
    before = steps_of(run)
    run.resume()
    until(lambda: min(steps_of(run)[:2]) > max(before) + 5, during=run)
    until(lambda: run.standing().learning_rate == 0.001, during=run)
    run.stop()
    assert run.wait().status == "stopped"
    assert run.model.optimizer.learning_rate == 0.001


def test_commands_may_come_from_any_thread(begin: Callable[..., Run]) -> None:
    """One thread waits for the run and sends the commands that another thread calls."""
    run = begin(TRAIN.format(epochs=ENDLESS), strategy="ps")
    until(lambda: min(steps_of(run)) > 2, during=run)
    found: list[Any] = []

    def ask() -> None:
        try:
            run.set(learning_rate=0.5)
            found.append(run.checkpoint())
        finally:
            run.stop()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    run.wait()
    thread.join(PATIENCE)
    assert nn.load(found[0]).optimizer.learning_rate == run.model.optimizer.learning_rate == 0.5


def test_commands_fail_without_training_and_after_the_end(begin: Callable[..., Run]) -> None:
    run = begin(
        "import threading\nfrom nbdist.train.context import current\nc = current().control\n"
        "with c._changed:\n    c._changed.wait_for(lambda: c.stop_requested)"
    )
    wait_for_reports(run, 1)
    for ask in (run.pause, run.checkpoint, lambda: run.set(learning_rate=0.1)):
        with pytest.raises(FailedPreconditionError, match="does not train"):
            ask()
    with pytest.raises(InvalidArgumentError, match="choose from learning_rate"):
        run.set(momentum=0.1)
    run.stop()
    run.wait()
    with pytest.raises(FailedPreconditionError, match=r"has ended \(stopped\)"):
        run.resume()
