"""The lines of one chart of a frozen picture, and how each is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbdist.ui.chartplan import Chart
from nbdist.ui.coarse import course
from nbdist.ui.palette import FAN, PAPER, REPLICAS, TRAIN, VALIDATION
from nbdist.ui.shorten import clip
from nbdist.ui.summary import short_task

if TYPE_CHECKING:
    from nbdist.metrics.store import RunStore

Line = tuple[Any, Any, dict[str, Any]]  # steps, values, style

MOST_POINTS = 600
MOST_REPLICAS = 64
COLOURED = len(REPLICAS)  # replicas with a colour of their own, and a place in the legend
FEW = 40  # points, up to which each gets a marker
EACH = "each step"


def point_lines(store: RunStore, chart: Chart) -> list[Line]:
    """Return each replica's points: pale, since they only tell how noisy it is."""
    if chart.train is None:
        return []
    replicas = sorted(store.replicas)[:MOST_REPLICAS]
    several = len(replicas) > 1
    style = {
        "color": FAN if several else TRAIN,
        "alpha": max(0.02, 0.36 / len(replicas)) if several else 0.17,
        "linewidth": 1.0,
        "label": EACH,
    }
    return [(*store.points(replica, chart.train, limit=MOST_POINTS)[:2], style) for replica in replicas]


def course_lines(store: RunStore, chart: Chart, tasks: Sequence[str]) -> list[Line]:
    """Return the lines to read, in drawing order: replicas' trends, their mean, validation dashed."""
    lines: list[Line] = []
    replicas = sorted(store.replicas)
    if chart.train is not None and len(replicas) > 1:
        lines += replica_lines(store, chart.train, replicas, tasks)
    if chart.train is not None and replicas:
        name = "mean over replicas" if len(replicas) > 1 else "training"
        style: dict[str, Any] = {"color": TRAIN, "linewidth": 2.0, "label": name}
        lines.append((*course(*store.aggregate(chart.train)), style))
    if chart.validation is not None:
        steps, values = course(*store.aggregate(chart.validation))
        style = {"color": VALIDATION, "linewidth": 1.6, "linestyle": (0, (4, 2)), "label": "validation"}
        if len(steps) <= FEW:
            style |= {"marker": "o", "markersize": 4, "markerfacecolor": PAPER}
        lines.append((steps, values, style))
    return lines


def replica_lines(store: RunStore, name: str, replicas: Sequence[int], tasks: Sequence[str]) -> list[Line]:
    """Return each replica's trend; a colour and a name for few, a grey fan for many."""
    few = len(replicas) <= COLOURED
    fan = {"color": FAN, "alpha": max(0.15, 6 / len(replicas)), "linewidth": 0.8, "label": "_"}
    return [
        (
            *course(*store.trend(replica, name)),
            {"color": REPLICAS[index], "alpha": 0.85, "linewidth": 1.0, "label": label(tasks, replica)}
            if few
            else fan,
        )
        for index, replica in enumerate(replicas[:MOST_REPLICAS])
    ]


def label(tasks: Sequence[str], replica: int) -> str:
    """Return what a replica is called; a leading underscore would hide it from the legend."""
    name = short_task(tasks[replica]) if replica < len(tasks) else f"replica {replica}"
    return clip(name, 24).lstrip("_") or f"replica {replica}"
