"""cluster.json: any content is read for what is valid in it, or refused by a sentence."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any

import pytest

from nbdist.cluster import description as descriptions
from nbdist.cluster.description import (
    ClusterDescription,
    change_description,
    living_incarnations,
    parse_description,
    parse_tasks,
    read_description,
    write_description,
)
from nbdist.errors import DataLossError, NotAllowedError, NotFoundError
from nbdist.runtime.task import TaskInfo


def a_task(rank: int, pid: int, job: str = "worker", **entries: Any) -> dict[str, Any]:
    task = {"job": job, "index": rank, "rank": rank, "host": "h", "pid": pid}
    return {**task, "address": "127.0.0.1:1", "device": "CPU:0", "incarnation": 1, **entries}


def test_a_description() -> None:
    owner = {"host": "h", "pid": 9, "started": 2.5, "session": "a.ipynb"}
    tasks = [a_task(1, 11, device="GPU:0"), a_task(0, 10, device="GPU:0"), a_task(2, 12, "ps", index=0)]
    description = parse_description(
        {"created": 1000.0, "workers": 2, "ps": 1, "tasks": tasks, "owner": owner, "gpus": ["4", "GPU-6"]}
    )
    assert description is not None
    assert (description.created, description.workers, description.ps, description.data) == (1000.0, 2, 1, 0)
    assert description.launcher == "local"
    assert [(task.rank, task.pid, task.name) for task in description.tasks] == [
        (0, 10, "/job:worker/task:0"), (1, 11, "/job:worker/task:1"), (2, 12, "/job:ps/task:0"),
    ]  # fmt: skip
    assert description.owner == owner
    assert [description.gpu_of(task) for task in description.tasks] == ["4", "GPU-6", None]
    fewer = description.now(description.tasks[:1])
    assert (fewer.workers, fewer.ps, len(fewer.tasks)) == (1, 0, 1)


def test_invalid_values_are_left_out() -> None:
    for wrong in ({"pid": 0}, {"pid": True}, {"rank": -1}, {"job": 3}, {"index": 1.0}, {"pid": 1 << 40}):
        assert parse_tasks([{**a_task(0, 7), **wrong}]) is None
    assert parse_tasks([a_task(0, 7), a_task(0, 8)]) is None  # two tasks with one rank
    odd = {"tasks": [], "created": float("nan"), "owner": {"pid": 3}, "gpus": 7, "versions": [], "asked": 1}
    assert parse_description(odd) == ClusterDescription(None, 0, 0, "local", ())


def test_entries_of_a_newer_version_are_kept_and_not_in_the_way(tmp_path: Path) -> None:
    newer = {"tasks": [{**a_task(0, 7), "colour": "blue"}], "zone": "b"}
    write_description(tmp_path, newer)
    assert read_description(tmp_path).tasks == (TaskInfo.from_dict(a_task(0, 7)),)
    change_description(tmp_path, workers=1)
    assert read_description(tmp_path).workers == 1
    assert '"zone": "b"' in (tmp_path / "cluster.json").read_text()
    assert '"colour": "blue"' in (tmp_path / "cluster.json").read_text()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[1]", "does not describe a cluster; stop the cluster"),
        (b'{"tasks": 3}', "does not describe a cluster"),
        (b'{"ta', "cannot be read: .*stop the cluster"),
        (b"[" * 100_000, "cannot be read"),
        (b"\xff", "cannot be read"),
        (b" " * 1001, r"too large \(over 1,000 bytes\)"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "MOST_BYTES", 1000 if content[:1] == b" " else 4 << 20)
    (tmp_path / "cluster.json").write_bytes(content)
    (tmp_path / "cluster.json").chmod(0o600)
    with pytest.raises(DataLossError, match=why):
        read_description(tmp_path)


def test_only_a_file_of_this_user_is_read(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_description(tmp_path)
    write_description(tmp_path, {"tasks": []})
    (tmp_path / "cluster.json").chmod(0o644)
    with pytest.raises(NotAllowedError):
        read_description(tmp_path)


def test_a_cluster_whose_lock_is_free_is_dead(tmp_path: Path) -> None:
    assert living_incarnations(tmp_path / "clusters") == {}
    folder = tmp_path / "clusters" / "one"
    folder.mkdir(parents=True)
    write_description(folder, {"tasks": [a_task(0, 7)]})
    (folder / "lock").touch()
    assert living_incarnations(tmp_path / "clusters") == {}
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert living_incarnations(tmp_path / "clusters") == {"one": {1}}
        (folder / "cluster.json").unlink()
        assert living_incarnations(tmp_path / "clusters") == {"one": frozenset()}


def test_a_cluster_whose_lock_cannot_be_looked_at_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "odd", "two"):
        (tmp_path / name).mkdir()
        write_description(tmp_path / name, {"tasks": [a_task(0, 7)]})

    def is_alive(folder: Path) -> bool:
        if folder.name == "odd":
            raise OSError(errno.ENOLCK, "no locks available")
        return True

    monkeypatch.setattr(descriptions, "is_alive", is_alive)
    assert living_incarnations(tmp_path) == {"one": {1}, "odd": {1}, "two": {1}}
