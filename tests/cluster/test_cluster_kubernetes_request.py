"""What a user asks of Kubernetes: checks, the hosts and the command."""

from __future__ import annotations

from typing import Any

import pytest

from nbdist.cluster.launchers.kubernetes import request
from nbdist.cluster.launchers.kubernetes.request import (
    SETTINGS,
    PodRequest,
    pod_commands,
    pod_hosts,
    quantity,
)
from nbdist.errors import InvalidArgumentError

CHECKS = {setting.name: setting.check for setting in SETTINGS}


def test_each_setting_is_a_field_of_a_request_with_its_default() -> None:
    assert {setting.name: setting.default for setting in SETTINGS} == vars(PodRequest())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pods", 3), ("pod_cpus", "4"), ("pod_cpus", "500m"), ("pod_memory", "16Gi"), ("pod_memory", "800M"),
        ("pod_gpus", 0), ("pod_time", "90"), ("pod_time", "1:30:00"), ("image", "ghcr.io/me/train:1"),
    ],
)  # fmt: skip
def test_a_valid_setting(name: str, value: Any) -> None:
    CHECKS[name](value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pods", 0, "pods is the number of pods, 1 to 1024, not 0"),
        ("pods", True, "not True"),
        ("pod_cpus", 4, "pod_cpus is a text such as '4' or '500m' (half a core), not 4"),
        ("pod_cpus", "0", "not '0'"),
        ("pod_memory", "16 GB", "pod_memory is a text such as '16Gi' or '800M', not '16 GB'"),
        ("pod_memory", "16", "not '16'"),
        ("pod_gpus", -1, "pod_gpus is the number of GPUs of each pod, from 0, not -1"),
        ("pod_time", "UNLIMITED", "pod_time is a text such as '1:30:00'"),
        ("pod_time", "2h", "time '2h' is none of Slurm's forms"),
        ("image", "", "not ''"),
        ("namespace", "a\nb", "are texts, not 'a\\nb'"),
    ],
)
def test_a_setting_that_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        CHECKS[name](value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1.0), ("1.5", 1.5), ("2k", 2000.0), ("1Mi", 2.0**20), ("x", None)]
)
def test_a_quantity_in_numbers(text: str, value: float | None) -> None:
    assert quantity(text) == value


def test_a_host_outside_of_the_cluster_names_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = vars(PodRequest(pods=2))
    monkeypatch.setattr(request, "in_pod", lambda: False)
    with pytest.raises(InvalidArgumentError, match="run the notebook in the cluster"):
        pod_hosts(settings)
    assert len(pod_hosts({**settings, "context": "node"})) == 2
    monkeypatch.setattr(request, "in_pod", lambda: True)
    assert len(pod_hosts(settings)) == 2


def test_the_command_asks_for_the_hosts_that_are_missing() -> None:
    (command,) = pod_commands(vars(PodRequest(pods=3, image="lab:1")), ["pod2"])
    assert command.argv[1:] == ("-m", "nbdist.cluster.launchers.kubernetes", "--image=lab:1")
    assert command.hosts == ("pod2",)
