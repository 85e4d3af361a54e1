"""Losses by their Keras names. Each gives one number per example: (batch, ..., outputs) -> (batch, ...).

Each function takes ``y``, the true values, and ``predicted``, the model's output: tensors of one shape
(batch, ..., outputs) and a floating point dtype; for class numbers ``y`` has the shape (batch, ...) and an
integer dtype. ``from_logits`` says that ``predicted`` are not yet probabilities. ``label_smoothing``, from 0
to 1, is the share of each label that is spread over all classes alike.

model.compile("adam", loss="sparse_categorical_crossentropy")
model.compile("adam", loss=nn.losses.SparseCategoricalCrossentropy(from_logits=True))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import show
from nbdist.graph.ops.classify import TINY
from nbdist.graph.tensor import Tensor, record, symbolic
from nbdist.nn import functional
from nbdist.nn.measures import Measure, measure

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


def _logits(predicted: Tensor, activation: str) -> Tensor | None:
    """Return what an activation was given, if ``predicted`` came right out of one."""
    found = predicted
    if found.type == "cast" and found.inputs[0].dtype.kind == "f":  # in mixed precision
        found = found.inputs[0]
    if found.type != activation:
        return None
    logits = found.inputs[0]
    return logits if logits.dtype == predicted.dtype else logits.astype(predicted.dtype)


def sparse_categorical_crossentropy(y: Tensor, predicted: Tensor, from_logits: bool = False) -> Tensor:
    """Return cross-entropy with class numbers; works on the logits if ``predicted`` is a softmax."""
    if from_logits:
        return functional.sparse_softmax_cross_entropy(y, predicted)
    logits = _logits(predicted, "softmax")
    if logits is not None:
        return record("sparse_cross_entropy", logits, predicted, y)
    return record("pick_log_likelihood", predicted, y)


def categorical_crossentropy(
    y: Tensor, predicted: Tensor, from_logits: bool = False, label_smoothing: float = 0.0
) -> Tensor:
    """Return cross-entropy with one-hot rows; works on the logits if ``predicted`` is a softmax.

    ``label_smoothing`` moves that share of each row to all classes alike (Szegedy et al. 2016).
    """
    if label_smoothing:
        classes = predicted.shape[-1] or 1
        y = y * (1 - label_smoothing) + label_smoothing / classes
    logits = predicted if from_logits else _logits(predicted, "softmax")
    if logits is not None:
        return functional.softmax_cross_entropy(y, logits)
    log_likelihood: Tensor = -(np.log(np.maximum(predicted, TINY)) * y)
    return log_likelihood.sum(axis=-1)


def binary_crossentropy(
    y: Tensor, predicted: Tensor, from_logits: bool = False, label_smoothing: float = 0.0
) -> Tensor:
    """Return the mean cross-entropy of yes (1) and no (0); on the logits if ``predicted`` is a sigmoid."""
    if label_smoothing:
        y = y * (1 - label_smoothing) + label_smoothing / 2
    logits = predicted if from_logits else _logits(predicted, "sigmoid")
    if logits is not None:  # exp never overflows here
        each = np.maximum(logits, 0) - logits * y + np.log1p(np.exp(-np.abs(logits)))
    else:
        p = np.clip(predicted, TINY, 1 - TINY)
        each = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    return each.mean(axis=-1)  # type: ignore[no-any-return]


def mean_squared_error(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean of squared differences over the last axis."""
    return np.square(predicted - y).mean(axis=-1)  # type: ignore[no-any-return]


def mean_absolute_error(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean of absolute differences over the last axis."""
    return np.abs(predicted - y).mean(axis=-1)  # type: ignore[no-any-return]


def mean_absolute_percentage_error(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean absolute difference over the last axis, in per cent of the true values."""
    return 100 * np.abs((y - predicted) / np.maximum(np.abs(y), TINY)).mean(axis=-1)  # type: ignore[no-any-return]


def mean_squared_logarithmic_error(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of squared differences of log(1 + value)."""
    logs = (np.log(np.maximum(v, TINY) + 1) for v in (y, predicted))
    return mean_squared_error(*logs)


def huber(y: Tensor, predicted: Tensor, delta: float = 1.0) -> Tensor:
    """Return the mean over the last axis of d * d / 2, where d is abs(predicted - y) (Huber 1964).

    Where d is above ``delta``, it is delta * (d - delta / 2), a line that continues the parabola.
    """
    size = np.abs(predicted - y)
    return np.where(size <= delta, 0.5 * size * size, delta * size - 0.5 * delta * delta).mean(axis=-1)  # type: ignore[no-any-return]


def log_cosh(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of log(cosh(difference)): like Huber's, and smooth."""
    x = predicted - y
    return (np.logaddexp(x, -x) - float(LOG_2)).mean(axis=-1)  # type: ignore[no-any-return]


def kl_divergence(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the sum over the last axis of y log(y / predicted) (Kullback and Leibler 1951)."""
    y, p = np.clip(y, TINY, 1), np.clip(predicted, TINY, 1)
    return (y * np.log(y / p)).sum(axis=-1)  # type: ignore[no-any-return]


def poisson(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of predicted - y log(predicted)."""
    return (predicted - y * np.log(predicted + TINY)).mean(axis=-1)  # type: ignore[no-any-return]


def hinge(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of max(1 - y predicted, 0); y is -1 or 1, or 0 for -1."""
    return np.maximum(1 - _signs(y) * predicted, 0).mean(axis=-1)  # type: ignore[no-any-return]


def squared_hinge(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the last axis of the squares of :func:`hinge`'s numbers."""
    return np.square(np.maximum(1 - _signs(y) * predicted, 0)).mean(axis=-1)  # type: ignore[no-any-return]


def _signs(y: Tensor) -> Tensor:
    """Return -1 and 1 for 0 and 1 (and for themselves)."""
    return np.where(y > 0, 1.0, -1.0).astype(y.dtype)  # type: ignore[no-any-return]


def categorical_hinge(y: Tensor, predicted: Tensor) -> Tensor:
    """Return max(largest output of a wrong class - output of the true one + 1, 0); y are one-hot rows."""
    right, wrong = (y * predicted).sum(axis=-1), ((1 - y) * predicted).max(axis=-1)
    return np.maximum(wrong - right + 1, 0)  # type: ignore[no-any-return]


def cosine_similarity(y: Tensor, predicted: Tensor) -> Tensor:
    """Return minus the cosine between true and predicted values, over the last axis: -1 where they agree."""
    lengths = (np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), TINY) for v in (y, predicted))
    a, b = lengths
    return -((y / a) * (predicted / b)).sum(axis=-1)  # type: ignore[no-any-return]


LOG_2 = 0.6931471805599453


@dataclass(frozen=True)
class SparseCategoricalCrossentropy(Loss):
    """Cross-entropy with class numbers: predictions (..., classes), labels (...) of integers.

    ``from_logits`` says that predictions are not yet probabilities.

    >>> SparseCategoricalCrossentropy(from_logits=True)
    SparseCategoricalCrossentropy(from_logits=True)
    """

    from_logits: bool = False
    name = "sparse_categorical_crossentropy"
    sparse = True

    def __call__(self, y: Tensor, predicted: Tensor) -> Tensor:
        """Return one number per example."""
        return sparse_categorical_crossentropy(y, predicted, self.from_logits)


@dataclass(frozen=True)
class CategoricalCrossentropy(Loss):
    """Cross-entropy with one-hot rows; see :func:`categorical_crossentropy`.

    ``from_logits`` says that predictions are not yet probabilities; ``label_smoothing`` is from 0 to 1.
    """

    from_logits: bool = False
    label_smoothing: float = 0.0
    name = "categorical_crossentropy"

    def __call__(self, y: Tensor, predicted: Tensor) -> Tensor:
        """Return one number per example."""
        return categorical_crossentropy(y, predicted, self.from_logits, self.label_smoothing)


@dataclass(frozen=True)
class BinaryCrossentropy(Loss):
    """Cross-entropy of yes and no; see :func:`binary_crossentropy`.

    ``from_logits`` says that predictions are not yet probabilities; ``label_smoothing`` is from 0 to 1.
    """

    from_logits: bool = False
    label_smoothing: float = 0.0
    name = "binary_crossentropy"

    def __call__(self, y: Tensor, predicted: Tensor) -> Tensor:
        """Return one number per example."""
        return binary_crossentropy(y, predicted, self.from_logits, self.label_smoothing)


@dataclass(frozen=True)
class Huber(Loss):
    """Squares of differences up to ``delta`` (above 0), sizes of larger ones; see :func:`huber`."""

    delta: float = 1.0
    name = "huber"

    def __call__(self, y: Tensor, predicted: Tensor) -> Tensor:
        """Return one number per example."""
        return huber(y, predicted, self.delta)


def _plain(function: Any, class_name: str) -> type[Loss]:
    """Return the class of a loss without settings."""
    summary = (function.__doc__ or "").partition("\n")[0]  # none under python -OO
    members = {
        "__doc__": f"{summary} See :func:`{function.__name__}`.",
        "__module__": __name__,
        "name": function.__name__,
        "__call__": lambda self, y, predicted: function(y, predicted),
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
    if loss.sparse and labels.ndim != predicted.ndim - 1:
        hint = "; put Flatten() before the last layer for one label per example" if predicted.ndim > 2 else ""
        raise InvalidArgumentError(
            f"{loss.name}: labels of shape {labels.shape} do not fit predictions {show(predicted.shape)}: "
            f"one class number belongs to each row of predictions{hint}"
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
    if not loss.sparse and labels.ndim != predicted.ndim:
        raise InvalidArgumentError(
            f"{loss.name}: labels of shape {labels.shape} do not fit predictions {show(predicted.shape)}"
        )
