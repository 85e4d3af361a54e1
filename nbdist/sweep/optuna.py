"""Optuna's samplers behind ours: the only file, with the export, that imports Optuna; on the driver only.

The study is in memory, and only a way to ask: the log is what lasts. It is filled from the history, and each
ask has a random state of its own, from the sweep's seed and the trial's number; so a driver that starts again
from the log asks what the first one would have asked. Only those of Optuna's samplers can do that which know
nothing but the trials: TPE. CMA-ES, NSGA-II and QMC keep a state in the study.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, MissingExtra
from nbdist.sweep.events import Direction
from nbdist.sweep.parameters import (
    Choice,
    Fixed,
    Integer,
    Parameter,
    Real,
    Value,
    is_number,
    literal,
    same_key,
)
from nbdist.sweep.sampler import Ask, History, Sampler, Tell, trial_seed
from nbdist.sweep.space import Parameters, Space
from nbdist.sweep.state import Ledger, Trial

try:
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.samplers._lazy_random_state import LazyRandomState
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ImportError:
    raise MissingExtra("sweep", "the samplers of Optuna and the export to a study") from None


class OptunaSampler(Sampler):
    """Asks one of Optuna's samplers; ``settings`` are that one's own, such as ``n_startup_trials``.

    Raises `InvalidArgumentError` for a setting that it has not.
    """

    def __init__(
        self, name: str, space: Space, seed: int, direction: Direction, settings: Mapping[str, Any]
    ) -> None:
        self._space, self._seed = space, seed
        self._direction = direction
        self._make = _maker(name, settings)
        self._sampler = self._make(0)
        self._asked: tuple[int, Parameters] | None = None
        self._translations = {name: Translation(parameter) for name, parameter in space.items()}
        self._start()

    def ask(self, history: History, number: int) -> Parameters:
        """Return the parameters of trial ``number``, given the values in ``history``."""
        if len(history) < self._read or self._diverged(history):
            self._start()
        self._catch_up(history)
        reseed(self._sampler, trial_seed(self._seed, number) ^ 0x5EED)
        self._study.sampler = self._sampler
        trial = self._study.ask()

        def value_of(name: str, parameter: Parameter) -> Value:
            known = self._translations[name]
            # All of Trial's own ways to suggest come down to this one.
            found = trial._suggest(name, known.distribution)
            return known.back.get(found, found)

        parameters = self._space.fill(value_of)
        self._open[number] = trial.number
        self._added += 1
        self._asked = (number, parameters)
        return parameters

    def _start(self) -> None:
        with quiet():
            self._study = optuna.create_study(
                direction="maximize" if self._direction == "max" else "minimize"
            )
        self._sampler = self._make(0)
        self._read = self._added = 0
        self._open: dict[int, int] = {}  # our number -> Optuna's, of trials that it takes for running
        self._given: dict[int, Mapping[str, Value]] = {}
        self._asked = None

    def _diverged(self, history: History) -> bool:
        """Whether the history lacks the last sampled trial: Optuna cannot take it back."""
        if self._asked is None:
            return False
        for one in history[self._read :]:
            if isinstance(one, Ask):
                return (one.number, one.parameters) != self._asked or not one.sampled
        return True

    def _catch_up(self, history: History) -> None:
        new = history[self._read :]
        results = {one.number: one for one in new if isinstance(one, Tell)}
        for one in new:
            if isinstance(one, Ask):
                self._given[one.number] = one.parameters
                if self._asked is not None and one.number == self._asked[0]:
                    self._asked = None
                    continue
                if self._space.contains(one.parameters):
                    self._add(one.number, results.pop(one.number, None))
        for tell in results.values():
            self._tell(tell)
        self._read = len(history)

    def _add(self, number: int, tell: Tell | None) -> None:
        parameters = self._given[number]
        state, value = _state(tell)
        last = {tell.step: tell.value} if tell and tell.step is not None and is_finite(tell.value) else {}
        made = optuna.trial.create_trial(
            state=state,
            value=value,
            params={name: self._translations[name].to_optuna(one) for name, one in parameters.items()},
            distributions={name: self._translations[name].distribution for name in parameters},
            intermediate_values=last,  # type: ignore[arg-type]  # `is_finite` has looked at the value
        )
        self._study.add_trial(made)
        if state == TrialState.RUNNING:
            self._open[number] = self._added
        self._added += 1

    def _tell(self, tell: Tell) -> None:
        index = self._open.pop(tell.number, None)
        if index is None:  # reported before (it was retried or promoted), or outside of this space
            if tell.number in self._given and self._space.contains(self._given[tell.number]):
                self._add(tell.number, tell)
            return
        state, value = _state(tell)
        if state == TrialState.PRUNED and tell.step is not None and is_finite(tell.value):
            identity = self._study._storage.get_trial_id_from_study_id_trial_number(
                self._study._study_id, index
            )
            optuna.trial.Trial(self._study, identity).report(
                tell.value,  # type: ignore[arg-type]  # `is_finite` has looked at it
                tell.step,
            )
        self._study.tell(index, value, state)


def _maker(name: str, settings: Mapping[str, Any]) -> Callable[[int], optuna.samplers.BaseSampler]:
    given = dict(settings)
    if "seed" in given:
        raise InvalidArgumentError("a sampler's seed is the sweep's: give --seed")
    kinds: dict[str, tuple[Callable[..., optuna.samplers.BaseSampler], dict[str, Any]]] = {
        "tpe": (optuna.samplers.TPESampler, {}),
        "tpe-univariate": (optuna.samplers.TPESampler, {"multivariate": False}),
    }
    kind, own = kinds[name]

    def make(seed: int) -> optuna.samplers.BaseSampler:
        try:
            return kind(seed=seed, **{**own, **given})
        except TypeError as error:
            raise InvalidArgumentError(
                f"the sampler {name}: {error}; Optuna's documentation lists them"
            ) from None

    return make


def reseed(sampler: optuna.samplers.BaseSampler, seed: int) -> None:
    """Give a sampler, and those it uses, the random state that it would have had if made with this seed.

    Optuna's own way takes a seed only when a sampler is made, and what TPE knows of the space would be worked
    out from all trials again then.
    """
    for part in vars(sampler).values():
        if isinstance(part, LazyRandomState):
            part.rng.seed(seed)
        elif isinstance(part, optuna.samplers.BaseSampler):
            reseed(part, seed)


def _state(tell: Tell | None) -> tuple[TrialState, float | None]:
    """Return how Optuna calls an end, and the result that goes with it."""
    if tell is None:
        return TrialState.RUNNING, None
    if tell.state == "finished" and is_finite(tell.value):  # else it could be Optuna's best
        return TrialState.COMPLETE, tell.value
    return (TrialState.PRUNED if tell.state == "pruned" else TrialState.FAIL), None


def is_finite(value: float | None) -> bool:
    """Return whether there is a value that Optuna can use."""
    return value is not None and math.isfinite(value)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from saying that it made a study; how much it says otherwise is the user's."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


# Our parameters as Optuna's distributions; needs Optuna, on the driver only.

Category: TypeAlias = "bool | int | float | str | None"


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return the distribution of what a parameter may be."""
    match parameter.kind:
        case Real(low=low, high=high, log=log):
            return FloatDistribution(low, high, log=log)
        case Integer(low=low, high=high, log=log, step=step):
            # Optuna wants a highest value that a step hits.
            return IntDistribution(low, low + (high - low) // step * step, log=log, step=step)
    return CategoricalDistribution(categories(listed(parameter)))


class Translation:
    """A parameter's values to and from what its distribution gives."""

    def __init__(self, parameter: Parameter) -> None:
        self.distribution = distribution(parameter)
        self._real = isinstance(parameter.kind, Real)
        values = listed(parameter)
        self._there = dict(zip(map(same_key, values), categories(values)))
        self.back = dict(zip(categories(values), values))
        """Our value for each of Optuna's, where there are a few; else they are the same."""

    def to_optuna(self, value: Value) -> Category:
        """Return a value of ours as Optuna has it."""
        if self._there:
            return self._there[same_key(value)]
        # Only numbers get here, which mypy cannot know: what is listed by value, text too, was found above.
        return float(value) if self._real else value  # type: ignore[arg-type, return-value]  # as said above


def listed(parameter: Parameter) -> tuple[Value, ...]:
    """Return the values of a choice or a fixed value; none for a range."""
    match parameter.kind:
        case Choice(values=values):
            return values
        case Fixed(value=value):
            return (value,)
    return ()


def categories(values: Sequence[Value]) -> list[Category]:
    """Return values as Optuna's categories: as they are, or their texts if Optuna could not distinguish them.

    >>> categories([32, 64]), categories([1, True]), categories([(32, 32), (64,)])
    ([32, 64], ['1', 'True'], ['[32, 32]', '[64]'])
    """
    plain = [value for value in values if not isinstance(value, tuple)]
    if len(set(plain)) == len(values):
        return plain
    return [literal(value) for value in values]


# A sweep as an Optuna study on the disk, which optuna-dashboard opens; needs Optuna, on the driver only.

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
    columns = {name: ParameterColumn(ledger, name) for name in ledger.parameter_names}
    study.add_trials([_frozen(ledger, trial, columns) for _, trial in sorted(ledger.trials.items())])
    return study


class ParameterColumn:
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


def _frozen(ledger: Ledger, trial: Trial, columns: dict[str, ParameterColumn]) -> optuna.trial.FrozenTrial:
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
