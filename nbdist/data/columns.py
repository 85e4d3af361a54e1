"""Tables: Parquet files, and frames of pandas, polars and Arrow, as rows of named values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.data.blocks import Block, Blocks, Pass
from nbdist.data.files import expand, open_file
from nbdist.data.table import Table
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
                    found = [values_of(whole.column(name), defaults.get(name)) for name in wanted]
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
        for row in np.flatnonzero(null_rows(column)) if defaults.get(name) is None else ():
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


def is_plain(kind: Any) -> bool:
    """Whether Arrow's type is one of numbers, truth values, times, text or bytes, or of lists of them."""
    from pyarrow import types

    if is_list(kind):
        return is_plain(kind.value_type)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(check(kind) for check in (types.is_primitive, *texts))


def is_list(kind: Any) -> bool:
    """Whether Arrow's type is one of lists, of any or of one length."""
    from pyarrow import types

    return any(check(kind) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def null_rows(column: Any) -> NDArray[np.bool_]:
    """Return which rows of an Arrow column have a null, also in a list; one of floats is nan, and is none."""
    from pyarrow import types

    missing: NDArray[np.bool_] = np.zeros(len(column), bool)
    if not types.is_floating(column.type) and column.null_count:
        missing |= column.is_null().to_numpy(zero_copy_only=False)
    if is_list(column.type):
        inside = null_rows(column.flatten())
        if inside.any():
            missing[np.repeat(np.arange(len(column)), _lengths(column))[inside]] = True
    return missing


def values_of(column: Any, default: Any = None) -> NDArray[Any]:
    """Return the values of an Arrow column in their own dtype; lists as an array of them, or as objects.

    ``default`` stands for a null; without it there is none, except in floats, where it is nan.
    """
    if column.null_count and default is not None:
        column = column.fill_null(default)
    if is_list(column.type) and is_plain(column.type) and len(column):
        inside, lengths = values_of(column.flatten()), _lengths(column)
        if (lengths == lengths[0]).all():
            return inside.reshape(len(column), lengths[0], *inside.shape[1:])
        found = np.empty(len(column), object)
        found[:] = np.split(inside, np.cumsum(lengths)[:-1])
        return found
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _lengths(column: Any) -> NDArray[np.intp]:
    """Return the lengths of lists; 0 for a null."""
    from pyarrow import compute

    lengths = compute.fill_null(compute.list_value_length(column), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.intp)


def pairs(upstream: Blocks, label: str, run: Pass) -> Iterator[Block]:
    """Yield (x, y) for rows of named values: y is the column ``label``, x an array of all others."""
    for block in upstream(run):
        if isinstance(block, Table):
            columns: dict[Any, Any] = dict(zip(block.structure, block.columns, strict=True))
            yield Table((0, 1), pair(columns, label))
        else:
            rows: list[Any] = list(block)
            yield [pair(row, label) for row in rows]


def pair(row: Mapping[str, Any], label: str, without: str = "columns=[...]") -> tuple[NDArray[Any], Any]:
    """Return (x, y) of one row, or of whole columns; ``without`` says how a column is left out."""
    if label not in row:
        raise InvalidArgumentError(f"label is {label!r}, and there is no such column; {choices(label, row)}")
    others = {name: np.asarray(values) for name, values in row.items() if name != label}
    for name, values in others.items():
        if values.dtype.kind not in "biuf":
            raise InvalidArgumentError(
                f"label={label!r} makes an array of the other columns, and {name!r} is not of numbers: leave "
                f"it out ({without}), or encode it in map() without label="
            )
    if not others:
        raise InvalidArgumentError(f"label is {label!r}, and there is no other column for x")
    return np.stack(list(others.values()), axis=-1), row[label]


def frame_columns(frame: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a frame of pandas, polars or Arrow as arrays; text as NumPy's text.

    Raises InvalidArgumentError for what is no frame, for columns of Python objects, and for a missing value
    for which the column's type has none.
    """
    names = getattr(frame, "column_names", None) or getattr(frame, "columns", None)
    if names is None or not hasattr(frame, "__getitem__"):
        raise InvalidArgumentError(
            f"from_frame takes a frame of pandas, polars or Arrow, got {type(frame).__name__}"
        )
    columns: dict[str, NDArray[Any]] = {}
    taken = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if taken:
        raise InvalidArgumentError(f"the frame has several columns {taken[0]!r}: name them apart")
    for name in names:
        values = np.asarray(frame[name].to_numpy())
        kind = str(getattr(frame[name], "dtype", None) or frame[name].type).lower()
        floats = any(word in kind for word in ("float", "double"))
        if missing := [] if floats else [row for row, value in enumerate(values) if _is_missing(value)]:
            raise InvalidArgumentError(
                f"column {name!r} ({kind}) has no value in row {missing[0]} ({len(missing)} such rows): "
                "fill them (fillna of pandas, fill_null of polars and Arrow), or drop them"
            )
        if values.dtype == object:
            if not all(isinstance(value, str) for value in values):
                other = next(value for value in values if not isinstance(value, str))
                raise InvalidArgumentError(
                    f"column {name!r} holds {type(other).__name__} objects; convert it to numbers or text"
                )
            values = np.array(values, str)
        columns[str(name)] = values
    if not columns:
        raise InvalidArgumentError("from_frame was given a frame without columns")
    return columns


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)
