"""The output of a run in a saved notebook: picture, table, text and data. It needs no kernel.

`frozen(store, summary)` returns a MIME bundle of less than 150 kB for any run:

- ``image/png``: the curves, if there are any
- ``text/html``: the same picture, small tables, and what each task printed; all of it escaped
- ``text/plain``: the tables and the output as text
- ``application/vnd.nbdist.run+json``: the summary and the downsampled curves (`run_data`); a cell
  without training has only its output

A note marks each place where content was cut.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from numpy.typing import NDArray

from nbdist.metrics.store import RunStore
from nbdist.text import clip
from nbdist.ui.formatting import Room, first_of, jsonable, well_formed
from nbdist.ui.frozen.render import html, text
from nbdist.ui.frozen.run_figure import columns_of, picture
from nbdist.ui.frozen.summary import Summary, axis_words, is_plain
from nbdist.ui.gpus import fewer_points
from nbdist.ui.pictures import SAVED_LIMIT, fewer, size
from nbdist.ui.widgets.run_feed import Chart, clock_of, course, epochs_of, plan_charts

RUN = "application/vnd.nbdist.run+json"
# Bytes in a notebook file. A picture is stored twice, in base64; HTML and text each take their limits. The
# curves take the rest.
LARGEST = 148_000
PICTURE_LIMIT = 32_000
BESIDE_A_PICTURE = Room(error=4_000, metrics=2_500, rows=3_000, outputs=7_000)
ALONE = Room(error=15_000, metrics=3_000, rows=6_000, outputs=32_000)


def frozen(store: RunStore, summary: Summary, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the MIME bundle of a finished run; ``wanted`` names its charts, as ``--live`` does."""
    charts = plan_charts(store.series, wanted) or plan_charts(store.series)
    axis = axis_words(summary.unit, len(summary.tasks))
    png = None
    if charts:
        png = picture(
            store, charts, summary.tasks, limit=PICTURE_LIMIT, axis=axis, marks=summary.marks,
            ended_replicas=summary.ended_replicas,
        )  # fmt: skip
    return run_output(store, charts, summary, png)


def run_output(
    store: RunStore, charts: Sequence[Chart], summary: Summary, png: bytes | None = None
) -> dict[str, Any]:
    """Return the MIME bundle of a run with these charts; the Jupyter server makes it without a picture."""
    room = BESIDE_A_PICTURE if png else ALONE
    encoded = None if png is None else base64.b64encode(png).decode("ascii")
    bundle: dict[str, Any] = {} if encoded is None else {"image/png": encoded}
    bundle["text/html"] = well_formed(html(summary, encoded, room, columns_of(len(charts))))
    bundle["text/plain"] = well_formed(text(summary, room))
    if charts or summary.pictures or not is_plain(summary):
        data = run_data(store, charts, summary, limit=LARGEST - size(bundle))
        bundle[RUN] = well_formed(data)
    return bundle


# The data of a frozen output, from which a page redraws it: `application/vnd.nbdist.run+json`.
#
#     {"version": 1, "run": "...", "title": "...", "state": "finished", "tasks": [...], "step": 500,
#      "epoch": 2, "unit": "steps", "seconds": 3.2, "elapsed": 9.5, "steps_per_second": 156.0, "total": 500,
#      "checkpoint": null,
#      "marks": [{"time": 1.7e9, "step": 120, "kind": "rate", "text": "learning rate 0.1 → 0.01", "epoch": 3,
#                 "rank": 0}],
#      "remarks": ["worker 1 was lost"], "metrics": {"loss": 0.12},
#      "charts": [{"title": "loss", "train": "loss", "validation": "val_loss"}],
#      "trained_on": "2 workers on CPU (8 cores)", "warning": "",
#      "input": {"task": "worker 0", "verdict": "map(decode) is the bottleneck: ...", "advice": [...],
#                "rows": [{"stage": "map(decode)", "elements/s": "947", "busy": "99%", ...}]},
#      "gpus": [{"replica": 0, "model": "NVIDIA H100", "id": "GPU-8f3a...", "total": 85899345920,
#                "use": {"seconds": "0 1 2", "values": "0 87 91"}, "memory": {...}, ...}],
#      "pictures": [{"task": "worker 0", "tag": "weights", "kind": "histogram", "items": [...]}],
#      "series": [{"name": "loss", "replica": "mean", "kind": "trend", "steps": "0 10", "values": "2.3 nan"},
#                 {"name": "loss", "replica": 0, "kind": "points", "steps": "0 1", "values": "2.31 2.4"}],
#      "clock": {"steps": "0 250 500", "values": "0 1.6 3.2"},
#      "epochs": {"steps": "0 250", "values": "1 2"},   the epoch that begins after a step
#      "replicas": [{"state": "finished", "step": 500, "host": "b"}],   host: of a run on several
#      "left_out": 0}
#
# A trend consists of means of neighbouring points, and of single points at its start; ``points`` are the
# first, the last and the extreme measured values.
#
# The clock has the seconds from the first of some steps on.
#
# Steps and values are text because a notebook file puts each item of a list on a line of its own, and because
# JSON has no NaN and no infinity (``nan``, ``inf`` and ``-inf`` here).

# Numbers of points for trends and for points, tried in this order; the first are the picture's.
LIMITS = (
    (512, 600), (512, 300), (360, 150), (250, 80), (180, 50), (120, 40), (80, 30), (50, 30), (30, 20),
)  # fmt: skip
MOST_METRICS = 40
MOST_TASKS = 64
MOST_REPLICAS = 16


def run_data(store: RunStore, charts: Sequence[Chart], summary: Summary, limit: int) -> dict[str, Any]:
    """Return the data in at most ``limit`` bytes of JSON: fewer points first, then fewer curves."""
    final = {**summary.metrics, **summary.logged}
    data: dict[str, Any] = {
        "version": 1,
        "run": clip(summary.run_id),
        "title": clip(summary.title),
        "state": clip(summary.state),
        "tasks": [clip(task) for task in summary.tasks[:MOST_TASKS]],
        "step": jsonable(summary.step),
        "epoch": jsonable(summary.epoch),
        "unit": clip(summary.unit),
        "seconds": jsonable(summary.seconds),
        "elapsed": jsonable(summary.elapsed),
        "steps_per_second": jsonable(summary.steps_per_second),
        "total": jsonable(summary.total),
        "checkpoint": summary.checkpoint and clip(summary.checkpoint, 1000),
        "marks": [{**asdict(mark), "text": clip(mark.text)} for mark in summary.marks],
        "remarks": [clip(remark) for remark in summary.remarks],
        "trained_on": clip(summary.trained_on, 600),
        "warning": clip(summary.warning, 600),
        "input": summary.input,
        "gpus": fewer_points(summary.gpus, limit // 4),
        "pictures": fewer(summary.pictures, min(SAVED_LIMIT, limit // 3)),
        "metrics": {clip(name): jsonable(value) for name, value in first_of(final, MOST_METRICS)},
        "charts": [
            {
                "title": clip(chart.title),
                "train": chart.train and clip(chart.train),
                "validation": chart.validation and clip(chart.validation),
            }
            for chart in charts
        ],
        "series": [],
        "clock": as_text(clock_of(store, charts[0].names[0], summary.ended_replicas)) if charts else None,
        "epochs": as_text(epochs_of(store)),
        "replicas": [jsonable(one) for one in summary.replicas[:MOST_TASKS]],
        "left_out": 0,
    }
    room = limit - size(data)
    for trend, points in LIMITS:
        series = list(curves(store, charts, trend, points, summary.ended_replicas))
        if size(series) <= room:
            break
    whole = len(series)
    while series and size(series) > room:
        series.pop()  # the means come first, so this drops the curve of a single replica
    return {**data, "series": series, "left_out": whole - len(series)}


def as_text(points: tuple[NDArray[Any], NDArray[Any]] | None) -> dict[str, str] | None:
    """Return some steps with a value each as text; None without points."""
    if points is None:
        return None
    return points_text(*points)


def curves(
    store: RunStore, charts: Sequence[Chart], trend: int, points: int, ended_replicas: Collection[int] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the curves by priority: means, the replicas' trends, the replicas' points."""
    trained = [chart.train for chart in charts if chart.train is not None]
    replicas = sorted(store.replicas)
    for name in [name for chart in charts for name in chart.names]:
        mean = store.aggregate(name, ended_replicas=ended_replicas)
        yield curve(name, "mean", "trend", *course(*mean, most=trend))
    if len(replicas) > 1:  # the mean of one replica is its trend
        for replica in replicas[:MOST_REPLICAS]:
            for name in trained:
                yield from some(name, replica, "trend", *course(*store.trend(replica, name), most=trend))
    for replica in replicas[:MOST_REPLICAS]:
        for name in trained:
            yield from some(name, replica, "points", *store.points(replica, name, limit=points)[:2])


def some(name: str, replica: int, kind: str, steps: Any, values: Any) -> Iterator[dict[str, Any]]:
    """Yield the curve unless it is empty."""
    if len(steps):
        yield curve(name, replica, kind, steps, values)


def curve(name: str, replica: int | str, kind: str, steps: Any, values: Any) -> dict[str, Any]:
    """Return a curve as JSON, with its points as text."""
    return {"name": clip(name), "replica": replica, "kind": kind, **points_text(steps, values, ".4g")}


def points_text(steps: Any, values: Any, form: str = ".6g") -> dict[str, str]:
    """Return points as JSON: two texts."""
    return {
        "steps": " ".join(str(int(step)) for step in steps),
        "values": " ".join(f"{value:{form}}" for value in values),
    }
