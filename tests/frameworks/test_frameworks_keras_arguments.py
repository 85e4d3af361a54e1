"""What users of Keras set is obeyed under a strategy, or refused by a sentence: nothing is dropped."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nbdist as nb
from nbdist.errors import InvalidArgumentError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras itself
]

X = np.ones((8, 3), np.float32)
Y = np.ones((8, 1), np.float32)


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keras with torch as its backend."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras")


def model_of(keras: Any, optimizer: Any = "sgd", kind: Any = None, **layer: Any) -> Any:
    model = (kind or keras.Sequential)([keras.Input((3,)), keras.layers.Dense(1, **layer)])
    model.compile(optimizer, "mse")
    return model


def test_each_argument_of_fit_is_taken_or_refused_by_its_name(keras: Any) -> None:
    ours = {*inspect.signature(nb.frameworks.keras.fit).parameters, "verbose"}
    model = nb.frameworks.keras.wrap(model_of(keras))
    for name in inspect.signature(keras.Model.fit).parameters.keys() - {"self"} - ours:
        with pytest.raises(InvalidArgumentError, match=f"fit: {name} is not known"):
            model.fit(X, Y, **{name: 1})


# Of compile(): the model computes loss and metrics itself, and the others change how, not what is computed.
COMPILED = {
    *("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics"),
    *("run_eagerly", "steps_per_execution", "jit_compile", "auto_scale_loss"),
}


def test_each_argument_of_compile_is_known(keras: Any) -> None:
    assert inspect.signature(keras.Model.compile).parameters.keys() - {"self"} == COMPILED


OTHER: dict[str, Any] = {
    "learning_rate": 0.3, "weight_decay": 0.2, "clipnorm": 0.5, "clipvalue": 0.5, "global_clipnorm": 0.5,
    "use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2, "loss_scale_factor": 2.0,
    "gradient_accumulation_steps": 2, "momentum": 0.5, "nesterov": True, "beta_1": 0.5, "beta_2": 0.5,
    "epsilon": 0.1, "amsgrad": True, "rho": 0.5, "centered": True, "initial_accumulator_value": 0.7,
}  # fmt: skip
"""For each setting of an optimizer of Keras, another value than its default."""
ONLY_WITH_EMA = {"ema_momentum", "ema_overwrite_frequency"}


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_each_setting_of_an_optimizer_changes_the_update_or_is_refused(keras: Any, name: str) -> None:
    from nbdist.frameworks.keras.optimizers import clipping, translated
    from nbdist.train.context import Context

    make: Callable[..., Any] = getattr(keras.optimizers, name)
    usual = vars(translated(make()))
    settings = make().get_config().keys() - {"name"} - ONLY_WITH_EMA
    assert settings <= OTHER.keys()
    for setting in settings:
        optimizer = make(**({"momentum": 0.5} if setting == "nesterov" else {}), **{setting: OTHER[setting]})
        try:
            changed = vars(translated(optimizer)) != usual
        except InvalidArgumentError as refused:
            assert setting in str(refused)  # noqa: PT017
            continue
        assert changed or clipping(optimizer, Context()) is not None, setting


def batches_seen(keras: Any, method: str) -> Any:
    """Return a callback of a user's own class with a method for batches."""
    return type("Own", (keras.callbacks.Callback,), {method: lambda self, batch, logs=None: None})()


@pytest.mark.parametrize("method", ["on_train_batch_begin", "on_train_batch_end", "on_batch_end"])
def test_callbacks_for_batches_are_refused(keras: Any, method: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"Own\.{method}\(\) would not be called"):
        nb.frameworks.keras.fit(model_of(keras), X, Y, callbacks=[batches_seen(keras, method)])


def test_callbacks_of_keras_that_act_after_batches_are_refused(keras: Any, tmp_path: Any) -> None:
    path = tmp_path / "a.keras"
    ours = keras.callbacks
    for callback, words in (
        (ours.ModelCheckpoint(path, save_freq=5), r"ModelCheckpoint\(save_freq=5\) acts after batches"),
        (ours.LambdaCallback(on_train_batch_end=lambda batch, logs: None), "would not be called"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            nb.frameworks.keras.fit(model_of(keras), X, Y, callbacks=[callback])
    fine = [
        ours.ModelCheckpoint(path),
        ours.TerminateOnNaN(),
        ours.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
    ]
    nb.frameworks.keras.fit(model_of(keras), X, Y, callbacks=fine)
    assert path.exists()
