"""TFRecord files: records of bytes with their lengths and checksums, as TensorFlow writes and reads them.

A record's frame is in :mod:`nbdist.record_frame`. A record knows its file and number, so that what cannot be
parsed later can be found.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nbdist.data.arguments import any_path
from nbdist.data.blocks import Block, Pass
from nbdist.data.files import check_compression, compressed, expand, filesystem, is_url, open_file
from nbdist.draft import draft_of
from nbdist.errors import DataLossError, InvalidArgumentError, NbdistError, StorageError
from nbdist.record_frame import LENGTH, framed

CHUNK = 1 << 19  # bytes read at once
LARGEST = 1 << 31  # bytes of a record; a length above it is damage


class Record(bytes):
    """The bytes of a record; ``place`` says of which file, and the number there (the first is 0)."""

    path: str
    number: int

    @property
    def place(self) -> str:
        """Where the record is from, for messages."""
        return f"record {self.number} of {self.path}"


@dataclass(frozen=True)
class RecordBlock:
    """Records that lie behind each other in a file."""

    path: str
    numbers: Sequence[int]
    data: list[bytes]

    def record(self, place: int) -> Record:
        """Return one of them, with its place in the file."""
        record = Record(self.data[place])
        record.path, record.number = self.path, self.numbers[place]
        return record


def records(names: Sequence[str], compression: str | None, on_error: str, run: Pass) -> Iterator[Block]:
    """Yield the records of files, as :func:`record_blocks` finds them."""
    for block in record_blocks(names, compression, on_error, run, Record):
        found: list[Any] = block.data
        for record, number in zip(found, block.numbers, strict=True):
            record.path, record.number = block.path, number
        yield found


def record_blocks(
    names: Sequence[str], compression: str | None, on_error: str, run: Pass, kind: type[bytes] = bytes
) -> Iterator[RecordBlock]:
    """Yield the records of files as ``kind``, those of some 512 KB at once.

    Raises DataLossError with the file, the record's number and its offset in the (uncompressed) file for a
    cut or damaged record; with ``on_error`` "skip" it is left out, and after a damaged length the rest of
    the file with it.
    """
    for path in run.own(expand(names)):
        with open_file(path, compression) as file:
            yield from _record_blocks(file, path, on_error, run, kind)


def _record_blocks(
    file: Any, path: str, on_error: str, run: Pass, kind: type[bytes]
) -> Iterator[RecordBlock]:
    # One buffer for all reads: memory that is new each time costs more than reading does.
    buffer, have, base, number = memoryview(bytearray(2 * CHUNK)), 0, 0, 0  # `base`: its offset in the file
    from google_crc32c import value as crc32c

    while True:
        fresh = file.readinto(buffer[have : have + CHUNK] if have < CHUNK else buffer[have:])
        have += fresh
        edges, lengths, checks = _frames(buffer, have)
        last = lengths[-1] if len(lengths) == len(edges) else None  # of one that is not whole
        wrong = _differing(_length_crcs(lengths), np.array(checks, np.uint32))
        damaged = wrong[0] if wrong else None  # a wrong length: where the next record begins is unknown
        if damaged is None and last is not None and last > LARGEST:
            damaged = len(edges) - 1
        ends = edges[1:][:damaged]
        if kind is bytes:  # slices of bytes are quicker than slices of memory
            whole = bytes(buffer[:have])
            found = [whole[start + 12 : end - 4] for start, end in zip(edges, ends, strict=False)]
        else:
            found = [kind(buffer[start + 12 : end - 4]) for start, end in zip(edges, ends, strict=False)]
        crcs = np.fromiter(map(crc32c, found), np.uint32, len(found))
        numbers: Sequence[int] = range(number, number + len(found))
        # Every 4 bytes of the buffer, aligned or not, are an item of this array.
        words = np.ndarray(len(buffer) - 3, "<u4", buffer, strides=(1,))
        spoiled = _differing(crcs, words[np.array(ends, np.int64) - 4])
        for place in spoiled:
            error = _damaged("corrupted", base + edges[place], number + place, path, "its data")
            run.leave_out(error, on_error)
        if spoiled:
            numbers = [one for place, one in enumerate(numbers) if place not in spoiled]
            found = [one for place, one in enumerate(found) if place not in spoiled]
        if found:
            yield RecordBlock(path, numbers, found)
        number += len(ends)
        if damaged is not None:
            error = _damaged("corrupted", base + edges[damaged], number, path, "its length")
            run.leave_out(error, on_error)
            return
        done = edges[-1]
        have, base = have - done, base + done
        if not fresh:
            if have:
                run.leave_out(_damaged("truncated", base, number, path, ""), on_error)
            return
        rest = buffer[done : done + have]
        if last is not None and last + 16 > len(buffer) and have + CHUNK > len(buffer):
            # For a large record. What is there counts: a damaged or hostile file may claim any length.
            buffer = memoryview(bytearray(min(last + 16 + CHUNK, 2 * len(buffer))))
        buffer[:have] = rest


def _frames(data: memoryview, size: int) -> tuple[list[int], list[int], list[int]]:
    """Return where records begin in ``size`` bytes, and where the last one that is whole ends.

    And the lengths that are stored there, and their checksums, which the caller verifies: one more than
    whole records if that of the next one is known.
    """
    start, edges, lengths, checks, unpack = 0, [0], [], [], LENGTH.unpack_from
    while start + 12 <= size:
        length, check = unpack(data, start)
        lengths.append(length)
        checks.append(check)
        start += 16 + length
        if start > size:
            break
        edges.append(start)
    return edges, lengths, checks


def _differing(crcs: NDArray[np.uint32], stored: NDArray[np.uint32]) -> list[int]:
    """Return which checksums, masked, are others than those that are stored."""
    masked = ((crcs >> 15) | (crcs << 17)) + np.uint32(0xA282EAD8)
    found: list[int] = np.flatnonzero(masked != stored).tolist()
    return found


def _length_crcs(lengths: list[int]) -> NDArray[np.uint32]:
    """Return the CRC-32C of lengths, each of 8 bytes.

    A CRC is affine: that of several bytes is the exclusive or of what each of them changes in that of zeros.
    """
    if len(lengths) < 200 or max(lengths) > LARGEST:  # quicker one by one
        from google_crc32c import value

        parts = (value(length.to_bytes(8, "little")) for length in lengths)
        return np.fromiter(parts, np.uint32, len(lengths))
    zero, tables = _crc_tables()
    many = np.array(lengths)
    crcs = np.full(len(many), zero)
    for place, table in enumerate(tables):
        crcs ^= table[(many >> (8 * place)) & 255]
    return crcs


@cache
def _crc_tables() -> tuple[np.uint32, NDArray[np.uint32]]:
    """Return the CRC-32C of 8 zeros, and what each value of each of the first 4 bytes changes in it."""
    from google_crc32c import value

    zero = value(bytes(8))
    tables = [
        [value((byte << (8 * place)).to_bytes(8, "little")) ^ zero for byte in range(256)]
        for place in range(4)
    ]
    return np.uint32(zero), np.array(tables, np.uint32)


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

    Raises InvalidArgumentError for a record that is not bytes, and for a local folder that does not exist;
    StorageError if the file cannot be written, for instance on a full disk.

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
    source, failed = iter(given), None
    try:
        with _created(name) as raw, compressed(raw, name, compression) as file:
            while True:
                try:
                    record = next(source)
                except StopIteration:
                    return count
                except OSError as error:
                    failed = error
                    raise
                if not isinstance(record, (bytes, bytearray, memoryview)):
                    raise InvalidArgumentError(
                        f"record {count} is of type {type(record).__name__}; expected bytes (make_example "
                        "makes them of named values)"
                    )
                file.write(framed(record))
                count += 1
    except OSError as error:
        if failed is not None:  # of the caller's records
            raise failed from None
        if isinstance(error, NbdistError):
            raise
        raise StorageError(
            f"write_tfrecords: {name} cannot be written: {error}. No part of it is kept"
        ) from error


@contextlib.contextmanager
def _created(name: str) -> Iterator[BinaryIO]:
    if is_url(name):
        fs, where = filesystem(name)
        with fs.open(where, "wb") as file:
            yield file
        return
    target = name.removeprefix("file://")
    if not Path(target).parent.is_dir():
        raise InvalidArgumentError(
            f"write_tfrecords: {name!r} is in a folder that does not exist; create it, or give another path"
        )
    with draft_of(target) as draft, draft.open("wb") as file:
        yield file
