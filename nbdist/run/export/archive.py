"""Exporter "zip": a run with all its files in one archive, which ``nb.runs("digits.zip")`` opens anywhere."""

from __future__ import annotations

import zipfile
from pathlib import Path

from nbdist.run.archive import write_archive
from nbdist.run.export.contents import RunContents
from nbdist.run.export.spec import (
    PATH,
    Exported,
    ExporterSpec,
    ExportRequest,
    ExportSetting,
    check_own,
)


def write(run: RunContents, request: ExportRequest) -> Exported:
    """Write the archive; it appears when it is complete. A run under way is written as it is now."""
    path = Path(request.settings.get(PATH, f"{run.id}.zip")).expanduser()
    if path.exists():
        check_own(path, _has(path, run.id), run.id, "zip", request.replace)
    write_archive([run.folder], path, request.files)
    return Exported("zip", run.id, str(path), run.index.points, f"nb.runs({str(path)!r})")


def _has(path: Path, run_id: str) -> bool:
    """Whether a file is the archive of a run."""
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{run_id}/run.json" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


SPEC = ExporterSpec(
    "zip",
    "the run with all its files, for another machine: nb.runs(FILE) opens it",
    write,
    settings=(ExportSetting(PATH, "the file; default: ID.zip in the current folder", "FILE"),),
    suffix=".zip",
)
