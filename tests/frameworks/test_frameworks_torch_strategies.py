"""A PyTorch module under every strategy, on real engines, against the same training on one device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiers import matrix

from nbdist.checkpoint.tensor_file import TensorFile
from nbdist.errors import WorkerError
from nbdist.frameworks.torch.weights import StateDict
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
scheduler, interval = {scheduler}
history = nb.frameworks.torch.fit(
    model, loader, optimizer=optimizer, loss=torch.nn.CrossEntropyLoss(), epochs=3, accumulate={accumulate},
    scheduler=scheduler, scheduler_interval=interval, clip_norm={clip},
)
weights = [one.detach().numpy() for one in model.parameters()]
"""
PLAIN = """
optimizer = torch.optim.{optimizer}
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
losses = []
scheduler, interval = {scheduler}
for epoch in range(3):
    total = 0.0
    for features, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features), targets)
        loss.backward()
        if {clip}:
            torch.nn.utils.clip_grad_norm_(model.parameters(), {clip})
        optimizer.step()
        total += loss.item() * len(features)
        if interval == "step":
            scheduler.step()
    losses.append(total / 28)
    if scheduler is not None and interval == "epoch":
        watches = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        scheduler.step(*([losses[-1]] if watches else []))
weights = [one.detach().numpy() for one in model.parameters()]
"""
SGD = "SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)"
ADAM = "Adam(model.parameters(), lr=0.01, eps=1e-4)"
GROUPS = """SGD([
    {"params": list(model.parameters())[:2], "lr": 0.02},
    {"params": list(model.parameters())[2:], "weight_decay": 0.01}], lr=0.1, momentum=0.9)"""
RMSPROP = "RMSprop(model.parameters(), lr=0.01, eps=1e-2, momentum=0.5, centered=True, weight_decay=0.01)"
ADAGRAD = "Adagrad(model.parameters(), lr=0.1, eps=1e-3)"
OPTIMIZERS = {
    "sgd": (SGD, 'None, "epoch"'),
    "adam": (ADAM, 'None, "epoch"'),
    "groups": (
        GROUPS,
        'torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.04, 0.2], 20, cycle_momentum=False), "step"',
    ),
    "clipped": (GROUPS, 'None, "epoch"'),
    "rmsprop": (RMSPROP, 'torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "epoch"'),
    "adagrad": (
        ADAGRAD,
        'torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", 0.5, 0, threshold=1e9), "epoch"',
    ),
}
"""Optimizers, and schedulers with their intervals."""
CLIP = {"clipped": 0.05}
"""The largest norm of the summed gradients."""


def with_optimizer(text: str, name: str, **more: Any) -> str:
    optimizer, scheduler = OPTIMIZERS[name]
    return text.format(optimizer=optimizer, scheduler=scheduler, clip=CLIP.get(name), **more)


@pytest.fixture(scope="module")
def plain(cluster: Cluster) -> dict[str, Any]:
    """The weights and the losses of a loop of torch alone, by optimizer."""
    body = MODEL.format(seed=0) + "".join(
        f"{with_optimizer(PLAIN, name)}\n{name} = weights, losses\n{MODEL.format(seed=0)}"
        for name in OPTIMIZERS
    )
    return start_run(body, Options(on="worker:0", fetch=tuple(OPTIMIZERS)), cluster=cluster).wait().results


@pytest.mark.parametrize(
    ("options", "optimizer", "accumulate"),
    [
        ({"strategy": "one_device", "on": "worker:0"}, "adam", 2),
        ({"strategy": "multi_worker"}, "sgd", 1),
        ({"strategy": "multi_worker", "collective": "ring"}, "adam", 1),
        ({"strategy": "mirrored"}, "sgd", 2),
        ({"strategy": "sharded"}, "adam", 1),
        ({"strategy": "sharded", "stage": 2, "collective": "ring"}, "sgd", 2),
        ({"strategy": "sharded", "stage": 3}, "sgd", 1),
        ({"strategy": "sharded", "stage": 3, "collective": "ring"}, "adam", 2),
        ({"strategy": "central"}, "sgd", 1),
        ({"strategy": "ps", "synchronous": True}, "adam", 1),
        ({"strategy": "multi_worker"}, "groups", 1),
        ({"strategy": "ps", "synchronous": True}, "groups", 1),
        ({"strategy": "multi_worker"}, "clipped", 1),
        ({"strategy": "mirrored", "collective": "ring"}, "clipped", 2),
        ({"strategy": "one_device", "on": "worker:0"}, "clipped", 1),
        ({"strategy": "multi_worker"}, "rmsprop", 1),
        ({"strategy": "mirrored"}, "adagrad", 2),
    ],
)
def test_synchronous_replicas_train_as_one_device_does(
    cluster: Cluster,
    plain: dict[str, Any],
    request: pytest.FixtureRequest,
    options: dict[str, Any],
    optimizer: str,
    accumulate: int,
) -> None:
    if options.get("stage", 1) > 1:
        request.getfixturevalue("no_gpus")
    body = MODEL.format(seed="nb.task.index") + with_optimizer(TRAIN, optimizer, accumulate=accumulate)
    run = start_run(body, Options(**options), cluster=cluster).wait()
    weights, losses = plain[optimizer]
    for found, expected in zip(run.results["weights"], weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    if options["strategy"] not in ("ps", "central"):  # whose history is of each worker's own shares
        np.testing.assert_allclose(run.results["history"]["loss"], losses, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "ps"},
        {"strategy": "ps", "staleness": 2},
        {"strategy": "ps", "synchronous": True, "backups": 1},
        {"strategy": "elastic", "every": 2},
        {"strategy": "multi_worker", "framework": "torch", "epochs": 20},
    ],
)
def test_replicas_of_every_kind_learn(cluster: Cluster, options: dict[str, Any]) -> None:
    body = """
import torch
torch.manual_seed(nb.task.index)
x = torch.rand(90, 4, generator=torch.Generator().manual_seed(0))
y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) + 0.3
model = torch.nn.Sequential(torch.nn.BatchNorm1d(4, affine=False), torch.nn.Linear(4, 1))
def training_step(batch):
    x, y = batch
    return torch.nn.functional.mse_loss(model(x), y)
history = nb.frameworks.torch.fit(
    model, torch.utils.data.TensorDataset(x, y), batch_size=15,
    optimizer=torch.optim.Adam(model.parameters(), lr=0.1), training_step=training_step, epochs=EPOCHS,
)
left = model[1].weight.grad, x.device.type, model.training
final = training_step((x, y)).item()
""".replace("EPOCHS", "1" if "epochs" in options else "20")
    run = start_run(body, Options(**options), cluster=cluster).wait()
    losses = run.history["loss"]
    assert len(losses) == 20 or "backups" in options  # with backups it has no part in some steps
    assert run.results["final"] < 1.0  # the labels' variance is 1.2
    assert run.results["left"] == (None, "cpu", True)
    assert isinstance(run.model, StateDict)
    assert run.model["1.weight"].shape == (1, 4)
    assert run.model["0.num_batches_tracked"] > 0


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({"strategy": "multi_worker"}, "sgd"),
        ({"strategy": "ps", "synchronous": True}, "adam"),
        ({"strategy": "ps"}, None),
    ],
)
def test_a_loop_of_ones_own_trains_as_on_one_device(
    cluster: Cluster, plain: dict[str, Any], options: dict[str, Any], optimizer: str | None
) -> None:
    body = f"""
from torch.optim.lr_scheduler import MultiplicativeLR
optimizer = torch.optim.{ADAM if optimizer == "adam" else SGD}
scheduler = MultiplicativeLR(optimizer, lambda epoch: 1.0)
rows = torch.utils.data.TensorDataset(x, y)
data = rows if {optimizer is None} else torch.utils.data.DataLoader(rows, 8)
with nb.frameworks.torch.wrap(model, optimizer, data) as batches:
    count, passed = len(batches), 0
    for epoch in range(3):
        for features, targets in batches:
            passed += 1
            for half in range(2):       # accumulated over two parts
                loss = torch.nn.functional.cross_entropy(model(features[half::2]), targets[half::2])
                (loss * len(features[half::2]) / len(features)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            optimizer.step()
            nb.log(loss=loss)
        scheduler.step()
weights = [one.detach().numpy() for one in model.parameters()]
assert passed == 3 * count, (passed, count)
"""
    run = start_run(MODEL.format(seed="nb.task.index") + body, Options(**options), cluster=cluster).wait()
    assert run.store.last(2, "loss") is not None
    for found, expected in zip(run.results["weights"], plain[optimizer or "sgd"][0], strict=True):
        assert found.shape == expected.shape
        if optimizer is not None:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(run.model["2.weight"], run.results["weights"][1])


@pytest.mark.parametrize(
    "options", matrix([{"strategy": "multi_worker"}], rest=[{"strategy": "ps", "synchronous": True}]), ids=str
)
def test_a_grad_scaler_leaves_a_step_out_on_all_replicas(cluster: Cluster, options: dict[str, Any]) -> None:
    body = f"""
def train(batches, optimizer, wrapped):
    scaler, made = torch.amp.GradScaler("cpu", init_scale=64.0), 0
    for epoch in range(2):
        for features, targets in batches:
            loss = torch.nn.functional.cross_entropy(model(features), targets)
            overflows = made == 1 and nb.task.index == 0 if wrapped else made == 1
            optimizer.zero_grad()
            scaler.scale(loss * (float("inf") if overflows else 1.0)).backward()
            if made % 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            made += 1
    return scaler.get_scale()
optimizer = torch.optim.{SGD}
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 8)
if {{wrapped}}:
    with nb.frameworks.torch.wrap(model, optimizer, loader) as batches:
        scale = train(batches, optimizer, True)
else:
    scale = train(loader, optimizer, False)
weights = [one.detach().numpy() for one in model.parameters()]
"""
    model = MODEL.format(seed=0)
    plain = start_run(model + body.format(wrapped=False), Options(on="worker:0"), cluster=cluster).wait()
    run = start_run(model + body.format(wrapped=True), Options(**options), cluster=cluster).wait()
    assert (run.results["scale"], plain.results["scale"]) == (32.0, 32.0)
    assert run.skipped == 1
    for found, expected in zip(run.results["weights"], plain.results["weights"], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_training_continues_from_a_state(cluster: Cluster, tmp_path: Path) -> None:
    body = MODEL.format(seed=0) + with_optimizer(TRAIN, "rmsprop", accumulate=1)
    options = {"strategy": "multi_worker", "seed": 1, "checkpoint_every": 1}
    whole = start_run(body, Options(**options), cluster=cluster).wait()
    first = start_run(body, Options(**options, epochs=1), cluster=cluster).wait()
    more = start_run(body, Options(**options, resume=first.id), cluster=cluster).wait()
    for name, weights in whole.model.items():
        np.testing.assert_array_equal(more.model[name], weights)
    path = tmp_path / "model.safetensors"
    more.model.save(path)
    with TensorFile(path) as file:
        np.testing.assert_array_equal(file.read("2.weight"), whole.model["2.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "model = torch.nn.Linear(4, 2 + nb.task.index)",
            r"the replicas built different models: variable 0 is weight \(2, 4\).*and weight \(3, 4\)",
        ),
        ("model = model.bfloat16()", r"parameter unused is torch.bfloat16.*fit\(precision='bfloat16'\)"),
        (
            "StepLR = torch.optim.lr_scheduler.StepLR\n"
            "SGD = lambda values, lr: StepLR(torch.optim.SGD(values, lr), 1).optimizer",
            r"the optimizer has a scheduler of torch, which nothing steps: give it to fit",
        ),
        ("x = x.bfloat16()", r"the data have a tensor of torch\.bfloat16.*convert it \(float\(\)\)"),
        (
            "plan = lambda sgd: torch.optim.lr_scheduler.OneCycleLR(sgd, 0.1, 9)\n"
            "SGD = lambda parameters, lr: torch.optim.SGD(parameters, lr, 0.9)",
            r"OneCycleLR\(cycle_momentum=True\) changes the momentum",
        ),
        ("SGD = torch.optim.Rprop", r"Rprop cannot make updates.*torch.optim.SGD \(lr, momentum"),
    ],
)
def test_what_cannot_be_trained_is_named(cluster: Cluster, change: str, message: str) -> None:
    body = (
        MODEL.format(seed=0)
        + f"""
SGD, plan = torch.optim.SGD, lambda sgd: None
{change}
sgd = SGD(model.parameters(), lr=0.1)
loss = torch.nn.CrossEntropyLoss()
nb.frameworks.torch.fit(model, (x, y), optimizer=sgd, loss=loss, scheduler=plan(sgd))
"""
    )
    with pytest.raises(WorkerError, match=message):
        start_run(body, Options(strategy="multi_worker"), cluster=cluster).wait()


@pytest.mark.usefixtures("no_gpus")
def test_modules_that_read_parameters_of_others_train_in_stage_3(cluster: Cluster) -> None:
    """Attention reads those of a layer that it does not call; a layer is called twice, and one is unused.

    One batch has fewer examples than workers; callbacks and validation find all parameters.
    """
    body = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.recurrent = torch.nn.LSTM(8, 8, batch_first=True)
        self.wide, self.last = torch.nn.Linear(8, 40000), torch.nn.Linear(40000, 2)
        self.scale = torch.nn.Parameter(torch.ones(8))
        self.unused = torch.nn.Linear(2, 2)
    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = self.scale * (h + self.attention(h, h, h, need_weights=False)[0])
        h = self.recurrent(h)[0] + self.first(x)
        return self.last(torch.relu(self.wide(h.mean(1))))
torch.manual_seed(1)
model, seen = Net(), []
g = torch.Generator().manual_seed(0)
x, y = torch.rand(17, 4, 3, generator=g), torch.randint(0, 2, (17,), generator=g)
class Look(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        with torch.no_grad():
            seen.append(float(model(x).sum()))
history = nb.frameworks.torch.fit(
    model, torch.utils.data.TensorDataset(x, y), batch_size=8, epochs=2, validation_data=(x, y),
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01), clip_norm=0.5,
    loss=torch.nn.functional.cross_entropy, callbacks=[Look()] if nb.task.is_chief else [],
)
weights = [one.detach().numpy() for one in model.parameters()]
kinds = sorted({type(one._parameters).__name__ for one in model.modules()})
"""
    expected, found = (
        start_run(
            body, Options(seed=1, fetch=("seen", "weights", "kinds"), **options), cluster=cluster
        ).wait()
        for options in ({"strategy": "sharded"}, {"strategy": "sharded", "stage": 3})
    )
    for ours, theirs in zip(found.results["weights"], expected.results["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.results["seen"], expected.results["seen"], rtol=1e-4)
    np.testing.assert_allclose(found.history["val_loss"], expected.history["val_loss"], rtol=1e-5)
    assert found.results["kinds"] == ["dict"]
