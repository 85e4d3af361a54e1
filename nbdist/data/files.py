"""Files of a dataset: local paths and fsspec URLs, with patterns, compressed or not.

    for path in expand("s3://bucket/train-*.tfrecord.gz"):
        with open_file(path) as file:               # decompressed by its ending, or by compression=
            ...

Everything is read as a stream, so that a file may be larger than the memory.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeAlias, cast

from nbdist.data.arguments import members
from nbdist.data.blocks import Block, Pass
from nbdist.errors import (
    DataLossError,
    InvalidArgumentError,
    MissingExtra,
    NotFoundError,
    StorageError,
    choices,
)

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"

READ_BYTES = 1 << 20  # of a remote or compressed file, at once

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "http", "https": "http"}
"""By protocol of a URL: the extra of nbdist that reads it."""


def named(paths: Paths) -> tuple[str, ...]:
    """Return paths or patterns as text; raise InvalidArgumentError for what is neither."""
    if isinstance(paths, (str, os.PathLike)):
        given: list[Any] = [paths]
    else:
        given = members("a dataset's paths argument", paths, "paths, or one path, folder, pattern or URL")
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidArgumentError(f"a path is text or a Path, not {path!r:.80}")
    if not given:
        raise InvalidArgumentError("no paths were given; a dataset of files needs at least one")
    return tuple(os.fspath(path) for path in given)


def expand(names: Sequence[str]) -> list[str]:
    """Return the files of paths and patterns; those of a pattern are sorted.

    Raises NotFoundError for a path without a file, and for a pattern or folder without files.
    """
    return [path for name in names for path in _expanded(name)]


def _expanded(name: str) -> list[str]:
    if is_url(name):
        return _expanded_url(name)
    local = name.removeprefix("file://")
    if os.path.isfile(local):  # also if its name has a character of patterns
        return [local]
    if os.path.isdir(local):
        with explained(local):
            found = [os.path.join(local, file) for file in os.listdir(local) if not file.startswith(".")]
        if found and not any(map(os.path.isfile, found)):
            found = _below(name, local)
    elif glob.has_magic(local):
        found = glob.glob(_with_names(local), recursive=True)
    else:
        raise _none_at(name, "there is no such file")
    return _some(name, [path for path in found if os.path.isfile(path)])


def _with_names(pattern: str) -> str:
    """Escape the folders of a pattern whose names have characters of patterns, such as ``photos [2024]``.

    >>> _with_names("no such [ab]/*.txt")
    'no such [ab]/*.txt'
    """
    head, slash, tail = pattern.rpartition("/")
    while slash and glob.has_magic(head):
        if os.path.isdir(head):
            return f"{glob.escape(head)}/{tail}"
        head, slash, more = head.rpartition("/")
        tail = f"{more}/{tail}"
    return pattern


def _below(name: str, folder: str) -> list[str]:
    """Return nothing for a folder that has folders only; raise for one of a table in parts (Hive's form)."""
    inside = [one for one in os.listdir(folder) if os.path.isdir(os.path.join(folder, one))]
    parts = sorted(one for one in inside if "=" in one)
    if parts:
        key = parts[0].partition("=")[0]
        raise InvalidArgumentError(
            f"{name!r} is divided into folders such as {parts[0]!r}: the column {key!r} stands in their "
            f"names, and nbdist reads the columns in files. Read {name.rstrip('/')}/*/* without that column, "
            "or all of it with pandas.read_parquet(...) and from_frame"
        )
    return []


def _expanded_url(url: str) -> list[str]:
    fs, path = filesystem(url)
    with explained(url):
        if glob.has_magic(path):
            found = fs.glob(path)
        elif url.startswith(("http://", "https://")):  # a server has no folders; opening says what is wrong
            return [url]
        elif fs.isdir(path):
            found = [one["name"] for one in fs.ls(path, detail=True) if one["type"] == "file"]
        elif fs.exists(path):
            return [url]
        else:
            raise _none_at(url, "there is no such file")
        return _some(url, [fs.unstrip_protocol(one) for one in found])


def _some(name: str, found: list[str]) -> list[str]:
    if not found:
        kind = "the pattern matches no file" if glob.has_magic(name) else "the folder has no files"
        raise _none_at(name, kind)
    return sorted(found)


def _none_at(name: str, kind: str) -> NotFoundError | StorageError:
    closed = "" if is_url(name) else _closed_folder(name.removeprefix("file://"))
    if closed:
        return StorageError(
            f"{name!r} cannot be read: the user of this process may not read the folder {closed!r}. Change "
            "its permissions, or copy the files"
        )
    where = "" if is_url(name) or os.path.isabs(name) else f" (in {os.getcwd()})"
    return NotFoundError(
        f"{name!r}{where}: {kind}. Every worker opens the files itself: check the path, and that all workers "
        "see it (a shared folder, or a URL such as s3://bucket/...)"
    )


def _closed_folder(name: str) -> str:
    """Return the folder on the way to a local path that this process may not look into; "" if there is none.

    To glob, and to a test whether a file exists, such a folder is empty.
    """
    folder = os.path.dirname(name)
    while folder and not os.path.isdir(folder):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            break
    return folder if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK) else ""


def count(names: Sequence[str]) -> int:
    """Return how many files there are at paths and patterns."""
    return len(expand(names))


def listed(count: int, run: Pass) -> Iterator[Block]:
    """Yield the numbers of the files that this pass reads, of a list of ``count``."""
    yield run.own(range(count))  # type: ignore[misc]  # a range is a block


def is_url(name: str) -> bool:
    """Whether a path is a URL that fsspec opens.

    >>> is_url("s3://bucket/a.csv"), is_url("data/a.csv"), is_url("file:///data/a.csv")
    (True, False, False)
    """
    return "://" in name and not name.startswith("file://")


def filesystem(url: str) -> tuple[Any, str]:
    """Return (fsspec's file system, path) of a URL.

    Raises MissingExtra without fsspec or the package of the protocol, InvalidArgumentError for an unknown
    protocol.
    """
    protocol = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtra("remote", url) from None
    try:
        found: tuple[Any, str] = url_to_fs(url)
    except ImportError as error:
        if protocol in EXTRAS:
            raise MissingExtra(EXTRAS[protocol], url) from error
        raise InvalidArgumentError(f"{url!r} cannot be opened: {error}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{url!r} cannot be opened: {error}") from None
    return found


def compression_of(path: str, compression: str | None) -> str:
    """Return how a file is compressed, by its ending if ``compression`` is None; "" if it is not.

    >>> compression_of("a.csv.gz", None), compression_of("a.csv", None), compression_of("a.bin", "gzip")
    ('gzip', '', 'gzip')
    """
    if compression is None:
        return _ENDINGS.get(os.path.splitext(path.lower())[1], "")
    check_compression(compression)
    return compression


def check_compression(compression: Any) -> None:
    """Raise InvalidArgumentError for a compression that is not known."""
    if compression not in (None, "", *_OPENERS):
        raise InvalidArgumentError(
            f"compression is {compression!r:.80}; expected None (by the file's ending), '' for none, or "
            f"{choices(compression, _OPENERS)}"
        )


@contextmanager
def open_file(path: str, compression: str | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading, inside a ``with``; what it raises names the file.

    - ``path``: a local path or an fsspec URL
    - ``compression``: "gzip", "zlib", "zstd", "bz2", "xz", "" for none, None to go by the ending (.gz,
      .zlib, .zst, .bz2, .xz)
    """
    how = compression_of(path, compression)
    with explained(path):
        if is_url(path):
            fs, where = filesystem(path)
            raw: Any = io.BufferedReader(fs.open(where, "rb"), READ_BYTES)
        else:
            raw = open(path, "rb", buffering=READ_BYTES if how else -1)  # noqa: SIM115
        with raw:
            if not how:
                yield raw
                return
            with _OPENERS[how](raw) as opened:
                yield cast(BinaryIO, io.BufferedReader(opened, READ_BYTES))


@contextmanager
def compressed(file: Any, path: str, compression: str | None) -> Iterator[BinaryIO]:
    """Return a file that compresses into ``file`` what is written, inside a ``with``."""
    how = compression_of(path, compression)
    if not how:
        yield file
        return
    with _OPENERS[how](file, "wb") as opened:
        yield opened


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Say of which file a failure inside a ``with`` is."""
    try:
        yield
    except (NotFoundError, StorageError, DataLossError):
        raise
    except FileNotFoundError:
        raise _none_at(path, "there is no such file") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise _not_decompressed(path, error) from None
    except OSError as error:
        if error.errno is None and str(error) == "Invalid data stream":  # of bz2, which has no class for it
            raise _not_decompressed(path, error) from None
        raise StorageError(f"{path} cannot be read: {error}") from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise _not_decompressed(path, error) from None


def _not_decompressed(path: str, error: Exception) -> DataLossError:
    return DataLossError(
        f"{path} cannot be decompressed: {error}. The file is cut or damaged, or not compressed at all: copy "
        "it again, or say compression=''"
    )


# zlib streams: TensorFlow writes TFRecord files of them, and Python has no file of one.


class ZlibReader(io.RawIOBase):
    """What is in a file of one or more zlib streams; raises EOFError for one that is cut.

    >>> io.BufferedReader(ZlibReader(io.BytesIO(zlib.compress(b"one ") + zlib.compress(b"two")))).read()
    b'one two'
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._rest = file, b""
        self._stream = zlib.decompressobj()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, target: Any, /) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end."""
        while True:
            fresh = self._rest or self._file.read(READ_BYTES)
            if self._stream.eof:
                if not fresh:
                    return 0
                self._stream = zlib.decompressobj()
            if not fresh:
                raise EOFError("the file ends before the end of its zlib stream")
            found = self._stream.decompress(fresh, len(target))
            self._rest = self._stream.unused_data or self._stream.unconsumed_tail
            if found:
                target[: len(found)] = found
                return len(found)


class ZlibWriter(io.RawIOBase):
    """Compresses into a file what is written, as one zlib stream."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._stream = file, zlib.compressobj()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Compress bytes; return their number."""
        self._file.write(self._stream.compress(data))
        return len(data)

    def close(self) -> None:
        """Write the end of the stream; the file stays open."""
        if not self.closed:
            self._file.write(self._stream.flush())
        super().close()


def _open_zlib(file: Any, mode: str = "rb") -> Any:
    return ZlibReader(file) if mode == "rb" else ZlibWriter(file)


def _open_zstd(file: Any, mode: str = "rb") -> Any:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise MissingExtra("zstd", "files that are compressed with zstd") from None
    opened: Any = zstd.ZstdFile  # its overloads want literal modes
    return opened(file, mode)


_OPENERS: dict[str, Callable[..., Any]] = {
    "gzip": gzip.open,
    "zlib": _open_zlib,
    "zstd": _open_zstd,
    "bz2": bz2.open,
    "xz": lzma.open,
}
_ENDINGS = {".gz": "gzip", ".zlib": "zlib", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
