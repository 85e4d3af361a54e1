"""The timeline of a run: collected from its tasks while they live, and from its folder."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from nbdist.errors import FailedPreconditionError, NbdistError, NotFoundError
from nbdist.metrics.run_folder import read_run, run_folder
from nbdist.metrics.timeline import Timeline
from nbdist.metrics.timeline_parts import (
    Part,
    has_parts,
    joined,
    read_parts,
    shift_by_asking,
    shift_by_day,
    step_intervals,
    step_window,
)
from nbdist.runs.history import runs
from nbdist.runtime.task import TaskInfo, host_identity
from nbdist.wire.rpc.client import Peer

ANSWER_SECONDS = 2.0
T = TypeVar("T", bound=Timeline)


class Reachable(Protocol):
    """What reaches tasks, such as a Cluster."""

    def peer(self, rank: int) -> Peer:
        """Return a connection to a task."""


def collect(run: str, folder: Path, cluster: Reachable, tasks: Sequence[TaskInfo], over: bool) -> Timeline:
    """Return all that is on record of a run, on this process's clock; it may be nothing.

    A run that is ``over`` is read from its folder; tasks that have written nothing, and all tasks of a run
    that goes on, are asked. What cannot be had is left out. Runs in the client.
    """
    parts = {part.task: part for part in read_parts(folder)} if over else {}
    for info in tasks:
        if info.name not in parts and (part := _asked(cluster, info, run)) is not None:
            parts[info.name] = part
    shifts = shifts_by_day(parts.values())
    elsewhere = {info.host: info for info in tasks if info.name in parts and shifts[info.host]}
    for host, info in elsewhere.items():
        with suppress(NbdistError):  # it cannot be asked any more: the times of day have to do
            shifts[host] = shift_by_asking(partial(_clock_of, cluster.peer(info.rank)))
    return joined(parts.values(), [info.name for info in tasks], shifts)


def shifts_by_day(parts: Iterable[Part]) -> dict[str, float]:
    """Return what brings each host's clock to this process's: nothing on this host."""
    own, clock, day = host_identity(), time.perf_counter(), time.time()
    return {part.host: 0.0 if part.host == own else shift_by_day(part, clock, day) for part in parts}


def _clock_of(peer: Peer) -> float:
    return float(peer.call("run.hello", timeout=ANSWER_SECONDS).meta["clock"])


def _asked(cluster: Reachable, info: TaskInfo, run: str) -> Part | None:
    try:
        reply = cluster.peer(info.rank).call("run.timeline", {"run": run}, timeout=ANSWER_SECONDS)
    except NbdistError:  # it is gone, or the cluster is
        return None
    return Part.decode(reply.arrays[0].tobytes())


def steps_of(
    timeline: Timeline, kind: type[T], run: str, title: str, step: int | None, steps: int, over: bool = True
) -> T:
    """Return the part of a run's timeline that shows some steps of every task, as ``kind``."""
    if not step_intervals(timeline):
        raise FailedPreconditionError(
            f"run {run} has no timeline: no training step is on record. "
            + ("Call model.fit(...) in the body" if over else "Ask again when it has begun to train")
        )
    window = step_window(timeline, step, steps)
    shown = timeline.between(window.begin, window.end)
    return kind(shown.spans, shown.tasks, title=f"{title or run} · {window.name}", left_out=shown.left_out)


def stored(run: str | None, step: int | None, steps: int, kind: type[T]) -> T:
    """Return some steps of a run that is over, from its folder; None is the latest run that has any.

    Clocks of other hosts are told apart by the times of day. Raises NotFoundError if there is no such run.
    """
    if run is None:
        run = next((one.id for one in runs() if has_parts(run_folder(one.id))), None)
        if run is None:
            raise NotFoundError("no run has a timeline; nb.runs() lists the runs there are")
    record = read_run(run)
    parts = read_parts(run_folder(run))
    there = {task for part in parts for task in part.timeline.tasks}  # a client's has others'
    tasks = [task for task in record.cluster.get("tasks", ()) if task in there]
    return steps_of(joined(parts, tasks, shifts_by_day(parts)), kind, run, record.name, step, steps)
