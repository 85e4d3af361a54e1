"""Ranks that share a core part, and only where that helps."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import numpy as np
import pytest

from nbdist.wire.collective.desk import CORE
from nbdist.wire.collective.parting import LOOK_EVERY, Parting

CORES = sorted(os.sched_getaffinity(0))
core_of_this_thread = ctypes.CDLL(None).sched_getcpu


def part(rank: int, cores: list[int], looks: int = LOOK_EVERY) -> tuple[int, set[int], list[int]]:
    """Let a rank look whose others are on these cores, itself on the first; return where it is then.

    In a thread of its own, for that is what is moved. Cores are counted among those of this process.
    """
    words = [np.zeros(64, np.int64) for _ in cores]
    found: list[Any] = []

    def run() -> None:
        os.sched_setaffinity(0, {CORES[0]})
        for one, core in zip(words, cores):
            one[CORE] = CORES[core] + 1
        parting = Parting(rank, [one.data for one in words])
        parting._enough = True  # though only one core is allowed until here
        os.sched_setaffinity(0, CORES)
        for _ in range(looks):
            parting.look()
        found.extend((core_of_this_thread(), os.sched_getaffinity(0)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0], found[1], [int(one[CORE]) - 1 for one in words]


@pytest.mark.skipif(len(CORES) < 2, reason="there is one core only")
def test_a_rank_leaves_the_core_of_one_before_it() -> None:
    here, allowed, said = part(1, [0, 0])
    assert said == [CORES[0], said[1]]
    assert said[1] != CORES[0]
    assert allowed == set(CORES)
    assert here in CORES


def test_the_first_rank_stays_and_says_where() -> None:
    _, allowed, said = part(0, [0, 0])
    assert said[0] in CORES
    assert allowed == set(CORES)


def test_a_rank_that_finds_no_free_core_stays() -> None:
    words = [np.zeros(64, np.int64) for _ in range(len(CORES) + 1)]
    for one, core in zip(words, CORES):
        one[CORE] = core + 1
    parting = Parting(len(CORES), [one.data for one in words])
    for _ in range(LOOK_EVERY):
        parting.look()
    assert words[-1][CORE] == 0, "more ranks than cores do not even look"
    parting._enough = True
    for _ in range(LOOK_EVERY):
        parting.look()
    assert words[-1][CORE] - 1 in CORES
    assert os.sched_getaffinity(0) == set(CORES)


def test_it_looks_now_and_then_only() -> None:
    assert part(0, [0, 0], looks=LOOK_EVERY - 1)[2] == [CORES[0], CORES[0]]
