"""The checks of `make gpu` that train models of PyTorch on a worker's GPU: under strategies, and in cells.

Under a strategy, weights are compared with those of a loop of torch alone on the CPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from gpu_machine import (
    INDEPENDENT,
    STRATEGIES,
    Machine,
    require,
    run_all,
    stopped_if_it_fails,
    wait_for,
    workers,
)

import nbdist as nb

MODEL = """
import numpy as np, torch
device = "cuda" if nb.task.device.startswith("GPU") else "cpu"
rng = np.random.default_rng(0)
x = torch.from_numpy(rng.normal(size=(96, 8)).astype("f4"))
y = torch.from_numpy(rng.integers(0, 3, 96))
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=24)
cross_entropy = torch.nn.functional.cross_entropy

def new_model():
    torch.manual_seed(0)
    norm = torch.nn.{norm}(32)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), norm, torch.nn.Tanh(), torch.nn.Linear(32, 3))

def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)  # with 0.9 old gradients may diverge

plain = new_model()
optimizer, losses = sgd(plain), []
for epoch in range(3):
    total = 0.0
    for features, targets in data:
        optimizer.zero_grad()
        loss = cross_entropy(plain(features), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), {clip})
        optimizer.step()
        total += loss.item() / 4
    losses.append(total)
plain.eval()
expected = cross_entropy(plain(x), y).item()

model, seen = new_model(), set()
if {made_there}:
    model.to(device)
def look(module, given, output):
    seen.update(one.device.type for one in (*given, output, *module.parameters(), *module.buffers()))
hooks = [layer.register_forward_hook(look) for layer in (model[1], model[3])]
optimizer = sgd(model)
"""
FIT = """
history = nb.frameworks.torch.fit(
    model, data, optimizer=optimizer, loss=torch.nn.CrossEntropyLoss(), epochs=3, validation_data=(x, y),
    metrics={{"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()}}, {more}
)
found = history.history["loss"]
validated = history.history["val_loss"][-1] if nb.task.is_chief else expected
"""
WRAP = """
found = []
with nb.frameworks.torch.wrap(model, optimizer, data) as batches:
    for epoch in range(3):
        total = 0.0
        for features, targets in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(features), targets)
            loss.backward()
            optimizer.step()
            nb.log(loss=loss)
            total += loss.item() / 4
        found.append(total)
for hook in hooks:
    hook.remove()  # the module is home again: on a worker with a GPU, where it was made
model.eval()
with torch.no_grad():
    validated = float(cross_entropy(model(x.to(next(model.parameters()).device)), y.to(next(model.parameters()).device)))
"""  # noqa: E501
COMPARE = """
pairs = zip(model.state_dict().values(), plain.state_dict().values())
apart = max(float((one.detach().cpu().double() - other.double()).abs().max()) for one, other in pairs)
apart_validated, on = abs(validated - expected), sorted(seen)
home = sorted({one.device.type for one in (*model.parameters(), *model.buffers())})
result = apart, apart_validated, found, on, home
"""


def train(
    cluster: nb.Cluster,
    machine: Machine,
    how: dict[str, Any],
    body: str = FIT,
    *,
    exact: bool = True,
    made_there: bool = False,
    norm: str = "BatchNorm1d",
    clip: float = 1e9,
    more: str = "",
) -> str:
    """Train a module, and compare it with a loop of torch alone."""
    text = MODEL.format(norm=norm, clip=clip, made_there=made_there) + body.format(more=more) + COMPARE
    run = nb.launch(text, fetch=("result",), cluster=cluster, live=False, **how)
    apart, apart_validated, losses, on, home = run.results["result"]
    there = "cuda" if machine.on_gpu else "cpu"
    require(on == [there], f"computed on {on}, not {there}")
    require(home == [there if made_there else "cpu"], f"the module ended on {home}")
    require(losses[-1] < losses[0], f"the loss did not fall: {losses}")
    if exact:
        require(apart < 1e-4, f"weights or buffers are {apart} apart from torch's own")
        require(apart_validated < 1e-4, f"the validation loss is {apart_validated} apart from torch's own")
    return f"({apart:.0e} apart)"


def check_fit(machine: Machine) -> str:
    """`fit` of a module with BatchNorm on one worker, under every strategy, against torch alone."""
    with workers(machine) as cluster:
        cases: dict[str, Callable[[], object]] = {
            name: partial(train, cluster, machine, how, exact=name not in INDEPENDENT)
            for name, how in STRATEGIES.items()
        }
        for stage in (2, 3):
            cases[f"stage {stage}"] = partial(check_stage, cluster, machine, stage)
        return run_all(cases)


def check_stage(cluster: nb.Cluster, machine: Machine, stage: int) -> str:
    """Train in a stage of ZeRO that gives memory of the host back: workers with a GPU refuse it."""
    try:
        found = train(cluster, machine, {"strategy": "sharded", "stage": stage})
    except (nb.errors.InvalidArgumentError, nb.errors.WorkerError) as error:
        require(machine.on_gpu and f"--stage {stage}" in str(error), f"another error: {error}")
        return "is refused"
    require(not machine.on_gpu, f"stage {stage} has trained")
    return found


def check_shared_gpu(machine: Machine) -> str:
    """`fit` on two workers that share a GPU: their collectives go through the host."""
    with workers(machine, 2) as cluster:
        return run_all(
            {
                name: partial(train, cluster, machine, how, exact=name not in INDEPENDENT, norm="LayerNorm")
                for name, how in STRATEGIES.items()
            }
        )


def check_settings(machine: Machine) -> str:
    """Mixed precision, accumulation, clipping, a module that was made on the GPU, and loops of one's own."""
    with workers(machine) as cluster:
        with_layer_norm = partial(train, cluster, machine, norm="LayerNorm")
        multi_worker, ps = STRATEGIES["multi_worker"], STRATEGIES["ps, sync"]
        return run_all(
            {
                "mixed_float16": partial(
                    with_layer_norm, multi_worker, more="precision='mixed_float16'", exact=False
                ),
                "bfloat16": partial(with_layer_norm, multi_worker, more="precision='bfloat16'", exact=False),
                "--precision": partial(with_layer_norm, {**ps, "precision": "mixed_float16"}, exact=False),
                "accumulate": partial(with_layer_norm, multi_worker, more="accumulate=3"),
                "clip_norm": partial(with_layer_norm, multi_worker, clip=0.1, more="clip_norm=0.1"),
                "made on the GPU": partial(train, cluster, machine, multi_worker, made_there=machine.on_gpu),
                **{
                    f"wrap under {name}": partial(with_layer_norm, STRATEGIES[name], WRAP)
                    for name in ("one_device", "multi_worker", "ps, sync")
                },
                "wrap, made on the GPU": partial(
                    with_layer_norm, multi_worker, WRAP, made_there=machine.on_gpu
                ),
            }
        )


PLACE = """
import os, torch, torch.distributed as dist
device = "cuda" if nb.task.device.startswith("GPU") else "cpu"
"""
GROUP = (
    PLACE
    + """
dist.init_process_group("nccl" if device == "cuda" else "gloo")
torch.manual_seed(0)
"""
)
DDP = (
    GROUP
    + """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 4, device=device)
for step in range({steps}):
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    nb.log(loss=loss, step=step)
    {each}
found = loss.item()
"""
)
FSDP = (
    GROUP
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1)).to(device)
mesh = init_device_mesh(device, (dist.get_world_size(),))
fully_shard(model[0], mesh=mesh), fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
x = torch.randn(64, 4, device=device)
for step in range(20):
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
found, on = loss.item(), next(model.parameters()).to_local().device.type
"""
)
SCALED = (
    GROUP
    + """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler(device)
x = torch.randn(64, 4, device=device)
for step in range(20):
    with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
found = loss.item()
"""
)
ACCELERATE = (
    PLACE
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=device == "cpu")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 4)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, (x,) in enumerate(loader):
    optimizer.zero_grad()
    loss = (model(x) ** 2).mean()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.log({"loss": loss.item()}, step=step)
found, on = loss.item(), accelerator.device.type
"""
)
LIGHTNING = (
    PLACE
    + """
import lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        global found
        loss = (self.linear(batch[0]) ** 2).mean()
        self.log("error", loss)
        found = loss.item()
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 4)), batch_size=4)
trainer = lightning.Trainer(
    accelerator="gpu" if device == "cuda" else "cpu", devices=1, num_nodes=int(os.environ["WORLD_SIZE"]),
    max_epochs=2, logger=False, enable_checkpointing=False, enable_model_summary=False, log_every_n_steps=1,
)
trainer.fit(Model(), loader)
on = trainer.strategy.root_device.type
"""
)
TRANSFORMERS = (
    PLACE
    + """
import tempfile
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def forward(self, x):
        return {"loss": (self.linear(x) ** 2).mean()}
with tempfile.TemporaryDirectory() as folder:
    given = TrainingArguments(
        folder, max_steps=8, logging_steps=1, per_device_train_batch_size=2, save_strategy="no", report_to=[],
        learning_rate=0.1, use_cpu=device == "cpu",
    )
    trainer = Trainer(Model(), given, train_dataset=[{"x": torch.ones(4)} for _ in range(16)])
    trainer.train()
found, on = trainer.state.log_history[-2]["loss"], trainer.model.linear.weight.device.type
"""
)
FAILS = (
    GROUP
    + """
x = torch.ones(1000, device=device)
dist.all_reduce(x)
raise ValueError("no more")
"""
)


def check_cells(machine: Machine) -> str:
    """Cells of torch as they are over NCCL: DDP, FSDP2, libraries, a failure, *Stop*, and the next cell."""
    there = "cuda" if machine.on_gpu else "cpu"

    with workers(machine, ps=0) as cluster:

        def cell(body: str, most: float, *, logs: str = "") -> str:
            run = nb.launch(
                "on = None\n" + body, framework="torch", fetch=("found", "on"), cluster=cluster, live=False
            )
            found, on = run.results["found"], run.results["on"]
            require(found < most, f"the loss is {found}")
            require(on in (None, there), f"computed on {on}, not {there}")
            require(not logs or logs in run.store.series, f"no series {logs} in {list(run.store.series)}")
            return f"loss {found:.0e}"

        def fails() -> str:
            try:
                nb.launch(FAILS, framework="torch", cluster=cluster, live=False)
            except nb.errors.WorkerError as error:
                require("no more" in str(error), f"another error: {error}")
                return ddp()
            raise RuntimeError("the failure was not reported")

        def steered() -> str:
            return (
                steer(DDP.format(steps=10**7, each="pass"), cluster, {"framework": "torch"}, "DDP")
                + f", then {ddp()}"
            )

        ddp = partial(cell, DDP.format(steps=60, each="pass"), 0.5, logs="loss")
        cases: dict[str, Callable[[], object]] = {
            "DDP": ddp,
            "FSDP2": partial(cell, FSDP, 2.0),
            "GradScaler": partial(cell, SCALED, 1.0),
            "a failure": fails,
            "steered": steered,
        }
        libraries = {
            "accelerate": partial(cell, ACCELERATE, 1.0, logs="loss"),
            "lightning": partial(cell, LIGHTNING, 1.0, logs="error"),
            "transformers": partial(cell, TRANSFORMERS, 1.0, logs="loss"),
        }
        cases |= {name: case for name, case in libraries.items() if importlib.util.find_spec(name)}
        return run_all({**cases, "the last cell": ddp})


ENDLESS = """
import torch
torch.manual_seed(0)
x = torch.randn(256, 8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = nb.frameworks.torch.fit(
    model, (x, x.sum(1, keepdim=True)), batch_size=16, optimizer=optimizer, loss=torch.nn.MSELoss(),
    epochs=10**6,
)
"""


def steer(body: str, cluster: nb.Cluster, how: dict[str, Any], what: str) -> str:
    """Pause a training, change its rate, save it, and stop it."""
    run = nb.launch(body, cluster=cluster, live=False, background=True, **how)

    def step() -> int:
        return min((replica.step for replica in run.standing().replicas), default=0)

    with stopped_if_it_fails(run):
        wait_for(lambda: run.trains and step() > 3, run, f"{what} trains")
        run.pause()
        wait_for(lambda: run.standing().state == "paused", run, f"{what} pauses")
        at = step()
        run.set(learning_rate=0.02)
        saved = run.checkpoint()
        require(saved.exists() and saved.stat().st_size, f"nothing was saved in {saved}")
        run.resume()  # the next step is the first at that rate
        wait_for(lambda: run.standing().learning_rate == 0.02, run, f"{what} has another rate")
        wait_for(lambda: step() > at + 3, run, f"{what} continues")
        run.stop()
        run.wait()
    require(run.status == "stopped", f"{what} is {run.status} after Stop")
    return f"stopped after {step()} steps"


def check_steering(machine: Machine) -> str:
    """Pause, learning rate, checkpoint and Stop of `fit` on the GPU, under strategies."""
    with workers(machine) as cluster:
        return run_all(
            {
                name: partial(steer, ENDLESS, cluster, STRATEGIES[name], name)
                for name in ("one_device", "multi_worker", "ps, async")
            }
        )


CHECKS: dict[str, Callable[[Machine], object]] = {
    "torch: fit": check_fit,
    "torch: fit on a shared GPU": check_shared_gpu,
    "torch: settings and loops": check_settings,
    "torch: steering": check_steering,
    "torch: cells": check_cells,
}
