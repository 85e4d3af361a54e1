"""What a classifier gets right and wrong: its confusion matrix, and the examples that it gets most wrong.

report = ClassReport(most=9)
report.add(outputs, labels)       # a batch: scores (rows, classes), true classes (rows,)
report.confusion[3, 5]            # how many examples of class 3 were taken for class 5
report.wrong[0]                   # the wrong example with the highest score
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError

Array: TypeAlias = np.ndarray[Any, Any]
MOST_CLASSES = 1000


@dataclass(frozen=True)
class WrongExample:
    """An example whose class was not found.

    - ``index``: its row, counted from the first one of the data
    - ``true``, ``predicted``: classes, from 0 on
    - ``score``: what the model gave the predicted class, a probability if its outputs are
    """

    index: int
    true: int
    predicted: int
    score: float


@dataclass(frozen=True)
class ClassScores:
    """How one class was found.

    - ``precision``: the share of examples of the class among those that were taken for it, 0 to 1
    - ``recall``: the share of its examples that were found, 0 to 1
    - ``f1``: the harmonic mean of both
    - ``support``: the number of its examples
    - ``taken_for``: the class that its examples were most often taken for wrongly; -1 if all were found

    Precision and recall are NaN where there is nothing to divide by.
    """

    precision: float
    recall: float
    f1: float
    support: int
    taken_for: int


class ClassReport:
    """Counts what a classifier predicts, batch by batch.

    - ``most``: the number of wrong examples that are kept, 0 or more
    - ``from_logits``: whether the outputs are logits, not probabilities
    """

    def __init__(self, most: int = 9, from_logits: bool = False) -> None:
        self.most, self.from_logits = most, from_logits
        self.confusion: Array = np.zeros((0, 0), np.int64)
        """Examples by true class (rows) and predicted class (columns)."""
        self.wrong: list[WrongExample] = []
        """Wrong examples, those with the highest score first."""
        self.unusable = 0
        """Examples with an output that is not finite: they are counted nowhere else."""
        self.seen = 0

    def add(self, outputs: Array, labels: Array) -> None:
        """Count a batch.

        - ``outputs``: (rows, classes); (rows, 1) is that of class 1 of two
        - ``labels``: (rows,) classes from 0 on, or one-hot (rows, classes)

        Raises InvalidArgumentError for outputs and labels that are not those of a classifier.
        """
        scores = _scores(outputs, self.from_logits)
        true = _classes(labels, len(outputs))
        classes, predicted = scores.shape[1], scores.argmax(axis=1)
        if len(true) and not 0 <= int(true.min()) <= int(true.max()) < classes:
            at = int(true.argmin() if true.min() < 0 else true.argmax())
            raise InvalidArgumentError(
                f"label {int(true[at])} of row {self.seen + at}: the model has {classes} outputs, so classes "
                f"are 0 to {classes - 1}"
            )
        if not len(self.confusion):
            self.confusion = np.zeros((classes, classes), np.int64)
        usable = np.isfinite(scores).all(axis=1)
        self.unusable += int((~usable).sum())
        np.add.at(self.confusion, (true[usable], predicted[usable]), 1)
        high = scores.max(axis=1)
        rows = np.flatnonzero(usable & (predicted != true))
        rows = rows[np.argsort(-high[rows], kind="stable")[: self.most]]
        found = [
            WrongExample(self.seen + int(row), int(true[row]), int(predicted[row]), float(high[row]))
            for row in rows
        ]
        self.wrong = sorted([*self.wrong, *found], key=lambda one: (-one.score, one.index))[: self.most]
        self.seen += len(outputs)

    @property
    def accuracy(self) -> float:
        """The share of examples whose class was found, of those with usable outputs; NaN without any."""
        return _share(int(np.trace(self.confusion)), int(self.confusion.sum()))

    @property
    def classes(self) -> list[ClassScores]:
        """How each class was found, from class 0 on."""
        found = []
        for at, row in enumerate(self.confusion):
            hit, support = int(row[at]), int(row.sum())
            precision, recall = _share(hit, int(self.confusion[:, at].sum())), _share(hit, support)
            others = row.copy()
            others[at] = 0
            worst = int(others.argmax()) if others.any() else -1
            f1 = _share(2 * hit, support + int(self.confusion[:, at].sum()))
            found.append(ClassScores(precision, recall, f1, support, worst))
        return found

    def confused(self, most: int = 5) -> list[tuple[int, int, int]]:
        """Return the pairs of classes that are confused most: (true, predicted, examples)."""
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = [divmod(int(one), len(wrong)) for one in order]
        return [(true, taken, int(wrong[true, taken])) for true, taken in pairs if wrong[true, taken]]


def _scores(outputs: Array, from_logits: bool) -> Array:
    """Return what a model gives each of two or more classes, (rows, classes): probabilities if it can."""
    scores = np.asarray(outputs)
    if scores.ndim == 1:
        scores = scores[:, None]
    if scores.ndim != 2 or scores.shape[1] < 1 or scores.dtype.kind not in "fiub":
        raise InvalidArgumentError(
            f"outputs of shape {scores.shape} and dtype {scores.dtype} are not those of a classifier: "
            "expected a number for each class, (rows, classes), or one number, (rows, 1)"
        )
    if scores.shape[1] > MOST_CLASSES:
        raise InvalidArgumentError(f"{scores.shape[1]:,} classes; at most {MOST_CLASSES:,} can be shown")
    scores = np.asarray(scores, np.float64)
    if scores.shape[1] == 1:
        if not from_logits and (wrong := scores[(scores < 0) | (scores > 1)]).size:
            raise InvalidArgumentError(
                f"an output of {wrong[0]:.4g} is no probability: if the model ends without an activation, "
                "say from_logits=True; a model of numbers (regression) has no classes"
            )
        scores = np.hstack([np.zeros_like(scores), scores] if from_logits else [1 - scores, scores])
    if not from_logits:
        return scores
    with np.errstate(invalid="ignore", over="ignore"):
        powers: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
        powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _classes(labels: Array, rows: int) -> Array:
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "fiub":
        if len(labels) and not np.array_equal(labels.sum(axis=1), np.ones(len(labels))):
            raise InvalidArgumentError(f"labels of shape {labels.shape} are not one-hot: rows must sum to 1")
        labels = labels.argmax(axis=1)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    whole = labels.dtype.kind in "iub" or (
        labels.dtype.kind == "f" and np.array_equal(labels, labels.round())
    )
    if labels.shape != (rows,) or not whole:
        raise InvalidArgumentError(
            f"labels of shape {labels.shape} and dtype {labels.dtype} are not classes of {rows} examples: "
            "expected whole numbers from 0 on, (rows,), or one-hot, (rows, classes)"
        )
    return labels.astype(np.int64)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
