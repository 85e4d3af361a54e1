"""The sweeps of this user, from their folders alone: no kernel is asked for anything.

sweeps = Sweeps()
items = sweeps.look()       # call it again and again: what has not changed is not read again
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbdist.errors import DataLossError, InvalidArgumentError, NbdistError, NotFoundError
from nbdist.lab.readers.files import (
    FolderList,
    Mark,
    ReplacedError,
    Tail,
    is_id,
    look_home,
    mark_of,
    read_bounded,
)
from nbdist.lab.readers.run_curves import Budget
from nbdist.lab.readers.run_record import (
    LONGEST_NAME,
    again,
    attach_code,
    mapping,
    number,
    rounded,
    shortened,
    text,
)
from nbdist.sweep.commands import REMOTE
from nbdist.sweep.event_log import FORMAT, LogPart, holder_of, parse
from nbdist.sweep.events import Closed, Created
from nbdist.sweep.scheduler import state_of
from nbdist.sweep.state import STATES, Ledger
from nbdist.trials.store import ABOUT, LOG, MOST_ABOUT
from nbdist.ui.formatting import jsonable
from nbdist.ui.widgets.sweep_feed import ended_at

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


# The cache of one sweep's folder: a poll reads only new records of its log.
#
#     sweep.log         every event; the ledger is worked out from them, as the driver's own is
#     sweep.log.lock    held by the process that drives the sweep
#     sweep.json        its name, its cluster
#
# Of a sweep that is over only the item is kept: a look costs one `stat`, and who wants more has it read
# again.

WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, NbdistError)


class KnownSweep:
    """One sweep: ``item`` is what the panel is told, None while there is nothing to tell.

    A `look` raises nothing for what stands in the folder; ``gone`` says that there is no log any more.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.gone = folder, False
        self.item: dict[str, Any] | None = None
        self.ledger: Ledger | None = None
        """Everything known of its trials; None before its log is read, and when it is over."""
        self._begin()

    def _begin(self) -> None:
        self.ledger = None
        self.reason = ""
        """Why it was closed, if it was."""
        self.holder: int | None = None
        self._tail = Tail[LogPart](self.folder / LOG, FORMAT, parse)
        self._mark: Mark | None = None
        self._over = False
        self._about: Mapping[str, Any] = {}
        self._about_mark: Mark | None = None
        self._unread = 0

    def look(self, budget: Budget, keep: bool = False) -> None:
        """Read what is new, as far as the budget goes; with ``keep`` the ledger stays also if it is over."""
        try:
            mark = mark_of(os.stat(self.folder / LOG, follow_symlinks=False))
            if self._over:
                if mark == self._mark and not (keep and self.ledger is None):
                    return
                self._begin()  # trials were added, or all of it is asked for
            self._mark = mark
            self._read(budget)
            if self._tail.left:  # the numbers of half a log are no news
                return
            self._read_about()
            self._tell(keep)
        except (FileNotFoundError, NotADirectoryError):
            self.gone = True
        except ReplacedError:
            self._begin()
        except OSError as error:  # it may be readable at the next look
            self._break(f"{self.folder.name} cannot be read: {error.strerror or error}")
            self._mark = None

    @property
    def name(self) -> str:
        """What people call it."""
        return text(self._about.get("name")) or self.folder.name

    def _read(self, budget: Budget) -> None:
        while budget.left > 0:
            before = self._tail.offset
            part = self._tail.read()
            if part is None:
                return
            budget.left -= max(4096, self._tail.offset - before)
            self._unread += part.unread
            try:
                self._apply(part)
            except WRONG as error:
                self._tail.wrong = f"its log cannot be understood: {type(error).__name__}: {error}"

    def _apply(self, part: LogPart) -> None:
        for event in part.events:
            if self.ledger is None:
                if not isinstance(event, Created):
                    raise ValueError("its first record is lost, and nothing can be made of the others")
                self.ledger = Ledger(event)
                continue
            self.ledger.apply(event)
            if isinstance(event, Closed):
                self.reason = event.reason

    def _read_about(self) -> None:
        try:
            mark = mark_of(os.stat(self.folder / ABOUT, follow_symlinks=False))
            if mark != self._about_mark:
                self._about = mapping(json.loads(read_bounded(self.folder / ABOUT, MOST_ABOUT)))
                self._about_mark = mark
        except (OSError, ValueError, RecursionError, NbdistError):
            self._about = {}

    def _tell(self, keep: bool) -> None:
        if self._tail.wrong:
            self._break(self._tail.wrong)
            return
        if self.ledger is None:  # its maker has only just made the log, or died then
            return
        self.holder = holder_of(self.folder / LOG)
        try:
            state = state_of(self.ledger, self.holder is not None, self.reason)
            notes = [] if self.holder is not None else self._complaints()
            item = item_of(
                self.folder.name, self.name, self.ledger, state, self.holder, self._about, self.reason, notes
            )
        except WRONG as error:
            self._break(f"its log cannot be understood: {type(error).__name__}: {error}")
            return
        if item != self.item:
            self.item = item
        if state in DONE:
            self._over = True
            if not keep:
                self.ledger = None

    def _complaints(self) -> list[str]:
        found = LogPart(torn=self._tail.torn, damaged=self._tail.damaged, unread=self._unread)
        return [found.complaint()] if found.complaint() else []

    def _break(self, why: str) -> None:
        self.ledger, self._over = None, True
        changed = 0.0 if self._mark is None else self._mark[0] / 1e9
        self.item = broken_item(self.folder.name, self.name, why, self._about, changed)


# The item of a sweep in the sidebar: its progress and best trial, as plain JSON. Pure.

MOST_POINTS = 60  # points of a curve
MOST_PARAMETERS = 50
DIGITS = 6
OVER = ("finished", "stopped", "failed")
DONE = (*OVER, "damaged")


def item_of(
    sweep: str,
    name: str,
    ledger: Ledger,
    state: str,
    holder: int | None,
    about: Mapping[str, Any],
    reason: str,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the item of a sweep; ``holder`` is the process that has it, ``about`` its sweep.json."""
    created, best = ledger.created, ledger.best
    owner, why = mapping(about.get("owner")), why_not(sweep, state, holder, bool(ledger.closed))
    session = text(owner.get("session")) if holder in (None, owner.get("pid")) else ""
    notes = [
        *(["no process drives it any more"] if holder is None and state in ("lost", "paused") else []),
        *notes,
    ]
    return {
        "id": sweep,
        "name": name[:LONGEST_NAME],
        "state": state,
        "created": number(created.time) or 0.0,
        "metric": text(created.metric),
        "direction": created.direction,
        "wanted": ledger.wanted + len(ledger.trials) - ledger.sampled,  # clones are wanted as well
        "counts": dict(ledger.counts),
        "best": None if best is None else {
            "number": best.number,
            "value": jsonable(ledger.best_value),
            "parameters": jsonable(dict(list(best.parameters.items())[:MOST_PARAMETERS])),
        },
        "curve": best_so_far(ledger),
        "cluster": text(about.get("cluster")) or None,
        "session": session,
        "note": "; ".join(notes) or None,
        "error": shortened(reason) if state == "failed" else None,
        "attach": attach_code(sweep),
        "can": {command: command not in why for command in REMOTE},
        "why": why,
    }  # fmt: skip


def broken_item(sweep: str, name: str, why: str, about: Mapping[str, Any], changed: float) -> dict[str, Any]:
    """Return the item of a sweep whose log, last ``changed`` then, cannot be read."""
    return {
        "id": sweep,
        "name": name[:LONGEST_NAME],
        "state": "damaged",
        "created": changed,
        "metric": "",
        "direction": "max",
        "wanted": None,
        "counts": dict.fromkeys(STATES, 0),
        "best": None,
        "curve": {"x": [], "y": []},
        "cluster": text(about.get("cluster")) or None,
        "session": "",
        "note": None,
        "error": shortened(why),
        "attach": attach_code(sweep),
        "can": dict.fromkeys(REMOTE, False),
        "why": dict.fromkeys(REMOTE, "its log cannot be read"),
    }


def why_not(sweep: str, state: str, holder: int | None, closed: bool) -> dict[str, str]:
    """Return the commands that a sweep does not accept now, with the reason.

    The log has one writer: without a process that drives the sweep it accepts no command.

    >>> why_not("s1", "running", 42, closed=False)
    {'resume': 'it is not paused'}
    >>> why_not("s1", "lost", None, closed=False)["stop"]
    "no process drives it any more: nb.attach('s1') takes it over"
    """
    if state in OVER:
        return dict.fromkeys(REMOTE, "it has ended")
    if holder is None:
        return dict.fromkeys(REMOTE, f"no process drives it any more: {again(sweep)} takes it over")
    if closed:
        return dict.fromkeys(REMOTE, "it is being stopped: its last trials end")
    now, why = ("paused", "it is paused") if state == "paused" else ("running", "it is not paused")
    return {name: why for name, row in REMOTE.items() if row.needs not in ("", now)}


def best_so_far(ledger: Ledger) -> dict[str, list[float]]:
    """Return the best value by seconds since the sweep began: at most sixty points, the newest among them."""
    began = ledger.created.time
    points = [
        (round(at - began, 3), value)
        for at, _, value in ledger.improvements
        if math.isfinite(value) and math.isfinite(at - began)
    ]
    if points and math.inf > (end := round(ended_at(ledger) - began, 3)) > points[-1][0]:
        points.append((end, points[-1][1]))
    if len(points) > MOST_POINTS:
        last = len(points) - 1
        points = [points[index * last // (MOST_POINTS - 1)] for index in range(MOST_POINTS)]
    return {"x": [at for at, _ in points], "y": [rounded(value, DIGITS) for _, value in points]}
