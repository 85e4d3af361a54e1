"""The cost of a sweep for its driver, without engines: ask, write, tell, and rebuild from the log.

Each trial reports 20 times, on 4 simulated engines. The figures are CPU time of this process, which other
load on the machine changes less; and wall time where a user waits.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path

from nbdist.sweep.event_log import EventLog, read_events
from nbdist.sweep.events import Created, Event, Reported, Started
from nbdist.sweep.parse import read_space
from nbdist.sweep.sampler import Ask, Tell
from nbdist.sweep.samplers import make_sampler
from nbdist.sweep.scheduler import Scheduler
from nbdist.sweep.start import open_sweep
from nbdist.sweep.state import Ledger

ENGINES, REPORTS = 4, 20
SPACE = read_space(
    "lr=log(1e-4, 1e-1, points=100) hidden=[32, 64, 128, 256] batch=int(16, 128, points=13) "
    "opt=['sgd', 'adam']"
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tpe", type=int, default=1000, help="how many trials TPE asks for")
    options = parser.parse_args()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for sampler in ("random", "grid"):
            for count in (1_000, 10_000):
                path = Path(folder) / f"{sampler}-{count}.log"
                found[f"{sampler}, {count:,} trials"] = drive(path, sampler, count) / count * 1e3
        found["rebuild 10,000 trials"] = rebuild(path, count)
        found["rebuild, CPU"] = rebuild(path, count, time.process_time)
    found |= {f"TPE, trial {number:,}": seconds * 1e3 for number, seconds in tpe(options.tpe).items()}
    print(json.dumps(found))


def drive(path: Path, sampler: str, count: int) -> float:
    """Return the CPU seconds of the driver for a whole sweep, including its log."""
    ledger = Ledger(created(sampler, count))
    scheduler = Scheduler(ledger)
    running: dict[int, tuple[int, ...]] = {}
    steps: dict[int, int] = {}
    start = time.process_time()
    with EventLog.create(path) as log:
        log.append(ledger.created)

        def write(event: Event) -> None:
            log.append(event)
            ledger.apply(event)

        while not scheduler.done:
            free = set(range(ENGINES)) - {rank for ranks in running.values() for rank in ranks}
            while event := scheduler.next(free, ENGINES, 1.0):
                write(event)
                if isinstance(event, Started):
                    running[event.number], steps[event.number] = event.ranks, 0
                    free -= set(event.ranks)
            for number in list(running):
                steps[number] += 1
                report = Reported(number, 1, steps[number], number % 97 / 97, 2.0)
                write(report)
                scheduler.judge(report, 2.0)
                if steps[number] == REPORTS:
                    ended = scheduler.end(number, 1, "finished", 3.0, {"accuracy": report.value})
                    assert ended is not None
                    write(ended)
                    del running[number]
    assert ledger.counts["finished"] == count
    return time.process_time() - start


def rebuild(path: Path, count: int, clock: object = time.perf_counter) -> float:
    """Return the seconds to rebuild a ledger from a log on the disk."""
    assert callable(clock)
    gc.collect()
    start = clock()
    ledger = Ledger.of(read_events(path).events)
    seconds = clock() - start
    assert ledger.counts["finished"] == count
    return float(seconds)


def tpe(count: int) -> dict[int, float]:
    """Return the CPU seconds of one ask and the tell before it, in a sweep of ``count`` finished trials."""
    sampler = make_sampler("tpe", SPACE, 7)
    history: list[Ask | Tell] = []
    start = time.process_time()
    taken: list[float] = []
    for number in range(count):
        parameters = sampler.ask(history, number)
        assert parameters is not None
        history += [Ask(number, parameters, True), Tell(number, "finished", -float(str(parameters["lr"])), 1)]
        taken.append(time.process_time() - start)
        start = time.process_time()
    last = sorted(taken[-count // 10 :])
    return {count: last[len(last) // 2]}


def created(sampler: str, count: int) -> Created:
    return open_sweep(SPACE, metric="accuracy", sampler=sampler, trials=count, pruner="none", now=0.0)


if __name__ == "__main__":
    main()
