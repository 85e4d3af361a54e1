"""A training of torch on real engines, seen and steered: curves, pause, stop, rate, checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from waiting import until

from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.ui.display.run import summary_of

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

ENDLESS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(4, 1)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD([{{"params": [model.module.weight]}}, {{"params": [model.module.bias], "lr": 0.01}}], lr=0.1, momentum=0.9)
{schedule}
steps = 0
rates = []
try:
    while steps < 1_000_000:
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) ** 2).mean().backward()
        optimizer.step()
        steps += 1
        {each}
finally:
    weight = model.module.weight.detach().numpy().copy()
    rates = [group["lr"] for group in optimizer.param_groups]
    nb.log(loss=0.5, steps_made=steps, weight=float(weight.sum()), step=7)
"""  # noqa: E501


@pytest.fixture
def begin(cluster: Cluster) -> Callable[..., Run]:
    def begin_one(body: str, **options: Any) -> Run:
        return start_run(body, Options(framework="torch", **options), cluster=cluster)

    return begin_one


def steps(run: Run) -> list[int]:
    """Return how many steps each replica has made."""
    return [replica.step for replica in run.standing().replicas]


def not_finite(run: Run) -> list[str]:
    """Return the notes on a loss that is NaN, without what they say of loops."""
    return [note.rpartition(":")[0] for note in run.notes if " is nan at step " in note]


def trains(run: Run) -> bool:
    return run.trains and all(step > 3 for step in steps(run))


def lasts(run: Run, name: str) -> list[float]:
    found = [run.store.last(i, name) for i in range(len(run.tasks))]
    return [one.value for one in found if one is not None]


def test_a_plain_loop_pauses_changes_its_rate_and_stops_on_all_ranks_at_one_step(
    begin: Callable[..., Run],
) -> None:
    run = begin(ENDLESS.format(schedule="import time", each="time.sleep(0.002)"))
    until(lambda: trains(run), during=run)
    assert run.standing().learning_rate == 0.1
    run.pause()
    until(lambda: run.standing().state == "paused" and len(set(steps(run))) == 1, during=run)
    at = steps(run)
    run.set(learning_rate=0.05)
    until(lambda: run.standing().learning_rate == 0.05, during=run)
    assert steps(run) == at  # it is still paused
    path = run.checkpoint()
    run.resume()
    until(lambda: min(steps(run)) > at[0] + 3, during=run)
    run.pause()  # a stop is followed by a signal after 1.5 s, which a busy machine's next step may not make
    until(lambda: run.standing().state == "paused" and len(set(steps(run))) == 1, during=run)
    run.stop()
    run.wait()
    assert run.status == "stopped"
    made, weights = lasts(run, "steps_made"), lasts(run, "weight")
    assert len(made) == 3
    assert len(set(made)) == len(set(weights)) == 1  # also at the rate that was set
    assert run.results["rates"] == [0.05, 0.005]
    shown = summary_of(run)
    assert (shown.step, shown.unit) == (made[0] + 1, "steps")  # the last one ended in the stop
    assert 0 < shown.seconds <= run.standing().elapsed  # of training, without what is between the steps

    from safetensors.numpy import load_file

    assert load_file(path).keys() == {"weight", "bias"}
    assert load_file(path.with_name("optimizer.safetensors"))["0.momentum_buffer"].shape == (1, 4)
    np.testing.assert_equal(np.isfinite(load_file(path)["weight"]).all(), True)


SCHEDULED = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
context.control.set_rate(0.5)
seen = []
for step in range(3):
    optimizer.step()
    scheduler.step()
    seen.append((context.progress.learning_rate, optimizer.param_groups[0]["lr"]))
"""


def test_a_schedule_continues_multiplied(begin: Callable[..., Run]) -> None:
    text = "from nbdist.train.context import current\ncontext = current()\n" + SCHEDULED
    run = begin(text, on="worker:0").wait()
    # It is set after the first step, which was made at a rate of 1: half of what the schedule says.
    assert run.results["seen"] == [(0.5, 0.5), (0.25, 0.25), (0.125, 0.125)]


LIGHTNING = """
import sys, lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = (self.linear(batch[0]) ** 2).mean()
        self.log("train_error", loss)
        self.log("both", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss * (float("nan") if self.global_step == WRONG[self.global_rank] else 1.0)
    def on_train_epoch_end(self):
        self.log("epoch", float(self.current_epoch))
    def validation_step(self, batch, index):
        self.log("val_loss", (self.linear(batch[0]) ** 2).mean(), sync_dist=True)
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]
WRONG = {wrong}
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), batch_size=4)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, max_epochs=2, logger=False, enable_checkpointing=False,
    enable_model_summary=False,
)
trainer.fit(Model(), loader, loader)
epochs = nb.train.state and trainer.current_epoch
"""

LEFT = """
import sys, lightning
trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
added = any("nbdist" in type(one).__module__ for one in trainer.callbacks)
found = [one for one in sys.meta_path if "nbdist" in str(one)]
left = added, [name for one in found for name in one._changes if name.startswith("lightning")]
"""


def test_what_lightning_logs_is_in_the_run(begin: Callable[..., Run], cluster: Cluster) -> None:
    for wrong in (None, None), (3, 2):  # it is imported in the first, and there in the second
        run = begin(LIGHTNING.replace("{wrong}", str(wrong)), on="worker:0-1").wait()
        for replica in range(2):
            points = {name: run.store.points(replica, name)[0].tolist() for name in run.store.series}
            for name in ("loss", "train_error", "both_step"):
                assert points[name] == [1, 2, 3, 4], name
            for name in ("both", "both_epoch", "val_loss", "epoch"):
                assert points[name] == [2, 4], name
        standing = run.standing()
        assert (standing.total, standing.epoch, standing.epochs) == (4, 2, 2)
        assert [(one.step, one.kind, one.text) for one in run.events] == [
            (2, "schedule", "learning rate 0.1 → 0.01")
        ]
        assert steps(run) == [4, 4]
        assert not_finite(run) == (["loss of /job:worker/task:1 is nan at step 3"] if wrong[1] else [])
    left = start_run(LEFT, Options(on="worker:0"), cluster=cluster).wait()
    assert left.results["left"] == (False, [])


def test_what_accelerate_logs_is_in_the_run(begin: Callable[..., Run]) -> None:
    body = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
for step in range(3):
    accelerator.log({"loss": 1.0 - step / 4, "note": "text"}, step=step)
"""
    run = begin(body, on="worker:0-1").wait()
    assert lasts(run, "loss")[:2] == [0.5, 0.5]
    assert "note" not in run.store.series


TRANSFORMERS = """
import tempfile, torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
        self.left = 3
    def forward(self, x):
        self.left -= 1
        return {"loss": (self.linear(x) ** 2).mean() * (1.0 if self.left else float("nan"))}
folder = tempfile.mkdtemp()
given = TrainingArguments(
    folder, max_steps=4, logging_steps=2, per_device_train_batch_size=2, save_strategy="no", report_to=[],
)
Trainer(Model(), given, train_dataset=[{"x": torch.ones(4)} for _ in range(16)]).train()
import shutil; shutil.rmtree(folder, ignore_errors=True)
"""


def test_what_transformers_log_is_in_the_run(begin: Callable[..., Run]) -> None:
    run = begin(TRANSFORMERS, on="worker:0-1").wait()
    points = [run.store.last(i, "loss") for i in range(2)]
    assert [None if one is None else one.step for one in points] == [4, 4]
    assert (run.standing().total, steps(run)) == (4, [4, 4])
    assert not_finite(run) == [
        "loss of /job:worker/task:0 is nan at step 3"
    ]  # the Trainer logs no NaN itself
