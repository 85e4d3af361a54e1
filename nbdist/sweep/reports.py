"""What all trials reported, kept for pruners and small curves in bounded memory. Pure.

>>> reports = Reports("min")
>>> reports.add(0, step=1, value=0.5)
>>> reports.add(1, step=2, value=0.3)
>>> reports.at(1)  # scores at the first report from step 1 on; more is better, so a loss is negative
array([-0.5, -0.3])
>>> reports.at(2)
array([ nan, -0.3])
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from nbdist.metrics.series import keep_shape
from nbdist.sweep.events import Direction

KEPT = 256
"""How many reports of a trial are kept after it was thinned; before, up to twice as many, all of them."""


COLUMNS = 128  # compared steps that are kept up to date; others are worked out again when asked for
Scores = NDArray[np.float64]


class Curve:
    """One trial's reports by step, all of them until there are many; the last report of a step counts."""

    __slots__ = ("count", "steps", "values")

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[float] = []
        self.count = 0

    def add(self, step: int, value: float) -> int:
        """Put a report in its place and return the step of the one before it, or -1."""
        steps = self.steps
        self.count += 1
        if not steps or step > steps[-1]:
            before = steps[-1] if steps else -1
            steps.append(step)
            self.values.append(value)
            if len(steps) > 2 * KEPT:
                self._thin()
            return before
        index = bisect_left(steps, step)
        if steps[index] == step:
            self.values[index] = value
        else:
            steps.insert(index, step)
            self.values.insert(index, value)
        return steps[index - 1] if index else -1

    def __repr__(self) -> str:
        return f"<Curve of {self.count} reports>"

    def before(self, step: int) -> int:
        """Return the step of the last report before ``step``, or -1."""
        index = bisect_left(self.steps, step)
        return self.steps[index - 1] if index else -1

    def _thin(self) -> None:
        # Thin by shape: thinning by number of reports would thin the start each time, until it is lost.
        # The lowest and the highest point stay, so the best value so far does not change.
        kept = keep_shape(self.steps, self.values, KEPT).tolist()
        self.steps = [self.steps[index] for index in kept]
        self.values = [self.values[index] for index in kept]


class Reports:
    """The curves of all trials, and every trial's score at a step at once.

    A score is the value, or its negative if less is better; a report that is not finite scores worst.
    """

    def __init__(self, direction: Direction) -> None:
        self.curves: dict[int, Curve] = {}
        self._sign = 1.0 if direction == "max" else -1.0
        self._finished: set[int] = set()
        self._columns: OrderedDict[tuple[int, bool], Column] = OrderedDict()
        self._width = 0  # the highest number of a trial with reports, and one

    def add(self, number: int, step: int, value: float) -> None:
        """Take a report; they may come in any order."""
        curve = self.curves.get(number)
        if curve is None:
            curve = self.curves[number] = Curve()
            self._width = max(self._width, number + 1)
        before = curve.add(step, value)
        for (at, only_finished), column in self._columns.items():
            if before < at <= step and (not only_finished or number in self._finished):
                column.put(number, self.score(value))

    def finish(self, number: int) -> None:
        """Count a trial as finished."""
        self._finished.add(number)
        for (at, only_finished), column in self._columns.items():
            if only_finished:
                column.put(number, self._first_from(number, at))

    def forget(self, number: int) -> None:
        """Drop the reports of a trial that starts again."""
        self.curves.pop(number, None)
        self._finished.discard(number)
        for column in self._columns.values():
            column.put(number, math.nan)

    def restore(self, number: int, curve: Curve) -> None:
        """Put the reports of a trial back that were forgotten."""
        self.curves[number] = curve
        for (at, only_finished), column in self._columns.items():
            if not only_finished or number in self._finished:
                column.put(number, self._first_from(number, at))

    def at(self, step: int, finished: bool = False) -> Scores:
        """Return each trial's score at its first report from ``step`` on, NaN where there is none.

        The index is the trial's number; with ``finished`` only trials that are. Do not change the array.
        """
        key = (step, finished)
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = Column()
            for number in self._finished if finished else self.curves:
                column.put(number, self._first_from(number, step))
            if len(self._columns) > COLUMNS:
                self._columns.popitem(last=False)
        self._columns.move_to_end(key)
        return column.first(self._width)

    def best(self, number: int, step: int) -> float:
        """Return a trial's best score up to ``step``, minus infinity if it has none that is a number."""
        curve = self.curves.get(number)
        values = curve.values[: bisect_right(curve.steps, step)] if curve else []
        return max(map(self.score, values), default=-math.inf)

    def score(self, value: float) -> float:
        """Return a value as more-is-better; one that is not finite is the worst, whatever its sign."""
        return self._sign * value if math.isfinite(value) else -math.inf

    def _first_from(self, number: int, step: int) -> float:
        curve = self.curves.get(number)
        index = bisect_left(curve.steps, step) if curve else 0
        return self.score(curve.values[index]) if curve and index < len(curve.steps) else math.nan


class Column:
    """One score a trial, NaN for those that have none; grows as it is filled."""

    def __init__(self) -> None:
        self._scores: Scores = np.full(64, math.nan)

    def put(self, number: int, score: float) -> None:
        """Set the score of a trial."""
        self._reserve(number + 1)
        self._scores[number] = score

    def first(self, count: int) -> Scores:
        """Return the scores of the first ``count`` trials, as a view."""
        self._reserve(count)
        return self._scores[:count]

    def _reserve(self, count: int) -> None:
        if count > len(self._scores):
            larger = np.full(2 * count, math.nan)
            larger[: len(self._scores)] = self._scores
            self._scores = larger
