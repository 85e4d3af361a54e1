"""What a summary holds at one step: a number, a histogram, images or a text, and each one's message.

    Histogram.of("weights", array).messages("weights")  ->  [Summary.Value]

Making a value copies what it is made of, so that the next step may overwrite it; the costly part (buckets,
PNG) is done by `messages`, on the thread of the writer.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import to_host
from nbdist.metrics.event_file import protos

BUCKETS = 30  # of a histogram, all of one width, as in TensorFlow 2
MAX_IMAGES = 3
CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
FIGURE_DPI = 100


class Value(Protocol):
    """What a summary holds at one step."""

    @property
    def size(self) -> int:
        """How many bytes it takes while it waits to be written."""

    def messages(self, tag: str) -> list[Any]:
        """Return it as ``Summary.Value`` messages under a tag."""


Written: TypeAlias = "float | Value"
"""What ``session.run`` returns for a tag: a number, or another value."""


@dataclass(frozen=True)
class Scalar:
    """One number."""

    number: float

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return 8

    def messages(self, tag: str) -> list[Any]:
        """Return its message; a number beyond single precision is infinite."""
        with np.errstate(over="ignore"):
            return [protos().Summary.Value(tag=tag, simple_value=float(np.float32(self.number)))]


@dataclass(frozen=True)
class Buckets:
    """Counts between edges, of which there is one more."""

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Histogram:
    """The distribution of an array's values."""

    values: NDArray[Any]

    @classmethod
    def of(cls, name: str, values: Any) -> Histogram:
        """Copy an array of numbers; InvalidArgumentError for anything else, and for one without elements."""
        array = numbers(name, values, "histogram")
        if not array.size:
            raise InvalidArgumentError(
                f"summary.histogram {name!r}: the array of shape {array.shape} is empty"
            )
        return cls(array.ravel())

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return self.values.nbytes

    @cached_property
    def finite(self) -> NDArray[np.float64]:
        """The values that are neither NaN nor infinite."""
        values = self.values.astype(np.float64)
        return values[np.isfinite(values)]

    @cached_property
    def buckets(self) -> Buckets:
        """The buckets of the finite values: of one width, and a single one for equal values.

        >>> Histogram.of("w", [0.0, 0.5, 1.0]).buckets.counts.sum()
        np.int64(3)
        """
        if not self.finite.size:
            return Buckets(np.zeros(2), np.zeros(1, np.int64))
        least, most = float(self.finite.min()), float(self.finite.max())
        if least == most:
            return Buckets(np.array([least, most]), np.array([self.finite.size]))
        with np.errstate(over="ignore", invalid="ignore"):
            edges = least + (most - least) * np.linspace(0, 1, BUCKETS + 1)
            if not (
                np.isfinite(edges).all() and (np.diff(edges) > 0).all()
            ):  # too wide or too narrow to divide
                return Buckets(np.array([least, most]), np.array([self.finite.size]))
            edges[-1] = most
            counts, _ = np.histogram(self.finite, BUCKETS, (least, most))  # much faster than by their edges
        return Buckets(edges, counts)

    def messages(self, tag: str) -> list[Any]:
        """Return its message; NaN and infinite values are left out, and counted as ``<tag>/not_finite``."""
        found, buckets = self.finite, self.buckets
        lost = self.values.size - found.size
        more = [] if not lost else Scalar(lost).messages(f"{tag}/not_finite")
        if not found.size:
            return more
        with np.errstate(over="ignore", invalid="ignore"):
            histogram = protos().Histogram(
                min=found.min(),
                max=found.max(),
                num=found.size,
                sum=found.sum(),
                sum_squares=float(found @ found),
                bucket_limit=buckets.edges[1:],
                bucket=buckets.counts,
            )
        return [protos().Summary.Value(tag=tag, histo=histogram), *more]


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one size: ``pixels`` is of dtype uint8 and shape (number, height, width, channels)."""

    pixels: NDArray[np.uint8]

    @classmethod
    def of(cls, name: str, images: Any, max_outputs: int = MAX_IMAGES) -> Images:
        """Copy an image or several; InvalidArgumentError for another shape or dtype."""
        if isinstance(max_outputs, bool) or not isinstance(max_outputs, int) or max_outputs < 1:
            raise InvalidArgumentError(
                f"summary.image {name!r}: max_outputs is a whole number from 1, not {max_outputs!r}"
            )
        array = numbers(name, images, "image", copy=False)
        shape = array.shape
        if array.ndim == 2:
            array = array[None, :, :, None]
        elif array.ndim == 3:
            array = array[None]
        if array.ndim != 4 or array.shape[-1] not in CHANNELS or 0 in array.shape:
            raise InvalidArgumentError(
                f"summary.image {name!r}: an array of shape {shape}; expected (height, width), (height, "
                "width, channels) or (number, height, width, channels), with 1 (grey), 3 (RGB) or 4 (RGBA) "
                "channels"
            )
        array = array[:max_outputs]
        if array.dtype == np.uint8:
            return cls(array.copy())
        if array.dtype.kind not in "fb":
            raise InvalidArgumentError(
                f"summary.image {name!r}: pixels of dtype {array.dtype}; expected uint8 (0 to 255) or floats "
                "(0 to 1)"
            )
        floats = np.nan_to_num(array.astype(np.float32), nan=0.0, posinf=1.0, neginf=0.0)
        return cls((np.clip(floats, 0, 1) * 255 + 0.5).astype(np.uint8))

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return self.pixels.nbytes

    @cached_property
    def pngs(self) -> list[bytes]:
        """Each image as a PNG."""
        return [png(one) for one in self.pixels]

    def messages(self, tag: str) -> list[Any]:
        """Return a message for each image; several have their numbers in their tags."""
        _, height, width, channels = self.pixels.shape
        several = len(self.pixels) > 1
        return [
            protos().Summary.Value(
                tag=f"{tag}/{number}" if several else tag,
                image=protos().Summary.Image(
                    height=height, width=width, colorspace=channels, encoded_image_string=data
                ),
            )
            for number, data in enumerate(self.pngs)
        ]


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image of shape (height, width, channels) as a PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "png")
    return buffer.getvalue()


def drawn(name: str, figure: Any) -> Images:
    """Return a matplotlib Figure as an image of 100 dpi; InvalidArgumentError for another object."""
    if not hasattr(figure, "savefig") or not hasattr(figure, "canvas"):
        raise InvalidArgumentError(
            f"summary.figure {name!r}: expected a matplotlib Figure, not {type(figure).__name__}"
        )
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=FIGURE_DPI, facecolor="white")
    return Images(np.asarray(Image.open(buffer).convert("RGB"))[None])


@dataclass(frozen=True)
class Text:
    """A text, or a table of texts; TensorBoard draws it as Markdown."""

    texts: tuple[str, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, text: Any) -> Text:
        """Take a text or an array of up to two dimensions of them; InvalidArgumentError for anything else."""
        array = np.asarray(text, object)
        found = array.ravel().tolist()
        if array.ndim > 2 or not found or not all(isinstance(one, str) for one in found):
            raise InvalidArgumentError(
                f"summary.text {name!r}: expected a text, or a list or table of texts, not {text!r:.100}"
            )
        return cls(tuple(found), array.shape)

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return 4 * sum(map(len, self.texts))

    def messages(self, tag: str) -> list[Any]:
        """Return its message."""
        shape = protos().Shape(dim=[protos().Shape.Dim(size=size) for size in self.shape])
        tensor = protos().Tensor(
            dtype="DT_STRING",
            string_val=[one.encode("utf-8", "replace") for one in self.texts],
            tensor_shape=shape,
        )
        data = protos().TextData(version=0).SerializeToString()
        return [protos().Summary.Value(tag=tag, tensor=tensor, metadata=metadata("text", data))]


def metadata(plugin: str, data: bytes) -> Any:
    """Return the metadata by which TensorBoard finds the plugin of a value."""
    made = protos().Metadata
    return made(plugin_data=made.PluginData(plugin_name=plugin, content=data))


SMALL_FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # those of JAX, which NumPy does not know


def numbers(name: str, values: Any, what: str, copy: bool = True) -> NDArray[Any]:
    """Return an array of real numbers on the host; InvalidArgumentError for anything else."""
    if hasattr(values, "detach"):  # a tensor of PyTorch, on whatever device
        own = values.detach().cpu()
        array = (own.float() if own.dtype.is_floating_point and own.itemsize < 4 else own).numpy()
    else:
        array = to_host(values) if hasattr(values, "__cuda_array_interface__") else values
    try:
        found = np.array(array) if copy else np.asarray(array)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths, a dtype that NumPy lacks
        found = np.empty(0, object)
    if found.dtype.name in SMALL_FLOATS:
        found = found.astype(np.float32)
    if found.dtype.kind not in "biuf":
        raise InvalidArgumentError(
            f"summary.{what} {name!r}: expected an array of real numbers, not {values!r:.100}"
        )
    return found


def as_values(summary: Mapping[str, Written]) -> dict[str, Value]:
    """Return the values of a summary by tag, numbers as `Scalar`; InvalidArgumentError for others."""
    found: dict[str, Value] = {}
    for tag, value in summary.items():
        check_name("FileWriter", tag)
        given: Any = value
        if hasattr(given, "messages"):
            found[tag] = given
            continue
        try:
            found[tag] = Scalar(float(given))
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"summary {tag!r}: expected a number or what nb.summary.histogram, image or text of a graph "
                f"give, not {value!r:.100}"
            ) from error
    return found


def check_name(what: str, name: object) -> str:
    """Return a summary's name; InvalidArgumentError unless it is a text that UTF-8 can encode."""
    if not isinstance(name, str) or not name or any("\ud800" <= one <= "\udfff" for one in name):
        raise InvalidArgumentError(f"summary.{what}: the name is a text, not {name!r}")
    return name


def checked_step(step: Any) -> int:
    """Return a step; InvalidArgumentError unless it is a whole number from 0 to 2**32 - 1."""
    try:
        number = -1 if isinstance(step, (bool, np.bool_)) else operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 32:
        raise InvalidArgumentError(f"global_step is a whole number from 0 to 2**32 - 1, not {step!r}")
    return number
