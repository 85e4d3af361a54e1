"""Losses by their Keras names. Each gives one number per example: (batch, ..., outputs) -> (batch, ...).

Each function takes ``y``, the true values, and ``predicted``, the model's output: tensors of one shape
(batch, ..., outputs) and a floating point dtype; for class numbers ``y`` has the shape (batch, ...) and an
integer dtype. ``from_logits`` says that ``predicted`` are not yet probabilities. ``label_smoothing``, from 0
to 1, is the share of each label that is spread over all classes alike.

Cross-entropies of probabilities take those of a softmax or sigmoid; rows of others are divided by their sum,
as in Keras. What is certainly not a probability, such as the output of a layer without an activation, is
refused, and so are labels and predictions of different shapes, which NumPy would broadcast.

model.compile("adam", loss="sparse_categorical_crossentropy")
model.compile("adam", loss=nn.losses.SparseCategoricalCrossentropy(from_logits=True))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import show
from nbdist.graph.ops.classify import TINY
from nbdist.graph.tensor import Tensor, Variable, record, symbolic
from nbdist.nn import functional
from nbdist.nn.measures import Measure, measure
from nbdist.train.labels import LABELS, LOGITS, ROUNDING, SIGNS

__all__ = [
    "ALIASES", "LOSSES", "BinaryCrossentropy", "CategoricalCrossentropy", "CategoricalHinge",
    "CosineSimilarity", "Hinge", "Huber", "KLDivergence", "LogCosh", "Loss", "MeanAbsoluteError",
    "MeanAbsolutePercentageError", "MeanSquaredError", "MeanSquaredLogarithmicError", "Poisson",
    "SparseCategoricalCrossentropy", "SquaredHinge", "binary_crossentropy", "categorical_crossentropy",
    "categorical_hinge", "cosine_similarity", "get", "hinge", "huber", "kl_divergence", "log_cosh",
    "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_error",
    "mean_squared_logarithmic_error", "poisson", "sparse_categorical_crossentropy", "squared_hinge",
]  # fmt: skip

np = symbolic  # so that formulas read as they are written


@dataclass(frozen=True)
class Loss(Measure):
    """A function of true and predicted values that training minimizes."""


def _rows_like_predictions(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Have a loss refuse labels of another shape than the predictions, which NumPy would broadcast."""

    @wraps(loss)
    def checked(y: Any, predicted: Tensor, *settings: Any, **named: Any) -> Tensor:
        given = tuple(numpy.shape(y)) if not isinstance(y, Tensor) else tuple(y.shape)
        pairs = zip(given[1:], predicted.shape[1:])
        if given and (
            len(given) != predicted.ndim or any(a != b for a, b in pairs if a is not None and b is not None)
        ):
            is_column = (*given[1:], 1) == predicted.shape[1:]
            hint = " (y[:, None] makes a column of numbers)" if is_column else ""
            raise InvalidArgumentError(
                f"{loss.__name__}: labels of shape {show(given)} do not fit predictions "
                f"{show(predicted.shape)}, and each would be compared with others than its own: give both "
                f"one shape{hint}"
            )
        return loss(y, predicted, *settings, **named)

    return checked


def _source(predicted: Tensor) -> Tensor:
    """Return what a tensor was, before it was cast (in mixed precision) or given another shape."""
    while predicted.type in ("cast", "reshape"):
        predicted = predicted.inputs[0]
    return predicted


def _is_linear(tensor: Tensor) -> bool:
    """Whether a tensor is certainly a product with weights, or a sum with a bias."""
    found = _source(tensor)
    if found.type == "concatenate":
        return all(map(_is_linear, found.inputs))
    if found.type == "add":
        return all(map(_is_linear, found.inputs)) or any(
            isinstance(_source(one), Variable) for one in found.inputs
        )
    if found.type not in ("matmul", "conv2d"):
        return False
    weights, is_mixture = _source(found.inputs[1]), _source(found.inputs[0]).type == "softmax"
    return isinstance(weights, Variable) and weights.trainable and not is_mixture


def activation_of(predicted: Tensor) -> str | None:
    """Return "softmax", "sigmoid", "relu", "tanh" or "linear", by what has made predictions; else None."""
    found = _source(predicted)
    if found.type in ("softmax", "sigmoid", "relu", "tanh"):
        return found.type
    return "linear" if _is_linear(found) else None


def _logits(name: str, predicted: Tensor, activation: str, from_logits: bool) -> Tensor | None:
    """Return the logits of predictions: themselves, or what an ``activation`` right before them was given.

    None if they are probabilities of other origin. Raises InvalidArgumentError if they are certainly not
    what ``from_logits`` says.
    """
    made = activation_of(predicted)
    if from_logits:
        if made == activation:
            raise InvalidArgumentError(
                f"{name}(from_logits=True) takes outputs without an activation, and these are made by "
                f"{activation}, which would be applied twice: drop from_logits, or the activation"
            )
        return predicted
    if made in ("linear", "relu", "tanh"):
        end = "without an activation" if made == "linear" else f"with the activation {made}"
        raise InvalidArgumentError(
            f"{name} takes probabilities, and the predictions are those of a layer {end}, which may be any "
            f'number: end the model with activation="{activation}"'
            + (f", or train with {_class_of(name)}(from_logits=True)" if name in LOGITS else "")
        )
    if activation == "softmax" == made and predicted.shape[-1] == 1:
        raise InvalidArgumentError(
            f"{name}: a softmax of one output is always 1: end the model with one output for each class, or "
            'with activation="sigmoid" and train with binary_crossentropy'
        )
    found = predicted
    if found.type == "cast" and found.inputs[0].dtype.kind == "f":  # in mixed precision
        found = found.inputs[0]
    if found.type != activation:
        return None
    logits = found.inputs[0]
    return logits if logits.dtype == predicted.dtype else logits.astype(predicted.dtype)


def _class_of(name: str) -> str:
    return f"nb.nn.losses.{name.title().replace('_', '')}"


def _normalised(p: Tensor) -> Tensor:
    """Return rows divided by their sums, which is 1 only for those of a softmax."""
    return p / p.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]


def sparse_categorical_crossentropy(y: Tensor, predicted: Tensor, from_logits: bool = False) -> Tensor:
    """Return cross-entropy with class numbers; works on the logits if ``predicted`` is a softmax."""
    logits = _logits("sparse_categorical_crossentropy", predicted, "softmax", from_logits)
    if from_logits:
        return functional.sparse_softmax_cross_entropy(y, predicted)
    if logits is not None:
        return record("sparse_cross_entropy", logits, predicted, y)
    return record("pick_log_likelihood", _normalised(predicted), y)


@_rows_like_predictions
def categorical_crossentropy(
    y: Tensor, predicted: Tensor, from_logits: bool = False, label_smoothing: float = 0.0
) -> Tensor:
    """Return cross-entropy with one-hot rows; works on the logits if ``predicted`` is a softmax.

    ``label_smoothing`` moves that share of each row to all classes alike (Szegedy et al. 2016).
    """
    if label_smoothing:
        classes = predicted.shape[-1] or 1
        y = y * (1 - label_smoothing) + label_smoothing / classes
    logits = _logits("categorical_crossentropy", predicted, "softmax", from_logits)
    if logits is not None:
        return functional.softmax_cross_entropy(y, logits)
    log_likelihood: Tensor = -(np.log(np.maximum(_normalised(predicted), TINY)) * y)
    return log_likelihood.sum(axis=-1)


@_rows_like_predictions
def binary_crossentropy(
    y: Tensor, predicted: Tensor, from_logits: bool = False, label_smoothing: float = 0.0
) -> Tensor:
    """Return the mean cross-entropy of yes (1) and no (0); on the logits if ``predicted`` is a sigmoid."""
    if label_smoothing:
        y = y * (1 - label_smoothing) + label_smoothing / 2
    logits = _logits("binary_crossentropy", predicted, "sigmoid", from_logits)
    if logits is not None:  # exp never overflows here
        each = np.maximum(logits, 0) - logits * y + np.log1p(np.exp(-np.abs(logits)))
    else:
        p = np.clip(predicted, TINY, 1 - TINY)
        each = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    return each.mean(axis=-1)  # type: ignore[no-any-return]


@_rows_like_predictions
def mean_squared_error(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean of squared differences over the last axis."""
    return np.square(predicted - y).mean(axis=-1)  # type: ignore[no-any-return]


@_rows_like_predictions
def mean_absolute_error(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean of absolute differences over the last axis."""
    return np.abs(predicted - y).mean(axis=-1)  # type: ignore[no-any-return]


@_rows_like_predictions
def mean_absolute_percentage_error(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean absolute difference over the last axis, in per cent of the true values."""
    return 100 * np.abs((y - predicted) / np.maximum(np.abs(y), TINY)).mean(axis=-1)  # type: ignore[no-any-return]


@_rows_like_predictions
def mean_squared_logarithmic_error(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of squared differences of log(1 + value)."""
    logs = (np.log(np.maximum(v, TINY) + 1) for v in (y, predicted))
    return mean_squared_error(*logs)


@_rows_like_predictions
def huber(y: Tensor, predicted: Tensor, delta: float = 1.0) -> Tensor:
    """Return the mean over the last axis of d * d / 2, where d is abs(predicted - y) (Huber 1964).

    Where d is above ``delta``, it is delta * (d - delta / 2), a line that continues the parabola.
    """
    size = np.abs(predicted - y)
    return np.where(size <= delta, 0.5 * size * size, delta * size - 0.5 * delta * delta).mean(axis=-1)  # type: ignore[no-any-return]


@_rows_like_predictions
def log_cosh(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of log(cosh(difference)): like Huber's, and smooth."""
    x = predicted - y
    return (np.logaddexp(x, -x) - math.log(2)).mean(axis=-1)  # type: ignore[no-any-return]


@_rows_like_predictions
def kl_divergence(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the sum over the last axis of y log(y / predicted) (Kullback and Leibler 1951)."""
    _logits("kl_divergence", predicted, "softmax", from_logits=False)
    y, p = np.clip(y, TINY, 1), np.clip(predicted, TINY, 1)
    return (y * np.log(y / p)).sum(axis=-1)  # type: ignore[no-any-return]


@_rows_like_predictions
def poisson(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of predicted - y log(predicted)."""
    return (predicted - y * np.log(predicted + TINY)).mean(axis=-1)  # type: ignore[no-any-return]


@_rows_like_predictions
def hinge(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of max(1 - y predicted, 0); y is -1 or 1, or 0 for -1."""
    return np.maximum(1 - _signs(y) * predicted, 0).mean(axis=-1)  # type: ignore[no-any-return]


@_rows_like_predictions
def squared_hinge(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of the squares of :func:`hinge`'s numbers."""
    return np.square(np.maximum(1 - _signs(y) * predicted, 0)).mean(axis=-1)  # type: ignore[no-any-return]


def _signs(y: Tensor) -> Tensor:
    """Return -1 and 1 for 0 and 1 (and for themselves)."""
    return np.where(y > 0, 1.0, -1.0).astype(y.dtype)  # type: ignore[no-any-return]


@_rows_like_predictions
def categorical_hinge(y: Tensor, predicted: Tensor) -> Tensor:
    """Return max(largest output of a wrong class - output of the true one + 1, 0); y are one-hot rows."""
    right, wrong = (y * predicted).sum(axis=-1), ((1 - y) * predicted).max(axis=-1)
    return np.maximum(wrong - right + 1, 0)  # type: ignore[no-any-return]


@_rows_like_predictions
def cosine_similarity(y: Tensor, predicted: Tensor) -> Tensor:
    """Return minus the cosine between true and predicted values, over the last axis: -1 where they agree."""
    a, b = (np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), TINY) for v in (y, predicted))
    return -((y / a) * (predicted / b)).sum(axis=-1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SparseCategoricalCrossentropy(Loss):
    """Cross-entropy with class numbers: predictions (..., classes), labels (...) of integers.

    ``from_logits`` says that predictions are not yet probabilities.

    >>> SparseCategoricalCrossentropy(from_logits=True)
    SparseCategoricalCrossentropy(from_logits=True)
    """

    from_logits: bool = False
    function = staticmethod(sparse_categorical_crossentropy)
    sparse = True


@dataclass(frozen=True)
class CategoricalCrossentropy(Loss):
    """Cross-entropy with one-hot rows; see :func:`categorical_crossentropy`.

    ``from_logits`` says that predictions are not yet probabilities; ``label_smoothing`` is from 0 to 1.
    """

    from_logits: bool = False
    label_smoothing: float = 0.0
    function = staticmethod(categorical_crossentropy)


@dataclass(frozen=True)
class BinaryCrossentropy(Loss):
    """Cross-entropy of yes and no; see :func:`binary_crossentropy`.

    ``from_logits`` says that predictions are not yet probabilities; ``label_smoothing`` is from 0 to 1.
    """

    from_logits: bool = False
    label_smoothing: float = 0.0
    function = staticmethod(binary_crossentropy)


@dataclass(frozen=True)
class Huber(Loss):
    """Squares of differences up to ``delta`` (above 0), sizes of larger ones; see :func:`huber`."""

    delta: float = 1.0
    function = staticmethod(huber)


def _plain(function: Any, class_name: str) -> type[Loss]:
    """Return the class of a loss without settings."""
    summary = (function.__doc__ or "").partition("\n")[0]  # none under python -OO
    members = {
        "__doc__": f"{summary} See :func:`{function.__name__}`.",
        "__module__": __name__,
        "function": staticmethod(function),
    }
    return dataclass(frozen=True)(type(class_name, (Loss,), members))


MeanSquaredError = _plain(mean_squared_error, "MeanSquaredError")
MeanAbsoluteError = _plain(mean_absolute_error, "MeanAbsoluteError")
MeanAbsolutePercentageError = _plain(mean_absolute_percentage_error, "MeanAbsolutePercentageError")
MeanSquaredLogarithmicError = _plain(mean_squared_logarithmic_error, "MeanSquaredLogarithmicError")
LogCosh = _plain(log_cosh, "LogCosh")
KLDivergence = _plain(kl_divergence, "KLDivergence")
Poisson = _plain(poisson, "Poisson")
Hinge = _plain(hinge, "Hinge")
SquaredHinge = _plain(squared_hinge, "SquaredHinge")
CategoricalHinge = _plain(categorical_hinge, "CategoricalHinge")
CosineSimilarity = _plain(cosine_similarity, "CosineSimilarity")

LOSSES: dict[str, Measure] = {
    kind.name: kind()
    for kind in (
        SparseCategoricalCrossentropy, CategoricalCrossentropy, BinaryCrossentropy, MeanSquaredError,
        MeanAbsoluteError, MeanAbsolutePercentageError, MeanSquaredLogarithmicError, Huber, LogCosh,
        KLDivergence, Poisson, Hinge, SquaredHinge, CategoricalHinge, CosineSimilarity,
    )
}  # fmt: skip
ALIASES = {
    "mse": "mean_squared_error", "mae": "mean_absolute_error", "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error", "kld": "kl_divergence", "logcosh": "log_cosh",
}  # fmt: skip
LOSSES |= {short: LOSSES[name] for short, name in ALIASES.items()}


def get(loss: Any) -> Measure:
    """Return the ``loss`` of a name (such as "mse") or config, or the one given.

    Raises InvalidArgumentError for an unknown one.

    >>> get("mse")
    MeanSquaredError()
    """
    return measure("loss", loss, LOSSES)


def check_labels(loss: Measure, labels: Any, predicted: Tensor) -> None:
    """Raise InvalidArgumentError if ``labels`` do not fit the ``predicted`` values of a ``loss``."""
    classes = predicted.shape[-1]
    if loss.sparse and labels.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{loss.name} takes class numbers (integers), got labels of dtype {labels.dtype}; "
            "use .astype(int), or categorical_crossentropy for one-hot rows"
        )
    if labels.ndim != predicted.ndim - loss.sparse:
        why = ": one class number belongs to each row of predictions" if loss.sparse else ""
        if loss.sparse and predicted.ndim > 2:
            why += "; put Flatten() before the last layer for one label per example"
        raise InvalidArgumentError(
            f"{loss.name}: labels of shape {labels.shape} do not fit predictions {show(predicted.shape)}{why}"
        )
    if (
        loss.sparse
        and labels.size
        and classes is not None
        and not 0 <= int(labels.min()) <= int(labels.max()) < classes
    ):
        raise InvalidArgumentError(
            f"{loss.name}: labels go from {labels.min()} to {labels.max()}, the model has {classes} outputs "
            f"(classes 0 to {classes - 1})"
        )
    if loss.name in LABELS and labels.size:
        allowed = LABELS[loss.name]
        if (wrong := allowed.wrong(labels)) is not None:
            raise InvalidArgumentError(f"{loss.name} takes {allowed.what}, and {wrong}: {allowed.instead}")


def check_probabilities(loss: Measure, predicted: Any) -> None:
    """Raise InvalidArgumentError if an array of predictions has no probabilities, and a loss takes them."""
    if getattr(loss, "from_logits", False) or loss.name not in (*LOGITS, "kl_divergence"):
        return
    most = math.inf if loss.name.endswith("categorical_crossentropy") else 1 + ROUNDING  # divided by the sum
    if predicted.size and not -ROUNDING <= predicted.min() <= predicted.max() <= most:
        activation = "sigmoid" if loss.name == "binary_crossentropy" else "softmax"
        raise InvalidArgumentError(
            f"{loss.name} takes probabilities, and the model's predictions go from {predicted.min():.3g} to "
            f'{predicted.max():.3g}: end the model with activation="{activation}"'
            + (f", or train with {_class_of(loss.name)}(from_logits=True)" if loss.name in LOGITS else "")
        )


def check_threshold(loss: Measure, name: str, metric: Measure, predicted: Tensor) -> None:
    """Raise InvalidArgumentError for an accuracy at 0.5 of outputs that a loss has change sign at 0."""
    is_logit = isinstance(loss, BinaryCrossentropy) and loss.from_logits
    binary = metric.name == "binary_accuracy" or (metric.name == "accuracy" and predicted.shape[-1] == 1)
    if (is_logit or LABELS.get(loss.name) is SIGNS) and binary and getattr(metric, "threshold", 0.5) == 0.5:
        raise InvalidArgumentError(
            f"metric {name!r} counts an output above 0.5 as yes, and outputs that train with {loss!r} are "
            "yes above 0: write nb.nn.metrics.BinaryAccuracy(threshold=0.0)"
        )
