"""One run in full: what its run.json says, its files, and its curves as a page draws them."""

from __future__ import annotations

import time
from typing import Any

from nbdist.errors import NotFoundError
from nbdist.lab.bundles import Bundles
from nbdist.lab.files import list_files
from nbdist.lab.homefolder import look_home
from nbdist.lab.logstore import filled
from nbdist.lab.opening import read_bounded
from nbdist.lab.record import GOING, LONGEST, Record, listed, record_of
from nbdist.lab.runs import Item, Runs
from nbdist.metrics.store import RunStore
from nbdist.ui.chartplan import Chart, plan_charts
from nbdist.ui.jsonable import jsonable
from nbdist.ui.rundata import run_data
from nbdist.ui.shorten import shorten
from nbdist.ui.summary import Summary

LIMIT = 200_000  # bytes of a bundle: it is stored in no notebook
LONGEST_CODE = 200_000
SAID = {"done": "finished"}
"""States as a frozen output names them, where that differs from a run's status."""


def run_details(run_id: str, runs: Runs | None = None) -> dict[str, Any]:
    """Return a run's item with its code, seed, versions, options, the names of its tasks, and its files.

    Raises `NotFoundError`, `InvalidArgumentError`.
    """
    item = (runs or Runs()).item(run_id)
    record = record_in(item)
    return {
        **item,
        "code": shorten(record.code, LONGEST_CODE),
        "seed": record.seed,
        "versions": jsonable(record.versions),
        "options": jsonable(record.options),
        "tasks": list(record.tasks),
        "files": list_files(run_id),
    }


def run_bundle(run_id: str, runs: Runs | None = None) -> dict[str, Any]:
    """Return a run's curves and summary: the content of ``application/vnd.nbdist.run+json``.

    As in a frozen output (see :mod:`nbdist.ui.rundata`), with more points. It may be some seconds old where
    the logs are long.
    """
    item = (runs or Runs()).item(run_id)
    files = {
        one["path"]: (one["bytes"], one["modified"]) for one in list_files(run_id) if is_told(one["path"])
    }
    home, _ = look_home()
    mark = item["note"], sorted(files.items())
    return _bundles.get(run_id, mark, (str(home), item["status"]), lambda: bundle_of(item, record_in(item)))


def bundle_of(item: Item, record: Record) -> dict[str, Any]:
    """Return the bundle of a run, from its logs."""
    try:
        store, left_out = filled(item["folder"])
    except OSError as error:
        raise NotFoundError(f"run {item['id']} has just gone: {error.strerror}") from None
    wanted = [name for name in listed(record.options.get("live")) if isinstance(name, str)]
    charts = plan_charts(store.series, wanted or None) or plan_charts(store.series)
    return run_data(store, charts, summary_of(item, record, store, charts, left_out), LIMIT)


def summary_of(item: Item, record: Record, store: RunStore, charts: list[Chart], more: list[str]) -> Summary:
    """Return what a run has come to so far."""
    end = time.time() if item["status"] in GOING else item["ended"]
    seconds = max(0.0, end - item["created"]) if end is not None else None
    rate = item["steps_per_second"]
    if rate is None and item["step"] and seconds:
        rate = item["step"] / seconds
    finals = {name: values[-1] for chart in charts for name in chart.names
              if len(values := store.aggregate(name)[1])}  # fmt: skip
    alone = item["replicas"] == 1 or record.synchronous
    return Summary(
        run_id=item["id"],
        title=item["name"],
        state=SAID.get(item["status"]) or item["status"],
        tasks=[record.names.get(rank, f"rank {rank}") for rank in record.workers] or list(record.tasks),
        step=item["step"],
        seconds=seconds,
        steps_per_second=rate,
        unit="steps" if alone else "updates",
        metrics={name: float(value) for name, value in finals.items()},
        remarks=[*([item["note"]] if item["note"] else []), *more],
    )


def record_in(item: Item) -> Record:
    """Return what the run.json of a listed run says."""
    home, _ = look_home()
    assert home is not None  # else there was no item
    content = b""
    if item["status"] != "damaged":
        try:
            content = read_bounded(home / "runs" / item["id"] / "run.json", LONGEST)
        except OSError as error:
            raise NotFoundError(f"run {item['id']} has just gone: {error.strerror}") from None
    return record_of(item["id"], content, item["created"])


def is_told(path: str) -> bool:
    """Return whether a bundle is made of what stands in a file."""
    return "/" not in path and path.startswith(("metrics-", "progress-", "run.json"))


_bundles = Bundles()
