"""The checks of `make gpu` that train on a worker's GPU: every strategy, loops, sessions and Estimators.

Each is compared with the same training on a CPU of this process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
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

FIT = """
import numpy as np
import nbdist as nb

rng = np.random.default_rng(0)
x, y = rng.normal(size=(96, 8, 8, 1)).astype("f4"), rng.integers(0, 3, 96)
layers = [
    nb.nn.Conv2D(4, 3, activation="relu"), nb.nn.MaxPool2D(2), nb.nn.Flatten(), nb.nn.Dense(16, "tanh"),
    {norm}nb.nn.Dropout(0.2), nb.nn.Dense(3, "softmax"),
]
model = nb.nn.Sequential(layers, seed=1)
model.compile(nb.optim.SGD({rate}), "sparse_categorical_crossentropy", metrics=["accuracy"])
data = nb.data.Dataset.from_arrays(x, y).batch(24)
history = model.fit(data, epochs=3, validation_data=nb.data.Dataset.from_arrays(x, y).batch(48))
result = model.get_weights(), history.history["loss"]
"""
LOOP = """
import numpy as np
import nbdist as nb

rng = np.random.default_rng(0)
x, y = rng.normal(size=(96, 8)).astype("f4"), rng.integers(0, 3, 96)
strategy = nb.distribute.get_strategy()
with strategy.scope():
    model = nb.nn.Sequential([nb.nn.Dense(16, "tanh"), nb.nn.Dense(3)], seed=1)
    optimizer = nb.optim.Adam(0.01)

def step(x, y):
    each = nb.nn.functional.sparse_softmax_cross_entropy(y, model(x, training=True))
    loss = nb.nn.compute_average_loss(each, global_batch_size=24)
    optimizer.minimize(loss)
    return loss

losses = []
for epoch in range(3):
    for batch in strategy.distribute_dataset(nb.data.Dataset.from_arrays(x, y).batch(24)):
        losses.append(float(strategy.reduce("sum", strategy.run(step, batch))))
result = model.get_weights(), losses
"""

COUNTED = """
import numpy as np
import nbdist as nb

model = nb.nn.Sequential([nb.nn.Dense(1 << 14, use_bias=False, kernel_initializer="zeros")])
model.compile(nb.optim.SGD(2.0**13), "mae")
rows, labels = np.ones((16, 16), "f4"), np.full((16, 1 << 14), -16384, "f4")
history = model.fit(nb.data.Dataset.from_arrays(rows, labels).batch(16), epochs={steps})
result = model.get_weights(), history.history["loss"]
"""
"""Every gradient is 2**-14, whatever the parameters are: after n updates each of them is -n / 2, and the loss
is 16384 - 8 * n, if it is one of parameters between two updates. n is at most 2048."""


def here(body: str) -> Any:
    """Return what a body results in in this process, on the CPU."""
    names: dict[str, Any] = {}
    exec(compile(body, "body", "exec"), names)
    return names["result"]


def train(
    cluster: nb.Cluster, machine: Machine, how: dict[str, Any], body: str, *, exact: bool = True
) -> str:
    """Run a body on the workers, and compare it with the same in this process."""
    weights, losses = here(body)
    run = nb.launch(body, fetch=("result",), cluster=cluster, live=False, **how)
    found, found_losses = run.results["result"]
    device = "GPU:0" if machine.on_gpu else "CPU"
    require(device in run.trained_on, f"trained on {run.trained_on}, not {device}")
    require(found_losses[-1] < found_losses[0], f"the loss did not fall: {found_losses}")
    apart = max(float(np.abs(a - b).max()) for a, b in zip(found, weights, strict=True))
    require(not exact or apart < 1e-3, f"weights are {apart} apart, losses {found_losses}, on a CPU {losses}")
    return f"({apart:.0e} apart)"


def check_strategies(machine: Machine, count: int = 1) -> str:
    """`fit` of a CNN, and loops of one's own, on workers that have the first GPU, under every strategy."""
    norm = "nb.nn.BatchNorm(), " if count == 1 else ""
    exact, independent = (FIT.format(norm=norm, rate=rate) for rate in ("0.1, momentum=0.9", "0.02"))
    with workers(machine, count) as cluster:
        cases = {
            name: partial(train, cluster, machine, how, exact)
            for name, how in STRATEGIES.items()
            if name not in INDEPENDENT
        }
        cases |= {  # with momentum, old gradients of a second replica can make the loss rise
            name: partial(train, cluster, machine, STRATEGIES[name], independent, exact=False)
            for name in sorted(INDEPENDENT)
        }
        cases["ps, async, counted"] = partial(count_updates, cluster, machine, count)
        cases |= {
            f"loop under {name}": partial(train, cluster, machine, how, LOOP, exact=name not in INDEPENDENT)
            for name, how in STRATEGIES.items()
        }
        return run_all(cases)


def count_updates(cluster: nb.Cluster, machine: Machine, replicas: int, steps: int = 100) -> str:
    """Check that asynchronous replicas lose no gradient, apply none twice, and read whole parameters."""
    how = {**STRATEGIES["ps, async"], "locking": True}
    run = nb.launch(COUNTED.format(steps=steps), fetch=("result",), cluster=cluster, live=False, **how)
    ((weights,), losses) = run.results["result"]
    device = "GPU:0" if machine.on_gpu else "CPU"
    require(device in run.trained_on, f"trained on {run.trained_on}, not {device}")
    updates = np.unique(-2 * weights)
    require(updates.tolist() == [replicas * steps], f"{replicas * steps} updates were made, found {updates}")
    seen = (16384 - np.array(losses)) / 8
    require(
        bool((np.abs(seen - np.round(seen)) < 0.01).all()),
        f"parameters of several updates were mixed: {seen}",
    )
    require(bool((np.diff(seen) > -0.01).all()), f"a replica has read older parameters again: {seen}")
    return f"({replicas * steps} updates)"


ESTIMATOR = """
import numpy as np
import nbdist as nb

def model_fn(features, labels, mode):
    hidden = np.tanh(features @ nb.get_variable("w", (8, 16)))
    logits = hidden @ nb.get_variable("v", (16, 3))
    loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels, logits))
    if mode == nb.estimator.ModeKeys.EVAL:
        return nb.estimator.EstimatorSpec(mode, loss=loss)
    step = nb.train.get_or_create_global_step()
    train_op = nb.optim.Adam(0.01).minimize(loss, global_step=step)
    return nb.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def points():
    rng = np.random.default_rng(0)
    return nb.data.Dataset.from_arrays(rng.normal(size=(96, 8)).astype("f4"), rng.integers(0, 3, 96)).batch(24).repeat()

estimator = nb.estimator.Estimator(model_fn, {folder!r}, nb.estimator.RunConfig(tf_random_seed=1))
estimator.train(points, max_steps=10)
estimator.train(points, max_steps=20)  # from the first one's checkpoint
result = estimator.evaluate(points, steps=4)["loss"] if {is_chief} else 0.0
"""  # noqa: E501
SYNC_REPLICAS = """
import numpy as np
rng = np.random.default_rng(0)
x_data, y_data = rng.normal(size=(48, 8)).astype("f4"), rng.integers(0, 3, 48)
with nb.Graph().as_default():
    with nb.device(nb.train.replica_device_setter(cluster=nb.task.cluster, worker_device=where)):
        step = nb.train.get_or_create_global_step()
        x, y = nb.placeholder(np.float32, (None, 8)), nb.placeholder(np.int64, (None,))
        w = nb.get_variable("together", (8, 3), initializer="zeros")
        loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(y, x @ w))
        optimizer = nb.train.SyncReplicasOptimizer(nb.optim.SGD(0.5), replicas_to_aggregate=1, total_num_replicas=1)
        train = optimizer.minimize(loss, global_step=step)
    hooks = [optimizer.make_session_run_hook(nb.task.is_chief), nb.train.StopAtStepHook(last_step=20)]
    with nb.train.MonitoredTrainingSession(nb.task.target, nb.task.is_chief, folder, hooks=hooks) as session:
        while not session.should_stop():
            result = float(session.run([loss, train], {x: x_data, y: y_data})[0])
"""  # noqa: E501


def check_sessions(machine: Machine) -> str:
    """Graphs with pieces on the worker's GPU and CPU, sessions that train, and Estimators."""
    place = "GPU:0" if machine.on_gpu else "CPU:0"
    rows = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    with workers(machine) as cluster:
        worker, ps = "/job:worker/task:0", "/job:ps/task:0"

        def pieces() -> str:
            with nb.Graph().as_default():
                x = nb.placeholder(np.float32, (None, 8))
                with nb.device(ps):
                    w = nb.get_variable("w", (8, 4), initializer="ones")
                with nb.device(f"{worker}/device:{place}"):
                    there = np.tanh(x @ w)
                with nb.device(f"{worker}/device:CPU:0"):
                    beside = there * 2
                with nb.device(f"{worker}/device:{place}"):
                    kept = nb.get_variable("kept", (4, 4), initializer="ones")
                    loss = np.mean(np.square(beside @ kept))
                    train = nb.optim.Adam(0.1).minimize(loss)
                with nb.Session(cluster.target) as session:
                    session.run(nb.global_variables_initializer())
                    found, before = session.run([beside, loss], {x: rows})
                    for _ in range(20):
                        _, after = session.run([train, loss], {x: rows})
            require(np.allclose(found, np.tanh(rows @ np.ones((8, 4))) * 2, atol=1e-5), "other values")
            require(after < before, f"the loss did not fall: {before}, {after}")
            return f"loss {before:.3f} to {after:.3f}"

        def monitored() -> str:
            with tempfile.TemporaryDirectory() as folder, nb.Graph().as_default():
                with nb.device(
                    nb.train.replica_device_setter(
                        cluster=cluster.spec, worker_device=f"{worker}/device:{place}"
                    )
                ):
                    step = nb.train.get_or_create_global_step()
                    x = nb.placeholder(np.float32, (None, 8))
                    w = nb.get_variable("monitored", (8, 1), initializer="zeros")
                    loss = np.mean(np.square(x @ w - 1))
                    train = nb.optim.SGD(0.1, momentum=0.9).minimize(loss, global_step=step)
                hooks = [nb.train.StopAtStepHook(last_step=30), nb.train.NanTensorHook(loss)]
                losses = []
                with nb.train.MonitoredTrainingSession(
                    cluster, checkpoint_dir=folder, hooks=hooks, save_checkpoint_steps=10
                ) as session:
                    while not session.should_stop():
                        losses.append(float(session.run([loss, train], {x: rows})[0]))
                require(nb.train.latest_checkpoint(folder), "no checkpoint was saved")
            require(losses[-1] < losses[0], f"the loss did not fall: {losses}")
            return f"{len(losses)} steps"

        def sync_replicas() -> str:
            with tempfile.TemporaryDirectory() as folder:
                pushed = {"folder": folder, "where": f"{worker}/device:{place}"}
                run = nb.launch(SYNC_REPLICAS, push=pushed, fetch=("result",), cluster=cluster, live=False)
            require(run.results["result"] < 1.09, f"loss {run.results['result']}")
            return f"loss {run.results['result']:.3f}"

        def estimator(how: dict[str, Any]) -> str:
            with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
                expected = here(ESTIMATOR.format(folder=one, is_chief=True))
                body = ESTIMATOR.format(folder=other, is_chief="nb.task.is_chief")
                run = nb.launch(body, fetch=("result",), cluster=cluster, live=False, **how)
            found = run.results["result"]
            require(abs(found - expected) < 0.05, f"loss {found}, and {expected} in this process")
            return f"loss {found:.3f}, here {expected:.3f}"

        cases: dict[str, Callable[[], object]] = {
            "pieces on both": pieces,
            "MonitoredTrainingSession": monitored,
            "SyncReplicasOptimizer": sync_replicas,
        }
        cases |= {
            f"Estimator, {name}": partial(estimator, STRATEGIES[name])
            for name in ("one_device", "multi_worker", "ps, async")
        }
        return run_all(cases)


LONG = """
import numpy as np
rng = np.random.default_rng(0)
x, y = rng.normal(size=(4096, 256)).astype("f4"), rng.integers(0, 10, 4096)
model = nb.nn.Sequential([nb.nn.Dense(512, "relu"), nb.nn.Dense(10, "softmax")], seed=1)
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy")
model.fit(nb.data.Dataset.from_arrays(x, y).batch(64), epochs=10**6)
"""
GPU_SERIES = ("gpu/memory", "gpu/power", "gpu/temperature", "gpu/use")


def check_run(machine: Machine) -> str:
    """A run: its device, the GPU's series, its timeline, pause, rate, checkpoint and *Stop*."""
    with workers(machine, ps=0) as cluster:
        run = nb.launch(LONG, strategy="multi_worker", cluster=cluster, live=False, background=True)
        with stopped_if_it_fails(run):
            wait_for(
                lambda: run.standing().replicas and run.standing().replicas[0].step > 20, run, "it trains"
            )
            if machine.on_gpu:
                wait_for(lambda: set(GPU_SERIES) <= set(run.store.series), run, "the GPU's series are there")
            run.pause()
            wait_for(lambda: run.standing().state == "paused", run, "it pauses")
            run.set(learning_rate=0.02)
            saved = run.checkpoint()
            run.resume()
            wait_for(lambda: run.standing().learning_rate == 0.02, run, "it has another rate")
            run.stop()
            run.wait()
        require(run.status == "stopped" and saved.exists(), f"{run.status}, {saved}")
        require(run.timeline().spans, "the timeline is empty")
        series = sorted(name for name in run.store.series if name.startswith("gpu/"))
        lasts = {name: getattr(run.store.last(0, name), "value", None) for name in series}
        return f"trained on {run.trained_on}; {lasts}"


CHECKS: dict[str, Callable[[Machine], object]] = {
    "strategies on a worker": check_strategies,
    "strategies on a shared GPU": partial(check_strategies, count=2),
    "sessions and Estimators": check_sessions,
    "a run, seen and steered": check_run,
}
