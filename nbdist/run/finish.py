"""The end of a run: its status, the chief's results, the release of its tasks, its run.json.

Outcomes are what the bodies returned, by rank.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from nbdist.errors import DataLossError, FailedPreconditionError, NbdistError
from nbdist.metrics.run_folder import RunFile, as_written, read_run, write_run
from nbdist.metrics.timeline_parts import Part, write_part
from nbdist.run.body_error import error_from_record
from nbdist.run.devices import ReplicaDevice
from nbdist.run.followed import FollowedRun
from nbdist.run.options import Options
from nbdist.run.values.outcome import keep_light, unpack
from nbdist.runtime.task import TaskInfo
from nbdist.train.callbacks import History
from nbdist.wire.rpc.frame import Frame

Outcomes: TypeAlias = Mapping[int, Mapping[str, Any]]
ENDED = ("finished", "stopped", "failed")
WRITE_SECONDS = 1.0
WEIGHTS_TOLERANCE = (
    1e-5  # of a norm: the weights of replicas are the same to the last bit, on one kind of device
)


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
            "the body never trained under its strategy: a strategy or epochs were asked for, but no "
            "model.fit(...) of nbdist ran on any worker. A loop or a fit of PyTorch, Keras or JAX by itself "
            "trains a model on each worker: use nb.frameworks.torch.fit or torch.wrap, keras.wrap or jax.fit "
            "in it, or run code with torch.distributed as it is by --framework torch. Or drop the flags to "
            "run the body as a plain cell on each worker"
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


def model_of(outcome: Mapping[str, Any], results: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the model that a body has trained, and a note that names it if it is not called ``model``.

    >>> model_of({"model": {"name": "net"}}, {"net": 1, "history": 2})
    (1, 'run.model is net, which the body has trained')
    >>> model_of({"model": {"several": ["a", "b"]}}, {"a": 1, "b": 2})
    (None, "run.model is None: the body has trained a, b, as run.results['a']")
    """
    model, about = results.get("model"), outcome.get("model")
    if about is None:
        return model, ""
    if "several" in about:
        several = [name for name in about["several"] if name in results]
        if model is not None or not several:
            return model, ""
        return (
            None,
            f"run.model is None: the body has trained {', '.join(several)}, as run.results[{several[0]!r}]",
        )
    name = about["name"]
    if name:
        found = results.get(name)
        return found, f"run.model is {name}, which the body has trained" if found is not None else ""
    return unpack(
        about["packed"]
    ), f"run.model has the weights of the {about['class']} that the body has trained"


def unused_flags(options: Options, outcomes: Outcomes) -> str:
    """Return that no training has obeyed the flags for one; empty if one has, or none was given.

    >>> options = Options(framework="torch", epochs=3)
    >>> unused_flags(options, {0: {"trainings": 1, "own_loops": 1}}).partition(":")[0]
    '--epochs had no effect'
    >>> unused_flags(options, {0: {"trainings": 2, "own_loops": 1}})
    ''
    >>> options = Options(strategy="mirrored", precision="mixed_float16")
    >>> unused_flags(options, {0: {"trainings": 1, "computed_in": False}}).partition(",")[0]
    '--precision had no effect: models of nb.nn and nb.frameworks.torch.fit compute in it'
    >>> unused_flags(Options(checkpoint_every=5), {0: {"monitored": 1}})
    '--checkpoint-every had no effect: a session makes the steps of its graph, and saves by checkpoint_dir='
    """
    flags = options.flags_for_training + ["--checkpoint-every"] * (options.checkpoint_every is not None)
    obeys = (
        "only what trains by nbdist obeys this (fit, a loop over a strategy, nb.frameworks.torch.fit or "
        "wrap, jax.fit, keras.wrap), and nothing in the body did"
    )
    if any(one.get("trainings", 0) > one.get("own_loops", 0) for one in outcomes.values()):
        # All are obeyed, but a loop over a strategy may compute with no model.
        takes = any(one.get("computed_in", True) for one in outcomes.values())
        flags = [] if takes else [one for one in flags if one == "--precision"]
        obeys = "models of nb.nn and nb.frameworks.torch.fit compute in it, and none did in the body"
    elif any(one.get("monitored") for one in outcomes.values()):
        flags = [one for one in flags if one in ("--epochs", "--precision", "--checkpoint-every")]
        obeys = "a session makes the steps of its graph, and saves by checkpoint_dir="
    return f"{', '.join(flags)} had no effect: {obeys}" if flags else ""


def history_of(results: Mapping[str, Any]) -> History | None:
    """Return the `history` of a ``fit``, or the last other one if a body calls something else so.

    >>> last = History()
    >>> history_of({"history": [0.5], "first": History(), "second": last}) is last
    True
    """
    found = [one for one in (*results.values(), results.get("history")) if isinstance(one, History)]
    return found[-1] if found else None


def differing_weights(outcomes: Outcomes) -> str:
    """Return that ranks which trained together have different weights; empty if they have the same.

    >>> differing_weights({0: {"weights": [(1.0, 1.0)]}, 1: {"weights": [(1.5, 2.0)]}}).partition(":")[0]
    'the ranks have a process group and ended with different weights'
    """
    found = [outcome["weights"] for outcome in outcomes.values() if outcome.get("weights")]
    if not found or any(len(one) != len(found[0]) for one in found):
        return ""  # parts of a model, such as the stages of a pipeline
    differ = any(
        abs(a - b) > WEIGHTS_TOLERANCE * first[1]
        for one in found
        for own, first in zip(one, found[0], strict=True)
        for a, b in zip(own, first, strict=True)
    )
    if not differ:
        return ""
    return (
        "the ranks have a process group and ended with different weights: unless each trains a part of the "
        "model, wrap it in DistributedDataParallel, or average its gradients before optimizer.step()"
    )


def release(followed: FollowedRun, tasks: Sequence[TaskInfo]) -> None:
    """Free the tasks of a run."""
    members, mirror = followed.members, followed.mirror
    waits = [one.info for one in (*members.servers, *members.towers)] if trained(members.outcomes) else []
    for info in tasks:
        # A server writes its part of the timeline at its release; the user's next line may be cluster.stop().
        wait = WRITE_SECONDS if info in waits else 0.0
        keep_timeline(followed.folder, info, followed.send(info, "run.release", mirror.place.to_meta(), wait))
    mirror.drop()
    mirror.close()
    followed.log.close()


def keep_timeline(folder: Path, info: TaskInfo, released: Frame | None) -> None:
    """Write the part of a timeline that a task on another host has returned at its release, if it has one."""
    if released is not None and released.arrays:
        with suppress(OSError, DataLossError):  # a full disk costs no results
            write_part(folder, info.rank, Part.decode(released.arrays[0].tobytes()))


def ended_at(record: RunFile, outcomes: Mapping[int, Mapping[str, Any]]) -> float:
    """Return when a run ended, in seconds since 1970: now, unless its record or its outcomes say when."""
    ends = [outcome.get("ended", 0.0) for outcome in outcomes.values()]
    return record.ended or (max(ends) if ends and all(ends) else time.time())


def write(
    record: RunFile,
    status: str,
    error: NbdistError | None,
    followed: FollowedRun,
    devices: Sequence[ReplicaDevice] = (),
) -> bool:
    """Write a run's end into run.json, and its histories; return whether this client has written it.

    Raises OSError if the disk is full. The first client that sees the end writes it. A second one must not:
    it may have seen the cluster end first.
    """
    with suppress(NbdistError):  # a damaged one is replaced
        written = as_written(record.id) or read_run(record.id)
        if written.status in ENDED:
            return False
        # Another client, the owner of the run, may have replaced tasks or added workers.
        record = dataclasses.replace(
            record,
            cluster=written.cluster,
            restarts=written.restarts,
            losses=written.losses,
            resizes=written.resizes,
        )
    members, store = followed.members, followed.store
    ended = ended_at(record, members.outcomes)
    has_trained = trained(members.outcomes) or bool(store.series) or members.have_sessions
    trained_on = [one.to_config() for one in devices if one.devices]
    record = dataclasses.replace(
        record, status=status, ended=ended, error=str(error or ""), trained=has_trained,
        paused=followed.tally.paused(time.monotonic()), devices=trained_on,
    )  # fmt: skip
    write_run(record, wait=bool(store.series))  # a plain cell need not wait for the disk
    if trained(members.outcomes):
        keep_light(followed.folder, members.outcomes)
    return True
