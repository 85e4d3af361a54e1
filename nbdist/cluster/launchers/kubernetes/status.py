"""What Kubernetes says of a Job and its pods, read and put into words. Pure.

    standing = read_standing(job, pods, events, count=2)
    standing.waiting, standing.running, standing.ended     # by the index of a pod
    standing.never                                         # why the Job cannot go on, "" if it can
    explain_refusal(403, message, "create", "jobs", "ml")  # a sentence for the user

Objects are those of the API, as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from nbdist.cluster.launchers.kubernetes.manifests import CONTAINER, INDEX
from nbdist.cluster.launchers.kubernetes.request import quantity
from nbdist.text import clip

LONGEST = 400  # characters of Kubernetes' own words in a sentence
Object = Mapping[str, Any]


@dataclass(frozen=True)
class Standing:
    """Where the pods of a Job are, by their indices.

    - ``waiting``: why a pod does not run yet
    - ``running``: the addresses of the pods that run
    - ``ended``: how a pod has ended; "" for an exit code of 0
    - ``left``: seconds that the Job has, None without a limit
    - ``never``: why the Job cannot go on
    """

    waiting: dict[int, str] = field(default_factory=dict)
    running: dict[int, str] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    left: float | None = None
    never: str = ""


def read_standing(
    job: Object, pods: Sequence[Object], events: Sequence[Object], started: Sequence[int], now: float
) -> Standing:
    """Return where the pods of a Job are.

    - ``events``: warnings of the namespace; those about other objects are left out
    - ``started``: the indices of pods that were seen to run; without a pod they have ended
    - ``now``: seconds since 1970
    """
    name, count = job["metadata"]["name"], job["spec"]["completions"]
    standing = Standing(left=seconds_left(job, now), never=why_failed(job))
    newest = {index: pod for pod in sorted(pods, key=_created) if (index := pod_index(pod)) is not None}
    warned = warnings(events, name)
    nevers = [standing.never]
    for index in range(count):
        pod = newest.get(index)
        if pod is None and index in started:
            standing.ended[index] = (
                f"pod {name}-{index} was removed: its node is gone or was drained, or it was deleted from "
                "outside of nbdist"
            )
        elif pod is None:
            said = warned.get(name, "")
            standing.waiting[index] = why_no_pod(said) if said else "Kubernetes has not made its pod yet"
            nevers.append(said and why_never_made(said))
        elif (end := how_ended(pod)) is not None:
            standing.ended[index] = end
        elif (address := running_address(pod)) is not None:
            standing.running[index] = address
        else:
            standing.waiting[index] = why_waiting(pod, warned.get(pod["metadata"]["name"], ""))
            nevers.append(why_never(pod))
    never = next(filter(None, nevers), "")
    return Standing(standing.waiting, standing.running, standing.ended, standing.left, never)


def describe_waiting(name: str, waiting: Mapping[int, str]) -> str:
    """Return why pods do not run yet, those with the same reason together.

    >>> describe_waiting("nbdist-1f", {0: "it is being scheduled", 1: "it is being scheduled"})
    'pods nbdist-1f-0 and nbdist-1f-1 are pending: it is being scheduled'
    """
    reasons: dict[str, list[str]] = {}
    for index, why in waiting.items():
        reasons.setdefault(why, []).append(f"{name}-{index}")
    parts = []
    for why, pods in reasons.items():
        many = len(pods) > 1
        listed = " and ".join(pods) if len(pods) < 4 else f"{pods[0]} and {len(pods) - 1} others"
        parts.append(f"pod{'s' * many} {listed} {'are' if many else 'is'} pending: {why}")
    return "; ".join(parts)


def pod_index(pod: Object) -> int | None:
    """Return the index of a pod in its Job, None if it has none."""
    metadata = pod.get("metadata", {})
    index = (metadata.get("annotations") or {}).get(INDEX) or (metadata.get("labels") or {}).get(INDEX, "")
    return int(index) if index.isdigit() else None


def own_container(pod: Object) -> Object:
    """Return the status of the container that nbdist runs in, empty if there is none yet."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((one for one in statuses if one.get("name") == CONTAINER), {})


def running_address(pod: Object) -> str | None:
    """Return the address of a pod that runs, None if it does not."""
    state = own_container(pod).get("state") or {}
    return str(pod["status"].get("podIP", "")) if "running" in state else None


# A container's state in which it waits, in words. What cannot pass by itself is in `NEVER`.
WAITING = {
    "ContainerCreating": "its container is being made: its image is pulled, its volumes are mounted",
    "PodInitializing": "its init containers run",
    "ErrImagePull": "its image cannot be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "RegistryUnavailable": "the registry of its image does not answer",
    "CreateContainerConfigError": "its container is not accepted",
    "CreateContainerError": "its container cannot be made",
    "InvalidImageName": "the name of its image is invalid",
    "ErrImageNeverPull": "its image is not on the node, and is not pulled",
}
NEVER = ("CreateContainerConfigError", "InvalidImageName", "ErrImageNeverPull")
NEVER_PULLED = re.compile(
    r"not found|manifest unknown|denied|unauthorized|authorization failed|forbidden", re.I
)


def why_waiting(pod: Object, warning: str = "") -> str:
    """Return why a pod does not run yet.

    >>> why_waiting({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason":
    ...     "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}]}})
    'no node has room for it (Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.)'
    """
    status = pod.get("status", {})
    state = (own_container(pod).get("state") or {}).get("waiting") or {}
    if reason := state.get("reason"):
        said = state.get("message") or warning
        return f"{WAITING.get(reason, 'its container waits')} ({_quoted(reason, said)})"
    for one in status.get("conditions") or []:
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            words = {"Unschedulable": "no node has room for it"}.get(
                one.get("reason", ""), "it waits for a node"
            )
            return f"{words} ({_quoted(one.get('reason', ''), one.get('message', ''))})"
    return f"it is being scheduled ({_quoted('', warning)})" if warning else "it is being scheduled"


def why_never(pod: Object) -> str:
    """Return why a pod will never run, "" if it may."""
    state = (own_container(pod).get("state") or {}).get("waiting") or {}
    reason, said = state.get("reason", ""), state.get("message", "")
    pulls = reason in ("ErrImagePull", "ImagePullBackOff") and NEVER_PULLED.search(said)
    if reason not in NEVER and not pulls:
        return ""
    image = own_container(pod).get("image", "")
    step = f"give an image that its node may pull (image=, now {image!r}; imagePullSecrets in pod_template=)"
    step = step if "mage" in reason else "see pod_template="
    return f"pod {pod['metadata']['name']} will not run: {why_waiting(pod)}; {step}"


def how_ended(pod: Object) -> str | None:
    """Return how a pod has ended, "" with an exit code of 0; None if it has not."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    state = (own_container(pod).get("state") or {}).get("terminated")
    failed = status.get("phase") == "Failed"
    if state is None and not failed:
        return None
    if failed and status.get("reason"):
        return f"pod {name} was ended by Kubernetes ({_quoted(status['reason'], status.get('message', ''))})"
    state = state or {}
    code, reason = state.get("exitCode"), state.get("reason", "")
    if code == 0:
        return ""
    if reason == "OOMKilled":
        return f"pod {name} used more memory than it may (OOMKilled): give it more by pod_memory="
    lines = [line.strip() for line in str(state.get("message") or "").splitlines() if line.strip()]
    last = f": {clip(lines[-1], LONGEST)}" if lines else ""
    if "No module named" in last and "nbdist" in last:
        step = "give an image with nbdist (image=), or its Python (pod_python=)"
        return f"pod {name} does not start{last}; {step}"
    return (
        f"pod {name} ended with exit code {code}{f' ({reason})' if reason not in ('', 'Error') else ''}{last}"
    )


def why_failed(job: Object) -> str:
    """Return why a Job cannot go on, "" if it can; the ends of its single pods do not count."""
    name, limit = job["metadata"]["name"], job["spec"].get("activeDeadlineSeconds")
    for one in job.get("status", {}).get("conditions") or []:
        if one.get("type") in ("Failed", "FailureTarget") and one.get("status") == "True":
            if one.get("reason") == "DeadlineExceeded":
                return f"Job {name} reached its time limit of {timedelta(seconds=limit or 0)} (pod_time=)"
            if one.get("reason") != "FailedIndexes":
                return f"Job {name} failed ({_quoted(one.get('reason', ''), one.get('message', ''))})"
    if job["metadata"].get("deletionTimestamp"):
        return f"Job {name} was deleted from outside of nbdist"
    return ""


def warnings(events: Sequence[Object], name: str) -> dict[str, str]:
    """Return the last warning about a Job and about each of its pods, by the names of the objects."""
    found: dict[str, str] = {}
    for event in sorted(events, key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or ""):
        about = event.get("involvedObject", {}).get("name", "")
        if event.get("type") == "Warning" and (about == name or about.startswith(f"{name}-")):
            found[about] = " ".join(str(event.get("message", "")).split())
    return found


def why_no_pod(warning: str) -> str:
    """Return why Kubernetes makes no pod, given the Job's last warning."""
    words = "a quota of the namespace is used up" if "exceeded quota" in warning else "its pod is not made"
    return f"{words} ({clip(warning, LONGEST)})"


def why_never_made(warning: str) -> str:
    """Return why Kubernetes will never make a pod, "" if it may: other pods may end and leave their quota.

    >>> why_never_made("exceeded quota: q, requested: cpu=2, used: cpu=9, limited: cpu=10")
    ''
    """
    step = "ask for less, or another namespace (namespace=)"
    if "exceeded quota" in warning:
        amounts = {
            part: dict(re.findall(r"([\w./-]+)=([\w.]+)", text))
            for part, text in re.findall(r"(requested|limited): ((?:[\w./-]+=[\w.]+,?)+)", warning)
        }
        asked, most = amounts.get("requested", {}), amounts.get("limited", {})
        if not any(
            (quantity(asked[one]) or 0) > (quantity(most[one]) or 0) for one in asked.keys() & most.keys()
        ):
            return ""
        return f"a pod asks for more than the quota of its namespace ({clip(warning, LONGEST)}); {step}"
    if "is forbidden" not in warning and "service account" not in warning:
        return ""
    step = "choose another service_account=" if "service account" in warning else "see pod_template="
    return f"Kubernetes does not accept the pods ({clip(warning, LONGEST)}); {step}"


def seconds_left(job: Object, now: float) -> float | None:
    """Return the seconds that a Job has left, None without a limit, or before it has begun."""
    limit, begun = job["spec"].get("activeDeadlineSeconds"), job.get("status", {}).get("startTime")
    if limit is None or not begun:
        return None
    ends = datetime.fromisoformat(begun).timestamp() + float(limit)
    return min(float(limit), max(0.0, ends - now))


PRINT_ROLE = "python -m nbdist.cluster.launchers.kubernetes --print-role"


def explain_refusal(status: int, said: str, verb: str, resource: str, namespace: str) -> str:
    """Return a sentence for a request that the API has refused.

    >>> explain_refusal(404, 'namespaces "ml" not found', "create", "jobs", "ml")
    "there is no namespace 'ml': create it (kubectl create namespace ml), or choose another one (namespace=)"
    """
    said = clip(" ".join(said.split()), LONGEST)
    if status == 401:
        return f"Kubernetes does not accept this user's credentials ({said}): log in to it again"
    if status == 403 and "exceeded quota" in said:
        return f"a quota of namespace {namespace!r} is used up ({said}): delete what is not needed there"
    if status == 403:
        return (
            f"Kubernetes does not let this user {verb} {resource} in namespace {namespace!r} ({said}): "
            f"the Role of docs/kubernetes.md is missing; `{PRINT_ROLE}` prints it for an administrator"
        )
    if status == 404 and "namespaces" in said:
        return (
            f"there is no namespace {namespace!r}: create it (kubectl create namespace {namespace}), or "
            "choose another one (namespace=)"
        )
    if status in (400, 422):
        return f"Kubernetes does not accept the {resource} ({said}): see pod_template= and the other settings"
    return f"Kubernetes did not {verb} {resource} in namespace {namespace!r} ({status}: {said})"


def _created(pod: Object) -> str:
    return str(pod.get("metadata", {}).get("creationTimestamp") or "")


def _quoted(reason: str, said: str) -> str:
    return ": ".join(one for one in (reason, clip(" ".join(said.split()), LONGEST)) if one)
