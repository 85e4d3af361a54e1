"""All runs of this user: what ``nb.runs()`` returns, and how a notebook shows it.

id                           status  began             took   workers  error
261121-063226-three-workers  done    2026-11-21 06:32  8.3 s  3
261121-063017-digits         failed  2026-11-21 06:30  1.2 s  2        ValueError: late
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.metrics.home import runs_folder
from nbdist.metrics.runfile import RunFile, read_run
from nbdist.metrics.words import duration

MOST_SHOWN = 20
HEAD = ("id", "status", "began", "took", "workers", "error")
LONGEST_ERROR = 80  # characters
NONE = "no runs yet"


class RunList(list[RunFile]):
    """A list of runs that shows as a table of the first twenty."""

    def __repr__(self) -> str:
        if not self:
            return NONE
        rows = [HEAD, *map(row, self[:MOST_SHOWN])]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows)
        return "\n".join([*lines, self._more()])

    def _repr_html_(self) -> str:
        if not self:
            return NONE
        head = "".join(f"<th>{name}</th>" for name in HEAD)
        rows = "".join(f"<tr>{cells_of(run)}</tr>" for run in self[:MOST_SHOWN])
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{escape(self._more())}"

    def _more(self) -> str:
        opened = "nb.attach(id) opens a run"
        more = len(self) - MOST_SHOWN
        return f"and {more:,} older: nb.runs()[{MOST_SHOWN}:]; {opened}" if more > 0 else opened


def cells_of(run: RunFile) -> str:
    """Return a run's row as HTML."""
    return "".join(f"<td>{escape(cell)}</td>" for cell in row(run))


def runs() -> RunList:
    """Return all runs, newest first; a damaged one has status "damaged" and the error.

    A run with ``--tensorboard`` has its events in its folder: ``tensorboard --logdir <folder>/tensorboard``,
    or with the folder of all runs, to compare them.
    """
    found = [listed(folder) for folder in runs_folder().iterdir() if (folder / "run.json").is_file()]
    return RunList(sorted(found, key=lambda run: (run.created, run.id), reverse=True))


def listed(folder: Path) -> RunFile:
    """Return what stands in a run folder, or what is known of it when that cannot be read."""
    try:
        return read_run(folder.name)
    except (DataLossError, InvalidArgumentError, TypeError) as error:
        return RunFile(folder.name, status="damaged", error=str(error), created=folder.stat().st_mtime)


def row(run: RunFile) -> tuple[str, ...]:
    """Return a run's cells, as text; what its file has in an unexpected form is left out."""
    workers = run.cluster.get("workers") if isinstance(run.cluster, Mapping) else None
    return (
        run.id,
        run.status,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created)),
        "" if run.ended is None else duration(run.ended - run.created),
        str(len(workers)) if isinstance(workers, Sequence) else "",
        in_short(run.error),
    )


def in_short(error: str) -> str:
    """Return an error's first line, or a traceback's last, cut to what a table has room for.

    >>> in_short("Traceback (most recent call last):\\n  File ...\\nValueError: late\\n\\nraised on worker 0")
    'ValueError: late'
    """
    lines = error.partition("\n\nraised on ")[0].strip().splitlines() or [""]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    line = line.removeprefix("nbdist.errors.")
    return line if len(line) <= LONGEST_ERROR else line[: LONGEST_ERROR - 1] + "…"
