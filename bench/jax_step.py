"""Peer of x1: images per second of the same training in plain JAX, one jitted step, on one device.

The step computes loss and gradients and applies them, with its arguments donated; the loss is read each step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import sync_work
from bench.cnn_work import EPSILON
from bench.script import need_jax


def main() -> None:
    jax = need_jax()
    optax = jax_optimizers()
    options = sync_work.options()
    work, loss = sync_work.scaled(options), loss_of(options.work)
    transformation = (
        optax.amsgrad(work.learning_rate, eps=EPSILON)
        if options.work == "cnn"
        else optax.sgd(work.learning_rate)
    )

    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    compiled = jax.jit(step, donate_argnums=(0, 1))
    params = [jax.numpy.array(weight) for weight in work.first_weights()]
    state, (x, y) = transformation.init(params), work.batches()
    begin, weights = 0.0, list[Any]()
    for number in range(work.warm_up + work.steps):
        if number == work.warm_up:
            weights = [np.array(weight) for weight in params]
            begin = time.perf_counter()
        params, state, value = compiled(params, state, (x[number % len(x)], y[number % len(x)]))
        float(value)  # both sides report the loss of every step
    print(json.dumps(work.outcome(time.perf_counter() - begin, weights)))


def jax_optimizers() -> Any:
    from bench.script import not_measured

    try:
        import optax
    except ImportError:
        raise not_measured("optax is not installed") from None
    return optax


def loss_of(work: str) -> Callable[[Any, Any], Any]:
    """Return the mean cross-entropy of a batch (images, class numbers), given the weights in a list."""
    import jax
    import jax.numpy as jnp

    def cross_entropy(logits: Any, numbers: Any) -> Any:
        scores = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(scores, numbers[:, None], axis=1))

    def mlp(params: Any, batch: Any) -> Any:
        w1, b1, w2, b2 = params
        return cross_entropy(jax.nn.sigmoid(batch[0] @ w1 + b1) @ w2 + b2, batch[1])

    def cnn(params: Any, batch: Any) -> Any:
        k1, b1, k2, b2, w3, b3, w4, b4 = params
        form = ("NHWC", "HWIO", "NHWC")

        def convolved(images: Any, kernel: Any) -> Any:
            return jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=form)

        a = jax.nn.relu(convolved(batch[0], k1) + b1)
        a = jax.nn.relu(convolved(a, k2) + b2)
        a = jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return cross_entropy(jax.nn.relu(a.reshape(len(a), -1) @ w3 + b3) @ w4 + b4, batch[1])

    return cnn if work == "cnn" else mlp


if __name__ == "__main__":
    main()
