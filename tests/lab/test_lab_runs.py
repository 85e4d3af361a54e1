"""Runs as the panel lists them, from valid and damaged folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab_folders import RunFolder, add, cluster_folder, losses

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.lab.readers import runs as runs_module
from nbdist.lab.readers.runs import Runs
from nbdist.run.history import delete_run, write_labels
from nbdist.run.record import RunRecord

KEYS = {
    "id", "name", "status", "created", "ended", "paused", "cluster", "strategy", "replicas", "step", "total",
    "seconds_left", "steps_per_second", "learning_rate", "lost", "metric", "value", "curve", "error",
    "error_line", "note", "session", "folder", "tags", "remark", "training", "bytes", "browse", "tensorboard",
    "attach", "can", "why", "resumed_from",
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def cluster() -> Iterator[Path]:
    folder, lock = cluster_folder()
    yield folder
    os.close(lock)


def only(runs: Runs) -> dict[str, Any]:
    (item,) = runs.poll()
    json.dumps(item, allow_nan=False)
    assert item.keys() == KEYS
    return item


# The ordinary case.


@pytest.mark.usefixtures("cluster")
def test_an_active_run() -> None:
    run = RunFolder("261121-090000-mnist")
    for rank in range(2):
        run.log(rank, [("step_ms", 1, 5.0), ("accuracy", 1, 0.1), ("loss", 1, 3.0 - rank), ("loss", 2, 1.0)])
        run.progress(rank, 40, spent={"data": 0.5, "compute": 3.0, "exchange": 0.25, "wait": 0.25})
    item = only(Runs())
    assert (item["id"], item["name"], item["status"]) == ("261121-090000-mnist", "mnist", "running")
    assert (item["step"], item["total"], item["steps_per_second"]) == (40, 100, 10)
    assert item["seconds_left"] == 6
    assert (item["metric"], item["value"], item["curve"]) == ("loss", 1.0, {"x": [1, 2], "y": [2.5, 1.0]})
    assert (item["cluster"], item["strategy"], item["replicas"]) == ("c1", "multi_worker", 2)
    assert item["session"] == "notebooks/mnist.ipynb"
    assert item["can"] == {"stop": True, "pause": True, "resume": False, "set": True, "delete": False}
    assert item["why"] == {"resume": "it is not paused", "delete": "it is running: stop it first"}
    assert (item["error"], item["note"], item["ended"]) == (None, None, None)
    compile(item["attach"], "<attach>", "exec")
    assert "nb.attach" in item["attach"]


@pytest.mark.usefixtures("cluster")
def test_a_run_that_trains_in_a_session() -> None:
    """It can be paused; its learning rate is in its graph."""
    run = RunFolder("r1", options={})
    for rank in range(2):
        run.progress(rank, 40, trainings=0, sessions=1)
    item = only(Runs())
    assert (item["training"], item["step"]) == (True, 80)
    assert item["can"] == {"stop": True, "pause": True, "resume": False, "set": False, "delete": False}
    assert item["why"]["set"] == "it trains in a session: its graph has the learning rate"
    for rank in range(2):
        run.progress(rank, 41, trainings=0, sessions=1, state="paused")
    item = only(Runs())
    assert (item["status"], item["can"]["pause"], item["can"]["resume"]) == ("paused", False, True)


@pytest.mark.usefixtures("cluster")
def test_active_runs_of_a_cluster() -> None:
    for name, status, where in (
        ("r1", "running", "c1"),
        ("r2", "finished", "c1"),
        ("r3", "running", "ended"),
    ):
        RunFolder(name, status=status, cluster=where)
    runs = Runs()
    assert runs.on_cluster("c1") == []  # before the first poll
    runs.poll()
    assert (runs.on_cluster("c1"), runs.on_cluster("ended"), runs.on_cluster("../x")) == (["r1"], [], [])


@pytest.mark.usefixtures("cluster")
def test_a_run_is_followed_until_it_has_ended() -> None:
    run, runs = RunFolder("r1", workers=1), Runs()
    recorder = run.log(0, losses(3), close=False)
    run.progress(0, 3)
    assert only(runs)["step"] == 3
    add(recorder, [("loss", 3, 0.5)])
    run.progress(0, 4)
    item = only(runs)
    assert (item["step"], item["value"]) == (4, 0.5)
    recorder.close()
    run.progress(0, 4, state="finished")
    run.write(status="finished", ended=run.record.created + 9)
    item = only(runs)
    assert (item["status"], item["ended"]) == ("finished", run.record.created + 9)
    assert (item["steps_per_second"], item["seconds_left"]) == (None, None)
    assert [command for command, can in item["can"].items() if can] == ["delete"]


def test_a_failed_run_starts_with_its_error() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "<distribute r1>", line 4, in <module>\n    fit()\n'
    )
    error = f"{traceback}ValueError: late\n\nraised on /job:worker/task:1 (pid 7)"
    RunFolder("r1").write(status="failed", error=error)
    item = only(Runs())
    assert item["error_line"] == "ValueError: late (line 4, worker 1)"
    assert item["error"] == error


def test_a_run_has_its_labels() -> None:
    run, runs = RunFolder("r1"), Runs()
    run.write(status="finished", ended=time.time(), trained=False)
    item = only(runs)
    assert (item["tags"], item["remark"], item["training"]) == ([], None, False)
    assert item["bytes"] == sum(path.stat().st_size for path in run.folder.iterdir())
    write_labels("r1", name="baseline", tags=("a", "b"), note="good")
    item = only(runs)
    assert (item["name"], item["tags"], item["remark"]) == ("baseline", ["a", "b"], "good")
    run.write(trained=None, options={"strategy": "ps"})  # of an earlier version
    assert only(runs)["training"] is True
    delete_run("r1")
    assert runs.poll() == []


def test_replicas_by_rank_with_a_straggler() -> None:
    run, runs = RunFolder("r1", workers=3), Runs()
    run.write(cluster={**run.record.cluster, "workers": [1, 2]})
    for second in range(8):
        for rank, slow in ((1, 1.0), (2, 1.4)):
            busy = second * 0.7 * slow
            spent = {"compute": busy, "wait": second - busy}
            more = {"total": 300, "training": 1, "time": 1e9 + second, "spent": spent}
            run.raw_progress(rank, state="running", step=30 * second, **more)
        runs.poll()
    tasks = runs.tasks_of("r1")
    assert tasks.keys() == {1, 2}
    assert tasks[1] == {"state": "running", "step": 210, "steps_per_second": 30, "straggler": None}
    assert tasks[2]["straggler"] == pytest.approx(1.4)
    assert runs.tasks_of("r2") == {}


def test_towers_are_listed_as_workers() -> None:
    run, runs = RunFolder("r1", workers=2), Runs()
    run.write(
        cluster={**run.record.cluster, "workers": [3, 5]},
        options={"replication": "in-graph", "synchronous": True},
    )
    run.progress(0, 7)
    run.progress(1, 8)
    runs.poll()
    assert {rank: one["step"] for rank, one in runs.tasks_of("r1").items()} == {3: 7, 5: 8}


def test_newest_first_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "MAX_RUNS", 3)
    for i in range(5):
        RunFolder(f"r{i}", created=1e9 + i, status="finished")
    runs = Runs()
    assert [item["id"] for item in runs.poll()] == ["r4", "r3", "r2"]
    assert runs.problems == ["2 older runs are not shown"]
    assert runs.item("r0")["id"] == "r0"


def test_the_path_for_the_file_browser(home: Path, tmp_path: Path) -> None:
    RunFolder("r1", status="finished")
    assert only(Runs())["browse"] is None
    assert only(Runs(tmp_path))["browse"] == "home/runs/r1"
    assert only(Runs(tmp_path / "elsewhere"))["browse"] is None
    (tmp_path / "linked").symlink_to(tmp_path)
    assert only(Runs(tmp_path / "linked"))["browse"] == "home/runs/r1"
    hidden = tmp_path / ".local"
    hidden.mkdir()
    home.rename(hidden / "home")
    os.environ["NBDIST_HOME"] = str(hidden / "home")
    assert only(Runs(tmp_path))["browse"] is None


def test_event_files_are_reported() -> None:
    run = RunFolder("r1", status="finished")
    assert not only(Runs())["tensorboard"]
    (run.folder / "tensorboard").mkdir()
    assert only(Runs())["tensorboard"]


@pytest.mark.usefixtures("cluster")
def test_a_pause_is_a_status() -> None:
    run = RunFolder("r1")
    for rank in range(2):
        run.progress(rank, 5, state="paused", spent={"compute": 1.0})
    runs = Runs()
    item = only(runs)
    assert (item["status"], item["steps_per_second"], item["seconds_left"]) == ("paused", None, None)
    assert runs.tasks_of("r1")[0]["steps_per_second"] is None
    assert item["can"] == {"stop": True, "pause": False, "resume": True, "set": False, "delete": False}


@pytest.mark.usefixtures("cluster")
def test_seconds_of_pauses() -> None:
    run, runs = RunFolder("r1", workers=1), Runs()
    run.raw_progress(0, state="running", step=5, time=1000.0)
    assert only(runs)["paused"] == 0
    run.raw_progress(0, state="paused", step=5, time=1010.0)
    run.raw_progress(0, state="paused", step=5, time=1010.0)
    assert only(runs)["paused"] == 0
    run.raw_progress(0, state="running", step=5, time=1070.0)
    assert only(runs)["paused"] == 60
    # The server started after this pause.
    run.raw_progress(0, state="running", step=9, time=1200.0, rested=90.0)
    assert (only(runs)["paused"], only(Runs())["paused"]) == (90, 90)
    run.write(status="finished", ended=run.record.created + 300, paused=91.5)
    assert (only(runs)["paused"], only(Runs())["paused"]) == (91.5, 91.5)


def test_the_first_series_is_shown_without_a_loss() -> None:
    run = RunFolder("r1", status="finished")
    run.log(0, [("step_ms", 1, 3.0), ("reward", 1, 7.0), ("speed", 1, 9.0)])
    item = only(Runs())
    assert (item["metric"], item["value"], item["step"], item["total"]) == ("reward", 7.0, 1, None)


@pytest.mark.usefixtures("cluster")
def test_a_later_loss_replaces_it() -> None:
    run, runs = RunFolder("r1", workers=1), Runs()
    recorder = run.log(0, [("reward", 1, 7.0)], close=False)
    assert only(runs)["metric"] == "reward"
    add(recorder, [("loss", 2, 0.5)])
    assert (only(runs)["metric"], only(runs)["curve"]) == ("loss", {"x": [2], "y": [0.5]})
    recorder.close()


def test_the_second_log_of_a_replaced_task_counts() -> None:
    run = RunFolder("r1", workers=1, status="finished")
    run.log(0, losses(3))
    run.log(0, [("loss", 3, 4.0)])
    assert (run.folder / "metrics-0000.1.log").exists()
    assert only(Runs())["curve"]["x"] == [0, 1, 2, 3]


def test_a_mean_ends_at_the_slowest_replica_that_was_not_replaced() -> None:
    run = RunFolder("r1", workers=2, status="finished")
    run.log(0, losses(3))
    run.log(0, [("loss", 3, 4.0), ("loss", 4, 4.0)])  # by its new process
    run.log(1, losses(8))
    assert only(Runs())["curve"]["x"] == [0, 1, 2, 3, 4]


def test_not_a_number_is_no_point_and_no_json() -> None:
    run = RunFolder("r1", workers=1, status="failed", error="the loss is nan")
    run.log(0, [("loss", 1, 2.0), ("loss", 2, float("inf")), ("loss", 3, float("nan")), ("loss", 4, 1.0)])
    item = only(Runs())
    assert item["curve"] == {"x": [1, 4], "y": [2.0, 1.0]}
    assert item["error"] == "the loss is nan"


def test_a_curve_has_at_most_sixty_points() -> None:
    run = RunFolder("r1", status="finished")
    for rank in range(2):
        run.log(rank, losses(5000, 0.25))
    item = only(Runs())
    assert 20 <= len(item["curve"]["x"]) <= 60
    assert set(item["curve"]["y"]) == {0.25}


# Active runs, and runs that only seem active.


def test_a_run_of_an_ended_cluster_is_lost() -> None:
    RunFolder("r1").progress(0, 5)
    item = only(Runs())
    assert (item["status"], item["note"]) == ("lost", "its cluster c1 has ended")
    assert item["why"] == dict.fromkeys(("stop", "pause", "resume", "set"), "its cluster has ended")


@pytest.mark.parametrize("status", ["failed", "stopped", "running", "finished"])
def test_a_run_with_a_state_and_its_body_can_be_resumed(status: str) -> None:
    """Unless it has finished; one without a state of its own continues that of the run that it resumed."""
    run = RunFolder("r1", status=status, resumed_from="")
    runs = Runs()
    assert not only(runs)["can"]["resume"]
    (run.folder / "body.bin").touch()
    assert not only(runs)["can"]["resume"]
    (run.folder / "state-0001-000000000120.safetensors").touch()
    assert only(runs)["can"]["resume"] is (status != "finished")
    (run.folder / "state-0001-000000000120.safetensors").unlink()
    assert not only(runs)["can"]["resume"]
    run.write(status=status, resumed_from="r0")
    item = only(runs)
    assert (item["can"]["resume"], item["resumed_from"]) == (status != "finished", "r0")


def test_a_later_cluster_with_the_same_id_is_distinguished() -> None:
    _, lock = cluster_folder("c1", [7, 8])
    try:
        RunFolder("r1")
        assert only(Runs())["status"] == "lost"
    finally:
        os.close(lock)


@pytest.mark.usefixtures("cluster")
def test_an_in_graph_run_ends_with_its_process() -> None:
    run = RunFolder("r1")
    run.write(options={"replication": "in-graph"})
    item = only(Runs())
    assert item["status"] == "running"
    assert not any(item["can"].values())
    assert "use the controls of its live view" in item["why"]["stop"]
    dead = {**run.record.cluster["owner"], "started": 1.0}
    run.write(cluster={**run.record.cluster, "owner": dead})
    item = only(Runs())
    assert (item["status"], item["note"]) == ("lost", "the notebook's process that drove it has ended")


@pytest.mark.usefixtures("cluster")
def test_ended_bodies_without_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    run, runs = RunFolder("r1"), Runs()
    for rank in range(2):
        run.progress(rank, 100, state="finished")
    assert only(runs)["status"] == "running"  # its client has not yet written the end
    monkeypatch.setattr("nbdist.lab.readers.run_record.QUIET_SECONDS", -1.0)
    item = only(runs)
    assert item["status"] == "finished"
    assert "nb.attach('r1')" in item["note"]


def test_a_cluster_that_dies_is_noticed() -> None:
    folder, lock = cluster_folder()
    RunFolder("r1")
    runs = Runs()
    try:
        assert only(runs)["status"] == "running"
    finally:
        os.close(lock)
    assert only(runs)["status"] == "lost"
    assert (folder / "lock").exists()  # listing removes nothing


# Invalid input.


def test_a_torn_run_json() -> None:
    run = RunFolder("r1")
    run.raw("run.json", (run.folder / "run.json").read_bytes()[:100])
    item = only(Runs())
    assert item["status"] == "damaged"
    assert "run.json is damaged" in item["error"]
    assert item["name"] == item["id"]
    run.write(status="finished")
    assert only(Runs())["status"] == "finished"


def test_a_torn_metrics_log() -> None:
    run = RunFolder("r1", workers=1, status="failed")
    run.log(0, losses(3))
    path = run.folder / "metrics-0000.log"
    path.write_bytes(path.read_bytes()[:-12])
    note = only(Runs())["note"]
    assert "at the end of metrics-0000.log are an incomplete record" in note


def test_a_file_that_is_not_a_log() -> None:
    run = RunFolder("r1", workers=1, status="finished")
    run.raw("metrics-0000.log", "hello, this is text")
    item = only(Runs())
    assert "is not a metrics log" in item["note"]
    assert item["curve"] == {"x": [], "y": []}


@pytest.mark.usefixtures("cluster")
def test_a_torn_log_of_an_active_run_is_no_problem() -> None:
    run = RunFolder("r1", workers=1)
    run.log(0, losses(3))
    with (run.folder / "metrics-0000.log").open("ab") as file:
        file.write(b"NBM2\2")
    assert only(Runs())["note"] is None


def test_a_folder_that_vanishes_during_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    run, runs = RunFolder("r1"), Runs()
    RunFolder("r0", status="finished")
    before = RunRecord.parse

    def vanish(*arguments: Any) -> Any:
        shutil.rmtree(run.folder, ignore_errors=True)
        return before(*arguments)

    run.progress(0, 3)
    run.log(0, losses(3))
    monkeypatch.setattr(RunRecord, "parse", vanish)
    assert "r0" in {item["id"] for item in runs.poll()}
    assert [item["id"] for item in runs.poll()] == ["r0"]


def test_a_new_folder_without_run_json_is_ignored(home: Path) -> None:
    RunFolder("r1", status="finished")
    (home / "runs" / "r2").mkdir(mode=0o700)
    assert [item["id"] for item in Runs().poll()] == ["r1"]


def test_a_missing_state_folder_is_not_created(home: Path) -> None:
    runs = Runs()
    assert runs.poll() == []
    assert not home.exists()
    home.mkdir(mode=0o700)
    assert runs.poll() == []
    assert list(home.iterdir()) == []
    assert runs.problems == []
    with pytest.raises(NotFoundError, match="no run"):
        runs.item("r1")


def test_a_state_folder_writable_by_others_is_not_trusted(home: Path) -> None:
    RunFolder("r1", status="finished")
    home.chmod(0o777)
    runs = Runs()
    assert runs.poll() == []
    assert "others could write there" in runs.problems[0]


@pytest.mark.usefixtures("cluster")
def test_a_read_only_state_folder_is_read(home: Path) -> None:
    run = RunFolder("r1", status="finished")
    run.log(0, losses(2))
    for folder in (run.folder, home / "runs", home):
        folder.chmod(0o500)
    try:
        assert only(Runs())["step"] == 2
    finally:
        for folder in (home, home / "runs", run.folder):
            folder.chmod(0o700)


def test_a_cluster_is_alive_also_without_write_permission(cluster: Path) -> None:
    RunFolder("r1")
    (cluster / "lock").chmod(0o400)
    with pytest.MonkeyPatch.context() as patch:
        before = os.open

        def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if flags & os.O_ACCMODE != os.O_RDONLY:
                raise PermissionError(30, "Read-only file system")
            return before(path, flags, *more, **named)

        patch.setattr(os, "open", read_only)
        assert only(Runs())["status"] == "running"


def test_a_link_among_the_runs_is_ignored(home: Path, tmp_path: Path) -> None:
    run = RunFolder("r1", status="finished")
    run.folder.rename(tmp_path / "elsewhere")
    (home / "runs" / "r1").symlink_to(tmp_path / "elsewhere")
    runs = Runs()
    assert runs.poll() == []
    with pytest.raises(NotFoundError):
        runs.item("r1")


@pytest.mark.parametrize("name", ["run.json", "metrics-0000.log", "progress-0000.json"])
def test_files_that_are_links_pipes_or_folders_are_not_followed(tmp_path: Path, name: str) -> None:
    run = RunFolder("r1", workers=1, status="finished")
    run.log(0, losses(2))
    run.progress(0, 2)
    path = run.folder / name
    (tmp_path / "elsewhere").write_bytes(path.read_bytes())

    def link() -> None:
        path.symlink_to(tmp_path / "elsewhere")

    for make in (link, lambda: os.mkfifo(path), path.mkdir):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        make()
        for item in Runs().poll():
            assert item["status"] in ("finished", "damaged")


def test_a_run_json_of_a_newer_nbdist() -> None:
    run = RunFolder("r1", status="finished")
    content = json.loads((run.folder / "run.json").read_text())
    run.raw("run.json", json.dumps({**content, "mood": "good", "options": {"strategy": 7}}))
    item = only(Runs())
    assert (item["status"], item["strategy"]) == ("finished", None)
    run.raw("run.json", json.dumps({**content, "status": "dreaming"}))
    item = only(Runs())
    assert item["status"] == "damaged"
    assert "a newer nbdist" in item["error"]


def test_names_are_text() -> None:
    RunFolder("r1", name="<img src=x onerror=alert(1)>", status="failed", error="<b>no</b>")
    item = only(Runs())
    assert item["name"] == "<img src=x onerror=alert(1)>"
    assert item["error"] == "<b>no</b>"


@pytest.mark.parametrize("run_id", ["../r1", "..", "", "r1/x", "/etc", "a" * 99, "r\0", ".hidden"])
def test_an_invalid_id_is_refused(run_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a run id"):
        Runs().item(run_id)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
MEMBERS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("id", "tasks", "members", "workers", "owner"), JSON)
)
FIELDS = dict.fromkeys(("name", "created", "ended", "error", "code", "seed", "versions", "options"), JSON)


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(
    found=st.fixed_dictionaries({}, optional={**FIELDS, "cluster": JSON | MEMBERS}),
    word=JSON,
    status=st.sampled_from(["running", "finished", "failed"]),
)
def test_a_run_with_any_json_is_listed(home: Path, found: dict[str, Any], word: Any, status: str) -> None:
    shutil.rmtree(home, ignore_errors=True)
    run = RunFolder("r1")
    run.raw("run.json", json.dumps({"id": "r1", "status": status, **found}))
    run.raw("progress-0000.json", json.dumps(word))
    runs = Runs()
    only(runs)
    json.dumps(runs.tasks_of("r1"), allow_nan=False)


def test_a_wrong_clock_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder("r1", status="finished", created=9e9)
    os.utime(run.folder, (9e9, 9e9))
    runs = Runs()
    assert only(runs)["created"] == 9e9
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert only(runs)["status"] == "finished"


def test_any_record_is_accepted() -> None:
    for content in (b"", b"[]", b"7", b"null", b"\xff", b'{"id": "other"}', b"[" * 100_000):
        assert RunRecord.parse("r1", content, 5.0).status == "damaged"


# Cost.


def test_a_long_log_is_read_over_several_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "LOG_BYTES", 100_000)
    run, runs = RunFolder("r1", workers=2, status="finished"), Runs()
    for rank in range(2):
        run.log(rank, losses(60_000))
    looks = 0
    while len(runs.poll()[0]["curve"]["x"]) < 40 or runs.poll()[0]["step"] != 60_000:
        looks += 1
        assert looks < 60
    assert runs.poll()[0]["curve"]["x"][-1] == 59_999


def test_unchanged_files_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        run = RunFolder(f"r{i}", status="finished")
        run.log(0, losses(5))
        os.utime(run.folder, (1e9, 1e9))
    os.utime(run.folder.parent, (1e9, 1e9))
    runs = Runs()
    first = runs.poll()
    opened: list[Any] = []
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a))
    monkeypatch.setattr(os, "scandir", lambda *a, **k: opened.append(a))
    again = runs.poll()
    assert opened == []
    assert all(one is other for one, other in zip(first, again, strict=True))


@pytest.mark.processes
def test_a_server_stays_light() -> None:
    """No module here imports packages that are slow to import or unfit for a server."""
    code = (
        "import sys, nbdist.lab.readers.runs, nbdist.lab.readers.run_detail\n"
        "import nbdist.lab.readers.sweeps, nbdist.lab.readers.sweep_detail\n"
        "heavy = 'matplotlib ipywidgets anywidget optuna sklearn ipyparallel.client IPython'.split()\n"
        "print([one for one in heavy if one in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
