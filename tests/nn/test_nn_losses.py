"""Losses and metrics: each against its formula, by name and by class, and there and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.tensor import Graph, Tensor, constant, placeholder
from nbdist.nn import (
    Activation,
    BatchNorm,
    Conv2D,
    Dense,
    Flatten,
    Layer,
    Reshape,
    Sequential,
    losses,
    metrics,
)
from nbdist.nn.functional import softmax_cross_entropy
from nbdist.nn.measures import Measure
from nbdist.optim import SGD

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(0)
Z = rng.normal(size=(6, 4)).astype(np.float32)
P = (np.exp(Z) / np.exp(Z).sum(-1, keepdims=True)).astype(np.float32)
S = (1 / (1 + np.exp(-Z))).astype(np.float32)
N = rng.integers(0, 4, 6)
HOT = np.eye(4, dtype=np.float32)[N]
YES = (rng.random((6, 4)) > 0.5).astype(np.float32)
R = rng.uniform(0.1, 2, (6, 4)).astype(np.float32)


def value(measure: Measure, y: Array, predicted: Array) -> Array:
    with Graph().as_default():
        p, t = placeholder(np.float32, (None, 4)), placeholder(y.dtype, (None, *y.shape[1:]))
        result = measure(t, p)
        if result.dtype.kind == "f" and isinstance(measure, losses.Loss):
            assert gradients(result.sum(), [p])[0] is not None
    assert result.shape == (None,)
    program = compile_program([result], feeds=[p, t], shapes=[predicted.shape, y.shape])
    return program(predicted, y)[0].copy()


def entropy(y: Array, p: Array) -> Array:
    return -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(-1)  # type: ignore[no-any-return]


def smooth_hinge(y: Array, p: Array) -> Array:
    return np.maximum(1 - (2 * y - 1) * p, 0)


def unit(a: Array) -> Array:
    return a / np.linalg.norm(a, axis=-1, keepdims=True)  # type: ignore[no-any-return]


FORMULAS: list[tuple[Measure, Array, Array, Callable[[Array, Array], Array]]] = [
    (losses.SparseCategoricalCrossentropy(), N, P, lambda y, p: -np.log(p[np.arange(6), y])),
    (losses.SparseCategoricalCrossentropy(from_logits=True), N, Z, lambda y, z: -np.log(P[np.arange(6), y])),
    (losses.CategoricalCrossentropy(), HOT, P, lambda y, p: -(y * np.log(p)).sum(-1)),
    (losses.CategoricalCrossentropy(from_logits=True), HOT, Z, lambda y, z: -(y * np.log(P)).sum(-1)),
    (
        losses.CategoricalCrossentropy(label_smoothing=0.2), HOT, P,
        lambda y, p: -((0.8 * y + 0.05) * np.log(p)).sum(-1),
    ),
    (losses.BinaryCrossentropy(), YES, S, entropy),
    (losses.BinaryCrossentropy(from_logits=True), YES, Z, lambda y, z: entropy(y, S)),
    (losses.BinaryCrossentropy(label_smoothing=0.2), YES, S, lambda y, p: entropy(0.8 * y + 0.1, p)),
    (losses.MeanSquaredError(), R, Z, lambda y, p: ((y - p) ** 2).mean(-1)),
    (losses.MeanAbsoluteError(), R, Z, lambda y, p: np.abs(y - p).mean(-1)),
    (losses.MeanAbsolutePercentageError(), R, Z, lambda y, p: 100 * np.abs((y - p) / y).mean(-1)),
    (losses.MeanSquaredLogarithmicError(), R, S, lambda y, p: ((np.log1p(y) - np.log1p(p)) ** 2).mean(-1)),
    (
        losses.Huber(), R, Z,
        lambda y, p: np.where(np.abs(y - p) <= 1, (y - p) ** 2 / 2, np.abs(y - p) - 0.5).mean(-1),
    ),
    (
        losses.Huber(delta=0.5), R, Z,
        lambda y, p: np.where(np.abs(y - p) <= 0.5, (y - p) ** 2 / 2, np.abs(y - p) / 2 - 0.125).mean(-1),
    ),
    (losses.LogCosh(), R, Z, lambda y, p: np.log(np.cosh(p - y)).mean(-1)),
    (losses.KLDivergence(), P[::-1], P, lambda y, p: (y * np.log(y / p)).sum(-1)),
    (losses.Poisson(), R, S, lambda y, p: (p - y * np.log(p)).mean(-1)),
    (losses.Hinge(), YES, Z, lambda y, p: smooth_hinge(y, p).mean(-1)),
    (losses.SquaredHinge(), YES, Z, lambda y, p: (smooth_hinge(y, p) ** 2).mean(-1)),
    (
        losses.CategoricalHinge(), HOT, Z,
        lambda y, p: np.maximum(1 + ((1 - y) * p).max(-1) - (y * p).sum(-1), 0),
    ),
    (losses.CosineSimilarity(), R, Z, lambda y, p: -(unit(y) * unit(p)).sum(-1)),
    (metrics.Accuracy(), N, P, lambda y, p: p.argmax(-1) == y),
    (metrics.Accuracy(), HOT, P, lambda y, p: p.argmax(-1) == y.argmax(-1)),
    (metrics.SparseCategoricalAccuracy(), N, P, lambda y, p: p.argmax(-1) == y),
    (metrics.CategoricalAccuracy(), HOT, P, lambda y, p: p.argmax(-1) == y.argmax(-1)),
    (metrics.BinaryAccuracy(), YES, S, lambda y, p: ((p > 0.5) == (y > 0)).mean(-1)),
    (metrics.BinaryAccuracy(threshold=0.7), YES, S, lambda y, p: ((p > 0.7) == (y > 0)).mean(-1)),
    (
        metrics.SparseTopKCategoricalAccuracy(k=2), N, P,
        lambda y, p: (np.argsort(p)[:, -2:] == y[:, None]).any(-1),
    ),
    (
        metrics.TopKCategoricalAccuracy(k=3), HOT, P,
        lambda y, p: (np.argsort(p)[:, -3:] == y.argmax(-1)[:, None]).any(-1),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("measure", "y", "predicted", "formula"), FORMULAS, ids=[repr(case[0]) for case in FORMULAS]
)
def test_each_is_its_formula(
    measure: Measure, y: Array, predicted: Array, formula: Callable[[Array, Array], Array]
) -> None:
    expected = formula(y, predicted).astype(np.float32)
    np.testing.assert_allclose(value(measure, y, predicted), expected, rtol=1e-4, atol=1e-5)


def test_every_loss_and_metric_is_tried_here() -> None:
    tried = {measure.name for measure, *_ in FORMULAS}
    assert tried == {m.name for m in (*losses.LOSSES.values(), *metrics.METRICS.values())}


@pytest.mark.parametrize("measure", [f[0] for f in FORMULAS], ids=repr)
def test_they_survive_the_journey(measure: Measure) -> None:
    config = json.loads(json.dumps(measure.to_config()))
    get = losses.get if isinstance(measure, losses.Loss) else metrics.get
    assert get(config) == measure
    assert isinstance(config, str) == (measure == type(measure)())
    assert get(type(measure)) == type(measure)()


def test_a_class_of_ones_own_may_have_further_settings() -> None:
    @dataclass(frozen=True)
    class Twice(losses.Huber):
        weight: float = 2.0

        def __call__(self, y: Any, predicted: Any) -> Any:
            return super().__call__(y, predicted) * self.weight

    y, predicted = np.ones((2, 3)), np.zeros((2, 3))
    np.testing.assert_allclose(Twice()(y, predicted), 2 * np.asarray(losses.Huber()(y, predicted)))

    class Nothing(Measure):
        pass

    with pytest.raises(NotImplementedError, match="Nothing has no function of its own, and no __call__"):
        Nothing()(y, predicted)  # type: ignore[arg-type]  # arrays do as tensors


def test_names() -> None:
    for short, name in losses.ALIASES.items():
        assert losses.get(short) is losses.get(name)
    assert metrics.get("acc") == metrics.Accuracy()
    assert metrics.get("mae") == losses.MeanAbsoluteError()
    with pytest.raises(InvalidArgumentError, match="no loss 'nothing'; choose from binary_crossentropy, "):
        losses.get("nothing")
    with pytest.raises(InvalidArgumentError, match="no metric 'f1'; choose from acc, accuracy, "):
        metrics.get("f1")
    with pytest.raises(InvalidArgumentError, match="no loss 5"):
        losses.get(5)


def test_extreme_logits_have_finite_losses() -> None:
    z = np.full((6, 4), 200, np.float32) * np.where(YES > 0, -1, 1).astype(np.float32)
    assert value(losses.BinaryCrossentropy(from_logits=True), YES, z) == pytest.approx(200)
    assert np.isfinite(value(losses.BinaryCrossentropy(), YES, 1 - YES)).all()
    assert value(losses.LogCosh(), np.zeros((6, 4), np.float32), z) == pytest.approx(200, rel=0.01)


def test_a_probability_of_zero_has_a_finite_gradient() -> None:
    """Both kinds of cross-entropy take predictions without softmax, and divide rows by sums, as in Keras."""
    zero = np.array([[0, 1, 0, 0], [0.5, 0.5, 0, 0]], np.float32)
    found = []
    for loss, y in (
        (losses.SparseCategoricalCrossentropy(), np.array([0, 0])),
        (losses.CategoricalCrossentropy(), np.eye(4, dtype=np.float32)[[0, 0]]),
    ):
        assert value(loss, y, zero) == pytest.approx([-np.log(1e-7), np.log(2)])
        with Graph().as_default():
            p, t = placeholder(np.float32, (2, 4)), placeholder(y.dtype, y.shape)
            program = compile_program(
                gradients(loss(t, p).sum(), [p]), feeds=[p, t], shapes=[zero.shape, y.shape]
            )
            found.append(program(zero, y)[0].copy())
    for gradient in found:
        np.testing.assert_array_equal(gradient, [[0, 0, 0, 0], [-1, 1, 1, 1]])


def test_a_softmax_is_taken_apart() -> None:
    """fit and evaluate show the loss of the logits, however far off the prediction is."""
    x, y = np.array([[200.0, 0.0], [0.0, 1.0]], np.float32), np.array([1, 1])
    model = Sequential([Dense(2, "softmax")]).build((2,))
    model.set_weights([np.eye(2, dtype=np.float32), np.zeros(2, np.float32)])
    expected = pytest.approx((200 + np.log1p(np.exp(-1))) / 2, rel=1e-6)
    for loss, labels in (("sparse_categorical_crossentropy", y), ("categorical_crossentropy", np.eye(2)[y])):
        model.compile(SGD(1e-9), loss)
        assert model.evaluate(x, labels)["loss"] == expected
        assert model.fit(x, labels)["loss"][0] == expected


def test_labels_that_are_no_class_are_refused_everywhere() -> None:
    model = Sequential([Dense(2)]).build((2,))
    model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.ones((3, 2), np.float32)
    for use in (model.evaluate, model.fit):
        with pytest.raises(InvalidArgumentError, match="labels go from -1 to 1, the model has 2 outputs"):
            use(x, np.array([0, -1, 1]))
        with pytest.raises(InvalidArgumentError, match="3"):
            use(x, np.array([0, 1]))


def test_a_sigmoid_is_taken_apart() -> None:
    x = np.array([[100.0], [-100.0], [1.0]], np.float32)
    model = Sequential([Dense(1, "sigmoid", kernel_initializer="ones")]).build((1,))
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    scores = model.evaluate(x, np.array([0, 0, 1]))  # labels of one output may be one number each
    assert scores["loss"] == pytest.approx((100 + 0 + np.log1p(np.exp(-1))) / 3, rel=1e-4)
    assert scores["accuracy"] == pytest.approx(2 / 3)


def test_a_model_with_objects_comes_back(tmp_path: Any) -> None:
    model = Sequential([Dense(4)], seed=1).build((3,))
    model.compile(
        "adam",
        losses.SparseCategoricalCrossentropy(from_logits=True),
        ["accuracy", metrics.SparseTopKCategoricalAccuracy(k=2), "sparse_categorical_accuracy"],
    )
    x, y = np.ones((8, 3), np.float32), np.arange(8) % 4
    history = model.fit(Dataset.from_arrays(x, y).batch(4))
    names = ["loss", "accuracy", "sparse_top_k_categorical_accuracy", "sparse_categorical_accuracy"]
    assert list(history) == names
    from nbdist.nn import load

    again = load(model.save(tmp_path / "m"))
    assert again.to_config() == model.to_config()
    assert again.evaluate(x, y) == model.evaluate(x, y)


def test_metrics_that_do_not_fit_the_labels() -> None:
    model = Sequential([Dense(4, "softmax")]).build((3,))
    x = np.ones((8, 3), np.float32)
    model.compile("sgd", metrics=["mse"])
    with pytest.raises(InvalidArgumentError, match=r"metric 'mse' does not fit .* labels are class numbers"):
        model.evaluate(x, np.arange(8) % 4)
    model.compile("sgd", "mse", metrics=["sparse_categorical_accuracy"])
    with pytest.raises(InvalidArgumentError, match="labels are rows like the predictions"):
        model.evaluate(x, np.ones((8, 4), np.float32))


def test_labels_of_other_ranks_name_the_way_out() -> None:
    model = Sequential([Dense(4)]).build((5, 3))
    model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.ones((2, 5, 3), np.float32)
    with pytest.raises(InvalidArgumentError, match=r"labels of shape \(2,\) do not fit .*put Flatten\(\)"):
        model.fit(x, np.array([0, 1]))
    assert len(model.fit(x, np.zeros((2, 5), int))["loss"]) == 1


def test_rows_of_labels_and_of_logits_are_as_many() -> None:
    for labels in (np.ones((1, 2), np.float32), np.ones(2, np.float32)):
        with pytest.raises(InvalidArgumentError, match=r"labels \(.*2.*\) and logits \(2, 2\) differ"):
            softmax_cross_entropy(labels, constant(np.ones((2, 2), np.float32)))


PROBABILITIES = ["sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy"]


def labelled(loss: str, rows: int = 6, outputs: int = 2) -> tuple[Array, Array]:
    """Return examples, and labels that a loss takes."""
    y = np.arange(rows) % outputs
    return np.ones((rows, 3), np.float32), y if loss.startswith("sparse") else np.eye(outputs)[y]


@pytest.mark.parametrize("loss", [*PROBABILITIES, "kl_divergence"])
@pytest.mark.parametrize(
    "last",
    [
        [Dense(2)],
        [Dense(2, "relu")],
        [Dense(4), Activation("tanh"), Dense(2, use_bias=False)],
        [Dense(2, "softmax"), BatchNorm()],
        [Dense(2, split="columns")],
        [Dense(2, split="rows")],
        [Conv2D(2, 1), Flatten()],
    ],
    ids=str,
)
def test_outputs_that_are_no_probabilities_are_refused(loss: str, last: list[Any]) -> None:
    images = isinstance(last[0], Conv2D)
    model = Sequential([*([Reshape((1, 1, 3))] if images else []), *map(copy, last)])
    model.compile("sgd", loss)
    end = "sigmoid" if loss.startswith("binary") else "softmax"
    hint = r"nb\.nn\.losses\.\w+Crossentropy\(from_logits=True\)" if loss in PROBABILITIES else ""
    for use in (model.fit, model.evaluate):
        with pytest.raises(InvalidArgumentError, match=f'{loss} takes prob.*activation="{end}".*{hint}'):
            use(*labelled(loss))


@pytest.mark.parametrize("loss", PROBABILITIES)
def test_an_activation_is_not_applied_twice(loss: str) -> None:
    end = "sigmoid" if loss.startswith("binary") else "softmax"
    model = Sequential([Dense(2, end)])
    model.compile("sgd", {"name": loss, "from_logits": True})
    with pytest.raises(InvalidArgumentError, match=rf"from_logits=True\) takes outputs .* made by {end}"):
        model.fit(*labelled(loss))


class Times(Layer):
    """A layer of one's own, of which nothing is known."""

    settings = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return a multiple."""
        return x * self.factor


@pytest.mark.parametrize("loss", PROBABILITIES)
def test_the_first_batch_tells_what_a_layer_of_ones_own_gives(loss: str) -> None:
    for factor, words in ((1.0, ""), (-1.0, "predictions go from -0.5 to -0.5"), (3.0, "go from 1.5 to 1.5")):
        model = Sequential([Dense(2, "softmax", kernel_initializer="zeros"), Times(factor)])
        model.compile("sgd", loss)
        if not words or (factor > 0 and loss != "binary_crossentropy"):  # rows are divided by their sums
            assert model.evaluate(*labelled(loss))["loss"] == pytest.approx(np.log(2), rel=1e-5)
            continue
        with pytest.raises(InvalidArgumentError, match=words):
            model.fit(*labelled(loss))


def test_rows_that_do_not_add_up_to_1_are_divided_by_their_sums() -> None:
    """As in Keras: sigmoids would else all end at 1, with a loss of 0."""
    p = np.array([[0.9, 0.6], [0.5, 0.5]], np.float32)
    p = np.concatenate([p, np.zeros((2, 2), np.float32)], axis=1)
    expected = pytest.approx([-np.log(0.6), np.log(2)], rel=1e-5)
    assert value(losses.SparseCategoricalCrossentropy(), np.array([0, 1]), p) == expected
    assert value(losses.CategoricalCrossentropy(), np.eye(4, dtype=np.float32)[[0, 1]], p) == expected


def test_a_softmax_of_one_output_is_refused() -> None:
    model = Sequential([Dense(1, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(InvalidArgumentError, match="a softmax of one output is always 1"):
        model.fit(np.ones((4, 3)), np.zeros(4, int))


@pytest.mark.parametrize(
    ("loss", "y", "words"),
    [
        ("binary_crossentropy", [-1, 1, 1], r"labels go from -1 to 1: \(y \+ 1\) / 2"),
        ("binary_crossentropy", [0, 1, 2], "labels go from 0 to 2"),
        ("hinge", [0, 0.3, 1], "labels 0, 0.3, 1: "),
        ("squared_hinge", [-1, 0, 1], "labels -1, 0, 1: "),
        ("categorical_crossentropy", [[1, 1], [0, 1], [0, 1]], "labels of an example add up to 2: "),
        ("categorical_crossentropy", [[-1, 1], [0, 1], [0, 1]], "labels go from -1 to 1: "),
        ("categorical_hinge", [[0, 0], [0, 1], [0, 1]], "labels of an example add up to 0: "),
        ("kl_divergence", [[3, 1], [0, 1], [0, 1]], "labels go from 0 to 3: "),
        ("poisson", [-1, 1, 2], "labels go from -1 to 2: "),
        ("msle", [-1, 1, 2], "labels go from -1 to 2: "),
    ],
)
def test_labels_that_a_loss_does_not_take_are_refused(loss: str, y: Any, words: str) -> None:
    labels = np.array(y)
    last = {"binary_crossentropy": "sigmoid", "poisson": "softplus"}.get(loss, "softmax")
    model = Sequential([Dense(labels.shape[1] if labels.ndim > 1 else 1, last)])
    model.compile("sgd", loss)
    for use in (model.fit, model.evaluate):
        with pytest.raises(InvalidArgumentError, match=words):
            use(np.ones((3, 2)), labels)


@pytest.mark.parametrize(
    "loss", ["hinge", "squared_hinge", losses.BinaryCrossentropy(from_logits=True)], ids=str
)
def test_an_accuracy_of_outputs_around_0_needs_a_threshold(loss: Any) -> None:
    model = Sequential([Dense(1)])
    x, y = np.ones((4, 2)), np.array([0, 1, 1, 0])
    for metric in ("accuracy", "binary_accuracy"):
        model.compile("sgd", loss, [metric])
        with pytest.raises(
            InvalidArgumentError, match=rf"metric '{metric}' .*BinaryAccuracy\(threshold=0.0\)"
        ):
            model.fit(x, y)
    model.compile("sgd", loss, [metrics.BinaryAccuracy(threshold=0.0)])
    assert model.evaluate(x, y)["binary_accuracy"] == 0.5


@pytest.mark.parametrize("name", sorted({m.name for m in losses.LOSSES.values() if not m.sparse}))
def test_labels_and_predictions_of_other_shapes_are_not_broadcast(name: str) -> None:
    """Where one calls a loss oneself; (n,) and (n, 1) would be (n, n)."""
    with Graph().as_default():
        p = placeholder(np.float32, (None, 1))
        for y in (placeholder(np.float32, (None,)), np.ones(3, np.float32)):
            with pytest.raises(InvalidArgumentError, match=rf"{name}: labels of shape .*y\[:, None\]"):
                losses.get(name)(y, p)
        with pytest.raises(InvalidArgumentError, match=rf"{name}: labels of shape \(\?, 3\)"):
            losses.get(name)(placeholder(np.float32, (None, 3)), p)


def test_losses_have_classes_without_docstrings() -> None:
    """As under ``python -OO``, which drops them."""
    one = losses._plain(lambda y, predicted: y, "Plain")
    assert (one.__doc__ or "").startswith(" See")
