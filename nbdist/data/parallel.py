"""Threads that work ahead: prefetch, parallel maps and parallel interleaves. Order does not depend on them.

A pass owns its threads (`Resources`): they end with the data, and when the iterator is closed, dropped or
fails. What a thread raises is raised to the consumer, in the place of the element.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from nbdist.data.autotune import BufferTuner, CallsTuner, memory_budget, size_of
from nbdist.data.blocks import Block, Blocks, Pass, RunsAhead
from nbdist.data.elements import apply, kept, noted
from nbdist.data.rows import Rows

T = TypeVar("T")
Made: TypeAlias = tuple[Block | None, BaseException | None, dict[int, int] | None]


def prefetched(upstream: Blocks, count: int, tuner: BufferTuner | None, run: Pass) -> Iterator[Block]:
    """Yield blocks that a thread has made up to ``count`` ahead, or as many as ``tuner`` says."""
    ready: queue.Queue[Made] = queue.Queue(count if tuner is None else tuner.size)
    stopped, counter = threading.Event(), run.counter
    # Besides those in the consumer's hands, `count` wait in the queue and one is in the thread's.
    buffers = run.buffers + count + 1 if run.buffers and tuner is None else 0
    ahead = RunsAhead(replace(run, buffers=buffers))

    def fill() -> None:
        error = None
        try:
            for block in upstream(ahead.run):
                ready.put((block, None, ahead.opened()))
                if stopped.is_set():
                    return
        except BaseException as caught:
            error = caught
        ready.put((None, error, ahead.opened()))

    def stop() -> None:
        stopped.set()
        drain(ready)

    # In a copy of the consumer's context: functions of the dataset find the task and the run there.
    thread = threading.Thread(target=copy_context().run, args=(fill,), name="nbdist-prefetch", daemon=True)
    with run.resources.held(stop):
        thread.start()
        first = True
        while True:
            if tuner is not None:
                resize(ready, tuner.take(ready.qsize()))
            if counter is not None:
                counter.buffer = ready.maxsize
                counter.take(ready.qsize)
            block, error, opened = ready.get()
            ahead.take(opened)
            if error is not None:
                raise error
            if block is None:
                return
            if tuner is not None and first and len(block):
                tuner.bound(size_of(next(iter(block))) * len(block), memory_budget())
                first = False
            yield block


def resize(ready: queue.Queue[Any], size: int) -> None:
    """Let the queue hold ``size`` elements from now on."""
    if ready.maxsize != size:
        with ready.not_full:
            ready.maxsize = size
            ready.not_full.notify()


def drain(ready: queue.Queue[T] | queue.SimpleQueue[T]) -> list[T]:
    """Empty the queue, so that a thread waiting to put something in sees that it should stop."""
    found = []
    while True:
        try:
            found.append(ready.get_nowait())
        except queue.Empty:
            return found


class Pool:
    """Threads that call a function; their number may change. It has the face of an executor.

    A call starts one thread, until there are as many as there may be.
    """

    def __init__(self, threads: int) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._most, self._threads, self._stopped = threads, 0, False

    def resize(self, threads: int) -> None:
        """Have at most so many threads; one that ends finishes its call before."""
        self._most = threads
        while self._threads > threads:
            self._threads -= 1
            self._work.put(None)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a thread call the function; its result is the future's."""
        future: Future[Any] = Future()
        if self._threads < self._most:
            self._threads += 1
            own = copy_context()
            threading.Thread(target=own.run, args=(self._serve,), name="nbdist-data", daemon=True).start()
        self._work.put((future, partial(function, *arguments)))
        if self._stopped:  # nothing may take it any more, and the consumer may wait for it
            future.cancel()
        return future

    def stop(self) -> None:
        """End the threads; what has begun is not waited for, and what has not is cancelled."""
        if self._stopped:
            return
        self._stopped = True
        for work in drain(self._work):
            if work is not None:
                work[0].cancel()
        self.resize(0)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del work, future, call  # an element would stay until the next one


@contextmanager
def pool(run: Pass, threads: int) -> Iterator[Pool]:
    """Return threads that end with the block, or with the pass; what has begun is not waited for."""
    made = Pool(threads)
    with run.resources.held(made.stop):
        yield made


def mapped(
    upstream: Blocks,
    rows: Rows | None,
    function: Callable[..., Any],
    calls: int | CallsTuner,
    deterministic: bool,
    on_error: str,
    run: Pass,
) -> Iterator[Block]:
    """Yield ``function`` of each element, made by threads; as they are ready if not ``deterministic``.

    ``calls`` of them run at once, or as many as the tuner says.
    """
    counter, clock, processor = run.counter, time.perf_counter, time.thread_time
    tuner = calls if isinstance(calls, CallsTuner) else None
    threads = calls if isinstance(calls, int) else calls.calls

    def call(number: int, element: Any) -> tuple[Any, float, float]:
        began, computed = clock(), processor()
        try:
            return apply(function, element), clock() - began, processor() - computed
        except Exception as error:
            raise noted(error, function, number) from None

    with pool(run, threads) as workers:
        incoming = _calls(workers.submit, call, upstream, rows, run)
        # Twice as many are under way as there are threads, so that none waits for the consumer.
        waiting = deque(itertools.islice(incoming, 2 * threads))
        began, first = clock(), True
        made, waited, busy, computed = 0, 0.0, 0.0, 0.0
        while waiting:
            if counter is not None:
                counter.threads, counter.buffer = threads, 2 * threads
                counter.take(partial(_done, waiting))
            asked = clock()
            done, take = waiting.popleft() if deterministic else _first_done(waiting)
            error = done.exception()
            take()
            if isinstance(error, Exception):
                run.leave_out(error, on_error)
                waiting.extend(itertools.islice(incoming, 1))
                continue
            result, seconds, on_processor = done.result()
            if counter is not None:
                counter.called(seconds)
            if tuner is not None:
                now = clock()
                made, waited = made + 1, waited + now - asked
                busy, computed = busy + seconds, computed + on_processor
                if first:
                    tuner.bound(size_of(result), memory_budget())
                    first = False
                if tuner.due(made, now - began):
                    workers.resize(tuner.measured(made, now - began, waited, busy, computed))
                    began, made, waited, busy, computed = now, 0, 0.0, 0.0, 0.0
                threads = tuner.calls
            waiting.extend(itertools.islice(incoming, max(0, 2 * threads - len(waiting))))
            yield [result]


Call: TypeAlias = tuple[Future[Any], Callable[[], object]]


def _calls(
    submit: Callable[..., Future[Any]],
    call: Callable[[int, Any], Any],
    upstream: Blocks,
    rows: Rows | None,
    run: Pass,
) -> Iterator[Call]:
    """Yield the call of each element, with what to call when its result is taken."""
    ahead = RunsAhead(run)
    for number, element in enumerate(kept(upstream, rows, ahead.run)):
        yield submit(call, number, element), partial(ahead.take, ahead.opened())


def _done(waiting: deque[Call]) -> int:
    return sum(one.done() for one, _ in waiting)


def _first_done(waiting: deque[Call]) -> Call:
    done = wait([one for one, _ in waiting], return_when=FIRST_COMPLETED).done
    found = next(one for one in waiting if one[0] in done)
    waiting.remove(found)
    return found


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
    """Yield ``block`` elements of each of ``cycle`` open datasets in turn.

    ``open_inner(element, pass)`` opens the dataset of an element. One that ends is replaced when it is next
    its turn, as in TensorFlow. The n-th pass opens each for its own n-th epoch. ``threads``, if there are
    any, read the next turn of each open dataset.
    """
    inner_run = replace(
        run, openings={}, first=run.opening(token), buffers=0, readers=None, hint=None, meter=None
    )
    incoming = enumerate(kept(upstream, rows, run))
    counter, clock = run.counter, time.perf_counter

    def read(source: Iterator[Any]) -> tuple[list[Any], float]:
        began = clock()
        return list(itertools.islice(source, block)), clock() - began

    with pool(run, threads) as executor:
        # The open datasets, and what returns the elements of their next turns.
        slots: list[tuple[Iterator[Any], Callable[[], tuple[list[Any], float]]] | None] = [None] * cycle

        def put(turn: int, source: Iterator[Any]) -> None:
            reading = executor.submit(read, source).result if threads else partial(read, source)
            slots[turn] = source, reading

        def fill(turn: int) -> bool:
            for number, element in incoming:
                # Each dataset counts its own openings.
                put(turn, open_inner(element, replace(inner_run.inside(number), openings={})))
                return True
            return False

        more = all(fill(turn) for turn in range(cycle if threads else 0))
        turn = 0
        while more or any(slot is not None for slot in slots):
            slot = slots[turn]
            if slot is None and more:
                more = fill(turn)
                continue
            if slot is not None:
                source, reading = slot
                found, seconds = reading()
                if counter is not None and threads:
                    counter.called(seconds)
                slots[turn] = None
                if len(found) == block:
                    put(turn, source)
                if found:
                    yield found
            turn = (turn + 1) % cycle
