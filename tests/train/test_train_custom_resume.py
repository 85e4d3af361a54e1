"""Loops of one's own that are interrupted and continued equal loops that were not, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import matrix

from nbdist.checkpoint.manager import parse_interval, state_files
from nbdist.data import Dataset
from nbdist.distribute import MirroredStrategy
from nbdist.errors import InvalidArgumentError
from nbdist.graph.tensor import Variable
from nbdist.graph.variables import get_or_create_global_step
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.store import columns_from_logs
from nbdist.nn import BatchNorm, Dense, Dropout, Sequential, compute_average_loss, losses
from nbdist.optim import SGD, Adam, LossScaleOptimizer, Optimizer
from nbdist.testing.strategy import variables_of
from nbdist.train import epochs, state
from nbdist.train.context import Context, current, get_strategy, use
from nbdist.train.custom.api import end_loops
from nbdist.train.one_device import OneDeviceStrategy
from nbdist.train.resume import TrainingStates, read_saved
from nbdist.train.strategy import Strategy

ROWS = 40
x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)
y = np.arange(ROWS) % 3


class Killed(BaseException):
    """Stands for the end of the process: no code of the loop handles it."""


class PatientStates(TrainingStates):
    """Writes each state that is due before the next step."""

    def is_due(self, step: int) -> bool:
        self._wait()
        return super().is_due(step)


class Loop:
    """What a body uses: a model, its step, and a count of steps after which the process ends."""

    def __init__(self, dies: int | None, rate: float = 0.02, scale: float | None = None) -> None:
        self.dies, self.made = dies, 0
        self.strategy = get_strategy()
        with self.strategy.scope():
            layers = [Dense(7, "tanh"), BatchNorm(), Dropout(0.3), Dense(3, "softmax")]
            self.model = Sequential(layers, seed=4)
            self.optimizer: Optimizer = Adam(rate)
            if scale is not None:
                self.optimizer = LossScaleOptimizer(self.optimizer, scale, dynamic_growth_steps=3)
                self.model.compile(precision="mixed_float16")
            self.seen = Variable(np.float32(0), trainable=False, aggregation="mean", name="seen")
            self.counter = get_or_create_global_step()
        self.data = Dataset.from_arrays(x, y).shuffle(9).batch(8)  # five steps an epoch

    def step(self, x: Any, y: Any) -> Any:
        each = losses.sparse_categorical_crossentropy(y, self.model(x, training=True))
        loss = compute_average_loss(each, global_batch_size=8)
        self.optimizer.minimize(loss, global_step=self.counter)
        self.seen.assign_add(np.float32(1))
        return loss

    def train(self, batch: Any) -> float:
        total = current().progress.step
        if self.dies is not None and total == self.dies:
            raise Killed
        self.made += 1
        return float(self.strategy.reduce("sum", self.strategy.run(self.step, batch)))


def with_epochs(loop: Loop) -> Any:
    best = state(loss=1e9, at=[0, 0])
    shown = []
    data = loop.strategy.distribute_dataset(loop.data)
    for epoch in epochs(4):
        for batch in data:
            loss = loop.train(batch)
            if loss < best["loss"]:
                best.update(loss=loss, at=[epoch, current().progress.step])
        shown.append(epoch)
    return dict(best), shown[-1]


def with_range(loop: Loop) -> Any:
    data = loop.strategy.distribute_dataset(loop.data)
    for _ in range(4):
        for batch in data:
            loop.train(batch)
    return None


def new_datasets(loop: Loop) -> Any:
    for _ in epochs(4):
        for batch in loop.strategy.distribute_dataset(loop.data):
            loop.train(batch)
    return None


def new_datasets_in_a_range(loop: Loop) -> Any:
    for _ in range(4):
        for batch in loop.strategy.distribute_dataset(loop.data):
            loop.train(batch)
    return None


def two_loops(loop: Loop) -> Any:
    """A second loop after the first, with validation inside of the epochs, and a break."""
    held_out = loop.strategy.distribute_dataset(Dataset.from_arrays(x, y).batch(20))
    for _ in range(2):
        for batch in loop.strategy.distribute_dataset(loop.data):
            loop.train(batch)
    found = state(correct=0, batches=0)
    data = loop.strategy.distribute_dataset(loop.data)
    for _ in epochs(2):
        for batch in data:
            loop.train(batch)
            found["batches"] += 1
            if found["batches"] % 4 == 0:
                break
        for images, labels in held_out:
            predicted = loop.strategy.run(lambda x: loop.model(x), (images,))
            found["correct"] += int((np.argmax(predicted, -1) == labels).sum())
    return dict(found)


def pairs(loop: Loop) -> Any:
    first, second = (loop.strategy.distribute_dataset(loop.data) for _ in range(2))
    for _ in epochs(2):
        for one, other in zip(first, second, strict=True):
            loop.train(one)
            loop.train(other)
    return None


def own_batches(loop: Loop) -> Any:
    """Without a dataset the place is known between epochs."""
    for epoch in epochs(4):
        for number in range(5):
            rows = (np.arange(8) + 8 * number + epoch) % ROWS
            loop.train((x[rows], y[rows]))
    return None


def from_function(loop: Loop) -> Any:
    data = loop.strategy.distribute_datasets_from_function(lambda _: loop.data.with_seed(3))
    for _ in epochs(4):
        for batch in data:
            loop.train(batch)
    return None


BODIES = [
    with_epochs, with_range, new_datasets, new_datasets_in_a_range, two_loops, pairs, own_batches,
    from_function,
]  # fmt: skip


class Ended:
    """The results of a run of a body in a new context."""

    def __init__(
        self,
        folder: Path,
        body: Callable[[Loop], Any],
        *,
        strategy: Callable[[], Strategy] = OneDeviceStrategy,
        read: Path | None = None,
        dies: int | None = None,
        every: str | int | None = 2,
        rate: float = 0.02,
        scale: float | None = None,
    ) -> None:
        folder.mkdir()
        interval = None if every is None else parse_interval(every)
        states = PatientStates(folder, interval, read=state_files(read) if read else None)
        recorder = Recorder(folder / "metrics-0000.log", replica=0)
        self.context = Context(strategy=strategy(), seed=5, quiet=True, states=states, recorder=recorder)
        self.returned: Any = None
        with use(self.context):
            self.loop = Loop(dies, rate, scale)
            try:
                self.returned = body(self.loop)
                end_loops(self.context, whole=True)
                self.values = [*self.loop.model.get_weights(), self.loop.strategy.read(self.loop.seen)]
                self.values.append(self.loop.strategy.read(self.loop.counter))
            except Killed:
                end_loops(self.context, whole=False)
        recorder.close()
        columns = columns_from_logs(folder)
        self.losses = {
            int(step): float(value)
            for name, step, value in zip(columns["series"], columns["step"], columns["value"], strict=True)
            if name == "loss"
        }


@pytest.mark.parametrize(
    ("body", "dies"),
    matrix(
        [*((body, 13) for body in BODIES), *((with_epochs, dies) for dies in (3, 7, 18)), (two_loops, 18)],
        rest=[
            (body, dies)
            for body in BODIES
            for dies in (3, 7, 18)
            if body is not with_epochs and (body, dies) != (two_loops, 18)
        ],
    ),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_killed_loop_continues_bit_for_bit(tmp_path: Path, body: Callable[[Loop], Any], dies: int) -> None:
    whole = Ended(tmp_path / "whole", body, every=None)
    first = Ended(tmp_path / "first", body, dies=dies)
    found = state_files(tmp_path / "first")
    if not found:
        assert body in (own_batches,), "its first epoch is not over"
        return
    at = read_saved(found[0]).state.step
    assert at <= dies
    second = Ended(tmp_path / "second", body, read=tmp_path / "first")
    assert second.loop.made == whole.loop.made - at
    for a, b in zip(whole.values, second.values, strict=True):
        np.testing.assert_array_equal(a, b)
    assert second.returned == whole.returned
    assert {**first.losses, **second.losses} == whole.losses
    assert not second.losses or min(second.losses) == at + 1
    for field in ("step", "global_step", "examples", "trainings"):
        assert getattr(second.context.progress, field) == getattr(whole.context.progress, field), field


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(("loops", "dies"), [(0, 8), (2, 18)])
def test_a_killed_loop_after_a_fit_continues_bit_for_bit(
    tmp_path: Path, loops: int, dies: int, devices: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(loop: Loop) -> Any:
        with loop.strategy.scope():
            other = Sequential([Dense(3, "softmax")], seed=1)
            other.compile(SGD(0.1))
        data = loop.strategy.distribute_dataset(loop.data)
        for _ in range(loops):
            for _ in epochs(1):
                for batch in data:
                    loop.train(batch)
        other.fit(Dataset.from_arrays(x, y).batch(8))  # five steps
        return with_epochs(loop)

    on: Any = {"strategy": lambda: MirroredStrategy(["CPU:0"] * devices)}
    whole = Ended(tmp_path / "whole", body, every=None, **on)
    first = Ended(tmp_path / "first", body, dies=dies, **on)
    at = read_saved(state_files(tmp_path / "first")[0]).state
    assert at.loop is not None
    assert dies - 2 <= at.step <= dies
    assert "later part of the body" not in capsys.readouterr().out
    second = Ended(tmp_path / "second", body, read=tmp_path / "first", **on)
    said = capsys.readouterr().out
    assert [f"than this {what}, whose steps are made again" in said for what in ("loop", "fit")] == [
        loops > 0,
        True,
    ]
    steps = 5 * loops + 5 + 20
    assert (whole.loop.made, second.loop.made) == (steps - 5, 5 * loops + steps - at.step)
    for a, b in zip(whole.values, second.values, strict=True):
        np.testing.assert_array_equal(a, b)
    assert second.returned == whole.returned
    assert {**first.losses, **second.losses} == whole.losses
    assert whole.context.progress.step == second.context.progress.step == steps
    replicas = variables_of(second.loop.strategy).local.made
    assert [one.arrays[second.loop.seen] for one in replicas] == [steps - 5] * devices
    assert whole.context.progress.global_step == second.context.progress.global_step


@pytest.mark.parametrize("dies", [3, 13])
def test_a_loss_scale_continues(tmp_path: Path, dies: int) -> None:
    scaled = {"scale": 2.0**24}
    whole = Ended(tmp_path / "whole", with_epochs, every=None, **scaled)  # type: ignore[arg-type]
    first = Ended(tmp_path / "first", with_epochs, dies=dies, **scaled)  # type: ignore[arg-type]
    second = Ended(tmp_path / "second", with_epochs, read=tmp_path / "first", **scaled)  # type: ignore[arg-type]
    assert whole.context.progress.skipped > 3
    for a, b in zip(whole.values, second.values, strict=True):
        np.testing.assert_array_equal(a, b)
    assert {**first.losses, **second.losses} == whole.losses
    assert second.context.progress.skipped == whole.context.progress.skipped


def test_a_loop_that_was_over_repeats_the_steps_since_its_last_state(tmp_path: Path) -> None:
    """Without a step the body would not make the variables, and they could not be restored."""
    whole = Ended(tmp_path / "whole", with_epochs, every=3)
    again = Ended(tmp_path / "again", with_epochs, read=tmp_path / "whole")
    assert again.loop.made == 2
    for a, b in zip(whole.values, again.values, strict=True):
        np.testing.assert_array_equal(a, b)


def test_threads_of_devices_continue_bit_for_bit(tmp_path: Path) -> None:
    two = lambda: MirroredStrategy(["CPU:0", "CPU:0"])
    whole = Ended(tmp_path / "whole", with_epochs, strategy=two, every=None)
    Ended(tmp_path / "first", with_epochs, strategy=two, dies=13)
    second = Ended(tmp_path / "second", with_epochs, strategy=two, read=tmp_path / "first")
    for a, b in zip(whole.values, second.values, strict=True):
        np.testing.assert_array_equal(a, b)
    alone = Ended(tmp_path / "alone", with_epochs, read=tmp_path / "first")
    assert alone.context.progress.step == 20


def test_a_stopped_loop_leaves_its_last_step(tmp_path: Path) -> None:
    def body(loop: Loop) -> Any:
        for epoch in epochs(4):
            for number, batch in enumerate(loop.strategy.distribute_dataset(loop.data)):
                loop.train(batch)
                current().control.stop_requested |= stops and (epoch, number) == (2, 1)

    stops = False
    whole = Ended(tmp_path / "whole", body, every=None)
    stops = True
    Ended(tmp_path / "first", body, every="1h")
    assert read_saved(state_files(tmp_path / "first")[0]).state.step == 12
    stops = False
    second = Ended(tmp_path / "second", body, read=tmp_path / "first")
    for a, b in zip(whole.values, second.values, strict=True):
        np.testing.assert_array_equal(a, b)


def test_differences_are_reported(tmp_path: Path) -> None:
    Ended(tmp_path / "first", with_epochs, dies=13)

    def other_data(loop: Loop) -> Any:
        loop.data = Dataset.from_arrays(x, y).shuffle(9).batch(10)
        return with_epochs(loop)

    with pytest.raises(InvalidArgumentError, match="batches was 5 and is 4 now"):
        Ended(tmp_path / "data", other_data, read=tmp_path / "first")

    def other_optimizer(loop: Loop) -> Any:
        loop.optimizer = SGD(0.1)
        return with_epochs(loop)

    with pytest.raises(InvalidArgumentError, match="the saved state is the state of another training"):
        Ended(tmp_path / "optimizer", other_optimizer, read=tmp_path / "first")

    rate = Ended(tmp_path / "rate", with_epochs, read=tmp_path / "first", rate=0.5)
    assert rate.loop.optimizer.learning_rate == 0.5


class Unsaved(OneDeviceStrategy):
    """A strategy without states, as one that a cell defines."""

    name = "unsaved"
    continues = False


def test_a_strategy_without_states_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="unsaved cannot save the state of a training"):
        Ended(tmp_path / "saves", with_epochs, strategy=Unsaved)
    Ended(tmp_path / "first", with_epochs, dies=13)
    with pytest.raises(InvalidArgumentError, match="unsaved cannot continue a training from"):
        Ended(tmp_path / "reads", with_epochs, strategy=Unsaved, read=tmp_path / "first", every=None)
    ended = Ended(tmp_path / "neither", with_epochs, strategy=Unsaved, every=None)
    assert ended.context.progress.step == 20


def test_values_that_cannot_be_saved_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def body(loop: Loop) -> Any:
        found = state(best=0.0)
        for _ in epochs(1):
            for batch in loop.strategy.distribute_dataset(loop.data):
                loop.train(batch)
                found["best"] = np.float32(1)

    Ended(tmp_path / "run", body)
    assert capsys.readouterr().out.count("nb.train.state: best is a float32") == 1
    assert not state_files(tmp_path / "run")


def test_a_loop_without_a_place_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def body(loop: Loop) -> Any:
        for _ in range(5):
            loop.train((x[:8], y[:8]))

    Ended(tmp_path / "run", body)
    assert "no state was saved: --checkpoint-every needs a loop over" in capsys.readouterr().out


def test_epochs_takes_whole_numbers() -> None:
    assert list(epochs(0)) == []
    for wrong in (-1, 1.5, True, "3"):
        with pytest.raises(InvalidArgumentError, match="whole number"):
            list(epochs(wrong))  # type: ignore[arg-type]
