"""States that are written while a training runs: when, how many, and what a failing disk leaves."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist import nn
from nbdist.checkpoint import manager
from nbdist.checkpoint.manager import CheckpointManager, Interval, parse_interval, state_files
from nbdist.data import Dataset
from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.nn import BatchNorm, Dense, Dropout, Sequential
from nbdist.optim import Adam
from nbdist.train import Callback
from nbdist.train.context import Context, current, use_here
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy
from nbdist.train.resume import DataCursor, TrainingStates, read_saved

ROWS = 40
x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)
y = np.arange(ROWS) % 3


class Killed(BaseException):
    """Stands for the end of the process: no code of the training handles it."""


class Dying(OneDeviceReplica):
    """One device whose process ends when it is to make a certain update."""

    at: int | None = None

    def push(self) -> None:
        if self.report.global_step + 1 == self.at:
            raise Killed
        super().push()


class DyingStrategy(OneDeviceStrategy):
    at: int | None = None

    def replica(self, variables: Any, optimizer: Any, tables: Any = ()) -> OneDeviceReplica:
        made = Dying(variables, optimizer, tables=tables)
        made.at = self.at
        return made


class PatientStates(TrainingStates):
    """Waits for the state before, so that each one that is due is written."""

    def is_due(self, step: int) -> bool:
        self._wait()
        return super().is_due(step)


def body(epochs: int = 4) -> Sequential:
    model = Sequential([Dense(7, "tanh"), BatchNorm(), Dropout(0.2), Dense(3, "softmax")])
    model.compile(Adam(0.02), "sparse_categorical_crossentropy", ["accuracy"])
    data = Dataset.from_arrays(x, y).shuffle(9).batch(8)  # five steps an epoch
    history = model.fit(data, epochs=epochs, validation_data=(x, y))
    model.ended = history  # type: ignore[attr-defined]
    return model


def run(
    folder: Path,
    every: str | int | None = None,
    read: list[Path] | None = None,
    dies: int | None = None,
    make: Callable[[], Any] = body,
    kind: type[TrainingStates] = PatientStates,
) -> tuple[Any, Context]:
    folder.mkdir(exist_ok=True)
    states = kind(folder, None if every is None else parse_interval(every), read=read)
    strategy = DyingStrategy()
    strategy.at = dies
    context = Context(strategy=strategy, seed=5, quiet=True, states=states)
    with use_here(context):
        try:
            return make(), context
        except Killed:
            states._wait()  # what the disk had begun
            return None, context


def test_intervals() -> None:
    assert parse_interval("30s") == Interval(seconds=30.0)
    assert parse_interval("1.5h") == Interval(seconds=5400.0)
    for wrong in (0, -1, True, 1.5, "", "0", "0s", "30", "s", "30 days", "-5", "1e3", None, "5min", "1h30m"):
        if wrong == "30":
            assert parse_interval(wrong) == Interval(steps=30)
            continue
        with pytest.raises(InvalidArgumentError, match=r"30s, 5m or 1h, or a number of steps such as 500"):
            parse_interval(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dies", [4, 8, 11, 17])
def test_a_killed_training_continues_bit_for_bit(
    tmp_path: Path, dies: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, first = run(tmp_path / "whole")
    run(tmp_path / "run", every=3, dies=dies)
    found = state_files(tmp_path / "run")
    newest = (dies - 1) // 3 * 3
    assert read_saved(found[0]).state.step == newest
    assert len(found) == min(2, newest // 3)
    second, context = run(tmp_path / "again", every=3, read=found)
    assert f"training continues after step {newest}" in capsys.readouterr().out
    for a, b in zip(whole.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert whole.ended.history == second.ended.history
    assert context.progress.step == first.progress.step == 20
    assert read_saved(state_files(tmp_path / "again")[0]).state.place == DataCursor(4, 0, (4,))
    assert sorted((tmp_path / "run").iterdir()) == sorted(found)


def test_the_next_state_removes_the_draft_of_a_killed_process(tmp_path: Path) -> None:
    old, other = (tmp_path / f".state-0001-000000000003.safetensors.0a1b2c3{n}.draft" for n in "de")
    for draft in (old, other):
        draft.write_bytes(b"half")
    os.utime(old, (0, 0))
    run(tmp_path, every=3, dies=8)
    assert sorted(tmp_path.iterdir()) == sorted([other, *state_files(tmp_path)])


def test_files_are_private_models_named_by_training_and_step(tmp_path: Path) -> None:
    trained, _ = run(tmp_path / "run", every=100)
    (found,) = state_files(tmp_path / "run")
    assert found.name == "state-0001-000000000020.safetensors"
    assert found.stat().st_mode & 0o777 == 0o600
    for a, b in zip(nn.load(found).get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_damaged_state_is_left_for_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, _ = run(tmp_path / "whole")
    run(tmp_path / "run", every=4, dies=14)
    newest, older = state_files(tmp_path / "run")
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    second, _ = run(tmp_path / "again", read=[newest, older])
    printed = capsys.readouterr().out
    assert f"Instead of {newest.name}, training continues {older.name}" in printed
    assert "training continues after step 8" in printed
    for a, b in zip(whole.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    older.write_bytes(b"")
    with pytest.raises(DataLossError, match=older.name):
        run(tmp_path / "none", read=[newest, older])


def test_a_second_training_continues_after_the_first_one(tmp_path: Path) -> None:
    def make() -> Any:
        first = body(2)
        second = body(3)
        return first, second

    whole, _ = run(tmp_path / "whole", make=make)
    run(tmp_path / "run", every=2, dies=14, make=make)  # in its own eighth step: 5 of the second are over
    found = state_files(tmp_path / "run")
    assert [one.name.split("-")[1] for one in found] == ["0002", "0002"]
    again, _ = run(tmp_path / "again", read=found, make=make)
    for one, other in zip(whole, again, strict=True):
        for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


class Disk:
    """Writes of states that wait, and fail, as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.writes, self.begun, self.may = 0, threading.Event(), threading.Event()
        self.may.set()
        real = manager.write_snapshot

        def write(*args: Any, **options: Any) -> None:
            self.writes += 1
            self.begun.set()
            self.may.wait()
            if self.error is not None:
                raise self.error
            real(*args, **options)

        monkeypatch.setattr(manager, "write_snapshot", write)


def test_training_continues_while_a_state_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slow disk delays states, not steps: the copy is of its own moment, and the next one waits."""
    disk = Disk(monkeypatch)
    disk.may.clear()

    class Release(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            if epoch == 1:
                assert disk.writes == 1, "eight more states were due"
                disk.may.set()
                current().states._thread.join()  # type: ignore[union-attr]

    def make() -> Sequential:
        model = Sequential([Dense(3, "softmax")])
        model.compile(Adam(0.02), "sparse_categorical_crossentropy")
        model.fit(Dataset.from_arrays(x, y).batch(8), epochs=3, callbacks=[Release()])
        return model

    model, _ = run(tmp_path / "run", every=1, make=make, kind=TrainingStates)
    assert capsys.readouterr().out.count("takes longer to write than --checkpoint-every 1:") == 1
    kept = state_files(tmp_path / "run")
    last, before = (read_saved(one).state.step for one in kept)
    assert last == 15
    assert before >= 10
    assert model is not None


def test_a_failing_disk_is_said_once_and_older_states_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Disk(monkeypatch)
    whole, _ = run(tmp_path / "whole")

    class Fill(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            if epoch == 1:
                disk.error = OSError(28, "No space left on device")

    def make() -> Sequential:
        model = Sequential([Dense(7, "tanh"), BatchNorm(), Dropout(0.2), Dense(3, "softmax")])
        model.compile(Adam(0.02), "sparse_categorical_crossentropy", ["accuracy"])
        data = Dataset.from_arrays(x, y).shuffle(9).batch(8)
        model.fit(data, epochs=4, validation_data=(x, y), callbacks=[Fill()])
        return model

    model, context = run(tmp_path / "run", every=2, make=make)
    for a, b in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    printed = capsys.readouterr().out
    assert printed.count("No space left on device; training continues") == 1
    assert context.states is not None
    assert context.states.error
    kept = state_files(tmp_path / "run")
    assert kept
    assert all(read_saved(one).state.step <= 10 for one in kept)
    again, _ = run(tmp_path / "again", read=kept)
    for a, b in zip(whole.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_seconds_count_from_the_last_state(tmp_path: Path) -> None:
    now = [100.0]
    writer = CheckpointManager(tmp_path, parse_interval("30s"), clock=lambda: now[0])
    writer.begin(7)
    now[0] = 131.0
    assert not writer.is_due(7), "no step was made"
    assert writer.is_due(8)
    writer.begin(8)
    assert not writer.is_due(9)
    now[0] = 161.0
    assert writer.is_due(9)
