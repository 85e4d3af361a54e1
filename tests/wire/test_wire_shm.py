"""Shared segments and doorbells: private, fully allocated, removed when closed."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nbdist.errors import NotAllowedError, NotFoundError, ResourceExhaustedError, UnavailableError
from nbdist.wire import shm
from nbdist.wire.shm import Doorbell, Ringer, Segment, remove_abandoned, remove_all, shared_folder

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def prefix() -> Iterator[str]:
    one = f"nbdist-test{secrets.token_hex(4)}"
    yield one
    left = [path.name for path in shared_folder().glob(f"{one}*")]
    for name in left:
        (shared_folder() / name).unlink()
    assert not left, f"left behind: {left}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the host's memory file system."""
    monkeypatch.setattr(shm, "shared_folder", lambda: tmp_path)
    return tmp_path


def test_one_task_reads_what_another_writes(prefix: str) -> None:
    with Segment.create(prefix, 1000) as segment:
        other = Segment.open(segment.name)
        segment.array(np.float32, 3, 64)[:] = [1, 2, 3]
        np.testing.assert_array_equal(other.array(np.float32, 3, 64), [1, 2, 3])
        other.array(np.int64, 1, 0)[0] = -5
        assert segment.array(np.int64, 1, 0)[0] == -5
        assert len(segment.bytes) == len(other.bytes) == 1000
        assert not segment.bytes[100:].any()


def test_a_segment_is_private_under_a_random_name(prefix: str) -> None:
    with Segment.create(prefix, 10) as one, Segment.create(prefix, 0) as two:
        assert one.name != two.name
        for segment in (one, two):
            info = (shared_folder() / segment.name).lstat()
            assert stat.S_IMODE(info.st_mode) == 0o600
            assert re.fullmatch(rf"{prefix}-{os.getpid()}-[0-9a-f]{{16}}", segment.name)


def test_a_umask_of_zero_does_not_widen_the_mode(prefix: str) -> None:
    before = os.umask(0)
    try:
        with Segment.create(prefix, 10) as segment:
            bell = Doorbell.create(prefix)
            for name in (segment.name, bell.name):
                assert stat.S_IMODE((shared_folder() / name).lstat().st_mode) == 0o600
            bell.close()
    finally:
        os.umask(before)


def test_the_owner_removes_the_file_and_open_mappings_stay_valid(prefix: str) -> None:
    segment = Segment.create(prefix, 100)
    other = Segment.open(segment.name)
    view = other.array(np.uint8, 100, 0)
    other.close()
    assert (shared_folder() / segment.name).exists()
    segment.close()
    segment.close()
    assert not (shared_folder() / segment.name).exists()
    segment.bytes[:] = 7
    assert view.min() == 7
    with pytest.raises(NotFoundError, match="no longer exists: the task that created it has ended"):
        Segment.open(segment.name)


@pytest.mark.parametrize("name", ["../shm", "/etc/passwd", "a/b", "..", "", "."])
def test_names_with_a_path_are_refused(name: str, folder: Path) -> None:
    for open_it in (Segment.open, Ringer):
        with pytest.raises(NotAllowedError, match="is not a plain name of a shared file"):
            open_it(name)


def test_links_readable_files_and_other_kinds_are_refused(folder: Path) -> None:
    real = Segment.create("c", 10)
    (folder / "link").symlink_to(folder / real.name)
    with pytest.raises(NotAllowedError, match="not trusted"):
        Segment.open("link")
    bell = Doorbell.create("c")
    (folder / "bell-link").symlink_to(folder / bell.name)
    with pytest.raises(NotAllowedError, match="not trusted"):
        Ringer("bell-link")
    (folder / real.name).chmod(0o640)
    with pytest.raises(NotAllowedError, match="users other than its owner may open"):
        Segment.open(real.name)
    (folder / bell.name).chmod(0o606)
    with pytest.raises(NotAllowedError, match="users other than its owner may open"):
        Ringer(bell.name)
    (folder / bell.name).chmod(0o600)
    (folder / real.name).chmod(0o600)
    with pytest.raises(NotAllowedError, match="is not a doorbell"):
        Ringer(real.name)
    with pytest.raises(NotAllowedError, match="is not a segment"):
        Segment.open(bell.name)
    (folder / "folder").mkdir(mode=0o700)
    with pytest.raises(NotAllowedError, match="is not a segment"):
        Segment.open("folder")
    bell.close()
    real.close()


@as_root
def test_another_users_file_is_refused(folder: Path) -> None:
    segment, bell = Segment.create("c", 10), Doorbell.create("c")
    for name in (segment.name, bell.name):
        os.chown(folder / name, 65534, 65534)
    with pytest.raises(NotAllowedError, match="not trusted"):
        Segment.open(segment.name)
    with pytest.raises(NotAllowedError, match="not trusted"):
        Ringer(bell.name)
    assert remove_all("c") == []
    assert (folder / segment.name).exists()
    bell.close()
    segment.close()


INTRUDER = """
import os, sys
for name in sys.argv[1:]:
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_NONBLOCK, os.O_RDWR):
        try:
            os.open(name, flags)
        except PermissionError:
            continue
        print("opened", name)
    try:
        os.unlink(name)
    except PermissionError:
        continue
    print("removed", name)
"""


@as_root
def test_another_user_can_neither_open_nor_write_nor_remove(prefix: str) -> None:
    segment, bell = Segment.create(prefix, 10), Doorbell.create(prefix)
    paths = [str(shared_folder() / name) for name in (segment.name, bell.name)]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    found = subprocess.run(
        [*user, sys.executable, "-I", "-S", "-c", INTRUDER, *paths],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    bell.close()
    segment.close()


def test_a_file_system_too_full_for_the_file_is_resource_exhausted(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(ResourceExhaustedError, match="has no room for 10 bytes"):
        Segment.create(prefix, 10)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_full_memory_is_resource_exhausted_and_leaves_no_file(
    prefix: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceExhaustedError, match=r"has no room for 4,096 bytes of shared memory"):
        Segment.create(prefix, 4096)


def test_another_system_error_is_raised_and_leaves_no_file(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="broken"):
        Segment.create(prefix, 4096)


@as_root
def test_a_mounted_memory_file_system_that_is_full(folder: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    try:
        with Segment.create("c", 16 << 10) as small:
            small.bytes[:] = 1
            with pytest.raises(ResourceExhaustedError, match="no room for 131,072 bytes"):
                Segment.create("c", 128 << 10)
            assert [path.name for path in folder.iterdir()] == [small.name]
        assert not list(folder.iterdir())
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_file_that_its_process_removes_at_the_same_time_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(folder), "glob", lambda path, pattern: iter([folder / "nbdist-a-1"]))
    assert remove_all("nbdist-a") == []


def test_remove_all_removes_the_files_of_a_prefix(folder: Path) -> None:
    segment, bell, other = (
        Segment.create("nbdist-a", 10),
        Doorbell.create("nbdist-a"),
        Segment.create("nbdist-ab", 1),
    )
    assert sorted(remove_all("nbdist-a")) == sorted([segment.name, bell.name])
    assert [path.name for path in folder.iterdir()] == [other.name]
    assert remove_all("nbdist-a") == []
    bell.close()
    other.close()


# Doorbells.


LEAVES = """
import sys, time
from nbdist.wire.shm import Doorbell, Segment, own_prefix
prefix = own_prefix()
kept = Segment.create(prefix, 100), Doorbell.create(prefix)
print(*(one.name for one in kept), flush=True)
time.sleep(1000)
"""


def test_remove_abandoned_removes_files_of_killed_processes() -> None:
    script = [sys.executable, "-c", LEAVES]
    with (
        subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as lives,
    ):
        assert killed.stdout is not None
        assert lives.stdout is not None
        left, used = killed.stdout.readline().split(), lives.stdout.readline().split()
        try:
            assert not set(remove_abandoned()) & {*left, *used}
            killed.kill()
            killed.wait()
            assert set(left) <= set(remove_abandoned())
            assert all((shared_folder() / name).exists() for name in used)
        finally:
            lives.kill()
            lives.wait()
            remove_abandoned()
    assert not any((shared_folder() / name).exists() for name in (*left, *used))


def test_a_doorbell_that_cannot_be_opened_leaves_no_file(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(shm.os, "open", fail)
    with pytest.raises(OSError, match="Too many open files"):
        Doorbell.create(prefix)
    monkeypatch.undo()
    assert not list(shared_folder().glob(f"{prefix}-*"))


def test_a_ring_wakes_a_waiting_task(prefix: str) -> None:
    bell = Doorbell.create(prefix)
    ringer = Ringer(bell.name)
    received: list[bytes] = []
    waiter = threading.Thread(target=lambda: received.append(bell.wait(30.0)))
    waiter.start()
    ringer.ring(b"\x01\x02")
    waiter.join(10)
    assert received == [b"\x01\x02"]
    assert bell.wait(0) == b""
    bell.ring_self(b"me")
    assert bell.wait(30.0) == b"me"
    ringer.close()
    bell.close()


def test_messages_of_each_ringer_arrive_whole_and_in_order(prefix: str) -> None:
    bell = Doorbell.create(prefix)
    count, size = 2000, 8

    def ring(number_of_ringer: int) -> None:
        ringer = Ringer(bell.name)
        for number in range(count):
            message = bytes([number_of_ringer]) * (size - 4) + number.to_bytes(4, "little")
            while True:
                try:
                    ringer.ring(message)
                    break
                except UnavailableError:  # full for a moment
                    continue
        ringer.close()

    threads = [threading.Thread(target=ring, args=(one,)) for one in range(3)]
    for thread in threads:
        thread.start()
    got: list[list[int]] = [[], [], []]
    while sum(map(len, got)) < 3 * count:
        received = bell.wait(10.0)
        assert received, "a ring was lost"
        assert len(received) % size == 0
        for start in range(0, len(received), size):
            message = received[start : start + size]
            assert len(set(message[: size - 4])) == 1
            got[message[0]].append(int.from_bytes(message[size - 4 :], "little"))
    assert got == [list(range(count))] * 3
    for thread in threads:
        thread.join()
    bell.close()


def test_a_closed_doorbell_raises(prefix: str) -> None:
    bell = Doorbell.create(prefix)
    ringer = Ringer(bell.name)
    bell.close()
    bell.close()
    with pytest.raises(UnavailableError, match="has died or is stopped"):
        ringer.ring(b"x")
    with pytest.raises(NotFoundError, match="no longer exists"):
        Ringer(bell.name)
    ringer.close()
    ringer.close()
    ringer.ring(b"x")  # no effect after the own close


def test_a_doorbell_without_a_reader_raises(prefix: str) -> None:
    path = shared_folder() / f"{prefix}-0"
    os.mkfifo(path, 0o600)
    try:
        with pytest.raises(UnavailableError, match="no task reads doorbell"):
            Ringer(path.name)
    finally:
        path.unlink()


def test_has_reader_sends_nothing(prefix: str) -> None:
    bell = Doorbell.create(prefix)
    ringer = Ringer(bell.name)
    assert ringer.has_reader()
    ringer.ring(b"1")
    assert ringer.has_reader()
    assert bell.wait(1) == b"1"
    bell.close()
    assert not ringer.has_reader()
    ringer.close()
    assert not ringer.has_reader()


def test_a_full_doorbell_never_blocks(prefix: str) -> None:
    bell = Doorbell.create(prefix)
    ringer = Ringer(bell.name)
    with pytest.raises(UnavailableError, match="is stopped"):  # noqa: PT012 - which ring fails varies
        for _ in range(1 << 10):
            ringer.ring(bytes(4096))
    ringer.close()
    bell.close()


def test_the_temporary_folder_is_used_without_a_memory_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *args: False)
    assert str(shared_folder()) == shm.tempfile.gettempdir()


def test_a_forked_child_shares_a_segment(prefix: str) -> None:
    code = (
        "import sys; from nbdist.wire.shm import Segment, Ringer\n"
        "segment = Segment.open(sys.argv[1]); segment.bytes[:] = 3; Ringer(sys.argv[2]).ring(b'ok')"
    )
    with Segment.create(prefix, 1 << 20) as segment:
        bell = Doorbell.create(prefix)
        process = subprocess.Popen([sys.executable, "-c", code, segment.name, bell.name])
        assert bell.wait(30.0) == b"ok"
        assert segment.bytes.min() == 3
        assert process.wait(30) == 0
        assert (shared_folder() / segment.name).exists()  # the child does not own it
        bell.close()
