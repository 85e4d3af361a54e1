"""Ranks that share a core part, and only where that helps."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from nbdist.wire.collective.shm import sync
from nbdist.wire.collective.shm.segment import THREAD
from nbdist.wire.collective.shm.sync import CoreAffinity, core_of

CORES = sorted(os.sched_getaffinity(0))
NOBODY = 2**22 + 1  # above the largest id of a thread


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Which cores this thread was allowed, one after the other; it is not really moved."""
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda who, cores: asked.append(set(cores)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 1, 2})
    return asked


def words(threads: list[int]) -> list[memoryview[int]]:
    rows = [np.zeros(64, np.int64) for _ in threads]
    for row, thread in zip(rows, threads):
        row[THREAD] = thread
    return [row.data for row in rows]


def test_a_thread_is_found_where_it_runs() -> None:
    found: list[int] = []

    def run() -> None:
        os.sched_setaffinity(0, {CORES[-1]})
        found.append(core_of(threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [CORES[-1]]
    assert core_of(NOBODY) == -1
    assert core_of(0) == -1


def test_who_shares_a_core_moves_to_one_that_no_rank_has(
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
def test_who_has_a_core_or_finds_none_free_stays(
    moves: list[set[int]], monkeypatch: pytest.MonkeyPatch, others: list[int]
) -> None:
    own = threading.get_native_id()
    cores = {own: 0, **dict(enumerate(others, 1))}
    monkeypatch.setattr(sync, "core_of", cores.__getitem__)
    CoreAffinity(0, words([0, *range(1, len(others) + 1)])).separate(1.0)
    assert moves == []


def test_where_nobody_is_known_nobody_moves(moves: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "core_of", lambda thread: -1)
    CoreAffinity(0, words([0, 0])).separate(1.0)
    assert moves == []
