"""nb.save_artifact: files of the user's own among those of the run.

    nb.save_artifact("confusion.png")         # in a body; run.artifacts["confusion.png"] in the notebook

    <run folder>/artifacts/confusion.png              of the chief
    <run folder>/artifacts/worker-1/confusion.png     of another replica

A copy is a draft until it is whole. What stands there counts towards a quota, under a lock that the
replicas of a host share. On other hosts the run's folder is a spool, whose files the client copies.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    StorageError,
)
from nbdist.home import private_folder
from nbdist.metrics.event_file import make_private
from nbdist.train.context import current

MB = 1_000_000
MOST_FILES = 10_000  # of one artifact
MOST_PARTS, LONGEST_NAME = 5, 900  # of a name in the run's folder: what the copy to the client takes
LOCK = ".lock"


def save_artifact(path: str | os.PathLike[str], name: str | None = None) -> Path:
    """Copy a file or a folder into the run's folder, as `run.artifacts`; exports to MLflow and wandb have it.

    - ``path``: a file, or a folder with all below it; hidden files (.x) are left out, which is printed
    - ``name``: what it is called there, such as "plots/confusion.png"; None is the last part of ``path``.
      What has this name already is replaced

    The chief's artifacts have that name, those of other replicas stand in a folder of their task: "worker-1".
    All artifacts of a run on one host may take ``--artifact-quota`` (1,000 MB by default).

    Returns the path of the copy. Raises FailedPreconditionError where no run is on, NotFoundError if nothing
    is there, InvalidArgumentError for an invalid name, a link or a device, ResourceExhaustedError above the
    quota or on a full disk, StorageError for another error of the disk. Runs in a task, and in the notebook
    where the body does.
    """
    place = current().artifacts
    if place is None:
        raise FailedPreconditionError(
            "nb.save_artifact copies files into the folder of a run, and none is on here: call it in a body "
            "of %%distribute, nb.launch or a sweep"
        )
    return place.save(Path(path), name)


@dataclass(frozen=True)
class Artifacts:
    """The artifacts of one replica.

    - ``folder``: that of all artifacts of the run, made when it is needed
    - ``replica``: the folder in it for this replica, "" for the chief
    - ``quota``: megabytes that all may take
    """

    folder: Path
    replica: str
    quota: int

    def save(self, path: Path, name: str | None) -> Path:
        """Copy a file or a folder; see `save_artifact`."""
        path = path.expanduser()
        target = self.folder / self.replica / checked_name(path.name if name is None else name)
        files = files_of(path)
        longest = max((str((target / one).relative_to(self.folder)) for one, _ in files), key=len)
        deepest = max(len((target / one).relative_to(self.folder).parts) for one, _ in files)
        if len(longest) > LONGEST_NAME or deepest > MOST_PARTS:
            raise InvalidArgumentError(
                f"save_artifact: a name has at most {LONGEST_NAME} characters in {MOST_PARTS} parts, "
                f"not {longest!r:.200}: give it a shorter name="
            )
        size = sum(found.stat().st_size for _, found in files)
        try:
            with self._locked():
                self._check_room(path, size, target)
                _replace(target, files, folder=path.is_dir())
        except OSError as error:
            if isinstance(error, NotFoundError | ResourceExhaustedError):
                raise
            raise StorageError(f"artifact {target} cannot be written: {error.strerror or error}") from error
        return target

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the artifacts of this host."""
        private_folder(self.folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.folder / LOCK, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _check_room(self, path: Path, size: int, target: Path) -> None:
        used = _bytes_of(self.folder) - _bytes_of(target)
        if used + size > self.quota * MB:
            raise ResourceExhaustedError(
                f"save_artifact: {path} has {size / MB:,.1f} MB, and the artifacts of this run on this host "
                f"take {used / MB:,.1f} MB of {self.quota:,}: give the run a larger --artifact-quota "
                "(artifact_quota=), or save less"
            )


def checked_name(name: object) -> str:
    """Return the name of an artifact; InvalidArgumentError for one that leads out of the folder.

    >>> checked_name("plots/confusion.png")
    'plots/confusion.png'
    >>> checked_name("../run.json")
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: '../run.json' is no name of an artifact: one like plots/confusion.png, with no part that is empty or begins with a dot
    """  # noqa: E501
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or "\0" in str(name) or any(not one or one.startswith(".") for one in parts):
        raise InvalidArgumentError(
            f"{name!r:.100} is no name of an artifact: one like plots/confusion.png, with no part that is "
            "empty or begins with a dot"
        )
    return "/".join(parts)


def files_of(path: Path) -> list[tuple[str, Path]]:
    """Return the files of an artifact: names below ``path``, "" for itself, and paths.

    Raises as `save_artifact`; prints which hidden files are left out.
    """
    if not path.exists():
        raise NotFoundError(f"save_artifact: there is no file or folder {os.fspath(path)!r} in {Path.cwd()}")
    if path.is_file():
        return [("", path)]
    found: list[tuple[str, Path]] = []
    hidden: list[str] = []
    for root, folders, names in os.walk(path):
        below = Path(root).relative_to(path)
        for name in sorted(folders):
            if name.startswith("."):
                folders.remove(name)
                hidden.append((below / name).as_posix())
            elif Path(root, name).is_symlink():
                raise InvalidArgumentError(
                    f"save_artifact: {Path(root, name)} is a link to a folder, which is not copied: remove it"
                )
        for name in sorted(names):
            if name.startswith("."):
                hidden.append((below / name).as_posix())
            elif stat.S_ISREG(Path(root, name).stat().st_mode):
                found.append(((below / name).as_posix(), Path(root, name)))
            else:
                raise InvalidArgumentError(
                    f"save_artifact: {Path(root, name)} is a device, a pipe or a socket"
                )
            if len(found) > MOST_FILES:
                raise InvalidArgumentError(
                    f"save_artifact: {path} has more than {MOST_FILES:,} files: pack them into an archive"
                )
    if hidden:
        print(f"save_artifact: {len(hidden)} hidden files or folders are left out, such as {hidden[0]}")
    if not found:
        raise InvalidArgumentError(f"save_artifact: the folder {path} has no files to save")
    return found


def _replace(target: Path, files: list[tuple[str, Path]], folder: bool) -> None:
    """Copy files to a draft, and put it in the place of what is there."""
    make_private(target.parent)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.draft")
    old = draft.with_suffix(".old")
    try:
        if folder:
            draft.mkdir(mode=0o700)
        for name, path in files:
            copy = draft / name if name else draft
            make_private(copy.parent)
            copy.touch(mode=0o600)
            shutil.copyfile(path, copy)
        if target.exists():
            target.rename(old)
        draft.rename(target)
    finally:
        for left in (draft, old):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def _bytes_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    walked = ((root, name) for root, _, names in os.walk(path) for name in names)
    return sum(os.lstat(os.path.join(root, name)).st_size for root, name in walked)
