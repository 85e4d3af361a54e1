"""Trials on a GPU have the results of trials on a CPU. The GPU is a stand-in (tests/fake_cupy.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trials_tools import finished

from nbdist.cluster.cluster import Cluster
from nbdist.trials.sweep import Sweep

TRIAL = """
import sys
sys.path.insert(0, {folder!r})
from fake_cupy import FakeCupy
from nbdist.graph import backend
from nbdist.train.context import current
cupy = FakeCupy(gpus=1)
backend._cupy = lambda: cupy
sys.modules["cupy"] = cupy
current().device = device
images, labels, _, _ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(16, "relu"), nb.nn.Dropout(0.2), nb.nn.Dense(10, "softmax")], seed=1)
model.compile(nb.optim.Adam(0.01), metrics=["accuracy"])
model.fit(nb.data.Dataset.from_arrays(images[:500], labels[:500]).batch(50), epochs=2)
assert current().devices == [device], current().devices
nb.log(result=model.evaluate(images[500:], labels[500:])["loss"])
"""


@pytest.mark.engines
def test_a_trial_on_a_gpu_has_the_result_of_one_on_a_cpu(
    start: Callable[..., Cluster], begin: Callable[..., Sweep]
) -> None:
    folder = str(Path(__file__).parent.parent)
    space = "device=['CPU:0', 'GPU:0']"
    sweep = finished(begin(TRIAL.format(folder=folder), space, metric="result", cluster=start(workers=1)))
    assert [trial.error for trial in sweep.trials] == ["", ""]
    on_cpu, on_gpu = (trial.value for trial in sweep.trials)
    assert on_gpu == pytest.approx(on_cpu, rel=1e-4)
