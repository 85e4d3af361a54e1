"""Histograms and images on their way from a task to the live view and the saved output.

    picture = Picture.of("weights", histogram, step=10)         # on the task; small
    gallery.add("worker 0", picture)                            # in the notebook; bounded

A histogram keeps some earlier ones of its tag, at even distances; of images the newest are kept.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.errors import InvalidArgumentError
from nbdist.summary.values import Histogram, Images, Value
from nbdist.text import clip

HISTOGRAM, IMAGE = "histogram", "image"
MOST_TAGS = 24  # of a run; more are in the event files only
MOST_STEPS = 12  # earlier histograms of a tag
LARGEST_SIDE = 320  # pixels; larger images are shown smaller
MOST_BYTES = 1 << 20  # of one image
MOST_BUCKETS, MOST_IMAGES = 1024, 256  # of one picture that is received
LONGEST_TAG = 200


@dataclass(frozen=True, eq=False)
class Picture:
    """A histogram (edges and counts) or images (PNGs, as bytes) of a tag at a step."""

    tag: str
    kind: str
    step: int
    arrays: tuple[NDArray[Any], ...]

    @classmethod
    def of(cls, tag: str, value: Value, step: int) -> Picture | None:
        """Return the picture of a value; None for one that is neither a histogram nor images."""
        name = clip(tag, LONGEST_TAG)
        if isinstance(value, Histogram):
            buckets = value.buckets
            return cls(name, HISTOGRAM, step, (buckets.edges, buckets.counts)) if value.finite.size else None
        if isinstance(value, Images):
            pngs = [smaller(one) for one in value.pngs]
            arrays = tuple(np.frombuffer(one, np.uint8) for one in pngs if len(one) <= MOST_BYTES)
            return cls(name, IMAGE, step, arrays) if arrays else None
        return None

    @classmethod
    def received(cls, meta: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> Picture:
        """Return the picture of a message; InvalidArgumentError if its parts do not fit together."""
        tag, kind, step = meta.get("tag"), meta.get("kind"), meta.get("step")
        fits = isinstance(tag, str) and isinstance(step, int) and len(arrays) > 0
        if fits and kind == HISTOGRAM:
            fits = len(arrays) == 2 and arrays[0].shape == (len(arrays[1]) + 1,) and arrays[1].ndim == 1
            fits = fits and arrays[0].dtype.kind == "f" and arrays[1].dtype.kind == "i"
            fits = fits and len(arrays[1]) <= MOST_BUCKETS and bool(np.isfinite(arrays[0]).all())
        elif fits:
            fits = kind == IMAGE and len(arrays) <= MOST_IMAGES
            fits = fits and all(
                one.dtype == np.uint8 and one.ndim == 1 and is_small_png(one) for one in arrays
            )
        if not fits:
            raise InvalidArgumentError(f"a picture has a tag, a kind, a step and arrays, not {meta!r:.200}")
        return cls(clip(str(tag), LONGEST_TAG), str(kind), int(step or 0), tuple(arrays))


def is_small_png(data: NDArray[np.uint8]) -> bool:
    """Whether bytes are a whole PNG of the sizes that tasks send; a larger one is not decoded."""
    from PIL import Image

    if len(data) > MOST_BYTES:
        return False
    try:
        with Image.open(io.BytesIO(data.tobytes()), formats=["PNG"]) as image:
            if max(image.size) > LARGEST_SIDE:
                return False
            image.load()
    except Exception:  # Pillow raises those of zlib and of struct, too
        return False
    return True


def smaller(png: bytes, side: int = LARGEST_SIDE, *, optimize: bool = False) -> bytes:
    """Return an image with sides of at most ``side`` pixels; ``optimize`` takes longer for fewer bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        if max(image.size) <= side:
            return png
        image.thumbnail((side, side))
        buffer = io.BytesIO()
        image.save(buffer, "png", optimize=optimize)
    return buffer.getvalue()


@dataclass
class Gallery:
    """The pictures of a run, by source (a task) and tag, in the order in which they first came.

    >>> gallery = Gallery()
    >>> for step in range(100):
    ...     gallery.add("worker 0", Picture.of("w", Histogram.of("w", [step]), step))
    >>> [picture.step for picture in gallery.of("worker 0", "w")]
    [0, 16, 32, 48, 64, 80, 96, 99]
    """

    version: int = 0
    """Changes with each picture."""
    left_out: int = 0
    """Pictures of tags above the limit."""
    _kept: dict[tuple[str, str], list[Picture]] = field(default_factory=dict)
    _every: dict[tuple[str, str], int] = field(default_factory=dict)
    _seen: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, source: str, picture: Picture | None) -> None:
        """Take a picture; one of a step that the tag has already replaces that one."""
        if picture is None:
            return
        key = source, picture.tag
        if key not in self._kept and len(self._kept) >= MOST_TAGS:
            self.left_out += 1
            return
        self.version += 1
        kept = self._kept.setdefault(key, [])
        kept[:] = [one for one in kept if one.kind == picture.kind and one.step < picture.step]
        if picture.kind == IMAGE:
            kept.clear()
        every, number = self._every.setdefault(key, 1), self._seen.get(key, 0)
        if kept and (number - 1) % every:  # the newest so far is beside the even distances
            kept.pop()
        kept.append(picture)
        self._seen[key] = number + 1
        if len(kept) > MOST_STEPS:
            self._every[key] = 2 * every
            kept[:-1] = kept[:-1:2]

    def names(self) -> list[tuple[str, str]]:
        """Return (source, tag) of all."""
        return list(self._kept)

    def of(self, source: str, tag: str) -> list[Picture]:
        """Return the pictures of a tag, the oldest first."""
        return self._kept[source, tag]

    def all(self) -> list[tuple[str, Picture]]:
        """Return each picture with its source."""
        return [(source, one) for (source, _), kept in self._kept.items() for one in kept]
