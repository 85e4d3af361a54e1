"""A run's progress as a line of text, where there is no page to draw on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbdist.metrics.words import duration
from nbdist.ui.shorten import clip
from nbdist.ui.summary import rate


def progress_line(title: str, status: Mapping[str, Any]) -> str:
    """Return one line about a running run.

    >>> progress_line("mnist", {"state": "running", "step": 120, "total": 500, "steps_per_second": 61.2})
    'mnist: running · 120 / 500 steps · 61.2 steps/s'
    """
    parts = [str(status.get("state") or "running")]
    step, total, unit = status.get("step"), status.get("total"), status.get("unit") or "steps"
    if step is not None:
        parts.append(f"{step:,} / {total:,} {unit}" if total else f"{step:,} {unit}")
    if (speed := status.get("steps_per_second")) is not None:
        parts.append(f"{rate(speed)} {unit}/s")
    if (examples := status.get("examples_per_second")) is not None:
        parts.append(f"{rate(examples)} examples/s")
    if (left := status.get("seconds_left")) is not None:
        parts.append(f"{duration(left)} left")
    if note := status.get("note"):
        parts.append(clip(note, 120))
    return f"{clip(title)}: {' · '.join(parts)}"
