"""Estimators under every strategy, on engines: with synchronous ones they make the steps of one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import matrix

import nbdist as nb
from nbdist.cluster.cluster import Cluster
from nbdist.run.options import Options
from nbdist.run.start import start_run

BODY = """
import numpy as np
from nbdist.estimator import Estimator, EstimatorSpec, RunConfig
images, labels, test_images, test_labels = nb.data.digits()

def model_fn(features, labels, mode, params):
    hidden = np.tanh(features @ nb.get_variable("w", (64, 16)))
    logits = hidden @ nb.get_variable("v", (16, 10)) + nb.get_variable("b", (10,), initializer="zeros")
    loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels, logits))
    if mode == "eval":
        right = np.argmax(logits, axis=-1) == labels
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": right.astype(np.float32)})
    optimizer = nb.optim.SGD(params["rate"], momentum=0.9)
    train_op = optimizer.minimize(loss, global_step=nb.train.get_or_create_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)

def train_data():
    return nb.data.Dataset.from_arrays(images, labels).batch(50).repeat()

estimator = Estimator(model_fn, folder, RunConfig(save_checkpoints_steps=40), {"rate": 0.05})
estimator.train(train_data, max_steps=60)
estimator.train(train_data, max_steps=steps)
if on_tasks and nb.task.is_chief:
    test_data = lambda: nb.data.Dataset.from_arrays(test_images, test_labels).batch(100)
    print(estimator.evaluate(test_data)["accuracy"])
"""
STRATEGIES: dict[str, dict[str, Any]] = {
    "one_device": {"strategy": "one_device"},
    "mirrored": {"strategy": "mirrored"},
    "multi_worker": {"strategy": "multi_worker"},
    "sharded": {"strategy": "sharded"},
    "central": {"strategy": "central"},
    "ps-sync": {"strategy": "ps", "synchronous": True},
    "ps-async": {"strategy": "ps"},
    "elastic": {"strategy": "elastic"},
}
SYNCHRONOUS = ("mirrored", "multi_worker", "sharded", "central", "ps-sync")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one device computes."""
    folder = tmp_path_factory.mktemp("one")
    exec(compile(BODY, "body", "exec"), {"nb": nb, "folder": str(folder), "steps": 120, "on_tasks": False})
    return values(folder)


def values(folder: Path) -> dict[str, Any]:
    path = nb.train.latest_checkpoint(folder)
    return {name: nb.train.load_variable(path, name) for name in ("w", "v", "b", "global_step")}


@pytest.mark.engines
@pytest.mark.parametrize(
    "name",
    matrix(
        ["one_device", "multi_worker", "sharded", "ps-sync", "ps-async", "elastic"],
        rest=["mirrored", "central"],
    ),
)
def test_the_steps_of_one_device(
    cluster: Cluster, tmp_path: Path, expected: dict[str, Any], name: str
) -> None:
    options = Options(**STRATEGIES[name])
    run = start_run(
        BODY, options, cluster=cluster, names={"folder": str(tmp_path), "steps": 120, "on_tasks": True}
    ).wait()
    assert run.status == "finished", run.error
    found = values(tmp_path)
    if name in SYNCHRONOUS:
        assert found["global_step"] == 120
        for variable, value in expected.items():
            np.testing.assert_allclose(found[variable], value, rtol=1e-3, atol=1e-4, err_msg=variable)
    else:
        assert 120 <= found["global_step"] <= 126
        right = np.argmax(np.tanh(nb.data.digits()[2] @ found["w"]) @ found["v"] + found["b"], axis=1)
        assert np.mean(right == nb.data.digits()[3]) > 0.7


COLUMNS = """
import numpy as np
from nbdist.estimator import *
rng = np.random.default_rng(1)
age, colour = rng.integers(10, 80, 300), rng.choice(["red", "green", "blue"], 300)
rich = (age > 40) ^ (colour == "red")
rich = rich.astype(int)
ages = numeric_column("age", normalizer_fn=lambda x: (x - 45) / 20)
colours = categorical_column_with_hash_bucket("colour", 20)
config = RunConfig(log_step_count_steps=None, tf_random_seed=1)
older = bucketized_column(numeric_column("age"), [41])
estimator = DNNLinearCombinedClassifier(
    folder, linear_feature_columns=[crossed_column([older, "colour"], 50)],
    dnn_feature_columns=[ages, embedding_column(colours, 4)], dnn_hidden_units=[16],
    linear_optimizer=nb.optim.SGD(0.3), dnn_optimizer=nb.optim.Adam(0.02), config=config)
data = lambda: nb.data.Dataset.from_arrays({"age": age, "colour": colour}, rich).batch(60)
estimator.train(lambda: data().repeat(), max_steps=200)
# Of the last batch, of one example, only one worker has a share.
together = estimator.config.replace(eval_distribute=nb.get_strategy())
few = lambda: nb.data.Dataset.from_arrays({"age": age[:61], "colour": colour[:61]}, rich[:61]).batch(60)
estimator.config = together
shared = estimator.evaluate(few)
estimator.config = config
result, alone = (estimator.evaluate(data), estimator.evaluate(few)) if nb.task.is_chief else (None, None)
"""


@pytest.mark.engines
@pytest.mark.parametrize("name", matrix(["ps-async", "multi_worker"], rest=["ps-sync"]))
def test_tables_of_feature_columns(cluster: Cluster, tmp_path: Path, name: str) -> None:
    options = Options(**STRATEGIES[name], fetch=("result", "shared", "alone"))
    run = start_run(COLUMNS, options, cluster=cluster, names={"folder": str(tmp_path)}).wait()
    assert run.status == "finished", run.error
    assert run.results["shared"] == pytest.approx(run.results["alone"])
    assert run.results["result"]["accuracy"] > 0.95
    assert run.results["result"]["global_step"] >= 200


LOST = """
import os, pathlib, signal, threading
killed, joined = pathlib.Path(folder, "killed"), pathlib.Path(folder, "joined")

class Hook(nb.train.SessionRunHook):
    def begin(self):
        if killed.exists() and not nb.task.is_chief:
            joined.touch()
    def after_run(self, context, values):
        if estimator_step() < 20 or joined.exists():
            return
        if nb.task.is_chief:
            threading.Event().wait(0.2)  # until the new process has joined, which it does between two steps
        else:
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

steps = 0
def estimator_step():
    global steps
    steps += 1
    return steps

def model_fn(features, labels, mode):
    loss = ((features @ nb.get_variable("w", (1, 1)) - labels) ** 2).mean()
    train_op = nb.optim.SGD(0.01).minimize(loss, global_step=nb.train.get_or_create_global_step())
    return nb.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

config = nb.estimator.RunConfig(save_checkpoints_steps=18, log_step_count_steps=None)
ones = nb.data.Dataset.from_arrays([[1.0], [1.0]], [[1.0], [1.0]]).batch(2).repeat()
nb.estimator.Estimator(model_fn, folder, config).train(lambda: ones, max_steps=400, hooks=[Hook()])
"""


@pytest.mark.engines
def test_a_process_that_replaces_another_ends_at_the_same_step(cluster: Cluster, tmp_path: Path) -> None:
    options = Options(strategy="multi_worker")
    run = start_run(LOST, options, cluster=cluster, names={"folder": str(tmp_path)}).wait()
    assert run.status == "finished", run.error
    assert (tmp_path / "joined").exists()
    assert nb.train.load_variable(nb.train.latest_checkpoint(tmp_path), "global_step") == 400


STOPS = """
class Ends(nb.train.CheckpointSaverListener):
    def after_save(self, session, step):
        return step == 3

def model_fn(features, labels, mode):
    loss = ((features @ nb.get_variable("w", (1, 1)) - labels) ** 2).mean()
    train_op = nb.optim.SGD(0.01).minimize(loss, global_step=nb.train.get_or_create_global_step())
    return nb.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

config = nb.estimator.RunConfig(save_checkpoints_steps=1, log_step_count_steps=None)
ones = nb.data.Dataset.from_arrays([[1.0], [1.0]], [[1.0], [1.0]]).batch(2).repeat()
nb.estimator.Estimator(model_fn, folder, config).train(lambda: ones, saving_listeners=[Ends()])
"""


@pytest.mark.engines
def test_a_listener_of_the_chief_ends_the_training_of_all(cluster: Cluster, tmp_path: Path) -> None:
    run = start_run(
        STOPS, Options(strategy="multi_worker"), cluster=cluster, names={"folder": str(tmp_path)}
    ).wait()
    assert run.status == "finished", run.error
    assert nb.train.load_variable(nb.train.latest_checkpoint(tmp_path), "global_step") == 3


REQUESTS = """
class Requests(nb.train.SessionRunHook):
    made = 0
    def after_run(self, context, values):
        self.made += 1
        if self.made == 4 and nb.task.index == 1:
            context.request_stop()

def model_fn(features, labels, mode):
    w = nb.get_variable("w", (1, 1), initializer="zeros")
    loss = ((features @ w - labels) ** 2).mean()
    train_op = nb.optim.SGD(0.01).minimize(loss, global_step=nb.train.get_or_create_global_step())
    return nb.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

config = nb.estimator.RunConfig(save_checkpoints_steps=5, log_step_count_steps=None)
ones = nb.data.Dataset.from_arrays([[1.0], [1.0]], [[1.0], [1.0]]).batch(2).repeat()
nb.estimator.Estimator(model_fn, folder, config).train(lambda: ones, hooks=[Requests()])
"""


@pytest.mark.engines
@pytest.mark.parametrize("name", matrix(["ps-sync"], rest=["multi_worker", "central"]))
def test_a_hook_of_another_replica_ends_the_training_of_all(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    """A checkpoint is due at step 5, which under ``ps --sync`` only the chief begins."""
    options = Options(**STRATEGIES[name])
    run = start_run(REQUESTS, options, cluster=cluster, names={"folder": str(tmp_path)}).wait()
    assert run.status == "finished", run.error
    path = nb.train.latest_checkpoint(tmp_path)
    assert str(path).endswith("model.ckpt-4")
    assert nb.train.load_variable(path, "global_step") == 4
    assert nb.train.load_variable(path, "w") == pytest.approx(1 - 0.98**4)
    assert not any("the data of" in note for note in run.notes)


ON_SERVERS = """
import os, pathlib, signal, threading
import numpy as np
from nbdist.estimator import DNNLinearCombinedClassifier, RunConfig, numeric_column
here, made = pathlib.Path(folder), []
killed, joined = here / "killed", here / "joined"

class Hook(nb.train.SessionRunHook):
    def __init__(self, training):
        self.dies = training == lost_in
    def after_run(self, context, values):
        made.append(1)
        if self.dies and killed.exists() and nb.task.index == 1:
            joined.touch()
        while self.dies and nb.task.index != 1 and not joined.exists():
            nb.train.context.current().control.check()  # the run may fail
            threading.Event().wait(0.02)
        if self.dies and nb.task.index == 1 and len(made) >= 20 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

x = np.linspace(-1, 1, 40)
data = lambda: nb.data.Dataset.from_arrays({"x": x}, (x > 0).astype(int)).batch(10).repeat()
columns = [numeric_column("x")]
# It has two optimizers, each with a training of its own on the servers.
estimator = DNNLinearCombinedClassifier(
    folder + "/model", columns, nb.optim.SGD(0.1), columns, nb.optim.SGD(0.1), [4],
    config=RunConfig(log_step_count_steps=None, save_checkpoints_steps=9))
estimator.train(data, max_steps=12, hooks=[Hook(1)])
estimator.train(data, steps=60, hooks=[Hook(2)])
(here / f"made-{nb.task.index}").write_text(str(len(made)))
"""


@pytest.mark.engines
@pytest.mark.parametrize("lost_in", matrix([2], rest=[1]))
def test_a_process_takes_over_on_parameter_servers(cluster: Cluster, tmp_path: Path, lost_in: int) -> None:
    body = ON_SERVERS.replace("max_steps=12", "max_steps=60") if lost_in == 1 else ON_SERVERS
    names = {"folder": str(tmp_path), "lost_in": lost_in}
    run = start_run(body, Options(strategy="ps"), cluster=cluster, names=names).wait()
    assert run.status == "finished", run.error
    (restart,) = json.loads((Path(run.folder) / "run.json").read_text())["restarts"]
    assert not restart["problem"]
    assert int((tmp_path / "made-1").read_text()) > 0  # steps of the new process
    steps = nb.train.load_variable(nb.train.latest_checkpoint(tmp_path / "model"), "global_step")
    least = 120 if lost_in == 1 else 72
    assert least <= steps <= least + 18  # each of 3 replicas may have 2 gradients more under way at an end
