"""The sweeps of this user, read from their folders; no kernel receives a request.

sweeps = Sweeps()
items = sweeps.poll()       # call it repeatedly; the caches are those of `runs`
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbdist.errors import DataLossError, NbdistError, NotFoundError
from nbdist.json_values import mapping, number, text
from nbdist.lab.readers import files
from nbdist.lab.readers.run_curves import Budget
from nbdist.lab.readers.run_record import (
    LONGEST_ERROR,
    LONGEST_NAME,
    attach_call,
    attach_code,
    rounded,
)
from nbdist.sweep.commands import REMOTE
from nbdist.sweep.event_log import FORMAT, EventLogPart, holder_of, parse
from nbdist.sweep.events import Closed, Created
from nbdist.sweep.scheduler import state_of
from nbdist.sweep.state import STATES, Ledger
from nbdist.text import cut_middle
from nbdist.trials.store import ABOUT, LOG, MOST_ABOUT
from nbdist.ui.formatting import jsonable
from nbdist.ui.widgets.sweep_feed import ended_at

MAX_SWEEPS = 100  # the newest sweeps are listed
LOG_BYTES = 2 << 20  # of all logs together, per poll
MAX_LOG_BYTES = 256 << 20  # of one log, for `read_all`
Item = files.Item


class Sweeps(files.FolderItems["SweepCache"]):
    """Lists sweeps; may be used from any thread."""

    def __init__(self) -> None:
        super().__init__("sweeps", MAX_SWEEPS, SweepCache)

    def poll(self) -> list[Item]:
        """Return the newest sweeps, newest first, as plain JSON; an unchanged item is the same object.

        No content of a folder raises an error. A sweep with a long log appears after the polls that read it.
        """
        budget = Budget(LOG_BYTES)
        with self._lock:
            return self._read(lambda _, sweep: sweep.poll(budget))

    def state_of(self, sweep_id: str) -> str | None:
        """Return the state of a sweep at the last poll, None if it was not listed."""
        with self._lock:
            sweep = self._cache.get(sweep_id)
            return None if sweep is None or sweep.item is None else str(sweep.item["state"])

    def read_all(self, sweep_id: str) -> tuple[Item, Ledger]:
        """Return one sweep's item and its full ledger, which belongs to the caller.

        Raises `NotFoundError`, `InvalidArgumentError`, and `DataLossError` if its log cannot be read.
        """
        files.check_id("sweep", sweep_id)
        with self._lock:
            folder, _ = self._open()
        if folder is not None:
            sweep = SweepCache(folder / sweep_id)
            sweep.poll(Budget(MAX_LOG_BYTES), keep=True)
            if sweep.item is not None and not sweep.removed:
                if sweep.ledger is None:
                    raise DataLossError(f"sweep {sweep_id} cannot be read: {sweep.item['error']}")
                return sweep.item, sweep.ledger
        raise NotFoundError(f"no sweep {sweep_id!r} in {folder or 'NBDIST_HOME, which does not exist'}")


# The cache of one sweep's folder: a poll reads only new records of its log.
#
#     sweep.log         every event; the ledger is computed from them, as in the driver
#     sweep.log.lock    held by the process that drives the sweep
#     sweep.json        its name, its cluster
#
# Of a finished sweep only the item is kept: a poll costs one `stat`, and `Sweeps.read_all` reads the log
# again.

WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, NbdistError)


class SweepCache:
    """The cache of one sweep: ``item`` is its item in the panel, None before its log is read.

    `poll` raises no error for any content of the folder; ``removed`` is True if the log does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.removed = folder, False
        self.item: dict[str, Any] | None = None
        self.ledger: Ledger | None = None
        """The state of its trials; None before its log is read, and after its end."""
        self._begin()

    def _begin(self) -> None:
        self.ledger = None
        self.reason = ""
        """The reason why it was closed, if it was."""
        self.holder: int | None = None
        self._tail = files.Tail[EventLogPart](self.folder / LOG, FORMAT, parse)
        self._mark: files.Mark | None = None
        self._over = False
        self._about: Mapping[str, Any] = {}
        self._about_mark: files.Mark | None = None
        self._unread = 0

    def poll(self, budget: Budget, keep: bool = False) -> None:
        """Read new events within the budget; with ``keep`` the ledger is kept also after the sweep's end."""
        try:
            mark = files.mark_of(os.stat(self.folder / LOG, follow_symlinks=False))
            if self._over:
                if mark == self._mark and not (keep and self.ledger is None):
                    return
                self._begin()  # trials were added, or the caller needs the ledger
            self._mark = mark
            self._read(budget)
            if self._tail.left:  # wait for the whole log: the numbers of a part are wrong
                return
            self._read_about()
            self._update(keep)
        except (FileNotFoundError, NotADirectoryError):
            self.removed = True
        except files.ReplacedError:
            self._begin()
        except OSError as error:  # transient: read it again at the next poll
            self._break(f"{self.folder.name} cannot be read: {error.strerror or error}")
            self._mark = None

    @property
    def name(self) -> str:
        """Its display name."""
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
                self._tail.error = f"its log has an invalid event: {type(error).__name__}: {error}"

    def _apply(self, part: EventLogPart) -> None:
        for event in part.events:
            if self.ledger is None:
                if not isinstance(event, Created):
                    raise ValueError("its first record is lost, and the others are useless without it")
                self.ledger = Ledger(event)
                continue
            self.ledger.apply(event)
            if isinstance(event, Closed):
                self.reason = event.reason

    def _read_about(self) -> None:
        try:
            mark = files.mark_of(os.stat(self.folder / ABOUT, follow_symlinks=False))
        except OSError:
            self._about = {}
            return
        if mark != self._about_mark:
            self._about = files.read_object(self.folder / ABOUT, MOST_ABOUT)
            self._about_mark = mark if self._about else None

    def _update(self, keep: bool) -> None:
        if self._tail.error:
            self._break(self._tail.error)
            return
        if self.ledger is None:  # the log was just created, or its creator died
            return
        self.holder = holder_of(self.folder / LOG)
        try:
            state = state_of(self.ledger, self.holder is not None, self.reason)
            lost = EventLogPart(torn=self._tail.torn, damaged=self._tail.damaged, unread=self._unread)
            notes = [note for note in (lost.complaint(),) if note and self.holder is None]
            item = item_of(
                self.folder.name, self.name, self.ledger, state, self.holder, self._about, self.reason, notes
            )
        except WRONG as error:
            self._break(f"its log has an invalid event: {type(error).__name__}: {error}")
            return
        if item != self.item:
            self.item = item
        if state in FINAL:
            self._over = True
            if not keep:
                self.ledger = None

    def _break(self, why: str) -> None:
        self.ledger, self._over = None, True
        changed = 0.0 if self._mark is None else self._mark[0] / 1e9
        self.item = broken_item(self.folder.name, self.name, why, self._about, changed)


# The item of a sweep in the sidebar: its progress and best trial, as plain JSON. Pure.

MOST_POINTS = 60  # points of a curve
MOST_PARAMETERS = 50
DIGITS = 6
OVER = ("finished", "stopped", "failed")
FINAL = (*OVER, "damaged")


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
        "wanted": ledger.wanted + len(ledger.trials) - ledger.sampled,  # clones count too
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
        "error": cut_middle(reason, LONGEST_ERROR) if state == "failed" else None,
        "attach": attach_code(sweep),
        "can": {command: command not in why for command in REMOTE},
        "why": why,
    }  # fmt: skip


def broken_item(sweep: str, name: str, why: str, about: Mapping[str, Any], changed: float) -> dict[str, Any]:
    """Return the item of a sweep with an unreadable log, last modified at ``changed``."""
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
        "error": cut_middle(why, LONGEST_ERROR),
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
        return dict.fromkeys(REMOTE, f"no process drives it any more: {attach_call(sweep)} takes it over")
    if closed:
        return dict.fromkeys(REMOTE, "it is being stopped: its last trials end")
    now, why = ("paused", "it is paused") if state == "paused" else ("running", "it is not paused")
    return {name: why for name, row in REMOTE.items() if row.needs not in ("", now)}


def best_so_far(ledger: Ledger) -> dict[str, list[float]]:
    """Return the best value by seconds since the sweep began: at most sixty points, the newest among them."""
    points = [
        (round(ledger.elapsed(at), 3), value)
        for at, _, value in ledger.improvements
        if math.isfinite(value) and math.isfinite(ledger.elapsed(at))
    ]
    if points and math.inf > (end := round(ledger.elapsed(ended_at(ledger)), 3)) > points[-1][0]:
        points.append((end, points[-1][1]))
    if len(points) > MOST_POINTS:
        last = len(points) - 1
        points = [points[index * last // (MOST_POINTS - 1)] for index in range(MOST_POINTS)]
    return {"x": [at for at, _ in points], "y": [rounded(value, DIGITS) for _, value in points]}
