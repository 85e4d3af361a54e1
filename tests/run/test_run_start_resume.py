"""A stopped training on real engines continues in another run, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from recording_view import RecordingView

from nbdist import nn
from nbdist.metrics.store import columns_from_logs
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.train.resume import read_saved

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

TRAIN = """
import numpy as np
from nbdist.train import context
from nbdist.train.resume import TrainingStates

context.current().states = TrainingStates(write={write!r}, read={read!r})

class Stop(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        context.current().control.stop_requested = {stops} and epoch == 1

rng = np.random.default_rng(0)
y = np.arange(60) % 3
x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
layers = [nb.nn.Dense(8, "tanh"), nb.nn.BatchNorm(), nb.nn.Dropout(0.2), nb.nn.Dense(3, "softmax")]
model = nb.nn.Sequential(layers)
model.compile(nb.optim.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(14), epochs=4, callbacks=[Stop()])
"""


@pytest.mark.parametrize(
    "options",
    [{"strategy": "multi_worker", "on": "worker:0-1"}, {"strategy": "one_device", "on": "worker:0"}],
    ids=str,
)
def test_a_stopped_training_continues_in_another_run(
    cluster: Cluster, tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "state.safetensors"

    def run(write: Path, read: Path | None, stops: bool) -> tuple[Run, dict[tuple[int, int], float]]:
        body = TRAIN.format(write=str(write), read=read and str(read), stops=stops)
        made = start_run(
            body, Options(seed=3, **options), cluster=cluster, make_view=lambda run: RecordingView()
        ).wait()
        columns = columns_from_logs(made.folder)
        keys = zip(columns["replica"], columns["series"], columns["step"], columns["value"], strict=True)
        return made, {(int(r), int(s)): float(v) for r, name, s, v in keys if name == "loss"}

    whole, losses = run(tmp_path / "whole", None, stops=False)
    _, first = run(path, None, stops=True)
    assert 10 <= read_saved(path).state.step < 20
    second, rest = run(path, path, stops=False)
    assert first | rest == losses
    assert not set(first) & set(rest)
    assert whole.model is not None and second.model is not None  # noqa: PT018
    for a, b, c in zip(whole.model.weights, second.model.weights, nn.load(path).weights, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(b, c)
    assert whole.history is not None and second.history is not None  # noqa: PT018
    assert whole.history.history == second.history.history
    assert whole.global_step == second.global_step == 20
