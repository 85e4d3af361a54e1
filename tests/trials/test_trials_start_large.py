"""A sweep of 10,000 trials is attached within seconds."""

from __future__ import annotations

import time
from pathlib import Path

from examples import examples

from nbdist.sweep.event_log import EventLog
from nbdist.sweep.events import Asked, Ended, Event, Reported, Started
from nbdist.sweep.parse import read_space
from nbdist.sweep.sampler import trial_seed
from nbdist.sweep.space import Parameters, Space
from nbdist.sweep.start import open_sweep
from nbdist.trials.start import attach_sweep
from nbdist.trials.store import LOG, new_sweep_folder, write_about

TRIALS, REPORTS = examples(10_000), 10


def made(space: Space) -> Path:
    """Create the folder of a finished sweep."""
    folder = new_sweep_folder("many")
    about = {"name": "many", "cluster": "ended", "ranks": [0, 1], "strategy": "one_device", "settings": {}}
    write_about(folder, {**about, "function": False})
    with EventLog.create(folder / LOG) as log:
        log.append(open_sweep(space, metric="accuracy", now=0.0, trials=TRIALS, body="accuracy = 1", seed=7))
        for number in range(TRIALS):
            parameters: Parameters = {"lr": 1e-4 * (number + 1), "width": 32}
            events: list[Event] = [
                Asked(number, number, parameters, trial_seed(7, number)),
                Started(number, number, 1, (number % 2,)),
                *(Reported(number, 1, step, step + number, number) for step in range(REPORTS)),
                Ended(number + 1, number, 1, "finished", float(number), {"accuracy": float(number)}),
            ]
            log.append(*events)
    return folder


def test_ten_thousand_trials_are_attached(own_home: Path) -> None:
    folder = made(read_space("lr=log(1e-5, 10) width=[32, 64]"))
    began = time.process_time()
    sweep = attach_sweep(folder.name)
    took = time.process_time() - began
    print(f"{TRIALS:,} trials with {TRIALS * REPORTS:,} reports attached in {took:.2f} s of CPU")

    try:
        assert (sweep.state, len(sweep.trials), sweep.best.number) == ("finished", TRIALS, TRIALS - 1)  # type: ignore[union-attr]
        assert sweep.ledger.curve(5).values == [5.0 + step for step in range(REPORTS)]  # type: ignore[union-attr]
        assert len(sweep.table()["state"]) == TRIALS
    finally:
        sweep.leave()
