"""Chooses the trials and parameters that a sweep's picture shows. Pure.

A parameter's weight is the share of the variance of the trials' ranks that its value explains: omega squared
(Hays 1963) over groups of trials with about the same value. Unlike eta squared, it does not favour a
parameter with many values by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbdist.sweep.events import Direction
from nbdist.sweep.parameters import Choice, Integer, Parameter, Real, Value, is_number, literal, same_key
from nbdist.sweep.state import Ledger, Trial
from nbdist.text import clip
from nbdist.ui.frozen.run_figure import INK, LARGEST, MUTED, PAPER, STEPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_GROUPS = 6  # of a parameter with many numbers


def ranked(ledger: Ledger) -> list[Trial]:
    """Return the trials to compare, the best first: the finished ones, or else all with a value."""
    valued = all_ranked(ledger)
    return [one for one in valued if one.state == "finished"] or valued


def all_ranked(ledger: Ledger) -> list[Trial]:
    """Return all trials that have a finite value: the finished ones, then the rest, each best first."""
    valued = [one for one in ledger.trials.values() if one.value is not None and math.isfinite(one.value)]
    score = ledger.reports.score
    return sorted(valued, key=lambda one: (one.state != "finished", -score(one.value or 0.0), one.number))


def widest(ledger: Ledger) -> list[str]:
    """Return the two parameters with the most possible values, in the space's order, as in the grid.

    Only parameters that differ between trials count. Ranges of floats come first, and parameters that only
    some trials have come last.
    """
    names = _varied(ledger)

    def key(name: str) -> tuple[bool, float]:
        one = ledger.space.get(name)
        return one is None or bool(one.conditions), -math.inf if one is None else -_size(one.kind)

    two = sorted(names, key=key)[:2]
    return [name for name in names if name in two]


def _size(kind: Parameter) -> float:
    match kind:
        case Real():
            return math.inf
        case Integer(low=low, high=high, step=step):
            return (high - low) / (step or 1) + 1
        case Choice(values=values):
            return len(values)
    return 1


def every(trials: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most ``most`` items: half are the first ones, half are spread evenly over the rest.

    >>> every(range(100), 6)
    [0, 1, 2, 3, 36, 69]
    """
    if len(trials) <= most:
        return list(trials)
    half = most // 2
    rest = trials[half:]
    return [*trials[:half], *rest[:: -(-len(rest) // (most - half))]]


def by_weight(ledger: Ledger) -> list[str]:
    """Return the parameters that differ between trials, by descending weight.

    >>> from nbdist.sweep.events import Asked, Created, Ended, Started
    >>> from nbdist.sweep.space import Space
    >>> ledger = Ledger(Created(0, Space({"a": [1, 2], "b": [1, 2], "c": 5}), 8, seed=7, metric="accuracy"))
    >>> for number in range(8):
    ...     of_it = {"a": 1 + number % 2, "b": 1 + number // 4, "c": 5}
    ...     for event in (Asked(1, number, of_it, 5), Started(2, number, 1, (0,)),
    ...                   Ended(3, number, 1, "finished", float(of_it["b"]))):
    ...         _ = ledger.apply(event)
    >>> by_weight(ledger)
    ['b', 'a']
    """
    trials = ranked(ledger)
    scores = ranks(np.array([ledger.reports.score(one.value or 0.0) for one in trials]))
    names = _varied(ledger)
    weights = {name: weight([one.parameters for one in trials], name, scores) for name in names}
    return sorted(names, key=lambda name: -weights[name])


def weight(parameters: Sequence[Mapping[str, Value]], name: str, scores: NDArray[np.float64]) -> float:
    """Return the share (0 to 1) of the scores' variance that a parameter explains, where it exists."""
    there = [index for index, one in enumerate(parameters) if name in one]
    if len(there) < 3:
        return 0.0
    group = groups([parameters[index][name] for index in there])
    some = scores[there]
    counts = np.bincount(group)
    means = np.bincount(group, weights=some) / counts
    whole = float(((some - some.mean()) ** 2).sum())
    within = float(((some - means[group]) ** 2).sum())
    free = len(some) - len(counts)
    if free <= 0 or whole <= 0:
        return 0.0
    noise = within / free
    share = (whole - within - (len(counts) - 1) * noise) / (whole + noise)
    return max(0.0, share) * len(there) / len(parameters)


def groups(values: Sequence[Value]) -> NDArray[np.intp]:
    """Return the group of each value; many different numbers form a few groups of about equal size."""
    keys = [same_key(value) for value in values]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    found = np.array([places[key] for key in keys], np.intp)
    if len(places) > MOST_GROUPS and all(map(is_number, values)):
        numbers = np.array(values, np.float64)
        edges = np.quantile(numbers, np.arange(1, MOST_GROUPS) / MOST_GROUPS)
        found = np.unique(np.searchsorted(edges, numbers), return_inverse=True)[1].astype(np.intp)
    return found


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value; equal values share their mean rank.

    >>> ranks(np.array([0.5, 0.1, 0.5]))
    array([1.5, 0. , 1.5])
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middles: NDArray[np.float64] = (ends - counts + ends - 1) / 2
    return middles[place]


def _varied(ledger: Ledger) -> list[str]:
    """Return the parameters that differ between trials: those of the space, then those of the past."""
    values: dict[str, set[Any]] = {name: set() for name in ledger.space}
    for trial in ledger.trials.values():
        for name, value in trial.parameters.items():
            values.setdefault(name, set()).add(same_key(value))
    return [name for name, found in values.items() if len(found) > 1]


# Parts of all charts of a sweep's picture: labels, legend, colour bar.


def within(axes: Axes, values: Any) -> None:
    """Exclude outliers from the axis, so that a diverged trial does not compress all others."""
    finite = values[np.isfinite(values)]
    if len(finite) < 8:
        return
    low, middle, high = np.quantile(finite, [0.05, 0.5, 0.95])
    reach = 4 * max(high - low, 1e-12)
    bottom, top = axes.get_ylim()
    inside = finite[(finite >= middle - reach) & (finite <= middle + reach)]
    if len(inside) < len(finite) and bottom < top < LARGEST:
        room = 0.14 * max(float(inside.max() - inside.min()), 1e-12)
        axes.set_ylim(float(inside.min()) - room, float(inside.max()) + room)


def ticks_on(put: Callable[..., Any], axis: Axis) -> None:
    """Set an axis's ticks and labels; Matplotlib must not parse users' names as formulas."""
    ticks = axis.ticks()
    put([place for place, _ in ticks], [text for _, text in ticks], parse_math=False)


def legend(axes: Axes, *keys: Any, **style: Any) -> None:
    """Add a small legend."""
    found = axes.legend(
        *keys, fontsize=7.5, frameon=True, framealpha=0.85, edgecolor="none", labelcolor=MUTED,
        handlelength=1.4, borderpad=0.2, columnspacing=1.0, **style,
    )  # fmt: skip
    for text in found.get_texts():
        text.set_parse_math(False)


def colour_bar(axes: Axes, scale: Scale, name: str) -> None:
    """Draw the colour bar."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    low, high = scale.ends
    if not low < high:
        return
    ramp = RAMP if scale.direction == "max" else RAMP[::-1]
    bar = axes.figure.colorbar(
        ScalarMappable(Normalize(low, high), ListedColormap(list(ramp))), ax=axes, fraction=0.05, pad=0.02
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=7.5, labelcolor=MUTED)
    bar.set_label(clip(name, 30), fontsize=8, color=MUTED, parse_math=False)


# The colours of values in a sweep's picture: pale is bad, dark is good, on white. Pure.

STOPS = ("#e9e6a0", "#93d390", "#00b69b", "#0086ad", "#004fa1", "#31156d")
"""The grid's colours on a light page, with a palest one that is visible on white. The steps of lightness are
even, so that the colours also differ in greyscale."""


COUNT = 16


def _mixed(count: int) -> tuple[str, ...]:
    stops = np.array([list(bytes.fromhex(stop[1:])) for stop in STOPS], float)
    at = np.linspace(0, len(STOPS) - 1, count)
    parts = [np.interp(at, np.arange(len(STOPS)), stops[:, part]) for part in range(3)]
    return tuple("#" + bytes(int(part) for part in colour).hex() for colour in np.rint(parts).T)


RAMP = _mixed(COUNT)
FOR_EDGES = STEPS[2:3]  # shades towards the paper, for antialiased edges


def ramp_shades() -> list[int]:
    """Return the colours and some shades of them towards the paper, as red, green, blue, red, ...

    >>> len(ramp_shades()) // 3
    24
    """
    colours = [bytes.fromhex(colour[1:]) for colour in RAMP]
    edges = [
        round(255 - share * (255 - part)) for colour in colours[::2] for share in FOR_EDGES for part in colour
    ]
    return [*(part for colour in colours for part in colour), *edges]


class Scale(NamedTuple):
    """Maps values to colours; values beyond ``ends`` have the colours of the ends."""

    ends: tuple[float, float]
    direction: Direction

    @classmethod
    def of(cls, values: Sequence[float], direction: Direction) -> Scale:
        """Return a scale for finite values that ignores values much worse than most.

        >>> Scale.of([0.1, 0.2, 0.3, 1e9], "min").ends[1] < 1e9
        True
        """
        best_first = sorted(values, reverse=direction == "max")
        worst = best_first[min(len(values) - 1, math.ceil(0.75 * len(values)) - 1)]
        # 1.5 times the distance of the third quartile from the best; the worst value if that is nearer.
        reach = 1.5 * (worst - best_first[0])
        end = best_first[0] + reach
        last = min(end, best_first[-1]) if direction == "min" else max(end, best_first[-1])
        return cls((min(best_first[0], last), max(best_first[0], last)), direction)

    def share(self, value: float | None) -> float:
        """Return 0 for the worst, 1 for the best."""
        low, high = self.ends
        if value is None or not math.isfinite(value):
            return 0.0
        if not low < high:
            return 1.0
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return share if self.direction == "max" else 1 - share

    def colour(self, value: float | None) -> str:
        """Return the colour of a value."""
        return RAMP[round(self.share(value) * (COUNT - 1))]

    def ink(self, value: float | None) -> str:
        """Return the text colour on the colour of a value."""
        return INK if self.share(value) < 0.62 else PAPER


# A parameter as an axis: the position of a value on it, from 0 to 1. Pure.

FEW = 8  # numbers that stand side by side, like texts
EACH = 3  # trials of each such number at least
MOST_LABELS = 12
LONGEST_LABEL = 14


@dataclass(frozen=True)
class Axis:
    """A range of numbers from ``low`` to ``high``, or ``values`` side by side."""

    name: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, value: Value) -> float:
        """Return the position of a value on the axis, NaN if it has none."""
        if self.values:
            place = self._places.get(same_key(value))
            return math.nan if place is None else (place + 0.5) / len(self.values)
        if not is_number(value):
            return math.nan
        number = float(value)
        if not self.log:
            return (number / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        if number <= 0:
            return math.nan
        return math.log(number / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the positions and labels of the ticks, few enough to be readable."""
        if self.values:
            every = -(-len(self.values) // MOST_LABELS)
            return [(self.place(value), short(value, LONGEST_LABEL)) for value in self.values[::every]]
        from matplotlib.ticker import LogLocator, MaxNLocator

        wide = self.log and self.high / self.low >= 10
        locator = LogLocator(numticks=5) if wide else MaxNLocator(4)
        found = [float(one) for one in locator.tick_values(self.low, self.high)]
        slack = 1e-9
        return [
            (min(max(place, 0.0), 1.0), short(one, LONGEST_LABEL))
            for one in found
            if -slack <= (place := self.place(one)) <= 1 + slack
        ]

    @cached_property
    def _places(self) -> dict[tuple[object, ...], int]:
        return {same_key(value): place for place, value in enumerate(self.values)}


def axis_in(ledger: Ledger, name: str) -> Axis:
    """Return a parameter's axis for all trials that have the parameter."""
    values = [one.parameters[name] for one in ledger.trials.values() if name in one.parameters]
    return axis_of(name, values, ledger.space.get(name))


def axis_of(name: str, values: Sequence[Value], parameter: Parameter | None) -> Axis:
    """Return the axis for the values of trials; ``parameter`` is the current one, None if it was removed.

    It covers the range of the values, not of the parameter.

    >>> from nbdist.sweep.space import choice, log
    >>> axis = axis_of("lr", [0.001, 0.1, 0.01], log(1e-4, 1e-1))
    >>> [round(axis.place(value), 2) for value in (0.001, 0.01, 0.1)]
    [0.0, 0.5, 1.0]
    >>> axis_of("opt", ["sgd", "adam", "sgd"], choice("sgd", "adam")).ticks()
    [(0.25, 'sgd'), (0.75, 'adam')]
    """
    kind = None if parameter is None else parameter.kind
    distinct = {same_key(value): value for value in values}
    numeric = all(map(is_number, values))
    few = len(distinct) <= FEW and len(values) >= EACH * len(distinct)
    if not numeric or isinstance(kind, Choice) or few or len(set(values)) < 2:
        order = kind.values if isinstance(kind, Choice) else ()
        known = {same_key(value): value for value in order if same_key(value) in distinct}
        rest = [value for key, value in distinct.items() if key not in known]
        numbers = sorted(filter(is_number, rest), key=float)  # type: ignore[arg-type]
        others = sorted((value for value in rest if not is_number(value)), key=literal)
        ordered = [*known.values(), *numbers, *others]
        if numeric:
            ordered.sort(key=float)  # type: ignore[arg-type]
        return Axis(name, tuple(ordered))
    numbers_ = np.array(values, np.float64)
    low, high = float(numbers_.min()), float(numbers_.max())
    logarithmic = isinstance(kind, (Real, Integer)) and kind.log and low > 0
    return Axis(name, (), low, high, logarithmic)


def short(value: Value, most: int = 40) -> str:
    """Return a parameter's value as a text of at most so many letters.

    >>> short(0.0123456), short("adam"), short((1, 2)), short(None)
    ('0.01235', 'adam', '[1, 2]', 'None')
    """
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else literal(value)
    return clip(text, most)
