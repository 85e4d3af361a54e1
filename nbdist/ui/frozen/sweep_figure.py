"""The picture of a finished sweep: a PNG by Matplotlib, drawn without pyplot's global state.

It shows the best value over time, the heat map of the grid's first two parameters, parallel coordinates, and
the curves of the best trials; charts without data are left out. Dark is good in all charts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbdist.sweep.state import Ledger, Trial
from nbdist.text import clip
from nbdist.ui.frozen.run_figure import (
    FAN,
    GRID,
    INK,
    LARGEST,
    MUTED,
    PAPER,
    REPLICAS,
    TRAIN,
    drawable,
    encode,
    frame,
    own_style,
    shades,
)
from nbdist.ui.frozen.sweep_axes import (
    Axis,
    Scale,
    all_ranked,
    axis_in,
    by_weight,
    colour_bar,
    every,
    legend,
    ramp_shades,
    ranked,
    ticks_on,
    widest,
    within,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARPEST, COARSEST = 160, 40  # dots per inch
PANEL = (4.7, 3.1)  # inches
MOST_POINTS = 400
MOST_CURVES = 6
LONG = 8  # reports of a curve, from which the range ignores its first quarter


class Panel(NamedTuple):
    """One chart of the picture, and its relative width in a row."""

    fill: Callable[[Axes], None]
    share: int = 6


def picture(ledger: Ledger, limit: int) -> bytes | None:
    """Return a PNG of at most ``limit`` bytes, as sharp as fits; None if no trial has a value."""
    panels = panels_of(ledger)
    if not panels:
        return None
    with own_style():
        figure = draw(panels)
        colours = [*shades(), *ramp_shades()]
        dots = SHARPEST
        while len(png := encode(figure, dots, colours)) > limit and dots > COARSEST:
            figure.set_layout_engine("none")  # the layout is fixed from here on
            dots = max(COARSEST, min(dots - 5, int(dots * (limit / len(png)) ** 0.7)))
    return png


def draw(panels: Sequence[Panel]) -> Figure:
    """Return the figure with its panels, two in a row."""
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), facecolor=PAPER, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    grid = figure.add_gridspec(rows, 12)
    for row in range(rows):
        side_by_side = panels[2 * row : 2 * row + 2]
        edge = 12 * side_by_side[0].share // sum(panel.share for panel in side_by_side)
        for panel, place in zip(side_by_side, (slice(0, edge), slice(edge, 12))):
            panel.fill(figure.add_subplot(grid[row, place]))
    return figure


def panels_of(ledger: Ledger) -> list[Panel]:
    """Return the panels that have data."""
    trials = ranked(ledger)
    if not trials:
        return []
    valued = all_ranked(ledger)
    scale = Scale.of([one.value or 0.0 for one in valued], ledger.created.direction)
    names = by_weight(ledger)
    panels: list[Panel] = []
    if ledger.improvements:
        panels.append(Panel(lambda axes: best_so_far(axes, ledger)))
    if len(names) == 1:
        panels.append(Panel(lambda axes: one_parameter(axes, ledger, axis_in(ledger, names[0]))))
    elif names:
        first, second = (axis_in(ledger, name) for name in widest(ledger))
        panels.append(Panel(lambda axes: pair(axes, ledger, valued, first, second, scale)))
        panels.append(Panel(lambda axes: parallel(axes, ledger, valued, names, scale), share=7))
    if any(len(curve.steps) > 1 for one in trials[:MOST_CURVES] if (curve := ledger.curve(one.number))):
        panels.append(Panel(lambda axes: learning(axes, ledger, trials[:MOST_CURVES]), share=5))
    return panels


def best_so_far(axes: Axes, ledger: Ledger) -> None:
    """Draw each improvement against time, over all trials that have ended."""
    frame(axes, f"best {clip(ledger.created.metric, 24)} so far")
    over = [one for one in all_ranked(ledger) if one.ended_at is not None]
    ended, others = (
        some[:: -(-len(some) // MOST_POINTS) or 1]
        for some in (
            [one for one in over if one.state == "finished"],
            [one for one in over if one.state in ("pruned", "stopped")],
        )
    )
    last = max([ledger.elapsed(span.end) for span in ledger.spans], default=0.0)
    divisor, unit = (1, "s") if last < 180 else (60, "min") if last < 10_800 else (3600, "h")
    times = [ledger.elapsed(one.ended_at or 0.0) / divisor for one in ended]
    values = drawable(np.array([math.nan if one.value is None else one.value for one in ended]))
    axes.scatter(times, values, s=12, color=FAN, alpha=0.55, linewidths=0)
    ends = [ledger.elapsed(one.ended_at or 0.0) / divisor for one in others]
    hollow = drawable(np.array([one.value for one in others], float))
    axes.scatter(ends, hollow, s=12, facecolors="none", edgecolors=FAN, linewidths=0.8)
    at = [ledger.elapsed(one.time) / divisor for one in ledger.improvements]
    best = drawable(np.array([one.value for one in ledger.improvements]))
    axes.step([*at, last / divisor], [*best, best[-1]], where="post", color=TRAIN, linewidth=2.0)
    axes.scatter(at, best, s=20, color=TRAIN, zorder=3)
    top = ledger.improvements[-1]
    up = ledger.created.direction == "max"
    axes.annotate(
        f"trial {top.number}: {top.value:.4g}", (last / divisor, best[-1]), (0, 5 if up else -5),
        textcoords="offset points", ha="right", va="bottom" if up else "top", fontsize=8, color=TRAIN,
        fontweight="bold",
    )  # fmt: skip
    axes.margins(y=0.14)
    within(axes, np.concatenate([values, best]))
    axes.set_xlabel(f"{unit} since its start", fontsize=8, color=MUTED)


def learning(axes: Axes, ledger: Ledger, trials: Sequence[Trial]) -> None:
    """Draw the curves of the best trials."""
    from matplotlib.ticker import MaxNLocator

    frame(axes, f"the best {len(trials)} trials" if len(trials) > 1 else "the best trial")
    colours = (TRAIN, *REPLICAS)
    for index, one in reversed(list(enumerate(trials))):
        curve = ledger.curve(one.number)
        if curve is None:
            continue
        axes.plot(
            curve.steps, drawable(np.array(curve.values)), color=colours[index % len(colours)],
            linewidth=2.0 if index == 0 else 1.1, zorder=10 - index, label=f"trial {one.number}",
            marker="o" if len(curve.steps) == 1 else None, markersize=3,
        )  # fmt: skip
    axes.set_xlabel("step", fontsize=8, color=MUTED)
    axes.set_ylabel(clip(ledger.created.metric, 24), fontsize=8, color=MUTED, parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    late = [
        value
        for one in trials
        if (curve := ledger.curve(one.number)) and len(curve.values) >= LONG
        for value in curve.values[len(curve.values) // 4 :]
        if abs(value) < LARGEST
    ]
    if late and min(late) < max(late):  # the late part matters more than the early one
        room = 0.08 * (max(late) - min(late))
        axes.set_ylim(min(late) - room, max(late) + room)
    handles, labels = axes.get_legend_handles_labels()
    legend(axes, handles[::-1], labels[::-1], loc="best", ncols=2)


# The chart of two parameters: a heat map if each has few values, else a scatter plot.

MOST_PAIR_POINTS = {"finished": 400, "pruned": 100, "stopped": 40, "failed": 60}
MOST_CELLS = 10  # values per parameter, up to which the chart is a heat map
GLYPHS = {"pruned": "◐", "failed": "✕", "stopped": "■", "running": "▶", "waiting": "○"}


def pair(axes: Axes, ledger: Ledger, trials: Sequence[Trial], across: Axis, up: Axis, scale: Scale) -> None:
    """Draw two parameters as a heat map or as a scatter plot."""
    frame(axes, f"{clip(up.name, 20)} and {clip(across.name, 20)}")
    axes.set_xlabel(clip(across.name, 30), fontsize=8, color=MUTED, parse_math=False)
    axes.set_ylabel(clip(up.name, 30), fontsize=8, color=MUTED, parse_math=False)
    few = all(0 < len(axis.values) <= MOST_CELLS for axis in (across, up))
    (heat_map if few else scatter)(axes, ledger, trials, across, up, scale)
    ticks_on(axes.set_xticks, across)
    ticks_on(axes.set_yticks, up)
    colour_bar(axes, scale, f"best {ledger.created.metric}" if few else ledger.created.metric)


def scatter(
    axes: Axes, ledger: Ledger, trials: Sequence[Trial], across: Axis, up: Axis, scale: Scale
) -> None:
    """Draw each trial at its two parameters: dark for a good value, the state's glyph without a value."""
    shown = every(trials, MOST_PAIR_POINTS["finished"])[::-1]  # the best on top
    drawn = {one.number for one in trials}
    others = [one for one in ledger.trials.values() if one.number not in drawn]
    for state, marker in (("pruned", "o"), ("stopped", "s"), ("failed", "x")):
        some = every([one for one in others if one.state == state], MOST_PAIR_POINTS[state])
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


def heat_map(
    axes: Axes, ledger: Ledger, trials: Sequence[Trial], across: Axis, up: Axis, scale: Scale
) -> None:
    """Draw the best value of each pair of parameter values; a state's glyph where no trial has one."""
    from matplotlib.patches import Rectangle

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


def place_of(trial: Trial, across: Axis, up: Axis) -> tuple[float, float]:
    """Return a trial's position on two axes; NaN for a parameter that it lacks."""
    given = trial.parameters
    x = across.place(given[across.name]) if across.name in given else math.nan
    return x, up.place(given[up.name]) if up.name in given else math.nan


def places_of(trials: Sequence[Trial], across: Axis, up: Axis) -> tuple[list[float], list[float]]:
    """Return the positions of trials, with equal ones a little apart."""
    places = [place_of(one, across, up) for one in trials]
    return spread([x for x, _ in places], trials, across), spread([y for _, y in places], trials, up)


def spread(places: Sequence[float], trials: Sequence[Trial], axis: Axis) -> list[float]:
    """Shift trials with one of a few values a little, each by a fixed amount, so that all are visible."""
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


# Parallel coordinates of a sweep: a line for each trial through its parameters to its value.

MOST_AXES = 6
MOST_LINES = {"finished": 60, "pruned": 16, "failed": 8, "stopped": 8}
NONE = -0.13  # the position of a trial without the parameter or without a value
DASHES = {"pruned": (0, (3, 2)), "failed": (0, (1, 1.5)), "stopped": (0, (6, 2))}


def parallel(axes: Axes, ledger: Ledger, trials: Sequence[Trial], names: Sequence[str], scale: Scale) -> None:
    """Draw the parameters of the largest weight in the space's order, and the value at the right."""
    from matplotlib.collections import LineCollection

    some = set(names[:MOST_AXES])
    order = [name for name in dict.fromkeys([*ledger.space, *names]) if name in some]
    upright = [axis_in(ledger, name) for name in order]
    lines = every(trials, MOST_LINES["finished"])[::-1]
    drawn: list[list[tuple[float, float]]] = []
    shown = {one.number for one in trials}
    for state, dashes in DASHES.items():
        others = [one for one in ledger.trials.values() if one.state == state and one.number not in shown]
        paths = [path_of(one, upright, scale) for one in every(others, MOST_LINES[state])]
        drawn += paths
        axes.add_collection(
            LineCollection(paths, colors=FAN, linewidths=0.6, linestyles=[dashes], antialiaseds=False)
        )
    for kind in ("pruned", None):  # trials without a value first, the best on top
        group = [one for one in lines if (one.state == "pruned") == (kind == "pruned")]
        colours = [scale.colour(one.value) for one in group]
        paths = [path_of(one, upright, scale) for one in group]
        drawn += paths
        widths = [1.9 if one is trials[0] else 0.6 for one in group]
        dashed = [DASHES["pruned"]] if kind else ["solid"]
        axes.add_collection(
            LineCollection(paths, colors=colours, linewidths=widths, linestyles=dashed, antialiaseds=False)
        )
    furnish(axes, ledger, upright, scale, lacking=any(height == NONE for path in drawn for _, height in path))
    title = "parallel coordinates"
    if len(lines) < len(trials):
        title += f", {len(lines)} of {len(trials):,} trials"
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    if any(one.state == "pruned" for one in ledger.trials.values()):
        axes.set_title("dashed: pruned", loc="right", fontsize=8, color=MUTED)


def path_of(trial: Trial, upright: Sequence[Axis], scale: Scale) -> list[tuple[float, float]]:
    """Return the points of a trial's line."""
    heights = [
        axis.place(trial.parameters[axis.name]) if axis.name in trial.parameters else math.nan
        for axis in upright
    ]
    low, high = scale.ends
    value = trial.value
    if value is None or not math.isfinite(value):
        heights.append(math.nan)
    else:
        heights.append(min(max((value - low) / (high - low), 0.0), 1.0) if low < high else 0.5)
    return [(at, NONE if math.isnan(height) else height) for at, height in enumerate(heights)]


def furnish(axes: Axes, ledger: Ledger, upright: Sequence[Axis], scale: Scale, *, lacking: bool) -> None:
    """Draw the vertical axes with their names and ticks, and a row for values that are ``lacking``."""
    room = max(6, 66 // (len(upright) + 1))  # letters, in a panel as wide as ours
    names = [clip(name, room) for name in (*(axis.name for axis in upright), ledger.created.metric)]
    value = Axis("", (), *scale.ends) if scale.ends[0] < scale.ends[1] else None
    for at, axis in enumerate([*upright, value]):
        axes.axvline(at, color=GRID if axis is None else FAN, linewidth=1.0, zorder=1)
        for place, text in [] if axis is None else axis.ticks():
            axes.text(
                at + 0.04, place, text, fontsize=7, color=MUTED, va="center", parse_math=False, zorder=5,
                bbox={"facecolor": PAPER, "alpha": 1.0, "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip
    if lacking:
        axes.axhline(NONE, color=GRID, linewidth=0.8, zorder=0)
        axes.text(-0.06, NONE, "none", fontsize=7, color=MUTED, ha="right", va="center")
    axes.set_xticks(range(len(names)), names, parse_math=False)
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=8, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.15, len(upright) + 0.45)
    axes.set_ylim((NONE if lacking else 0.0) - 0.05, 1.06)
