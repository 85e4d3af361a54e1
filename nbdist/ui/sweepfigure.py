"""The picture of a sweep that is over: a PNG by Matplotlib, drawn without pyplot's global state.

Best so far against time, the two parameters that the grid's heat map begins with, parallel coordinates, and
the curves of the best trials, as far as there is something to draw. Dark is good in all of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbdist.sweep.state import Ledger, Trial
from nbdist.ui.figure import LARGEST, drawable, encode
from nbdist.ui.palette import FAN, MUTED, PAPER, REPLICAS, TRAIN, shades
from nbdist.ui.shorten import clip
from nbdist.ui.sweepaxes import axis_in
from nbdist.ui.sweepcharts import frame, legend, within
from nbdist.ui.sweepmatter import all_ranked, by_weight, ranked, widest
from nbdist.ui.sweeppair import one_parameter, pair
from nbdist.ui.sweepparallel import parallel
from nbdist.ui.sweepramp import Scale, ramp_shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARPEST, COARSEST = 160, 40  # dots per inch
PANEL = (4.7, 3.1)  # inches
MOST_POINTS = 400
MOST_CURVES = 6
LONG = 8  # reports of a curve, from which its first quarter need not be seen


class Panel(NamedTuple):
    """One chart of the picture, and how much of a row it takes beside another."""

    fill: Callable[[Axes], None]
    share: int = 6


def picture(ledger: Ledger, limit: int) -> bytes | None:
    """Return a PNG of at most ``limit`` bytes, as sharp as that allows; None if no trial has a value."""
    import matplotlib

    panels = panels_of(ledger)
    if not panels:
        return None
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a notebook's own style may be made for other figures
        warnings.simplefilter("ignore")  # of letters that the font lacks
        figure = draw(panels)
        colours = [*shades(), *ramp_shades()]
        dots = SHARPEST
        while len(png := encode(figure, dots, colours)) > limit and dots > COARSEST:
            figure.set_layout_engine("none")  # everything stays where it was put
            dots = max(COARSEST, min(dots - 5, int(dots * (limit / len(png)) ** 0.7)))
    return png


def draw(panels: Sequence[Panel]) -> Figure:
    """Return the figure with its panels, two in a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), facecolor=PAPER, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, 12)
    for row in range(rows):
        side_by_side = panels[2 * row : 2 * row + 2]
        edge = 12 * side_by_side[0].share // sum(panel.share for panel in side_by_side)
        for panel, place in zip(side_by_side, (slice(0, edge), slice(edge, 12))):
            panel.fill(figure.add_subplot(grid[row, place]))
    return figure


def panels_of(ledger: Ledger) -> list[Panel]:
    """Return what there is to draw."""
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
    began = ledger.created.time
    over = [one for one in all_ranked(ledger) if one.ended_at is not None]
    ended, others = (
        some[:: -(-len(some) // MOST_POINTS) or 1]
        for some in (
            [one for one in over if one.state == "finished"],
            [one for one in over if one.state in ("pruned", "stopped")],
        )
    )
    last = max([span.end for span in ledger.spans], default=began) - began
    divisor, unit = (1, "s") if last < 180 else (60, "min") if last < 10_800 else (3600, "h")
    times = [((one.ended_at or 0.0) - began) / divisor for one in ended]
    values = drawable(np.array([math.nan if one.value is None else one.value for one in ended]))
    axes.scatter(times, values, s=12, color=FAN, alpha=0.55, linewidths=0)
    ends = [((one.ended_at or 0.0) - began) / divisor for one in others]
    hollow = drawable(np.array([one.value for one in others], float))
    axes.scatter(ends, hollow, s=12, facecolors="none", edgecolors=FAN, linewidths=0.8)
    at = [(one.time - began) / divisor for one in ledger.improvements]
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
    """Draw what the best trials reported."""
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
    if late and min(late) < max(late):  # how they began says less than how they ended
        room = 0.08 * (max(late) - min(late))
        axes.set_ylim(min(late) - room, max(late) + room)
    handles, labels = axes.get_legend_handles_labels()
    legend(axes, handles[::-1], labels[::-1], loc="best", ncols=2)
