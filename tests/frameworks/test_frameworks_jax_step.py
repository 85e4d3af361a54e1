"""`LossFunction` through the training loop in one process: keys, several replicas, what a batch may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.distribute import MirroredStrategy
from nbdist.errors import InvalidArgumentError
from nbdist.train.context import Context, use

pytestmark = pytest.mark.frameworks

X = np.arange(20, dtype=np.float32).reshape(10, 2) % 7
Y = X @ np.array([1.0, -2.0], np.float32)


def fit(loss: Any, params: Any, data: Any, **options: Any) -> Any:
    from nbdist.frameworks.jax import fit

    with use(options.pop("context", None) or Context(quiet=True, seed=5)):
        return fit(loss, params, data, **{"optimizer": "sgd", "epochs": 2, **options})


def squared(params: Any, batch: Any) -> Any:
    x, y = batch
    return ((x @ params["w"] - y) ** 2).mean()


def test_replicas_of_a_process_train_as_one_device_does() -> None:
    start, batches = {"w": np.zeros(2, np.float32)}, Dataset.from_arrays(X, Y).batch(3)  # the last has 1
    two = Context(strategy=MirroredStrategy(["CPU:0", "CPU:0"]), quiet=True, seed=5)
    alone = fit(squared, start, batches).params["w"]
    np.testing.assert_allclose(fit(squared, start, batches, context=two).params["w"], alone, rtol=1e-5)


def test_each_step_has_a_key_of_its_own() -> None:
    import jax

    def drawn(params: Any, batch: Any, key: Any) -> Any:
        x, _ = batch
        noise = jax.random.uniform(key)
        return params["w"].sum() * 0 + 0 * x.mean() + noise, {"noise": noise}

    def noises(seed: int) -> Any:
        found = []
        for steps in (1, 2):
            context = Context(quiet=True, seed=seed)
            options = {"epochs": 1, "steps_per_epoch": steps, "context": context}
            found.append(fit(drawn, {"w": np.zeros(2)}, [(X, Y)] * 2, **options).history["noise"][0])
        return found[0], 2 * found[1] - found[0]  # of the first and the second step

    first, second = noises(5)
    assert first != pytest.approx(second)
    assert noises(5) == (first, second)
    assert noises(6)[0] != pytest.approx(first)


def test_batches_have_numbers_of_any_type_that_jax_knows() -> None:
    import jax.numpy as jnp

    narrow = np.asarray(jnp.asarray(X, jnp.bfloat16))
    start = {"w": np.zeros(2, np.float32)}
    assert np.isfinite(fit(squared, start, [(narrow, Y)]).params["w"]).all()
    with pytest.raises(InvalidArgumentError, match="the first axis of each counts the examples"):
        fit(squared, start, [(X, Y[:4])])
