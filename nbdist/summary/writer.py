"""Writers of summaries: a folder's event file, written by a thread of its own.

    writer = create_file_writer("logs")
    with writer.as_default():
        histogram("weights", weights, step=10)          # copies the array; the thread does the rest

The caller never waits for the disk or for the encoding: a full disk is reported once, and what waits for it
is bounded. Source of the interface: TensorFlow's tf.compat.v1.summary.FileWriter, and its tf.summary.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Protocol

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, StorageError
from nbdist.graph.scopes import Graph
from nbdist.metrics.event_file import EventFile, event, purge
from nbdist.summary.graph_def import graph_event
from nbdist.summary.values import Value, Written, as_values, checked_step

FLUSH_SECONDS = 120.0
PATIENCE_SECONDS = 30.0  # for one value to be encoded, or the file to be written, if a caller waits for it
WAITING_BYTES = 256 << 20  # of values that wait to be encoded; what is given above that is dropped


class SummaryWriter(Protocol):
    """Where summaries go: a FileWriter, or the writer of a run."""

    @property
    def folder(self) -> Path:
        """The folder of its event files."""

    def add_graph(self, graph: Graph) -> None:
        """Take a graph."""

    def add_summary(self, summary: Mapping[str, Written], global_step: int | None = None) -> None:
        """Take values by tag at a step."""


class FileWriter:
    """Writes summaries to an event file in a folder; several threads may use it.

    - ``logdir``: a local folder, made with mode 0700 if it is missing
    - ``graph``: a Graph that TensorBoard is to draw; None for none
    - ``flush_secs``: after how many seconds, from 0, what was added is written to the file
    - ``purge_step``: TensorBoard drops what earlier files of the folder have from this step on, because the
      training begins there again; None to keep all

    Raises StorageError at ``flush`` or ``close`` if the file cannot be written. Training between them
    continues, and the error is logged once. A writer that is not closed is closed at the end of the process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, FileWriter(folder) as writer:
    ...     writer.add_summary({"loss": 0.5}, 1)
    ...     writer.flush()
    ...     len(os.listdir(folder))
    1
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        graph: Graph | None = None,
        flush_secs: float = FLUSH_SECONDS,
        purge_step: int | None = None,
    ) -> None:
        if not isinstance(flush_secs, (int, float)) or not flush_secs >= 0:
            raise InvalidArgumentError(f"flush_secs is a number of seconds from 0, not {flush_secs!r}")
        self.logdir = os.fspath(logdir)
        self._errors: list[str] = []
        first = None if purge_step is None else checked_step(purge_step)
        self._file = EventFile(Path(self.logdir).expanduser(), self._note, first)
        self._encoder = Encoder(
            lambda event, step: self._file.add(event), self._note, retry=self._file.retry, seconds=flush_secs
        )
        self._encoder.do(int)  # starts the thread: Python starts none at the end of the process, for `close`
        self._closed = False
        atexit.register(self.close)
        if graph is not None:
            self.add_graph(graph)

    @property
    def folder(self) -> Path:
        """The folder as a path."""
        return self._file.path.parent

    def get_logdir(self) -> str:
        """Return the folder."""
        return self.logdir

    def add_summary(self, summary: Mapping[str, Written], global_step: int | None = None) -> None:
        """Add values by tag, as ``session.run`` has returned them, at a step from 0 (None: 0)."""
        if not isinstance(summary, Mapping):
            raise InvalidArgumentError(
                f"add_summary takes the value of a summary (session.run(merged)), not {summary!r:.200}"
            )
        step = 0 if global_step is None else checked_step(global_step)
        self._check_open()
        self._encoder.add(as_values(summary), step)

    def add_graph(self, graph: Graph) -> None:
        """Add a Graph, which TensorBoard draws; of several in a folder it draws the last one."""
        if not isinstance(graph, Graph):
            raise InvalidArgumentError(f"FileWriter: graph is {graph!r:.80}; expected a Graph (nb.Graph())")
        self._check_open()
        self._encoder.add_event(graph_event(graph), 0)

    def purge(self, step: int) -> None:
        """Have TensorBoard drop what was written from ``step`` on: the training begins there again."""
        self._check_open()
        self._encoder.do(partial(self._file.add, purge(checked_step(step)), 0))

    def flush(self) -> None:
        """Write what waits in memory; StorageError also where the disk takes nothing for 30 s."""
        self._raise_errors(self._encoder.flush(self._file.retry))

    def close(self) -> None:
        """Write what waits in memory, and close the file; errors as in `flush`. May be called again."""
        self._closed = True
        written = self._encoder.close(self._file.close)
        if written:
            atexit.unregister(self.close)
        self._raise_errors(written)

    @contextmanager
    def as_default(self) -> Iterator[FileWriter]:
        """Have ``nb.summary.scalar`` and the others write here, inside a ``with``, on this thread."""
        token = _default.set(self)
        try:
            yield self
        finally:
            _default.reset(token)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgumentError(f"the FileWriter of {self.logdir!r} is closed; make another")

    def _note(self, trouble: str) -> None:
        if not self._errors:
            logging.getLogger("nbdist.summary").warning("%s", trouble)
        self._errors.append(trouble)

    def _raise_errors(self, written: bool) -> None:
        """Raise the errors so far; those of this call may have been raised to another thread."""
        errors, self._errors[:] = list(self._errors), []
        if errors or not written:
            said = "; ".join(errors) or "the disk or the file system does not answer"
            raise StorageError(f"summaries in {self.logdir!r} are not written: {said}")

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def create_file_writer(
    logdir: str | os.PathLike[str], flush_secs: float = FLUSH_SECONDS, purge_step: int | None = None
) -> FileWriter:
    """Return a FileWriter; the parameters are its own. The name is that of TensorFlow 2."""
    return FileWriter(logdir, None, flush_secs, purge_step)


# Hooks of one folder write into one file: TensorBoard reads files one after the other, so that a second file,
# whose training begins again at a step, would drop what the first one has of the same training.

_shared: dict[str, tuple[FileWriter, int]] = {}
_sharing = threading.Lock()


def shared_writer(logdir: str | os.PathLike[str]) -> FileWriter:
    """Return the open writer of a folder that this process shares, or a new one; `release` it afterwards."""
    name = os.path.abspath(Path(logdir).expanduser())
    with _sharing:
        writer, users = _shared.get(name) or (FileWriter(logdir), 0)
        _shared[name] = writer, users + 1
        return writer


def release(writer: FileWriter) -> None:
    """Write what waits in memory; close a shared writer after its last user."""
    name = os.path.abspath(Path(writer.logdir).expanduser())
    with _sharing:
        _, users = _shared.pop(name, (writer, 1))
        if users > 1:
            _shared[name] = writer, users - 1
    if users > 1:
        writer.flush()
    else:
        writer.close()


class Encoder:
    """A thread that turns values into events, in the order in which they were added.

    - ``write``: takes a serialized event and its step
    - ``say``: takes a sentence on values that were dropped or cannot be encoded, one for each of the two
    - ``see``: takes (tag, value, step) of each value that was encoded
    - ``retry``: writes the file; called ``seconds`` after something was encoded. None if others do it
    """

    def __init__(
        self,
        write: Callable[[bytes, int], None],
        say: Callable[[str], None],
        see: Callable[[str, Value, int], None] = lambda tag, value, step: None,
        retry: Callable[[], None] | None = None,
        seconds: float = 0.0,
    ) -> None:
        self._write, self._say, self._see = write, say, see
        self._retry, self._seconds = retry, min(seconds, threading.TIMEOUT_MAX)
        self._waiting: deque[tuple[dict[str, Value], int, float, Callable[[], object]]] = deque()
        self._bytes = 0
        self._busy = self._closed = False
        self._made = 0
        """How often the thread has encoded what it had taken."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._said: set[str] = set()
        self.dropped = 0

    def add(self, values: dict[str, Value], step: int) -> None:
        """Take values at a step; what exceeds the limit of waiting bytes is dropped and counted."""
        if not values:
            return
        size = sum(value.size for value in values.values())
        with self._changed:
            if self._waiting and self._bytes + size > WAITING_BYTES:
                self.dropped += len(values)
                self._say_once(
                    "dropped",
                    f"summaries come faster than they can be written: {', '.join(values)} at step {step} and "
                    "others are dropped; write them every few steps",
                )
                return
            self._put(values, step, size)

    def add_event(self, event: bytes, step: int) -> None:
        """Take an event that is encoded already."""
        self.do(partial(self._write, event, step))

    def do(self, call: Callable[[], object]) -> None:
        """Have the thread call a function after what was added before."""
        with self._changed:
            self._put({}, 0, 0, call)

    def _put(
        self, values: dict[str, Value], step: int, size: int, call: Callable[[], object] = lambda: None
    ) -> None:
        if self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nbdist-summaries", daemon=True)
            self._thread.start()
        self._bytes += size
        self._waiting.append((values, step, time.time(), call))
        self._changed.notify_all()

    def flush(self, call: Callable[[], object] | None = None) -> bool:
        """Wait until what was added is encoded, and the thread has then made a ``call``.

        Returns False, and says why, if the thread does nothing for a while.
        """
        if call is not None:
            self.do(call)
        with self._changed:
            while self._waiting or self._busy:
                if not self._changed.wait_for(partial(self._has_made_more, self._made), PATIENCE_SECONDS):
                    self._say(
                        f"nothing was written for {PATIENCE_SECONDS:.0f} s: the disk or the file system "
                        "does not answer. What waits is lost if the process ends before that does"
                    )
                    return False
        return True

    def _has_made_more(self, than: int) -> bool:
        return self._made != than

    def close(self, call: Callable[[], object] | None = None) -> bool:
        """Flush, and end the thread; return as `flush` does. Where it returned False, it may be repeated."""
        if not self.flush(call):
            return False
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(PATIENCE_SECONDS)
        return True

    def _run(self) -> None:
        due: float | None = None  # when what was encoded is to be written
        while True:
            with self._changed:
                self._busy, self._made = False, self._made + 1
                self._changed.notify_all()
                left = None if due is None else max(due - time.monotonic(), 0)
                self._changed.wait_for(lambda: bool(self._waiting) or self._closed, left)
                if self._closed and not self._waiting:
                    return
                values, step, at, call = self._waiting.popleft() if self._waiting else ({}, 0, 0.0, int)
                self._busy = True
            try:
                call()
            except Exception as error:  # as of a value
                self._say(f"{type(error).__name__}: {error}")
            for tag, value in values.items():
                try:
                    self._write(event(value.messages(tag), step, at), step)
                    self._see(tag, value, step)
                except Exception as error:  # a value must not end the thread, nor the training
                    self._say_once("encoded", f"summary {tag!r} at step {step} is not written: {error}")
            with self._changed:
                self._bytes -= sum(value.size for value in values.values())
            if self._retry is not None:
                now = time.monotonic()
                due = now + self._seconds if due is None else due
                if due <= now:
                    self._retry()
                    due = None

    def _say_once(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._say(text)


# The writer of the functions that are given values and not tensors.

_default: ContextVar[SummaryWriter | None] = ContextVar("the default writer of summaries", default=None)
writer_of_run: Callable[[], SummaryWriter | None] = lambda: None
"""Returns the writer of the run that this thread works for; `nbdist.train.context` sets it."""


def default_writer(what: str) -> SummaryWriter:
    """Return the writer of an enclosing ``as_default()``, or else that of the run.

    Raises FailedPreconditionError if there is neither.
    """
    found = _default.get() or writer_of_run()
    if found is None:
        raise FailedPreconditionError(
            f"summary.{what} is given a value, and there is no writer: call it inside `with "
            'nb.summary.create_file_writer("logs").as_default():`, or in a run (%%distribute)'
        )
    return found
