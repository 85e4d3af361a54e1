from __future__ import annotations

import errno
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from nbdist.cluster import folder as folders
from nbdist.cluster.description import write_description
from nbdist.cluster.hub import check_versions, own_versions, write_ipyparallel_files
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.supervisor.client import describe_exit
from nbdist.cluster.supervisor.process import count_oom_kills, out_of_memory, short_path
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from nbdist.runtime.task import segment_prefix
from nbdist.wire.shm import Doorbell, shared_folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path


def test_a_claimed_folder_is_private_and_alive_until_its_lock_is_released(home: Path) -> None:
    folder, lock = folders.claim("mine")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folders.is_alive(folder)
    assert folders.living() == ["mine"]
    with pytest.raises(FailedPreconditionError, match="'mine' is up already"):
        folders.claim("mine")
    os.close(lock)
    assert not folders.is_alive(folder)
    assert folders.living() == []
    assert not folder.exists()  # the listing removes folders of dead clusters


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["os.open", "fcntl.flock"])
def test_a_cluster_whose_lock_cannot_be_looked_at_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    folder, lock = folders.claim("mine")
    os.utime(folder, (0, 0))
    with monkeypatch.context() as patch:
        opened = os.open

        def fails(*given: Any, **more: Any) -> int:
            if call == "os.open" and "lock" not in str(given[0]):
                return opened(*given, **more)
            raise OSError(code, os.strerror(code))

        patch.setattr(call, fails)
        assert folders.is_alive(folder)
        assert folders.living() == ["mine"]
    assert folder.exists()
    os.close(lock)
    assert folders.living() == []


def test_the_next_cluster_removes_what_a_killed_one_left(home: Path) -> None:
    folder, lock = folders.claim("killed")
    bell = Doorbell.create(segment_prefix("killed"))
    os.close(lock)
    _, lock = folders.claim("next")
    assert not (shared_folder() / bell.name).exists()
    assert not folder.exists()
    os.close(lock)


def test_memory_that_the_kernel_has_taken_back_is_named(tmp_path: Path) -> None:
    def count(group: int, host: int) -> dict[str, int]:
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/fs/cgroup/job").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
        (tmp_path / "sys/fs/cgroup/job/memory.events").write_text(f"oom 7\noom_kill {group}\n")
        (tmp_path / "proc/vmstat").write_text(f"nr_free 5\noom_kill {host}\n")
        return count_oom_kills(tmp_path)

    assert count_oom_kills(tmp_path) == {}  # not Linux
    before = count(1, 1)
    assert before == {"cgroup": 1, "host": 1}
    assert out_of_memory(before, count(1, 1)) == ""
    assert "of this host for its memory" in out_of_memory(before, count(1, 2))
    why = out_of_memory(before, count(2, 2))
    how = {"code": None, "signal": signal.SIGKILL}
    assert describe_exit({**how, "memory": ""}) == describe_exit(how) == "killed by SIGKILL"
    assert describe_exit({**how, "memory": why}).startswith(
        "killed by SIGKILL: the kernel has killed a process of this container or job for its memory"
    )


def test_a_full_disk_starts_no_cluster(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(cluster_id: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full/lock")

    monkeypatch.setattr("nbdist.cluster.launch.claim", full)
    with pytest.raises(
        ResourceExhaustedError, match=r"no cluster was started: No space left .* in /full/lock"
    ):
        start_cluster(1, report=None)


def test_debris_of_an_id_is_replaced(home: Path) -> None:
    folder, lock = folders.claim("mine")
    (folder / "old").touch()
    os.close(lock)
    folder, lock = folders.claim("mine")
    assert not (folder / "old").exists()
    os.close(lock)


@pytest.mark.parametrize("bad", ["", "a-b", "../x", "a b", "é", "x" * 49])
def test_invalid_ids(home: Path, bad: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cluster id"):
        folders.claim(bad)


def test_new_ids_differ_and_are_valid() -> None:
    assert folders.new_id() != folders.new_id()
    assert folders.VALID_ID.fullmatch(folders.new_id())


def test_the_latest_described_cluster_is_found(home: Path) -> None:
    with pytest.raises(NotFoundError, match="start_cluster"):
        folders.find()
    locks = []
    for number, name in enumerate(("b", "a", "undescribed")):
        folder, lock = folders.claim(name)
        locks.append(lock)
        if name != "undescribed":
            write_description(folder, {"id": name})
            os.utime(folder / "cluster.json", (number, number))
    assert folders.find().name == "a"
    assert folders.find("b").name == "b"
    with pytest.raises(NotFoundError, match=r"no cluster 'c' is running; running clusters: \['a', 'b'\]"):
        folders.find("c")
    for lock in locks:
        os.close(lock)


def test_only_the_clusters_files_are_removed(home: Path) -> None:
    folder, lock = folders.claim("mine")
    (home / "ipython" / "profile_default").mkdir(parents=True)
    listing = Path(write_ipyparallel_files(folder, 1, ()))
    assert listing.exists()
    assert listing.parent == home / "ipython" / "profile_default" / "security"
    write_description(folder, {"listing": str(listing)})
    segments = [Path(f"/dev/shm/nbdist-{name}") for name in ("mine-1", "mine_too-1")]
    for segment in segments:
        segment.touch()
    os.close(lock)
    folders.remove_traces(folder, "mine")
    assert not folder.exists()
    assert not listing.exists()
    assert [segment.exists() for segment in segments] == [False, True]
    segments[1].unlink()


def test_a_listing_elsewhere_is_not_followed(home: Path) -> None:
    folder, lock = folders.claim("mine")
    other = home / "precious.json"
    other.touch()
    write_description(folder, {"listing": str(other)})
    os.close(lock)
    folders.remove_traces(folder, "mine")
    assert other.exists()


def test_without_a_profile_only_the_folder_lists_it(home: Path) -> None:
    folder, lock = folders.claim("mine")
    assert write_ipyparallel_files(folder, 1, ()) == ""
    assert (folder / "security" / "cluster-mine.json").exists()
    os.close(lock)


def test_long_paths_fit_a_socket(tmp_path: Path) -> None:
    with short_path(tmp_path) as short:
        assert short == str(tmp_path)
    long = tmp_path / ("x" * 120)
    long.mkdir()
    with short_path(long) as short:
        assert len(short) < 60
        (Path(short) / "file").touch()
    assert (long / "file").exists()


def test_other_versions_are_refused_with_a_table() -> None:
    check_versions(own_versions())
    with pytest.raises(FailedPreconditionError, match=r"numpy +\d+ +1") as caught:
        check_versions({**own_versions(), "numpy": "1"})
    assert "different versions" in str(caught.value)
