"""The index of a checkpoint: which tensors it has, in which files, with a checksum of each. Pure.

    index = Index(id, step, saved, files, tensors)
    index.to_text(); Index.from_text(text, path)
    overlaps(entry, start, shape)       # which stored slices hold a part of a variable

A tensor may be stored in several slices (a partitioned variable), and is restored into any other slices. The
index is written after all shards are on disk: a checkpoint exists as soon as its index does.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nbdist.checkpoint.tensor_file import DTYPES
from nbdist.errors import DataLossError

FORMAT = "nbdist checkpoint 1"
SUFFIX = ".index"
MOST_SLICES = 1024  # of a tensor: a cluster has at most 512 tasks
MOST_PARTS = 100_000  # slices of all tensors: more would take many seconds to read
MOST_AXES = 32
FEW = 8  # slices, of which Python compares each pair faster than NumPy


@dataclass(frozen=True)
class StoredSlice:
    """A part of a tensor in a file: its name there, where it begins in the tensor, its shape and CRC-32."""

    file: str
    name: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    crc32: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint; its slices cover it, and do not overlap."""

    dtype: str
    shape: tuple[int, ...]
    slices: tuple[StoredSlice, ...]


@dataclass(frozen=True)
class Index:
    """What a checkpoint consists of.

    ``id`` is random, and in the header of each file; ``step`` is the global step, if one was given; ``saved``
    is the time in seconds since 1970; ``files`` has sizes in bytes.
    """

    id: str
    step: int | None
    saved: float
    files: dict[str, int]
    tensors: dict[str, StoredTensor]

    def to_text(self) -> str:
        """Return the index as JSON, with a checksum of its own."""
        body = json.dumps(asdict(self), separators=(",", ":"))
        return json.dumps({"format": FORMAT, "crc32": zlib.crc32(body.encode()), "index": body}, indent=0)

    @classmethod
    def from_text(cls, text: str, path: str) -> Index:
        """Return what ``to_text`` wrote; DataLossError, with ``path``, for anything else."""
        try:
            outer = json.loads(text)
            if outer["format"] != FORMAT:
                raise ValueError(f"its format is {outer['format']!r}, this version reads {FORMAT!r}")
            if zlib.crc32(outer["index"].encode()) != outer["crc32"]:
                raise ValueError("its checksum is wrong")
            # As to_text writes them: to parse so many would take seconds before they are counted.
            _check_count(max(outer["index"].count(key) for key in ('"dtype":', '"crc32":')))
            body = json.loads(outer["index"])
            _check_count(sum(max(len(t["slices"]), 1) for t in body["tensors"].values()))
            tensors = {str(name): _tensor(t) for name, t in body["tensors"].items()}
            files = {plain_name(name): int(size) for name, size in body["files"].items()}
            step = None if body["step"] is None else int(body["step"])
            index = cls(str(body["id"]), step, float(body["saved"]), files, tensors)
            taken = dict.fromkeys(files, 0)
            for name, tensor in tensors.items():
                _check(name, tensor, taken)
            for file, used in taken.items():
                if used > files[file]:
                    raise ValueError(f"the tensors of {file!r} have {used:,} bytes, it has {files[file]:,}")
            return index
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise DataLossError(f"{path!r} is a damaged index of a checkpoint: {error}") from None


def _check_count(parts: int) -> None:
    if parts > MOST_PARTS:
        raise ValueError(f"it lists {parts:,} parts of tensors, and {MOST_PARTS:,} at most are read")


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(n) is not int or n < 0 for n in value):
        raise ValueError(f"{value!r:.80} is not a list of sizes")
    return tuple(value)


def _tensor(t: Any) -> StoredTensor:
    slices = (
        StoredSlice(str(s["file"]), str(s["name"]), _sizes(s["start"]), _sizes(s["shape"]), int(s["crc32"]))
        for s in t["slices"]
    )
    return StoredTensor(str(t["dtype"]), _sizes(t["shape"]), tuple(slices))


def plain_name(name: str) -> str:
    """Return the name of a file in a checkpoint's folder; raises ValueError for anything else."""
    if not name or name.startswith(".") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r:.80} is not the name of a file in the checkpoint's folder")
    return name


def _check(name: str, tensor: StoredTensor, taken: dict[str, int]) -> None:
    """Check that the slices of a tensor are its parts, and add their bytes to those of their files."""
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name!r} has the dtype {tensor.dtype!r:.40}")
    size = np.dtype(tensor.dtype).itemsize
    if len(tensor.shape) > MOST_AXES:
        raise ValueError(f"{name!r} has {len(tensor.shape):,} axes")
    if math.prod(max(n, 1) for n in tensor.shape) * size > sys.maxsize:  # also of an empty one
        raise ValueError(f"the shape {tensor.shape} of {name!r} is larger than any array")
    covered = 0
    for piece in tensor.slices:
        if piece.file not in taken:
            raise ValueError(f"{name!r} is in {piece.file!r:.80}, which is not a file of the checkpoint")
        if not len(piece.start) == len(piece.shape) == len(tensor.shape) or any(
            first + n > whole for first, n, whole in zip(piece.start, piece.shape, tensor.shape, strict=True)
        ):
            raise ValueError(f"a slice of {name!r} is outside of its shape {tensor.shape}")
        covered += math.prod(piece.shape)
        taken[piece.file] += math.prod(piece.shape) * size
    if len(tensor.slices) > MOST_SLICES or _overlap(tensor.slices):
        raise ValueError(f"the slices of {name!r} overlap, or are more than {MOST_SLICES}")
    if covered != math.prod(tensor.shape):
        raise ValueError(f"the slices of {name!r} do not cover its shape {tensor.shape}")


def _overlap(slices: Sequence[StoredSlice]) -> bool:
    """Return whether any two slices have an element in common."""
    if len(slices) <= FEW:
        return any(
            all(
                max(a, b) < min(a + n, b + m)
                for a, n, b, m in zip(one.start, one.shape, other.start, other.shape, strict=True)
            )
            for one, other in itertools.combinations(slices, 2)
        )
    common = ~np.eye(len(slices), dtype=bool)
    for axis in range(len(slices[0].start)):
        first = np.array([one.start[axis] for one in slices], np.int64)
        end = first + np.array([one.shape[axis] for one in slices], np.int64)
        common &= np.maximum.outer(first, first) < np.minimum.outer(end, end)
    return bool(common.any())


@dataclass(frozen=True)
class Overlap:
    """A stored slice that a part of a variable needs: slices ``part`` of it, at slices ``to`` of the part."""

    stored: StoredSlice
    part: tuple[slice, ...]
    to: tuple[slice, ...]


def overlaps(tensor: StoredTensor, start: Sequence[int], shape: Sequence[int]) -> Iterator[Overlap]:
    """Yield the stored slices that hold values of the part of a tensor that begins at ``start``.

    >>> rows = [StoredSlice("f", f"t{i}", (5 * i, 0), (5, 2), 0) for i in range(2)]
    >>> table = StoredTensor("float32", (10, 2), tuple(rows))
    >>> [(o.part[0], o.to[0]) for o in overlaps(table, (4, 0), (3, 2))]
    [(slice(4, 5, None), slice(0, 1, None)), (slice(0, 2, None), slice(1, 3, None))]
    """
    for piece in tensor.slices:
        part, to = [], []
        for first, n, wanted, m in zip(piece.start, piece.shape, start, shape, strict=True):
            low, high = max(first, wanted), min(first + n, wanted + m)
            part.append(slice(low - first, high - first))
            to.append(slice(low - wanted, high - wanted))
        if all(one.start < one.stop for one in part):
            yield Overlap(piece, tuple(part), tuple(to))


def dtype_of(tensor: StoredTensor) -> np.dtype[Any]:
    """Return a stored tensor's dtype."""
    return np.dtype(tensor.dtype)
