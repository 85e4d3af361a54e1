"""What the benchmarks' pictures have in common: log axes on light paper, names at the ends of lines."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER, SHADE = "#1c1c1e", "#6b6b70", "#e8e8ec", "#ffffff", "#f4f4f6"
LINE_HEIGHT = 0.056  # of a pair of axes
End = tuple[float, str, str]  # where a line ends, its name, its colour


def paper(rows: int, columns: int, title: str, note: str = "") -> tuple[Figure, Sequence[Axes]]:
    """Return a figure and its axes; nothing of pyplot's state is touched."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * columns, 3.9 * rows + 0.6), facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.14, h_pad=0.12, wspace=0.02, hspace=0.05)
    text = {"x": 0.008, "ha": "left"}
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK, **text)
    figure.supxlabel(note, fontsize=8.5, color=MUTED, **text)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def prepare(axes: Axes, title: str, subtitle: str, unit: str, counts: Sequence[int]) -> None:
    """Give a pair of axes their look: log scales, few lines, what is counted in `counts` along the bottom."""
    axes.set(xscale="log", yscale="log", xlim=(counts[0] * 0.9, counts[-1] * 1.1), facecolor=PAPER)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=20)
    axes.text(0, 1.03, subtitle, transform=axes.transAxes, fontsize=8.5, color=MUTED)
    axes.set_xticks(list(counts), [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.grid(color=GRID, linewidth=0.8)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=MUTED)
    axes.yaxis.set_major_formatter(lambda value, _: short(value, unit))
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def name_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write each line's name at its end, clear of the one below it."""
    low, high = axes.get_ylim()
    at = -1.0
    for value, name, colour in sorted(ends):
        at = max(log(value / low) / log(high / low), at + LINE_HEIGHT)
        axes.text(
            1.02,
            at,
            name,
            transform=axes.transAxes,
            color=colour,
            fontsize=8.5,
            fontweight="bold",
            va="center",
        )


def short(value: float, unit: str) -> str:
    """Return a number as people read it.

    >>> short(20_000_000, ""), short(3e9, "B"), short(0.002, "s")
    ('20 M', '3 GB', '2 ms')
    """
    if unit == "s" and value < 1:
        return f"{value * 1e3:g} ms" if value >= 1e-3 else f"{value * 1e6:g} µs"
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size and unit in ("", "B"):
            return f"{value / size:g} {prefix}{unit}"
    return f"{value:,g} {unit}".strip()
