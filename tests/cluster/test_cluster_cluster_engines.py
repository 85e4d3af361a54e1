"""A real cluster: calls, and clean-up after its processes are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from freezing import freeze
from tiers import exhaustive
from waiting import PATIENCE, limit, until

from nbdist.cluster import launch
from nbdist.cluster.cluster import Cluster, clusters
from nbdist.cluster.folder import clusters_folder
from nbdist.cluster.launch import _Startup, start_cluster
from nbdist.cluster.task_setup import open_task
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TaskDiedError,
    UnavailableError,
    WorkerError,
)
from nbdist.runtime.task import host_identity

pytestmark = pytest.mark.engines
Start = Callable[..., Cluster]


def sent_by_code(function: Any) -> Any:
    """Send a function by its code, like one of a notebook, not by the name of this module."""
    function.__module__ = "__main__"
    return function


@sent_by_code
def task_identity() -> tuple[str, int, bool, int, str]:
    from nbdist.runtime.task import current

    task = current()
    return task.name, task.rank, task.is_chief, len(task.roster), task.device


@sent_by_code
def fail_on(rank: int) -> int:
    from nbdist.runtime.task import current

    if current().rank == rank:
        raise ZeroDivisionError("one over nothing")
    return current().rank


@sent_by_code
def environment(*names: str) -> dict[str, str]:
    import os

    return {name: os.environ.get(name, "") for name in names}


@sent_by_code
def ping_all() -> list[str]:
    from nbdist.runtime.task import current

    return [current().peer(info.rank).call("ping").meta["name"] for info in current().roster]


@sent_by_code
def sleep(seconds: float) -> str:
    import time

    time.sleep(seconds)
    return "slept"


@sent_by_code
def wait_for(path: str) -> str:
    import os
    import threading

    while not os.path.exists(path):
        threading.Event().wait(0.01)
    return "found"


@sent_by_code
def touch_and_sleep(path: str, seconds: float) -> None:
    import time

    open(path, "w").close()
    time.sleep(seconds)


@sent_by_code
def spin_forever() -> None:
    while True:
        pass


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_tasks_and_their_names(cluster: Cluster) -> None:
    names = ["/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2", "/job:ps/task:0"]
    assert [info.name for info in cluster.tasks] == names
    assert cluster.run(task_identity) == [
        (name, rank, rank == 0, 4, "CPU:0") for rank, name in enumerate(names)
    ]
    assert cluster.spec.num_tasks("worker") == 3
    assert {info.host for info in cluster.tasks} == {host_identity()}
    assert cluster.submit(os.getpid).results() == [info.pid for info in cluster.tasks]
    assert sorted(cluster.client.ids) == [0, 1, 2, 3]


def test_a_task_that_is_opened_twice_is_the_same(cluster: Cluster) -> None:
    for info in cluster.tasks:  # the call is sent again when the first one seems lost
        opened = cluster.submit(
            open_task,
            *(info.job, info.index, info.rank, info.device, cluster.keys.to_dict()),
            on=info.rank,
            cluster_id=cluster.id,
        )
        assert opened.results() == [info.to_dict()]


def test_every_task_reaches_every_other(cluster: Cluster) -> None:
    names = [info.name for info in cluster.tasks]
    assert cluster.run(ping_all) == [names] * 4


def test_the_client_reaches_every_task(cluster: Cluster) -> None:
    for info in cluster.tasks:
        assert cluster.peer(info.rank).call("ping").meta["incarnation"] == info.incarnation
    assert cluster.peer(0) is cluster.peer(0)
    others: list[object] = []
    thread = threading.Thread(target=lambda: others.append(cluster.peer(0)))
    thread.start()
    thread.join()
    assert others[0] is not cluster.peer(0)


def test_each_engine_has_its_own_environment(cluster: Cluster) -> None:
    names = (
        "NBDIST_JOB",
        "NBDIST_INDEX",
        "NBDIST_RANK",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "TF_CONFIG",
    )
    rows = cluster.submit(environment, *names).results()
    assert [row["NBDIST_RANK"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["NBDIST_JOB"] for row in rows] == ["worker", "worker", "worker", "ps"]
    assert {row["CUDA_VISIBLE_DEVICES"] for row in rows} <= {"-1", "0"}
    task = json.loads(rows[1]["TF_CONFIG"])
    assert task["task"] == {"type": "worker", "index": 1}
    assert task["cluster"]["ps"] == [cluster.tasks[3].address]


def test_engines_do_not_share_their_random_numbers(cluster: Cluster) -> None:
    assert len(set(cluster.run("import numpy as np; float(np.random.random())"))) == 4


def test_submit_does_not_block_and_outcomes_come_by_rank(cluster: Cluster, tmp_path: Path) -> None:
    gate, other_gate = tmp_path / "gate", tmp_path / "other gate"
    calls = cluster.submit(wait_for, str(gate), on=[0, 3])
    assert not calls.done()
    with pytest.raises(FailedPreconditionError, match="it is running"):
        calls.outcome(0)
    with pytest.raises(FailedPreconditionError, match="the call was sent to"):
        calls.outcome(1)
    assert not calls.wait(0.01)
    gate.touch()
    assert calls.wait(PATIENCE)
    assert sorted(calls.ready_ranks()) == [0, 3]
    assert calls.outcome(3) == "found"
    with pytest.raises(DeadlineExceededError, match="/job:worker/task:1"):
        cluster.submit(wait_for, str(other_gate), on=1).results(timeout=0.05)
    other_gate.touch()


def test_a_failure_names_the_task_and_starts_with_its_traceback(cluster: Cluster) -> None:
    calls = cluster.submit(fail_on, 2)
    assert calls.wait(PATIENCE)
    assert [calls.outcome(rank) for rank in (0, 1, 3)] == [0, 1, 3]
    error = calls.outcome(2)
    assert isinstance(error, WorkerError)
    assert error.task == cluster.tasks[2]  # type: ignore[attr-defined]
    assert "Traceback" in str(error).splitlines()[0] + str(error).splitlines()[1]
    assert "ZeroDivisionError on /job:worker/task:2" in str(error)
    assert "\x1b" not in str(error)
    assert list(calls.errors()) == [2]
    with pytest.raises(WorkerError):
        calls.results()


def test_errors_of_nbdist_keep_their_class(cluster: Cluster) -> None:
    @sent_by_code
    def refuse() -> None:
        from nbdist.errors import InvalidArgumentError

        raise InvalidArgumentError("a batch of -1")

    with pytest.raises(InvalidArgumentError, match=r"a batch of -1 \(on /job:worker/task:1\)"):
        cluster.run(refuse, on=1)


def test_source_runs_in_the_engines_namespace(cluster: Cluster) -> None:
    cluster.run("x = 20", on=[0, 1])
    assert cluster.run("x + 1", on=[0, 1]) == [21, 21]
    assert cluster.run("lambda: 1", on=0)[0].startswith("<function")
    with pytest.raises(WorkerError, match="NameError"):
        cluster.run("no_such_name", on=3)


def test_unknown_ranks_are_refused(cluster: Cluster) -> None:
    for ranks in (7, [0, 7], []):
        with pytest.raises(InvalidArgumentError, match=r"the ranks are \[0, 1, 2, 3\]"):
            cluster.submit(os.getpid, on=ranks)
    with pytest.raises(InvalidArgumentError):
        cluster.peer(7)
    with pytest.raises(InvalidArgumentError):
        cluster.signal(7, signal.SIGINT)


def test_an_interrupt_reaches_one_engine_and_does_not_end_it(cluster: Cluster, tmp_path: Path) -> None:
    asleep = tmp_path / "asleep"
    calls = cluster.submit(touch_and_sleep, str(asleep), 30, on=[1])
    until(asleep.exists, 10)  # an engine that has not begun cannot be interrupted
    assert not calls.done()
    assert cluster.signal(1, signal.SIGINT)
    assert calls.wait(limit(3))
    assert "KeyboardInterrupt" in str(calls.outcome(1))
    assert cluster.run(os.getpid, on=1) == [cluster.tasks[1].pid]
    assert cluster.dead() == []


def test_calls_work_inside_an_event_loop(cluster: Cluster) -> None:
    async def cell() -> list[int]:
        calls = cluster.submit(os.getpid)
        while not calls.done():
            await asyncio.sleep(0.001)
        assert cluster.peer(0).call("ping").kind == "pong"
        return [calls.outcome(rank) for rank in calls.ranks]

    assert asyncio.run(cell()) == [info.pid for info in cluster.tasks]


def test_a_forked_child_of_the_client_does_not_end_the_cluster(cluster: Cluster) -> None:
    pid = os.fork()
    if pid == 0:
        cluster._stop_at_exit()
        os._exit(0)
    os.waitpid(pid, 0)
    assert cluster.run(os.getpid, on=2) == [cluster.tasks[2].pid]


def test_status_has_a_row_per_task(cluster: Cluster) -> None:
    rows = cluster.status()
    assert [row["name"] for row in rows] == [info.name for info in cluster.tasks]
    assert {row["state"] for row in rows} == {"running"}
    assert {row["node"] for row in rows} == {""}


def test_the_hosts_of_a_cluster_on_one_host_are_this_one(cluster: Cluster) -> None:
    (row,) = cluster.hosts()
    assert (row["name"], row["state"], row["address"], row["ends"]) == ("", "up", "127.0.0.1", None)
    assert row["tasks"] == [info.rank for info in cluster.tasks]
    assert row["cores"] >= 1


def test_results_are_not_kept(cluster: Cluster) -> None:
    for _ in range(20):
        cluster.run(os.getpid)
    client = cluster.client
    until(lambda: not (client.results or client._futures or client._output_futures), 5)


def test_nothing_secret_is_in_argv_or_logs_and_files_are_private(cluster: Cluster) -> None:
    secrets = [cluster.keys.secret]
    for path in (cluster.folder / "security").glob("ipcontroller-*.json"):
        secrets.append(json.loads(path.read_text())["key"])
        secrets.append(json.loads(path.read_text())["curve_serverkey"])
    assert len(secrets) == 5
    supervisor = psutil.Process(cluster.tasks[0].pid).parent()
    assert supervisor is not None
    for process in (supervisor, *supervisor.children()):
        assert not any(secret in " ".join(process.cmdline()) for secret in secrets)
    for log in (cluster.folder / "log").iterdir():
        assert not any(secret in log.read_text() for secret in secrets)
    for path in cluster.folder.rglob("*"):
        assert path.lstat().st_mode & 0o077 == 0 or path.parent.name == "startup", path


def test_a_second_process_attaches_and_leaves_it_running(cluster: Cluster) -> None:
    script = """
import os, sys
from nbdist.cluster.cluster import Cluster, clusters
cluster = Cluster.attach(sys.argv[1])
print(cluster.run(os.getpid), [row["id"] for row in clusters()], cluster.peer(3).call("ping").meta["name"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, cluster.id], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert str([info.pid for info in cluster.tasks]) in done.stdout
    assert cluster.id in done.stdout
    assert "/job:ps/task:0" in done.stdout
    assert cluster.run(os.getpid, on=0) == [cluster.tasks[0].pid]


def test_ipyparallel_itself_finds_it(cluster: Cluster) -> None:
    import ipyparallel

    found = ipyparallel.Cluster.from_file(cluster_id=cluster.id, profile_dir=str(cluster.folder))
    assert found.controller.running
    assert [engines.n for engines in found.engines.values()] == [4]
    for engines in found.engines.values():
        engines.supervisor.close()
    found.controller._stop_waiting.set()


def test_a_dead_engine_is_named_and_the_others_answer(start: Start) -> None:
    cluster = start(2, 1)
    calls = cluster.submit(sleep, 30, on=[1])
    os.kill(cluster.tasks[1].pid, signal.SIGKILL)
    until(lambda: bool(cluster.dead()), 2)
    assert [info.name for info in cluster.dead()] == ["/job:worker/task:1"]
    assert calls.wait(limit(2))
    error = calls.outcome(1)
    assert isinstance(error, TaskDiedError)
    assert "/job:worker/task:1" in str(error)
    assert "SIGKILL" in str(error)
    assert cluster.run(os.getpid, on=[0, 2]) == [cluster.tasks[0].pid, cluster.tasks[2].pid]
    assert [row["state"] for row in cluster.status()] == ["running", "dead", "running"]
    with pytest.raises(TaskDiedError):
        cluster.run(os.getpid)
    with pytest.raises(UnavailableError):
        cluster.peer(1).call("ping", timeout=1)
    assert not cluster.signal(1, signal.SIGINT)
    until(
        lambda: sorted(cluster.client.ids) == [0, 2], 10
    )  # nbdist reports the death to the hub, and the hub to its clients


def test_stop_leaves_nothing_even_with_busy_and_frozen_engines(start: Start) -> None:
    cluster = start(2)
    spin = cluster.submit(spin_forever, on=0)
    child = cluster.run("import subprocess; p = subprocess.Popen(['sleep', '1000']); p.pid", on=1)[0]
    freeze(cluster.tasks[1].pid)
    segment = Path(f"/dev/shm/nbdist-{cluster.id}-left")
    segment.touch(0o600)
    supervisor = psutil.Process(cluster.tasks[0].pid).parent()
    assert supervisor is not None
    pids = [supervisor.pid, *(process.pid for process in supervisor.children()), child]
    begun = time.monotonic()
    cluster.stop()
    cluster.stop()
    assert time.monotonic() - begun < limit(10)
    assert not spin.done() or spin.errors()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10)
    assert not segment.exists()
    assert not cluster.folder.exists()
    assert cluster.id not in [row["id"] for row in clusters()]
    with pytest.raises(FailedPreconditionError, match="stopped"):
        cluster.run(os.getpid)
    with pytest.raises(NotFoundError, match="no cluster"):
        Cluster.attach(cluster.id)


def test_a_dead_controller_ends_the_cluster_and_is_named(start: Start) -> None:
    cluster = start(1)
    controller = json.loads((cluster.folder / "security" / f"cluster-{cluster.id}.json").read_text())
    calls = cluster.submit(sleep, 30)
    os.kill(controller["controller"]["state"]["pid"], signal.SIGKILL)
    assert calls.wait(limit(2))
    assert isinstance(calls.outcome(0), TaskDiedError)
    assert cluster.controller_died() == "killed by SIGKILL"
    until(lambda: not psutil.pid_exists(cluster.tasks[0].pid), 10)


def test_a_killed_supervisor_ends_all_processes(start: Start) -> None:
    cluster = start(2)
    supervisor = psutil.Process(cluster.tasks[0].pid).parent()
    assert supervisor is not None
    children = supervisor.children()
    supervisor.kill()
    until(lambda: all(map(has_ended, children)), 3)
    assert len(cluster.dead()) == 2
    assert cluster.id not in [row["id"] for row in clusters()]
    assert not cluster.folder.exists()  # the next listing removes it


ABANDONED = """
import os, sys
from nbdist.cluster.launch import start_cluster
cluster = start_cluster(workers=1, report=None, detached=sys.argv[1] == "detached", orphan_timeout=3.0)
print(cluster.id, cluster.tasks[0].pid, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def start_elsewhere(elsewhere: Callable[..., str]) -> Callable[[str, str], tuple[str, int]]:
    """Start a cluster in a process that then ends; return the cluster's id and its worker's pid."""

    def start_one(detached: str, end: str) -> tuple[str, int]:
        name, pid = elsewhere(ABANDONED, detached, end).split()
        return name, int(pid)

    return start_one


StartElsewhere = Callable[[str, str], tuple[str, int]]


def test_the_end_of_the_client_ends_its_cluster(start_elsewhere: StartElsewhere) -> None:
    name, pid = start_elsewhere("attached", "normal")
    assert not (clusters_folder() / name).exists()
    until(lambda: not psutil.pid_exists(pid))


def test_an_abandoned_cluster_ends_unless_a_client_attaches(start_elsewhere: StartElsewhere) -> None:
    name, pid = start_elsewhere("attached", "killed")
    cluster = Cluster.attach(name)
    assert not cluster._supervisor.wait_closed(
        3.5
    )  # longer than the orphan timeout: this client keeps the cluster alive
    assert cluster.run(os.getpid) == [pid]
    cluster.close()
    cluster._supervisor.close()
    until(lambda: not psutil.pid_exists(pid), 15)
    until(lambda: not (clusters_folder() / name).exists(), 10)


def test_a_detached_cluster_outlives_its_starter(start_elsewhere: StartElsewhere) -> None:
    name, pid = start_elsewhere("detached", "normal")
    assert psutil.pid_exists(pid)
    cluster = Cluster.attach()
    assert cluster.id == name
    assert Cluster.current() is cluster
    cluster.stop()
    until(lambda: not psutil.pid_exists(pid))


def test_a_start_that_fails_names_its_cause_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    before = sorted(clusters_folder().iterdir())
    with pytest.raises(DeadlineExceededError, match=r"within 0\.05 s; missing: /job:worker/task:0"):
        start_cluster(workers=1, report=None, timeout=0.05)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(UnavailableError, match="failed"):
            start_cluster(workers=1, report=None)
    with monkeypatch.context() as patch:
        broken = own_home / "broken"
        broken.mkdir()
        (broken / "ipyparallel.py").write_text("raise RuntimeError('this installation is broken')")
        patch.setenv("PYTHONPATH", f"{broken}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        with pytest.raises(UnavailableError, match="this installation is broken"):
            start_cluster(workers=1, report=None)
    assert sorted(clusters_folder().iterdir()) == before


def test_a_task_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(psutil.Process().children(recursive=True))
    plan_of = _Startup._plan

    def without_one_task(self: _Startup, patience: float | None) -> dict[str, Any]:
        plan = plan_of(self, patience)
        return {**plan, "tasks": plan["tasks"][:-1]}

    def poisoned(self: _Startup, patience: float | None) -> dict[str, Any]:
        return {**plan_of(self, patience), "tasks": [{"rank": 0, "environment": {"X": 1}}]}

    def until_one_is_there(self: _Startup) -> float:
        return -1.0 if self.client is not None and self.client.ids else 60.0

    with monkeypatch.context() as patch:
        patch.setattr(_Startup, "_plan", without_one_task)
        patch.setattr(_Startup, "_left", until_one_is_there)
        with pytest.raises(
            DeadlineExceededError, match=r"engines did not come up .*; missing: /job:ps/task:0"
        ):
            start_cluster(workers=1, ps=1, report=None)
    with monkeypatch.context() as patch:
        patch.setattr(_Startup, "_plan", poisoned)
        with pytest.raises(UnavailableError) as caught:
            start_cluster(workers=1, report=None)
    assert "/job:worker/task:0" in str(caught.value)
    assert "TypeError: str expected, not int" in str(caught.value)
    # Others, such as the processes of a shared cluster, may have ended, and have no order.
    until(lambda: not set(psutil.Process().children(recursive=True)) - before)


def test_invalid_arguments_are_refused_before_the_start() -> None:
    for options, named in (
        ({"workers": 0}, "workers"),
        ({"ps": -1}, "ps"),
        ({"threads": 0}, "threads"),
        ({"gpus": "many"}, "gpus"),
        ({"gpu_memory": 2}, "gpu_memory"),
        ({"launcher": "cloud"}, "choose from auto"),
        ({"timeout": 0}, "timeout"),
        ({"cluster_id": "../x"}, "cluster id"),
    ):
        with pytest.raises(InvalidArgumentError, match=named):
            start_cluster(**options)  # type: ignore[arg-type]


def test_a_running_cluster_id_is_refused(cluster: Cluster) -> None:
    with pytest.raises(FailedPreconditionError, match=f"'{cluster.id}' is up already"):
        start_cluster(workers=1, cluster_id=cluster.id)


@exhaustive  # test_a_cluster_id_can_be_used_again in tests/run shows it
def test_the_id_of_a_stopped_cluster_can_be_used(start: Start) -> None:
    cluster = start(1, cluster_id="mine")
    with pytest.raises(FailedPreconditionError, match="'mine' is up already"):
        start_cluster(workers=1, cluster_id="mine")
    cluster.stop()
    assert start(1, cluster_id="mine").run(os.getpid)


def test_engines_import_little(start: Start) -> None:
    loaded = start(2, 1).run("import sys; sorted(sys.modules)")[0]
    assert not {"matplotlib", "ipywidgets", "anywidget", "sklearn", "cupy", "debugpy"} & set(loaded)


@exhaustive  # the tests of the launchers see them as well
def test_phases_are_reported(start: Start) -> None:
    lines: list[str] = []
    start(1, 1, report=lines.append)
    assert [line.split(" ")[0] for line in lines] == ["controller", "2", "servers", "ready"]
    assert lines[-1].startswith("ready in ")  # the handle has the name; a cell shows it below


def test_engines_of_a_controller_without_curve_are_refused(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbdist.cluster.ipyparallel_launcher import LocalTaskLauncher

    launcher = LocalTaskLauncher(cluster_id="open", profile_dir=str(own_home / "profile"))
    connection = json.dumps({"key": "k", "interface": "tcp://127.0.0.1", "curve_serverkey": None})
    monkeypatch.setattr(launcher, "get_env", lambda: {"IPP_CONNECTION_INFO": connection})
    with pytest.raises(FailedPreconditionError, match=r"without CURVE.* Set IPP_ENABLE_CURVE=1"):
        launcher.start(1)
    assert launcher.supervisor is None
    assert not list((own_home / "nbdist" / "clusters").glob("open*"))
    asyncio.run(launcher.stop())  # ipyparallel stops the engines that it could not start, then the controller


def test_plain_ipyparallel_starts_engines_through_our_launcher(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPP_ENABLE_CURVE", "1")
    import ipyparallel

    from nbdist.cluster.ipyparallel_launcher import LocalTaskLauncher

    cluster = ipyparallel.Cluster(
        n=2, engines=LocalTaskLauncher, profile_dir=str(own_home / "profile"), delay=0, log_level=40,
        controller_args=["--HeartMonitor.period=200"],
    )  # fmt: skip
    client = cluster.start_and_connect_sync()
    try:
        assert client[:].apply_sync(environment, "NBDIST_RANK", "NBDIST_JOB") == [
            {"NBDIST_RANK": "0", "NBDIST_JOB": "worker"},
            {"NBDIST_RANK": "1", "NBDIST_JOB": "worker"},
        ]
        pids = client[:].apply_sync(os.getpid)
        assert cluster.engine_set.signal_engine(0, signal.SIGKILL)
        until(lambda: cluster.engine_set.supervisor.ended().keys() == {0}, 2)
    finally:
        client.close()
        cluster.stop_cluster_sync()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_full_disk_is_named_if_the_log_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch.disk_full_hint(tmp_path) == ""
    assert launch.disk_full_hint(tmp_path / "missing") == ""
    monkeypatch.setattr(launch, "LEAST_DISK_SPACE", 1 << 60)
    assert f"The disk of {tmp_path} is full" in launch.disk_full_hint(tmp_path)


def test_an_error_on_the_servers_thread_is_in_the_engines_log(cluster: Cluster) -> None:
    cluster.run("import nbdist; nbdist.task.server.post(lambda: 1 / 0)", on=1)
    assert cluster.peer(1).call("ping").kind == "pong"  # after the posted function
    log = (cluster.folder / "log" / "engine-1.log").read_text()
    assert "a function on the thread of /job:worker/task:1 failed" in log
    assert "ZeroDivisionError" in log


def test_pythons_own_settings_are_for_the_users_code(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    cluster = start(workers=1, memory="1G")
    with pytest.raises(WorkerError, match="UserWarning: mine"):
        cluster.run("import warnings, nbdist.nn; warnings.warn('mine')")
    assert cluster.run("import sys; assert False; sys.flags.optimize, sys.argv") == [(2, [""])]
