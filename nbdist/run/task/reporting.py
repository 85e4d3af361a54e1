"""`ActiveRun`: the messages of a run on one task while its body runs; `Output`: what the body prints and
displays.

The body never waits: it appends to memory, up to a limit, and the Server's thread takes it ten times a
second, writes it to files and sends it to subscribers. What exceeds a limit is dropped, with a note of how
much.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.metrics.gpu_usage import GpuSampler, own_gpu
from nbdist.metrics.log import Batch
from nbdist.metrics.recorder import Recorder
from nbdist.run.control import progress_message
from nbdist.run.displays import (
    DISPLAY_LIMIT,
    DISPLAY_TYPES,
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_DISPLAYS,
    TEXT,
    Displayed,
    keep,
)
from nbdist.run.progress_file import ProgressFile, progress_path
from nbdist.run.task.training_series import TrainingSeries
from nbdist.terminal.ansi import ERROR, USUAL
from nbdist.terminal.rows import CondensedLog
from nbdist.train.context import Context, left_behind
from nbdist.wire.rpc.frame import Frame, encode

SEND_SECONDS = 0.1  # between two messages of a replica
GPU_SECONDS = 1.0  # between two samples of its GPU


class ActiveRun:
    """One run on one task, while its body runs."""

    has_timeline = True
    """Whether its folder gets the task's part of a timeline."""

    def __init__(self, run: str, context: Context, recorder: Recorder, output: Output) -> None:
        self.run, self.context, self.recorder, self.output = run, context, recorder, output
        self.small = False
        """Whether its outcome has neither results nor a model, of which each may be large."""
        self.reported = False
        """Whether messages have been sent."""
        self.unsent: list[bytes] | None = None
        """The only message of a brief body, encoded, if its outcome carries it."""
        self._progress: dict[int, ProgressFile] = {}
        self._shown_troubles: list[str] = []
        self._sampler: GpuSampler | None = None
        self._series = TrainingSeries(recorder)

    def start_gpu_sampler(self, device: str) -> None:
        """Measure the GPU of this task until `stop_gpu_sampler`: for the view and, in a training, its log."""
        gpu = own_gpu(device)
        if gpu is not None:
            self._sampler = GpuSampler(gpu, self._show_gpu, self._record_gpu, GPU_SECONDS)
            self._sampler.start()

    def stop_gpu_sampler(self) -> None:
        """End the measurements."""
        if self._sampler is not None:
            self._sampler.stop()

    def _show_gpu(self, sample: dict[str, Any]) -> None:
        self.context.gpu = sample

    def _record_gpu(self, series: str, value: float) -> None:
        progress, recorder = self.context.progress, self.recorder
        if progress.trainings or progress.sessions or recorder.names:  # a plain cell leaves no metrics
            recorder.add(recorder.series(series), progress.step, value)

    def replicas(self, ended: bool = False) -> list[tuple[int, dict[str, Any], Batch | None]]:
        """Return (replica, progress, new points) of each replica that this body trains."""
        self._series.sample(self.context, self.context.progress, time.monotonic(), ended)
        return [(self.recorder.replica, progress_message(self.context), self.recorder.flush())]

    def troubles(self, ended: bool) -> list[str]:
        """Return the errors of the disk so far, of all replicas of this body, and at the end what is lost."""
        return self.recorder.all_troubles(ended)

    def last_epochs(self) -> dict[int, dict[str, float]]:
        """Return the means of the last epoch of each replica that this body has trained."""
        return {self.recorder.replica: self.context.last_epoch}

    def number(self, rank: int, replica: int) -> int:
        """Return the number of a replica's files in the run's folder."""
        return rank

    def intervals(self) -> Iterator[float]:
        """Yield the seconds until each next poll while the body runs; without end."""
        return repeat(SEND_SECONDS)

    def messages(self, rank: int, ended: bool) -> Iterator[Frame]:
        """Yield what is new: displayed objects, then a frame per replica, the first with the output."""
        for shown in self.output.take_displays():
            self.output.keep(shown)
            meta, parts = shown.message()
            yield Frame("run.display", {"run": self.run, "rank": rank, **meta}, parts)
        for picture in self.context.summaries.take() if self.context.summaries is not None else ():
            meta = {"run": self.run, "rank": rank, "tag": picture.tag, "kind": picture.kind}
            yield Frame("run.summary", {**meta, "step": picture.step}, picture.arrays)
        replicas = self.replicas(ended)
        if self.context.events is not None:
            self.context.events.flush()
        for trouble in self.troubles(ended):
            if trouble not in self._shown_troubles:  # clients have to know that the logs are incomplete
                self._shown_troubles.append(trouble)
                self.output.note(trouble)
        text = self.output.take()
        # Text goes as bytes: a frame's meta is small, and not every str that a body prints is valid UTF-8.
        printed = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        for n, (replica, progress, batch) in enumerate(replicas):
            self._keep(self.number(rank, replica), replica, progress, ended)
            known: dict[str, Any] = {
                "run": self.run,
                "rank": rank,
                "replica": replica,
                "progress": progress,
                "ended": ended and n == len(replicas) - 1,
                "at": self.recorder.end,
                "printed": self.output.taken,
            }
            arrays: list[Any] = [printed if n == 0 else printed[:0]]
            if batch is not None:
                known["batch"], columns = batch.arrays()
                arrays.extend(columns)
            yield Frame("run.progress", known, tuple(arrays))

    def leave_to_outcome(self, last: list[Frame]) -> list[Frame]:
        """Have the outcome carry the message of a brief body that has no other, and only a text and progress.

        ``last`` are the last messages; returns those that are to be sent.
        """
        if self.reported or len(last) != 1 or len(last[0].arrays) != 1:
            return last
        self.unsent = [bytes(part) for part in encode(last[0])]
        return []

    def _keep(self, number: int, replica: int, progress: dict[str, Any], ended: bool) -> None:
        """Write a replica's progress into the run's folder, for readers without a connection to the task."""
        if number not in self._progress:
            path = progress_path(self.recorder.path.parent, number)
            self._progress[number] = ProgressFile(path, replica)
        self._progress[number].see(progress, ended)

    def backfill(self, rank: int, ended: bool) -> Frame:
        """Return the run so far, for a new subscriber: positions in its log and output, and the output's end.

        Called on the Server's thread, as `messages` is: every point is either in the backfill or in a later
        message, never in both.
        """
        if self.context.summaries is not None:
            self.context.summaries.take_again()
        size, waiting = self.recorder.position()
        meta = {
            "state": "over" if ended else "on",
            "run": self.run,
            "rank": rank,
            "replica": self.recorder.replica,
            "progress": progress_message(self.context),
            "ended": ended,
            "log": self.recorder.path.name,
            "size": size,
            "at": size + len(waiting),
            "printed": self.output.taken,
        }
        tail = self.output.tail().encode("utf-8", "replace")
        return Frame("run.backfill", meta, tuple(np.frombuffer(part, np.uint8) for part in (tail, waiting)))

    def close(self) -> None:
        """Close the logs."""
        if self.context.summaries is not None:
            self.context.summaries.close()
        self.recorder.close()
        self.close_events()
        self.output.finish()

    def close_events(self) -> None:
        """Write the last events of the run."""
        if self.context.events is not None:
            self.context.events.close()


WAITING_LIMIT = 1 << 20  # characters that may wait for the next flush
FILE_LIMIT = 64 << 20  # bytes that one task's output file may grow to
STATE_SECONDS = 5.0  # between two states of a progress bar in the output file
TAIL_LIMIT = 200_000  # characters of the output that a backfill contains
REFUSED = "refused"  # in the place of a display's key
DISPLAYS_LIMIT = 32 << 20  # bytes that wait for the next flush, and bytes of all new displays of one run


class Output:
    """A body's output and displayed objects, until the Server's thread takes them."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._is_stderr = False  # whether the last of these is
        self._size = 0
        self._cut = 0
        self._log = CondensedLog(STATE_SECONDS)
        self._written = 0
        self._missing = 0  # bytes that a full disk has not taken since the last ones that it took
        self._refused = False
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self.taken = 0  # characters
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        self._path = path
        self._displays: dict[str, Displayed] = {}  # by key: of what is updated, the newest is enough
        self._keys: dict[str, str] = {}  # of displays that have names
        self._rank = path.stem.removeprefix("output-")
        self._displayed = self._displayed_bytes = 0
        self._lacks_display = False
        self._file: io.FileIO | None = None  # made for the first text: most trials of a sweep print nothing

    def write(self, text: str, stderr: bool = False) -> int:
        """Append text; what exceeds the limit before the next flush is counted and dropped."""
        with self._lock:
            room = WAITING_LIMIT - self._size
            kept = text[: max(room, 0)]
            self._cut += len(text) - len(kept)
            if kept:
                if stderr != self._is_stderr:
                    self._waiting.append(ERROR if stderr else USUAL)
                    self._is_stderr = stderr
                self._waiting.append(kept)
                self._size += len(kept)
        return len(text)

    def note(self, remark: str) -> None:
        """Append a remark on the run, on a line of its own."""
        self.write(line_after(next(iter([*self._waiting[-1:], *list(self._tail)[-1:]]), ""), remark))

    def take(self) -> str:
        """Write what was printed since the last call to the file, and return it."""
        with self._lock:
            text, cut = "".join(self._waiting), self._cut
            text += USUAL * self._is_stderr  # each message stands alone
            self._waiting, self._size, self._cut, self._is_stderr = [], 0, 0, False
        if cut:
            text += f"\n[{cut:,} characters were printed faster than they can be shown, and dropped]\n"
        if remark := self._keep(self._log.add(text, time.monotonic())):
            text += line_after(text, remark)
        if text:
            self.taken += len(text)
            self._tail.append(text)
            self._tail_size += len(text)
            while self._tail_size - len(self._tail[0]) >= TAIL_LIMIT:
                self._tail_size -= len(self._tail.popleft())
        return text

    def _keep(self, text: str) -> str:
        """Append to the file; return a remark if it lacks output from now on. It stops no body."""
        if not text or self._written >= FILE_LIMIT:
            return ""
        data = text.encode("utf-8", "replace")
        gap = f"\n[{self._missing:,} bytes of output are missing here: the disk was full]\n"
        rest = gap.encode() + data if self._missing else data
        self._written += len(data)
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0, opener=_private)  # noqa: SIM115 - `finish` closes it
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._missing += min(len(rest), len(data))
            first, self._refused = not self._refused, True
            why = f"output cannot be written to {self._path}: {error.strerror or error}"
            return f"{why}. It is tried again; what is missing there is shown here" if first else ""
        self._missing = 0
        if self._written < FILE_LIMIT:
            return ""
        return f"{self._path} has the {FILE_LIMIT >> 20} MiB that it may have; further output is only shown"

    def display(self, shown: Displayed) -> None:
        """Append a displayed object; over a limit, only its text and the reason."""
        text = shown.data.get(TEXT, "")
        rich = {kind: value for kind, value in shown.data.items() if kind in DISPLAY_TYPES}
        size = sum(map(len, rich.values()))
        why = ""
        with self._lock:
            key = self._keys.get(shown.name, "") if shown.update else ""
            if shown.update and key == REFUSED:  # the first has left a sentence
                return
            if not key:
                self._displayed, self._displayed_bytes = self._displayed + 1, self._displayed_bytes + size
            if rich and size > DISPLAY_LIMIT:
                why = f"it has {size:,} bytes, more than {DISPLAY_LIMIT:,}"
            elif rich and self._displayed > MOST_DISPLAYS and not key:
                why = f"this task has displayed {MOST_DISPLAYS} objects"
            elif rich and self._displayed_bytes > DISPLAYS_LIMIT and not key:
                why = f"this task has displayed more than {DISPLAYS_LIMIT:,} bytes"
            elif rich:
                key = key or f"{self._rank}-{int(time.time() * 1000)}-{self._displayed}"
                if shown.name:
                    self._keys[shown.name] = key
                self._displays.pop(key, None)
                self._displays[key] = shown._replace(data={**rich, TEXT: text[:LONGEST_TEXT]}, key=key)
                return
            if shown.name and not key:
                self._keys[shown.name] = REFUSED
        self.write(f"{text}\n" + (f"[an object is not displayed: {why}]\n" if why else ""))

    def take_displays(self) -> list[Displayed]:
        """Return the objects displayed since the last call, and of updated ones the newest state."""
        with self._lock:
            displays, self._displays = self._displays, {}
        return list(displays.values())

    def keep(self, shown: Displayed) -> None:
        """Write an object into the run's folder; the first error of the disk is noted."""
        try:
            keep(self._path.parent, shown)
        except OSError as error:
            if not self._lacks_display:
                self._lacks_display = True
                why = f"{error.filename or self._path.parent}: {error.strerror or error}"
                self.note(f"a displayed object cannot be kept in {why}. It is shown, and not found later")

    def tail(self) -> str:
        """Return the end of all output taken so far: at most 200,000 characters."""
        return tail_of("".join(self._tail))

    def finish(self) -> None:
        """Close the file; an error of the disk is ignored, because clients have the text."""
        self._keep(self._log.end())
        with suppress(OSError):
            if self._file is not None:
                self._file.close()


def line_after(text: str, remark: str) -> str:
    r"""Return a remark as a line of its own that follows a text.

    >>> line_after("printed", "why"), line_after("printed\n", "why")
    ('\n[why]\n', '[why]\n')
    """
    text = text.removesuffix(USUAL)
    return f"[{remark}]\n" if not text or text.endswith("\n") else f"\n[{remark}]\n"


def tail_of(text: str, limit: int = TAIL_LIMIT) -> str:
    r"""Return the last ``limit`` characters of a text, from the start of a line.

    >>> tail_of("one\ntwo\nthree\n", limit=9)
    'three\n'
    """
    if len(text) < limit:
        return text
    text = text[-limit:]
    return text[text.find("\n") + 1 :]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


class Screen(io.TextIOBase):
    """Stands in for sys.stdout, or for sys.stderr, of a task while a body runs.

    There is one of each for all runs: a logging handler that keeps a reference to it prints to the run that
    is then active, and between runs to the task's log, as does a thread that an earlier run has left behind.
    It cannot be closed.
    """

    output: Output | None = None
    """Of the active run; all screens have the same."""

    def __init__(self, stderr: bool = False) -> None:
        self._stderr = stderr

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has a plain attribute
        """The encoding that libraries ask for."""
        return "utf-8"

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write to the active run, or to the task's log."""
        output = Screen.output
        if output is not None and not left_behind():
            return output.write(text, self._stderr)
        return sys.__stdout__.write(text) if sys.__stdout__ is not None else len(text)

    def close(self) -> None:
        """Do nothing: the next body prints to it as well."""


SCREEN, ERRORS = Screen(), Screen(stderr=True)


@contextmanager
def printing_to(output: Output) -> Iterator[None]:
    """Have everything that this process prints go to ``output``, inside a ``with``."""
    Screen.output = output
    try:
        with redirect_stdout(SCREEN), redirect_stderr(ERRORS):
            yield
    finally:
        Screen.output = None


@contextmanager
def displaying_to(output: Output) -> Iterator[None]:
    """Send the objects that this thread displays (``display``, figures) to ``output``, inside a ``with``."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    publisher = getattr(shell, "display_pub", None)
    if shell is None or publisher is None or not hasattr(publisher, "register_hook"):
        yield
        return
    # In notebooks %matplotlib sets this up; engines do not run it.
    shell.display_formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", _png)

    def hook(message: dict[str, Any]) -> None:
        kind, content = message["header"]["msg_type"], message["content"]
        if kind in ("display_data", "update_display_data"):
            data = {
                one: b64encode(value).decode() if isinstance(value, bytes) else value
                for one, value in content["data"].items()
                if isinstance(value, (str, bytes))
            }
            name = str(content.get("transient", {}).get("display_id", ""))[:LONGEST_NAME]
            output.display(Displayed(data, name, kind == "update_display_data"))

    publisher.register_hook(hook)
    try:
        yield
        inline = sys.modules.get("matplotlib_inline.backend_inline")
        if inline is not None:  # figures that were drawn and not shown, as at the end of a cell
            inline.flush_figures()
    finally:
        publisher.unregister_hook(hook)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()
