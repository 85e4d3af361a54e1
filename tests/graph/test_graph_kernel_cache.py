"""The lock with which one process compiles for all."""

from __future__ import annotations

import errno
import stat
import threading
from pathlib import Path

import pytest
from waiting import PATIENCE

from nbdist.graph.kernel_cache import compiled_once, first_or_after


def test_others_wait_for_the_first_and_then_run_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of flock belongs to the open file: threads see it as processes do."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kernels"))
    compiling, compiled, waits = threading.Event(), threading.Event(), threading.Semaphore(0)
    together = threading.Barrier(3)

    def first() -> None:
        compiling.set()
        assert compiled.wait(PATIENCE)

    def other() -> None:
        assert compiled.is_set()
        together.wait(PATIENCE)

    threads = [threading.Thread(target=compiled_once(first, "mlp"))]
    threads[0].start()
    assert compiling.wait(PATIENCE)
    threads += [threading.Thread(target=compiled_once(other, "mlp", waits.release)) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    for _ in threads[1:]:
        assert waits.acquire(timeout=10)
    compiled.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not together.broken
    (lock,) = (tmp_path / "kernels").iterdir()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_a_wait_ends_at_its_limit_and_with_an_error_of_the_check(tmp_path: Path) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    with first_or_after(tmp_path / "lock") as first:
        assert first
        with first_or_after(tmp_path / "lock", seconds=0) as late:
            assert not late
        with pytest.raises(KeyboardInterrupt), first_or_after(tmp_path / "lock", stopped):
            pass
    with first_or_after(tmp_path / "lock") as again:
        assert again


def test_a_cache_without_locks_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with first_or_after(tmp_path / "file" / "lock") as first:  # as in a folder that can only be read
        assert not first

    def no_locks(lock: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with first_or_after(tmp_path / "lock") as one, first_or_after(tmp_path / "lock") as other:
        assert one
        assert other


def test_without_a_cache_of_nbdist_nothing_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    assert compiled_once(len, "x") is len
