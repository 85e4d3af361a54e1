"""Clusters in pods: the launcher talks to a mock of the API server, and the pods are processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from actors import Actor
from waiting import limit, until

if TYPE_CHECKING:
    from mock_cluster import MockCluster

pytestmark = pytest.mark.engines

ACTOR = Path(__file__).parents[1] / "hosts" / "cluster_actor.py"
LEAVE_SECONDS = 30.0
START = {
    "do": "start", "launcher": "kubernetes", "context": "mock", "image": "nbdist:test",
    "pod_python": sys.executable,
}  # fmt: skip


@pytest.fixture
def client(kube: MockCluster, own_home: Path) -> Iterator[Actor]:
    """A client whose kubeconfig names the mock."""
    variables = {"KUBECONFIG": str(kube.kubeconfig), "NBDIST_HOME": str(own_home)}
    command = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, str(ACTOR)]
    actor = Actor(command, "the notebook")
    try:
        yield actor
        actor.end(LEAVE_SECONDS)
    finally:
        actor.kill()


def test_a_cluster_in_pods_trains_survives_a_node_and_ends(client: Actor, kube: MockCluster) -> None:
    started = client.do(**START, pods=3, pod_time="30", ps=1)
    assert "nodes" in started, started
    (job,) = kube.objects("jobs")
    names = [f"{job['metadata']['name']}-{index}" for index in range(3)]
    assert started["nodes"] == [*names, names[0]]
    assert until(lambda: not kube.objects("secrets"), limit(5)) is True
    assert client.do(do="train", strategy="multi_worker")["error"] is None
    assert client.do(do="train", strategy="ps")["error"] is None
    assert 0 < client.do(do="seconds_left") <= 1800
    (pod,) = (name for name in kube.pods if name.startswith(f"{names[2]}-"))
    kube.remove_pod(pod)
    *ended, seconds = client.do(do="dead", ranks=[2])
    assert ended == [f"host {names[2]} was lost: it has ended, or was cut off from this one"]
    assert seconds < limit(10)
    assert client.do(do="restart")[1:] == [names[0], names[1], names[1], names[0]]
    assert client.do(do="train", strategy="multi_worker")["error"] is None
    assert client.do(do="stop") < limit(5)
