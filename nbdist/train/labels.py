"""The labels that losses take, by the losses' names in Keras and `nbdist.nn`: `LABELS`. Pure.

Their formulas give a number for any labels, so that -1 and 1 in place of 0 and 1 would train to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nbdist.graph.backend import Array

LOGITS = ("sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy")
"""Losses of probabilities that also take logits."""


@dataclass(frozen=True)
class Labels:
    """The labels that a loss takes, in words, and what is to be done with others."""

    wrong: Callable[[Array], str | None]
    """Returns what is wrong with an array of labels, in words; None for nothing."""
    what: str
    instead: str


def _outside(low: float, high: float) -> Callable[[Array], str | None]:
    def wrong(labels: Array) -> str | None:
        least, most = labels.min(), labels.max()
        return f"labels go from {least:g} to {most:g}" if least < low or most > high else None

    return wrong


def _not_signs(labels: Array) -> str | None:
    found = np.unique(labels)
    if np.isin(found, (-1, 1)).all() or np.isin(found, (0, 1)).all():
        return None
    return f"there are labels {', '.join(f'{one:g}' for one in found[:4])}{', ...' * (len(found) > 4)}"


def _not_shares(labels: Array) -> str | None:
    if (wrong := _outside(0, 1)(labels)) is not None:
        return wrong
    sums = labels.sum(axis=-1)
    off = np.abs(sums - 1) > ROUNDING
    return f"the labels of an example add up to {sums[off].flat[0]:g}" if off.any() else None


ROUNDING = 1e-3
_ONE_HOT = Labels(
    _not_shares,
    "rows of labels from 0 to 1 that add up to 1",
    "for several classes of one example train with binary_crossentropy and a sigmoid; leave out examples "
    "without a class; class numbers become rows by np.eye(classes)[y]",
)
SIGNS = Labels(
    _not_signs, "labels -1 and 1, or 0 and 1", "np.where(y > 0, 1, -1) makes them of other numbers"
)
_COUNTS = Labels(_outside(0, math.inf), "labels of 0 or more", "train with mse or mae, or scale the labels")
LABELS = {
    "binary_crossentropy": Labels(
        _outside(0, 1),
        "labels from 0 (no) to 1 (yes)",
        "(y + 1) / 2 makes them of -1 and 1; for class numbers train with sparse_categorical_crossentropy",
    ),
    "categorical_crossentropy": _ONE_HOT,
    "categorical_hinge": _ONE_HOT,
    "kl_divergence": _ONE_HOT,
    "hinge": SIGNS,
    "squared_hinge": SIGNS,
    "poisson": _COUNTS,
    "mean_squared_logarithmic_error": _COUNTS,
}
"""The labels that losses take which would compute something with any numbers."""
