"""Models of Keras under synchronous strategies are equal to one device, whatever their loss divides by.

One device is the ``fit`` of Keras itself, with the whole batch. Keras has one backend: each is imported once,
and its modules are put in place for an example.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import example, given, settings
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
from tiers import matrix

import nbdist as nb

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.slow,
    pytest.mark.usefixtures("compiled_once"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras itself
]

ENTROPY: dict[str, Any] = {"ignore_class": IGNORED}
LOSSES: dict[str, dict[str, Any]] = {
    "ignored": {"loss": ENTROPY},
    "ignored and weighted": {"loss": ENTROPY, "weighted": True},
    "masked": {"loss": {}, "masked": True},
    "masked and ignored": {"loss": ENTROPY, "masked": True},
    "masked and weighted": {"loss": {}, "masked": True, "weighted": True},
    "plain": {"loss": {}},
    "weighted": {"loss": {}, "weighted": True},
    "by class": {"loss": {}, "by_class": True},
    "penalised": {"loss": {}, "layer": {"kernel_regularizer": "l2"}},
    "of activities": {"loss": {}, "layer": {"activity_regularizer": "l2"}},
    "sum": {"loss": {"reduction": "sum"}},
    "mean of weights": {"loss": {"reduction": "mean_with_sample_weight"}, "weighted": True},
}
"""Settings of the loss, and what is special about the model and its data."""
REFUSED = {"sum", "mean of weights"}
OPTIMIZERS = {
    "sgd": ("SGD", {"learning_rate": 0.1, "momentum": 0.5}),
    "clipped": ("SGD", {"learning_rate": 0.1, "global_clipnorm": 0.3}),
    "rmsprop": ("RMSprop", {"learning_rate": 0.01, "epsilon": 1e-3}),
}
MORE_DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "workers": st.integers(1, 3),
    "rows": st.sampled_from([3, 5, 11]),  # each size of a share is compiled
    "size": st.sampled_from([1, 2, 4, 7]),
    "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
    "ignored": st.sampled_from([0.0, 0.3, 0.7]),
    "places": st.booleans(),
}
FIRST: Drawn = {
    "loss": "plain", "strategy": "multi_worker", "workers": 2, "rows": 5, "size": 4, "seed": 0,
    "optimizer": "sgd", "ignored": 0.0, "places": False,
}  # fmt: skip


@cache
def modules_of(backend: str) -> dict[str, Any]:
    """Import Keras with a backend, apart from what is imported; return its modules."""
    before = taken_out()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", backend)
        assert pytest.importorskip("keras").backend.backend() == backend
    found = taken_out()
    sys.modules |= before
    return found


def taken_out() -> dict[str, Any]:
    """Take the modules of Keras out of those that are imported."""
    names = [name for name in sys.modules if name.partition(".")[0] == "keras"]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def keras_on(backend: str) -> Iterator[Any]:
    """Have Keras compute with a backend inside a ``with``."""
    own = modules_of(backend)
    before = taken_out()
    sys.modules |= own
    try:
        yield own["keras"]
    finally:
        own |= taken_out()  # with what it has imported since
        sys.modules |= before


def data_of(one: Drawn) -> tuple[Any, Any]:
    """Return inputs and class numbers; with a mask, inputs are numbers, 0 for what does not count."""
    how = LOSSES[one["loss"]]
    x, y = classified(one)
    kept = y != IGNORED
    if how["loss"] is not ENTROPY:
        y = np.where(kept, y, 2)
    if how.get("masked"):
        x = np.where(kept, np.random.default_rng(one["seed"]).integers(1, 5, y.shape), 0)
    return x, y


def model_of(keras: Any, one: Drawn) -> Any:
    how, layers = LOSSES[one["loss"]], keras.layers
    start = lambda seed: keras.initializers.GlorotUniform(seed=seed)
    outputs = layers.Dense(CLASSES, "softmax", kernel_initializer=start(2), **how.get("layer", {}))
    if how.get("masked"):
        embedding = layers.Embedding(5, 3, mask_zero=True, embeddings_initializer=start(1))
        model = keras.Sequential([keras.Input((PLACES,), dtype="int32"), embedding, outputs])
    elif one["places"]:
        wide = layers.Dense(6 * PLACES, "tanh", kernel_initializer=start(1))
        model = keras.Sequential([keras.Input((5,)), wide, layers.Reshape((PLACES, 6)), outputs])
    else:
        hidden = layers.Dense(6, "tanh", kernel_initializer=start(1))
        model = keras.Sequential([keras.Input((5,)), hidden, outputs])
    kind, settings_ = OPTIMIZERS[one["optimizer"]]
    optimizer = getattr(keras.optimizers, kind)(**settings_)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(**how["loss"]))
    return model


def adjusted(one: Drawn) -> Drawn:
    """Return an example that Keras and the strategy take."""
    how = LOSSES[one["loss"]]
    if one["optimizer"] == "clipped":
        one |= {"strategy": "multi_worker"}  # sharded refuses to clip
    if how.get("masked"):
        one |= {"places": True}
    elif how.get("by_class"):
        one |= {"places": False}
    return one


@pytest.mark.parametrize("backend", matrix(["torch"], rest=["jax"]))
@settings(max_examples=examples(30), deadline=None)
@given(one=drawn(LOSSES, **MORE_DRAWN))
@example(one=FIRST | {"strategy": "sharded 3"})
def test_replicas_are_equal_to_one_device(backend: str, one: Drawn) -> None:
    one = adjusted(dict(one))
    how, (x, y) = LOSSES[one["loss"]], data_of(one)
    given: dict[str, Any] = {"batch_size": one["size"], "epochs": 2, "shuffle": False}
    if how.get("weighted"):
        given["sample_weight"] = np.linspace(0.5, 2, y.size, dtype=np.float32).reshape(y.shape)
    if how.get("by_class"):
        given["class_weight"] = {0: 0.2, 2: 3.0}
    with keras_on(backend) as keras:
        alone, *models = [model_of(keras, one) for _ in range(1 + one["workers"])]
        first = alone.get_weights()
        for model in models:
            model.set_weights(first)

        def train(strategy: Any) -> Found:
            model = models[strategy.replica_index]
            with strategy.scope():
                history = nb.frameworks.keras.fit(model, x, y, **given)
            return Found(model.get_weights(), history["loss"])

        losses = alone.fit(x, y, **given, verbose=0).history["loss"]
        refused = "is not a mean over the examples" if one["loss"] in REFUSED else refused_by(one["strategy"])
        require_one_device(Found(alone.get_weights(), losses), train, one, refused)
