"""A run as its run.json describes it, whoever wrote that: what does not fit is left out, never raised. Pure.

>>> record_of("r1", b'{"id": "r1", "name": "mnist", "status": "finished", "created": 1e9}', 0.0).status
'finished'
>>> record_of("r1", b'{"id": "r1", "na', 5.0).status
'damaged'
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbdist.metrics import runfile
from nbdist.metrics.runfile import STATUSES

LONGEST = runfile.LONGEST
GOING = ("preparing", "running", "paused")
MOST_TASKS = 10_000
LARGEST_PID = 1 << 31


@dataclass(frozen=True)
class Record:
    """What is known of a run beside its numbers. Times are in seconds since 1970."""

    id: str
    status: str
    created: float
    name: str = ""
    ended: float | None = None
    paused: float = 0.0
    """Seconds of pauses, written when the run ends."""
    error: str = ""
    code: str = ""
    seed: int | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None
    tasks: tuple[str, ...] = ()
    """Names of the tasks of its cluster."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Of the same tasks, by rank."""
    workers: tuple[int, ...] = ()
    """Ranks of those that are replicas, in order."""
    incarnations: frozenset[int] = frozenset()
    owner: Mapping[str, Any] = field(default_factory=dict)
    trained: bool | None = None
    """Whether it trained or logged metrics; None where its run.json does not say."""

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended, as far as its run.json knows."""
        return self.status in GOING

    @property
    def in_graph(self) -> bool:
        """Whether the notebook's own process drives all towers."""
        return self.options.get("replication") == "in-graph"

    @property
    def synchronous(self) -> bool:
        """Whether its replicas make every update together."""
        return self.options.get("synchronous") is True

    @property
    def strategy(self) -> str | None:
        """How its replicas train together, None for a plain cell."""
        return text(self.options.get("strategy")) or ("in-graph" if self.in_graph else None)


def record_of(run_id: str, content: bytes, changed: float) -> Record:
    """Return what a run.json says; one that cannot be read has the status "damaged", and says why.

    ``changed`` is when it was written, in case it does not say so itself.
    """
    try:
        found = json.loads(content) if len(content) <= LONGEST else f"has over {LONGEST:,} bytes"
    except (ValueError, RecursionError) as error:
        return damaged(run_id, str(error), changed)
    if not isinstance(found, dict) or found.get("id") != run_id:
        told = found if isinstance(found, str) else f"does not describe run {run_id}"
        return damaged(run_id, f"it {told}", changed)
    status = found.get("status")
    if status == "done":  # the word of earlier versions
        status = "finished"
    if status not in STATUSES:
        return damaged(run_id, f"its status is {status!r:.80}: a newer nbdist may have written it", changed)
    cluster = mapping(found.get("cluster"))
    members = [mapping(one) for one in listed(cluster.get("members"))]
    ranked = {rank: one for one in members if (rank := whole(one.get("rank"))) is not None}
    workers = [rank for one in listed(cluster.get("workers")) if (rank := whole(one)) is not None]
    created = number(found.get("created"))
    return Record(
        id=run_id,
        status=status,
        created=changed if created is None else created,
        name=text(found.get("name")),
        ended=number(found.get("ended")),
        paused=max(0.0, number(found.get("paused")) or 0.0),
        error=text(found.get("error")),
        code=text(found.get("code")),
        seed=whole(found.get("seed")),
        versions=mapping(found.get("versions")),
        options=mapping(found.get("options")),
        cluster=text(cluster.get("id")) or None,
        tasks=tuple(one for one in listed(cluster.get("tasks")) if isinstance(one, str)),
        names={rank: f"/job:{one.get('job')}/task:{one.get('index')}" for rank, one in ranked.items()},
        workers=tuple(dict.fromkeys(workers)),
        incarnations=frozenset(n for one in members if (n := whole(one.get("incarnation"))) is not None),
        owner=owner_of(cluster.get("owner")),
        trained=found["trained"] if isinstance(found.get("trained"), bool) else None,
    )


def damaged(run_id: str, why: str, changed: float) -> Record:
    """Return what is known of a run whose run.json cannot be read."""
    return Record(run_id, "damaged", changed, error=f"run.json is damaged: {why}")


def owner_of(value: object) -> Mapping[str, Any]:
    """Return the process that started a run, {} if that is not said as it should be."""
    found = mapping(value)
    pid = whole(found.get("pid"))
    whole_process = pid is not None and 0 < pid < LARGEST_PID and number(found.get("started")) is not None
    return found if whole_process and isinstance(found.get("host"), str) else {}


def text(value: object) -> str:
    """Return a text, "" for anything else."""
    return value if isinstance(value, str) else ""


def number(value: object) -> float | None:
    """Return a finite number, None for anything else.

    >>> number(2), number(float("inf")), number(True), number(10**400)
    (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: object) -> int | None:
    """Return a whole number from 0 to 2**64, None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 64 else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object of JSON, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """Return a list of JSON, as far as it can be meant; an empty one for anything else."""
    return value[:MOST_TASKS] if isinstance(value, list) else []
