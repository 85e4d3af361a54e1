from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from nbdist.metrics import log as writer
from nbdist.metrics import recorder as recorder_module
from nbdist.metrics.log import MAGIC, POINT, Batch, log_path, logs_in, parse, read_log
from nbdist.metrics.recorder import Recorder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return log_path(tmp_path, 3)


def test_points_reach_the_log_and_the_driver(path: Path) -> None:
    recorder = Recorder(path, replica=3)
    loss, accuracy = recorder.series("loss"), recorder.series("accuracy")
    recorder.add(loss, 1, 0.5)
    recorder.add(accuracy, 1, 0.25)
    recorder.add(loss, 2, float("nan"))
    batch = recorder.flush()
    assert batch is not None
    assert batch.replica == 3
    assert {
        name: (list(steps), values.tolist())
        for name, steps, values, _ in batch.by_series()
        if name == "accuracy"
    } == {"accuracy": ([1], [0.25])}
    assert recorder.flush() is None
    log = read_log(path)
    assert log.replica == 3
    assert log.names == {0: "loss", 1: "accuracy"}
    assert log.points["step"].tolist() == [1, 1, 2]
    assert np.array_equal(log.points["value"], [0.5, 0.25, np.nan], equal_nan=True)
    assert log.torn == log.damaged == 0
    recorder.close()


def test_a_value_is_taken_at_once_not_when_flushed(path: Path) -> None:
    recorder = Recorder(path, replica=0)
    buffer = np.array(1.0, np.float32)
    recorder.add(recorder.series("loss"), 0, buffer)
    buffer[...] = 9
    batch = recorder.close()
    assert batch is not None
    assert batch.points["value"].tolist() == [1.0]


def test_each_batch_names_its_own_series(path: Path) -> None:
    recorder = Recorder(path, replica=0)
    for name in ("a", "b", "c"):
        recorder.add(recorder.series(name), 0, 0.0)
    recorder.flush()
    recorder.add(recorder.series("c"), 1, 2.0)
    batch = recorder.close()
    assert batch is not None
    assert batch.names == {2: "c"}
    assert batch.points["series"].tolist() == [2]


def test_adding_while_flushing_loses_and_doubles_nothing(path: Path) -> None:
    recorder = Recorder(path, replica=0)
    series = recorder.series("loss")
    done = threading.Event()
    seen: list[int] = []

    def flush() -> None:
        while not done.is_set():
            batch = recorder.flush()
            seen.extend(batch.points["step"].tolist() if batch else [])

    thread = threading.Thread(target=flush)
    thread.start()
    for step in range(50_000):
        recorder.add(series, step, 0.0)
    done.set()
    thread.join()
    rest = recorder.close()
    seen.extend(rest.points["step"].tolist() if rest else [])
    assert seen == list(range(50_000))
    assert read_log(path).points["step"].tolist() == seen


def test_a_full_buffer_drops_and_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "FULL", 3 * recorder_module.WIDTH)
    recorder = Recorder(path, replica=0)
    for step in range(5):
        recorder.add(recorder.series("loss"), step, 0.0)
    batch = recorder.close()
    assert batch is not None
    assert batch.points["step"].tolist() == [0, 1, 2]
    assert batch.dropped == recorder.dropped == 2


def test_times_are_steady_though_the_clock_jumps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = 1_000_000.0
    monkeypatch.setattr(recorder_module.time, "time", lambda: day)
    recorder = Recorder(path, replica=0)
    series = recorder.series("loss")
    for step, jump in enumerate((0.0, -3600.0, 7200.0, 0.0)):
        day += jump
        recorder.add(series, step, 0.0)
    recorder.close()
    times = read_log(path).points["time"]
    assert (np.diff(times) >= 0).all()
    assert 1_000_000.0 <= times[0] <= times[-1] < 1_000_060.0


def test_a_later_process_counts_from_the_origin_of_the_run(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's new process, after the clock has jumped, continues the curve of the one before it."""
    origin = time.time() - time.perf_counter()
    monkeypatch.setattr(recorder_module.time, "time", lambda: 1_000_000.0)
    begun = time.perf_counter()
    recorder = Recorder(path, replica=0, origin=origin)
    recorder.add(recorder.series("loss"), 1, 0.0)
    recorder.close()
    (at,) = read_log(path).points["time"]
    assert origin + begun <= at <= origin + time.perf_counter()


@pytest.mark.parametrize("name", ["", "x" * 201, 3, None, "\ud800"])
def test_what_is_no_name(path: Path, name: Any) -> None:
    recorder = Recorder(path, replica=0)
    with pytest.raises(InvalidArgumentError, match="series"):
        recorder.series(name)
    assert recorder.names == []
    recorder.close()


def test_threads_that_name_series_at_once_agree(path: Path) -> None:
    recorder = Recorder(path, replica=0)
    names = [f"series {n}" for n in range(2_000)]
    start = threading.Barrier(4)

    def add(own: list[str]) -> None:
        start.wait()
        for name in own:
            recorder.add(recorder.series(name), 0, float(name.split()[1]))

    threads = [threading.Thread(target=add, args=(names[n:] + names[:n],)) for n in (0, 7, 500, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    log = read_log(path)
    assert sorted(log.names.values()) == sorted(names)
    assert all(log.names[p["series"]] == f"series {p['value']:.0f}" for p in log.points)


class NamedDuringCopy(list[str]):
    """A recorder's names, among which another thread puts one while they are being written."""

    def __getitem__(self, index: Any) -> Any:
        if len(self) == 1:
            self.append("new")
        return super().__getitem__(index)


def test_a_series_that_is_named_while_names_are_written_keeps_its_name(path: Path) -> None:
    recorder = Recorder(path, replica=0)
    recorder.add(recorder.series("loss"), 0, 1.0)
    recorder.names = NamedDuringCopy(recorder.names)
    recorder.flush()
    assert recorder.names == ["loss", "new"]
    recorder.add(1, 0, 2.0)
    recorder.close()
    assert read_log(path).names == {0: "loss", 1: "new"}


def test_too_many_names(path: Path) -> None:
    recorder = Recorder(path, replica=0)
    recorder.names = ["x"] * 65_535
    with pytest.raises(ResourceExhaustedError, match="loss"):
        recorder.series("loss")
    recorder.close()


class Disk:
    """Stands in for os.pwrite: takes ``room`` bytes, then is full."""

    def __init__(self) -> None:
        self.room = 10**9

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = bytes(data[: self.room])
        self.room -= len(part)
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, part)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(writer.os, "pwrite", disk.pwrite)
    return disk


def test_a_full_disk_stops_nothing_and_is_said_once(path: Path, disk: Disk) -> None:
    said: list[str] = []
    recorder = Recorder(path, replica=0, say=said.append)
    loss = recorder.series("loss")
    recorder.add(loss, 0, 1.0)
    recorder.flush()
    disk.room = 10  # the next frame is cut in its middle
    for step in (1, 2):
        recorder.add(loss, step, 1.0)
        batch = recorder.flush()
        assert batch is not None
        assert batch.points["step"].tolist() == [step]
    assert len(said) == 1
    assert "No space left" in said[0]
    log = read_log(path)
    assert log.points["step"].tolist() == [0]
    assert log.torn == 0, "a half frame was left behind"
    disk.room = 10**9  # now there is room
    assert recorder.flush() is None
    recorder.add(recorder.series("accuracy"), 3, 1.0)
    recorder.close()
    assert read_log(path).points["step"].tolist() == [0, 1, 2, 3]
    assert read_log(path).names == {0: "loss", 1: "accuracy"}
    assert recorder.lost == 0


def test_a_disk_that_stays_full_loses_the_oldest_and_counts(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE", 200)
    recorder = Recorder(path, replica=0, say=lambda text: None)
    loss = recorder.series("loss")
    disk.room = 0
    for step in range(20):
        recorder.add(loss, step, 1.0)
        recorder.flush()
    disk.room = 10**9
    recorder.close()
    log = read_log(path)
    assert log.names == {0: "loss"}, "a name was given up"
    steps = log.points["step"].tolist()
    assert steps == list(range(20 - len(steps), 20))
    assert recorder.lost == 20 - len(steps) > 0


def test_a_log_that_cannot_be_opened_is_said_and_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    recorder = Recorder(tmp_path / "late" / "metrics-0000.log", replica=0, say=said.append)
    recorder.add(recorder.series("loss"), 0, 1.0)
    assert recorder.flush() is not None
    assert len(said) == 1
    (tmp_path / "late").mkdir()
    recorder.close()
    assert read_log(recorder.path).points["step"].tolist() == [0]


def test_points_that_never_found_a_disk_are_counted_at_the_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "never" / "metrics-0000.log", replica=0, say=lambda text: None)
    recorder.add(recorder.series("loss"), 0, 1.0)
    recorder.close()
    assert recorder.lost == 1


def test_a_replacement_writes_a_log_of_its_own(path: Path) -> None:
    first = Recorder(path, replica=3)
    first.add(first.series("loss"), 0, 1.0)
    first.flush()
    second = Recorder(path, replica=3)
    assert first.path != second.path  # already before it has a point
    second.add(second.series("loss"), 0, 1.0)
    for recorder in (first, second):
        recorder.close()
    assert logs_in(path.parent) == [first.path, second.path]
    assert all(read_log(one).points["step"].tolist() == [0] for one in logs_in(path.parent))


def test_there_is_no_log_without_a_point(path: Path) -> None:
    recorder = Recorder(path, replica=0)
    assert recorder.flush() is None
    size, waiting = recorder.position()
    assert (size, len(waiting)) == (0, recorder.end)
    recorder.close()
    assert not path.exists()


def test_the_log_is_ours_alone(path: Path) -> None:
    recorder = Recorder(path, replica=0)
    recorder.add(recorder.series("loss"), 0, 1.0)
    recorder.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_steps_are_held_in_their_range(path: Path) -> None:
    recorder = Recorder(path, replica=0)
    for step in (-1, 2**40):
        recorder.add(recorder.series("loss"), step, 0.0)
    batch = recorder.close()
    assert batch is not None
    assert batch.points["step"].tolist() == [0, 2**32 - 1]


def written(path: Path, flushes: int = 5, points: int = 3) -> bytes:
    recorder = Recorder(path, replica=1)
    for flush in range(flushes):
        for point in range(points):
            recorder.add(recorder.series(f"series {point}"), flush, point / 7)
        recorder.flush()
    recorder.close()
    return path.read_bytes()


def test_every_torn_tail_is_dropped_and_said(path: Path) -> None:
    data = written(path)
    whole = read_log(path).points
    for end in range(len(data)):
        path.write_bytes(data[:end])
        log = read_log(path)
        assert np.array_equal(log.points, whole[: len(log.points)])
        assert log.offset + log.torn == end
        path.write_bytes(data)
        rest = read_log(path, log.offset)
        assert len(log.points) + len(rest.points) == len(whole)


@given(st.data())
def test_a_damaged_byte_costs_its_own_frame_only(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        content = written(Path(folder, "metrics-0001.log"), flushes=4)
    start = len(MAGIC)
    whole = parse(content, start)
    position = data.draw(st.integers(start, len(content) - 1))
    broken = bytearray(content)
    broken[position] ^= data.draw(st.integers(1, 255))
    log = parse(bytes(broken), start)
    assert log.damaged + log.torn > 0
    assert len(log.points) >= len(whole.points) - 3
    assert set(log.points.tolist()) <= set(whole.points.tolist())


def test_a_length_that_is_too_large_takes_no_memory(path: Path) -> None:
    data = written(path, flushes=1)
    huge = data + b"NBM2\x02\xff\xff\xff\xff" + bytes(8)
    assert parse(huge, len(MAGIC)).torn == 17


def test_what_is_no_log_is_refused(path: Path) -> None:
    path.write_bytes(b"epoch,loss\n1,0.5\n2,0.4")
    with pytest.raises(DataLossError, match="is not a metrics log"):
        read_log(path)


def test_batches_survive_the_wire() -> None:
    points = np.array([(0, 1, np.inf, 5.0), (1, 2**32 - 1, np.nan, 6.0)], POINT)
    meta, arrays = Batch(2, {0: "a", 1: "b"}, points, dropped=4).arrays()
    back = Batch.from_arrays(meta, arrays)
    assert (back.replica, back.names, back.dropped) == (2, {0: "a", 1: "b"}, 4)
    assert back.points.tobytes() == points.tobytes()


def in_json(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def test_names_of_a_batch_are_no_part_of_the_head_of_a_message() -> None:
    names = {number: f"{number} " + "\n\0<b>\u00fc" * 40 for number in range(10_000)}
    points = np.zeros(10_000, POINT)
    points["series"] = np.arange(10_000)
    meta, arrays = Batch(2, names, points).arrays()
    assert len(repr(meta)) < 1_000
    assert Batch.from_arrays(meta, arrays).names == names


@pytest.mark.parametrize(
    "spoil",
    [
        lambda meta, arrays: ({}, arrays),
        lambda meta, arrays: ({"replica": 0}, arrays),
        lambda meta, arrays: (meta, [in_json(["loss"]), *arrays[1:]]),
        lambda meta, arrays: (meta, [in_json({}), *arrays[1:]]),
        lambda meta, arrays: (meta, [in_json({"1": "loss"}), *arrays[1:]]),
        lambda meta, arrays: (meta, [in_json({"0": 3}), *arrays[1:]]),
        lambda meta, arrays: (meta, [in_json({"0": "loss", "65536": "a"}), *arrays[1:]]),
        lambda meta, arrays: (meta, [in_json({"0": "loss", "-1": "a"}), *arrays[1:]]),
        lambda meta, arrays: (meta, [in_json({"0": "loss", "a": "a"}), *arrays[1:]]),
        lambda meta, arrays: (meta, [in_json("loss"), *arrays[1:]]),
        lambda meta, arrays: (meta, [arrays[0][:-1], *arrays[1:]]),
        lambda meta, arrays: (meta, arrays[:4]),
        lambda meta, arrays: (meta, [*arrays[:4], arrays[4][:0]]),
        lambda meta, arrays: (meta, [arrays[0], arrays[1].astype("u4"), *arrays[2:]]),
        lambda meta, arrays: (meta, arrays[:1]),
        lambda meta, arrays: (meta, []),
    ],
)
def test_a_spoilt_batch_is_refused(spoil) -> None:
    meta, arrays = Batch(0, {0: "loss"}, np.zeros(2, POINT)).arrays()
    with pytest.raises(InvalidArgumentError):
        Batch.from_arrays(*spoil(meta, arrays))
