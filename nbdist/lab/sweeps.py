"""The sweeps of this user, from their folders alone: no kernel is asked for anything.

sweeps = Sweeps()
items = sweeps.look()       # call it again and again: what has not changed is not read again
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from nbdist.errors import DataLossError, InvalidArgumentError, NotFoundError
from nbdist.lab.curves import Budget
from nbdist.lab.folderlist import FolderList, is_id
from nbdist.lab.homefolder import look_home
from nbdist.lab.knownsweep import KnownSweep
from nbdist.sweep.ledger import Ledger

MOST = 100  # sweeps that are looked at: the newest
BYTES = 2 << 20  # of logs that one look reads
WHOLE = 256 << 20  # bytes of one log, when all of it is asked for
Item = dict[str, Any]


class Sweeps:
    """Lists sweeps; may be used from any thread. ``problems`` is what is to be said of the last look."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._list = FolderList(MOST)
        self._known: dict[str, KnownSweep] = {}
        self._folder: Path | None = None
        self._lock = threading.Lock()

    def look(self) -> list[Item]:
        """Return the newest sweeps, newest first, as plain JSON; what has not changed is the same object.

        Never raises for what stands in the folders. One with a long log is there when that is read, in some
        looks.
        """
        with self._lock:
            folder, self.problems = self._begin()
            if folder is None:
                return []
            try:
                names = self._list.look(folder)
            except OSError as error:
                self.problems = [f"the sweeps cannot be listed: {error}"]
                return []
            self._known = {name: self._sweep(folder, name) for name in names}
            budget = Budget(BYTES)
            for sweep in self._known.values():
                sweep.look(budget)
            if self._list.older:
                self.problems = [f"{self._list.older:,} older sweeps are not shown"]
            items = [one.item for one in self._known.values() if one.item is not None and not one.gone]
            return sorted(items, key=lambda item: (item["created"], item["id"]), reverse=True)

    def state_of(self, sweep_id: str) -> str | None:
        """Return where a sweep stood at the last look, None if it was not seen then."""
        with self._lock:
            sweep = self._known.get(sweep_id)
            return None if sweep is None or sweep.item is None else str(sweep.item["state"])

    def whole(self, sweep_id: str) -> tuple[Item, Ledger]:
        """Return one sweep's item, and all that its log says. The ledger is the caller's own.

        Raises `NotFoundError`, `InvalidArgumentError`, and `DataLossError` if its log cannot be read.
        """
        with self._lock:
            if not is_id(sweep_id):
                raise InvalidArgumentError(f"{sweep_id!r:.100} is no id of a sweep; nb.sweeps() lists them")
            folder, _ = self._begin()
        if folder is not None:
            sweep = KnownSweep(folder / sweep_id)
            sweep.look(Budget(WHOLE), keep=True)
            if sweep.item is not None and not sweep.gone:
                if sweep.ledger is None:
                    raise DataLossError(f"sweep {sweep_id} cannot be read: {sweep.item['error']}")
                return sweep.item, sweep.ledger
        raise NotFoundError(f"no sweep {sweep_id!r} in {folder or 'the home, which is not there'}")

    def _begin(self) -> tuple[Path | None, list[str]]:
        home, why = look_home()
        folder = None if home is None else home / "sweeps"
        if folder != self._folder:
            self._known, self._folder = {}, folder
        return folder, [why] if home is None and why else []

    def _sweep(self, folder: Path, name: str) -> KnownSweep:
        sweep = self._known.get(name)
        return KnownSweep(folder / name) if sweep is None or sweep.gone else sweep
