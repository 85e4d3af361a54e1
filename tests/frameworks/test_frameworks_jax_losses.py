"""Functions of JAX under synchronous strategies are equal to one device, whatever their loss divides by.

One device is a loop of JAX and optax alone, with the whole batch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from one_device import (
    CLASSES,
    IGNORED,
    PLACES,
    Drawn,
    Found,
    classified,
    drawn,
    refused_by,
    require_one_device,
)

import nbdist as nb

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.usefixtures("compiled_once")]

WEIGHTS = jnp.array([0.2, 1.0, 3.0])


def entropies(params: Any, batch: Any) -> tuple[Any, Any]:
    """Return the cross-entropy of each target, 0 for those that are ignored, and which are not."""
    x, y = batch
    outputs = jnp.tanh(x @ params["first"]) @ params["last"]["w"] + params["last"]["b"]
    outputs = outputs.reshape((*y.shape, CLASSES))
    mask = y != IGNORED
    each = optax.softmax_cross_entropy_with_integer_labels(outputs, jnp.where(mask, y, 0))
    return each * mask, mask


def plain(params: Any, batch: Any) -> Any:
    return entropies(params, batch)[0].mean()


def weighted(params: Any, batch: Any) -> Any:
    each, _ = entropies(params, batch)
    weights = class_weights(batch)
    return (each * weights).sum() / weights.sum()


def class_weights(batch: Any) -> Any:
    return jnp.where(batch[1] == IGNORED, 0.0, WEIGHTS[batch[1]])


def masked(params: Any, batch: Any) -> Any:
    each, mask = entropies(params, batch)
    return jnp.mean(each, where=mask), {"each": each.mean()}


def by_examples(params: Any, batch: Any) -> Any:
    """Return a mean over the examples of what is weighted by class."""
    each, _ = entropies(params, batch)
    return (each * class_weights(batch)).sum() / len(batch[0])


def penalised(params: Any, batch: Any) -> Any:
    return plain(params, batch) + 0.1 * sum((one**2).sum() for one in jax.tree.leaves(params))


def summed(params: Any, batch: Any) -> Any:
    return entropies(params, batch)[0].sum()


def partly_summed(params: Any, batch: Any) -> Any:
    each, _ = entropies(params, batch)
    return each.mean() + 0.01 * (batch[0] @ params["first"]).sum(), {"each": each.mean()}


def unmasked(batch: Any) -> Any:
    return (batch[1] != IGNORED).sum()


LOSSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (plain, {}),
    "weighted": (weighted, {"normalizer": lambda batch: class_weights(batch).sum()}),
    "masked": (masked, {"normalizer": unmasked}),
    "by examples": (by_examples, {}),
    "penalised": (penalised, {}),
    "jitted": (jax.jit(plain), {}),
    "sum": (summed, {}),
    "jitted sum": (jax.jit(summed), {}),
    "mean and sum": (partly_summed, {}),
}
"""Each with what `fit` has to know of it."""
SUMS = {"sum", "jitted sum", "mean and sum"}
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (lambda: nb.optim.SGD(0.1, momentum=0.5), lambda: optax.sgd(0.1, momentum=0.5)),
    "optax": (lambda: optax.adam(0.01, eps=1e-3), lambda: optax.adam(0.01, eps=1e-3)),
    "accumulated": (lambda: in_parts(), lambda: in_parts()),
}
"""What `fit` is given, and what is equal to it in optax."""


def in_parts() -> Any:
    """Return an optimizer that makes an update of the gradients of three batches."""
    return optax.MultiSteps(optax.adam(0.01, eps=1e-3), every_k_schedule=3).gradient_transformation()


def parameters(places: bool) -> Any:
    rng = np.random.default_rng(1)
    draw = lambda *shape: (rng.normal(size=shape) * 0.4).astype(np.float32)
    outputs = CLASSES * (PLACES if places else 1)
    return {"first": draw(5, 6), "last": {"w": draw(6, outputs), "b": draw(outputs)}}


@cache
def step_of(name: str) -> Any:
    loss = LOSSES[name][0]

    def value(params: Any, batch: Any) -> Any:
        found = loss(params, batch)
        return found[0] if isinstance(found, tuple) else found

    return jax.jit(jax.value_and_grad(value))


def plainly(one: Drawn, params: Any, x: Any, y: Any) -> Found:
    """Train with JAX and optax alone."""
    optimizer, step = OPTIMIZERS[one["optimizer"]][1](), step_of(one["loss"])
    state, losses, update = optimizer.init(params), [], jax.jit(optimizer.update)
    for _ in range(2):
        total = 0.0
        for start in range(0, len(x), one["size"]):
            batch = x[start : start + one["size"]], y[start : start + one["size"]]
            value, found = step(params, batch)
            updates, state = update(found, state, params)
            params = optax.apply_updates(params, updates)
            total += float(value) * len(batch[0])
        losses.append(total / len(x))
    return Found(jax.tree.leaves(params), losses)


def looped(loss: Any, params: Any, batches: Any, how: dict[str, Any]) -> Found:
    """Train by a loop of one's own."""
    losses = []
    with nb.frameworks.jax.wrap(loss, params, **how) as training:
        for _ in range(2):
            total = 0.0
            for batch, size in zip(training.batches(batches), map(len, (x for x, _ in batches)), strict=True):
                total += training.step(batch)[0] * size
            losses.append(total / sum(len(x) for x, _ in batches))
    return Found(jax.tree.leaves(training.params), losses)


MORE_DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "workers": st.integers(1, 3),
    "rows": st.sampled_from([3, 7]),  # each size of a share is compiled
    "size": st.sampled_from([1, 2, 4]),
    "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
    "ignored": st.sampled_from([0.0, 0.3, 0.7]),
    "places": st.booleans(),
    "own_loop": st.booleans(),
}


@settings(max_examples=examples(30), deadline=None)
@given(drawn(LOSSES, **MORE_DRAWN))
def test_replicas_are_equal_to_one_device(one: Drawn) -> None:
    if one["optimizer"] != "sgd":
        one = {**one, "strategy": "multi_worker"}  # sharded refuses optax's
    x, y = classified(one)
    loss, how = LOSSES[one["loss"]]
    params, size = parameters(one["places"]), one["size"]
    batches = [(x[at : at + size], y[at : at + size]) for at in range(0, len(x), size)]

    def train(strategy: Any) -> Found:
        given = {**how, "optimizer": OPTIMIZERS[one["optimizer"]][0]()}
        with strategy.scope():
            if one["own_loop"]:
                return looped(loss, params, batches, given)
            fitted = nb.frameworks.jax.fit(loss, params, batches, epochs=2, **given)
        return Found(jax.tree.leaves(fitted.params), fitted.history["loss"])

    refused = "sum over the examples" if one["loss"] in SUMS else refused_by(one["strategy"])
    require_one_device(plainly(one, params, x, y), train, one, refused)
