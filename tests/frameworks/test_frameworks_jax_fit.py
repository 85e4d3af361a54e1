"""`nb.frameworks.jax.fit` on real engines: each strategy trains a function of JAX to the same parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiers import matrix

from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

FIT = """
import numpy as np
import jax.numpy as jnp

def loss(params, batch):
    x, y = batch
    error = x @ params["dense"]["w"] + params["b"] - y
    return jnp.mean(error ** 2), {"error": jnp.mean(jnp.abs(error))}

x = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
y = (x @ np.arange(4) - 1).astype(np.float32)
batches = nb.data.Dataset.from_arrays(x, y).batch(20)                # the last has 10
start = {"dense": {"w": jnp.zeros(4)}, "b": jnp.zeros(())}
params, history = nb.frameworks.jax.fit(loss, start, batches, optimizer=OPTIMIZER, epochs=4)
"""
RATE = 0.1


def trained(epochs: int = 4) -> tuple[Any, float]:
    """Return weights and bias after gradient descent on the same batches, in NumPy."""
    x = np.random.default_rng(0).normal(size=(90, 4))
    y, w, b = x @ np.arange(4) - 1, np.zeros(4), 0.0
    for _ in range(epochs):
        for first in range(0, 90, 20):
            part = slice(first, first + 20)
            error = x[part] @ w + b - y[part]
            w, b = w - RATE * 2 * x[part].T @ error / len(error), b - RATE * 2 * error.mean()
    return w, b


@pytest.mark.parametrize(
    "options",
    matrix(
        [{"strategy": "multi_worker"}, {"strategy": "ps", "synchronous": True}],
        rest=[{"strategy": "mirrored"}, {"strategy": "central"}, {"strategy": "one_device"}],
    ),
    ids=lambda options: options["strategy"],
)
def test_replicas_in_step_make_the_steps_of_one_device(cluster: Cluster, options: dict[str, Any]) -> None:
    body = FIT.replace("OPTIMIZER", f"nb.optim.SGD({RATE})")
    results = start_run(body, Options(on="worker:0-1", **options), cluster=cluster).wait().results
    weights, bias = trained()
    np.testing.assert_allclose(results["params"]["dense"]["w"], weights, atol=1e-4)
    np.testing.assert_allclose(results["params"]["b"], bias, atol=1e-4)
    assert results["history"]["error"][-1] < results["history"]["error"][0]


@pytest.mark.parametrize(
    "options",
    matrix([{"strategy": "ps", "synchronous": False}], rest=[{"strategy": "elastic", "every": 2}]),
    ids=lambda options: options["strategy"],
)
def test_replicas_that_step_apart_train_too(cluster: Cluster, options: dict[str, Any]) -> None:
    body = FIT.replace("OPTIMIZER", "nb.optim.SGD(0.02)")
    results = start_run(body, Options(on="worker:0-1", **options), cluster=cluster).wait().results
    assert results["history"]["loss"][-1] < results["history"]["loss"][0]
    assert np.abs(results["params"]["dense"]["w"] - np.arange(4)).max() < 2.9


def test_optax_trains_where_gradients_are_averaged(cluster: Cluster) -> None:
    chain = f"optax.chain(optax.clip_by_global_norm(100.0), optax.sgd({RATE}))"
    body = "import optax\n" + FIT.replace("OPTIMIZER", chain)
    options = Options(on="worker:0-1", strategy="multi_worker")
    results = start_run(body, options, cluster=cluster).wait().results
    np.testing.assert_allclose(results["params"]["dense"]["w"], trained()[0], atol=1e-4)
    for strategy, message in [
        ("ps", r"functions: give optimizer='adam' or nb\.optim\.Adam"),
        ("sharded", r"updates a part of the parameters on each worker, and OptaxOptimizer takes all of them"),
    ]:
        with pytest.raises(WorkerError, match=message):
            start_run(body, Options(on="worker:0-1", strategy=strategy), cluster=cluster).wait()


def test_what_cannot_be_trained_is_named(cluster: Cluster) -> None:
    def failure(body: str, **options: Any) -> str:
        with pytest.raises(WorkerError) as raised:
            start_run(body, Options(on="worker:0-1", **options), cluster=cluster).wait()
        return str(raised.value)

    body = FIT.replace("OPTIMIZER", "'sgd'")
    other = body.replace("jnp.zeros(())}", 'jnp.zeros(()), "more": jnp.zeros(nb.task.index)}')
    named = "variable 2 is more (0,) float32 on rank 0 (/job:worker/task:0) and more (1,) float32 on rank 1"
    assert named in failure(other, strategy="multi_worker")
    assert "write --strategy multi_worker" in failure(body, framework="jax")
    assert "loss returned an array of float32 and shape (n,)" in failure(
        body.replace("jnp.mean(error ** 2)", "error ** 2"), strategy="multi_worker"
    )
    assert "b is int32, and parameters are arrays of float32" in failure(
        body.replace("jnp.zeros(())", "jnp.zeros((), int)"), strategy="multi_worker"
    )


LOOP = (
    FIT.rpartition("params, history =")[0]
    + f"""
with nb.frameworks.jax.wrap(loss, start, optimizer=nb.optim.SGD({RATE})) as training:
    for epoch in range(4):
        shares = training.batches(batches)
        for number, batch in enumerate(shares, 1):
            value, metrics = training.step(batch)
        assert number == len(shares)
params = training.params
"""
)


@pytest.mark.parametrize("strategy", matrix(["multi_worker", "elastic"], rest=["ps"]))
def test_a_loop_of_ones_own_trains_as_fit_does(cluster: Cluster, strategy: str) -> None:
    synchronous = strategy != "elastic"
    options = Options(on="worker:0-1", strategy=strategy, synchronous=synchronous or None)
    results = start_run(LOOP, options, cluster=cluster).wait().results
    if synchronous:
        np.testing.assert_allclose(results["params"]["dense"]["w"], trained()[0], atol=1e-4)
    assert set(results["metrics"]) == {"error"}


def test_an_error_in_a_loop_of_ones_own_ends_the_others(cluster: Cluster) -> None:
    failing = LOOP.replace("value, metrics", "1 / (1 - nb.task.index); value, metrics")
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        start_run(failing, Options(on="worker:0-1", strategy="multi_worker"), cluster=cluster).wait()


STATE = LOOP.replace(
    "def loss(params, batch):", "def loss(params, seen, batch):\n    seen = seen + len(batch[0])"
).replace("return jnp.mean(error ** 2), {", "return jnp.mean(error ** 2), seen, {")


def test_each_replica_has_a_state_and_the_first_ones_is_kept(cluster: Cluster) -> None:
    loop = STATE.replace("start, optimizer", "start, state=jnp.zeros((), int), optimizer")
    body = loop + "kept = training.state\n"
    results = start_run(body, Options(on="worker:0-1", strategy="multi_worker"), cluster=cluster).wait()
    assert results.results["kept"] == 4 * 45  # its shares of 90 examples in each epoch
    np.testing.assert_allclose(results.results["params"]["dense"]["w"], trained()[0], atol=1e-4)
