"""A timeline as a Gantt chart by Matplotlib (without pyplot's global state), as text and as HTML."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from nbdist.errors import InvalidArgumentError, choices
from nbdist.metrics.timeline import KINDS, Span, Timeline
from nbdist.text import clip
from nbdist.ui.frozen.render import aligned
from nbdist.ui.frozen.run_figure import (
    FAN,
    GRID,
    INK,
    MUTED,
    PAPER,
    REPLICAS,
    TRAIN,
    VALIDATION,
    encode,
    own_style,
)
from nbdist.ui.frozen.summary import short_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARPEST, COARSEST = 144, 48  # dots per inch
WIDTH = 9.4  # inches
FEW_ARROWS, MOST_ARROWS = 12, 80  # with more, the arrows go behind the bars; with many more, none are drawn
LETTER = 0.062  # inches per letter of a bar's label
BEHIND = 0.9  # in drawing order: before the bars
THINNEST, APART = 0.0012, 0.0008  # least width of a bar and of a gap, as shares of the chart's width
BAR, GAP = 0.62, 0.35  # height of a bar, and gap between tasks with several lanes, in rows


@dataclass(frozen=True)
class Row:
    """A lane of a task and its position; ``first`` is true for a task's first lane."""

    task: str
    lane: str
    place: float
    first: bool


def png(timeline: Timeline, theme: str = "light", limit: int | None = None) -> bytes:
    """Return the chart as an opaque PNG, with a lower resolution if it would exceed ``limit`` bytes."""
    with own_style():
        figure = draw(timeline, theme_of(theme))
        dots = SHARPEST
        image = encode(figure, dots, 96)
        while limit is not None and len(image) > limit and dots > COARSEST:
            dots = max(COARSEST, min(dots - 6, int(dots * (limit / len(image)) ** 0.8)))
            image = encode(figure, dots, 96)
    return image


def svg(timeline: Timeline, theme: str = "light") -> bytes:
    """Return the chart as an SVG, the same for equal timelines."""
    with own_style():
        return _rendered(draw(timeline, theme_of(theme)), "svg", metadata={"Date": None})


def draw(timeline: Timeline, theme: Theme) -> Figure:
    """Return the figure: a row per lane, a bar per span, an arrow from each send to its receive."""
    from matplotlib.figure import Figure

    rows = rows_of(timeline)
    height = rows[-1].place + 1 if rows else 1.0
    inch = min(0.46, max(0.27, 5.2 / height))  # inches per row: sixteen tasks fit on a screen
    figure = Figure(figsize=(WIDTH, inch * height + 1.15), facecolor=theme.paper, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    axes = figure.add_subplot()
    _frame(axes, timeline, rows, theme)
    places = {(row.task, row.lane): row.place for row in rows}
    _bars(axes, timeline, places, theme)
    _arrows(axes, timeline, places, theme)
    _legend(figure, timeline, theme)
    return figure


def rows_of(timeline: Timeline) -> list[Row]:
    """Return the rows from top to bottom; a task without spans has one row."""
    rows: list[Row] = []
    place = 0.0
    for task in timeline.tasks:
        lanes = timeline.lanes(task) or ("",)
        for index, lane in enumerate(lanes):
            rows.append(Row(task, lane, place, index == 0))
            place += 1
        place += GAP if len(lanes) > 1 else 0
    return rows


def _frame(axes: Axes, timeline: Timeline, rows: list[Row], theme: Theme) -> None:
    """Draw the names, the time axis and the shares of computing around the bars."""
    zero, end = timeline.bounds
    axes.set_title(
        clip(headline(timeline), 110), loc="left", fontsize=10, fontweight="bold", color=theme.ink,
        parse_math=False, pad=8,
    )  # fmt: skip
    axes.set_facecolor(theme.paper)
    axes.grid(axis="x", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=theme.muted)
    axes.set_xlim(0, (end - zero) * 1e3 or 1)
    axes.set_ylim((rows[-1].place if rows else 0) + 0.62, -0.62)
    axes.set_xlabel("milliseconds", fontsize=8, color=theme.muted)
    several = {row.task for row in rows if not row.first}
    axes.set_yticks([row.place for row in rows], [_label(row, several) for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set(color=theme.ink if row.first else theme.muted, fontsize=9)
        label.set_parse_math(False)
    for row in rows:
        text = share(timeline, row.task) if timeline.lanes(row.task) else "nothing on record"
        if row.first:
            axes.annotate(
                text, (1, row.place), xycoords=("axes fraction", "data"), xytext=(6, 0),
                textcoords="offset points", va="center", fontsize=8, color=theme.muted, annotation_clip=False,
            )  # fmt: skip


def _label(row: Row, several: set[str]) -> str:
    """Return a row's name, with the lane if the task has several."""
    name, lane = clip(short_task(row.task), 24), clip(row.lane, 18)
    if row.task not in several:
        return name
    return f"{name} · {lane}" if row.first else lane


def _bars(axes: Axes, timeline: Timeline, places: dict[tuple[str, str], float], theme: Theme) -> None:
    zero, end = timeline.bounds
    inches = (WIDTH - 1.9) / max(end - zero, 1e-12)
    least, apart = (end - zero) * THINNEST, (end - zero) * APART
    for (task, lane), place in places.items():
        mine = [span for span in timeline.spans if (span.task, span.lane) == (task, lane)]
        where = (place - BAR / 2, BAR)
        for kind in KINDS:
            bars = [
                ((span.start - zero) * 1e3, max(span.seconds - apart, least) * 1e3)
                for span in mine
                if span.kind == kind
            ]
            if not bars:
                continue
            axes.broken_barh(bars, where, facecolor=theme.kinds[kind], linewidth=0)
            if HATCHES[kind]:
                axes.broken_barh(
                    bars, where, facecolor="none", edgecolor=theme.stripes, linewidth=0, hatch=HATCHES[kind]
                )
        for span in mine:
            if span.kind == "compute":
                _write(axes, span, zero, place, inches * span.seconds, theme)


def _write(axes: Axes, span: Span, zero: float, place: float, inches: float, theme: Theme) -> None:
    """Write a bar's duration into it if there is room."""
    time = milliseconds(span.seconds)
    text = next((t for t in (f"{span.name} {time} ms", time) if len(t) * LETTER < inches), None)
    if text is not None:
        middle = (span.start - zero + span.seconds / 2) * 1e3
        axes.text(
            middle, place, clip(text, 60), ha="center", va="center", fontsize=7.5, color=theme.paper,
            parse_math=False, clip_on=True,
        )  # fmt: skip


def _arrows(axes: Axes, timeline: Timeline, places: dict[tuple[str, str], float], theme: Theme) -> None:
    """Draw an arrow from a send's end (or its receive's start, if earlier) to the receive."""
    from matplotlib.patheffects import withStroke

    pairs = timeline.arrows()
    zero, _ = timeline.bounds
    few = len(pairs) <= FEW_ARROWS
    style = {
        "arrowstyle": "-|>,head_length=0.3,head_width=0.15",
        "linewidth": 1,
        "shrinkA": 0,
        "shrinkB": 0,
        "color": theme.arrow if few else theme.faint,
        "path_effects": [withStroke(linewidth=2.6, foreground=theme.paper)] if few else [],
    }
    for send, receive in pairs if len(pairs) <= MOST_ARROWS else ():
        start, end = places[send.task, send.lane], places[receive.task, receive.lane]
        down = BAR / 2 if end > start else -BAR / 2
        tail = min(send.end, max(receive.start, send.start))
        head = max(receive.start, tail)
        ends = ((head - zero) * 1e3, end - down), ((tail - zero) * 1e3, start + down)
        axes.annotate("", *ends, arrowprops=style, zorder=3 if few else BEHIND)


def _legend(figure: Figure, timeline: Timeline, theme: Theme) -> None:
    """Put the legend of the occurring kinds below the chart."""
    from matplotlib.patches import Patch

    there = {span.kind for span in timeline.spans}
    keys = [
        Patch(
            facecolor=theme.kinds[kind], edgecolor=theme.stripes, linewidth=0, hatch=HATCHES[kind], label=kind
        )
        for kind in KINDS
        if kind in there
    ]
    if keys:
        figure.legend(
            handles=keys, loc="outside lower left", ncols=len(KINDS), fontsize=8, frameon=False,
            labelcolor=theme.muted, columnspacing=1.6, handlelength=2.2, handleheight=1.1, borderaxespad=0.2,
        )  # fmt: skip


def _rendered(figure: Figure, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=format, **options)
    return file.getvalue()


# Styles of a timeline on light and dark pages: colours and a hatching per kind.

HATCHES: Mapping[str, str] = {
    "data": "----",
    "compute": "",
    "send": "/////",
    "receive": "\\\\\\\\\\",
    "wait": "",
    "apply": "xxxxx",
    "drop": "+++++",
}


@dataclass(frozen=True)
class Theme:
    """The colours of a page and of the kinds of spans."""

    ink: str
    muted: str
    grid: str
    paper: str
    arrow: str
    faint: str
    stripes: str
    kinds: Mapping[str, str]


THEMES: Mapping[str, Theme] = {
    "light": Theme(
        INK, MUTED, GRID, PAPER, MUTED, FAN, "#ffffff70",
        {"data": REPLICAS[3], "compute": TRAIN, "send": VALIDATION, "receive": REPLICAS[4],
         "wait": "#dcdfe4", "apply": REPLICAS[1], "drop": REPLICAS[5]},
    ),
    "dark": Theme(
        "#eceef2", "#a3a9b4", "#2b2e36", "#16181d", "#c3c8d1", "#6d7482", "#16181d80",
        {"data": "#cdb95a", "compute": "#62a8ee", "send": "#f2994e", "receive": "#4fc1cd",
         "wait": "#3b404a", "apply": "#b893f2", "drop": "#ef7d72"},
    ),
}  # fmt: skip


def theme_of(name: str) -> Theme:
    """Return a theme by name."""
    if name not in THEMES:
        raise InvalidArgumentError(f"no theme {name!r}; {choices(name, THEMES)}")
    return THEMES[name]


# A timeline as text: a headline, a table of each task's time, and a chart of characters.

LETTERS = {"data": "d", "compute": "#", "send": ">", "receive": "<", "wait": ".", "apply": "+", "drop": "x"}
COLUMNS = 64


def headline(timeline: Timeline) -> str:
    """Return a timeline's headline.

    >>> headline(Timeline([], title="mnist · step 12"))
    'mnist · step 12 · 0 ms'
    """
    parts = [timeline.title or "timeline", f"{milliseconds(timeline.seconds)} ms"]
    if timeline.left_out:
        parts.append(f"{timeline.left_out:,} earlier spans are left out")
    return " · ".join(parts)


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with three significant digits.

    >>> milliseconds(0.0024), milliseconds(1.5), milliseconds(0.00000123)
    ('2.4', '1,500', '0.00123')
    """
    value = float(f"{seconds * 1e3:.3g}")
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


def share(timeline: Timeline, task: str) -> str:
    """Return the share of the time in which a task computed, or applied gradients if it does only that."""
    totals = timeline.totals()[task]
    kind = "compute" if "compute" in totals else "apply"
    part = totals.get(kind, 0.0) / timeline.seconds if timeline.seconds else 0.0
    return f"{part:.0%} {kind}"


def text(timeline: Timeline) -> str:
    """Return the headline, the table in milliseconds, and a chart of letters."""
    cells = table(timeline)
    lines, wide = aligned(cells), max(len(row[0]) for row in cells)
    there = [kind for kind in KINDS if kind in cells[0]]
    key = "  ".join(f"{LETTERS[kind]} {kind}" for kind in there)
    chart = [
        f"{name:{wide}}  |{letters(timeline, task)}|"
        for name, task in zip(names(timeline.tasks), timeline.tasks, strict=True)
    ]
    return "\n".join([headline(timeline), "", *lines, "", *chart, f"{'':{wide}}   {key}"])


def html(timeline: Timeline, picture: str) -> str:
    """Return the picture (a PNG in base64) and the table; plain elements, for untrusted notebooks too."""
    head, *body = table(timeline)
    columns = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(row[0])}</th>'
        + "".join(f'<td style="text-align:right">{escape(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in body
    )
    return (
        f'<p><img alt="{escape(headline(timeline))}; the table below has the figures" '
        f'src="data:image/png;base64,{picture}" '
        'style="width:100%; min-width:680px; max-width:1100px; height:auto"></p>\n'
        f"<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"
    )


def table(timeline: Timeline) -> list[list[str]]:
    """Return the cells of the table, the heads first: milliseconds of each task by kind."""
    totals = timeline.totals()
    kinds = [kind for kind in KINDS if any(kind in spent for spent in totals.values())]
    rows = [["ms", *kinds]]
    for name, task in zip(names(timeline.tasks), timeline.tasks, strict=True):
        spent = totals[task]
        rows.append([name, *(milliseconds(spent[kind]) if kind in spent else "" for kind in kinds)])
    return rows


def names(tasks: Sequence[str]) -> list[str]:
    """Return the tasks' names in a table."""
    return [clip(short_task(task), 24) for task in tasks]


def letters(timeline: Timeline, task: str, columns: int = COLUMNS) -> str:
    """Return a task's time as letters, each for the kind that took most of an interval."""
    begin, _ = timeline.bounds
    width = timeline.seconds / columns
    cells: list[dict[str, float]] = [{} for _ in range(columns)]
    for span in timeline.spans if width else ():
        if span.task == task:
            first, last = (span.start - begin) / width, (span.end - begin) / width
            for column in range(int(first), min(int(last) + 1, columns)):
                part = min(last, column + 1) - max(first, column)
                cells[column][span.kind] = cells[column].get(span.kind, 0.0) + part
    most = [max(cell, key=lambda kind, cell=cell: cell[kind], default="") for cell in cells]  # type: ignore[misc]
    return "".join(LETTERS.get(kind, " ") for kind in most)
