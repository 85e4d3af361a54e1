"""What Kubernetes says of a Job and its pods, in words."""

from __future__ import annotations

from typing import Any

import pytest

from nbdist.cluster.launchers.kubernetes.status import (
    describe_waiting,
    explain_refusal,
    how_ended,
    read_standing,
    seconds_left,
    why_failed,
    why_never,
    why_never_made,
    why_waiting,
)

START = "2026-11-30T02:00:00Z"
BEGUN = 1796004000.0
INDEX = "batch.kubernetes.io/job-completion-index"


def job(**status: Any) -> dict[str, Any]:
    spec = {"completions": 2, "activeDeadlineSeconds": 7200}
    return {"metadata": {"name": "nb"}, "spec": spec, "status": {"startTime": START, **status}}


def pod(index: int, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    if state is not None:
        status["containerStatuses"] = [{"name": "nbdist", "image": "lab:1", "state": state}]
    metadata = {"name": f"nb-{index}-x", "labels": {INDEX: str(index)}, "creationTimestamp": START}
    return {"metadata": metadata, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod(0, {"waiting": {"reason": reason, "message": message}})


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return pod(0, {"terminated": {"exitCode": code, "reason": reason, "message": message}})


@pytest.mark.parametrize(
    ("one", "warning", "said"),
    [
        (pod(0), "", "it is being scheduled"),
        (pod(0), "no PriorityClass", "it is being scheduled (no PriorityClass)"),
        (waiting("ContainerCreating"), 'secret "x" not found', "are mounted (ContainerCreating: sec"),
        (waiting("ImagePullBackOff", "Back-off"), "", "cannot be pulled (ImagePullBackOff: Back-off)"),
        (waiting("Strange"), "", "its container waits (Strange)"),
        (pod(0, conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]), "",
         "it waits for a node (SchedulingGated)"),
    ],
)  # fmt: skip
def test_why_a_pod_waits(one: dict[str, Any], warning: str, said: str) -> None:
    assert said in why_waiting(one, warning)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (
            waiting("ErrImagePull", "failed to resolve lab:9: not found"),
            "give an image that its node may pull",
        ),
        (
            waiting("ImagePullBackOff", "pull access denied"),
            "pod nb-0-x will not run: its image cannot be pulled",
        ),
        (waiting("InvalidImageName", "bad"), "the name of its image is invalid"),
        (waiting("CreateContainerConfigError", "runAsNonRoot"), "see pod_template="),
        (waiting("ImagePullBackOff", "i/o timeout"), ""),
        (waiting("ContainerCreating"), ""),
    ],
)
def test_what_never_runs(one: dict[str, Any], said: str) -> None:
    assert (said in why_never(one)) if said else why_never(one) == ""


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (pod(0, {"running": {}}), None),
        (ended(0, "Completed"), ""),
        (ended(137, "OOMKilled"), "pod nb-0-x used more memory than it may (OOMKilled)"),
        (ended(1, message="python: No module named nbdist"), "start: python: No module named nbdist; give"),
        (ended(1, message="first\nit cannot reach the head\n"), "exit code 1: it cannot reach the head"),
        (ended(128, "StartError", 'exec: "sh": not found'), '128 (StartError): exec: "sh": not found'),
        (pod(0, phase="Failed", reason="Evicted", message="low on memory"), "(Evicted: low on memory)"),
    ],
)  # fmt: skip
def test_how_a_pod_has_ended(one: dict[str, Any], said: str | None) -> None:
    found = how_ended(one)
    assert found == said if not said else said in (found or "")


QUOTA = 'pods "x" is forbidden: exceeded quota: q, requested: {}, used: {}, limited: {}'


@pytest.mark.parametrize(
    ("warning", "said"),
    [
        (QUOTA.format("requests.nvidia.com/gpu=8", "requests.nvidia.com/gpu=0", "requests.nvidia.com/gpu=4"),
         "a pod asks for more than the quota of its namespace"),
        (QUOTA.format("cpu=2,memory=16Gi", "cpu=3,memory=0", "cpu=4,memory=32Gi"), ""),
        (QUOTA.format("memory=16Gi", "memory=0", "memory=8000M"), "ask for less"),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', "see pod_template="),
        ('pods "x" is forbidden: error looking up service account ml/r: serviceaccount "r" not found',
         "choose another service_account="),
        ("Internal error occurred: failed calling webhook", ""),
    ],
)  # fmt: skip
def test_what_is_never_made(warning: str, said: str) -> None:
    assert (said in why_never_made(warning)) if said else why_never_made(warning) == ""


def test_where_pods_are() -> None:
    pods = [pod(0, {"running": {}}, podIP="10.0.0.7")]
    events = [
        {
            "type": "Warning",
            "involvedObject": {"name": "nb"},
            "message": "exceeded quota: q",
            "lastTimestamp": START,
        },
        {"type": "Normal", "involvedObject": {"name": "nb"}, "message": "x"},
        {"type": "Warning", "involvedObject": {"name": "other"}, "message": "y"},
    ]
    found = read_standing(job(), pods, events, started=[], now=BEGUN + 200)
    assert (found.running, found.left, found.never) == ({0: "10.0.0.7"}, 7000.0, "")
    assert found.waiting == {1: "a quota of the namespace is used up (exceeded quota: q)"}
    gone = read_standing(job(), pods, [], started=[0, 1], now=BEGUN)
    assert gone.ended[1].startswith("pod nb-1 was removed: its node is gone or was drained")


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([], ""),
        ([("Failed", "DeadlineExceeded")], "Job nb reached its time limit of 2:00:00 (pod_time=)"),
        ([("Failed", "FailedIndexes")], ""),
        ([("Failed", "PodFailurePolicy")], "Job nb failed (PodFailurePolicy: why)"),
        ([("Complete", "")], ""),
    ],
)
def test_why_a_job_has_failed(conditions: list[tuple[str, str]], said: str) -> None:
    listed = [
        {"type": kind, "status": "True", "reason": reason, "message": "why"} for kind, reason in conditions
    ]
    assert why_failed(job(conditions=listed)) == said


def test_a_job_that_is_being_deleted_is_named() -> None:
    found = job()
    found["metadata"]["deletionTimestamp"] = START
    assert why_failed(found) == "Job nb was deleted from outside of nbdist"


def test_the_time_that_is_left() -> None:
    assert [seconds_left(job(), BEGUN + more) for more in (-60, 200, 9000)] == [7200.0, 7000.0, 0.0]
    assert seconds_left({"spec": {}, "status": {"startTime": START}}, BEGUN) is None


def test_pods_with_one_reason_are_named_together() -> None:
    said = describe_waiting("nb", {0: "a", 1: "b", 2: "a"})
    assert said == "pods nb-0 and nb-2 are pending: a; pod nb-1 is pending: b"
    assert describe_waiting("nb", dict.fromkeys(range(9), "a")) == "pods nb-0 and 8 others are pending: a"


@pytest.mark.parametrize(
    ("status", "said", "sentence"),
    [
        (401, "Unauthorized", "does not accept this user's credentials (Unauthorized)"),
        (
            403,
            'jobs.batch is forbidden: User "u"',
            "does not let this user create jobs in namespace 'ml' (jobs.batch",
        ),
        (403, "exceeded quota: count/jobs.batch", "a quota of namespace 'ml' is used up"),
        (404, 'namespaces "ml" not found', "there is no namespace 'ml'"),
        (
            400,
            'strict decoding error: unknown field "spec.x"',
            "does not accept the jobs (strict decoding error",
        ),
        (422, "must be unique", "see pod_template= and the other settings"),
        (409, "AlreadyExists", "did not create jobs in namespace 'ml' (409: AlreadyExists)"),
    ],
)
def test_a_refusal_in_words(status: int, said: str, sentence: str) -> None:
    assert sentence in explain_refusal(status, said, "create", "jobs", "ml")
