"""What a task recorded of its runs, for their timelines: handed out while it lives, written for later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from nbdist.home import private_folder
from nbdist.metrics.timeline import Span, Timeline
from nbdist.metrics.timeline_parts import Part, write_part
from nbdist.runtime.task import Task

Source: TypeAlias = Callable[[str], Iterable[Span]]

log = logging.getLogger(__name__)


class Recorded:
    """Asks its ``sources``, each of which returns the spans that it knows of a run; add to them at will."""

    def __init__(self, task: Task, sources: Iterable[Source]) -> None:
        self.task = task
        self.sources = list(sources)
        self._written = ""

    def part(self, run: str) -> Part:
        """Return this task's part of a run's timeline; it may be empty. May be called on any thread."""
        spans = [span for source in self.sources for span in source(run)]
        return Part.now(self.task.name, self.task.info.host, Timeline(spans, [self.task.name]))

    def write(self, run: str, folder: str) -> None:
        """Write the part into the run's folder, once, if there is anything in it."""
        part = self.part(run)
        if not part.timeline.spans or self._written == run:
            return
        try:
            write_part(private_folder(Path(folder)), self.task.rank, part)
        except OSError as error:  # a full disk costs no results; while the task lives it can be asked
            log.warning("the timeline of run %s could not be written to %s: %s", run, folder, error)
        self._written = run
