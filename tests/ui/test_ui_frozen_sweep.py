import base64
import io
import json
import math
import re
from random import Random
from typing import Any

import nbformat
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sweep_shown import BEGAN, GridModel, ShownSweep, random_event
from tiers import exhaustive, matrix

from nbdist.errors import DataLossError
from nbdist.sweep.events import Asked, Cloned, SpaceEdited
from nbdist.sweep.space import Space, choice, integer, log, uniform, when
from nbdist.ui.frozen.sweep import SWEEP, frozen_sweep, size, sweep_data, trial_data, with_curves
from nbdist.ui.frozen.sweep_axes import Scale, all_ranked, axis_of, by_weight, groups, ranked, widest
from nbdist.ui.frozen.sweep_figure import parallel
from nbdist.ui.widgets.sweep_feed import ended_at

LIMIT = 150_000
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>$\\frac{"
FULL = Space(
    {
        "lr": log(1e-4, 1e-1),
        "hidden": [32, 64, 128],
        "opt": ["sgd", "adam"],
        "momentum": when(uniform(0, 0.99), opt="sgd"),
        "batch": integer(16, 128, log=True),
        "epochs": 5,
    }
)


@pytest.mark.parametrize("lacks", [False, True])
def test_a_figure_has_a_row_for_missing_values_only_if_one_is_missing(lacks: bool) -> None:
    from matplotlib.figure import Figure

    space = Space({"lr": log(1e-4, 1e-1), "opt": ["sgd", "adam"]})
    sweep = ShownSweep(space=space).run(0, {"lr": 0.01, "opt": "sgd"}, [0.5])
    sweep.run(1, {"lr": 0.02} if lacks else {"lr": 0.02, "opt": "adam"}, [0.7])
    axes = Figure().subplots()
    trials = [trial for trial in sweep.ledger.trials.values() if trial.value is not None]
    assert len(trials) == 2
    parallel(axes, sweep.ledger, trials, ["lr", "opt"], Scale((0.5, 0.7), "max"))
    assert ("none" in [text.get_text() for text in axes.texts]) is lacks


def swept(space: Space, trials: int, seed: int = 0, **created: Any) -> ShownSweep:
    """Return a sweep whose trials end in all ways, with curves that differ."""
    dice = Random(seed)
    sweep = ShownSweep(space, trials, **created)
    for number in range(trials):
        parameters = space.fill(lambda _, one: one.draw(dice.random()))
        state = dice.choice(["finished", "finished", "finished", "pruned", "failed"])
        last = 0.9 - (math.log10(float(parameters.get("lr", 0.01))) + 2) ** 2 / 20 + dice.gauss(0, 0.01)  # type: ignore[arg-type]
        curve = [last * (1 - math.exp(-step / 3)) for step in range(1, 4 if state == "pruned" else 13)]
        error = "Traceback (most recent call last):\n  ...\nValueError: 7" if state == "failed" else ""
        sweep.run(number, parameters, curve, state=state, error=error, values={"loss": 1 - last})
    return sweep.end()


def test_lone_surrogates_can_be_saved(coarse: None) -> None:
    odd = "caf\udce9 \ud800"
    sweep = ShownSweep(Space({"opt": ["sgd", odd]}), 2)
    sweep.run(0, {"opt": odd}, [0.5, 0.6])
    sweep.run(1, {"opt": "sgd"}, [0.5], state="failed", error=f"ValueError: {odd}")
    assert bytes_in_a_notebook(frozen_sweep(sweep.end()))


def bytes_in_a_notebook(bundle: dict[str, Any]) -> int:
    """The size in a file, where the items of a JSON list take a line each."""
    output = nbformat.v4.new_output("display_data", data=bundle)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=[output])])
    nbformat.validate(notebook)
    return len(nbformat.writes(notebook).encode())


def checked(sweep: ShownSweep) -> dict[str, Any]:
    """Return the bundle, with what is true of each."""
    bundle = frozen_sweep(sweep)
    assert bytes_in_a_notebook(bundle) < LIMIT
    json.dumps(bundle[SWEEP], allow_nan=False)
    assert "<script" not in bundle["text/html"]
    if png := bundle.get("image/png"):
        picture = Image.open(io.BytesIO(base64.b64decode(png)))
        assert picture.width > 600
        assert picture.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
        assert png in bundle["text/html"]
    data = bundle[SWEEP]
    assert data["shown"] == len(data["trials"].get("number", ()))
    assert data["of"] == len(sweep.ledger.trials)
    return bundle


def points_of(data: dict[str, Any], number: int) -> tuple[list[float], list[float]]:
    """The steps and the values of a curve in the data."""
    points = np.frombuffer(base64.b64decode(data["curves"][str(number)]), "<f4").reshape(-1, 2)
    return points[:, 0].tolist(), points[:, 1].tolist()


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of fewer dots, where only what is drawn matters: they fit at once."""
    monkeypatch.setattr("nbdist.ui.frozen.sweep_figure.SHARPEST", 80)


def test_it_holds_picture_table_text_and_data() -> None:
    sweep = swept(FULL, 24)
    bundle = checked(sweep)
    assert set(bundle) == {"image/png", "text/html", "text/plain", SWEEP}
    best = sweep.ledger.best
    assert best is not None
    assert f"best val_accuracy {best.value:.4g} (trial {best.number}: lr=" in bundle["text/plain"]
    assert "✓ finished · 24 of 24 trials" in bundle["text/html"]
    assert bundle["text/html"].count("<tr>") == 1 + 10
    data = bundle[SWEEP]
    assert (data["shown"], data["of"], data["snapshot"]) == (24, 24, True)
    for number in sweep.ledger.trials:  # a short curve is there as it is
        curve = sweep.ledger.curve(number)
        assert curve is not None
        steps, values = points_of(data, number)
        assert steps == curve.steps
        assert values == pytest.approx(curve.values)
    assert "left_out" not in data


def test_the_picture_has_the_axes_of_the_grid_and_all_trials_with_a_value() -> None:
    sweep = swept(FULL, 60)
    assert widest(sweep.ledger) == ["lr", "batch"]  # as widest() of widget/src/sweep/figures/bins.js
    states = [one.state for one in all_ranked(sweep.ledger)]
    finished = states.count("finished")
    assert states[:finished] == ["finished"] * finished
    assert "pruned" in states[finished:]
    assert ranked(sweep.ledger) == all_ranked(sweep.ledger)[:finished]
    assert ranked(sweep.ledger)[0] is sweep.ledger.best


@exhaustive
def test_long_curves_keep_their_shape() -> None:
    """A trial that is good after a thousandth of its steps is drawn so, also after very many reports."""
    sweep = ShownSweep(trials=100)
    for number in range(100):
        dice = Random(number)
        curve = [0.95 * min(1.0, step / 40) + dice.gauss(0, 0.002) for step in range(4_000)]
        sweep.run(number, {"lr": 0.1 * number, "hidden": 32, "opt": "sgd"}, curve)
    bundle = checked(sweep.end())
    data = bundle[SWEEP]
    assert len(data["curves"]) == data["shown"] > 50
    assert "left_out" not in data
    for number in map(int, data["curves"]):
        steps, values = points_of(data, number)
        assert (steps[0], steps[-1]) == (1, 4_000)
        risen = next(step for step, value in zip(steps, values, strict=True) if value > 0.9)
        assert risen <= 60  # of 4,000
        assert np.interp([10, 20, 30], steps, values) == pytest.approx([0.24, 0.48, 0.71], abs=0.05)
    assert bytes_in_a_notebook(bundle) > 100_000  # the room is used


def test_curves_that_have_no_room_are_counted() -> None:
    sweep = swept(FULL, 150)
    data = trial_data(sweep, 30_000)
    numbers = data["trials"]["number"]
    some = with_curves(data, sweep.ledger, 5_000)
    assert some["left_out"] == len(numbers) - len(some["curves"]) > 0
    assert list(some["curves"]) == [str(number) for number in numbers[: len(some["curves"])]]  # the best
    assert size(some) - size(data) <= 5_000 + 100
    assert with_curves(data, sweep.ledger, 0)["left_out"] == len(numbers)


def test_the_data_is_a_snapshot_that_a_page_takes() -> None:
    sweep = swept(FULL, 12)
    data = sweep_data(sweep, LIMIT)
    page = GridModel()
    page.apply(data, b"")
    assert page.trials.keys() == sweep.ledger.trials.keys()
    assert [tuple(row[:2]) for row in page.spans] == [(one.number, 1) for one in sweep.ledger.spans]
    assert page.head["space"] == str(FULL)
    for number, row in page.trials.items():
        given = {name: value for name, value in row["parameters"].items() if value is not None}
        assert given == {
            name: value for name, value in sweep.ledger.trials[number].parameters.items() if name in given
        }


@pytest.mark.parametrize("state", ["failed", "running", "stopped", "paused"])
def test_each_end_is_said(state: str) -> None:
    sweep = ShownSweep().end(state)  # without a picture, which does not say it
    sweep.error = DataLossError("the log cannot be written: <disk full>") if state == "failed" else None
    bundle = checked(sweep)
    assert f" {state} ·" in bundle["text/plain"]
    said = "DataLossError: the log cannot be written: &lt;disk full&gt;"
    assert (said in bundle["text/html"]) == (state == "failed")


def test_what_failed_first_is_shown() -> None:
    sweep = ShownSweep()
    sweep.run(0, {"lr": 0.1, "hidden": 32, "opt": "sgd"}, [0.5])
    for number in (1, 2):
        sweep.run(
            number, {"lr": 0.1, "hidden": 32, "opt": "sgd"}, [], state="failed", error=f"<b>no {number}</b>"
        )
    bundle = checked(sweep.end())
    assert "trial 1 failed first, of 2:" in bundle["text/html"]
    assert "<pre>&lt;b&gt;no 1&lt;/b&gt;</pre>" in bundle["text/html"]
    assert bundle["text/plain"].endswith("trial 1 failed first, of 2:\n<b>no 1</b>")
    assert "1 finished · 2 failed" in bundle["text/plain"]


def test_nothing_completed(coarse: None) -> None:
    sweep = ShownSweep()
    for number in range(4):
        sweep.run(number, {"lr": 10.0**-number, "hidden": 32, "opt": "sgd"}, [0.1, 0.2], state="pruned")
    bundle = checked(sweep.end())
    assert "4 pruned; no trial finished; those with a value:" in bundle["text/plain"]
    assert "pruned" in bundle["text/plain"].splitlines()[5]
    assert "image/png" in bundle


def test_nothing_has_a_value() -> None:
    sweep = ShownSweep().tell(Asked(BEGAN, 0, {"lr": 0.1, "hidden": 32, "opt": "sgd"}, 1))
    sweep.run(1, {"lr": 0.1, "hidden": 32, "opt": "sgd"}, [math.nan], state="failed", error="")
    bundle = checked(sweep.end("stopped"))
    assert "1 waiting · 1 failed; none has a value" in bundle["text/plain"]
    assert "image/png" not in bundle
    assert bundle[SWEEP]["trials"]["value"] == [None, "NaN"]


def test_no_trial_at_all() -> None:
    bundle = checked(ShownSweep().end("stopped"))
    assert "0 of 24 trials" in bundle["text/plain"]
    assert "no trial was drawn" in bundle["text/html"]
    assert (bundle[SWEEP]["shown"], bundle[SWEEP]["curves"]) == (0, {})


def test_one_trial(coarse: None) -> None:
    sweep = ShownSweep(trials=1).run(0, {"lr": 0.1, "hidden": 32, "opt": "sgd"}, [0.5, 0.75]).end()
    bundle = checked(sweep)
    assert "1 of 1 trial ·" in bundle["text/plain"]
    assert "image/png" in bundle


@exhaustive
def test_ten_thousand_trials() -> None:
    sweep = swept(FULL, 10_000)
    bundle = checked(sweep)
    data = bundle[SWEEP]
    # The attempts are a sample; how busy the engines were is not.
    ranks = sum(len(span.ranks) * (span.end - span.start) for span in sweep.ledger.spans)
    took = ended_at(sweep.ledger) - sweep.ledger.created.time
    assert sum(share for _, share in data["status"]["busy"]) == pytest.approx(ranks / took, rel=0.01)
    assert data["of"] == 10_000
    assert 24 <= data["shown"] <= 200
    assert len(data["curves"]) == data["shown"]
    assert "10,000 of 10,000 trials" in bundle["text/plain"]


@pytest.mark.parametrize(
    "space",
    matrix(
        [
            Space({"lr": log(1e-4, 1e-1)}),
            Space({"width": integer(1, 9), "rate": uniform(-1e300, 1e300)}),
            Space({"shape": [(1, 2), (3, 4), None, True, "x", 1, 1.5], "lr": log(1e-4, 1e-1)}),
            Space({"same": 5}),
            Space({"a": [0, 1], "b": when(uniform(0, 1), a=1), "c": when(uniform(0, 1), a=0)}),
        ],
        rest=[
            Space({f"p{i}": uniform(0, 1) for i in range(40)}),
            Space({"hidden": [32, 64]}),
            Space({"hidden": [32, 64], "opt": ["sgd", "adam"]}),
        ],
    ),
    ids=str,
)
def test_each_kind_of_space(space: Space, coarse: None) -> None:
    assert "image/png" in checked(swept(space, 20, direction="min" if len(space) > 1 else "max"))


def test_odd_values_are_drawn_around(coarse: None) -> None:
    sweep = ShownSweep()
    for number, value in enumerate([0.5, math.nan, math.inf, -math.inf, 1e308, -1e308, 0.75]):
        sweep.run(number, {"lr": 0.1 * (number + 1), "hidden": 32, "opt": "sgd"}, [value, value], value=value)
    data = checked(sweep.end())[SWEEP]
    assert {"NaN", "Infinity", "-Infinity"} <= set(data["trials"]["value"])


def test_hostile_texts_stay_texts() -> None:
    long = HOSTILE * 200
    space = Space(
        {"opt": choice(HOSTILE, long, "\ud800\x00\x1b" * 50), "trial": [1, 2], "val_accuracy": [1, 2]}
    )
    sweep = ShownSweep(space, metric="val_accuracy")
    sweep.name = sweep.id = HOSTILE
    dice = Random(1)
    for number in range(12):
        parameters = space.fill(lambda _, one: one.draw(dice.random()))
        sweep.run(number, parameters, [0.1, 0.2], state="finished", values={HOSTILE: 0.5, long: 1.0})
    sweep.run(12, {"opt": HOSTILE}, [], state="failed", error=long)
    sweep.error = DataLossError(long)
    sweep.trouble = long
    bundle = frozen_sweep(sweep.end("failed"))
    assert len(json.dumps(bundle)) < LIMIT
    assert not re.search(r"<(script|img src=x)", bundle["text/html"])
    assert "parameter trial" in bundle["text/plain"]
    assert "parameter val_accuracy" in bundle["text/plain"]


@pytest.mark.slow
def test_a_space_with_very_much_in_it_fits() -> None:
    space = Space({f"{'p' * 300}{i}": choice(*(f"é{'y' * 300}{n}" for n in range(60))) for i in range(20)})
    sweep = swept(space, 40)
    sweep.ledger.created.settings["note"] = "x"
    data = checked(sweep)[SWEEP]
    assert len(data["head"]["parameters"]) == 12


def test_parameters_that_an_edit_took_out_are_shown_still(coarse: None) -> None:
    sweep = ShownSweep(Space({"lr": log(1e-4, 1e-1), "old": uniform(0, 1)}))
    for number in range(9):
        sweep.run(number, {"lr": 0.01, "old": number / 9}, [number / 9])
    sweep.tell(
        SpaceEdited(BEGAN + 99, Space({"lr": log(1e-4, 1e-1)})), Cloned(BEGAN + 99, 9, {"lr": 5.0}, 1, 0)
    )
    bundle = checked(sweep.end())
    assert "the space was edited once" in bundle["text/plain"]
    assert by_weight(sweep.ledger)[0] == "old"


@pytest.mark.slow
@settings(max_examples=examples(5))
@given(st.integers(0, 2**32))
def test_whatever_happened_it_freezes(seed: int) -> None:
    dice = Random(seed)
    sweep = ShownSweep()
    for tick in range(120):
        sweep.tell(*random_event(sweep, dice, BEGAN + tick))
    checked(sweep.end(dice.choice(["finished", "stopped", "failed"])))


def test_the_parameter_that_explains_most_comes_first() -> None:
    space = Space({"noise": uniform(0, 1), "many": list(range(50)), "lr": log(1e-4, 1e-1)})
    assert by_weight(swept(space, 60).ledger)[0] == "lr"


def test_numbers_are_grouped_and_texts_are_not() -> None:
    assert len(set(groups([one / 100 for one in range(100)]).tolist())) == 6
    assert len(set(groups([str(one) for one in range(10)]).tolist())) == 10


def test_a_scale_does_not_stretch_to_what_diverged() -> None:
    scale = Scale.of([0.1, 0.2, 0.3, 0.15, 1e9], "min")
    assert scale.share(0.1) == 1.0
    assert scale.share(1e9) == scale.share(math.nan) == scale.share(None) == 0.0
    assert 0.2 < scale.share(0.2) < 0.8
    assert Scale.of([0.5], "max").share(0.5) == 1.0


def test_an_axis_has_a_place_for_each_value() -> None:
    few = axis_of("width", [32, 64, 32, 64, 64, 32], integer(1, 999))
    assert few.values == (32, 64)
    wide = axis_of("rate", [-1e308, 1e308, 0.0], uniform(-1e308, 1e308))
    assert [wide.place(value) for value in (-1e308, 0.0, 1e308)] == [0.0, 0.5, 1.0]
    assert np.isnan(wide.place("x"))
    assert np.isnan(few.place(5))
    mixed = axis_of("odd", [1, "b", None, "a"], None)
    assert mixed.values == (1, "a", "b", None)
