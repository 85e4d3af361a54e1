"""Exporter "wandb": a run of Weights & Biases, offline unless it is asked for online.

    run.export(to="wandb", project="digits")                    # ./wandb/offline-run-...-<id>
    run.export(to="wandb", project="digits", mode="online")     # sends it, as WANDB_MODE=online does

An offline run is a folder, which ``wandb sync`` sends; its id is that of nbdist's run. Wandb's own step only
grows, and a run of several replicas goes back and forth: rows have the series "step", over which all charts
are drawn, and are numbered as they come.
"""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.run.export.contents import RunContents, rows_of
from nbdist.run.export.spec import (
    PATH,
    Exported,
    ExporterSpec,
    ExportRequest,
    ExportSetting,
    already_exported,
)

PROJECT = "nbdist"
STEP = "step"
MARK, WHOLE = "nbdist.txt", "whole"  # a file beside the run's log, and what it says
MODES = ("offline", "online")


def write(run: RunContents, request: ExportRequest) -> Exported:
    """Write the run into a folder, or send it."""
    import wandb

    settings = request.settings
    mode = settings.get("mode") or os.environ.get("WANDB_MODE", "offline")
    if mode not in MODES:
        raise InvalidArgumentError(f"WANDB_MODE is {mode!r}, with which nothing is written: use {MODES}")
    root = Path(settings.get(PATH) or os.environ.get("WANDB_DIR") or ".").expanduser().absolute()
    if not root.is_dir():
        raise InvalidArgumentError(f"there is no folder {str(root)!r} for wandb's files: make it first")
    if mode == "online" and request.replace:
        raise InvalidArgumentError(
            "replace=True is for offline exports: delete the run on wandb's server, and export it again"
        )
    for there in _exports(root, run.id):
        if (there / MARK).read_text() == WHOLE and not request.replace:
            raise already_exported(run.id, "wandb", there)
        shutil.rmtree(there)
    quiet: Any = wandb.Settings(
        console="off", silent=True, disable_git=True, save_code=False, reinit="create_new",
        x_disable_stats=True, x_disable_meta=True, x_save_requirements=False,
    )  # fmt: skip
    arguments: dict[str, Any] = {
        "project": settings.get("project", PROJECT), "entity": settings.get("entity"), "id": run.id,
        "name": run.name or run.id, "notes": run.note or None, "tags": list(run.tags),
        "config": dict(run.config), "dir": str(root), "mode": mode,
        "resume": "never" if mode == "online" else None,
    }  # fmt: skip
    made = wandb.init(**arguments, settings=quiet)
    folder = Path(made.dir).parent
    try:
        (folder / MARK).touch(mode=0o600)
        made.define_metric(STEP, hidden=True)
        made.define_metric("*", step_metric=STEP)
        for row in _rows(run):
            made.log(row)
        if request.files:
            for name, path in run.files():
                copy = Path(made.dir, name)  # wandb itself makes a link
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
                made.save(os.fspath(copy), base_path=made.dir, policy="now")
        made.finish(exit_code=1 if run.record.status == "failed" else 0)
        if mode == "offline":
            _await_end(folder)
        (folder / MARK).write_text(WHOLE)
    except BaseException:
        with suppress(Exception):
            made.finish(exit_code=1)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    notes = [
        *run.notes,
        "points of a step within a millisecond are one row of wandb, with the time of the first",
    ]
    if changed := [name for name in run.finals if _valid(name) != name]:
        notes.append(f"wandb reserves the names {', '.join(changed)}: these series begin with 'series '")
    if mode == "online":
        return Exported("wandb", run.id, str(made.url), run.index.points, str(made.url), tuple(notes))
    opens = f"wandb sync {shlex.quote(str(folder))} (sends it; it is on this machine only)"
    return Exported("wandb", run.id, str(folder), run.index.points, opens, tuple(notes))


def _rows(run: RunContents) -> Iterator[dict[str, Any]]:
    for batch in run.points():
        for step, at, values in rows_of(batch, lambda *key: _valid(run.label(*key))):
            yield {STEP: step, "_timestamp": at, **values}


def _valid(name: str) -> str:
    return f"series {name}" if name == STEP or name.startswith("_") else name


# An offline run's log: records of protobuf in the log format of LevelDB, in blocks of 32 KiB.

HEAD, BLOCK = (
    struct.Struct("<IHB"),
    1 << 15,
)  # checksum, length, kind: 1 whole, 2 to 4 first, middle, last part
START = 7  # bytes before the first record
END_SECONDS = 60.0


def records_in(data: bytes, at: int = START) -> Iterator[bytes]:
    """Yield the whole records in the content of a log, from a position on: `START`, or where a block begins.

    The end of a record that begins before it is left out.
    """
    record: bytes | None = None
    while at + HEAD.size <= len(data):
        if (left := BLOCK - at % BLOCK) < HEAD.size:
            at += left
            continue
        _, length, kind = HEAD.unpack_from(data, at)
        at += HEAD.size
        part = data[at : at + length]
        record = part if kind in (1, 2) else None if record is None else record + part
        at += length
        if kind in (1, 4) and record is not None and at <= len(data):
            yield record


def _await_end(folder: Path) -> None:
    """Wait until wandb's process has written a run's last record, which it may do after ``finish``."""
    from wandb.proto.wandb_internal_pb2 import Record

    (log,) = folder.glob("*.wandb")
    deadline = time.monotonic() + END_SECONDS
    while True:
        with log.open("rb") as file:
            begin = max(0, log.stat().st_size // BLOCK - 1) * BLOCK
            file.seek(begin)
            data = file.read()
        records = map(Record.FromString, records_in(data, 0 if begin else START))
        if any(one.HasField("exit") for one in records):
            return
        if time.monotonic() > deadline:
            raise UnavailableError(f"wandb has not written the end of {log} in {END_SECONDS:g} s")
        time.sleep(0.005)


def _exports(root: Path, run_id: str) -> list[Path]:
    """Return the folders of earlier exports of a run, whole or cut off."""
    found = (one for kind in ("wandb", ".wandb") for one in (root / kind).glob(f"*run-*-{run_id}"))
    return [one for one in found if _is_of(one, run_id) and (one / MARK).is_file()]


def _is_of(folder: Path, run_id: str) -> bool:
    """Return whether a folder such as offline-run-20261120_101500-ID has this id."""
    _, _, rest = folder.name.partition("run-")
    return not folder.is_symlink() and folder.is_dir() and rest.partition("-")[2] == run_id


SPEC = ExporterSpec(
    "wandb",
    "a run of Weights & Biases: a folder for wandb sync, or online",
    write,
    package="wandb",
    extra="wandb",
    settings=(
        ExportSetting("project", f"the project; default: {PROJECT}", "NAME"),
        ExportSetting("entity", "the user or team; default: wandb's", "NAME"),
        ExportSetting("mode", "offline (default) or online; WANDB_MODE sets the default", "MODE", MODES),
        ExportSetting(
            PATH, "the folder below which wandb/ is made; default: WANDB_DIR or this one", "FOLDER"
        ),
    ),
)
