from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as some
from sweep_simulated import Simulation, state_of

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.sweep import commands
from nbdist.sweep.events import (
    Asked,
    Closed,
    Created,
    Ended,
    Event,
    Promoted,
    Reported,
    Retried,
    SpaceEdited,
    Started,
    Stopped,
)
from nbdist.sweep.sampler import trial_seed
from nbdist.sweep.scheduler import Scheduler, place
from nbdist.sweep.space import Space, log, when
from nbdist.sweep.start import check_edit, check_names, open_sweep
from nbdist.sweep.state import Ledger

SPACE = Space({"lr": [0.1, 0.2, 0.3], "width": [32, 64]})


def opened(**given: Any) -> Created:
    return open_sweep(
        given.pop("space", SPACE), **{"metric": "accuracy", "now": 0.0, "trials": 6, "seed": 7, **given}
    )


def from_events(created: Created, *events: Event) -> tuple[Ledger, Scheduler]:
    ledger = Ledger.of([created, *events])
    assert not ledger.late
    return ledger, Scheduler(ledger)


def start_trials(ledger: Ledger, scheduler: Scheduler, free: set[int], alive: int) -> list[Started]:
    found = []
    while (event := scheduler.next(free, alive, 1.0)) is not None:
        assert ledger.apply(event)
        if isinstance(event, Started):
            found.append(event)
            free = free - set(event.ranks)
    return found


ACTIONS = (
    ["report"] * 8
    + ["finish"] * 5
    + ["death", "replace", "replace", "driver_death", "command", "command", "command"]
)


@given(
    some.integers(0, 2**32),
    some.sampled_from(["random", "grid"]),
    some.sampled_from(["none", "median", "asha"]),
    some.integers(1, 2),
    some.integers(1, 4),
)
@settings(max_examples=examples(150))
def test_every_sampled_trial_ends_once(
    seed: int, sampler: str, pruner: str, per_trial: int, engines: int
) -> None:
    dice = Random(seed)
    given = {"pruner_settings": {"startup": 2}} if pruner == "median" else {}
    simulation = Simulation(
        opened(sampler=sampler, pruner=pruner, per_trial=per_trial, trials=6, **given), engines, dice
    )
    for _ in range(dice.randint(0, 60)):
        simulation.now += 1
        getattr(simulation, dice.choice(ACTIONS))()
        simulation.pump()
        assert state_of(Ledger.of(simulation.log)) == state_of(simulation.ledger)
    simulation.drain()
    ledger = simulation.ledger
    assert simulation.scheduler.done
    assert sum(ledger.counts.values()) == len(ledger.trials)
    assert all(trial.over for trial in ledger.trials.values())
    if not ledger.closed:
        asked = sum(trial.sampled for trial in ledger.trials.values())
        assert asked == ledger.sampled
        assert asked == ledger.wanted or (sampler == "grid" and asked < ledger.wanted)
    assert sorted(ledger.trials) == list(range(ledger.next_number))
    assert len({trial.seed for trial in ledger.trials.values()}) == len(ledger.trials)
    for number, trial in ledger.trials.items():
        mine = [span for span in ledger.spans if span.number == number]
        assert [span.attempt for span in mine] == list(range(1, trial.attempt + 1))
    for one in ledger.spans:
        for other in ledger.spans:
            if one is not other and set(one.ranks) & set(other.ranks):
                assert one.end <= other.start or other.end <= one.start, "two trials on one engine at once"


@given(some.integers(0, 2**32), some.sampled_from(["random", "grid", "tpe"]))
@settings(max_examples=examples(20))
def test_a_replayed_log_samples_the_same(seed: int, sampler: str) -> None:
    simulation = Simulation(opened(sampler=sampler, pruner="asha", trials=12), 3, Random(seed))
    for _ in range(30):
        simulation.now += 1
        getattr(
            simulation, simulation.dice.choice(["report", "finish", "command", "driver_death", "replace"])
        )()
        simulation.pump()
    for place_, event in enumerate(simulation.log):
        if isinstance(event, Asked):
            ledger = Ledger.of(simulation.log[:place_])
            assert Scheduler(ledger).sampler.ask(ledger.history, event.number) == event.parameters
            assert event.seed == trial_seed(7, event.number)


def test_every_free_engine_gets_a_trial() -> None:
    ledger, scheduler = from_events(opened(trials=3))
    assert [event.ranks for event in start_trials(ledger, scheduler, {0, 1, 2, 3}, 4)] == [(0,), (1,), (2,)]
    assert ledger.counts["running"] == 3
    assert not scheduler.done


def test_a_trial_of_a_dead_engine_is_retried_once_on_another() -> None:
    ledger, scheduler = from_events(opened(trials=2))
    start_trials(ledger, scheduler, {0, 1}, 2)
    (retried,) = scheduler.died({0}, 2.0)
    assert retried == Retried(2.0, 0, "death", "the engine of rank 0 died", (0,))
    ledger.apply(retried)
    (again,) = start_trials(ledger, scheduler, {0, 2}, 3)  # rank 0 was replaced already
    assert (again.number, again.attempt, again.ranks) == (0, 2, (2,))
    assert ledger.trials[0].seed == trial_seed(7, 0)
    (failed,) = scheduler.died({2}, 3.0)
    assert isinstance(failed, Ended)
    assert failed.state == "failed"
    assert failed.error == "lost 2 times; the last time the engine of rank 2 died"


def test_reports_of_an_abandoned_attempt_are_ignored() -> None:
    ledger, scheduler = from_events(opened(trials=1))
    start_trials(ledger, scheduler, {0}, 1)
    for event in scheduler.died({0}, 2.0):
        ledger.apply(event)
    start_trials(ledger, scheduler, {1}, 1)
    assert scheduler.end(0, 1, "finished", 3.0, {"accuracy": 1.0}) is None
    assert scheduler.judge(Reported(0, 1, 1, 0.0, 3.0), 3.0) is None
    assert scheduler.end(0, 2, "finished", 3.0, {"accuracy": 1.0}) is not None


def test_a_retry_uses_the_same_engine_if_no_other_lives() -> None:
    ledger, scheduler = from_events(opened(trials=1))
    start_trials(ledger, scheduler, {0}, 1)
    for event in scheduler.died({0}, 2.0):
        ledger.apply(event)
    assert [event.ranks for event in start_trials(ledger, scheduler, {0}, 1)] == [(0,)]


def test_an_engine_that_a_trial_avoids_runs_other_trials_first() -> None:
    ledger, scheduler = from_events(opened(trials=2))
    start_trials(ledger, scheduler, {0}, 1)
    for event in scheduler.died({0}, 2.0):
        ledger.apply(event)
    assert [event.number for event in start_trials(ledger, scheduler, {0}, 1)] == [1]


def test_engines_of_a_trial_are_neighbours_if_possible() -> None:
    assert place([5, 0, 2, 4], 2) == (4, 5)
    assert place([0, 2, 4], 2) == (0, 2)
    assert place([0, 1, 2], 2, avoid=[0, 1]) == (0, 2)
    assert place([0], 2) is None


def test_a_promoted_trial_that_needs_all_engines_gets_them() -> None:
    ledger, scheduler = from_events(opened(trials=6))
    start_trials(ledger, scheduler, {0, 1}, 2)
    ledger.apply(scheduler.end(0, 1, "finished", 2.0, {"accuracy": 0.5}))  # type: ignore[arg-type]
    for event in commands.promote(ledger, 0, 2.0, checkpoint="c/1", per_trial=2, changes={"epochs": 9}):
        ledger.apply(event)
    assert (
        start_trials(ledger, scheduler, {0}, 2) == []
    )  # it waits for the other engine, and no trial overtakes it
    ledger.apply(scheduler.end(1, 1, "finished", 3.0, {"accuracy": 0.5}))  # type: ignore[arg-type]
    (started,) = start_trials(ledger, scheduler, {0, 1}, 2)
    assert (started.number, started.attempt, started.ranks) == (0, 2, (0, 1))
    promotion = ledger.trials[0].promotion
    assert promotion is not None
    assert (promotion.checkpoint, promotion.changes) == ("c/1", {"epochs": 9})
    report = Reported(0, 2, 30, -5.0, 4.0)
    ledger.apply(report)
    assert scheduler.judge(report, 4.0) is None  # not pruned again


def test_a_promoted_trial_that_needs_too_many_engines_blocks_no_trial() -> None:
    ledger, scheduler = from_events(opened(trials=2))
    start_trials(ledger, scheduler, {0}, 1)
    ledger.apply(scheduler.end(0, 1, "finished", 2.0, {"accuracy": 0.5}))  # type: ignore[arg-type]
    for event in commands.promote(ledger, 0, 2.0, per_trial=3):
        ledger.apply(event)
    assert [event.number for event in start_trials(ledger, scheduler, {0}, 1)] == [1]
    ledger.apply(scheduler.end(1, 1, "finished", 3.0, {"accuracy": 0.5}))  # type: ignore[arg-type]
    assert scheduler.trouble(alive=1) == (
        "a trial needs 3 engines and 1 are alive: bring back the others (%cluster restart), or stop the sweep"
    )
    with pytest.raises(InvalidArgumentError, match="--per-trial 3"):
        commands.promote(ledger, 1, 3.0, per_trial=3, engines=1)


def test_a_retried_promotion_continues_from_its_checkpoint_with_its_curve() -> None:
    ledger, scheduler = from_events(opened(trials=1))
    start_trials(ledger, scheduler, {0}, 1)
    ledger.apply(Reported(0, 1, 1, 0.25, 1.0))
    ledger.apply(scheduler.end(0, 1, "stopped", 2.0))  # type: ignore[arg-type]
    ledger.apply(Promoted(3.0, 0, "c/1"))
    start_trials(ledger, scheduler, {0}, 1)
    for event in scheduler.died({0}, 4.0):
        ledger.apply(event)
    curve = ledger.curve(0)
    assert curve is not None
    assert curve.steps == [1]
    assert ledger.trials[0].promotion == Promoted(3.0, 0, "c/1")


@pytest.mark.parametrize(
    ("values", "state", "error"),
    [
        ({"accuracy": 0.5}, "finished", ""),
        ({}, "failed", "the trial never reported 'accuracy': report it, or name another"),
        ({"loss": 1.0}, "failed", "never reported 'accuracy'; it reported loss: report it"),
        ({"accuracy": np.float32(0.5), "name": "x"}, "finished", ""),
        ({"accuracy": "of type list"}, "failed", "'accuracy' is of type list, and not one number"),
        ({"accuracy": float("nan")}, "failed", "'accuracy' is not a number at the end"),
    ],
)
def test_a_missing_or_invalid_result_is_a_failure(values: dict[str, Any], state: str, error: str) -> None:
    ledger, scheduler = from_events(opened(trials=1))
    start_trials(ledger, scheduler, {0}, 1)
    ended = scheduler.end(0, 1, "finished", 2.0, values)
    assert ended is not None
    assert ended.state == state
    assert error in ended.error
    assert ledger.apply(ended)
    assert ledger.best_value == (0.5 if state == "finished" else None)


def test_the_last_report_is_the_result_of_a_body_that_returns_none() -> None:
    ledger, scheduler = from_events(opened(trials=1))
    start_trials(ledger, scheduler, {0}, 1)
    ledger.apply(Reported(0, 1, 2, 0.75, 1.0))
    ledger.apply(Reported(0, 1, 1, 0.5, 1.0))  # late, and not the last step
    ended = scheduler.end(0, 1, "finished", 2.0)
    assert ended is not None
    assert (ended.state, ended.value) == ("finished", 0.75)


def test_recovery_adopts_retries_and_finds_strays() -> None:
    ledger, scheduler = from_events(opened(trials=3))
    start_trials(ledger, scheduler, {0, 1, 2}, 3)
    for event in scheduler.died({2}, 2.0):
        ledger.apply(event)
    start_trials(ledger, scheduler, {3}, 4)  # trial 2, attempt 2
    events, strays = scheduler.recover({(0, 1): (0,), (2, 1): (2,), (9, 1): (4,)}, 3.0)
    assert strays == [(2, 1), (9, 1)]
    assert [(event.number, type(event)) for event in events] == [(1, Retried), (2, Ended)]
    for event in events:
        ledger.apply(event)
    assert list(ledger.running) == [0]
    assert list(ledger.waiting) == [1]


def test_recovery_adopts_a_trial_with_a_lost_start_record() -> None:
    ledger, scheduler = from_events(opened(trials=1), Asked(1.0, 0, {"lr": 0.1, "width": 32}, 5))
    events, strays = scheduler.recover({(0, 1): (3,), (4, 1): (1,)}, 2.0)
    assert events == [Started(2.0, 0, 1, (3,))]
    assert strays == [(4, 1)]
    assert ledger.next_number == 5  # no new trial gets the stray's number


def test_a_stopping_trial_is_not_retried_after_a_death() -> None:
    ledger, scheduler = from_events(opened(trials=1))
    start_trials(ledger, scheduler, {0}, 1)
    for event in commands.stop(ledger, 0, 2.0):
        ledger.apply(event)
    assert commands.stop(ledger, 0, 2.0) == []
    (ended,) = scheduler.died({0}, 3.0)
    assert isinstance(ended, Ended)
    assert ended.state == "stopped"


def test_a_paused_sweep_starts_nothing_and_running_trials_continue() -> None:
    ledger, scheduler = from_events(opened(trials=2))
    start_trials(ledger, scheduler, {0}, 2)
    for event in commands.pause(ledger, 2.0):
        ledger.apply(event)
    assert commands.pause(ledger, 2.0) == []
    assert start_trials(ledger, scheduler, {1}, 2) == []
    assert scheduler.judge(Reported(0, 1, 1, 0.5, 2.0), 2.0) is None
    for event in commands.resume(ledger, 3.0):
        ledger.apply(event)
    assert len(start_trials(ledger, scheduler, {1}, 2)) == 1


def test_added_trials_are_sampled() -> None:
    ledger, scheduler = from_events(opened(trials=1))
    start_trials(ledger, scheduler, {0}, 1)
    ledger.apply(scheduler.end(0, 1, "finished", 2.0, {"accuracy": 0.5}))  # type: ignore[arg-type]
    assert scheduler.done
    for event in commands.add(ledger, 2, 3.0):
        ledger.apply(event)
    assert not scheduler.done
    assert len(start_trials(ledger, scheduler, {0, 1, 2}, 3)) == 2
    for wrong in (0, -1, 10**7):
        with pytest.raises(InvalidArgumentError, match="more trials"):
            commands.add(ledger, wrong, 3.0)


def test_a_grid_gives_no_more_trials_than_it_has_points() -> None:
    ledger, scheduler = from_events(
        open_sweep(Space({"width": [32, 64]}), metric="accuracy", now=0.0, trials=5, sampler="grid")
    )
    assert ledger.wanted == 2
    start_trials(ledger, scheduler, {0}, 1)
    assert commands.add(ledger, 1, 1.0)  # one point has no trial yet
    start_trials(ledger, scheduler, {1}, 1)
    with pytest.raises(FailedPreconditionError, match="each of the 2 points of the grid has its trial: edit"):
        commands.add(ledger, 1, 2.0)
    for event in commands.edit(ledger, Space({"width": [64, 128]}), 3.0):
        ledger.apply(event)
    assert commands.add(ledger, 1, 3.0)


@pytest.mark.parametrize("metric", ["", 3, None, ["loss"]])
def test_a_metric_is_a_name(metric: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="say which metric counts"):
        open_sweep(Space({"width": [32, 64]}), metric=metric, now=0.0, sampler="grid")


def test_a_clone_has_its_own_seed_and_starts_before_new_trials() -> None:
    ledger, scheduler = from_events(opened(trials=3))
    start_trials(ledger, scheduler, {0}, 1)
    for event in commands.clone(ledger, 0, {"lr": 0.9}, 2.0):
        ledger.apply(event)
    (started,) = start_trials(ledger, scheduler, {1}, 2)
    trial = ledger.trials[started.number]
    assert (trial.parent, trial.parameters["lr"]) == (0, 0.9)
    assert trial.seed == trial_seed(7, 1)
    assert ledger.left == 2  # a clone is extra


def test_a_clone_follows_the_conditions_of_the_space() -> None:
    space = Space({"opt": ["sgd", "adam"], "momentum": when([0.5, 0.9], opt="sgd"), "lr": log(1e-4, 1)})
    created = opened(space=space)
    sgd = {"opt": "sgd", "momentum": 0.5, "lr": 0.1}
    ledger, _ = from_events(created, Asked(1.0, 0, sgd, 5), Asked(1.0, 1, {"opt": "adam", "lr": 0.1}, 6))
    (cloned,) = commands.clone(ledger, 0, {"opt": "adam"}, 2.0)
    assert cloned.parameters == {"opt": "adam", "lr": 0.1}  # type: ignore[union-attr]
    (cloned,) = commands.clone(ledger, 0, {"lr": 7.0}, 2.0)  # outside of the range, as requested
    assert cloned.parameters == {**sgd, "lr": 7.0}  # type: ignore[union-attr]
    for number, changes, message in (
        (1, {"opt": "sgd"}, r"say which momentum the new trial has; it may be when\(\[0.5, 0.9\]"),
        (0, {"opt": "adam", "momentum": 0.5}, "momentum does not exist with these values"),
        (0, {"learning_rate": 1}, "no parameter learning_rate; there are opt, momentum, lr"),
        (0, {"lr": float("nan")}, "nan cannot be"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            commands.clone(ledger, number, changes, 2.0)
    with pytest.raises(NotFoundError, match="no trial 9; the sweep has 0 to 1"):
        commands.clone(ledger, 9, {}, 2.0)


def test_an_edit_leaves_running_trials_to_finish_or_stops_them() -> None:
    ledger, scheduler = from_events(opened(sampler="grid", trials=6))
    start_trials(ledger, scheduler, {0, 1}, 2)  # lr=0.1, width 32 and 64
    narrower = SPACE.with_changes({"width": [64]})
    assert [trial.number for trial in commands.outside_of(ledger, narrower)] == [0]
    assert commands.edit(ledger, narrower, 2.0) == [SpaceEdited(2.0, narrower)]
    events = commands.edit(ledger, narrower, 2.0, outside="stop")
    assert events == [SpaceEdited(2.0, narrower), Stopped(2.0, 0, 1)]
    for event in events:
        ledger.apply(event)
    assert commands.edit(ledger, narrower, 3.0) == []
    ledger.apply(scheduler.end(0, 1, "stopped", 3.0))  # type: ignore[arg-type]
    started = start_trials(ledger, scheduler, {0, 2, 3}, 4)
    assert [ledger.trials[one.number].parameters for one in started] == [
        {"lr": 0.2, "width": 64}, {"lr": 0.3, "width": 64},
    ]  # fmt: skip
    with pytest.raises(InvalidArgumentError, match="lr: a grid needs"):
        commands.edit(ledger, SPACE.with_changes({"lr": log(1e-4, 1)}), 4.0)
    with pytest.raises(InvalidArgumentError, match="can finish or stop, not 'kill'"):
        commands.edit(ledger, SPACE, 4.0, outside="kill")  # type: ignore[arg-type]


def test_an_edit_gives_up_a_new_trial_that_had_not_started() -> None:
    asked = Asked(1.0, 0, {"lr": 0.1, "width": 32}, 5)
    ledger, _ = from_events(opened(), asked)
    events = commands.edit(ledger, SPACE.with_changes({"width": [64]}), 2.0)
    assert isinstance(events[1], Ended)
    assert (events[1].number, events[1].state) == (0, "stopped")
    assert "outside of it" in events[1].error
    assert ledger.apply(events[1])


def test_refused_commands_have_a_reason() -> None:
    ledger, scheduler = from_events(opened(trials=2))
    start_trials(ledger, scheduler, {0, 1}, 2)
    with pytest.raises(FailedPreconditionError, match="trial 0 is running; stop it"):
        commands.retry(ledger, 0, 2.0)
    with pytest.raises(FailedPreconditionError, match="trial 0 is running; only a trial that has ended"):
        commands.promote(ledger, 0, 2.0)
    ledger.apply(scheduler.end(0, 1, "finished", 2.0, {"accuracy": 1.0}))  # type: ignore[arg-type]
    with pytest.raises(FailedPreconditionError, match=r"clone it .* or promote it"):
        commands.retry(ledger, 0, 2.0)
    for event in commands.close(ledger, 3.0):
        ledger.apply(event)
    assert commands.close(ledger, 3.0) == []
    for refused in (
        lambda: commands.retry(ledger, 0, 4.0),
        lambda: commands.add(ledger, 1, 4.0),
        lambda: commands.pause(ledger, 4.0),
    ):
        with pytest.raises(FailedPreconditionError, match="the sweep is over"):
            refused()
    assert not scheduler.done  # trial 1 has not stopped yet
    ledger.apply(scheduler.end(1, 1, "stopped", 5.0))  # type: ignore[arg-type]
    assert scheduler.done


def test_close_ends_waiting_trials_and_stops_running_ones() -> None:
    ledger, scheduler = from_events(opened(trials=2))
    start_trials(ledger, scheduler, {0}, 1)
    ledger.apply(Asked(1.0, 1, {"lr": 0.1, "width": 32}, 5))
    events = commands.close(ledger, 2.0, "enough")
    assert [type(event) for event in events] == [Stopped, Ended, Closed]
    for event in events:
        assert ledger.apply(event)
    (ended,) = scheduler.died({0}, 3.0)
    assert isinstance(ended, Ended)
    assert ended.state == "stopped"


def test_a_failed_trial_can_be_retried_any_number_of_times() -> None:
    ledger, scheduler = from_events(opened(trials=1))
    for attempt in range(1, 5):
        (started,) = start_trials(ledger, scheduler, {0}, 1)
        assert started.attempt == attempt
        ledger.apply(Reported(0, attempt, 1, 0.5, 1.0))
        ledger.apply(scheduler.end(0, attempt, "failed", 2.0, error="raised"))  # type: ignore[arg-type]
        for event in commands.retry(ledger, 0, 3.0):
            assert ledger.apply(event)
        assert ledger.curve(0) is None
    assert ledger.counts["waiting"] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": ""}, "say which metric"),
        ({"direction": "up"}, "no direction 'up'; choose from max, min"),
        ({"trials": 0}, "0 trials; a sweep has 1 to"),
        ({"trials": None}, "the sampler random has no end"),
        ({"per_trial": 0}, "--per-trial 0: a trial needs at least one"),
        ({"per_trial": 5, "engines": 4}, "--per-trial 5: .*4 engines"),
        ({"sampler": "sobol"}, "no sampler 'sobol'"),
        ({"pruner": "halving"}, "no pruner 'halving'"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"body": "x" * (1 << 21)}, "a body of 2,097,152 characters"),
        ({"sampler": "grid", "space": Space({"lr": log(1e-4, 1)})}, "lr: a grid needs"),
    ],
)
def test_invalid_sweep_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        opened(**given)


TEXT = "model = net(hidden, lr)\nseed = repeat"


@pytest.mark.parametrize(
    ("body", "after", "message"),
    [
        (TEXT, {"lr": [0.1], "hidden": [64], "repeat": [1]}, ""),
        (TEXT, {"lr": [0.1], "hidden": 64, "repeat": 1, "net": ["a", "b"]}, ""),
        (
            TEXT,
            {"hiddn": [64]},
            r"does not use hiddn \(do you mean hidden\?\); the trial uses lr: .* uses hidden",
        ),
        (TEXT, {"lr": [0.1], "repeat": [1]}, "the trial uses hidden: keep it"),
        ("%time f(globals())", {"hiddn": [64]}, ""),
        ("use(locals())", {"hiddn": [64]}, ""),
        (lambda lr, **more: lr, {"lr": [0.1], "width": [1]}, ""),
        (lambda lr: lr, {"width": [1]}, "takes no parameter width"),
        (None, {"width": [1]}, ""),
    ],
)
def test_an_edit_has_the_names_of_the_trial(body: Any, after: dict[str, Any], message: str) -> None:
    before = Space({"lr": [0.1, 0.2], "hidden": [32], "repeat": [1, 2]})
    with pytest.raises(InvalidArgumentError, match=message) if message else nullcontext():
        check_edit(body, before, Space(after))


@pytest.mark.parametrize(
    ("body", "lost"),
    [
        ("lr = 0.1\nfit(lr)", "lr"),
        ("lr: float = 0.1\nfit(lr)", "lr"),
        ("for hidden, lr in pairs: fit(hidden, lr)", "lr hidden"),
        ("lr = lr * 2\nhidden = hidden or 3", ""),
        ("fit(lr)\nlr = 0.1", ""),
        ("if small: lr = 0.1\nfit(lr)", ""),
        ("rates = [0 for lr in many]\nfit(lr)", ""),
        ("table[lr] = 1", ""),
        ("def f(): lr = 1", ""),
        ("%time lr = 1", ""),
    ],
)
def test_a_trial_does_not_overwrite_its_parameters(body: str, lost: str) -> None:
    space = Space({"lr": [0.1, 0.2], "hidden": [32]})
    message = "; ".join(f"the trial sets {name} itself, .* delete the line, .*" for name in lost.split())
    with pytest.raises(InvalidArgumentError, match=message) if lost else nullcontext():
        check_names(body, space)
