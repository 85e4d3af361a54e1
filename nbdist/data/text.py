"""Text files: lines, and CSV with typed columns.

Dataset.text_lines("corpus-*.txt.gz")                        # "a line", "another"
Dataset.csv("iris.csv", columns={"width": "f4", "kind": str})   # {"width": np.float32(1.4), "kind": "a"}
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, TextIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nbdist.data import arguments
from nbdist.data.blocks import ON_ERROR, Block, Pass
from nbdist.data.files import check_compression, expand, open_file
from nbdist.data.table import Table
from nbdist.errors import DataLossError, InvalidArgumentError, choices

LINES = 1024  # in a block
LONGEST = 1 << 27  # characters of a line, and of a field
SAMPLED = 1000  # rows from which the types of columns are found
EXACT = 1 << 53  # floats have all whole numbers up to it


@contextmanager
def open_text(
    path: str, compression: str | None, encoding: str, newline: str | None = None
) -> Iterator[TextIO]:
    """Open a text file for reading, inside a ``with``; a damaged character names the file."""
    with open_file(path, compression) as file:
        try:
            # a file of a spreadsheet may begin with a mark of its encoding, which is not text
            codec = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
            yield io.TextIOWrapper(file, codec, newline=newline)
        except UnicodeDecodeError as error:
            raise DataLossError(
                f"{path} is not {encoding} text: {error}. Say encoding=..., compression=... if it is "
                "compressed, or read it with Dataset.tfrecords or from_generator if it is no text"
            ) from None


def lines(names: Sequence[str], compression: str | None, encoding: str, run: Pass) -> Iterator[Block]:
    """Yield the lines of files, without their ends: a line feed, with or without a carriage return."""
    for path in run.own(expand(names)):
        with open_text(path, compression, encoding, newline="\n") as file:
            found = limited_lines(path, file)
            while block := [
                line.removesuffix("\n").removesuffix("\r") for line in itertools.islice(found, LINES)
            ]:
                yield block


def limited_lines(path: str, file: TextIO) -> Iterator[str]:
    """Yield the lines of a file with their ends; raise DataLossError for one over the limit."""
    for number, line in enumerate(iter(partial(file.readline, LONGEST + 1), ""), 1):
        if len(line) > LONGEST:
            raise DataLossError(
                f"{path}, line {number}: longer than {LONGEST:,} characters. Is it a text file? Read it with "
                "from_generator in parts of another size, or say compression=... if it is compressed"
            )
        yield line


Columns = Sequence[str] | Mapping[str, DTypeLike]


class CsvRows:
    """The rows of CSV files, as dicts of one value for each column.

    - ``columns``: names of the columns to keep, or their dtypes by name; None keeps all. Types that are not
      given follow from the first rows of the first file: int64, uint64, float64, or text
    - ``header``: whether each file begins with names; or the names, if no file has them
    - ``defaults``: values of empty fields, by column; without one, an empty field is nan in a column of
      floats, "" in one of text, and an error in one of whole numbers
    """

    def __init__(
        self,
        names: Sequence[str],
        columns: Columns | None,
        header: bool | Sequence[str],
        delimiter: str,
        defaults: Mapping[str, Any],
        compression: str | None,
        encoding: str,
        on_error: str,
    ) -> None:
        self._names, self._header = names, header
        if not isinstance(header, (bool, np.bool_)):
            self._header = arguments.names("csv: header (True, False, or the names)", header)
        self._columns: Columns | None = columns
        if isinstance(columns, Mapping):
            kinds = arguments.named_values("csv: columns", columns, "{'age': 'f4'}")
            self._columns = {
                name: arguments.dtype_of(f"csv: column {name!r}", kind) for name, kind in kinds.items()
            }
        elif columns is not None:
            self._columns = arguments.names("csv: columns", columns)
        self._delimiter = arguments.delimiter_of("csv: delimiter", delimiter)
        self._defaults = arguments.named_values("csv: defaults", defaults, "{'age': 0}")
        self._on_error = arguments.one_of("on_error", on_error, ON_ERROR)
        self._compression, self._encoding = compression, arguments.encoding_of("csv: encoding", encoding)
        check_compression(compression)
        self._types: dict[str, np.dtype[Any]] | None = None

    def __call__(self, run: Pass) -> Iterator[Block]:
        """Yield the rows of all files."""
        paths = expand(self._names)
        types = self._types = self._types or self._types_of(paths[0])
        for path in run.own(paths):
            with closing(self._rows(path, run)) as rows:
                names = next(rows)[1]
                missing = [name for name in types if name not in names]
                if missing:
                    raise InvalidArgumentError(
                        f"{path} has no column {missing[0]!r}; {choices(missing[0], names)}"
                    )
                places = {name: names.index(name) for name in types}
                while block := list(itertools.islice(rows, LINES)):
                    yield self._typed(path, block, len(names), places, types, run)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_types": None}  # found in files, so not part of its definition

    def _rows(self, path: str, run: Pass) -> Generator[tuple[int, list[str]]]:
        """Yield (line, fields): first the header, then each row; blank lines are left out."""
        with open_text(path, self._compression, self._encoding, newline="") as file:
            rows = self._parsed(path, file, run)
            if self._header is True:
                head = next(rows, None)
                if head is None:
                    raise DataLossError(f"{path} is empty; expected a header line with names")
                yield head
            elif self._header is False:
                line, first = next(rows, (0, []))
                yield 0, [f"column{number}" for number in range(len(first))]
                yield line, first
            else:
                yield 0, list(self._header)
            yield from rows

    def _parsed(self, path: str, file: TextIO, run: Pass) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, fields) of each line; after one that cannot be parsed, continue with the next."""
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
        incoming, before = limited_lines(path, file), 0  # lines before those that `reader` reads
        while True:
            held: list[str] = []  # of the row that is parsed: it may have several
            reader = csv.reader(_noted_lines(incoming, held), delimiter=self._delimiter, strict=True)
            first = before + 1
            try:
                for fields in reader:
                    blank = not fields or (len(fields) == 1 and "".join(held).isspace())
                    held.clear()
                    first = before + reader.line_num + 1
                    if not blank:
                        yield before + reader.line_num, fields
                return
            except csv.Error as error:
                what = f"{path}, line {first}: {error}. Correct the line (a quote that is not closed?)"
                failed = DataLossError(f"{what}, or leave such lines out with on_error='skip'")
                run.leave_out(failed, self._on_error)
            incoming, before = itertools.chain(held[1:], incoming), first

    def _types_of(self, path: str) -> dict[str, np.dtype[Any]]:
        """Return the columns to keep, with their types."""
        with closing(self._rows(path, Pass())) as rows:
            names = next(rows)[1]
            sample = [fields for _, fields in itertools.islice(rows, SAMPLED) if len(fields) == len(names)]
        wanted = names if self._columns is None else list(self._columns)
        for name in wanted:
            if name not in names:
                raise InvalidArgumentError(f"{path} has no column {name!r}; {choices(name, names)}")
            if names.count(name) > 1:
                raise InvalidArgumentError(
                    f"{path} has {names.count(name)} columns {name!r}: rename one, or keep others "
                    "with columns=[...]"
                )
        if isinstance(self._columns, Mapping):
            types = {name: np.dtype(kind) for name, kind in self._columns.items()}
        else:
            columns = {name: [fields[names.index(name)] for fields in sample] for name in wanted}
            types = {name: _type_of(column, name in self._defaults) for name, column in columns.items()}
        self._check_defaults(path, names, types)
        return types

    def _check_defaults(self, path: str, names: Sequence[str], types: Mapping[str, np.dtype[Any]]) -> None:
        for name, value in self._defaults.items():
            if name not in names:
                raise InvalidArgumentError(
                    f"defaults has a value for {name!r}, which {path} does not have; {choices(name, names)}"
                )
            if name not in types:
                continue
            try:
                self._column(name, [""], types[name])
            except (ValueError, OverflowError):
                raise InvalidArgumentError(
                    f"defaults has {value!r:.80} for column {name!r}, which is not {_word(types[name])} "
                    f"({types[name]}); give one that is, or columns={{{name!r}: str}}"
                ) from None

    def _typed(
        self,
        path: str,
        block: list[tuple[int, list[str]]],
        width: int,
        places: dict[str, int],
        types: dict[str, np.dtype[Any]],
        run: Pass,
    ) -> Block:
        """Return rows as a table, or, if a column cannot be converted as a whole, as dicts."""
        rows = [fields for _, fields in block if len(fields) == width]
        if len(rows) == len(block):
            with suppress(ValueError, OverflowError):
                table = list(zip(*rows, strict=True))
                found = [self._column(name, table[place], types[name]) for name, place in places.items()]
                return Table(dict.fromkeys(places, 0), [_array(column) for column in found])
        typed: list[Any] = []
        for line, fields in block:
            try:
                if len(fields) != width:
                    raise DataLossError(
                        f"{path}, line {line}: {len(fields)} fields, and the others have {width}. Quote a "
                        f"field that contains {self._delimiter!r}, correct the line, or leave such lines out "
                        "with on_error='skip'"
                    )
                typed.append(
                    {name: self._one(path, line, name, fields[places[name]], types[name]) for name in places}
                )
            except DataLossError as error:
                run.leave_out(error, self._on_error)
        return typed

    def _one(self, path: str, line: int, name: str, field: str, kind: np.dtype[Any]) -> Any:
        try:
            return self._column(name, [field], kind)[0]
        except (ValueError, OverflowError):
            remedy = f"defaults={{{name!r}: ...}}" if field == "" else f"columns={{{name!r}: str}}"
            raise DataLossError(
                f"{path}, line {line}: column {name!r} is {field!r:.80}, not {_word(kind)} ({kind}). "
                f"Correct it, say {remedy}, or leave such lines out with on_error='skip'"
            ) from None

    def _column(self, name: str, fields: Sequence[str], kind: np.dtype[Any]) -> Sequence[Any]:
        """Return the values of a column; raise ValueError if one has another type."""
        if "" in fields:
            if name in self._defaults:
                fields = [field or str(self._defaults[name]) for field in fields]
            elif kind.kind == "f":
                fields = [field or "nan" for field in fields]
        if kind.kind in "US":
            return fields
        if kind.kind == "b":
            return [np.bool_(_TRUTH[field.strip().lower()]) for field in fields]
        return np.array(fields, kind)  # type: ignore[return-value]  # an array is one


def _noted_lines(incoming: Iterator[str], held: list[str]) -> Iterator[str]:
    for line in incoming:
        held.append(line)
        yield line


def _array(column: Any) -> NDArray[Any]:
    """Return the values of a column as an array; text as objects."""
    return np.asarray(column, object if isinstance(column[0], str) else None)


class _Truth(dict[str, bool]):
    def __missing__(self, field: str) -> bool:
        raise ValueError(field)


_TRUTH = _Truth({"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False})


def _type_of(fields: Sequence[str], has_default: bool) -> np.dtype[Any]:
    """Return the narrowest of int64, uint64, float64 and text that has all fields as they are.

    A whole number that a float cannot have makes a column of texts: an identifier, say, keeps its digits.
    """
    given = [field for field in fields if field]
    for kind in (np.int64, np.uint64, np.float64):
        if kind is not np.float64 and len(given) < len(fields) and not has_default:
            continue  # nan stands for what is missing
        try:
            values = np.array(given, kind)
        except (ValueError, OverflowError):
            continue
        if kind is np.float64 and np.abs(values).max(initial=0) >= EXACT and not _are_exact(given):
            continue
        if given:
            return np.dtype(kind)
    return np.dtype(str)


def _are_exact(fields: Sequence[str]) -> bool:
    """Whether each field that is written as a whole number is one that a float64 has."""
    whole = (field for field in fields if field.strip().lstrip("+-").isdecimal())
    return all(int(float(field)) == int(field) for field in whole)


def _word(kind: np.dtype[Any]) -> str:
    return {"i": "a whole number", "u": "a whole number", "f": "a number", "b": "true or false"}.get(
        kind.kind, "a value"
    )
