"""Exporter "zip": a run with all its files in one archive, which ``nb.runs("digits.zip")`` opens anywhere."""

from __future__ import annotations

import zipfile
from pathlib import Path

from nbdist.errors import InvalidArgumentError
from nbdist.run.archive import write_archive
from nbdist.run.export.contents import RunContents
from nbdist.run.export.spec import (
    PATH,
    Exported,
    ExporterSpec,
    ExportRequest,
    ExportSetting,
    already_exported,
)


def write(run: RunContents, request: ExportRequest) -> Exported:
    """Write the archive; it appears when it is complete. A run under way is written as it is now."""
    path = Path(request.settings.get(PATH, f"{run.id}.zip")).expanduser()
    if path.exists():
        if not zipfile.is_zipfile(path):
            raise InvalidArgumentError(f"{str(path)!r} is there, and is no archive: give another path")
        if not request.replace:
            raise already_exported(run.id, "zip", path)
    write_archive([run.folder], path, request.files)
    return Exported("zip", run.id, str(path), run.index.points, f"nb.runs({str(path)!r})")


SPEC = ExporterSpec(
    "zip",
    "the run with all its files, for another machine: nb.runs(FILE) opens it",
    write,
    settings=(ExportSetting(PATH, "the file; default: ID.zip in the current folder", "FILE"),),
    suffix=".zip",
)
