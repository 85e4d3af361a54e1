"""`DataService`: a data task makes passes over datasets, and workers read them.

    worker                                    data task
    data.open  run, dataset, position ──────► a pass, made on a thread of its own
         ◄───────────────────────────────────  data.element: the next element, pushed as soon as it is made
    data.take  pass ────────────────────────► the oldest element is no longer in use: its memory is free
         ◄───────────────────────────────────  data.end: the pass is over, or what it raised
    data.close pass ────────────────────────► the worker reads no more of it

The elements of a pass follow from its dataset, the counts of openings of its shuffles, the seed and the part
that is asked for, whatever task makes it. Replicas that make steps together (one ``group``) share a pass:
each element is made once, and lies once in shared memory, for all workers of the host. Others have passes of
their own, so that none waits for a slower one. A pass keeps at most `READ_AHEAD` elements that its slowest
reader has not used, which bounds its memory; a reader that dies or closes it no longer counts. One that asks
for a pass with first elements that are gone gets a pass of its own.

Elements are encoded as in `nbdist.data.encoding`: nothing is pickled. Datasets have functions, and arrive by
ipyparallel's channel, which carries code (`nbdist.run.data_reader`). A task without room for shared memory,
or a worker on another host, gets the same bytes over the socket.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nbdist.data.dataset import Dataset
from nbdist.data.encoding import ALIGNMENT, encode, write
from nbdist.data.parts import first_skipped, part_of
from nbdist.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError, UnavailableError
from nbdist.runtime.server import Handler, Server
from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Segment

READ_AHEAD = 4  # elements that a pass keeps at most, which its slowest reader has not used
LOOK_SECONDS = 1.0  # between two messages to readers, which find those that have gone

PassKey: TypeAlias = tuple[str, str, str, tuple[int, ...], tuple[int, ...], int, int, int]
"""Run, dataset, group of its readers, openings, seed; parts, index and first, as for `part_of`."""


class DataService:
    """Makes passes for workers. Handlers run on the Server's thread; ``prefix`` begins names of segments."""

    def __init__(self, server: Server, prefix: str) -> None:
        self._server, self._prefix = server, prefix
        self._datasets: dict[tuple[str, str], Dataset] = {}
        self._passes: list[ServedPass] = []
        self._stop_looking: Callable[[], None] | None = None
        handlers: dict[str, Handler] = {
            "data.open": self._open,
            "data.take": self._take,
            "data.close": self._close,
        }
        for kind, handler in handlers.items():
            server.on(kind, handler)

    def add(self, run: str, key: str, dataset: Dataset) -> None:
        """Keep a dataset until its run is over. May be called on any thread."""
        self._datasets.setdefault((run, key), dataset)

    def drop_run(self, run: str) -> None:
        """End the passes of a run and drop its datasets."""
        for one in [one for one in self._passes if one.key[0] == run]:
            self._end(one)
        for known in [known for known in self._datasets if known[0] == run]:
            del self._datasets[known]

    def close(self) -> None:
        """End all passes."""
        for one in list(self._passes):
            self._end(one)
        self._datasets.clear()

    def _open(self, frame: Frame, sender: Caller) -> Frame:
        key, shared = _key_of(frame.meta), bool(frame.meta["shared"])
        dataset = self._datasets.get(key[:2])
        if dataset is None:
            raise NotFoundError(f"{self._server.name} does not have dataset {key[1]} of run {key[0]}")
        found = next((one for one in self._passes if one.key == key and one.can_join), None)
        if found is None:
            found = ServedPass(key, dataset, self._prefix, self._server.name, self._server.post)
            self._passes.append(found)
        found.readers.append(Reader(sender, shared))
        if self._stop_looking is None:
            self._stop_looking = self._server.every(LOOK_SECONDS, self._look)
        self._server.post(found.send)  # after the answer
        return Frame("data.opened")

    def _take(self, frame: Frame, sender: Caller) -> None:
        for one in self._passes:
            one.take(sender)

    def _close(self, frame: Frame, sender: Caller) -> None:
        for one in list(self._passes):
            if one.leave(sender):
                self._end(one)

    def _look(self) -> None:
        """Find the readers that have gone, and end the passes that no worker reads."""
        for one in list(self._passes):
            one.look()
            if not one.readers:
                self._end(one)

    def _end(self, one: ServedPass) -> None:
        one.stop()
        with suppress(ValueError):  # `close` is called on another thread than that of the readers' messages
            self._passes.remove(one)
        stop_looking = None if self._passes else self._stop_looking
        if stop_looking is not None:
            self._stop_looking = None
            stop_looking()


def _key_of(meta: dict[str, Any]) -> PassKey:
    """Return the pass that a request names; InvalidArgumentError for anything else."""
    numbers = [*meta["opened"], *meta["seed"], *(meta[name] for name in ("parts", "index", "first"))]
    if not all(type(one) is int and one >= 0 for one in numbers) or meta["index"] >= meta["parts"]:
        raise InvalidArgumentError(
            f"a pass has numbers of 0 or more, and a part of several, not {meta!r:.200}"
        )
    opened, seed = tuple(meta["opened"]), tuple(meta["seed"])
    names = str(meta["run"]), str(meta["dataset"]), str(meta["group"])
    return *names, opened, seed, meta["parts"], meta["index"], meta["first"]


@dataclass
class Made:
    """An element of a pass in the memory of a slot, and where the pass was when it was made."""

    slot: Slot
    head: int
    size: int
    position: dict[str, Any]


@dataclass
class Reader:
    """A worker's connection: how many elements it was sent, and how many it no longer uses.

    ``shared`` says whether it can map this host's memory.
    """

    caller: Caller
    shared: bool
    sent: int = 0
    taken: int = 0
    ended: bool = False


class ServedPass:
    """One pass that a thread makes for its ``readers``. All but ``_make`` runs on the Server's thread."""

    def __init__(
        self,
        key: PassKey,
        dataset: Dataset,
        prefix: str,
        task: str,
        post: Callable[[Callable[[], object]], None],
    ) -> None:
        *_, opened, seed, parts, index, first = self.key = key
        self._dataset = part_of(dataset.with_seed(*seed), parts, index, first)
        self._dataset.reopen(opened)
        self._prefix, self._task, self._post = prefix, task, post
        self._part = parts > 1 or first > 0
        self.readers: list[Reader] = []
        self._changed = threading.Condition()
        self._made: dict[int, Made] = {}  # by number in this pass; without those that all readers have taken
        self._count = 0
        self._free: list[Slot] = []
        self._over: dict[str, Any] | None = None
        self._stopped = False
        threading.Thread(target=self._make, name="nbdist-data-service", daemon=True).start()

    @property
    def can_join(self) -> bool:
        """Whether a new reader finds all elements from the first one on."""
        with self._changed:
            return not self._stopped and len(self._made) == self._count

    def take(self, caller: Caller) -> None:
        """Record that a reader no longer uses its oldest element."""
        for reader in self.readers:
            if reader.caller == caller:
                reader.taken += 1
                self._give_back()

    def leave(self, caller: Caller) -> bool:
        """Drop a reader; return whether it was the last one."""
        before = len(self.readers)
        self.readers = [one for one in self.readers if one.caller != caller]
        self._give_back()
        return bool(before) and not self.readers

    def look(self) -> None:
        """Drop the readers that are no longer connected."""
        for reader in list(self.readers):
            self._push(reader, Frame("data.alive"))
        self._give_back()

    def stop(self) -> None:
        """End the pass; its thread ends after the element that it is making."""
        with self._changed:
            self._stopped = True
            self.readers.clear()
            self._changed.notify_all()

    def send(self) -> None:
        """Send every reader what it has not been sent."""
        for reader in list(self.readers):
            while reader in self.readers and reader.sent < self._count:
                made = self._made[reader.sent]
                reader.sent += 1
                self._push(reader, made_frame(made, reader.shared))
            if self._over is not None and not reader.ended and reader in self.readers:
                reader.ended = True
                self._push(reader, Frame("data.end", self._over))

    def _push(self, reader: Reader, frame: Frame) -> None:
        try:
            reader.caller.push(frame)
        except UnavailableError:  # its process has ended, or does not read
            self.readers = [one for one in self.readers if one is not reader]

    def _give_back(self) -> None:
        """Reuse the memory of elements that all readers have taken."""
        with self._changed:
            taken = min((reader.taken for reader in self.readers), default=0)
            for number in [number for number in self._made if number < taken]:
                self._free.append(self._made.pop(number).slot)
            self._changed.notify_all()

    # On the pass's own thread.

    def _make(self) -> None:
        over: dict[str, Any] = {}
        try:
            with closing(self._dataset.iterate(reuse_buffers=True)) as elements:  # type: ignore[type-var]  # generators close
                for element in elements:
                    slot = self._room()
                    if slot is None:
                        break
                    head, size = slot.store(element)
                    with self._changed:
                        self._made[self._count] = Made(slot, head, size, self._position())
                        self._count += 1
                    self._post(self.send)
        except Exception as error:
            over["error"] = self._described(error)
        over |= self._position()
        with self._changed:
            self._over = over
            self._post(self.send)
            self._changed.wait_for(lambda: self._stopped)  # its readers still use the last elements
            for slot in (*self._free, *(made.slot for made in self._made.values())):
                slot.close()

    def _described(self, error: Exception) -> list[str]:
        """Return what was raised, for the workers: its class, its text, where it was raised."""
        if self._part:
            error.add_note(
                f"{self._task} makes a part of the pass: numbers of elements are those in its part"
            )
        error.add_note(f"on {self._task}, which reads for the workers (--data service)")
        return [type(error).__name__, str(error), traceback.format_exc()[-8000:]]

    def _room(self) -> Slot | None:
        """Wait for a free slot; None once no worker reads the pass."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._made) < READ_AHEAD)
            if self._stopped:
                return None
            return self._free.pop() if self._free else Slot(self._prefix)

    def _position(self) -> dict[str, Any]:
        return {
            "opened": list(self._dataset.opened),
            "skipped": self._dataset.skipped,
            "reason": first_skipped(self._dataset)[:500],
        }


class Slot:
    """Memory for one element, which grows: a segment, or memory of this process where a host has no room."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._segment: Segment | None = None
        self.memory: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)

    @property
    def name(self) -> str:
        """The segment's name; "" if it has none."""
        return "" if self._segment is None else self._segment.name

    def store(self, element: Any) -> tuple[int, int]:
        """Write an element; return the bytes of its head, and of all."""
        head, arrays, size = encode(element)
        start = -(-len(head) // ALIGNMENT) * ALIGNMENT
        total = start + size
        if len(self.memory) < total:
            self.close()
            room = total + total // 4
            try:
                self._segment = Segment.create(self._prefix, room)
                self.memory = self._segment.bytes
            except ResourceExhaustedError:
                self.memory = np.empty(room, np.uint8)
        memory = self.memory.data
        memory[: len(head)] = head
        write(memory[start:], arrays)
        return len(head), total

    def close(self) -> None:
        """Remove the segment; a worker's mapping stays valid."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self.memory = np.empty(0, np.uint8)


def made_frame(made: Made, shared: bool) -> Frame:
    """Return the message with an element: where it lies in shared memory, or its bytes."""
    meta = {"head": made.head, "size": made.size, **made.position}
    if shared and made.slot.name:
        return Frame("data.element", {**meta, "slot": made.slot.name})
    return Frame("data.element", meta, (made.slot.memory[: made.size],))
