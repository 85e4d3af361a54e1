"""The data in a frozen output, for those who draw it again: `application/vnd.nbdist.run+json`.

    {"version": 1, "run": "...", "title": "...", "state": "finished", "tasks": [...], "step": 500,
     "unit": "steps", "seconds": 3.2, "steps_per_second": 156.0, "total": 500, "checkpoint": null,
     "marks": [{"step": 120, "kind": "rate", "text": "learning rate 0.1 → 0.01"}],
     "remarks": ["worker 1 was lost"], "metrics": {"loss": 0.12},
     "charts": [{"title": "loss", "train": "loss", "validation": "val_loss"}],
     "series": [{"name": "loss", "replica": "mean", "kind": "trend", "steps": "0 10", "values": "2.3 nan"},
                {"name": "loss", "replica": 0, "kind": "points", "steps": "0 1", "values": "2.31 2.4"}],
     "left_out": 0}

A trend consists of means of neighbouring points, and of single points at its start; ``points`` are the first,
the last and the extreme measured values.

Steps and values are text because a notebook file puts each item of a list on a line of its own, and because
JSON has no NaN and no infinity (``nan``, ``inf`` and ``-inf`` here).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nbdist.ui.chartplan import Chart
from nbdist.ui.coarse import course
from nbdist.ui.jsonable import jsonable
from nbdist.ui.shorten import clip, first_of
from nbdist.ui.summary import Summary

if TYPE_CHECKING:
    from nbdist.metrics.store import RunStore

# Numbers of points for trends and for points: those of the picture first, then fewer.
LIMITS = (
    (512, 600), (512, 300), (360, 150), (250, 80), (180, 50), (120, 40), (80, 30), (50, 30), (30, 20),
)  # fmt: skip
MOST_METRICS = 40
MOST_TASKS = 64
MOST_REPLICAS = 16
MOST_MARKS = 100


def run_data(store: RunStore, charts: Sequence[Chart], summary: Summary, limit: int) -> dict[str, Any]:
    """Return the data in at most ``limit`` bytes of JSON: fewer points first, then fewer curves."""
    data: dict[str, Any] = {
        "version": 1,
        "run": clip(summary.run_id),
        "title": clip(summary.title),
        "state": clip(summary.state),
        "tasks": [clip(task) for task in summary.tasks[:MOST_TASKS]],
        "step": jsonable(summary.step),
        "unit": clip(summary.unit),
        "seconds": jsonable(summary.seconds),
        "steps_per_second": jsonable(summary.steps_per_second),
        "total": jsonable(summary.total),
        "checkpoint": summary.checkpoint and clip(summary.checkpoint, 1000),
        "marks": [{**asdict(mark), "text": clip(mark.text)} for mark in summary.marks[:MOST_MARKS]],
        "remarks": [clip(remark) for remark in summary.remarks],
        "metrics": {clip(name): jsonable(value) for name, value in first_of(summary.metrics, MOST_METRICS)},
        "charts": [
            {
                "title": clip(chart.title),
                "train": chart.train and clip(chart.train),
                "validation": chart.validation and clip(chart.validation),
            }
            for chart in charts
        ],
        "series": [],
        "left_out": 0,
    }
    room = limit - size(data)
    for trend, points in LIMITS:
        series = list(curves(store, charts, trend, points))
        if size(series) <= room:
            break
    whole = len(series)
    while series and size(series) > room:
        series.pop()  # the means come first, so what is lost is a single replica's points
    return {**data, "series": series, "left_out": whole - len(series)}


def curves(store: RunStore, charts: Sequence[Chart], trend: int, points: int) -> Iterator[dict[str, Any]]:
    """Yield the curves in the order of their use: means, each replica's trends, its points."""
    trained = [chart.train for chart in charts if chart.train is not None]
    replicas = sorted(store.replicas)
    for name in [name for chart in charts for name in chart.names]:
        yield curve(name, "mean", "trend", *course(*store.aggregate(name), most=trend))
    if len(replicas) > 1:  # of one replica the mean is the trend
        for replica in replicas[:MOST_REPLICAS]:
            for name in trained:
                yield from some(name, replica, "trend", *course(*store.trend(replica, name), most=trend))
    for replica in replicas[:MOST_REPLICAS]:
        for name in trained:
            yield from some(name, replica, "points", *store.points(replica, name, limit=points)[:2])


def some(name: str, replica: int, kind: str, steps: Any, values: Any) -> Iterator[dict[str, Any]]:
    """Yield the curve, if it has a point."""
    if len(steps):
        yield curve(name, replica, kind, steps, values)


def curve(name: str, replica: int | str, kind: str, steps: Any, values: Any) -> dict[str, Any]:
    """Return one curve with its points as text."""
    return {
        "name": clip(name),
        "replica": replica,
        "kind": kind,
        "steps": " ".join(str(int(step)) for step in steps),
        "values": " ".join(f"{value:.4g}" for value in values),
    }


def size(value: Any) -> int:
    """Return the bytes of a value in a notebook file."""
    return len(json.dumps(value, indent=1))
