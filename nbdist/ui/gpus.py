"""The GPUs of a run's replicas over time, as a page draws them and as a table without a page.

    gpus = gpus_over_time(run.store, {0: {"id": "GPU-8f3a...", "model": "NVIDIA H100", "total": 85899345920}})
    gpus[0]["use"]          # {"seconds": "0 1 2", "values": "0 87 91", "mean": "59.333"}

The figures are percent, bytes, watts and degrees Celsius; a figure that a GPU does not have is left out.
Seconds count from the first sample of any GPU of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbdist.metrics.gpu_usage import FIGURES, GPU_SERIES
from nbdist.metrics.series import decimate
from nbdist.metrics.store import RunStore
from nbdist.ui.frozen.summary import short_task

MOST_GPUS = 64
MOST_POINTS, FEWEST_POINTS, ALL_POINTS = 120, 16, 600  # of a curve, and of one figure of all GPUs together
TEXTS = {"id": 64, "model": 80}  # characters
Gpus = list[dict[str, Any]]


def gpus_over_time(store: RunStore, gpus: Mapping[int, Mapping[str, Any] | None]) -> Gpus:
    """Return each replica's GPU with the curves of its figures.

    ``gpus`` has the last sample of each replica, as far as it is known; a replica whose figures are in the
    store has an entry in any case.
    """
    names = {figure: name for figure, name in GPU_SERIES.items() if store.number(name) is not None}
    curves = {
        (replica, figure): points
        for replica in store.replicas
        for figure, name in names.items()
        if len((points := store.points(replica, name, limit=2 * MOST_POINTS))[0])
    }
    known = {replica: gpu for replica, gpu in gpus.items() if gpu}
    shown = sorted({*known, *(replica for replica, _ in curves)})[:MOST_GPUS]
    began = min((times[0] for _, _, times in curves.values()), default=0.0)
    most = max(FEWEST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, len(shown))))
    found = []
    for replica in shown:
        gpu = known.get(replica, {})
        entry: dict[str, Any] = {"replica": replica}
        entry |= {name: str(gpu[name])[:size] for name, size in TEXTS.items() if gpu.get(name)}
        if isinstance(gpu.get("total"), int):
            entry["total"] = gpu["total"]
        if gpu.get("problem"):
            entry["problem"] = str(gpu["problem"])[:200]
        for figure in FIGURES:
            if (replica, figure) in curves:
                _, values, times = curves[replica, figure]
                chosen = decimate(values, most)
                mean = float(store.trend(replica, names[figure])[1].mean())
                entry[figure] = curve(times[chosen] - began, values[chosen], mean)
        found.append(entry)
    return found


def curve(seconds: Any, values: Any, mean: float) -> dict[str, str]:
    """Return points as text: a notebook file puts each item of a list on a line of its own.

    ``mean`` is that of all points: of those that are drawn, many are extremes.

    >>> curve([0.0, 1.02], [0.0, 87.0], 43.5)
    {'seconds': '0 1', 'values': '0 87', 'mean': '43.5'}
    """
    return {
        "seconds": " ".join(f"{second:.1f}".removesuffix(".0") for second in seconds),
        "values": " ".join(f"{value:.5g}" for value in values),
        "mean": f"{mean:.5g}",
    }


def points_of(entry: Mapping[str, Any], figure: str) -> tuple[list[float], list[float]]:
    """Return (seconds, values) of a figure of an entry; empty without points."""
    texts = entry.get(figure, {"seconds": "", "values": ""})
    seconds, values = (list(map(float, texts[name].split())) for name in ("seconds", "values"))
    return seconds, values


def fewer_points(gpus: Sequence[Mapping[str, Any]], limit: int) -> Gpus:
    """Return the entries in at most ``limit`` bytes of JSON: fewer points first, then fewer GPUs."""
    shown = [dict(entry) for entry in gpus]
    most = MOST_POINTS
    while shown and len(json.dumps(shown, indent=1)) > limit:
        most //= 2
        if most < FEWEST_POINTS:
            shown.pop()
            continue
        for entry in shown:
            for figure in FIGURES:
                if figure in entry:
                    seconds, values = points_of(entry, figure)
                    chosen = decimate(np.asarray(values), most)
                    mean = float(entry[figure]["mean"])
                    entry[figure] = curve(np.asarray(seconds)[chosen], np.asarray(values)[chosen], mean)
    return shown


def gpu_rows(gpus: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> list[dict[str, str]]:
    """Return a table of the GPUs: means and peaks of their figures; columns that none has are left out.

    >>> gpu = {"replica": 0, "id": "GPU-8f3a91bc-7", "use": curve([0, 1], [0, 90], mean=45)}
    >>> gpu_rows([gpu], ["/job:worker/task:0"])
    [{'task': 'worker 0', 'GPU': 'GPU-8f3a…', 'mean use': '45%', 'peak use': '90%'}]
    """
    rows = []
    for entry in gpus:
        replica = entry["replica"]
        name = tasks[replica] if replica < len(tasks) else f"replica {replica}"
        gpu = str(entry.get("id", ""))
        short = gpu if len(gpu) <= 9 else f"{gpu[:8]}…"
        row = {"task": short_task(name), "GPU": str(entry.get("model", "")).removeprefix("NVIDIA ") or short}
        series = {figure: points_of(entry, figure)[1] for figure in FIGURES}
        mean = {figure: float(entry[figure]["mean"]) for figure in FIGURES if series[figure]}
        if use := series["use"]:
            row |= {"mean use": f"{mean['use']:.0f}%", "peak use": f"{max(use):.0f}%"}
        if memory := series["memory"]:
            total = entry.get("total")
            row["peak memory"] = _gigabytes(max(memory)) + (f" of {_gigabytes(total)}" if total else "")
        if power := series["power"]:
            row |= {"mean power": f"{mean['power']:.0f} W", "peak power": f"{max(power):.0f} W"}
        if temperature := series["temperature"]:
            row["peak temperature"] = f"{max(temperature):.0f} °C"
        rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, "") for name in columns} for row in rows]


def _gigabytes(value: float) -> str:
    return f"{value / (1 << 30):.1f} GB"
