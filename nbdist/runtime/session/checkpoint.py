"""Saves and restores variables on the tasks that hold them; the values never pass through the client.

    files = VariableFiles(store, "ps")                       # on a task: answers these requests
    files.handle("checkpoint.copy", request)                 # copies variables, for a later write
    files.handle("checkpoint.write", request)                # writes a shard
    files.handle("checkpoint.check", request)                # finds out whether a restore can succeed
    files.handle("checkpoint.load", request)                 # reads variables
    files.handle("variables.describe", request)              # which are initialised, and for which training
    files.handle("variables.begin_training", request)        # names the training that they belong to

A client (`nbdist.sessions.saver`) sends each request to all tasks at once. It makes the index from the
answers to ``checkpoint.write``; without an index the shards are not a checkpoint.

A restore overwrites variables in place, because compiled programs point to their memory. Therefore
``checkpoint.check`` comes first: it opens all files, and where variables have values that would be lost, it
reads and checks all that is wanted. A variable becomes initialised only after its checksum was right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nbdist.checkpoint.folder import Folder, open_folder
from nbdist.checkpoint.index import Overlap, StoredSlice, plain_name
from nbdist.checkpoint.shard import ShardReader, write_shard
from nbdist.errors import DataLossError, FailedPreconditionError, UnavailableError
from nbdist.graph.backend import Array, to_host
from nbdist.graph.op import Spec
from nbdist.graph.tensor import Variable
from nbdist.runtime.session.program import Containers
from nbdist.runtime.session.store import Cell, Store

COPIES_SECONDS = 60.0  # for which copies wait for the request to write them
KINDS = (
    "checkpoint.copy",
    "checkpoint.write",
    "checkpoint.check",
    "checkpoint.load",
    "variables.describe",
    "variables.begin_training",
)


@dataclass(frozen=True)
class VariablePlace:
    """A variable on a task: its name, container ("" for the default one), device, dtype and shape.

    ``key`` is the name of its tensor in the shard.
    """

    name: str
    container: str
    device: str
    dtype: str
    shape: tuple[int, ...]
    key: str = ""

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> VariablePlace:
        """Return what ``asdict`` described."""
        texts = {name: str(entries[name]) for name in ("name", "container", "device", "dtype", "key")}
        return cls(shape=tuple(int(n) for n in entries["shape"]), **texts)

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        return Spec(self.shape, np.dtype(self.dtype))


def place_of(v: Variable, device: str, key: str = "") -> VariablePlace:
    """Return the place of a variable on a device such as CPU:0."""
    shape = tuple(n or 0 for n in v.shape)
    return VariablePlace(v.name, v.container or "", device, v.dtype.name, shape, key)


@dataclass(frozen=True)
class VariablesState:
    """The state of variables on their tasks.

    ``uninitialized`` has the tasks of those without a value; ``tasks`` are those that hold variables, and
    ``training`` identifies the training that these belong to, if it is one. A task that was replaced has no
    training until the chief records it.
    """

    uninitialized: dict[Variable, str]
    tasks: list[str]
    training: tuple[str, ...]


@dataclass(frozen=True)
class SaveRequest:
    """A request to copy or write variables: the checkpoint's id and folder, and the name of the file."""

    checkpoint: str
    folder: str
    file: str
    prefix: str
    variables: tuple[VariablePlace, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for a message."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> SaveRequest:
        """Return what ``to_dict`` described; DataLossError for anything else."""
        try:
            texts = {name: str(entries[name]) for name in ("checkpoint", "folder", "file", "prefix")}
            plain_name(texts["file"])
            return cls(variables=tuple(map(VariablePlace.from_dict, entries["variables"])), **texts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataLossError(f"not a request to save variables: {error}") from None


@dataclass(frozen=True)
class RestoredPart:
    """A variable to restore, and the stored slices that have its values."""

    place: VariablePlace
    dtype: str
    overlaps: tuple[Overlap, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for a message."""
        parts = [
            [asdict(o.stored), [[s.start, s.stop] for s in o.part], [[s.start, s.stop] for s in o.to]]
            for o in self.overlaps
        ]
        return {"place": asdict(self.place), "dtype": self.dtype, "overlaps": parts}

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> RestoredPart:
        """Return what ``to_dict`` described."""
        overlaps = []
        for stored, part, to in entries["overlaps"]:
            plain_name(stored["file"])
            fields = stored | {"start": tuple(stored["start"]), "shape": tuple(stored["shape"])}
            overlaps.append(
                Overlap(
                    StoredSlice(**fields),
                    tuple(slice(int(a), int(b)) for a, b in part),
                    tuple(slice(int(a), int(b)) for a, b in to),
                )
            )
        return cls(VariablePlace.from_dict(entries["place"]), str(entries["dtype"]), tuple(overlaps))


@dataclass(frozen=True)
class RestoreRequest:
    """A request to check or load variables."""

    checkpoint: str
    folder: str
    prefix: str
    parts: tuple[RestoredPart, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for a message."""
        parts = [part.to_dict() for part in self.parts]
        return {"checkpoint": self.checkpoint, "folder": self.folder, "prefix": self.prefix, "parts": parts}

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> RestoreRequest:
        """Return what ``to_dict`` described; DataLossError for anything else."""
        try:
            texts = {name: str(entries[name]) for name in ("checkpoint", "folder", "prefix")}
            return cls(parts=tuple(map(RestoredPart.from_dict, entries["parts"])), **texts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataLossError(f"not a request to restore variables: {error}") from None


class VariableFiles:
    """Answers a client's requests to save and restore the variables in a task's store; thread-safe.

    ``job`` is the container of variables that name none.
    """

    def __init__(self, store: Store, job: str) -> None:
        self._store, self._job = store, job
        self._copies: dict[str, dict[str, Array]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def handle(self, kind: str, entries: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; takes as long as the work does."""
        if kind == "checkpoint.copy":
            self._copy(SaveRequest.from_dict(entries))
            return {}
        if kind == "checkpoint.write":
            return self._write(SaveRequest.from_dict(entries))
        if kind == "variables.describe":
            return self._describe(entries)
        if kind == "variables.begin_training":
            self._store.training = tuple(map(str, entries["training"]))
            return {}
        request = RestoreRequest.from_dict(entries)
        if kind == "checkpoint.check":
            self._check(request)
        else:
            self._load(request)
        return {}

    def _describe(self, entries: dict[str, Any]) -> dict[str, Any]:
        """Return which variables are not initialised, and which training they belong to."""
        places = map(VariablePlace.from_dict, entries["variables"])
        cells = [(place.name, self._find(place, str(entries["prefix"]))) for place in places]
        missing = [name for name, cell in cells if cell is None or not cell.ready]
        return {"uninitialized": missing, "training": list(self._store.training)}

    def drop(self, file: str) -> None:
        """Forget copies that were not written."""
        with self._lock:
            if self._copies.pop(file, None) is not None:
                self._store.give_back(file)

    def close(self) -> None:
        """End a write that is in progress, with an error."""
        self._closed = True

    def _copy(self, request: SaveRequest) -> None:
        cells = self._cells(request)
        total = sum(int(cell.array.nbytes) for cell in cells.values())
        self._store.take(request.file, total, f"copies of {len(cells)} variables to be saved")
        try:
            copies = {key: _copied(cell) for key, cell in cells.items()}
        except BaseException:
            self._store.give_back(request.file)
            raise
        with self._lock:
            self._copies[request.file] = copies

    def _write(self, request: SaveRequest) -> dict[str, Any]:
        with self._lock:
            copies = self._copies.get(request.file)
        arrays = copies
        if arrays is None:
            # A variable with a lock is copied under it; others are copied in chunks while they are written.
            arrays = {
                key: _copied(cell) if cell.lock is not None else cell.array
                for key, cell in self._cells(request).items()
            }
        try:
            written = write_shard(
                open_folder(request.folder),
                request.file,
                arrays,
                request.checkpoint,
                stable=copies is not None,
                check=self._check_open,
            )
        finally:
            self.drop(request.file)
        return {"size": written.size, "sums": written.sums}

    def _check(self, request: RestoreRequest) -> None:
        readers = _Readers(open_folder(request.folder), request.checkpoint)
        with readers:
            for part in request.parts:
                cell = self._find(part.place, request.prefix)
                for overlap in part.overlaps:
                    reader = readers.open(overlap.stored.file)
                    if cell is not None and cell.ready:
                        _read(reader, part, overlap, None)
                        self._check_open()

    def _load(self, request: RestoreRequest) -> None:
        with _Readers(open_folder(request.folder), request.checkpoint) as readers:
            for part in request.parts:
                place = part.place
                container = self._container(place, request.prefix)
                cell = self._store.cell(container, place.name, place.spec, place.device)
                with cell.lock or nullcontext():
                    cell.ready = False
                    cell.write(partial(self._fill, readers, part))
                    cell.ready = True

    def _fill(self, readers: _Readers, part: RestoredPart, into: Array) -> None:
        for overlap in part.overlaps:
            _read(readers.open(overlap.stored.file), part, overlap, into)
            self._check_open()

    def _cells(self, request: SaveRequest) -> dict[str, Cell]:
        cells: dict[str, Cell] = {}
        for place in request.variables:
            cell = self._find(place, request.prefix)
            if cell is None or not cell.ready:
                raise FailedPreconditionError(
                    f"variable {place.name!r} cannot be saved: it is not initialised in container "
                    f"{self._container(place, request.prefix)!r}; run global_variables_initializer() first"
                )
            cells[place.key] = cell
        return cells

    def _find(self, place: VariablePlace, prefix: str) -> Cell | None:
        return self._store.find(self._container(place, prefix), place.name, place.device)

    def _container(self, place: VariablePlace, prefix: str) -> str:
        return Containers(self._job, prefix).named(place.container)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the task's Server was closed while a checkpoint was written or read")


def _copied(cell: Cell) -> Array:
    with cell.lock or nullcontext():
        host = to_host(cell.array)
        return host.copy() if host is cell.array else host


def _read(reader: ShardReader, part: RestoredPart, overlap: Overlap, into: Array | None) -> None:
    stored, dtype = overlap.stored, np.dtype(part.dtype)
    reader.read(stored.name, stored.shape, dtype, stored.crc32, into, overlap.part, overlap.to)


class _Readers:
    """The shards that one request reads, each opened once."""

    def __init__(self, folder: Folder, checkpoint: str) -> None:
        self._folder, self._checkpoint = folder, checkpoint
        self._open: dict[str, ShardReader] = {}

    def open(self, file: str) -> ShardReader:
        if file not in self._open:
            self._open[file] = ShardReader(self._folder, file, self._checkpoint)
        return self._open[file]

    def __enter__(self) -> _Readers:
        return self

    def __exit__(self, *error: object) -> None:
        for reader in self._open.values():
            reader.close()


# A client's side: one request to several tasks at once.


PendingRequest: TypeAlias = "Future[dict[str, Any]]"
"""A request that a task, or a thread of this process, is answering."""


def start_work(work: Callable[[], dict[str, Any]]) -> PendingRequest:
    """Answer a request on a thread of its own, which the end of the process does not wait for."""
    pending: PendingRequest = Future()

    def run() -> None:
        try:
            pending.set_result(work())
        except BaseException as error:
            pending.set_exception(error)

    threading.Thread(target=run, name="nbdist checkpoint", daemon=True).start()
    return pending


def gather(pending: Sequence[PendingRequest]) -> list[dict[str, Any]]:
    """Wait for all answers, then return them, or raise the first error."""
    while wait(pending, 1.0).not_done:  # an interrupt arrives between two waits
        pass
    return [one.result() for one in pending]
