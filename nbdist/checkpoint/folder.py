"""The folder of checkpoints: a local one, or any fsspec URL (``s3://``, ``gs://``, ``memory://``).

    folder = open_folder("checkpoints")
    with folder.create("shard.safetensors") as file:
        file.write(header); file.write(data)          # on disk when the block ends
    folder.replace("checkpoint", text)                # all of it or nothing

Nothing here renames a large file: shards have names that are used once, and only the small files that refer
to them are replaced. A local file is replaced by fsync of a draft, rename, and fsync of the folder. An object
store has no rename; there a file appears as a whole when its upload ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from nbdist.draft import to_disk
from nbdist.errors import (
    DataLossError,
    InvalidArgumentError,
    MissingExtra,
    NbdistError,
    NotAllowedError,
    NotFoundError,
    ResourceExhaustedError,
    StorageError,
)

DRAFT = ".draft"
drafts_in_progress: set[str] = set()
"""Drafts that this process is writing: every other one was left by a crash."""
FLUSHED_BYTES = 32 << 20  # from which size on a file is brought to the disk while it is written
FLUSH_SECONDS = 0.02
# O_NONBLOCK: open(2) of a named pipe would wait for a writer.
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_TEXT = 1 << 28  # bytes of an index or a state file
Buffer = bytes | bytearray | memoryview


class Claim:
    """Whether the folder was free. It is free again after ``release()``, and when the process has ended."""

    def __init__(self, free: bool, fd: int | None = None) -> None:
        self.free = free
        self._close = None if fd is None else weakref.finalize(self, os.close, fd)

    def release(self) -> None:
        """End the claim; may be called twice."""
        if self._close is not None:
            self._close()


class Writer(Protocol):
    """A file that is being written from its beginning to its end."""

    def write(self, data: Buffer, /) -> object:
        """Append all bytes of ``data``."""


class Folder(ABC):
    """A place for files without subfolders. ``name`` is its path or URL."""

    name: str

    @abstractmethod
    def create(self, file: str) -> Any:
        """Return a context that yields a Writer for a new file, which is durable when the context ends.

        If the block fails, the file is removed. An existing file is an InvalidArgumentError.
        """

    @abstractmethod
    def replace(self, file: str, text: str) -> None:
        """Write a small file, durably: after a crash it has its old content or the new one."""

    @abstractmethod
    def open(self, file: str) -> BinaryIO:
        """Return a file open for reading.

        NotFoundError if there is none, DataLossError if it is not a regular file.
        """

    @abstractmethod
    def size(self, file: str) -> int | None:
        """Return a file's size in bytes; None if there is none."""

    @abstractmethod
    def files(self) -> list[str]:
        """Return the names of all files; none for a folder that does not exist."""

    @abstractmethod
    def remove(self, file: str) -> None:
        """Delete a file; nothing happens if there is none."""

    def claim(self) -> Claim:
        """Return a Claim on this folder, by which another session that writes here is seen.

        A folder of a store, and one whose file system has no locks, is always free.
        """
        return Claim(free=True)

    def path(self, file: str) -> str:
        """Return the path or URL of a file, for messages."""
        return f"{self.name.rstrip('/')}/{file}"

    def read_text(self, file: str) -> str:
        """Return the content of a small file; DataLossError if it is too large or no text."""
        with self.open(file) as opened:
            data = opened.read(MAX_TEXT + 1)
        if len(data) > MAX_TEXT:
            raise DataLossError(f"{self.path(file)!r} is larger than {MAX_TEXT:,} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DataLossError(f"{self.path(file)!r} is damaged: it is not UTF-8 ({error})") from None


def open_folder(name: str | os.PathLike[str]) -> Folder:
    """Return the folder of a local path or an fsspec URL; it need not exist.

    Raises InvalidArgumentError for an empty name and for a URL of an unknown protocol, MissingExtra without
    fsspec or the package that the protocol needs.
    """
    text = os.fspath(name)
    if not text:
        raise InvalidArgumentError("the name of a folder is empty; write '.' for the current folder")
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return RemoteFolder(text) if "://" in text else LocalFolder(text)


def split_path(path: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return (folder, base name) of a checkpoint's path or URL.

    >>> split_path("runs/a/model.ckpt-10"), split_path("model.ckpt"), split_path("s3://bucket/a/model.ckpt")
    (('runs/a', 'model.ckpt-10'), ('.', 'model.ckpt'), ('s3://bucket/a', 'model.ckpt'))
    """
    if path is None:
        raise InvalidArgumentError(
            "a checkpoint's path is None, which nb.train.latest_checkpoint returns for a folder without one: "
            "check the folder's name"
        )
    text = os.fspath(path)
    folder, _, base = text.rpartition("/")
    if not base or base.startswith("."):
        raise InvalidArgumentError(
            f"a checkpoint's path ends with a file name that does not begin with '.', such as "
            f"folder/model.ckpt, not {text!r}"
        )
    if text.startswith("/") and not folder:
        folder = "/"
    return folder or ".", base


class LocalFolder(Folder):
    """A folder of this host. Files have mode 0600; links are not followed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).expanduser().absolute()
        self.name = str(self._path)

    @contextmanager
    def create(self, file: str) -> Iterator[Writer]:
        """Return a context with a Writer for a new file."""
        path = self._path / file
        with _explained(path, "write"):
            self._make(self._path)
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                try:
                    writer = _Descriptor(fd)
                    try:
                        yield writer
                    finally:
                        writer.stop_flushing()
                    os.fsync(fd)
                finally:
                    os.close(fd)
                to_disk(self._path)
            except BaseException:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                raise

    def replace(self, file: str, text: str) -> None:
        """Write a small file by way of a draft."""
        draft = f".{file}.{secrets.token_hex(4)}{DRAFT}"
        drafts_in_progress.add(draft)
        try:
            with self.create(draft) as writer:
                writer.write(text.encode())
            try:
                with _explained(self._path / file, "write"):
                    os.replace(self._path / draft, self._path / file)
                    to_disk(self._path)
            except BaseException:
                self.remove(draft)
                raise
        finally:
            drafts_in_progress.discard(draft)

    def claim(self) -> Claim:
        """Claim the folder with a lock on it, which needs no file."""
        try:
            self._make(self._path)
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # a save will report it
            return Claim(free=True)
        claim = Claim(free=True, fd=fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            claim.release()
            return Claim(free=False)
        except OSError:  # NFS locks no folder
            claim.release()
        return claim

    def open(self, file: str) -> BinaryIO:
        """Return a file open for reading."""
        path = self._path / file
        with _explained(path, "read"):
            fd = os.open(path, READING)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise DataLossError(f"{str(path)!r} is not a regular file, as those of a checkpoint are")
            return os.fdopen(fd, "rb", buffering=0)

    def size(self, file: str) -> int | None:
        """Return a file's size in bytes."""
        with _explained(self._path / file, "read"):
            try:
                return (self._path / file).lstat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def files(self) -> list[str]:
        """Return the names of all files."""
        with _explained(self._path, "read"):
            try:
                return sorted(entry.name for entry in os.scandir(self._path) if entry.is_file())
            except FileNotFoundError:
                return []

    def remove(self, file: str) -> None:
        """Delete a file."""
        with _explained(self._path / file, "delete"):
            (self._path / file).unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        """Make a folder and those above it, with mode 0700, so that they survive a crash of the machine."""
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        to_disk(folder.parent)


class RemoteFolder(Folder):
    """A folder behind an fsspec URL."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingExtra("remote", f"the folder {url!r}") from error
        try:
            found: tuple[Any, str] = url_to_fs(url)
        except (ImportError, ValueError) as error:  # fsspec names the package of this protocol
            raise InvalidArgumentError(f"the folder {url!r} cannot be opened: {error}") from None
        self._fs, self._path = found
        self.name = url.rstrip("/")

    @contextmanager
    def create(self, file: str) -> Iterator[Writer]:
        """Return a context with a Writer for a new file."""
        if self.size(file) is not None:
            raise InvalidArgumentError(f"{self.path(file)!r} exists already")
        where = self.path(file)
        with _explained(where, "write", remote=True):
            with suppress(NotImplementedError):
                self._fs.makedirs(self._path, exist_ok=True)
            opened = self._fs.open(self._at(file), "wb")
        try:
            yield _RemoteWriter(opened, where)
            with _explained(where, "write", remote=True):
                opened.close()
        except BaseException:
            with suppress(Exception):
                opened.close()
            with suppress(Exception):
                self._fs.rm_file(self._at(file))
            raise

    def replace(self, file: str, text: str) -> None:
        """Write a small file with one upload; stores that are not atomic may leave a part of it."""
        with _explained(self.path(file), "write", remote=True):
            with suppress(NotImplementedError):
                self._fs.makedirs(self._path, exist_ok=True)
            self._fs.pipe_file(self._at(file), text.encode())

    def open(self, file: str) -> BinaryIO:
        """Return a file open for reading."""
        with _explained(self.path(file), "read", remote=True):
            opened: BinaryIO = self._fs.open(self._at(file), "rb")
            return opened

    def size(self, file: str) -> int | None:
        """Return a file's size in bytes."""
        with _explained(self.path(file), "read", remote=True):
            self._fs.invalidate_cache(self._path)
            try:
                return int(self._fs.info(self._at(file))["size"])
            except FileNotFoundError:
                return None

    def files(self) -> list[str]:
        """Return the names of all files."""
        with _explained(self.name, "read", remote=True):
            self._fs.invalidate_cache(self._path)
            try:
                entries = self._fs.ls(self._path, detail=True)
            except FileNotFoundError:
                return []
            return sorted(str(e["name"]).rpartition("/")[2] for e in entries if e["type"] == "file")

    def remove(self, file: str) -> None:
        """Delete a file."""
        with _explained(self.path(file), "delete", remote=True), suppress(FileNotFoundError):
            self._fs.rm_file(self._at(file))

    def _at(self, file: str) -> str:
        return f"{self._path.rstrip('/')}/{file}"


class _RemoteWriter:
    """Writes to an open file of a store."""

    def __init__(self, opened: Any, where: str) -> None:
        self._opened, self._where = opened, where

    def write(self, data: Buffer, /) -> object:
        with _explained(self._where, "write", remote=True):
            self._opened.write(data)
        return None


class _Descriptor:
    """Writes all bytes to a file descriptor; a thread brings a large file to the disk while it is written.

    fsync at the end alone takes as long again as the writes, since the disk is idle during these
    (bench/NOTES.md).
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._written = fd, 0
        self._flusher: threading.Thread | None = None
        self._stopped = threading.Event()
        self._error: OSError | None = None

    def write(self, data: Buffer, /) -> object:
        left = memoryview(data).cast("B")
        self._written += len(left)
        while left:
            left = left[os.write(self._fd, left) :]
        if self._flusher is None and self._written >= FLUSHED_BYTES:
            self._flusher = threading.Thread(target=self._flush, name="nbdist flush", daemon=True)
            self._flusher.start()
        return None

    def stop_flushing(self) -> None:
        """End the thread; raises its error, which a later fsync would not report again."""
        self._stopped.set()
        if self._flusher is not None:
            self._flusher.join()
            self._flusher = None
        if self._error is not None:
            raise self._error

    def _flush(self) -> None:
        try:
            while not self._stopped.wait(FLUSH_SECONDS):
                os.fdatasync(self._fd)
        except OSError as error:
            self._error = error


@contextmanager
def _explained(path: str | os.PathLike[str], doing: str, *, remote: bool = False) -> Iterator[None]:
    """Turn errors of the operating system, and all of a ``remote`` store, into nbdist's, with the path."""
    where = os.fspath(path)
    try:
        yield
    except (NbdistError, KeyboardInterrupt):
        raise
    except FileNotFoundError:
        raise NotFoundError(f"there is no {where!r}") from None
    except FileExistsError:
        raise InvalidArgumentError(f"cannot {doing} {where!r}: another file is there") from None
    except PermissionError as error:
        raise NotAllowedError(
            f"cannot {doing} {where!r}: {error.strerror or error}; choose a folder of your own"
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhaustedError(
                f"cannot {doing} {where!r}: {error.strerror}; free some space or choose another folder"
            ) from None
        if error.errno == errno.ELOOP:
            raise NotAllowedError(
                f"cannot {doing} {where!r}: it is a link, and links are not followed"
            ) from None
        raise StorageError(f"cannot {doing} {where!r}: {error.strerror or error}") from None
    except Exception as error:
        if not remote:
            raise
        raise StorageError(f"cannot {doing} {where!r}: {type(error).__name__}: {error}") from error
