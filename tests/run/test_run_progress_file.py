"""The progress file of a replica in the run's folder: written once a second, atomically, without errors."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nbdist.metrics.recorder import Recorder
from nbdist.run import progress_file
from nbdist.run.in_graph.start import ActiveTowerRun
from nbdist.run.in_graph.towers import Towers
from nbdist.run.progress_file import ProgressFile, progress_path
from nbdist.run.task.reporting import ActiveRun, Output
from nbdist.train.context import Context, Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path, clock: Clock) -> ProgressFile:
    return ProgressFile(progress_path(tmp_path, 3), 1, clock)


def progress(step: int, **more: Any) -> dict[str, Any]:
    return asdict(Progress(step=step, trainings=1, state="running", total=50)) | more


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_content_of_the_file(file: ProgressFile) -> None:
    file.see(progress(7, spent={"data": 0.1, "compute": 0.25, "exchange": 0.0, "wait": 0.125}, global_step=9))
    content = read(file.path)
    assert content.pop("time") > 1e9
    assert content == {
        "version": 1, "replica": 1, "state": "running", "training": 1, "step": 7, "global_step": 9,
        "total": 50, "by_updates": False, "examples": 0, "dropped": 0, "skipped": 0, "rested": 0.0,
        "learning_rate": None, "sessions": 0, "together": False,
        "devices": None, "cores": None, "gpu": None, "input": None,
        "spent": {"data": 0.1, "compute": 0.25, "exchange": 0.0, "wait": 0.125},
    }  # fmt: skip
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.path.parent.iterdir()] == ["progress-0003.json"]


def test_it_is_written_once_a_second_and_at_the_end(file: ProgressFile, clock: Clock) -> None:
    file.see(progress(1))
    clock.now += 0.5
    file.see(progress(2))
    assert read(file.path)["step"] == 1
    clock.now += 0.5
    file.see(progress(3))
    assert read(file.path)["step"] == 3
    file.see(progress(4), ended=True)
    assert read(file.path)["step"] == 4


def test_nothing_is_written_while_nothing_changes(file: ProgressFile, clock: Clock) -> None:
    file.see(progress(1))
    before = file.path.stat()
    clock.now += 5
    file.see(progress(1))
    file.see(progress(1), ended=True)
    assert (file.path.stat().st_ino, file.path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_times_follow_a_monotonic_clock(
    file: ProgressFile, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.see(progress(1))
    first = read(file.path)["time"]
    monkeypatch.setattr(progress_file.time, "time", lambda: 0.0)
    clock.now += 2
    file.see(progress(2))
    assert read(file.path)["time"] - first == pytest.approx(2)


def test_a_full_disk_is_logged_once_and_stops_nothing(
    file: ProgressFile, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes, wait: bool = True) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(progress_file, "write_whole_file", full)
        for step in range(3):
            file.see(progress(step))
            clock.now += 1
    assert [record.getMessage().count("No space left") for record in caplog.records] == [1]
    file.see(progress(9))
    assert read(file.path)["step"] == 9


def live(folder: Path, context: Context) -> ActiveRun:
    recorder = Recorder(folder / "metrics-0004.log", replica=2)
    return ActiveRun("r1", context, recorder, Output(folder / "output-0004.log"))


def test_a_body_that_trains_nothing_leaves_no_file(tmp_path: Path) -> None:
    one = live(tmp_path, Context(progress=Progress(state="running")))
    list(one.messages(4, ended=False))
    list(one.messages(4, ended=True))
    one.close()
    assert not list(tmp_path.glob("*progress*"))


def test_the_file_has_the_number_of_the_log_and_the_final_state(tmp_path: Path) -> None:
    context = Context(progress=Progress(state="running", step=3, trainings=1))
    one = live(tmp_path, context)
    list(one.messages(4, ended=False))
    assert read(tmp_path / "progress-0004.json")["replica"] == 2
    context.progress.state = "finished"
    list(one.messages(4, ended=True))
    assert read(tmp_path / "progress-0004.json")["state"] == "finished"
    one.close()


def test_a_replica_that_waits_for_paused_ones_is_paused(tmp_path: Path) -> None:
    context = Context(progress=Progress(state="running", step=3, trainings=1))
    context.control.waits = True
    one = live(tmp_path, context)
    list(one.messages(4, ended=False))
    assert read(tmp_path / "progress-0004.json")["state"] == "paused"
    one.close()


def test_each_tower_has_a_file_of_its_own(tmp_path: Path) -> None:
    context = Context(progress=Progress(state="running", trainings=1))
    towers = Towers(tmp_path, 2, context)
    for i in range(2):
        towers.on_tower(i, 1, 0.5, (), 8, 0.01)
    one = ActiveTowerRun("r1", context, towers, Output(tmp_path / "output-0000.log"))
    list(one.messages(7, ended=True))
    found = [read(progress_path(tmp_path, i)) for i in range(2)]
    assert [(content["state"], content["step"]) for content in found] == [("running", 1)] * 2
    assert [content["replica"] for content in found] == [0, 1]
    one.close()
