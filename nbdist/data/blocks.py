"""Transforms as generators of blocks: the one mechanism under every dataset.

A dataset flows as *blocks*: runs of elements that have a length and can be sliced. Over arrays a block
holds row numbers (a `range` while they are in order, an integer array after a shuffle), so an epoch is one
permutation and a batch one gather; over anything else it is a list of elements, or a `Table` of them.
`take`, `skip`, `shard`, `repeat` and `shuffle` need not know which.

Each function takes what is upstream and the `Pass` it runs in; bound with `functools.partial` it is
upstream of the next.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nbdist.data.table import Table
from nbdist.errors import (
    InvalidArgumentError,
    MissingExtra,
    NbdistError,
    NotFoundError,
    StorageError,
    UnavailableError,
)

if TYPE_CHECKING:
    from nbdist.data.meter import Meter, StageCounter

T = TypeVar("T")
Places = range | NDArray[np.intp] | list[Any]
Block = Places | Table


class Resources:
    """What a pass has open, threads and processes: closed when the pass ends, fails or is dropped."""

    def __init__(self) -> None:
        self._open: set[Callable[[], object]] = set()

    @contextmanager
    def held(self, close: Callable[[], object]) -> Iterator[None]:
        """Call ``close`` at the end of the block, or of the pass if that is earlier; or at both."""
        self._open.add(close)
        try:
            yield
        finally:
            self._open.discard(close)
            close()

    def close(self) -> None:
        """Close all that is open.

        A generator that has failed is kept alive by its traceback, and with it the generators before it.
        """
        while self._open:
            self._open.pop()()


ON_ERROR = ("raise", "skip")
"""What a source does about a record that cannot be read."""


_NOT_OF_A_RECORD = (MemoryError, StorageError, NotFoundError, MissingExtra, UnavailableError)
_COUNTING = threading.Lock()


class Skipped:
    """Counts the records that sources with ``on_error="skip"`` have left out."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def add(self, error: Exception) -> None:
        """Count a record that could not be read, for the reason ``error``."""
        with _COUNTING:  # threads of an interleave may skip at once
            self.count += 1
            kind = "" if isinstance(error, NbdistError) else f"{type(error).__name__}: "
            # With the notes that say where it was raised.
            self.first = self.first or kind + "; ".join([str(error), *getattr(error, "__notes__", [])])


@dataclass(frozen=True)
class Pass:
    """One pass over a dataset.

    ``openings`` counts how often each shuffle has been opened: its n-th opening is its n-th epoch, starting
    from ``first``. ``salt`` sets this replica's order apart. ``buffers`` is how many batches in a row must
    not overwrite each other; 0 means that every batch gets memory of its own. ``resources``
    are its threads and processes. ``readers`` (n, i) makes it read the i-th of n parts of the files,
    ``hint`` the elements at the place marked for that. ``branch`` tells the datasets inside one that has
    several apart. One that ``looks`` ends after its first element. A ``meter`` measures the stages;
    ``counter`` is then that of the stage that is opened.
    """

    openings: dict[int, int] = field(default_factory=dict)
    first: int = 0
    salt: tuple[int, ...] = ()
    buffers: int = 0
    resources: Resources = field(default_factory=Resources)
    skipped: Skipped = field(default_factory=Skipped)
    readers: tuple[int, int] | None = None
    hint: tuple[int, int] | None = None
    branch: tuple[int, ...] = ()
    looks: bool = False
    meter: Meter | None = None
    counter: StageCounter | None = None

    def opening(self, token: int) -> int:
        """Return the number of this opening of the shuffle ``token``, counting it."""
        number = self.openings.get(token, self.first)
        self.openings[token] = number + 1
        return number

    def inside(self, number: int) -> Pass:
        """Return this pass for the dataset of that number inside one that has several."""
        return replace(self, branch=(*self.branch, number))

    def own(self, files: Sequence[T]) -> Sequence[T]:
        """Return those of ``files`` that this pass reads."""
        if self.readers is None:
            return files
        count, index = self.readers
        if len(files) < count:
            raise too_few_files(len(files), count)
        return files[index::count]

    def leave_out(self, error: Exception, on_error: str) -> None:
        """Count a record that cannot be read, or raise ``error`` if it is not to be skipped.

        What is not the record's fault is always raised: a lack of memory or of a package, a store that does
        not answer.
        """
        if on_error != "skip" or isinstance(error, _NOT_OF_A_RECORD):
            raise error
        self.skipped.add(error)


class RunsAhead:
    """The part of a pass that works ahead of its consumer, for which its openings are those of what it took.

    A shuffle may be opened again in the elements that are made ahead. If the consumer ends the pass before
    it has taken these, that opening never was: the next pass has the order that it would have without them.
    """

    def __init__(self, run: Pass) -> None:
        self._taken = run.openings
        self.run = replace(run, openings=dict(run.openings))
        """The pass as the part that works ahead has it."""
        self._count = sum(self.run.openings.values())

    def opened(self) -> dict[int, int] | None:
        """Return the openings so far, for `take`, after each element; None if they are as before."""
        count = sum(self.run.openings.values())
        if count == self._count:
            return None
        self._count = count
        return dict(self.run.openings)

    def take(self, opened: dict[int, int] | None) -> None:
        """Count what was opened before the element that is taken now."""
        for token, number in (opened or {}).items():
            self._taken[token] = max(number, self._taken.get(token, 0))


Blocks = Callable[[Pass], Iterator[Block]]


def whole(block: Block, run: Pass) -> Iterator[Block]:
    """Yield ``block`` as it is: the source of a dataset over arrays."""
    yield block


def take(upstream: Blocks, count: int, run: Pass) -> Iterator[Block]:
    """Yield the first ``count`` elements."""
    if count == 0:
        return
    for block in upstream(run):
        yield block[:count]
        count -= len(block)
        if count <= 0:
            return


def skip(upstream: Blocks, count: int, run: Pass) -> Iterator[Block]:
    """Yield all but the first ``count`` elements."""
    for block in upstream(run):
        if count < len(block):
            yield block[count:]
        count = max(0, count - len(block))


def shard(upstream: Blocks, shards: int, index: int, run: Pass) -> Iterator[Block]:
    """Yield the elements whose position modulo ``shards`` is ``index``; every shard must get one."""
    position = 0
    for block in upstream(run):
        part = block[(index - position) % shards :: shards]
        position += len(block)
        if len(part):
            yield part
    if position < shards:
        raise too_few(position, shards)


def too_few(elements: int, shards: int) -> InvalidArgumentError:
    """Return the error for more shards than elements."""
    return InvalidArgumentError(
        f"{elements} elements cannot be split into {shards} shards: some replicas would get nothing; "
        f"use at most {elements} replicas, more data, or a sharding policy of OFF (every replica sees all)"
    )


def too_few_files(files: int, workers: int) -> InvalidArgumentError:
    """Return the error for more workers than files to split among them."""
    return InvalidArgumentError(
        f"{files} file{'s' * (files != 1)} cannot be split among {workers} workers (auto-shard policy FILE): "
        f"some would get none; write the data into {workers} files or more, use {files} workers, or policy "
        "DATA (elements are split) or OFF"
    )


def repeat(upstream: Blocks, count: int | None, run: Pass) -> Iterator[Block]:
    """Yield everything ``count`` times, or for ever."""
    for _ in itertools.count() if count is None else range(count):
        empty = True
        for block in upstream(run):
            empty = empty and not len(block)
            yield block
        if empty:  # for ever nothing would be a hang
            return


@dataclass(frozen=True)
class Shuffle:
    """How a shuffle draws: its n-th epoch depends on ``seed``, n and the replica's salt only."""

    size: int
    seed: int | None
    reshuffle: bool
    token: int  # tells shuffles of one pass apart; also the seed where none was given

    def generator(self, run: Pass) -> np.random.Generator:
        """Return the random generator of the next epoch."""
        epoch = run.opening(self.token) if self.reshuffle else 0
        if self.seed is not None:
            start = self.seed
        else:
            start = 0 if run.salt else self.token  # a salted dataset is to be the same in every process
        return np.random.default_rng([start, *run.salt, epoch])


def shuffle(upstream: Blocks, how: Shuffle, run: Pass) -> Iterator[Block]:
    """Yield the elements in random order, drawn from a buffer of ``how.size`` elements."""
    random = how.generator(run)
    incoming = upstream(replace(run, buffers=0))  # the buffer holds on to what it is given
    held: list[Block] = []
    room = how.size
    for block in incoming:
        held.append(block[:room])
        room -= len(held[-1])
        if len(held[-1]) < len(block):
            yield from draw(join(held), itertools.chain([block[len(held[-1]) :]], incoming), random)
            return
    if held:
        yield permuted(join(held), random)


def draw(buffer: Block, incoming: Iterable[Block], random: np.random.Generator) -> Iterator[Block]:
    """Yield, for each incoming element, a random one of the buffer, whose place it takes; then the rest."""
    if isinstance(buffer, Table):
        buffer = list(buffer)
    like = list if isinstance(buffer, list) else row_numbers
    places = buffer if isinstance(buffer, list) else row_numbers(buffer).tolist()
    for block in pieces(incoming, 4096):
        drawn = []
        for place, element in zip(random.integers(len(places), size=len(block)).tolist(), block, strict=True):
            drawn.append(places[place])
            places[place] = element
        yield like(drawn)
    yield permuted(like(places), random)


def permuted(block: Block, random: np.random.Generator) -> Block:
    """Return the block's elements in random order."""
    order = random.permutation(len(block))
    if isinstance(block, Table):
        return block[order]
    if isinstance(block, list):
        return [block[index] for index in order.tolist()]
    return row_numbers(block)[order]


def row_numbers(block: range | NDArray[np.intp] | list[int]) -> NDArray[np.intp]:
    """Return row numbers as an array."""
    if isinstance(block, range):  # numpy would walk through a range one number at a time
        return np.arange(block.start, block.stop, block.step, dtype=np.intp)
    return np.asarray(block, np.intp)


def pieces(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    """Cut blocks into blocks of at most ``size``."""
    for block in blocks:
        for start in range(0, len(block), size):
            yield block[start : start + size]


def regroup(blocks: Iterable[Block], size: int, drop_remainder: bool) -> Iterator[Block]:
    """Cut and join blocks into blocks of ``size``; the last may be shorter, or is dropped."""
    held: list[Block] = []
    have = 0
    for block in blocks:
        start = 0
        if have:
            held.append(block[: size - have])
            start = len(held[-1])
            have += start
            if have < size:
                continue
            yield join(held)
            held, have = [], 0
        while start + size <= len(block):
            yield block[start : start + size]
            start += size
        if start < len(block):
            held, have = [block[start:]], len(block) - start
    if have and not drop_remainder:
        yield join(held)


def join(blocks: list[Block]) -> Block:
    """Return one block with the elements of all; blocks are all lists, or all row numbers."""
    if len(blocks) == 1:
        return blocks[0]
    tables = [block for block in blocks if isinstance(block, Table)]
    if len(tables) == len(blocks) and all(map(tables[0].joins, tables)):
        return Table.joined(tables)
    if tables or isinstance(blocks[0], list):
        return list(itertools.chain.from_iterable(blocks))
    return np.concatenate([row_numbers(block) for block in blocks if not isinstance(block, Table)])
