"""Training with a replica on every worker of two hosts, by collectives between them."""

from __future__ import annotations

import time

import pytest
from host_namespaces import TwoHosts
from hosts_cluster import CUT_OFF_SECONDS, NOTICED_SECONDS, HostsCluster
from hosts_model import assert_alike, fit_alone
from tiers import exhaustive, matrix
from waiting import limit, until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(90)]

AGAIN_SECONDS = 15.0  # until the remaining ranks have formed a new group
PAIR = {"worker0": "a", "worker1": "b"}
THREE = {"worker0": "a", "worker1": "a", "worker2": "b"}
FOUR = {**THREE, "worker3": "b"}


@pytest.mark.parametrize(
    ("places", "asked", "kind"),
    matrix([(PAIR, "auto", "ring")], rest=[(FOUR, "auto", "hierarchical"), (FOUR, "ring", "ring")]),
    ids=["pair", "four", "four in a ring"],
)
def test_training_equals_one_device(
    two_hosts: TwoHosts, places: dict[str, str], asked: str, kind: str
) -> None:
    cluster = HostsCluster(two_hosts, places)
    for _ in range(2):
        assert cluster.begin("multi_worker", {"collective": asked}) == [[kind]] * len(places)
        for found in cluster.results():
            assert_alike(found, fit_alone())
    cluster.close()


@exhaustive
def test_elastic_replicas_end_with_one_centre(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PAIR)
    assert cluster.begin("elastic", {"every": 2}, epochs=20) == [["ring"]] * 2
    one, other = cluster.results()
    assert one["weights"] == other["weights"]
    assert one["loss"][-1] < one["loss"][0] / 2
    cluster.close()


@exhaustive
def test_central_storage_is_of_one_host(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PAIR)
    for name, text in cluster.begin("central", {}):
        assert name == "InvalidArgumentError"
        assert "use --strategy ps" in text
    cluster.close()


def test_ranks_that_are_cut_off_raise_and_the_others_continue(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, THREE)
    assert cluster.begin("multi_worker", {}, pause=True, epochs=6) == [["hierarchical"]] * 3
    two_hosts.cut("b")
    begun = time.monotonic()
    cluster.resume()
    cluster.error("worker2", begun, CUT_OFF_SECONDS)
    for name in ("worker0", "worker1"):
        assert_alike(cluster[name].answer(), fit_alone(epochs=6))
    took = time.monotonic() - begun
    print(f"all steps were made after {took:.1f} s")
    assert took < limit(AGAIN_SECONDS)
    two_hosts.heal("b")
    assert cluster.begin("multi_worker", {}) == [["hierarchical"]] * 3
    for found in cluster.results():
        assert_alike(found, fit_alone())
    cluster.close()


@exhaustive
def test_after_a_death_the_others_of_both_hosts_continue(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, {"driver0": "a", **FOUR})
    cluster.begin("multi_worker", {}, pause=True, epochs=6)
    cluster["worker2"].kill()
    begun = time.monotonic()
    first, lost = (cluster.infos[name]["rank"] for name in ("worker0", "worker2"))
    assert cluster["driver0"].do(do="report_lost", first=first, run=cluster.run, ranks=[lost]) is None
    cluster.resume()
    for name in ("worker0", "worker1", "worker3"):
        assert_alike(cluster[name].answer(), fit_alone(epochs=6))
    took = time.monotonic() - begun
    print(f"all steps were made after {took:.1f} s")
    assert took < limit(NOTICED_SECONDS)
    cluster.close()


@pytest.mark.parametrize(
    ("places", "strategy"),
    matrix([(PAIR, "multi_worker")], rest=[(FOUR, "multi_worker"), (PAIR, "elastic"), (PAIR, "sharded")]),
    ids=["pair", "four", "elastic", "sharded"],
)
def test_a_reset_connection_costs_no_step(two_hosts: TwoHosts, places: dict[str, str], strategy: str) -> None:
    cluster = HostsCluster(two_hosts, places)
    cluster.begin(strategy, {})
    expected = cluster.results()
    cluster.begin(strategy, {}, pause=True)
    two_hosts.reset_connections("b")
    cluster.resume()
    assert cluster.results() == expected
    cluster.close()


@exhaustive
@pytest.mark.parametrize("first", ["worker0", "worker1"])
def test_connections_that_are_reset_while_one_forms_the_group_again(two_hosts: TwoHosts, first: str) -> None:
    """It waits at the Server of worker 0, which also watches the others, until another one has failed."""
    cluster = HostsCluster(two_hosts, PAIR)
    cluster.begin("multi_worker", {})
    expected = cluster.results()
    cluster.begin("multi_worker", {}, pause=True)
    last = "worker1" if first == "worker0" else "worker0"
    cluster[first].tell("continue")
    for _ in range(3):
        two_hosts.reset_connections("b")
        until(lambda: two_hosts.is_connected(PAIR[first], cluster.address(last)))
    cluster[last].tell("continue")
    assert cluster.results() == expected
    cluster.close()


@exhaustive
@pytest.mark.parametrize(
    ("places", "strategy", "options"),
    [
        (PAIR, "multi_worker", {}),
        (FOUR, "multi_worker", {}),
        (PAIR, "sharded", {"stage": 1}),
        (FOUR, "sharded", {"stage": 2}),
    ],
    ids=["pair", "four", "sharded", "sharded four"],
)
def test_connections_that_are_reset_in_the_middle_of_steps(
    two_hosts: TwoHosts, places: dict[str, str], strategy: str, options: dict[str, int]
) -> None:
    """Each comes when the one before it is repaired, which takes about half a second."""
    cluster = HostsCluster(two_hosts, places)
    model = {"epochs": 180, "width": 30_000}
    cluster.begin(strategy, options, **model)
    expected = cluster.results()
    cluster.begin(strategy, options, **model)
    made = 0
    while made < 3 and cluster["worker0"].silent(1.5):
        two_hosts.reset_connections("ab"[made % 2])
        made += 1
    assert made
    assert cluster.results() == expected
    cluster.close()


@exhaustive
def test_a_reset_in_stage_3_ends_the_training_with_the_remedy(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PAIR)
    cluster.begin("sharded", {"stage": 3}, pause=True)
    two_hosts.reset_connections("b")
    cluster.resume()
    for text in cluster.errors(NOTICED_SECONDS):
        assert "--stage 3 repeats no step after a lost connection" in text
        assert "--resume" in text
    cluster.close()


@exhaustive
@pytest.mark.parametrize("two_hosts", ["abc"], indirect=True)
def test_hosts_that_never_reach_each_other_end_the_training(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, {"worker0": "a", "worker1": "b", "worker2": "c"})
    cluster.begin("multi_worker", {}, pause=True, epochs=6)
    begun = time.monotonic()
    two_hosts.drop("b", "c")
    cluster.resume()
    for name in cluster.workers:
        cluster.error(name, begun, CUT_OFF_SECONDS)
    two_hosts.hear_again("b")
    cluster.close()
