"""Runs beside each other, from their folders alone."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbdist as nb
from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.metrics.log import POINT, LogWriter, log_path
from nbdist.metrics.run_folder import RunFile, runs_folder, write_run
from nbdist.run.history import write_labels
from nbdist.ui.compare import Comparison


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("NBDIST_HOME", str(home))


def a_run(run_id: str, losses: list[float], rate: float = 0.1, **fields: Any) -> str:
    folder = runs_folder() / run_id
    folder.mkdir(mode=0o700)
    known = {"status": "finished", "name": "digits", "seed": 7, "code": f"lr = {rate}\nfit(lr)"}
    known |= {"given": {"rate": str(rate)}, **fields}
    write_run(RunFile(run_id, **known), wait=False)
    if losses:
        points = np.zeros(2 * len(losses), POINT)
        points["series"] = [0] * len(losses) + [1] * len(losses)
        points["step"] = [*range(len(losses))] * 2
        points["value"] = [*losses, *(1 - one for one in losses)]
        points["time"] = 1_000.0 + points["step"] * 0.5
        writer = LogWriter(log_path(folder, 0), 0, print)
        writer.append(["loss", "accuracy"], points)
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
    assert set(bundle) == {"image/png", "text/html", "text/plain"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    text = bundle["text/plain"]
    assert text == repr(comparison)
    head, first, second, _, *diff = text.splitlines()
    assert head.split()[:2] == ["run", "--strategy"]
    assert (first.split()[:2], second.split()[:2]) == (["digits", "(r1)"], ["digits", "(r2)"])
    assert diff == ["--- r1", "+++ r2", "@@ -1,2 +1,2 @@", "-lr = 0.1", "+lr = 0.2", " fit(lr)"]
    assert comparison.code_diff() == "\n".join(diff)
    HTMLParser().feed(bundle["text/html"])
    assert "image/png" not in nb.compare(a_run("r3", []), a_run("r4", []))._repr_mimebundle_()


def test_names_cannot_change_the_page() -> None:
    two()
    write_labels("r1", name="<script>alert(1)</script>")
    page = nb.compare(nb.runs()).__getattribute__("_repr_mimebundle_")()["text/html"]
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(("by", "last"), [("step", 2), ("time", 1.0)])
def test_the_axis(by: Any, last: float) -> None:
    two()
    comparison = nb.compare("r1", "r2", by=by)
    x, _, style = comparison._lines("loss", False)[0]
    assert x[-1] == last
    assert style["label"] == "digits (r1)"


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
        (["r1", "r2"], "hour", "no axis 'hour'; choose from step, time"),
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
