"""A thread that runs an op of a session over and over, as long as the session is open."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from nbdist.errors import NbdistError, OutOfRangeError
from nbdist.graph.tensor import Tensor
from nbdist.runtime.session.session import Session

JOIN_SECONDS = 10.0


class QueueRunner:
    """Runs ``op`` in a thread until it raises OutOfRangeError or its session is closed.

    Any other error is kept in ``error``, and ``on_failure`` is run, which notifies the waiting replicas.
    """

    def __init__(self, op: Tensor, on_failure: Tensor | None = None) -> None:
        self.op, self._on_failure = op, on_failure
        self.error: BaseException | None = None
        """What ended the thread, if it was no ordinary end."""
        self._threads: list[threading.Thread] = []

    def create_threads(
        self, session: Session, coord: Any = None, daemon: bool = True, start: bool = True
    ) -> list[threading.Thread]:
        """Return the thread, started or not; ``coord.request_stop(error)`` is called with what ends it."""
        self.error = None
        name = f"nbdist runs {self.op.name}"
        thread = threading.Thread(target=self._work, args=(session, coord), name=name, daemon=daemon)
        self._threads = [thread]
        if start:
            thread.start()
        return list(self._threads)

    def join(self) -> None:
        """Wait for the end of the thread, after what it works on was closed."""
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(JOIN_SECONDS)

    def _work(self, session: Session, coord: Any) -> None:
        try:
            while True:
                session.run(self.op)
        except OutOfRangeError:
            return
        except BaseException as error:
            if session.closed:
                return
            self.error = error
            if self._on_failure is not None:
                with suppress(NbdistError):  # tasks that have ended raise errors of their own
                    session.run(self._on_failure)
            if coord is not None:
                coord.request_stop(error)
