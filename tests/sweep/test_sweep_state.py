from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import optuna
import pytest
from sweep_simulated import state_of

from nbdist.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from nbdist.metrics.table import table
from nbdist.sweep.commands import clone
from nbdist.sweep.event_log import EventLog, read_events
from nbdist.sweep.events import (
    Added,
    Asked,
    Cloned,
    Created,
    Direction,
    Ended,
    EndState,
    Event,
    Paused,
    Promoted,
    Pruned,
    Reported,
    Resumed,
    Retried,
    SpaceEdited,
    Started,
    Stopped,
)
from nbdist.sweep.export import columns, write_csv
from nbdist.sweep.optuna import export_study
from nbdist.sweep.sampler import Ask
from nbdist.sweep.scheduler import Scheduler
from nbdist.sweep.space import Space, integer, log, uniform, when
from nbdist.sweep.state import Ledger

SPACE = Space(
    {
        "lr": log(1e-4, 1e-1),
        "width": [32, 64],
        "opt": ["sgd", "adam"],
        "momentum": when(uniform(0, 1), opt="sgd"),
        "batch": integer(1, 9, step=4),
        "layers": [[32], [32, 64]],
        "flag": [True, False],
        "epochs": 3,
    }
)
CREATED = Created(0.0, SPACE, 5, 7, "accuracy")
FIRST = {
    "lr": 0.1, "width": 32, "opt": "sgd", "momentum": 0.5, "batch": 5, "layers": (32,), "flag": True,
    "epochs": 3,
}  # fmt: skip
SECOND = {"lr": 0.01, "width": 64, "opt": "adam", "batch": 9, "layers": (32, 64), "flag": False, "epochs": 3}
EVENTS: list[Event] = [
    CREATED,
    Asked(1.0, 0, FIRST, 100),  # type: ignore[arg-type]
    Started(1.0, 0, 1, (0,)),
    Asked(1.0, 1, SECOND, 101),  # type: ignore[arg-type]
    Started(1.0, 1, 1, (1,)),
    Reported(0, 1, 1, 0.25, 2.0),
    Reported(1, 1, 1, 0.2, 2.0),
    Reported(0, 1, 2, 0.5, 3.0),
    Ended(4.0, 0, 1, "finished", 0.5, {"accuracy": 0.5, "loss": 1.5}),
    Pruned(4.0, 1, 1, 1),
    Ended(4.5, 1, 1, "pruned"),
    SpaceEdited(5.0, SPACE.with_changes({"width": [64, 128], "lr": log(1e-3, 1)})),
    Asked(5.0, 2, {**SECOND, "width": 128}, 102),  # type: ignore[arg-type]
    Started(5.0, 2, 1, (0,)),
    Reported(2, 1, 1, math.nan, 6.0),
    Ended(7.0, 2, 1, "failed", None, {}, "Traceback: boom"),
    Cloned(8.0, 3, {**SECOND, "lr": 3.0, "width": 512}, 103, 1),  # type: ignore[arg-type]
    Started(8.0, 3, 1, (1,)),
    Reported(3, 1, 1, 0.6, 9.0),
    Retried(9.5, 3, "death", "lost", (1,)),
    Asked(10.0, 4, FIRST, 104),  # type: ignore[arg-type]
    Started(11.0, 4, 1, (0,)),
    Reported(4, 1, 1, 0.1, 12.0),
]


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger.of(EVENTS)
    assert ledger.late == 0
    return ledger


def test_the_state_of_a_sweep(ledger: Ledger) -> None:
    assert ledger.counts == {
        "waiting": 1, "running": 1, "finished": 1, "pruned": 1, "stopped": 0, "failed": 1,
    }  # fmt: skip
    assert (list(ledger.waiting), list(ledger.running)) == ([3], [4])
    assert (ledger.sampled, ledger.left, ledger.next_number) == (4, 1, 5)
    assert ledger.best is ledger.trials[0]
    assert ledger.best_value == 0.5
    assert [span[:3] + span[5:] for span in ledger.spans] == [
        (0, 1, (0,), "finished"), (1, 1, (1,), "pruned"), (2, 1, (0,), "failed"), (3, 1, (1,), "lost"),
    ]  # fmt: skip
    assert ledger.curve(3) is None  # a second attempt
    assert ledger.trials[3].lost == 1
    assert "Trial 0 finished lr=0.1" in repr(ledger.trials[0])


def test_incremental_and_batched_events_give_the_same_state() -> None:
    following = Ledger(CREATED)
    for place, event in enumerate(EVENTS[1:], 2):
        following.apply(event)
        assert state_of(following) == state_of(Ledger.of(EVENTS[:place]))


def test_late_events_change_nothing(ledger: Ledger) -> None:
    before = state_of(ledger)
    late: list[Event] = [
        CREATED,
        Asked(20.0, 0, {}, 1),
        Started(20.0, 0, 1, (0,)),
        Started(20.0, 3, 1, (0,)),  # of the lost attempt
        Started(20.0, 4, 2, (0,)),  # it runs
        Reported(0, 1, 5, 1.0, 20.0),
        Reported(3, 1, 5, 1.0, 20.0),
        Ended(20.0, 0, 1, "failed"),
        Ended(20.0, 3, 1, "finished", 9.9),
        Ended(20.0, 4, 2, "finished", 9.9),
        Pruned(20.0, 3, 1, 4),
        Retried(20.0, 0, "asked"),  # complete
        Retried(20.0, 3, "death"),  # waits already
        Ended(20.0, 77, 1, "finished", 9.9),
    ]
    for event in late:
        assert not ledger.apply(event), event
    assert ledger.late == len(late)
    assert ledger.next_number == 78  # the record of trial 77 is lost; its number is not used again
    ledger.next_number = 5
    assert state_of(ledger) == before


def test_a_missing_start_is_inferred() -> None:
    ledger = Ledger.of([*EVENTS[:2], Reported(0, 1, 1, 0.5, 2.0), Ended(3.0, 0, 1, "finished", 0.5)])
    assert ledger.late == 0
    assert (ledger.trials[0].state, ledger.trials[0].attempt, ledger.best_value) == ("finished", 1, 0.5)


def test_best_follows_the_direction_and_the_first_of_equals_wins() -> None:
    events: list[Event] = [Created(0.0, Space({"a": [1, 2, 3]}), 3, 7, "loss", "min")]
    for number, value in enumerate([math.nan, 0.5, 0.5, math.inf]):
        events += [Asked(1.0, number, {"a": 1}, number), Started(1.0, number, 1, (0,))]
        events.append(Ended(2.0 + number, number, 1, "finished", value))
    ledger = Ledger.of(events)
    assert [(one.number, one.value) for one in ledger.improvements] == [(1, 0.5)]


TRACEBACK = """Traceback (most recent call last):
  File "<trial 0>", line 7, in <module>
ValueError: no room"""


def two_finished_trials() -> Ledger:
    """Return a ledger of two finished trials, with 0.9 and 0.8; the first is promoted."""
    events: list[Event] = [Created(0.0, Space({"a": [1, 2]}), 2, 7, "accuracy")]
    for number, value in enumerate([0.9, 0.8]):
        events += [Asked(1.0, number, {"a": 1}, number), Started(1.0, number, 1, (0,))]
        events.append(Ended(2.0 + number, number, 1, "finished", value))
    return Ledger.of([*events, Promoted(5.0, 0, "state.safetensors", None, {"epochs": 9})])


@pytest.mark.parametrize(
    ("after", "best"),
    [
        ([], 0),  # it waits and keeps its value
        ([Started(6.0, 0, 2, (0,)), Reported(0, 2, 9, 0.1, 6.5)], 0),
        ([Started(6.0, 0, 2, (0,)), Ended(7.0, 0, 2, "finished", 0.95)], 0),
        ([Started(6.0, 0, 2, (0,)), Ended(7.0, 0, 2, "finished", 0.7)], 1),
        ([Started(6.0, 0, 2, (0,)), Ended(7.0, 0, 2, "finished", math.nan)], 1),
        ([Started(6.0, 0, 2, (0,)), Ended(7.0, 0, 2, "finished", math.inf)], 1),
        ([Started(6.0, 0, 2, (0,)), Reported(0, 2, 9, 0.1, 6.5), Ended(7.0, 0, 2, "stopped")], 0),
        (
            [Started(6.0, 0, 2, (0,)), Ended(7.0, 0, 2, "failed", None, {}, "Traceback")],
            0,
        ),  # before any report
        ([Started(6.0, 0, 2, (0,)), Reported(0, 2, 9, 0.1, 6.5), Retried(7.0, 0, "death")], 0),
        ([Ended(7.0, 0, 1, "stopped", 0.9)], 0),  # before it started
    ],
)
def test_best_uses_the_present_values(after: list[Event], best: int) -> None:
    ledger = two_finished_trials()
    for event in after:
        assert ledger.apply(event), event
    assert ledger.best is ledger.trials[best]
    # The views' curve ends at the same trial and value.
    assert ledger.improvements[-1][1:] == (best, ledger.best_value)
    assert ledger.best.state != "finished" or ledger.best_value == ledger.best.value


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (
            [
                Started(6.0, 0, 2, (0,)),
                Reported(0, 2, 9, 0.1, 6.5),
                Ended(7.0, 0, 2, "failed", 0.1, {}, TRACEBACK),
            ],
            "its promotion failed (ValueError: no room): its result is that from before",
        ),
        (
            [
                Started(6.0, 0, 2, (0,)),
                Reported(0, 2, 9, 0.1, 6.5),
                Stopped(6.8, 0, 2),
                Ended(7.0, 0, 2, "stopped", 0.1),
            ],
            "its promotion was stopped: its result is that from before",
        ),
        (
            [
                Started(6.0, 0, 2, (0,)),
                Retried(6.5, 0, "death", "lost"),
                Ended(7.0, 0, 2, "stopped", None, {}, "closed"),
            ],
            "its promotion was stopped (closed): its result is that from before",
        ),
    ],
)
def test_an_unfinished_promotion_keeps_the_trials_result(ends: list[Event], message: str) -> None:
    ledger = two_finished_trials()
    history = list(ledger.history)
    for event in ends:
        assert ledger.apply(event), event
    trial = ledger.trials[0]
    assert (trial.state, trial.value, trial.ended_at, trial.stopping) == ("finished", 0.9, 2.0, None)
    assert trial.error.splitlines()[0] == message
    assert ("ValueError: no room" in trial.error) == ("ValueError" in message)
    assert (ledger.best, ledger.counts["finished"], ledger.counts["failed"]) == (trial, 2, 0)
    assert ledger.history == history  # the sampler already has its result
    # It can be promoted again, without an error of the first promotion.
    ledger.apply(Promoted(8.0, 0))
    ledger.apply(Started(9.0, 0, trial.attempt + 1, (0,)))
    ledger.apply(Ended(10.0, 0, trial.attempt, "finished", 0.97))
    assert (trial.state, trial.value, trial.error) == ("finished", 0.97, "")


@pytest.mark.parametrize(
    ("state", "value", "kept"),
    [("finished", 0.75, True), ("stopped", 0.75, True), ("failed", None, True), ("finished", 0.95, False)],
)
def test_a_worse_retry_does_not_replace_a_result(state: EndState, value: float | None, kept: bool) -> None:
    events: list[Event] = [Created(0.0, Space({"a": [1, 2]}), 2, 7, "accuracy"), Asked(1.0, 0, {"a": 1}, 0)]
    events += [Started(1.0, 0, 1, (0,)), Reported(0, 1, 3, 0.89, 2.0), Ended(3.0, 0, 1, "stopped")]
    events += [Retried(4.0, 0, "asked"), Started(5.0, 0, 2, (0,)), Retried(5.5, 0, "death")]
    events += [Started(6.0, 0, 3, (0,)), Reported(0, 3, 1, value or 0.1, 6.5)]
    ledger = Ledger.of([*events, Ended(7.0, 0, 3, state, value)])
    trial, curve = ledger.trials[0], ledger.curve(0)
    assert (trial.value, trial.step, trial.trainings) == ((0.89, 3, 0) if kept else (value, 1, 1))
    assert curve is not None
    assert curve.values == ([0.89] if kept else [value])
    assert trial.state == ("finished" if state == "finished" else "stopped")
    assert ("kept is attempt 1, stopped with 0.89" in trial.error) == kept
    assert (ledger.best is trial) == (state == "finished")
    assert (ledger.best_value == trial.value) == (state == "finished")
    assert sum(ledger.counts.values()) == 1


def test_idle_time_does_not_count() -> None:
    """Trials that are added to a finished sweep, or start after a pause, are not late by the time between."""
    ledger = Ledger(Created(100.0, Space({"a": [1, 2]}), 1, 7, "accuracy"))
    events: list[Event] = [
        Asked(101.0, 0, {"a": 1}, 0), Started(101.0, 0, 1, (0,)), Ended(104.0, 0, 1, "finished", 0.8),
        Added(1104.0, 2),
        Asked(1105.0, 1, {"a": 2}, 1), Started(1105.0, 1, 1, (0,)), Paused(1106.0),
        Ended(1110.0, 1, 1, "finished", 0.9),
        Resumed(2110.0),
        Asked(2110.0, 2, {"a": 1}, 2), Started(2110.0, 2, 1, (0,)), Ended(2112.0, 2, 1, "finished", 0.7),
    ]  # fmt: skip
    for event in events:
        assert ledger.apply(event)
    ends = [ledger.trials[number].ended_at or 0.0 for number in range(3)]
    assert [ledger.elapsed(one) for one in ends] == [4.0, 10.0, 12.0]
    assert ledger.elapsed(9999.0) == 12.0
    assert ledger.elapsed(604.0) == 4.0


def test_a_promoted_trial_has_the_parameters_that_it_was_promoted_with() -> None:
    ledger = two_finished_trials()
    trial = ledger.trials[0]
    assert trial.parameters == {"a": 1, "epochs": 9}
    assert (trial.given, trial.epochs, trial.began_with) == ({"a": 1}, 9, "epochs not given")
    ledger.apply(Started(6.0, 0, 2, (0,)))
    ledger.apply(Ended(7.0, 0, 2, "finished", 0.95))
    assert columns(ledger)["epochs"].tolist()[0] == 9
    assert np.isnan(columns(ledger)["epochs"][1])
    ledger.apply(Promoted(8.0, 0, "state.safetensors", None, {"a": 3}))
    assert (trial.given, trial.epochs) == ({"a": 3}, 9)
    assert trial.began_with == "a = 1, epochs not given"
    ledger.apply(Ended(9.0, 0, 2, "stopped"))  # the promotion has not begun
    assert trial.parameters == {"a": 1, "epochs": 9}
    assert ledger.history[0] == Ask(0, {"a": 1}, True)
    assert clone(ledger, 0, {}, 10.0)[0].parameters == {"a": 1}  # type: ignore[union-attr]


@pytest.mark.parametrize("direction", ["max", "min"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_value_that_is_not_finite_is_never_the_best(direction: Direction, value: float) -> None:
    ledger = Ledger(Created(0.0, Space({"a": [1, 2]}), 2, 7, "loss", direction))
    for number, result in enumerate([value, 0.5, value]):
        ledger.apply(Asked(1.0, number, {"a": 1}, number))
        ledger.apply(Started(1.0, number, 1, (0,)))
        ledger.apply(Ended(2.0, number, 1, "finished", result))
        assert (ledger.best and ledger.best.number) == (None if number == 0 else 1)
    assert [one.number for one in ledger.improvements] == [1]


@pytest.mark.parametrize("how", [Stopped(3.0, 0, 1), Pruned(3.0, 0, 1, 5)])
def test_a_trial_that_has_ended_is_not_being_stopped(how: Stopped | Pruned) -> None:
    created = Created(0.0, Space({"a": [1, 2]}), 1, 7, "accuracy")
    ledger = Ledger.of([created, Asked(1.0, 0, {"a": 1}, 7), Started(1.0, 0, 1, (0,)), how])
    trial = ledger.trials[0]
    assert trial.stopping is not None
    ledger.apply(Ended(4.0, 0, 1, trial.stopping))
    assert trial.stopping is None


def test_a_log_without_its_first_record_makes_no_sweep() -> None:
    for events in ([], [Paused(1.0)], EVENTS[1:]):
        with pytest.raises(DataLossError, match="does not say what was swept"):
            Ledger.of(events)


def test_columns_have_a_row_for_each_trial(ledger: Ledger) -> None:
    found = columns(ledger)
    assert list(found) == [
        "trial", "state", "value", "step", "seconds", "attempts", "seed", "parent", "error",
        "lr", "width", "opt", "momentum", "batch", "layers", "flag", "epochs", "loss",
    ]  # fmt: skip
    assert found["state"].tolist() == ["finished", "pruned", "failed", "waiting", "running"]
    np.testing.assert_array_equal(found["value"], [0.5, 0.2, np.nan, np.nan, 0.1])
    np.testing.assert_array_equal(found["seconds"], [3.0, 3.5, 2.0, np.nan, np.nan])
    np.testing.assert_array_equal(found["momentum"], [0.5, np.nan, np.nan, np.nan, 0.5])
    assert found["width"].tolist() == [32, 64, 128, 512, 32]
    assert found["flag"].dtype == bool
    assert found["layers"].tolist() == [(32,), (32, 64), (32, 64), (32, 64), (32,)]
    assert found["parent"].tolist() == [-1, -1, -1, 1, -1]
    frame = table(found)
    assert frame.loc[frame["value"].idxmax(), "lr"] == 0.1


def test_a_parameter_with_the_name_of_a_column_keeps_both() -> None:
    space = Space({"state": [1, 2], "loss": [3]})
    events: list[Event] = [
        Created(0.0, space, 1, 7, "accuracy"), Asked(1.0, 0, {"state": 1, "loss": 3}, 5),
        Started(1.0, 0, 1, (0,)),
        Ended(2.0, 0, 1, "finished", 0.5, {"accuracy": 0.5, "loss": 9.0}),
    ]  # fmt: skip
    found = columns(Ledger.of(events))
    assert (found["parameter_state"][0], found["loss"][0], found["metric_loss"][0]) == (1, 3, 9.0)


def test_a_csv_file_has_the_columns(ledger: Ledger, tmp_path: Path) -> None:
    path = write_csv(ledger, tmp_path / "sweep.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["finished", "pruned", "failed", "waiting", "running"]
    assert (rows[1]["momentum"], rows[1]["lr"], rows[2]["error"]) == ("", "0.01", "Traceback: boom")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["study.log", "study.db"])
def test_an_optuna_study_has_all_trials(ledger: Ledger, tmp_path: Path, file: str) -> None:
    export_study(ledger, tmp_path / file, "sweep")
    storage: object = f"sqlite:///{tmp_path / file}"
    if file.endswith(".log"):
        backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / file))
        storage = optuna.storages.JournalStorage(backend)
    study = optuna.load_study(study_name="sweep", storage=storage)  # type: ignore[arg-type]
    assert [trial.state.name for trial in study.trials] == [
        "COMPLETE",
        "PRUNED",
        "FAIL",
        "WAITING",
        "RUNNING",
    ]
    assert study.best_trial.number == 0
    assert study.best_trial.params == {**FIRST, "layers": "[32]"}
    assert study.best_trial.intermediate_values == {1: 0.25, 2: 0.5}
    assert study.trials[3].params["width"] == 512
    assert study.trials[3].user_attrs["clone of"] == 1
    assert study.trials[2].user_attrs["error"] == "Traceback: boom"
    assert study.best_trial.duration is not None
    assert study.best_trial.duration.total_seconds() == 3.0
    assert study.user_attrs == {"metric": "accuracy", "space": str(ledger.space), "seed": 7}
    sampler = optuna.samplers.RandomSampler(seed=1)
    study.sampler = sampler
    trial = study.ask({name: one.distributions["lr"] for name, one in [("lr", study.best_trial)]})
    assert trial.params["lr"] > 0  # the study can be continued
    with pytest.raises(FailedPreconditionError, match="has a study 'sweep' already"):
        export_study(ledger, tmp_path / file, "sweep")


def test_a_study_of_an_invalid_file_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"\.log, \.journal, \.db or \.sqlite"):
        export_study(ledger, tmp_path / "study.csv", "sweep")


def test_a_study_takes_a_parameter_that_was_a_range_and_then_a_choice(tmp_path: Path) -> None:
    events: list[Event] = [
        Created(0.0, Space({"lr": log(1e-4, 1e-1), "n": integer(1, 8, log=True)}), 2, 7, "accuracy"),
        Asked(1.0, 0, {"lr": 0.01, "n": 3}, 5),
        SpaceEdited(2.0, Space({"lr": ["small", 0.5, 1], "n": integer(0, 20)})),
        Asked(3.0, 1, {"lr": "small", "n": 17}, 6),
    ]
    study = export_study(Ledger.of(events), tmp_path / "study.log", "sweep")
    assert [trial.params for trial in study.trials] == [{"lr": 0.01, "n": 3}, {"lr": "small", "n": 17}]


def test_a_sweep_of_many_trials_is_rebuilt_from_its_log(tmp_path: Path) -> None:
    """Nothing is missing; the time is a benchmark."""
    path = tmp_path / "sweep.log"
    created = Created(0.0, Space({"lr": log(1e-4, 1e-1)}), 500, 7, "accuracy", pruner="asha")
    ledger = Ledger(created)
    scheduler = Scheduler(ledger)
    with EventLog.create(path) as writer:
        writer.append(created)
        while not scheduler.done:
            events: list[Event] = []
            while event := scheduler.next({0}, 1, 1.0):
                events.append(event)
                ledger.apply(event)
                if isinstance(event, Started):
                    break
            number = ledger.next_number - 1
            for step in range(1, 21):
                events.append(Reported(number, 1, step, math.sin(number) * step, 2.0))
                ledger.apply(events[-1])
                if pruned := scheduler.judge(events[-1], 2.0):  # type: ignore[arg-type]
                    events.append(pruned)
                    ledger.apply(pruned)
                    break
            ended = scheduler.end(number, 1, "finished" if step == 20 else "stopped", 3.0)
            assert ended is not None
            ledger.apply(ended)
            writer.append(*events, ended)
    assert ledger.counts["finished"] + ledger.counts["pruned"] == 500
    assert ledger.counts["pruned"] > 100
    assert state_of(Ledger.of(read_events(path).events)) == state_of(ledger)
