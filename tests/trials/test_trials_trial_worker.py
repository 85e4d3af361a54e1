"""Trials on real engines: names, seeds, metrics, errors, output."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trials_tools import GATED, TRAIN, began, finished, losses, states
from waiting import until

from nbdist.errors import InvalidArgumentError, WorkerError
from nbdist.run.options import Options
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.trials.sweep import Sweep

pytestmark = pytest.mark.engines
Begin = Callable[..., "Sweep"]


def by_number(width: int) -> float:
    return width / 100


def by_dict(width: int) -> dict[str, Any]:
    import numpy as np

    return {"accuracy": np.float32(width / 128), "loss": 1 - width, "model": None, "text": "x"}


def by_history(lr: float) -> Any:
    import numpy as np

    import nbdist as nb

    x, y = np.eye(6, 4, dtype=np.float32), np.arange(6) % 3
    model = nb.nn.Sequential([nb.nn.Dense(3, "softmax")])
    model.compile(nb.optim.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model.fit(x, y, batch_size=3, epochs=2, validation_data=(x, y))


for function in (by_number, by_dict, by_history):
    function.__module__ = "__main__"  # as if defined in the notebook: engines cannot import this file


def not_there(width: int) -> float:
    return width


def test_a_function_that_cannot_be_sent_ends_the_sweep(begin: Begin, cluster: Cluster) -> None:
    sweep = begin(not_there, "width=[1, 2]", cluster=cluster)
    with pytest.raises(WorkerError, match="No module named 'test_trials_trial_worker'"):
        finished(sweep)
    assert sweep.state == "failed"
    start_run("alive = 1", Options(), cluster=cluster).wait()


def test_the_value_that_a_function_returns_is_its_metric(begin: Begin, cluster: Cluster) -> None:
    sweep = finished(begin(by_number, "width=[32, 64, 96]", cluster=cluster))
    assert [trial.value for trial in sweep.trials] == [0.32, 0.64, 0.96]
    assert (sweep.best.number, sweep.state) == (2, "finished")  # type: ignore[union-attr]
    sweep = finished(begin(by_dict, "width=[32, 64]", cluster=cluster))
    assert [trial.value for trial in sweep.trials] == [0.25, 0.5]
    assert sweep.trial(1).values == {"accuracy": 0.5, "loss": -63.0}
    sweep = finished(begin(by_history, "lr=[0.1, 0.2]", metric="val_loss", direction="min", cluster=cluster))
    assert states(sweep) == ["finished", "finished"]
    assert {"val_loss", "val_accuracy", "loss", "accuracy"} <= set(sweep.trial(0).values)
    assert sweep.ledger.curve(0) is not None
    assert sweep.ledger.curve(0).values[-1] == pytest.approx(sweep.trial(0).value)  # type: ignore[union-attr]
    assert sweep.model(0).predict(__import__("numpy").eye(6, 4)).shape == (6, 3)


def test_a_text_reports_by_a_variable_by_log_and_by_fit(begin: Begin, cluster: Cluster) -> None:
    sweep = finished(begin("accuracy = width * 2", "width=[1, 2]", cluster=cluster))
    assert [trial.value for trial in sweep.trials] == [2, 4]
    body = "for step in range(5):\n    nb.log(accuracy=width + step, step=step)"
    sweep = finished(begin(body, "width=[1, 2]", cluster=cluster))
    assert [(trial.state, trial.value, trial.step) for trial in sweep.trials] == [
        ("finished", 5.0, 4),
        ("finished", 6.0, 4),
    ]
    assert sweep.ledger.curve(1).values == [2.0, 3.0, 4.0, 5.0, 6.0]  # type: ignore[union-attr]
    body = TRAIN.format(optimizer="Adam", epochs=3, callbacks=[])
    sweep = finished(begin(body, "lr=[0.01, 0.1]", metric="val_accuracy", cluster=cluster))
    assert states(sweep) == ["finished"] * 2
    assert len(losses(sweep, 0)) == 9


def test_a_missing_or_invalid_metric_fails_the_trial(begin: Begin, cluster: Cluster) -> None:
    body = """
if kind == "number": accuracy = 1.0
if kind == "nan": accuracy = float("nan")
if kind == "text": accuracy = "high"
if kind == "other": nb.log(loss=1.0)
if kind == "infinite": accuracy = float("inf")
"""
    sweep = finished(
        begin(body, {"kind": ["number", "nan", "text", "none", "other", "infinite"]}, cluster=cluster)
    )
    assert states(sweep) == ["finished", "failed", "failed", "failed", "failed", "finished"]
    errors = [trial.error for trial in sweep.trials]
    assert "NaN" in errors[1]
    assert "'accuracy' is 'high', and not one number" in errors[2]
    assert "never reported 'accuracy'" in errors[3]
    assert all("accuracy" in one for one in errors[1:5])
    assert sweep.best.number == 0  # type: ignore[union-attr]  # an infinite value is never the best
    assert math.isinf(sweep.trial(5).value)  # type: ignore[arg-type]


def test_each_trial_has_its_own_namespace(begin: Begin, cluster: Cluster) -> None:
    start_run("shared = [0]\nwidth = 'mine'", Options(), cluster=cluster).wait()
    body = """
assert "leaked" not in globals(), "of another trial"
assert shared == [0]
leaked = width
nb_of_mine = nb
accuracy = width
"""
    assert states(finished(begin(body, "width=[1, 2, 3, 4, 5, 6]", cluster=cluster))) == ["finished"] * 6
    run = start_run(
        "seen = ('leaked' in globals(), 'nb_of_mine' in globals(), width)",
        Options(fetch=("seen",)),
        cluster=cluster,
    ).wait()
    assert run.results["seen"] == (False, False, "mine")


DRAWN = """
import random
import numpy as np
drawn = [float(np.random.random()), random.random()]
print(drawn)
""" + TRAIN.format(optimizer="SGD", epochs=2, callbacks=[])


def drawn(sweep: Sweep, number: int) -> list[Any]:
    return [sweep.output(number).strip().splitlines()[-1], losses(sweep, number)]


def leaving(number: int, seen: list[int] = [], *, more: dict[str, int] = {}) -> Any:  # noqa: B006
    import os

    import matplotlib.pyplot as plt

    plt.switch_backend("agg")  # no cell shows and closes its figures
    found = [os.getcwd(), os.environ.get("NBDIST_TRIAL"), os.environ["HOME"], plt.get_fignums(), seen, more]
    print(found)
    os.makedirs(f"left-{number}", exist_ok=True)
    os.chdir(f"left-{number}")
    os.environ["NBDIST_TRIAL"] = str(number)
    del os.environ["HOME"]
    plt.figure()
    seen.append(number)
    more["number"] = number
    return 1.0


leaving.__module__ = "__main__"


def test_what_a_trial_changes_around_it_does_not_last(begin: Begin, cluster: Cluster, tmp_path: Path) -> None:
    start_run(f"import os; os.chdir({str(tmp_path)!r})", Options(on="worker:0"), cluster=cluster).wait()
    sweep = finished(begin(leaving, "number=[1, 2, 3]", on="worker:0", cluster=cluster))
    assert states(sweep) == ["finished"] * 3, sweep.trial(0).error
    assert {sweep.output(number) for number in range(3)} == {
        f"{[str(tmp_path), None, os.environ['HOME'], [], [], {}]}\n"
    }


def test_random_numbers_of_a_trial_follow_its_seed(begin: Begin, cluster: Cluster) -> None:
    options = {"metric": "val_loss", "direction": "min", "cluster": cluster}
    first = finished(begin(DRAWN, "lr=[0.1, 0.2]", **options))
    again = finished(begin(DRAWN, "lr=[0.1, 0.2]", **options))
    other = finished(begin(DRAWN, "lr=[0.1, 0.2]", **options, seed=4))
    assert [trial.seed for trial in first.trials] == [trial.seed for trial in again.trials]
    for number in (0, 1):
        assert drawn(first, number) == drawn(again, number) != drawn(other, number)
    clone = first.clone(0)
    finished(first)
    assert first.trial(clone).parameters == first.trial(0).parameters
    assert drawn(first, clone)[1] != drawn(first, 0)[1]
    assert first.trial(clone).parent == 0


def test_each_free_engine_runs_a_trial(begin: Begin, cluster: Cluster, marks: Path) -> None:
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(7))}, cluster=cluster)
    until(lambda: len(began(marks)) == 3)
    until(lambda: [one.state for one in sweep.engines()] == ["busy"] * 3)
    assert sorted(one.number for one in sweep.engines()) == [0, 1, 2]  # type: ignore[type-var]
    for opened in (1, 3, 4):  # a free engine gets the next trial immediately; the others keep theirs
        (marks / f"open-{opened}").touch()
        until(lambda: sweep.trial(opened).state == "finished")  # noqa: B023
        until(lambda: len(began(marks)) == min(7, 3 + sweep.ledger.counts["finished"]))
        assert len(sweep.ledger.running) == 3
    (marks / "open").touch()
    finished(sweep)
    spans = sweep.ledger.spans
    assert sorted(span.number for span in spans) == list(range(7))
    assert all(len(span.ranks) == 1 and span.end >= span.start and span.how == "finished" for span in spans)
    assert spans[-1].number in (0, 2, 5, 6)
    rank = {span.number: span.ranks[0] for span in spans}
    assert rank[3] == rank[1] == rank[4] == rank[5]
    assert len({name.split("-")[2] for name in began(marks)}) == 3


def test_two_engines_train_a_trial_as_two_replicas(begin: Begin, cluster: Cluster) -> None:
    body = TRAIN.format(optimizer="SGD", epochs=3, callbacks=[])
    sweep = begin(body, "lr=[0.1, 0.3]", metric="val_loss", direction="min", per_trial=2, cluster=cluster)
    finished(sweep)
    assert [len(trial.ranks) for trial in sweep.trials] == [2, 2]
    assert states(sweep) == ["finished", "finished"]
    options = Options(strategy="multi_worker", seed=sweep.trial(1).seed, on="worker:0,1")
    run = start_run("lr = 0.3\n" + body, options, cluster=cluster).wait()
    assert run.history["val_loss"][-1] == sweep.trial(1).value  # type: ignore[index]
    assert run.history["loss"][-1] == pytest.approx(sweep.trial(1).values["loss"])  # type: ignore[index]


def test_more_engines_a_trial_than_there_are(begin: Begin, cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match="--per-trial 4: the cluster has 3 engines"):
        begin("accuracy = 1", "width=[1]", per_trial=4, cluster=cluster)


def test_a_body_that_raises_in_some_trials(begin: Begin, cluster: Cluster) -> None:
    body = "if width % 2:\n    raise ValueError(f'no such width: {width}')\naccuracy = width"
    sweep = finished(begin(body, {"width": list(range(10))}, cluster=cluster))
    assert states(sweep) == ["finished", "failed"] * 5
    assert sweep.trial(3).error.endswith("ValueError: no such width: 3")
    assert "raise ValueError(f'no such width: {width}')" in sweep.trial(3).error
    assert sweep.state == "finished"
    assert sweep.best.number == 8  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [2, 30])
def test_a_body_that_raises_in_all_trials(begin: Begin, cluster: Cluster, count: int) -> None:
    sweep = begin("accuracy = 1 / 0", {"width": list(range(count))}, cluster=cluster)
    with pytest.raises(WorkerError, match="ZeroDivisionError") as caught:
        finished(sweep)
    assert "accuracy = 1 / 0" in str(caught.value)
    assert sweep.state == "failed"
    assert caught.value.ename == "ZeroDivisionError"
    counts = sweep.ledger.counts
    assert counts["failed"] >= min(count, 6)
    assert counts["waiting"] == counts["running"] == 0


def test_a_sweep_with_a_wrong_body_ends(begin: Begin, cluster: Cluster) -> None:
    """On one engine: with several, fast ones continue while another runs its first trial."""
    sweep = begin("accuracy = 1 / 0", {"width": list(range(30))}, on="worker:0", cluster=cluster)
    with pytest.raises(WorkerError, match="all of the first 4 trials failed"):
        finished(sweep)
    assert states(sweep) == ["failed"] * 4


def test_a_body_that_exits_is_interrupted_or_swallows_all(begin: Begin, cluster: Cluster) -> None:
    body = """
if kind == "exit": raise SystemExit(3)
if kind == "interrupt": raise KeyboardInterrupt
if kind == "deep":
    def deeper(): deeper()
    deeper()
if kind == "huge": raise ValueError("x" * 5_000_000)
if kind == "strange": raise ValueError("\\udcff \\x00 \\u2028")
if kind == "unprintable":
    class Odd(Exception):
        def __str__(self): raise RuntimeError
    raise Odd
accuracy = 1.0
"""
    kinds = ["fine", "exit", "interrupt", "deep", "huge", "strange", "unprintable"]
    sweep = finished(begin(body, {"kind": kinds}, cluster=cluster))
    assert states(sweep) == ["finished"] + ["failed"] * 6
    named = ("SystemExit", "KeyboardInterrupt", "RecursionError", "ValueError", "ValueError", "Odd")
    for trial, name in zip(sweep.trials[1:], named, strict=True):
        assert name in trial.error
        assert len(trial.error) <= 20_100


def by_strange_names(width: int) -> dict[str, float]:
    return {"accuracy": 1.0, "x" * 2_000_000 if width == 1 else "\udcff": 2.0}


by_strange_names.__module__ = "__main__"


def test_metrics_with_unencodable_names(begin: Begin, cluster: Cluster) -> None:
    sweep = begin(by_strange_names, "width=[1, 2]", cluster=cluster)
    with pytest.raises(WorkerError, match="result of the trial cannot be sent"):
        finished(sweep)


def test_output_of_trials(begin: Begin, cluster: Cluster) -> None:
    body = """
import sys
from IPython.display import HTML, display
print("width is", width)
print("to the error stream", file=sys.stderr)
display(HTML("<b>bold</b>"))
print("é ☃ \\udcff")
accuracy = width
"""
    sweep = finished(begin(body, "width=[1, 2]", cluster=cluster))
    assert states(sweep) == ["finished", "finished"]
    text = sweep.output(1)
    assert "width is 2" in text
    assert "to the error stream" in text
    assert "é ☃" in text
    quiet = finished(begin("accuracy = width", "width=[1]", cluster=cluster))
    assert quiet.output(0) == ""


def test_parameters_of_all_kinds(begin: Begin, cluster: Cluster) -> None:
    from nbdist.sweep.space import when

    body = """
accuracy = 1.0
print(repr((opt, drop, flag, size, name, sizes, globals().get("momentum"))))
"""
    space = {
        "opt": ["sgd", None],
        "drop": [0.5],
        "flag": [True, False],
        "size": 3,
        "sizes": [(32, 16)],
        "name": "with 'quotes' and\nlines",
        "momentum": when([0.9], opt="sgd"),
    }
    start_run("globals().pop('momentum', None)", Options(), cluster=cluster).wait()
    sweep = finished(begin(body, space, cluster=cluster))
    assert states(sweep) == ["finished"] * 4
    for trial in sweep.trials:
        given = trial.parameters
        expected = tuple(
            given.get(name) for name in ("opt", "drop", "flag", "size", "name", "sizes", "momentum")
        )
        assert sweep.output(trial.number).strip() == repr(expected)
        assert ("momentum" in given) == (given["opt"] == "sgd")


def test_a_sweep_that_cannot_start_leaves_nothing(cluster: Cluster, begin: Begin, own_home: Path) -> None:
    def folders() -> set[str]:
        return {path.name for path in (own_home / "nbdist" / "sweeps").glob("*")}

    before = folders()
    for trial, space, options in (
        ("", "width=[1]", {}),
        ("1 +", "width=[1]", {}),
        ("accuracy = 1", {}, {}),
        ("accuracy = 1", "width=[]", {}),
        ("accuracy = 1", "lr=log(1e-4, 1e-1)", {"sampler": "grid"}),
        ("accuracy = 1", "width=[1]", {"metric": ""}),
        ("accuracy = 1", "width=[1]", {"strategy": "ps"}),
    ):
        with pytest.raises((InvalidArgumentError, SyntaxError)):
            begin(trial, space, cluster=cluster, **options)
    assert folders() == before
    assert states(finished(begin("accuracy = 1", "width=[1]", cluster=cluster))) == ["finished"]
