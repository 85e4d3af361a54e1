"""The figure of the slow worker benchmark: loss curves and the time to the target loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.slow_worker import Outcome

COLOURS = ("#0072b2", "#009e73", "#d55e00", "#aa4499")  # distinguishable with colour blindness
GREY = "#666666"


def draw(outcomes: Sequence[Outcome], target: float, path: Path) -> None:
    """Draw a row for each pace: loss curves on the left, times with their labels on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    paces = list(dict.fromkeys(o.pace for o in outcomes))
    layout = ConstrainedLayoutEngine(hspace=0.06, wspace=0.04)
    figure = Figure(figsize=(11, 2.6 * len(paces)), layout=layout, dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(paces), 2, squeeze=False, width_ratios=(1, 1.25))
    for (curves, bars), pace in zip(axes, paces, strict=True):
        found = [o for o in outcomes if o.pace == pace]
        _curves(curves, found, target)
        _bars(bars, found)
        curves.set_title(f"{pace}: held-out loss", loc="left", fontsize=10, weight="bold")
        bars.set_title(f"seconds until it is {target}", loc="left", fontsize=10)
    axes[-1][0].set_xlabel("seconds")
    figure.savefig(path)


def _curves(axes: Any, outcomes: Sequence[Outcome], target: float) -> None:
    for outcome, colour in zip(outcomes, COLOURS, strict=True):
        seconds, losses = zip(*outcome.curve, strict=True)
        axes.plot(seconds, losses, color=colour, linewidth=1.6)
        axes.plot(seconds[-1], losses[-1], "o", color=colour, markersize=5)
    axes.axhline(target, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.set_yticks([target, 0.5, 1, 2], [f"{target}", "0.5", "1", "2"])
    axes.minorticks_off()
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)


def _bars(axes: Any, outcomes: Sequence[Outcome]) -> None:
    longest = max(o.seconds for o in outcomes)
    for row, (outcome, colour) in enumerate(zip(outcomes, COLOURS, strict=True)):
        axes.barh(row, outcome.seconds, color=colour, height=0.32)
        axes.text(
            0, row - 0.24, f"{outcome.way}: {outcome.seconds:.1f} s", color=colour, weight="bold", va="bottom"
        )
        axes.text(outcome.seconds + 0.01 * longest, row, _notes(outcome), color=GREY, fontsize=8, va="center")
    axes.set_ylim(len(outcomes) - 0.6, -0.75)  # the first is on top
    axes.set_xlim(0, longest * 1.8)
    axes.axis("off")


def _notes(outcome: Outcome) -> str:
    notes = [f"{outcome.updates:,} updates"]
    if outcome.dropped:
        notes.append(f"{outcome.dropped:,} gradients dropped")
    if outcome.most_stale:
        notes.append(f"staleness {outcome.staleness:.1f} on average, {outcome.most_stale} at most")
    return "; ".join(notes)
