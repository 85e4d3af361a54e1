"""A Kubernetes for tests: kmock's API server, which checks what it gets against the published schemas, and
pods that are processes of this host.

    with MockCluster(folder) as kube:
        kube.kubeconfig                      # a path, for KUBECONFIG
        kube.status = [{"phase": "Pending"}, ...]     # of the next Job's pods; without it they run
        kube.refuse["create", "jobs"] = (403, "...")

The Job's controller, the garbage collector and the kubelet are in here, as far as the launcher sees them: a
Job that goes on gets its pods, whose containers run the manifest's command with the manifest's Secret.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kmock
import kubernetes_validate
import yaml
from aiohttp import web

VERSION = "1.33"  # of the schemas
NAMESPACE = "ml"
KINDS = {"Job": "batch/v1/jobs", "Service": "v1/services", "Secret": "v1/secrets", "Pod": "v1/pods"}
REVIEWS = "authorization.k8s.io/v1/selfsubjectaccessreviews"
RESOURCES = (*KINDS.values(), "v1/events", REVIEWS)
VERBS = {"FETCH": "get", "UPDATE": "patch"}
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ],
}
Status = dict[str, Any]


def container_status(**state: Any) -> Status:
    """Return the status of a pod whose container is in a state."""
    return {
        "phase": "Pending",
        "containerStatuses": [{"name": "nbdist", "image": "nbdist:test", "state": state}],
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Emulator(kmock.KubernetesEmulator):
    """kmock's server, with the checks of a real one and the reactions of its controllers."""

    cluster: MockCluster

    async def _handle(self, request: kmock.Request) -> Any:
        cluster, verb = self.cluster, str(request.action and request.action.value)
        verb = VERBS.get(verb, verb.lower())
        resource = request.resource.plural if request.resource else ""
        cluster.requests.append((verb, resource))
        if resource == "selfsubjectaccessreviews":
            asked = request.data["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"]) not in cluster.refuse
            return web.json_response({"status": {"allowed": allowed}})
        if (verb, resource) in cluster.refuse:
            status, message = cluster.refuse[verb, resource]
            raise kmock.KubernetesError(status=status, reason="Refused", message=message)
        if request.namespace != NAMESPACE:
            message = f'namespaces "{request.namespace}" not found'
            raise kmock.KubernetesError(status=404, reason="NotFound", message=message)
        if verb == "create":
            self._admit(request)
        if verb == "patch" and request.headers.get("Content-Type") != "application/merge-patch+json":
            raise kmock.KubernetesError(status=415, reason="UnsupportedMediaType", message="no merge patch")
        answer = await super()._handle(request)
        if resource == "jobs" and verb == "patch":
            cluster.go_on(request.name or "")
        if resource == "jobs" and verb == "delete":
            cluster.collect(request.name or "")
        return answer

    def _admit(self, request: kmock.Request) -> None:
        """Check an object that is to be created, as the server does, and give it what the server gives."""
        assert request.params.get("fieldValidation") == "Strict"
        try:
            kubernetes_validate.validate(request.data, VERSION, strict=True)
        except Exception as error:
            message = str(error).splitlines()[0]
            raise kmock.KubernetesError(status=422, reason="Invalid", message=message) from None
        metadata = request.data["metadata"]
        for owner in metadata.get("ownerReferences", []):
            one = self.objects[KINDS[owner["kind"]], NAMESPACE, owner["name"]]
            assert owner["uid"] == one["metadata"]["uid"]
        metadata |= {"uid": str(uuid.uuid4()), "namespace": NAMESPACE, "creationTimestamp": now()}

    async def _serve_list(self, request: kmock.Request) -> Any:
        """Honour the selectors, which kmock does not."""
        found: Any = await super()._serve_list(request)
        wanted = [one.split("=") for one in request.params.get("labelSelector", "").split(",") if one]
        fields = [one.split("=") for one in request.params.get("fieldSelector", "").split(",") if one]
        found["items"] = [
            one
            for one in found["items"]
            if all(one["metadata"].get("labels", {}).get(name) == value for name, value in wanted)
            and all(one.get(name) == value for name, value in fields)
        ]
        return found


class MockCluster:
    """A server in a thread of its own, and the processes that stand for pods. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.requests: list[tuple[str, str]] = []
        self.refuse: dict[tuple[str, str], tuple[int, str]] = {}
        self.status: list[Status | None] = []
        self.holds_pods = False
        self.pods: dict[str, subprocess.Popen[bytes]] = {}
        self.removed: list[str] = []
        self._waiting: list[threading.Thread] = []
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="mock cluster")

    def __enter__(self) -> MockCluster:
        self._thread.start()
        assert self._up.wait(30)
        context = {"name": "mock", "context": {"cluster": "mock", "user": "me", "namespace": NAMESPACE}}
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "mock", "contexts": [context],
            "clusters": [{"name": "mock", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {}}],
        }  # fmt: skip
        self.kubeconfig.write_text(yaml.safe_dump(content))
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.pods.values():
            process.kill()
        for thread in self._waiting:
            thread.join()
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with Emulator() as self._emulator, kmock.Server(self._emulator) as server:
            self._emulator.cluster = self
            for name in RESOURCES:
                self._emulator.resources[name] = {}  # type: ignore[typeddict-item]
            self.url = str(server.url)
            self._up.set()
            await self._end.wait()

    # What tests do and see, from their own thread.

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the server's thread."""

        async def call() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of a kind that are there: "jobs", "pods", ..."""
        return self.do(
            lambda: [
                json.loads(json.dumps(one.raw))
                for (resource, _, _), one in self._emulator.objects._objects.items()
                if resource.plural == kind and not one.deleted
            ]
        )

    def left(self) -> list[str]:
        """Return what is there, but for events."""
        kinds = ("jobs", "services", "secrets", "pods")
        return [f"{kind}/{one['metadata']['name']}" for kind in kinds for one in self.objects(kind)]

    def files(self) -> list[str]:
        """Return what is left in the homes of pods; that of a pod that was removed went with it."""
        return [
            str(path)
            for path in self.folder.glob("*/nbdist/home/data/*/*")
            if not any(name.rpartition("-")[0] in path.name for name in self.removed)
        ]

    def set_status(self, name: str, status: Status) -> None:
        """Change the status of a pod."""
        self.do(self._set_status, name, status)

    def set_job(self, **status: Any) -> None:
        """Change the status of the only Job."""
        (job,) = self.objects("jobs")
        self.do(lambda: self._put(KINDS["Job"], {**job, "status": {**job.get("status", {}), **status}}))

    def warn(self, name: str, message: str) -> None:
        """Let an event tell of an object."""
        event = {
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "Failed", "message": message,
            "metadata": {"name": f"{name}.{uuid.uuid4().hex}", "namespace": NAMESPACE},
            "involvedObject": {"name": name, "namespace": NAMESPACE}, "lastTimestamp": now(),
        }  # fmt: skip
        self.do(self._put, "v1/events", event)

    def run(self, name: str) -> None:
        """Let a pod that waits run."""
        self.do(self._run, name)

    def add_pod(self, name: str, images: dict[str, str]) -> None:
        """Let there be a pod that no Job has made."""
        containers = [{"name": one, "image": image} for one, image in images.items()]
        metadata = {"name": name, "namespace": NAMESPACE, "uid": str(uuid.uuid4())}
        self.do(self._put, "v1/pods", {"metadata": metadata, "spec": {"containers": containers}})

    def forget(self, name: str) -> None:
        """Let a pod of `add_pod` be gone."""
        self.do(lambda: self._emulator.objects["v1/pods", NAMESPACE, name].delete())

    def remove_pod(self, name: str) -> None:
        """Let a pod be gone with its node."""
        self.pods[name].kill()
        self.removed.append(name)
        self.forget(name)

    # What controllers and kubelets do, in the server's thread.

    def _put(self, resource: str, value: dict[str, Any]) -> None:
        self._emulator.objects[resource, NAMESPACE, value["metadata"]["name"]] = value

    def go_on(self, job_name: str) -> None:
        """Make the pods of a Job that is not suspended any more."""
        job = self._emulator.objects[KINDS["Job"], NAMESPACE, job_name].raw
        assert job["spec"]["suspend"] is False
        self._put(KINDS["Job"], {**job, "status": {"startTime": now()}})
        if self.holds_pods:
            return
        for index in range(job["spec"]["completions"]):
            template, name = job["spec"]["template"], f"{job_name}-{index}-{uuid.uuid4().hex[:5]}"
            labels = {
                **template["metadata"]["labels"],
                "batch.kubernetes.io/job-name": job_name,
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "creationTimestamp": now()}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
            kubernetes_validate.validate(pod, VERSION, strict=True)
            status = self.status[index] if index < len(self.status) else None
            self._put("v1/pods", {**pod, "status": status or UNSCHEDULABLE})
            if status is None:
                self._run(name)

    def collect(self, job_name: str) -> None:
        """Remove what a Job owns: pods, the service, the Secret."""
        for (resource, _, name), one in [*self._emulator.objects._objects.items()]:
            owners = [] if one.deleted else one.raw["metadata"].get("ownerReferences", [])
            of_job = name.startswith(f"{job_name}-") and resource.plural == "pods"
            if not one.deleted and (of_job or any(owner["name"] == job_name for owner in owners)):
                if name in self.pods:
                    self.pods[name].send_signal(signal.SIGTERM)
                one.delete()

    def _set_status(self, name: str, status: Status) -> None:
        if (pod := self._emulator.objects["v1/pods", NAMESPACE, name]).deleted:
            return
        self._put("v1/pods", {**pod.raw, "status": status})

    def _run(self, name: str) -> None:
        """Be the kubelet: mount the volumes as folders, and run the container's command."""
        pod = self._emulator.objects["v1/pods", NAMESPACE, name].raw
        (container,) = pod["spec"]["containers"]
        root = self.folder / pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
        for mount in container["volumeMounts"]:
            volume, folder = volumes[mount["name"]], root / mount["mountPath"][1:]
            folder.mkdir(parents=True, exist_ok=True)
            if "secret" in volume:
                found = self._emulator.objects["v1/secrets", NAMESPACE, volume["secret"]["secretName"]].raw
                for key, value in found["data"].items():
                    (folder / key).write_bytes(base64.b64decode(value))
        index = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        variables = {one["name"]: self._inside(root, one["value"]) for one in container["env"]}
        errors = root / "stderr"
        with errors.open("wb") as file:
            process = self.pods[name] = subprocess.Popen(
                [self._inside(root, word) for word in container["command"]],
                env={**os.environ, **variables, "JOB_COMPLETION_INDEX": index},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
        running = container_status(running={"startedAt": now()})
        self._set_status(name, {**running, "phase": "Running", "podIP": "127.0.0.1"})
        self._waiting.append(threading.Thread(target=self._wait, args=(name, process, errors)))
        self._waiting[-1].start()

    def _inside(self, root: Path, text: str) -> str:
        return text.replace("/nbdist/", f"{root}/nbdist/")

    def _wait(self, name: str, process: subprocess.Popen[bytes], errors: Path) -> None:
        code = process.wait()
        message = errors.read_text(errors="replace")[-2048:]
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
        status = container_status(terminated={**ended, "message": message})
        self.set_status(name, {**status, "phase": "Failed" if code else "Succeeded"})
