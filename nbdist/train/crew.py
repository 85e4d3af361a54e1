"""A thread for each replica of a process, which stays for as long as there are steps to run.

crew = Crew(2)
first, second = crew.each(lambda replica: steps[replica]())      # the first runs in the caller's thread
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from nbdist.errors import AbortedError, UnavailableError

Result = TypeVar("Result")


class Crew:
    """``size`` replicas: the caller's thread is the first's, each of the others has one of its own.

    What a replica holds is touched by its own thread only. Where one fails, ``cut_off`` is called with its
    number and error, so that it can let go of those that wait for it.
    """

    def __init__(self, size: int, cut_off: Callable[[int, BaseException], None]) -> None:
        self.size, self._cut_off = size, cut_off
        self._orders: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        for number in range(1, size):
            orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
            name = f"nbdist device {number}"
            threading.Thread(target=_work, args=(orders,), name=name, daemon=True).start()
            self._orders.append(orders)
        self._end = weakref.finalize(self, _dismiss, self._orders)

    def each(self, work: Callable[[int], Result]) -> list[Result]:
        """Let every replica work, given its number; return what each returned, or raise the first cause."""
        if self.size == 1:
            return [self._alone(work)]
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []
        done = threading.Semaphore(0)

        def one(number: int) -> None:
            try:
                results[number] = work(number)
            except BaseException as error:
                errors.append(error)
                self._cut_off(number, error)
            finally:
                done.release()

        for number, orders in enumerate(self._orders, 1):
            # In a copy of the caller's context: what is current for the caller is for them.
            orders.put(partial(copy_context().run, one, number))
        one(0)
        for _ in range(self.size):
            _wait(done, lambda error: self._cut_off(0, error))
        if errors:
            # Others are cut off by the first that failed, and say so; the cause is what they were cut off by.
            causes = [e for e in errors if not isinstance(e, (AbortedError, UnavailableError))]
            raise (causes or errors)[0]
        return results

    def _alone(self, work: Callable[[int], Result]) -> Result:
        try:
            return work(0)
        except BaseException as error:
            self._cut_off(0, error)
            raise

    def close(self) -> None:
        """Let the threads end; they do as well when nobody has the crew any more."""
        self._end()


def _dismiss(threads: list[queue.SimpleQueue[Callable[[], None] | None]]) -> None:
    for orders in threads:
        orders.put(None)


def _wait(done: threading.Semaphore, cut_off: Callable[[BaseException], None]) -> None:
    try:
        done.acquire()
    except BaseException as error:  # an interrupt: the others are not left behind
        cut_off(error)
        done.acquire()
        raise


def _work(orders: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (order := orders.get()) is not None:
        order()
