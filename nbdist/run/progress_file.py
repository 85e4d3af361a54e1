"""A replica's progress in its run's folder, for readers that poll no task.

<run>/progress-0000.json    of rank 0, or of an in-graph run's tower 0; each has one writer, as its log has

It is written about once a second while something changes, and at the end of a body that has trained (with
``fit``, in a loop of its own or in a monitored session): whole or not at all, and a reader that looks at its
time and size alone knows whether there is something new.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nbdist.metrics.run_folder import write_whole_file

VERSION = 1
SECONDS = 1.0  # between two writes
FIELDS = (
    "step", "global_step", "total", "by_updates", "examples", "dropped", "skipped", "rested", "learning_rate",
    "devices", "cores", "gpu", "input",
)  # fmt: skip
DIGITS = 6  # of seconds
log = logging.getLogger(__name__)


class ProgressFile:
    """Writes one replica's progress into a file of its own; it reports a full disk once and continues.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = ProgressFile(progress_path(Path(folder.name), 0), 0, now=lambda: 5.0)
    >>> file.see({"state": "running", "step": 3, "trainings": 1})
    >>> json.loads(file.path.read_bytes())["step"]
    3
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, replica: int, now: Callable[[], float] = time.perf_counter) -> None:
        self.path = path
        self._replica, self._now = replica, now
        # The time of day is looked at once, as a recorder does: between two words the clock never jumps.
        self._origin = time.time() - now()
        self._due, self._reported = -math.inf, False
        self._written: dict[str, Any] = {}

    def see(self, progress: Mapping[str, Any], ended: bool = False) -> None:
        """Take in a replica's progress, and write it down if that is due; never before it trains."""
        now = self._now()
        trains = progress["trainings"] or progress.get("sessions")
        if not trains or (now < self._due and not ended):
            return
        content = content_of(progress, self._replica)
        if content == self._written:
            return
        self._due, self._written = now + SECONDS, content
        try:
            content_text = json.dumps({**content, "time": round(self._origin + now, DIGITS)})
            write_whole_file(self.path, content_text.encode(), wait=False)
        except OSError as error:
            if not self._reported:
                self._reported = True
                log.warning("the progress of a run cannot be written to %s: %s", self.path, error)


def content_of(progress: Mapping[str, Any], replica: int) -> dict[str, Any]:
    """Return what the file says of a replica's progress, beside the time.

    >>> content_of({"state": "running", "trainings": 1, "spent": {"wait": 0.12345678}}, 2)["spent"]
    {'wait': 0.123457}
    """
    return {
        "version": VERSION,
        "replica": replica,
        "state": progress["state"],
        "training": progress["trainings"],
        "sessions": progress.get("sessions", 0),
        "together": progress.get("together", False),
        **{name: progress.get(name) for name in FIELDS},
        "spent": {part: round(seconds, DIGITS) for part, seconds in progress.get("spent", {}).items()},
    }


def progress_path(folder: Path, number: int) -> Path:
    """Return where the progress of a rank, or of a tower, stands in a run's folder."""
    return folder / f"progress-{number:04d}.json"


def read_input(path: Path) -> dict[str, Any] | None:
    """Return what a file says of the dataset that a replica trains on; None without it."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    said = found.get("input") if isinstance(found, dict) else None
    return said if isinstance(said, dict) else None
