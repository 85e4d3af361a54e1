"""Event files made from logs: a damaged log or run.json does not affect the comparison of other runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard_runs import make_run

from nbdist.lab.tensorboard.child import EventsOfRuns, tasks_of
from nbdist.metrics.log import FORMAT, MAGIC
from nbdist.metrics.run_folder import run_folder


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "own"))


def event_files(folder: Path, run: str) -> list[Path]:
    return list((folder / run).rglob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    "damage",
    [
        MAGIC + FORMAT.mark + bytes(5000), b"nbdist metrics 1\nNBMF" + bytes(50), b"rubbish",
        MAGIC + FORMAT.frame(1, b"\0"),
    ],
    ids=["a mark and zeros", "another version", "no log", "an invalid name"],
)  # fmt: skip
def test_a_damaged_log_does_not_end_the_comparison(
    tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = make_run(own=False, steps=5), make_run(own=False, steps=5)
    for path in run_folder(bad).glob("metrics-*.log"):
        path.write_bytes(damage)
    events = EventsOfRuns(run_folder(good).parent, tmp_path / "events")
    events.refresh()
    events.refresh()
    assert event_files(tmp_path / "events", good)
    assert not event_files(tmp_path / "events", bad)
    assert capsys.readouterr().err.count("is left out") <= 2 * (not damage.startswith(MAGIC))


@pytest.mark.parametrize(
    "cluster", [{"members": [{}], "workers": [0]}, {"members": [1]}, {"members": {"a": 1}}, {"members": 3}]
)
def test_replicas_are_named_by_numbers_if_run_json_is_invalid(
    cluster: object, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(own=False, steps=5)
    path = run_folder(run) / "run.json"
    path.write_text(json.dumps({"id": run, "cluster": cluster}))
    assert tasks_of(run) == {}
    path.write_text("{")
    assert tasks_of(run) == {}
    assert "are named by numbers" in capsys.readouterr().err
