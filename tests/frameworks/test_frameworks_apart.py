"""Ranks that train a model each: what the run says of them, and objects of earlier cells."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from tiers import exhaustive

from nbdist.errors import WorkerError
from nbdist.frameworks.apart import in_group
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.ui.display.run import summary_of

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

APART = "2 ranks trained without a process group: each has its own model; "
STEPS = """
for _ in range(3):
    optimizer.zero_grad(); (model(torch.ones(8, 4)) ** 2).mean().backward(); optimizer.step()
"""
ALONE = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TOGETHER = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
WRAPPED = (
    ALONE
    + """
data = torch.utils.data.DataLoader([torch.ones(4)] * 8, batch_size=4)
with nb.frameworks.torch.wrap(model, optimizer, data) as batches:
    for x in batches:
        optimizer.zero_grad(); (model(x) ** 2).mean().backward(); optimizer.step()
"""
)
ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model.module, optimizer)
"""
LIGHTNING = """
import lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return (self.linear(batch[0]) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=4)
quiet = dict(logger=False, enable_checkpointing=False, enable_model_summary=False)
lightning.Trainer(accelerator="cpu", max_epochs=1, **quiet).fit(Model(), loader)
"""
KERAS = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np
keras_model = keras.Sequential([keras.layers.Dense(1)])
keras_model.compile("sgd", "mse")
keras_model.fit(np.ones((32, 4), "float32"), np.ones((32, 1), "float32"), verbose=0)
"""
JAX = """
import jax
{begin}
for step in range(3):
    nb.log(loss=1 / (step + 1))
"""
ARGUMENTS = """
import tempfile, torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def forward(self, x):
        return {"loss": (self.linear(x) ** 2).mean()}
given = TrainingArguments(
    tempfile.mkdtemp(), max_steps=2, per_device_train_batch_size=2, save_strategy="no", report_to=[],
)
"""
TRAINER = """
trainer = Trainer(Model(), given, train_dataset=[{"x": torch.ones(4)} for _ in range(16)])
trainer.train()
kind, size = type(trainer.model_wrapped).__name__, given.world_size
"""


def run_cell(cluster: Cluster, body: str, framework: str | None = "torch", **options: Any) -> Run:
    return start_run(body, Options(framework=framework, on="worker:0-1", **options), cluster=cluster).wait()


@pytest.mark.parametrize(
    ("body", "framework", "remedy"),
    [
        (ALONE + STEPS, "torch", "call torch.distributed.init_process_group() and wrap"),
        (JAX.format(begin=""), "jax", "call jax.distributed.initialize()"),
        (JAX.format(begin=""), None, "for one model use nb.frameworks.torch.wrap, jax.wrap"),
        (ALONE + STEPS, None, "for one model use nb.frameworks.torch.wrap"),
        pytest.param(
            LIGHTNING, "torch", "give Lightning the number of workers: Trainer(devices=2)", marks=exhaustive
        ),
        pytest.param(KERAS, "jax", "train with nb.frameworks.keras.wrap(model)", marks=exhaustive),
        pytest.param(KERAS, None, "for one model use nb.frameworks.torch.wrap, jax", marks=exhaustive),
    ],
    ids=["torch", "jax", "plain-jax", "plain", "lightning", "keras", "plain-keras"],
)
def test_ranks_without_a_process_group_are_reported(
    cluster: Cluster, body: str, framework: str | None, remedy: str
) -> None:
    run = run_cell(cluster, body, framework)
    said = summary_of(run).warning
    assert said.startswith(APART + remedy)
    assert said in run.notes


def test_a_plain_loop_counts_the_steps_that_it_logs(cluster: Cluster) -> None:
    body = ALONE + STEPS.replace("_ in range(3)", "step in range(50)") + "    nb.log(loss=0.5, step=step)\n"
    run = run_cell(cluster, body, None)
    found = summary_of(run)
    assert (found.step, found.unit, found.steps_per_second) == (100, "updates", run.steps_per_second)
    assert found.steps_per_second == pytest.approx(100 / run.seconds)
    assert [row["steps"] for row in found.rows] == [50, 50]
    assert [one["step"] for one in found.replicas] == [50, 50]


def test_ranks_with_a_process_group_are_not(cluster: Cluster) -> None:
    for body, framework in (
        (TOGETHER + STEPS, "torch"),
        (JAX.format(begin="jax.distributed.initialize()"), "jax"),
    ):
        run = run_cell(cluster, body, framework)
        assert (run.standing().apart, run.notes) == ("", [])
    alone = start_run(ALONE + STEPS, Options(framework="torch", on="worker:0"), cluster=cluster).wait()
    assert alone.standing().apart == ""
    assert run_cell(cluster, WRAPPED, None, strategy="multi_worker").standing().apart == ""


LOGGED = "for step in range(3):\n    nb.log(loss=1 / (step + 1))\n"
FITTED = """
import numpy as np
net = nb.nn.Sequential([nb.nn.Dense(1)])
net.compile("sgd", "mse")
net.fit(np.ones((8, 4)), np.zeros((8, 1)))
"""
AVERAGED = STEPS.replace(
    "optimizer.step()",
    "[p.grad.copy_(torch.from_numpy(nb.collective.all_reduce(p.grad.numpy()))) for p in model.parameters()]; "
    "optimizer.step()",
)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (LOGGED, {}),
        ("import jax\nnb.log(val_loss=1.0)\nnb.log(val_loss=0.5)", {}),
        (ALONE + STEPS + WRAPPED, {"strategy": "multi_worker"}),
        ("import jax\n" + LOGGED + FITTED, {"strategy": "multi_worker"}),
        (ALONE + "if nb.task.is_chief:" + STEPS.replace("\n", "\n    "), {}),
        (ALONE + AVERAGED, {}),
    ],
    ids=["numpy", "evaluation", "warm-up", "loss-before-fit", "one-rank", "averaged"],
)
def test_plain_cells_that_train_one_model_are_not_reported(
    cluster: Cluster, body: str, options: dict[str, Any]
) -> None:
    run_cell(cluster, "import jax", None)  # of another cell
    assert run_cell(cluster, body, None, **options).standing().apart == ""


def test_builds_without_distribution_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, known in (("torch", False), ("jax", True)):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, f"{name}.distributed", ModuleType(f"{name}.distributed"))
        assert in_group(name) is known


def test_flags_that_a_loop_of_ones_own_does_not_obey_are_named(cluster: Cluster) -> None:
    given: dict[str, Any] = {"strategy": "multi_worker", "checkpoint_every": 1}
    [said] = run_cell(cluster, TOGETHER + STEPS, precision="mixed_bfloat16", **given).notes
    assert said.startswith("--precision, --strategy, --checkpoint-every had no effect: only what trains by")
    counted = WRAPPED.replace("for x in batches", "for last, x in enumerate(batches)")
    wrapped = run_cell(cluster, counted, **given)
    assert [note for note in wrapped.notes if "no effect" in note] == []
    again = run_cell(cluster, counted, resume=wrapped.id, **given)
    assert wrapped.results["last"] == 1
    assert "last" not in again.results  # its pass was over


def test_ranks_with_a_process_group_that_average_nothing_are_reported(cluster: Cluster) -> None:
    begin = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    begin += "torch.manual_seed({seed})\n" + ALONE
    same, apart = (run_cell(cluster, begin.format(seed=seed) + STEPS) for seed in ("0", "dist.get_rank()"))
    [said] = [note for note in apart.notes if "different weights" in note]
    assert "wrap it in DistributedDataParallel" in said
    assert same.notes == []  # as if their gradients had been averaged
    weights = [apart.outcomes[rank]["weights"] for rank in apart.outcomes]
    assert all(len(one) == 2 for one in weights)  # of the kernel and the bias


def test_the_rank_whose_data_ended_first_is_named(cluster: Cluster) -> None:
    uneven = STEPS.replace("range(3)", "range(7 if dist.get_rank() == 1 else 12)")
    with pytest.raises(
        WorkerError, match=r"/job:worker/task:1 had ended its body after step 7, and this rank"
    ):
        run_cell(cluster, TOGETHER + uneven)


SLOW = """
import os, threading
from torch.distributed import distributed_c10d
made = {made!r}
def helper(*args, helper=distributed_c10d._new_process_group_helper, **options):
    group = helper(*args, **options)
    if nb.task.index == 0:
        threading.Event().wait(0.3)  # rank 1 would have left meanwhile
        open(made, "x").close()
    return group
distributed_c10d._new_process_group_helper = helper
try:
    dist.init_process_group("gloo")
    assert os.path.exists(made)
finally:
    distributed_c10d._new_process_group_helper = helper.__kwdefaults__["helper"]
"""


def test_no_rank_leaves_before_all_have_made_the_group(cluster: Cluster, tmp_path: Path) -> None:
    body = "import torch.distributed as dist\n" + SLOW.format(made=str(tmp_path / "made"))
    run_cell(cluster, body)


def test_a_distributed_module_of_an_earlier_cell_is_refused(cluster: Cluster) -> None:
    run_cell(cluster, TOGETHER + STEPS)
    for begin in ("", "dist.init_process_group('gloo')\n"):
        with pytest.raises(WorkerError, match="this DistributedDataParallel was made by an earlier cell"):
            run_cell(cluster, begin + STEPS)
    anew = "dist.init_process_group('gloo')\n"
    anew += "model = torch.nn.parallel.DistributedDataParallel(model.module)\n"
    assert run_cell(cluster, anew + STEPS).standing().apart == ""


def test_an_accelerator_of_an_earlier_cell_is_refused(cluster: Cluster) -> None:
    run_cell(cluster, TOGETHER + STEPS)
    run_cell(cluster, "from accelerate import PartialState\nstate = PartialState(cpu=True)", None)
    run = run_cell(
        cluster, ACCELERATE + STEPS + "size = accelerator.num_processes"
    )  # not the plain cell's state
    assert (run.results["size"], run.standing().apart) == (2, "")
    for use in ("accelerator.prepare(model)", "accelerator.backward(None)"):
        with pytest.raises(WorkerError, match="Accelerator was made by an earlier cell"):
            run_cell(cluster, use)


def test_training_arguments_of_an_earlier_cell_find_the_group_of_this_one(cluster: Cluster) -> None:
    run_cell(cluster, ARGUMENTS)
    assert run_cell(cluster, TRAINER).results["kind"] == "DistributedDataParallel"
    run_cell(cluster, ARGUMENTS, None)  # which has no group at all
    results = run_cell(cluster, TRAINER).results
    assert (results["kind"], results["size"]) == ("DistributedDataParallel", 2)
