"""Clusters as the sidebar lists them, from folders with a lock held by the test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lab_clusters import FakeSupervisor, a_cluster, a_description, a_task
from waiting import until

from nbdist.cluster import folder as folders
from nbdist.cluster.description import write_description
from nbdist.cluster.folder import mark_busy, this_process, unmark_busy
from nbdist.cluster.supervisor.process import OLDER_SOCKET
from nbdist.lab.readers import clusters as watching
from nbdist.lab.readers.clusters import Clusters, ClusterWatcher

KEYS = {
    "id", "kind", "title", "state", "launcher", "workers", "ps", "engines", "created", "owner", "detached",
    "dead", "runs", "hosts", "ends", "unused_ends", "attach", "can", "why", "lines", "error",
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("h")  # a short path: a socket's has at most 107 bytes
    folder.chmod(0o700)
    monkeypatch.setenv("NBDIST_HOME", str(folder / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    return folder / "home"


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    clusters = Clusters()
    yield clusters
    clusters.close()


@pytest.fixture
def supervisor() -> Iterator[Callable[[Path], FakeSupervisor]]:
    with ExitStack() as kept:

        def start(folder: Path) -> FakeSupervisor:
            one = FakeSupervisor(folder)
            kept.callback(one.close)
            return one

        yield start


def test_a_missing_state_folder_is_no_problem_and_not_created(clusters: Clusters, home: Path) -> None:
    assert clusters.poll() == []
    assert clusters.problem is None
    assert not home.exists()


def test_an_unusable_state_folder_is_reported(clusters: Clusters, home: Path) -> None:
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    assert clusters.poll() == []
    assert "others could write there" in str(clusters.problem)
    home.rmdir()
    home.write_text("a file")
    assert clusters.poll() == []
    assert "is a file" in str(clusters.problem)
    home.unlink()
    assert clusters.poll() == []
    assert clusters.problem is None


def test_another_users_state_folder_is_not_read(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_cluster("mine", []):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert clusters.poll() == []
        assert "not to user 12345" in str(clusters.problem)


def test_a_state_folder_that_cannot_be_created_is_reported(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBDIST_HOME", "/proc/nothing/here")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert clusters.poll() == []
    assert "/proc/nothing/here cannot be created in /proc; set NBDIST_HOME" in str(clusters.problem)


def test_a_read_only_state_folder_is_read(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_cluster("mine", [a_task(0, os.getpid())]):
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        assert [item["id"] for item in clusters.poll()] == ["mine"]
        assert "cannot be written to; set NBDIST_HOME" in str(clusters.problem)


def test_a_cluster_as_it_is_shown(clusters: Clusters, supervisor: Callable[[Path], FakeSupervisor]) -> None:
    tasks = [a_task(0, os.getpid()), a_task(1, os.getppid()), a_task(2, 1, "ps", index=0)]
    with a_cluster("mine", tasks, owner=this_process()) as folder:
        one = supervisor(folder)
        one.answer["pids"] = {"-1": 1, "0": os.getpid(), "1": os.getppid(), "2": 1}
        mark_busy(folder, 0, "a_run")
        (item,) = clusters.poll()
        assert item.keys() == KEYS
        assert item == json.loads(json.dumps(item))
        assert item["id"] == item["title"] == "mine"
        assert (item["kind"], item["state"], item["launcher"]) == ("nbdist", "running", "local")
        assert (item["workers"], item["ps"], item["engines"], item["dead"]) == (2, 1, 3, [])
        assert item["created"] == 1000.0
        assert item["owner"] == {"pid": os.getpid(), "session": this_process()["session"], "alive": True}
        assert not item["detached"]
        assert item["attach"] == "import nbdist as nb\n%load_ext nbdist\n%cluster attach mine"
        assert item["can"] == {"stop": True, "grow": True, "shrink": True, "restart": True}
        assert (item["why"], item["lines"], item["error"]) == ({}, [], None)
        assert item["runs"] == ["a_run"]
        assert (item["hosts"], item["ends"]) == ([], None)
        assert clusters.poll() == [item]
        unmark_busy(folder, 0)
        assert until(lambda: [one for one in clusters.poll() if one["runs"] == []])
        assert until(lambda: one.asked) == 1  # not in every poll


def test_the_hosts_of_a_cluster_are_listed(
    clusters: Clusters, supervisor: Callable[[Path], FakeSupervisor]
) -> None:
    there = {"host": "another host", "address": "10.0.0.1:4711"}
    tasks = [
        a_task(0, 7, node="a", **there),
        a_task(1, 8, node="b", **there),
        a_task(2, 9, node="a", **there),
    ]
    report = {"name": "a", "hostname": "gpu1", "address": "10.0.0.1", "cores": 8, "gpus": ["GPU-1", "GPU-2"]}
    with a_cluster("mine", tasks, slots={"a": 2, "b": 1, "c": 4}) as folder:
        one = supervisor(folder)
        one.answer |= {"pids": {"0": 7, "2": 9}, "hosts": [report, {"name": 7}, "?"], "ends": 5000}
        (item,) = clusters.poll()
        gone = {"address": None, "cores": None, "gpus": None, "machine": None}
        assert item["hosts"] == [
            {
                "name": "a",
                "address": "10.0.0.1",
                "cores": 8,
                "gpus": 2,
                "state": "up",
                "tasks": 2,
                "machine": None,
            },
            {"name": "b", "state": "lost", "tasks": 1, **gone},
            {"name": "c", "state": "absent", "tasks": 0, **gone},
        ]
        assert item["ends"] == 5000.0
        assert item["dead"] == ["worker:1"]


def test_a_starting_cluster_has_no_file_yet(clusters: Clusters) -> None:
    with a_cluster("mine"):
        (item,) = clusters.poll()
        assert item.keys() == KEYS
        assert item["state"] == "starting"
        assert item["can"] == {"stop": True, "grow": False, "shrink": False, "restart": False}
        assert item["why"]["grow"] == "it is starting"
    assert clusters.poll() == []  # its starter has ended before the cluster existed
    assert folders.clusters_folder().joinpath("mine").exists()  # listing removes nothing


def test_a_cluster_without_its_supervisor_is_stale(clusters: Clusters) -> None:
    with a_cluster("mine", [a_task(0, os.getpid())]):
        assert clusters.poll()[0]["state"] == "running"
    (item,) = clusters.poll()
    assert (item["state"], item["engines"], item["dead"]) == ("stale", 0, [])
    assert "its cluster process and its tasks have ended" in item["error"]
    assert item["can"] == {"stop": True, "grow": False, "shrink": False, "restart": False}
    folders.remove_traces(folders.clusters_folder() / "mine", "mine")
    assert clusters.poll() == []


def test_deaths_are_known_from_the_supervisor(
    clusters: Clusters, supervisor: Callable[[Path], FakeSupervisor]
) -> None:
    with a_cluster("mine", [a_task(0, os.getpid()), a_task(1, os.getppid())]) as folder:
        one = supervisor(folder)
        one.answer["pids"] = {"0": os.getpid(), "1": os.getppid()}
        assert clusters.poll()[0]["dead"] == []
        how = {"rank": 1, "pid": os.getppid(), "code": None, "signal": signal.SIGKILL, "log": "a\nthe last\n"}
        one.answer |= {"pids": {"0": os.getpid()}, "exits": {"1": how}}
        one.tell(event="exit", **how)
        (item,) = until(lambda: [item for item in clusters.poll() if item["dead"]])
        assert (item["dead"], item["engines"], item["state"]) == (["worker:1"], 1, "running")
        seen = clusters.one("mine")
        assert seen is not None
        assert seen.dead == {1: "killed by SIGKILL; its log ends with: the last"}
        one.answer["stopping"] = True
        one.tell(event="stopping", reason="a client stopped the cluster")
        (item,) = until(lambda: [item for item in clusters.poll() if item["state"] == "stopping"])
        assert item["can"] == {"stop": False, "grow": False, "shrink": False, "restart": False}


def test_a_hanging_supervisor_is_waited_for_only_once(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with (
        a_cluster("mine", [a_task(0, os.getpid()), a_task(1, ended.pid)]) as folder,
        socket.socket(socket.AF_UNIX) as door,
    ):
        door.bind(str(folder / "supervisor.sock"))
        door.listen(1)  # the kernel accepts connections, and no process answers
        from nbdist.lab.readers.supervisor import SupervisorConnection

        wait = SupervisorConnection._wait
        monkeypatch.setattr(
            SupervisorConnection, "_wait", lambda self, seconds: waited.append(seconds) or wait(self, seconds)
        )
        for _ in range(3):
            (item,) = clusters.poll()
            assert (item["state"], item["dead"]) == ("running", ["worker:1"])  # from the processes
        assert sum(seconds > 0 for seconds in waited) == 1
        assert max(waited) <= 0.05


def test_a_broken_connection_is_reopened(
    clusters: Clusters, supervisor: Callable[[Path], FakeSupervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbdist.lab.readers import supervisor as reader

    monkeypatch.setattr(reader, "RETRY_SECONDS", 0.0)
    with a_cluster("mine", [a_task(0, os.getpid())]) as folder:
        one = supervisor(folder)
        one.answer["pids"] = {"0": os.getpid()}
        clusters.poll()
        until(lambda: one.asked)
        one.hang_up()
        until(lambda: clusters.poll() and one.asked == 2)
        assert clusters.poll()[0]["dead"] == []


def test_without_a_supervisor_a_reused_pid_counts_as_dead(clusters: Clusters) -> None:
    with a_cluster("mine", [a_task(0, os.getpid())]) as folder:
        assert clusters.poll()[0]["dead"] == []
        os.utime(folder / "cluster.json", (1000.0, 1000.0))  # this process started later than that
        assert clusters.poll()[0]["dead"] == ["worker:0"]


def test_other_versions_can_only_be_stopped(clusters: Clusters) -> None:
    with a_cluster("mine", [a_task(0, os.getpid())], versions={"nbdist": "0.0.1"}):
        (item,) = clusters.poll()
    assert item["can"] == {"stop": True, "grow": False, "shrink": False, "restart": False}
    assert "it runs nbdist 0.0.1" in item["why"]["grow"]


@pytest.mark.parametrize("content", [b"", b'{"id": "mi', b"[1]", b"\xff", b"[" * 100_000, b'{"tasks": [{}]}'])
def test_a_torn_description_is_reported(clusters: Clusters, content: bytes) -> None:
    with a_cluster("mine", []) as folder, a_cluster("other", []):
        (folder / "cluster.json").write_bytes(content)
        items = {item["id"]: item for item in clusters.poll()}
        assert (items["mine"]["state"], items["other"]["state"]) == ("failed", "running")
        assert "cluster.json" in items["mine"]["error"]
        write_description(folder, a_description("mine", []))
        assert [item["state"] for item in clusters.poll()] == ["running", "running"]


def test_a_description_writable_by_others_is_ignored(clusters: Clusters) -> None:
    with a_cluster("mine", [a_task(0, os.getpid())]) as folder:
        (folder / "cluster.json").chmod(0o644)
        (item,) = clusters.poll()
    assert (item["state"], item["workers"]) == ("failed", 0)
    assert "has mode 0644" in item["error"]


def test_links_are_not_followed(clusters: Clusters, tmp_path: Path) -> None:
    with a_cluster("mine", []) as folder:
        (folder.parent / "linked").symlink_to(folder)
        assert [item["id"] for item in clusters.poll()] == ["mine"]
        elsewhere = tmp_path / "elsewhere.json"
        (folder / "cluster.json").rename(elsewhere)
        (folder / "cluster.json").symlink_to(elsewhere)
        (item,) = clusters.poll()
        assert (item["state"], item["workers"]) == ("failed", 0)
        assert "cannot be trusted" in item["error"]
        folder.parent.rename(tmp_path / "others")
        folder.parent.symlink_to(tmp_path / "others")
        assert clusters.poll() == []
        assert "is a link" in str(clusters.problem)


def test_other_folders_are_ignored(clusters: Clusters, home: Path) -> None:
    with a_cluster("mine", []):
        (home / "clusters" / "a file").touch()
        (home / "clusters" / "no-id").mkdir()
        assert [item["id"] for item in clusters.poll()] == ["mine"]


@pytest.mark.parametrize("step", ["read", "is_alive", "read_description", "busy_tasks"])
def test_a_cluster_may_vanish_between_two_steps(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    where = watching.SupervisorConnection if step == "read" else watching
    do = getattr(where, step)
    with a_cluster("mine", [a_task(0, os.getpid())]) as folder:
        mark_busy(folder, 0, "a_run")

        def vanish_first(*arguments: Any) -> Any:
            folders.remove_traces(folder, "mine")
            return do(*arguments)

        monkeypatch.setattr(where, step, vanish_first)
        for item in clusters.poll():
            assert item.keys() == KEYS
        assert clusters.poll() == []


def test_unchanged_files_are_not_read_again(monkeypatch: pytest.MonkeyPatch, clusters: Clusters) -> None:
    read: list[Path] = []
    real = watching.read_description
    monkeypatch.setattr(watching, "read_description", lambda folder: read.append(folder) or real(folder))
    with a_cluster("mine", []) as folder:
        for _ in range(3):
            clusters.poll()
        assert read == [folder]
        write_description(folder, a_description("mine", [a_task(0, os.getpid())]))
        assert clusters.poll()[0]["engines"] == 1
        assert read == [folder, folder]


def test_the_newest_is_first_and_a_removed_folder_may_reappear(clusters: Clusters) -> None:
    with a_cluster("old", [], created=1.0), a_cluster("new", [], created=2.0):
        assert [item["id"] for item in clusters.poll()] == ["new", "old"]
        assert all(isinstance(one, ClusterWatcher) for one in clusters._watched.values())
    for name in ("old", "new"):
        folders.remove_traces(folders.clusters_folder() / name, name)
    assert clusters.poll() == []
    with a_cluster("old", [], created=3.0):
        assert clusters.poll()[0]["created"] == 3.0


def test_a_cluster_of_an_older_version_is_read_over_its_own_socket(clusters: Clusters) -> None:
    with a_cluster("mine", [a_task(0, os.getpid())]) as folder:
        one = FakeSupervisor(folder, OLDER_SOCKET)
        try:
            one.answer["exits"] = {"0": {"pid": os.getpid(), "code": 3, "signal": None, "log": ""}}
            assert until(lambda: clusters.poll()[0]["dead"]) == ["worker:0"]
        finally:
            one.close()
