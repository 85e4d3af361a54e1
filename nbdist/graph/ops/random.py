"""Counter-based random numbers: dropout masks and initial values.

A number depends only on the seed and the element's position, not on the process that draws it. So a shard of
a variable holds the same values as that part of the whole variable, and dropout keeps the same elements on
any number of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.initial import fill
from nbdist.graph.kernel import FLOATS, INTEGERS, define_kernel
from nbdist.graph.op import Spec, define_into, show

LEVELS = 1 << 16
PER_COUNT = 16  # 16-bit numbers for each count of the generator


def _kept(shape: tuple[int, ...], draw: Array, rate: float, number: int) -> Array:
    """Return which elements are kept.

    Philox (Salmon et al. 2011) is counter-based: each example has its own numbers, so that a replica draws
    the same numbers for its examples as a single device would.
    """
    seed, training, step, first = (int(n) % (1 << 64) for n in draw.reshape(-1))
    elements = prod(shape[1:])
    counts = -(-elements // PER_COUNT)
    generator = np.random.Philox(
        key=np.array([seed, (training << 32 | number) % (1 << 64)], np.uint64),
        counter=np.array([first * counts % (1 << 64), step, 0, 0], np.uint64),
    )
    raw = np.asarray(generator.random_raw(shape[0] * counts * 4), np.uint64)
    levels = raw.astype("<u8", copy=False).view("<u2").reshape(shape[0], counts * PER_COUNT)[:, :elements]
    kept: Array = levels >= mask_threshold(rate)
    return kept.reshape(shape)


def mask_threshold(rate: float) -> int:
    """Return the least 16-bit number of an element that is kept."""
    return min(round(rate * LEVELS), LEVELS - 1)


# The same numbers on a GPU: a thread computes one count, as NumPy's Philox4x64-10 does, and writes 16
# elements. NumPy adds 1 to the 256-bit counter before each count.
MASK_KERNEL = define_kernel(
    "dropout_mask",
    "raw I draw, uint64 number, int64 counts, int64 elements, uint32 threshold, float64 scale",
    "raw T mask",
    """
    unsigned long long first = (unsigned long long)draw[3] * counts;
    unsigned long long c0 = first + i + 1, c1 = draw[2], c2 = 0, c3 = 0;
    if (c0 < first && ++c1 == 0) c2 = 1;
    unsigned long long k0 = draw[0], k1 = (unsigned long long)draw[1] << 32 | number;
    for (int round = 0; round < 10; ++round) {
      unsigned long long high0 = __umul64hi(0xD2E7470EE14C6C93ull, c0), low0 = 0xD2E7470EE14C6C93ull * c0;
      unsigned long long high1 = __umul64hi(0xCA5A826395121157ull, c2), low1 = 0xCA5A826395121157ull * c2;
      c0 = high1 ^ c1 ^ k0;
      c1 = low1;
      c2 = high0 ^ c3 ^ k1;
      c3 = low0;
      k0 += 0x9E3779B97F4A7C15ull;
      k1 += 0xBB67AE8584CAA73Bull;
    }
    const unsigned long long drawn[4] = {c0, c1, c2, c3};
    const long long row = i / counts, start = i % counts * 16;
    for (int n = 0; n < 16 && start + n < elements; ++n) {
      const unsigned level = drawn[n / 4] >> (n % 4 * 16) & 0xffff;
      mask[row * elements + start + n] = level >= threshold ? T(scale) : T(0);
    }
    """,
    types={"T": FLOATS, "I": INTEGERS},
)


def mask_scale(rate: float) -> float:
    """Return the factor that keeps the mean."""
    return LEVELS / (LEVELS - mask_threshold(rate))


def _mask_kernel(xp: Any, rate: float, number: int) -> Callable[[Array, Array, Array], None]:
    if xp is np:
        return lambda x, draw, out: np.multiply(
            _kept(x.shape, draw, rate, number), np.asarray(mask_scale(rate), x.dtype), out
        )

    def kernel(x: Array, draw: Array, out: Array) -> None:
        elements = prod(x.shape[1:])
        counts = -(-elements // PER_COUNT)
        arguments = (draw, number % (1 << 64), counts, elements, mask_threshold(rate), mask_scale(rate), out)
        MASK_KERNEL(xp, *arguments, size=x.shape[0] * counts)

    return kernel


def _mask_spec(x: Spec, draw: Spec, rate: float, number: int) -> Spec:
    if not x.shape:
        raise InvalidArgumentError("dropout: the first axis counts examples; a single number has none")
    if draw.shape not in ((4,), (None,)) or draw.dtype.kind not in "iu":
        raise InvalidArgumentError(
            "dropout: draw holds four whole numbers (seed, training, step, first example), "
            f"got {show(draw.shape)} of {draw.dtype}"
        )
    return x


define_into(
    "dropout_mask",  # 0, or the factor that keeps the mean
    into=_mask_kernel,
    spec=_mask_spec,
    vjp=lambda np, g, y, x, draw, rate, number: (None, None),
    shape_only=frozenset({0}),
)


# Initial values, drawn on the variable's device, block by block, directly into its memory.
#
# A block of the whole variable is drawn from (seed, number of the block). So a shard has the same values as
# that part of the whole variable, on any process, and drawing needs only one block of additional memory.

BLOCK = 1 << 16  # elements; changing it changes all drawn values
DRAWS = ("constant", "uniform", "normal", "truncated_normal")


def _spec(
    draw: str,
    scale: float,
    dtype: Any,
    seed: int,
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    start: tuple[int, ...],
) -> Spec:
    dtype = np.dtype(dtype)
    if draw not in DRAWS or (draw != "constant" and dtype.kind != "f"):
        raise InvalidArgumentError(
            f"initial_value: {draw!r} values of {dtype}; choose from {', '.join(DRAWS)}, of floating point "
            "numbers unless they are constant"
        )
    inside = len(shape) == len(whole) == len(start) and all(
        min(first, n) >= 0 and first + n <= size for first, n, size in zip(start, shape, whole, strict=True)
    )
    if not inside:
        raise InvalidArgumentError(f"initial_value: {shape} from {start} on is not a part of {whole}")
    if sum(n != size for n, size in zip(shape, whole, strict=True)) > 1:
        raise InvalidArgumentError(f"initial_value: {shape} is cut out of {whole} along more than one axis")
    return Spec(tuple(shape), dtype)


def _kernel(
    xp: Any,
    draw: str,
    scale: float,
    dtype: Any,
    seed: int,
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    start: tuple[int, ...],
) -> Callable[[Array], None]:
    def kernel(out: Array) -> None:
        if draw == "constant":
            out.fill(scale)
            return
        flat, done = out.reshape(-1), 0
        # float32 takes half the time of float64; float16 values are drawn in float32.
        drawn = np.float64 if out.dtype == np.float64 else np.float32
        scratch = np.empty(min(BLOCK, prod(whole)), drawn)
        for number, size, kept in _blocks(whole, shape, start):
            block = scratch[:size]
            fill(block, draw, scale, np.random.Generator(np.random.PCG64([seed, number])))
            part = block[kept]
            flat[done : done + len(part)] = part if xp is np else xp.asarray(part)
            done += len(part)

    return kernel


def _blocks(
    whole: tuple[int, ...], shape: tuple[int, ...], start: tuple[int, ...]
) -> Iterator[tuple[int, int, Any]]:
    """Yield the blocks that contain a part of a variable: number, how many to draw, which of them to keep.

    The kept elements of all blocks, in order, are the elements of the part in C order.
    """
    if 0 in shape:
        return
    axis = next((a for a, (n, size) in enumerate(zip(shape, whole, strict=True)) if n != size), 0)
    inner = prod(whole[axis + 1 :])
    if axis == 0:  # rows are contiguous
        first = start[0] * inner if start else 0
        end = first + prod(shape)
        for number in range(first // BLOCK, -(-end // BLOCK)):
            begin = number * BLOCK
            size = min(end - begin, BLOCK)
            yield number, size, slice(max(first - begin, 0), size)
        return
    total = prod(whole)
    for number in range(-(-total // BLOCK)):
        flat = np.arange(number * BLOCK, min((number + 1) * BLOCK, total))
        place = flat // inner % whole[axis]
        yield number, len(flat), (start[axis] <= place) & (place < start[axis] + shape[axis])


define_into("initial_value", _kernel, _spec)
