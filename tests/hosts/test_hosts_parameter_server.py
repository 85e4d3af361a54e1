"""Training through a parameter server on one host with workers on both: right, slow, cut off, mended."""

from __future__ import annotations

import pytest
from hosts_cluster import NOTICED_SECONDS, HostsCluster
from hosts_model import assert_alike, fit_alone
from two_hosts import TwoHosts

pytestmark = [pytest.mark.netns, pytest.mark.timeout(90)]

PLACES = {"ps0": "a", "worker0": "a", "worker1": "b"}
REACHED = [["shared memory"], ["socket"]]
SYNC, ASYNC = {"synchronous": True}, {"synchronous": False}
SLOW = {"width": 10_000, "epochs": 2}  # 320 kilobytes: 0.6 seconds of a link of 4 Mbit/s
GONE = ("/job:ps/task:0", "replica 1")


def test_synchronous_training_is_that_of_one_device(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    for _ in range(2):
        assert cluster.begin("ps", SYNC) == REACHED
        for found in cluster.results():
            assert_alike(found, fit_alone())
    cluster.close()


def test_asynchronous_training_counts_every_update(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    assert cluster.begin("ps", ASYNC, epochs=20) == REACHED
    for found in cluster.results():
        assert found["global_step"] == 2 * 20 * 3
        assert found["loss"][-1] < found["loss"][0] / 2
    cluster.close()


def test_a_cut_that_is_mended_soon_changes_no_result(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    expected = fit_alone(epochs=30)
    cluster.begin("ps", SYNC, epochs=30, pause=True)
    two_hosts.cut("b")
    cluster.go_on()
    assert cluster["worker0"].silent(2.0)
    two_hosts.heal("b")
    for found in cluster.results():
        assert_alike(found, expected)
    cluster.close()


def test_a_slow_link_changes_no_step_of_synchronous_training(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    two_hosts.slow("b", rate="4mbit")
    cluster.begin("ps", SYNC, **SLOW)
    for found in cluster.results():
        assert_alike(found, fit_alone(**SLOW))
        assert set(found["staleness"]) == {0}
    cluster.close()


def test_all_steps_count_of_one_who_is_behind_a_slow_link(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    two_hosts.slow("b", rate="4mbit")
    cluster.begin("ps", ASYNC, **SLOW)
    near, far = cluster.results()
    assert near["global_step"] == far["global_step"] == 2 * 2 * 3
    assert len(near["staleness"]) == len(far["staleness"]) == 2 * 3
    assert max(far["staleness"]) <= 2 * 3 + 1  # all of the other's, and one of its own that is under way
    cluster.close()


@pytest.mark.parametrize("victim", ["ps0"])
def test_a_death_is_noticed_on_both_hosts(two_hosts: TwoHosts, victim: str) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    cluster.begin("ps", SYNC, epochs=10, pause=True)
    cluster[victim].kill()
    cluster.go_on()
    texts = cluster.errors(NOTICED_SECONDS)
    assert all(any(name in text for name in GONE) for text in texts), texts
    if victim == "worker1":
        cluster["ps0"].do(do="release", run=cluster.run)
    cluster.close()
    if victim == "ps0":  # it could not take its files away
        assert len(two_hosts.run("a", "task_actor.py").do(do="sweep", prefix=f"nbdist-{cluster.id}")) == 2
