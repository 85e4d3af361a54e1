"""One task's shard of a checkpoint: a safetensors file, written and read in chunks, with a CRC-32 per tensor.

    written = write_shard(folder, "model.ckpt-10.0.safetensors", {"w": array}, checkpoint_id)
    with ShardReader(folder, "model.ckpt-10.0.safetensors", checkpoint_id) as shard:
        shard.read("w", crc, into=array)

The checksums are in the checkpoint's index, since the header of a safetensors file precedes data that may
still change: a variable that other workers update is copied chunk by chunk, and each chunk is summed and
written from the copy. No array is ever copied as a whole, and no pickle is used. The format is that of
https://github.com/huggingface/safetensors: the length of the header (8 bytes, little-endian), the header as
JSON, the data.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from nbdist.checkpoint.folder import Folder
from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.graph.backend import Array, backend_of, to_host

CHUNK = 1 << 20  # bytes: small enough that a chunk stays in the core's cache from copy to checksum to write
MAX_HEADER = 100 << 20  # bytes, as in the safetensors library
ID = "nbdist.checkpoint"
"""The header's entry with the id of the checkpoint that a shard belongs to."""
DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64",
}  # fmt: skip
"""Names of dtypes in safetensors, by NumPy's name."""
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class WrittenShard:
    """What was written: the file's size in bytes, and the CRC-32 of each tensor."""

    size: int
    sums: dict[str, int]


def write_shard(
    folder: Folder,
    file: str,
    tensors: Mapping[str, Array],
    checkpoint: str,
    *,
    stable: bool = False,
    check: Callable[[], object] = lambda: None,
) -> WrittenShard:
    """Write arrays of either backend to a new file, durably.

    - ``tensors``: by name in the file; other threads may change them during the call, unless ``stable``
    - ``checkpoint``: the id of the checkpoint
    - ``check``: called between chunks; may raise, which removes the file

    Raises ResourceExhaustedError for a full disk, InvalidArgumentError for a dtype that the format lacks.
    """
    header, offset = {"__metadata__": {ID: checkpoint}}, 0
    for name, array in tensors.items():
        entry: dict[str, Any] = {
            "dtype": dtype_name(name, array.dtype),
            "shape": list(array.shape),
            "data_offsets": [offset, offset := offset + array.nbytes],
        }
        header[name] = entry
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data is aligned
    sums: dict[str, int] = {}
    with folder.create(file) as writer:
        writer.write(_LENGTH.pack(len(text)) + text)
        buffer = np.empty(CHUNK, np.uint8)
        for name, array in tensors.items():
            total = 0
            for chunk in _chunks(array, None if stable else buffer):
                check()
                total = zlib.crc32(chunk, total)
                writer.write(chunk)
            sums[name] = total
    return WrittenShard(_LENGTH.size + len(text) + offset, sums)


def dtype_name(name: str, dtype: np.dtype[Any]) -> str:
    """Return the format's name of a dtype; InvalidArgumentError, with the tensor's name, if it has none."""
    if dtype.name not in DTYPES:
        raise InvalidArgumentError(
            f"{name!r} is {dtype}, which a checkpoint cannot hold; it holds {', '.join(DTYPES)}"
        )
    return DTYPES[dtype.name]


def _chunks(array: Array, buffer: Array | None) -> Iterator[memoryview]:
    """Yield the bytes of an array in order; copies of them if a buffer for these is given."""
    if backend_of(array) is not np:
        array, buffer = to_host(array), None
    if not array.flags.c_contiguous:
        array, buffer = np.ascontiguousarray(array), None
    flat = array.reshape(-1).view(np.uint8)
    step = CHUNK if buffer is None else buffer.size
    for at in range(0, flat.size, step):
        chunk = flat[at : at + step]
        if buffer is not None:
            np.copyto(buffer[: chunk.size], chunk)
            chunk = buffer[: chunk.size]
        yield chunk.data


class ShardReader:
    """A shard open for reading; raises DataLossError, with the file and the tensor, for damage.

    ``checkpoint`` is the id of the checkpoint that the file must belong to, None for any.
    """

    def __init__(self, folder: Folder, file: str, checkpoint: str | None = None) -> None:
        self._path = folder.path(file)
        self._file = folder.open(file)
        try:
            self._read_header(folder.size(file) or 0)
            found = self.texts.get(ID)
            if checkpoint is not None and found != checkpoint:
                raise self._damaged(
                    f"it belongs to checkpoint {found!r}, not to {checkpoint!r}: was a file of another "
                    "checkpoint put in its place?"
                )
        except BaseException:
            self._file.close()
            raise

    def read(
        self,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        crc: int,
        into: Array | None = None,
        part: tuple[slice, ...] | None = None,
        to: tuple[slice, ...] | None = None,
    ) -> None:
        """Check a tensor, and copy ``part`` of it to the place ``to`` of an array.

        - ``shape``, ``dtype``, ``crc``: what the index says of the tensor
        - ``into``: the array, of either backend; None only checks. It is changed before the checksum of
          the whole tensor is known: after a DataLossError its content is undefined
        - ``part``, ``to``: slices of the tensor and of the array, of one shape; None for all
        """
        begin, end = self._entry(name, shape, dtype)
        self._file.seek(begin)
        shape = tuple(shape)
        place: Any = (*(to or ()), ...)
        target = None if into is None else into[place]
        all_of_it = part is None or all(s == slice(0, n) for s, n in zip(part, shape, strict=True))
        if target is not None and all_of_it and _plain(target):
            total = self._read_whole(name, target, end - begin)
        else:
            total = self._read_rows(name, shape, dtype, target, part)
        if total != crc:
            raise self._damaged(f"tensor {name!r} has a wrong checksum")

    def _read_whole(self, name: str, into: Array, size: int) -> int:
        flat, total = into.reshape(-1).view(np.uint8), 0
        if flat.size != size:
            raise self._damaged(f"tensor {name!r} has {size:,} bytes, {flat.size:,} were expected")
        for at in range(0, size, CHUNK):
            chunk = flat[at : at + CHUNK].data
            self._fill(name, chunk)
            total = zlib.crc32(chunk, total)
        return total

    def _read_rows(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        into: Array | None,
        part: tuple[slice, ...] | None,
    ) -> int:
        """Read a range of the first axis at a time, and copy what is wanted of it."""
        rows, inner = (shape[0], shape[1:]) if shape else (1, ())
        row = math.prod(inner) * dtype.itemsize
        at_once = max(1, CHUNK // max(row, 1))
        buffer = np.empty((min(at_once, rows), *inner), dtype)
        part = part or tuple(slice(0, n) for n in shape)
        total = 0
        for first in range(0, rows, at_once):
            block = buffer[: min(at_once, rows - first)]
            view = block.reshape(-1).view(np.uint8).data
            self._fill(name, view)
            total = zlib.crc32(view, total)
            if into is None:
                continue
            if not shape:
                into[...] = backend_of(into).asarray(block.reshape(()))
                continue
            low, high = max(first, part[0].start), min(first + len(block), part[0].stop)
            if low < high:
                here = block[(slice(low - first, high - first), *part[1:])]
                into[low - part[0].start : high - part[0].start] = backend_of(into).asarray(here)
        return total

    def _fill(self, name: str, view: memoryview) -> None:
        while view:
            got = self._file.readinto(view)  # type: ignore[attr-defined]  # an unbuffered file has it
            if not got:
                raise self._damaged(f"it ends inside tensor {name!r}")
            view = view[got:]

    def _entry(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, int]:
        if name not in self.entries:
            raise self._damaged(f"it has no tensor {name!r}; it has {', '.join(sorted(self.entries)[:8])}")
        entry = self.entries[name]
        expected = {"dtype": dtype_name(name, dtype), "shape": list(shape)}
        found = {key: entry.get(key) for key in expected}
        if found != expected:
            raise self._damaged(f"tensor {name!r} is {found}, and the index says {expected}")
        begin, end = entry["data_offsets"]
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise self._damaged(f"tensor {name!r} has {end - begin:,} bytes, which does not fit its shape")
        return self._data + begin, self._data + end

    def _read_header(self, size: int) -> None:
        head = self._file.read(_LENGTH.size)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -1
        if not 0 < length <= min(MAX_HEADER, size - _LENGTH.size):
            raise self._damaged(f"its header has {length:,} bytes, and the file {size:,}")
        self._data = _LENGTH.size + length
        try:
            header: Any = json.loads(self._file.read(length))
            self.texts: dict[str, str] = dict(header.pop("__metadata__", {}))
            """Texts of the header, by name."""
            self.entries: dict[str, dict[str, Any]] = {str(k): dict(v) for k, v in header.items()}
            """The header's entries, by the name of a tensor."""
            for name, entry in self.entries.items():
                begin, end = entry["data_offsets"]
                if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
                    raise ValueError(f"the offsets of {name!r} are {begin!r} and {end!r}")
                if self._data + end > size:
                    raise ValueError(f"the file ends inside tensor {name!r}")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> DataLossError:
        return DataLossError(f"the checkpoint's file {self._path!r} is damaged: {why}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _plain(array: Array) -> bool:
    return backend_of(array) is np and bool(array.flags.c_contiguous) and bool(array.flags.writeable)
