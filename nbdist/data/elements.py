"""Transforms that make new elements, or need to look at them: one at a time, in one thread.

A function here takes what is upstream and the `Pass` it runs in, as those of `blocks` do; ``rows`` says what
row numbers in the blocks stand for, None that they hold elements. Threads and processes are in `parallel`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbdist.data.blocks import Block, Blocks, Pass, Shuffle, regroup
from nbdist.data.rows import Rows
from nbdist.data.structure import stack
from nbdist.data.table import Table
from nbdist.errors import InvalidArgumentError


def elements(upstream: Blocks, rows: Rows | None, run: Pass) -> Iterator[Any]:
    """Yield single elements."""
    for block in upstream(run):
        if rows is None:
            yield from block
        else:
            for index in block:
                yield rows.one(index)


def kept(upstream: Blocks, rows: Rows | None, run: Pass) -> Iterator[Any]:
    """Yield single elements that stay as they are while later ones are made."""
    return elements(upstream, rows, replace(run, buffers=0))


def element_blocks(upstream: Blocks, rows: Rows | None, run: Pass) -> Iterator[Block]:
    """Yield blocks of elements."""
    for element in kept(upstream, rows, run):
        yield [element]


class Generated:
    """What a fresh iterable from ``make`` yields.

    A pass that only looks at the first elements leaves them, and the iterable, to the pass after it: ``make``
    is called once for each pass, and nothing that it yields is lost.
    """

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make
        self._left: tuple[list[Any], Iterator[Any]] | None = None

    def __call__(self, run: Pass) -> Iterator[Block]:
        """Yield the elements of one pass."""
        left, self._left = self._left, None
        seen, source = left or ([], self._opened())
        leaves = run.looks
        try:
            for number in itertools.count():
                if number < len(seen):
                    element = seen[number]
                    seen[number] = element if leaves else None  # a buffer may be all of the memory
                else:
                    element = next(source)
                    if leaves:
                        seen.append(element)
                yield [element]
        except StopIteration:
            return
        except Exception as error:
            leaves = False
            error.add_note(f"raised by the function of from_generator after {number} elements of this pass")
            raise
        finally:
            self._left = (seen, source) if leaves else None

    def _opened(self) -> Iterator[Any]:
        made = self._make()
        if not isinstance(made, Iterable):
            raise InvalidArgumentError(
                f"the function of from_generator returns an iterable of elements, and returned {made!r:.80}"
            )
        return iter(made)

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_left": None}


def batch(upstream: Blocks, rows: Rows | None, size: int, drop_remainder: bool, run: Pass) -> Iterator[Block]:
    """Yield batches of ``size`` elements."""
    # Row numbers are safe to hold; elements that wait for their batch must not be overwritten before that.
    groups = regroup(upstream(replace(run, buffers=0)), size, drop_remainder)
    make = rows.batches(size, run.buffers) if rows is not None else stack
    for group in groups:
        if isinstance(group, Table):
            yield [group.batch()]
        else:
            yield [make(group)]  # type: ignore[arg-type]  # row numbers for `batches`, elements for `stack`


def apply(function: Callable[..., Any], element: Any) -> Any:
    """Return ``function`` of an element; a tuple's parts are its arguments."""
    return function(*element) if isinstance(element, tuple) else function(element)


def mapped(
    upstream: Blocks, rows: Rows | None, function: Callable[..., Any], on_error: str, run: Pass
) -> Iterator[Block]:
    """Yield ``function`` of each element."""
    for number, element in enumerate(elements(upstream, rows, run)):
        try:
            result = apply(function, element)
        except Exception as error:
            run.leave_out(noted(error, function, number), on_error)
            continue
        yield [result]


def noted(error: Exception, function: Callable[..., Any], number: int) -> Exception:
    """Return the error that a transform's function raised, with a note of the element."""
    name = getattr(function, "__name__", type(function).__name__)
    error.add_note(f"raised by {name} for element {number} of this pass (the first is 0)")
    return error


def filtered(
    upstream: Blocks, rows: Rows | None, predicate: Callable[..., Any], run: Pass
) -> Iterator[Block]:
    """Yield the elements for which ``predicate`` is true; over arrays these stay row numbers."""
    number = 0
    for block in upstream(run):
        if isinstance(block, Table):
            block = list(block)
        chosen = []
        for place in range(len(block)):
            element = block[place] if rows is None else rows.one(block[place])
            try:
                found = apply(predicate, element)
                if isinstance(found, np.ndarray) and found.size != 1:
                    raise InvalidArgumentError(
                        f"a filter's function returns True or False, and returned an array of {found.shape}; "
                        "use .any() or .all()"
                    )
                if found:
                    chosen.append(place)
            except Exception as error:
                raise noted(error, predicate, number) from None
            number += 1
        if len(chosen) == len(block):
            yield block
        elif isinstance(block, list):
            yield [block[place] for place in chosen]
        else:
            yield np.asarray(block, np.intp)[chosen]


def zipped(parts: Sequence[tuple[Blocks, Rows | None]], form: Any, run: Pass) -> Iterator[Block]:
    """Yield one element of each part, together, until a part ends; a dict if ``form`` is its keys."""
    opened = (elements(*part, run.inside(number)) for number, part in enumerate(parts))
    for found in zip(*opened):  # not strict: the shortest one ends it
        yield [found if form is None else dict(zip(form, found, strict=True))]


def concatenated(parts: Sequence[tuple[Blocks, Rows | None]], run: Pass) -> Iterator[Block]:
    """Yield the elements of each part, one part after the other."""
    for number, part in enumerate(parts):
        for element in elements(*part, run.inside(number)):
            yield [element]


def enumerated(upstream: Blocks, rows: Rows | None, start: int, run: Pass) -> Iterator[Block]:
    """Yield (number, element)."""
    for number, element in enumerate(elements(upstream, rows, run), start):
        yield [(np.int64(number), element)]


def scanned(
    upstream: Blocks, rows: Rows | None, initial: Any, function: Callable[..., Any], run: Pass
) -> Iterator[Block]:
    """Yield the outputs of ``state, output = function(state, element)``."""
    state = initial
    for number, element in enumerate(kept(upstream, rows, run)):
        try:
            result = function(state, element)
        except Exception as error:
            raise noted(error, function, number) from None
        if not isinstance(result, tuple) or len(result) != 2:
            raise InvalidArgumentError(
                f"scan's function returns (state, output), and returned {result!r:.80} for element {number}"
            )
        state, output = result
        yield [output]


def sampled(
    parts: Sequence[tuple[Blocks, Rows | None]],
    weights: Sequence[float],
    how: Shuffle,
    stop_on_empty: bool,
    run: Pass,
) -> Iterator[Block]:
    """Yield elements of the parts at random, in the shares of ``weights``."""
    random = how.generator(run)
    open_parts = [elements(*part, run.inside(number)) for number, part in enumerate(parts)]
    shares = np.array(weights, float)
    while shares.any():
        edges = np.cumsum(shares / shares.sum())
        for number in np.searchsorted(edges, random.random(256), side="right").tolist():
            which = min(number, len(shares) - 1)
            element = next(open_parts[which], _END)
            if element is _END:
                if stop_on_empty:
                    return
                shares[which] = 0
                break
            yield [element]


_END = object()
