"""What a training may ask of its parameter servers, and what became of its gradients."""

from __future__ import annotations

from typing import Any

import pytest
from staleness import most_stale

from nbdist.errors import InvalidArgumentError
from nbdist.runtime.ps.mailbox import SLOTS
from nbdist.runtime.ps.shard import GradientStatistics
from nbdist.runtime.ps.sync import Rules


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"synchronous": True, "aggregate": 0}, r"aggregate=0: .* 1 or more gradients; with 3 replicas"),
        ({"synchronous": True, "aggregate": -1}, "aggregate=-1"),
        ({"synchronous": True, "aggregate": 1.5}, r"aggregate=1\.5"),
        ({"synchronous": True, "aggregate": True}, "aggregate=True"),
        ({"aggregate": 2}, "aggregate=2 .* add synchronous=True, or drop it"),
        ({"staleness": -1}, "staleness=-1: .* whole number of 0 or more"),
        ({"staleness": 0.5}, r"staleness=0\.5"),
        ({"staleness": 2, "synchronous": True}, "staleness=2 .* drop one of the two"),
    ],
)
def test_what_cannot_be_meant_is_an_error_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Rules(3, **options)


def test_how_many_gradients_are_needed() -> None:
    each, backups, several = (Rules(4, True, aggregate) for aggregate in (None, 3, 6))
    assert [rules.needed for rules in (each, backups, several)] == [4, 3, 6]
    assert [rules.backups for rules in (each, backups, several)] == [0, 1, 0]
    assert [rules.several for rules in (each, backups, several)] == [False, False, True]
    assert [rules.scale for rules in (each, backups, several)] == [1.0, 4 / 3, 4 / 6]
    assert Rules(4, True, 3, servers=2).judged_apart
    assert not any(Rules(4, True, r, servers=s).judged_apart for r, s in ((3, 1), (4, 2), (5, 2)))
    assert Rules(4).scale == 1.0


def test_whether_training_fails_without_dead_replicas() -> None:
    assert not Rules(3).fails_without(2)
    assert Rules(3, True).fails_without(1)
    assert not Rules(3, True).fails_without(0)
    assert [Rules(4, True, 2).fails_without(dead) for dead in (1, 2, 3)] == [False, False, True]
    assert not Rules(2, True, 3).fails_without(1)
    assert Rules(2, True, 3, servers=2).fails_without(1)


def test_how_many_gradients_are_under_way() -> None:
    assert [Rules(2, staleness=s).depth for s in (None, 0, 1)] == [SLOTS, 1, SLOTS]
    assert Rules(2, True).depth == 1


def test_the_bound_that_follows() -> None:
    assert [most_stale(Rules(3, staleness=s)) for s in (None, 0, 1, 2)] == [None, 2, 7, 11]
    assert most_stale(Rules(1, staleness=3)) == 1
    assert most_stale(Rules(3, True, 2)) == 0


def test_rules_travel() -> None:
    rules = Rules(3, True, 2, locking=True, servers=2)
    assert Rules(**rules.to_wire()) == rules


def test_a_tally_in_words() -> None:
    statistics = GradientStatistics.of(3)
    for replica, staleness in ((0, 0), (0, 2), (2, 1)):
        statistics.applied(replica, staleness)
    assert str(statistics) == "3 gradients applied, staleness 1.0 on average and 2 at most"
    statistics.drop(1)
    statistics.drop(1)
    assert str(statistics).endswith("; 2 dropped (replica 1: 2)")
    assert statistics.staleness == (1.0, 2)
    assert GradientStatistics.from_wire(statistics.to_wire()) == statistics
    assert str(GradientStatistics.of(2)) == "0 gradients applied"
