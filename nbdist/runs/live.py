"""One run on one task while its body runs: what there is to tell those who watch it, as frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np

from nbdist.metrics.log import Batch
from nbdist.metrics.recorder import Recorder
from nbdist.runs.controlling import said
from nbdist.runs.output import Output
from nbdist.runs.progressfile import ProgressFile, progress_path
from nbdist.train.context import Context
from nbdist.wire.rpc.frame import Frame

NEWS_SECONDS = 0.1


class Live:
    """One run on one task, while its body runs."""

    def __init__(self, run: str, context: Context, recorder: Recorder, output: Output) -> None:
        self.run, self.context, self.recorder, self.output = run, context, recorder, output
        self.cancel: Callable[[], None] = lambda: None
        self._progress: dict[int, ProgressFile] = {}
        self._said: list[str] = []

    def news(self) -> list[tuple[int, dict[str, Any], Batch | None]]:
        """Return (replica, progress, new points) of each replica that this body trains."""
        return [(self.recorder.replica, said(self.context), self.recorder.flush())]

    def troubles(self) -> list[str]:
        """Return what the disk has refused so far, of all replicas that this body trains."""
        return self.recorder.troubles

    def last_epochs(self) -> dict[int, dict[str, float]]:
        """Return the means of the last epoch of each replica that this body has trained."""
        return {self.recorder.replica: self.context.last_epoch}

    def number(self, rank: int, replica: int) -> int:
        """Return the number that a replica's files have in the run's folder."""
        return rank

    def intervals(self) -> Iterator[float]:
        """Yield the seconds until each next poll while the body runs; without end."""
        return repeat(NEWS_SECONDS)

    def told(self, rank: int, ended: bool) -> Iterator[Frame]:
        """Yield the news: displayed objects, then a frame per replica, the first with the printed output."""
        for shown in self.output.take_displays():
            meta = {"run": self.run, "rank": rank, "types": list(shown.data), "name": shown.name}
            parts = [np.frombuffer(one.encode("utf-8", "replace"), np.uint8) for one in shown.data.values()]
            yield Frame("run.display", {**meta, "update": shown.update}, tuple(parts))
        news = self.news()
        for trouble in self.troubles():
            if trouble not in self._said:  # who watches is to know that the logs lack something
                self._said.append(trouble)
                self.output.write(f"\n[{trouble}]\n")
        text = self.output.take()
        # Text goes as bytes: a frame's meta is small, and not every str that a body prints is valid UTF-8.
        printed = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        for n, (replica, progress, batch) in enumerate(news):
            self._keep(self.number(rank, replica), replica, progress, ended)
            known: dict[str, Any] = {
                "run": self.run,
                "rank": rank,
                "replica": replica,
                "progress": progress,
                "ended": ended and n == len(news) - 1,
                "at": self.recorder.end,
                "printed": self.output.taken,
            }
            arrays: list[Any] = [printed if n == 0 else printed[:0]]
            if batch is not None:
                known["batch"], columns = batch.arrays()
                arrays.extend(columns)
            yield Frame("run.news", known, tuple(arrays))

    def _keep(self, number: int, replica: int, progress: dict[str, Any], ended: bool) -> None:
        """Have a replica's progress in the run's folder, for those who ask no task."""
        if number not in self._progress:
            path = progress_path(self.recorder.path.parent, number)
            self._progress[number] = ProgressFile(path, replica)
        self._progress[number].see(progress, ended)

    def so_far(self, rank: int, ended: bool) -> Frame:
        """Return what who comes late has to know of a run here; the next news say what follows it.

        All on the Server's thread, as the news are: so no point is in both, and none in neither.
        """
        size, waiting = self.recorder.position()
        meta = {
            "state": "over" if ended else "on",
            "run": self.run,
            "rank": rank,
            "replica": self.recorder.replica,
            "progress": said(self.context),
            "ended": ended,
            "log": self.recorder.path.name,
            "size": size,
            "at": size + len(waiting),
            "printed": self.output.taken,
        }
        tail = self.output.tail().encode("utf-8", "replace")
        return Frame("run.watched", meta, tuple(np.frombuffer(part, np.uint8) for part in (tail, waiting)))

    def close(self) -> None:
        """Close the logs."""
        self.recorder.close()
        self.output.finish()
