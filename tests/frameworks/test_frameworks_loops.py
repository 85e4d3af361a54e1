"""Loops of one's own over models of PyTorch and JAX, in this process: passes, states, schedulers.

Runs with several workers are in tests/run/test_run_recovery_framework_loops.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import nbdist as nb
from nbdist.checkpoint.manager import parse_interval, state_files
from nbdist.data import Dataset
from nbdist.distribute import ElasticAveragingStrategy
from nbdist.distribute.membership import GroupReplica, GroupStrategy
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from nbdist.frameworks.jax.replica import JaxReplica
from nbdist.testing.strategy import everywhere, thread_world
from nbdist.train.boundary import Boundary
from nbdist.train.capabilities import Membership
from nbdist.train.context import Context, current, use_here
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy
from nbdist.train.options import TrainingOptions
from nbdist.train.replica import Replica, RetryStep
from nbdist.train.resume import TrainingStates, read_saved
from nbdist.train.schedule import RateSchedule

X = np.random.default_rng(0).random((40, 4), np.float32)
STEPS = 5  # of a pass


class Killed(BaseException):
    """Ends a loop as the death of its process does: at any step, and nothing is left but what was written."""


def saving(folder: Path, every: int = 3) -> TrainingStates:
    return TrainingStates(folder, parse_interval(every))


def newest(folder: Path) -> Any:
    return read_saved(state_files(folder)[0]).state


class Torch:
    """A loop over a linear layer; ``scheduler`` steps for each "batch" or "epoch".

    A user asks for another rate, ``asks``, after its first step.
    """

    def __init__(self, scheduler: str = "", nan: str = "stop", asks: float | None = None) -> None:
        self.scheduler, self.nan, self.asks = scheduler, nan, asks
        self.steps = 0
        self.kept: dict[str, Any] = {}

    def run(
        self,
        states: TrainingStates | None = None,
        *,
        dies: int | None = None,
        stepped: int = 0,
        accumulate: int = 1,
        epochs: Any = range,
        before: int = 0,
    ) -> np.ndarray[Any, Any]:
        """Make three passes, after ``before`` other trainings; return the weights."""
        self.steps = 0
        with use_here(Context(quiet=True, seed=1, states=states, is_chief=True)):
            self.kept = nb.train.state(batches=0)
            try:
                for _ in range(before):
                    self._loop(None, 0, 1, range)
                return self._loop(dies and dies - self.steps, stepped, accumulate, epochs)
            finally:
                if states is not None:
                    states.finish()  # what was handed to its thread is written

    def _loop(self, dies: int | None, stepped: int, accumulate: int, epochs: Any) -> np.ndarray[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if self.scheduler else None
        data = Dataset.from_arrays(X, X[:, :1]).shuffle(40).batch(8)
        with nb.frameworks.torch.wrap(model, optimizer, data, nan=self.nan) as batches:
            for _ in range(stepped):
                scheduler.step()  # type: ignore[union-attr]
            added = made = 0
            for _ in epochs(3):
                for features, targets in batches:
                    loss = ((model(features) - targets) ** 2).mean() / accumulate
                    loss.backward()
                    added += 1
                    if added % accumulate == 0:
                        optimizer.step()
                        optimizer.zero_grad()
                        self.steps, made = self.steps + 1, made + 1
                        if made == 1 and self.asks is not None:
                            current().control.set_rate(self.asks)
                    self.kept["batches"] += 1
                    if self.scheduler == "batch":
                        scheduler.step()  # type: ignore[union-attr]
                    if made == dies:
                        raise Killed
                if self.scheduler == "epoch":
                    scheduler.step()  # type: ignore[union-attr]
        return model.weight.detach().numpy().copy()


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("dies", [4, STEPS, 2 * STEPS + 1])
@pytest.mark.parametrize("scheduler", ["", "batch", "epoch"])
def test_a_loop_that_was_killed_continues_from_its_last_state(
    tmp_path: Path, scheduler: str, dies: int
) -> None:
    loop = Torch(scheduler)
    whole = loop.run()
    assert loop.kept["batches"] == 3 * STEPS
    with pytest.raises(Killed):
        loop.run(saving(tmp_path), dies=dies)
    saved = newest(tmp_path)
    assert (saved.loop, saved.step > 0) == (None, True)
    made = saved.step if scheduler == "batch" else 0
    np.testing.assert_array_equal(loop.run(TrainingStates(read=state_files(tmp_path)), stepped=made), whole)
    assert (loop.steps, loop.kept["batches"]) == (3 * STEPS - saved.step, 3 * STEPS)


def test_a_scheduler_that_is_not_where_the_training_is_is_refused(tmp_path: Path) -> None:
    loop = Torch("batch")
    with pytest.raises(Killed):
        loop.run(saving(tmp_path), dies=8)
    with pytest.raises(FailedPreconditionError, match=r"continues at learning rate .* is at 0\.1: it counts"):
        loop.run(TrainingStates(read=state_files(tmp_path)))


def test_epochs_around_a_loop_leave_no_state_of_their_own(tmp_path: Path) -> None:
    loop = Torch()
    whole = loop.run(epochs=nb.train.epochs)
    with pytest.raises(Killed):
        loop.run(saving(tmp_path), dies=2 * STEPS + 2, epochs=nb.train.epochs)
    assert all(read_saved(path).state.loop is None for path in state_files(tmp_path))
    again = loop.run(TrainingStates(read=state_files(tmp_path)), epochs=nb.train.epochs)
    np.testing.assert_array_equal(again, whole)


def test_kept_values_come_back_with_the_training_that_saved_them(tmp_path: Path) -> None:
    loop = Torch()
    whole = loop.run(before=1)
    with pytest.raises(Killed):
        loop.run(saving(tmp_path), dies=3 * STEPS + 5, before=1)
    np.testing.assert_array_equal(loop.run(TrainingStates(read=state_files(tmp_path)), before=1), whole)
    assert loop.kept["batches"] == 6 * STEPS


def test_a_step_of_several_batches_is_saved_as_a_whole(tmp_path: Path) -> None:
    loop = Torch()
    whole = loop.run(accumulate=3)
    with pytest.raises(Killed):
        loop.run(saving(tmp_path, every=1), dies=3, accumulate=3)
    assert newest(tmp_path).place.batches % STEPS in (1, 3)  # between two steps, also within a pass
    again = loop.run(TrainingStates(read=state_files(tmp_path)), accumulate=3)
    np.testing.assert_array_equal(again, whole)


def test_a_number_of_epochs_for_a_run_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    noted: list[str] = []
    context = Context(quiet=True, options=TrainingOptions(epochs=7))
    context.note = noted.append  # type: ignore[method-assign]
    model = torch.nn.Linear(4, 1)
    with (
        use_here(context),
        nb.frameworks.torch.wrap(model, torch.optim.SGD(model.parameters(), 0.1), (X, X[:, :1])),
    ):
        pass
    assert any("--epochs is for fit" in text for text in noted)


def test_a_rate_reaches_wraps_in_turn_and_multiplies_the_schedule_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: dict[Any, list[float]] = {}
    push = OneDeviceReplica.push

    def noted(replica: OneDeviceReplica) -> None:
        rates.setdefault(replica, []).append(replica.learning_rate)
        push(replica)

    monkeypatch.setattr(OneDeviceReplica, "push", noted)
    context = Context(quiet=True)
    models = [torch.nn.Linear(4, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in models]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in optimizers]
    data = Dataset.from_arrays(X[:24], X[:24, :1]).batch(8)
    with (
        use_here(context),
        nb.frameworks.torch.wrap(models[0], optimizers[0], data) as first,
        nb.frameworks.torch.wrap(models[1], optimizers[1], data) as second,
    ):
        for _ in range(3):
            for pair in zip(first, second, strict=True):
                for (features, targets), model, optimizer in zip(pair, models, optimizers, strict=True):
                    ((model(features) - targets) ** 2).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if rates[next(iter(rates))] == [0.1]:
                    context.control.set_rate(0.8)
            schedulers[1].step()
    assert list(rates.values()) == [[0.1, *[0.8] * 8], [0.1, 0.8, 0.8, *[0.4] * 3, *[0.2] * 3]]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("after", [1, 2], ids=["before the scheduler's step", "after it"])
def test_a_rate_that_was_asked_for_multiplies_the_schedule_of_a_continued_loop(
    tmp_path: Path, after: int
) -> None:
    loop = Torch("epoch", asks=0.5)
    whole = loop.run()
    with pytest.raises(Killed):
        loop.run(saving(tmp_path, every=1), dies=after * STEPS - 1)
    assert newest(tmp_path).rate_factor == 5
    loop.asks = None
    np.testing.assert_array_equal(loop.run(TrainingStates(read=state_files(tmp_path))), whole)


@pytest.mark.parametrize(("given", "factor"), [(0.1, 5), (0.2, 1)], ids=["the same rate", "another rate"])
def test_a_rate_that_was_asked_for_multiplies_the_schedule_of_a_continued_fit(
    tmp_path: Path, given: float, factor: float
) -> None:
    def fit(states: TrainingStates | None, rate: float, asks: float | None, dies: int = 0) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), rate)
        made = list[float]()

        def loss(outputs: Any, targets: Any) -> Any:
            made.append(current().progress.learning_rate or rate)
            if len(made) == 1 and asks is not None:
                current().control.set_rate(asks)
            if len(made) == dies:
                raise Killed
            return ((outputs - targets) ** 2).mean()

        with use_here(Context(quiet=True, seed=1, states=states, is_chief=True)):
            try:
                data = Dataset.from_arrays(X, X[:, :1]).batch(8)
                nb.frameworks.torch.fit(
                    model, data, optimizer=optimizer, loss=loss, epochs=3,
                    scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
                )  # fmt: skip
            finally:
                if states is not None:
                    states.finish()
        return made

    with pytest.raises(Killed):
        fit(saving(tmp_path, every=1), 0.1, 0.5, dies=2 * STEPS)
    assert newest(tmp_path).rate_factor == 5
    rates = fit(TrainingStates(read=state_files(tmp_path)), given, None)
    assert rates[-1] == pytest.approx(given * factor * 0.25)


def test_a_replica_that_takes_the_place_of_the_first_knows_the_users_rate() -> None:
    rate: float | None = None

    class Follows(OneDeviceReplica):
        @property
        def learning_rate(self) -> float | None:
            return rate

    context = Context(quiet=True)
    replica = Follows([("w", np.ones(2, np.float32))], nb.optim.SGD(1.0))
    boundary = Boundary(context, lambda: [replica], int, lambda path: path)
    epochs = iter([1.0, 0.1])
    schedule = RateSchedule(lambda updates, epoch: next(epochs), boundary, context)
    context.control.set_rate(0.5)
    boundary.handle()
    schedule.follow(replica)
    rate = 0.5  # the first one was lost
    schedule.follow(replica)
    assert context.progress.learning_rate == 0.05


class LosesAWorker(OneDeviceReplica):
    """A replica whose second step is not made, as where another worker is lost in it."""

    pushes = 0

    def push(self) -> None:
        self.pushes += 1
        if self.pushes == 2:
            raise RetryStep
        super().push()


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_scheduler_that_a_repeated_batch_steps_twice_is_named(
    scheduled: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        OneDeviceStrategy, "replica", lambda self, *given, **more: LosesAWorker(*given, **more)
    )
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if scheduled:
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data, seen = Dataset.from_arrays(X, X[:, :1]).batch(8), list[float]()
    with (
        use_here(Context(quiet=True, is_chief=True)),
        nb.frameworks.torch.wrap(model, optimizer, data) as batches,
    ):
        for features, targets in batches:
            seen.append(float(features[0, 0]))
            ((model(features) - targets) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert seen == [*X[:16:8, 0], X[8, 0], *X[16::8, 0]]
    assert ("one step ahead" in capsys.readouterr().out) == scheduled


grad = torch.autograd.grad  # a name that a body has imported before


def backward(loss: Any, model: Any) -> None:
    loss.backward()


def in_another_thread(loss: Any, model: Any) -> None:
    one = threading.Thread(target=loss.backward)
    one.start()
    one.join()


def by_grad(loss: Any, model: Any) -> None:
    for one, own in zip(model.parameters(), grad(loss, list(model.parameters())), strict=True):
        one.grad = own if one.grad is None else one.grad + own


def in_inference_mode(loss: Any, model: Any) -> None:
    found = grad(loss, list(model.parameters()))
    with torch.inference_mode():
        for one, own in zip(model.parameters(), found, strict=True):
            one.grad = own.clone() if one.grad is None else one.grad + own


WAYS = pytest.mark.parametrize("way", [backward, in_another_thread, by_grad])
WAYS_TO_ADD = pytest.mark.parametrize("way", [backward, in_another_thread, by_grad, in_inference_mode])


@pytest.fixture
def loses_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        OneDeviceStrategy, "replica", lambda self, *given, **more: LosesAWorker(*given, **more)
    )


def looped(put_away: Any, leaves_out: Any, way: Any = backward, accumulate: int = 1) -> Context:
    """Make a pass of 5 batches; ``leaves_out`` says of each number where its batch is left out, or ""."""
    context, model = Context(quiet=True, is_chief=True), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = Dataset.from_arrays(X, X[:, :1]).batch(8)
    with use_here(context), nb.frameworks.torch.wrap(model, optimizer, data) as batches:
        added = 0
        for features, targets in batches:
            left_out = leaves_out(int(np.flatnonzero(X[::8, 0] == float(features[0, 0]))[0]))
            if left_out == "before":
                continue
            if added % accumulate == 0:
                put_away(optimizer, model)
            way(((model(features) - targets) ** 2).mean(), model)
            if left_out:
                continue
            added += 1
            if added % accumulate == 0:
                optimizer.step()
    return context


def without_gradients(optimizer: Any, model: Any) -> None:
    for one in model.parameters():
        one.grad = None


PUT_AWAY = pytest.mark.parametrize(
    "put_away",
    [
        lambda optimizer, model: optimizer.zero_grad(),
        lambda optimizer, model: optimizer.zero_grad(set_to_none=False),
        lambda optimizer, model: model.zero_grad(),
        without_gradients,
    ],
    ids=["zero_grad", "to zeros", "of the model", "by hand"],
)


@PUT_AWAY
@WAYS
@pytest.mark.parametrize("number", [0, 1], ids=["before a step", "before the step that is lost"])
@pytest.mark.parametrize("left_out", ["before", "after"])
def test_a_batch_that_a_loop_leaves_out_is_in_no_step(
    left_out: str, number: int, way: Any, put_away: Any, loses_a_worker: None
) -> None:
    context = looped(put_away, lambda at: left_out if at == number else "", way)
    assert (context.progress.step, context.progress.examples) == (4, 32)


@WAYS_TO_ADD
def test_all_batches_that_a_loop_adds_up_are_in_the_step(way: Any) -> None:
    context = looped(without_gradients, lambda at: "before" if at == 2 else "", way, accumulate=2)
    assert (context.progress.step, context.progress.examples) == (2, 32)


@WAYS_TO_ADD
def test_a_lost_step_of_several_batches_ends_the_loop(way: Any, loses_a_worker: None) -> None:
    with pytest.raises(UnavailableError, match="has added up 2 batches"):
        looped(without_gradients, lambda at: "", way, accumulate=2)


@pytest.mark.parametrize("always", [True, False], ids=["put away each time", "put away before a step"])
def test_wraps_in_turn_count_the_gradients_of_their_own_model(always: bool, loses_a_worker: None) -> None:
    context = Context(quiet=True, is_chief=True)
    generator, judge = (torch.nn.Linear(4, width) for width in (4, 1))
    optimizers = [torch.optim.SGD(one.parameters(), 0.01) for one in (generator, judge)]
    data = Dataset.from_arrays(X[:32]).batch(8)
    with (
        use_here(context),
        nb.frameworks.torch.wrap(generator, optimizers[0], data) as noise,
        nb.frameworks.torch.wrap(judge, optimizers[1], data) as real,
    ):
        for number, (seeds, features) in enumerate(zip(noise, real, strict=True)):
            optimizers[1].zero_grad()
            (judge(generator(seeds)) - judge(features)).mean().backward()  # has gradients of both
            optimizers[1].step()
            if always or number != 1:
                optimizers[0].zero_grad()
            if number != 1:
                (-judge(generator(seeds))).mean().backward()
                optimizers[0].step()
    assert context.progress.examples == (3 + 4) * 8


class Joins(Membership):
    """Of a process that joins after a number of steps; notes where others could join it."""

    positions: list[bool]

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def admit(self, leave: bool = False) -> bool:
        self.positions.append(self._replica.hooks.position is not None)
        return False


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> type[Joins]:
    monkeypatch.setattr(Joins, "positions", [], raising=False)
    for kind in (OneDeviceReplica, JaxReplica):
        monkeypatch.setattr(kind, "membership", property(Joins))
    return Joins


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_process_that_joins_by_its_steps_makes_one_for_each_batch(
    joins: type[Joins], monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    monkeypatch.setattr(joins, "joins_at", STEPS + 2)
    loop = Torch()
    if accumulate == 1:
        loop.run()
        assert (loop.steps, loop.kept["batches"]) == (2 * STEPS - 2, 2 * STEPS - 2)
        return
    with pytest.raises(FailedPreconditionError, match="does not make one step for each batch"):
        loop.run(accumulate=accumulate)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rates of the updates that are made."""
    made, push = list[float](), OneDeviceReplica.push

    def noted(replica: OneDeviceReplica) -> None:
        made.append(replica.learning_rate)
        push(replica)

    monkeypatch.setattr(OneDeviceReplica, "push", noted)
    return made


def scheduled(
    made: list[float],
    asks: dict[int, float],
    scheduler: Any = lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    states: TrainingStates | None = None,
    stepped: int = 0,
    dies: int = 0,
    by_hand: tuple[int, float] = (0, 0.0),
) -> None:
    """Make a pass whose scheduler steps after each batch; a user asks for rates after so many steps."""
    context, model = Context(quiet=True, seed=1, states=states, is_chief=True), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = scheduler(optimizer)
    if 0 in asks:
        context.control.set_rate(asks[0])
    data = Dataset.from_arrays(X, X[:, :1]).batch(8)
    with use_here(context):
        try:
            with nb.frameworks.torch.wrap(model, optimizer, data) as batches:
                for _ in range(stepped):
                    schedule.step()
                for features, targets in batches:
                    ((model(features) - targets) ** 2).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    if schedule is not None:
                        schedule.step()
                    if by_hand[0] == len(made):
                        optimizer.param_groups[0]["lr"] = by_hand[1]
                    if len(made) in asks:
                        context.control.set_rate(asks[len(made)])
                    if len(made) == dies:
                        raise Killed
        finally:
            if states is not None:
                states.finish()


def warm_up(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, [0, 0, 1, 2, 4, 8].__getitem__)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("dies", [2, 3, 4])
def test_a_rate_that_was_asked_for_at_a_scheduled_0_multiplies_what_follows(
    dies: int, tmp_path: Path, made: list[float]
) -> None:
    with pytest.raises(Killed):
        scheduled(made, {1: 0.5}, warm_up, saving(tmp_path, every=1), dies=dies)
    del made[newest(tmp_path).step :]
    scheduled(made, {}, warm_up, TrainingStates(read=state_files(tmp_path)), stepped=len(made))
    assert made == pytest.approx([0, 0.5, 0.5, 1, 2])


def test_a_fit_keeps_a_rate_that_was_asked_for_at_a_scheduled_0() -> None:
    context, rates = Context(quiet=True), iter([0.0, 0.1, 0.2])
    replica = OneDeviceReplica([("w", np.ones(2, np.float32))], nb.optim.SGD(0.0))
    boundary = Boundary(context, lambda: [replica], int, lambda path: path)
    schedule = RateSchedule(lambda updates, epoch: next(rates), boundary, context)
    context.control.set_rate(0.5)
    boundary.handle()
    found = []
    for _ in range(3):
        schedule.follow(replica)
        found.append(replica.learning_rate)
    assert found == [0.5, 0.5, 1]


def test_a_rate_that_was_asked_for_multiplies_what_no_schedule_of_its_own_sets(made: list[float]) -> None:
    """Neither ReduceLROnPlateau nor a loop's own assignment leaves a mark in the optimizer."""
    scheduled(made, {1: 0.5}, lambda optimizer: None, by_hand=(3, 0.05))
    assert made == [0.1, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_rate_that_was_asked_for_before_a_continued_loop_multiplies_its_schedule(
    tmp_path: Path, made: list[float]
) -> None:
    with pytest.raises(Killed):
        scheduled(made, {}, states=saving(tmp_path, every=1), dies=3)
    made.clear()
    over = newest(tmp_path).step
    (tmp_path / "again").mkdir()
    states = TrainingStates(tmp_path / "again", parse_interval(1), read=state_files(tmp_path))
    scheduled(made, {0: 0.5}, states=states, stepped=over)
    assert made == [0.5 * 0.5**number for number in range(5 - over)]
    assert newest(tmp_path / "again").rate_factor == 5 * 2**over


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_process_whose_scheduler_is_not_followed_knows_the_factor_of_the_others(
    tmp_path: Path, made: list[float], joins: type[Joins], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "joins_at", 1)
    scheduled(made, {2: 0.5}, states=saving(tmp_path, every=1), stepped=1)
    assert made == [0.1, 0.1, 0.5, 0.5]
    assert newest(tmp_path).rate_factor == 5


def jax_loss(params: Any, batch: Any) -> Any:
    return jnp.mean((batch @ params["w"]) ** 2) * 1e-6


def rows_of(batches: Iterable[Any], training: Any, most: int = 100) -> list[int]:
    """Make a step for each batch; return its rows by number."""
    found: list[int] = []
    for count, batch in enumerate(batches, 1):
        training.step(batch)
        found += [int(row[0]) // 2 for row in np.asarray(batch)]
        if count == most:
            break
    return found


@contextmanager
def jax_loop(states: TrainingStates | None = None) -> Iterator[Any]:
    params = {"w": np.ones((2, 1), np.float32)}
    context = Context(quiet=True, seed=1, states=states, is_chief=True)
    with use_here(context), nb.frameworks.jax.wrap(jax_loss, params) as training:
        yield training


ROWS = np.arange(40, dtype=np.float32).reshape(20, 2)


def test_passes_go_through_other_data_in_other_orders() -> None:
    with jax_loop() as training:
        training.step(ROWS[:4])  # a batch of its own, before there is a pass
        shuffled = Dataset.from_arrays(ROWS).shuffle(20).batch(5)
        first = rows_of(training.batches(shuffled), training)
        second = rows_of(training.batches(shuffled), training)
        assert sorted(first) == sorted(second) == list(range(20))
        assert first != second
        endless = training.batches(Dataset.from_arrays(ROWS[:10]).batch(5).repeat())
        assert rows_of(endless, training, most=3) == [*range(10), *range(5)]
        assert rows_of(training.batches(Dataset.from_arrays(ROWS[10:]).batch(5)), training) == [
            *range(10, 20)
        ]


def test_a_pass_that_was_left_does_not_disturb_the_next_one() -> None:
    with jax_loop() as training:
        data = Dataset.from_arrays(ROWS).batch(5)
        kept = iter(training.batches(data))
        training.step(next(kept))
        assert rows_of(training.batches(data), training) == [*range(20)]
        with pytest.raises((FailedPreconditionError, StopIteration)):
            next(kept)


def test_processes_join_before_the_batches_of_a_pass_only(joins: type[Joins]) -> None:
    with jax_loop() as training:
        for batch in training.batches(Dataset.from_arrays(ROWS).batch(10)):
            training.step(batch)
            training.step(batch)
        training.step(ROWS[:4])
    assert joins.positions == [True, False, True, False, False]


def test_a_batch_from_elsewhere_before_the_place_of_a_process_that_joins_is_refused(
    joins: type[Joins], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "joins_at", 2)
    with jax_loop() as training:
        assert not rows_of(training.batches(Dataset.from_arrays(ROWS).batch(10)), training)
        with pytest.raises(FailedPreconditionError, match="before its first pass, has no place"):
            training.step(ROWS[:4])


def test_independent_replicas_admit_processes_together_wherever_each_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One is between two steps of a batch, the other between batches; only the first knows whom to admit."""
    admitted: list[tuple[int, int, Any]] = []

    def admits(replica: Any, admits: Any = (), leaves: bool = False) -> None:
        admitted.append((replica._exchanges, replica._strategy.replica_index, admits))

    monkeypatch.setattr(GroupStrategy, "waiting", lambda self, digest: [] if self.replica_index else [7])
    monkeypatch.setattr(GroupReplica, "form_again", admits)

    def body(strategy: Any, context: Context) -> None:
        with nb.frameworks.jax.wrap(jax_loss, {"w": np.ones((2, 1), np.float32)}) as training:
            for batch in training.batches(Dataset.from_arrays(ROWS).batch(10)):
                training.step(batch)
                if strategy.replica_index == 0:
                    training.step(batch)

    everywhere(thread_world(lambda place: ElasticAveragingStrategy(1, 0.5, world=place), 2), body)
    assert sorted(admitted)[:4] == [(1, 0, [7]), (1, 1, []), (2, 0, [7]), (2, 1, [])]


def test_an_independent_process_may_join_at_another_place(
    joins: type[Joins], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(joins, "joins_at", 2)
    monkeypatch.setattr(OneDeviceStrategy, "family", "asynchronous")
    loop = Torch()
    loop.run(accumulate=2)
    assert loop.kept["batches"] == 3 * STEPS - 2
    assert capsys.readouterr().out.count("elsewhere in its data") == 1
    with jax_loop() as training:
        data = Dataset.from_arrays(ROWS).batch(10)
        assert not rows_of(training.batches(data), training)
        training.step(ROWS[:4])
        assert len(rows_of(training.batches(data), training)) == 20
    assert capsys.readouterr().out.count("elsewhere in its data") == 2


def test_a_batch_from_elsewhere_is_refused_where_the_place_is_saved(tmp_path: Path) -> None:
    data = Dataset.from_arrays(ROWS).batch(5)
    with jax_loop(saving(tmp_path)) as training:
        with pytest.raises(InvalidArgumentError, match="batches of its own has no place"):
            training.step(ROWS[:4])
        rows_of(training.batches(data), training)
        with pytest.raises(InvalidArgumentError, match="a batch from elsewhere"):
            training.step(ROWS[:4])
