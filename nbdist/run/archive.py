"""Runs as one file: ``run.export("x.zip")`` writes it, ``nb.runs("x.zip")`` opens it.

    write_archive([run.folder], "x.zip")        # <id>/run.json, <id>/metrics-0000.log, ...
    opened("x.zip")                             # a private folder with the same files

An archive may come from anybody, so nothing in it is believed. Its directory is bounded before it is read:
Python's zipfile reads all of it into memory. Names that lead out of the folder, links, devices and encrypted
files are refused before the first file is written, and each file is counted while it is unpacked. Nothing in
it is run. The folder is removed when this process ends.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from nbdist.checkpoint.manager import state_files
from nbdist.draft import draft_of
from nbdist.errors import DataLossError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from nbdist.text import in_bytes

LARGEST = 2 << 30  # bytes of all files, unpacked
MOST_FILES = 20_000
LARGEST_DIRECTORY = 8 << 20  # bytes of the archive's list of its files
LONGEST = 1_000  # characters of a name
CHUNK = 1 << 20
END, END_64 = b"PK\5\6", b"PK\6\7"
END_SIZE, LOCATOR_SIZE = 22, 20
READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
SMALLER = "run.export(path, files=False) leaves out states, checkpoints and artifacts"


def write_archive(folders: Iterable[Path], path: str | os.PathLike[str], files: bool = True) -> Path:
    """Write the files of run folders into a zip file (0600), which appears when it is complete.

    - ``path``: its name ends in .zip; a file there is replaced
    - ``files``: False leaves out states of trainings, checkpoints and artifacts, which take the most room

    Hidden files and links are left out. Raises InvalidArgumentError for another name, ResourceExhaustedError
    for runs of more than 2 GiB or 20,000 files, StorageError if it cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() != ".zip":
        raise InvalidArgumentError(f"a run is exported into a .zip file, not {os.fspath(path)!r:.200}")
    found = [(folder, *one) for folder in folders for one in _files(folder, files)]
    total = sum(size for *_, size in found)
    if total > LARGEST or len(found) > MOST_FILES:
        raise ResourceExhaustedError(
            f"{len(found):,} files of {in_bytes(total)} are more than an archive holds ({MOST_FILES:,} of "
            f"{in_bytes(LARGEST)}): {SMALLER}; or copy the folder with rsync: nb.runs(folder) opens it"
        )
    with (
        draft_of(target, private=True) as draft,
        zipfile.ZipFile(
            draft, "w", zipfile.ZIP_DEFLATED, compresslevel=6, strict_timestamps=False
        ) as archive,
    ):
        for folder, file, _ in found:
            archive.write(file, f"{folder.name}/{file.relative_to(folder).as_posix()}")
    return target


def _files(folder: Path, all_of_them: bool) -> Iterator[tuple[Path, int]]:
    """Yield the regular files of a run's folder in order, and their sizes in bytes."""
    large = {*state_files(folder), *(folder / name for name in ("checkpoints", "artifacts", "exports"))}
    left_out = set() if all_of_them else large
    for root, names, files in os.walk(folder):
        names[:] = sorted(one for one in names if not one.startswith(".") and Path(root, one) not in left_out)
        for path in (Path(root, name) for name in sorted(files) if not name.startswith(".")):
            with suppress(FileNotFoundError):  # a run under way replaces some of its files
                status = path.lstat()
                if path not in left_out and stat.S_ISREG(status.st_mode):
                    yield path, status.st_size


def opened(path: Path) -> Path:
    """Return a folder with the files of an archive, unpacked once in a process.

    Raises NotFoundError, InvalidArgumentError for an archive with a name that leads elsewhere or a link,
    ResourceExhaustedError for one that is too large, DataLossError for a damaged one.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise NotFoundError(f"{path} cannot be opened: {error.strerror}") from None
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if identity not in _opened:
        folder = TemporaryDirectory(prefix="nbdist-runs-", ignore_cleanup_errors=True)  # mode 0700
        try:
            _unpack(path, Path(folder.name))
        except BaseException:
            folder.cleanup()
            raise
        _opened[identity] = folder
    return Path(_opened[identity].name)


_opened: dict[tuple[int, ...], TemporaryDirectory[str]] = {}
"""The archives of this process by the identity of the file; the folders are removed at its end."""


def _unpack(path: Path, folder: Path) -> None:
    try:
        _check_size(path)
        with zipfile.ZipFile(path) as archive:
            members = [one for one in archive.infolist() if not one.is_dir()]
            places = _checked(path, members)
            total = sum(one.file_size for one in members)
            free = shutil.disk_usage(folder).free
            if total > min(LARGEST, free):
                raise ResourceExhaustedError(
                    f"the files in {path} have {in_bytes(total)}; at most {in_bytes(LARGEST)} are unpacked, "
                    f"and {in_bytes(free)} are free in {folder.parent} (TMPDIR): {SMALLER}"
                )
            for member, place in zip(members, places, strict=True):
                target = folder / place
                for parent in reversed(place.parents):
                    (folder / parent).mkdir(mode=0o700, exist_ok=True)
                descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as file, archive.open(member) as content:
                    shutil.copyfileobj(content, file, CHUNK)  # it ends at the size that was counted above
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error) as error:
        raise DataLossError(f"{path} is damaged, or no zip file: {error}") from error
    except FileExistsError as error:
        raise DataLossError(f"{path} is damaged: a file and a folder in it have one name") from error


def _check_size(path: Path) -> None:
    """Raise unless the archive's directory is small: it is the last part of a file without a comment."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - END_SIZE - LOCATOR_SIZE))
        tail = file.read()
    end = tail[-END_SIZE:]
    if len(end) < END_SIZE or not end.startswith(END) or end[-2:] != b"\0\0":
        raise zipfile.BadZipFile("it does not end as a zip file without a comment does")
    _, _, _, _, count, directory, _, _ = struct.unpack("<4s4H2LH", end)
    if count > MOST_FILES or directory > LARGEST_DIRECTORY or tail.startswith(END_64):
        raise ResourceExhaustedError(
            f"{path} has more than {MOST_FILES:,} files, or a list of them of over "
            f"{in_bytes(LARGEST_DIRECTORY)}; export fewer runs into one archive"
        )


def _checked(path: Path, members: list[zipfile.ZipInfo]) -> list[PurePosixPath]:
    """Return the relative paths of all files; raises InvalidArgumentError for one that is refused."""
    places = []
    for member in members:
        why = _why_refused(member)
        if why:
            raise InvalidArgumentError(
                f"{path} is not opened: {member.filename!r:.200} in it {why}. Nothing was unpacked; get the "
                "archive from where the run is, as run.export makes it"
            )
        places.append(PurePosixPath(member.filename))
    if len(set(places)) < len(places):
        raise InvalidArgumentError(f"{path} is not opened: two files in it have the same name")
    return places


def _why_refused(member: zipfile.ZipInfo) -> str:
    """Return why a member is not unpacked; "" if it may be.

    >>> _why_refused(zipfile.ZipInfo("r1/run.json")), _why_refused(zipfile.ZipInfo("r1/../../x"))
    ('', 'leads out of the folder')
    """
    name = member.filename
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or ":" in parts[0] or not {"", ".", ".."}.isdisjoint(parts):
        return "leads out of the folder"
    if len(name) > LONGEST or not name.isprintable():
        return "has a name that no file of a run has"
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
        return "is a link or a device"
    if member.flag_bits & 1:
        return "is encrypted"
    if member.compress_type not in READABLE:
        return "is compressed in another way than deflate"
    return ""
