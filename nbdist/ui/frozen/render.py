"""A frozen output as HTML and as text. Untrusted notebooks keep only plain elements and few styles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape

from nbdist.terminal.ansi import marked, part, spans, styled
from nbdist.text import clip, cut_note
from nbdist.ui.formatting import Room, first_of, fitting, longest, shorten
from nbdist.ui.frozen.summary import Summary, apart, headline, is_plain, marks_line, number, short_task
from nbdist.ui.gpus import gpu_rows
from nbdist.ui.input_pipeline import input_title
from nbdist.ui.pictures import pictures_html

MOST_COLUMNS = 8
FEW_LETTERS = 100  # characters of names side by side
LEAST_OUTPUT = 500  # bytes: with less room a task's output is not shown
UNFOLDED_LINES = 30  # a longer output is folded
MARKS_ROOM = 1500  # characters
PICTURE_WIDTH = 900  # CSS pixels at most
COLUMN_WIDTH = 290  # least CSS pixels per chart; a narrower page scrolls


def html(summary: Summary, picture: str | None, room: Room, columns: int = 1) -> str:
    """Return the HTML; ``picture`` is a PNG in base64, with its charts in ``columns`` columns."""
    name = (
        f" &nbsp; <small>{line(summary.run_id)}</small>" if summary.run_id not in ("", summary.title) else ""
    )
    parts = [f"<p><strong>{line(summary.title)}</strong> &nbsp; {line(headline(summary), 200)}{name}</p>"]
    if picture is None and is_plain(summary):
        parts = [] if any(summary.outputs.values()) else [f"<p><small>{line(headline(summary))}</small></p>"]
    if summary.error:
        error = escape(shorten(summary.error, room.error, escape))
        parts.append(f"<pre>{error}</pre>" if "\n" in error else f"<p><code>{error}</code></p>")
    if picture is not None:
        parts.append(
            f'<p><img alt="{describe(summary)}" src="data:image/png;base64,{picture}" '
            f'style="width:100%; min-width:{columns * COLUMN_WIDTH}px; max-width:{PICTURE_WIDTH}px; '
            'height:auto"></p>'
        )
    if summary.marks and picture is not None:
        parts.append(f"<p><small>{line(marks_line(summary), MARKS_ROOM)}</small></p>")
    parts.append(pictures_html(summary.pictures))
    if summary.trained_on:
        parts.append(f"<p><small>trained on {line(summary.trained_on, 600)}</small></p>")
    if summary.warning:
        parts.append(f"<p><small>⚠ {line(summary.warning, 600)}</small></p>")
    if summary.checkpoint:
        parts.append(f"<p><small>checkpoint: <code>{line(summary.checkpoint, 500)}</code></small></p>")
    parts.append(metrics_table(apart(summary), room.metrics))
    parts.append(rows_table(summary.rows, room.rows))
    parts.append(rows_table(gpu_rows(summary.gpus, summary.tasks), room.metrics))
    if summary.input:
        table = rows_table(summary.input["rows"], room.metrics)
        title = line(input_title(summary.input, len(summary.tasks)), 400)
        parts.append(f"<details><summary><small>{title}</small></summary>{table}</details>")
    parts += outputs(summary, room.outputs)
    return "\n".join(part for part in parts if part)


def describe(summary: Summary) -> str:
    """Return the picture's alternative text."""
    final = ", ".join(f"{line(name)} {number(value)}" for name, value in first_of(summary.metrics, 6))
    return f"Curves of {line(summary.title)}" + (f"; last epoch: {final}" if final else "")


def metrics_table(metrics: Mapping[str, float], room: int) -> str:
    """Return the table of final values: a column each if they are few, else a row each."""
    if sum(len(name) + 4 for name in metrics) <= FEW_LETTERS:
        return rows_table([metrics], room) if metrics else ""
    rows = fitting(
        (
            f'<tr><th scope="row" style="text-align:left">{line(name)}</th>'
            f'<td style="text-align:right">{line(number(value))}</td></tr>'
            for name, value in metrics.items()
        ),
        room,
    )
    table = f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else ""
    return table + more(len(metrics) - len(rows), "metrics")


def rows_table(rows: Sequence[Mapping[str, object]], room: int) -> str:
    """Return the summary's own table."""
    columns = list(rows[0])[:MOST_COLUMNS] if rows else []
    head = "".join(f'<th scope="col">{line(column, 30)}</th>' for column in columns)
    body = fitting(
        (
            "<tr>"
            + "".join(f"<td>{line(number(row.get(column, '')), 30)}</td>" for column in columns)
            + "</tr>"
            for row in rows
        ),
        room,
    )
    start = f"<table><thead><tr>{head}</tr></thead>"
    table = f"{start}<tbody>{''.join(body)}</tbody></table>" if rows else ""
    return table + more(len(rows) - len(body), "rows")


def outputs(summary: Summary, room: int) -> list[str]:
    """Return what each task printed, under its name."""
    printed = {task: text for task, text in summary.outputs.items() if text}
    share = max(LEAST_OUTPUT, room // max(1, len(printed)))
    parts = fitting((output(task, text, share) for task, text in printed.items()), room)
    return [*parts, more(len(printed) - len(parts), "tasks with output")]


def output(task: str, text: str, share: int) -> str:
    """Return what one task printed in at most ``share`` bytes."""
    unfolded = " open" if text.count("\n") <= UNFOLDED_LINES else ""
    start = f"<details{unfolded}><summary><strong>{line(short_task(task), 40)}</strong></summary><pre>"
    end = "</pre></details>"
    room = share - len(json.dumps(start + end))
    return start + coloured(text.rstrip("\n"), room) + end


def coloured(text: str, room: int) -> str:
    """Return HTML of at most ``room`` bytes of a text with terminal colours, cut in its middle."""
    pieces = list(spans(text))
    length = sum(len(piece) for _, piece in pieces)

    def cut(keep: int) -> str:
        if keep >= length:
            return styled(pieces)
        head, tail = part(pieces, 0, keep // 2), part(pieces, length - (keep - keep // 2), length)
        return styled(head) + cut_note(length - keep) + styled(tail)

    return longest(cut, length, room)


def more(count: int, what: str) -> str:
    """Return the note on items that are not shown; "" if there are none."""
    return f"<p>and {count:,} more {what}</p>" if count > 0 else ""


def line(text: object, limit: int = 80) -> str:
    """Return any text as escaped HTML on one line."""
    return escape(clip(text, limit))


def text(summary: Summary, room: Room) -> str:
    """Return the run as plain text."""
    name = f"  ({clip(summary.run_id)})" if summary.run_id not in ("", summary.title) else ""
    parts = [f"{clip(summary.title)}  {headline(summary)}{name}"]
    if is_plain(summary) and any(summary.outputs.values()):
        parts = []
    if summary.error:
        parts.append(shorten(summary.error, room.error))
    if summary.marks:
        parts.append(clip(marks_line(summary), 1500))
    if summary.trained_on:
        parts.append(f"trained on {clip(summary.trained_on, 600)}")
    if summary.warning:
        parts.append(f"⚠ {clip(summary.warning, 600)}")
    if summary.checkpoint:
        parts.append(f"checkpoint: {clip(summary.checkpoint, 500)}")
    parts.append(metrics_text(apart(summary), room.metrics))
    parts.append(rows_text(summary.rows, room.rows))
    parts.append(rows_text(gpu_rows(summary.gpus, summary.tasks), room.metrics))
    if summary.input and summary.input["advice"]:
        parts.append(clip(input_title(summary.input, len(summary.tasks)), 400))
        parts.append(rows_text(summary.input["rows"], room.metrics))
    parts += outputs_as_text(summary.outputs, room.outputs)
    return "\n\n".join(part for part in parts if part)


def metrics_text(metrics: Mapping[str, float], room: int) -> str:
    """Return the final values, one per line."""
    some = first_of(metrics, room // 4)  # more do not fit, even with short names
    lines = fitting(aligned([(clip(name), number(value)) for name, value in some]), room)
    return "\n".join([*lines, *more_as_text(len(metrics) - len(lines), "metrics")])


def rows_text(rows: Sequence[Mapping[str, object]], room: int) -> str:
    """Return the summary's own table with aligned columns."""
    if not rows:
        return ""
    columns = list(rows[0])[:MOST_COLUMNS]
    cells = [[clip(number(row.get(column, "")), 30) for column in columns] for row in rows[: room // 4]]
    lines = fitting(aligned([[clip(column, 30) for column in columns], *cells]), room)
    return "\n".join([*lines, *more_as_text(len(rows) - len(lines) + 1, "rows")])


def outputs_as_text(printed_by: Mapping[str, str], room: int) -> list[str]:
    """Return what each task printed, under its name."""
    printed = {task: marked(text).rstrip() for task, text in printed_by.items() if text}
    share = max(LEAST_OUTPUT, room // max(1, len(printed)))
    parts = fitting((output_as_text(task, text, share) for task, text in printed.items()), room)
    return [*parts, *more_as_text(len(printed) - len(parts), "tasks with output")]


def output_as_text(task: str, text: str, share: int) -> str:
    """Return what one task printed in at most ``share`` bytes."""
    heading = f"[{clip(short_task(task), 40)}]\n"
    return heading + shorten(text, share - len(json.dumps(heading)))


def more_as_text(count: int, what: str) -> list[str]:
    """Return the note on items that are not shown; "" if there are none."""
    return [f"and {count:,} more {what}"] if count > 0 else []


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of equal length as lines, with the first column left-aligned, the others right-aligned.

    >>> aligned([("loss", "0.1"), ("accuracy", "0.97")])
    ['loss       0.1', 'accuracy  0.97']
    """
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]
