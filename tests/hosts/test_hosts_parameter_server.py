"""Training through a parameter server on one host with workers on both: results, slow links, cuts."""

from __future__ import annotations

import pytest
from host_namespaces import TwoHosts
from hosts_cluster import CUT_OFF_SECONDS, NOTICED_SECONDS, HostsCluster
from hosts_model import assert_alike, fit_alone
from staleness import most_stale
from tiers import exhaustive, matrix

from nbdist.runtime.ps.sync import Rules

pytestmark = [pytest.mark.netns, pytest.mark.timeout(90)]

PLACES = {"ps0": "a", "worker0": "a", "worker1": "b"}
REACHED = [["shared memory"], ["socket"]]
SYNC, ASYNC = {"synchronous": True}, {"synchronous": False}
SLOW = {"width": 5_000, "epochs": 2}  # 160 kB: 0.3 s on a link of 4 Mbit/s
LOST = ("/job:ps/task:0", "replica 1 (/job:worker/task:1, pid ")


def test_synchronous_training_equals_one_device(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    for _ in range(2):
        assert cluster.begin("ps", SYNC) == REACHED
        for found in cluster.results():
            assert_alike(found, fit_alone())
    cluster.close()


def test_asynchronous_training_counts_every_update(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    assert cluster.begin("ps", ASYNC, epochs=20) == REACHED
    found = list(cluster.results())
    assert [one["global_step"] for one in found] == [2 * 20 * 3] * 2
    # Which of them begins, and whose last step comes last, is open.
    assert min(one["loss"][-1] for one in found) < max(one["loss"][0] for one in found) / 2
    cluster.close()


@pytest.mark.parametrize("doing", matrix(["waiting"], rest=["sending"]))
def test_a_cut_ends_synchronous_training_on_both_sides(two_hosts: TwoHosts, doing: str) -> None:
    """A sender with full kernel buffers cannot even ask whether its peer lives."""
    cluster = HostsCluster(two_hosts, PLACES)
    cluster.begin("ps", SYNC, epochs=10, pause=True, width=400_000 if doing == "sending" else 6)
    if doing == "sending":
        two_hosts.slow("b", rate="20mbit")  # 13 MB take 5 s
        cluster.resume()
        assert cluster["worker1"].silent(1.0)
        two_hosts.cut("b")
        two_hosts.slow("b", rate="10gbit")
    else:
        two_hosts.cut("b")
        cluster.resume()
    texts = cluster.errors(CUT_OFF_SECONDS)
    assert all(any(name in text for name in LOST) for text in texts), texts
    run = cluster.run
    made = cluster["ps0"].do(do="served", run=run)
    two_hosts.heal("b")
    assert cluster.begin("ps", SYNC) == REACHED
    for found in cluster.results():
        assert_alike(found, fit_alone())
    assert cluster["ps0"].do(do="served", run=run) == made  # no gradient in transit was applied later
    cluster["ps0"].do(do="release", run=run)
    cluster.close()


@exhaustive
def test_a_short_cut_changes_no_result(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    expected = fit_alone(epochs=8)
    cluster.begin("ps", SYNC, epochs=8, pause=True)
    two_hosts.cut("b")
    cluster.resume()
    assert cluster["worker0"].silent(2.0)
    two_hosts.heal("b")
    for found in cluster.results():
        assert_alike(found, expected)
    cluster.close()


@exhaustive
@pytest.mark.parametrize("rules", [SYNC, ASYNC])
def test_connections_reset_inside_gradients_change_no_result(
    two_hosts: TwoHosts, rules: dict[str, bool]
) -> None:
    cluster = HostsCluster(two_hosts, PLACES, through_proxy={"worker1": "ps0"})
    model = {"epochs": 8, "width": 10_000}
    assert cluster.begin("ps", rules, pause=True, **model) == REACHED
    cluster.proxies["worker1"].do(do="reset_after", sizes=[100_000, 300_000, 1_000_000])
    cluster.resume()
    for found in cluster.results():
        if rules is SYNC:
            assert_alike(found, fit_alone(**model))
        else:
            assert found["global_step"] == 2 * found["steps"] == 2 * 8 * 3
    assert cluster.proxies["worker1"].do(do="resets") == 3
    cluster.close()


@exhaustive
def test_an_asynchronous_worker_continues_without_a_cut_off_one(two_hosts: TwoHosts) -> None:
    """All its updates and the arrived ones of the other count once, also after the link heals."""
    cluster = HostsCluster(two_hosts, PLACES)
    near, remote = cluster.workers.values()
    epochs = 30
    cluster.begin("ps", ASYNC, epochs=epochs, pause=True)
    two_hosts.cut("b")
    cluster.resume()
    lost = remote.answer()
    assert lost["error"][0] == "UnavailableError", lost
    two_hosts.heal("b")
    found = near.answer()
    assert found["steps"] == epochs * 3
    assert 0 <= found["global_step"] - found["steps"] <= lost["steps"]
    assert lost["steps"] - (found["global_step"] - found["steps"]) <= 2  # gradients in transit
    cluster.close()


@exhaustive
def test_a_slow_link_changes_no_step_of_synchronous_training(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    two_hosts.slow("b", rate="4mbit")
    cluster.begin("ps", SYNC, **SLOW)
    for found in cluster.results():
        assert_alike(found, fit_alone(**SLOW))
        assert set(found["staleness"]) == {0}
    cluster.close()


@exhaustive
@pytest.mark.parametrize("bound", [None, 1])
def test_all_steps_of_a_worker_behind_a_slow_link_count(two_hosts: TwoHosts, bound: int | None) -> None:
    """The other worker runs ahead as far as the bound allows, which bounds the staleness."""
    cluster = HostsCluster(two_hosts, PLACES)
    two_hosts.slow("b", rate="4mbit")
    cluster.begin("ps", {**ASYNC, "staleness": bound}, **SLOW)
    near, remote = cluster.results()
    assert near["global_step"] == remote["global_step"] == 2 * 2 * 3
    assert len(near["staleness"]) == len(remote["staleness"]) == 2 * 3
    most = (
        most_stale(Rules(replicas=2, staleness=bound)) or 2 * 3 + 1
    )  # all of the other's, and one of its own
    assert max(near["staleness"] + remote["staleness"]) <= most
    cluster.close()


@exhaustive
@pytest.mark.parametrize("victim", ["worker1", "ps0"])
def test_a_death_is_noticed_on_both_hosts(two_hosts: TwoHosts, victim: str) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    cluster.begin("ps", SYNC, epochs=10, pause=True)
    cluster[victim].kill()
    cluster.resume()
    texts = cluster.errors(NOTICED_SECONDS)
    assert all(any(name in text for name in LOST) for text in texts), texts
    if victim == "worker1":
        cluster["ps0"].do(do="release", run=cluster.run)
    cluster.close()
    if victim == "ps0":  # the killed server could not remove its files
        assert len(two_hosts.run("a", "task_actor.py").do(do="sweep", prefix=f"nbdist-{cluster.id}")) == 2
