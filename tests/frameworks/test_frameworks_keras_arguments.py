"""What users of Keras set is obeyed under a strategy, or refused by a sentence: nothing is dropped."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nbdist as nb
from nbdist.distribute import MultiWorkerMirroredStrategy
from nbdist.errors import InvalidArgumentError
from nbdist.frameworks import reporting
from nbdist.frameworks.patches import Patches
from nbdist.testing import thread_world
from nbdist.testing.strategy import everywhere
from nbdist.train.context import Context, use_here

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


def classifier(keras: Any, loss: Any, units: int = 2, last: str = "softmax") -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, last)])
    model.compile("sgd", loss)
    return model


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        ("sparse_categorical_crossentropy", [0, 1.5], "class numbers, which are whole, and a label is 1.5"),
        ("sparse_categorical_crossentropy", [0, 2], "labels go from 0 to 2, and the model has 2 outputs"),
        ("sparse_categorical_crossentropy", [[-1], [0]], "labels go from -1 to 0, and the model has 2"),
        ("categorical_crossentropy", [[1, 1], [0, 1]], "labels of an example add up to 2"),
        ("binary_crossentropy", [[-1, 1], [0, 1]], "labels go from -1 to 1: "),
        ("hinge", [[0.5, 1], [0, 1]], "labels -1 and 1, or 0 and 1, and there are labels 0, 0.5, 1"),
        ("poisson", [[-2, 1], [0, 1]], "labels of 0 or more, and labels go from -2 to 1"),
        ("mse", [[1], [0]], r"a label has the shape \(1,\) where an output has \(2,\)"),
    ],
)
def test_labels_that_a_loss_does_not_take_are_refused(keras: Any, loss: str, y: Any, message: str) -> None:
    labels = np.array(y, np.float32)
    for name in (loss, keras.losses.get(loss)):
        for data in ({"x": X[:2], "y": labels}, {"x": [(X[:2], labels)]}):
            with pytest.raises(InvalidArgumentError, match=message):
                nb.frameworks.keras.fit(classifier(keras, name), **data)
    if loss != "mse":
        good = {1: [0, 1], 2: np.eye(2)}[2 if labels.ndim == 2 and labels.shape[1] == 2 else 1]
        with pytest.raises(InvalidArgumentError, match=message):
            nb.frameworks.keras.fit(
                classifier(keras, loss), X[:2], np.array(good, np.float32), validation_data=(X[:2], labels)
            )


def test_labels_that_do_not_count_may_be_any(keras: Any) -> None:
    weighted = {"sample_weight": np.array([1, 0], np.float32)}
    nb.frameworks.keras.fit(
        classifier(keras, "categorical_crossentropy"), X[:2], np.array([[0, 1], [0, 0]]), **weighted
    )
    ignoring = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
    nb.frameworks.keras.fit(classifier(keras, ignoring), X[:2], np.array([-1, 1]))
    own = classifier(keras, lambda y, predicted: keras.ops.mean((predicted - y) ** 2, -1))
    nb.frameworks.keras.fit(own, X[:2], np.array([[5.0], [-5.0]]))


def test_a_note_says_that_outputs_are_no_probabilities(keras: Any, capsys: Any) -> None:
    name, y = "sparse_categorical_crossentropy", np.array([0, 1])
    nb.frameworks.keras.fit(classifier(keras, name, last="linear"), X[:2], y)
    assert "takes probabilities, and the last layer, dense" in capsys.readouterr().out
    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for model in (classifier(keras, name), classifier(keras, logits, last="linear")):
        nb.frameworks.keras.fit(model, X[:2], y)
    assert "probabilities" not in capsys.readouterr().out


def test_metrics_that_are_no_means_are_those_of_the_epoch(keras: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 3)).astype(np.float32)
    y = (x[:, :1] + rng.normal(size=(24, 1)) > 0).astype(np.float32)
    found = []
    for fit in (nb.frameworks.keras.fit, keras.Model.fit):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
        kinds = (keras.metrics.AUC, keras.metrics.Precision, keras.metrics.TruePositives)
        model.compile("sgd", "binary_crossentropy", metrics=[kind(name=kind.__name__) for kind in kinds])
        quiet = {} if fit is nb.frameworks.keras.fit else {"verbose": 0}
        found.append(fit(model, x, y, batch_size=5, epochs=2, shuffle=False, **quiet).history)
    assert found[0].keys() == found[1].keys() == {"loss", "AUC", "Precision", "TruePositives"}
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=1e-5)


def test_a_metric_whose_state_is_no_sum_is_refused(keras: Any) -> None:
    class Largest(keras.metrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="largest")
            self.most = self.add_weight(name="most", initializer="zeros")

        def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
            self.most.assign(keras.ops.maximum(self.most, keras.ops.max(predicted)))

        def result(self) -> Any:
            return self.most.value

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "mse", metrics=["mae", Largest()])
    with pytest.raises(InvalidArgumentError, match="one of the metrics mae, largest has a state that is not"):
        nb.frameworks.keras.fit(model, X, Y)


@pytest.mark.parametrize("part", ["activity", "mean", "sum"])
def test_what_layers_add_to_the_loss_is_that_of_one_device_or_refused(keras: Any, part: str) -> None:
    class Adds(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            self.add_loss(0.3 * getattr(keras.ops, part)(x * x))
            return x

    def make() -> Any:
        keras.utils.set_random_seed(0)
        first = keras.layers.Dense(4, activity_regularizer="l2" if part == "activity" else None)
        more = [] if part == "activity" else [Adds()]
        model = keras.Sequential([keras.Input((3,)), first, *more, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    x = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    data: dict[str, Any] = {"x": x, "y": x.sum(1, keepdims=True), "batch_size": 5, "shuffle": False}
    plain, models = make(), [make(), make()]
    plain.fit(**data, verbose=0)

    def body(own: Any, _: Any) -> None:
        with own.scope():
            nb.frameworks.keras.fit(models[own.replica_index], **data)

    world = thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), 2)
    if part == "sum":
        with pytest.raises(InvalidArgumentError, match="a part that is a sum over the examples of a batch"):
            everywhere(world, body)
        return
    everywhere(world, body)
    for model in models:
        for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_note_says_that_a_single_example_is_normalised_by_itself(keras: Any, capsys: Any) -> None:
    for size, count in ((7, 1), (8, 0)):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        nb.frameworks.keras.fit(model, X, Y, batch_size=size)
        assert capsys.readouterr().out.count("BatchNormalization normalises it by itself") == count


def test_the_fit_of_keras_reports_each_value_once(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(reporting, "log", lambda values, step: seen.extend((name, step) for name in values))
    model = model_of(keras)
    with use_here(Context(quiet=True)), Patches(reporting.CHANGES, pytest.fail):
        model.fit(X, Y, batch_size=4, epochs=2, validation_data=(X, Y))
    assert sorted(seen) == [*(("loss", step) for step in (1, 2, 3, 4)), ("val_loss", 2), ("val_loss", 4)]
