"""A notebook in a pod: its rights, its image, and that it owns what it creates."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nbdist.cluster.launchers.kubernetes import api, launcher, request, row
from nbdist.cluster.launchers.kubernetes.launcher import KubernetesLauncher, check_reach
from nbdist.cluster.launchers.kubernetes.request import PodRequest
from nbdist.cluster.launchers.registry import choose_launcher
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from mock_cluster import MockCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def own(kube: MockCluster, monkeypatch: pytest.MonkeyPatch) -> api.Api:
    """The mock's API, for a process that takes itself for a pod."""
    config = pytest.importorskip("kubernetes.config.kube_config")
    monkeypatch.setattr(config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kube.kubeconfig))
    monkeypatch.setattr(launcher, "in_pod", lambda: True)
    return api.Api("mock")


def test_the_pods_have_the_image_of_the_notebook_which_owns_the_job(kube: MockCluster, own: api.Api) -> None:
    kube.add_pod(socket.gethostname(), {"notebook": "lab:7"})
    kube.holds_pods = True
    held = KubernetesLauncher(PodRequest(), b'{"cluster_id": "c1"}\n', own)
    held._create()
    (job,) = kube.objects("jobs")
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "lab:7"
    assert [one["kind"] for one in job["metadata"]["ownerReferences"]] == ["Pod"]
    held.end()
    assert kube.left() == [f"pods/{socket.gethostname()}"]
    kube.add_pod(socket.gethostname(), {"notebook": "lab:7", "proxy": "envoy:1"})
    with pytest.raises(InvalidArgumentError, match=r"several containers .*name an image"):
        KubernetesLauncher(PodRequest(), b"{}\n", own).run()
    kube.forget(socket.gethostname())
    with pytest.raises(InvalidArgumentError, match="the container nbdist has no image"):
        KubernetesLauncher(PodRequest(), b"{}\n", own).run()


def test_auto_is_kubernetes_in_a_pod_that_may_create_jobs(
    kube: MockCluster, own: api.Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "JOB_ID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)
    assert choose_launcher("auto", {})[0].name == "local"
    monkeypatch.setattr(row, "in_pod", lambda: True)
    monkeypatch.setattr(row, "Api", lambda: own)
    spec, why = choose_launcher("auto", {})
    assert (spec.name, why) == ("kubernetes", "this process is in a pod that may create Jobs in namespace ml")
    assert choose_launcher("auto", {"hosts": "a:2"})[0].name == "ssh"
    kube.refuse["create", "jobs"] = (403, "no")
    assert choose_launcher("auto", {})[0].name == "local"
    spec, why = choose_launcher("auto", {"pods": 2})
    assert (spec.name, why) == ("kubernetes", "--pods is given")


def test_a_pod_has_the_rights_of_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("kubernetes.config.incluster_config")
    for name, text in (("token", "t"), ("ca.crt", ""), ("namespace", "vision\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    for module in (api, request):
        monkeypatch.setattr(module, "TOKEN", tmp_path / "token")
    monkeypatch.setattr(config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    with pytest.raises(FailedPreconditionError, match="no configuration of Kubernetes can be used"):
        api.Api()  # without the certificate of its cluster
    certifi = pytest.importorskip("certifi")
    (tmp_path / "ca.crt").write_text(Path(certifi.where()).read_text())
    found = api.Api()
    assert (found.namespace, found.server) == ("vision", "https://10.96.0.1:443")
    assert api.Api(namespace="ml").namespace == "ml"


def test_a_pod_that_this_host_cannot_connect_to_is_named() -> None:
    check_reach("127.0.0.1")  # nothing listens there, and it says so
    with pytest.raises(UnavailableError, match=r"this host cannot connect to the pod at 255\."):
        check_reach("255.255.255.255")
