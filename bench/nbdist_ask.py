"""Our side of p10.ask and p10.rebuild: scheduler, ledger and event log, with no engines."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from pathlib import Path

from bench import ask_work
from nbdist.sweep.event_log import EventLog, read_events
from nbdist.sweep.events import Asked, Created, Event
from nbdist.sweep.samplers import make_sampler
from nbdist.sweep.scheduler import Scheduler
from nbdist.sweep.start import MOST_TRIALS, open_sweep
from nbdist.sweep.state import Ledger

ENGINES = frozenset(range(4))


class Driver:
    """Runs trials that are over at once: asked, started and ended, each written before it counts."""

    def __init__(self, log: EventLog, sampler: str) -> None:
        self.ledger = Ledger(created(sampler))
        self.scheduler = Scheduler(self.ledger)
        self.log = log
        log.append(self.ledger.created)

    def trial(self) -> None:
        asked = self.scheduler.next(ENGINES, len(ENGINES), time.time())
        assert isinstance(asked, Asked)
        self.run(asked)

    def run(self, asked: Asked) -> None:
        self.write(asked)
        started = self.scheduler.next(ENGINES, len(ENGINES), time.time())
        assert started is not None
        self.write(started)
        values = {"accuracy": ask_work.result(asked.parameters)}
        ended = self.scheduler.end(asked.number, 1, "finished", time.time(), values)
        assert ended is not None
        self.write(ended)

    def write(self, event: Event) -> None:
        self.log.append(event)
        self.ledger.apply(event)


def main() -> None:
    options = ask_work.options()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.log"
        with EventLog.create(path) as log:
            driver = Driver(log, options.sampler)
            fill(driver, options.trials)
            value = ask_work.milliseconds(driver.trial) if options.value == "ask" else 0.0
        print(json.dumps(rebuilt(path) if options.value == "rebuild" else checked(driver.ledger, value)))


def fill(driver: Driver, count: int) -> None:
    """Run trials; a sampler that learns finds them drawn at random, as it would itself take too long."""
    grid = driver.ledger.created.sampler == "grid"
    random = make_sampler("random", ask_work.SPACE, seed=7)
    for number in range(count):
        if grid:
            driver.trial()
            continue
        parameters = random.ask([], number)
        assert parameters is not None
        driver.run(Asked(time.time(), number, parameters, seed=number))


def rebuilt(path: Path) -> dict[str, object]:
    """Return the seconds from the log to the state of everything."""
    gc.collect()
    start = time.perf_counter()
    ledger = Ledger.of(read_events(path).events)
    return checked(ledger, time.perf_counter() - start)


def checked(ledger: Ledger, value: float) -> dict[str, object]:
    results = [ask_work.result(trial.parameters) for trial in ledger.trials.values()]
    return {
        "value": value,
        "check": {
            "all complete": ledger.counts["finished"] == len(results),
            "best": ledger.best_value == max(results),
        },
    }


def created(sampler: str) -> Created:
    space, trials = ask_work.SPACE, None if sampler == "grid" else MOST_TRIALS
    return open_sweep(space, metric="accuracy", sampler=sampler, trials=trials, seed=7, now=time.time())


if __name__ == "__main__":
    main()
