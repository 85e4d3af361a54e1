"""A sweep as an Optuna study on the disk, which optuna-dashboard opens; needs Optuna, on the driver only."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, MissingExtra
from nbdist.sweep.distributions import categories, distribution, listed
from nbdist.sweep.ledger import Ledger
from nbdist.sweep.numeric import Integer, Real
from nbdist.sweep.optuna_sampler import quiet
from nbdist.sweep.parameters import Parameter
from nbdist.sweep.trial import Trial
from nbdist.sweep.values import Value, is_number, same_key

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.storages.journal import JournalFileBackend
except ImportError:
    raise MissingExtra("sweep", "the export to a study") from None

STATES = {
    "waiting": "WAITING", "running": "RUNNING", "finished": "COMPLETE", "pruned": "PRUNED",
    "stopped": "FAIL", "failed": "FAIL",
}  # fmt: skip


def export_study(ledger: Ledger, storage: str | Path, name: str) -> optuna.Study:
    """Write all trials into a new study called ``name`` and return it.

    ``storage`` is a file: a journal (``sweep.log``, ``.journal``) or SQLite (``.db``, ``.sqlite``), or an URL
    that Optuna knows. Trials keep their numbers, times, reports and seeds (a user attribute). Raises
    `FailedPreconditionError` if there is such a study already; ``optuna-dashboard sweep.log`` shows it.
    """
    with quiet():
        try:
            study = optuna.create_study(
                storage=_storage(storage),
                study_name=name,
                direction="maximize" if ledger.created.direction == "max" else "minimize",
            )
        except optuna.exceptions.DuplicatedStudyError:
            raise FailedPreconditionError(
                f"{storage} has a study {name!r} already; give another name or another file"
            ) from None
    study.set_user_attr("metric", ledger.created.metric)
    study.set_user_attr("space", str(ledger.space))
    study.set_user_attr("seed", ledger.created.seed)
    columns = {name: Column(ledger, name) for name in _parameter_names(ledger)}
    study.add_trials([_frozen(ledger, trial, columns) for _, trial in sorted(ledger.trials.items())])
    return study


class Column:
    """One distribution for all that a parameter was in a sweep, edits and clones included.

    Optuna wants the same kind, and the same choices, in all trials of a study. So a range is widened to what
    there was, and what was a range once and a choice another time becomes a choice of all values.
    """

    def __init__(self, ledger: Ledger, name: str) -> None:
        kinds: list[Parameter] = [space[name].kind for space in ledger.spaces if name in space]
        trials = ledger.trials.values()
        values = [trial.parameters[name] for trial in trials if name in trial.parameters]
        self._there: dict[object, Any] = {}
        joint = _joint_range(kinds, values)
        if joint is None:
            every = {same_key(value): value for kind in kinds for value in listed(kind)}
            every |= {same_key(value): value for value in values}
            choices = categories(list(every.values()))
            self._there = dict(zip(every, choices))
            joint = CategoricalDistribution(choices)
        self.distribution = joint

    def value(self, value: Value) -> Any:
        """Return a trial's value as Optuna has it."""
        return self._there[same_key(value)] if self._there else value


def _joint_range(kinds: list[Parameter], values: list[Value]) -> BaseDistribution | None:
    """Return a range around all of them, or None if there was anything but one kind of range."""
    ends: list[float] = [value for value in values if is_number(value)]
    if len(ends) < len(values):
        return None
    for kind in kinds:
        if not isinstance(kind, (Real, Integer)) or not isinstance(kind, type(kinds[0])):
            return None
        ends += [kind.low, kind.high]
    low, high = min(ends), max(ends)
    log = low > 0 and all(getattr(kind, "log", False) for kind in kinds)
    if kinds and isinstance(kinds[0], Real):
        return distribution(Real(low, high, log))
    if all(isinstance(end, int) for end in ends):
        return distribution(Integer(int(low), int(high), log))
    return None


def _frozen(ledger: Ledger, trial: Trial, columns: dict[str, Column]) -> optuna.trial.FrozenTrial:
    curve = ledger.curve(trial.number)
    state = optuna.trial.TrialState[STATES[trial.state]]
    if trial.state == "finished" and not math.isfinite(trial.value or 0.0):
        state = optuna.trial.TrialState.FAIL  # a training that diverged is not the study's best
    attributes: dict[str, object] = {
        "number": trial.number,
        "seed": trial.seed,
        "attempts": trial.attempt,
        "state": trial.state,
    }
    if trial.parent is not None:
        attributes["clone of"] = trial.parent
    if trial.error:
        attributes["error"] = trial.error[-2000:]
    made = optuna.trial.create_trial(
        state=state,
        value=trial.value if state == optuna.trial.TrialState.COMPLETE else None,
        params={name: columns[name].value(value) for name, value in trial.parameters.items()},
        distributions={name: columns[name].distribution for name in trial.parameters},
        user_attrs=attributes,
        intermediate_values=dict(zip(curve.steps, curve.values)) if curve else {},
    )
    if trial.started_at is not None:
        made.datetime_start = datetime.fromtimestamp(trial.started_at)
    if trial.over and trial.ended_at is not None:
        made.datetime_complete = datetime.fromtimestamp(trial.ended_at)
    return made


def _storage(storage: str | Path) -> Any:
    if isinstance(storage, str) and "://" in storage:
        return storage
    path = Path(storage)
    if path.suffix in (".log", ".journal"):
        return optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    if path.suffix in (".db", ".sqlite", ".sqlite3"):
        return f"sqlite:///{path.absolute()}"
    raise InvalidArgumentError(f"{path}: a study goes into a file .log, .journal, .db or .sqlite, or an URL")


def _parameter_names(ledger: Ledger) -> list[str]:
    spaces = [name for space in ledger.spaces for name in space]
    return list(
        dict.fromkeys([*spaces, *(name for one in ledger.trials.values() for name in one.parameters)])
    )
