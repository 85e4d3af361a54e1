import json
import math
from random import Random

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_shown import BEGAN, SPACE, WIDER, GridModel, ShownSweep, random_event

from nbdist.errors import FailedPreconditionError
from nbdist.sweep.events import Added, Asked, Cloned, Closed, Ended, Reported, Retried, SpaceEdited, Started
from nbdist.sweep.space import Space, integer, log
from nbdist.sweep.state import cause
from nbdist.ui.frozen.sweep import SWEEP, frozen_sweep
from nbdist.ui.widgets.sweep_feed import MANY, SweepFeed, parameters, status

FIRST = {"lr": 0.01, "hidden": 64, "opt": "sgd"}


def sweep_of_three() -> ShownSweep:
    sweep = ShownSweep()
    sweep.run(0, FIRST, [0.5, 0.75], values={"val_accuracy": 0.75, "loss": 0.3})
    sweep.run(1, {**FIRST, "lr": 0.1}, [0.25, math.nan], state="pruned")
    return sweep.tell(Asked(BEGAN + 20, 2, FIRST, 2**62), Started(BEGAN + 20, 2, 1, (1,)))


def page_of(feed: SweepFeed, now: float = BEGAN + 30) -> GridModel:
    page = GridModel()
    page.apply(*feed.everything(now))
    return page


def test_a_snapshot_holds_everything() -> None:
    content, points = SweepFeed(sweep_of_three()).everything(BEGAN + 21.5)
    json.dumps(content, allow_nan=False)
    assert content["head"]["began"] == BEGAN
    assert content["head"]["engines"] == [[0, "/job:worker/task:0"], [1, "/job:worker/task:1"]]
    assert content["head"]["again"] == "to reconnect, run nb.attach('261120-2130-mnist')"
    assert content["status"] == {
        "state": "running",
        "now": 21.5,
        "wanted": 24,
        "counts": {"waiting": 0, "running": 1, "finished": 1, "pruned": 1, "stopped": 0, "failed": 0},
        "engines": [[0, "free", None], [1, "busy", 2]],
        "trouble": None,
        "best": 0,
        "trials_per_second": 0.093,
        "seconds_left": 237,
        "closed": False,
    }
    trials = content["trials"]
    assert trials["number"] == [0, 1, 2]
    assert trials["state"] == [2, 3, 1]
    assert trials["value"] == [0.75, "NaN", None]
    assert trials["stopping"] == [None, None, None]  # of those that run only
    assert trials["seed"] == [str(2**60), str(2**60 + 1), str(2**62)]
    assert (trials["started"], trials["ended"]) == ([0.0, 10.0, 20.0], [9.0, 19.0, None])
    assert trials["ranks"] == [[0], [1], [1]]
    assert trials["parameters"] == {"lr": [0.01, 0.1, 0.01], "hidden": [64] * 3, "opt": ["sgd"] * 3}
    assert trials["metrics"] == {"loss": [0.3, None, None]}
    assert content["points"] == {"number": [0, 1], "count": [2, 2]}
    assert np.frombuffer(points, "<f4")[:4].tolist() == [1.0, 0.5, 2.0, 0.75]
    assert content["spans"] == [[0, 1, [0], 0.0, 9.0, "finished"], [1, 1, [1], 10.0, 19.0, "pruned"]]
    assert content["best"] == [[9.0, 0, 0.75]]


def test_news_hold_what_is_new_only() -> None:
    sweep = sweep_of_three()
    feed = SweepFeed(sweep)
    feed.everything(BEGAN + 21)
    assert feed.news(BEGAN + 21.1) == ({}, b"")
    sweep.tell(Reported(2, 1, 1, 0.5, BEGAN + 21.2))
    content, points = feed.news(BEGAN + 21.2)
    assert set(content) == {"snapshot", "trials", "points"}
    assert content["trials"]["number"] == [2]
    assert content["points"] == {"number": [2], "count": [1]}
    assert len(points) == 8
    sweep.tell(Ended(BEGAN + 21.3, 2, 1, "finished", 0.9, {"val_accuracy": 0.9, "top5": 1.0}))
    content, points = feed.news(BEGAN + 21.3)
    assert set(content) == {"snapshot", "status", "trials", "spans", "best"}
    assert content["trials"]["metrics"] == {"loss": [None], "top5": [1.0]}
    assert points == b""


def test_the_time_is_sent_each_second_until_the_end() -> None:
    sweep = sweep_of_three()
    feed = SweepFeed(sweep)
    feed.everything(BEGAN + 21)
    sent = [feed.news(BEGAN + 21 + tick / 10).content for tick in range(1, 31)]
    assert [content["status"]["now"] for content in sent if content] == [22.0, 23.0, 24.0]
    sweep.end()
    assert feed.news(BEGAN + 25).content["status"]["now"] == 19.0  # when the last trial ended
    assert feed.news(BEGAN + 99).content == {}


def test_an_edit_and_new_engines_bring_a_new_head() -> None:
    sweep = sweep_of_three()
    feed = SweepFeed(sweep)
    feed.everything(BEGAN + 21)
    sweep.tell(SpaceEdited(BEGAN + 21, WIDER))
    head = feed.news(BEGAN + 21.1).content["head"]
    assert head["space"] == str(WIDER)
    assert head["parameters"][-2:] == [
        {"name": "momentum", "kind": "choice", "values": [0.0, 0.9], "text": "[0.0, 0.9]",
         "when": "opt is 'sgd'"},
        {"name": "depth", "kind": "int", "low": 1, "high": 3, "step": 1, "log": False, "text": "int(1, 3)",
         "when": None},
    ]  # fmt: skip
    sweep.size = 3
    assert len(feed.news(BEGAN + 21.2).content["head"]["engines"]) == 3


def test_engines_that_are_not_named_any_more_keep_their_places() -> None:
    sweep = sweep_of_three()
    feed = SweepFeed(sweep)
    named = feed.everything(BEGAN + 21).content["head"]["engines"]
    sweep.size = 0
    assert "head" not in feed.news(BEGAN + 22).content
    assert feed.everything(BEGAN + 22).content["head"]["engines"] == named
    attached = SweepFeed(sweep).everything(BEGAN + 22).content["head"]["engines"]
    assert attached == [[0, "rank 0"], [1, "rank 1"]]


def test_every_kind_of_parameter_is_described() -> None:
    space = Space({"a": log(1e-3, 1), "b": integer(1, 64, log=True), "c": [(1, 2), None], "d": 5})
    assert [(one["kind"], one["text"]) for one in parameters(space)] == [
        ("log", "log(0.001, 1.0)"), ("int", "int(1, 64, log=True)"), ("choice", "[[1, 2], None]"),
        ("fixed", "5"),
    ]  # fmt: skip
    assert parameters(space)[2]["values"] == [[1, 2], None]


def test_a_curve_that_was_forgotten_or_thinned_is_sent_again() -> None:
    sweep = sweep_of_three()
    feed = SweepFeed(sweep)
    page = page_of(feed)
    sweep.tell(*(Reported(2, 1, step, step / 1000, BEGAN + 21) for step in range(1, 11)))
    page.apply(*feed.news(BEGAN + 21))
    assert len(page.curves[2]) == 10
    sweep.tell(Reported(2, 1, 4, 0.5, BEGAN + 22))  # again for a step that it has reported
    content, points = feed.news(BEGAN + 22)
    assert content["replaced"] == [2]
    page.apply(content, points)
    assert page.curve(2)[3] == (4.0, 0.5)
    sweep.tell(
        Retried(BEGAN + 23, 2, "asked"), Started(BEGAN + 23, 2, 2, (0,)), Reported(2, 2, 1, 0.25, BEGAN)
    )
    page.apply(*feed.news(BEGAN + 23))
    assert page.curve(2) == [(1.0, 0.25)]
    sweep.tell(Retried(BEGAN + 24, 2, "asked"))
    assert feed.news(BEGAN + 24).content["replaced"] == [2]


def test_a_long_curve_is_thinned_and_keeps_its_extremes() -> None:
    sweep = sweep_of_three()
    values = np.random.default_rng(0).random(2000)
    values[1234] = 7.0
    feed = SweepFeed(sweep)
    page = page_of(feed)
    for start in range(0, 2000, 3):
        some = range(start, min(start + 3, 2000))
        sweep.tell(*(Reported(2, 1, step, values[step], BEGAN + 21) for step in some))
        page.apply(*feed.news(BEGAN + 21))
        assert len(page.curves[2]) <= 256
    assert max(page.curve(2), key=lambda point: point[1]) == (1234.0, 7.0)
    assert page.seen() == page_of(SweepFeed(sweep)).seen()


def test_many_trials_have_short_curves_and_errors() -> None:
    sweep = ShownSweep(trials=1000)
    feed = SweepFeed(sweep)
    page = page_of(feed)
    for number in range(MANY + 2):
        sweep.run(number, FIRST, [0.5] * 100, state="failed", error="x" * 1000)
        if number % 100 == 50:
            page.apply(*feed.news(BEGAN))
            assert len(page.curves[number]) == 100
            assert len(page.trials[number]["error"]) == 400
    content, points = feed.news(BEGAN)
    assert content["snapshot"]
    page.apply(content, points)
    assert max(map(len, page.curves.values())) <= 64
    assert len(page.trials[0]["error"]) == 120


def test_what_is_wanted_counts_clones_and_what_was_added() -> None:
    sweep = sweep_of_three()
    sweep.tell(Added(BEGAN, 6), *(Cloned(BEGAN + 21, n, FIRST, n, 0) for n in (3, 4)))
    assert status(sweep, BEGAN + 21)["wanted"] == 24 + 6 + 2
    sweep.tell(Closed(BEGAN + 22)).end("stopped")
    stands = status(sweep, BEGAN + 99)
    assert (stands["closed"], stands["seconds_left"], stands["now"]) == (True, None, 19.0)


@pytest.mark.parametrize("state", ["paused", "finished", "stopped", "failed"])
def test_nothing_is_left_to_wait_for_unless_it_runs(state: str) -> None:
    sweep = sweep_of_three()
    sweep.state = state
    assert status(sweep, BEGAN + 30)["seconds_left"] is None


def test_a_sweep_without_a_trial_is_sent() -> None:
    content, points = SweepFeed(ShownSweep()).everything(BEGAN)
    assert content["trials"]["number"] == []
    assert content["status"]["best"] is content["status"]["trials_per_second"] is None
    assert points == b""


def test_a_failed_sweep_says_why_at_its_head() -> None:
    sweep = ShownSweep().end("failed")
    sweep.error = FailedPreconditionError(
        "all of the first 4 trials failed. Trial 0 (lr=1):\nTraceback:\n  x\nValueError: 7"
    )
    trouble = "all of the first 4 trials failed. Trial 0 (lr=1): ValueError: 7"
    assert SweepFeed(sweep).everything(BEGAN).content["status"]["trouble"] == trouble
    assert frozen_sweep(sweep)[SWEEP]["status"]["trouble"] == trouble


def test_a_cause_is_a_line() -> None:
    trace = 'Traceback (most recent call last):\n  File "<trial>", line 1\n    1 / 0\nValueError: <7>\n  more'
    assert cause(trace) == "ValueError: <7>"
    assert cause("  \nits engine died\ntwice") == "its engine died"
    assert cause("") == ""


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32), st.floats(0, 0.5))
def test_a_page_that_took_all_news_has_what_a_new_one_gets(seed: int, quiet: float) -> None:
    dice = Random(seed)
    sweep = ShownSweep(SPACE)
    feed = SweepFeed(sweep)
    page = page_of(feed)
    for tick in range(80):
        sweep.tell(*random_event(sweep, dice, BEGAN + tick))
        if dice.random() < quiet:
            continue
        content, points = feed.news(BEGAN + tick)
        json.dumps(content, allow_nan=False)
        if content:
            page.apply(content, points)
    content, points = feed.news(BEGAN + 100)
    page.apply(content, points)
    fresh = page_of(SweepFeed(sweep), BEGAN + 100)
    assert page.seen() == fresh.seen()
    assert page.status == fresh.status
