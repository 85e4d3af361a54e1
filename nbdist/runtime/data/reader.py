"""`PassReader`: a worker's side of the data service. Its passes are made by data tasks, or here without them.

    reader = PassReader(dataset, source)
    served = with_passes(dataset, reader.read)      # equals `dataset`; its passes are made elsewhere

Element n of a pass is made by data task n modulo their number, if the work can be divided (see
`nbdist.data.parts`); else one task makes the whole pass. A worker knows the position of its pass: how often
each shuffle had been opened when it began, and how many elements it has got. If a data task is lost it
therefore opens the pass at that position on the others, or makes the rest itself if none is left: no element
is lost or repeated. Checkpoints have the same position whether data tasks read or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbdist.data.blocks import Block, Pass
from nbdist.data.dataset import Dataset
from nbdist.data.encoding import ALIGNMENT, decode
from nbdist.data.parts import divides, first_skipped, part_of
from nbdist.data.processes import rebuilt_error
from nbdist.data.steps import tokens
from nbdist.errors import DataLossError, NbdistError, NotFoundError, UnavailableError
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Segment

OPEN_SECONDS = 60.0  # for a data task to answer: one that computes in a library may be late
WAIT_SECONDS = 0.5  # between two checks of whether the run is to end
MAPPINGS = 16  # segments of a stream that stay mapped


@dataclass(frozen=True)
class Source:
    """What a `PassReader` asks of its worker.

    - ``tasks()``: the data tasks that are not known to be lost
    - ``connect(task)``: a connection of its own to one of them
    - ``deliver(task)``: sends it the dataset
    - ``host``: the identity of this worker's host, or "" if no shared memory is to be used
    - ``check()``: raises if the run is to end
    - ``note(text)``: shows a text to the user
    - ``run``, ``dataset``: the names of the run and of the dataset on data tasks
    - ``group``: a name that readers have in common that may share a pass
    - ``index``: which of the tasks makes a pass that cannot be divided, modulo their number
    - ``lost``: the incarnations of data tasks that were lost; readers of one run share and extend it
    """

    tasks: Callable[[], Sequence[TaskInfo]]
    connect: Callable[[TaskInfo], Peer]
    deliver: Callable[[TaskInfo], object]
    host: str
    check: Callable[[], object]
    note: Callable[[str], object]
    run: str
    dataset: str
    group: str = ""
    index: int = 0
    lost: set[int] = field(default_factory=set)


class LostTask(Exception):
    """A data task cannot be read from any more."""

    def __init__(self, task: TaskInfo, reason: str) -> None:
        super().__init__(reason)
        self.task = task


class PassReader:
    """Reads the passes over one dataset from data tasks."""

    def __init__(self, dataset: Dataset, source: Source) -> None:
        self._dataset, self._source = dataset, source
        self._tokens = tokens(dataset.steps)
        self._divides = divides(dataset)
        seeds = [step[1:] for step in dataset.steps if step[0] == "with_seed"]
        self._seed = list(seeds[-1]) if seeds else []

    def read(self, run: Pass) -> Iterator[Block]:
        """Yield the elements of a pass: the source of a dataset."""
        opened = [run.openings.get(token, run.first) for token in self._tokens]
        number, skipped = 0, run.skipped.count
        while tasks := self._living():
            try:
                for element in self._from_tasks(tasks, opened, number, skipped, run):
                    number += 1
                    yield [element]
                return
            except LostTask as lost:
                self._source.lost.add(lost.task.incarnation)
                left = self._living()
                names = ", ".join(task.name for task in left) or "this worker itself"
                self._source.note(
                    f"{lost.task.name} (pid {lost.task.pid}), which read for the workers, was lost: {lost}; "
                    f"{names} continue{'s' * (len(left) < 2)} after element {number} of the pass"
                )
        yield from self._here(opened, number, skipped, run)

    def _living(self) -> list[TaskInfo]:
        return [task for task in self._source.tasks() if task.incarnation not in self._source.lost]

    def _here(self, opened: Sequence[int], first: int, skipped: int, run: Pass) -> Iterator[Block]:
        """Yield the elements from number ``first`` on, which this process makes."""
        rest = part_of(self._dataset, 1, 0, first)
        rest.reopen(opened)
        with closing(rest.iterate(reuse_buffers=run.buffers == 1)) as elements:  # type: ignore[type-var]  # generators close
            for element in elements:
                self._note_position(run, rest.opened, skipped + rest.skipped, first_skipped(rest))
                yield [element]
        self._note_position(run, rest.opened, skipped + rest.skipped, first_skipped(rest))

    def _from_tasks(
        self, tasks: Sequence[TaskInfo], opened: Sequence[int], first: int, skipped: int, run: Pass
    ) -> Iterator[Any]:
        if not self._divides:
            tasks = [tasks[self._source.index % len(tasks)]]
        streams: list[Stream] = []

        def close() -> None:
            for stream in streams:
                stream.close()

        with run.resources.held(close):
            for index, task in enumerate(tasks):
                request = {
                    "run": self._source.run,
                    "dataset": self._source.dataset,
                    "group": self._source.group,
                    "opened": list(opened),
                    "seed": self._seed,
                    "parts": len(tasks),
                    "index": index,
                    "first": first,
                    "shared": task.host == self._source.host,
                }
                streams.append(Stream(task, self._source, request))
            before: Stream | None = None
            for number in itertools.count(first):
                stream = streams[number % len(streams)]
                if before is not None:
                    before.take()
                frame = stream.next()
                meta = frame.meta
                self._note_position(run, meta["opened"], skipped + meta["skipped"], str(meta["reason"]))
                if frame.kind == "data.end":
                    if "error" in meta:
                        raise rebuilt_error(*meta["error"])
                    return
                yield stream.element(frame, copy=run.buffers != 1)
                before = stream

    def _note_position(self, run: Pass, opened: Sequence[int], skipped: int, reason: str) -> None:
        """Record how often each shuffle is open now, and how many records were left out."""
        run.openings.update(zip(self._tokens, opened, strict=True))
        run.skipped.count = skipped
        run.skipped.first = run.skipped.first or reason


class Stream:
    """The elements of a pass that one data task makes."""

    def __init__(self, task: TaskInfo, source: Source, meta: dict[str, Any]) -> None:
        self._task, self._source = task, source
        self._mapped: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._peer = source.connect(task)
        try:
            self._peer.wait_connected()  # a host that was lost never answers
            try:
                self._peer.call("data.open", meta, timeout=OPEN_SECONDS)
            except NotFoundError:
                source.deliver(task)
                self._peer.call("data.open", meta, timeout=OPEN_SECONDS)
        except UnavailableError as error:
            self._peer.close()
            raise LostTask(task, str(error)) from None
        except BaseException:
            self._peer.close()
            raise

    def next(self) -> Frame:
        """Return the message with the next element, or with the end."""
        while True:
            self._source.check()
            try:
                frame = self._peer.receive(WAIT_SECONDS)
            except UnavailableError as error:
                raise LostTask(self._task, str(error)) from None
            if frame is not None and frame.kind in ("data.element", "data.end"):
                return frame

    def element(self, frame: Frame, *, copy: bool) -> Any:
        """Return the element in a message: copied, or as views that are valid until :meth:`take`."""
        head, size = frame.meta["head"], frame.meta["size"]
        memory = self._memory(frame)
        start = -(-head // ALIGNMENT) * ALIGNMENT
        if not 0 <= head <= start <= size <= memory.nbytes:
            raise DataLossError(f"{self._task.name} sent an element of {size} bytes in {memory.nbytes}")
        return decode(bytes(memory[:head]), memory[start:size], copy=copy)

    def take(self) -> None:
        """Say that the oldest element is no longer in use."""
        with suppress(UnavailableError):  # the next receive says so
            self._peer.send("data.take")

    def close(self) -> None:
        """End the pass for this worker; may be called twice."""
        with suppress(NbdistError):
            self._peer.send("data.close")
        self._peer.close(linger=1.0)
        self._mapped.clear()

    def _memory(self, frame: Frame) -> memoryview:
        name = frame.meta.get("slot")
        if name is None:
            return frame.arrays[0].data
        if name not in self._mapped:
            if len(self._mapped) == MAPPINGS:
                self._mapped.clear()
            try:
                self._mapped[name] = Segment.open(name, writable=False).bytes
            except NotFoundError as error:
                raise LostTask(self._task, str(error)) from None
        return self._mapped[name].data
