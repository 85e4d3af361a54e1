"""Training through a parameter server on one host with workers on both: right, slow, cut off, mended."""

from __future__ import annotations

import time

import pytest
from hosts_cluster import CUT_OFF_SECONDS, NOTICED_SECONDS, HostsCluster
from hosts_model import assert_alike, fit_alone
from two_hosts import TwoHosts
from waiting import SLACK_SECONDS

from nbdist.runtime.ps.sync import Rules

pytestmark = [pytest.mark.netns, pytest.mark.timeout(90)]

PLACES = {"ps0": "a", "worker0": "a", "worker1": "b"}
REACHED = [["shared memory"], ["socket"]]
SYNC, ASYNC = {"synchronous": True}, {"synchronous": False}
SLOW = {"width": 5_000, "epochs": 2}  # 160 kilobytes: 0.3 seconds of a link of 4 Mbit/s
GONE = ("/job:ps/task:0", "replica 1 (/job:worker/task:1, pid ")


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


@pytest.mark.parametrize("doing", ["waiting", "sending"])
def test_a_cut_ends_synchronous_training_on_both_sides(two_hosts: TwoHosts, doing: str) -> None:
    """Who is in the middle of what fills the kernel's buffers cannot even ask whether the other is there."""
    cluster = HostsCluster(two_hosts, PLACES)
    cluster.begin("ps", SYNC, epochs=10, pause=True, width=400_000 if doing == "sending" else 6)
    if doing == "sending":
        two_hosts.slow("b", rate="20mbit")  # for thirteen megabytes, five seconds
        cluster.go_on()
        assert cluster["worker1"].silent(1.0)
        two_hosts.cut("b")
        two_hosts.slow("b", rate="10gbit")
    else:
        two_hosts.cut("b")
        cluster.go_on()
    texts = cluster.errors(CUT_OFF_SECONDS)
    assert all(any(name in text for name in GONE) for text in texts), texts
    run = cluster.run
    made = cluster["ps0"].do(do="served", run=run)
    two_hosts.heal("b")
    assert cluster.begin("ps", SYNC) == REACHED
    for found in cluster.results():
        assert_alike(found, fit_alone())
    assert cluster["ps0"].do(do="served", run=run) == made  # nothing that was under way was applied late
    cluster["ps0"].do(do="release", run=run)
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


def test_a_connection_that_is_reset_in_the_middle_of_a_gradient(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES, through_proxy={"worker1": "ps0"})
    assert cluster.begin("ps", SYNC, epochs=10_000, pause=True, width=10_000) == REACHED
    cluster.go_on()
    cluster.proxies["worker1"].do(do="reset")
    begun = time.monotonic()
    answers = [worker.answer() for worker in cluster.workers.values()]
    assert time.monotonic() - begun < NOTICED_SECONDS + SLACK_SECONDS
    print(answers)
    for found in answers:
        assert found["error"][0] == "UnavailableError", found
    (updates,) = cluster["ps0"].do(do="served", run=cluster.run)
    assert answers[1]["steps"] - 1 <= updates <= answers[1]["steps"]
    cluster["ps0"].do(do="release", run=cluster.run)
    cluster.close()


def test_of_asynchronous_workers_the_one_that_is_not_cut_off_goes_on(two_hosts: TwoHosts) -> None:
    """All that it did counts, and of the other one what had arrived: once, however the cable is mended."""
    cluster = HostsCluster(two_hosts, PLACES)
    near, far = cluster.workers.values()
    epochs = 30
    cluster.begin("ps", ASYNC, epochs=epochs, pause=True)
    two_hosts.cut("b")
    cluster.go_on()
    lost = far.answer()
    assert lost["error"][0] == "UnavailableError", lost
    two_hosts.heal("b")
    found = near.answer()
    assert found["steps"] == epochs * 3
    assert 0 <= found["global_step"] - found["steps"] <= lost["steps"]
    assert lost["steps"] - (found["global_step"] - found["steps"]) <= 2  # those that were under way
    cluster.close()


def test_a_slow_link_changes_no_step_of_synchronous_training(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    two_hosts.slow("b", rate="4mbit")
    cluster.begin("ps", SYNC, **SLOW)
    for found in cluster.results():
        assert_alike(found, fit_alone(**SLOW))
        assert set(found["staleness"]) == {0}
    cluster.close()


@pytest.mark.parametrize("bound", [None, 1])
def test_all_steps_count_of_one_who_is_behind_a_slow_link(two_hosts: TwoHosts, bound: int | None) -> None:
    """Who is not, is ahead of it as far as the bound allows: how late gradients can be follows from that."""
    cluster = HostsCluster(two_hosts, PLACES)
    two_hosts.slow("b", rate="4mbit")
    cluster.begin("ps", {**ASYNC, "staleness": bound}, **SLOW)
    near, far = cluster.results()
    assert near["global_step"] == far["global_step"] == 2 * 2 * 3
    assert len(near["staleness"]) == len(far["staleness"]) == 2 * 3
    most = Rules(replicas=2, staleness=bound).most_stale() or 2 * 3 + 1  # all of the other's, one of its own
    assert max(near["staleness"] + far["staleness"]) <= most
    cluster.close()


@pytest.mark.parametrize("victim", ["worker1", "ps0"])
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
