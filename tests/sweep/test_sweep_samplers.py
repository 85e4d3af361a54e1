from __future__ import annotations

import subprocess
import sys

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as some

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.events import Direction
from nbdist.sweep.sampler import Ask, Sampler, Tell, fraction, trial_seed
from nbdist.sweep.samplers import Grid, make_sampler
from nbdist.sweep.space import Parameters, Space, integer, log, uniform, when

SPACE = Space(
    {
        "lr": log(1e-4, 1e-1, points=3),
        "momentum": when(uniform(0, 0.99, points=2), opt="sgd"),
        "opt": ["sgd", "adam"],
        "widths": [[32], [32, 64]],
        "batch": integer(16, 64, points=2),
        "epochs": 3,
    }
)


def result(parameters: Parameters) -> float:
    return -abs(float(parameters["lr"]) - 1e-2) - (parameters["opt"] == "adam")  # type: ignore[arg-type]


def drive(sampler: Sampler, count: int, history: list[Ask | Tell] | None = None) -> list[Parameters]:
    """Ask and tell, with up to two trials running at once, some of them pruned, failed and cloned."""
    history = [] if history is None else history
    asked: list[Parameters] = []
    number = 0
    for index in range(count):
        parameters = sampler.ask(history, number)
        if parameters is None:
            break
        asked.append(parameters)
        history.append(Ask(number, parameters, True))
        if index % 7 == 6:
            number += 1
            history.append(Ask(number, {**parameters, "epochs": 30}, False))  # a clone, outside of the space
        if index % 2:
            tell(history, number - 1 if index % 4 == 3 else number, result(parameters), index)
            tell(history, number if index % 4 == 3 else number - 1, result(parameters), index)
        number += 1
    return asked


def tell(history: list[Ask | Tell], number: int, value: float, index: int) -> None:
    if index % 5 == 4:
        history.append(Tell(number, "failed", None, None))
    elif index % 5 == 3:
        history.append(Tell(number, "pruned", value, 2))
    else:
        history.append(Tell(number, "finished", value if index % 9 != 8 else float("nan"), 5))


class SamplerContract:
    """Properties of every sampler."""

    name = ""
    count = 24

    def make(self, space: Space = SPACE, seed: int = 7, direction: Direction = "max") -> Sampler:
        return make_sampler(self.name, space, seed, direction)

    def test_sampled_parameters_are_in_the_space(self) -> None:
        asked = drive(self.make(), self.count)
        assert len(asked) == self.count
        for parameters in asked:
            assert SPACE.why_not(parameters) is None
            assert list(parameters) == [name for name in SPACE if name in parameters]

    def test_equal_seeds_sample_equal_parameters(self) -> None:
        assert drive(self.make(), self.count) == drive(self.make(), self.count)

    def test_a_new_sampler_with_the_history_continues_equally(self) -> None:
        history: list[Ask | Tell] = []
        drive(self.make(), self.count, history)
        asks = [place for place, one in enumerate(history) if isinstance(one, Ask) and one.sampled]
        for place in (*asks[:3], *asks[10::5], asks[-1]):
            ask = history[place]
            assert self.make().ask(history[:place], ask.number) == dict(ask.parameters)  # type: ignore[union-attr]

    def test_an_unused_ask_changes_nothing(self) -> None:
        history: list[Ask | Tell] = []
        drive(self.make(), self.count, history)
        place = max(place for place, one in enumerate(history) if isinstance(one, Ask) and one.sampled)
        sampler, number = self.make(), history[place].number
        first = sampler.ask(history[:place], number)
        assert sampler.ask(history[:place], number) == first
        assert sampler.ask(history[: place - 4], number) == self.make().ask(history[: place - 4], number)

    def test_a_history_of_another_space_is_accepted(self) -> None:
        history: list[Ask | Tell] = []
        drive(self.make(), 10, history)
        narrower = SPACE.with_changes({"opt": ["rmsprop", "sgd"], "lr": uniform(0, 1, points=3)})
        number = history[-1].number + 1
        parameters = self.make(narrower).ask(history, number)
        assert parameters is not None
        assert narrower.contains(parameters)

    def test_the_later_of_two_results_counts(self) -> None:
        history: list[Ask | Tell] = [
            Ask(0, self.asked(0), True), Tell(0, "failed", None, None), Tell(0, "finished", 0.5, 1),
        ]  # fmt: skip
        for number in range(1, 14):
            history += [Ask(number, self.asked(number), True), Tell(number, "finished", 0.1 * number, 1)]
        parameters = self.make().ask(history, 14)
        assert parameters is None or SPACE.contains(parameters)

    def asked(self, number: int) -> Parameters:
        return SPACE.fill(lambda name, one: one.draw(fraction(1, number, name)))


class TestRandom(SamplerContract):
    name = "random"

    def test_another_seed_samples_other_parameters(self) -> None:
        assert drive(self.make(seed=1), 5) != drive(self.make(seed=2), 5)

    def test_an_edit_of_one_parameter_keeps_the_draws_of_the_others(self) -> None:
        edited = SPACE.with_changes({"new": [1, 2, 3]}, without=["batch"])
        one, other = self.make().ask([], 3), self.make(edited).ask([], 3)
        assert one is not None
        assert other is not None
        assert one["lr"] == other["lr"]
        assert one["opt"] == other["opt"]


class TestGrid(SamplerContract):
    name = "grid"
    count = 36

    def test_each_grid_point_is_sampled_once(self) -> None:
        sampler = self.make()
        assert sampler.size == 36
        asked = drive(sampler, 100)
        assert asked == [Grid(SPACE).point(index) for index in range(36)]

    def test_points_sampled_before_an_edit_are_not_repeated(self) -> None:
        history: list[Ask | Tell] = []
        before = drive(self.make(), 20, history)
        wider = SPACE.with_changes({"opt": ["sgd", "adam", "rmsprop"]})
        after = drive(self.make(wider), 100, history)
        assert len(before) + len(after) == 48
        assert len({repr(one) for one in before + after}) == 48


class TestTpe(SamplerContract):
    name = "tpe"

    def test_it_learns_from_results(self) -> None:
        asked = drive(self.make(), 40)
        assert sum(one["opt"] == "sgd" for one in asked[-12:]) > 8  # adam is worse by one

    def test_the_direction_min(self) -> None:
        sampler = self.make(direction="min")
        history: list[Ask | Tell] = []
        for number in range(40):
            parameters = sampler.ask(history, number)
            assert parameters is not None
            history += [Ask(number, parameters, True), Tell(number, "finished", result(parameters), 1)]
        last = [one.parameters["opt"] for one in history if isinstance(one, Ask)][-12:]
        assert last.count("adam") > 8

    def test_an_unknown_setting_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="startup"):
            make_sampler("tpe", SPACE, 1, settings={"startup": 3})
        with pytest.raises(InvalidArgumentError, match="--seed"):
            make_sampler("tpe", SPACE, 1, settings={"seed": 3})
        assert make_sampler("tpe", SPACE, 1, settings={"n_startup_trials": 3}).ask([], 0)


class TestTpeUnivariate(SamplerContract):
    name = "tpe-univariate"


def test_a_grid_of_a_range_without_points_says_what_to_write() -> None:
    with pytest.raises(InvalidArgumentError, match=r"lr: a grid needs .*log\(0.0001, 0.1, points=5\)"):
        make_sampler("grid", Space({"lr": log(1e-4, 1e-1)}), 1)


def test_an_unknown_sampler_is_named_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match="no sampler 'cmaes'; choose from random, grid, tpe"):
        make_sampler("cmaes", SPACE, 1)
    with pytest.raises(InvalidArgumentError, match="random takes no settings"):
        make_sampler("random", SPACE, 1, settings={"a": 1})


@given(some.integers(0, 2**63), some.sets(some.integers(0, 10**9), min_size=2, max_size=50))
@settings(max_examples=examples(50))
def test_no_two_trials_share_a_seed(seed: int, numbers: set[int]) -> None:
    numbers |= {number + 2**31 for number in numbers}
    seeds = {trial_seed(seed, number) for number in numbers}
    assert len(seeds) == len(numbers)
    assert all(0 <= one < 2**32 for one in seeds)


def test_optuna_is_imported_only_for_tpe() -> None:
    code = (
        "import sys; from nbdist.sweep import scheduler, commands, event_log, export; "
        "sys.exit(bool({'optuna', 'pandas', 'matplotlib', 'IPython'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_optuna_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from nbdist.errors import MissingExtra\n"
        "from nbdist.sweep.samplers import make_sampler\n"
        "from nbdist.sweep.space import Space\n"
        "try: make_sampler('tpe', Space({'a': [1, 2]}), 1)\n"
        "except MissingExtra as error: assert 'nbdist[sweep]' in str(error), error\n"
        "else: sys.exit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
