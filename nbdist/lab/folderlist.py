"""The folders of all runs, or of all sweeps: their names, newest first, read only if they changed."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

RACY = 2_000_000_000  # nanoseconds within which a folder may change and keep its time
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


class FolderList:
    """Names of the newest ``most`` folders in a folder; ``older`` is how many more there are.

    Names are ids, which sort by time. Links and what has no id's name are left out.
    """

    def __init__(self, most: int) -> None:
        self.older = 0
        self._most = most
        self._names: list[str] = []
        self._seen: tuple[str, int, int] | None = None

    def look(self, folder: Path) -> list[str]:
        """Return the names, the newest first; none if there is no such folder. Raises OSError."""
        try:
            status = os.stat(folder)
        except FileNotFoundError:
            self._names, self._seen, self.older = [], None, 0
            return self._names
        seen = str(folder), status.st_mtime_ns, status.st_ino
        if seen != self._seen:
            with os.scandir(folder) as entries:
                found = [one.name for one in entries if is_id(one.name) and one.is_dir(follow_symlinks=False)]
            found.sort(reverse=True)
            self._names, self.older = found[: self._most], max(0, len(found) - self._most)
            self._seen = None if racy(status) else seen
        return self._names


def is_id(name: str) -> bool:
    """Return whether a name can be that of a run or of a sweep.

    >>> is_id("261120-091512-mnist"), is_id("../x"), is_id(".draft"), is_id("a..b")
    (True, False, False, False)
    """
    return _ID.fullmatch(name) is not None and ".." not in name


def racy(status: os.stat_result) -> bool:
    """Return whether something changed so lately that the next change may bear the same time."""
    return abs(time.time_ns() - status.st_mtime_ns) < RACY
