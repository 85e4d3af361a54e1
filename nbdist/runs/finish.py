"""How a run ends: what it came to, what its chief brings home, its tasks free again, its run.json.

Outcomes are what bodies returned, by rank.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from nbdist.errors import FailedPreconditionError, NbdistError
from nbdist.metrics.run_folder import RunFile, read_run, write_run
from nbdist.runs.monitor import Watch, error_again
from nbdist.runs.outcome import keep_light, unpack
from nbdist.runtime.task import TaskInfo

Outcomes: TypeAlias = Mapping[int, Mapping[str, Any]]
ENDED = ("finished", "stopped", "failed")
WRITE_SECONDS = 1.0


def verdict(
    record: RunFile, outcomes: Outcomes, error: NbdistError | None, interrupted: bool, wants_training: bool
) -> tuple[NbdistError | None, str]:
    """Return what went wrong in a run whose bodies are over, and its status.

    >>> verdict(RunFile("digits"), {0: {"trainings": 1}}, None, interrupted=False, wants_training=True)
    (None, 'finished')
    """
    if record.status in ENDED:  # long ago
        if record.status != "failed":
            return None, record.status
        unknown = "it failed, and its run.json does not say why"
        return error or error_again(record.error or unknown), record.status
    interrupted = interrupted or any(outcome.get("stopped") for outcome in outcomes.values())  # by others too
    if error is None and wants_training and not trained(outcomes) and not interrupted:
        error = FailedPreconditionError(
            "the body never trained: a strategy or epochs were asked for, but no model.fit(...) ran on "
            "any worker. Call fit in the body, or drop the flags to run it as a plain cell on each worker"
        )
    return error, "failed" if error is not None else "stopped" if interrupted else "finished"


def trained(outcomes: Outcomes) -> bool:
    """Whether any body has trained."""
    return any(outcome.get("trainings") for outcome in outcomes.values())


def brought_home(outcome: Mapping[str, Any], chief: str) -> tuple[dict[str, Any], list[str]]:
    """Return what the chief's body left, by name, and what is to be said of the rest."""
    found: dict[str, Any] = {}
    notes: list[str] = []
    for name, packed in outcome.get("results", {}).items():
        try:
            found[name] = unpack(packed)
        except NbdistError as error:  # a layer of a kind that only the tasks know
            notes.append(f"{name} stayed on {chief}: {error}")
    found.update(outcome.get("values", {}))  # of a body in this process
    return found, [*notes, *outcome.get("left", ())]


def release(watch: Watch, tasks: Sequence[TaskInfo]) -> None:
    """Free the tasks of a run."""
    waits = watch.servers if trained(watch.outcomes) else ()
    for info in tasks:
        # A server writes its part of the timeline then, and the next line may be cluster.stop().
        wait = WRITE_SECONDS if info in waits else 0.0
        watch.tell(info, "run.release", {"run": watch.run, "folder": str(watch.folder)}, wait)


def ended_at(record: RunFile, outcomes: Mapping[int, Mapping[str, Any]]) -> float:
    """Return when a run ended, in seconds since 1970: now, unless its record or its outcomes say when."""
    ends = [outcome.get("ended", 0.0) for outcome in outcomes.values()]
    return record.ended or (max(ends) if ends and all(ends) else time.time())


def write(record: RunFile, status: str, error: NbdistError | None, watch: Watch) -> None:
    """Write a run's end into its folder, and what is worth keeping. Raises OSError if the disk is full.

    Of two clients who follow a run the first one to see its end writes it: the other may see the cluster end.
    """
    with suppress(NbdistError):  # one that cannot be read is written anew
        if read_run(record.id).status in ENDED:
            return
    ended = ended_at(record, watch.outcomes)
    shown = trained(watch.outcomes) or bool(watch.store.series)
    record = dataclasses.replace(
        record, status=status, ended=ended, error=str(error or ""), trained=shown,
        paused=watch.tally.paused(time.monotonic()),
    )  # fmt: skip
    write_run(record, wait=bool(watch.store.series))  # a plain cell does not wait for the disk
    if trained(watch.outcomes):
        keep_light(watch.folder, watch.outcomes)
