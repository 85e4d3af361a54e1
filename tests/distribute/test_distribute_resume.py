"""Synchronous replicas continue together from one state, bit for bit, or raise the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategy_contract import World, everywhere, model, points
from test_distribute_strategies import ThreadWorld, context, worlds

from nbdist.data import Dataset
from nbdist.distribute import MultiWorkerMirroredStrategy, Strategy
from nbdist.errors import DataLossError, NotFoundError
from nbdist.nn import BatchNorm, Dropout, Sequential
from nbdist.optim import SGD, Adagrad, Adam, Optimizer
from nbdist.train.callbacks import Callback
from nbdist.train.context import Context
from nbdist.train.resume import DataCursor, TrainingStates, read_state

SIZES = [2, 3]


def workers(size: int, write: Path, read: Path | None) -> World:
    """Return the processes of a run, each with the states of its context."""
    found = []
    for i, place in enumerate(worlds(size)):
        strategy = MultiWorkerMirroredStrategy(world=place)
        one = context(strategy, place, is_chief=i == 0, states=TrainingStates(write=write, read=read))
        found.append((one, strategy))
    return found


class StopLast(Callback):
    """Stops the last worker, which is not the chief, after the first epoch."""

    def __init__(self, here: Context, strategy: Strategy) -> None:
        self._control = here.control
        self._asks = strategy.replica_index == strategy.num_replicas_in_sync - 1

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self._control.stop_requested = self._control.stop_requested or self._asks


def body_of(
    optimizer: Callable[[], Optimizer],
    epochs: int,
    stops: bool = False,
    rows: int = 61,
    make: Callable[[], Sequential] = lambda: model(BatchNorm(), Dropout(0.3)),
) -> Callable[[Strategy, Context], Any]:
    """Return a body with epochs of four steps; the last batch has unequal shares."""

    def body(strategy: Strategy, here: Context) -> Any:
        made = make()
        made.compile(optimizer(), metrics=["accuracy"])
        x, y = points(rows)
        history = made.fit(
            Dataset.from_arrays(x, y).shuffle(9).batch(20),
            epochs=epochs,
            validation_data=(x[:9], y[:9]) if here.is_chief else None,
            callbacks=[StopLast(here, strategy)] if stops else [],
        )
        progress = here.progress
        counted = [progress.step, progress.total, progress.global_step, progress.learning_rate]
        return made.get_weights(), history.history, history.global_step, counted

    return body


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "optimizer", [lambda: SGD(0.2, momentum=0.8), lambda: Adam(0.02), lambda: Adagrad(0.1)]
)
def test_workers_continue_together(tmp_path: Path, size: int, optimizer: Callable[[], Optimizer]) -> None:
    path = tmp_path / "state.safetensors"
    expected = everywhere(workers(size, tmp_path / "whole", None), body_of(optimizer, 3))
    everywhere(workers(size, path, None), body_of(optimizer, 3, stops=True))
    state = read_state(path)
    assert (state.place, state.updates) == (DataCursor(1, 1, (1,)), 5)
    found = everywhere(workers(size, path, path), body_of(optimizer, 3))
    for rank, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for number, (a, b) in enumerate(zip(ours[0], theirs[0], strict=True)):
            if rank == 0 or number not in (
                4,
                5,
            ):  # the others keep their own moving averages
                np.testing.assert_array_equal(a, b)
        assert ours[2:] == theirs[2:]
    assert found[0][1] == expected[0][1]
    assert read_state(path).updates == 12


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_another_number_of_workers_makes_the_same_steps(
    tmp_path: Path, before: int, after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.safetensors"
    expected = everywhere(workers(1, tmp_path / "whole", None), body_of(lambda: Adam(0.02), 3, make=model))
    everywhere(workers(before, path, None), body_of(lambda: Adam(0.02), 3, stops=True, make=model))
    found = everywhere(workers(after, path, path), body_of(lambda: Adam(0.02), 3, make=model))
    for a, b in zip(found[0][0], expected[0][0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert f"on {after} replica{'s' * (after > 1)} instead of {before}" in capsys.readouterr().out


def test_workers_with_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts without a shared folder may have no file, or one of another run."""
    monkeypatch.setattr(ThreadWorld, "timeout", 1.0)
    one, other = tmp_path / "one", tmp_path / "other"
    everywhere(workers(2, one, None), body_of(lambda: SGD(0.1), 1))
    everywhere(workers(2, other, None), body_of(lambda: SGD(0.1, momentum=0.0), 2))
    world = workers(2, tmp_path / "new", one)
    world[1][0].states = TrainingStates(read=other)
    with pytest.raises(DataLossError, match=r"replica 1\) continues from another state than rank 0"):
        everywhere(world, body_of(lambda: SGD(0.1), 3))
    world = workers(2, tmp_path / "new", one)
    world[1][0].states = TrainingStates(read=tmp_path / "none")
    with pytest.raises(NotFoundError, match="no state of a training"):
        everywhere(world, body_of(lambda: SGD(0.1), 3))
    assert not (tmp_path / "new").exists()
