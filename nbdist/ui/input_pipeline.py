"""The input pipeline of a run, as a page draws it and as a table without a page.

    shown = input_shown({0: reading_of_replica_0, 1: reading_of_replica_1}, run.tasks)
    shown["verdict"]        # "map(decode) is the bottleneck: busy 93% of the time, and training waits ..."

Every replica reads for itself. The one that waits longest for its data is shown: the others wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbdist.data import InputPipeline
from nbdist.ui.frozen.summary import short_task

MOST_STAGES = 40


def input_shown(
    readings: Mapping[int, Mapping[str, Any] | None], tasks: Sequence[str]
) -> dict[str, Any] | None:
    """Return the pipeline of the replica that waits longest: task, verdict, advice, rows; None without any.

    ``readings`` are values of `InputPipeline.to_config` by replica, as a task or a file has them; one that is
    damaged is left out.
    """
    found = {replica: one for replica, value in readings.items() if (one := read(value)) is not None}
    if not found:
        return None
    replica = max(found, key=lambda number: found[number].waits)
    pipeline = found[replica]
    return {
        "task": short_task(tasks[replica]) if replica < len(tasks) else f"replica {replica}",
        "verdict": pipeline.verdict,
        "advice": pipeline.advice,
        "rows": pipeline.rows()[:MOST_STAGES],
    }


def read(value: Mapping[str, Any] | None) -> InputPipeline | None:
    """Return the pipeline in plain values, if something was read; None for damaged ones."""
    if not value:
        return None
    try:
        found = InputPipeline.from_config(value)
        str(found)  # numbers that are none fail here, and not in a page
    except (TypeError, LookupError, ValueError, AttributeError, OverflowError):
        return None
    return found if found.elements else None


def input_title(shown: Mapping[str, Any], replicas: int) -> str:
    """Return the heading of the table.

    >>> input_title({"task": "worker 1", "verdict": "map(f) is the bottleneck"}, 2)
    'Input of worker 1: map(f) is the bottleneck'
    """
    whose = f" of {shown['task']}" if replicas > 1 else ""
    return f"Input{whose}: {shown['verdict']}"
