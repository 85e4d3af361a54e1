"""The routes that read, over a real Jupyter server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from jupyter_core.paths import jupyter_config_path
from labfakes import Fakes, cluster_item, run_item, task_item
from labserver import BASE, WITH_TOKEN, Server, serving
from waiting import until

from nbdist.errors import DataLossError, FailedPreconditionError, NbdistError, NotAllowedError
from nbdist.lab import service
from nbdist.lab.readers.capabilities import about

fakes = Fakes()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("jupyter"), fakes.put_into) as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_listed() -> None:
    fakes.clear()


def test_the_version_route(server: Server) -> None:
    assert server.get("") == {"version": 1}
    assert server.get("/") == {"version": 1}
    headers = server.ask("GET", "nbdist/api/v1").headers
    assert headers["Content-Type"] == "application/json"
    assert headers["Cache-Control"] == "no-store"
    assert "Etag" not in headers


def test_it_reads_no_configuration_but_an_empty_one_of_its_own(server: Server) -> None:
    (folder,) = jupyter_config_path()
    assert folder.startswith(server.app.root_dir)
    assert set(os.listdir(folder)) <= {"migrated"}  # an empty file of jupyter_core, which it reads no more


def test_the_state_has_everything(server: Server) -> None:
    fakes.clusters.items = [cluster_item("a")]
    fakes.runs.items = [run_item("old"), run_item("new", created=2.0)]
    fakes.tasks.by_cluster = {"a": [task_item("a", 0)]}
    state = server.get("/state")
    assert [run["id"] for run in state["runs"]] == ["new", "old"]
    assert (state["version"], state["tasks"], state["cluster"], state["problems"]) == (1, [], None, [])
    assert server.get("/state?cluster=a")["tasks"] == [task_item("a", 0)]


def test_a_failing_lister_does_not_affect_others(server: Server) -> None:
    fakes.clusters.fails = NotAllowedError("the folder is not yours")
    fakes.sweeps.fails = ZeroDivisionError()
    fakes.runs.items = [run_item("a")]
    state = server.get("/state")
    assert [run["id"] for run in state["runs"]] == ["a"]
    assert state["problems"] == [
        "the sweeps cannot be listed: the Jupyter server's log says why",
        "the folder is not yours",
    ]


def test_values_outside_of_json_are_null(server: Server) -> None:
    fakes.runs.items = [run_item("a", value=float("nan"), curve={"x": [0, 1], "y": [1.0, float("inf")]})]
    [run] = server.get("/state")["runs"]
    assert (run["value"], run["curve"]["y"]) == (None, [1.0, None])
    assert server.get("/runs/a")["value"] is None


def test_details_of_a_run(server: Server) -> None:
    fakes.runs.items = [run_item("a")]
    assert server.get("/runs/a") == server.get("/runs/a/data") == run_item("a")
    server.get("/runs/a/data?chart=loss&chart=%20a%26b")
    assert fakes.charts == ["loss", " a&b"]
    assert server.ask("GET", "nbdist/api/v1/runs/b").status == 404


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (FailedPreconditionError("not 100% there"), 409, "not 100% there"),
        (NotAllowedError("no"), 403, "no"),
        (DataLossError("torn"), 409, "torn"),
        (NbdistError("secret"), 500, "unexpected error in the Jupyter server; see its log"),
        (KeyError("secret"), 500, "unexpected error in the Jupyter server; see its log"),
    ],
)
def test_errors(server: Server, error: Exception, status: int, message: str) -> None:
    fakes.fails = error
    answer = server.ask("GET", "nbdist/api/v1/runs/a")
    assert (answer.status, answer.json) == (status, {"message": message, "reason": None})


@pytest.mark.parametrize("part", ["", "/data", "/output"])
def test_the_parts_of_an_item(server: Server, part: str) -> None:
    fakes.runs.items = [run_item("a")]
    assert server.get(f"/runs/a{part}")["id"] == "a"
    assert server.ask("GET", f"nbdist/api/v1/runs/a{part}/more").status == 404


def test_a_file_is_sent_as_it_is(server: Server) -> None:
    data = bytes(range(256)) * 4000
    fakes.files = {("a", "checkpoints/m ü.bin"): data}
    answer = server.ask("GET", "nbdist/api/v1/runs/a/files/checkpoints/m%20%C3%BC.bin")
    assert (answer.status, answer.body) == (200, data)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Disposition"] == "attachment; filename*=utf-8''m%20%C3%BC.bin"
    assert answer.headers["Content-Length"] == str(len(data))


def test_an_aborted_download_is_no_error(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    fakes.files = {("a", "large"): bytes(32 << 20)}
    with socket.create_connection(("127.0.0.1", server.port)) as page:
        page.sendall(
            f"GET {BASE}nbdist/api/v1/runs/a/files/large HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: {WITH_TOKEN['Authorization']}\r\n\r\n".encode()
        )
        assert page.recv(1000)
    until(lambda: fakes.closed)
    assert server.get("") == {"version": 1}
    assert "Uncaught" not in caplog.text


def test_a_hanging_disk(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "READ_SECONDS", 0.05)
    hangs = threading.Event()
    fakes.runs.waits = hangs
    try:
        for _ in range(3):
            answer = server.ask("GET", "nbdist/api/v1/state")
            assert (answer.status, answer.json["reason"]) == (503, None)
            assert "has taken more than 0.05 s" in answer.json["message"]
        assert server.ask("DELETE", "nbdist/api/v1/clusters/a").status == 503
        monkeypatch.undo()
        assert server.get("") == {"version": 1}  # requests without a poll still work
    finally:
        hangs.set()
    assert server.get("/state")["version"] == 1


def test_features_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = ["ssh"]
    monkeypatch.setattr("shutil.which", lambda name: name if name in commands else None)
    for launcher in ("kubernetes.row", "dask", "ray"):
        monkeypatch.setattr(f"nbdist.cluster.launchers.{launcher}.find_spec", lambda name: None)
    assert about()["launchers"] == ["local", "mpi", "ssh", "ipyparallel"]
    of_ssh = about()["launcher_forms"]["ssh"]["settings"]
    assert {one["name"] for one in of_ssh if one["switch"]} == {"sync_env"}
    monkeypatch.setattr("nbdist.cluster.launchers.mpi.find_spec", lambda name: None)
    commands[:] = ["srun"]
    found = about()
    assert found["launchers"] == ["local", "slurm", "ipyparallel"]
    assert found.keys() == {
        "version", "nbdist", "cores", "gpus", "launchers", "launcher_forms", "nvml", "tensorboard", "home",
        "problem",
    }  # fmt: skip
    forms = found["launcher_forms"]
    assert [name for name, form in forms.items() if form["elsewhere"]] == ["slurm", "ipyparallel"]
    assert [one["name"] for one in forms["local"]["settings"]] == ["idle"]
    switches = {one["name"]: one["switch"] for one in forms["slurm"]["settings"]}
    assert [switches[name] for name in ("idle", "save_before", "requeue")] == [False, False, True]
    nodes = next(one for one in forms["slurm"]["settings"] if one["name"] == "nodes")
    assert (nodes["shows"], nodes["default"], nodes["switch"]) == ("N|N-M", "", False)
    assert "number of nodes" in nodes["help"]
    assert (found["version"], found["problem"]) == (1, None)
    monkeypatch.setenv("NBDIST_HOME", "/dev/null")
    assert "/dev/null is a file" in about()["problem"]


@pytest.mark.processes
def test_the_server_imports_no_heavy_package() -> None:
    """Slow or large imports are left to the action processes."""
    heavy = ("matplotlib", "ipywidgets", "anywidget", "optuna", "ipyparallel", "sklearn", "tensorboard")
    code = (
        "import sys, nbdist.lab.app, nbdist.lab.views as views\n"
        "real = views.default_views()\n"
        "print(*(len(one.poll()) for one in (real.clusters, real.runs, real.sweeps)), real.tasks.poll('a'))\n"
        f"real.about()\nprint([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]"


def test_polling_does_not_count_as_activity(server: Server) -> None:
    server.app.web_app.settings.pop("api_last_activity", None)
    server.get("/state")
    assert "api_last_activity" not in server.app.web_app.settings
