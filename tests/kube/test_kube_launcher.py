"""The command of the launcher "kubernetes" against a mock of the API, with small programs in the pods."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml
from tiers import matrix
from waiting import until

from nbdist.cluster.launchers.kubernetes.request import SETTINGS, PodRequest
from nbdist.cluster.launchers.spec import command_of

if TYPE_CHECKING:
    from mock_cluster import MockCluster

pytestmark = pytest.mark.processes

KEY = "a-key-that-no-other-user-may-read"
PLAN = {"cluster_id": "c1", "key": KEY}
# It stands for the image's Python: `-m nbdist.cluster.supervisor.host NAME`, with the plan on its stdin.
STAYS = '#!/bin/sh\nread line; echo "$line" > "$NBDIST_HOME-$3"; exec sleep 1000\n'
FAILS = "#!/bin/sh\necho 'it cannot reach the head' >&2; exit 1\n"
CREATING = {"waiting": {"reason": "ContainerCreating"}}


class Command:
    """The command; ``lines`` is its progress so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    def one(self, word: str) -> Any:
        """Return what the next line of progress says that has a word."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, f"it has ended: {self.lines} {self.process.communicate()[1].decode()}"
            self.lines.append(json.loads(line))
            if word in self.lines[-1]:
                return self.lines[-1][word]

    def ended(self) -> tuple[int, str]:
        """Return its exit code and its standard error, when it has ended."""
        _, error = self.process.communicate()
        return self.process.returncode, error.decode().strip()

    def end(self) -> int:
        """End it by SIGTERM; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()[0]


@contextmanager
def running(
    kube: MockCluster, *, program: str = STAYS, context: str = "mock", **settings: Any
) -> Iterator[Command]:
    """Run the command; end it if the block has not."""
    python = kube.folder / "python"
    python.write_text(program)
    python.chmod(0o700)
    given = {"image": "nbdist:test", "pod_python": str(python), **settings}
    process = subprocess.Popen(
        command_of("kubernetes", SETTINGS, vars(PodRequest(context=context, **given))),
        env={**os.environ, "KUBECONFIG": str(kube.kubeconfig)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(PLAN).encode() + b"\n")
    process.stdin.flush()
    command = Command(process)
    try:
        yield command
    finally:
        if process.poll() is None:
            command.end()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def pod_of(kube: MockCluster, host: str) -> str:
    """Return the name of the pod of a host."""
    (name,) = (
        one["metadata"]["name"] for one in kube.objects("pods") if one["metadata"]["name"].startswith(host)
    )
    return str(name)


def test_pods_wait_come_and_are_deleted(kube: MockCluster) -> None:
    from mock_cluster import UNSCHEDULABLE, container_status

    kube.status = [UNSCHEDULABLE, container_status(**CREATING)]
    with running(kube, pods=2, pod_time="30") as command:
        said = command.one("waiting")
        assert (
            "no node has room for it (Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia" in said
        )
        assert "its container is being made" in said
        (job,) = kube.objects("jobs")
        name = job["metadata"]["name"]
        assert KEY not in json.dumps(job)
        assert [one["metadata"]["ownerReferences"][0]["uid"] for one in kube.objects("secrets")] == [
            job["metadata"]["uid"]
        ]
        kube.run(pod_of(kube, f"{name}-0"))
        assert command.one("hosts") == [
            f"{name}-0",
            f"{name}-1",
        ]  # a cluster can begin with those that are there
        assert "its container is being made" in command.one("waiting")
        assert kube.objects("secrets")
        kube.run(pod_of(kube, f"{name}-1"))
        assert 1700 < command.one("seconds_left") <= 1800
        assert not kube.objects("secrets")
        homes = [kube.folder / str(index) / "nbdist" / "home" / f"data-{name}-{index}" for index in range(2)]
        assert [json.loads(until(home.exists) and until(home.read_text)) for home in homes] == [PLAN, PLAN]
        for process in kube.pods.values():
            seen = psutil.Process(process.pid)
            assert KEY not in "".join(seen.cmdline())
            assert KEY not in json.dumps(seen.environ())
        assert command.end() == 128 + signal.SIGTERM
        assert not kube.left()


def test_a_pod_that_ends_is_lost_and_the_last_one_ends_the_command(kube: MockCluster) -> None:
    with running(kube, pods=2) as command:
        names = command.one("hosts")
        until(lambda: len(kube.pods) == 2)
        kube.pods[pod_of(kube, names[1])].kill()
        assert command.one("lost") == [names[1]]
        kube.remove_pod(pod_of(kube, names[0]))
        assert command.one("lost") == [names[0]]
        code, said = command.ended()
    (killed,) = next(line["reasons"] for line in command.lines if "lost" in line)
    assert killed.startswith(f"pod {names[1]}-")
    assert killed.endswith("ended with exit code 137")
    assert (code, said.startswith(f"pod {names[0]} was removed: its node is gone")) == (1, True)


def test_a_supervisor_that_does_not_start_says_why(kube: MockCluster) -> None:
    with running(kube, program=FAILS) as command:
        code, said = command.ended()
    assert code == 1
    assert said.endswith("ended with exit code 1: it cannot reach the head")


@pytest.mark.parametrize(
    ("request_", "status", "message", "said"),
    matrix([
        (("create", "secrets"), 403, "no", "does not let this user create secrets"),
        (("create", "services"), 503, "busy", "cannot answer (503: busy)"),
    ], rest=[
        (("create", "jobs"), 403, "no", "does not let this user create jobs in namespace 'ml' (no)"),
        (("list", "pods"), 403, "no", "does not let this user list pods"),
        (("create", "jobs"), 401, "Unauthorized", "does not accept this user's credentials"),
    ]),
)  # fmt: skip
def test_what_is_refused_is_one_sentence_and_leaves_nothing(
    kube: MockCluster, request_: tuple[str, str], status: int, message: str, said: str
) -> None:
    kube.refuse[request_] = (status, message)
    with running(kube) as command:
        code, error = command.ended()
    assert (code, said in error) == (1, True), error
    assert not kube.left()


def test_what_cannot_come_is_one_sentence(kube: MockCluster) -> None:
    from mock_cluster import container_status

    bad = {"waiting": {"reason": "ErrImagePull", "message": "failed to resolve nbdist:test: not found"}}
    kube.status = [container_status(**bad)]
    with running(kube) as command:
        assert "its image cannot be pulled (ErrImagePull: failed to resolve" in command.ended()[1]
    kube.holds_pods = True
    with running(kube) as command:
        assert "Kubernetes has not made its pod yet" in command.one("waiting")
        (job,) = kube.objects("jobs")
        kube.warn(job["metadata"]["name"], "exceeded quota: q, requested: cpu=2, used: cpu=3, limited: cpu=4")
        assert "a quota of the namespace is used up (exceeded quota" in command.one("waiting")
        kube.set_job(conditions=[{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}])
        assert "reached its time limit" in command.ended()[1]
    with running(kube, namespace="nowhere") as command:
        assert "there is no namespace 'nowhere'" in command.ended()[1]
    with running(kube, context="other") as command:
        assert "no configuration of Kubernetes can be used" in command.ended()[1]
    found = yaml.safe_load(kube.kubeconfig.read_text())
    found["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    kube.kubeconfig.write_text(yaml.safe_dump(found))
    with running(kube) as command:
        assert "the API of Kubernetes at http://127.0.0.1:1 does not answer" in command.ended()[1]


def test_a_template_with_an_unknown_field_is_refused(kube: MockCluster, tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text("spec: {nodeSelektor: {disk: ssd}}\n")
    with running(kube, pod_template=str(path)) as command:
        code, error = command.ended()
    assert (code, "nodeSelektor" in error) == (1, True), error
