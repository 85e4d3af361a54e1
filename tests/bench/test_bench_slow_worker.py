from itertools import islice

import numpy as np

from bench.slow_worker import PACES, WAYS, Outcome, table, typical
from bench.slow_worker_body import PAUSE, SLOW, USUAL, pauses


def outcome(pace: str, way: str, seconds: float) -> Outcome:
    return Outcome(pace, way, seconds, 100, [90, 110], 5, 1.5, 4, [(0.0, 2.0), (seconds, 0.25)])


def test_only_the_last_worker_is_slow() -> None:
    random = np.random.default_rng(0)
    assert list(islice(pauses("one slow", True, random), 3)) == [SLOW] * 3
    assert list(islice(pauses("one slow", False, random), 3)) == [USUAL] * 3
    assert list(islice(pauses("all alike", True, random), 3)) == [USUAL] * 3


def test_now_and_then_every_worker_pauses() -> None:
    waits = list(islice(pauses("now and then", False, np.random.default_rng(0)), 5000))
    assert 60 < waits.count(PAUSE) < 140
    assert waits.count(PAUSE) + waits.count(USUAL) == 5000


def test_the_middle_round_stands_for_all() -> None:
    rounds = [outcome("one slow", "sync", seconds) for seconds in (9.0, 12.0, 10.0)]
    assert typical(rounds, "one slow", "sync").seconds == 10


def test_the_table_compares_with_sync_at_the_same_pace() -> None:
    outcomes = [outcome(pace, way.name, 8.0 if way.name == "sync" else 2.0) for pace in PACES for way in WAYS]
    lines = list(table(outcomes))
    assert len(lines) == 1 + len(PACES) * len(WAYS)
    assert [line.split(")")[1].split()[0] for line in lines[1:5]] == ["1.00", "0.25", "0.25", "0.25"]
