"""One run in full, and its curves as a page draws them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from lab_folders import RunFolder, add, cluster_folder, losses

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.lab.readers import run_curves, run_detail
from nbdist.lab.readers.run_curves import load_store
from nbdist.lab.readers.run_detail import (
    LONGEST_OUTPUT,
    BundleCache,
    open_file,
    run_bundle,
    run_details,
    run_saved,
)
from nbdist.lab.readers.runs import Runs
from nbdist.metrics import recorder
from nbdist.metrics.run_events import EventLog, events_path
from nbdist.run.displays import Displayed, keep


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_details_have_all_of_run_json() -> None:
    run = RunFolder(
        "r1", status="finished", code="<script>1</script>", ended=2e9, options={"alpha": float("nan")}
    )
    run.log(0, losses(3))
    found = run_details("r1", Runs())
    json.dumps(found, allow_nan=False)
    assert (found["code"], found["seed"]) == ("<script>1</script>", 7)
    assert found["versions"] == {"nbdist": "0.1.0"}
    assert found["options"] == {"alpha": None}
    assert found["tasks"] == ["/job:worker/task:0", "/job:worker/task:1"]
    assert [one["path"] for one in found["files"]] == ["metrics-0000.log", "run.json"]
    assert found["status"] == "finished"


def test_details_of_a_damaged_run_have_the_reason() -> None:
    RunFolder("r1").raw("run.json", "{")
    found = run_details("r1")
    assert (found["status"], found["code"]) == ("damaged", "")
    assert "damaged" in found["error"]


@pytest.mark.parametrize("view", [run_details, run_bundle])
def test_a_missing_run_is_not_found(view: object) -> None:
    assert callable(view)
    with pytest.raises(NotFoundError):
        view("r1")
    with pytest.raises(InvalidArgumentError):
        view("../r1")


def test_a_bundle_equals_a_frozen_output(monkeypatch: pytest.MonkeyPatch) -> None:
    second = iter(np.arange(1000) / 20)
    monkeypatch.setattr(recorder, "now", lambda: next(second))  # each point 0.05 s after the one before
    run = RunFolder("r1", status="finished", created=1e9, ended=1e9 + 10)
    for rank in range(2):
        run.log(rank, [*losses(40, 1.0 + rank), ("val_loss", 39, 2.0), ("step_ms", 1, 3.0)])
        run.progress(rank, 40, state="finished")
    found = run_bundle("r1")
    json.dumps(found, allow_nan=False)
    assert (found["run"], found["title"], found["state"]) == ("r1", "mnist", "finished")
    assert (found["step"], found["elapsed"], found["seconds"]) == (40, 10.0, pytest.approx(1.95))
    assert found["steps_per_second"] == pytest.approx(40 / 1.95)  # without the start
    assert found["tasks"] == ["/job:worker/task:0", "/job:worker/task:1"]
    assert found["charts"] == [{"title": "loss", "train": "loss", "validation": "val_loss"}]
    assert found["metrics"] == {"loss": 1.5, "val_loss": 2.0}
    mean = next(one for one in found["series"] if one["replica"] == "mean" and one["name"] == "loss")
    assert set(mean["values"].split()) == {"1.5"}
    assert {one["replica"] for one in found["series"]} == {"mean", 0, 1}
    assert found["replicas"] == [{"state": "finished", "step": 40}] * 2
    assert found["clock"]["steps"].split()[-1] == "39"
    assert len(found["clock"]["values"].split()) == len(found["clock"]["steps"].split())


def test_a_page_can_choose_other_charts() -> None:
    run = RunFolder("r1", status="finished", created=1e9, ended=1e9 + 10)
    run.log(0, [*losses(40), *[(f"own {n}", 1, float(n)) for n in range(8)], ("step_ms", 1, 3.0)])
    usual = run_bundle("r1")
    assert [one["title"] for one in usual["charts"]] == ["loss", *[f"own {n}" for n in range(5)]]
    assert usual["available"] == {
        "titles": ["loss", *[f"own {n}" for n in range(8)], "step_ms"],
        "count": 10,
        "most": 6,
    }
    other = run_bundle("r1", titles=["own 7", "step_ms"])
    assert [one["title"] for one in other["charts"]] == ["own 7", "step_ms"]
    assert {one["name"] for one in other["series"]} == {"own 7", "step_ms"}
    assert {"loss", "own 7"} <= other["metrics"].keys()  # the latest values are still there
    assert run_bundle("r1")["charts"] == usual["charts"]
    with pytest.raises(InvalidArgumentError, match="no series is called 'own 9'"):
        run_bundle("r1", titles=["own 9"])


def test_the_output_of_a_run_is_as_a_notebook_saves_it() -> None:
    run = RunFolder("r1", status="running", created=1e9)
    run.log(0, losses(40, 1.0))
    (run.folder / "output-0000.log").write_text("epoch <1>")
    _, lock = cluster_folder()
    assert not run_saved("r1")["over"]
    os.close(lock)
    run.write(status="failed", ended=1e9 + 10, error={"message": "ValueError: no data"})
    found = run_saved("r1")
    json.dumps(found, allow_nan=False)
    assert found["over"]
    data = found["data"]
    assert sorted(data) == ["application/vnd.nbdist.run+json", "text/html", "text/plain"]  # no picture
    assert data["application/vnd.nbdist.run+json"]["state"] == "failed"
    assert "✕ failed" in data["text/plain"]
    assert "epoch <1>" in data["text/plain"]
    assert "epoch &lt;1&gt;" in data["text/html"]


def test_displayed_objects_are_listed_by_time_with_their_tasks() -> None:
    run = RunFolder("r1", status="running")
    for key in ("1-7-1", "0-9-1", "0-7-2"):
        keep(run.folder, Displayed({"text/html": "<b>1</b>"}, key=key))
    (run.folder / "displays" / "notes.json").write_text("{}")
    found = run_details("r1")["displays"]
    assert [(one["task"], one["path"]) for one in found] == [
        ("/job:worker/task:0", "displays/0-7-2.json"),
        ("/job:worker/task:1", "displays/1-7-1.json"),
        ("/job:worker/task:0", "displays/0-9-1.json"),
    ]
    file, size = open_file("r1", found[0]["path"])
    with file:
        assert json.loads(file.read())["data"] == {"text/html": "<b>1</b>"}
    assert size == found[0]["bytes"]


def test_a_bundle_has_the_events_and_the_epochs() -> None:
    run = RunFolder("r1", status="running")
    run.log(0, [*losses(30), ("epoch begins", 0, 1.0), ("epoch begins", 15, 2.0), ("learning rate", 1, 0.1)])
    log = EventLog(events_path(run.folder, 0))
    log.add("lost", "/job:worker/task:1 died", 7, epoch=1, rank=1)
    log.close()
    found = run_bundle("r1")
    (mark,) = found["marks"]
    assert (mark["step"], mark["kind"], mark["text"], mark["epoch"]) == (7, "lost", "worker 1 died", 1)
    assert (found["epoch"], found["epochs"]) == (2, {"steps": "0 15", "values": "1 2"})
    assert [chart["title"] for chart in found["charts"]] == ["loss"]
    assert found["available"]["titles"] == ["loss", "learning rate"]
    assert "✕ 7 (epoch 1) worker 1 died" in run_saved("r1")["data"]["text/plain"]


def test_a_bundle_has_the_gpus_and_the_devices() -> None:
    run = RunFolder("r1", status="running")
    gpu = {"id": "GPU-8f3a91bc-1", "model": "NVIDIA H100", "total": 80 << 30, "use": 9}
    run.log(0, [*losses(3), ("gpu/use", 1, 80.0), ("gpu/use", 2, 90.0)])
    run.progress(0, 3, devices=["GPU:0"], gpu=gpu, cores=8)
    run.progress(1, 3, devices=["CPU:0"], gpu=None, cores=8)
    found = run_bundle("r1")
    assert found["trained_on"] == "worker 0: NVIDIA H100 GPU-8f3a… (GPU:0), 1 worker on CPU (8 cores)"
    (shown,) = found["gpus"]
    assert (shown["replica"], shown["use"]["values"]) == (0, "80 90")
    assert [chart["title"] for chart in found["charts"]] == ["loss"]
    run.raw_progress(0, devices="GPU:0", gpu=[], cores="8")
    run.write(
        status="finished",
        ended=2e9,
        devices=[{"task": "/job:worker/task:1", "devices": ["CPU:0"], "assigned": "GPU:0"}],
    )
    found = run_bundle("r1")
    assert found["trained_on"] == "1 worker on CPU"
    assert found["warning"].startswith("worker 1 has GPU:0 and trains on the CPU")


def test_a_bundle_has_its_limit() -> None:
    run, chance = RunFolder("r1", workers=16, status="finished"), np.random.default_rng(0)
    for rank in range(16):
        values = chance.normal(size=600)
        run.log(rank, [(name, step, v) for step, v in enumerate(values) for name in ("loss", "accuracy")])
    assert len(json.dumps(run_bundle("r1"), indent=1)) <= run_detail.LIMIT + 1000


def test_a_bundle_is_made_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder("r1", status="finished", ended=2e9)
    recorder = run.log(0, losses(3), close=False)
    first = run_bundle("r1")
    made: list[object] = []
    before = run_detail.bundle_of
    monkeypatch.setattr(run_detail, "bundle_of", lambda *a: made.append(a) or before(*a))
    assert run_bundle("r1") is first
    assert made == []
    add(recorder, [("loss", 3, 9.0)])
    monkeypatch.setattr(run_detail, "_bundles", BundleCache())
    assert run_bundle("r1")["metrics"]["loss"] == 9.0
    recorder.close()


def test_a_run_without_points_has_an_empty_bundle() -> None:
    RunFolder("r1", status="finished", ended=2e9)
    found = run_bundle("r1")
    assert (found["charts"], found["series"]) == ([], [])


def test_nan_is_kept_in_a_curve() -> None:
    RunFolder("r1", status="failed").log(0, [("loss", 1, float("nan")), ("loss", 2, float("inf"))])
    found = run_bundle("r1")
    json.dumps(found, allow_nan=False)
    assert found["metrics"] == {"loss": None}
    assert found["series"][0]["values"] == "nan inf"


def test_very_long_logs_are_read_in_part_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder("r1", status="finished")
    for rank in range(2):
        recorder = run.log(rank, [], close=False)
        for start in range(0, 60_000, 500):
            add(recorder, [("loss", step, step * 1.0) for step in range(start, start + 500)])
        recorder.close()
    assert load_store(run.folder)[1] == []  # a log of a few megabytes is read completely
    size = (run.folder / "metrics-0000.log").stat().st_size
    monkeypatch.setattr(run_curves, "MAX_LOG_BYTES", size // 2)
    monkeypatch.setattr(run_curves, "PART_BYTES", 1 << 16)
    store, notes = load_store(run.folder)
    assert "MB of them" in notes[0]
    for replica in range(2):
        steps, values, _ = store.points(replica, "loss")
        assert steps[0] == 0
        assert steps[-1] == 59_999
        assert np.array_equal(steps, values)
    assert any("MB of them" in remark for remark in run_bundle("r1")["remarks"])


def test_a_file_that_is_not_a_log_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder("r1", status="finished")
    run.raw("metrics-0000.log", "this is text, and no log at all")
    run.log(1, losses(2))
    store, notes = load_store(run.folder)
    assert store.replicas == [1]
    assert [note.partition(" of")[0] for note in notes] == ["metrics-0000.log is not a metrics log"]


def test_a_removed_folder_is_not_found() -> None:
    run = RunFolder("r1", status="finished")
    runs = Runs()
    runs.poll()
    shutil.rmtree(run.folder)
    with pytest.raises(NotFoundError):
        run_details("r1", runs)


def test_the_end_of_each_tasks_output() -> None:
    run = RunFolder("r1", workers=3)
    run.write(
        code="print(1)", options={"strategy": "ps", "synchronous": True, "fetch": ["a", "b"], "name": "x"}
    )
    run.raw("output-0000.log", b"lost" + b"x" * LONGEST_OUTPUT)
    run.raw("output-0001.log", b"caf\xe9\n")
    (run.folder / "output-0002.log").symlink_to("/etc/hostname")
    details = run_details("r1")
    assert [one["text"] for one in details["output"]] == ["x" * LONGEST_OUTPUT, "caf\ufffd\n"]
    assert details["first_line"] == "%%distribute --strategy ps --sync --fetch a,b"
    run.write(code="__main__.train", options={})
    assert run_details("r1")["first_line"] == ""
