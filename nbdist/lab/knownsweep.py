"""What is remembered of one sweep's folder, so that a look reads only what its log says anew.

    sweep.log         every event; the ledger is worked out from them, as the driver's own is
    sweep.log.lock    held by the process that drives the sweep
    sweep.json        its name, its cluster

Of a sweep that is over only the item is kept: a look costs one `stat`, and who wants more has it read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbdist.errors import NbdistError
from nbdist.lab.curves import Budget
from nbdist.lab.opening import Mark, mark_of, read_bounded
from nbdist.lab.record import mapping, text
from nbdist.lab.sweepitem import DONE, broken_item, item_of
from nbdist.lab.tail import ReplacedError, Tail
from nbdist.sweep.eventlog import holder_of
from nbdist.sweep.eventreader import FORMAT, LogPart, parse
from nbdist.sweep.events import Closed, Created
from nbdist.sweep.ledger import Ledger
from nbdist.sweep.scheduler import state_of
from nbdist.trials.folder import ABOUT, LOG, MOST_ABOUT

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
