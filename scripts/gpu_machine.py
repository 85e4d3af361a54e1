"""What the checks of `make gpu` share: the machine, its workers, strategies, and the report.

    report = Report()
    report.run("fit", check, Machine(cupy))             # PASS fit: 1.2 ms a step

A check raises if it fails, and returns what it has found, in words. Tracebacks go to standard error.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import nbdist as nb

STRATEGIES: dict[str, dict[str, Any]] = {
    "one_device": {"strategy": "one_device", "on": "worker:0"},
    "multi_worker": {"strategy": "multi_worker"},
    "mirrored": {"strategy": "mirrored"},
    "sharded": {"strategy": "sharded"},
    "central": {"strategy": "central"},
    "ps, sync": {"strategy": "ps", "sync": True},
    "ps, async": {"strategy": "ps", "sync": False},
    "elastic": {"strategy": "elastic"},
}
"""What ``nb.launch`` is given."""
INDEPENDENT = {"ps, async", "elastic"}
"""Those whose replicas do not make the steps of one device."""

CASE_SECONDS = 300
"""How long a case may take, the first import of a framework included."""
PATIENCE = 120.0  # seconds in which what is waited for has to be


@dataclass(frozen=True)
class Machine:
    """The array module that the checks run on."""

    xp: ModuleType

    @property
    def on_gpu(self) -> bool:
        return self.xp is not np

    @property
    def devices(self) -> list[str]:
        """The devices of this process."""
        if not self.on_gpu:
            return ["CPU:0", "CPU:0"]
        return [f"GPU:{number}" for number in range(self.xp.cuda.runtime.getDeviceCount())]


@dataclass
class Report:
    """The lines of the report, which are also printed."""

    lines: list[str] = field(default_factory=list)
    failed: int = 0

    def say(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def run(self, name: str, check: Callable[[Machine], object], machine: Machine) -> None:
        """Run a check; it passes unless it raises."""
        try:
            self.say(f"PASS {name}: {check(machine)}")
        except Exception as error:
            self.failed += 1
            traceback.print_exception(error)  # the report has its first line only
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            self.say(f"FAIL {name}: {one_line(error)[:400]} ({where})")


def require(condition: object, problem: str) -> None:
    """Raise unless a condition holds; an ``assert`` would vanish under ``python -O``."""
    if not condition:
        raise RuntimeError(problem)


def one_line(error: BaseException) -> str:
    """Return an error in one line; of a task's traceback the line with its error."""
    first, *others = str(error).splitlines() or [""]
    if first.startswith("Traceback"):
        return next((line for line in others if not line.startswith(" ")), first)
    return f"{type(error).__name__}: {first}"


class CaseTimeout(KeyboardInterrupt):
    """A case takes too long: a run that it waits for is stopped, as by the user."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise CaseTimeout in the block after so many seconds; for the main thread."""

    def expire(number: int, frame: object) -> None:
        raise CaseTimeout(f"not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_all(cases: Mapping[str, Callable[[], object]]) -> str:
    """Run all cases of a check, also after one that fails or takes too long; return what they have found.

    Raises RuntimeError with the errors of all that failed.
    """
    found, wrong = [], []
    for name, case in cases.items():
        try:
            with time_limit(CASE_SECONDS):
                found.append(f"{name} {result}" if (result := case()) else name)
            print(f"    {found[-1]}", flush=True)
        except (Exception, CaseTimeout) as error:
            print(f"    {name} has failed:", flush=True)
            traceback.print_exception(error)
            wrong.append(f"{name}: {one_line(error)[:160]}")
    require(not wrong, f"{len(wrong)} of {len(cases)}: " + " | ".join(wrong))
    return ", ".join(found)


@contextmanager
def workers(machine: Machine, count: int = 1, ps: int = 1) -> Iterator[nb.Cluster]:
    """A cluster whose workers have the first GPU, in a rehearsal none."""
    cluster = nb.start_cluster(workers=count, ps=ps, gpus=1 if machine.on_gpu else "none", report=None)
    try:
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def stopped_if_it_fails(run: nb.Run) -> Iterator[None]:
    """Stop a run in the background if the block fails: the next case needs its workers."""
    try:
        yield
    except BaseException:
        if not run.over:
            run.stop()
            run.wait()
        raise


def wait_for(condition: Callable[[], object], run: nb.Run, what: str) -> None:
    """Wait until something holds while a run is under way; raise if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if run.over:
            run.wait()  # raises its error
            raise RuntimeError(f"the run has ended before {what}")
        require(time.monotonic() < deadline, f"after {PATIENCE:.0f} s: not {what}")
        time.sleep(0.05)
