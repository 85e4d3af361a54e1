"""What an engine runs: `SweepSpec` for a sweep and `TrialSpec` for each trial. Plain values for the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nbdist.distribute.registry import STRATEGIES, default_strategy
from nbdist.run.files.place import RunPlace
from nbdist.run.options import Options
from nbdist.run.task.body import RunSpec
from nbdist.run.values.delivery import Given, Pushed
from nbdist.sweep.parameters import plain

STATE = "state.safetensors"
"""The file in a trial's folder from which its first training can be continued."""


def state_file(trainings: int) -> str:
    """Return the name of the file of a trial that a user had begin anew so often.

    >>> state_file(0), state_file(1)
    ('state.safetensors', 'state-1.safetensors')
    """
    return STATE if not trainings else f"{STATE.removesuffix('.safetensors')}-{trainings}.safetensors"


@dataclass(frozen=True)
class SweepSpec:
    """What all trials of a sweep have in common."""

    sweep: str
    folder: str
    metric: str
    options: Options = field(default_factory=lambda: Options(strategy=default_strategy()))
    pushed: Given | Pushed = field(default_factory=Given)
    """Pushed values for the trials; sent once to each engine."""
    first_line: int = 1
    """The number of a text's first line in its cell."""
    token: str = ""
    """What the client has written into the folder, by which engines tell whether they see it."""
    autoreload: tuple[str, ...] = ()
    """Which modules are reloaded before a trial if they were edited, as for the body of a run."""


@dataclass(frozen=True)
class TrialSpec:
    """One attempt at a trial, for every rank that takes part.

    ``resume`` is the file from which its training continues, empty for a new training; ``epochs``
    overrides what the body says.
    """

    number: int
    attempt: int
    ranks: tuple[int, ...]
    parameters: dict[str, Any]
    seed: int
    resume: str = ""
    epochs: int | None = None
    state: str = STATE
    """The file in its folder from which its training can be continued."""

    def to_meta(self) -> dict[str, Any]:
        """Return it as a frame's meta."""
        return {**vars(self), "ranks": list(self.ranks)}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> TrialSpec:
        """Return what `to_meta` made, also after it has travelled, which makes lists of tuples.

        >>> meta = {**TrialSpec(0, 1, (0,), {}, 7).to_meta(), "parameters": {"sizes": [32, 16]}}
        >>> TrialSpec.from_meta(meta).parameters
        {'sizes': (32, 16)}
        """
        given = {name: meta[name] for name in cls.__dataclass_fields__}
        parameters = {name: plain(value) for name, value in meta["parameters"].items()}
        return cls(**{**given, "ranks": tuple(meta["ranks"]), "parameters": parameters})


def run_name(sweep: str, number: int, attempt: int) -> str:
    """Return the name by which tasks know an attempt at a trial, as they know a run.

    >>> run_name("261120-digits", 7, 1)
    '261120-digits.7.1'
    """
    return f"{sweep}.{number}.{attempt}"


def trial_folder(folder: Path, number: int) -> Path:
    """Return the folder of a trial within the sweep's; its attempts share it.

    >>> str(trial_folder(Path("/sweeps/digits"), 7))
    '/sweeps/digits/trials/000007'
    """
    return folder / "trials" / f"{number:06d}"


def trial_place(sweep: SweepSpec, number: int) -> RunPlace:
    """Return the place of a trial's files.

    >>> trial_place(SweepSpec("digits", "/sweeps/digits", "loss"), 7).under
    'trials/000007'
    """
    return RunPlace(sweep.folder, sweep.token, trial_folder(Path(), number).as_posix())


def strategy_for(sweep: SweepSpec, trial: TrialSpec) -> str:
    """Return the strategy of a trial: one that was promoted may have more engines than the sweep's others.

    >>> strategy_for(SweepSpec("s", "/s", "loss"), TrialSpec(0, 1, (0, 1), {}, 7))
    'multi_worker'
    """
    options = sweep.options
    strategy = options.strategy or default_strategy()
    together = len(trial.ranks) > 1 and options.framework is None and not STRATEGIES[strategy].for_trials
    return default_strategy(together=True) if together else strategy


def run_spec(sweep: SweepSpec, trial: TrialSpec) -> RunSpec:
    """Return the specification for a trial's body, as for the body of a run."""
    return RunSpec(
        run=run_name(sweep.sweep, trial.number, trial.attempt),
        place=trial_place(sweep, trial.number),
        ranks=trial.ranks,
        options=replace(sweep.options, seed=trial.seed, epochs=trial.epochs),
        strategy=strategy_for(sweep, trial),
        names=trial.parameters,
        pushed=sweep.pushed,
        first_line=sweep.first_line,
        autoreload=sweep.autoreload,
        generators=trial.seed,
    )
