"""A task's row for the sidebar, made of what was seen. Decides only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbdist.lab.clusterfile import TaskSeen

Item = dict[str, Any]
MEGABYTE = 1 << 20
BUSY_PERCENT = 50.0
"""What a process without a run computes that is at work all the same, on a cell of ipyparallel's say."""


@dataclass(frozen=True)
class Load:
    """What a process takes of its host; None is not known (yet)."""

    cpu: int | None = None
    memory: int | None = None
    frozen: bool = False


def task_item(
    cluster: str,
    task: TaskSeen,
    host: str,
    *,
    load: Load | None,
    dead: str | None = None,
    run: str | None = None,
    told: Mapping[str, Any] | None = None,
    gpu: Mapping[str, Any] | None = None,
    note: str | None = None,
) -> Item:
    """Return a task's row; ``load`` is None for one that cannot be looked at from here."""
    told = told or {}
    alive = dead is None
    return {
        "cluster": cluster,
        "rank": task.rank,
        "name": task.name,
        "job": task.job,
        "index": task.index,
        "host": host,
        "pid": task.pid,
        "device": task.device,
        "state": state_of(alive, load, run, told.get("state")),
        "cpu": load.cpu if alive and load is not None else None,
        "memory": load.memory if alive and load is not None else None,
        "gpu": dict(gpu) if alive and gpu is not None else None,
        "run": run,
        "step": told.get("step"),
        "steps_per_second": told.get("steps_per_second"),
        "straggler": told.get("straggler"),
        "note": note if alive else dead,
    }


def state_of(alive: bool, load: Load | None, run: str | None, told: object) -> str:
    """Return a task's state in one word.

    >>> state_of(True, Load(cpu=3), None, None), state_of(True, Load(cpu=99), None, None)
    ('idle', 'busy')
    >>> state_of(True, Load(), "a_run", "paused"), state_of(True, Load(frozen=True), "a_run", "paused")
    ('paused', 'frozen')
    """
    if not alive:
        return "dead"
    if load is not None and load.frozen:
        return "frozen"
    if run is not None:
        return told if isinstance(told, str) and told else "busy"
    return "busy" if load is not None and (load.cpu or 0) >= BUSY_PERCENT else "idle"


def steady(before: int | None, now: float, step: float = 1.0) -> int:
    """Return a figure in whole steps that stays as it is while it changes by less than one and a half.

    What changes at every look would be sent at every look. Nothing is shown as nothing.

    >>> [steady(40, now) for now in (38.6, 40.9, 41.4, 42.0)], steady(1, 0.3), steady(None, 2.5 * 8, 8)
    ([40, 40, 40, 42], 0, 16)
    """
    rounded = int(round(now / step) * step)
    if before is None or rounded == 0 or abs(now - before) >= 1.5 * step:
        return rounded
    return before
