"""Metrics of an evaluation: sums over batches, and areas under curves, which need all examples.

    metrics = MetricSums()
    for batch in batches:
        metrics.add(forward(*batch, metrics_of), size)
    metrics.share(world)                     # where each worker has evaluated its share
    metrics.results()                        # {"loss": 0.3, "accuracy": 0.9, "auc": 0.95}

A mean or a quotient is two sums. An area under a curve depends on the order of all scores, so each example's
label, score and weight is kept, 24 bytes an example; ties and weights are exact, unlike with thresholds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.estimator.spec import EstimatorSpec
from nbdist.graph.backend import Array
from nbdist.graph.tensor import Tensor
from nbdist.runtime.groups import World

CURVES = ("ROC", "PR")
MEAN, QUOTIENT = "mean", "quotient"


@dataclass(frozen=True)
class AUC:
    """The area under a curve of true against false positives, as a metric of ``eval_metric_ops``.

    - ``labels``: a tensor of 0 and 1, or of truth values, one for each example
    - ``predictions``: a tensor of scores, one for each example; a larger one means 1
    - ``weights``: a tensor of weights, from 0, one for each example; None for equal ones
    - ``curve``: "ROC" for the area under the receiver operating characteristic, "PR" for the average
      precision. They are those of scikit-learn (``roc_auc_score``, ``average_precision_score``)

    NaN where all labels are equal ("ROC"), none is 1 ("PR"), or a score is NaN. Raises InvalidArgumentError
    for what is not a tensor, another curve, and in an evaluation for other labels and weights.

    >>> import nbdist as nb
    >>> labels, scores = nb.constant([0, 1]), nb.constant([0.2, 0.9])
    >>> metrics = {"auc": AUC(labels, scores)}
    >>> nb.estimator.EstimatorSpec("eval", loss=scores.mean(), eval_metric_ops=metrics).mode
    'eval'
    """

    labels: Any
    predictions: Any
    weights: Any = None
    curve: str = "ROC"

    def __post_init__(self) -> None:
        if self.curve not in CURVES:
            raise InvalidArgumentError(f"AUC: no curve {self.curve!r}; {choices(self.curve, CURVES)}")
        for what in ("labels", "predictions", "weights"):
            value = getattr(self, what)
            if not isinstance(value, Tensor) and (what != "weights" or value is not None):
                raise InvalidArgumentError(
                    f"AUC: {what} is {value!r:.80}; expected a tensor with a number for each example"
                )


def area_under(curve: str, labels: Array, scores: Array, weights: Array) -> float:
    """Return the area under a curve; all arrays have a value for each example.

    >>> area_under("ROC", *np.array([[0, 1, 1], [0.1, 0.1, 0.8], [1, 1, 1]]))
    0.75
    """
    order = np.argsort(-scores, kind="stable")
    positive, scores, weights = labels[order], scores[order], weights[order]
    ends = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1)  # equal scores are one step
    if np.isnan(scores).any():
        return float("nan")
    right, wrong = (np.cumsum(weights * part)[ends] for part in (positive, 1 - positive))
    if not right[-1] or (curve == "ROC" and not wrong[-1]):
        return float("nan")
    recall = right / right[-1]
    if curve == "ROC":
        return float(np.trapezoid(np.append(0, recall), np.append(0, wrong / wrong[-1])))
    precision = np.divide(right, right + wrong, out=np.zeros(len(right)), where=right + wrong > 0)
    return float(np.sum(np.diff(recall, prepend=0) * precision))


def metrics_of(spec: EstimatorSpec) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Return what an evaluation computes of a batch, tensors by (name, kind of metric)."""
    found: dict[tuple[str, str], tuple[Any, ...]] = {("loss", MEAN): (spec.loss,)}
    for name, value in spec.eval_metric_ops.items():
        if isinstance(value, AUC):
            found[name, value.curve] = (value.labels, value.predictions, value.weights)
        elif not isinstance(value, tuple):
            found[name, MEAN] = (value,)
        elif len(value) == 2:
            found[name, QUOTIENT] = value
        else:
            raise InvalidArgumentError(
                f"eval_metric_ops: {name!r} is a tensor, a pair (total, count) or an AUC, not a tuple of "
                f"{len(value)}"
            )
    return found


class MetricSums:
    """What an evaluation has added up so far."""

    def __init__(self) -> None:
        self._sums: dict[str, Array] = {}
        self._kept: defaultdict[tuple[str, str], list[Array]] = defaultdict(list)

    def add(self, values: dict[tuple[str, str], tuple[Any, ...]], size: int, counts: bool = True) -> None:
        """Add a batch of ``size`` examples; one that does not count only says which metrics there are."""
        for (name, kind), arrays in values.items():
            if kind in CURVES:
                rows = self._kept[name, kind]
                if counts:
                    rows.append(_columns(name, *arrays))
                continue
            pair = _pair(arrays[0], arrays[1] if kind == QUOTIENT else None, size)
            self._sums[name] = self._sums.get(name, np.zeros(2)) + (pair if counts else 0)

    def share(self, world: World) -> None:
        """Add up what all workers have; all of them call it."""
        self._sums = {name: world.common.all_reduce(pair, "sum") for name, pair in sorted(self._sums.items())}
        for key, parts in sorted(self._kept.items()):
            own = np.concatenate(parts, axis=1) if parts else np.zeros((3, 0))
            counts = np.zeros(world.size)
            counts[world.index] = own.shape[1]
            counts = world.common.all_reduce(counts, "sum").astype(np.int64)
            everything, begin = np.zeros((3, counts.sum())), int(counts[: world.index].sum())
            everything[:, begin : begin + own.shape[1]] = own
            self._kept[key] = [np.array(world.common.all_reduce(everything, "sum"))]

    def results(self) -> dict[str, float]:
        """Return the metrics by name; none without a batch."""
        found = {name: float(total / n) if n else float("nan") for name, (total, n) in self._sums.items()}
        for (name, curve), parts in self._kept.items():
            found[name] = area_under(curve, *np.concatenate(parts, axis=1))
        return found


def _columns(name: str, labels: Array, scores: Array, weights: Array | None) -> Array:
    """Return labels, scores and weights of a batch as three rows."""
    given = np.ones(scores.size) if weights is None else weights.reshape(-1)
    if not labels.size == scores.size == given.size:
        raise InvalidArgumentError(
            f"AUC {name!r}: labels have the shape {labels.shape}, predictions {scores.shape}"
            f"{'' if weights is None else f', weights {weights.shape}'}; expected one of each for an example"
        )
    rows = np.stack([labels.reshape(-1), scores.reshape(-1), given]).astype(np.float64)
    wrong = rows[0][(rows[0] != 0) & (rows[0] != 1)]
    if len(wrong):
        raise InvalidArgumentError(f"AUC {name!r}: labels are 0 and 1, and one is {wrong[0]:g}")
    wrong = rows[2][~(rows[2] >= 0)]
    if len(wrong):
        raise InvalidArgumentError(f"AUC {name!r}: weights are numbers from 0, and one is {wrong[0]:g}")
    return rows


def _pair(total: Array, count: Array | None, size: int) -> Array:
    """Return the sum and the divisor of a metric's values of one batch."""
    if count is not None:
        return np.array([np.sum(total), np.sum(count)], np.float64)
    if total.ndim and len(total) == size and total.shape != (1,):
        return np.array([np.sum(total.reshape(size, -1).mean(axis=1)), size], np.float64)
    return np.array([float(np.asarray(total).reshape(())) * size, size], np.float64)
