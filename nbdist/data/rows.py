"""Arrays with a common first axis, from which rows are gathered by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nbdist.data.blocks import Places
from nbdist.data.structure import exact, leaves_of, rebuild, refuse_masks
from nbdist.errors import InvalidArgumentError


class Rows(Protocol):
    """What row numbers stand for."""

    def one(self, index: int) -> Any:
        """Return row ``index``."""

    def batches(self, size: int, buffers: int) -> Callable[[Places], Any]:
        """Return the function that turns at most ``size`` row numbers into a batch."""


class ArrayRows:
    """The arrays under a dataset, seen read-only: row i of each, in the structure they were given in.

    Raises `InvalidArgumentError` for arrays of different lengths, without a first axis, or of Python objects.
    """

    def __init__(self, structure: Any) -> None:
        self.structure = structure
        self.arrays = [read_only(leaf, index) for index, leaf in enumerate(leaves_of(structure))]
        if not self.arrays:
            raise InvalidArgumentError("a dataset needs at least one array; none was given")
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) > 1:
            raise InvalidArgumentError(
                f"the arrays have {', '.join(map(str, lengths))} rows; a dataset needs as many in each"
            )
        self.count = lengths[0]

    def one(self, index: int) -> Any:
        """Return row ``index``."""
        return rebuild(self.structure, [array[index] for array in self.arrays])

    def batches(self, size: int, buffers: int) -> Callable[[Places], Any]:
        """Return the function that turns row numbers (at most ``size``) into a batch.

        Consecutive rows come as views of the arrays, others are copied: into ``buffers`` sets of memory
        that are used in turn, or into new memory each time if ``buffers`` is 0.
        """
        ring = [
            [np.empty((min(size, self.count), *array.shape[1:]), array.dtype) for array in self.arrays]
            for _ in range(buffers)
        ]
        turn = 0

        def gather(block: Places) -> Any:
            nonlocal turn
            if isinstance(block, range):
                part = slice(block.start, block.stop, block.step)
                return rebuild(self.structure, [array[part] for array in self.arrays])
            if not ring or len(block) > len(ring[0][0]):
                return rebuild(self.structure, [np.take(array, block, axis=0) for array in self.arrays])
            turn = (turn + 1) % buffers
            # Not mode="raise": numpy would gather into a temporary array first. The numbers are our own.
            parts = [
                np.take(array, block, axis=0, out=out[: len(block)], mode="clip")
                for array, out in zip(self.arrays, ring[turn], strict=True)
            ]
            return rebuild(self.structure, parts)

        return gather


def read_only(leaf: Any, index: int) -> NDArray[Any]:
    """Return ``leaf`` as an array that a consumer of views cannot write through."""
    refuse_masks(f"array {index}", leaf if isinstance(leaf, list) else [leaf])
    try:
        array = np.asarray(leaf).view()
    except ValueError as error:
        raise InvalidArgumentError(f"array {index} is ragged: {error}") from error
    except RuntimeError as error:  # of PyTorch
        raise InvalidArgumentError(f"array {index} cannot be an array of NumPy: {error}") from error
    if array.ndim == 0:
        raise InvalidArgumentError(f"array {index} is the single value {leaf!r}; a dataset needs rows")
    if not hasattr(leaf, "dtype") and array.ndim == 1:
        array = exact(f"array {index}", leaf, array)
    if array.dtype == object:
        raise _of_objects(f"array {index}", leaf, array)
    array.flags.writeable = False
    return array


def _of_objects(what: str, leaf: Any, array: NDArray[Any]) -> InvalidArgumentError:
    names = getattr(leaf, "column_names", None) or getattr(leaf, "columns", None)
    if names is None:
        kinds = ", ".join(sorted({type(one).__name__ for one in array.flat}))
        return InvalidArgumentError(
            f"{what} holds Python objects ({kinds:.200}): give numbers, or text as array.astype(str); "
            "from_generator yields other objects"
        )
    odd = [name for name in names if np.asarray(leaf[name]).dtype.kind not in "biuf"] or names
    shown = ", ".join(f"{name!r} ({getattr(leaf[name], 'dtype', 'objects')})" for name in odd)
    return InvalidArgumentError(
        f"{what} is a frame, of whose columns {shown:.300} NumPy makes Python objects: encode text and dates "
        "as numbers, convert others (frame.astype('float32') of pandas), or leave them out (frame[[...]])"
    )
