"""Embeddings for TensorBoard's projector: files beside the event files, and their configuration.

    <folder>/projector_config.pbtxt
    <folder>/<name>-<step>/tensors.tsv, metadata.tsv, sprite.png

The files are written by the caller's thread, and complete before the configuration names them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from nbdist.errors import InvalidArgumentError, StorageError
from nbdist.metrics.event_file import make_private
from nbdist.metrics.run_folder import slug, write_whole_file
from nbdist.summary.values import Images, numbers, png

CONFIG = "projector_config.pbtxt"
MOST_PIXELS = 8192  # of a side of the sprite, as far as the projector reads it
MOST_NUMBERS = 20_000_000


def write_embedding(
    folder: Path,
    name: str,
    vectors: Any,
    step: int,
    labels: Any = None,
    header: Any = None,
    images: Any = None,
) -> None:
    """Write the vectors of a name at a step; those of an earlier call with both are replaced."""
    table = numbers(name, vectors, "embedding", copy=False)
    if table.ndim != 2 or 0 in table.shape or table.size > MOST_NUMBERS:
        raise InvalidArgumentError(
            f"summary.embedding {name!r}: expected an array of shape (points, dimensions) with at most "
            f"{MOST_NUMBERS:,} numbers, not {table.shape}"
        )
    rows = None if labels is None else label_lines(name, labels, header, len(table))
    sprite = None if images is None else sprite_of(name, images, len(table))
    where = folder / f"{slug(name)}-{crc32(name.encode()):08x}-{step}"
    entry = [f'  tensor_name: "{escaped(name)}:{step}"', f'  tensor_path: "{where.name}/tensors.tsv"']
    entry += [f"  tensor_shape: {size}" for size in table.shape]
    try:
        make_private(where)
        lines = ("\t".join(f"{value:.7g}" for value in row) for row in table.tolist())
        write_whole_file(where / "tensors.tsv", ("\n".join(lines) + "\n").encode())
        if rows is not None:
            write_whole_file(where / "metadata.tsv", rows.encode())
            entry.append(f'  metadata_path: "{where.name}/metadata.tsv"')
        if sprite is not None:
            data, height, width = sprite
            write_whole_file(where / "sprite.png", data)
            entry.append(f'  sprite {{\n    image_path: "{where.name}/sprite.png"')
            entry.append(f"    single_image_dim: {width}\n    single_image_dim: {height}\n  }}")
        config = folder / CONFIG
        found = config.read_text() if config.exists() else ""
        kept = [one for one in found.split("embeddings {\n")[1:] if entry[0] not in one]
        own = "\n".join(entry) + "\n}\n"
        write_whole_file(config, "".join(f"embeddings {{\n{one}" for one in [*kept, own]).encode())
    except OSError as error:
        raise StorageError(f"summary.embedding {name!r} is not written to {folder}: {error}") from error


def label_lines(name: str, labels: Any, header: Any, points: int) -> str:
    """Return metadata.tsv: a label a line, or several columns below a header."""
    rows = [list(one) if isinstance(one, (list, tuple)) else [one] for one in labels]
    if len(rows) != points or len({len(row) for row in rows}) != 1:
        raise InvalidArgumentError(
            f"summary.embedding {name!r}: {points} points need as many labels, of one number of columns each"
        )
    columns = len(rows[0])
    if (header is None) != (columns == 1) or (header is not None and len(header) != columns):
        raise InvalidArgumentError(
            f"summary.embedding {name!r}: labels of {columns} columns need a header with a name for each "
            "(and labels of one column have none)"
        )
    table = ([list(header)] if header is not None else []) + rows
    return "".join("\t".join(clean(cell) for cell in row) + "\n" for row in table)


def sprite_of(name: str, images: Any, points: int) -> tuple[bytes, int, int]:
    """Return one PNG with an image for each point, row by row, and the height and width of one."""
    pixels = Images.of(name, images, max_outputs=points + 1).pixels
    if len(pixels) != points:
        raise InvalidArgumentError(f"summary.embedding {name!r}: {points} points need as many images")
    _, height, width, channels = pixels.shape
    side = math.ceil(math.sqrt(points))
    if side * max(height, width) > MOST_PIXELS:
        raise InvalidArgumentError(
            f"summary.embedding {name!r}: {points} images of {height} x {width} pixels make a sprite of more "
            f"than {MOST_PIXELS} pixels a side; give smaller ones"
        )
    grid: NDArray[np.uint8] = np.zeros((side * side, height, width, channels), np.uint8)
    grid[:points] = pixels
    whole = grid.reshape(side, side, height, width, channels).swapaxes(1, 2)
    return png(whole.reshape(side * height, side * width, channels)), height, width


def clean(cell: object) -> str:
    """Return a label on one line, without tabs."""
    return " ".join(str(cell).split())


def escaped(text: str) -> str:
    r"""Return a text inside quotes.

    >>> escaped('a "b" \\')
    'a \\"b\\" \\\\'
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
