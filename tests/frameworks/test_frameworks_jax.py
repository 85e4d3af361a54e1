"""jax.distributed on real engines: a global array, one cell after another, and a rank that fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
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


REACHED = """
import psutil, socket
def listening():
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
"""


@pytest.mark.usefixtures("no_gpus")
def test_the_loop_of_the_docs_trains(cluster: Cluster) -> None:
    text = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    body = text.partition("%%distribute --framework jax\n")[2].partition("```")[0]
    run = start_run(body, Options(on="worker:0-1", framework="jax"), cluster=cluster).wait()
    np.testing.assert_allclose(run.results["weight"], np.ones((4, 1)), atol=1e-3)
    assert run.store.last(1, "loss").step == 49  # type: ignore[union-attr]  # it is there


@pytest.mark.usefixtures("no_gpus")
def test_no_other_user_reaches_the_coordination_service_and_no_port_stays(cluster: Cluster) -> None:
    def begin(body: str, **options: str) -> Run:
        return start_run(body, Options(on="worker:0-1", **options), cluster=cluster)  # type: ignore[arg-type]

    begin(f"{REACHED}before = listening()").wait()
    # A proxy that does not answer, and a name of the host that leads nowhere.
    body = f"""
import os, socket
os.environ["http_proxy"] = os.environ["grpc_proxy"] = "http://127.0.0.1:9"
{SUM}
at = os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")
caller = socket.socket()
answers = caller.connect_ex((at[0], int(at[2]))) == 0
caller.close()
mine = [one.laddr for one in psutil.Process().net_connections("tcp")]
addresses = sorted({{one.ip for one in mine if one.port not in before}})
del os.environ["http_proxy"], os.environ["grpc_proxy"]
"""
    found = begin(body, framework="jax").wait().results
    assert found["total"] == 12
    assert not found["answers"]
    assert found["addresses"] == ["127.0.0.1"]
    left = begin("left = nb.collective.all_reduce(len(listening() - before), op='sum')")
    assert left.wait().results["left"] == 0
    served = "from nbdist.frameworks.jax.distributed import Jax\nserved = Jax._served"
    assert begin(served).wait().results["served"] is None


@pytest.mark.usefixtures("no_gpus", "no_replacement")
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
