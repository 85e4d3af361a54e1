"""Exporter "parquet": all points of a run in one Parquet file.

    pandas.read_parquet("points.parquet")       # replica, series, step, value, time: as run.metrics()

What the run was stands in the file's metadata as JSON, under the key "nbdist".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.draft import draft_of
from nbdist.errors import InvalidArgumentError, StorageError
from nbdist.metrics.event_file import make_private
from nbdist.metrics.log import Batch
from nbdist.run.export.contents import RunContents
from nbdist.run.export.spec import (
    PATH,
    Exported,
    ExporterSpec,
    ExportRequest,
    ExportSetting,
    check_own,
)

KEY = b"nbdist"
DEFAULT = "exports/points.parquet"  # in the run's folder


def write(run: RunContents, request: ExportRequest) -> Exported:
    """Write the file; an earlier one is replaced as a whole."""
    import pyarrow
    from pyarrow import parquet

    given = request.settings.get(PATH)
    path = run.folder / DEFAULT if given is None else Path(given).expanduser().absolute()
    if path.exists():
        _check_own(parquet, path, run.id, request.replace)
    if given is None:
        make_private(path.parent)
    elif not path.parent.is_dir():
        raise InvalidArgumentError(
            f"there is no folder {str(path.parent)!r} for {path.name!r}: make it first"
        )
    about = {KEY: run.as_json().encode()}
    series = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    fields = [("replica", pyarrow.uint16()), ("series", series), ("step", pyarrow.uint32())]
    fields += [("value", pyarrow.float64()), ("time", pyarrow.float64())]
    schema = pyarrow.schema(fields, metadata=about)
    try:
        with (
            draft_of(path, private=True, durable=True) as draft,
            parquet.ParquetWriter(draft, schema, compression="zstd") as file,
        ):
            for columns in _columns(run.points(), pyarrow):
                file.write_batch(pyarrow.record_batch(columns, schema=schema))
    except pyarrow.ArrowException as error:
        raise StorageError(f"{path} cannot be written: {error}. No part of it is kept") from error
    notes = (
        ["Parquet holds no files: checkpoints and artifacts stay in the run's folder"] if run.files() else []
    )
    opens = f"pandas.read_parquet({str(path)!r})"
    return Exported("parquet", run.id, str(path), run.index.points, opens, (*run.notes, *notes))


def _columns(batches: Iterator[Batch], pyarrow: Any) -> Iterator[list[Any]]:
    """Yield the columns of each batch."""
    for batch in batches:
        points, ids = batch.points, sorted(batch.names)
        where = np.zeros(1 + ids[-1], np.int32)
        where[ids] = np.arange(len(ids))
        names = pyarrow.DictionaryArray.from_arrays(
            pyarrow.array(where[points["series"]]), pyarrow.array([batch.names[one] for one in ids])
        )
        replica = pyarrow.array(np.full(len(points), batch.replica, np.uint16))
        rest = (pyarrow.array(np.ascontiguousarray(points[name])) for name in ("step", "value", "time"))
        yield [replica, names, *rest]


def _check_own(parquet: Any, path: Path, run_id: str, replace: bool) -> None:
    """Raise unless the file is an export of the run that may be replaced."""
    try:
        about = json.loads((parquet.read_schema(path).metadata or {})[KEY])
        own = about["id"] == run_id
    except Exception:  # any file may be there
        own = False
    check_own(path, own, run_id, "parquet", replace)


SPEC = ExporterSpec(
    "parquet",
    "one file with all points, as run.metrics() has them",
    write,
    package="pyarrow",
    extra="parquet",
    settings=(ExportSetting(PATH, f"the file; default: {DEFAULT} in the run's folder", "FILE"),),
    suffix=".parquet",
)
