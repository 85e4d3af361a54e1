"""Threads that work ahead: prefetch, parallel maps and parallel interleaves. Order does not depend on them.

A pass owns its threads (`Resources`): they end with the data, and when the iterator is closed, dropped or
fails. What a thread raises is raised to the consumer, in the place of the element.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from nbdist.data.blocks import Block, Blocks, Pass
from nbdist.data.elements import apply, kept, noted
from nbdist.data.rows import Rows


def prefetched(upstream: Blocks, count: int, run: Pass) -> Iterator[Block]:
    """Yield blocks that a thread has made up to ``count`` ahead."""
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

    def stop() -> None:
        stopped.set()
        drain(ready)

    thread = threading.Thread(target=fill, name="nbdist-prefetch", daemon=True)
    with run.resources.held(stop):
        thread.start()
        while True:
            block, error = ready.get()
            if error is not None:
                raise error
            if block is None:
                return
            yield block


def drain(ready: queue.Queue[Any]) -> None:
    """Empty the queue, so that a thread waiting to put something in sees that it should stop."""
    while True:
        try:
            ready.get_nowait()
        except queue.Empty:
            return


@contextmanager
def pool(run: Pass, threads: int) -> Iterator[ThreadPoolExecutor]:
    """Return threads that end with the block, or with the pass; what has begun is not waited for."""
    executor = ThreadPoolExecutor(threads, thread_name_prefix="nbdist-data")

    def stop() -> None:
        executor.shutdown(wait=False, cancel_futures=True)

    with run.resources.held(stop):
        yield executor


def mapped(
    upstream: Blocks,
    rows: Rows | None,
    function: Callable[..., Any],
    threads: int,
    deterministic: bool,
    on_error: str,
    run: Pass,
) -> Iterator[Block]:
    """Yield ``function`` of each element, made by threads; as they are ready if not ``deterministic``."""

    def call(number: int, element: Any) -> Any:
        try:
            return apply(function, element)
        except Exception as error:
            raise noted(error, function, number) from None

    # Twice as many are under way as there are threads, so that none waits for the consumer.
    with pool(run, threads) as executor:
        calls = (
            executor.submit(call, number, element) for number, element in enumerate(kept(upstream, rows, run))
        )
        waiting = deque(itertools.islice(calls, 2 * threads))
        while waiting:
            done = waiting.popleft() if deterministic else _first_done(waiting)
            error = done.exception()
            waiting.extend(itertools.islice(calls, 1))
            if isinstance(error, Exception):
                run.leave_out(error, on_error)
            else:
                yield [done.result()]


def _first_done(waiting: deque[Future[Any]]) -> Future[Any]:
    done = next(iter(wait(waiting, return_when=FIRST_COMPLETED).done))
    waiting.remove(done)
    return done


def interleaved(
    upstream: Blocks,
    rows: Rows | None,
    open_inner: Callable[[Any, Pass], Iterator[Any]],
    cycle: int,
    block: int,
    threads: int,
    token: int,
    run: Pass,
) -> Iterator[Block]:
    """Yield what `elements.interleaved` yields, with the next turn of each open dataset read by a thread."""
    inner_run = replace(run, openings={}, first=run.opening(token), buffers=0, readers=None, hint=None)
    incoming = kept(upstream, rows, run)

    def read(source: Iterator[Any]) -> list[Any]:
        return list(itertools.islice(source, block))

    with pool(run, threads) as executor:
        slots: list[tuple[Iterator[Any], Future[list[Any]]] | None] = [None] * cycle

        def fill(turn: int) -> bool:
            for element in incoming:
                source = open_inner(element, replace(inner_run, openings={}))
                slots[turn] = source, executor.submit(read, source)
                return True
            return False

        more = all(fill(turn) for turn in range(cycle))
        turn = 0
        while more or any(slot is not None for slot in slots):
            slot = slots[turn]
            if slot is None and more:
                more = fill(turn)
                continue
            if slot is not None:
                source, reading = slot
                found = reading.result()
                slots[turn] = (source, executor.submit(read, source)) if len(found) == block else None
                if found:
                    yield found
            turn = (turn + 1) % cycle
