"""The curves of one run for a comparison: over steps, epochs or time.

    curves = read_curves(run)
    steps, values = curves.course("loss")
    curves.positions("epoch", steps)         # where these steps are on the x axis

Values are means over replicas. The axis of epochs or of time follows from some steps, each with the number of
epochs or seconds before it: `secondsAt` in widget/src/chart/curves.js interpolates in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nbdist.errors import NbdistError
from nbdist.metrics.names import EPOCH
from nbdist.metrics.store import RunStore
from nbdist.metrics.table import Part, parts_from_logs
from nbdist.ui.widgets.run_feed import NOT_CURVES, Curve, clock_of, course

By = Literal["step", "epoch", "time"]
AXES: Mapping[str, str] = {"step": "steps", "epoch": "epochs", "time": "seconds"}
MOST_PLACES = 200  # steps with their epochs or times
Places = tuple[NDArray[Any], NDArray[np.float64]]
"""Ascending steps, and the epochs or seconds before each; at least two."""


@dataclass(frozen=True)
class RunCurves:
    """The points of a run. ``error`` says why they cannot be read."""

    store: RunStore
    axes: Mapping[str, Places] = field(default_factory=dict)
    error: str = ""

    @property
    def names(self) -> list[str]:
        """The names of its series."""
        return self.store.series

    def course(self, name: str, most: int = 512) -> Curve:
        """Return (steps, values) of a series without noise, at most so many points; empty if it has none."""
        if self.store.number(name) is None:
            return np.empty(0, np.uint32), np.empty(0)
        return course(*self.store.aggregate(name), most=most)

    def has(self, by: By) -> bool:
        """Return whether its curves can be drawn over an axis."""
        return by == "step" or by in self.axes

    def positions(self, by: By, steps: NDArray[Any]) -> NDArray[Any]:
        """Return where steps are on an axis that it has."""
        return steps if by == "step" else interpolated(steps, *self.axes[by])

    def finite(self, name: str) -> NDArray[np.float64]:
        """Return the values of a series that are numbers, in order."""
        if self.store.number(name) is None:
            return np.empty(0)
        _, values = self.store.aggregate(name)
        return values[np.isfinite(values)]


def read_curves(folder: Path, finished: bool) -> RunCurves:
    """Return the curves in a run's folder; ``finished`` says whether its last epoch is whole."""
    store = RunStore(recent=1)
    try:
        parts = parts_from_logs(folder)
    except (OSError, NbdistError) as error:
        return RunCurves(store, error=str(error))
    for part in parts:
        store.extend(*part)
    axes: dict[str, Places] = {}
    named = next((name for name in store.series if name not in NOT_CURVES), None)
    if named is not None and (clock := clock_of(store, named)) is not None:
        axes["time"] = clock if len(clock[0]) > 1 else (np.array([0, 1]), np.zeros(2))
    last = max((int(steps.max()) for _, name, steps, *_ in parts if name == named), default=0)
    if (epochs := epochs_of(parts, last if finished else None)) is not None:
        axes["epoch"] = epochs
    return RunCurves(store, axes)


def epochs_of(parts: Sequence[Part], last: int | None) -> Places | None:
    """Return some steps, and how many epochs are done before each; None if no epoch is known to be whole.

    The epochs of several trainings are counted on. ``last`` is the step at which the last epoch ends, for a
    run with only one; None if that is not known.

    >>> def part(steps, epochs): return 0, EPOCH, np.array(steps), np.array(epochs), np.zeros(len(steps))
    >>> epochs_of([part([0, 10, 20, 30], [1, 2, 1, 2])], None)    # two trainings of two epochs
    (array([ 0, 10, 20, 30]), array([0., 1., 2., 3.]))
    >>> epochs_of([part([0], [1])], None), epochs_of([part([0], [1])], 7)
    (None, (array([0, 7]), array([0., 1.])))
    """
    chief = min((replica for replica, name, *_ in parts if name == EPOCH), default=None)
    if chief is None:
        return None
    own = [part for part in parts if part[:2] == (chief, EPOCH)]
    steps, numbers = (np.concatenate([part[at] for part in own]) for at in (2, 3))
    steps, numbers = steps[np.isfinite(numbers)].astype(np.int64), numbers[np.isfinite(numbers)]
    if not len(steps):
        return None
    change = np.diff(numbers)
    begun = np.cumsum(np.concatenate(([numbers[0]], np.where(change > 0, change, 1.0))))
    order = np.argsort(steps, kind="stable")
    steps, done = steps[order], np.maximum.accumulate(begun[order] - 1)
    newest = np.append(np.diff(steps) > 0, True)  # of several at a step
    steps, done = steps[newest], done[newest]
    if len(steps) == 1:
        if last is None or last <= steps[0]:
            return None
        steps, done = np.append(steps, last), np.append(done, done[0] + 1)
    kept = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_PLACES)).astype(int))
    return steps[kept], done[kept]


def interpolated(steps: NDArray[Any], known: NDArray[Any], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return values at steps: straight lines between the known ones, continued beyond the first and the last.

    >>> interpolated(np.array([0, 5, 30]), np.array([0, 10, 20]), np.array([0.0, 1.0, 3.0]))
    array([0. , 0.5, 5. ])
    """
    at = np.clip(np.searchsorted(known, steps, side="left") - 1, 0, len(known) - 2)
    begin, length = known[at].astype(float), (known[at + 1] - known[at].astype(float))
    share = (np.asarray(steps, float) - begin) / np.where(length > 0, length, 1)
    found: NDArray[np.float64] = values[at] + share * (values[at + 1] - values[at])
    return found
