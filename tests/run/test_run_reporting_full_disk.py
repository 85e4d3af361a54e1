"""A full disk under a task's logs is reported to the run's clients, once for each file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nbdist.metrics.recorder import Recorder
from nbdist.run.in_graph.start import ActiveTowerRun
from nbdist.run.in_graph.towers import Towers
from nbdist.run.task.reporting import ActiveRun, Output
from nbdist.train.context import Context, Progress


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)


def printed_text(live: ActiveRun, ended: bool = False) -> str:
    """Return the printed text of the next frames."""
    return "".join(frame.arrays[0].tobytes().decode() for frame in live.messages(0, ended))


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_reported_in_the_output(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "metrics-0000.log", replica=0, events=tmp_path / "tensorboard")
    one = ActiveRun("r1", Context(), recorder, Output(tmp_path / "output-0000.log"))
    one.output.write("printed")
    recorder.add(recorder.series("loss"), 1, 0.5)
    text = printed_text(one)
    assert text.startswith("printed\n[metrics cannot be written to ")
    assert text.count("No space left on device. Training continues") == 2  # the log, TensorBoard's file
    recorder.add(recorder.series("loss"), 2, 0.5)
    assert printed_text(one) == ""
    missing = printed_text(one, ended=True)
    assert missing.startswith(
        f"[2 points of {recorder.path} could not be written: no room in time]\n[2 points of "
    )
    one.close()


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_reported_for_each_tower(tmp_path: Path) -> None:
    context = Context(progress=Progress(state="running", trainings=1))
    towers = Towers(tmp_path, 2, context)
    one = ActiveTowerRun("r1", context, towers, Output(tmp_path / "output-0000.log"))
    for i in range(2):
        towers.on_tower(i, 1, 0.5, (), 8, 0.01)
    text = printed_text(one)
    assert [f"metrics-{i:04d}.log: No space left" in text for i in range(2)] == [True, True]
    assert printed_text(one) == ""
    assert printed_text(one, ended=True).count(" could not be written: ") == 2
    one.close()
