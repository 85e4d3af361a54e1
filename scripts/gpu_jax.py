"""The checks of `make gpu` that train models of JAX and Keras on a worker's GPU: under strategies, in cells.

Under a strategy, parameters are compared with those of JAX, or of Keras, alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from gpu_machine import INDEPENDENT, STRATEGIES, Machine, require, run_all, workers

import nbdist as nb

MODEL = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_default_matmul_precision", "highest")
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 8)).astype("f4")
y = np.tanh(x.sum(1)).astype("f4")
params = {"w": rng.normal(size=(8, 16)).astype("f4") / 4, "v": np.full(16, 0.1, "f4")}
state = {"mean": np.zeros(8, "f4")}

def loss(params, state, batch):
    features, targets = batch
    moved = {"mean": 0.9 * state["mean"] + 0.1 * features.mean(0)}
    error = jnp.tanh(features @ params["w"]) @ params["v"] - targets
    return jnp.mean(error ** 2), moved, {"error": jnp.mean(jnp.abs(error))}

step = jax.jit(jax.grad(lambda params, state, batch: loss(params, state, batch)[::2], has_aux=True))
with jax.default_device(jax.devices("cpu")[0]):
    plain, velocity = jax.tree.map(jnp.asarray, params), jax.tree.map(jnp.zeros_like, params)
    for epoch in range(3):
        for i in range(0, 96, 24):
            gradient, _ = step(plain, state, (x[i : i + 24], y[i : i + 24]))
            velocity = jax.tree.map(lambda v, g: 0.5 * v + g, velocity, gradient)
            plain = jax.tree.map(lambda p, v: p - 0.05 * v, plain, velocity)
    expected = float(loss(plain, state, (x, y))[0])
batches = nb.data.Dataset.from_arrays(x, y).batch(24)
optimizer = nb.optim.SGD(0.05, momentum=0.5)  # 0.1 and 0.9 diverge where gradients are one update old
"""
OPTAX = """
import optax
optimizer = optax.sgd(0.05, momentum=0.5)
"""
FIT = """
trained, moved, history = nb.frameworks.jax.fit(
    loss, params, batches, state=state, optimizer=optimizer, epochs=3,
    validation_data=nb.data.Dataset.from_arrays(x, y).batch(48),
)
losses = history.history["loss"]
validated = history.history["val_loss"][-1] if nb.task.is_chief else expected
"""
WRAP = """
losses = []
with nb.frameworks.jax.wrap(loss, params, state=state, optimizer=optimizer) as training:
    for epoch in range(3):
        values = [float(training.step(batch)[0]) for batch in training.batches(batches)]
        losses.append(float(np.mean(values)))
trained, validated = training.params, expected
"""
COMPARE = """
apart = max(float(np.abs(np.asarray(trained[name]) - np.asarray(plain[name])).max()) for name in plain)
result = apart, abs(validated - expected), losses, jax.default_backend()
"""


def train(
    cluster: nb.Cluster,
    machine: Machine,
    how: dict[str, Any],
    body: str = FIT,
    *,
    exact: bool = True,
    optax: bool = False,
) -> str:
    """Train a function of JAX, and compare it with JAX alone."""
    text = MODEL + (OPTAX if optax else "") + body + COMPARE
    run = nb.launch(text, fetch=("result",), cluster=cluster, live=False, **how)
    apart, apart_validated, losses, on = run.results["result"]
    there = "gpu" if machine.on_gpu else "cpu"
    require(on == there, f"computed on {on}, not {there}")
    require(losses[-1] < losses[0], f"the loss did not fall: {losses}")
    if exact:
        require(apart < 1e-4, f"parameters are {apart} apart from JAX's own")
        require(apart_validated < 1e-4, f"the validation loss is {apart_validated} apart from JAX's own")
    return f"({apart:.0e} apart)"


def check_fit(machine: Machine, count: int = 1) -> str:
    """`fit` and loops of a function of JAX under every strategy that takes them, against JAX alone."""
    with workers(machine, count) as cluster:
        cases: dict[str, Callable[[], object]] = {
            name: partial(train, cluster, machine, STRATEGIES[name], exact=name not in INDEPENDENT)
            for name in STRATEGIES
        }
        cases |= {
            f"wrap under {name}": partial(train, cluster, machine, STRATEGIES[name], WRAP)
            for name in ("one_device", "multi_worker")
        }
        if importlib.util.find_spec("optax"):
            cases |= {
                f"optax under {name}": partial(train, cluster, machine, STRATEGIES[name], optax=True)
                for name in ("one_device", "multi_worker")
            }
        return run_all(cases)


CELL = """
import jax, jax.numpy as jnp
jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("data",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
x = jax.device_put(jnp.arange(8.0), sharding)
total = float(jax.jit(jnp.sum)(x))
for step in range(3):
    nb.log(loss=total, step=step)
found = total, jax.process_count(), jax.default_backend()
"""
BESIDE = """
import jax.numpy as jnp
from nbdist.graph.backend import backend
xp = backend(nb.task.device)
first = float((jnp.ones((512, 512)) @ jnp.ones((512, 512))).sum())
here = xp.ones(1 << 26, "f4")  # 256 MB of CuPy's beside what JAX has taken
second = float(here[:512].sum())
third = float((jnp.ones((512, 512)) @ jnp.ones((512, 512))).sum())
found = first == third and second == 512
del here
"""
TPU = """
images, labels, _, _ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(32, "relu"), nb.nn.Dense(10, "softmax")], seed=1)
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(images, labels).batch(100), epochs=3)
import jax
found = history.history["loss"], jax.default_backend()
"""


def check_cells(machine: Machine) -> str:
    """Cells of JAX as they are, JAX's memory beside CuPy's, and `--strategy tpu` over JAX's GPU."""
    there = "gpu" if machine.on_gpu else "cpu"

    with workers(machine, ps=0) as cluster:

        def cell() -> str:
            run = nb.launch(CELL, framework="jax", fetch=("found",), cluster=cluster, live=False)
            require(run.results["found"] == (28.0, 1, there), f"found {run.results['found']}")
            return ""

        def beside() -> str:
            run = nb.launch(BESIDE, fetch=("found",), cluster=cluster, live=False)
            require(run.results["found"], "other sums")
            return ""

        def tpu() -> str:
            run = nb.launch(TPU, strategy="tpu", fetch=("found",), cluster=cluster, live=False)
            losses, on = run.results["found"]
            require(on == there and losses[-1] < losses[0], f"{losses} on {on}")
            return f"trained on {run.trained_on}"

        return run_all(
            {"cell": cell, "the next cell": cell, "beside CuPy": beside, "tpu": tpu, "the last cell": cell}
        )


KERAS = """
import os
os.environ["KERAS_BACKEND"] = {backend!r}
import keras, numpy as np
rng = np.random.default_rng(0)
x, y = rng.normal(size=(96, 8)).astype("f4"), rng.integers(0, 3, 96)

def new_model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(16, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model

plain = new_model()
plain.fit(x, y, batch_size=24, epochs=3, shuffle=False, verbose=0)
model = nb.frameworks.keras.wrap(new_model())
history = model.fit(
    nb.data.Dataset.from_arrays(x, y).batch(24), epochs=3, validation_data=(x, y)
)
losses = history.history["loss"]
apart = max(float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), plain.get_weights()))
result = apart, losses
"""  # noqa: E501


def check_keras(machine: Machine, backend: str) -> str:
    """`model.fit` of Keras under strategies, against Keras alone on the same device."""

    def train(cluster: nb.Cluster, how: dict[str, Any]) -> str:
        text = KERAS.format(backend=backend)
        run = nb.launch(text, fetch=("result",), cluster=cluster, live=False, **how)
        apart, losses = run.results["result"]
        require(losses[-1] < losses[0], f"the loss did not fall: {losses}")
        require(apart < 5e-3, f"weights are {apart} apart from Keras's own")  # which may compute in TF32
        return f"({apart:.0e} apart)"

    with workers(machine) as cluster:
        names = ("one_device", "multi_worker", "ps, sync")
        return run_all({name: partial(train, cluster, STRATEGIES[name]) for name in names})


JAX_CHECKS: dict[str, Callable[[Machine], object]] = {
    "jax: fit": check_fit,
    "jax: fit on a shared GPU": partial(check_fit, count=2),
    "jax: cells": check_cells,
}
KERAS_CHECKS: dict[str, Callable[[Machine], object]] = {
    "keras on torch": partial(check_keras, backend="torch"),
    "keras on jax": partial(check_keras, backend="jax"),
}
