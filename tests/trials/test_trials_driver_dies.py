"""Sweeps after the death or end of their driver, and processes that take them over."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tiers import matrix
from trials_tools import GATED, began, finished, states
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, NotFoundError
from nbdist.sweep import commands
from nbdist.sweep.event_log import EventLog, read_events
from nbdist.sweep.state import Ledger
from nbdist.trials.start import attach_sweep
from nbdist.trials.store import LOG, sweeps

if TYPE_CHECKING:
    from nbdist.trials.sweep import Sweep

pytestmark = pytest.mark.engines
Begin = Callable[..., "Sweep"]
DRIVER = Path(__file__).with_name("trials_driver.py")


def quiet(line: str) -> None: ...


class Driven:
    """A driver in another process."""

    def __init__(self, marks: Path, trials: int = 8, workers: int = 2, per_trial: int = 1) -> None:
        root = str(Path(__file__).resolve().parents[2])
        given = [str(marks), *map(str, (trials, workers, per_trial))]
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root}/tests"},
        )
        assert self.process.stdout is not None
        self.sweep, self.cluster = self.process.stdout.readline().split()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@pytest.fixture
def drive(marks: Path) -> Iterator[Callable[..., Driven]]:
    drivers: list[Driven] = []

    def drive_one(**given: int) -> Driven:
        drivers.append(Driven(marks, **given))
        return drivers[-1]

    yield drive_one
    for one in drivers:
        one.kill()
        for pipe in (one.process.stdin, one.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            Cluster.attach(one.cluster).stop()
        except NotFoundError:  # the process has ended
            continue


def accounted(sweep: Sweep, marks: Path, trials: int) -> None:
    """Check that every trial has ended, and that no attempt ran twice."""
    assert states(sweep) == ["finished"] * trials, [(t.number, t.state, t.error) for t in sweep.trials]
    assert not sweep.ledger.running
    made = Counter(name.split("-on-")[0] for name in os.listdir(marks) if name.startswith("attempt-"))
    per_trial = sweep.ledger.created.per_trial
    assert set(made.values()) == {per_trial}
    assert len(made) >= trials
    for trial in sweep.trials:
        assert trial.attempt <= 2
        assert f"attempt-{trial.number}.{trial.attempt}" in made
    log = read_events(sweep.folder / LOG)
    assert not log.damaged
    assert Ledger.of(log.events).counts == sweep.ledger.counts


@pytest.mark.parametrize(("seed", "per_trial"), matrix([(0, 1), (2, 2)], rest=[(1, 1)]))
def test_the_driver_is_killed_and_another_takes_over(
    drive: Callable[..., Driven], marks: Path, held: list[Sweep], seed: int, per_trial: int
) -> None:
    driven = drive(trials=7, workers=2, per_trial=per_trial)
    until(lambda: began(marks))
    time.sleep(random.Random(seed).uniform(0, 1.0))  # a random moment; no assertion depends on it
    driven.kill()
    before = len(began(marks))
    sweep = attach_sweep(driven.sweep, report=quiet)
    held.append(sweep)
    assert sweep.cluster.id == driven.cluster
    until(lambda: len(sweep.ledger.running) == 2 // per_trial)
    (marks / "open").touch()
    finished(sweep)
    assert before <= len(began(marks))
    accounted(sweep, marks, 7)
    sweep.leave()


def test_an_ended_kernel_leaves_its_trials_to_the_next_driver(
    drive: Callable[..., Driven], marks: Path, held: list[Sweep]
) -> None:
    driven = drive(trials=6)
    until(lambda: len(began(marks, 0)) and len(began(marks, 1)))
    driven.end()
    sweep = attach_sweep(driven.sweep, report=quiet)
    held.append(sweep)
    until(lambda: len(sweep.ledger.running) == 2 and {0, 1} <= set(sweep.ledger.running))
    (marks / "open").touch()
    finished(sweep)
    assert [trial.attempt for trial in sweep.trials] == [1] * 6
    accounted(sweep, marks, 6)
    steps = sweep.ledger.curve(0).steps  # type: ignore[union-attr]
    assert steps == sorted(set(steps))


def test_trials_that_end_without_a_driver_are_not_lost(
    drive: Callable[..., Driven], marks: Path, held: list[Sweep]
) -> None:
    driven = drive(trials=4)
    until(lambda: len(began(marks, 0)) and len(began(marks, 1)))
    driven.kill()
    (marks / "open").touch()
    until(lambda: {"ended-0.1-on-0", "ended-1.1-on-1"} <= set(os.listdir(marks)) or ended(marks) >= 2)
    sweep = attach_sweep(driven.sweep, report=quiet)
    held.append(sweep)
    finished(sweep)
    assert [trial.attempt for trial in sweep.trials] == [1] * 4
    accounted(sweep, marks, 4)


def ended(marks: Path) -> int:
    return sum(name.startswith("ended-") for name in os.listdir(marks))


def test_a_second_process_is_refused_while_the_first_drives(
    drive: Callable[..., Driven], marks: Path
) -> None:
    driven = drive(trials=3)
    with pytest.raises(FailedPreconditionError, match=f"process {driven.process.pid} is writing"):
        attach_sweep(driven.sweep, report=quiet)
    with pytest.raises(NotFoundError, match=f"no sweep nothing; the latest are .*{driven.sweep}"):
        attach_sweep("nothing", report=quiet)


def test_attach_in_the_driving_process_returns_its_sweep(begin: Begin, cluster: Cluster, marks: Path) -> None:
    sweep = begin(GATED.format(folder=str(marks)), {"number": [0, 1]}, cluster=cluster)
    assert attach_sweep(sweep.id, report=quiet) is sweep
    (marks / "open").touch()
    finished(sweep)
    assert attach_sweep(sweep.id, report=quiet) is sweep
    sweep.leave()
    again = attach_sweep(sweep.id, report=quiet)
    assert again is not sweep
    assert again.table()["state"].tolist() == ["finished"] * 2
    again.leave()
    with pytest.raises(FailedPreconditionError, match="no longer drives sweep"):
        again.add(1)


def test_running_trials_of_a_left_sweep_are_adopted(
    begin: Begin, cluster: Cluster, marks: Path, held: list[Sweep]
) -> None:
    first = begin(GATED.format(folder=str(marks)), {"number": list(range(8))}, cluster=cluster)
    until(lambda: len(began(marks)) == 3)
    first.leave()
    second = attach_sweep(first.id, cluster=cluster, report=quiet)
    held.append(second)
    until(lambda: {one.number for one in second.engines()} == {0, 1, 2})
    (marks / "open").touch()
    finished(second)
    assert states(second) == ["finished"] * 8
    assert [trial.attempt for trial in second.trials] == [1] * 8
    assert len(began(marks)) == 8


def test_another_cluster_after_the_end_of_its_own(
    start: Callable[..., Cluster], begin: Begin, cluster: Cluster, marks: Path, held: list[Sweep]
) -> None:
    own = start(workers=2)
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(5))}, cluster=own)
    until(lambda: len(began(marks)) == 2)
    own.stop()
    until(lambda: sweep.state == "failed")
    assert own.id in str(sweep.error)
    (marks / "open").touch()
    other = attach_sweep(sweep.id, cluster=cluster, report=quiet)
    held.append(other)
    finished(other)
    assert states(other) == ["finished"] * 5
    assert [trial.attempt for trial in other.trials] == [2, 2, 1, 1, 1]


def by_width(width: int) -> float:
    return float(width)


def by_other_width(width: int) -> float:
    return width + 0.5


by_width.__module__ = by_other_width.__module__ = "__main__"


def test_a_function_must_be_passed_again(begin: Begin, cluster: Cluster, held: list[Sweep]) -> None:
    sweep = finished(begin(by_width, "width=[1, 2]", cluster=cluster))
    sweep.leave()
    attached = attach_sweep(sweep.id, report=quiet)
    assert attached.best.value == 2.0  # type: ignore[union-attr]
    for refused in (lambda: attached.clone(0), lambda: attached.retry(1), lambda: attached.promote(0)):
        with pytest.raises(FailedPreconditionError):
            refused()
    attached.edit(width=[1, 2, 3])  # it starts no trial
    with pytest.raises(FailedPreconditionError, match="trial=function"):
        attached.add(1)
    assert len(attached.trials) == attached.ledger.wanted == 2  # a refused command has no effect
    attached._record.write(*commands.clone(attached.ledger, 0, {}, time.time()))
    attached.leave()
    with pytest.raises(FailedPreconditionError, match="trial=function"):  # a clone waits to run
        attach_sweep(sweep.id, report=quiet)
    lines: list[str] = []
    again = attach_sweep(sweep.id, trial=by_other_width, cluster=cluster, report=lines.append)
    held.append(again)
    finished(again)
    assert again.trial(2).value == 1.5
    assert "the function is not what" in lines[0]
    assert attach_sweep(sweep.id, trial=by_width, report=quiet) is again  # this process holds it
    again.clone(0)
    finished(again)
    assert again.trial(3).value == 1.0


def test_a_torn_last_record_loses_one_event(begin: Begin, cluster: Cluster, held: list[Sweep]) -> None:
    sweep = finished(begin("accuracy = width", "width=[1, 2, 3]", cluster=cluster, on="worker:0"))
    sweep.leave()
    whole = (sweep.folder / LOG).read_bytes()
    events = read_events(sweep.folder / LOG).events
    last = max(size for size in range(1, len(whole)) if count(sweep.folder, whole[:-size]) == len(events) - 1)
    for size in range(1, last):
        assert count(sweep.folder, whole[:-size]) == len(events) - 1
    for size in (1, last // 2, last - 1):
        folder = sweep.folder.with_name(f"{sweep.id}-torn-{size}")
        shutil.copytree(sweep.folder, folder)
        os.truncate(folder / LOG, len(whole) - size)
        lines: list[str] = []
        torn = attach_sweep(folder.name, cluster=cluster, report=lines.append)
        held.append(torn)
        assert "cut off" in lines[0] or "torn" in lines[0], lines
        finished(torn)
        assert states(torn) == ["finished"] * 3
        assert [trial.attempt for trial in torn.trials] == [1, 1, 2]  # the torn record was its end
        assert torn.id in sweeps()


def count(folder: Path, data: bytes) -> int:
    """Return the number of events in a log with these bytes."""
    path = folder / "part"
    path.write_bytes(data)
    path.chmod(0o600)
    with EventLog.reopen(path) as log:
        return len(log.found.events)


def test_resumed_on_another_cluster(
    start: Callable[..., Cluster], begin: Begin, marks: Path, held: list[Sweep]
) -> None:
    own = start(workers=1)
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(3))}, cluster=own)
    until(lambda: len(began(marks)) == 1)
    own.stop()
    until(lambda: sweep.state == "failed")
    (marks / "open").touch()
    other = start(workers=2)
    sweep.resume()
    finished(sweep)
    assert sweep.cluster is other
    assert [trial.attempt for trial in sweep.trials] == [2, 1, 1]
