"""What a run came to, as its last output tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nbdist.metrics.words import duration


@dataclass(frozen=True)
class Summary:
    """The end of one run.

    ``rows`` is a small table, a mapping of column to value per row (for example one per replica).
    """

    run_id: str
    title: str  # the run's name, for people
    state: str  # "finished", "stopped" or "failed"
    tasks: Sequence[str]  # in replica order
    step: int | None = None
    seconds: float | None = None
    steps_per_second: float | None = None
    unit: str = "steps"  # what ``step`` counts: "updates" where replicas make them one by one
    metrics: Mapping[str, float] = field(default_factory=dict)  # final values
    outputs: Mapping[str, str] = field(default_factory=dict)  # task -> what it printed
    error: str | None = None  # in a line: the cell shows the traceback
    rows: Sequence[Mapping[str, object]] = ()
    remarks: Sequence[str] = ()  # what did not go by itself, such as a replica that is gone


GLYPHS = {"finished": "✓", "stopped": "■", "failed": "✕"}


def headline(summary: Summary) -> str:
    """Return one line about the run.

    >>> headline(Summary("r1", "mnist", "finished", [], step=1200, seconds=3.21, steps_per_second=373.8))
    '✓ finished · 1,200 steps · 3.2 s · 374 steps/s'
    """
    parts = [f"{GLYPHS.get(summary.state, '')} {summary.state}".strip()]
    if summary.step is not None:
        parts.append(f"{summary.step:,} {summary.unit}")
    if summary.seconds is not None:
        parts.append(duration(summary.seconds))
    if summary.steps_per_second is not None:
        parts.append(f"{rate(summary.steps_per_second)} {summary.unit}/s")
    parts.extend(summary.remarks)
    return " · ".join(parts)


def apart(summary: Summary) -> Mapping[str, float]:
    """Return the final values for a table of their own: none if the first row has them all."""
    return {} if summary.rows and set(summary.metrics) <= set(summary.rows[0]) else summary.metrics


def rate(value: float) -> str:
    """Return a rate with three significant digits: 0.123, 12.3, 1,230."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def number(value: object) -> str:
    """Return a table's cell: floats with four significant digits, thousands apart, the rest as it is.

    >>> number(0.123456), number(57600), number("worker 0")
    ('0.1235', '57,600', 'worker 0')
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def axis_words(unit: str, replicas: int) -> str:
    """Return what the points of a curve stand at: a run counts the updates of all, a curve those of each.

    >>> axis_words("steps", 3), axis_words("updates", 3)
    ('steps', 'updates of each replica')
    """
    return "updates of each replica" if unit == "updates" and replicas > 1 else unit


def short_task(task: str) -> str:
    """Return ``worker 0`` for ``/job:worker/task:0``; any other name as it is."""
    job, _, index = task.removeprefix("/job:").partition("/task:")
    return f"{job} {index}" if task.startswith("/job:") and index.isdigit() else task
