"""Peer of jax: images per second of the same training in plain JAX, one jitted step, on one device.

The step computes loss and gradients and applies them, the parameters donated; the loss is read each step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import sync_work
from bench.script import need_jax


def main() -> None:
    options = sync_work.options()
    jax = need_jax(options.device)
    work, loss = sync_work.scaled(options), LOSSES[options.work]

    def step(params: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return [p - work.learning_rate * g for p, g in zip(params, gradients)], value

    compiled = jax.jit(step, donate_argnums=0)
    params, (x, y) = [jax.numpy.array(weight) for weight in work.first_weights()], work.batches()
    begin, weights = 0.0, list[Any]()
    for number in range(work.warm_up + work.steps):
        if number == work.warm_up:
            weights = [np.array(weight) for weight in params]
            begin = time.perf_counter()
        params, value = compiled(params, (x[number % len(x)], y[number % len(x)]))
        float(value)  # both sides report the loss of every step
    print(json.dumps(work.outcome(time.perf_counter() - begin, weights)))


def mlp(params: Any, batch: Any) -> Any:
    """Return the mean cross-entropy of a batch (images, class numbers), given the weights in a list."""
    import jax

    w1, b1, w2, b2 = params
    return cross_entropy(jax.nn.sigmoid(batch[0] @ w1 + b1) @ w2 + b2, batch[1])


def cnn(params: Any, batch: Any) -> Any:
    """Return that of the convolutional network."""
    import jax

    k1, b1, k2, b2, w3, b3, w4, b4 = params

    def convolved(images: Any, kernel: Any) -> Any:
        form = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=form)

    a = jax.nn.relu(convolved(jax.nn.relu(convolved(batch[0], k1) + b1), k2) + b2)
    a = a.reshape(len(a), 12, 2, 12, 2, 64).max((2, 4))
    return cross_entropy(jax.nn.relu(a.reshape(len(a), -1) @ w3 + b3) @ w4 + b4, batch[1])


def cross_entropy(logits: Any, numbers: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), numbers[:, None], axis=1))


LOSSES: dict[str, Callable[[Any, Any], Any]] = {"mlp": mlp, "cnn": cnn}


if __name__ == "__main__":
    main()
