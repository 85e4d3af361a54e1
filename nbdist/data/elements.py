"""Transforms that make new elements: batch, map and prefetch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from nbdist.data.blocks import Block, Blocks, Pass, regroup
from nbdist.data.rows import ArrayRows
from nbdist.data.structure import stack


def elements(upstream: Blocks, rows: ArrayRows | None, run: Pass) -> Iterator[Any]:
    """Yield single elements; ``rows`` says what row numbers stand for, None that blocks hold elements."""
    for block in upstream(run):
        if rows is None:
            yield from block
        else:
            for index in block:
                yield rows.one(index)


def generated(make: Callable[[], Iterable[Any]], run: Pass) -> Iterator[Block]:
    """Yield what a fresh iterable from ``make`` yields."""
    for element in make():
        yield [element]


def batch(
    upstream: Blocks, rows: ArrayRows | None, size: int, drop_remainder: bool, run: Pass
) -> Iterator[Block]:
    """Yield batches of ``size`` elements."""
    # Row numbers are safe to hold; elements that wait for their batch must not be overwritten before that.
    groups = regroup(upstream(replace(run, buffers=0)), size, drop_remainder)
    make = rows.batches(size, run.buffers) if rows is not None else stack
    for group in groups:
        yield [make(group)]  # type: ignore[arg-type]  # row numbers for `batches`, elements for `stack`


def mapped(
    upstream: Blocks, rows: ArrayRows | None, function: Callable[..., Any], run: Pass
) -> Iterator[Block]:
    """Yield ``function`` of each element; a tuple's parts are its arguments."""
    for element in elements(upstream, rows, run):
        yield [function(*element) if isinstance(element, tuple) else function(element)]


def prefetched(upstream: Blocks, count: int, run: Pass) -> Iterator[Block]:
    """Yield blocks that a thread has made up to ``count`` ahead; its errors are raised here.

    The thread ends with the data, or when this generator is closed.
    """
    ready: queue.Queue[tuple[Block | None, BaseException | None]] = queue.Queue(count)
    stopped = threading.Event()
    # Besides those in the consumer's hands, `count` wait in the queue and one is in the thread's.
    ahead = replace(run, buffers=run.buffers and run.buffers + count + 1)

    def fill() -> None:
        error = None
        try:
            with closing(upstream(ahead)) as blocks:  # type: ignore[type-var]  # generators close
                for block in blocks:
                    ready.put((block, None))
                    if stopped.is_set():
                        return
        except BaseException as caught:
            error = caught
        ready.put((None, error))

    thread = threading.Thread(target=fill, name="nbdist-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            block, error = ready.get()
            if error is not None:
                raise error
            if block is None:
                return
            yield block
    finally:
        stopped.set()
        drain(ready)


def drain(ready: queue.Queue[Any]) -> None:
    """Empty the queue, so that a thread waiting to put something in sees that it should stop."""
    while True:
        try:
            ready.get_nowait()
        except queue.Empty:
            return
