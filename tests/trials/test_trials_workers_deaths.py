"""Sweeps with engines that die, freeze or are taken by other runs, and with a full disk."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trials_tools import GATED, TRAIN, began, finished, kill, states
from waiting import until

from nbdist.errors import FailedPreconditionError, UnavailableError
from nbdist.metrics.log import write_whole
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.sweep import event_log
from nbdist.trials import sweep as sweeps
from nbdist.trials import workers as engine_files

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.trials.sweep import Sweep

pytestmark = pytest.mark.engines
Begin = Callable[..., "Sweep"]
Start = Callable[..., "Cluster"]


def quiet(line: str) -> None: ...


def test_a_trial_of_a_dead_engine_is_retried_elsewhere(start: Start, begin: Begin, marks: Path) -> None:
    cluster = start(workers=3)
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(5))}, cluster=cluster)
    until(lambda: len(began(marks)) == 3)
    first = sweep.trial(0).ranks[0]
    kill(sweep, first)
    until(lambda: sweep.trial(0).state == "waiting")
    (marks / "open-1").touch()
    until(lambda: sweep.trial(0).attempt == 2 and len(began(marks, 0)) == 2)
    second = sweep.trial(0).ranks[0]
    assert second != first
    kill(sweep, second)
    until(lambda: sweep.trial(0).state == "failed")
    assert "lost 2 times" in sweep.trial(0).error
    assert [one.state for one in sweep.engines()].count("gone") == 2
    (marks / "open").touch()
    finished(sweep)
    assert states(sweep) == ["failed"] + ["finished"] * 4
    assert [span.how for span in sweep.ledger.spans if span.number == 0] == ["lost", "failed"]
    assert len(began(marks)) == 6


def test_all_engines_die_and_come_back(
    start: Start, begin: Begin, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "TROUBLE_SECONDS", 0.2)
    cluster = start(workers=2)
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(4))}, cluster=cluster)
    until(lambda: len(began(marks)) == 2)
    for rank in (0, 1):
        kill(sweep, rank)
    assert "bring back the others (%cluster restart)" in until(lambda: sweep.trouble)
    assert sweep.state == "running"
    with pytest.raises(UnavailableError, match=f"sweep {sweep.id} waits: .* 0 are alive"):
        sweep.wait()
    (marks / "open").touch()
    cluster.restart(report=quiet)
    finished(sweep)
    assert states(sweep) == ["finished"] * 4
    assert [trial.attempt for trial in sweep.trials] == [2, 2, 1, 1]
    assert sweep.trouble is None


def test_one_of_two_engines_of_a_trial_dies(start: Start, begin: Begin) -> None:
    cluster = start(workers=3)
    body = TRAIN.format(optimizer="SGD", epochs="(10_000_000 if endless else 2)", callbacks=[]).replace(
        "import numpy",
        f"import os, time\nendless = not os.path.exists({str(cluster.folder / 'open')!r})\nimport numpy",
        1,
    )
    body = body.replace(".batch(20)", ".batch(20).map(lambda x, y: time.sleep(0.002) or (x, y))")
    sweep = begin(body, "lr=[0.1, 0.2]", metric="val_loss", direction="min", per_trial=2, cluster=cluster)
    until(lambda: sweep.ledger.curve(0) is not None)
    (cluster.folder / "open").touch()
    lost = sweep.trial(0).ranks[1]
    kill(sweep, lost)
    finished(sweep)
    assert states(sweep) == ["finished", "finished"], [trial.error for trial in sweep.trials]
    assert (sweep.trial(0).attempt, sweep.trial(1).attempt) == (2, 1)
    assert all(lost not in trial.ranks for trial in sweep.trials)


def test_a_frozen_engine_is_given_up_and_comes_back(
    start: Start, begin: Begin, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_files, "LOST_SECONDS", 0.5)
    cluster = start(workers=2)
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(4))}, cluster=cluster)
    until(lambda: len(began(marks)) == 2)
    rank = sweep.trial(0).ranks[0]
    pid = kill(sweep, rank, signal.SIGSTOP)
    try:
        until(lambda: sweep.trial(0).attempt == 1 and sweep.trial(0).state == "waiting")
        assert [one.state for one in sweep.engines()].count("gone") == 1
        (marks / "open-1").touch()
        until(lambda: len(began(marks, 0)) == 2)
    finally:
        os.kill(pid, signal.SIGCONT)
    # Its present attempt was given up: it ends, and the engine takes new trials.
    until(lambda: {one.rank: one.number for one in sweep.engines()}[rank] in (2, 3))
    assert cluster.tasks[rank].pid == pid
    (marks / "open").touch()
    finished(sweep)
    assert states(sweep) == ["finished"] * 4
    assert (sweep.trial(0).attempt, len(began(marks))) == (2, 5)


def test_a_sweep_continues_after_a_full_disk(
    begin: Begin, cluster: Cluster, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes, at: int) -> None:
        if not (marks / "room").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_whole(descriptor, data, at)

    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(8))}, cluster=cluster)
    until(lambda: len(began(marks)) == 3)
    monkeypatch.setattr(event_log, "write_whole", full)
    (marks / "open").touch()
    assert "No space left on device" in until(lambda: sweep.trouble)
    assert len(began(marks)) == 3  # a start that cannot be written does not happen
    (marks / "room").touch()
    finished(sweep)
    assert states(sweep) == ["finished"] * 8
    assert len(began(marks)) == 8


def test_a_silent_driver_loses_its_engines_and_gets_them_back(
    start: Start, begin: Begin, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(workers=2)
    cluster.run("import nbdist.trials.trial_worker as d\nd.SILENT_SECONDS = 0.2\nd.LOOK_SECONDS = 0.05")
    monkeypatch.setattr(engine_files, "REGISTER_SECONDS", 1e9)
    sweep = begin(GATED.format(folder=str(marks)), "number=int(0, 99)", trials=1, cluster=cluster)
    until(lambda: len(began(marks)) == 1)
    idle = 1 - sweep.trial(0).ranks[0]
    until(lambda: idle in sweep._driver.engines.free)  # type: ignore[union-attr]  # a mere claim lasts 30 s

    def results_of_a_run_on_the_idle_engine() -> dict[str, Any] | None:
        try:
            return start_run("n = 1", Options(on=f"worker:{idle}"), cluster=cluster).wait().results
        except FailedPreconditionError:  # the sweep still holds the engine, or holds it again
            return None

    monkeypatch.setattr(sweep._driver.engines, "_leaving", True)  # type: ignore[union-attr]
    assert until(results_of_a_run_on_the_idle_engine) == {"n": 1}
    monkeypatch.setattr(sweep._driver.engines, "_leaving", False)  # type: ignore[union-attr]
    monkeypatch.setattr(engine_files, "REGISTER_SECONDS", 0.05)
    sweep.add(1)
    until(lambda: len(began(marks)) == 2)
    (marks / "open").touch()
    finished(sweep)
    assert states(sweep) == ["finished"] * 2


def test_a_connection_that_breaks_loses_nothing(
    begin: Begin, cluster: Cluster, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's own connections are closed under it, while trials end."""
    monkeypatch.setattr(engine_files, "REGISTER_SECONDS", 0.5)
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(6))}, cluster=cluster)
    until(lambda: len(began(marks)) == 3)
    driver: Any = sweep._driver
    receive = driver.engines._receive
    broken: list[int] = []

    def cut(now: float) -> Any:
        if not broken:
            for rank in range(3):
                peers = cluster._connections.__dict__["peers"]
                peers.pop(rank).close()
                broken.append(rank)
            (marks / "open").touch()
        return receive(now)

    driver.engines._receive = cut
    finished(sweep)
    assert states(sweep) == ["finished"] * 6
    assert len(began(marks)) == 6
