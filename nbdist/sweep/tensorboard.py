"""A sweep as TensorBoard's HParams page: an experiment, and a session for each trial that has begun.

write_hparams(ledger, folder)
tensorboard --logdir folder

<folder>/events...                   the hyperparameters with their domains, the metrics
<folder>/trial-0003/events...        its values, its reports as scalars, how it ended
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbdist.errors import StorageError
from nbdist.metrics.event_file import EventFile, event
from nbdist.summary.hyperparameters import Experiment, HParam, SessionEnd, SessionStart
from nbdist.summary.values import Scalar, Value
from nbdist.sweep.parameters import Choice, Fixed, Integer, Parameter, Real, When
from nbdist.sweep.state import Ledger, Trial

STATUSES = {"finished": "success", "pruned": "success", "stopped": "success", "failed": "failure"}


def write_hparams(ledger: Ledger, folder: Path) -> Path:
    """Write the sweep as it is now into ``folder``, which is made with mode 0700, and return it.

    Event files that an earlier call has written there are replaced. Raises StorageError if a file cannot be
    written.
    """
    created = ledger.created
    others = {name for trial in ledger.trials.values() for name in trial.values} - {created.metric}
    hparams = [hparam(name, one) for name, one in ledger.space.items()]
    metrics = [created.metric, *sorted(others)]
    experiment = Experiment(hparams, metrics, began=created.time)
    write(folder, [("experiment", experiment, 0, created.time)])
    for trial in ledger.trials.values():
        if trial.started_at is not None:
            write(folder / f"trial-{trial.number:04d}", list(session(ledger, trial)))
    return folder


def hparam(name: str, parameter: Parameter) -> HParam:
    """Return a parameter's name and domain."""
    inner = parameter.parameter if isinstance(parameter, When) else parameter
    if isinstance(inner, Choice):
        return HParam(name, tuple(inner.values))
    if isinstance(inner, Fixed):
        return HParam(name, (inner.value,))
    if isinstance(inner, (Real, Integer)):
        return HParam(name, (inner.low, inner.high), interval=True)
    return HParam(name)


def session(ledger: Ledger, trial: Trial) -> Iterator[tuple[str, Value, int, float]]:
    """Yield (tag, value, step, time) of a trial: its parameters, its reports, its result, its end."""
    began = trial.started_at or trial.asked_at
    yield "start", SessionStart(trial.parameters, f"trial {trial.number}", began), 0, began
    metric, last = ledger.created.metric, trial.step or 0
    curve = ledger.reports.curves.get(trial.number)
    if curve is not None:
        for step, value in zip(curve.steps, curve.values, strict=True):
            yield metric, Scalar(value), step, began
    ended = trial.ended_at or began
    finals = {**trial.values, **({} if trial.value is None else {metric: trial.value})}
    reported = curve is not None and bool(curve.steps) and curve.steps[-1] >= last
    for name, value in finals.items():
        if name != metric or not reported:
            yield name, Scalar(value), last, ended
    if trial.over:
        yield "end", SessionEnd(STATUSES.get(trial.state, "running"), ended), last, ended


def write(folder: Path, values: list[tuple[str, Any, int, float]]) -> None:
    """Write one event file, in place of those in the folder."""
    trouble: list[str] = []
    old = list(folder.glob("events.out.tfevents.*"))
    file = EventFile(folder, trouble.append)
    for tag, value, step, at in values:
        file.add(event(value.messages(tag), step, at))
    file.close()
    if trouble:
        raise StorageError(f"the sweep is not written for TensorBoard: {trouble[0]}")
    for path in old:
        path.unlink(missing_ok=True)
