"""Summaries: values of a graph that are written to TensorBoard's event files.

    nb.summary.scalar("loss", loss)
    merged = nb.summary.merge_all()
    writer = nb.summary.FileWriter("logs")
    summary, step = session.run([merged, global_step])
    writer.add_summary(summary, step)

``tensorboard --logdir logs`` shows them. Source of the interface: TensorFlow's tf.compat.v1.summary.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, StorageError
from nbdist.graph.scopes import Graph, default_graph
from nbdist.graph.tensor import Tensor
from nbdist.metrics.log import POINT
from nbdist.metrics.tensorboard import EventFile, events

__all__ = ["FileWriter", "SummaryOp", "merge", "merge_all", "scalar"]
FLUSH_SECONDS = 120.0


class SummaryOp:
    """Values to be written under their tags; fetch it with ``session.run``, which returns a dict of them.

    ``tags`` and ``fetched`` (tensors of one number each) belong together.
    """

    def __init__(self, tags: Sequence[str], tensors: Sequence[Tensor]) -> None:
        self.tags, self.fetched = tuple(tags), list(tensors)

    def with_values(self, values: Sequence[Any]) -> dict[str, float]:
        """Return the tags with the values that a session has computed for ``fetched``."""
        return {tag: float(value) for tag, value in zip(self.tags, values, strict=True)}

    def __repr__(self) -> str:
        return f"<SummaryOp of {', '.join(self.tags)}>"


def scalar(name: str, tensor: Tensor) -> SummaryOp:
    """Return a summary of one number, and add it to the graph's summaries.

    - ``name``: its tag, in the current name scope
    - ``tensor``: a tensor of the graph with one element

    Raises InvalidArgumentError for anything else, and for a tag that the graph has already.

    >>> from nbdist.graph.tensor import placeholder
    >>> with Graph().as_default():
    ...     scalar("loss", placeholder(np.float32, (), name="x"))
    <SummaryOp of loss>
    """
    if not isinstance(tensor, Tensor) or tensor.shape not in ((), (1,)):
        raise InvalidArgumentError(f"summary.scalar takes a tensor of one number, not {tensor!r:.200}")
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"summary.scalar: the name is a text, not {name!r}")
    graph = tensor.graph
    tag = graph.scope.name + name
    if any(tag in one.tags for one in graph.summaries):
        raise InvalidArgumentError(
            f"summary.scalar: the graph has a summary {tag!r} already; choose another name"
        )
    made = SummaryOp([tag], [tensor])
    graph.summaries.append(made)
    return made


def merge(summaries: Iterable[SummaryOp]) -> SummaryOp:
    """Return one summary with the values of several.

    Raises InvalidArgumentError if there is none, or one is not a SummaryOp.
    """
    several = list(summaries)
    if not several or not all(isinstance(one, SummaryOp) for one in several):
        raise InvalidArgumentError(f"summary.merge takes summaries, not {several!r:.200}")
    return SummaryOp(
        [tag for one in several for tag in one.tags], [t for one in several for t in one.fetched]
    )


def merge_all(graph: Graph | None = None) -> SummaryOp | None:
    """Return one summary with all values of a graph (None: the default one); None if it has none."""
    graph = graph or default_graph()
    return merge(graph.summaries) if graph.summaries else None


class FileWriter:
    """Writes summaries to an event file in a folder; several threads may use it.

    - ``logdir``: a local folder, made with mode 0700 if it is missing
    - ``graph``: accepted as in TensorFlow, without an effect
    - ``flush_secs``: after how many seconds, from 0, the next value writes those that wait in memory

    Raises StorageError at ``flush`` or ``close`` if the file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, FileWriter(folder) as writer:
    ...     writer.add_summary({"loss": 0.5}, 1)
    ...     writer.flush()
    ...     len(os.listdir(folder))
    1
    """

    def __init__(
        self, logdir: str | os.PathLike[str], graph: Graph | None = None, flush_secs: float = FLUSH_SECONDS
    ) -> None:
        if not isinstance(flush_secs, (int, float)) or not flush_secs >= 0:
            raise InvalidArgumentError(f"flush_secs is a number of seconds from 0, not {flush_secs!r}")
        self.logdir = os.fspath(logdir)
        self._errors: list[str] = []
        self._file = EventFile(Path(self.logdir).expanduser(), self._errors.append)
        self._flush_seconds, self._flushed = flush_secs, time.monotonic()
        self._tags: dict[str, int] = {}
        self._lock = threading.Lock()
        self._closed = False

    def add_summary(self, summary: Mapping[str, float], global_step: int | None = None) -> None:
        """Add values by tag, as ``session.run`` has returned them, at a step from 0 (None: 0)."""
        if not isinstance(summary, Mapping):
            raise InvalidArgumentError(
                f"add_summary takes the value of a summary (session.run(merged)), not {summary!r:.200}"
            )
        step = 0 if global_step is None else int(global_step)
        if not 0 <= step < 1 << 32:
            raise InvalidArgumentError(
                f"global_step is a whole number from 0 to 2**32 - 1, not {global_step!r}"
            )
        now = time.time()
        with self._lock:
            if self._closed:
                raise InvalidArgumentError(f"the FileWriter of {self.logdir!r} is closed; make another")
            rows = [
                (self._tags.setdefault(tag, len(self._tags)), step, float(value), now)
                for tag, value in summary.items()
            ]
            if rows:
                self._file.keep(events(list(self._tags), np.array(rows, POINT)), len(rows))
            if time.monotonic() - self._flushed >= self._flush_seconds:
                self._write()

    def flush(self) -> None:
        """Write what waits in memory."""
        with self._lock:
            self._write()
            self._raise_errors()

    def close(self) -> None:
        """Write what waits in memory, and close the file. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._file.close()
                self._raise_errors()

    def _write(self) -> None:
        self._flushed = time.monotonic()
        self._file.retry()

    def _raise_errors(self) -> None:
        if self._errors:
            errors, self._errors[:] = list(self._errors), []
            raise StorageError(f"summaries in {self.logdir!r} are not written: {'; '.join(errors)}")

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()
