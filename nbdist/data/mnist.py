"""MNIST and its kin (Fashion-MNIST, KMNIST) from the IDX files they are published in."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.data.arguments import any_path
from nbdist.data.digits import Split
from nbdist.errors import DataLossError, NotFoundError
from nbdist.home import home

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
LARGEST = 1 << 30  # bytes of pixels; MNIST's training images are 47 MB


def mnist(folder: str | os.PathLike[str] | None = None, *, flatten: bool = True) -> Split:
    """Return (x_train, y_train, x_test, y_test): float32 images in [0, 1] with int64 labels, read-only.

    Images are (n, 784), or (n, 28, 28, 1) without ``flatten``. ``folder`` holds the four IDX files, plain
    or ``.gz``; default ``NBDIST_MNIST``, else ``mnist`` in nbdist's home. Raises `NotFoundError`, which
    says what to put where, and `DataLossError` for a damaged file.
    """
    if folder is not None:
        folder = any_path("mnist: folder", folder)
    where = Path(folder or os.environ.get("NBDIST_MNIST") or home() / "mnist").expanduser()
    x_train, y_train, x_test, y_test = (read_idx(find(where, name), dimensions(name)) for name in FILES)
    for images, labels, name in ((x_train, y_train, FILES[1]), (x_test, y_test, FILES[3])):
        if len(images) != len(labels):
            raise DataLossError(f"{where / name} has {len(labels)} labels for {len(images)} images")
    return (scaled(x_train, flatten), whole(y_train), scaled(x_test, flatten), whole(y_test))


def find(folder: Path, name: str) -> Path:
    """Return the file ``name`` in ``folder`` under one of the names it goes by."""
    for form in (name, name.replace("-idx", ".idx")):  # unpacked on some systems, the dash becomes a dot
        for path in (folder / form, folder / f"{form}.gz"):
            if path.is_file():
                return path
    raise NotFoundError(
        f"no {name} in {folder}. Put the four MNIST files there (each may end in .gz): {', '.join(FILES)}; "
        "or name their folder: nb.data.mnist(folder) or NBDIST_MNIST. nb.data.digits() needs no files"
    )


def dimensions(name: str) -> int:
    """Return how many axes the file ``name`` has, as its name says."""
    return int(name[name.index("idx") + 3])


def read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Read an IDX file of bytes with ``axes`` axes; sizes are checked before memory is taken."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * axes)
            if len(header) < 4 + 4 * axes or header[:4] != bytes([0, 0, 8, axes]):
                raise DataLossError(
                    f"{path} is not an IDX file of bytes with {axes} axes: it starts with "
                    f"{header[:4].hex()}, expected {bytes([0, 0, 8, axes]).hex()}"
                )
            shape = tuple(int(size) for size in np.frombuffer(header, ">u4", offset=4))
            size = int(np.prod(shape, dtype=object))
            if size > LARGEST:
                raise DataLossError(f"{path} claims {shape} bytes; more than {LARGEST >> 30} GB is damage")
            data = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataLossError(f"{path} is damaged: {error}; fetch it again") from error
    if len(data) != size:
        more = "at least " if len(data) > size else ""
        raise DataLossError(
            f"{path} is damaged: {more}{len(data)} bytes where {shape} needs {size}; fetch it again"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def scaled(images: NDArray[np.uint8], flatten: bool) -> NDArray[np.float32]:
    """Return images as float32 in [0, 1], in rows or with a channel axis."""
    pixels: NDArray[Any] = images.astype(np.float32)
    pixels /= np.float32(255)
    pixels = pixels.reshape(len(images), -1) if flatten and len(images) else pixels[..., None]
    pixels.flags.writeable = False
    return pixels


def whole(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return labels as int64."""
    numbers = labels.astype(np.int64)
    numbers.flags.writeable = False
    return numbers
