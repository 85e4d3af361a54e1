"""Sharded optimizer state: parts, their memory, states, and results equal to those of whole copies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_distribute_all_reduce_contract import multi_worker, sharded, small_units
from test_distribute_parameter_server_resume import PatientStates, copies
from tiers import matrix

from nbdist.checkpoint.manager import parse_interval, state_files
from nbdist.data import Dataset
from nbdist.distribute import MultiWorkerMirroredStrategy, ShardedStrategy, Strategy, all_reduce
from nbdist.distribute.gathers import ParameterGathers
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NanLossError, UnavailableError
from nbdist.nn import (
    BatchNorm,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    MaxPool2D,
    Sequential,
    compute_average_loss,
    losses,
)
from nbdist.optim import OPTIMIZERS, SGD, Adam, Optimizer
from nbdist.runtime.groups import Departed
from nbdist.testing.strategy import PATIENCE, everywhere, fitted, model, points
from nbdist.train import epochs
from nbdist.train.callbacks import Callback
from nbdist.train.context import Context
from nbdist.train.custom.api import end_loops
from nbdist.train.resume import read_saved
from nbdist.train.trainable import ParameterReads
from nbdist.wire.collective import buckets
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.buckets import plan_buckets
from nbdist.wire.collective.local import thread_group
from nbdist.wire.pages import TransientBuffer


@settings(max_examples=examples(50))
@given(
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=6),
    dtype=st.sampled_from(["f4", "f8", "f2", "c16"]),
    size=st.integers(1, 9),
    align=st.sampled_from([1, 8, 64]),
)
def test_padded_buckets_have_equal_aligned_parts(
    counts: list[int], dtype: str, size: int, align: int
) -> None:
    for bucket in plan_buckets([(str(i), (n,), dtype) for i, n in enumerate(counts)], limit=1024, first=512):
        padded = bucket.padded(size, align)
        part, rest = divmod(padded.count, size)
        assert rest == 0
        assert padded.count >= bucket.count
        assert part * padded.dtype.itemsize % align == 0
        assert padded.count - bucket.count < size * max(1, align // padded.dtype.itemsize)
        assert padded.padded(size, align) == padded


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_makes_the_steps_of_whole_copies(make: Callable[[], Optimizer]) -> None:
    body = lambda strategy, _: fitted(strategy, make(), 61, 20)[0]
    expected = everywhere(multi_worker(3), body)[0]
    for weights in everywhere(sharded(3), body):
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_each_replica_keeps_its_part_of_the_slots() -> None:
    variables = [("w", np.zeros((1000, 3), np.float32)), ("b", np.zeros(7, np.float32))]

    def body(strategy: Strategy, _: Context) -> int:
        replica: Any = strategy.replica(variables, Adam(0.1))
        everything: int = sum(array.nbytes for slots in replica._slots for array in slots.values())
        replica.close()
        return everything

    (whole,) = set(everywhere(multi_worker(4), body))
    parts = everywhere(sharded(4), body)
    assert whole <= sum(parts) < whole + 2 * 4 * 4 * 64  # two slots, each part to the end of a cache line
    assert len(set(parts)) == 1


def test_a_model_may_have_fewer_elements_than_replicas() -> None:
    def body(strategy: Strategy, _: Context) -> Any:
        with strategy.scope():
            made = Sequential([Dense(1, use_bias=False, kernel_initializer="ones")], seed=1)
            made.compile(Adam(0.1), "mse")
        x = np.arange(10, dtype=np.float32)[:, None]
        made.fit(Dataset.from_arrays(x, 3 * x).batch(2), epochs=2)
        return made.get_weights()[0]

    expected = everywhere(multi_worker(1), body)[0]
    for weights in everywhere(sharded(3), body):
        np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("then", "before", "after"),
    matrix(
        [(ShardedStrategy, 2, 3), (MultiWorkerMirroredStrategy, 3, 1), (ShardedStrategy, 1, 2)],
        rest=[
            (MultiWorkerMirroredStrategy, 2, 3), (ShardedStrategy, 3, 1), (MultiWorkerMirroredStrategy, 1, 2),
        ],
    ),
)  # fmt: skip
def test_a_state_continues_on_another_number_of_replicas(
    tmp_path: Path, before: int, after: int, then: Callable[..., Strategy]
) -> None:
    """The chief gathers the slots of all, also in the middle of an epoch; the replicas take their parts."""
    make = lambda place: ShardedStrategy(world=place)
    expected = copies(1, tmp_path / "whole", None, False, make)[0][0]
    with pytest.raises(BaseException):  # noqa: B017  # of whichever replica ends first
        copies(before, tmp_path / "first", None, True, make)
    assert 0 < read_saved(state_files(tmp_path / "first")[0]).state.step < 15
    found = copies(after, tmp_path / "again", tmp_path / "first", False, lambda place: then(world=place))
    for weights, steps in found:
        assert steps == 15
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert read_saved(state_files(tmp_path / "again")[0]).state.updates == 15


def test_a_state_of_stage_3_continues_in_stage_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_reduce, "plan_buckets", small_units)
    make = lambda place: ShardedStrategy(stage=3, world=place)
    expected = copies(1, tmp_path / "whole", None, False, make)[0][0]
    with pytest.raises(BaseException):  # noqa: B017  # of whichever replica ends first
        copies(2, tmp_path / "first", None, True, make)
    assert 0 < read_saved(state_files(tmp_path / "first")[0]).state.step < 15
    for weights, steps in copies(3, tmp_path / "again", tmp_path / "first", False, make):
        assert steps == 15
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def looped(size: int, folder: Path, read: Path | None, dies: int | None) -> list[Any]:
    """Train three epochs in a loop of one's own, with a state in every second step; ends after ``dies``."""
    folder.mkdir()
    world = sharded(size)

    def body(strategy: Strategy, here: Context) -> Any:
        interval = parse_interval(2) if here.is_chief else None
        here.states = PatientStates(folder, interval, read=state_files(read) if read else None)
        with strategy.scope():
            made, optimizer = model(), Adam(0.02)

        def step(x: Any, y: Any) -> None:
            each = losses.sparse_categorical_crossentropy(y, made(x, training=True))
            optimizer.minimize(compute_average_loss(each, 12))

        data = strategy.distribute_dataset(Dataset.from_arrays(*points(60)).shuffle(9).batch(12))
        ends = False
        for _ in epochs(3):
            for batch in data:
                ends = ends or here.progress.step == dies
                if ends:
                    break
                strategy.run(step, batch)
            if ends:
                break
        end_loops(here, whole=not ends)
        return made.get_weights(), here.progress.step

    return everywhere(world, body)


@pytest.mark.parametrize("after", matrix([3], rest=[1]))
def test_a_loop_of_ones_own_continues_on_another_number_of_replicas(tmp_path: Path, after: int) -> None:
    expected = looped(1, tmp_path / "whole", None, None)[0][0]
    looped(2, tmp_path / "first", None, 8)
    state = read_saved(state_files(tmp_path / "first")[0]).state
    assert 5 <= state.step < 8  # one is due after two steps, and has the slots of all one step later
    for weights, steps in looped(after, tmp_path / "again", tmp_path / "first", None):
        assert steps == 15
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_lost_replica_ends_the_training_with_the_remedy() -> None:
    def body(strategy: Any, _: Context) -> None:
        strategy.world.reform = lambda: Departed([SimpleNamespace(rank=1)], [])  # type: ignore[list-item]
        replica: Any = strategy.replica([("w", np.zeros(3, np.float32))], Adam(0.1))
        if strategy.replica_index == 1:
            replica._group.close()  # as at the end of its process
            return
        try:
            replica.push()
        finally:
            replica.close()

    with pytest.raises(UnavailableError, match=r"slots of its part are lost .* with --resume"):
        everywhere(sharded(2), body)


@pytest.mark.parametrize(("stage", "scaled"), matrix([(2, False), (3, True)], rest=[(2, True), (3, False)]))
def test_a_nan_on_one_replica_is_left_out_by_all(stage: int, scaled: bool) -> None:
    """The first replica's share of the second batch has a NaN; moving means do not keep it."""
    x, y = points(60)
    x[20] = np.nan
    seen: list[tuple[int, int]] = []

    def body(strategy: Strategy, here: Context) -> Any:
        with strategy.scope():
            layers = [Dense(16, "tanh"), BatchNorm(), Dense(3, "softmax")]
            made = Sequential(layers, seed=1)
            precision = "mixed_float16" if scaled else None
            made.compile(SGD(0.1), "sparse_categorical_crossentropy", precision=precision)
        made.fit(Dataset.from_arrays(x, y).batch(20), epochs=1, nan="skip")
        seen.append((here.progress.step, here.progress.skipped))
        return made.get_weights()

    results = everywhere(sharded(2, stage=stage), body)
    assert seen[0] == seen[1]
    assert seen[0] == (3, 1) or scaled  # the first scales are too large as well
    for ours, theirs in zip(*results, strict=True):
        assert np.isfinite(ours).all()
        assert ours.shape == (16,) or np.array_equal(ours, theirs)  # BatchNorm's means are their own

    def stops(strategy: Strategy, here: Context) -> None:
        with strategy.scope():
            made = model()
            made.compile(SGD(0.1), "sparse_categorical_crossentropy")
        made.fit(Dataset.from_arrays(x, y).batch(20), epochs=1)

    with pytest.raises(NanLossError, match="the loss is NaN at step 2"):
        everywhere(sharded(2, stage=stage), stops)


def test_gradients_of_stage_2_give_their_memory_back() -> None:
    """After a push a replica has the sums of its part; the rows of all gradients are zeros, without pages."""
    variables = [("w", np.zeros((1 << 10, 600), np.float32)), ("b", np.zeros(7, np.float32))]

    def body(strategy: Strategy, _: Context) -> Any:
        replica: Any = strategy.replica(variables, SGD(1.0))
        for number, gradient in reversed([*enumerate(replica.gradients())]):
            gradient[...] = number + 1
            replica._ready(number)
        replica.push()
        rows, parts = replica._buckets.rows, replica._buckets.parts
        found = [float(value.min()) for value in replica.values], sum(map(np.count_nonzero, rows))
        replica.close()
        return *found, sum(map(len, parts)), sum(map(len, rows))

    for values, left, parts, whole in everywhere(sharded(3, stage=2), body):
        assert values == [-3, -6]
        assert (left, parts) == (0, whole // 3)


def test_a_stage_is_one_of_them() -> None:
    with pytest.raises(InvalidArgumentError, match="--stage is 1, 2 or 3, got 4"):
        ShardedStrategy(stage=4)


def test_a_loop_of_ones_own_is_refused_in_stage_3() -> None:
    def body(strategy: Strategy, _: Context) -> None:
        with strategy.scope():
            made, optimizer = model(), Adam(0.1)

        def step(x: Any, y: Any) -> None:
            each = losses.sparse_categorical_crossentropy(y, made(x, training=True))
            optimizer.minimize(compute_average_loss(each, 10))

        for batch in strategy.distribute_dataset(Dataset.from_arrays(*points(20)).batch(10)):
            strategy.run(step, batch)

    with pytest.raises(InvalidArgumentError, match=r"gathers parameters layer by layer, .* take --stage 2"):
        everywhere(sharded(2, stage=3), body)


def for_images() -> list[Any]:
    return [Conv2D(4, 3, activation="relu"), BatchNorm(), MaxPool2D(2), Flatten(), Dense(3, "softmax")]


def for_tokens() -> list[Any]:
    return [Embedding(9, 5), LayerNorm(), Flatten(), Dense(7, "tanh"), Dropout(0.3), Dense(3, "softmax")]


@pytest.mark.parametrize(
    ("layers", "shape", "precision"),
    matrix(
        [(for_images, (6, 6, 2), "mixed_float16"), (for_tokens, (4,), None)],
        rest=[(for_images, (6, 6, 2), None), (for_tokens, (4,), "mixed_float16")],
    ),
)
def test_layers_train_in_stage_3_as_with_copies(
    layers: Callable[[], Any], shape: Any, precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch leaves a replica without an example; the chief validates after each epoch."""
    rng = np.random.default_rng(0)
    y = np.arange(32) % 3
    x = rng.normal(size=(32, *shape)).astype(np.float32)
    if len(shape) == 1:
        x = rng.integers(0, 9, size=(32, *shape))

    def body(strategy: Strategy, _: Context) -> Any:
        with strategy.scope():
            made = Sequential(layers(), seed=1)
            made.compile(Adam(0.01), "sparse_categorical_crossentropy", ["accuracy"], precision=precision)
        data = Dataset.from_arrays(x, y).batch(10)
        history = made.fit(data, epochs=2, validation_data=(x, y))
        return made.get_weights(), history.history.get("val_loss", []), made.evaluate(x, y)["loss"]

    expected = everywhere(sharded(3), body)
    monkeypatch.setattr(all_reduce, "plan_buckets", small_units)
    for ours, theirs in zip(everywhere(sharded(3, stage=3), body), expected, strict=True):
        for a, b in zip(ours[0], theirs[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
        assert ours[2] == pytest.approx(theirs[2], rel=1e-5)


def test_a_replica_without_an_example_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends its zeros before it gathers: others wait for both while they compute."""
    monkeypatch.setattr(all_reduce, "plan_buckets", small_units)
    monkeypatch.setattr(buckets, "MOST_PENDING", 1)
    monkeypatch.setattr(buckets, "LONGEST_WAIT", 2 * PATIENCE)
    everywhere(sharded(3, stage=3), lambda strategy, _: fitted(strategy, SGD(0.1), 5, 2))


def test_what_only_the_forward_pass_reads_is_gathered_once() -> None:
    made = Sequential([Embedding(9, 5), Flatten(), Dense(4, "tanh"), Dense(3, "softmax")], seed=1)
    made.compile(Adam(0.01), "sparse_categorical_crossentropy")
    objective = made._objective_for(Dataset.from_arrays(np.zeros((2, 2), np.int64), np.zeros(2)).batch(2))
    assert objective.parameter_reads == ParameterReads(frozenset(range(5)), frozenset([1, 3]))


def test_a_lost_replica_ends_the_step_that_gathers_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_reduce, "plan_buckets", small_units)

    def body(strategy: Strategy, here: Context) -> None:
        class Leave(Callback):
            def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
                gathers[strategy.replica_index].close()  # as at the end of its process

        ends = UnavailableError if here.is_chief else FailedPreconditionError
        with pytest.raises(
            ends, match="slots of its part are lost .* with --resume" if here.is_chief else None
        ):
            fitted(strategy, SGD(0.1), 60, 20, callbacks=[] if here.is_chief else [Leave()])

    gathers: list[Any] = [None, None]
    own = ParameterGathers.__init__

    def noted(self: ParameterGathers, group: Collective, *rest: Any) -> None:
        own(self, group, *rest)
        gathers[group.rank] = self

    monkeypatch.setattr(ParameterGathers, "__init__", noted)
    everywhere(sharded(2, stage=3), body)


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_replicas_gather_in_one_order_whatever_they_compute(data: st.DataObject) -> None:
    """Each of three replicas reads units in an order of its own, and finds the parameters of all parts."""
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    numbers = st.integers(0, len(sizes) - 1)
    reads = ParameterReads(
        frozenset(range(len(sizes))), frozenset(range(len(sizes))), data.draw(st.integers(1, 2))
    )
    orders = [data.draw(st.lists(st.lists(numbers), max_size=reads.passes)) for _ in range(3)]
    plan = [
        bucket.padded(3, 64)
        for bucket in plan_buckets([(str(i), (n,), "f8") for i, n in enumerate(sizes)], limit=128, first=128)
    ]
    groups, wrong = thread_group(["a", "b", "c"]), list[str]()

    def replica(group: Collective) -> None:
        buffers = [TransientBuffer(bucket.count, bucket.dtype) for bucket in plan]
        parts = [np.full(bucket.count // 3, unit + 10.0) for unit, bucket in enumerate(plan)]
        whole = [np.zeros(n) for n in sizes]
        gathers = ParameterGathers(group, plan, buffers, parts, whole, reads)
        for _ in range(2):
            gathers.begin_step()
            for order in orders[group.rank]:
                for number in order:
                    unit = gathers.units[number]
                    gathers.need(unit)
                    if not (buffers[unit].array == unit + 10).all():
                        wrong.append(f"{number} is not here")
                    gathers.release(unit, again=True)
                gathers.end_pass()
            gathers.end_step()
            if any(buffer.array.any() for buffer in buffers):
                wrong.append("something is left")
            gathers.gather_all(keeps=group.rank == 1)
        if group.rank == 1 and any((one != gathers.units[i] + 10).any() for i, one in enumerate(whole)):
            wrong.append("not all is whole")
        gathers.close()

    threads = [threading.Thread(target=replica, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a replica hangs"
    assert not wrong
