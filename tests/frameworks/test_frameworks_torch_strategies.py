"""A PyTorch module under every strategy, on real engines, against the same training on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbdist.run.options import Options
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

MODEL = """
import torch
torch.manual_seed({seed})
body = torch.nn.Linear(4, 4)
model = torch.nn.Sequential(body, torch.nn.Tanh(), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
model[2].weight = body.weight = torch.nn.Parameter(torch.full((4, 4), 0.1))      # shared by two layers
model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
x = torch.arange(28 * 4.0).reshape(28, 4) % 7 / 7
y = (torch.arange(28) % 2)
"""
TRAIN = """
torch.manual_seed(0)
optimizer = torch.optim.{optimizer}
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
history = nb.frameworks.torch.fit(
    model, loader, optimizer=optimizer, loss=torch.nn.CrossEntropyLoss(), epochs=3, accumulate={accumulate}
)
weights = [one.detach().numpy() for one in model.parameters()]
"""
PLAIN = """
optimizer = torch.optim.{optimizer}
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
losses = []
for epoch in range(3):
    total = 0.0
    for features, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(features)
    losses.append(total / 28)
weights = [one.detach().numpy() for one in model.parameters()]
"""
SGD = "SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)"
ADAM = "Adam(model.parameters(), lr=0.01, eps=1e-4)"


@pytest.fixture(scope="module")
def plain(cluster: Cluster) -> dict[str, Any]:
    """The weights and the losses of a loop of torch alone, by optimizer."""
    body = MODEL.format(seed=0) + "".join(
        f"{PLAIN.format(optimizer=optimizer)}\n{name} = weights, losses\n{MODEL.format(seed=0)}"
        for name, optimizer in (("sgd", SGD), ("adam", ADAM))
    )
    return start_run(body, Options(on="worker:0", fetch=("sgd", "adam")), cluster=cluster).wait().results


@pytest.mark.parametrize(
    ("options", "optimizer", "accumulate"),
    [
        ({"strategy": "one_device", "on": "worker:0"}, "adam", 2),
        ({"strategy": "multi_worker"}, "sgd", 1),
        ({"strategy": "multi_worker", "collective": "ring"}, "adam", 1),
        ({"strategy": "mirrored"}, "sgd", 2),
        ({"strategy": "central"}, "sgd", 1),
        ({"strategy": "ps", "synchronous": True}, "adam", 1),
    ],
)
def test_synchronous_replicas_train_as_one_device_does(
    cluster: Cluster, plain: dict[str, Any], options: dict[str, Any], optimizer: str, accumulate: int
) -> None:
    text = {"sgd": SGD, "adam": ADAM}[optimizer]
    body = MODEL.format(seed="nb.task.index") + TRAIN.format(optimizer=text, accumulate=accumulate)
    run = start_run(body, Options(**options), cluster=cluster).wait()
    weights, losses = plain[optimizer]
    for found, expected in zip(run.results["weights"], weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    if len(run.tasks) == 1:  # else the chief's history is of its own shares
        np.testing.assert_allclose(run.results["history"]["loss"], losses, rtol=1e-4)
