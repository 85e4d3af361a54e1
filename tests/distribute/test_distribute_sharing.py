"""Auto-shard policies in fit and in loops of one's own: the global batches are what the policy says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_distribute_all_reduce_contract import context

from nbdist.data import SHARD_HINT, Dataset
from nbdist.distribute import ElasticAveragingStrategy, MultiWorkerMirroredStrategy, Strategy
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.estimator import LinearClassifier, RunConfig, numeric_column
from nbdist.optim import SGD
from nbdist.testing.strategy import World, everywhere, model
from nbdist.testing.worlds import worlds
from nbdist.train.callbacks import Callback
from nbdist.train.context import Context
from nbdist.train.resume import TrainingStates

ROWS = [7, 4, 9]  # of each file


def workers(size: int, kind: Any = MultiWorkerMirroredStrategy, **about: Any) -> World:
    found = []
    for i, place in enumerate(worlds(size)):
        strategy = kind(world=place)
        states = TrainingStates(**about) if about else None
        found.append((context(strategy, place, is_chief=i == 0, states=states), strategy))
    return found


@pytest.fixture
def files(tmp_path: Path) -> str:
    for number, rows in enumerate(ROWS):
        (tmp_path / f"{number}.txt").write_text("".join(f"{100 * number + row}\n" for row in range(rows)))
    return f"{tmp_path}/*.txt"


def numbers(files: str) -> Dataset:
    return Dataset.text_lines(files).map(int)


def steps(dataset: Dataset, size: int) -> list[list[list[int]]]:
    """Return the numbers of each step, and of each worker in it."""

    def body(strategy: Strategy, here: Context) -> Any:
        return [batch.tolist() for batch in strategy.distribute_dataset(dataset)]

    return [list(step) for step in zip(*everywhere(workers(size), body), strict=True)]


def test_each_worker_reads_its_files_until_none_has_any_more(files: str) -> None:
    found = steps(numbers(files).batch(6).with_auto_shard("file"), 2)
    first, second = ([n for step in found for n in step[worker]] for worker in (0, 1))
    assert sorted(first) == [*range(7), *range(200, 209)]
    assert second[:4] == [102, 103, 100, 101], "the second piece comes first on worker 1"
    assert [len(step[0]) + len(step[1]) for step in found] == [6 - 1, 6 - 1, 3, 3, 2, 2]
    assert found[0] == [[0, 1, 2], [102, 103]]
    assert found[-1] == [[207, 208], []]


@pytest.mark.parametrize("size", [2, 3])
def test_data_is_shares_of_the_batches_that_all_make(files: str, size: int) -> None:
    dataset = numbers(files).shuffle(30, seed=1).batch(5)
    for policy in ("data", "auto") if size > len(ROWS) else ("data",):
        assert steps(dataset.with_auto_shard(policy), size) == steps(dataset, size)
    assert steps(Dataset.range(20).batch(5).with_auto_shard("auto"), size) == steps(
        Dataset.range(20).batch(5), size
    )


def test_auto_is_file_with_enough_files(files: str) -> None:
    dataset = numbers(files).batch(6)
    assert steps(dataset.with_auto_shard("AUTO"), 2) == steps(dataset.with_auto_shard("file"), 2)


def test_off_gives_everything_to_each_worker_in_an_order_of_its_own() -> None:
    found = steps(Dataset.range(12).shuffle(12, seed=3).batch(4).with_auto_shard("off"), 2)
    each = [[n for step in found for n in step[worker]] for worker in (0, 1)]
    assert [sorted(one) for one in each] == [list(range(12))] * 2
    assert each[0] != each[1]
    assert [len(step[0]) + len(step[1]) for step in found] == [4] * 6


def test_hint_splits_where_it_stands() -> None:
    marked = Dataset.range(10).shard(SHARD_HINT, SHARD_HINT).map(lambda n: n * 10).batch(4)
    found = steps(marked.with_auto_shard("hint"), 2)
    assert found == [[[0, 20], [50, 70]], [[40, 60], [10, 30]], [[80], []], [[], [90]]]


@pytest.mark.parametrize(
    ("policy", "size", "batch"), [("file", 2, 6), ("file", 3, 5), ("off", 2, 3), ("hint", 3, 4)]
)
def test_training_is_one_devices_on_the_same_global_batches(
    files: str, policy: str, size: int, batch: int
) -> None:
    def rows(part: Dataset) -> Dataset:
        return part.map(lambda n: (np.random.default_rng(int(n)).normal(size=6).astype("f4"), int(n) % 3))

    source = Dataset.range(19).shard(SHARD_HINT, SHARD_HINT) if policy == "hint" else numbers(files)
    source = source.shuffle(5, seed=2)
    dataset = rows(source).batch(batch).with_auto_shard(policy)

    def pieces(strategy: Strategy, here: Context) -> Any:
        return [[part.copy() for part in piece] for piece in strategy.distribute_dataset(dataset)]

    def fit(strategy: Strategy, here: Context, data: Dataset = dataset) -> Any:
        made = model()
        made.compile(SGD(0.2, momentum=0.8), metrics=["accuracy"])
        made.fit(data, epochs=1)
        return made.get_weights(), here.progress.step

    each = everywhere(workers(size), pieces)
    whole = [
        tuple(np.concatenate(parts) for parts in zip(*step, strict=True)) for step in zip(*each, strict=True)
    ]
    found = everywhere(workers(size), fit)
    alone = everywhere(workers(1), lambda s, c: fit(s, c, Dataset.from_generator(lambda: whole)))[0]
    assert found[0][1] == alone[1] == len(whole)
    for ours in found:
        for a, b in zip(ours[0], alone[0], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "size", "said"),
    [
        (
            lambda files: numbers(files).batch(2).with_auto_shard("file"),
            4,
            "3 files cannot be split among 4 workers",
        ),
        (
            lambda files: Dataset.range(9).batch(2).with_auto_shard("file"),
            2,
            "FILE needs one source of files",
        ),
        (lambda files: numbers(files).batch(2).with_auto_shard("hint"), 2, "HINT needs one .shard"),
        (
            lambda files: Dataset.range(2).batch(2).with_auto_shard("data"),
            3,
            "2 elements cannot be split into 3",
        ),
        (
            lambda files: numbers(files).take(2).batch(2).with_auto_shard("data"),
            3,
            "2 elements cannot be split",
        ),
        (lambda files: numbers(files).with_auto_shard("file"), 2, r"single examples; add \.batch"),
    ],
)
def test_a_policy_that_cannot_be_followed(
    files: str, make: Callable[[str], Dataset], size: int, said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        steps(make(files), size)


def test_functions_that_make_datasets_and_independent_replicas_read_their_parts(files: str) -> None:
    def made(strategy: Strategy, here: Context) -> Any:
        data = strategy.distribute_datasets_from_function(
            lambda about: numbers(files).batch(4).with_auto_shard("file")
        )
        return [batch.tolist() for batch in data]

    first, second = everywhere(workers(2), made)
    assert first == [[0, 1, 2, 3], [4, 5, 6, 200], [201, 202, 203, 204], [205, 206, 207, 208]]
    assert second == [[100, 101, 102, 103], [], [], []]

    def apart(strategy: Strategy, here: Context) -> Any:
        part = strategy.dataset(numbers(files).batch(4).with_auto_shard("file"), 1)
        return sorted(n for batch in part for n in batch.tolist())

    assert everywhere(workers(2, ElasticAveragingStrategy), apart) == [
        [*range(7), *range(200, 209)],
        [*range(100, 104)],
    ]


class Stop(Callback):
    def __init__(self, here: Context) -> None:
        self._control = here.control

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self._control.stop_requested = True


@pytest.mark.parametrize("rounds", [None, 9])
def test_a_training_on_own_files_continues_on_as_many_workers(
    files: str, tmp_path: Path, rounds: int | None
) -> None:
    def body(stops: bool) -> Callable[[Strategy, Context], Any]:
        def run(strategy: Strategy, here: Context) -> Any:
            made = model()
            made.compile(SGD(0.2, momentum=0.8))
            rows = numbers(files).map(lambda n: (np.full(6, n % 7, np.float32), n % 3)).shuffle(4, seed=1)
            dataset = rows.repeat(rounds).batch(6).with_auto_shard("file")
            made.fit(dataset, epochs=3, steps_per_epoch=5, callbacks=[Stop(here)] if stops else [])
            return made.get_weights()

        return run

    cut, whole = tmp_path / "cut", tmp_path / "whole"
    expected = everywhere(workers(2, write=whole), body(stops=False))
    everywhere(workers(2, write=cut), body(stops=True))
    found = everywhere(workers(2, write=tmp_path / "rest", read=cut), body(stops=False))
    for a, b in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(InvalidArgumentError, match=r"was 2 and is 3 now"):
        everywhere(workers(3, write=tmp_path / "three", read=cut), body(stops=False))


def test_a_step_of_pieces_is_not_made_again() -> None:
    def body(strategy: Strategy, here: Context) -> Any:
        batches = strategy.batches(strategy.dataset(Dataset.range(8).batch(4).with_auto_shard("off"), 1))
        next(batches)
        with pytest.raises(FailedPreconditionError, match="cannot be divided anew within an epoch"):
            strategy.batch()
        return [size for _, size in batches]

    assert everywhere(workers(2), body) == [[4, 4, 4]] * 2


def test_an_estimator_trains_on_pieces_some_of_which_are_empty(files: str, tmp_path: Path) -> None:
    def rows() -> Dataset:
        made = numbers(files).map(lambda n: ({"x": np.full(2, n % 5, np.float32)}, n % 2))
        return made.batch(6).with_auto_shard("file")

    def body(strategy: Strategy, here: Context) -> Any:
        columns = [numeric_column("x", shape=(2,))]
        estimator = LinearClassifier(columns, str(tmp_path / "model"), config=RunConfig(tf_random_seed=1))
        estimator.train(rows)
        return estimator.get_variable_value("global_step") if here.is_chief else None

    assert everywhere(workers(2), body)[0] == 6, "as many as the worker with more data has pieces"
