"""FileWriter: its thread, a full disk, and a training that begins again."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from waiting import PATIENCE, until

from nbdist import summary
from nbdist.errors import InvalidArgumentError, StorageError
from nbdist.metrics import log
from nbdist.summary import writer as writers
from nbdist.summary.values import Histogram
from nbdist.summary.writer import release, shared_writer


def steps(folder: Path, tag: str = "loss") -> list[int]:
    return [found.step for found in EventAccumulator(str(folder)).Reload().Scalars(tag)]


def test_the_caller_neither_encodes_nor_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    messages, pwrite = Histogram.messages, os.pwrite

    def encode(self: Histogram, tag: str) -> list[Any]:
        threads.add(threading.current_thread().name)
        return messages(self, tag)

    def write(*args: Any) -> int:
        threads.add(threading.current_thread().name)
        return pwrite(*args)

    monkeypatch.setattr(Histogram, "messages", encode)
    monkeypatch.setattr(log.os, "pwrite", write)
    before = set(threading.enumerate())
    writer = summary.FileWriter(tmp_path, flush_secs=0)
    for step in range(3):
        writer.add_summary({"w": Histogram.of("w", np.ones(3))}, step)
    writer._encoder.flush()
    assert threads == {"nbdist-summaries"}
    writer.close()
    started = set(threading.enumerate()) - before
    assert "nbdist-summaries" not in {thread.name for thread in started}


@pytest.mark.parametrize("seconds", [0, writers.FLUSH_SECONDS])
def test_a_disk_that_does_not_answer_is_not_awaited_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    answers, pwrite = threading.Event(), os.pwrite

    def write(*given: Any) -> int:
        assert answers.wait(PATIENCE)
        return pwrite(*given)

    monkeypatch.setattr(log.os, "pwrite", write)
    monkeypatch.setattr(writers, "PATIENCE_SECONDS", 0.05)
    writer = summary.FileWriter(tmp_path, flush_secs=seconds)
    for step in range(2):
        writer.add_summary({"loss": 0.5}, step)
    for wait in (writer.flush, writer.flush, writer.close, writer.close):
        with pytest.raises(
            StorageError, match=r"nothing was written for .* the disk or the file system does"
        ):
            wait()
    monkeypatch.setattr(writer, "_errors", Taken())
    with pytest.raises(StorageError, match="the disk or the file system does not answer"):
        writer.flush()
    answers.set()
    monkeypatch.undo()
    writer.close()
    assert steps(tmp_path) == [0, 1]


class Taken(list[str]):
    """Errors that another thread takes at once."""

    def append(self, error: str) -> None:
        pass


def test_a_full_disk_is_said_once_and_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full, pwrite = True, os.pwrite

    def write(descriptor: int, data: bytes, offset: int) -> int:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(log.os, "pwrite", write)
    writer = summary.FileWriter(tmp_path, flush_secs=0)
    for step in range(5):
        writer.add_summary({"loss": 0.5}, step)  # the training continues
    with pytest.raises(StorageError, match="No space left"):
        writer.flush()
    assert len(caplog.records) == 1
    full = False
    writer.add_summary({"loss": 0.5}, 5)
    writer.close()
    assert steps(tmp_path) == list(range(6))


def test_what_comes_too_fast_is_dropped_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()
    messages = Histogram.messages

    def slow(self: Histogram, tag: str) -> list[Any]:
        goes_on.wait()
        return messages(self, tag)

    monkeypatch.setattr(Histogram, "messages", slow)
    monkeypatch.setattr(writers, "WAITING_BYTES", 20_000)
    writer = summary.FileWriter(tmp_path)
    for step in range(9):
        writer.add_summary({"w": Histogram.of("w", np.ones(1000))}, step)
    assert "are dropped" in caplog.text
    assert len(caplog.records) == 1
    goes_on.set()
    with pytest.raises(StorageError, match="are dropped"):
        writer.close()
    kept = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload().Histograms("w")
    assert len(kept) == 9 - writer._encoder.dropped


def test_more_than_is_held_back_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PATIENCE", 1000)
    with summary.create_file_writer(tmp_path) as writer, writer.as_default():
        for step in range(50):
            summary.scalar("loss", 1.0, step=step)
        summary.text("note", "x" * 2000, step=50)  # longer than all that is held back
    assert steps(tmp_path) == list(range(50))
    assert EventAccumulator(str(tmp_path)).Reload().Tensors("note")[0].step == 50


def test_the_last_values_are_written_after_flush_secs(tmp_path: Path) -> None:
    writer = summary.create_file_writer(tmp_path, flush_secs=0.01)
    writer.add_summary({"loss": 1.0}, 1)  # nothing follows
    until(lambda: any(file.stat().st_size > 60 for file in tmp_path.iterdir()))
    assert steps(tmp_path) == [1]
    writer.close()


def test_a_writer_that_is_not_closed_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(writers.atexit, "register", at_exit.append)
    summary.FileWriter(tmp_path).add_summary({"loss": 1.0}, 1)
    at_exit[0]()  # as at the end of the process
    assert steps(tmp_path) == [1]


@pytest.mark.parametrize("step", [1.5, "1", True, -1, 2**32, None])
def test_a_step_is_a_whole_number(tmp_path: Path, step: Any) -> None:
    with summary.create_file_writer(tmp_path) as writer, pytest.raises(InvalidArgumentError, match="whole"):
        writer.purge(step)


@pytest.mark.parametrize("name", ["", "\ud800", 3])
def test_a_name_that_no_file_can_hold_is_refused_at_once(tmp_path: Path, name: Any) -> None:
    with summary.create_file_writer(tmp_path) as writer:
        with pytest.raises(InvalidArgumentError, match="name is a text"):
            writer.add_summary({name: 1.0}, 1)
        with writer.as_default(), pytest.raises(InvalidArgumentError, match="name is a text"):
            summary.scalar(name, 1.0, step=1)


def test_a_graph_is_a_graph(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="graph is 3; expected a Graph"):
        summary.FileWriter(tmp_path, graph=3)  # type: ignore[arg-type]


def test_a_training_that_begins_again_drops_what_was_written_ahead(tmp_path: Path) -> None:
    with summary.create_file_writer(tmp_path) as writer:
        for step in range(1, 9):
            writer.add_summary({"loss": 0.0}, step)
    with summary.create_file_writer(tmp_path, purge_step=5) as writer:
        writer.add_summary({"loss": 1.0}, 5)
        writer.add_summary({"loss": 1.0}, 6)
        writer.purge(6)
        writer.add_summary({"loss": 2.0}, 6)
    found = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [(one.step, one.value) for one in found] == [*((s, 0) for s in range(1, 5)), (5, 1), (6, 2)]


def test_users_of_one_folder_share_a_file(tmp_path: Path) -> None:
    first, second = shared_writer(tmp_path), shared_writer(f"{tmp_path}/.")
    assert first is second
    first.add_summary({"loss": 1.0}, 1)
    release(first)
    second.add_summary({"loss": 1.0}, 2)
    release(second)
    release(second)
    assert steps(tmp_path) == [1, 2]
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(InvalidArgumentError, match="is closed"):
        second.add_summary({"loss": 1.0}, 3)


def test_the_default_writer_is_the_inner_one(tmp_path: Path) -> None:
    outer, inner = (summary.create_file_writer(tmp_path / name) for name in ("outer", "inner"))
    with outer, inner, outer.as_default():
        with inner.as_default():
            summary.scalar("loss", 1.0, step=1)
        summary.scalar("loss", 2.0, step=2)
    assert (steps(tmp_path / "inner"), steps(tmp_path / "outer")) == ([1], [2])
