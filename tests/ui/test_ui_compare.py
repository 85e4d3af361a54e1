"""Runs beside each other, from their folders alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbdist as nb
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.metrics.log import POINT, LogWriter, log_path
from nbdist.metrics.names import EPOCH
from nbdist.metrics.run_folder import RunFile, runs_folder, write_run
from nbdist.run.history import write_labels
from nbdist.ui.compare.comparison import Comparison
from nbdist.ui.compare.curves import By
from nbdist.ui.compare.saved import COMPARISON, lines_of


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("NBDIST_HOME", str(home))


def a_run(
    run_id: str,
    losses: list[float],
    rate: float = 0.1,
    epochs: Sequence[int] = (),
    more: int = 0,
    **fields: Any,
) -> str:
    """Make a run's folder; ``epochs`` are the steps before each, ``more`` is a number of other series."""
    folder = runs_folder() / run_id
    folder.mkdir(mode=0o700)
    known = {"status": "finished", "name": "digits", "seed": 7, "code": f"lr = {rate}\nfit(lr)"}
    known |= {"given": {"rate": str(rate)}, **fields}
    write_run(RunFile(run_id, **known), wait=False)
    if losses:
        curves = [losses, [1 - one for one in losses], *([losses] * more)]
        found = [(at, step, value) for at, curve in enumerate(curves) for step, value in enumerate(curve)]
        found += [(len(curves), step, at + 1.0) for at, step in enumerate(epochs)]
        points = np.zeros(len(found), POINT)
        points["series"], points["step"], points["value"] = zip(*found, strict=True)
        points["time"] = 1_000.0 + points["step"] * 0.5
        writer = LogWriter(log_path(folder, 0), 0, print)
        writer.append(["loss", "accuracy", *(f"more {at}" for at in range(more)), EPOCH], points)
        writer.close()
    return run_id


def two() -> Comparison:
    options = {"strategy": "ps", "synchronous": False}
    a_run("r1", [1.0, 0.5, 0.6], options={"strategy": "multi_worker"}, cluster={"workers": [0, 1]})
    a_run("r2", [1.0, 0.4], rate=0.2, seed=8, options=options, cluster={"workers": [0]})
    return nb.compare("r1", "r2")


def test_what_differs_and_nothing_else() -> None:
    differs = two().differences
    assert differs["--strategy"] == ["multi_worker", "ps"]
    assert differs["--sync or --async"] == ["", "async"]
    assert (differs["workers"], differs["seed"], differs["rate"]) == (["2", "1"], ["7", "8"], ["0.1", "0.2"])
    assert len(set(differs["code"])) == 2
    assert set(differs) == {"--strategy", "--sync or --async", "workers", "seed", "rate", "code"}


def test_last_and_best_values() -> None:
    found = two().metrics
    assert found["loss (last)"] == [0.6, 0.4]
    assert found["loss (best)"] == [0.5, 0.4]
    assert found["accuracy (best)"] == pytest.approx([0.5, 0.6])
    a_run("r3", [])
    assert nb.compare("r1", "r3").metrics["loss (last)"] == [0.6, None]


def test_it_shows_a_picture_a_table_and_text() -> None:
    comparison = two()
    bundle = comparison._repr_mimebundle_()
    assert set(bundle) == {"image/png", "text/html", "text/plain", COMPARISON}
    assert len(json.dumps(bundle, indent=1)) < 150_000
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    text = bundle["text/plain"]
    assert text == repr(comparison)
    head, strategy, *rest = text.splitlines()
    assert head.split() == ["what", "differs", "digits", "(r1)", "digits", "(r2)"]
    assert strategy.split() == ["--strategy", "multi_worker", "ps"]
    assert ["loss", "(best)", "0.5", "0.4", "★"] in [line.split() for line in rest]
    diff = rest[rest.index("") + 1 :]
    assert diff == ["--- r1", "+++ r2", "@@ -1,2 +1,2 @@", "-lr = 0.1", "+lr = 0.2", " fit(lr)"]
    assert comparison.code_diff() == "\n".join(diff)
    HTMLParser().feed(bundle["text/html"])
    assert "image/png" not in nb.compare(a_run("r3", []), a_run("r4", []))._repr_mimebundle_()


def test_names_cannot_change_the_page() -> None:
    two()
    write_labels("r1", name="<script>alert(1)</script>")
    page = nb.compare(nb.runs())._repr_mimebundle_()["text/html"]
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(("by", "last"), [("step", 2), ("time", 1.0), ("epoch", 2.0)])
def test_the_axis(by: By, last: float) -> None:
    a_run("r1", [1.0, 0.5, 0.6], epochs=[0, 1])
    a_run("r2", [1.0, 0.4], epochs=[0])  # of one whole epoch
    comparison = nb.compare("r1", "r2", by=by)
    (x, _, style), _ = lines_of(comparison, "loss", False)
    assert x[-1] == last
    assert style["label"] == "digits (r1)"
    assert comparison.notes == []


def test_a_run_without_epochs_is_left_out_of_them_and_named() -> None:
    a_run("r1", [1.0, 0.5, 0.6], epochs=[0, 1])
    a_run("r2", [1.0, 0.4], status="stopped", epochs=[0])
    comparison = nb.compare("r1", "r2", by="epoch")
    assert len(lines_of(comparison, "loss", False)) == 1
    (note,) = comparison.notes
    assert note == "digits (r2): it has no epochs on record, and its curves are left out; by='step' has them"
    assert note in repr(comparison)
    a_run("r3", [1.0])
    with pytest.raises(FailedPreconditionError, match="none of these runs has a whole epoch on record"):
        nb.compare("r2", "r3", by="epoch")


def test_the_data_of_a_page() -> None:
    a_run("r1", [1.0, 0.5, 0.6], epochs=[0, 1])
    a_run("r2", [1.0, float("nan")], rate=0.2)
    data = nb.compare("r1", "r2")._repr_mimebundle_()[COMPARISON]
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert [one["id"] for one in data["runs"]] == ["r1", "r2"]
    assert data["series"][0] == {"name": "loss", "run": 0, "steps": "0 1 2", "values": "1 0.5 0.6"}
    assert data["series"][1]["values"] == "1 nan"
    assert {"run": 0, "by": "epoch", "steps": "0 1", "values": "0 1"} in data["axes"]
    assert {"run": 1, "by": "time", "steps": "0 1", "values": "0 0.5"} in data["axes"]
    assert {"name": "rate", "texts": ["0.1", "0.2"]} in data["differences"]
    assert {"name": "loss (best)", "texts": ["0.5", "1"], "best": [0]} in data["metrics"]


def test_eight_runs_of_many_curves_fit_into_a_notebook() -> None:
    noise = np.random.default_rng(0).normal(size=3_000)
    for at in range(8):
        a_run(f"r{at}", list(np.exp(-np.arange(3_000) / 500) + 0.05 * noise), more=10, rate=at / 10)
    bundle = nb.runs().compare()._repr_mimebundle_()
    assert len(json.dumps(bundle, indent=1)) < 150_000
    data = bundle[COMPARISON]
    assert len(data["charts"]) == 6
    assert len(data["series"]) == 48
    assert data["left_out"] == 0


def test_runs_are_compared_from_their_list() -> None:
    two()
    a_run("r3", [1.0, 0.2], created=1.0)
    found = nb.runs()[:2].compare(by="time", metrics=["accuracy"])
    assert [run.id for run in found.runs] == ["r2", "r1"]
    assert [chart.title for chart in found.charts] == ["accuracy"]
    for more in range(10, 16):
        a_run(f"r{more}", [1.0])
    with pytest.raises(InvalidArgumentError, match=r"got 9: .*\[:8\]\.compare\(\) takes"):
        nb.runs().compare()


def test_a_picture_in_a_file(tmp_path: Path) -> None:
    comparison = two()
    assert comparison.save(tmp_path / "a.svg").read_text().startswith("<?xml")
    with pytest.raises(InvalidArgumentError, match=r"\.png, \.svg or \.pdf, not 'a.txt'"):
        comparison.save("a.txt")


@pytest.mark.parametrize(
    ("runs", "by", "said"),
    [
        (["r1"], "step", "2 to 8 different runs, got 1: r1"),
        (["r1", "r1"], "step", "2 to 8 different runs, got 2: r1, r1"),
        ([], "step", "got 0: none"),
        ([3], "step", "a run is a handle, a row of nb.runs.. or an id, not 3"),
        (["r1", "r2"], "hour", "no axis 'hour'; choose from step, epoch, time"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs: list[Any], by: Any, said: str) -> None:
    two()
    with pytest.raises(InvalidArgumentError, match=said):
        nb.compare(*runs, by=by)


def test_an_unknown_run_is_named() -> None:
    two()
    with pytest.raises(NotFoundError, match="no run 'r9'; the latest are"):
        nb.compare("r1", "r9")
