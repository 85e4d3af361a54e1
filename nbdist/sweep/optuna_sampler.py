"""Optuna's samplers behind ours: the only file, with the export, that imports Optuna; on the driver only.

The study is in memory, and only a way to ask: the log is what lasts. It is filled from the history, and each
ask has a random state of its own, from the sweep's seed and the trial's number; so a driver that starts again
from the log asks what the first one would have asked. Only those of Optuna's samplers can do that which know
nothing but the trials: TPE. CMA-ES, NSGA-II and QMC keep a state in the study.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nbdist.errors import InvalidArgumentError, MissingExtra
from nbdist.sweep.distributions import Translation
from nbdist.sweep.events import Direction
from nbdist.sweep.parameters import Parameter
from nbdist.sweep.samplers import Ask, History, Sampler, Tell
from nbdist.sweep.seeds import trial_seed
from nbdist.sweep.space import Parameters, Space
from nbdist.sweep.values import Value

try:
    import optuna
    from optuna.samplers._lazy_random_state import LazyRandomState
    from optuna.trial import TrialState
except ImportError:
    raise MissingExtra("sweep", "the samplers of Optuna") from None


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
        """Return the parameters of trial ``number``, given what is told in ``history``."""
        if len(history) < self._read or self._unheard(history):
            self._start()
        self._catch_up(history)
        self._study.sampler = self._seeded(trial_seed(self._seed, number) ^ 0x5EED)
        trial = self._study.ask()

        def value_of(name: str, parameter: Parameter) -> Value:
            known = self._translations[name]
            # All of Trial's own ways to suggest come down to this one.
            return known.to_ours(trial._suggest(name, known.distribution))

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

    def _seeded(self, seed: int) -> optuna.samplers.BaseSampler:
        reseed(self._sampler, seed)
        return self._sampler

    def _unheard(self, history: History) -> bool:
        """Whether what was asked last is not what the history went on with: Optuna cannot take it back."""
        if self._asked is None:
            return False
        for one in history[self._read :]:
            if isinstance(one, Ask):
                return (one.number, one.parameters) != self._asked or not one.sampled
        return True

    def _catch_up(self, history: History) -> None:
        new = history[self._read :]
        told = {one.number: one for one in new if isinstance(one, Tell)}
        for one in new:
            if isinstance(one, Ask):
                self._given[one.number] = one.parameters
                if self._asked is not None and one.number == self._asked[0]:
                    self._asked = None
                    continue
                if self._space.contains(one.parameters):
                    self._add(one.number, told.pop(one.number, None))
        for tell in told.values():
            self._tell(tell)
        self._read = len(history)

    def _add(self, number: int, tell: Tell | None) -> None:
        parameters = self._given[number]
        state, value = _state(tell)
        last = {tell.step: tell.value} if tell and tell.step is not None and finite(tell.value) else {}
        made = optuna.trial.create_trial(
            state=state,
            value=value,
            params={name: self._translations[name].to_optuna(one) for name, one in parameters.items()},
            distributions={name: self._translations[name].distribution for name in parameters},
            intermediate_values=last,  # type: ignore[arg-type]  # `finite` has looked at the value
        )
        self._study.add_trial(made)
        if state == TrialState.RUNNING:
            self._open[number] = self._added
        self._added += 1

    def _tell(self, tell: Tell) -> None:
        index = self._open.pop(tell.number, None)
        if index is None:  # told once already (it was tried again, or promoted), or outside of this space
            if tell.number in self._given and self._space.contains(self._given[tell.number]):
                self._add(tell.number, tell)
            return
        state, value = _state(tell)
        if state == TrialState.PRUNED and tell.step is not None and finite(tell.value):
            identity = self._study._storage.get_trial_id_from_study_id_trial_number(
                self._study._study_id, index
            )
            optuna.trial.Trial(self._study, identity).report(
                tell.value,  # type: ignore[arg-type]  # `finite` has looked at it
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
    if tell.state == "finished" and finite(tell.value):  # else it could be Optuna's best
        return TrialState.COMPLETE, tell.value
    return (TrialState.PRUNED if tell.state == "pruned" else TrialState.FAIL), None


def finite(value: float | None) -> bool:
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
