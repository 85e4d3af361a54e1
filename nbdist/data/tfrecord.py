"""TFRecord files: records of bytes with their lengths and checksums, as TensorFlow writes and reads them.

A record's frame is in :mod:`nbdist.record_frame`. A record knows its file and number, so that what cannot be
parsed later can be found.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from nbdist.data.arguments import any_path
from nbdist.data.blocks import Block, Pass
from nbdist.data.files import check_compression, compressed, expand, filesystem, is_url, open_file
from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.record_frame import CHECK, LENGTH, framed, masked_crc32c

CHUNK = 1 << 18  # bytes read at once
LARGEST = 1 << 31  # bytes of a record; a length above it is damage


class Record(bytes):
    """The bytes of a record; ``place`` says of which file, and the number there (the first is 0)."""

    path: str
    number: int

    @property
    def place(self) -> str:
        """Where the record is from, for messages."""
        return f"record {self.number} of {self.path}"


def records(names: Sequence[str], compression: str | None, on_error: str, run: Pass) -> Iterator[Block]:
    """Yield the records of files.

    Raises DataLossError with the file, the record's number and its offset in the (uncompressed) file for a
    cut or damaged record; with ``on_error`` "skip" it is left out, and after a damaged length the rest of
    the file with it.
    """
    for path in run.own(expand(names)):
        with open_file(path, compression) as file:
            yield from _records(file, path, on_error, run)


def _records(file: BinaryIO, path: str, on_error: str, run: Pass) -> Iterator[Block]:
    data, start, base, number = b"", 0, 0, 0  # `base` is the offset of `data` in the file
    while True:
        fresh = file.read(CHUNK)
        data, base, start = data[start:] + fresh, base + start, 0
        block: list[Record] = []
        need = 0
        while len(data) - start >= 12:
            length, check = LENGTH.unpack_from(data, start)
            if masked_crc32c(data[start : start + 8]) != check or length > LARGEST:
                if block:
                    yield list(block)
                run.leave_out(_damaged("corrupted", base + start, number, path, "its length"), on_error)
                return  # where the next one begins is unknown
            end = start + 16 + length
            if end > len(data):
                need = end - len(data)
                break
            record = Record(data[start + 12 : end - 4])
            record.path, record.number = path, number
            if masked_crc32c(record) != CHECK.unpack_from(data, end - 4)[0]:
                run.leave_out(_damaged("corrupted", base + start, number, path, "its data"), on_error)
            else:
                block.append(record)
            start, number = end, number + 1
        if block:
            yield list(block)
        if need > CHUNK:  # a large record: the rest of it at once
            data, base, start = data[start:] + file.read(need - CHUNK), base + start, 0
        if not fresh:
            if start < len(data):
                run.leave_out(_damaged("truncated", base + start, number, path, ""), on_error)
            return


def _damaged(how: str, offset: int, number: int, path: str, part: str) -> DataLossError:
    why = f": the checksum of {part} is wrong" if part else ": the file ends inside it"
    return DataLossError(
        f"{how} record at {offset} in {path} (record {number}){why}. Copy or write the file again, or leave "
        "such records out with on_error='skip'; a compressed file needs its ending or compression='gzip'"
    )


def write_tfrecords(
    path: str | os.PathLike[str], records: Iterable[bytes], *, compression: str | None = None
) -> int:
    """Write records of bytes into a TFRecord file, which TensorFlow reads too; return their number.

    - ``path``: a local path or an fsspec URL. A local file appears under its name when it is complete
    - ``records``: bytes, such as those of :func:`make_example`
    - ``compression``: "gzip", "zlib", "zstd", "bz2", "xz", "" for none; None goes by the path's ending.
      TensorFlow reads "gzip" and "zlib", and has to be told: ``TFRecordDataset(path,
      compression_type="ZLIB")``

    Raises InvalidArgumentError for a record that is not bytes, and for a local folder that does not exist.

    >>> import tempfile, os
    >>> from nbdist.data import Dataset
    >>> path = os.path.join(tempfile.mkdtemp(), "two.tfrecord")
    >>> write_tfrecords(path, [b"one", b"two"])
    2
    >>> list(Dataset.tfrecords(path))
    [b'one', b'two']
    """
    name, count = any_path("write_tfrecords: path", path), 0
    check_compression(compression)
    given: Any = records
    if isinstance(given, (str, bytes, bytearray)) or not isinstance(given, Iterable):
        raise InvalidArgumentError(
            f"write_tfrecords: records are {given!r:.80}; expected a list, or another iterable, of bytes"
        )
    with _created(name) as raw, compressed(raw, name, compression) as file:
        for record in records:
            if not isinstance(record, (bytes, bytearray, memoryview)):
                raise InvalidArgumentError(
                    f"record {count} is of type {type(record).__name__}; expected bytes (make_example makes "
                    "them of named values)"
                )
            file.write(framed(record))
            count += 1
    return count


@contextlib.contextmanager
def _created(name: str) -> Iterator[BinaryIO]:
    if is_url(name):
        fs, where = filesystem(name)
        with fs.open(where, "wb") as file:
            yield file
        return
    target = Path(name.removeprefix("file://"))
    if target.is_dir() or not target.parent.is_dir():
        why = "is a folder" if target.is_dir() else "is in a folder that does not exist; create it"
        raise InvalidArgumentError(f"write_tfrecords: {name!r} {why}. Expected the path of a file")
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as file:
            yield file
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
