"""Exporter "tensorboard": event files, a folder for each replica.

    tensorboard --logdir <folder>
    <folder>/worker-0/events.out.tfevents....               as --tensorboard writes them during a run
    <folder>/worker-0/validation/events.out.tfevents....    "val_loss" as "loss"
    <folder>/nbdist.json                                    what the run was

The folder appears when it is complete.
"""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path

from nbdist.draft import to_disk
from nbdist.errors import InvalidArgumentError, StorageError
from nbdist.metrics.event_file import EventFiles, events_folder, make_private
from nbdist.run.export.contents import RunContents
from nbdist.run.export.spec import (
    PATH,
    Exported,
    ExporterSpec,
    ExportRequest,
    ExportSetting,
    check_own,
)
from nbdist.run.record import RunRecord
from nbdist.summary.hyperparameters import Experiment, HParam, SessionEnd, SessionStart
from nbdist.summary.values import Text, Value
from nbdist.summary.writer import FileWriter

ABOUT = "nbdist.json"
DEFAULT = "exports/tensorboard"  # in the run's folder
SINGLE = (
    "TensorBoard's event files have values in single precision: 7 digits; the export to parquet has them all"
)


def write(run: RunContents, request: ExportRequest) -> Exported:
    """Write the folder; an earlier one is replaced as a whole."""
    given = request.settings.get(PATH)
    folder = run.folder / DEFAULT if given is None else Path(given).expanduser().absolute()
    replaces = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if replaces:
        _check_own(folder, run.id, request.replace)
    if given is not None and not folder.parent.is_dir():
        raise InvalidArgumentError(
            f"there is no folder {str(folder.parent)!r} for {folder.name!r}: make it first"
        )
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.draft")
    try:
        make_private(draft)
        _write(run, draft)
        if folder.exists():
            old = draft.with_suffix(".old")
            folder.rename(old)
            draft.rename(folder)
            shutil.rmtree(old)
        else:
            draft.rename(folder)
        to_disk(folder.parent)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error}. No part of it is kept") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    notes = [*run.notes, SINGLE]
    if run.files():
        notes.append("event files hold no other files: checkpoints and artifacts stay in the run's folder")
    opens = f"tensorboard --logdir {folder}"
    return Exported("tensorboard", run.id, str(folder), run.index.points, opens, tuple(notes))


def _write(run: RunContents, folder: Path) -> None:
    record = RunRecord.of(run.record)
    troubles: list[str] = []
    files: dict[int, tuple[EventFiles, list[str]]] = {}
    try:
        for batch in run.points():
            if batch.replica not in files:
                where = folder / _task(record, batch.replica)
                files[batch.replica] = EventFiles(where, troubles.append), []
            events, names = files[batch.replica]
            points = batch.points.copy()
            for series in batch.names:  # a log of a replaced task has numbers of its own
                label = batch.names[series]
                if label not in names:
                    names.append(label)
                points["series"][batch.points["series"] == series] = names.index(label)
            events.append(names, points)
            events.retry()
            if lost := events.lost:
                raise StorageError(f"{lost:,} points could not be written: {'; '.join(troubles)}")
    finally:
        for events, _ in files.values():
            events.close()
    if troubles:
        raise StorageError("; ".join(troubles))
    with FileWriter(folder) as writer:  # the HParams page, and the run in words
        ended = "running" if run.is_under_way else "success" if record.status == "finished" else "failure"
        summary: dict[str, float | Value] = {
            "experiment": Experiment([HParam(name) for name in run.config], list(run.finals), run.name),
            "start": SessionStart(run.config, began=record.created),
            "end": SessionEnd(ended, record.ended or 0.0),
            "note": Text.of("note", run.note or f"run {run.id} of nbdist"),
        }
        writer.add_summary(summary)
    about = folder / ABOUT
    about.touch(mode=0o600)
    about.write_text(run.as_json())


def _task(record: RunRecord, replica: int) -> str:
    """Return the folder of a replica: that of its task, where run.json tells it."""
    ranks = record.workers
    name = record.name_of(ranks[replica]) if replica < len(ranks) and not record.in_graph else ""
    return events_folder(Path(), name).name if name.startswith("/") else f"replica-{replica}"


def _check_own(folder: Path, run_id: str, replace: bool) -> None:
    """Raise unless the folder is an export of the run that may be replaced."""
    try:
        own = json.loads((folder / ABOUT).read_bytes())["id"] == run_id
    except (OSError, ValueError, LookupError, TypeError):
        own = False
    check_own(folder, own, run_id, "tensorboard", replace)


SPEC = ExporterSpec(
    "tensorboard",
    "event files, a folder for each replica",
    write,
    settings=(ExportSetting(PATH, f"the folder; default: {DEFAULT} in the run's folder", "FOLDER"),),
)
