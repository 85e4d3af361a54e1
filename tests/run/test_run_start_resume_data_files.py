"""fit on datasets of files, on real engines: the weights of one device, bad input, other workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_view import RecordingView

from nbdist.cluster.cluster import Cluster
from nbdist.data import make_example, write_tfrecords
from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

pytestmark = pytest.mark.engines

TRAIN = """
from nbdist.train import context
from nbdist.train.resume import TrainingStates

context.current().states = TrainingStates(write={write!r}, read={read!r})

class Stop(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        context.current().control.stop_requested = {stops} and epoch == 1

data = nb.data
features = {{"x": data.FixedLenFeature((4,), "f4"), "y": data.FixedLenFeature((), "i8")}}
files = data.Dataset.list_files({files!r}, shuffle=True)
records = files.interleave(
    lambda path: data.Dataset.tfrecords(path, on_error="skip"), cycle_length=2, num_parallel_calls=2
)
dataset = (
    records.shuffle(20)
    .map(lambda record: data.parse_example(record, features), num_parallel_calls=2)
    .map(lambda row: (row["x"], row["y"]), workers=2)
    .batch(14)
    .prefetch(2)
)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.2), nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(dataset, epochs=4, callbacks=[Stop()])
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(5):
        y = rng.integers(0, 3, 12)
        x = (rng.normal(size=(12, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
        records = [make_example({"x": a, "y": b}) for a, b in zip(x, y, strict=True)]
        write_tfrecords(tmp_path / f"part-{number}.tfrecord", records)
    return tmp_path


def test_a_training_on_files_continues_on_another_number_of_workers(cluster: Cluster, files: Path) -> None:
    def run(on: str, strategy: str, write: str, read: str | None = None, stops: bool = False) -> Run:
        body = TRAIN.format(
            write=str(files / write),
            read=read and str(files / read),
            stops=stops,
            files=str(files / "part-*.tfrecord"),
        )
        return start_run(body, Options(seed=3, strategy=strategy, on=on), cluster=cluster).wait()

    def weights(one: Run) -> list[np.ndarray[Any, Any]]:
        found: list[np.ndarray[Any, Any]] = one.model.get_weights()
        return found

    one_device = run("worker:0", "one_device", "whole")
    run("worker:0-1", "multi_worker", "cut", stops=True)
    continued = run("worker:0-2", "multi_worker", "rest", read="cut")
    assert len(continued.history.history["accuracy"]) == 4
    for own, other in zip(weights(one_device), weights(continued), strict=True):
        assert np.allclose(own, other, atol=1e-5)


def test_left_out_records_are_reported_and_bad_ones_fail_on_every_worker(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("a,b,y\n" + "1,2,0\n3,4,1\n" * 20 + "5,6,7,8\n")
    body = """
rows = nb.data.Dataset.csv({path!r}, on_error={on_error!r})
data = rows.map(lambda row: (np.array([row["a"], row["b"]], "f4"), row["y"])).batch(8)
model = nb.nn.Sequential([nb.nn.Dense(2, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
model.fit(data, epochs=2)
"""

    def run(on_error: str) -> Run:
        text = "import numpy as np\n" + body.format(path=str(tmp_path / "a.csv"), on_error=on_error)
        options = Options(strategy="multi_worker", on="worker:0-1")
        return start_run(text, options, cluster=cluster, make_view=lambda run: view)

    view = RecordingView()
    run("skip").wait()
    printed = "".join(view.text.values())  # only the chief reports what all read
    assert printed.count("1 record was left out (on_error='skip'), such as: ") == 2
    assert "a.csv, line 42: 4 fields" in printed
    with pytest.raises(WorkerError, match=r"a\.csv, line 42: 4 fields, and the others have 3"):
        run("raise").wait()
