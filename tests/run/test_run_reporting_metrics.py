"""The user's own series, TensorBoard's files and the table of all points, of runs on real engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from recording_view import RecordingView
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from nbdist.errors import WorkerError
from nbdist.metrics.names import EPOCH, OF_TRAINING
from nbdist.metrics.store import columns_from_logs
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

FIT = """
import numpy as np
class Own(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        nb.log({"own/epoch": epoch}, own=10.0 * len(logs))
x, y = np.ones((12, 3), np.float32), np.ones((12, 2), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(2)])
model.compile(nb.optim.SGD(0.01), "mse")
history = model.fit(
    nb.data.Dataset.from_arrays(x, y).batch(3), epochs=2, validation_data=(x, y), callbacks=[Own()]
)
"""
LOOP = """
import numpy as np
strategy = nb.get_strategy()
with strategy.scope():
    w = nb.Variable(np.zeros(3, np.float32), name="w")
    optimizer = nb.optim.SGD(0.1)
def step(x):
    loss = np.mean((x @ w - 1.0) ** 2)
    optimizer.minimize(loss)
    return loss
data = strategy.distribute_dataset(nb.data.Dataset.from_arrays(np.ones((12, 3), np.float32)).batch(6))
for x in data:
    loss = strategy.reduce("mean", strategy.run(step, (x,)))
    nb.log(seen=nb.task.rank + 0.5)
nb.log(last=loss, step=40)
"""


SUMMARIES = """
import numpy as np
for step in range(1, 4):
    nb.summary.scalar("own", step / 2, step=step)
    nb.summary.histogram("weights", np.arange(step + 1.0), step=step)
    nb.summary.image("digit", np.full((4, 6), nb.task.rank, np.uint8), step=step)
nb.summary.text("note", "the *end*")
"""


@pytest.fixture
def begin(cluster: Cluster) -> Callable[..., Run]:
    def begin_one(body: Any, **options: Any) -> Run:
        return start_run(body, Options(**options), cluster=cluster, make_view=lambda run: RecordingView())

    return begin_one


def points(run: Run, series: str) -> list[tuple[int, int, float]]:
    found = run.metrics()
    assert isinstance(found, pd.DataFrame)
    found = found[found["series"] == series]
    return list(zip(found["replica"], found["step"], found["value"], strict=True))


@pytest.mark.parametrize(
    "options", [{"strategy": "ps"}, {"strategy": "multi_worker"}, {"strategy": "one_device"}], ids=str
)
def test_each_replica_logs_for_itself(begin: Callable[..., Run], options: dict[str, Any]) -> None:
    run = begin(FIT, **options).wait()
    assert run.status == "finished"
    steps = {i: [s for r, s, _ in points(run, "loss") if r == i] for i in range(3)}
    for i in range(3):
        half, last = len(steps[i]) // 2, len(steps[i])
        assert [(s, v) for r, s, v in points(run, "own/epoch") if r == i] == [(half, 0.0), (last, 1.0)]
    assert {r for r, _, _ in points(run, "own")} == {0, 1, 2}
    assert len(run.metrics()) == len(columns_from_logs(run.folder)["step"])


def test_with_backups_points_have_the_global_step(begin: Callable[..., Run]) -> None:
    run = begin(FIT.replace("epochs=2", "epochs=6"), strategy="ps", synchronous=True, backups=1).wait()
    found = run.metrics()
    compared = 0
    for i in range(3):
        own = found[found["replica"] == i].sort_values("time", kind="stable")
        losses = own[own["series"] == "loss"]
        for time, step in own[own["series"] == "own/epoch"][["time", "step"]].itertuples(index=False):
            before, after = losses[losses["time"] <= time], losses[losses["time"] > time]
            first = before["step"].max() - 1 if len(before) else 0  # one that is always late has none yet
            assert first <= step <= (after["step"].min() if len(after) else run.global_step)
            compared += 1
    assert compared


def test_a_custom_loop_logs_for_its_replica(begin: Callable[..., Run]) -> None:
    run = begin(LOOP, strategy="multi_worker").wait()
    assert points(run, "seen") == [(i, step, i + 0.5) for i in range(3) for step in (1, 2)]
    assert {(r, s) for r, s, _ in points(run, "last")} == {(i, 40) for i in range(3)}


@pytest.mark.parametrize("synchronous", [True, False])
def test_an_in_graph_body_logs_as_replica_0(begin: Callable[..., Run], synchronous: bool) -> None:
    run = begin(FIT, replication="in-graph", strategy="ps", synchronous=synchronous).wait()
    steps = len([1 for r, _, _ in points(run, "loss") if r == 0])
    assert points(run, "own/epoch") == [(0, steps // 2, 0.0), (0, steps, 1.0)]


def test_a_metric_that_is_not_a_number_fails_the_body_with_its_line(begin: Callable[..., Run]) -> None:
    with pytest.raises(WorkerError, match=r"nb\.log\(note='x'\)(.|\n)*series 'note' is given text 'x'"):
        begin("nb.log(good=1.0)\nnb.log(note='x')").wait()


@pytest.mark.parametrize("replication", ["between-graph", "in-graph"])
def test_tensorboard_reads_a_run(begin: Callable[..., Run], replication: str) -> None:
    run = begin(FIT, strategy="ps", synchronous=True, replication=replication, tensorboard=True).wait()
    found = EventMultiplexer().AddRunsFromDirectory(str(run.folder / "tensorboard"))
    found.Reload()
    content = found.PluginRunToTagToContent("scalars")
    assert content.keys() == {"worker-0", "worker-1", "worker-2", "worker-0/validation"}
    for name, tags in content.items():
        own = {"own", "own/epoch"} if name == "worker-0" or replication == "between-graph" else set()
        assert set(tags) - {"staleness", EPOCH, *OF_TRAINING} == (
            {"loss"} if "/" in name else {"loss", "step_ms"} | own
        )
    for i in range(3):
        events = [(e.step, float(e.tensor_proto.float_val[0])) for e in found.Tensors(f"worker-{i}", "loss")]
        assert [s for s, _ in events] == [s for r, s, _ in points(run, "loss") if r == i]
    assert mode_of(run.folder) == {0o600, 0o700}


def mode_of(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in (folder / "tensorboard").rglob("*")}


def test_without_the_option_there_are_no_events(begin: Callable[..., Run]) -> None:
    assert not (begin(FIT, strategy="ps").wait().folder / "tensorboard").exists()


def test_ten_thousand_series_with_long_names_arrive(begin: Callable[..., Run]) -> None:
    body = (
        "names = [f'<img src=x onerror=alert({n})> ' + 'x' * 150 for n in range(10_000)]\n"
        "for step in range(3):\n    nb.log(dict.fromkeys(names, float(step)), step=step)"
    )
    run = begin(body, on="worker:0-1").wait()
    assert len(run.store.series) == 10_000
    for i in range(2):
        assert run.store.trend(i, run.store.series[-1])[1].tolist() == [0.0, 1.0, 2.0]
    assert len(run.metrics()) == 2 * 3 * 10_000


def test_summaries_reach_the_view_and_the_event_files(begin: Callable[..., Run]) -> None:
    run = begin(SUMMARIES)
    run.wait()
    first = run.tasks[0]
    assert set(run.gallery.names()) == {(task, tag) for task in run.tasks for tag in ("weights", "digit")}
    assert [(one.step, one.arrays[1].sum()) for one in run.gallery.of(first, "weights")] == [
        (1, 2),
        (2, 3),
        (3, 4),
    ]
    assert [one.step for one in run.gallery.of(first, "digit")] == [3]
    assert run.store.last(0, "own").value == 1.5
    for task in range(len(run.tasks)):
        found = EventMultiplexer().AddRunsFromDirectory(str(run.folder / "tensorboard"))
        found.Reload()
        name = f"worker-{task}"
        assert list(found.PluginRunToTagToContent("scalars")[name]) == ["own"]
        assert list(found.PluginRunToTagToContent("histograms")[name]) == ["weights"]
        assert list(found.PluginRunToTagToContent("images")[name]) == ["digit"]
        assert list(found.PluginRunToTagToContent("text")[name]) == ["note"]
        assert [one.step for one in found.Tensors(name, "weights")] == [1, 2, 3]


def test_the_callback_of_fit_writes_into_the_run(begin: Callable[..., Run]) -> None:
    run = begin(
        FIT.replace("callbacks=[Own()]", "callbacks=[nb.train.TensorBoard()]"), strategy="multi_worker"
    )
    run.wait()
    assert [one.step for one in run.gallery.of(run.tasks[0], "dense/kernel")] == [4, 8]
    assert {task for task, _ in run.gallery.names()} == {run.tasks[0]}
    found = EventMultiplexer().AddRunsFromDirectory(str(run.folder / "tensorboard"))
    found.Reload()
    assert set(found.PluginRunToTagToContent("histograms")["worker-0"]) == {"dense/kernel", "dense/bias"}
    steps = [one.step for one in found.Tensors("worker-0", "loss")]
    assert steps[0] == 1  # the points before the first summary are there, too
    assert found.Graph("worker-0").node
