"""Training with a copy on every worker of two hosts, gradients by all-reduce between them."""

from __future__ import annotations

import pytest
from hosts_cluster import CUT_OFF_SECONDS, NOTICED_SECONDS, HostsCluster
from hosts_model import assert_alike, fit_alone
from two_hosts import TwoHosts

pytestmark = [pytest.mark.netns, pytest.mark.timeout(90)]

PAIR = {"worker0": "a", "worker1": "b"}
FOUR = {"worker0": "a", "worker1": "a", "worker2": "b", "worker3": "b"}


@pytest.mark.parametrize(
    ("places", "asked", "kind"),
    [(PAIR, "auto", "ring"), (FOUR, "auto", "hierarchical"), (FOUR, "ring", "ring")],
    ids=["pair", "four", "four in a ring"],
)
def test_training_is_that_of_one_device(
    two_hosts: TwoHosts, places: dict[str, str], asked: str, kind: str
) -> None:
    cluster = HostsCluster(two_hosts, places)
    for _ in range(2):
        assert cluster.begin("multi_worker", {"collective": asked}) == [[kind]] * len(places)
        for found in cluster.results():
            assert_alike(found, fit_alone())
    cluster.close()


def test_a_cut_ends_training_on_both_sides(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, FOUR)
    cluster.begin("multi_worker", {}, epochs=100_000, tell=True)
    two_hosts.cut("b")
    cluster.cut_off(CUT_OFF_SECONDS)
    two_hosts.heal("b")
    cluster.begin("multi_worker", {})
    for found in cluster.results():
        assert_alike(found, fit_alone())
    cluster.close()


def test_a_death_ends_training_on_both_sides(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, FOUR)
    cluster.begin("multi_worker", {}, epochs=100_000, tell=True)
    cluster["worker2"].kill()
    texts = cluster.cut_off(NOTICED_SECONDS)
    assert all("/job:worker/task:2" in text for text in texts), texts
    cluster.close()
