"""The end of a run: its status, the chief's results, the release of its tasks, its run.json.

Outcomes are what the bodies returned, by rank.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from nbdist.errors import FailedPreconditionError, NbdistError
from nbdist.metrics.run_folder import RunFile, read_run, write_run
from nbdist.run.body_error import error_from_record
from nbdist.run.devices import ReplicaDevice
from nbdist.run.monitor import RunMonitor
from nbdist.run.outcome import keep_light, unpack
from nbdist.runtime.task import TaskInfo

Outcomes: TypeAlias = Mapping[int, Mapping[str, Any]]
ENDED = ("finished", "stopped", "failed")
WRITE_SECONDS = 1.0


def verdict(
    record: RunFile, outcomes: Outcomes, error: NbdistError | None, interrupted: bool, wants_training: bool
) -> tuple[NbdistError | None, str]:
    """Return the error of a run whose bodies have ended, and its status.

    >>> verdict(RunFile("digits"), {0: {"trainings": 1}}, None, interrupted=False, wants_training=True)
    (None, 'finished')
    """
    if record.status in ENDED:  # it had ended before this process attached to it
        if record.status != "failed":
            return None, record.status
        unknown = "it failed, and its run.json does not say why"
        return error or error_from_record(record.error or unknown), record.status
    # Another client may have stopped it, too.
    interrupted = interrupted or any(outcome.get("stopped") for outcome in outcomes.values())
    if error is None and wants_training and not trained(outcomes) and not interrupted:
        error = FailedPreconditionError(
            "the body never trained: a strategy or epochs were asked for, but no model.fit(...) ran on "
            "any worker. Call fit in the body, or drop the flags to run it as a plain cell on each worker"
        )
    return error, "failed" if error is not None else "stopped" if interrupted else "finished"


def trained(outcomes: Outcomes) -> bool:
    """Whether any body has trained."""
    return any(outcome.get("trainings") or outcome.get("monitored") for outcome in outcomes.values())


def chief_of(workers: Sequence[TaskInfo], outcomes: Outcomes) -> TaskInfo:
    """Return the worker with the results: the first one, unless another has taken its duties."""
    with_results = (info for info in workers if "results" in outcomes.get(info.rank, {}))
    return next(with_results, workers[0])


def fetched(outcome: Mapping[str, Any], chief: str) -> tuple[dict[str, Any], list[str]]:
    """Return the results of the chief's body by name, and notes about those that could not be fetched."""
    found: dict[str, Any] = {}
    notes: list[str] = []
    for name, packed in outcome.get("results", {}).items():
        try:
            found[name] = unpack(packed)
        except NbdistError as error:  # a layer of a class that only the tasks have
            notes.append(f"{name} stayed on {chief}: {error}")
    found.update(outcome.get("values", {}))  # of a body in this process
    return found, [*notes, *outcome.get("left", ())]


def release(monitor: RunMonitor, tasks: Sequence[TaskInfo]) -> None:
    """Free the tasks of a run."""
    waits = monitor.servers if trained(monitor.outcomes) else ()
    for info in tasks:
        # A server writes its part of the timeline at its release; the user's next line may be cluster.stop().
        wait = WRITE_SECONDS if info in waits else 0.0
        monitor.send(info, "run.release", {"run": monitor.run, "folder": str(monitor.folder)}, wait)


def ended_at(record: RunFile, outcomes: Mapping[int, Mapping[str, Any]]) -> float:
    """Return when a run ended, in seconds since 1970: now, unless its record or its outcomes say when."""
    ends = [outcome.get("ended", 0.0) for outcome in outcomes.values()]
    return record.ended or (max(ends) if ends and all(ends) else time.time())


def write(
    record: RunFile,
    status: str,
    error: NbdistError | None,
    monitor: RunMonitor,
    devices: Sequence[ReplicaDevice] = (),
) -> None:
    """Write a run's end into run.json, and its histories. Raises OSError if the disk is full.

    The first client that sees the end writes it. A second one must not: it may have seen the cluster end
    first.
    """
    with suppress(NbdistError):  # a damaged one is replaced
        written = read_run(record.id)
        if written.status in ENDED:
            return
        # Another client, the owner of the run, may have replaced tasks or added workers.
        record = dataclasses.replace(
            record, cluster=written.cluster, restarts=written.restarts, resizes=written.resizes
        )
    ended = ended_at(record, monitor.outcomes)
    has_trained = trained(monitor.outcomes) or bool(monitor.store.series or monitor.sessions)
    trained_on = [one.to_config() for one in devices if one.devices]
    record = dataclasses.replace(
        record, status=status, ended=ended, error=str(error or ""), trained=has_trained,
        paused=monitor.tally.paused(time.monotonic()), devices=trained_on,
    )  # fmt: skip
    write_run(record, wait=bool(monitor.store.series))  # a plain cell need not wait for the disk
    if trained(monitor.outcomes):
        keep_light(monitor.folder, monitor.outcomes)
