"""Arrays in a safetensors file, each with a checksum in the header, so that a flipped byte is found.

    write_tensors(path, {"w": array}, {"nbdist": json_text})
    with TensorFile(path) as file:
        file.texts, file.shapes, file.read("w")

Files without checksums (of earlier versions) are read as they are. No pickle.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nbdist.errors import DataLossError
from nbdist.graph.backend import Array, to_host

CHECKSUMS = "nbdist.crc32"
"""The header's entry: JSON of {"tensors": {name: CRC-32}, "texts": {name: CRC-32}}."""


def write_tensors(path: Path, tensors: Mapping[str, Array], texts: Mapping[str, str]) -> None:
    """Write arrays and texts by name to a file, with a CRC-32 of each."""
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(to_host(array)) for name, array in tensors.items()}
    sums = {
        "tensors": {name: _crc(array) for name, array in arrays.items()},
        "texts": {name: zlib.crc32(text.encode()) for name, text in texts.items()},
    }
    save_file(arrays, str(path), {**texts, CHECKSUMS: json.dumps(sums)})


class TensorFile:
    """A file of arrays, open for reading; raises DataLossError if it is damaged or of another kind.

    ``what`` names the expected kind of file in errors.
    """

    def __init__(self, path: str | Path, what: str = "a file of tensors") -> None:
        import safetensors

        opened: Any = safetensors.safe_open  # its calls have no types
        self.path, self.what = str(path), what
        with suppress(OSError):  # which safetensors reports
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # a named pipe would be waited for
                raise self.damaged("it is not a regular file")
        try:
            self._file: Any = opened(self.path, "np").__enter__()
            self.texts: dict[str, str] = self._file.metadata() or {}
            """Texts of the header by name."""
            self.shapes: dict[str, tuple[int, ...]] = {
                name: tuple(self._file.get_slice(name).get_shape()) for name in sorted(self._file.keys())
            }
            """The shapes of the arrays by name, from the header."""
            sums: Any = json.loads(self.texts.pop(CHECKSUMS, '{"tensors": {}, "texts": {}}'))
            self._sums: dict[str, int] = dict(sums["tensors"])
            if self._sums and self._sums.keys() != self.shapes.keys():
                raise ValueError("its tensors have other names than those that were written")
            for name, crc in dict(sums["texts"]).items():
                if zlib.crc32(self.texts[name].encode()) != crc:
                    raise ValueError(f"the checksum of its header entry {name!r} is wrong")
        except (safetensors.SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise self.damaged(error) from None

    def read(self, name: str, called: str = "") -> Array:
        """Return an array after a check of its checksum; ``called`` explains its name in errors."""
        from safetensors import SafetensorError

        try:
            array: Array = self._file.get_tensor(name)
        except (SafetensorError, LookupError, TypeError, ValueError) as error:
            raise self.damaged(error) from None
        if self._sums.get(name, crc := _crc(array) if name in self._sums else 0) != crc:
            which = f"{name!r} ({called})" if called else repr(name)
            raise self.damaged(f"tensor {which} has a wrong checksum")
        return array

    def damaged(self, why: object) -> DataLossError:
        """Return the error for a damaged file."""
        reason = "it is nested too deeply" if isinstance(why, RecursionError) else why
        return DataLossError(f"{self.path!r} is not {self.what}, or is damaged: {reason}")

    def close(self) -> None:
        """Close the file."""
        self._file.__exit__(None, None, None)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _crc(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
