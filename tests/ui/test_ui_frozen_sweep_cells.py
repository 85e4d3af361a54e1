"""The heat maps of all trials in the output of a sweep that keeps only some of the trials."""

import math
from collections import Counter
from collections.abc import Iterator
from random import Random
from statistics import median
from typing import Any

import pytest
from sweep_shown import ShownSweep

from nbdist.sweep.space import Space, choice, integer, log, uniform, when
from nbdist.sweep.state import STATES, Trial
from nbdist.ui.frozen.sweep import MOST_TRIALS, trial_data
from nbdist.ui.frozen.sweep_cells import FIELDS, MOST_BINS, MOST_VALUES, cells_of

SPACE = Space(
    {
        "lr": log(1e-4, 1e-1),
        "opt": choice("sgd", "adam"),
        "momentum": when(uniform(0, 0.99), opt="sgd"),
        "width": integer(16, 128),
        "depth": integer(1, 4),
        "many": choice(*range(20, 0, -1)),
    }
)
NAMES = list(SPACE)


@pytest.fixture(scope="module")
def sweep() -> ShownSweep:
    return swept(400)


def swept(trials: int) -> ShownSweep:
    """Return a sweep whose trials end in all ways; some values are equal, some are not finite."""
    dice, sweep = Random(1), ShownSweep(SPACE, trials, direction="min")
    for number in range(trials):
        parameters = SPACE.fill(lambda _, one: one.draw(dice.random()))
        state = dice.choice(["finished"] * 4 + ["pruned", "stopped", "failed"])
        value = dice.choice([math.nan, math.inf, -math.inf] + [round(dice.random(), 2)] * 17)
        sweep.run(number, parameters, [value], state=state, error="E" if state == "failed" else "")
    return sweep


def holds(bins: dict[str, Any], place: int, name: str, trial: Trial) -> bool:
    """Whether a trial belongs into a bin, told from its parameter alone."""
    if name not in trial.parameters:
        return bool(bins.get("none")) and place == len(bins.get("values", bins.get("edges", [])[1:]))
    value: Any = trial.parameters[name]
    if "values" in bins:
        return place < len(bins["values"]) and value in bins["values"][place]
    last = len(bins["edges"]) - 2
    if place > last:
        return False
    low, high = bins["edges"][place : place + 2]
    return bool((place == 0 or low <= value) and (place == last or value < high))


def rows(cells: str) -> Iterator[list[float]]:
    numbers = [float(one) for one in cells.split()]
    assert len(numbers) % FIELDS == 0
    yield from (numbers[at : at + FIELDS] for at in range(0, len(numbers), FIELDS))


def test_counts_best_and_median_of_each_cell_are_those_of_all_trials(sweep: ShownSweep) -> None:
    ledger = sweep.ledger
    found = cells_of(ledger, NAMES, lambda _: True)
    assert len(found["pairs"]) == math.comb(len(NAMES), 2)
    for pair in found["pairs"]:
        x, y = pair["x"], pair["y"]
        counted = 0
        for across, up, best, value, middle, *counts in rows(pair["cells"]):
            there = [
                one
                for one in ledger.trials.values()
                if holds(found["bins"][x], int(across), x, one) and holds(found["bins"][y], int(up), y, one)
            ]
            states = Counter(one.state for one in there)
            assert counts == [states[state] for state in STATES]
            counted += len(there)
            valued = [one for one in there if one.value is not None and not math.isnan(one.value)]
            first = min(
                valued,
                key=lambda one: (
                    one.state != "finished" or not math.isfinite(one.value),
                    one.value,
                    one.number,
                ),
                default=None,
            )
            assert best == (-1 if first is None else first.number)
            if first is not None:
                assert value == first.value
                assert middle == pytest.approx(median([one.value or 0.0 for one in valued]), nan_ok=True)
        assert counted == len(ledger.trials)


def test_the_bins_are_few_and_in_the_order_of_the_space(sweep: ShownSweep) -> None:
    bins = cells_of(sweep.ledger, NAMES, lambda _: True)["bins"]
    assert bins["lr"]["edges"] == [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
    assert bins["opt"] == {"values": [["sgd"], ["adam"]]}
    assert bins["depth"] == {"values": [[1], [2], [3], [4]]}
    assert bins["momentum"]["none"] is True
    assert len(bins["width"]["edges"]) <= MOST_BINS + 1
    assert len(bins["many"]["values"]) <= MOST_VALUES
    assert [value for group in bins["many"]["values"] for value in group] == list(range(20, 0, -1))


def test_what_does_not_fit_is_left_out_and_the_grids_own_pair_comes_first(sweep: ShownSweep) -> None:
    names = ["depth", "opt", "width", "lr"]
    two = cells_of(sweep.ledger, names, lambda found: len(found["pairs"]) <= 2)
    assert [(one["x"], one["y"]) for one in two["pairs"]] == [("lr", "width"), ("lr", "depth")]
    assert set(two["bins"]) == {"lr", "width", "depth"}
    assert cells_of(sweep.ledger, names, lambda _: False) == {"bins": {}, "pairs": []}
    assert cells_of(ShownSweep(SPACE).ledger, [], lambda _: True) == {"bins": {}, "pairs": []}


def test_an_output_has_them_if_it_leaves_out_trials(sweep: ShownSweep) -> None:
    data = trial_data(sweep, 30_000)
    assert data["shown"] < data["of"] == 400 > MOST_TRIALS
    counts = sum(
        sum(counts) for *_, counts in ((row[5:],) for row in rows(data["cells"]["pairs"][0]["cells"]))
    )
    assert counts == 400
    assert "cells" not in trial_data(swept(5), 30_000)
