"""Peer of p10.ask and p10.rebuild: a study of Optuna's own, in memory or in its journal on the disk."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend

from bench import ask_work
from nbdist.sweep.optuna import distribution

DISTRIBUTIONS = {name: distribution(parameter) for name, parameter in ask_work.SPACE.items()}
GRID: dict[str, list[Any]] = {name: parameter.grid() for name, parameter in ask_work.SPACE.items()}


def main() -> None:
    options = ask_work.options()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.log"
        study = optuna.create_study(
            storage=journal(path) if options.storage == "journal" else None,
            study_name="bench",
            direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed=7),
        )
        if options.sampler == "grid":
            fill_grid(study, options.trials)
            study.sampler = optuna.samplers.GridSampler(GRID, seed=7)
        else:
            for _ in range(options.trials):
                one_trial(study)
        if options.sampler == "tpe":
            study.sampler = optuna.samplers.TPESampler(seed=7)
        if options.value == "rebuild":
            print(json.dumps(rebuilt(path)))
        else:
            print(json.dumps(checked(study, ask_work.milliseconds(lambda: one_trial(study)))))


def journal(path: Path) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(JournalFileBackend(str(path)))


def one_trial(study: optuna.Study) -> None:
    trial = study.ask(DISTRIBUTIONS)
    study.tell(trial, ask_work.result(trial.params))


def fill_grid(study: optuna.Study, count: int) -> None:
    """Add trials as the sampler of grids would have left them; asking it for them takes hours."""
    sizes = [len(values) for values in GRID.values()]
    for number in range(count):
        parameters, index = {}, number
        for (name, values), size in zip(GRID.items(), sizes):
            parameters[name] = values[index % size]
            index //= size
        trial = optuna.trial.create_trial(
            value=ask_work.result(parameters),
            params=parameters,
            distributions=DISTRIBUTIONS,
            system_attrs={"search_space": GRID, "grid_id": number},
        )
        study.add_trial(trial)


def rebuilt(path: Path) -> dict[str, object]:
    """Return the seconds from the journal to a study that knows its trials."""
    gc.collect()
    start = time.perf_counter()
    study = optuna.load_study(study_name="bench", storage=journal(path))
    study.get_trials(deepcopy=False)
    return checked(study, time.perf_counter() - start)


def checked(study: optuna.Study, value: float) -> dict[str, object]:
    trials = study.get_trials(deepcopy=False)
    results = [ask_work.result(trial.params) for trial in trials]
    complete = sum(trial.state == optuna.trial.TrialState.COMPLETE for trial in trials)
    return {
        "value": value,
        "check": {"all complete": complete == len(trials), "best": study.best_value == max(results)},
    }


if __name__ == "__main__":
    main()
