"""Exporter "trackio": a run of a project in Trackio's local store, which ``trackio show`` displays.

Trackio's public log functions give each point the time at which it is sent. Its own importers of CSV and
event files write through ``SQLiteStorage.bulk_log``, which takes the times; so does this exporter. The config
comes with the last points: a run without one is an export that was cut off, and is written again.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.run.export.contents import RunContents, rows_of
from nbdist.run.export.spec import Exported, ExporterSpec, ExportRequest, ExportSetting, already_exported

ROWS = 10_000  # in one transaction
PROJECT = "nbdist"
RESERVED = {"step", "timestamp", "time", "project", "run", "metrics"}
Row = tuple[int, float, dict[str, float]]


def write(run: RunContents, request: ExportRequest) -> Exported:
    """Write the run into a project of the local store."""
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    project = request.settings.get("project", PROJECT)
    try:
        SQLiteStorage.validate_project_name(project)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None
    if not run.index.points:
        raise FailedPreconditionError(
            f"run {run.id} has logged no metric, and Trackio shows only runs that have points: there is "
            "nothing to export"
        )
    where = f"run {run.id} of project {project}"
    exists = SQLiteStorage.get_project_db_path(project).exists()
    for there in [one for one in trackio.Api().runs(project) if one.id == run.id] if exists else []:
        if there.config and not request.replace:
            raise already_exported(run.id, "trackio", where)
        there.delete()
    rows = (row for batch in run.points() for row in rows_of(batch, lambda *key: _valid(run.label(*key))))
    parts: Iterator[list[Row]] = iter(lambda: list(islice(rows, ROWS)), [])

    def log(part: list[Row], config: dict[str, Any] | None = None) -> None:
        steps, times, values = zip(*part, strict=True)
        SQLiteStorage.bulk_log(
            project, run.id, list(values), list(steps), [_iso(at) for at in times], config, run_id=run.id
        )

    try:
        held = next(parts)
        for part in parts:
            log(held)
            held = part
        log(held, _config(run))
    except BaseException:
        with suppress(Exception):
            SQLiteStorage.delete_run(project, run.id, run_id=run.id)
        raise
    notes = [*run.notes]
    if changed := [name for name in run.finals if _valid(name) != name]:
        notes.append(f"Trackio reserves the names {', '.join(changed)}: these series begin with 'series '")
    if run.files():
        notes.append("checkpoints and artifacts are not copied to Trackio: they stay in the run's folder")
    opens = f"trackio show --project {shlex.quote(project)}"
    return Exported("trackio", run.id, where, run.index.points, opens, tuple(notes))


def _config(run: RunContents) -> dict[str, Any]:
    """Return what the run was; names that begin with _ are Trackio's own."""
    known = {f"given.{name}" if name.startswith("_") else name: value for name, value in run.config.items()}
    finals = {f"final.{name}": value for name, value in run.finals.items()}
    about = {"run.name": run.name, "run.tags": ", ".join(run.tags), "run.note": run.note}
    return known | finals | about | {"_Created": _iso(run.record.created), "_Group": None}


def _valid(name: str) -> str:
    return f"series {name}" if name in RESERVED or name.startswith("__") else name


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")


SPEC = ExporterSpec(
    "trackio",
    "a run of a project in Trackio's local store",
    write,
    package="trackio",
    extra="trackio",
    settings=(ExportSetting("project", f"the project; default: {PROJECT}", "NAME"),),
)
