"""The sweeps of this user: ``nb.sweeps()``.

id                    name       status    started           duration  trials    best
261122-151752-mnist   mnist [3]  finished  2026-11-22 15:17  1.4 s     60 of 60  accuracy 0.8854 (trial 4)
261122-141002-digits  digits     paused    2026-11-22 14:10            12 of 24  val_loss 0.31 (trial 2)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from nbdist.errors import NbdistError
from nbdist.metrics.run_folder import duration
from nbdist.run.history import MOST_SHOWN, TableList
from nbdist.sweep.event_log import holder_of, read_events
from nbdist.sweep.events import Closed
from nbdist.sweep.scheduler import state_of
from nbdist.sweep.state import Ledger
from nbdist.trials.store import LOG, read_about, sweep_folder
from nbdist.trials.store import sweeps as sweep_ids

LONGEST_TEXT = 80  # characters of a cell
OVER = ("finished", "stopped", "failed")


class ListedSweep:
    """A sweep of ``nb.sweeps()``: the content of its log, read at the first use.

    ``status`` is "running", "paused", "finished", "stopped", "failed", "lost" (no process drives it; attach
    to it to continue) or "damaged". ``nb.attach(sweep.id)`` opens it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.id = folder, folder.name

    @cached_property
    def name(self) -> str:
        """Its name; the id if the name cannot be read."""
        try:
            return str(read_about(self.folder).get("name") or self.id)
        except NbdistError:
            return self.id

    @cached_property
    def _read(self) -> tuple[Ledger | None, str, str]:
        """Return (ledger, status, error)."""
        try:
            events = read_events(self.folder / LOG).events
            ledger = Ledger.of(events)
        except (NbdistError, OSError) as error:
            return None, "damaged", str(error)
        reason = next((one.reason for one in reversed(events) if isinstance(one, Closed)), "")
        status = state_of(ledger, holder_of(self.folder / LOG) is not None, reason)
        return ledger, status, reason if status == "failed" else ""

    @property
    def ledger(self) -> Ledger | None:
        """The state that its log records; None if the log cannot be read."""
        return self._read[0]

    @property
    def status(self) -> str:
        """Its state, see the class."""
        return self._read[1]

    @property
    def error(self) -> str:
        """The reason for its failure, or for a log that cannot be read; else empty."""
        return self._read[2]

    @property
    def created(self) -> float | None:
        """When it started, in seconds since 1970."""
        return None if self.ledger is None else self.ledger.created.time

    @property
    def seconds(self) -> float | None:
        """The time from its start to its last trial's end, without idle time; None until it has ended."""
        if self.ledger is None or self.status not in OVER or not self.ledger.spans:
            return None
        return self.ledger.elapsed(self.ledger.spans[-1].end)

    @property
    def metric(self) -> str:
        """The metric by which its trials are compared."""
        return "" if self.ledger is None else self.ledger.created.metric

    @property
    def best(self) -> float | None:
        """The best value of a finished trial; None without one."""
        return None if self.ledger is None else self.ledger.best_value

    def __repr__(self) -> str:
        return f"<{self.id}: {self.status}, {_trials(self)}>"


class SweepList(TableList[ListedSweep]):
    """The sweeps of ``nb.sweeps()``."""

    none = "no sweeps yet"
    older = f"nb.sweeps()[{MOST_SHOWN}:]"
    opens = "nb.attach(id) opens a sweep"

    def cells(self, rows: list[ListedSweep]) -> list[tuple[str, ...]]:
        """Return the cells of a table of sweeps."""
        return table(rows)


def sweeps() -> SweepList:
    """Return the sweeps of this user, the newest first; one with an unreadable log has status "damaged".

    ``nb.attach(id)`` opens one. Runs in the client::

        nb.sweeps()            # a table
        nb.sweeps()[0].best    # of the newest sweep
    """
    return SweepList(ListedSweep(sweep_folder(one)) for one in reversed(sweep_ids()))


def table(found: Sequence[ListedSweep]) -> list[tuple[str, ...]]:
    """Return the cells of a table of sweeps, headings first; errors only if there are some."""
    rows: list[tuple[str, ...]] = [("id", "name", "status", "started", "duration", "trials", "best", "error")]
    rows += [_row(sweep) for sweep in found]
    return rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]


def _row(sweep: ListedSweep) -> tuple[str, ...]:
    found = None if sweep.ledger is None else sweep.ledger.best
    best = "" if found is None else f"{sweep.metric} {sweep.best:.4g} (trial {found.number})"
    created = sweep.created
    cells = (
        sweep.id,
        sweep.name,
        sweep.status,
        "" if created is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(created)),
        "" if sweep.seconds is None else duration(sweep.seconds),
        _trials(sweep),
        best,
        sweep.error.partition("\n")[0],
    )
    return tuple(" ".join(cell.split())[:LONGEST_TEXT] for cell in cells)


def _trials(sweep: ListedSweep) -> str:
    ledger = sweep.ledger
    if ledger is None:
        return ""
    over = len(ledger.trials) - ledger.counts["waiting"] - ledger.counts["running"]
    return f"{over:,} of {ledger.wanted + len(ledger.trials) - ledger.sampled:,}"
