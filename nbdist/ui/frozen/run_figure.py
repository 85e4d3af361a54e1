"""The picture of a run's curves: a PNG by Matplotlib, drawn without pyplot's global state."""

from __future__ import annotations

import io
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nbdist.metrics.run_events import Event
from nbdist.text import clip
from nbdist.ui.frozen.summary import short_task
from nbdist.ui.widgets.run_feed import Chart, course

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from nbdist.metrics.store import RunStore

SHARPEST, COARSEST = 200, 40  # dots per inch
COLUMN_WIDTH, ROW_HEIGHT = 4.6, 2.9  # inches
MARKERS = {
    "lost": "x", "replaced": "^", "joined": "+", "left": "_", "rate": "D", "pause": "s", "resume": ">",
    "checkpoint": "v", "schedule": "D", "state": "v",
}  # fmt: skip
"""The marker of each kind of event, the most important first."""
HOLLOW = ("schedule", "state")
IMPORTANT = list(MARKERS)
NEAR = 0.012  # of the axis, within which marks would stand on each other
LARGEST = 1e100  # Matplotlib's axes fail beyond it; such values are gaps, like non-finite ones


def picture(
    store: RunStore,
    charts: Sequence[Chart],
    tasks: Sequence[str],
    limit: int,
    axis: str = "steps",
    marks: Sequence[Event] = (),
    ended_replicas: Collection[int] = (),
) -> bytes:
    """Return a PNG of at most ``limit`` bytes, with the highest resolution that fits.

    ``axis`` is the label of x. The background is opaque, so that the picture is readable on a dark page.
    """
    with own_style():
        return encode_within(draw(store, charts, tasks, axis, marks, ended_replicas), limit)


def encode_within(figure: Figure, limit: int) -> bytes:
    """Return the figure as a PNG of at most ``limit`` bytes, with the highest resolution that fits."""
    dots = SHARPEST
    while len(png := encode(figure, dots)) > limit and dots > COARSEST:
        # The size is about proportional to the length of the edges; each attempt draws the figure again.
        dots = max(COARSEST, min(dots - 5, int(dots * (limit / len(png)) ** 0.85)))
    return png


def draw(
    store: RunStore,
    charts: Sequence[Chart],
    tasks: Sequence[str],
    axis: str = "steps",
    marks: Sequence[Event] = (),
    ended_replicas: Collection[int] = (),
) -> Figure:
    """Return the figure: axes for each chart with its ``marks``, and one legend.

    ``ended_replicas`` were lost or have left: they do not cut the mean.
    """
    from matplotlib.figure import Figure

    columns = columns_of(len(charts))
    rows = -(-len(charts) // columns)
    size = (COLUMN_WIDTH * columns, ROW_HEIGHT * rows)
    figure = Figure(figsize=size, facecolor=PAPER, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.04)  # type: ignore[union-attr, call-arg]
    keys: dict[str, Any] = {}
    for index, chart in enumerate(charts):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_xlabel(axis, fontsize=8, color=MUTED)
        lines = course_lines(store, chart, tasks, ended_replicas)
        fill(axes, chart.title, point_lines(store, chart), lines)
        draw_marks(axes, marks)
        keys |= {str(line.get_label()): line for line in axes.get_lines() if is_key(line)}
    if keys:
        add_legend(figure, keys, 3 * columns)
    return figure


def columns_of(charts: int) -> int:
    """Return the number of charts in a row."""
    return min(charts, 3) if charts != 4 else 2


def fill(axes: Axes, title: str, points: Sequence[Line], course: Sequence[Line]) -> None:
    """Draw one chart: pale points with the lines on top."""
    frame(axes, clip(title, 40))
    axes.xaxis.set_major_formatter(lambda step, _: short_count(step))
    for steps, values, style in [*points, *course]:
        axes.plot(steps, drawable(values), **style)
    within = y_range(*([drawable(values) for _, values, _ in lines] for lines in (course, points)))
    if within is not None:
        axes.set_ylim(*within)
        return
    axes.text(0.5, 0.5, "no finite values", transform=axes.transAxes, ha="center", color=MUTED, fontsize=9)


def frame(axes: Axes, title: str) -> None:
    """Draw a panel's title and a light frame."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, parse_math=False)
    axes.set_facecolor(PAPER)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)


def draw_marks(axes: Axes, marks: Sequence[Event]) -> None:
    """Draw a vertical line for each mark, with its sign at the top; a text below explains it.

    Of marks that would stand on each other, one of the most important kind is drawn.
    """
    low, high = axes.get_xlim()
    drawn: list[Event] = []
    for mark in sorted(marks, key=lambda mark: IMPORTANT.index(mark.kind)):
        if all(abs(mark.step - other.step) >= NEAR * (high - low) for other in drawn):
            drawn.append(mark)
    for mark in drawn:
        if mark.kind != "state":  # regular ones: their signs are enough
            axes.axvline(
                mark.step, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), label="_mark", zorder=1
            )
        axes.plot(
            [mark.step], [0.98], marker=MARKERS[mark.kind], markersize=4.5, color=MUTED, linestyle="none",
            transform=axes.get_xaxis_transform(), label="_mark", clip_on=False,
            markerfacecolor=PAPER if mark.kind in HOLLOW else MUTED,
        )  # fmt: skip


def drawable(values: Any) -> Any:
    """Replace values that are not finite, or too large for Matplotlib's axes, by gaps."""
    usable = np.abs(np.where(np.isfinite(values), values, np.inf)) < LARGEST
    return np.where(usable, values, np.nan)


def is_key(line: Line2D) -> bool:
    """Return whether the legend lists a line: it has a name and is visible."""
    return not str(line.get_label()).startswith("_") and bool(
        np.isfinite(np.asarray(line.get_ydata(), float)).any()
    )


def add_legend(figure: Figure, keys: Mapping[str, Any], columns: int) -> None:
    """Put one legend below all charts."""
    legend = figure.legend(
        list(keys.values()), list(keys), loc="outside lower left", ncols=min(len(keys), columns),
        fontsize=8, frameon=False, labelcolor=MUTED, columnspacing=1.6, handlelength=1.8, borderaxespad=0.2,
    )  # fmt: skip
    for entry in legend.get_texts():
        entry.set_parse_math(False)
    for name, handle in zip(keys, legend.get_lines(), strict=True):
        handle.set(**({"alpha": 0.35, "linewidth": 5} if name == EACH else {"alpha": 1}))


def encode(figure: Figure, dots: float, colours: Sequence[int] | int | None = None) -> bytes:
    """Return the figure as a PNG of few colours, which keeps notebook files small.

    ``colours`` is a palette of at most 256 colours (red, green, blue, red, ...), to which the figure's
    colours are mapped, or a number of colours, which Pillow chooses. None is the palette of a run's curves.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure.set_dpi(dots)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    file = io.BytesIO()
    if isinstance(colours, int):
        few = pixels.quantize(colours, dither=Image.Dither.NONE)
    else:
        palette = Image.new("P", (1, 1))
        palette.putpalette(shades() if colours is None else list(colours))
        few = pixels.quantize(palette=palette, dither=Image.Dither.NONE)
    few.save(file, "PNG", optimize=True)
    return file.getvalue()


@contextmanager
def own_style() -> Iterator[None]:
    """Use Matplotlib's default style inside a ``with``, because a notebook's own style may be unsuitable."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams["hatch.linewidth"] = 1.1
        matplotlib.rcParams["svg.hashsalt"] = "nbdist"
        warnings.simplefilter("ignore")  # about letters that the font lacks
        yield


def short_count(count: float) -> str:
    """Return a count as the label of a tick.

    >>> short_count(500), short_count(20_000), short_count(2_500_000)
    ('500', '20k', '2.5M')
    """
    if abs(count) >= 1e6:
        return f"{count / 1e6:.4g}M"
    return f"{count / 1e3:.4g}k" if abs(count) >= 1e4 else f"{count:.5g}"


# The lines of one chart of a frozen picture, and their styles.

Line = tuple[Any, Any, dict[str, Any]]  # steps, values, style
MOST_POINTS = 600
MOST_REPLICAS = 64
REPLICAS = ("#3a8a5f", "#8a5cc4", "#c04f86", "#8f7d1e", "#1f8f9c", "#b8473f", "#6b7a8f", "#7d6250")
COLOURED = len(REPLICAS)  # replicas with their own colour and an entry in the legend
FEW = 40  # points, up to which a line has markers
EACH = "each step"


def point_lines(store: RunStore, chart: Chart) -> list[Line]:
    """Return each replica's points: pale, because they only show the noise."""
    if chart.train is None:
        return []
    replicas = sorted(store.replicas)[:MOST_REPLICAS]
    several = len(replicas) > 1
    style = {
        "color": FAN if several else TRAIN,
        "alpha": max(0.02, 0.36 / len(replicas)) if several else 0.17,
        "linewidth": 1.0,
        "label": EACH,
    }
    return [(*store.points(replica, chart.train, limit=MOST_POINTS)[:2], style) for replica in replicas]


def course_lines(
    store: RunStore, chart: Chart, tasks: Sequence[str], ended_replicas: Collection[int] = ()
) -> list[Line]:
    """Return the main lines in drawing order: the replicas' trends, their mean, the dashed validation."""
    lines: list[Line] = []
    replicas = sorted(store.replicas)
    if chart.train is not None and len(replicas) > 1:
        lines += replica_lines(store, chart.train, replicas, tasks)
    if chart.train is not None and replicas:
        name = "mean over replicas" if len(replicas) > 1 else "training"
        style: dict[str, Any] = {"color": TRAIN, "linewidth": 2.0, "label": name}
        lines.append((*course(*store.aggregate(chart.train, ended_replicas=ended_replicas)), style))
    if chart.validation is not None:
        steps, values = course(*store.aggregate(chart.validation, ended_replicas=ended_replicas))
        style = {"color": VALIDATION, "linewidth": 1.6, "linestyle": (0, (4, 2)), "label": "validation"}
        if len(steps) <= FEW:
            style |= {"marker": "o", "markersize": 4, "markerfacecolor": PAPER}
        lines.append((steps, values, style))
    return lines


def replica_lines(store: RunStore, name: str, replicas: Sequence[int], tasks: Sequence[str]) -> list[Line]:
    """Return each replica's trend: coloured and named if they are few, else grey."""
    few = len(replicas) <= COLOURED
    fan = {"color": FAN, "alpha": max(0.15, 6 / len(replicas)), "linewidth": 0.8, "label": "_"}
    return [
        (
            *course(*store.trend(replica, name)),
            {"color": REPLICAS[index], "alpha": 0.85, "linewidth": 1.0, "label": label(tasks, replica)}
            if few
            else fan,
        )
        for index, replica in enumerate(replicas[:MOST_REPLICAS])
    ]


def label(tasks: Sequence[str], replica: int) -> str:
    """Return a replica's name without leading underscores, which would hide it from the legend."""
    name = short_task(tasks[replica]) if replica < len(tasks) else f"replica {replica}"
    return clip(name, 24).lstrip("_") or f"replica {replica}"


# The range of a chart's y axis. Pure; the live view has the same rule (widget/src/chart/domain.js).

Floats = NDArray[np.float64]
MOST_OF_POINTS = (0.03, 0.97)  # quantiles of the points that the range covers where there are no lines
HALF_OF_POINTS = (0.25, 0.75)  # and in any case
FEWEST = 5  # least number of values to tell a spike from a steep curve
OUTLIER_RANGES = 2.0  # a spike is outside the medians' range by more than this many ranges


def y_range(lines: Sequence[Floats], points: Sequence[Floats]) -> tuple[float, float] | None:
    """Return the range of the lines, without single spikes, and of most points; None without values.

    The points leave half of it to the lines, unless fewer than half of the points would be in it.
    The points are extremes of downsampled intervals, so 94% of them cover more than 94% of the measurements.

    >>> y_range([np.array([1.0, 2.0])], [np.array([1.0, 1e6] + 98 * [1.5])])
    (0.94, 2.06)
    >>> y_range([np.array([2.0, 4.0])], [np.linspace(0.0, 6.0, 100)])  # 1 to 5, and a margin
    (0.76, 5.24)
    """
    noise = finite(np.concatenate([np.empty(0), *points]))
    covered = [without_spikes(finite(line)) for line in lines]
    if len(noise):
        most, half = np.quantile(noise, MOST_OF_POINTS), np.quantile(noise, HALF_OF_POINTS)
        if read := [line for line in covered if len(line)]:
            first, last = min(line.min() for line in read), max(line.max() for line in read)
            room = (last - first) / 2
            most = np.clip(most, first - room, last + room)
            most = np.array([min(most[0], half[0]), max(most[1], half[1])])
        covered.append(most)
    values = np.concatenate([np.empty(0), *covered])
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def finite(values: Floats) -> Floats:
    """Return the finite values."""
    return np.asarray(values[np.isfinite(values)])


def without_spikes(values: Floats) -> Floats:
    """Return the values without single spikes, which lie far outside the range of the medians of three.

    >>> without_spikes(np.array([5.0, 3.0, 2.0, 900.0, 1.0, 1.0])).tolist()
    [5.0, 3.0, 2.0, 1.0, 1.0]
    """
    if len(values) < FEWEST:
        return values
    middle = np.median([values[:-2], values[1:-1], values[2:]], axis=0)
    low, high = middle.min(), middle.max()
    margin = OUTLIER_RANGES * (high - low)
    return np.asarray(values[(values >= low - margin) & (values <= high + margin)])


# The colours of a frozen picture, equal to the live view's on a light page.

INK, MUTED, GRID, PAPER, FAN = "#1c1c1e", "#6b6b70", "#e8e8ec", "#ffffff", "#9aa1ab"
TRAIN, VALIDATION = "#1a66b8", "#b35605"
STEPS = (1.0, 0.75, 0.5, 0.3, 0.15)


def shades() -> list[int]:
    """Return each colour in some shades towards the paper, as red, green, blue, red, green, blue, ...

    A palette fitted to one picture would map its few thin lines to the grey of its many pale points.

    >>> shades()[-3:], len(shades()) // 3 <= 256
    ([255, 255, 255], True)
    """
    colours = [bytes.fromhex(colour[1:]) for colour in (INK, MUTED, FAN, TRAIN, VALIDATION, *REPLICAS)]
    mixed = [round(255 - share * (255 - part)) for colour in colours for share in STEPS for part in colour]
    return [*mixed, *bytes.fromhex(GRID[1:]), *bytes.fromhex(PAPER[1:])]
