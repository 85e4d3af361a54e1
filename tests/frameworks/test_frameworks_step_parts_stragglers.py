"""Ranks of a process group on real engines: the slow one is named, however they wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from waiting import until

from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster


pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

SLEEPS = 0.015  # seconds of each rank's data; of rank 1 four times as long, at the first learning rate
ENDLESS = f"""
import time
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")

class Slow(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            slow = dist.get_rank() == 1 and optimizer.param_groups[0]["lr"] > 0.05
            time.sleep({SLEEPS} * (4 if slow else 1))
            yield torch.ones(4)

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
model = {{model}}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    {{reduces}}
    optimizer.step()
"""
KINDS = {
    "ddp": ("DistributedDataParallel(model)", "", {"buffers", "gradients of the other ranks"}),
    "fsdp": ("fully_shard(model)", "", {"all-gather"}),
    "all-reduce": ("model", "[dist.all_reduce(p.grad) for p in model.parameters()]", {"all-reduce"}),
}


def stragglers(run: Run) -> list[int]:
    """Return the ranks that are named as slow."""
    replicas = run.standing().replicas
    return [rank for rank, replica in enumerate(replicas) if replica.state == "straggler"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_rank_that_the_others_wait_for_is_named(cluster: Cluster, kind: str) -> None:
    model, reduces, waits = KINDS[kind]
    run = start_run(ENDLESS.format(model=model, reduces=reduces), Options(framework="torch"), cluster=cluster)
    until(lambda: stragglers(run) == [1], during=run)
    seconds = [replica.spent for replica in run.standing().replicas]
    assert seconds[1]["data"] > SLEEPS  # the first step counts without its data
    if kind == "ddp":
        run.set(learning_rate=0.01)
        until(lambda: not stragglers(run), during=run)
    run.stop()
    run.wait()
    spans = run.timeline(steps=5).spans
    assert waits <= {span.name for span in spans if span.kind == "wait"}
    assert {"next batch", "step", "gradients"} <= {span.name for span in spans}
