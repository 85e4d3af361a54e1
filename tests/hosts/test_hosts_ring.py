"""Collectives between two hosts: results, and timely errors after a death, a cut or a reset."""

from __future__ import annotations

import time
from typing import Any

import pytest
from actors import Actor
from host_namespaces import ADDRESSES, TwoHosts
from hosts_group import Group, Infos
from tiers import exhaustive, matrix
from waiting import limit

pytestmark = [pytest.mark.netns, pytest.mark.timeout(90)]

NOTICED_SECONDS = 2.0  # until a dead process is noticed
CUT_OFF_SECONDS = 10.0  # until a cut connection is noticed
LARGE = 2_000_000  # items: eight megabytes, more than the kernel's buffers of a connection


def errors(ranks: list[Actor], since: float, within: float, *kinds: str) -> list[str]:
    """Return the error texts that these ranks answer with, all within a limit."""
    texts = []
    for rank in ranks:
        answer = rank.answer()
        took = time.monotonic() - since
        assert isinstance(answer, list), f"{rank.name} answers {answer!r}"
        assert answer[0] in (kinds or ("UnavailableError", "TaskDiedError")), answer
        assert took < limit(within), f"{took:.1f} s: {answer}"
        print(f"{rank.name}: {took:.2f} s: {answer}")
        texts.append(answer[1])
    return texts


@pytest.mark.parametrize(
    ("places", "asked", "kind"),
    matrix(
        [("aabb", "auto", "hierarchical")],
        rest=[("ab", "auto", "ring"), ("abab", "ring", "ring"), ("aabab", "auto", "hierarchical")],
    ),
)
def test_all_calls_equal_numpy(two_hosts: TwoHosts, places: str, asked: str, kind: str) -> None:
    group = Group(two_hosts, places)
    assert len(set(group.identities)) == 2
    assert group.form(asked) == {kind}
    assert group.all(do="calls") == [[]] * len(places)
    assert group.all(do="close") == [None] * len(places)


def test_without_keys_only_loopback_is_bound(two_hosts: TwoHosts) -> None:
    alone = two_hosts.run("a", "ring_actor.py")
    name, text = alone.do(do="sits_without_keys", bind=ADDRESSES["a"])
    assert name == "InvalidArgumentError"
    assert "keys" in text


@exhaustive
@pytest.mark.parametrize("doing", ["waiting", "sending"])
@pytest.mark.parametrize("places", ["ab", "aabb"])
def test_a_death_on_the_other_host(two_hosts: TwoHosts, places: str, doing: str) -> None:
    group = Group(two_hosts, places)
    group.form()
    number = len(places) // 2  # the rank connected to the other host
    victim, others = group.ranks[number], [*group.ranks[:number], *group.ranks[number + 1 :]]
    if doing == "waiting":
        for rank in others:
            rank.ask(do="wait")
        assert set(group.answers(others)) == {"begun"}
    else:
        assert set(group.all(do="for_ever", count=LARGE)) == {"begun"}
    begun = time.monotonic()
    victim.kill()
    dead = f"rank {number} (/job:worker/task:{number})"
    assert all(dead in text for text in errors(others, begun, NOTICED_SECONDS))


@pytest.mark.parametrize(
    ("places", "doing"), matrix([("ab", "sending")], rest=[("ab", "waiting"), ("aabb", "sending")])
)
def test_a_silent_cut_is_noticed_by_both_sides(two_hosts: TwoHosts, places: str, doing: str) -> None:
    group = Group(two_hosts, places)
    group.form()
    if doing == "waiting":
        two_hosts.cut("b")
        assert set(group.all(do="wait")) == {"begun"}
    else:
        assert set(group.all(do="for_ever", count=LARGE)) == {"begun"}
        two_hosts.cut("b")
    errors(group.ranks, time.monotonic(), CUT_OFF_SECONDS)
    two_hosts.heal("b")
    group.all(do="close")
    assert group.form() == {"ring" if places == "ab" else "hierarchical"}
    assert group.all(do="calls") == [[]] * len(places)
    group.all(do="close")


def test_a_short_cut_only_takes_time(two_hosts: TwoHosts) -> None:
    group = Group(two_hosts, "ab")
    group.form()
    assert set(group.all(do="add_up", count=LARGE // 4, times=60)) == {"begun"}
    two_hosts.cut("b")
    assert group.ranks[0].silent(2.0)
    two_hosts.heal("b")
    assert group.answers() == [[1.5, 1.5]] * 2
    assert group.all(do="calls") == [[]] * 2
    group.all(do="close")


@exhaustive
def test_a_slow_link_is_not_lost(two_hosts: TwoHosts) -> None:
    """8 Mbit/s: a piece is in transit longer than the interval of heartbeats."""
    group = Group(two_hosts, "ab")
    group.form()
    two_hosts.slow("a", rate="8mbit")
    two_hosts.slow("b", rate="8mbit")
    assert set(group.all(do="add_up", count=500_000, times=1)) == {"begun"}
    assert group.ranks[0].silent(2.5)
    assert group.answers() == [[1.5, 1.5]] * 2
    group.all(do="close")


@exhaustive
def test_hosts_far_apart(two_hosts: TwoHosts) -> None:
    group = Group(two_hosts, "ab")
    two_hosts.slow("b", delay="20ms")
    assert group.form() == {"ring"}
    assert group.all(do="add_up", count=100_000, times=3) == ["begun"] * 2
    assert group.answers() == [[1.5, 1.5]] * 2
    group.all(do="close")


def test_a_connection_reset_inside_a_piece(two_hosts: TwoHosts) -> None:
    group = Group(two_hosts, "ab")
    proxy = two_hosts.run("b", "proxy_actor.py")

    def through_proxy(infos: Infos) -> Infos:
        address: dict[str, Any] = infos[1]["address"]
        host, _, port = address["socket"].partition(":")
        address["socket"] = proxy.do(do="listen", bind=host, address=host, port=int(port))
        return infos

    group.form("ring", through_proxy)
    assert set(group.all(do="for_ever", count=LARGE)) == {"begun"}
    begun = time.monotonic()
    proxy.do(do="reset_after", sizes=[10_000])
    errors(group.ranks, begun, NOTICED_SECONDS, "UnavailableError", "DataLossError")
    group.all(do="close")
    assert group.form() == {"ring"}
    assert group.all(do="calls") == [[]] * 2
    group.all(do="close")
