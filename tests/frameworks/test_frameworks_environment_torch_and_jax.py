"""PyTorch and JAX in the same processes on real engines: one cell after the other, and in one cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

TORCH = """
import jax.numpy, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.tensor(float(jax.numpy.full(3, rank + 1.0).sum()))  # JAX computes on this task's own device
dist.all_reduce(x)
if {fails} and rank == 1:
    raise ValueError("no more")
dist.all_reduce(x)
total = float(x)
"""
JAX = """
import jax, torch
jax.distributed.initialize()
from jax.experimental import multihost_utils
rank = jax.process_index()
x = multihost_utils.process_allgather(jax.numpy.array(float(torch.full((3,), rank + 1.0).sum())))
if {fails} and rank == 1:
    raise ValueError("no more")
total = float(multihost_utils.process_allgather(x).sum())
"""


@pytest.mark.usefixtures("no_replacement")
def test_cells_of_torch_and_jax_follow_each_other_in_the_same_workers(cluster: Cluster) -> None:
    bodies = {"torch": TORCH, "jax": JAX}
    pids = [task.pid for task in cluster.tasks]
    for fails in (False, True, False):
        for name, body in bodies.items():
            options = Options(framework=name, on="worker:0-1")
            run = start_run(body.format(fails=fails), options, cluster=cluster)
            if fails:
                with pytest.raises(WorkerError, match=r"ValueError: no more[^$]*/job:worker/task:1"):
                    run.wait()
            else:
                assert run.wait().results["total"] == 2 * 3 * (1 + 2)
    assert [task.pid for task in cluster.tasks] == pids
