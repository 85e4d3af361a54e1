"""jax.distributed on real engines: a global array, one cell after another, and a rank that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

SUM = """
import jax
jax.distributed.initialize()
import jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("data",))
rank = jax.process_index()
x = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), np.full(4, rank + 1.0))
summed = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))
total = float(summed(x))
"""
FAIL = (
    SUM
    + """
if rank == 1:
    raise ValueError("no more")
float(summed(x + 1))
"""
)


@pytest.mark.usefixtures("no_gpus")
def test_processes_sum_in_each_cell_also_after_one_has_failed(cluster: Cluster) -> None:
    def begin(body: str, **options: str) -> Run:
        return start_run(body, Options(on="worker:0-1", **options), cluster=cluster)  # type: ignore[arg-type]

    pids = [task.pid for task in cluster.tasks]
    for _ in range(2):
        assert begin(SUM, framework="jax").wait().results["total"] == 4 * (1 + 2)
    with pytest.raises(WorkerError, match=r"ValueError: no more[^$]*/job:worker/task:1"):
        begin(FAIL, framework="jax").wait()
    plain = begin(
        "import jax\nalone = jax.process_count(), len(jax.devices()), float(jax.numpy.ones(3).sum())"
    )
    assert plain.wait().results["alone"] == (1, 1, 3.0)
    assert begin(SUM, framework="jax").wait().results["total"] == 12
    assert [task.pid for task in cluster.tasks] == pids
