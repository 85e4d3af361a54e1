"""Slow results are built rarely, and never kept beyond a change of state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nbdist.lab.readers.run_detail import Bundle, BundleCache


class Slow:
    """Builds results on a simulated clock, each in a given time."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.made = 0.0, seconds, 0

    def clock(self) -> float:
        return self.now

    def make(self) -> Bundle:
        self.now += self.seconds
        self.made += 1
        return {"number": self.made}


@pytest.fixture
def slow() -> Slow:
    return Slow(0.5)


@pytest.fixture
def get(slow: Slow) -> Callable[..., int]:
    bundles = BundleCache(2, slow.clock)
    return lambda stamp, state="running", name="r1": bundles.get(name, stamp, state, slow.make)["number"]


def test_an_unchanged_bundle_is_kept(slow: Slow, get: Callable[..., int]) -> None:
    assert get(1) == 1
    slow.now += 1e6
    assert get(1) == 1


def test_a_changing_bundle_uses_a_bounded_share_of_a_core(slow: Slow, get: Callable[..., int]) -> None:
    for second in range(1000):
        slow.now = max(slow.now, second)
        get(second)
    assert slow.made * slow.seconds == pytest.approx(50, rel=0.1)


def test_a_new_state_is_built_immediately(get: Callable[..., int]) -> None:
    assert get(1) == 1
    assert get(2) == 1
    assert get(2, "finished") == 2
    assert get(3, "finished") == 2


def test_only_the_last_few_are_kept(slow: Slow, get: Callable[..., int]) -> None:
    for name in ("a", "b", "a", "c", "a", "b"):
        get(1, name=name)
    assert slow.made == 4


def test_a_failed_build_is_repeated(slow: Slow) -> None:
    bundles = BundleCache(2, slow.clock)

    def fail() -> Bundle:
        raise OSError

    with pytest.raises(OSError):
        bundles.get("r1", 1, "running", fail)
    assert bundles.get("r1", 1, "running", slow.make) == {"number": 1}
