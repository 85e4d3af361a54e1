"""The output of a comparison in a notebook: data, picture, tables and text. It needs no kernel.

- ``application/vnd.nbdist.comparison+json``: what `comparison_data` returns, from which a page draws it
- ``image/png``: the curves, if there are any
- ``text/html``: the same picture, the table, the differences of the code; all of it escaped
- ``text/plain``: the table and the difference as text

It has less than 150 kB, as the output of a run.
"""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING, Any

from nbdist.text import clip
from nbdist.ui.compare.curves import AXES
from nbdist.ui.formatting import first_of, shorten, well_formed
from nbdist.ui.frozen.run import LARGEST, LIMITS, PICTURE_LIMIT, points_text
from nbdist.ui.frozen.run_figure import (
    COLUMN_WIDTH,
    MUTED,
    PAPER,
    REPLICAS,
    ROW_HEIGHT,
    Line,
    add_legend,
    columns_of,
    drawable,
    encode_within,
    frame,
    is_key,
    own_style,
    short_count,
    y_range,
)
from nbdist.ui.pictures import size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nbdist.ui.compare.comparison import Comparison

COMPARISON = "application/vnd.nbdist.comparison+json"
GLYPHS = "●■▲◆▼✚✖★"
"""A glyph for each run, so that a curve is known without its colour; MARKERS are the same in a picture."""
MARKERS = "os^DvPX*"
MARKER_EVERY = 0.12  # of the length of the picture's diagonal
LONGEST_LABEL = 24  # characters
MOST_ROWS = 60  # of the table, of what differs and of metrics each
HTML_ROOM = 24_000  # bytes of the differences of the code
TEXT_ROOM = 16_000


def bundle_of(comparison: Comparison, text: str) -> dict[str, Any]:
    """Return the MIME bundle of a comparison; ``text`` is its plain text."""
    bundle: dict[str, Any] = {"text/plain": shorten(text, TEXT_ROOM)}
    picture = ""
    if comparison.charts:
        with own_style():
            png = encode_within(drawn(comparison), PICTURE_LIMIT)
        bundle["image/png"] = picture = base64.b64encode(png).decode("ascii")
    bundle["text/html"] = well_formed(html(comparison, picture))
    bundle[COMPARISON] = well_formed(comparison_data(comparison, LARGEST - size(bundle)))
    return bundle


# The data, from which a page draws it: `application/vnd.nbdist.comparison+json`.
#
#     {"version": 1, "by": "epoch",
#      "runs": [{"id": "261120-091512-mnist", "name": "baseline", "status": "finished"}],
#      "charts": [{"title": "loss", "train": "loss", "validation": "val_loss"}],
#      "series": [{"name": "loss", "run": 0, "steps": "0 10", "values": "2.3 nan"}],
#      "axes": [{"run": 0, "by": "epoch", "steps": "0 250", "values": "0 1"}],   epochs or seconds at steps
#      "differences": [{"name": "--strategy", "texts": ["ps", "multi_worker"]}],
#      "metrics": [{"name": "loss (last)", "texts": ["0.31", "0.25"], "best": [1]}],
#      "notes": [], "left_out": 0}
#
# Steps and values are text for the reasons that nbdist/ui/frozen/run.py gives.


def comparison_data(comparison: Comparison, limit: int) -> dict[str, Any]:
    """Return the data in at most ``limit`` bytes of JSON: fewer points first, then fewer curves."""
    rows = {
        name: {"name": clip(name), "texts": [clip(text) for text in texts], "best": best}
        for name, texts, best in comparison.rows
    }
    differences = {name: rows[name] for name in comparison.differences}
    metrics = {name: rows[name] for name in comparison.metrics}
    data: dict[str, Any] = {
        "version": 1,
        "by": comparison.by,
        "runs": [
            {"id": run.id, "name": label, "status": run.status}
            for run, label in zip(comparison.runs, comparison.labels, strict=True)
        ],
        "charts": [
            {"title": clip(one.title), "train": one.train, "validation": one.validation}
            for one in comparison.charts
        ],
        "series": [],
        "axes": [
            {"run": at, "by": by, **points_text(*places)}
            for at, one in enumerate(comparison.curves)
            for by, places in one.axes.items()
        ],
        "differences": [
            {name: row[name] for name in ("name", "texts")} for _, row in first_of(differences, MOST_ROWS)
        ],
        "metrics": [row for _, row in first_of(metrics, MOST_ROWS)],
        "notes": [clip(note, 300) for note in comparison.notes],
        "left_out": 0,
    }
    room = limit - size(data)
    series: list[dict[str, Any]] = []
    for most, _ in LIMITS:
        series = [
            {"name": name, "run": at, **points_text(*found, ".4g")}
            for chart in comparison.charts
            for name in chart.names
            for at, one in enumerate(comparison.curves)
            if len((found := one.course(name, most))[0])
        ]
        if size(series) <= room:
            break
    whole = len(series)
    while series and size(series) > room:
        series.pop()
    return {**data, "series": series, "left_out": whole - len(series)}


# The picture.


def drawn(comparison: Comparison) -> Figure:
    """Return the figure: axes for each chart with the curves of all runs, and one legend."""
    from matplotlib.figure import Figure

    columns = columns_of(len(comparison.charts))
    count = -(-len(comparison.charts) // columns)
    shape = (COLUMN_WIDTH * columns, ROW_HEIGHT * count)
    figure = Figure(figsize=shape, facecolor=PAPER, layout="constrained")
    keys: dict[str, Any] = {}
    for index, chart in enumerate(comparison.charts):
        axes = figure.add_subplot(count, columns, index + 1)
        axes.set_xlabel(AXES[comparison.by], fontsize=8, color=MUTED)
        axes.xaxis.set_major_formatter(lambda at, _: short_count(at))
        frame(axes, clip(chart.title, 40))
        lines = [
            line for name in chart.names for line in lines_of(comparison, name, name == chart.validation)
        ]
        for x, values, style in lines:
            axes.plot(x, drawable(values), **style)
        within = y_range([drawable(values) for _, values, _ in lines], [])
        if within is not None:
            axes.set_ylim(*within)
        keys |= {str(line.get_label()): line for line in axes.get_lines() if is_key(line)}
    if keys:
        add_legend(figure, keys, 2 * columns)
    return figure


def lines_of(comparison: Comparison, name: str, dashed: bool) -> list[Line]:
    """Return the curve of each run that has it; that of validation data is dashed."""
    found: list[Line] = []
    for place, (label, curves) in enumerate(zip(comparison.labels, comparison.curves, strict=True)):
        steps, values = curves.course(name)
        if len(steps) and curves.has(comparison.by):
            style = {
                "color": REPLICAS[place], "linewidth": 1.6, "label": clip(label, LONGEST_LABEL),
                "marker": MARKERS[place], "markersize": 5, "markevery": (0.03 * place, MARKER_EVERY),
            }  # fmt: skip
            if dashed:
                style |= {"linestyle": (0, (4, 2)), "label": "_", "markerfacecolor": PAPER}
            found.append((curves.positions(comparison.by, steps), values, style))
    return found


# The HTML.


def html(comparison: Comparison, picture: str) -> str:
    """Return the HTML; ``picture`` is a PNG in base64, "" for none."""
    parts = [f"<p><strong>{len(comparison.runs)} runs</strong></p>"]
    if picture:
        alt = escape(f"Curves of {', '.join(comparison.labels)}")
        style = "width:100%; max-width:900px; height:auto"
        parts.append(f'<p><img alt="{alt}" src="data:image/png;base64,{picture}" style="{style}"></p>')
    names = "".join(
        f'<th scope="col"><span style="color:{REPLICAS[at]}">{GLYPHS[at]}</span> {escape(label)}</th>'
        for at, label in enumerate(comparison.labels)
    )
    body = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(clip(name))}</th>'
        + "".join(
            f"<td><strong>{escape(text)} ★</strong></td>" if at in best else f"<td>{escape(text)}</td>"
            for at, text in enumerate(texts)
        )
        + "</tr>"
        for name, texts, best in comparison.rows[: 2 * MOST_ROWS]
    )
    head = f'<thead><tr><th scope="col">what differs</th>{names}</tr></thead>'
    parts.append(f"<table>{head}<tbody>{body}</tbody></table>")
    parts += [f"<p>{escape(note)}</p>" for note in comparison.notes]
    room = HTML_ROOM // (len(comparison.runs) - 1)
    for at in range(1, len(comparison.runs)):
        if diff := comparison.code_diff(0, at):
            title = escape(f"code: {comparison.labels[0]} → {comparison.labels[at]}")
            text = escape(shorten(diff, room, escape))
            parts.append(f"<details><summary><small>{title}</small></summary><pre>{text}</pre></details>")
    return "\n".join(parts)
