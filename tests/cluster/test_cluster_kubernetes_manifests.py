"""The objects of a cluster in Kubernetes, against its published schemas, and what a template may have."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from nbdist.cluster.launchers.kubernetes.manifests import (
    check_image,
    check_template,
    job,
    owner_of,
    pod_template,
    read_template,
    role,
    secret,
    service,
)
from nbdist.cluster.launchers.kubernetes.request import PodRequest
from nbdist.errors import InvalidArgumentError

REQUEST = PodRequest(
    image="lab:1", pods=2, pod_cpus="500m", pod_memory="16Gi", pod_gpus=4, pod_time="1:30:00",
    service_account="reader",
)  # fmt: skip
TEMPLATE = {
    "metadata": {"labels": {"team": "vision"}},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "imagePullSecrets": [{"name": "registry"}],
        "containers": [
            {"name": "nbdist", "image": "old:1", "env": [{"name": "HTTP_PROXY", "value": "http://p:1"}]},
            {"name": "sidecar", "image": "logs:1"},
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "nbdist-1f", "uid": "u1"}


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("template", [{}, TEMPLATE], ids=["plain", "template"])
@pytest.mark.parametrize("request_", [PodRequest(image="lab:1"), REQUEST], ids=["least", "all"])
def test_objects_are_as_the_published_schemas_say(
    version: str, template: dict[str, Any], request_: PodRequest
) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    made = job("nbdist-1f", request_, template, "c1", owner=OWNER)
    for one in (made, service("nbdist-1f", OWNER), secret("nbdist-1f", OWNER, b"{}\n"), role()):
        validate(one, version, strict=True)


def test_settings_are_in_the_job() -> None:
    made = job("nbdist-1f", REQUEST, TEMPLATE, "c1")
    spec, pod = made["spec"], made["spec"]["template"]["spec"]
    own = pod["containers"][0]
    assert (spec["completions"], spec["parallelism"], spec["activeDeadlineSeconds"]) == (2, 2, 5400)
    amounts = {"cpu": "500m", "memory": "16Gi", "nvidia.com/gpu": "4"}
    assert own["resources"] == {"limits": amounts, "requests": amounts}
    assert own["image"] == "lab:1"  # not the template's
    assert {one["name"] for one in own["env"]} == {"NBDIST_HOME", "HTTP_PROXY"}
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("reader", True)
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert [one["name"] for one in pod["containers"]] == ["nbdist", "sidecar"]
    assert [one["name"] for one in pod["volumes"]] == ["data", "nbdist-plan", "nbdist-home", "nbdist-shm"]
    assert spec["template"]["metadata"]["labels"]["team"] == "vision"


def test_without_settings_the_template_decides() -> None:
    template = {
        "spec": {"automountServiceAccountToken": True, "containers": [{"name": "nbdist", "image": "a:1"}]}
    }
    pod = pod_template("nbdist-1f", PodRequest(), template)["spec"]
    assert pod["automountServiceAccountToken"] is True
    assert pod["containers"][0]["image"] == "a:1"
    assert "resources" not in pod["containers"][0]


def test_the_plan_is_in_the_secret_only() -> None:
    plan = b'{"keys": "s3cret"}\n'
    held = secret("nbdist-1f", OWNER, plan)
    assert base64.b64decode(held["data"]["line"]) == plan
    assert held["immutable"] is True
    assert held["metadata"]["ownerReferences"] == [OWNER]
    (volume,) = (
        one
        for one in job("nbdist-1f", REQUEST, {}, "c1")["spec"]["template"]["spec"]["volumes"]
        if "secret" in one
    )
    assert volume["secret"]["secretName"] == "nbdist-1f"


def test_an_owner_is_named_by_its_uid() -> None:
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "lab", "uid": "u2", "namespace": "ml"},
        "spec": {},
    }
    assert owner_of(made) == {"apiVersion": "v1", "kind": "Pod", "name": "lab", "uid": "u2"}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("text", "is not a mapping with the metadata and the spec of a pod"),
        ({"spec": ["x"]}, "is not a mapping"),
        ({"nodeSelector": {}}, "has ['nodeSelector']; it is a mapping with"),
        ({"kind": "Job", "spec": {}}, "is of kind Job"),
        ({"spec": {"restartPolicy": "Always"}}, "leave out spec.restartPolicy, nbdist sets it itself"),
        (
            {"spec": {"containers": [{"name": "nbdist", "args": []}]}},
            "leave out the args of container nbdist",
        ),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers is a list whose entries have names"),
        ({"spec": {"volumes": [{"name": "nbdist-shm"}]}}, "leave out volume nbdist-shm"),
        ({"metadata": {"name": "x"}}, "leave out metadata.name"),
    ],
)
def test_a_template_that_is_refused(found: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        check_template("t.yaml", found)
    assert said in str(error.value)


def test_a_template_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text("apiVersion: v1\nkind: Pod\nspec:\n  nodeSelector: {disk: ssd}\n")
    assert read_template(str(path)) == {"spec": {"nodeSelector": {"disk": "ssd"}}}
    path.write_text("spec: [")
    for name in (path, tmp_path / "none.yaml"):
        with pytest.raises(InvalidArgumentError, match=r"pod_template '.*' cannot be read: "):
            read_template(str(name))


def test_a_container_without_an_image_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="the container nbdist has no image: give image="):
        check_image(pod_template("nbdist-1f", PodRequest(), {}))
