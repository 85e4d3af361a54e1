"""The summary of a finished run, for its frozen output."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nbdist.metrics.run_events import Event, thinned
from nbdist.metrics.run_folder import duration
from nbdist.numbers import is_whole
from nbdist.text import rate

Part = Literal["marks", "gpus", "pictures"]  # what is shown beside the curves
MOST_MARKS = 100  # of a run that are shown; run.events has all


@dataclass(frozen=True)
class Summary:
    """The results of a finished run.

    ``rows`` is a small table, a mapping of column to value per row (for example one per replica).
    """

    run_id: str
    title: str  # the run's display name
    state: str  # "finished", "stopped" or "failed"
    tasks: Sequence[str]  # in replica order
    step: int | None = None
    epoch: int | None = None  # of a ``fit``, the last one that has begun
    seconds: float | None = None  # of training, without the start (imports, building the model) and pauses
    elapsed: float | None = None  # of the whole run, without pauses
    steps_per_second: float | None = None
    unit: str = "steps"  # the unit of ``step``: "updates" if each replica makes its own
    total: int | None = None  # the planned number of steps, if known
    checkpoint: str | None = None  # path of the last one
    marks: Sequence[Event] = ()  # events of the run, at steps of the curves (see `marks_of`)
    metrics: Mapping[str, float] = field(default_factory=dict)  # final values
    logged: Mapping[str, float] = field(default_factory=dict)  # last and best of other series, by label
    outputs: Mapping[str, str] = field(default_factory=dict)  # task -> printed text
    error: str | None = None  # one line; the cell shows the traceback
    rows: Sequence[Mapping[str, object]] = ()
    remarks: Sequence[str] = ()  # remarks on faults, such as a lost replica
    replicas: Sequence[
        Mapping[str, object]
    ] = ()  # state, step and host (if there are several) of each, as the live view's cards show them
    ended_replicas: Collection[int] = ()  # lost ones, and those that have left: they cut no mean
    trained_on: str = ""  # the devices that held the replicas' arrays, in one line
    warning: str = ""  # a GPU that was not used, and what to do
    input: Mapping[str, Any] | None = None  # the dataset's slow stage (see nbdist.ui.input_pipeline)
    gpus: Sequence[Mapping[str, Any]] = ()  # the GPUs of the replicas over time (see nbdist.ui.gpus)
    pictures: Sequence[dict[str, Any]] = ()  # of its summaries (see nbdist.ui.pictures)


SIGNS: Mapping[str, str] = {
    "rate": "◆", "schedule": "◇", "pause": "■", "resume": "▶", "checkpoint": "▼", "state": "▽",
    "lost": "✕", "replaced": "▲", "joined": "+", "left": "-",
}  # fmt: skip
"""The sign of each kind of event."""
GLYPHS = {"finished": "✓", "stopped": "■", "failed": "✕"}


def headline(summary: Summary) -> str:
    """Return one line about the run.

    >>> headline(Summary("r1", "mnist", "finished", [], step=1200, seconds=3.21, steps_per_second=373.8))
    '✓ finished · 1,200 steps · 3.2 s of training · 374 steps/s'
    """
    parts = [f"{GLYPHS.get(summary.state, '')} {summary.state}".strip()]
    if summary.epoch is not None:
        parts.append(f"{summary.epoch:,} {'epoch' if summary.epoch == 1 else 'epochs'}")
    if summary.step is not None:
        parts.append(f"{summary.step:,} {summary.unit}")
    if summary.seconds is not None:
        parts.append(f"{duration(summary.seconds)} of training")
    elif summary.elapsed is not None:
        parts.append(duration(summary.elapsed))
    if summary.steps_per_second is not None:
        parts.append(f"{rate(summary.steps_per_second)} {summary.unit}/s")
    parts.extend(summary.remarks)
    return " · ".join(parts)


def of_last_epoch(name: str) -> str:
    """Return the label of a metric's mean over the last epoch, which differs from a curve's newest point."""
    return f"{name} (last epoch)"


LOWER = ("loss", "err", "mse", "mae", "rmse", "nll", "perplexity", "ppl", "wer", "cer")
HIGHER = ("acc", "auc", "f1", "precision", "recall", "bleu", "rouge", "r2", "iou", "dice", "reward")


def last_and_best(name: str, last: float, lowest: float, highest: float) -> dict[str, float]:
    """Return the labelled values of a series: the last one, and the best one if its name says which that is.

    >>> last_and_best("val_accuracy", 0.75, 0.5, 0.875)
    {'val_accuracy (last)': 0.75, 'val_accuracy (best)': 0.875}
    >>> [*last_and_best("norm", 2.0, 1.0, 3.0)]
    ['norm (last)', 'norm (lowest)', 'norm (highest)']
    """
    found, goal = {f"{name} (last)": last}, goal_of(name)
    if goal is not None:
        return {**found, f"{name} (best)": lowest if goal == "min" else highest}
    return {**found, f"{name} (lowest)": lowest, f"{name} (highest)": highest}


def goal_of(name: str) -> Literal["min", "max"] | None:
    """Return whether low or high values of a series are good, if its name says so.

    >>> goal_of("val_loss"), goal_of("accuracy"), goal_of("norm")
    ('min', 'max', None)
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    if any(word.startswith(LOWER) for word in words):
        return "min"
    return "max" if any(word.startswith(HIGHER) for word in words) else None


def apart(summary: Summary) -> Mapping[str, float]:
    """Return the final values for a separate table; none if the first row has them all."""
    metrics = {of_last_epoch(name): value for name, value in summary.metrics.items()}
    return {**({} if summary.rows and set(metrics) <= set(summary.rows[0]) else metrics), **summary.logged}


def is_plain(summary: Summary) -> bool:
    """Return whether a cell ended without training and without error: the view then shows only its output."""
    return summary.step is None and not summary.rows and summary.state == "finished" and not summary.remarks


def marks_of(events: Sequence[Event]) -> list[Event]:
    """Return the events that are marked on the curves, with short names of the tasks in their texts.

    >>> marks_of([Event(0.0, 7, "lost", "/job:worker/task:1 died", 2, 1)])[0].text
    'worker 1 died'
    """
    return [replace(one, text=with_short_tasks(one.text)) for one in thinned(events, MOST_MARKS)]


def marks_line(summary: Summary) -> str:
    """Return the marks of the curves as text; of states the last one.

    >>> marks = [Event(0.0, 1200, "rate", "learning rate 0.1 → 0.01", 3), Event(1.0, 1300, "lost", "gone")]
    >>> marks_line(Summary("r1", "mnist", "finished", [], marks=marks))
    '◆ 1,200 (epoch 3) learning rate 0.1 → 0.01 · ✕ 1,300 gone'
    """
    states = [mark for mark in summary.marks if mark.kind == "state"]
    parts = []
    for mark in summary.marks:
        if mark in states[:-1]:
            continue
        epoch = "" if mark.epoch is None else f" (epoch {mark.epoch:,})"
        last = f" (the last of {len(states)})" if mark.kind == "state" and len(states) > 1 else ""
        parts.append(f"{SIGNS[mark.kind]} {mark.step:,}{epoch} {mark.text}{last}")
    return " · ".join(parts)


def number(value: object) -> str:
    """Return a table's cell: floats with four significant digits, integers with thousands separators.

    >>> number(0.123456), number(57600), number("worker 0")
    ('0.1235', '57,600', 'worker 0')
    """
    if is_whole(value):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def axis_words(unit: str, replicas: int) -> str:
    """Return the label of a curve's x axis. A run may count updates; a curve counts steps.

    >>> axis_words("steps", 3), axis_words("updates", 3)
    ('steps', 'step (per replica)')
    """
    return "step (per replica)" if unit == "updates" and replicas > 1 else unit


def with_short_tasks(text: str) -> str:
    """Return a text with short names of the tasks in it.

    >>> with_short_tasks("waiting for /job:ps/task:0")
    'waiting for ps 0'
    """
    return re.sub(r"/job:(\w+)/task:(\d+)", r"\1 \2", text)


def short_task(task: str) -> str:
    """Return ``worker 0`` for ``/job:worker/task:0``; any other name as it is."""
    job, _, index = task.removeprefix("/job:").partition("/task:")
    return f"{job} {index}" if task.startswith("/job:") and index.isdigit() else task
