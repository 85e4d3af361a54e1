"""What a user asks of Kubernetes, and the command that holds the Job. Pure, but for the notebook's own pod.

request = PodRequest(image="ghcr.io/me/train:1", pods=2, pod_gpus=4)
pod_commands(settings, hosts)    # the launcher's own
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers.slurm.status import parse_duration
from nbdist.cluster.launchers.spec import HostCommand, LauncherSetting, command_of
from nbdist.errors import InvalidArgumentError

MOST_PODS = 1024
TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
OUTSIDE = (
    "launcher 'kubernetes' starts pods, which this host cannot connect to, as it is no pod itself: run the "
    "notebook in the cluster, in a pod whose service account has the Role of docs/kubernetes.md. If this "
    "host is in the pods' network (a node of the cluster, say), name its kubeconfig's context: --context NAME"
)


@dataclass(frozen=True)
class PodRequest:
    """What a user asks of Kubernetes; "" and 0 leave it to the template, or to the cluster.

    - ``image``: what the containers run; "" for the image of the notebook's own pod
    - ``pods``: how many, each a host of the cluster
    - ``pod_cpus``, ``pod_memory``: of each pod, in Kubernetes' forms: "4", "500m"; "16Gi", "800M"
    - ``pod_gpus``: NVIDIA GPUs of each pod
    - ``pod_time``: how long the pods may run, in Slurm's forms: "90" (minutes), "1:30:00", "2-12:00:00"
    - ``pod_python``: the Python of the image, which has nbdist
    - ``pod_template``: the path of a file with more of the pods (`manifests.read_template`)
    - ``context``: a context of the user's kubeconfig; "" within a pod, for the pod's own rights
    """

    image: str = ""
    pods: int = 1
    pod_cpus: str = ""
    pod_memory: str = ""
    pod_gpus: int = 0
    pod_time: str = ""
    pod_python: str = "python"
    pod_template: str = ""
    service_account: str = ""
    namespace: str = ""
    context: str = ""

    @property
    def seconds(self) -> int | None:
        """How many seconds the pods may run; None without a limit."""
        limit = parse_duration(self.pod_time)
        return None if limit is None else int(limit)


UNITS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3} | {
    name: base**power
    for base, names in (
        (1000.0, ("k", "M", "G", "T", "P", "E")),
        (1024.0, ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")),
    )
    for power, name in enumerate(names, 1)
}


def quantity(text: str) -> float | None:
    """Return a quantity of Kubernetes as a number, None if the text is none.

    >>> quantity("500m"), quantity("16Gi"), quantity("lots")
    (0.5, 17179869184.0, None)
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([numkMGTPE]|[KMGTPE]i)?", text, re.ASCII)
    return float(found[1]) * UNITS[found[2] or ""] if found else None


def check_pods(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a number of pods."""
    if type(value) is not int or not 1 <= value <= MOST_PODS:
        raise InvalidArgumentError(f"pods is the number of pods, 1 to {MOST_PODS}, not {value!r}")


def check_gpus(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a number of GPUs."""
    if type(value) is not int or not 0 <= value <= 4096:
        raise InvalidArgumentError(f"pod_gpus is the number of GPUs of each pod, from 0, not {value!r}")


def check_cpus(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is an amount of cores, as text."""
    if not isinstance(value, str) or not quantity(value):
        raise InvalidArgumentError(f"pod_cpus is a text such as '4' or '500m' (half a core), not {value!r}")


def check_memory(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is an amount of memory, as text, of a MiB or more."""
    amount = quantity(value) if isinstance(value, str) else None
    if amount is None or amount < 1 << 20:
        raise InvalidArgumentError(f"pod_memory is a text such as '16Gi' or '800M', not {value!r}")


def check_pod_time(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a time, as text."""
    if not isinstance(value, str) or not parse_duration(value):
        raise InvalidArgumentError(f"pod_time is a text such as '1:30:00' or '90' (minutes), not {value!r}")


def check_word(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a name, an image or a path."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidArgumentError(
            "image, pod_python, pod_template, service_account, namespace and context are texts, "
            f"not {value!r}"
        )


SETTINGS = (
    LauncherSetting(
        "image", "image of the pods (default: that of the notebook's pod)", str, "NAME", "", check_word
    ),
    LauncherSetting("pods", "number of pods", int, "N", 1, check_pods),
    LauncherSetting("pod_cpus", "cores of each pod", str, "4|500m", "", check_cpus),
    LauncherSetting("pod_memory", "memory of each pod", str, "16Gi", "", check_memory),
    LauncherSetting("pod_gpus", "NVIDIA GPUs of each pod", int, "N", 0, check_gpus),
    LauncherSetting("pod_time", "how long the pods may run", str, "1:30:00", "", check_pod_time),
    LauncherSetting("pod_python", "Python of the image", str, "PATH", PodRequest.pod_python, check_word),
    LauncherSetting("pod_template", "file with more of the pods, in YAML", str, "FILE", "", check_word),
    LauncherSetting("service_account", "service account of the pods", str, "NAME", "", check_word),
    LauncherSetting("namespace", "namespace (default: that of the notebook)", str, "NAME", "", check_word),
    LauncherSetting(
        "context", "context of the kubeconfig, where this host is no pod", str, "NAME", "", check_word
    ),
)
"""What a user can set, each of it a field of `PodRequest`."""


def in_pod(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process runs in a pod that may ask the API of its cluster."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and TOKEN.exists()


def pod_hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return a host for each pod, under a name that the Job replaces; a GPU that is asked for is a worker.

    >>> pod_hosts({"pods": 2, "pod_gpus": 4, "context": "gpu-cluster"})
    (Host(name='pod1', slots=4), Host(name='pod2', slots=4))
    """
    if not settings["context"] and not in_pod():
        raise InvalidArgumentError(OUTSIDE)
    slots = settings["pod_gpus"] or None
    return tuple(Host(f"pod{number}", slots) for number in range(1, settings["pods"] + 1))


def pod_commands(settings: Mapping[str, Any], hosts: Sequence[str]) -> tuple[HostCommand, ...]:
    """Return the command that holds the Job of these hosts: a pod for each of them."""
    command = command_of("kubernetes", SETTINGS, {**settings, "pods": len(hosts)})
    return (HostCommand(tuple(command), tuple(hosts)),)
