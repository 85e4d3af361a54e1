"""Sessions between a client on one host and tasks on the other."""

from __future__ import annotations

import time

import pytest
from host_namespaces import TwoHosts
from hosts_cluster import HostsCluster
from tiers import exhaustive, matrix
from waiting import limit

pytestmark = [pytest.mark.netns, pytest.mark.timeout(90)]

CUT_OFF_SECONDS = 10.0
BACK_SECONDS = 5.0  # until a healed link is used again
PLACES = {"worker0": "a", "worker1": "b"}
THERE = "/job:worker/task:1"


@pytest.mark.parametrize(
    ("client", "target"), matrix([("worker0", "worker0")], rest=[("outside", "worker1")])
)
def test_a_product_on_the_other_host_is_fed_from_this_one(
    two_hosts: TwoHosts, client: str, target: str
) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    driver = two_hosts.run("a", "task_actor.py") if client == "outside" else cluster[client]
    assert driver.do(do="session", target=cluster.target(target), keys=cluster.keys, place=THERE) is None
    assert driver.do(do="product", rows=3) is True
    assert driver.do(do="product", rows=50_000) is True  # 16 MB of feeds
    assert driver.do(do="end_session") is None
    cluster.close()


@exhaustive
def test_a_client_with_other_keys_is_refused(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    assert cluster["worker0"].do(do="ping", rank=1) == THERE
    name, text = two_hosts.run("a", "task_actor.py").do(do="knock", address=cluster.address("worker1"))
    assert name in ("NotAllowedError", "UnavailableError"), text
    cluster.close()


@exhaustive
def test_a_connection_lost_by_a_cut_is_reopened(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    assert cluster["worker0"].do(do="ping", rank=1) == THERE
    two_hosts.cut("b")
    name, text = cluster["worker0"].do(do="ping", rank=1)
    assert name == "UnavailableError", text
    assert THERE in text
    assert cluster["worker0"].silent(1.0)
    two_hosts.heal("b")
    begun = time.monotonic()
    while cluster["worker0"].do(do="ping", rank=1) != THERE:
        assert time.monotonic() - begun < limit(BACK_SECONDS)
    print(f"back after {time.monotonic() - begun:.2f} s")
    cluster.close()


def test_a_session_with_a_cut_off_host_raises_and_another_works(two_hosts: TwoHosts) -> None:
    cluster = HostsCluster(two_hosts, PLACES)
    driver, order = cluster["worker0"], {"target": cluster.target("worker0"), "keys": cluster.keys}
    assert driver.do(do="session", **order, place=THERE) is None
    driver.ask(do="products_for_ever", rows=500)
    assert driver.answer() == "begun"
    assert driver.silent(0.5)
    two_hosts.cut("b")
    begun = time.monotonic()
    name, text = driver.answer()
    took = time.monotonic() - begun
    print(f"{took:.2f} s: {name}: {text}")
    assert name == "UnavailableError"
    assert THERE in text
    assert took < limit(CUT_OFF_SECONDS)
    assert driver.do(do="end_session") is None
    two_hosts.heal("b")
    assert driver.do(do="session", **order, place=THERE) is None
    assert driver.do(do="product", rows=3) is True
    assert driver.do(do="end_session") is None
    cluster.close()
