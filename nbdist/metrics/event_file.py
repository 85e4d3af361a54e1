"""TensorBoard's event files: a task's points and summaries.

    run folder/tensorboard/worker-0/events.out.tfevents.<time>.<host>
    run folder/tensorboard/worker-0/validation/events.out.tfevents....      "val_loss" as "loss", as in Keras

    file = record*, the first one an Event with "brain.Event:2"; see `nbdist.record_frame`

Look at it with ``tensorboard --logdir <run folder>/tensorboard``.

The messages (Event, Summary, ...) are tensorboardX's, with protobuf below them. Its writer is not used, nor
that of TensorBoard: after an error of the disk the thread of the one ends, and its full queue then blocks the
training; that of the other raises the error in the training. Ours holds back what a full disk does not take.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from nbdist.metrics.log import Appending, Points
from nbdist.metrics.run_folder import slug
from nbdist.record_frame import framed

FOLDER = "tensorboard"
VALIDATION = "val_"
EVERY = 1.0  # seconds between two times of writing; TensorBoard itself looks every few seconds


class EventFiles:
    """Writes one task's points for TensorBoard: training, and validation as a run of its own.

    - ``folder``: made with mode 0700 when there is something to write
    - ``say``: is called once with an error of the disk
    - ``rejoins``: whether an earlier process of the task may have left event files, of which TensorBoard
      drops what they have from this one's first step on
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        rejoins: bool = False,
    ) -> None:
        self._folder, self._say, self._clock, self._rejoins = folder, say, clock, rejoins
        self._files: dict[bool, EventFile] = {}
        self._opening = threading.Lock()
        self._waiting: list[Points] = []
        self._names: list[str] = []
        self._due = clock()

    def append(self, names: list[str], points: Points) -> None:
        """Take points; their series are indices into ``names``, which only grows."""
        self._names = names
        self._waiting.append(points.copy())
        self.retry()

    def add(self, event: bytes, step: int) -> None:
        """Take a serialized event of a step of the training; any thread may."""
        self._file(False, step if self._rejoins else None).add(event)

    def retry(self) -> None:
        """Write what waits, if it is time."""
        if self._clock() >= self._due:
            self._due = self._clock() + EVERY
            self._write()

    def close(self) -> None:
        """Write what waits, and close."""
        self._write()
        for file in self._files.values():
            file.close()

    def missing(self) -> dict[Path, int]:
        """Try once more, and return how many points each file still lacks."""
        self._write()
        return {file.path: file.missing() for file in self._files.values()}

    @property
    def lost(self) -> int:
        """How many points the disk had no room for."""
        return sum(file.lost for file in self._files.values())

    def _write(self) -> None:
        if self._waiting:
            points = np.concatenate(self._waiting)
            self._waiting.clear()
            # Validation has the name of what it validates.
            tags = [name.removeprefix(VALIDATION) or name for name in self._names]
            validates = np.array([tag != name for tag, name in zip(tags, self._names, strict=True)])
            for kind in (False, True):
                chosen = points[validates[points["series"]] == kind]
                if len(chosen):
                    file = self._file(kind, int(chosen["step"].min()) if self._rejoins else None)
                    file.keep(b"".join(map(framed, events(tags, chosen))), len(chosen))
        for file in list(self._files.values()):
            file.retry()

    def _file(self, validation: bool, first_step: int | None) -> EventFile:
        with self._opening:
            if validation not in self._files:
                folder = self._folder / "validation" if validation else self._folder
                self._files[validation] = EventFile(folder, self._say, purge_step=first_step)
            return self._files[validation]


class EventFile(Appending):
    """A file of TensorBoard's events that grows; ``folder`` is made with mode 0700. Any thread may use it.

    With ``purge_step`` TensorBoard drops what earlier files of the folder have from that step on.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], purge_step: int | None = None) -> None:
        now = time.time()
        # TensorBoard reads the files of a folder in the order of their names: those of one second need more.
        super().__init__(folder / f"events.out.tfevents.{now:017.6f}.{socket.gethostname()}", say)
        self._lock = threading.RLock()
        self.keep(framed(protos().Event(wall_time=now, file_version="brain.Event:2").SerializeToString()))
        if purge_step is not None:
            self.keep(framed(purge(purge_step)))

    def add(self, event: bytes, points: int = 1) -> None:
        """Take a serialized event; it is written at the next `retry`."""
        self.keep(framed(event), points)

    def keep(self, data: bytes, points: int = 0) -> None:
        """Hold back records."""
        with self._lock:
            super().keep(data, points)

    def retry(self) -> None:
        """Write what is held back; the folder is made when there is something to go into it."""
        with self._lock:
            try:
                make_private(self.path.parent)
            except OSError as error:
                self._trouble(error)
                return
            super().retry()

    def close(self) -> None:
        """Write what is held back, bring it to the disk and close."""
        with self._lock:
            super().close()


@contextmanager
def without_own_code(package: str) -> Iterator[None]:
    """Have modules of a package imported without running the package's ``__init__``, inside a ``with``."""
    spec = importlib.util.find_spec(package) if package not in sys.modules else None
    if spec is None:
        yield
        return
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[package]


@cache
def protos() -> Any:
    """Return the classes of the messages, of tensorboardX; it is imported at the first event."""
    with without_own_code("tensorboardX"):  # which would import PyTorch (seconds, 200 MB) and boto3
        from tensorboardX.proto import (
            api_pb2,
            attr_value_pb2,
            event_pb2,
            graph_pb2,
            node_def_pb2,
            plugin_hparams_pb2,
            plugin_text_pb2,
            summary_pb2,
            tensor_pb2,
            tensor_shape_pb2,
            versions_pb2,
        )

    return SimpleNamespace(
        Event=event_pb2.Event,
        SessionLog=event_pb2.SessionLog,
        GraphDef=graph_pb2.GraphDef,
        Node=node_def_pb2.NodeDef,
        Attribute=attr_value_pb2.AttrValue,
        Versions=versions_pb2.VersionDef,
        Summary=summary_pb2.Summary,
        Metadata=summary_pb2.SummaryMetadata,
        Histogram=summary_pb2.HistogramProto,
        Tensor=tensor_pb2.TensorProto,
        Shape=tensor_shape_pb2.TensorShapeProto,
        TextData=plugin_text_pb2.TextPluginData,
        hparams=plugin_hparams_pb2,
        experiment=api_pb2,
    )


def event(values: Iterable[Any], step: int, wall_time: float) -> bytes:
    """Return a serialized event with the values (``Summary.Value``) of one step."""
    summary = protos().Summary(value=values)
    found: bytes = protos().Event(wall_time=wall_time, step=step, summary=summary).SerializeToString()
    return found


def purge(step: int) -> bytes:
    """Return the event of a training that begins again: TensorBoard drops earlier ones from ``step`` on."""
    log = protos().SessionLog(status=protos().SessionLog.START)
    found: bytes = protos().Event(wall_time=time.time(), step=step, session_log=log).SerializeToString()
    return found


def events(tags: list[str], points: Points) -> Iterable[bytes]:
    """Yield the events of points, whose series are indices into ``tags``, in their order."""
    with np.errstate(over="ignore", invalid="ignore"):  # beyond single precision is inf
        values = points["value"].astype(np.float32).tolist()
    message = protos().Event()  # one for all: a new one each time takes twice as long
    written = message.summary.value.add()
    columns = points["series"].tolist(), points["step"].tolist(), values, points["time"].tolist()
    for series, step, number, at in zip(*columns, strict=True):
        message.wall_time, message.step = at, step
        written.tag, written.simple_value = tags[series], number
        yield message.SerializeToString()


def events_folder(run_folder: Path, task: str) -> Path:
    """Return where a task's, or a tower's, event files stand in a run folder.

    >>> events_folder(Path("run"), "/job:worker/task:1").as_posix()
    'run/tensorboard/worker-1'
    """
    parts = [part.partition(":")[2] or part for part in task.strip("/").split("/")]
    return run_folder / FOLDER / slug("-".join(parts))


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are not there, with mode 0700."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
