"""The state folder of nbdist: one per user, with mode 0700."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from nbdist.errors import NotAllowedError


def home() -> Path:
    """Return nbdist's own folder, made with mode 0700 if it is not there (client and tasks).

    It is ``NBDIST_HOME`` if that is set, else the platform's user data folder. A folder that other users
    could write into is refused with `NotAllowedError`: run folders and keys are trusted because of where
    they are.
    """
    return private_folder(home_path())


def home_path() -> Path:
    """Return where `home` is, or would be: nothing is made or checked."""
    chosen = os.environ.get("NBDIST_HOME")
    folder = Path(chosen) if chosen else default_home(sys.platform, os.environ, Path.home())
    return folder.expanduser()


def default_home(platform: str, environment: Mapping[str, str], user: Path) -> Path:
    """Return the platform's user data folder for nbdist; decides only, touches nothing."""
    if platform == "darwin":
        return user / "Library" / "Application Support" / "nbdist"
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or user / "AppData" / "Local") / "nbdist"
    return Path(environment.get("XDG_DATA_HOME") or user / ".local" / "share") / "nbdist"


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
    """Raise `NotAllowedError` if ``folder`` is not a private folder of this user."""
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
