"""The objects that a cluster consists of: an Indexed Job, a headless service, a Secret with the plan. Pure.

    made = job("nbdist-1f", request, template={}, cluster="c1")
    service("nbdist-1f", owner), secret("nbdist-1f", owner, plan)

The Job is created first and suspended, so that it can own the two others: whatever becomes of this process,
they go with it. A user's template is laid over `defaults`, and over both what the user has set and what
nbdist needs.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nbdist.cluster.launchers.kubernetes.request import PodRequest
from nbdist.errors import InvalidArgumentError

Manifest = dict[str, Any]

CONTAINER = "nbdist"
JOB_LABEL = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
KEPT_SECONDS = 300  # that a Job whose launcher was killed stays, once its pods have ended
ENDING_SECONDS = 10  # that the processes of a pod have, after SIGTERM
SUPERVISOR = 'exec "$0" -m nbdist.cluster.supervisor.host "$1-$JOB_COMPLETION_INDEX" < /nbdist/plan/line'
"""What a pod runs: the plan is its standard input, and the pod's name in the cluster its argument."""


def job(
    name: str, request: PodRequest, template: Manifest, cluster: str, owner: Manifest | None = None
) -> Manifest:
    """Return the Job of a cluster, suspended; ``owner`` is the notebook's pod, with which it goes, if any."""
    spec: Manifest = {
        "suspend": True,
        "completionMode": "Indexed",
        "completions": request.pods,
        "parallelism": request.pods,
        # A pod that ends takes no other with it, and none takes its place: its tasks go to the others.
        "backoffLimitPerIndex": 0,
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": pod_template(name, request, template),
    }
    if request.seconds is not None:
        spec["activeDeadlineSeconds"] = request.seconds
    made = _object("batch/v1", "Job", name, owner)
    made["metadata"]["annotations"] = {"nbdist/cluster": cluster}
    return {**made, "spec": spec}


def service(name: str, owner: Manifest) -> Manifest:
    """Return the headless service that gives each pod a name in the network: ``NAME-0.NAME`` and so on."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_LABEL: name}}
    return {**_object("v1", "Service", name, owner), "spec": spec}


def secret(name: str, owner: Manifest, plan: bytes) -> Manifest:
    """Return the Secret with the plan, which has the cluster's keys."""
    data = {"line": base64.b64encode(plan).decode()}
    return {**_object("v1", "Secret", name, owner), "type": "Opaque", "immutable": True, "data": data}


def pod_template(name: str, request: PodRequest, template: Manifest) -> Manifest:
    """Return what the Job makes its pods of."""
    limits = {
        "cpu": request.pod_cpus,
        "memory": request.pod_memory,
        "nvidia.com/gpu": str(request.pod_gpus or ""),
    }
    limits = {resource: amount for resource, amount in limits.items() if amount}
    container: Manifest = {
        "name": CONTAINER,
        "command": ["sh", "-c", SUPERVISOR, request.pod_python, name],
        "volumeMounts": [
            {"name": "nbdist-plan", "mountPath": "/nbdist/plan", "readOnly": True},
            {"name": "nbdist-home", "mountPath": "/nbdist/home"},
            {"name": "nbdist-shm", "mountPath": "/dev/shm"},
        ],
    }
    if request.image:
        container["image"] = request.image
    if limits:
        container["resources"] = {"limits": limits, "requests": dict(limits)}
    spec: Manifest = {
        "restartPolicy": "Never",
        "subdomain": name,
        "containers": [container],
        "volumes": [
            # Readable for any user of the container, whose number only the image knows.
            {"name": "nbdist-plan", "secret": {"secretName": name, "defaultMode": 0o444}},
            {"name": "nbdist-home", "emptyDir": {}},
            # A container's own /dev/shm has 64 MB; tasks of a pod share memory there.
            {"name": "nbdist-shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if request.service_account:
        spec["serviceAccountName"] = request.service_account
    made: Manifest = laid_over(laid_over(defaults(name, request), template), {"spec": spec})
    return made


def defaults(name: str, request: PodRequest) -> Manifest:
    """Return what a template may change."""
    container = {
        "name": CONTAINER,
        "env": [{"name": "NBDIST_HOME", "value": "/nbdist/home/data"}],
        # The last line of a supervisor that does not start is then in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec = {
        "automountServiceAccountToken": bool(request.service_account),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": ENDING_SECONDS,
        "containers": [container],
    }
    return {"metadata": {"labels": _labels(name)}, "spec": spec}


def laid_over(below: Any, above: Any) -> Any:
    """Return one value laid over another: mappings key by key, lists of named things by their names.

    >>> laid_over({"a": 1, "env": [{"name": "X", "value": "1"}]}, {"env": [{"name": "Y", "value": "2"}]})
    {'a': 1, 'env': [{'name': 'X', 'value': '1'}, {'name': 'Y', 'value': '2'}]}
    """
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        both = {key: laid_over(below[key], above[key]) for key in below.keys() & above.keys()}
        return {**below, **above, **both}
    if (
        isinstance(below, list)
        and isinstance(above, list)
        and all(_is_named(one) for one in (*below, *above))
    ):
        named = {one["name"]: one for one in below}
        return list(
            (named | {one["name"]: laid_over(named.get(one["name"], {}), one) for one in above}).values()
        )
    return above


def _is_named(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("name"), str)


def read_template(path: str) -> Manifest:
    """Return the part of a pod that a user's file has: YAML with ``metadata`` and ``spec``, as in a Pod.

    Raises InvalidArgumentError for what cannot be read, and for what nbdist has to decide itself.
    """
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise InvalidArgumentError(f"pod_template {path!r} cannot be read: {said}") from None
    check_template(path, found)
    return {name: found[name] for name in ("metadata", "spec") if name in found}


def check_template(path: str, found: Any) -> None:
    """Raise InvalidArgumentError for what a template cannot have.

    >>> check_template("t", {"spec": {"restartPolicy": "Always"}})
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: pod_template 't': leave out spec.restartPolicy, nbdist sets it itself
    """
    example = "a mapping with the metadata and the spec of a pod, such as spec: {nodeSelector: {disk: ssd}}"
    if not isinstance(found, Mapping) or not all(isinstance(found.get(one, {}), Mapping) for one in PARTS):
        raise InvalidArgumentError(f"pod_template {path!r} is not {example}")
    if unknown := found.keys() - {"apiVersion", "kind", *PARTS}:
        raise InvalidArgumentError(f"pod_template {path!r} has {sorted(map(str, unknown))}; it is {example}")
    if found.get("kind", "Pod") != "Pod":
        raise InvalidArgumentError(f"pod_template {path!r} is of kind {found['kind']}; it is {example}")
    spec = found.get("spec", {})
    lists = {name: spec.get(name, []) for name in ("containers", "volumes")}
    for name, entries in lists.items():
        if not isinstance(entries, list) or not all(_is_named(one) for one in entries):
            raise InvalidArgumentError(
                f"pod_template {path!r}: spec.{name} is a list whose entries have names"
            )
    own: Manifest = next((one for one in lists["containers"] if one["name"] == CONTAINER), {})
    given = {f"spec.{name}" for name in FIXED if name in spec}
    given |= {f"the {name} of container {CONTAINER}" for name in ("command", "args") if name in own}
    given |= {f"volume {one['name']}" for one in lists["volumes"] if one["name"].startswith("nbdist-")}
    given |= {f"metadata.{name}" for name in found.get("metadata", {}).keys() - {"labels", "annotations"}}
    if given:
        listed = ", ".join(sorted(given))
        raise InvalidArgumentError(f"pod_template {path!r}: leave out {listed}, nbdist sets it itself")


PARTS = ("metadata", "spec")
FIXED = ("restartPolicy", "subdomain", "hostname", "activeDeadlineSeconds", "setHostnameAsFQDN")


def check_image(template: Manifest) -> None:
    """Raise InvalidArgumentError unless the pods of a Job have an image."""
    containers: Iterable[Manifest] = template["spec"]["containers"]
    for container in containers:
        if not container.get("image"):
            raise InvalidArgumentError(
                f"the container {container['name']} has no image: give image=, one with the nbdist of "
                "this host, such as that of the notebook"
            )


RIGHTS = {
    ("batch", "jobs"): ["create", "get", "patch", "delete"],
    ("", "services"): ["create"],
    ("", "secrets"): ["create", "delete"],
    ("", "pods"): ["get", "list"],
    ("", "events"): ["list"],
}
"""What the user whose notebook holds a cluster has to be allowed, by API group and resource."""


def role() -> Manifest:
    """Return the Role that the notebook's service account, or its user, needs in the pods' namespace."""
    rules = [
        {"apiGroups": [group], "resources": [one], "verbs": verbs} for (group, one), verbs in RIGHTS.items()
    ]
    made = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "nbdist"}}
    return {**made, "rules": rules}


def owner_of(created: Mapping[str, Any]) -> Manifest:
    """Return the reference to an object that was created, for those that go with it."""
    names = {name: created[name] for name in ("apiVersion", "kind")}
    return {**names, "name": created["metadata"]["name"], "uid": created["metadata"]["uid"]}


def _labels(name: str) -> Manifest:
    return {"app.kubernetes.io/name": "nbdist", "app.kubernetes.io/instance": name}


def _object(version: str, kind: str, name: str, owner: Manifest | None) -> Manifest:
    metadata: Manifest = {"name": name, "labels": _labels(name)}
    if owner:
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
