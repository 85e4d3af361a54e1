"""One task's shard of a checkpoint: a safetensors file in a folder or behind a URL.

    written = write_shard(folder, "model.ckpt-10.0.safetensors", {"w": array}, checkpoint_id)
    with ShardReader(folder, "model.ckpt-10.0.safetensors", checkpoint_id) as shard:
        shard.read("w", crc, into=array)

The checksums are in the checkpoint's index, since the header of a safetensors file precedes data that may
still change: a variable that other workers update is copied chunk by chunk, and each chunk is summed and
written from the copy. No array is ever copied as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nbdist.checkpoint.folder import Folder
from nbdist.checkpoint.tensor_file import CHUNK, SafetensorsReader, WrittenFile, dtype_name, write_safetensors
from nbdist.errors import DataLossError
from nbdist.graph.backend import Array, backend_of

ID = "nbdist.checkpoint"
"""The header's entry with the id of the checkpoint that a shard belongs to."""


def write_shard(
    folder: Folder,
    file: str,
    tensors: Mapping[str, Array],
    checkpoint: str,
    *,
    stable: bool = False,
    check: Callable[[], object] = lambda: None,
) -> WrittenFile:
    """Write arrays of either backend to a new file, durably.

    - ``tensors``: by name in the file; other threads may change them during the call, unless ``stable``
    - ``checkpoint``: the id of the checkpoint
    - ``check``: called between chunks; may raise, which removes the file

    Raises ResourceExhaustedError for a full disk, InvalidArgumentError for a dtype that the format lacks.
    """
    with folder.create(file) as writer:
        return write_safetensors(writer, tensors, {ID: checkpoint}, stable=stable, check=check)


class ShardReader:
    """A shard open for reading; raises DataLossError, with the file and the tensor, for damage.

    ``checkpoint`` is the id of the checkpoint that the file must belong to, None for any.
    """

    def __init__(self, folder: Folder, file: str, checkpoint: str | None = None) -> None:
        self._path = folder.path(file)
        self._file = folder.open(file)
        try:
            self._reader = SafetensorsReader(self._file, folder.size(file) or 0, self._damaged)
            found = self._reader.texts.get(ID)
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
        self._check(name, shape, dtype)
        self._reader.seek(name)
        shape = tuple(shape)
        place: Any = (*(to or ()), ...)
        target = None if into is None else into[place]
        all_of_it = part is None or all(s == slice(0, n) for s, n in zip(part, shape, strict=True))
        if target is not None and all_of_it and _plain(target):
            total = self._reader.fill(name, target.reshape(-1).view(np.uint8).data)
        else:
            total = self._read_rows(name, shape, dtype, target, part)
        if total != crc:
            raise self._damaged(f"tensor {name!r} has a wrong checksum")

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
            total = self._reader.fill(name, view, total)
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

    def _check(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        entries = self._reader.entries
        if name not in entries:
            raise self._damaged(f"it has no tensor {name!r}; it has {', '.join(sorted(entries)[:8])}")
        expected = {"dtype": dtype_name(name, dtype), "shape": list(shape)}
        found = {"dtype": entries[name].dtype, "shape": list(entries[name].shape)}
        if found != expected:
            raise self._damaged(f"tensor {name!r} is {found}, and the index says {expected}")

    def _damaged(self, why: object) -> DataLossError:
        return DataLossError(f"the checkpoint's file {self._path!r} is damaged: {why}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _plain(array: Array) -> bool:
    return backend_of(array) is np and bool(array.flags.c_contiguous) and bool(array.flags.writeable)
