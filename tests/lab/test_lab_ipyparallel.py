"""Plain ipyparallel clusters, from files in its format; test_lab_actions_engines.py has a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_clusters import a_cluster, a_task

from nbdist.cluster.description import change_description
from nbdist.cluster.hub import write_ipyparallel_files
from nbdist.lab.readers.clusters import Clusters
from nbdist.lab.readers.tasks import ClusterTasks
from nbdist.runtime.task import TaskInfo


@pytest.fixture(autouse=True)
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    profile = tmp_path / "ipython" / "profile_default"
    (profile / "security").mkdir(parents=True)
    return profile


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    clusters = Clusters()
    yield clusters
    clusters.close()


@pytest.fixture
def ended_pid() -> int:
    """Return the pid of an ended process."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


class NoRuns:
    def tasks_of(self, run_id: str) -> dict[int, dict[str, Any]]:
        return {}

    def on_cluster(self, cluster_id: str) -> list[str]:
        return []


def standard(controller: int, engines: list[int], **cluster: Any) -> dict[str, Any]:
    """Return ipyparallel's file for a controller and engines of this host."""
    state = {"profile_dir": "/x", "cluster_id": "a", "state": "running"}
    each = {str(i): {**state, "pid": pid, "output_file": "/x"} for i, pid in enumerate(engines)}
    sets = {"1763683200": {**state, "n": len(engines), "engines": each}}
    return {
        "cluster": {"class": "ipyparallel.cluster.cluster.Cluster", "cluster_id": "a", **cluster},
        "controller": {"class": "local", "state": {**state, "pid": controller, "output_file": "/x"}},
        "engines": {"class": "local", "sets": sets},
    }


def test_a_running_cluster_and_its_engines(clusters: Clusters, profile: Path, ended_pid: int) -> None:
    path = profile / "security" / "cluster-a.json"
    path.write_text(json.dumps(standard(os.getpid(), [os.getpid(), ended_pid])))
    (item,) = clusters.poll()
    assert item == json.loads(json.dumps(item))
    assert (item["id"], item["title"], item["kind"]) == ("ipp:default:a", "a (default)", "ipyparallel")
    assert (item["state"], item["launcher"], item["engines"]) == ("running", "local", 1)
    assert item["dead"] == ["engine:1"]
    assert item["can"] == {"stop": True, "grow": False, "shrink": False, "restart": False}
    assert item["why"].keys() == {"grow", "shrink", "restart"}
    assert clusters.poll() == [item]
    rows = ClusterTasks(NoRuns(), clusters).poll("ipp:default:a")
    assert [(row["name"], row["state"], row["pid"]) for row in rows] == [
        ("/job:engine/task:0", "idle", os.getpid()),
        ("/job:engine/task:1", "dead", ended_pid),
    ]


def test_a_cluster_without_its_controller_is_stale(clusters: Clusters, profile: Path, ended_pid: int) -> None:
    path = profile / "security" / "cluster-a.json"
    path.write_text(json.dumps(standard(ended_pid, [])))
    (item,) = clusters.poll()
    assert item["state"] == "stale"
    assert f"its controller (pid {ended_pid}) ended" in item["error"]
    path.write_text(json.dumps(standard(os.getpid(), [])))
    os.utime(path, (1000.0, 1000.0))  # this process started later: the pid was reused
    assert clusters.poll()[0]["state"] == "stale"
    path.unlink()
    assert clusters.poll() == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"cluster": 3}', b"\xff", b"[" * 100_000])
def test_torn_files_are_ignored(clusters: Clusters, profile: Path, content: bytes) -> None:
    (profile / "security" / "cluster-a.json").write_bytes(content)
    (profile / "security" / "cluster-b.json").write_text(json.dumps(standard(os.getpid(), [])))
    assert [item["id"] for item in clusters.poll()] == ["ipp:default:b"]


def test_files_of_other_users_are_ignored(clusters: Clusters, profile: Path, tmp_path: Path) -> None:
    security = profile / "security"
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(json.dumps(standard(os.getpid(), [])))
    (security / "cluster-link.json").symlink_to(elsewhere)
    (security / "cluster-writable.json").write_text(elsewhere.read_text())
    (security / "cluster-writable.json").chmod(0o666)
    (security / "cluster-folder.json").mkdir()
    os.mkfifo(security / "cluster-pipe.json")
    (security / "ipcontroller-a-client.json").write_text(elsewhere.read_text())
    assert clusters.poll() == []


def test_our_clusters_are_shown_once(clusters: Clusters, profile: Path) -> None:
    info = TaskInfo("worker", 0, 0, "here", os.getpid(), "127.0.0.1:1", "CPU:0", 1)
    with a_cluster("mine", [a_task(0, os.getpid())]) as folder:
        listing = write_ipyparallel_files(folder, os.getpid(), (info,))
        assert (profile / "security" / "cluster-mine.json").exists()
        change_description(folder, listing=listing)
        assert [(item["id"], item["kind"]) for item in clusters.poll()] == [("mine", "nbdist")]
    assert [(item["id"], item["state"]) for item in clusters.poll()] == [("mine", "stale")]


def test_our_launcher_under_ipyparallels_cluster_is_shown_as_its(clusters: Clusters, profile: Path) -> None:
    with a_cluster("a_1763683200") as folder:  # it has no cluster.json
        content = standard(os.getpid(), [])
        content["engines"] = {"class": "nbdist", "sets": {"1": {"n": 2, "supervisor_folder": str(folder)}}}
        (profile / "security" / "cluster-a.json").write_text(json.dumps(content))
        (item,) = clusters.poll()
        assert (item["id"], item["launcher"], item["engines"]) == ("ipp:default:a", "nbdist", 2)
    assert clusters.poll()[0]["engines"] == 0


def test_clusters_of_another_state_folder_are_not_listed(
    clusters: Clusters, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = TaskInfo("worker", 0, 0, "here", os.getpid(), "127.0.0.1:1", "CPU:0", 1)
    with a_cluster("mine", [a_task(0, os.getpid())]) as folder:
        write_ipyparallel_files(folder, os.getpid(), (info,))
        (profile / "security" / "cluster-a.json").write_text(json.dumps(standard(os.getpid(), [])))
        assert [item["id"] for item in clusters.poll()] == ["ipp:default:a", "mine"]
        monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "another"))
        assert [item["id"] for item in clusters.poll()] == ["ipp:default:a"]
