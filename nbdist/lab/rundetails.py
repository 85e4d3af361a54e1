"""One run in full: what its run.json says, its files, and its curves as a page draws them."""

from __future__ import annotations

import os
import re
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from nbdist.errors import NotAllowedError, NotFoundError
from nbdist.lab.bundles import Bundles
from nbdist.lab.files import list_files
from nbdist.lab.homefolder import look_home
from nbdist.lab.logstore import filled
from nbdist.lab.opening import open_regular, read_bounded
from nbdist.lab.record import GOING, LONGEST, Record, listed, record_of
from nbdist.lab.runs import Item, Runs
from nbdist.metrics.store import RunStore
from nbdist.runs.options import Options
from nbdist.ui.chartplan import Chart, plan_charts
from nbdist.ui.jsonable import jsonable
from nbdist.ui.magicflags import DISTRIBUTE_FLAGS
from nbdist.ui.rundata import run_data
from nbdist.ui.shorten import shorten
from nbdist.ui.summary import Summary
from nbdist.ui.transcript import Transcript

LIMIT = 200_000  # bytes of a bundle: it is stored in no notebook
LONGEST_CODE = 200_000
LONGEST_OUTPUT = 20_000  # bytes of each task's output: its end
MOST_OUTPUTS = 16  # tasks


def run_details(run_id: str, runs: Runs | None = None) -> dict[str, Any]:
    """Return a run's item with its code, seed, versions, options, the names of its tasks, and its files.

    Raises `NotFoundError`, `InvalidArgumentError`.
    """
    item = (runs or Runs()).item(run_id)
    record = record_in(item)
    return {
        **item,
        "code": shorten(record.code, LONGEST_CODE),
        "first_line": first_line(record),
        "output": outputs(Path(item["folder"]), record),
        "seed": record.seed,
        "versions": jsonable(record.versions),
        "options": jsonable(record.options),
        "tasks": list(record.tasks),
        "files": list_files(run_id),
    }


def first_line(record: Record) -> str:
    """Return the line that starts this run as a cell; "" for the body of a function.

    >>> first_line(Record("r", "finished", 0.0, code="x = 1", options={"strategy": "ps", "seed": 7}))
    '%%distribute --strategy ps --seed 7'
    """
    if re.fullmatch(r"[\w.<>]+", record.code.strip()):  # the name of a function
        return ""
    defaults = {one.name: one.default for one in fields(Options)}
    words = ["%%distribute"]
    for name, flag in DISTRIBUTE_FLAGS.items():
        value = record.options.get(flag.option)
        if value is None or value == defaults.get(flag.option) or flag.option == "name":
            continue
        if flag.option == "synchronous" and not record.options.get("strategy"):
            continue  # a plain cell
        if flag.read is None:
            words += [name] if value == flag.value else []
        elif not isinstance(value, bool) and value not in ([], ()):
            told = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            words.append(f"{name} {told}")
    return " ".join(words)


def outputs(folder: Path, record: Record) -> list[dict[str, str]]:
    """Return the "task" and the end of the "text" of each task's output, if it has any.

    Carriage returns are applied; of terminal codes those of colours stay.
    """
    ranks = [0] if record.in_graph else list(record.workers)
    found = []
    for rank in ranks[:MOST_OUTPUTS]:
        try:
            descriptor, status = open_regular(folder / f"output-{rank:04d}.log")
        except (OSError, NotAllowedError):
            continue
        with os.fdopen(descriptor, "rb") as file:
            file.seek(max(0, status.st_size - LONGEST_OUTPUT))
            text = file.read(LONGEST_OUTPUT).decode("utf-8", "replace")
        if text:
            task = "/job:client/task:0" if record.in_graph else record.names.get(rank, f"rank {rank}")
            transcript = Transcript()
            transcript.append(text)
            found.append({"task": task, "text": transcript.text()})
    return found


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
        state=item["status"],
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
