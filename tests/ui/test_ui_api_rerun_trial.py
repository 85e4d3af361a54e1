"""A trial that is run once more from its record, as a run of its own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from nbdist.cluster.cluster import Cluster
from nbdist.errors import NbdistError
from nbdist.ui.api import run_sweep

pytestmark = pytest.mark.engines

TRAIN = """
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.3), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.Adam(lr), "sparse_categorical_crossentropy")
history = model.fit(x, y, batch_size=32, epochs=2, validation_data=(x_test, y_test))
"""


DRAWN = """
import random
import numpy as np
value = float(np.random.rand()) + random.random() + lr
"""
DRAWN_BY_TORCH = """
import torch
value = torch.rand(()).item() + lr
"""


@pytest.mark.parametrize(
    ("trial", "framework"),
    [
        (DRAWN, None),
        pytest.param(DRAWN_BY_TORCH, None, marks=pytest.mark.frameworks),
        pytest.param(DRAWN_BY_TORCH, "torch", marks=pytest.mark.frameworks),
    ],
)
def test_a_trial_that_is_run_again_draws_the_same_numbers(
    cluster: Cluster, trial: str, framework: str | None
) -> None:
    sweep = run_sweep(trial, {"lr": [0.01]}, metric="value", framework=framework, cluster=cluster, live=False)
    assert sweep.rerun(sweep.wait(60).best.number).results["value"] == sweep.best.value  # type: ignore[union-attr]
    sweep.leave()


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"per_trial": 2},
        {"per_trial": 2, "strategy": "mirrored"},
        {"per_trial": 3, "collective": "ring"},
    ],
)
def test_a_trial_that_is_run_again_has_the_same_losses(cluster: Cluster, how: dict[str, Any]) -> None:
    space = {"lr": [0.01]}
    given: dict[str, Any] = {"metric": "val_loss", "direction": "min", "live": False, "seed": 9, **how}
    sweep = run_sweep(TRAIN, space, cluster=cluster, **given)
    try:
        best = sweep.wait(60).best
        assert best is not None
        run = sweep.rerun(0)
        assert run.history.history["val_loss"][-1] == best.value
        assert len(run.tasks) == how.get("per_trial", 1)
        if not how:  # a promoted trial is run again as what it has become
            sweep.promote(0, epochs=4)
            assert sweep.rerun(sweep.wait(60).best.number).history.history["val_loss"][-1] == best.value
            assert sweep.as_code().splitlines()[1:] == [
                "# it was promoted; before, epochs not given",
                "lr = 0.01",
                "epochs = 4",
            ]
    finally:
        if not sweep.over:
            sweep.close()
            with suppress(NbdistError):
                sweep.wait(30)
        sweep.leave()
