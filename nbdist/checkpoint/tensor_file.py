"""Arrays in safetensors files: written and read in chunks, with a CRC-32 per tensor. No pickle.

    write_tensors(path, {"w": array}, {"nbdist": json_text})
    with TensorFile(path) as file:
        file.texts, file.shapes, file.read("w")

The format is that of https://github.com/huggingface/safetensors: the length of the header (8 bytes,
little-endian), the header as JSON, the data. The library is not used, because it wants all tensors in memory
and unchanged: a shard of a checkpoint is copied chunk by chunk while other workers update its variables (see
`shard`). Wide elements come first, so that each tensor is aligned.

`write_tensors` puts the checksums into the header, so that one file is enough to find a flipped byte. Files
without checksums (of the library, and of earlier versions) are read as they are.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from nbdist.checkpoint.folder import Writer
from nbdist.errors import DataLossError, InvalidArgumentError, StorageError
from nbdist.graph.backend import Array, backend_of, to_host
from nbdist.numbers import is_whole

CHUNK = 1 << 20  # bytes: small enough that a chunk stays in the core's cache from copy to checksum to write
MAX_HEADER = 100 << 20  # bytes, as in the safetensors library
METADATA = "__metadata__"
CHECKSUMS = "nbdist.crc32"
"""The header's entry: JSON of {"tensors": {name: CRC-32}, "texts": {name: CRC-32}}."""
DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64",
    "complex64": "C64",
}  # fmt: skip
"""Names of dtypes in safetensors, by NumPy's name."""
NARROW = {
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
"""Names of dtypes that NumPy lacks, by the name that PyTorch and ml_dtypes give them."""
NUMPY = {name: np.dtype(numpy) for numpy, name in DTYPES.items()}
SIZES = {name: dtype.itemsize for name, dtype in NUMPY.items()} | {
    name: 2 if name == "BF16" else 1 for name in NARROW.values()
}
"""Bytes of an element, by the format's name of its dtype."""
MOST_BYTES = 1 << 62
MOST_AXES = 64  # of NumPy
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class RawTensor:
    """A tensor as bytes, for dtypes that NumPy lacks: its dtype as the format names it, and a flat array."""

    dtype: str
    shape: tuple[int, ...]
    data: Array

    @property
    def nbytes(self) -> int:
        """The number of its bytes."""
        return int(self.data.size)


Tensors: TypeAlias = Mapping[str, Array | RawTensor]


@dataclass(frozen=True)
class WrittenFile:
    """What was written: the file's size in bytes, and the CRC-32 of each tensor."""

    size: int
    sums: dict[str, int]


def write_tensors(path: Path, tensors: Tensors, texts: Mapping[str, str]) -> None:
    """Write arrays and texts by name to a file, with a CRC-32 of each; OSError if the disk refuses.

    It is written in place: see `nbdist.draft` for a file that appears when it is complete.
    """
    _check_names(tensors, texts)
    held = {name: one if isinstance(one, RawTensor) else to_host(one) for name, one in tensors.items()}
    sums = {
        "tensors": {name: crc_of(array) for name, array in held.items()},
        "texts": {name: zlib.crc32(text.encode()) for name, text in texts.items()},
    }
    with path.open("wb") as file:
        write_safetensors(file, held, {**texts, CHECKSUMS: json.dumps(sums)}, summed=False)


def write_safetensors(
    writer: Writer,
    tensors: Tensors,
    texts: Mapping[str, str],
    *,
    stable: bool = True,
    summed: bool = True,
    check: Callable[[], object] = lambda: None,
) -> WrittenFile:
    """Write a file of arrays of either backend.

    - ``stable``: False if other threads may change the arrays during the call; each chunk is then copied, so
      that what is written is what was summed
    - ``summed``: whether what is returned has checksums
    - ``check``: called between chunks; may raise

    Raises InvalidArgumentError for a dtype that the format lacks, and for a name that it cannot hold.
    """
    _check_names(tensors, texts)
    header, offset = dict[str, Any]({METADATA: dict(texts)} if texts else {}), 0
    ordered = sorted(tensors.items(), key=lambda one: -_item_size(one[1]))  # stable: else in the given order
    for name, tensor in ordered:
        header[name] = {
            "dtype": dtype_name(name, tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset := offset + int(tensor.nbytes)],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data is aligned
    writer.write(_LENGTH.pack(len(text)) + text)
    buffer = None if stable else np.empty(CHUNK, np.uint8)
    sums: dict[str, int] = {}
    for name, tensor in ordered:
        total = 0
        for chunk in _chunks(tensor, buffer):
            check()
            total = zlib.crc32(chunk, total) if summed else 0
            writer.write(chunk)
        sums[name] = total
    return WrittenFile(_LENGTH.size + len(text) + offset, sums)


def _check_names(tensors: Tensors, texts: Mapping[str, str]) -> None:
    if METADATA in tensors:
        raise InvalidArgumentError(
            f"no tensor can have the name {METADATA!r}: a file keeps its texts there; rename it"
        )
    for text in [*tensors, *texts, *texts.values()]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(
                f"{text[:80]!r} has half of a character (a lone surrogate), which no file holds; rename it"
            ) from None


def dtype_name(name: str, dtype: np.dtype[Any] | str) -> str:
    """Return the format's name of a dtype; InvalidArgumentError, with the tensor's name, if it has none."""
    if isinstance(dtype, str):
        return dtype
    found = DTYPES.get(dtype.name) or NARROW.get(dtype.name)
    if found is None:
        raise InvalidArgumentError(
            f"{name!r} is {dtype}, which a checkpoint cannot hold; it holds {', '.join(DTYPES)}"
        )
    return found


def _item_size(tensor: Array | RawTensor) -> int:
    if isinstance(tensor, RawTensor):
        return tensor.nbytes // max(1, math.prod(tensor.shape))
    return int(tensor.dtype.itemsize)


def _chunks(tensor: Array | RawTensor, buffer: Array | None = None) -> Iterator[memoryview]:
    """Yield the bytes of an array in order; copies of them if a buffer for these is given."""
    array = tensor.data if isinstance(tensor, RawTensor) else tensor
    if backend_of(array) is not np:
        array, buffer = to_host(array), None
    if not array.flags.c_contiguous or not array.dtype.isnative:
        array, buffer = np.ascontiguousarray(array, array.dtype.newbyteorder("=")), None
    flat = array.reshape(-1).view(np.uint8)
    for at in range(0, flat.size, CHUNK):
        chunk = flat[at : at + CHUNK]
        if buffer is not None:
            np.copyto(buffer[: chunk.size], chunk)
            chunk = buffer[: chunk.size]
        yield chunk.data


def crc_of(tensor: Array | RawTensor, total: int = 0) -> int:
    """Return the CRC-32 of a tensor's bytes, which continues ``total``."""
    for chunk in _chunks(tensor):
        total = zlib.crc32(chunk, total)
    return total


@dataclass(frozen=True)
class Entry:
    """A tensor in a header: its dtype as the format names it, its shape, its place in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsReader:
    """An open file of tensors; raises what ``damaged`` makes of a reason if it is damaged.

    ``file`` is open for reading at its beginning, and has ``size`` bytes.
    """

    def __init__(self, file: BinaryIO, size: int, damaged: Callable[[object], Exception]) -> None:
        self._file, self._damaged = file, damaged
        head = file.read(_LENGTH.size)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -1
        if not 0 < length <= min(MAX_HEADER, size - _LENGTH.size):
            raise damaged(f"its header has {length:,} bytes, and the file {size:,}")
        self._data = _LENGTH.size + length
        try:
            header: Any = json.loads(file.read(length))
            self.texts: dict[str, str] = dict(header.pop(METADATA, None) or {})
            """Texts of the header, by name."""
            self.entries = {str(name): self._entry(name, dict(one)) for name, one in header.items()}
            """The header's entries, by the name of a tensor."""
            self._check_offsets(size)
            if not all(isinstance(text, str) for text in self.texts.values()):
                raise ValueError("its metadata are not texts")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise damaged(error) from None

    def _entry(self, name: str, found: dict[str, Any]) -> Entry:
        (begin, end), shape, dtype = found["data_offsets"], found["shape"], found["dtype"]
        if not is_whole(begin, 0) or not is_whole(end, begin):
            raise ValueError(f"the offsets of {name!r} are {begin!r} and {end!r}")
        if not isinstance(shape, list) or not all(is_whole(one, 0) for one in shape):
            raise ValueError(f"the shape of {name!r} is {shape!r:.80}")
        if len(shape) > MOST_AXES or max(end, math.prod(max(one, 1) for one in shape)) > MOST_BYTES:
            raise ValueError(f"tensor {name!r} has the shape {shape!r:.80}, which no memory holds")
        if dtype in SIZES and end - begin != math.prod(shape) * SIZES[dtype]:
            raise ValueError(f"tensor {name!r} has {end - begin:,} bytes, which does not fit its shape")
        return Entry(str(dtype), tuple(shape), self._data + begin, self._data + end)

    def _check_offsets(self, size: int) -> None:
        """Check that the tensors are one after the other: then none takes the bytes of another."""
        at = self._data
        for name, entry in sorted(self.entries.items(), key=lambda one: (one[1].begin, one[1].end)):
            if entry.end > size:
                raise ValueError(f"the file ends inside tensor {name!r}")
            if entry.begin != at:
                raise ValueError(f"tensor {name!r} does not follow on the one before it")
            at = entry.end
        if at != size:
            raise ValueError(f"{size - at:,} bytes follow on the last tensor")

    def seek(self, name: str) -> None:
        """Go to the bytes of a tensor."""
        self._file.seek(self.entries[name].begin)

    def fill(self, name: str, view: memoryview, total: int = 0) -> int:
        """Read the next bytes of a tensor into memory; return the CRC-32 that continues ``total``."""
        for at in range(0, len(view), CHUNK):
            chunk = left = view[at : at + CHUNK]
            while left:
                got = self._file.readinto(left)  # type: ignore[attr-defined]  # a file has it
                if not got:
                    raise self._damaged(f"it ends inside tensor {name!r}")
                left = left[got:]
            total = zlib.crc32(chunk, total)
        return total


class TensorFile:
    """A file of arrays, open for reading; raises DataLossError if it is damaged or of another kind.

    Raises StorageError for a file that this process may not read.

    ``what`` names the expected kind of file in errors.
    """

    def __init__(self, path: str | Path, what: str = "a file of tensors") -> None:
        self.path, self.what = str(path), what
        try:  # O_NONBLOCK: a named pipe would be waited for
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise self.damaged("it is not a regular file")
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        try:
            self._reader = SafetensorsReader(self._file, status.st_size, self.damaged)
            self.texts = self._reader.texts
            """Texts of the header by name."""
            self.shapes = {name: entry.shape for name, entry in sorted(self._reader.entries.items())}
            """The shapes of the arrays by name, from the header."""
            self._sums = self._read_sums()
        except BaseException:
            self.close()
            raise

    def _read_sums(self) -> dict[str, int]:
        try:
            sums: Any = json.loads(self.texts.pop(CHECKSUMS, '{"tensors": {}, "texts": {}}'))
            tensors = dict(sums["tensors"])
            if tensors and tensors.keys() != self.shapes.keys():
                raise ValueError("its tensors have other names than those that were written")
            for name, crc in dict(sums["texts"]).items():
                if zlib.crc32(self.texts[name].encode()) != crc:
                    raise ValueError(f"the checksum of its header entry {name!r} is wrong")
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise self.damaged(error) from None
        return tensors

    def read(self, name: str, called: str = "") -> Array:
        """Return an array after a check of its checksum; ``called`` explains its name in errors."""
        raw = self.raw(name, called)
        kind = NUMPY.get(raw.dtype) or narrow(raw.dtype)
        if kind is None and raw.dtype not in NARROW.values():
            raise self.damaged(f"tensor {name!r} is {raw.dtype}, which NumPy lacks")
        if kind is None:
            raise InvalidArgumentError(
                f"tensor {name!r} of {self.path!r} is {raw.dtype}, which NumPy lacks: install ml_dtypes for "
                "bfloat16 and float8, or read it with the library of safetensors"
            )
        array: Array = raw.data.view(kind).reshape(raw.shape)
        return array

    def raw(self, name: str, called: str = "") -> RawTensor:
        """Return a tensor of any dtype as bytes, after a check of its checksum."""
        if name not in self._reader.entries:
            raise self.damaged(f"it has no tensor {name!r}")
        entry = self._reader.entries[name]
        data = np.empty(entry.end - entry.begin, np.uint8)
        self._reader.seek(name)
        crc = self._reader.fill(name, data.data)
        if self._sums.get(name, crc) != crc:
            which = f"{name!r} ({called})" if called else repr(name)
            raise self.damaged(f"tensor {which} has a wrong checksum")
        return RawTensor(entry.dtype, entry.shape, data)

    def damaged(self, why: object) -> DataLossError:
        """Return the error for a damaged file."""
        reason = "it is nested too deeply" if isinstance(why, RecursionError) else why
        return DataLossError(f"{self.path!r} is not {self.what}, or is damaged: {reason}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def narrow(dtype: str) -> np.dtype[Any] | None:
    """Return the dtype of ml_dtypes that the format calls ``dtype``; None for others and without it.

    >>> narrow("F32") is None
    True
    """
    found = {name: kind for kind, name in NARROW.items()}.get(dtype)
    try:
        ml_dtypes = import_module("ml_dtypes")
    except ImportError:
        return None
    kind = getattr(ml_dtypes, found, None) if found is not None else None
    return None if kind is None else np.dtype(kind)
