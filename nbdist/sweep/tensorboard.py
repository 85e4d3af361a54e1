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
from nbdist.sweep.parameters import Integer, Real, is_number, same_key
from nbdist.sweep.state import Ledger, Trial

STATUSES = {"finished": "success", "pruned": "success", "stopped": "success", "failed": "failure"}


def write_hparams(ledger: Ledger, folder: Path) -> Path:
    """Write the sweep as it is now into ``folder``, which is made with mode 0700, and return it.

    Event files that an earlier call has written there are replaced. Raises StorageError if a file cannot be
    written.
    """
    created = ledger.created
    others = {name for trial in ledger.trials.values() for name in trial.values} - {created.metric}
    hparams = [hparam(name, ledger) for name in ledger.parameter_names]
    metrics = [created.metric, *sorted(others)]
    experiment = Experiment(hparams, metrics, began=created.time)
    write(folder, [("experiment", experiment, 0, created.time)])
    for trial in ledger.trials.values():
        if trial.started_at is not None:
            write(folder / f"trial-{trial.number:04d}", list(session(ledger, trial)))
    return folder


def hparam(name: str, ledger: Ledger) -> HParam:
    """Return a parameter's domain: all that it was in the sweep, edits, clones and promotions included.

    TensorBoard does not show a trial outside of it.
    """
    kinds = [space[name].kind for space in ledger.spaces if name in space]
    values = [one.parameters[name] for one in ledger.trials.values() if name in one.parameters]
    ranges = [kind for kind in kinds if isinstance(kind, (Real, Integer))]
    ends = [value for value in values if is_number(value)]
    if ranges and len(ranges) == len(kinds) and len(ends) == len(values):
        lows, highs = [one.low for one in ranges], [one.high for one in ranges]
        return HParam(name, (min(lows + ends), max(highs + ends)), interval=True)
    if ranges:
        return HParam(name)
    listed = [value for kind in kinds for value in kind.grid()] + values
    return HParam(name, tuple({same_key(value): value for value in listed}.values()))


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
    last = max(last, curve.steps[-1]) if curve is not None and curve.steps else last
    reported = curve is not None and curve.values[-1:] == [trial.value]
    for name, value in finals.items():
        if name != metric or not reported:  # TensorBoard shows the last value of a tag
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
