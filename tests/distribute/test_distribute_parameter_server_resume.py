"""Synchronous replicas continue together from one state, bit for bit, or raise the reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parameter_town import SEED, Town
from test_distribute_all_reduce_contract import context
from tiers import matrix

from nbdist import nn, train
from nbdist.checkpoint.manager import parse_interval, state_files
from nbdist.data import Dataset
from nbdist.distribute import (
    CentralStorageStrategy,
    ElasticAveragingStrategy,
    MultiWorkerMirroredStrategy,
    Strategy,
)
from nbdist.errors import DataLossError, InvalidArgumentError, NotFoundError
from nbdist.nn import BatchNorm, Dense, Dropout, Embedding, Flatten, Sequential
from nbdist.optim import SGD, Adagrad, Adam, Optimizer
from nbdist.optim.schedules import CosineDecay
from nbdist.testing.strategy import World, everywhere, model, points
from nbdist.testing.worlds import ThreadWorld, worlds
from nbdist.train.callbacks import Callback
from nbdist.train.context import Context, current, use_here
from nbdist.train.custom.api import end_loops
from nbdist.train.resume import DataCursor, TrainingStates, read_saved


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


def momentum() -> Optimizer:
    return SGD(0.2, momentum=0.8)


def adam() -> Optimizer:
    return Adam(0.02)


def scheduled() -> Optimizer:
    rate = CosineDecay(0.0, 9, warmup_target=0.3, warmup_steps=2)
    return SGD(rate, momentum=0.5, gradient_accumulation_steps=2)


def adagrad() -> Optimizer:
    return Adagrad(0.1)


def plain() -> Optimizer:
    return SGD(0.1)


@pytest.mark.parametrize(
    ("size", "optimizer"),
    matrix(
        [(2, momentum), (3, adam), (2, scheduled)],
        rest=[(2, adagrad), (3, momentum), (2, adam), (3, adagrad)],
    ),
)
def test_workers_continue_together(tmp_path: Path, size: int, optimizer: Callable[[], Optimizer]) -> None:
    path = tmp_path / "state.safetensors"
    expected = everywhere(workers(size, tmp_path / "whole", None), body_of(optimizer, 3))
    everywhere(workers(size, path, None), body_of(optimizer, 3, stops=True))
    state = read_saved(path).state
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
    assert read_saved(path).state.updates == 12


@pytest.mark.parametrize(("before", "after"), matrix([(1, 2), (3, 1)], rest=[(2, 3)]))
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
    one, other = tmp_path / "one", tmp_path / "other"
    everywhere(workers(2, one, None), body_of(lambda: SGD(0.1), 1))
    everywhere(workers(2, other, None), body_of(lambda: SGD(0.1, momentum=0.0), 2))
    monkeypatch.setattr(ThreadWorld, "timeout", 0.5)
    world = workers(2, tmp_path / "new", one)
    world[1][0].states = TrainingStates(read=other)
    with pytest.raises(DataLossError, match=r"replica 1\) continues from another state than rank 0"):
        everywhere(world, body_of(lambda: SGD(0.1), 3))
    world = workers(2, tmp_path / "new", one)
    world[1][0].states = TrainingStates(read=tmp_path / "none")
    with pytest.raises(NotFoundError, match="no state of a training"):
        everywhere(world, body_of(lambda: SGD(0.1), 3))
    assert not (tmp_path / "new").exists()


class Interrupted(BaseException):
    """Stands for the end of all processes, at the end of an epoch."""


class PatientStates(TrainingStates):
    """Writes each state that is due before the next step."""

    def is_due(self, step: int) -> bool:
        self._wait()
        return super().is_due(step)


class Interrupt(Callback):
    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        if epoch == 1:
            raise Interrupted


def served(
    replicas: int,
    folder: Path,
    read: Path | None,
    dies: bool = False,
    servers: int = 1,
    make: Callable[[], Sequential] = model,
    optimizer: Callable[[], Optimizer] = lambda: Adam(0.02),
    stops_at: int | None = None,
    steps: int | None = None,
    **options: Any,
) -> tuple[Town, list[Any]]:
    """Train three epochs, of so many ``steps``, with parameter servers.

    With ``dies`` all replicas end after the second one.

    With ``stops_at`` the last replica stops after so many steps; -1 has it make all, with the same data.
    """
    folder.mkdir(exist_ok=True)
    town = Town(servers, replicas)

    def body(replica: int) -> Any:
        here = current()
        interval = parse_interval(1) if here.is_chief else None
        here.states = PatientStates(folder, interval, read=state_files(read) if read else None)
        made = make()
        made.compile(optimizer(), metrics=["accuracy"])
        x, y = points(60)
        data = Dataset.from_arrays(x, y).shuffle(9).batch(12)  # five steps an epoch
        callbacks = [Interrupt()] if dies else []
        taken = itertools.count()

        def stop(*batch: Any) -> Any:
            if replica == replicas - 1 and next(taken) == stops_at:
                here.control.stop_requested = True
            return batch

        if stops_at is not None:
            data = data.map(stop)
        return made, made.fit(data, epochs=3, steps_per_epoch=steps, callbacks=callbacks)

    try:
        results = town.train(body, **options)
    finally:
        town.close()
    wait_for_the_disk(town.contexts[0])
    for one in results:
        if isinstance(one, Exception) and not dies:
            raise one
    return town, results


def wait_for_the_disk(chief: Context) -> None:
    assert chief.states is not None
    chief.states._wait()


@pytest.mark.parametrize(
    ("servers", "optimizer"),
    matrix(
        [(2, adam), (1, plain), (2, scheduled)], rest=[(1, momentum), (2, momentum), (1, adam), (2, plain)]
    ),
)
def test_synchronous_servers_continue_bit_for_bit(
    tmp_path: Path, servers: int, optimizer: Callable[[], Optimizer]
) -> None:
    given: dict[str, Any] = {"servers": servers, "synchronous": True, "optimizer": optimizer}
    _, whole = served(2, tmp_path / "whole", None, **given)
    _, died = served(2, tmp_path / "first", None, dies=True, **given)
    assert any(isinstance(one, Interrupted) for one in died)
    (newest, _) = state_files(tmp_path / "first")
    assert read_saved(newest).state.updates == 9
    town, again = served(2, tmp_path / "again", tmp_path / "first", **given)
    for a, b in zip(whole[0][0].get_weights(), again[0][0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again[0][1].history == whole[0][1].history
    assert town.contexts[0].progress.global_step == 15
    last, _ = state_files(tmp_path / "again")
    assert (read_saved(last).state.updates, read_saved(last).state.place.epoch) == (15, 3)
    for a, b in zip(nn.load(last).get_weights(), whole[0][0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("servers", "last"),
    matrix([(2, 8), (1, 9)], rest=[(1, 4), (1, 7), (1, 8), (2, 4), (2, 7), (2, 9)]),
)
def test_a_step_that_others_did_not_make_is_in_no_state(tmp_path: Path, servers: int, last: int) -> None:
    """Replica 1 stops one step before the chief, whose last gradient is then part of no update."""
    given: dict[str, Any] = {"servers": servers, "synchronous": True}
    _, whole = served(2, tmp_path / "whole", None, stops_at=-1, **given)
    town, _ = served(2, tmp_path / "first", None, stops_at=last, **given)
    made = town.contexts[1].progress.step
    assert 0 < made < last  # the next batches are read ahead
    assert town.contexts[0].progress.step == made
    newest = read_saved(state_files(tmp_path / "first")[0]).state
    assert (newest.updates, newest.step) == (made, made)
    _, again = served(2, tmp_path / "again", tmp_path / "first", stops_at=-1, **given)
    for a, b in zip(whole[0][0].get_weights(), again[0][0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again[0][1].history == whole[0][1].history


@pytest.mark.parametrize("replicas", matrix([3], rest=[1]))
def test_synchronous_servers_continue_on_other_replicas(tmp_path: Path, replicas: int) -> None:
    _, whole = served(2, tmp_path / "whole", None, synchronous=True)
    served(2, tmp_path / "first", None, dies=True, synchronous=True)
    _, again = served(replicas, tmp_path / "again", tmp_path / "first", servers=2, synchronous=True)
    for a, b in zip(whole[0][0].get_weights(), again[0][0].get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_tables_on_servers_continue_with_their_slots(tmp_path: Path) -> None:
    def make() -> Sequential:
        return Sequential([Embedding(30, 4), Flatten(), Dense(3, "softmax")])

    def run(folder: Path, read: Path | None, dies: bool = False) -> list[Any]:
        folder.mkdir()
        town = Town(2, 2)

        def body(replica: int) -> Any:
            here = current()
            interval = parse_interval(1) if here.is_chief else None
            here.states = PatientStates(folder, interval, read=state_files(read) if read else None)
            made = make()
            made.compile(Adam(0.02), "sparse_categorical_crossentropy")
            x = np.random.default_rng(0).integers(0, 30, (60, 3))
            data = Dataset.from_arrays(x, np.arange(60) % 3).batch(12)
            made.fit(data, epochs=3, callbacks=[Interrupt()] if dies else [])
            return made

        try:
            return town.train(body, synchronous=True)
        finally:
            town.close()
            wait_for_the_disk(town.contexts[0])

    whole = run(tmp_path / "whole", None)
    run(tmp_path / "first", None, dies=True)
    again = run(tmp_path / "again", tmp_path / "first")
    for a, b in zip(whole[0].get_weights(), again[0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("before", "after", "each"), matrix([(2, 3, None), (3, 1, None), (2, 2, 8)], rest=[(2, 2, None)])
)
def test_asynchronous_servers_continue_their_snapshot(
    tmp_path: Path, before: int, after: int, each: int | None
) -> None:
    """Every replica continues its own epochs; the servers count the gradients that a snapshot has."""
    served(before, tmp_path / "first", None, dies=True, steps=each)
    newest, total = state_files(tmp_path / "first")[0], 3 * (each or 5)
    state = read_saved(newest).state
    assert state.steps is not None
    assert len(state.steps) == before
    assert sum(state.steps) == state.updates
    assert state.steps[0] == state.step
    town, again = served(after, tmp_path / "again", tmp_path / "first", steps=each)
    assert [one.progress.step for one in town.contexts] == [total] * after
    last = read_saved(state_files(tmp_path / "again")[0]).state
    assert last.steps is not None
    assert max(last.steps) <= total
    made = sum(total - steps for steps in [*state.steps, *[state.steps[0]] * after][:after])
    assert town.contexts[0].progress.global_step == state.updates + made
    assert all(np.isfinite(w).all() for w in again[0][0].get_weights())


def test_backups_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbdist.runtime.ps.service.LOOK_SECONDS", 0.05)
    given: dict[str, Any] = {"synchronous": True, "aggregate": 2}
    served(3, tmp_path / "first", None, dies=True, **given)
    town, _ = served(3, tmp_path / "again", tmp_path / "first", **given)
    assert town.contexts[0].progress.global_step >= 15


def test_another_family_is_refused(tmp_path: Path) -> None:
    served(2, tmp_path / "first", None, dies=True)
    with pytest.raises(InvalidArgumentError, match=r"replicas that step independently \(ps --async\)"):
        served(2, tmp_path / "again", tmp_path / "first", synchronous=True)


def test_servers_and_copies_continue_each_other(tmp_path: Path) -> None:
    _, whole = served(2, tmp_path / "whole", None, synchronous=True)
    served(2, tmp_path / "first", None, dies=True, synchronous=True)
    states = TrainingStates(read=state_files(tmp_path / "first"))

    def body() -> Sequential:
        made = model()
        made.compile(Adam(0.02), metrics=["accuracy"])
        x, y = points(60)
        made.fit(Dataset.from_arrays(x, y).shuffle(9).batch(12), epochs=3)
        return made

    with use_here(Context(seed=SEED, quiet=True, states=states)):
        alone = body()
    for a, b in zip(whole[0][0].get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def copies(
    size: int, folder: Path, read: Path | None, dies: bool, make: Callable[[Any], Strategy]
) -> list[Any]:
    """Train three epochs with replicas that have the parameters themselves."""
    folder.mkdir()
    world = []
    for i, place in enumerate(worlds(size)):
        strategy = make(place)
        interval = parse_interval(1) if i == 0 else None
        states = PatientStates(folder, interval, read=state_files(read) if read else None)
        world.append((context(strategy, place, is_chief=i == 0, states=states), strategy))

    def body(strategy: Strategy, here: Context) -> Any:
        made = model()
        made.compile(Adam(0.02), metrics=["accuracy"])
        x, y = points(60)
        made.fit(
            Dataset.from_arrays(x, y).shuffle(9).batch(12), epochs=3, callbacks=[Interrupt()] if dies else []
        )
        return made.get_weights(), here.progress.step

    try:
        return everywhere(world, body)
    finally:
        wait_for_the_disk(world[0][0])


@pytest.mark.parametrize("after", [2, 3])
def test_elastic_replicas_continue_from_their_center(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ThreadWorld, "timeout", 1.0)

    def make(place: Any) -> Strategy:
        return ElasticAveragingStrategy(every=2, world=place)

    with pytest.raises(BaseException):  # noqa: B017  # of whichever replica ends first
        copies(2, tmp_path / "first", None, True, make)
    newest = state_files(tmp_path / "first")[0]
    assert read_saved(newest).state.step in (8, 9)
    found = copies(after, tmp_path / "again", tmp_path / "first", False, make)
    assert [steps for _, steps in found] == [15] * after
    for weights, _ in found[1:]:
        for a, b in zip(found[0][0], weights, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(InvalidArgumentError, match="with elastic averaging, and strategy multi_worker"):
        copies(
            1, tmp_path / "other", tmp_path / "first", False,
            lambda place: MultiWorkerMirroredStrategy(world=place),
        )  # fmt: skip


def test_central_threads_continue_bit_for_bit(tmp_path: Path) -> None:
    def run(folder: Path, read: Path | None, dies: bool) -> Any:
        folder.mkdir()
        strategy = CentralStorageStrategy(["CPU:0", "CPU:0"])
        states = PatientStates(folder, parse_interval(1), read=state_files(read) if read else None)
        here = Context(strategy=strategy, seed=5, quiet=True, states=states)
        try:
            with use_here(here):
                made = model()
                made.compile(Adam(0.02), metrics=["accuracy"])
                x, y = points(60)
                data = Dataset.from_arrays(x, y).shuffle(9).batch(12)
                made.fit(data, epochs=3, callbacks=[Interrupt()] if dies else [])
                return made.get_weights()
        finally:
            wait_for_the_disk(here)

    whole = run(tmp_path / "whole", None, False)
    with pytest.raises(Interrupted):
        run(tmp_path / "first", None, True)
    for a, b in zip(whole, run(tmp_path / "again", tmp_path / "first", False), strict=True):
        np.testing.assert_array_equal(a, b)


def looped(replicas: int, folder: Path, read: Path | None, dies: int | None, **options: Any) -> list[Any]:
    """Train three epochs in a loop of one's own, on two parameter servers; all end after ``dies`` steps."""
    folder.mkdir()
    town = Town(2, replicas)

    def body(replica: int) -> Any:
        here = current()
        interval = parse_interval(1) if here.is_chief else None
        here.states = PatientStates(folder, interval, read=state_files(read) if read else None)
        strategy = here.strategy
        with strategy.scope():
            made = Sequential([Dense(5, "tanh"), Dense(3, "softmax")], seed=2)
            optimizer = Adam(0.02)

        def step(x: Any, y: Any) -> Any:
            each = nn.losses.sparse_categorical_crossentropy(y, made(x, training=True))
            optimizer.minimize(nn.compute_average_loss(each, global_batch_size=12))

        x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        data = strategy.distribute_dataset(Dataset.from_arrays(x, np.arange(60) % 3).shuffle(9).batch(12))
        try:
            for _ in train.epochs(3):
                for batch in data:
                    if here.progress.step == dies:
                        raise Interrupted
                    strategy.run(step, batch)
            end_loops(here, whole=True)
        except Interrupted:
            end_loops(here, whole=False)
        return made.get_weights(), here.progress.step

    try:
        found = town.train(body, **options)
    finally:
        town.close()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def test_loops_on_synchronous_servers_continue_bit_for_bit(tmp_path: Path) -> None:
    whole = looped(2, tmp_path / "whole", None, None, synchronous=True)
    looped(2, tmp_path / "first", None, 8, synchronous=True)
    assert read_saved(state_files(tmp_path / "first")[0]).state.step in (7, 8)
    again = looped(2, tmp_path / "again", tmp_path / "first", None, synchronous=True)
    for a, b in zip(whole[0][0], again[0][0], strict=True):
        np.testing.assert_array_equal(a, b)
    other = looped(3, tmp_path / "other", tmp_path / "first", None, synchronous=True)
    for a, b in zip(whole[0][0], other[0][0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_loops_on_asynchronous_servers_continue(tmp_path: Path) -> None:
    looped(2, tmp_path / "first", None, 8)
    again = looped(2, tmp_path / "again", tmp_path / "first", None)
    assert [steps for _, steps in again] == [15, 15]
