"""TPUStrategy on eight devices of the host, in one engine: the weights of one device, to rounding.

Of 75 examples in batches of 32, the last 11 cannot be divided by eight: each device has all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbdist.run.backfill import printed
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

ONE: dict[str, Any] = {"on": "worker:0", "seed": 7}

DATA = """
import numpy as np
rng = np.random.default_rng(0)
images = rng.normal(size=(75, 8, 8, 2)).astype(np.float32)
ids, labels = rng.integers(0, 30, (75, 5)), rng.integers(0, 4, 75)
"""
MODELS = (
    DATA
    + """
from nbdist.nn import *
from nbdist.optim import *
flat = images.reshape(75, -1)
cases = {
    "mlp": (flat, [Dense(16, "relu"), Dense(4, "softmax")], SGD(0.1)),
    "momentum": (flat, [Dense(8, "tanh"), Dense(4, "softmax")], SGD(0.1, momentum=0.9, nesterov=True)),
    "adam": (flat, [Dense(8, "gelu"), Dense(4, "softmax")], AdamW(0.01, amsgrad=True)),
    "rmsprop": (flat, [Dense(8, "sigmoid"), Dense(4, "softmax")], RMSprop(0.01, 0.9, 0.5, centered=True)),
    "adagrad": (flat, [Dense(8), LayerNorm(), Dense(4, "softmax")], Adagrad(0.1)),
    "cnn": (
        images,
        [Conv2D(4, 3, activation="relu", padding="same"), MaxPool2D(2), BatchNorm(), AveragePool2D(2),
         Flatten(), Dropout(0.4), Dense(4, "softmax")],
        SGD(0.1, momentum=0.9),
    ),
    "embedding": (ids, [Embedding(30, 6), Flatten(), Dropout(0.3), Dense(4, "softmax")], SGD(0.1)),
}
weights, losses = {}, {}
for name, (x, layers, optimizer) in cases.items():
    model = nb.nn.Sequential(layers, seed=1)
    model.compile(optimizer, "sparse_categorical_crossentropy", ["accuracy"])
    history = model.fit(nb.data.Dataset.from_arrays(x, labels).shuffle(75).batch(32), epochs=2)
    weights[name], losses[name] = model.get_weights(), history.history["loss"]
"""
)


def on_one_device(cluster: Cluster, body: str, **names: Any) -> Run:
    """Run a body on one device with NumPy."""
    return start_run(body, Options(strategy="one_device", **ONE), cluster=cluster, names=names).wait()


def on_eight_devices(cluster: Cluster, body: str, **names: Any) -> Run:
    """Run a body on eight devices that JAX makes of the host's CPU."""
    options = Options(strategy="tpu", host_devices=8, **ONE)
    return start_run(body, options, cluster=cluster, names=names).wait()


def check_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that arrays by name are equal, but for rounding."""
    assert found.keys() == expected.keys()
    for name, arrays in expected.items():
        for own, value in zip(found[name], arrays, strict=True):
            np.testing.assert_allclose(own, value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_models_have_the_weights_of_one_device(cluster: Cluster) -> None:
    run, expected = on_eight_devices(cluster, MODELS), on_one_device(cluster, MODELS)
    check_alike(run.results["weights"], expected.results["weights"])
    check_alike(run.results["losses"], expected.results["losses"])
    assert "there is no TPU in this process: XLA on 8 CPU devices" in printed(run.folder, 0)
