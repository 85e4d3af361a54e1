"""`export_run`: a run's folder is read and written to a target; one export of a run at a time.

export_run(read_run("261120-091512-mnist"), folder, "parquet", {"path": "points.parquet"})
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from nbdist.errors import FailedPreconditionError, NbdistError, StorageError, UnavailableError
from nbdist.metrics.run_folder import RunFile
from nbdist.run.export.contents import RunContents
from nbdist.run.export.registry import find_exporter
from nbdist.run.export.spec import Exported
from nbdist.run.recovery.ownership import OwnerLock

LOCK = ".export.lock"
SHOWN_AFTER, SHOWN_EVERY = 1.0, 0.25  # seconds


def export_run(
    record: RunFile,
    folder: Path,
    to: str,
    settings: Mapping[str, object] | None = None,
    *,
    name: str = "",
    tags: tuple[str, ...] = (),
    note: str = "",
    replace: bool = False,
    files: bool = True,
) -> Exported:
    """Write a run to a target; see `nbdist.run.history.Labelled.export`.

    - ``record``, ``folder``: the run's run.json, and its folder
    - ``to``, ``settings``: the exporter's name, and its settings by name
    - ``name``, ``tags``, ``note``: what its user has given it
    """
    spec = find_exporter(to)
    request = spec.request(settings or {}, replace, files)
    spec.require()
    lock = OwnerLock(folder, LOCK)
    try:
        taken = lock.take()
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror or error}") from error
    if not taken:
        raise FailedPreconditionError(f"run {record.id} is being exported at this moment: wait for the end")
    contents = RunContents(record, folder, name or record.name, tags, note)
    line = ProgressLine(f"export to {to}", contents)
    contents.report = line.show
    try:
        return spec.write(contents, request)
    except (NbdistError, KeyboardInterrupt):
        raise
    except Exception as error:  # of the target's package: of any type
        raise UnavailableError(
            f"run {record.id} could not be exported to {to}: {type(error).__name__}: {error}"
        ) from error
    finally:
        line.close()
        lock.release()


class ProgressLine:
    """A line of progress, on stderr, if writing the points takes more than a second."""

    def __init__(self, title: str, run: RunContents, out: TextIO | None = None) -> None:
        self._title, self._run, self._out = title, run, out
        self._due, self._width = 0.0, 0  # begins with the first points: packages take long to import

    def show(self, done: int) -> None:
        """Show that so many points are written, a few times a second."""
        now = time.monotonic()
        if self._due and now >= self._due:
            text = f"{self._title}: {done:,} of {self._run.index.points:,} points"
            self._write(f"\r{text:<{self._width}}")
            self._width = len(text)
        if not self._due or now >= self._due:
            self._due = now + (SHOWN_EVERY if self._due else SHOWN_AFTER)

    def close(self) -> None:
        """Remove the line."""
        if self._width:
            self._write(f"\r{' ' * self._width}\r")

    def _write(self, text: str) -> None:
        print(text, end="", file=self._out or sys.stderr, flush=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Have an interrupt raise KeyboardInterrupt at once inside a ``with``, where others hold it back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
