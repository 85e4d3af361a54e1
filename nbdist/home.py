"""The state folder of nbdist, one per user, with mode 0700; and the version of nbdist."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from itertools import takewhile
from pathlib import Path

from nbdist.errors import NotAllowedError


def home() -> Path:
    """Return nbdist's own folder, made with mode 0700 if it is not there (client and tasks).

    It is ``NBDIST_HOME`` if that is set, else the platform's user data folder. `NotAllowedError` refuses a
    folder that other users could write into or replace, a link, and a relative path: run folders and keys are
    trusted because of where they are. A process checks the folders above it once, and again if another folder
    is there.
    """
    return checked(home_path(), _check_home)


def _check_home(folder: Path) -> None:
    check_place(folder)
    private_folder(folder)


def checked(folder: Path, check: Callable[[Path], object]) -> Path:
    """Return a folder after ``check`` made or accepted it, once in a process unless another one is there."""
    with suppress(OSError):  # it is not there, say
        if _checked.get(folder) == _identity(folder):
            return folder
    check(folder)
    _checked[folder] = _identity(folder)
    return folder


_checked: dict[Path, tuple[int, ...]] = {}
"""What this process has seen of each folder that it has checked."""


def _identity(folder: Path) -> tuple[int, ...]:
    status, user = os.lstat(folder), 0 if sys.platform == "win32" else os.geteuid()
    return status.st_dev, status.st_ino, status.st_uid, status.st_mode, user


def home_path() -> Path:
    """Return where `home` is, or would be: nothing is made or checked."""
    chosen = os.environ.get("NBDIST_HOME")
    if chosen and not chosen.startswith("~"):
        return _path(chosen)
    folder = Path(chosen) if chosen else default_home(sys.platform, os.environ, Path.home())
    return folder.expanduser()


_path = lru_cache(maxsize=8)(Path)  # making one takes longer than a look at the folder


def default_home(platform: str, environment: Mapping[str, str], user: Path) -> Path:
    """Return the platform's user data folder for nbdist; decides only, touches nothing."""
    if platform == "darwin":
        return user / "Library" / "Application Support" / "nbdist"
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or user / "AppData" / "Local") / "nbdist"
    chosen = environment.get("XDG_DATA_HOME", "")
    if not chosen.startswith(("/", "~")):  # a relative one is ignored, as its specification says
        chosen = ""
    return Path(chosen or user / ".local" / "share") / "nbdist"


def check_place(folder: Path) -> None:
    """Raise `NotAllowedError` for a home that is relative, or that another user could replace.

    The user's own home folder is trusted, and so are the folders above it: a user that could replace one of
    them, such as the owner of a group's folder, could replace the user's programs as well.
    """
    if not folder.is_absolute():
        raise NotAllowedError(
            f"NBDIST_HOME is {str(folder)!r}, which each process would look for in its own current folder; "
            f"set it to an absolute path, such as {folder.absolute()}"
        )
    if sys.platform == "win32":
        return
    nearest, users = folder.parent.resolve(), Path.home().resolve()
    outside = takewhile(lambda one: one != users, (nearest, *nearest.parents))
    above = [(one, one.stat()) for one in outside if one.is_dir()]
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}  # in a container "/" may have another owner
    for parent, status in above:
        if status.st_uid not in trusted:
            raise NotAllowedError(
                f"{folder} lies in {parent}, whose owner, user {status.st_uid}, could replace it; "
                "set NBDIST_HOME to a folder of your own"
            )
        if status.st_mode & 0o002 and not status.st_mode & stat.S_ISVTX:
            raise NotAllowedError(
                f"{folder} lies in {parent}, where every user could replace it (mode "
                f"{status.st_mode & 0o7777:o}); set NBDIST_HOME to a folder of your own"
            )


def refuse_link(folder: Path) -> None:
    """Raise `NotAllowedError` if a folder is a link, which may lead out of nbdist's folder."""
    if folder.is_symlink():
        raise NotAllowedError(
            f"{folder} is a link, and links are not followed; set NBDIST_HOME to a folder that has none"
        )


def private_folder(folder: Path) -> Path:
    """Make ``folder`` with mode 0700, or check that the one there is ours and closed to others."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        check_private(folder)
    except OSError as error:
        raise NotAllowedError(
            f"{folder} cannot be made: {error.strerror}; set NBDIST_HOME to a folder that you may write to"
        ) from None
    return folder


def check_private(folder: Path) -> None:
    """Raise `NotAllowedError` if ``folder`` is not a private folder of this user, or is a link."""
    refuse_link(folder)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotAllowedError(f"{folder} is a file; nbdist needs a folder there (or set NBDIST_HOME)")
    if sys.platform == "win32":  # permission bits mean nothing there; the profile folder is private
        return
    if status.st_uid != os.geteuid():  # also for root: the folder's owner could put other files into it
        raise NotAllowedError(
            f"{folder} belongs to user {status.st_uid}, not to user {os.geteuid()}; "
            "set NBDIST_HOME to a folder of your own"
        )
    if status.st_mode & 0o022:
        raise NotAllowedError(
            f"{folder} has mode {status.st_mode & 0o777:o}: others could write there; run chmod 700 {folder}"
        )


@cache
def own_version() -> str:
    """Return the version of the nbdist that runs here."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, used once

    try:
        return version("nbdist")
    except PackageNotFoundError:
        return "unknown"
