"""Parallel coordinates of a sweep: a line for each trial through its parameters to its value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbdist.sweep.state import Ledger, Trial
from nbdist.ui.palette import FAN, GRID, INK, MUTED, PAPER
from nbdist.ui.shorten import clip
from nbdist.ui.sweepaxes import Axis, axis_in
from nbdist.ui.sweepmatter import every
from nbdist.ui.sweepramp import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_AXES = 6
MOST_LINES = {"finished": 60, "pruned": 16, "failed": 8, "stopped": 8}
NONE = -0.13  # where a line goes that has no such parameter, or no value
DASHES = {"pruned": (0, (3, 2)), "failed": (0, (1, 1.5)), "stopped": (0, (6, 2))}


def parallel(axes: Axes, ledger: Ledger, trials: Sequence[Trial], names: Sequence[str], scale: Scale) -> None:
    """Draw the parameters that matter most, in the order of the space, and the value at the right."""
    from matplotlib.collections import LineCollection

    some = set(names[:MOST_AXES])
    order = [name for name in dict.fromkeys([*ledger.space, *names]) if name in some]
    upright = [axis_in(ledger, name) for name in order]
    lines = every(trials, MOST_LINES["finished"])[::-1]
    shown = {one.number for one in trials}
    for state, dashes in DASHES.items():
        others = [one for one in ledger.trials.values() if one.state == state and one.number not in shown]
        paths = [path_of(one, upright, scale) for one in every(others, MOST_LINES[state])]
        axes.add_collection(
            LineCollection(paths, colors=FAN, linewidths=0.6, linestyles=[dashes], antialiaseds=False)
        )
    for kind in ("pruned", None):  # those without a value of their own first, the best on top
        group = [one for one in lines if (one.state == "pruned") == (kind == "pruned")]
        colours = [scale.colour(one.value) for one in group]
        paths = [path_of(one, upright, scale) for one in group]
        widths = [1.9 if one is trials[0] else 0.6 for one in group]
        dashed = [DASHES["pruned"]] if kind else ["solid"]
        axes.add_collection(
            LineCollection(paths, colors=colours, linewidths=widths, linestyles=dashed, antialiaseds=False)
        )
    furnish(axes, ledger, upright, scale)
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


def furnish(axes: Axes, ledger: Ledger, upright: Sequence[Axis], scale: Scale) -> None:
    """Draw the upright axes with their names and ticks."""
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
    axes.axhline(NONE, color=GRID, linewidth=0.8, zorder=0)
    axes.text(-0.06, NONE, "none", fontsize=7, color=MUTED, ha="right", va="center")
    axes.set_xticks(range(len(names)), names, parse_math=False)
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=8, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.15, len(upright) + 0.45)
    axes.set_ylim(NONE - 0.05, 1.06)
