"""A real Jupyter server and a real cluster without a kernel: all actions of the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import websocket
from labfakes import applied
from labserver import ServerProcess, server_process
from tiers import matrix
from waiting import until

from nbdist.cluster.adopt import end
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import clusters_folder, living
from nbdist.cluster.launch import start_cluster
from nbdist.run.attach import attach_run

pytestmark = pytest.mark.engines
API = "nbdist/api/v1"


class Feed:
    """The state of a page: the first message with all changes applied."""

    def __init__(self, server: ServerProcess) -> None:
        self.page: websocket.WebSocket = server.stream()
        self.state = self._receive()
        assert self.state.pop("kind") == "state"

    def poll(self, cluster: str | None) -> None:
        self.page.send(json.dumps({"kind": "look", "cluster": cluster, "visible": True}))

    def until(self, condition: Any) -> Any:
        """Apply messages until a condition of the state holds."""
        self.page.settimeout(60)
        while not (found := condition(self.state)):
            message = self._receive()
            assert message.pop("kind") == "changes"
            self.state = applied(self.state, message)
        return found

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.page.recv())
        return message


@pytest.fixture(scope="module", autouse=True)
def own_folder(own_home: Path) -> Iterator[None]:
    """A state folder without the runs of other modules, which each answer of the server would list."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBDIST_HOME", str(own_home / "lab" / "nbdist"))
        yield
        assert not list(clusters_folder().glob("*")), "cluster folders left by this module"


@pytest.fixture(scope="module")
def cluster(own_folder: None) -> Iterator[Cluster]:
    """Two workers for the drivers of this module, which attach to them."""
    one = start_cluster(workers=2, report=None)
    yield one
    one.stop()


@pytest.fixture(autouse=True)
def end_started_clusters() -> Iterator[None]:
    """End all clusters that a test has started, also when it fails."""
    before = living()
    yield
    for id in set(living()) - set(before):
        end(clusters_folder() / id)


@pytest.fixture(scope="module")
def server(own_folder: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that do not end it."""
    with server_process(tmp_path_factory.mktemp("jupyter")) as one:
        yield one


def lives(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def item(id: str, state: dict[str, Any]) -> dict[str, Any]:
    return next((one for one in state["clusters"] if one["id"] == id), {})


def test_a_cluster_from_start_to_end(server: ServerProcess) -> None:
    feed = Feed(server)
    answer = server.ask("POST", f"{API}/clusters", {"workers": 2, "gpus": "none"})
    assert answer.status == 202, answer
    id = answer.json["id"]
    starting = feed.until(lambda state: item(id, state))
    assert (starting["engines"], starting["detached"]) == (2, True)
    assert starting["state"] in ("starting", "running")  # the start may end before the page learns of it
    running = feed.until(lambda state: item(id, state).get("state") == "running" and item(id, state))
    assert (running["workers"], running["error"], running["dead"]) == (2, None, [])
    feed.poll(id)
    tasks = feed.until(lambda state: len(state["tasks"]) == 2 and state["tasks"])
    assert [task["name"] for task in tasks] == ["/job:worker/task:0", "/job:worker/task:1"]

    os.kill(tasks[1]["pid"], signal.SIGKILL)
    feed.until(lambda state: item(id, state)["dead"] == ["worker:1"])
    # The death may be visible before the supervisor has reported its cause.
    dead = feed.until(lambda state: "SIGKILL" in (state["tasks"][1]["note"] or "") and state["tasks"][1])
    assert dead["state"] == "dead"

    assert server.ask("POST", f"{API}/clusters/{id}/restart", {"task": "worker:1"}).status == 202
    back = feed.until(lambda state: state["tasks"][1]["state"] != "dead" and state["tasks"][1])
    assert back["pid"] != dead["pid"]
    feed.until(lambda state: item(id, state)["can"]["grow"] and item(id, state)["dead"] == [])

    assert server.ask("POST", f"{API}/clusters/{id}/grow", {"workers": 1}).status == 202
    feed.until(lambda state: len(state["tasks"]) == 3)
    feed.until(lambda state: item(id, state)["can"]["stop"])

    assert server.ask("POST", f"{API}/clusters/{id}/restart", {"task": "ps:4"}).status == 202
    failed = feed.until(lambda state: item(id, state)["error"])
    assert "ps:4" in failed

    assert server.ask("DELETE", f"{API}/clusters/{id}").status == 202
    feed.until(lambda state: not item(id, state))
    assert id not in living()
    feed.page.close()


def acting(pid: int) -> list[psutil.Process]:
    """Return a server's action processes."""
    found = []
    for one in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):  # a short process of another request
            if "nbdist.lab.actions" in one.cmdline():
                found.append(one)
    return found


HELD = """
import sys
if "nbdist.lab.actions" in sys.orig_argv:
    import threading
    from nbdist.cluster import launch

    def start_cluster(*given, cluster_id, report, real=launch.start_cluster, **options):
        def report_and_hang(line):
            report(line)
            if cluster_id == "held":
                threading.Event().wait()

        return real(*given, cluster_id=cluster_id, report=report_and_hang, **options)

    launch.start_cluster = start_cluster
"""
"""A module that Python imports first: a cluster of that name is never started further than its controller."""


@pytest.fixture
def holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the servers of a test hold the start of cluster "held"."""
    folder = tmp_path / "holding"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HELD)
    others = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([others] if others else [])]))


def end_during_a_start(first: ServerProcess, number: int) -> None:
    """Send a signal to a server that starts a cluster; check that nothing of the cluster is left."""
    id = first.ask("POST", f"{API}/clusters", {"name": "held", "workers": 2, "gpus": "none"}).json["id"]
    acts = until(lambda: acting(first.process.pid))
    assert len(acts) == 1
    # After the controller's start, before the engines':
    until(lambda: item(id, first.get("/state"))["lines"])
    os.kill(first.process.pid, number)
    first.process.wait(60)
    psutil.wait_procs(acts, 30)
    assert not acts[0].is_running()
    until(lambda: not (clusters_folder() / id).exists())


@pytest.mark.usefixtures("holding")
def test_a_cluster_outlives_its_server_and_a_partial_start_does_not(
    server: ServerProcess, tmp_path: Path
) -> None:
    with server_process(tmp_path) as first:
        id = first.ask("POST", f"{API}/clusters", {"workers": 1, "gpus": "none"}).json["id"]
        until(lambda: item(id, first.get("/state")).get("state") == "running")
        until(lambda: not acting(first.process.pid))
        end_during_a_start(first, signal.SIGTERM)
    assert item(id, server.get("/state"))["state"] == "running"
    server.ask("DELETE", f"{API}/clusters/{id}")
    until(lambda: not item(id, server.get("/state")))


@pytest.mark.usefixtures("holding")
def test_a_killed_server_leaves_no_partial_start(tmp_path: Path) -> None:
    with server_process(tmp_path) as first:
        end_during_a_start(first, signal.SIGKILL)


STUCK = """
import sys, threading
from nbdist.lab.actions import __main__ as act

def start(report, **options):
    def report_and_hang(line):
        report(line)
        if sys.argv[1] in line:
            threading.Event().wait()
    act.start(report_and_hang, **options)

act.ACTIONS["start"] = start
sys.exit(act.main())
"""


@pytest.mark.parametrize("line", matrix(["2 engines"], rest=["controller"]))
def test_a_killed_start_leaves_nothing(line: str) -> None:
    """Only the supervisor itself can clean up, at any point of the start."""
    command = [sys.executable, "-c", STUCK, line]
    act = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert act.stdin is not None
    assert act.stdout is not None
    try:
        act.stdin.write(b'{"do": "start", "id": "cut_short", "workers": 2, "gpus": "none"}\n')
        act.stdin.flush()
        while line.encode() not in (output := act.stdout.readline()):
            assert output
    finally:
        act.kill()
        act.communicate()
    until(lambda: not (clusters_folder() / "cut_short").exists())


def test_a_cancelled_start_leaves_nothing(server: ServerProcess) -> None:
    id = server.ask("POST", f"{API}/clusters", {"workers": 2, "gpus": "none"}).json["id"]

    def begun() -> bool:
        now = item(id, server.get("/state"))
        return bool(now["lines"]) or now["state"] == "running"  # the start may be faster than these polls

    until(begun)
    assert server.ask("DELETE", f"{API}/clusters/{id}").status == 202
    until(lambda: not item(id, server.get("/state")))
    assert id not in living()


def test_a_failed_start_has_a_reason(server: ServerProcess) -> None:
    id = server.ask("POST", f"{API}/clusters", {"workers": 1, "gpus": 7}).json["id"]
    failed = until(lambda: item(id, server.get("/state")).get("error"))
    assert "gpus=7: this host has" in failed
    assert item(id, server.get("/state"))["state"] == "failed"
    assert server.ask("DELETE", f"{API}/clusters/{id}").status == 202
    assert not item(id, server.get("/state"))


def driven(code: str, cluster: Cluster) -> subprocess.Popen[str]:
    """Start a process that drives a run or a sweep on a cluster."""
    command = [sys.executable, "-c", code, cluster.id]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


DRIVER = """
import sys
import nbdist as nb
cluster = nb.Cluster.attach(sys.argv[1])
body = "import time\\nwhile True: time.sleep(0.01)"
run = nb.launch(body, live=False, background=True, cluster=cluster)
print(run.id, flush=True)
run.wait()
print(run.status, flush=True)
"""


@pytest.mark.parametrize("frozen", [False, True])
def test_a_run_is_stopped_while_its_client_is_busy(
    server: ServerProcess, cluster: Cluster, frozen: bool
) -> None:
    driver = driven(DRIVER, cluster)
    assert driver.stdout is not None
    try:
        run = driver.stdout.readline().strip()
        until(lambda: run_of(run, server)["status"] == "running")
        if frozen:
            os.kill(driver.pid, signal.SIGSTOP)
        assert server.ask("POST", f"{API}/runs/{run}/stop").status == 202
        assert server.ask("POST", f"{API}/runs/{run}/stop").status == 409
        until(lambda: run_of(run, server)["status"] == "stopped")
        until(lambda: run_of(run, server)["why"].get("stop") == "it has ended")
        assert run_of(run, server)["error"] is None
        driver.send_signal(signal.SIGCONT)
        assert driver.stdout.readline() == "stopped\n"  # the process still drives the run
        assert driver.wait(60) == 0
    finally:
        driver.send_signal(signal.SIGCONT)
        driver.terminate()
        driver.communicate()


TRAINER = """
import sys
import nbdist as nb
cluster = nb.Cluster.attach(sys.argv[1])
body = '''
import time
def slowly(x, y):
    time.sleep(0.02)
    return x, y
x, y, *_ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy")
model.fit(nb.data.Dataset.from_arrays(x, y).batch(100).map(slowly), epochs=1_000_000)
'''
run = nb.launch(body, strategy="multi_worker", live=False, background=True, cluster=cluster)
print(run.id, flush=True)
run.wait()
print(run.status, run.model.optimizer.learning_rate, flush=True)
"""


def test_a_training_is_paused_resumed_and_gets_another_learning_rate(
    server: ServerProcess, cluster: Cluster
) -> None:
    driver = driven(TRAINER, cluster)
    assert driver.stdout is not None
    try:
        run = driver.stdout.readline().strip()
        until(lambda: run_of(run, server)["learning_rate"] == 0.01)

        def ask(command: str, body: Any = None) -> None:
            until(lambda: run_of(run, server)["can"][command])
            assert server.ask("POST", f"{API}/runs/{run}/{command}", body).status == 202

        ask("pause")
        until(lambda: run_of(run, server)["status"] == "paused")
        at = run_of(run, server)["step"]
        assert server.ask("POST", f"{API}/runs/{run}/set", {"learning_rate": 0.005}).status == 409
        ask("resume")
        until(lambda: run_of(run, server)["status"] == "running" and run_of(run, server)["step"] > at)
        ask("set", {"learning_rate": 0.005})
        until(lambda: run_of(run, server)["learning_rate"] == 0.005)
        assert run_of(run, server)["error"] is None
        ask("stop")
        assert driver.stdout.readlines()[-1] == "stopped 0.005\n"  # the process still drives the run
        assert driver.wait(60) == 0
    finally:
        driver.terminate()
        driver.communicate()


KILLED = """
import os, signal, threading, psutil
import nbdist as nb
cluster = nb.start_cluster(workers=2, report=None)
body = '''
import threading, numpy as np
class Hold(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        if epoch == 2 and {hold!r} in open({flag!r}).read():
            threading.Event().wait()
model = nb.nn.Sequential([nb.nn.Dense(1)])
model.compile(nb.optim.SGD(0.01), "mse")
x = np.ones((8, 2), np.float32)
model.fit(x, x[:, :1], batch_size=4, epochs=4, callbacks=[Hold()])
'''
run = nb.launch(body, strategy="multi_worker", seed=1, background=True, live=False, checkpoint_every=1)
run.wait_until(step=6)
while not list(run.folder.glob("state-*")): threading.Event().wait(0.01)
supervisor = psutil.Process(cluster.tasks[0].pid).parent()
supervisor.suspend()
for one in [*supervisor.children(recursive=True), supervisor]:
    one.kill()
print(run.id, flush=True)
os._exit(0)
"""


def test_a_run_whose_processes_all_died_is_resumed(server: ServerProcess, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.write_text("hold")
    code = KILLED.format(hold="hold", flag=str(flag))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    run = done.stdout.split()[-1]
    flag.write_text("continue")
    until(lambda: run_of(run, server)["status"] == "lost")
    assert run_of(run, server)["can"]["resume"]
    before = {one["id"] for one in server.get("/state")["clusters"]}  # those of other tests

    def started() -> list[dict[str, Any]]:
        return [one for one in server.get("/state")["clusters"] if one["id"] not in before]

    assert server.ask("POST", f"{API}/runs/{run}/resume").status == 202
    found = lambda: [one for one in server.get("/state")["runs"] if one["resumed_from"] == run]
    try:
        until(lambda: found() or run_of(run, server)["error"])
        assert run_of(run, server)["error"] is None
        (again,) = found()
        until(lambda: run_of(again["id"], server)["step"] == 8)
        attach_run(again["id"]).wait()  # a client records the end; without one it is assumed after 15 s
        Cluster.current().close()
        until(lambda: run_of(again["id"], server)["status"] == "finished")
        assert server.get(f"/runs/{again['id']}")["resumed_from"] == run
    finally:
        until(lambda: all(one["can"]["stop"] for one in started()))
        for cluster in started():
            server.ask("DELETE", f"{API}/clusters/{cluster['id']}")
        until(lambda: not started())


def run_of(id: str, server: ServerProcess) -> dict[str, Any]:
    return next(run for run in server.get("/state")["runs"] if run["id"] == id)


SWEEP = """
import sys
import time
import nbdist as nb
cluster = nb.Cluster.attach(sys.argv[1])
body = "import os, time\\nwhile not os.path.exists(gate): time.sleep(0.01)\\naccuracy = n"
space = {{"n": [1, 2, 3], "gate": [{gate!r}]}}
sweep = nb.run_sweep(
    body, space, metric="accuracy", sampler="grid", wait=False, on="worker:0", cluster=cluster
)
print(sweep.id, flush=True)
while not sweep.over:  # its main thread receives nothing of all this
    try:
        sum(range(10_000))
        time.sleep(0.005)
    except KeyboardInterrupt:
        pass
print(sweep.state, flush=True)
"""


@pytest.mark.parametrize("frozen", matrix([False], rest=[True]))  # it has ten seconds to answer
def test_a_sweep_is_controlled_while_its_driver_is_busy(
    server: ServerProcess, cluster: Cluster, tmp_path: Path, frozen: bool
) -> None:
    driver = driven(SWEEP.format(gate=str(tmp_path / "gate")), cluster)
    assert driver.stdout is not None
    try:
        sweep = driver.stdout.readline().strip()
        until(lambda: sweep_of(sweep, server).get("counts", {}).get("running"))
        assert server.ask("POST", f"{API}/sweeps/{sweep}/pause").status == 202
        until(lambda: sweep_of(sweep, server)["state"] == "paused")
        until(lambda: sweep_of(sweep, server)["can"] == {"pause": False, "resume": True, "stop": True})
        (tmp_path / "gate").touch()
        until(lambda: sweep_of(sweep, server)["counts"]["finished"])
        (tmp_path / "gate").unlink()
        assert server.ask("POST", f"{API}/sweeps/{sweep}/resume").status == 202
        until(lambda: sweep_of(sweep, server)["counts"]["running"])
        until(lambda: sweep_of(sweep, server)["can"]["stop"])
        if frozen:
            os.kill(driver.pid, signal.SIGSTOP)
            assert server.ask("POST", f"{API}/sweeps/{sweep}/stop").status == 202
            until(lambda: sweep_of(sweep, server)["error"])
            assert "has not answered for 10 s; is it frozen?" in sweep_of(sweep, server)["error"]
            os.kill(driver.pid, signal.SIGCONT)
        assert server.ask("POST", f"{API}/sweeps/{sweep}/stop").status == 202
        until(lambda: sweep_of(sweep, server)["state"] == "stopped")
        until(lambda: sweep_of(sweep, server)["why"]["stop"] == "it has ended")
        assert sweep_of(sweep, server)["error"] is None
        assert driver.stdout.readline() == "stopped\n"
        assert driver.wait(60) == 0
    finally:
        driver.send_signal(signal.SIGCONT)
        driver.terminate()
        driver.communicate()


def sweep_of(id: str, server: ServerProcess) -> dict[str, Any]:
    return next((sweep for sweep in server.get("/state")["sweeps"] if sweep["id"] == id), {})


PANEL = """
import ipyparallel as ipp, os
cluster = ipp.Cluster(profile="default", cluster_id="1763683200-abcd", n=1, delay=0, shutdown_atexit=False)
cluster.start_cluster_sync()
print(cluster.controller.process.pid, flush=True)
os._exit(0)
"""
"""Acts like the panel of ipyparallel."""
ATTACHED = """
rc.wait_for_engines(1, timeout=60)
print(rc[:].apply_sync(__import__("os").getpid))
rc.close()
"""


@pytest.mark.parametrize("dead", [False, True])
def test_a_plain_ipyparallel_cluster_is_listed_and_stopped(server: ServerProcess, dead: bool) -> None:
    id = "ipp:default:1763683200-abcd"
    done = subprocess.run([sys.executable, "-c", PANEL], capture_output=True, text=True, check=True)
    controller = psutil.Process(int(done.stdout))
    until(lambda: item(id, server.get("/state")).get("state") == "running")
    state = server.get(f"/state?cluster={id}")
    (row,), listed = state["tasks"], item(id, state)
    engine = row["pid"]
    try:
        if dead:
            controller.kill()
            until(lambda: item(id, server.get("/state")).get("state") == "stale")
        else:
            assert (listed["engines"], listed["created"], listed["dead"]) == (1, 1763683200.0, [])
            assert (row["name"], row["device"]) == ("/job:engine/task:0", None)
            code = listed["attach"] + ATTACHED
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            assert f"[{engine}]" in done.stdout
        assert server.ask("DELETE", f"{API}/clusters/{quote(id)}").status == 202
        until(lambda: not item(id, server.get("/state")), describe=lambda: server.get("/state")["clusters"])
        until(lambda: lives(engine) == dead)
    finally:
        for leader in (controller.pid, engine):  # ipyparallel gives each a process group with its children
            with suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
