"""The chart of two parameters: a heat map if each has few values, else where each trial stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.sweep.state import Ledger, Trial
from nbdist.ui.figure import drawable
from nbdist.ui.palette import FAN, INK, MUTED, PAPER, TRAIN
from nbdist.ui.shorten import clip
from nbdist.ui.sweepaxes import Axis
from nbdist.ui.sweepcharts import colour_bar, frame, legend, ticks_on
from nbdist.ui.sweepmatter import every
from nbdist.ui.sweepramp import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = {"finished": 400, "pruned": 100, "stopped": 40, "failed": 60}
MOST_CELLS = 10  # values of a parameter, up to which two make a heat map
GLYPHS = {"pruned": "◐", "failed": "✕", "stopped": "■", "running": "▶", "waiting": "○"}


def pair(axes: Axes, ledger: Ledger, trials: Sequence[Trial], across: Axis, up: Axis, scale: Scale) -> None:
    """Draw two parameters as what suits them."""
    few = all(0 < len(axis.values) <= MOST_CELLS for axis in (across, up))
    (heat_map if few else scatter)(axes, ledger, trials, across, up, scale)


def scatter(
    axes: Axes, ledger: Ledger, trials: Sequence[Trial], across: Axis, up: Axis, scale: Scale
) -> None:
    """Draw each trial at its two parameters, the good ones dark; those without a value as their glyph."""
    two_parameters(axes, up, across)
    shown = every(trials, MOST_POINTS["finished"])[::-1]  # the best on top
    drawn = {one.number for one in trials}
    others = [one for one in ledger.trials.values() if one.number not in drawn]
    for state, marker in (("pruned", "o"), ("stopped", "s"), ("failed", "x")):
        some = every([one for one in others if one.state == state], MOST_POINTS[state])
        edge: dict[str, Any] = (
            {"color": MUTED} if marker == "x" else {"edgecolors": FAN, "facecolors": "none"}
        )
        axes.scatter(*places_of(some, across, up), s=16, marker=marker, linewidths=0.9, **edge)
    axes.scatter(
        *places_of(shown, across, up), s=34, c=[scale.colour(one.value) for one in shown], linewidths=0.4,
        edgecolors=PAPER,
    )  # fmt: skip
    best = trials[:1]
    axes.scatter(*places_of(best, across, up), s=110, facecolors="none", edgecolors=INK, linewidths=1.2)
    axes.set_xlim(-0.05, 1.05)
    axes.set_ylim(-0.05, 1.05)
    ticks_on(axes.set_xticks, across)
    ticks_on(axes.set_yticks, up)
    colour_bar(axes, scale, ledger.created.metric)


def heat_map(
    axes: Axes, ledger: Ledger, trials: Sequence[Trial], across: Axis, up: Axis, scale: Scale
) -> None:
    """Draw the best value of each pair of values, with its number; a glyph where no trial has one."""
    from matplotlib.patches import Rectangle

    two_parameters(axes, up, across)
    axes.grid(False)
    best: dict[tuple[float, float], Trial] = {}
    for one in trials:
        best.setdefault(place_of(one, across, up), one)
    wide, high = 1 / len(across.values), 1 / len(up.values)
    small = 6 if max(len(across.values), len(up.values)) > 6 else 8
    rest: dict[tuple[float, float], str] = {}
    for one in ledger.trials.values():
        if (place := place_of(one, across, up)) not in best:
            rest.setdefault(place, one.state)
    for (x, y), one in best.items():
        if math.isfinite(x + y):
            corner = (x - wide / 2, y - high / 2)
            fill, ink = scale.colour(one.value), scale.ink(one.value)
            axes.add_patch(Rectangle(corner, wide, high, facecolor=fill, edgecolor=PAPER, linewidth=2))
            axes.text(x, y, f"{one.value:.3g}", ha="center", va="center", fontsize=small, color=ink)
    for (x, y), state in rest.items():
        if math.isfinite(x + y):
            axes.text(x, y, GLYPHS.get(state, "·"), ha="center", va="center", fontsize=9, color=MUTED)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    ticks_on(axes.set_xticks, across)
    ticks_on(axes.set_yticks, up)
    colour_bar(axes, scale, f"best {ledger.created.metric}")


def two_parameters(axes: Axes, up: Axis, across: Axis) -> None:
    """Name the axes of two parameters."""
    frame(axes, f"{clip(up.name, 20)} and {clip(across.name, 20)}")
    axes.set_xlabel(clip(across.name, 30), fontsize=8, color=MUTED, parse_math=False)
    axes.set_ylabel(clip(up.name, 30), fontsize=8, color=MUTED, parse_math=False)


def place_of(trial: Trial, across: Axis, up: Axis) -> tuple[float, float]:
    """Return where a trial stands on two axes; NaN where it has no such parameter."""
    given = trial.parameters
    x = across.place(given[across.name]) if across.name in given else math.nan
    return x, up.place(given[up.name]) if up.name in given else math.nan


def places_of(trials: Sequence[Trial], across: Axis, up: Axis) -> tuple[list[float], list[float]]:
    """Return where trials stand, those of one value a little apart."""
    places = [place_of(one, across, up) for one in trials]
    return spread([x for x, _ in places], trials, across), spread([y for _, y in places], trials, up)


def spread(places: Sequence[float], trials: Sequence[Trial], axis: Axis) -> list[float]:
    """Move trials that have one of a few values a little, each always as far, so that none hides another."""
    if not axis.values:
        return list(places)
    reach = 0.5 / len(axis.values)
    return [at + reach * ((one.number * 0.618034) % 1 - 0.5) for at, one in zip(places, trials, strict=True)]


def one_parameter(axes: Axes, ledger: Ledger, axis: Axis) -> None:
    """Draw the value of each trial against its only parameter."""
    frame(axes, f"{clip(ledger.created.metric, 20)} by {clip(axis.name, 20)}")
    kinds = (("stopped", "none", "s"), ("pruned", "none", "o"), ("finished", TRAIN, "o"))
    drawn = []
    for state, inside, marker in kinds:
        some = [one for one in ledger.trials.values() if one.state == state and one.value is not None]
        if not some:
            continue
        places = [axis.place(one.parameters.get(axis.name)) for one in some]
        axes.scatter(
            spread(places, some, axis),
            drawable(np.array([one.value for one in some], float)),
            s=26, alpha=0.8, linewidths=0.9, label=state, facecolors=inside, edgecolors=TRAIN, marker=marker,
        )  # fmt: skip
        drawn.append(state)
    ticks_on(axes.set_xticks, axis)
    axes.set_xlim(-0.06, 1.06)
    if drawn and drawn != ["finished"]:
        legend(axes, loc="best")
