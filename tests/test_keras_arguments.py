"""Arguments of Keras that nb.nn lacks are refused by a sentence that says what to do instead."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from nbdist import nn, optim
from nbdist.errors import InvalidArgumentError
from nbdist.keras_arguments import ATTRIBUTES, INSTEAD
from nbdist.train import EarlyStopping, keras_callbacks

X, Y = np.ones((4, 3), np.float32), np.zeros(4, int)


def model() -> nn.Sequential:
    made = nn.Sequential([nn.Dense(2, "softmax")])
    made.compile("sgd")
    return made


@pytest.mark.parametrize(("method", "name"), [(m, n) for m in INSTEAD if m.islower() for n in INSTEAD[m]])
def test_what_a_model_lacks_says_what_to_do_instead(method: str, name: str) -> None:
    given: tuple[Any, ...] = {"compile": (), "predict": (X,)}.get(method, (X, Y))
    with pytest.raises(InvalidArgumentError) as error:
        getattr(model(), method)(*given, **{name: 1})
    assert str(error.value) == f"{method} has no {name}: {INSTEAD[method][name]}"


def test_names_that_are_misspelt_and_values_by_position() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"fit has no epoch: choose from data, .*did you mean epochs"
    ):
        model().fit(X, Y, epoch=3)  # type: ignore[call-arg]
    with pytest.raises(
        InvalidArgumentError, match=r"fit takes data, y by position, and got 4 .*epochs=\.\.\."
    ):
        model().fit(X, Y, 32, 5)  # type: ignore[call-arg]
    with pytest.raises(
        InvalidArgumentError, match=r"evaluate takes data, y by position, and got 3 arguments"
    ):
        model().evaluate(X, Y, 32)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Dense(3, kernel_regularizer="l2"), "Dense has no kernel_regularizer: give the"),  # type: ignore[call-arg]
        (lambda: nn.Dense(3, input_shape=(2,)), "Dense has no input_shape: leave it out"),  # type: ignore[call-arg]
        (lambda: nn.Conv2D(3, 2, data_format="x"), "Conv2D has no data_format: the channels are the last"),  # type: ignore[call-arg]
        (lambda: nn.MaxPool2D(2, name="x"), "a pooling layer has no name: layers have no names"),  # type: ignore[call-arg]
        (lambda: nn.Dropout(0.5, seed=1), "Dropout has no seed: give the model a seed"),  # type: ignore[call-arg]
        (lambda: nn.BatchNorm(axis=1), "BatchNorm has no axis: the last axis is normalised"),  # type: ignore[call-arg]
        (lambda: nn.Embedding(5, 2, mask_zero=True), "Embedding has no mask_zero: .* no masks"),  # type: ignore[call-arg]
        (lambda: optim.Adam(lr=0.1), "Adam has no lr: it is called learning_rate"),  # type: ignore[call-arg]
        (lambda: optim.AdamW(betas=(0, 0)), "AdamW has no betas: they are called beta_1 and beta_2"),  # type: ignore[call-arg]
        (lambda: optim.SGD(use_ema=True), "SGD has no use_ema: average the weights"),  # type: ignore[call-arg]
        (lambda: optim.RMSprop(moment=0), "RMSprop has no moment: .*did you mean momentum"),  # type: ignore[call-arg]
        (lambda: EarlyStopping(restore_best_weights=True), "restore_best_weights: give ModelCheckpoint"),  # type: ignore[call-arg]
    ],
)
def test_layers_optimizers_and_callbacks(make: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        make()


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_keras_are_refused_where_they_have_no_effect(name: str) -> None:
    for made in (nn.Dense(2), nn.Conv2D(3, 2), model(), optim.SGD(0.1), optim.AdamW(0.1)):
        setattr(made, name, None)
        setattr(made, name, False)
        if isinstance(made, optim.Optimizer) and name in vars(optim.Optimizer):
            setattr(made, name, 0.5)
            continue
        with pytest.raises(InvalidArgumentError) as error:
            setattr(made, name, 1)
        assert str(error.value) == f"{type(made).__name__} has no {name}: {ATTRIBUTES[name]}"

    class Own(nn.Dense):
        pass

    setattr(Own(2), name, 1)  # what a class of the user's own does with it is not known


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras itself
def test_all_arguments_of_keras_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    homes = [
        (keras.Model, nn.Model), (keras.callbacks, keras_callbacks), (keras.optimizers, optim),
        (keras.optimizers.schedules, optim.schedules),
    ]  # fmt: skip
    for name in set(INSTEAD) - {"OneCycle"}:
        theirs, ours = next((getattr(a, name), getattr(b, name)) for a, b in homes if hasattr(a, name))
        known = {*inspect.signature(ours).parameters, *INSTEAD[name]}
        assert set(inspect.signature(theirs).parameters) - {"self", "kwargs"} <= known, name
