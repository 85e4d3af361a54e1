"""Learning rates that follow the number of updates, under the names and formulas of Keras.

    model.compile(nb.optim.SGD(nb.optim.schedules.CosineDecay(0.1, decay_steps=1000)), "mse")

The rate of an update depends on how many updates all replicas have made before it in this training. It is
computed where the update is made: in the process that applies the gradients, and on parameter servers by each
server for itself. `OneCycle` is PyTorch's ``OneCycleLR`` (Smith and Topin 2018); `CosineDecay` and
`CosineDecayRestarts` are those of Loshchilov and Hutter 2017.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.tensor import Tensor
from nbdist.keras_arguments import keras_class
from nbdist.numbers import is_whole

__all__ = [
    "CosineDecay", "CosineDecayRestarts", "ExponentialDecay", "LearningRateSchedule", "OneCycle",
    "PiecewiseConstantDecay", "PolynomialDecay", "from_config",
]  # fmt: skip


class LearningRateSchedule(ABC):
    """The learning rate of each update; the base class of `SCHEDULES`."""

    @abstractmethod
    def at(self, step: Any) -> Any:
        """Return the rate after ``step`` updates, a float64 or a tensor of one."""

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of the update that follows ``step`` others.

        - ``step``: the updates before it, a whole number of 0 or more, or a tensor of one number in a graph

        Return a float, or a tensor for a tensor.
        """
        if isinstance(step, Tensor):
            return self.at(step.astype(np.float64))
        return float(self.at(np.float64(step)))

    def to_config(self) -> dict[str, Any]:
        """Return name and settings as plain values, for :func:`from_config`."""
        return {"name": type(self).__name__, **{one.name: getattr(self, one.name) for one in fields(self)}}  # type: ignore[arg-type]

    def _check(
        self, *, above: Sequence[str] = (), from_0: Sequence[str] = (), steps: Sequence[str] = ()
    ) -> None:
        """Turn settings into Python's numbers; raise InvalidArgumentError for those that are out of range."""
        for name in (*above, *from_0, *steps):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
                raise InvalidArgumentError(f"{type(self).__name__}: {name} is a number, got {value!r}")
            least = name not in from_0
            if not math.isfinite(value) or value < 0 or (least and value == 0):
                bound = "above 0" if least else "0 or more"
                raise InvalidArgumentError(
                    f"{type(self).__name__}: {name} must be {bound} and finite, got {value!r}"
                )
            number = float(value)
            object.__setattr__(self, name, int(number) if name in steps and number.is_integer() else number)


@keras_class
@dataclass(frozen=True)
class ExponentialDecay(LearningRateSchedule):
    """``initial_learning_rate * decay_rate ** (step / decay_steps)``.

    - ``initial_learning_rate``: the rate of the first update, 0 or more
    - ``decay_steps``: after how many updates the rate is multiplied by ``decay_rate``, above 0
    - ``decay_rate``: above 0
    - ``staircase``: whether the rate changes only every ``decay_steps`` updates (step decay), and not with
      each

    Raises InvalidArgumentError for a setting that is out of range.

    >>> ExponentialDecay(0.1, decay_steps=100, decay_rate=0.5, staircase=True)(250)
    0.025
    """

    initial_learning_rate: float
    decay_steps: float
    decay_rate: float
    staircase: bool = False

    def __post_init__(self) -> None:
        self._check(from_0=["initial_learning_rate"], above=["decay_rate"], steps=["decay_steps"])

    def at(self, step: Any) -> Any:
        """Return the rate after ``step`` updates."""
        periods = step / self.decay_steps
        return self.initial_learning_rate * self.decay_rate ** (
            np.floor(periods) if self.staircase else periods
        )


@keras_class
@dataclass(frozen=True)
class PiecewiseConstantDecay(LearningRateSchedule):
    """One rate up to each boundary, and another one from there on.

    - ``boundaries``: numbers of updates that increase, at least one; the rate changes after each, that is
      for the updates with more than so many before them
    - ``values``: the rates, each 0 or more: one more than there are boundaries

    Raises InvalidArgumentError for lists that do not fit together.

    >>> step = PiecewiseConstantDecay([100, 200], [0.1, 0.01, 0.001])
    >>> step(100), step(101), step(1000)
    (0.1, 0.01, 0.001)
    """

    boundaries: Sequence[float]
    values: Sequence[float]

    def __post_init__(self) -> None:
        try:
            boundaries, values = ([float(one) for one in part] for part in (self.boundaries, self.values))
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                "PiecewiseConstantDecay: boundaries and values are lists of numbers, got "
                f"{self.boundaries!r} and {self.values!r}"
            ) from None
        if not boundaries or len(values) != len(boundaries) + 1:
            raise InvalidArgumentError(
                "PiecewiseConstantDecay takes at least one boundary, and one value more than boundaries, got "
                f"{len(boundaries)} and {len(values)}"
            )
        if boundaries != sorted(set(boundaries)):
            raise InvalidArgumentError(
                f"PiecewiseConstantDecay: boundaries must increase, got {list(self.boundaries)!r}"
            )
        if not all(0 <= value < math.inf for value in values):
            raise InvalidArgumentError(
                f"PiecewiseConstantDecay: values must be 0 or more and finite, got {list(self.values)!r}"
            )
        object.__setattr__(self, "boundaries", boundaries)
        object.__setattr__(self, "values", values)

    def at(self, step: Any) -> Any:
        """Return the rate after ``step`` updates."""
        rate: Any = self.values[0]
        for boundary, value in zip(self.boundaries, self.values[1:], strict=True):
            rate = np.where(step > boundary, value, rate)
        return rate


@keras_class
@dataclass(frozen=True)
class PolynomialDecay(LearningRateSchedule):
    """From ``initial_learning_rate`` to ``end_learning_rate`` in ``decay_steps``; linear with ``power`` 1.

    - ``initial_learning_rate``, ``end_learning_rate``: the first and the last rate, 0 or more
    - ``decay_steps``: the updates until the last rate, above 0
    - ``power``: the exponent of the part of the steps that are left, above 0

    Raises InvalidArgumentError for a setting that is out of range.

    >>> PolynomialDecay(1.0, decay_steps=10, end_learning_rate=0.0)(5)
    0.5
    """

    initial_learning_rate: float
    decay_steps: float
    end_learning_rate: float = 0.0001
    power: float = 1.0

    def __post_init__(self) -> None:
        self._check(
            from_0=["initial_learning_rate", "end_learning_rate"], above=["power"], steps=["decay_steps"]
        )

    def at(self, step: Any) -> Any:
        """Return the rate after ``step`` updates."""
        left = 1 - np.minimum(step, float(self.decay_steps)) / self.decay_steps
        return (
            self.initial_learning_rate - self.end_learning_rate
        ) * left**self.power + self.end_learning_rate


@keras_class
@dataclass(frozen=True)
class CosineDecay(LearningRateSchedule):
    """Half a cosine down from a rate, after a linear warm-up if asked.

    - ``initial_learning_rate``: the rate of the first update, 0 or more
    - ``decay_steps``: the updates of the decay, above 0; those of the warm-up come before
    - ``alpha``: the rate at the end, as a part of the one at which the decay begins, 0 or more
    - ``warmup_target``: the rate at the end of the warm-up, 0 or more; None for no warm-up
    - ``warmup_steps``: the updates of the warm-up, 0 or more

    Raises InvalidArgumentError for a setting that is out of range, and for ``warmup_steps`` without a target.

    >>> rate = CosineDecay(0.0, decay_steps=100, warmup_target=0.1, warmup_steps=10)
    >>> [round(rate(step), 4) for step in (0, 5, 10, 60, 110, 500)]
    [0.0, 0.05, 0.1, 0.05, 0.0, 0.0]
    """

    initial_learning_rate: float
    decay_steps: float
    alpha: float = 0.0
    warmup_target: float | None = None
    warmup_steps: float = 0

    def __post_init__(self) -> None:
        target = [] if self.warmup_target is None else ["warmup_target"]
        self._check(from_0=["initial_learning_rate", "alpha", "warmup_steps", *target], steps=["decay_steps"])
        if self.warmup_steps and self.warmup_target is None:
            raise InvalidArgumentError(
                f"CosineDecay: warmup_steps={self.warmup_steps:g} needs warmup_target, the rate that the "
                "warm-up ends with"
            )

    def at(self, step: Any) -> Any:
        """Return the rate after ``step`` updates."""
        first, target = self.initial_learning_rate, self.warmup_target
        warm = self.warmup_steps if target is not None else 0.0
        top = first if target is None else target
        part = np.minimum(np.maximum(step - warm, 0.0), float(self.decay_steps)) / self.decay_steps
        rate = top * _half_cosine(part, self.alpha)
        return rate if not warm else np.where(step < warm, first + (top - first) * (step / warm), rate)


@keras_class
@dataclass(frozen=True)
class CosineDecayRestarts(LearningRateSchedule):
    """Half a cosine down, again and again (SGDR).

    - ``initial_learning_rate``: the rate of the first update, 0 or more
    - ``first_decay_steps``: the updates of the first period, above 0
    - ``t_mul``: how many times longer each period is than the one before, 1 or more
    - ``m_mul``: by what the first rate of each period is multiplied, above 0
    - ``alpha``: the rate at the end of a period, as a part of ``initial_learning_rate``, 0 or more

    Raises InvalidArgumentError for a setting that is out of range.

    >>> rate = CosineDecayRestarts(0.1, first_decay_steps=10, t_mul=2.0, m_mul=0.5)
    >>> [round(rate(step), 4) for step in (0, 5, 10, 20, 30)]
    [0.1, 0.05, 0.05, 0.025, 0.025]
    """

    initial_learning_rate: float
    first_decay_steps: float
    t_mul: float = 2.0
    m_mul: float = 1.0
    alpha: float = 0.0

    def __post_init__(self) -> None:
        self._check(
            from_0=["initial_learning_rate", "alpha"], above=["t_mul", "m_mul"], steps=["first_decay_steps"]
        )
        if self.t_mul < 1:
            raise InvalidArgumentError(f"CosineDecayRestarts: t_mul must be 1 or more, got {self.t_mul!r}")

    def at(self, step: Any) -> Any:
        """Return the rate after ``step`` updates."""
        part, longer = step / self.first_decay_steps, self.t_mul
        if longer == 1.0:
            period = np.floor(part)
            part = part - period
        else:
            period = np.floor(np.log(1.0 - part * (1.0 - longer)) / math.log(longer))
            part = (part - (1.0 - longer**period) / (1.0 - longer)) / longer**period
        return self.initial_learning_rate * _half_cosine(part, self.alpha, self.m_mul**period)


@keras_class
@dataclass(frozen=True)
class OneCycle(LearningRateSchedule):
    """Up to ``max_learning_rate``, and down again to nearly 0, in ``total_steps``; as PyTorch's OneCycleLR.

    - ``max_learning_rate``: the highest rate, above 0
    - ``total_steps``: the updates of the whole cycle, a whole number of 2 or more; the last rate stays
    - ``pct_start``: the part of the updates that go up, above 0 and below 1
    - ``div_factor``: the first rate is the highest one by this, above 0
    - ``final_div_factor``: the last rate is the first one by this, above 0
    - ``anneal_strategy``: "cos" or "linear"

    PyTorch also changes the momentum; here it stays. Raises InvalidArgumentError for a setting that is out of
    range.

    >>> rate = OneCycle(0.1, total_steps=11, pct_start=0.5)
    >>> [round(rate(step), 4) for step in (0, 4, 5, 10)]
    [0.004, 0.0971, 0.098, 0.0]
    """

    max_learning_rate: float
    total_steps: int
    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    anneal_strategy: str = "cos"

    def __post_init__(self) -> None:
        self._check(above=["max_learning_rate", "pct_start", "div_factor", "final_div_factor"])
        if not is_whole(self.total_steps, 2):
            raise InvalidArgumentError(
                f"OneCycle: total_steps is a whole number of 2 or more, got {self.total_steps!r}"
            )
        if not 0 < self.pct_start < 1:
            raise InvalidArgumentError(f"OneCycle: pct_start is above 0 and below 1, got {self.pct_start!r}")
        if self.anneal_strategy not in ("cos", "linear"):
            raise InvalidArgumentError(
                f"OneCycle: no anneal_strategy={self.anneal_strategy!r}; "
                f"{choices(self.anneal_strategy, ('cos', 'linear'))}"
            )
        object.__setattr__(self, "total_steps", int(self.total_steps))

    def at(self, step: Any) -> Any:
        """Return the rate after ``step`` updates."""
        top, last = self.max_learning_rate, self.total_steps - 1.0
        first = top / self.div_factor
        turn = self.pct_start * self.total_steps - 1
        step = np.minimum(step, last)
        down = self._between(top, first / self.final_div_factor, (step - turn) / (last - turn))
        if turn <= 0:  # so few updates that none goes up
            return down
        return np.where(step <= turn, self._between(first, top, step / turn), down)

    def _between(self, start: float, end: float, part: Any) -> Any:
        if self.anneal_strategy == "linear":
            return start + (end - start) * part
        return end + (start - end) / 2.0 * (1 + np.cos(math.pi * part))


def _half_cosine(part: Any, alpha: float, height: Any = 1.0) -> Any:
    """Return a cosine from ``height`` to 0 for parts from 0 to 1, raised so that it ends with ``alpha``."""
    return (1 - alpha) * (0.5 * height * (1 + np.cos(math.pi * part))) + alpha


SCHEDULES: dict[str, type[LearningRateSchedule]] = {
    kind.__name__: kind
    for kind in (
        CosineDecay, CosineDecayRestarts, ExponentialDecay, OneCycle, PiecewiseConstantDecay, PolynomialDecay,
    )
}  # fmt: skip
"""Schedules by name."""


def from_config(config: dict[str, Any]) -> LearningRateSchedule:
    """Return the schedule of a ``config`` that `LearningRateSchedule.to_config` returned."""
    settings = dict(config)
    name = settings.pop("name", None)
    kind = SCHEDULES.get(str(name))
    if kind is None:
        raise InvalidArgumentError(f"no schedule {name!r}; {choices(name, sorted(SCHEDULES))}")
    return kind(**settings)
