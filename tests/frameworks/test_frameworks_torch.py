"""torch.distributed on real engines: training as under torchrun, failures, stops, deaths, the next cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiers import exhaustive
from waiting import until

from nbdist.errors import TaskDiedError, WorkerError
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

ROWS, STEPS, RATE = 12, 5, 0.1
X = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2) % 5 / 5
Y = (X @ np.array([2.0, -1.0], np.float32))[:, None]

TRAIN = f"""
import os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
x = (torch.arange({ROWS} * 2, dtype=torch.float32).reshape({ROWS}, 2) % 5 / 5)[rank::size]
y = (x @ torch.tensor([2.0, -1.0]))[:, None]
linear = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.zeros_(linear.weight)
ddp = DistributedDataParallel(linear)
optimizer = torch.optim.SGD(ddp.parameters(), lr={RATE})
for step in range({STEPS}):
    optimizer.zero_grad()
    loss = ((ddp(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    nb.log(loss=loss, step=step)
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_RUN_ID"]
environment = {{name: os.environ[name] for name in names}}
weights = [torch.zeros(1, 2) for _ in range(size)]
dist.all_gather(weights, linear.weight.detach())
weights = torch.cat(weights).numpy()
"""

LEFT_ALONE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1000)
dist.all_reduce(x)
nb.log(ready=1.0)
if dist.get_rank() == 1:
    {does}
dist.all_reduce(x)
"""


@pytest.fixture
def begin(cluster: Cluster) -> Callable[..., Run]:
    def begin_one(body: str, **options: Any) -> Run:
        return start_run(body, Options(**options), cluster=cluster)

    return begin_one


def ready(run: Run) -> bool:
    """Return whether all ranks have made their first collective call."""
    replicas = range(len(run.tasks))
    return "ready" in run.store.series and all(run.store.last(i, "ready") is not None for i in replicas)


def check_trained(run: Run) -> Run:
    """Wait for a run, and check that a run has trained as the whole batch on one device would."""
    weight = np.zeros((1, 2), np.float32)
    for _ in range(STEPS):
        weight = weight - RATE * 2 / ROWS * (X @ weight.T - Y).T @ X
    found = run.wait().results["weights"]
    np.testing.assert_allclose(found, np.repeat(weight, len(found), 0), rtol=1e-5)
    return run


@pytest.mark.usefixtures("no_gpus")
def test_a_plain_script_trains_as_under_torchrun_in_one_cell_after_another(begin: Callable[..., Run]) -> None:
    for _ in range(2):
        run = check_trained(begin(TRAIN, framework="torch"))
        found = run.results["environment"]
        assert found.pop("MASTER_PORT").isdigit()
        assert found == {
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "NODE_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": run.id,
        }  # fmt: skip
        assert [run.store.last(i, "loss").step for i in range(3)] == [STEPS - 1] * 3  # type: ignore[union-attr]
        np.testing.assert_array_equal(run.model["weight"], run.results["weights"][:1])
        assert run.notes == ["run.model is linear, which the body has trained"]

    plain = begin("import os, torch.distributed as d\nleft = 'RANK' in os.environ, d.is_initialized()").wait()
    assert plain.results["left"] == (False, False)


OPEN_PORTS = """
import os, socket, psutil
def listening():
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
"""


def test_no_other_process_reaches_the_store_and_no_port_stays(begin: Callable[..., Run]) -> None:
    begin(f"{OPEN_PORTS}before = listening()").wait()
    run = begin(
        TRAIN
        + """
caller = socket.socket()
answers = caller.connect_ex((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) == 0
caller.close()
address = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
dist.destroy_process_group()
dist.init_process_group(
    "gloo", init_method="tcp://{}:{}".format(*address), rank=int(os.environ["RANK"]), world_size=size
)  # a second group, as a script of torchrun may form it
again = [None] * size
dist.all_gather_object(again, rank)
store = dist.distributed_c10d._get_default_store()
if rank == 1:
    store.set("late", "1")
late, count = store.get("late").decode(), store.add("count", 1)
dist.barrier()
found = [
    store.check(["late"]), store.check(["other"]), store.compare_set("late", "1", "2").decode(),
    store.compare_set("late", "1", "3").decode(), store.delete_key("late"), store.delete_key("late"),
    store.num_keys() > 1, store.multi_get(["count"])[0].decode(),
] if rank == 0 else None
kept = ddp  # with its group
""",
        framework="torch",
    )
    results = check_trained(run).results
    assert not results["answers"]
    assert results["again"] == [0, 1, 2]
    assert results["late"] == "1"
    assert results["found"] == [True, False, "2", "2", True, False, True, "3"]
    left = (
        begin("left = nb.collective.all_reduce(len(listening() - before), op='sum')").wait().results["left"]
    )
    assert left == 0


def test_a_wait_for_a_key_ends_in_time(begin: Callable[..., Run]) -> None:
    body = """
import torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo")
try:
    dist.distributed_c10d._get_default_store().wait(["nothing"], timedelta(seconds=0.1))
except dist.DistStoreError as error:
    said = str(error)
"""
    said = begin(body, framework="torch", on="worker:0").wait().results["said"]
    assert said.startswith("wait timeout after 0.1 s, keys: ")


def test_the_model_of_a_run_is_the_one_that_its_optimizer_trains(begin: Callable[..., Run]) -> None:
    body = """
import torch
other, layers = torch.nn.Linear(3, 3), [torch.nn.Linear(2, 1)]
optimizer = torch.optim.SGD(layers[0].parameters(), lr=0.1)
layers[0](torch.ones(4, 2)).sum().backward(); optimizer.step()
"""
    run = begin(body, framework="torch", on="worker:0").wait()
    assert {name: array.shape for name, array in run.model.items()} == {"weight": (1, 2), "bias": (1,)}
    assert run.notes == ["run.model has the weights of the Linear that the body has trained"]
    two = (
        body
        + """
other(torch.ones(1, 3)).sum().backward()
second = torch.optim.SGD(other.parameters())
second.step()
"""
    )
    assert begin(two, framework="torch", on="worker:0").wait().model is None


def test_the_model_of_a_plain_cell_is_the_one_that_it_trains(begin: Callable[..., Run]) -> None:
    body = """
import torch
net, other = torch.nn.Linear(2, 1), torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(4, 2)).sum().backward(); optimizer.step()
"""
    run = begin(body, on="worker:0").wait()
    assert run.notes == ["run.model is net, which the body has trained"]
    np.testing.assert_array_equal(run.model["weight"], run.results["net"]["weight"])
    untrained = begin("net = torch.nn.Linear(2, 1)", on="worker:0").wait()
    assert (untrained.model, untrained.notes) == (None, [])


def test_an_unfinished_module_ends_no_plain_cell(begin: Callable[..., Run]) -> None:
    body = """
import torch
class Unfinished(torch.nn.Module):
    def __init__(self):
        kept.append(self)
        raise ValueError("the user's own, before super().__init__()")
kept, net = [], torch.nn.Linear(2, 1)
try:
    Unfinished()
except ValueError:
    pass
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(4, 2)).sum().backward(); optimizer.step()
"""
    run = begin(body, on="worker:0").wait()
    assert run.notes == ["run.model is net, which the body has trained"]
    begin("kept.clear()", on="worker:0").wait()


def test_models_of_fit_and_of_an_own_loop_are_both_named(begin: Callable[..., Run]) -> None:
    body = """
import torch, numpy as np
net = nb.nn.Sequential([nb.nn.Dense(1)])
net.compile("sgd", "mse")
net.fit(np.ones((8, 2)), np.zeros((8, 1)))
probe = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
probe(torch.ones(4, 2)).sum().backward(); optimizer.step()
"""
    run = begin(body, on="worker:0").wait()
    assert run.model is None
    assert run.notes == ["run.model is None: the body has trained net, probe, as run.results['net']"]
    again = begin("before, other = net, 1", on="worker:0").wait()
    assert (again.model, again.notes) == (None, [])  # another body has trained it


def test_fully_sharded_modules_train(begin: Callable[..., Run]) -> None:
    run = begin(
        """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
fully_shard(model[0], mesh=mesh), fully_shard(model, mesh=mesh)
rows = model[0].weight.to_local().shape[0]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(6, 4)
losses = []
for _ in range(10):
    loss = (model(x) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
""",
        framework="torch",
    ).wait()
    assert run.results["rows"] == 3
    assert run.results["losses"][-1] < run.results["losses"][0]


def test_accelerate_trains_in_one_cell_after_another(begin: Callable[..., Run]) -> None:
    body = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = 0
for (x,) in loader:
    optimizer.zero_grad()
    accelerator.backward((model(x) ** 2).mean())
    optimizer.step()
    steps += 1
kind, size = type(model).__name__, accelerator.num_processes
"""
    for _ in range(2):
        run = begin(body, framework="torch", on="worker:0-1").wait()
        found = [run.results[name] for name in ("kind", "size", "steps")]
        assert found == ["DistributedDataParallel", 2, 2]


@exhaustive  # in the first tier test_what_lightning_logs_is_in_the_run trains: the import takes 15 s of CPU
def test_lightning_trains_on_all_workers_in_one_cell_after_another(begin: Callable[..., Run]) -> None:
    body = """
import lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return (self.linear(batch[0]) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), batch_size=4)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, max_epochs=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), loader)
steps, size = trainer.global_step, trainer.world_size
"""
    for _ in range(2):
        run = begin(body, framework="torch", on="worker:0-1").wait()
        assert (run.results["steps"], run.results["size"]) == (4, 2)


@pytest.mark.usefixtures("no_replacement")
def test_other_ranks_leave_a_collective_when_one_fails(begin: Callable[..., Run], cluster: Cluster) -> None:
    pids = [task.pid for task in cluster.tasks]
    run = begin(LEFT_ALONE.format(does="raise ValueError('no more')"), framework="torch")
    with pytest.raises(WorkerError, match=r"ValueError: no more[^$]*/job:worker/task:1"):
        run.wait()
    check_trained(begin(TRAIN, framework="torch"))
    assert [task.pid for task in cluster.tasks] == pids  # a rank that did not leave would have been replaced


@pytest.mark.usefixtures("no_replacement")
def test_other_ranks_leave_a_group_that_the_first_never_joins(
    begin: Callable[..., Run], cluster: Cluster
) -> None:
    pids = [task.pid for task in cluster.tasks]
    body = """
import os, torch.distributed as dist
if os.environ["RANK"] == "0":
    raise ValueError("no data")
dist.init_process_group("gloo")
"""
    with pytest.raises(WorkerError, match=r"ValueError: no data[^$]*/job:worker/task:0"):
        begin(body, framework="torch").wait()
    check_trained(begin(TRAIN, framework="torch"))  # though the first rank has made fewer groups
    assert [task.pid for task in cluster.tasks] == pids


@pytest.mark.usefixtures("no_replacement")
def test_a_stop_ends_ranks_that_wait_for_each_other(begin: Callable[..., Run], cluster: Cluster) -> None:
    pids = [task.pid for task in cluster.tasks]
    run = begin(LEFT_ALONE.format(does="dist.recv(x, 2)"), framework="torch")
    until(lambda: ready(run), during=run)
    run.stop()
    run.wait()
    assert run.status == "stopped"
    check_trained(begin(TRAIN, framework="torch"))
    assert [task.pid for task in cluster.tasks] == pids


@pytest.mark.usefixtures("no_replacement")
def test_other_ranks_leave_a_collective_when_one_dies(begin: Callable[..., Run], cluster: Cluster) -> None:
    pids = [task.pid for task in cluster.tasks if task.rank != 1]
    run = begin(LEFT_ALONE.format(does="os._exit(3)"), framework="torch")
    with pytest.raises(TaskDiedError, match=r"/job:worker/task:1.*exited with code 3"):
        run.wait()
    cluster.restart()
    check_trained(begin(TRAIN, framework="torch"))
    assert [task.pid for task in cluster.tasks if task.rank != 1] == pids


def test_tensors_come_home_and_what_cannot_is_named(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    body = """
import torch
ones = torch.nn.Parameter(torch.ones(2))
losses = [ones.sum()]
half = torch.nn.Linear(2, 2).bfloat16()
"""
    results = start_run(body, Options(on="worker:0"), cluster=cluster).wait().results
    np.testing.assert_array_equal(results["ones"], np.ones(2, np.float32), strict=True)
    assert results["losses"] == [2.0]
    assert "half" not in results
    said = "half stayed on /job:worker/task:0: weight of the module: NumPy has no bfloat16"
    assert said in capsys.readouterr().out


def test_the_process_that_forks_tasks_does_not_load_torch() -> None:
    from nbdist.cluster.supervisor.__main__ import PRELOADED

    assert not [name for name in PRELOADED if "torch" in name]
