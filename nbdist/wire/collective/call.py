"""One collective call: the properties that all ranks compare, and the computation of its result. Pure.

    call = describe("all_reduce", (3, 4), np.dtype("int32"), size=2, op="mean")
    call.text       "all_reduce(op='mean', dtype=int32, shape=(3, 4))"
    call.result     float64, the dtype of NumPy's mean of integers
    combine(call, [x_of_rank_0, x_of_rank_1], out)

`combine` combines the ranks in their order, as `np.add.reduce` over a stack of them does, so that a result is
bitwise the same on whichever rank it is computed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.wire.rpc.frame import Array

LONGEST_DTYPE = 160  # characters of a dtype in `CollectiveCall.text`, which transports cut off at about 500
OPS: dict[str, np.ufunc] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}
LARGEST_ITEM = 4096  # bytes; the smallest chunk of any transport holds several
REDUCING = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True, eq=False)  # hashed by identity: one object per distinct call makes lookups cheap
class CollectiveCall:
    """The description of a collective call; every rank must make the same one.

    `root` is -1 if there is none, `buffer` is the number of the symmetric buffer, -1 for ordinary arrays.
    """

    what: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int
    op: str = ""
    root: int = -1
    buffer: int = -1

    @cached_property
    def text(self) -> str:
        """The call as text, for error messages and for the comparison between ranks."""
        if self.what == "barrier":
            return "barrier()"
        first = f"op={self.op!r}, " if self.op else f"root={self.root}, " if self.root >= 0 else ""
        buffer = f", in symmetric buffer {self.buffer}" if self.buffer >= 0 else ""
        return f"{self.what}({first}dtype={_short(self.dtype)}, shape={self.shape}{buffer})"

    @cached_property
    def digest(self) -> int:
        """A hash of `text` with 62 bits; never 0."""
        return int.from_bytes(blake2b(self.text.encode(), digest_size=8).digest(), "little") >> 2 | 1

    @cached_property
    def work(self) -> np.dtype[Any]:
        """The dtype in which values are combined: that of the result, but float32 for a mean of float16."""
        return np.dtype(np.float32) if self.op == "mean" and self.dtype == np.float16 else self.result

    @cached_property
    def result(self) -> np.dtype[Any]:
        """The dtype of the result: that of the input, except for a mean of integers or bools."""
        return np.mean(np.zeros(1, self.dtype)).dtype if self.op == "mean" else self.dtype

    @cached_property
    def ufunc(self) -> np.ufunc:
        """The NumPy function that combines two ranks' values."""
        return OPS[self.op]

    @cached_property
    def divisor(self) -> Any:
        """The divisor of the sum for a mean; an array, because NumPy takes twice as long with an int."""
        if self.work.kind not in "fc":
            return self.size
        # NumPy's mean divides complex64 in double precision too, and so rounds once.
        return np.array(self.size, np.complex128 if self.work == np.complex64 else self.work)

    @cached_property
    def count(self) -> int:
        """The number of items of a rank's input."""
        return prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """The bytes of a rank's input in the dtype `work`."""
        return self.count * self.work.itemsize

    def out_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's result."""
        if self.what == "all_gather":
            return (self.size, *self.shape)
        if self.what == "reduce_scatter":
            low, high = self.rows(rank)
            return (high - low, *self.shape[1:])
        return self.shape

    def rows(self, rank: int) -> tuple[int, int]:
        """Return begin and end of a rank's rows of a reduce-scatter, split as `np.array_split` does."""
        each, more = divmod(self.shape[0], self.size)
        low = rank * each + min(rank, more)
        return low, low + each + (rank < more)

    def shares(self, line: int) -> list[tuple[int, int]]:
        """Return each rank's items: of the result of an all-gather, else of those to combine.

        In an all-reduce they begin at multiples of `line` bytes.
        """
        if self.what == "all_gather":
            return [(rank * self.count, (rank + 1) * self.count) for rank in range(self.size)]
        if self.what == "reduce_scatter":
            row = prod(self.shape[1:])
            return [(low * row, high * row) for low, high in map(self.rows, range(self.size))]
        step = max(1, line // self.work.itemsize)
        lines = -(-self.count // step)
        cuts = [min(self.count, lines * rank // self.size * step) for rank in range(self.size + 1)]
        return list(pairwise(cuts))

    def output(self, out: Array | None, rank: int) -> Array:
        """Return `out` if it can take the result, or a new array if it is None."""
        shape = self.out_shape(rank)
        if out is None:
            return np.empty(shape, self.result)
        if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != self.result:
            found = (
                f"{out.dtype} {out.shape}"
                if isinstance(out, np.ndarray)
                else f"a {type(out).__module__}.{type(out).__name__}"
            )
            raise InvalidArgumentError(f"out of {self.text} is {found}; it has to be {self.result} {shape}")
        if not out.flags.writeable:
            raise InvalidArgumentError(f"out of {self.text} is read-only")
        return out


def describe(
    what: str, shape: tuple[int, ...], dtype: np.dtype[Any], size: int, op: str = "", root: int = -1
) -> CollectiveCall:
    """Return the description of a call; InvalidArgumentError for arguments that no rank can use."""
    call = CollectiveCall(what, shape, dtype.newbyteorder("="), size, op, root)
    if dtype.hasobject or (dtype.itemsize == 0 and call.count):
        raise InvalidArgumentError(f"{what} of dtype {dtype}: items have to have a fixed size, above 0 bytes")
    if dtype.itemsize > LARGEST_ITEM:
        raise InvalidArgumentError(f"{what} of dtype {dtype}: an item has at most {LARGEST_ITEM} bytes")
    if what == "broadcast" and not 0 <= root < size:
        raise InvalidArgumentError(f"broadcast(root={root}): the ranks are 0 to {size - 1}")
    if what not in REDUCING:
        return call
    if op not in OPS:
        raise InvalidArgumentError(f"no op {op!r}; {choices(op, OPS)}")
    if what == "reduce_scatter" and not shape:
        raise InvalidArgumentError("reduce_scatter of a scalar: it needs a first axis to split")
    one = np.zeros(1, call.dtype)
    try:
        fits = call.ufunc(one, one).dtype == call.dtype and call.result is not None
    except TypeError:
        fits = False
    if not fits:
        raise InvalidArgumentError(f"{what}(op={op!r}): NumPy cannot reduce values of dtype {dtype} so")
    return call


def combine(call: CollectiveCall, parts: Sequence[Array], out: Array) -> None:
    """Reduce the ranks' parts, in the order of ranks, into `out`; all are of the dtype `call.work`.

    `out` may be one of the first two parts.
    """
    if len(parts) == 1:
        np.copyto(out, parts[0])
    else:
        call.ufunc(parts[0], parts[1], out=out)
        for part in parts[2:]:
            call.ufunc(out, part, out=out)
    if call.op == "mean":
        np.true_divide(out, call.divisor, out=out)


def complete(call: CollectiveCall, values: Sequence[Array], out: Array, rank: int) -> None:
    """Write a rank's result of a call, given all ranks' whole values, of the dtype `call.work`."""
    if call.what == "all_reduce" and call.work == call.result:
        combine(call, values, out)
    elif call.what in REDUCING:
        rows = slice(*call.rows(rank)) if call.what == "reduce_scatter" else ...
        parts = [value[rows] for value in values]
        result = np.empty_like(parts[0])
        combine(call, parts, result)
        np.copyto(out, result, casting="same_kind")
    elif call.what == "all_gather":
        for other, value in enumerate(values):
            np.copyto(out[other, ...], value)
    elif call.what == "broadcast":
        np.copyto(out, values[call.root])


def flat(call: CollectiveCall, x: Array) -> Array:
    """Return x as one row of the dtype `work`; a copy only if necessary."""
    return np.ascontiguousarray(x, call.work).reshape(-1)


def _short(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name; a long one, of a record, as its beginning and a hash of all of it."""
    name = str(dtype)
    if len(name) <= LONGEST_DTYPE:
        return name
    return f"{name[:LONGEST_DTYPE]}... ({blake2b(name.encode(), digest_size=8).hexdigest()})"


def compare(calls: dict[int, str], sequence: int, labels: Sequence[str]) -> str:
    """Return the error message if ranks do not make the same call; an empty text if they do.

    >>> compare({0: "barrier()", 1: "barrier()"}, 1, ["a", "b"])
    ''
    """
    first = min(calls)
    for rank in sorted(calls):
        if calls[rank] != calls[first]:
            return (
                f"ranks do not agree on collective #{sequence}: {labels[first]} calls {calls[first]}, "
                f"{labels[rank]} calls {calls[rank]}; every rank has to make the same calls, in the same "
                "order, with the same op, dtype and shape"
            )
    return ""


# A flat view of an output array, written in any order.


class FlatOutput:
    """The items of `out` as one row: `out` itself if it can be written directly, else another array."""

    def __init__(self, call: CollectiveCall, out: Array, x: Array, rank: int) -> None:
        self._out = out
        # An input that overlaps the output without being it would be overwritten before it is read.
        self._direct = out.flags.c_contiguous and (
            (call.what == "all_reduce" and (out is x or _same_place(out, x)))
            or (call.what == "all_gather" and _same_place(out[rank], x))
            or not np.may_share_memory(out, x)
        )
        self.items = out.reshape(-1) if self._direct else np.empty(out.size, out.dtype)

    def finish(self) -> None:
        """Copy the result to `out`, unless it was written there directly."""
        if not self._direct:
            np.copyto(self._out, self.items.reshape(self._out.shape))


def _same_place(one: Array, other: Array) -> bool:
    place, there = one.__array_interface__, other.__array_interface__
    same: bool = place["data"] == there["data"] and place["strides"] == there["strides"]
    return same and one.dtype == other.dtype


# Detection of GPU arrays without importing CuPy.
#
# if is_on_device(x):
#     x = to_host(x)              # waits for the current stream
#     ...
#     return like(given, result)  # on the device again

CUPY = "cupy"


def is_on_device(x: Any) -> bool:
    """Return whether x is a CuPy array."""
    return any(base.__module__.partition(".")[0] == CUPY for base in type(x).__mro__)


def cupy_of(x: Any) -> ModuleType:
    """Return the CuPy module of x."""
    assert is_on_device(x)
    return sys.modules[CUPY]


def to_host(x: Any) -> Array:
    """Return the values of a CuPy array in host memory, after the earlier work of its stream."""
    values: Array = x.get()
    return values


def like(x: Any, values: Array, out: Any = None) -> Array:
    """Return host values as a CuPy array on the device of x: `out`, or a new one."""
    there: Array = cupy_of(x).asarray(values)
    if out is None:
        return there
    taken: Array = out
    taken[...] = there
    return taken


def check_out(call: CollectiveCall, out: Any, rank: int) -> None:
    """Raise InvalidArgumentError if `out` cannot hold the result of a call with an input on a device."""
    if out is None:
        return
    shape = call.out_shape(rank)
    if not is_on_device(out) or out.shape != shape or out.dtype != call.result:
        where = "" if is_on_device(out) else f", a {type(out).__module__}.{type(out).__name__}"
        found = f"{getattr(out, 'dtype', '')} {getattr(out, 'shape', '')}{where}".strip(" ,")
        raise InvalidArgumentError(
            f"out of {call.text} is {found}; it has to be {call.result} {shape} on the device that x is on"
        )
