"""Tables: Parquet files, and frames of pandas, polars and Arrow, as rows of named values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.data.blocks import Block, Pass
from nbdist.data.files import expand, open_file
from nbdist.errors import DataLossError, InvalidArgumentError, MissingExtra, choices

ROWS = 4096  # in a block


def parquet_rows(
    names: Sequence[str],
    columns: Sequence[str] | None,
    defaults: Mapping[str, Any],
    on_error: str,
    run: Pass,
) -> Iterator[Block]:
    """Yield the rows of Parquet files as dicts; only the columns asked for are read.

    With ``on_error`` "skip" rows with a null where none can be are left out, and what follows a damaged part
    of a file.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("parquet", f"{names[0]}, a Parquet file") from None
    for path in run.own(expand(names)):
        with open_file(path, "") as file:
            try:
                table = parquet.ParquetFile(file)
                there = table.schema_arrow.names
                wanted = list(there if columns is None else columns)
                for name in wanted:
                    if name not in there:
                        raise InvalidArgumentError(f"{path} has no column {name!r}; {choices(name, there)}")
                done = 0
                for batch in table.iter_batches(ROWS, columns=wanted):
                    whole = _whole_rows(path, done, batch, defaults, on_error, run)
                    found = [_values(whole.column(name), defaults.get(name)) for name in wanted]
                    done += batch.num_rows
                    yield [dict(zip(wanted, row, strict=True)) for row in zip(*found, strict=True)]
            except (pyarrow.ArrowException, OSError) as error:
                damaged = DataLossError(
                    f"{path} cannot be read as Parquet: {error}. Copy or write the file again, or leave out "
                    "what is damaged with on_error='skip'"
                )
                run.leave_out(damaged, on_error)


def _whole_rows(
    path: str, before: int, batch: Any, defaults: Mapping[str, Any], on_error: str, run: Pass
) -> Any:
    """Return a record batch without the rows that have a null where there is no value for it."""
    import pyarrow

    nulls: dict[int, str] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count and defaults.get(name) is None and not _has_missing(column.type):
            for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
                nulls.setdefault(int(row), name)
    for index, name in sorted(nulls.items()):
        error = InvalidArgumentError(
            f"{path}, row {before + index}: column {name!r} ({batch.column(name).type}) is null; say "
            f"defaults={{{name!r}: ...}}, leave the column out with columns=[...], or such rows with "
            "on_error='skip'"
        )
        run.leave_out(error, on_error)
    if not nulls:
        return batch
    kept = np.ones(batch.num_rows, bool)
    kept[list(nulls)] = False
    return batch.filter(pyarrow.array(kept))


def _has_missing(kind: Any) -> bool:
    """Whether a type has a value for a null: nan, or an empty text."""
    import pyarrow.types as types

    return bool(types.is_floating(kind) or types.is_string(kind) or types.is_large_string(kind))


def _values(column: Any, default: Any) -> NDArray[Any]:
    """Return the values of a column of a record batch."""
    import pyarrow

    if column.null_count:
        if default is not None:
            column = column.fill_null(default)
        elif not pyarrow.types.is_floating(column.type):
            column = column.fill_null("")
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def frame_columns(frame: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a frame of pandas, polars or Arrow as arrays; text as NumPy's text.

    Raises InvalidArgumentError for what is no frame, and for columns of Python objects.
    """
    names = getattr(frame, "column_names", None) or getattr(frame, "columns", None)
    if names is None or not hasattr(frame, "__getitem__"):
        raise InvalidArgumentError(
            f"from_frame takes a frame of pandas, polars or Arrow, got {type(frame).__name__}"
        )
    columns = {}
    for name in names:
        values = np.asarray(frame[name].to_numpy())
        if values.dtype == object:
            texts = ["" if _is_missing(value) else value for value in values]
            if not all(isinstance(value, str) for value in texts):
                other = next(value for value in texts if not isinstance(value, str))
                raise InvalidArgumentError(
                    f"column {name!r} holds {type(other).__name__} objects; convert it to numbers or text"
                )
            values = np.array(texts, str)
        columns[str(name)] = values
    if not columns:
        raise InvalidArgumentError("from_frame was given a frame without columns")
    return columns


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)
