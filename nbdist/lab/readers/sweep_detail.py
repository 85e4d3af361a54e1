"""One sweep in full: what was asked of it, its best trials, and its grid as a page draws it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from nbdist.errors import NbdistError
from nbdist.lab.readers.files import is_id, look_home, mark_of
from nbdist.lab.readers.run_detail import Bundles
from nbdist.lab.readers.sweeps import OVER, Item, Sweeps
from nbdist.sweep.event_log import holder_of
from nbdist.sweep.state import Ledger
from nbdist.trials.store import LOG
from nbdist.ui.formatting import jsonable, shorten
from nbdist.ui.frozen.sweep import rows_of, sweep_data
from nbdist.ui.widgets.sweep_feed import EngineSeen

LIMIT = 200_000  # bytes of a bundle: it is stored in no notebook
LONGEST_CODE = 200_000


def sweep_details(sweep_id: str, sweeps: Sweeps | None = None) -> dict[str, Any]:
    """Return a sweep's item with its folder, code, seed, sampler, pruner, space, and its best trials as rows.

    Raises `NotFoundError`, `InvalidArgumentError`, `DataLossError` if its log cannot be read.
    """
    return _details.get(sweep_id, *seen(sweep_id, sweeps), lambda: details_of(sweep_id, sweeps))


def details_of(sweep_id: str, sweeps: Sweeps | None) -> dict[str, Any]:
    """Return what `sweep_details` does, from the log."""
    item, ledger = (sweeps or Sweeps()).whole(sweep_id)
    created = ledger.created
    home, _ = look_home()
    return {
        **item,
        "folder": str(home and home / "sweeps" / sweep_id),
        "code": shorten(created.body, LONGEST_CODE),
        "seed": str(created.seed),  # JavaScript would round it
        "sampler": str(created.sampler),
        "pruner": str(created.pruner),
        "per_trial": jsonable(created.per_trial),
        "space": str(ledger.space),
        "rows": jsonable(rows_of(ledger)),
    }


def sweep_bundle(sweep_id: str, sweeps: Sweeps | None = None) -> dict[str, Any]:
    """Return a sweep's grid: the content of ``application/vnd.nbdist.sweep+json``.

    As in a frozen output (see :mod:`nbdist.ui.frozen.sweep`), with more room. It may be some seconds old
    where the log is long.
    """
    return _bundles.get(
        sweep_id,
        *seen(sweep_id, sweeps),
        lambda: sweep_data(FoundSweep(*(sweeps or Sweeps()).whole(sweep_id)), LIMIT),
    )


def seen(sweep_id: str, sweeps: Sweeps | None) -> tuple[object, object]:
    """Return what differs when a sweep's log has grown, and what when it came to another state.

    Of one that is not there, or has no good id, both are new each time: who reads it says what is wrong.
    """
    home, _ = look_home()
    if home is None or not is_id(sweep_id):
        return object(), object()
    log = home / "sweeps" / sweep_id / LOG
    try:
        mark = mark_of(os.stat(log, follow_symlinks=False))
    except OSError:
        return object(), object()
    # Without a list that says where it stands, it may have come to its end with each event.
    state = None if sweeps is None else sweeps.state_of(sweep_id)
    return mark, (str(home), holder_of(log), state or mark)


@dataclass(frozen=True)
class FoundSweep:
    """A sweep as its log describes it, for views: see `nbdist.ui.widgets.sweep_feed.SweepSeen`."""

    item: Item
    ledger: Ledger

    @property
    def id(self) -> str:
        """What it is attached to by."""
        return str(self.item["id"])

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self.item["name"])

    @property
    def state(self) -> str:
        """Where it stands; one that nobody drives any more has stopped."""
        return "stopped" if self.item["state"] == "lost" else str(self.item["state"])

    @property
    def over(self) -> bool:
        """Whether nothing happens any more."""
        return self.state in OVER

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Nothing: the ledger is nobody else's."""
        return nullcontext()

    @property
    def touched(self) -> Sequence[int]:
        """Nothing: all of it is told at once."""
        return ()

    @property
    def trouble(self) -> str | None:
        """What is to be said of it."""
        note = self.item["note"]
        return None if note is None else str(note)

    @property
    def error(self) -> NbdistError | None:
        """What ended it, if something did."""
        return NbdistError(str(self.item["error"])) if self.item["error"] else None

    @property
    def engine_names(self) -> Mapping[int, str]:
        """Nothing: they go by their ranks."""
        return {}

    def engines(self) -> Sequence[EngineSeen]:
        """Return none: what they are at just now only the driver knows."""
        return ()


_bundles, _details = Bundles(), Bundles()
