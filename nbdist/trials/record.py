"""What is known of a sweep in the process that drives it: its log and its ledger, which always agree."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from nbdist.cluster.cluster import Cluster
from nbdist.sweep.eventlog import EventLog
from nbdist.sweep.events import Event, Started
from nbdist.sweep.ledger import Ledger
from nbdist.sweep.scheduler import Scheduler
from nbdist.trials.order import STATE, TrialOrder, trial_folder


class Record:
    """The log and the ledger of one sweep, for the driver and those who wish something; hold ``lock``.

    ``touched`` are the numbers of trials, one for each event that said something of one.
    """

    def __init__(self, folder: Path, log: EventLog, ledger: Ledger, cluster: Cluster | None) -> None:
        self.id, self.folder = folder.name, folder
        self.log, self.ledger, self.scheduler = log, ledger, Scheduler(ledger)
        self.lock = threading.RLock()
        self.touched: list[int] = []
        self.full = ""
        """Why nothing can be written now, if that is so."""
        self.cluster = cluster
        """The cluster that it runs on, if it has one."""
        self._synced = time.monotonic()

    def write(self, *events: Event) -> None:
        """Write events down, and take them in. Raises `ResourceExhaustedError` with nothing of them done."""
        if not events:
            return
        self.log.append(*events)
        for event in events:
            self.ledger.apply(event)
            number = getattr(event, "number", None)
            if number is not None:
                self.touched.append(number)

    def sync(self, every: float) -> None:
        """Bring the log to the disk, if that was not done for so many seconds."""
        now = time.monotonic()
        if now - self._synced >= every:
            self._synced = now
            self.log.sync()

    def order_for(self, started: Started) -> TrialOrder:
        """Return what engines are told of a trial that starts."""
        trial = self.ledger.trials[started.number]
        resume, epochs = "", None
        given = dict(trial.parameters)
        if trial.promotion is not None:
            changes = dict(trial.promotion.changes)
            if isinstance(more := changes.get("epochs"), int):
                epochs = more  # it wins over what the body says, also one that knows no such name
                if "epochs" not in given:
                    del changes["epochs"]
            given |= changes
            resume = trial.promotion.checkpoint
        return TrialOrder(trial.number, started.attempt, started.ranks, given, trial.seed, resume, epochs)

    def checkpoint(self, number: int) -> Path:
        """Return the file from which a trial can be continued; it may not be there."""
        return trial_folder(self.folder, number) / STATE

    @property
    def over(self) -> bool:
        """Whether nothing runs, and nothing more is to be done."""
        ledger = self.ledger
        if ledger.closed:
            return not ledger.running
        return self.scheduler.done

    @property
    def goes_on(self) -> bool:
        """Whether there is something to drive."""
        return not (self.over or (self.ledger.paused and not self.ledger.running))
