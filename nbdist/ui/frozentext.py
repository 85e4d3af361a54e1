"""The plain text of a frozen output: what a terminal, a diff or a search sees."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from nbdist.ui.ansi import plain
from nbdist.ui.shorten import Room, clip, first_of, fitting, shorten
from nbdist.ui.summary import Summary, apart, headline, is_plain, marks_line, number, short_task

MOST_COLUMNS = 8
LEAST_OUTPUT = 500  # bytes that make it worth showing a task's output at all


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
    if summary.checkpoint:
        parts.append(f"checkpoint: {clip(summary.checkpoint, 500)}")
    parts.append(metrics_text(apart(summary), room.metrics))
    parts.append(rows_text(summary.rows, room.rows))
    parts += outputs(summary.outputs, room.outputs)
    return "\n\n".join(part for part in parts if part)


def metrics_text(metrics: Mapping[str, float], room: int) -> str:
    """Return final values, a line each."""
    some = first_of(metrics, room // 4)  # more have no room, whatever their names are
    lines = fitting(aligned([(clip(name), number(value)) for name, value in some]), room)
    return "\n".join([*lines, *more(len(metrics) - len(lines), "metrics")])


def rows_text(rows: Sequence[Mapping[str, object]], room: int) -> str:
    """Return the summary's own table with aligned columns."""
    if not rows:
        return ""
    columns = list(rows[0])[:MOST_COLUMNS]
    cells = [[clip(number(row.get(column, "")), 30) for column in columns] for row in rows[: room // 4]]
    lines = fitting(aligned([[clip(column, 30) for column in columns], *cells]), room)
    return "\n".join([*lines, *more(len(rows) - len(lines) + 1, "rows")])


def outputs(printed_by: Mapping[str, str], room: int) -> list[str]:
    """Return what each task printed, under its name."""
    printed = {task: plain(text).rstrip() for task, text in printed_by.items() if text}
    share = max(LEAST_OUTPUT, room // max(1, len(printed)))
    parts = fitting((output(task, text, share) for task, text in printed.items()), room)
    return [*parts, *more(len(printed) - len(parts), "tasks with output")]


def output(task: str, text: str, share: int) -> str:
    """Return what one task printed in at most ``share`` bytes."""
    heading = f"[{clip(short_task(task), 40)}]\n"
    return heading + shorten(text, share - len(json.dumps(heading)))


def more(count: int, what: str) -> list[str]:
    """Say how many are not shown, if any."""
    return [f"and {count:,} more {what}"] if count > 0 else []


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of equal length as lines, the first column to the left, the others to the right.

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
