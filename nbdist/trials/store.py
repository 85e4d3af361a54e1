"""What is known of a sweep in the process that drives it: its log and its ledger, which always agree."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.cluster.folder import describe_process
from nbdist.errors import DataLossError, InvalidArgumentError, NotFoundError
from nbdist.home import home, private_folder, refuse_link
from nbdist.metrics.run_folder import slug, write_whole_file
from nbdist.sweep.event_log import EventLog, holder_of
from nbdist.sweep.events import Event, Started
from nbdist.sweep.scheduler import Scheduler
from nbdist.sweep.state import Ledger
from nbdist.trials.protocol import TrialSpec, state_file, trial_folder

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster


class Record:
    """The log and the ledger of one sweep, for the driver and for commands; hold ``lock``.

    ``touched`` are the numbers of trials, one for each event about a trial.
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

    def trial_spec(self, started: Started) -> TrialSpec:
        """Return the description of a starting trial that its engines receive."""
        trial = self.ledger.trials[started.number]
        resume = trial.promotion.checkpoint if trial.promotion is not None else ""
        return TrialSpec(
            trial.number, started.attempt, started.ranks, trial.given, trial.seed, resume, trial.epochs,
            state_file(trial.trainings),
        )  # fmt: skip

    def checkpoint(self, number: int) -> Path:
        """Return the file from which a trial can be continued; it may not be there."""
        return trial_folder(self.folder, number) / state_file(self.ledger.trials[number].trainings)

    @property
    def over(self) -> bool:
        """Whether nothing runs, and nothing more is to be done."""
        ledger = self.ledger
        if ledger.closed:
            return not ledger.running
        return self.scheduler.done

    @property
    def has_work(self) -> bool:
        """Whether there is something to drive."""
        return not (self.over or (self.ledger.paused and not self.ledger.running))


# Sweep folders: ``<home>/sweeps/<id>/`` with the event log, ``sweep.json`` and a folder for each trial.

LOG = "sweep.log"
ABOUT = "sweep.json"
MOST_ABOUT = 1 << 20  # bytes
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")


def sweeps_folder() -> Path:
    """Return the folder of all sweeps, made with mode 0700 if it is not there."""
    return private_folder(home() / "sweeps")


def new_sweep_folder(name: str) -> Path:
    """Make the folder of a new sweep; its id sorts by time (UTC), as a run's does."""
    base = f"{time.strftime('%y%m%d-%H%M%S', time.gmtime())}-{slug(name)}"
    for number in count(1):
        folder = sweeps_folder() / (base if number == 1 else f"{base}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("count() has no end")


def sweep_folder(sweep: str) -> Path:
    """Return the folder of a sweep; raises `NotFoundError` with those there are."""
    if not _ID.fullmatch(sweep):
        raise InvalidArgumentError(f"{sweep!r:.80} is not the id of a sweep; nb.sweeps() lists them")
    folder = sweeps_folder() / sweep
    refuse_link(folder)
    if not (folder / LOG).exists():
        there = ", ".join(sweeps()[-5:]) or "none"
        raise NotFoundError(f"no sweep {sweep}; the latest are {there}")
    return folder


def is_sweep(sweep: str) -> bool:
    """Whether this is the id of a sweep that has a log."""
    return bool(_ID.fullmatch(sweep)) and (sweeps_folder() / sweep / LOG).exists()


def driven_by_another(sweep: str) -> str | None:
    """Return which other living process drives a sweep, in words; None if none does."""
    folder = sweeps_folder() / sweep
    pid = holder_of(folder / LOG)
    if pid is None or pid == os.getpid():
        return None
    owner: dict[str, Any] = {}
    with suppress(DataLossError):
        owner = read_about(folder).get("owner", {})
    if owner.get("pid") == pid:
        return describe_process(owner)
    return f"process {pid}" if pid else "another process"


def sweeps() -> list[str]:
    """Return the ids of all sweeps, the oldest first.

    ``nb.attach(id)`` opens one, also years later.
    """
    return sorted(path.parent.name for path in sweeps_folder().glob(f"*/{LOG}"))


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write what is to be known of a sweep beside its log; whole, or not at all."""
    write_whole_file(folder / ABOUT, json.dumps(dict(about)).encode())


def engine_names_in(about: Mapping[str, Any]) -> dict[int, str]:
    """Return the task names of a sweep's first engines by rank, from what `write_about` wrote.

    >>> engine_names_in({"names": {"0": "/job:worker/task:0", "x": "y", "1": 7}})
    {0: '/job:worker/task:0'}
    """
    names = about.get("names")
    found = names.items() if isinstance(names, dict) else ()
    return {
        int(rank): name[:80]
        for rank, name in found
        if rank.isdecimal() and len(rank) < 9 and isinstance(name, str)
    }


def read_about(folder: Path) -> dict[str, Any]:
    """Return what `write_about` wrote; raises `DataLossError` if it cannot be read."""
    path = folder / ABOUT
    try:
        with path.open("rb") as file:
            data = file.read(MOST_ABOUT + 1)
        found = json.loads(data) if len(data) <= MOST_ABOUT else None
    except (OSError, ValueError) as error:
        raise DataLossError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise DataLossError(f"{path} is not the description of a sweep")
    return found
