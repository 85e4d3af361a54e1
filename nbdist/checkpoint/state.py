"""Which checkpoints a folder has: the state file, the newest complete checkpoint, and which ones to keep.

    state = read_state(folder)                    # CheckpointState, or None
    newest(folder)                                # the base name of the newest complete checkpoint
    Retention(5, 10_000).add("model.ckpt-10", now)

The state file (``checkpoint``) lists the checkpoints that a Saver keeps, oldest first. It is written after
the index of a new one, so a crash between both leaves a checkpoint that the state file lacks: `candidates`
therefore also looks at the indexes in the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nbdist.checkpoint.folder import Folder, open_folder
from nbdist.checkpoint.index import SUFFIX, Index
from nbdist.errors import DataLossError, NbdistError, NotFoundError

FORMAT = "nbdist checkpoint state 1"
LATEST_FILENAME = "checkpoint"


@dataclass(frozen=True)
class CheckpointState:
    """What a state file says; paths are those of checkpoints, oldest first.

    ``model_checkpoint_path`` is the newest one's.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: tuple[str, ...]
    all_model_checkpoint_timestamps: tuple[float, ...]
    last_preserved_timestamp: float = 0.0

    def to_text(self) -> str:
        """Return the state as JSON; paths are relative to the folder, so that it can be moved."""
        return json.dumps({
            "format": FORMAT,
            "checkpoints": [
                {"name": path.rpartition("/")[2], "saved": saved}
                for path, saved in zip(
                    self.all_model_checkpoint_paths, self.all_model_checkpoint_timestamps, strict=True
                )
            ],
            "last_preserved_timestamp": self.last_preserved_timestamp,
        }, indent=1)  # fmt: skip

    @classmethod
    def from_text(cls, text: str, folder: Folder, path: str) -> CheckpointState:
        """Return what ``to_text`` wrote; DataLossError for anything else."""
        try:
            found: Any = json.loads(text)
            if found["format"] != FORMAT:
                raise ValueError(f"its format is {found['format']!r}, this version reads {FORMAT!r}")
            names = [str(one["name"]) for one in found["checkpoints"]]
            if not names or any("/" in name or name.startswith(".") for name in names):
                raise ValueError(f"its checkpoints are {names!r:.80}")
            paths = tuple(folder.path(name) for name in names)
            saved = tuple(float(one["saved"]) for one in found["checkpoints"])
            return cls(paths[-1], paths, saved, float(found["last_preserved_timestamp"]))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise DataLossError(
                f"{path!r} is not the state file of checkpoints, or is damaged: {error}; the folder's newest "
                "checkpoint can still be restored by its path"
            ) from None


def read_state(folder: Folder, file: str = LATEST_FILENAME) -> CheckpointState | None:
    """Return what a folder's state file says; None if there is none, DataLossError if it is damaged."""
    try:
        text = folder.read_text(file)
    except NotFoundError:
        return None
    return CheckpointState.from_text(text, folder, folder.path(file))


def read_index(folder: Folder, base: str) -> Index:
    """Return the index of the checkpoint ``base``; checks that its files exist, with the right sizes.

    Raises NotFoundError if there is no such checkpoint, DataLossError if it is damaged or a file is missing.
    """
    path = folder.path(base + SUFFIX)
    try:
        text = folder.read_text(base + SUFFIX)
    except NotFoundError:
        raise NotFoundError(
            f"there is no checkpoint {folder.path(base)!r}; {_alternatives(folder, base)}"
        ) from None
    index = Index.from_text(text, path)
    for file, size in index.files.items():
        found = folder.size(file)
        if found is None:
            raise DataLossError(f"the checkpoint {folder.path(base)!r} lacks its file {file!r}")
        if found != size:
            raise DataLossError(
                f"the checkpoint's file {folder.path(file)!r} has {found:,} bytes instead of {size:,}"
            )
    return index


def _alternatives(folder: Folder, base: str) -> str:
    """Return which checkpoints there are instead of ``base``, for an error."""
    inside = folder.path(base)
    with suppress(NbdistError):  # a file has none
        if complete(open_folder(inside)):
            return f"it is a folder: give a checkpoint of it, nb.train.latest_checkpoint({inside!r})"
    return f"complete checkpoints in {folder.name!r}: {', '.join(complete(folder)) or 'none'}"


def complete(folder: Folder) -> list[str]:
    """Return the base names of the complete checkpoints, oldest first."""
    found: list[tuple[float, str]] = []
    for file in folder.files():
        if file.endswith(SUFFIX) and not file.startswith("."):
            base = file.removesuffix(SUFFIX)
            with suppress(NbdistError):  # a damaged one is not complete
                found.append((read_index(folder, base).saved, base))
    return [base for _, base in sorted(found)]


def candidates(folder: Folder, file: str = LATEST_FILENAME) -> Iterator[str]:
    """Yield base names of checkpoints from the newest to the oldest, complete or not.

    First those that a crash kept out of the state file, then those of the state file; without a readable
    state file all in the folder.
    """
    state: CheckpointState | None = None
    with suppress(DataLossError):
        state = read_state(folder, file)
    if state is None:
        yield from reversed(complete(folder))
        return
    listed = [path.rpartition("/")[2] for path in state.all_model_checkpoint_paths]
    last = max(state.all_model_checkpoint_timestamps)
    series = {series_of(base) for base in listed}
    newer: list[tuple[float, str]] = []
    for name in folder.files():
        base = name.removesuffix(SUFFIX)
        if name.endswith(SUFFIX) and series_of(base) in series:
            with suppress(NbdistError):
                saved = read_index(folder, base).saved
                if base not in listed or saved > last:
                    newer.append((saved, base))
    seen = [base for saved, base in sorted(newer, reverse=True) if saved >= last]
    yield from seen
    yield from (base for base in reversed(listed) if base not in seen)


def newest(folder: Folder, file: str = LATEST_FILENAME) -> str | None:
    """Return the base name of the newest complete checkpoint; None if there is none.

    Only indexes and sizes are read here; checksums of tensors are checked by a restore.
    """
    for base in candidates(folder, file):
        with suppress(DataLossError, NotFoundError):
            read_index(folder, base)
            return base
    return None


def series_of(base: str) -> str:
    """Return a checkpoint's name without its step.

    >>> series_of("model.ckpt-100"), series_of("model.ckpt")
    ('model.ckpt', 'model.ckpt')
    """
    return re.sub(r"-\d+$", "", base)


@dataclass
class Retention:
    """Which checkpoints stay: the newest ``most`` (0 or None: all), and one each ``hours`` for good.

    ``kept`` are (path, time of saving) of those that may be deleted later, oldest first.

    >>> rule = Retention(2, 1.0, begun=0.0)
    >>> [rule.add(path, 1800.0 * n) for n, path in enumerate(["s0", "s1", "s2", "s3", "s4"])]
    [[], [], ['s0'], ['s1'], []]
    """

    most: int | None
    hours: float
    begun: float
    kept: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.preserved = self.begun

    def add(self, path: str, saved: float) -> list[str]:
        """Add a checkpoint; return the paths of those to delete."""
        self.kept = [one for one in self.kept if one[0] != path] + [(path, saved)]
        doomed: list[str] = []
        while self.most and len(self.kept) > self.most:
            oldest, time = self.kept.pop(0)
            if time - self.preserved >= self.hours * 3600.0:
                self.preserved = time
            else:
                doomed.append(oldest)
        return doomed
