"""A run's progress as a line of text, where there is no page to draw on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbdist.metrics.run_folder import duration
from nbdist.ui.chartplan import plan_charts
from nbdist.ui.shorten import clip
from nbdist.ui.summary import number, rate

if TYPE_CHECKING:
    from nbdist.metrics.store import RunStore

MOST_METRICS = 3  # in a line of progress


def progress_line(title: str, status: Mapping[str, Any], latest: Mapping[str, float] | None = None) -> str:
    """Return one line about a running run; ``latest`` are the newest values of its metrics.

    >>> status = {"state": "running", "epoch": 3, "epochs": 8, "step": 120, "total": 320}
    >>> progress_line("mnist", status, {"loss": 0.25, "accuracy": 0.9375})
    'mnist: running · epoch 3 / 8 · 120 / 320 steps · loss 0.25 · accuracy 0.9375'
    """
    parts = [str(status.get("state") or "running")]
    if (epoch := status.get("epoch")) is not None:
        parts.append(
            f"epoch {epoch:,} / {status['epochs']:,}" if status.get("epochs") else f"epoch {epoch:,}"
        )
    step, total, unit = status.get("step"), status.get("total"), status.get("unit") or "steps"
    if step is not None:
        parts.append(f"{step:,} / {total:,} {unit}" if total else f"{step:,} {unit}")
    parts += [f"{clip(name, 40)} {number(value)}" for name, value in (latest or {}).items()]
    if (speed := status.get("steps_per_second")) is not None:
        parts.append(f"{rate(speed)} {unit}/s")
    if (examples := status.get("examples_per_second")) is not None:
        parts.append(f"{rate(examples)} examples/s")
    if (left := status.get("seconds_left")) is not None:
        parts.append(f"{duration(left)} left")
    if note := status.get("note"):
        parts.append(clip(note, 120))
    return f"{clip(title)}: {' · '.join(parts)}"


def latest_values(store: RunStore, wanted: Sequence[str] | None = None) -> dict[str, float]:
    """Return the newest values of the first charts' series, each a mean over the replicas' last points.

    >>> from nbdist.metrics.store import RunStore
    >>> store = RunStore()
    >>> store.extend(0, "loss", [1], [0.5], [1e9]); store.extend(1, "loss", [1], [0.25], [1e9])
    >>> latest_values(store)
    {'loss': 0.375}
    """
    found = {}
    for chart in plan_charts(store.series, wanted)[:MOST_METRICS]:
        name = chart.train or chart.names[0]
        lasts = [store.last(replica, name) for replica in store.replicas]
        values = [last.value for last in lasts if last is not None]
        if values:
            found[name] = sum(values) / len(values)
    return found
