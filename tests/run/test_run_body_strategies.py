"""Replicas with copies of the parameters, on real engines: results, stops, deaths."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_view import RecordingView
from tiers import exhaustive, matrix
from waiting import limit, until

from nbdist.checkpoint.manager import state_files
from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, TaskDiedError, WorkerError
from nbdist.nn import load
from nbdist.run.options import Options
from nbdist.run.recovery import shutdown
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.ui.display.run import summary_of

pytestmark = pytest.mark.engines

MODEL = """
import numpy as np
rng = np.random.default_rng(0)
x = rng.random((130, 12), np.float32)
y = x[:, :4].argmax(1)
model = nb.nn.Sequential([nb.nn.Dense(16, "tanh"), nb.nn.Dropout(0.2), nb.nn.Dense(4, "softmax")])
model.compile(nb.optim.Adam(0.01), "sparse_categorical_crossentropy", ["accuracy"])
data = nb.data.Dataset.from_arrays(x, y).shuffle(130).batch(30)
"""
TRAIN = MODEL + "history = model.fit(data, epochs=4)\n"
ENDLESS = MODEL + "history = model.fit(data, epochs=10_000_000)\n"
SAME_EVERYWHERE = """
everyone = nb.collective.all_gather(np.concatenate([w.ravel() for w in model.get_weights()]))
"""

UNEVEN = (
    MODEL
    + """
import nbdist as nb
def batches():
    for number in range(7 if nb.task.index == 1 else 12):
        yield x[:30], y[:30]
data = nb.data.Dataset.from_generator(batches)
"""
)


@pytest.fixture
def begin(cluster: Cluster) -> Callable[..., Run]:
    return lambda body, **options: start_run(body, Options(seed=5, **options), cluster=cluster)


def trains(run: Run) -> Callable[[], bool]:
    return lambda: len(run.store.replicas) == len(run.tasks)


def seconds_to_end(run: Run) -> tuple[float, BaseException | None]:
    begun = time.monotonic()
    try:
        run.wait()
    except Exception as error:
        return time.monotonic() - begun, error
    return time.monotonic() - begun, None


@pytest.fixture(scope="module")
def one_device_weights(cluster: Cluster) -> list[np.ndarray[Any, Any]]:
    """Return the weights after a training on one device."""
    run = start_run(TRAIN, Options(seed=5, strategy="one_device", on="worker:0"), cluster=cluster).wait()
    weights: list[np.ndarray[Any, Any]] = run.model.get_weights()
    return weights


@pytest.mark.parametrize(
    "options",
    matrix(
        [
            {"strategy": "multi_worker"},
            {"strategy": "multi_worker", "collective": "ring"},
            {"strategy": "mirrored", "on": "worker:1-2"},
            {"strategy": "sharded"},
            {"strategy": "sharded", "stage": 2},
            {"strategy": "sharded", "stage": 3},
            {"strategy": "central"},
            {"strategy": "central", "replication": "in-graph"},
            {"strategy": "ps", "synchronous": True},
        ],
        rest=[
            {"strategy": "sharded", "collective": "ring"},
            {"strategy": "sharded", "stage": 3, "collective": "ring"},
            {"strategy": "central", "transport": "socket"},
        ],
    ),
    ids=str,
)
def test_synchronous_replicas_equal_one_device(
    begin: Callable[..., Run], one_device_weights: list[Any], options: dict[str, Any]
) -> None:
    run = begin(TRAIN, **options).wait()
    assert run.global_step == run.history.global_step == 4 * 5
    for ours, theirs in zip(run.model.get_weights(), one_device_weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "options", [{"strategy": "multi_worker"}, {"strategy": "elastic", "every": 3}], ids=str
)
def test_all_replicas_end_with_the_same_weights(begin: Callable[..., Run], options: dict[str, Any]) -> None:
    run = begin(TRAIN + SAME_EVERYWHERE, **options).wait()
    everyone = run.results["everyone"]
    assert len(everyone) == len(run.tasks)
    assert (everyone == everyone[0]).all()
    assert run.history["loss"][-1] < run.history["loss"][0]


@pytest.mark.parametrize(
    "options",
    matrix(
        [
            {"strategy": "multi_worker"},
            {"strategy": "ps", "synchronous": True},
            {"strategy": "ps"},
            {"strategy": "elastic", "every": 3},
        ],
        rest=[
            {"strategy": "multi_worker", "collective": "ring"},
            {"strategy": "central"},
            {"strategy": "ps", "synchronous": True, "backups": 1},
        ],
    ),
    ids=str,
)
def test_mixed_precision_leaves_steps_out_that_overflow(
    begin: Callable[..., Run], options: dict[str, Any]
) -> None:
    body = TRAIN.replace("nb.optim.Adam(0.01)", "nb.optim.LossScaleOptimizer(nb.optim.Adam(0.01), 2.0**24)")
    body += SAME_EVERYWHERE + "scales = nb.collective.all_gather(np.array(model.loss_scale))"
    run = begin(body, precision="mixed_float16", **options).wait()
    everyone, scales = run.results["everyone"], run.results["scales"]
    assert (everyone == everyone[0]).all()
    assert 1 < scales.min() < 2**22
    assert run.skipped > 3
    if "backups" in options or options == {"strategy": "ps"}:
        return  # the number of updates depends on the replicas' speeds
    assert run.history["loss"][-1] < run.history["loss"][0]
    if "every" not in options:
        assert (scales == scales[0]).all()
        assert run.skipped % len(run.tasks) == 0


def test_elastic_replicas_may_have_data_of_different_lengths(begin: Callable[..., Run]) -> None:
    shard = MODEL.replace(".batch(30)", ".shard(3, nb.collective.rank()).batch(2)")
    run = begin(f"{shard}history = model.fit(data, epochs=3){SAME_EVERYWHERE}", strategy="elastic").wait()
    assert (run.results["everyone"] == run.results["everyone"][0]).all()


@pytest.mark.parametrize("strategy", ["multi_worker", "elastic", "central"])
def test_a_stop_ends_all_replicas_together(
    begin: Callable[..., Run], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 60.0)  # a busy machine may need longer for a step
    run = begin(ENDLESS, strategy=strategy)
    until(trains(run), during=run)
    run.stop()
    seconds, error = seconds_to_end(run)
    assert error is None
    assert seconds < limit(3)
    assert run.status == "stopped"
    steps = {outcome["step"] for outcome in run.outcomes.values()}
    # A server's step that the stop interrupts counts only for workers with an answered gradient.
    assert max(steps) - min(steps) <= {"multi_worker": 0, "central": 1, "elastic": 10}[strategy]
    assert run.history.global_step > 0
    assert run.model is not None


def test_a_callback_of_any_replica_ends_the_training_of_all(begin: Callable[..., Run]) -> None:
    body = (
        MODEL
        + """
class Enough(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        self.stop_training = nb.collective.rank() == 1 and epoch == 2

history = model.fit(data, epochs=1000, callbacks=[Enough()])
again = model.fit(data, epochs=2)
epochs = len(history.epoch), len(again.epoch)
"""
    )
    run = begin(body, strategy="multi_worker", fetch=("epochs",)).wait()
    assert run.results["epochs"] == (3, 2)


def test_early_stopping_of_the_chief_ends_the_training_of_all(begin: Callable[..., Run]) -> None:
    body = MODEL + (
        "history = model.fit(data, epochs=1000, validation_data=(x, y), callbacks=["
        "nb.train.EarlyStopping('val_loss', min_delta=1.0)])\n"
    )
    run = begin(body, strategy="mirrored").wait()
    assert len(run.history.epoch) == 2
    assert {outcome["step"] for outcome in run.outcomes.values()} == {10}


@pytest.mark.parametrize(
    "options",
    matrix([{"strategy": "ps"}], rest=[{"strategy": "multi_worker"}, {"strategy": "sharded", "stage": 2}]),
    ids=str,
)
def test_files_of_callbacks_are_in_the_folder_of_the_run(
    begin: Callable[..., Run], options: dict[str, Any]
) -> None:
    """With an optimizer that follows a schedule, clips and decays; all copies are equal."""
    body = MODEL + (
        "rate = nb.optim.schedules.CosineDecay(0.0, 18, warmup_target=0.05, warmup_steps=2)\n"
        "optimizer = nb.optim.Adam(rate, clipnorm=0.5, weight_decay=0.01)\n"
        "optimizer.exclude_from_weight_decay(var_names=['bias'])\n"
        "model.compile(optimizer, 'sparse_categorical_crossentropy', ['accuracy'])\n"
        "model.fit(data, epochs=4, validation_data=(x, y), callbacks=[nb.train.CSVLogger('epochs.csv'),"
        "nb.train.ModelCheckpoint('models/{epoch}.safetensors', 'val_loss', save_top_k=2)])\n"
        + SAME_EVERYWHERE
    )
    run = begin(body, fetch=("everyone",), **options).wait()
    everyone = run.results["everyone"]
    assert all((one == everyone[0]).all() for one in everyone)
    lines = (run.folder / "epochs.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1", "2", "3"]
    saved = sorted((run.folder / "models").iterdir())
    assert len(saved) == 2
    assert load(saved[0]).optimizer is not None
    assert run.standing().learning_rate == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("collective", ["shm", "ring"])
def test_two_interrupts_inside_a_collective(
    begin: Callable[..., Run], cluster: Cluster, collective: str
) -> None:
    body = "if nb.collective.rank() != 1: nb.collective.barrier()\nwhile True: pass"
    run = begin(body, collective=collective)
    until(lambda: run.tally.messages > 3 * len(run.tasks), during=run)
    run.interrupt()
    run.poll()
    run.interrupt()
    seconds, _ = seconds_to_end(run)
    assert seconds < limit(3)
    after = begin(
        "total = nb.collective.all_reduce(nb.collective.rank(), 'sum')", collective=collective
    ).wait()
    assert int(after.results["total"]) == 3


def test_signals_in_mid_training(begin: Callable[..., Run], cluster: Cluster) -> None:
    run = begin(ENDLESS, strategy="multi_worker")
    until(trains(run), during=run)
    pid = next(info.pid for info in cluster.tasks if info.name == "/job:worker/task:2")
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGINT)
    seconds, error = seconds_to_end(run)
    assert isinstance(error, WorkerError)
    assert "KeyboardInterrupt" in str(error)
    assert seconds < limit(3)
    assert begin(TRAIN, strategy="multi_worker").wait().global_step == 20


WRONG = {
    "raise": ("if nb.task.index == 2: raise ValueError('no such flower')", "ValueError: no such flower"),
    "NaN": ("x[nb.task.index == 2 and 17] = np.nan", "NanLossError: the loss is NaN at step "),
}


@pytest.mark.parametrize(
    ("wrong", "strategy"),
    matrix(
        [("raise", "central"), ("NaN", "multi_worker"), ("NaN", "elastic")],
        rest=[("raise", "multi_worker"), ("raise", "elastic"), ("NaN", "central")],
    ),
)
def test_an_error_on_one_replica_ends_all(begin: Callable[..., Run], wrong: str, strategy: str) -> None:
    line, words = WRONG[wrong]
    after = "class Now(nb.train.Callback):\n    def on_epoch_end(self, epoch, logs):\n        "
    body = f"{MODEL}{after}{line}\nhistory = model.fit(data, epochs=1000, callbacks=[Now()])"
    if wrong == "NaN":
        body = body.replace("x[nb.task.index == 2 and 17]", "if nb.task.index == 2: x[:]")
    run = begin(body, strategy=strategy)
    seconds, error = seconds_to_end(run)
    assert isinstance(error, WorkerError)
    assert words in str(error)
    assert error.task == "/job:worker/task:2"
    assert seconds < limit(6)
    assert begin("1", collective="shm").wait().status == "finished"


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "ps"},
        {"strategy": "ps", "staleness": 1},
        {"strategy": "central"},
        {"strategy": "elastic"},
    ],
    ids=str,
)
def test_a_replica_may_skip_all_its_steps(begin: Callable[..., Run], options: dict[str, Any]) -> None:
    body = (
        MODEL
        + "if nb.task.index == 1:\n    x[:] = np.nan\n"
        + "history = model.fit(data, epochs=2, nan='skip')"
    )
    run = begin(body, **options).wait()
    assert run.skipped == 10
    assert all(np.isfinite(w).all() for w in run.model.get_weights())
    assert run.global_step == {"ps": 20 + 10 * ("staleness" in options)}.get(options["strategy"], 10)


def test_steps_without_numbers_may_be_skipped(begin: Callable[..., Run]) -> None:
    body = (
        MODEL
        + """
if nb.task.index == 1:
    x[:40] = np.nan
history = model.fit(data, epochs=2, nan="skip")
"""
    )
    run = begin(body + SAME_EVERYWHERE, strategy="multi_worker").wait()
    assert run.global_step == 10
    assert 0 < run.skipped <= 10
    assert np.isfinite(run.results["everyone"]).all()
    assert (run.results["everyone"] == run.results["everyone"][0]).all()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nb.collective.all_reduce(np.ones(3 + rank))", r"shape=\(3,\).*shape=\(4,\)"),
        ("nb.collective.all_reduce(np.ones(3, ['f4', 'f8', 'f4'][rank]))", "dtype=float32.*dtype=float64"),
        ("nb.collective.all_reduce(np.ones(3), ['sum', 'sum', 'max'][rank])", "op='sum'.*op='max'"),
        ("nb.collective.barrier() if rank else nb.collective.broadcast(1)", "broadcast.*barrier"),
        ("rank and nb.collective.barrier()", "has ended its part of the run"),
        (
            "nb.collective.barrier()\nrank == 1 or nb.collective.barrier()",
            r"rank 1 .*has left the group; barrier",
        ),
        ("model.fit(data) if rank else None", "has ended its part of the run"),
    ],
)
def test_mismatched_collective_calls(begin: Callable[..., Run], line: str, words: str) -> None:
    run = begin(
        f"{MODEL}rank = nb.collective.rank()\n{line}", strategy="multi_worker" if "fit" in line else None
    )
    with pytest.raises(WorkerError, match=f"(?s){words}"):
        run.wait()
    assert begin("nb.collective.barrier()").wait().status == "finished"


def test_replicas_with_different_models(begin: Callable[..., Run]) -> None:
    body = MODEL.replace("Dense(16", "Dense(16 + nb.task.index") + "model.fit(data)"
    with pytest.raises(
        WorkerError, match=r"(?s)the replicas built different models: variable 0 .*\(12, 16\)"
    ):
        begin(body, strategy="multi_worker").wait()


def test_horovod(begin: Callable[..., Run], one_device_weights: list[Any]) -> None:
    body = (
        MODEL.replace("nb.optim.Adam(0.01)", "hvd.DistributedOptimizer(nb.optim.SGD(0.5))")
        .replace("import numpy as np", "import numpy as np\nimport nbdist.horovod as hvd\nhvd.init()")
        .replace(".shuffle(130).batch(30)", ".shard(hvd.size(), hvd.rank()).batch(10, drop_remainder=True)")
        + """
model.build((12,))
if hvd.rank():
    model.set_weights([w + 1 for w in model.get_weights()])
hvd.broadcast_parameters(model)
history = model.fit(data, epochs=3)
rows = hvd.allgather(np.full((hvd.rank(), 2), hvd.rank()))
mean, total = hvd.allreduce([1.0 * hvd.rank()]), hvd.allreduce([1.0 * hvd.rank()], op="sum")
where = hvd.local_rank(), hvd.size()
"""
        + SAME_EVERYWHERE
    )
    run = begin(body, fetch=("where",)).wait()
    assert run.results["where"] == (0, 3)
    assert run.results["rows"].tolist() == [[1, 1], [2, 2], [2, 2]]
    assert (run.results["mean"], run.results["total"]) == (1.0, 3.0)
    assert (run.results["everyone"] == run.results["everyone"][0]).all()
    assert run.model.optimizer.learning_rate == 0.5


DYING = (
    MODEL
    + """
import os, signal
class Die(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        if nb.task.index in {victims} and epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
history = model.fit(data, epochs=4, callbacks=[Die()])
"""
)


PERISHING = (
    MODEL
    + """
import os, pathlib, signal
dead, batches = pathlib.Path({flag!r}), 0
def perish(x, y):  # worker 2 with its second batch; the others wait for that with their tenth
    global batches
    batches += 1
    if nb.task.index == 2 and batches == 2:
        dead.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while batches == 10 and not dead.exists():
        pass
    return x, y
history = model.fit(data.map(perish), epochs=4)
"""
)


@pytest.mark.parametrize(
    ("victims", "collective"),
    matrix([((1, 3), "shm"), ((2,), "ring")], rest=[((2,), "shm"), ((1, 3), "ring")]),
    ids=str,
)
def test_the_others_continue_after_a_death(
    start: Callable[..., Cluster], one_device_weights: list[Any], victims: tuple[int, ...], collective: str
) -> None:
    cluster, view = start(workers=4), RecordingView()
    options = Options(seed=5, strategy="multi_worker", collective=collective, max_restarts=0)
    body = DYING.format(victims=victims) + SAME_EVERYWHERE
    run = start_run(body, options, cluster=cluster, make_view=lambda run: view)
    seconds, error = seconds_to_end(run)
    assert error is None
    assert seconds < limit(15)
    assert run.global_step == run.history.global_step == 20
    assert len(run.results["everyone"]) == 4 - len(victims)
    for ours, theirs in zip(run.model.get_weights(), one_device_weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    text = "".join(view.text.values())
    assert f"training continues on {4 - len(victims)} replicas with larger shares" in text
    for index in victims:
        assert f"/job:worker/task:{index} (pid " in text
    left = ",".join(str(i) for i in range(4) if i not in victims)
    after = start_run(TRAIN, Options(strategy="multi_worker", on=f"worker:{left}"), cluster=cluster).wait()
    assert after.global_step == 20


@pytest.mark.parametrize(
    "options",
    matrix([{"staleness": 1, "transport": "socket"}], rest=[{}, {"synchronous": True, "backups": 1}]),
    ids=str,
)
def test_workers_of_parameter_servers_continue_after_a_death(
    start: Callable[..., Cluster], options: dict[str, Any], tmp_path: Path
) -> None:
    cluster, view = start(workers=3, ps=1), RecordingView()
    body = PERISHING.format(flag=str(tmp_path / "dead"))
    run = start_run(body, Options(seed=5, **options), cluster=cluster, make_view=lambda run: view)
    seconds, error = seconds_to_end(run)
    assert error is None
    assert seconds < limit(10)
    assert "killed by SIGKILL; training continues on 2 workers" in "".join(view.text.values())
    assert run.global_step >= 20
    assert {rank: outcome["step"] for rank, outcome in run.outcomes.items() if outcome}.keys() == {0, 1}


def test_a_death_in_a_plain_cell_ends_it(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=3, ps=1)
    body = "import os, signal\nif nb.task.index == 1: os.kill(os.getpid(), signal.SIGKILL)\nn = 3"
    seconds, error = seconds_to_end(start_run(body, Options(), cluster=cluster))
    assert isinstance(error, TaskDiedError)
    assert seconds < limit(5)


def test_the_others_continue_without_a_frozen_worker(
    start: Callable[..., Cluster], one_device_weights: list[Any]
) -> None:
    cluster, view = start(workers=3, ps=1), RecordingView()
    body = DYING.replace("SIGKILL", "SIGSTOP").format(victims=(2,))
    options = Options(seed=5, strategy="multi_worker", max_restarts=0)
    run = start_run(body, options, cluster=cluster, make_view=lambda run: view)
    seconds, error = seconds_to_end(run)
    assert error is None
    assert seconds < limit(15)
    assert run.global_step == 20
    for ours, theirs in zip(run.model.get_weights(), one_device_weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    frozen = next(info for info in cluster.tasks if info.name == "/job:worker/task:2")
    text = "".join(view.text.values())
    # The other tasks and this host's freeze detector notice it at about the same time.
    reports = "is frozen or cut off", "is frozen: its process has been stopped"
    assert any(f"{frozen.name} (pid {frozen.pid}) {report}" in text for report in reports), text
    assert "training continues on 2 workers" in text
    os.kill(frozen.pid, signal.SIGCONT)  # the continued worker is refused, and is free again

    def runs() -> bool:
        try:
            return start_run("1", Options(on="worker:2"), cluster=cluster).wait().status == "finished"
        except FailedPreconditionError:
            return False

    until(runs)


def test_a_sharded_run_continues_from_its_state_on_the_workers_that_are_left(
    start: Callable[..., Cluster], one_device_weights: list[Any], tmp_path: Path
) -> None:
    """The lost worker's slots are in the state only; the chief has gathered them while it trained."""
    cluster, flag = start(workers=3, ps=1), tmp_path / "a state is written"
    options = Options(seed=5, strategy="sharded", checkpoint_every=2)
    body = DYING.format(victims=(2,)).replace(
        "os.kill", f"while not os.path.exists({str(flag)!r}): pass\n            os.kill"
    )
    run = start_run(body, options, cluster=cluster)
    until(lambda: bool(state_files(run.folder)), during=run)
    flag.touch()
    seconds, error = seconds_to_end(run)
    assert isinstance(error, TaskDiedError)
    assert seconds < limit(10)
    assert run.id in str(error)
    rest = Options(seed=5, strategy="sharded", resume=run.id, on="worker:0-1")
    again = start_run(TRAIN, rest, cluster=cluster).wait()
    assert again.global_step == 20
    for ours, theirs in zip(again.model.get_weights(), one_device_weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_fewer_workers_than_min_workers_end_the_run(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=3, ps=1)
    options = Options(strategy="multi_worker", min_workers=2)
    seconds, error = seconds_to_end(start_run(DYING.format(victims=(1, 2)), options, cluster=cluster))
    assert isinstance(error, TaskDiedError)
    assert "killed by SIGKILL" in str(error)
    assert seconds < limit(10)
    assert start_run("1", Options(on="worker:0"), cluster=cluster).wait().status == "finished"


def test_invalid_strategies(begin: Callable[..., Run]) -> None:
    with pytest.raises(InvalidArgumentError, match="--every is a whole number"):
        begin("1", strategy="elastic", every=0)
    with pytest.raises(WorkerError, match=r"drop \.shard"):
        begin(
            MODEL.replace(".batch(30)", ".shard(3, 0).batch(5)") + "model.fit(data)", strategy="mirrored"
        ).wait()


@pytest.mark.parametrize(
    ("options", "train"),
    [
        ({"strategy": "multi_worker"}, "model.fit(data, epochs=2)"),
        pytest.param({"strategy": "sharded"}, "model.fit(data, epochs=2)", marks=exhaustive),
    ],
)
def test_data_that_ends_earlier_on_one_worker_is_named(
    begin: Callable[..., Run], options: dict[str, Any], train: str
) -> None:
    with pytest.raises(WorkerError) as found:
        begin(UNEVEN + train, **options).wait()
    assert re.search(
        r"the data of rank 1 \(/job:worker/task:1\) ended after step 7, and rank [02] "
        r"\(/job:worker/task:[02]\) has a batch for the next step",
        str(found.value),
    )


def test_parameter_servers_name_the_worker_whose_data_ended_a_synchronous_training(
    begin: Callable[..., Run], cluster: Cluster
) -> None:
    run = begin(UNEVEN + "model.fit(data, epochs=1)", strategy="ps", synchronous=True).wait()
    [said] = [note for note in run.notes if "ended after step 7" in note]
    assert said.startswith(
        "the data of /job:worker/task:1 ended after step 7, and the training with it, though"
    )
    assert summary_of(run).warning.startswith("the data of worker 1 ended after step 7")
    stops = "class Stop(nb.train.Callback):\n    def on_epoch_end(self, epoch, logs):\n"
    stops += "        self.stop_training = True\nmodel.fit(data, epochs=5, callbacks=[Stop()])"
    for body in (TRAIN, MODEL + stops):
        assert begin(body, strategy="ps", synchronous=True).wait().notes == []
