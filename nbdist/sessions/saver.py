"""`Saver`: writes a session's variables to sharded checkpoints, and restores them; and what a folder has.

    saver = Saver(max_to_keep=5)
    path = saver.save(session, "runs/model.ckpt", global_step)      # runs/model.ckpt-100
    saver.restore(session, latest_checkpoint("runs"))

A checkpoint consists of one shard per task, which that task writes from its variables' memory
(`nbdist.runtime.session.checkpoint`), and of an index, which the client writes last. The order of events
makes a crash at any point harmless:

1. Shards are written under names that are used once (they contain the checkpoint's random id), with fsync.
2. The index replaces an earlier one of the same path. From here on the checkpoint exists.
3. The indexes of checkpoints beyond ``max_to_keep`` are deleted. Until then the state file lists them, so
   that a later Saver deletes them after a crash.
4. The state file, which lists the checkpoints, is replaced.
5. Shards that no index refers to are deleted.

Source of the interface: TensorFlow's tf.compat.v1.train.Saver.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nbdist.checkpoint.folder import DRAFT, Folder, drafts_in_progress, open_folder, split_path
from nbdist.checkpoint.index import MOST_PARTS, SUFFIX, Index, StoredSlice, StoredTensor, dtype_of, overlaps
from nbdist.checkpoint.shard import ShardReader, write_shard
from nbdist.checkpoint.state import (
    LATEST_FILENAME,
    CheckpointState,
    Retention,
    newest,
    read_index,
    read_state,
    series_of,
)
from nbdist.checkpoint.tensor_file import dtype_name
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
    ResourceExhaustedError,
    nearest,
)
from nbdist.graph.backend import Array
from nbdist.graph.op import show
from nbdist.graph.partitioned import PartitionedVariable
from nbdist.graph.tensor import ShardSlice, Tensor, Variable
from nbdist.graph.variables import global_variables
from nbdist.runtime.session.checkpoint import (
    PendingRequest,
    RestoredPart,
    RestoreRequest,
    SaveRequest,
    VariablePlace,
    gather,
    place_of,
    start_work,
)
from nbdist.runtime.session.session import Session

__all__ = [
    "CheckpointState",
    "Saver",
    "checkpoint_state",
    "latest_checkpoint",
    "list_variables",
    "load_variable",
]
SHARD = re.compile(r"(?P<base>.+)\.(?P<id>[0-9a-f]{12})\.\d+-of-\d+\.safetensors")
Path = str | os.PathLike[str]


class Saver:
    """Saves and restores variables of a graph; every task reads and writes those that it holds.

    - ``var_list``: variables or partitioned variables of one graph, or a dict of them by their names in the
      checkpoint; None for all global variables that the default graph has now. A shard of a partitioned
      variable is saved as a part of the whole
    - ``sharded``: whether each task writes a file of its own. If not, the client fetches the values, one
      variable at a time, and writes one file
    - ``max_to_keep``: how many checkpoints stay, at least 1; 0 or None keeps all
    - ``keep_checkpoint_every_n_hours``: hours above 0; of the checkpoints that ``max_to_keep`` would delete,
      one is kept for good after each of these periods
    - ``restore_sequentially``, ``name``: accepted as in TensorFlow, without an effect

    Raises InvalidArgumentError for other arguments, and for a graph without variables.

    >>> import tempfile
    >>> from nbdist.graph.scopes import Graph
    >>> from nbdist.runtime.session.session import Session
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Graph().as_default():
    ...     w = Variable(np.zeros(2), name="w")
    ...     saver = Saver()
    ...     with Session() as session:
    ...         _ = session.run(w.initializer), session.run(w.assign([1.0, 2.0]))
    ...         path = saver.save(session, folder.name + "/model.ckpt", global_step=7)
    ...     with Session() as session:                  # or after a restart, or in another graph
    ...         saver.restore(session, path)
    ...         session.run(w)
    array([1., 2.])
    >>> list_variables(latest_checkpoint(folder.name))
    [('w', (2,))]
    >>> folder.cleanup()
    """

    def __init__(
        self,
        var_list: Sequence[Any] | Mapping[str, Any] | None = None,
        sharded: bool = True,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10_000.0,
        *,
        restore_sequentially: bool = False,
        name: str | None = None,
    ) -> None:
        self._parts = _named_parts(global_variables() if var_list is None else var_list)
        self._sharded = bool(sharded)
        most = 0 if max_to_keep is None else max_to_keep
        if isinstance(most, bool) or not isinstance(most, (int, np.integer)) or most < 0:
            raise InvalidArgumentError(f"max_to_keep is a number of checkpoints from 0, not {max_to_keep!r}")
        try:
            hours = float(keep_checkpoint_every_n_hours)
        except (TypeError, ValueError):
            hours = 0.0
        if not hours > 0:
            raise InvalidArgumentError(
                f"keep_checkpoint_every_n_hours is above 0, not {keep_checkpoint_every_n_hours!r}"
            )
        self._retention = Retention(int(most), hours, time.time())
        self._writing: _Writing | None = None
        self._failed: BaseException | None = None

    @property
    def last_checkpoints(self) -> list[str]:
        """The paths of the checkpoints that this Saver keeps, oldest first; local ones are absolute."""
        return [path for path, _ in self._retention.kept]

    def recover_last_checkpoints(self, checkpoint_paths: Iterable[Path]) -> None:
        """Adopt complete checkpoints of an earlier Saver, oldest first, so that they are deleted in turn."""
        kept: list[tuple[str, float]] = []
        for path in checkpoint_paths:
            name, base = split_path(path)
            folder = open_folder(name)
            with suppress(NotFoundError, DataLossError):
                kept.append((folder.path(base), read_index(folder, base).saved))
        self._retention.kept = kept

    def save(
        self,
        sess: Session,
        save_path: Path,
        global_step: int | Tensor | None = None,
        latest_filename: str | None = None,
        *,
        write_state: bool = True,
        wait: bool = True,
    ) -> str:
        """Write a checkpoint, and return its path, which :meth:`restore` takes.

        - ``sess``: a session of the variables' graph
        - ``save_path``: folder and name, ``folder/model.ckpt``; the folder is made if it is missing. Or an
          fsspec URL, ``s3://bucket/folder/model.ckpt``. All tasks must reach it
        - ``global_step``: a whole number, or a variable that holds one; it is appended: ``model.ckpt-100``
        - ``latest_filename``: the name of the state file; None for ``checkpoint``
        - ``write_state``: whether the state file is written
        - ``wait``: False returns after the variables are copied, and files are written in the background:
          :meth:`wait` waits for them and raises their error, unless another save has succeeded since; the
          next save waits for them. Where a task's memory limit leaves no room
          for the copies, the call writes the files before it returns

        Raises FailedPreconditionError for an uninitialised variable, ResourceExhaustedError for a full disk,
        UnavailableError if a task has died. Earlier checkpoints stay as they are, and files of the failed one
        are removed.
        """
        step = _step(sess, global_step)
        path = os.fspath(save_path) + ("" if step is None else f"-{step}")
        name, base = split_path(path)
        state_file = LATEST_FILENAME if latest_filename is None else latest_filename
        if not state_file or "/" in state_file or state_file.startswith("."):
            raise InvalidArgumentError(f"latest_filename is the name of a file, not {latest_filename!r}")
        self._settle()
        folder = open_folder(name)
        checkpoint = secrets.token_hex(6)
        _ids_in_progress.add(checkpoint)
        try:
            if self._sharded:
                writing = self._start_shards(sess, folder, base, step, checkpoint, copy=not wait)
            else:
                writing = self._start_single(sess, folder, base, step, checkpoint)
        except BaseException:
            _ids_in_progress.discard(checkpoint)
            raise
        writing.start(
            lambda index: folder.replace(base + SUFFIX, index.to_text()),
            lambda index: self._finish(folder, base, index, state_file, write_state),
        )
        self._writing = writing
        if wait or not writing.background:
            self._failed = None  # what counts now is this checkpoint
            self.wait()
        return path

    def wait(self) -> None:
        """Wait until the files of ``save(wait=False)`` are written; raises the error of a failure, once."""
        self._settle()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _settle(self) -> None:
        """Wait for a checkpoint that is being written; keep its error for :meth:`wait`."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
        except Exception as error:
            writing.discard()
            self._failed = error
        except BaseException:  # an interrupt
            writing.discard()
            raise

    def restore(self, sess: Session, save_path: Path, *, only: Container[Variable] | None = None) -> None:
        """Give the variables the values that they have in a checkpoint; they need no initialisation before.

        - ``sess``: a session of the variables' graph, whose devices, tasks and partitions may be other ones
        - ``save_path``: the path of a checkpoint, as :meth:`save` or :func:`latest_checkpoint` returned it
        - ``only``: the variables to restore; None for all of the Saver

        Raises NotFoundError if there is no such checkpoint, or it lacks a variable; InvalidArgumentError for
        a variable of another shape or dtype; DataLossError, with file and tensor, for a damaged checkpoint.
        Values of variables are kept then, unless the files change during the call.
        """
        self._settle()
        name, base = split_path(save_path)
        folder = open_folder(name)
        index = read_index(folder, base)
        parts = [part for part in self._parts if only is None or part.variable in only]
        _check_fits(folder.path(base), index, parts)
        requests: dict[str, list[RestoredPart]] = {}
        places = sess.devices_of(part.variable for part in parts)
        for part in parts:
            task, device = places[part.variable]
            stored = index.tensors[part.slice.name]
            found = tuple(overlaps(stored, part.slice.start, part.shape))
            place = part.place(device)
            requests.setdefault(task, []).append(RestoredPart(place, stored.dtype, found))
        for kind in ("checkpoint.check", "checkpoint.load"):
            gather([
                sess.start_request(
                    task,
                    kind,
                    RestoreRequest(index.id, folder.name, sess.container_prefix, tuple(wanted)).to_dict(),
                )
                for task, wanted in requests.items()
            ])  # fmt: skip

    def _start_shards(
        self, sess: Session, folder: Folder, base: str, step: int | None, checkpoint: str, *, copy: bool
    ) -> _Writing:
        """Have each task copy its variables, if wanted, and write its shard."""
        parts: dict[str, list[tuple[_Part, str]]] = {}
        places = sess.devices_of(part.variable for part in self._parts)
        for part in self._parts:
            dtype_name(part.slice.name, part.variable.dtype)
            task, device = places[part.variable]
            parts.setdefault(task, []).append((part, device))
        requests = {
            task: SaveRequest(
                checkpoint,
                folder.name,
                f"{base}.{checkpoint}.{n}-of-{len(parts)}.safetensors",
                sess.container_prefix,
                tuple(part.place(device) for part, device in held),
            )
            for n, (task, held) in enumerate(sorted(parts.items()))
        }
        if copy:
            try:
                gather([sess.start_request(t, "checkpoint.copy", r.to_dict()) for t, r in requests.items()])
            except ResourceExhaustedError:  # of memory for the copies; shards need none
                copy = False
        pending = {t: sess.start_request(t, "checkpoint.write", r.to_dict()) for t, r in requests.items()}

        def collect() -> Index:
            answers = dict(zip(pending, gather(list(pending.values())), strict=True))
            files: dict[str, int] = {}
            slices: dict[str, list[StoredSlice]] = {}
            for task, held in parts.items():
                file = requests[task].file
                files[file] = int(answers[task]["size"])
                if folder.size(file) != files[file]:
                    raise FailedPreconditionError(
                        f"{task or 'this process'} has written {folder.path(file)!r}, and the client does "
                        "not see it: save into a folder that all tasks and the client share, or to a URL"
                    )
                for part, _ in held:
                    slices.setdefault(part.slice.name, []).append(part.stored(file, answers[task]["sums"]))
            return self._index(checkpoint, step, files, slices)

        return _Writing(checkpoint, collect, folder, [r.file for r in requests.values()], background=copy)

    def _start_single(
        self, sess: Session, folder: Folder, base: str, step: int | None, checkpoint: str
    ) -> _Writing:
        """Fetch the values, and write one file in the client."""
        file = f"{base}.{checkpoint}.0-of-1.safetensors"
        values: dict[str, Array] = {
            part.key: np.asarray(sess.run(part.variable)).reshape(part.shape) for part in self._parts
        }
        for part in self._parts:
            dtype_name(part.slice.name, part.variable.dtype)

        def collect() -> Index:
            written = write_shard(folder, file, values, checkpoint, stable=True)
            slices: dict[str, list[StoredSlice]] = {}
            for part in self._parts:
                slices.setdefault(part.slice.name, []).append(part.stored(file, written.sums))
            return self._index(checkpoint, step, {file: written.size}, slices)

        return _Writing(checkpoint, collect, folder, [file], background=True)

    def _index(
        self, checkpoint: str, step: int | None, files: dict[str, int], slices: dict[str, list[StoredSlice]]
    ) -> Index:
        wholes = {part.slice.name: part for part in self._parts}
        tensors = {
            name: StoredTensor(wholes[name].variable.dtype.name, wholes[name].slice.shape, tuple(found))
            for name, found in slices.items()
        }
        return Index(checkpoint, step, time.time(), files, tensors)

    def _finish(self, folder: Folder, base: str, index: Index, state_file: str, write_state: bool) -> None:
        """Delete the checkpoints that are no longer kept, write the state file, and delete unused shards."""
        path = folder.path(base)  # a relative path must not make another checkpoint of the same
        series = {(folder.name, series_of(base)): base}
        for old in self._retention.add(path, index.saved):
            place, name = split_path(old)
            open_folder(place).remove(name + SUFFIX)
            series[place, series_of(name)] = name
        if write_state:
            kept = [(p, t) for p, t in self._retention.kept if split_path(p)[0] == split_path(path)[0]]
            state = CheckpointState(
                path, tuple(p for p, _ in kept), tuple(t for _, t in kept), self._retention.preserved
            )
            folder.replace(state_file, state.to_text())
        for (place, _), name in series.items():
            remove_unused(open_folder(place), name, state_file)


def remove_unused(folder: Folder, base: str, state_file: str) -> None:
    """Delete what a crash has left: drafts, and shards of a series of checkpoints that no index refers to."""
    series, files = series_of(base), folder.files()
    used: set[str] = set()
    for file in files:
        if file.endswith(SUFFIX) and series_of(file.removesuffix(SUFFIX)) == series:
            try:
                used |= set(Index.from_text(folder.read_text(file), folder.path(file)).files)
            except NotFoundError:
                continue
            except NbdistError:  # a damaged index: its shards are known by their names
                used |= {f for f in files if f.startswith(file.removesuffix(SUFFIX) + ".")}
    for file in files:
        shard = SHARD.fullmatch(file)
        unused = shard is not None and series_of(shard["base"]) == series and file not in used
        if file in drafts_in_progress or (shard is not None and shard["id"] in _ids_in_progress):
            continue
        if unused or (file.startswith((f".{series}", f".{state_file}.")) and file.endswith(DRAFT)):
            folder.remove(file)


@dataclass(frozen=True)
class _Part:
    """A variable, and its place in the tensor under which it is saved."""

    variable: Variable
    slice: ShardSlice

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(n or 0 for n in self.variable.shape)

    @property
    def key(self) -> str:
        """The name in the shard's file: the tensor's, with the rows of a part."""
        if self.shape == self.slice.shape:
            return self.slice.name
        ranges = (f"{first}:{first + n}" for first, n in zip(self.slice.start, self.shape, strict=True))
        return f"{self.slice.name}[{','.join(ranges)}]"

    def place(self, device: str) -> VariablePlace:
        return place_of(self.variable, device, self.key)

    def stored(self, file: str, sums: Mapping[str, int]) -> StoredSlice:
        return StoredSlice(file, self.key, self.slice.start, self.shape, int(sums[self.key]))


def _named_parts(var_list: Any) -> list[_Part]:
    """Return the variables with their names in the checkpoint."""
    named: list[tuple[str | None, Any]]
    if isinstance(var_list, Mapping):
        named = [(name, v) for name, v in var_list.items()]
    elif isinstance(var_list, (list, tuple)):
        named = [(None, v) for v in var_list]
    else:
        raise InvalidArgumentError(
            f"var_list is a list of variables, or a dict of them by name, not {var_list!r:.200}"
        )
    parts: list[_Part] = []
    for name, given in named:
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidArgumentError(f"var_list: a name in a checkpoint is a text, not {name!r}")
        members = list(given) if isinstance(given, (list, tuple)) else [given]
        for one in members:
            shards = one.shards if isinstance(one, PartitionedVariable) else [one]
            for v in shards:
                if not isinstance(v, Variable):
                    raise InvalidArgumentError(f"var_list: {v!r:.200} is not a variable")
                whole = v.part or ShardSlice(v.name, tuple(n or 0 for n in v.shape), (0,) * len(v.shape))
                parts.append(_Part(v, whole if name is None else replace(whole, name=name)))
    if not parts:
        raise InvalidArgumentError("there are no variables to save: make the Saver after the variables")
    if len(parts) > MOST_PARTS:
        raise InvalidArgumentError(
            f"a checkpoint holds at most {MOST_PARTS:,} variables and shards of them, and these are "
            f"{len(parts):,}: give several Savers parts of them (var_list)"
        )
    if len({id(part.variable.graph) for part in parts}) > 1:
        raise InvalidArgumentError("the variables to save are of more than one graph")
    _check_cover(parts)
    seen: dict[tuple[str, tuple[int, ...]], _Part] = {}
    for part in parts:
        other = seen.setdefault((part.slice.name, part.slice.start), part)
        if other is not part or other.slice.shape != part.slice.shape:
            raise InvalidArgumentError(
                f"{other.variable.name!r} and {part.variable.name!r} would both be saved as "
                f"{part.slice.name!r}; give them different names (a dict)"
            )
    return parts


def _check_cover(parts: Sequence[_Part]) -> None:
    """Raise InvalidArgumentError if only some shards of a partitioned variable are given."""
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part.slice.name] = sizes.get(part.slice.name, 0) + math.prod(part.shape)
    for part in parts:
        if sizes[part.slice.name] < math.prod(part.slice.shape):
            raise InvalidArgumentError(
                f"var_list has only some shards of {part.slice.name!r}, and a checkpoint holds whole "
                "variables: give the partitioned variable, or all of its shards"
            )


def _step(sess: Session, global_step: Any) -> int | None:
    if global_step is None:
        return None
    value = sess.run(global_step) if isinstance(global_step, Tensor) else global_step
    if isinstance(value, (bool, np.bool)) or not isinstance(value, (int, np.integer)) or value < 0:
        raise InvalidArgumentError(
            f"global_step is a whole number from 0, or a variable of one, not {value!r}"
        )
    return int(value)


def _check_fits(path: str, index: Index, parts: Sequence[_Part]) -> None:
    """Raise NotFoundError or InvalidArgumentError unless a checkpoint has values for all variables."""
    missing = sorted({part.slice.name for part in parts} - index.tensors.keys())
    if missing:
        near = nearest(missing[0], index.tensors)
        raise NotFoundError(
            f"the checkpoint {path!r} has no {', '.join(map(repr, missing[:5]))}"
            f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}"
            f"{f'; did you mean {near!r}?' if near else ''}; it has {', '.join(sorted(index.tensors)[:8])}. "
            "Restore other variables (var_list), or map names with a dict"
        )
    for part in parts:
        stored = index.tensors[part.slice.name]
        wanted = (part.slice.shape, part.variable.dtype.name)
        if (stored.shape, stored.dtype) != wanted:
            raise InvalidArgumentError(
                f"variable {part.slice.name!r} is {wanted[1]} {show(wanted[0])}, and in the checkpoint "
                f"{path!r} it is {stored.dtype} {show(stored.shape)}: is it of another model?"
            )


_ids_in_progress: set[str] = set()
"""Ids of the checkpoints that this process is writing: another Saver must not delete their shards."""
_in_progress: set[_Writing] = set()
"""What this process is writing in the background, up to the state file."""


def await_saves(checkpoint_dir: Path) -> None:
    """Wait until this process has written the checkpoints that it has begun in a folder, or failed to."""
    name = open_folder(checkpoint_dir).name
    for writing in tuple(_in_progress):
        if writing.folder.name == name:
            with suppress(Exception):  # it is the error of the Saver that has begun it
                writing.result()


class _Writing:
    """A checkpoint whose shards are being written; ``background`` if the caller need not wait for them."""

    def __init__(
        self,
        checkpoint: str,
        collect: Callable[[], Index],
        folder: Folder,
        files: Sequence[str],
        *,
        background: bool,
    ) -> None:
        self.background, self.folder = background, folder
        self._checkpoint = checkpoint
        self._collect, self._files = collect, files
        self._lock = threading.Lock()
        self._cancelled = self._committed = False
        self._pending: PendingRequest | None = None

    def start(self, commit: Callable[[Index], None], finish: Callable[[Index], None]) -> None:
        """Wait for the shards in a thread, ``commit`` the index, and ``finish``."""

        def work() -> dict[str, Any]:
            try:
                try:
                    index = self._collect()
                    with self._lock:
                        if self._cancelled:
                            return {}
                        commit(index)
                        self._committed = True
                finally:
                    _ids_in_progress.discard(self._checkpoint)
                finish(index)
                return {}
            finally:
                _in_progress.discard(self)

        _in_progress.add(self)
        self._pending = start_work(work)

    def result(self) -> None:
        """Wait for the end; raises what has failed."""
        if self._pending is not None:
            gather([self._pending])

    def discard(self) -> None:
        """Delete the files of a failed checkpoint; those that appear later are deleted by the next save."""
        with self._lock:
            self._cancelled = True
            if self._committed:
                return
        for file in self._files:
            with suppress(NbdistError):
                self.folder.remove(file)


def latest_checkpoint(checkpoint_dir: Path, latest_filename: str | None = None) -> str | None:
    """Return the path of the newest complete checkpoint in a folder; None if there is none.

    - ``checkpoint_dir``: a local folder or an fsspec URL; it need not exist
    - ``latest_filename``: the name of the state file; None for ``checkpoint``

    A checkpoint with a damaged index, or with a file that is missing or cut, is passed over. Checksums of
    tensors are checked by ``Saver.restore``.
    """
    folder = open_folder(checkpoint_dir)
    base = newest(folder, latest_filename or LATEST_FILENAME)
    return None if base is None else folder.path(base)


def checkpoint_state(checkpoint_dir: Path, latest_filename: str | None = None) -> CheckpointState | None:
    """Return the content of a folder's state file; None if there is none.

    Parameters as for :func:`latest_checkpoint`. The result has ``model_checkpoint_path`` (the newest),
    ``all_model_checkpoint_paths`` and ``all_model_checkpoint_timestamps`` (seconds since 1970), oldest first.
    Raises DataLossError for a damaged file.
    """
    return read_state(open_folder(checkpoint_dir), latest_filename or LATEST_FILENAME)


def list_variables(checkpoint: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Return (name, shape) of each tensor in a checkpoint, sorted by name.

    ``checkpoint`` is a checkpoint's path, or a folder; then its newest checkpoint is used. Raises
    NotFoundError if there is none, DataLossError if its index is damaged.
    """
    folder, base = _found(checkpoint)
    return [(name, tensor.shape) for name, tensor in sorted(read_index(folder, base).tensors.items())]


def load_variable(checkpoint: Path, name: str) -> Array:
    """Return a tensor of a checkpoint as a NumPy array, joined from its shards.

    ``checkpoint`` is as for :func:`list_variables`, ``name`` one of its names. Raises NotFoundError for
    another name, DataLossError, with file and tensor, if it is damaged.
    """
    folder, base = _found(checkpoint)
    index = read_index(folder, base)
    if name not in index.tensors:
        raise NotFoundError(
            f"the checkpoint {folder.path(base)!r} has no {name!r}; it has {', '.join(sorted(index.tensors))}"
        )
    tensor = index.tensors[name]
    array = np.empty(tensor.shape, dtype_of(tensor))
    for overlap in overlaps(tensor, (0,) * len(tensor.shape), tensor.shape):
        stored = overlap.stored
        with ShardReader(folder, stored.file, index.id) as shard:
            shard.read(stored.name, stored.shape, array.dtype, stored.crc32, array, overlap.part, overlap.to)
    return array


def _found(checkpoint: Path) -> tuple[Folder, str]:
    inside = open_folder(checkpoint)
    latest = newest(inside)
    if latest is not None:
        return inside, latest
    folder, base = split_path(checkpoint)
    return open_folder(folder), base
