"""Data tasks make the passes of a training: the weights of a run without them, also when one dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist.cluster.cluster import Cluster
from nbdist.errors import InvalidArgumentError, WorkerError
from nbdist.run.run import Run
from nbdist.ui.api import launch

pytestmark = pytest.mark.engines

MODEL = """
import os
import numpy as np
x, y = np.random.default_rng(0).normal(size=(64, 4)).astype("f4"), np.arange(64) % 3
makers = []

def noisy(number, row):
    a, b = row
    noise = np.random.default_rng([5, int(number)]).normal(size=4)
    return (a + noise).astype("f4"), b, np.int64(os.getpid())

def watched(a, b, made_by):
    makers.append(set(made_by.tolist()) != {os.getpid()})
    return a, b

dataset = nb.data.Dataset.from_arrays(x, y).shuffle(32).enumerate().map(noisy).batch(9)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.Adam(0.02), "sparse_categorical_crossentropy")
"""
"""``dataset`` has the process that made each example as its third part."""

FIT = (
    MODEL.replace(", np.int64(os.getpid())", "")
    + """
history = model.fit(dataset, epochs=3)
"""
)


@pytest.fixture(scope="module")
def served(own_home: Path) -> Iterator[Cluster]:
    """Two workers, a parameter server and two data tasks."""
    from nbdist.cluster.launch import start_cluster

    one = start_cluster(2, 1, 2, report=None)
    yield one
    one.stop()


def run(cluster: Cluster, body: str = FIT, **options: Any) -> Run:
    return launch(body, cluster=cluster, live=False, **{"seed": 3, **options})


def same(one: Run, other: Run) -> bool:
    pairs = zip(one.model.get_weights(), other.model.get_weights(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "how",
    [
        {"strategy": "one_device", "on": "worker:0", "transport": "socket"},
        {"strategy": "multi_worker"},
        {"strategy": "central"},
        {"strategy": "elastic", "every": 2},
        {"strategy": "ps", "sync": True},
    ],
    ids=lambda how: how["strategy"],
)
def test_a_training_on_data_tasks_has_the_weights_of_one_without(
    served: Cluster, how: dict[str, Any]
) -> None:
    here, there = run(served, **how), run(served, data="service", **how)
    assert here.history.history["loss"] == there.history.history["loss"]
    assert same(here, there)


@pytest.mark.parametrize("how", [{"strategy": "multi_worker"}, {"strategy": "ps", "sync": True}], ids=str)
def test_workers_that_read_their_own_files_have_the_same_pieces_from_data_tasks(
    served: Cluster, how: dict[str, Any], tmp_path: Path
) -> None:
    for number, rows in enumerate((9, 4, 6)):
        (tmp_path / f"{number}.txt").write_text("".join(f"{10 * number + row}\n" for row in range(rows)))
    lines = f"nb.data.Dataset.text_lines({str(tmp_path)!r}).map(int).shuffle(5)"
    made = f"dataset = {lines}.map(lambda n: (x[n], y[n])).batch(4).with_auto_shard('file')\nhistory = "
    fit = FIT.replace("history = ", made)
    here, there = run(served, fit, **how), run(served, fit, data="service", **how)
    assert here.global_step == there.global_step == 3 * 8, "worker 0 has 15 examples: 4 batches, 8 pieces"
    assert same(here, there)
    assert not same(here, run(served, fit.replace(".with_auto_shard('file')", ""), **how))


def test_both_data_tasks_make_batches_and_workers_in_step_share_them(served: Cluster) -> None:
    body = (
        MODEL
        + """
model.fit(nb.data.Dataset.from_arrays(x, y).batch(64))
strategy = nb.distribute.get_strategy()
seen = [(a.tolist(), sorted(set(made_by.tolist()))) for a, b, made_by in strategy.distribute_dataset(dataset)]
shares, makers = map(list, zip(*seen))
"""
    )
    here = run(served, body, strategy="multi_worker")
    there = run(served, body, strategy="multi_worker", data="service")
    assert here.results["shares"] == there.results["shares"]
    pids = [info.pid for info in served.tasks if info.job == "data"]
    assert there.results["makers"] == [[pids[number % 2]] for number in range(8)]


def test_a_training_continues_with_or_without_data_tasks_and_on_other_workers(
    served: Cluster, tmp_path: Path
) -> None:
    def part(write: str, read: str | None, last: int, **options: Any) -> Run:
        states = f"""
from nbdist.train import context
from nbdist.train.resume import TrainingStates
read = {read and str(tmp_path / read)!r}
context.current().states = TrainingStates(write={str(tmp_path / write)!r}, read=read)
class Stop(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        context.current().control.stop_requested = epoch == {last}
"""
        fit = "model.fit(dataset.repeat(), epochs=5, steps_per_epoch=5, callbacks=[Stop()])"  # 8 are a pass
        return run(served, states + FIT.replace("model.fit(dataset, epochs=3)", fit), **options)

    one, two = {"strategy": "one_device", "on": "worker:0"}, {"strategy": "multi_worker"}
    whole = part("whole", None, 9, **one)
    part("first", None, 0, data="service", **two)
    part("second", "first", 2, **one)
    rest = part("third", "second", 9, data="service", **one)
    assert len(rest.history.history["loss"]) == 5
    for a, b in zip(whole.model.get_weights(), rest.model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_training_reads_on_where_a_data_task_was_lost(
    served: Cluster, deaths: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dying = f"""
    import os, pathlib, signal
    marks = pathlib.Path({str(tmp_path)!r})
    if number in (30, 31) and len(list(marks.iterdir())) < {deaths} and nb.task.job == "data":
        (marks / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
    head = "def noisy(number, row):"
    body = FIT.replace(head, head + dying)
    try:
        here = run(served, strategy="multi_worker")
        there = run(served, body, strategy="multi_worker", data="service")
    finally:
        restarted = served.restart(report=lambda text: None)
    assert {info.job for info in restarted} == {"data"}
    assert len(restarted) == deaths
    assert same(here, there)
    out = capsys.readouterr().out
    assert "which read for the workers, was lost" in out
    assert ("this worker itself continues after element" in out) is (deaths == 2)
    assert same(here, run(served, strategy="multi_worker", data="service")), "new processes get the dataset"


def test_what_cannot_be_read_by_data_tasks_is_an_error(
    served: Cluster, cluster: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"needs data tasks.* --data 1"):
        run(cluster, data="service")
    for source, why in (
        ("lambda: [(x[0], 0)] * file.writable()", r"uses file cannot be pushed.*_io\.\w+; push the path"),
        ("Loader()", "the dataset cannot be pushed: it is of type __main__.Loader. Make the dataset"),
    ):
        first = f"""
file = open({str(tmp_path / "a")!r}, "w+")
class Loader:
    def __iter__(self):
        return iter([(x[0], 0)])
make = nb.data.Dataset.from_torch if {source[0]!r} == "L" else nb.data.Dataset.from_generator
dataset = make({source}).batch(2)
history = """
        with pytest.raises(WorkerError, match=f"--data service sends datasets.*{why}"):
            run(served, FIT.replace("history = ", first), on="worker:0", data="service")


def test_the_error_of_a_map_names_the_data_task_and_its_line(served: Cluster) -> None:
    body = FIT.replace("    a, b = row\n", "    a, b = row\n    1 / (int(number) - 40)\n")
    with pytest.raises(WorkerError, match="ZeroDivisionError") as caught:
        run(served, body, strategy="one_device", on="worker:0", data="service")
    assert "on /job:data/task:" in str(caught.value)
    assert "1 / (int(number) - 40)" in str(caught.value)
    assert run(served, data="service").status == "finished"
