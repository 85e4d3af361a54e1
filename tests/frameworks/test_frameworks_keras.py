"""`nb.frameworks.keras` on real engines: `model.fit` under strategies, with both backends.

Keras has one backend in a process: workers 0 and 1 have JAX, and worker 2 has torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

MODEL = """
import os
os.environ["KERAS_BACKEND"] = "CHOSEN"
import keras, numpy as np

x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
y = (x @ np.arange(4) - 1).astype(np.float32)[:, None]
layer = keras.layers.Dense(1, kernel_initializer="zeros")
model = keras.Sequential([keras.Input((4,)), layer])
model.compile(OPTIMIZER, "mse", metrics=["mae"])
"""
FIT = """
model = nb.frameworks.keras.wrap(model)
history = model.fit(x, y, batch_size=30, epochs=6, verbose=0)
weights = model.get_weights()
"""
CASES = {
    "jax-multi_worker": ("jax", Options(on="worker:0-1", strategy="multi_worker")),
    "jax-ps": ("jax", Options(on="worker:0-1", strategy="ps", synchronous=True)),
    "torch-ps": ("torch", Options(on="worker:2", strategy="ps", synchronous=True)),
    "torch-multi_worker": ("torch", Options(on="worker:2", strategy="multi_worker")),
}


def trained() -> tuple[Any, float]:
    """Return weights and bias after six steps of gradient descent, in NumPy."""
    x = np.random.default_rng(0).normal(size=(30, 4))
    y, w, b = x @ np.arange(4) - 1, np.zeros(4), 0.0
    for _ in range(6):
        error = x @ w + b - y
        w, b = w - 0.2 * x.T @ error / len(error), b - 0.2 * error.mean()
    return w, b


@pytest.mark.parametrize("case", CASES)
def test_model_fit_makes_the_steps_of_one_device(cluster: Cluster, case: str) -> None:
    backend, options = CASES[case]
    body = MODEL.replace("CHOSEN", backend).replace("OPTIMIZER", "keras.optimizers.SGD(0.1)")
    results = start_run(body + FIT, options, cluster=cluster).wait().results
    weights, bias = trained()
    np.testing.assert_allclose(results["weights"][0][:, 0], weights, atol=1e-4)
    np.testing.assert_allclose(results["weights"][1], bias, atol=1e-4)
    assert list(results["history"].history) == ["loss", "mae"]


@pytest.mark.parametrize(
    ("optimizer", "more", "message"),
    [
        ("keras.optimizers.Lion(0.1)", "", "has none of Keras's Lion"),
        ("keras.optimizers.SGD(0.1, clipnorm=1.0)", "", r"SGD\(clipnorm=1.0\) has no equal here"),
        ("'sgd'", "class_weight={}", "class_weight is not known under a strategy"),
        ("'sgd'", "callbacks=[keras.callbacks.ReduceLROnPlateau()]", "changes the learning rate"),
    ],
    ids=["optimizer", "setting", "argument", "callback"],
)
def test_what_cannot_be_followed_is_refused(
    cluster: Cluster, optimizer: str, more: str, message: str
) -> None:
    body = MODEL.replace("CHOSEN", "jax").replace("OPTIMIZER", optimizer)
    body += FIT.replace("verbose=0", more or "verbose=0")
    with pytest.raises(WorkerError, match=message):
        start_run(body, Options(on="worker:0", strategy="one_device"), cluster=cluster).wait()
