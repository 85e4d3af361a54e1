"""Folders of images, one for each class: Pillow decodes them."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.data.arguments import any_path
from nbdist.data.files import expand, is_url, open_file
from nbdist.errors import DataLossError, InvalidArgumentError, NotFoundError
from nbdist.numbers import is_whole

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
MODES = ("RGB", "RGBA", "L", "I;16")
DEEP = ("I", "F")  # Pillow's other modes of one channel with more than 8 bits, which it would clip


def find_images(folder: str | os.PathLike[str], labels: bool) -> tuple[list[str], list[int], list[str]]:
    """Return (paths, class numbers, class names) of the images in a folder; without labels, of all in it.

    Classes are the sorted names of the folders in it. Raises NotFoundError if there are none.
    """
    name = any_path("images: folder", folder).rstrip("/")
    if not is_url(name) and not os.path.isdir(name):
        raise NotFoundError(f"there is no folder {name!r} (in {os.getcwd()})")
    here = glob.escape(name)
    pattern = f"{here}/*/*" if labels else f"{here}/**"
    try:
        found = [path for path in _all(pattern) if path.lower().endswith(ENDINGS)]
    except NotFoundError:
        found = []
    if not found:
        form = f"{name}/CLASS/image.png" if labels else f"{name}/**/image.png"
        other = ", or say labels=False for images without classes" if labels else ""
        raise NotFoundError(
            f"no images in {name!r}: expected files such as {form} ({', '.join(ENDINGS)}){other}"
        )
    of_each = [path.rpartition("/")[0].rpartition("/")[2] for path in found]
    names = sorted(set(of_each))
    return found, [names.index(one) for one in of_each], names


def _all(pattern: str) -> list[str]:
    if pattern.endswith("/**") and not is_url(pattern):
        pattern += "/*"
    return [path.replace(os.sep, "/") for path in expand([pattern])]


def decode(path: Any, size: tuple[int, int] | None, mode: str) -> NDArray[np.uint8 | np.uint16]:
    """Return the image in a file as (height, width, channels), resized to ``size`` (height, width).

    Raises DataLossError, with the file, for one that cannot be decoded, and InvalidArgumentError for one with
    another depth than ``mode`` has.
    """
    from PIL import Image, UnidentifiedImageError

    name = str(path)
    with open_file(name, "") as file:
        try:
            with Image.open(file) as image:
                if size is not None:
                    image.draft(mode if mode in ("RGB", "L") else None, (size[1], size[0]))
                image.load()
                _check_depth(name, image.mode, mode)
                converted = image if image.mode == mode else image.convert(mode)  # which would copy it
                if size is not None and converted.size != (size[1], size[0]):
                    if mode == "I;16":  # Pillow resizes floats, and not all of its versions these
                        converted = Image.fromarray(np.asarray(converted, np.float32))
                    converted = converted.resize((size[1], size[0]), Image.Resampling.BILINEAR)
                pixels = np.asarray(converted)
                if mode == "I;16":
                    pixels = np.rint(pixels).astype(np.uint16)
        except InvalidArgumentError:
            raise
        except (
            UnidentifiedImageError,
            Image.DecompressionBombError,
            OSError,
            SyntaxError,
            ValueError,
        ) as error:
            raise DataLossError(
                f"{name} cannot be decoded as an image: {error}. Copy the file again, remove it, or leave "
                "such images out with on_error='skip'"
            ) from None
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _check_depth(name: str, has: str, wanted: str) -> None:
    """Raise InvalidArgumentError for an image of Pillow's mode ``has`` whose values ``wanted`` would clip."""
    if has.startswith("I;16"):
        if wanted != "I;16":
            raise InvalidArgumentError(
                f"{name} is grayscale with 16 bits, and mode {wanted!r} keeps 8: read it with mode='I;16', "
                "which makes uint16, or convert the files"
            )
    elif wanted == "I;16" or has in DEEP:
        remedy = "read such images with mode='L'" if has not in DEEP else "decode such images in map()"
        raise InvalidArgumentError(
            f"{name} has Pillow's mode {has!r}, whose values mode {wanted!r} does not keep: {remedy}"
        )


def image_size(size: Sequence[int] | int | None) -> tuple[int, int] | None:
    """Return (height, width); an int is both."""
    if size is None:
        return None
    pair: Any = size if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2 or not all(is_whole(one, 1) for one in pair):
        raise InvalidArgumentError(f"size is {size!r}; expected (height, width) in pixels, or one for both")
    return pair[0], pair[1]
