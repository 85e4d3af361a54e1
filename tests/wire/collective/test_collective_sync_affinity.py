"""CoreAffinity moves a thread off a shared core if another core is free."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from nbdist.wire.collective.shm import sync
from nbdist.wire.collective.shm.segment import THREAD
from nbdist.wire.collective.shm.sync import CoreAffinity, core_of

CORES = sorted(os.sched_getaffinity(0))
NO_THREAD = 2**22 + 1  # above the largest id of a thread


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Record the sets of cores that the thread is restricted to, without moving it."""
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: asked.append(set(cores)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    return asked


def words(threads: list[int]) -> list[memoryview[int]]:
    rows = [np.zeros(64, np.int64) for _ in threads]
    for row, thread in zip(rows, threads):
        row[THREAD] = thread
    return [row.data for row in rows]


def test_core_of_returns_the_core_of_a_thread() -> None:
    found: list[int] = []

    def run() -> None:
        os.sched_setaffinity(0, {CORES[-1]})
        found.append(core_of(threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [CORES[-1]]
    assert core_of(NO_THREAD) == -1
    assert core_of(0) == -1


def test_a_rank_on_a_shared_core_moves_to_a_free_one(
    moves: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = threading.get_native_id()
    monkeypatch.setattr(sync, "core_of", {own: 0, 7: 0, 8: 2}.__getitem__)
    rows = words([7, 8, 0])
    one = CoreAffinity(2, rows)
    one.separate(1.0)
    assert rows[2][THREAD] == own
    assert moves == [{1}, {0, 1, 2}]
    one.separate(1.001)
    assert len(moves) == 2, "not again at once"
    one.separate(2.0)
    assert len(moves) == 4


@pytest.mark.parametrize("others", [[1, 2], [0, 1, 2], [-1, -1]])
def test_a_rank_with_its_own_core_or_without_a_free_one_stays(
    moves: list[set[int]], monkeypatch: pytest.MonkeyPatch, others: list[int]
) -> None:
    own = threading.get_native_id()
    cores = {own: 0, **dict(enumerate(others, 1))}
    monkeypatch.setattr(sync, "core_of", cores.__getitem__)
    CoreAffinity(0, words([0, *range(1, len(others) + 1)])).separate(1.0)
    assert moves == []


def test_a_rank_stays_while_the_threads_of_the_others_are_unknown(
    moves: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "core_of", lambda thread: -1)
    CoreAffinity(0, words([0, 0])).separate(1.0)
    assert moves == []
