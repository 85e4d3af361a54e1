"""A sweep whose trials train with torch, on real engines: seeds, kept weights, promotion from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from waiting import until

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.trials.start import start_sweep
from nbdist.trials.sweep import Sweep

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

TRIAL = """
import time
import torch
from nbdist.train.context import current
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=lr)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.8**epoch)
data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(8, 4) / 32)
loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
for epoch in nb.train.epochs(epochs):
    while epoch == 2 and lr == waits and not current().control.stop_requested:
        time.sleep(0.002)
    for (x,) in loader:
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    scheduler.step()
    nb.log(loss=loss, rate=scheduler.get_last_lr()[0], step=epoch + 1)
"""


def finished(sweep: Sweep) -> Sweep:
    until(lambda: sweep.over)
    return sweep.conclude()


def losses(sweep: Sweep, number: int) -> dict[int, float]:
    with sweep.lock:
        curve: Any = sweep.ledger.curve(number)
    found = () if curve is None else zip(curve.steps, curve.values, strict=True)
    return {int(step): float(value) for step, value in found}


def test_a_promoted_trial_of_torch_continues_exactly(cluster: Cluster) -> None:
    options: dict[str, Any] = {
        "metric": "loss", "direction": "min", "framework": "torch", "seed": 5, "cluster": cluster,
        "sampler": "grid", "on": "worker:0",
    }  # fmt: skip
    whole = finished(start_sweep(TRIAL, "lr=[0.1] epochs=4 waits=0", **options))
    part = finished(start_sweep(TRIAL, "lr=[0.1] epochs=2 waits=0", **options))
    assert [one.state for one in (whole.trial(0), part.trial(0))] == ["finished"] * 2
    first = part.model(0)
    assert repr(first).startswith("<StateDict: 4 arrays, 49 numbers: ")
    assert sorted(first) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    part.promote(0, epochs=4)
    finished(part)
    assert part.trial(0).error == ""
    assert losses(part, 0) == losses(whole, 0)
    for name, values in whole.model(0).items():
        np.testing.assert_array_equal(part.model(0)[name], values)
    assert (first["0.weight"] != part.model(0)["0.weight"]).any()


def test_a_trial_of_fit_has_its_weights_by_name(cluster: Cluster) -> None:
    trial = """
import torch
model = torch.nn.Linear(2, 1)
history = nb.frameworks.torch.fit(
    model, (torch.ones(8, 2), torch.ones(8, 1)), optimizer="sgd", loss=torch.nn.MSELoss(), epochs=epochs
)
"""
    options: dict[str, Any] = {"metric": "loss", "cluster": cluster, "on": "worker:0", "sampler": "grid"}
    sweep = finished(start_sweep(trial, "epochs=[1]", **options))
    assert {name: one.shape for name, one in sweep.model(0).items()} == {"weight": (1, 2), "bias": (1,)}


def test_a_stopped_trial_continues_its_schedule_at_another_rate(cluster: Cluster) -> None:
    sweep = start_sweep(
        TRIAL, "lr=[0.1] epochs=4 waits=0.1", metric="rate", framework="torch", sampler="grid",
        cluster=cluster, on="worker:0-1", per_trial=2,
    )  # fmt: skip
    until(lambda: sorted(losses(sweep, 0)) == [1, 2])
    sweep.stop(0)
    finished(sweep)
    assert sweep.trial(0).state == "stopped"
    sweep.promote(0, lr=0.2)
    finished(sweep)
    assert (sweep.trial(0).state, sweep.trial(0).error) == ("finished", "")
    assert losses(sweep, 0) == pytest.approx({1: 0.08, 2: 0.064, 3: 0.1024, 4: 0.08192})
    assert "2 ranks trained without a process group: each has its own model" in sweep.output(0)


def test_options_of_models_of_nbdist_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match="--strategy mirrored is for models of nbdist"):
        start_sweep(TRIAL, "lr=[0.1]", metric="loss", framework="torch", strategy="mirrored", cluster=cluster)


def test_a_loop_that_would_begin_anew_is_not_promoted(cluster: Cluster) -> None:
    trial = TRIAL.replace("nb.train.epochs(epochs)", "range(epochs)").replace(
        "nb.log(loss=loss", "final = loss; nb.log(loss=loss"
    )
    options: dict[str, Any] = {"metric": "final", "framework": "torch", "cluster": cluster, "on": "worker:0"}
    sweep = finished(start_sweep(trial, "lr=[0.1] epochs=2 waits=0", sampler="grid", **options))
    assert sweep.trial(0).error == ""  # its result is a tensor
    with pytest.raises(FailedPreconditionError, match=r"loop is not over nb.train.epochs"):
        sweep.promote(0, epochs=6)
    assert (sweep.state, sweep.trial(0).parameters["epochs"]) == ("finished", 2)
