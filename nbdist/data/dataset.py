"""`Dataset`: a lazy description of a source and its transforms; iterating runs them."""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import blocks, elements
from nbdist.data.blocks import Blocks, Pass, Shuffle
from nbdist.data.rows import ArrayRows
from nbdist.data.structure import ElementSpec, leaves_of, rebuild, spec_of
from nbdist.errors import InvalidArgumentError

Step: TypeAlias = tuple[Any, ...]
"""A source or a transform: its name, then plain values that say the rest."""


@dataclass(frozen=True)
class _Stage:
    """The pipeline so far: how its blocks are made, what they are made of, and what is known of it."""

    blocks: Blocks
    rows: ArrayRows | None  # what the row numbers in the blocks stand for; None if the blocks hold elements
    count: float | None  # elements of one pass: inf for endless, None for unknown
    steps: tuple[Step, ...]  # how it came about, for `recipe`
    source: ArrayRows | None = None  # the arrays that it came from
    spec: Any = None
    shards: int = 1  # of how many parts this is one


class Dataset:
    """A sequence of elements (arrays, or tuples and dicts of them), in the engine that iterates it.

    Transforms return new datasets and cost nothing; each ``for`` over a dataset is one pass (epoch). Over
    arrays, everything up to and with `batch` works on row numbers: a batch is one gather, or a view of the
    arrays if nothing was shuffled.

    >>> x, y = np.arange(6.0), np.arange(6)
    >>> for batch_x, batch_y in Dataset.from_arrays(x, y).batch(4):
    ...     print(batch_x, batch_y)
    [0. 1. 2. 3.] [0 1 2 3]
    [4. 5.] [4 5]
    """

    def __init__(self, stage: _Stage, salt: tuple[int, ...] = ()) -> None:
        self._stage = stage
        self._salt = salt
        self._openings: dict[int, int] = {}

    # Sources

    @classmethod
    def from_arrays(cls, *arrays: Any) -> Dataset:
        """Return rows of arrays as a dataset, without a copy.

        ``arrays`` have one length; give several arrays, or one tuple or dict of them, whose structure the
        elements have. Raises InvalidArgumentError for arrays of different lengths.

        >>> list(Dataset.from_arrays({"x": np.arange(2), "y": np.ones(2)}))[1]
        {'x': np.int64(1), 'y': np.float64(1.0)}
        """
        rows = ArrayRows(arrays[0] if len(arrays) == 1 else arrays)
        spec = rebuild(rows.structure, [ElementSpec(array.shape[1:], array.dtype) for array in rows.arrays])
        stage = _Stage(
            partial(blocks.whole, range(rows.count)), rows, rows.count, (("from_arrays",),), rows, spec
        )
        return cls(stage)

    from_tensor_slices = from_arrays

    @classmethod
    def from_generator(cls, make: Callable[[], Iterable[Any]]) -> Dataset:
        """Return a dataset of the elements that ``make()`` yields; it is called once for each pass.

        >>> list(Dataset.from_generator(lambda: iter([1, 2])).batch(2))
        [array([1, 2])]
        """
        if not callable(make):
            raise InvalidArgumentError(
                f"from_generator needs a function that returns a fresh iterable for each pass, not a "
                f"{type(make).__name__}; pass the generator function itself, without calling it"
            )
        return cls(_Stage(partial(elements.generated, make), None, None, (("from_generator",),)))

    @classmethod
    def range(cls, *bounds: int) -> Dataset:
        """Return a dataset of whole numbers; ``bounds`` as for Python's ``range``.

        >>> list(Dataset.range(10).shard(5, 2))
        [np.int64(2), np.int64(7)]
        """
        return cls.from_arrays(np.arange(*bounds))

    # Transforms

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Dataset:
        """Return the elements in random order, drawn from a buffer of ``buffer_size`` elements.

        - ``buffer_size``: 1 or more; with one as large as the data, a pass is a uniform permutation
        - ``seed``: fixes the sequence of passes: the n-th pass of an equal dataset has the same order; a
          whole number of 0 or more, or None
        - ``reshuffle_each_iteration``: whether each pass has another order

        >>> sorted(Dataset.range(5).shuffle(5, seed=7))
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3), np.int64(4)]
        """
        size = whole_number("shuffle: buffer_size", buffer_size, 1)
        given = None if seed is None else whole_number("shuffle: seed", seed, 0)
        return self._shuffled(Shuffle(size, given, bool(reshuffle_each_iteration), secrets.randbits(63)))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Return batches of ``batch_size`` elements (1 or more) along a new first axis.

        The last one may be smaller; ``drop_remainder`` drops it then. Raises InvalidArgumentError, in a pass,
        for elements of different shapes.

        >>> [batch.tolist() for batch in Dataset.range(5).batch(2)]
        [[0, 1], [2, 3], [4]]
        """
        size = whole_number("batch: batch_size", batch_size, 1)
        stage = self._stage
        count = stage.count
        if count is not None and count != math.inf:
            count = count // size if drop_remainder else -(-count // size)
        length = size if drop_remainder or stage.count == math.inf else None
        spec = stage.spec and rebuild(
            stage.spec, [replace(leaf, shape=(length, *leaf.shape)) for leaf in leaves_of(stage.spec)]
        )
        made = partial(elements.batch, stage.blocks, stage.rows, size, drop_remainder)
        return self._then(("batch", size, bool(drop_remainder)), made, rows=None, count=count, spec=spec)

    def repeat(self, count: int | None = None) -> Dataset:
        """Return the elements ``count`` times (0 or more), or without end for None.

        >>> len(list(Dataset.range(3).repeat(2)))
        6
        """
        times = None if count is None else whole_number("repeat: count", count, 0)
        once = self._stage.count
        if once == 0 or times == 0:
            total: float | None = 0
        else:
            total = None if once is None else once * (math.inf if times is None else times)
        if times is None and once is None:
            total = math.inf
        return self._then(("repeat", times), partial(blocks.repeat, self._stage.blocks, times), count=total)

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Return every ``num_shards``-th element, from ``index`` on.

        Raises `InvalidArgumentError` if there are fewer elements than shards: here if their number is
        known, else at the end.
        """
        shards = whole_number("shard: num_shards", num_shards, 1)
        own = whole_number("shard: index", index, 0)
        if own >= shards:
            raise InvalidArgumentError(f"shard: index {own} of {shards} shards; the last is {shards - 1}")
        count = self._stage.count
        if count is not None and count < shards:
            raise blocks.too_few(int(count), shards)
        if count is not None and count != math.inf:
            count = -(-(count - own) // shards)
        parts = self._stage.shards * shards
        made = partial(blocks.shard, self._stage.blocks, shards, own)
        return self._then(("shard", shards, own), made, count=count, shards=parts)

    def take(self, count: int) -> Dataset:
        """Return the first ``count`` elements (0 or more), or all if there are fewer."""
        number = whole_number("take: count", count, 0)
        known = self._stage.count
        return self._then(
            ("take", number),
            partial(blocks.take, self._stage.blocks, number),
            count=None if known is None else min(known, number),
        )

    def skip(self, count: int) -> Dataset:
        """Return all but the first ``count`` elements (0 or more)."""
        number = whole_number("skip: count", count, 0)
        known = self._stage.count
        return self._then(
            ("skip", number),
            partial(blocks.skip, self._stage.blocks, number),
            count=None if known is None else max(0, known - number),
        )

    def map(self, function: Callable[..., Any]) -> Dataset:
        """Return ``function(element)``, or ``function(*element)`` for elements that are tuples.

        Map after `batch` if the function can take whole batches: that is one call, not one per row.

        >>> list(Dataset.range(3).map(lambda number: number * 10))
        [np.int64(0), np.int64(10), np.int64(20)]
        """
        if not callable(function):
            raise InvalidArgumentError(f"map takes a function of an element, got {function!r}")
        made = partial(elements.mapped, self._stage.blocks, self._stage.rows, function)
        return self._then(("map",), made, rows=None, spec=None)

    def prefetch(self, buffer_size: int) -> Dataset:
        """Return the same elements, with up to ``buffer_size`` made ahead by a thread (0: none)."""
        count = whole_number("prefetch: buffer_size", buffer_size, 0)
        if count == 0 or self._stage.rows is not None:  # row numbers are there already
            return self
        return self._then(("prefetch", count), partial(elements.prefetched, self._stage.blocks, count))

    def with_seed(self, *numbers: int) -> Dataset:
        """Return the same dataset with orders of its own, fixed by ``numbers`` and each shuffle's seed.

        For asynchronous workers that each go through all the data: ``dataset.with_seed(run_seed, rank)``.
        The same numbers give the same orders in every process, also where a shuffle has no seed.
        """
        return Dataset(self._stage, tuple(whole_number("with_seed: number", number, 0) for number in numbers))

    # Use

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def iterate(
        self, *, reuse_buffers: bool = False, epoch: int | None = None, opened: Sequence[int] | None = None
    ) -> Iterator[Any]:
        """Return an iterator over one pass.

        With ``reuse_buffers`` a batch gathered from arrays is in memory that later batches overwrite: it
        is valid until the next one is taken. ``epoch`` makes this the pass of that number, to continue
        after a restart; without it passes are counted from 0 by this object. ``opened`` makes it the pass
        that began when another object of this dataset had that :attr:`opened`.
        """
        buffers = 1 if reuse_buffers else 0
        if opened is not None:
            run = Pass(self._openings_of("iterate", opened), 0, self._salt, buffers)
        elif epoch is None:
            run = Pass(self._openings, 0, self._salt, buffers)
        else:
            run = Pass({}, whole_number("iterate: epoch", epoch, 0), self._salt, buffers)
        return elements.elements(self._stage.blocks, self._stage.rows, run)

    @property
    def opened(self) -> tuple[int, ...]:
        """How often each of its shuffles was opened so far: the order of the next pass follows from it."""
        return tuple(self._openings.get(token, 0) for token in self._tokens())

    def reopen(self, opened: Sequence[int]) -> None:
        """Continue where another object of this dataset was when its :attr:`opened` had this value.

        The next pass is the one that would have come next there.
        """
        self._openings.update(self._openings_of("reopen", opened))

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its origin: the source, then each transform, as names with plain values."""
        salt = (("with_seed", *self._salt),) if self._salt else ()
        return (*self._stage.steps, *salt)

    @property
    def source(self) -> ArrayRows | None:
        """The arrays that it came from, if it came from arrays."""
        return self._stage.source

    def cardinality(self) -> int | None:
        """Return the number of elements of one pass, or None if it is unknown or there is no end."""
        count = self._stage.count
        return None if count is None or count == math.inf else int(count)

    @property
    def shards(self) -> int:
        """Of how many parts this dataset is one (1: it is whole)."""
        return self._stage.shards

    @property
    def endless(self) -> bool:
        """Whether a pass is known to have no end."""
        return self._stage.count == math.inf

    def __len__(self) -> int:
        count = self.cardinality()
        if count is None:
            raise TypeError("this dataset's number of elements is unknown or without end; take(n) cuts it")
        return count

    @property
    def element_spec(self) -> Any:
        """The `ElementSpec` of each array of an element; if necessary, one element is made."""
        if self._stage.spec is not None:
            return self._stage.spec
        for element in self.take(1).iterate(epoch=0):
            return spec_of(element)
        raise InvalidArgumentError("an empty dataset of unknown origin has no element_spec")

    def __repr__(self) -> str:
        count = "endless" if self.endless else self.cardinality()
        return f"<Dataset: {'?' if count is None else count} elements of {self._stage.spec or '?'}>"

    def _shuffled(self, how: Shuffle) -> Dataset:
        step = ("shuffle", how.size, how.seed, how.reshuffle, how.token)
        return self._then(step, partial(blocks.shuffle, self._stage.blocks, how))

    def _then(self, step: Step, made: Blocks, **changes: Any) -> Dataset:
        steps = (*self._stage.steps, step)
        return Dataset(replace(self._stage, blocks=made, steps=steps, **changes), self._salt)

    def _openings_of(self, what: str, opened: Sequence[int]) -> dict[int, int]:
        counts = [whole_number(f"{what}: opened", count, 0) for count in opened]
        tokens = self._tokens()
        if len(counts) != len(tokens):
            raise InvalidArgumentError(
                f"{what}: {len(counts)} counts of openings for a dataset with {len(tokens)} shuffles"
            )
        return dict(zip(tokens, counts, strict=True))

    def _tokens(self) -> list[int]:
        return [step[-1] for step in self._stage.steps if step[0] == "shuffle"]


def whole_number(what: str, value: Any, least: int) -> int:
    """Return ``value`` as an int of at least ``least``, or raise `InvalidArgumentError` naming both."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{what} is {value!r}; expected a whole number") from None
    if number < least:
        raise InvalidArgumentError(f"{what} is {number}; expected at least {least}")
    return number
