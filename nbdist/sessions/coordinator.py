"""`Coordinator`: lets several threads of a training stop together, and raises what has ended it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator

from nbdist.errors import DeadlineExceededError, OutOfRangeError


class Coordinator:
    """Several threads stop when one asks them to; ``join`` raises the error with which one has asked.

    ``clean_stop_exception_types``: errors that are an ordinary end; by default OutOfRangeError, the end of
    the data. Source: TensorFlow's tf.train.Coordinator.

    >>> coordinator = Coordinator()
    >>> with coordinator.stop_on_exception():
    ...     raise OutOfRangeError("the data has ended")
    >>> coordinator.should_stop()
    True
    >>> coordinator.join()
    """

    def __init__(
        self, clean_stop_exception_types: tuple[type[BaseException], ...] = (OutOfRangeError,)
    ) -> None:
        self._clean = clean_stop_exception_types
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        """The error with which a stop was requested; None if there was none."""
        self._threads: set[threading.Thread] = set()

    @property
    def joined(self) -> bool:
        """Whether all registered threads have ended."""
        return not any(thread.is_alive() for thread in self._threads)

    def request_stop(self, ex: BaseException | None = None) -> None:
        """Ask all threads to stop; ``ex`` is the reason if it is an error. The first reason counts."""
        with self._lock:
            if not self._stop.is_set() and ex is not None and not isinstance(ex, self._clean):
                self.error = ex
            self._stop.set()

    def should_stop(self) -> bool:
        """Return whether a stop was requested."""
        return self._stop.is_set()

    def clear_stop(self) -> None:
        """Forget the request to stop, and its reason."""
        with self._lock:
            self.error = None
            self._stop.clear()

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait ``timeout`` seconds (None: any time) for a request to stop; return whether it came."""
        return self._stop.wait(timeout)

    def raise_requested_exception(self) -> None:
        """Raise the error with which a stop was requested, if it was one."""
        with self._lock:
            if self.error is not None:
                raise self.error

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Turn an error in a ``with`` block into a request to stop."""
        try:
            yield
        except BaseException as error:
            self.request_stop(error)

    def register_thread(self, thread: threading.Thread) -> None:
        """Add a thread that ``join`` waits for."""
        with self._lock:
            self._threads.add(thread)

    def join(
        self, threads: Iterable[threading.Thread] | None = None, stop_grace_period_secs: float = 120.0
    ) -> None:
        """Wait for the registered threads and ``threads``; raise the error that a stop was requested with.

        They have ``stop_grace_period_secs`` seconds after the request; DeadlineExceededError names those that
        still run then.
        """
        with self._lock:
            waited = [*self._threads, *(threads or ())]
        while any(thread.is_alive() for thread in waited) and not self._stop.wait(1.0):
            pass
        deadline = time.monotonic() + stop_grace_period_secs
        for thread in waited:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        alive = [
            thread.name for thread in waited if thread.is_alive() and thread is not threading.current_thread()
        ]
        self.raise_requested_exception()
        if alive:
            raise DeadlineExceededError(
                f"threads did not stop within {stop_grace_period_secs:g} s: {', '.join(alive)}"
            )
        with self._lock:
            self._threads.clear()
