"""One sweep in full: its settings, its best trials, and the bundle from which a page draws its grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from nbdist.errors import NbdistError
from nbdist.lab.readers.files import find_home, mark_of, read_object
from nbdist.lab.readers.run_detail import BundleCache
from nbdist.lab.readers.sweeps import OVER, Item, Sweeps
from nbdist.metrics.run_folder import is_id
from nbdist.sweep.event_log import holder_of
from nbdist.sweep.state import Ledger
from nbdist.trials.store import ABOUT, LOG, MOST_ABOUT, engine_names_in
from nbdist.ui.formatting import jsonable, shorten
from nbdist.ui.frozen.sweep import rows_of, sweep_data, sweep_output

if TYPE_CHECKING:
    from nbdist.trials.workers import EngineStatus

LIMIT = 200_000  # bytes of a bundle; larger than in a notebook, because it is not saved
LONGEST_CODE = 200_000


def sweep_details(sweep_id: str, sweeps: Sweeps | None = None) -> dict[str, Any]:
    """Return a sweep's item with its folder, code, seed, sampler, pruner, space, and its best trials as rows.

    Raises `NotFoundError`, `InvalidArgumentError`, `DataLossError` if its log cannot be read.
    """
    return _details.get(sweep_id, *cache_keys(sweep_id, sweeps), lambda: details_of(sweep_id, sweeps))


def details_of(sweep_id: str, sweeps: Sweeps | None) -> dict[str, Any]:
    """Return the details of a sweep from its log."""
    item, ledger = (sweeps or Sweeps()).read_all(sweep_id)
    created = ledger.created
    home, _ = find_home()
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

    As in a frozen output (see :mod:`nbdist.ui.frozen.sweep`), with more trials. Of a long log it may be some
    seconds old.
    """
    return _bundles.get(
        sweep_id,
        *cache_keys(sweep_id, sweeps),
        lambda: sweep_data(SavedSweep(*(sweeps or Sweeps()).read_all(sweep_id)), LIMIT),
    )


def sweep_saved(sweep_id: str, sweeps: Sweeps | None = None) -> dict[str, Any]:
    """Return the output of a sweep as a notebook saves it, without a picture, and whether it is over."""
    sweep = SavedSweep(*(sweeps or Sweeps()).read_all(sweep_id))
    return {"over": sweep.over, "data": sweep_output(sweep)}


def cache_keys(sweep_id: str, sweeps: Sweeps | None) -> tuple[object, object]:
    """Return (stamp, state) of a sweep for `BundleCache`: the stamp changes with each event in its log.

    For a missing sweep or an invalid id both are unique, so that nothing is cached and the reader raises.
    """
    home, _ = find_home()
    if home is None or not is_id(sweep_id):
        return object(), object()
    log = home / "sweeps" / sweep_id / LOG
    try:
        mark = mark_of(os.stat(log, follow_symlinks=False))
    except OSError:
        return object(), object()
    # If the state is unknown, any event may have ended the sweep.
    state = None if sweeps is None else sweeps.state_of(sweep_id)
    return mark, (str(home), holder_of(log), state or mark)


class SavedSweep:
    """A sweep read from its log, with the interface `nbdist.ui.widgets.sweep_feed.SweepSeen`."""

    def __init__(self, item: Item, ledger: Ledger) -> None:
        self.id, self.name, self.ledger = str(item["id"]), str(item["name"]), ledger
        self.state = "stopped" if item["state"] == "lost" else str(item["state"])
        """Its state; a sweep without a driving process counts as stopped."""
        self.over = self.state in OVER
        self.trouble = None if item["note"] is None else str(item["note"])
        self.error = NbdistError(str(item["error"])) if item["error"] else None
        # No other thread has this ledger, the whole sweep is sent at once, and only a driver knows engines.
        self.lock, self.touched = nullcontext(), ()
        self.engines: Callable[[], Sequence[EngineStatus]] = tuple

    @property
    def engine_names(self) -> Mapping[int, str]:
        """The names of the engines with which it began; others are named by their ranks."""
        home, _ = find_home()
        folder = None if home is None else home / "sweeps" / self.id
        return {} if folder is None else engine_names_in(read_object(folder / ABOUT, MOST_ABOUT))


_bundles, _details = BundleCache(), BundleCache()
