"""A timeline in words: a line about it, a table of what each task's time went to, and a chart of letters."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nbdist.metrics.timeline import KINDS, Timeline
from nbdist.ui.shorten import clip
from nbdist.ui.summary import short_task

LETTERS = {"data": "d", "compute": "#", "send": ">", "receive": "<", "wait": ".", "apply": "+", "drop": "x"}
COLUMNS = 64


def headline(timeline: Timeline) -> str:
    """Return a line about a timeline.

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
    """Return how much of the time a task computed (or applied gradients, where it does nothing else)."""
    totals = timeline.totals()[task]
    kind = "compute" if "compute" in totals else "apply"
    part = totals.get(kind, 0.0) / timeline.seconds if timeline.seconds else 0.0
    return f"{part:.0%} {kind}"


def text(timeline: Timeline) -> str:
    """Return the headline, the table in milliseconds, and a chart of letters."""
    cells = table(timeline)
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(row))
        for row in ([*zip(line, widths, strict=True)] for line in cells)
    ]
    there = [kind for kind in KINDS if kind in cells[0]]
    key = "  ".join(f"{LETTERS[kind]} {kind}" for kind in there)
    chart = [
        f"{name:{widths[0]}}  |{letters(timeline, task)}|"
        for name, task in zip(names(timeline.tasks), timeline.tasks, strict=True)
    ]
    return "\n".join([headline(timeline), "", *lines, "", *chart, f"{'':{widths[0]}}   {key}"])


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
    """Return what tasks are called in a table."""
    return [clip(short_task(task), 24) for task in tasks]


def letters(timeline: Timeline, task: str, columns: int = COLUMNS) -> str:
    """Return a task's time as letters: in each place the kind that took most of it."""
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
