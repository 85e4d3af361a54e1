"""Event files, read by TensorBoard itself."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from nbdist.metrics import log
from nbdist.metrics.event_file import EventFiles, events, protos
from nbdist.metrics.log import POINT
from nbdist.metrics.recorder import Recorder
from nbdist.record_frame import framed


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """What TensorBoard reads: by tag (step, value, time)."""
    found = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(e.step, e.value, e.wall_time) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]
    }


def points(*rows: tuple[int, int, float, float]) -> np.ndarray:
    return np.array(list(rows), POINT)


def test_what_a_recorder_takes_tensorboard_shows(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    folder = tmp_path / "tensorboard" / "worker-0"
    recorder = Recorder(tmp_path / "metrics-0000.log", replica=0, events=folder)
    for step in (1, 300, 70_000, 2**32 - 1):
        recorder.add(recorder.series("loss"), step, 1 / step)
        recorder.add(recorder.series("a/längere Name"), step, -step)
    recorder.add(recorder.series("val_loss"), 300, 0.25)
    recorder.add(recorder.series("val_"), 300, 4.0)
    recorder.flush()
    recorder.add(recorder.series("loss"), 7, 7.0)
    batch = recorder.close()
    assert batch is not None
    train, validation = scalars(folder), scalars(folder / "validation")
    assert [(step, value) for step, value, _ in train["loss"]] == [
        (step, np.float32(1 / step)) for step in (1, 300, 70_000, 2**32 - 1)
    ] + [(7, 7.0)]
    assert train["a/längere Name"][2][:2] == (70_000, -70_000)
    assert train["val_"][0][:2] == (300, 4.0)
    assert validation.keys() == {"loss"}
    assert validation["loss"][0][:2] == (300, 0.25)
    assert train["loss"][-1][2] == batch.points["time"][0]
    for path in tmp_path.rglob("events.out.tfevents.*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for above in (path.parent, tmp_path / "tensorboard"):
            assert stat.S_IMODE(above.stat().st_mode) == 0o700


def test_the_page_of_tensorboard_has_a_run_for_each_replica_and_its_validation(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for replica in range(2):
        folder = tmp_path / "tensorboard" / f"worker-{replica}"
        files = EventFiles(folder, pytest.fail)
        files.append(["loss", "val_loss"], points((0, 1, 0.5, 1e9), (1, 1, 0.75, 1e9)))
        files.close()
    # What the page itself reads through, which turns scalars into tensors of the scalars plugin.
    found = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "tensorboard"))
    found.Reload()
    content = found.PluginRunToTagToContent("scalars")
    assert {run: list(tags) for run, tags in content.items()} == {
        run: ["loss"] for run in ("worker-0", "worker-0/validation", "worker-1", "worker-1/validation")
    }


def records(tags: list[str], points: np.ndarray) -> bytes:
    return b"".join(map(framed, events([tag.removeprefix("val_") or tag for tag in tags], points)))


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2**32 - 1), st.floats(width=32), st.floats(0, 2e9)),
        min_size=1,
        max_size=30,
    ),
    st.lists(st.text(min_size=1, max_size=200).filter(str.isprintable), min_size=4, max_size=4, unique=True),
)
def test_any_points_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, float, float]], names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("events")
    start = framed(protos().Event(file_version="brain.Event:2").SerializeToString())
    (folder / "events.out.tfevents.1.host").write_bytes(start + records(names, points(*rows)))
    found = scalars(folder)
    tags = [name.removeprefix("val_") or name for name in names]
    for tag in {tags[row[0]] for row in rows}:
        wanted = {repr(row[1:]) for row in rows if tags[row[0]] == tag}
        assert {repr(one) for one in ((s, v, t) for s, v, t in found[tag])} == wanted


def test_values_beyond_single_precision_are_infinite(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(
        records(["x"], points((0, 1, 1e300, 0.0), (0, 2, np.nan, 0.0)))
    )
    assert [str(value) for _, value, _ in scalars(tmp_path)["x"]] == ["inf", "nan"]


def test_a_torn_tail_is_readable(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    files = EventFiles(tmp_path / "worker-0", pytest.fail)
    files.append(["loss"], points((0, 1, 0.5, 1e9), (0, 2, 0.25, 1e9)))
    files.close()
    (path,) = (tmp_path / "worker-0").iterdir()
    whole = path.read_bytes()
    size = len(records(["loss"], points((0, 1, 0.5, 1e9))))
    for cut in range(2 * size):
        path.write_bytes(whole[: len(whole) - cut])
        steps = [step for step, _, _ in scalars(path.parent).get("loss", ())]
        assert steps == [1, 2][: 2 - -(-cut // size)]


def test_files_are_written_once_a_second(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    now = 5.0
    files = EventFiles(tmp_path / "worker-0", pytest.fail, clock=lambda: now)
    files.append(["loss"], points((0, 1, 0.5, 1e9)))
    assert len(scalars(tmp_path / "worker-0")["loss"]) == 1
    for step in range(2, 7):
        now += 0.1
        files.append(["loss"], points((0, step, 0.5, 1e9)))
    assert len(scalars(tmp_path / "worker-0")["loss"]) == 1
    now += 0.6
    files.retry()
    assert [step for step, _, _ in scalars(tmp_path / "worker-0")["loss"]] == list(range(1, 7))
    files.close()


def test_a_full_disk_is_said_once_and_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    said: list[str] = []
    room, pwrite = 10, os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, bytes(data), offset)

    monkeypatch.setattr(log.os, "pwrite", full)
    now = 0.0
    files = EventFiles(tmp_path / "worker-0", said.append, clock=lambda: now)
    for step in range(5):
        now += 2
        room = 1 if step in (0, 4) else 0
        files.append(["loss"], points((0, step, 0.5, 1e9)))
    files.close()
    assert len(said) == 1
    assert "No space left" in said[0]
    assert [step for step, _, _ in scalars(tmp_path / "worker-0")["loss"]] == list(range(5))
    assert files.lost == 0


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    said: list[str] = []
    (tmp_path / "tensorboard").write_text("a file")
    files = EventFiles(tmp_path / "tensorboard" / "worker-0", said.append)
    files.append(["loss"], points((0, 1, 0.5, 1e9)))
    files.close()
    assert len(said) == 1
    assert files.lost == 1


def test_events_that_begin_late_have_the_points_before(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    recorder = Recorder(tmp_path / "metrics-0000.log", replica=0)
    for step in (1, 2):
        recorder.add(recorder.series("loss"), step, step)
    recorder.flush()
    files = recorder.start_events(tmp_path / "worker-0")
    assert recorder.start_events(tmp_path / "worker-0") is files
    recorder.add(recorder.series("loss"), 3, 3)
    recorder.close()
    assert [step for step, _, _ in scalars(tmp_path / "worker-0")["loss"]] == [1, 2, 3]


def test_a_process_that_rejoins_replaces_what_the_lost_one_wrote_ahead(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for value, steps in ((0.0, range(1, 9)), (1.0, range(5, 8))):
        files = EventFiles(tmp_path / "worker-0", pytest.fail, rejoins=value == 1)
        files.append(["loss"], points(*((0, step, value, 1e9) for step in steps)))
        files.close()
    found = [(step, value) for step, value, _ in scalars(tmp_path / "worker-0")["loss"]]
    assert found == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1), (7, 1)]
