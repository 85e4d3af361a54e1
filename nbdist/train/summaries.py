"""`RunSummaries`: where ``nb.summary`` writes in a run, on each task.

scalar                    ─► the metric points: curves of the live view, the log, the event files
histogram, image, text    ─► a thread that encodes ─► the task's event file
                                                   ─► small pictures for the live view
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from nbdist.graph.scopes import Graph
from nbdist.metrics.recorder import Recorder
from nbdist.summary.graph_def import graph_event
from nbdist.summary.pictures import Gallery, Picture
from nbdist.summary.values import Scalar, Value, Written, as_values, checked_step
from nbdist.summary.writer import Encoder


class RunSummaries:
    """The writer of summaries of one replica.

    - ``recorder``: takes the scalars; its event files get the rest. It says what is dropped or not encoded
    - ``folder``: of these event files, which are made with the first summary
    - ``step``: returns the replica's step, for summaries without one; None before it has trained
    - ``rejoins``: whether an earlier process of the task may have left event files
    """

    def __init__(
        self, recorder: Recorder, folder: Path, step: Callable[[], int | None], rejoins: bool = False
    ) -> None:
        self._recorder, self._step, self._rejoins = recorder, step, rejoins
        self.folder = folder
        """The folder of the event files."""
        self._lock = threading.Lock()
        self._gallery = Gallery()
        self._new: list[Picture] = []
        self._encoder = Encoder(self._write, recorder.say, self._see)

    def add_summary(self, summary: Mapping[str, Written], global_step: int | None = None) -> None:
        """Take values by tag, at the replica's step if none is given."""
        values = as_values(summary)
        step = (self._step() or 0) if global_step is None else checked_step(global_step)
        for tag, value in values.items():
            if isinstance(value, Scalar):
                self._recorder.add(self._recorder.series(tag), step, value.number)
        self._encoder.add({tag: one for tag, one in values.items() if not isinstance(one, Scalar)}, step)

    def add_graph(self, graph: Graph) -> None:
        """Add a graph to the event file."""
        self._encoder.add_event(graph_event(graph), 0)

    def take(self) -> list[Picture]:
        """Return the pictures that are new since the last call."""
        with self._lock:
            new, self._new = self._new, []
        return list({(one.tag, one.step): one for one in new}.values())

    def take_again(self) -> None:
        """Have `take` return all pictures that are kept: a client has subscribed."""
        with self._lock:
            self._new = [picture for _, picture in self._gallery.all()]

    def flush(self) -> None:
        """Wait until what was added is encoded."""
        self._encoder.flush()

    def close(self) -> None:
        """Encode what waits, before the recorder is closed."""
        self._encoder.close()

    def _write(self, event: bytes, step: int) -> None:
        self._recorder.start_events(self.folder, self._rejoins).add(event, step)

    def _see(self, tag: str, value: Value, step: int) -> None:
        picture = Picture.of(tag, value, step)
        if picture is not None:
            with self._lock:
                self._gallery.add("", picture)
                self._new.append(picture)
