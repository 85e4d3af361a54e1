"""A graph's picture as PNG, drawn with Matplotlib: for pages that show no SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from nbdist.graph.layout.stretch import Spread
from nbdist.ui.frozen.run_figure import encode, own_style
from nbdist.ui.graph.marks import (
    Mark,
    Rect,
    Shape,
    Words,
    box_marks,
    frame_marks,
    head_path,
    label_marks,
    line_path,
    line_role,
    open_marks,
)  # fmt: skip
from nbdist.ui.graph.style import LOOKS, WORDS, colour
from nbdist.ui.graph.svg import BELOW, MARGIN, page_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Placed = tuple[Mark, float, float]
"""A mark and the position of its origin."""


ALIGNED = {"start": "left", "middle": "center"}
MOST_PIXELS, USUAL_PIXELS = 12_000_000, 2_000_000  # of any picture; of one in a notebook
SHARPEST, COARSEST = 2.0, 0.15  # dots per pixel


def png(shown: Spread, scale: float) -> bytes:
    """Return the picture with ``scale`` dots per pixel of the SVG (fewer if it is very large)."""
    wide, high, keys = page_size(shown)
    wide, high = wide + 2 * MARGIN, high + 2 * MARGIN
    scale = min(scale, (MOST_PIXELS / (wide * high)) ** 0.5)
    marks = [*placed(shown, MARGIN, MARGIN), *((key, MARGIN, MARGIN + shown.height + BELOW) for key in keys)]
    with own_style():
        figure = _figure(marks, wide, high, scale)
        return encode(figure, figure.dpi, 96)


def png_within(shown: Spread, limit: int) -> bytes:
    """Return the picture in at most ``limit`` bytes, with the highest resolution that fits."""
    wide, high, _ = page_size(shown)
    scale = min(SHARPEST, (USUAL_PIXELS / (wide * high)) ** 0.5)
    while len(data := png(shown, scale)) > limit and scale > COARSEST:
        # The size grows a little more slowly than the area; each attempt draws the picture again.
        scale = max(COARSEST, scale * min(0.95, (limit / len(data)) ** 0.65))
    return data


def placed(shown: Spread, x: float, y: float) -> Iterator[Placed]:
    """Yield all marks of a sheet with their origins, from back to front."""
    for number, frame in enumerate(shown.frames):
        for mark in frame_marks(frame.device, number, frame.right - frame.left, shown.height):
            yield mark, x + frame.left, y
    for way in shown.ways:
        role = line_role(way.line.edges)
        yield Shape(role, line_path(way)), x, y
        if way.line.target >= 0 and shown.shown[way.line.target].inside is None:
            yield Shape(f"{role}-head", head_path(way)), x, y
    for way in shown.ways:
        if way.line.label:
            yield from (
                (mark, x + way.label_at[0], y + way.label_at[1])
                for mark in label_marks(way, not shown.frames)
            )
    for box in shown.shown:
        at = x + box.x, y + box.y
        if box.inside is None:
            yield from ((mark, *at) for mark in box_marks(box.box, box.width, box.height))
        else:
            yield from ((mark, *at) for mark in open_marks(box.box, box.width, box.height))
            yield from placed(box.inside, *at)


def _figure(marks: Iterable[Placed], wide: float, high: float, scale: float) -> Figure:
    """Return a figure with axes in points; at 72 dpi a point is a pixel of the SVG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide / 72, high / 72), dpi=72 * scale, facecolor=colour("paper"))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, wide), ylim=(high, 0))
    axes.set_axis_off()
    for order, (mark, x, y) in enumerate(marks):
        axes.add_artist(_artist(mark, x, y, order))
    return figure


def _artist(mark: Mark, x: float, y: float, order: int) -> Any:
    from matplotlib.patches import PathPatch
    from matplotlib.text import Text

    if isinstance(mark, Words):
        letters = WORDS[mark.role]
        return Text(
            x + mark.x, y + mark.y + letters.size * 0.36, mark.text, parse_math=False, zorder=order,
            fontsize=letters.size, color=colour(letters.colour), ha=ALIGNED[mark.anchor],
            va="baseline", weight="bold" if letters.bold else "normal", clip_on=False,
        )  # fmt: skip
    look = LOOKS.get(mark.role)
    fill = mark.fill if isinstance(mark, Shape) and mark.fill else colour(look.fill if look else "")
    return PathPatch(
        _path(mark, x, y), facecolor=fill, edgecolor=colour(look.line if look else ""), zorder=order,
        linewidth=look.width if look else 0, linestyle=(0, look.dash) if look and look.dash else "-",
        capstyle="butt", joinstyle="round",
    )  # fmt: skip


def _path(mark: Rect | Shape, x: float, y: float) -> Any:
    from matplotlib.patches import BoxStyle
    from matplotlib.path import Path

    if isinstance(mark, Rect):
        corners = BoxStyle.Round(0, min(mark.radius, mark.width / 2, mark.height / 2))
        return corners(x + mark.x, y + mark.y, mark.width, mark.height, 1.0)
    codes = {"M": Path.MOVETO, "L": Path.LINETO, "Q": Path.CURVE3, "C": Path.CURVE4, "Z": Path.CLOSEPOLY}
    points, kinds = [], []
    for letter, ends in mark.path:
        points += [(x + a, y + b) for a, b in ends] or [(0.0, 0.0)]
        kinds += [codes[letter]] * max(1, len(ends))
    return Path(points, kinds)
