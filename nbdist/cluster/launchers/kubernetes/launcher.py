"""Holds an Indexed Job of Kubernetes, reports what becomes of its pods, and deletes it.

launcher = KubernetesLauncher(PodRequest(pods=2), plan, Api())
launcher.run()       # until the pods have ended; an NbdistError says why they ended early

Job, suspended ─► service, Secret, which the Job owns ─► the Job goes on
look at the Job, its pods and warnings, again and again
delete the Secret when the last pod has started; in the end delete all of it
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nbdist.cluster.launchers.command import signals_held
from nbdist.cluster.launchers.kubernetes.api import Api, Silent
from nbdist.cluster.launchers.kubernetes.manifests import (
    JOB_LABEL,
    Manifest,
    check_image,
    job,
    owner_of,
    read_template,
    secret,
    service,
)
from nbdist.cluster.launchers.kubernetes.request import OUTSIDE, PodRequest, in_pod
from nbdist.cluster.launchers.kubernetes.status import Standing, describe_waiting, read_standing
from nbdist.errors import InvalidArgumentError, NbdistError, NotFoundError, UnavailableError

FIRST_POLL, LAST_POLL = 0.25, 2.0  # seconds between two looks
END_SECONDS = 30.0  # until a Job counts as one that Kubernetes does not delete
REACH_SECONDS = 3.0  # for the first pod to answer a connection, or to refuse it
CLOSED_PORT = 1


class KubernetesLauncher:
    """Holds the Job of a cluster."""

    def __init__(self, request: PodRequest, plan: bytes, api: Api) -> None:
        self.request, self.plan, self.api = request, plan, api
        self.name = f"nbdist-{secrets.token_hex(4)}"
        self.names = [f"{self.name}-{index}" for index in range(request.pods)]
        self._made: list[str] = []  # the kinds of the objects that are there
        self._started: set[int] = set()
        self._lost: set[int] = set()
        self._reported: dict[str, Any] = {}

    def run(self) -> None:
        """Return when all pods have ended by themselves; an NbdistError says why they could not go on."""
        try:
            self._create()
            self._follow()
        finally:
            self.end()

    def report(self, **progress: Any) -> None:
        """Print a line of progress, unless it is the same as the last one."""
        if progress != self._reported:
            self._reported = progress
            print(json.dumps({"job": self.name, **progress}), flush=True)

    def end(self) -> None:
        """Delete the Secret, as it has the keys, then the Job with what it owns; wait until it is gone."""
        deadline = time.monotonic() + END_SECONDS
        for kind in ("secret", "job"):
            try:
                if self._delete(kind) and kind == "job":
                    while self._is_there() and time.monotonic() < deadline:
                        time.sleep(FIRST_POLL)
            except NbdistError as error:
                step = f"see `kubectl --namespace {self.api.namespace} delete {kind} {self.name}`"
                self.report(left=f"the {kind} {self.name} may still be there ({error}): {step}")

    def _create(self) -> None:
        template = read_template(self.request.pod_template) if self.request.pod_template else {}
        own = self._own_pod()
        request = with_image(self.request, own)
        cluster = str(json.loads(self.plan).get("cluster_id", ""))
        owner = owner_of(own) if own and own["metadata"]["namespace"] == self.api.namespace else None
        made = job(self.name, request, template, cluster, owner)
        check_image(made["spec"]["template"])
        with signals_held():
            created = self._make("job", made)
        owner = owner_of(made | {"metadata": created["metadata"]})
        self._make("service", service(self.name, owner))
        self._make("secret", secret(self.name, owner, self.plan))
        self.api.call("patch", "job", name=self.name, body={"spec": {"suspend": False}})

    def _own_pod(self) -> Manifest:
        """Return the pod around this process, empty if there is none, or none of the name that it has."""
        if not in_pod() or self.request.context:
            return {}
        with suppress(NotFoundError):  # the notebook's host has another name than its pod
            pod = self.api.call("read", "pod", name=socket.gethostname())
            return {"apiVersion": "v1", "kind": "Pod", **pod}
        return {}

    def _make(self, kind: str, manifest: Manifest) -> Manifest:
        self._made.append(kind)
        try:
            return self.api.call("create", kind, body=manifest)
        except Silent:
            raise  # it may be there
        except NbdistError:
            self._made.remove(kind)
            raise

    def _follow(self) -> None:
        """Report what becomes of the pods, until all of them have ended."""
        begun, pause = time.monotonic(), FIRST_POLL
        while True:
            try:
                standing = self._look()
            except Silent as error:
                self.report(waiting=f"{error}; it is asked again")
            else:
                if standing.never:
                    raise UnavailableError(standing.never)
                self._take(standing)
                if len(standing.ended) == self.request.pods:
                    if cause := next(filter(None, standing.ended.values()), ""):
                        raise UnavailableError(cause)
                    return
            # A third of the time it has waited: at first a look costs little.
            pause = min(max(FIRST_POLL, (time.monotonic() - begun) / 3), LAST_POLL)
            time.sleep(pause)

    def _look(self) -> Standing:
        try:
            found = self.api.call("read", "job", name=self.name)
        except NotFoundError:
            raise UnavailableError(f"Job {self.name} was deleted from outside of nbdist") from None
        pods = self.api.call("list", "pod", label_selector=f"{JOB_LABEL}={self.name}")["items"]
        complete = len({one["metadata"]["name"] for one in pods}) == self.request.pods
        running = complete and len(self._started) == self.request.pods
        events = [] if running else self.api.call("list", "event", field_selector="type=Warning")["items"]
        return read_standing(found, pods, events, sorted(self._started), time.time())

    def _take(self, standing: Standing) -> None:
        """Report the pods that wait, have come, or have gone."""
        begins = not self._started
        come = (standing.running.keys() | standing.ended.keys()) - self._started
        self._started |= come
        if come:
            if begins and not in_pod():
                check_reach(next(iter(standing.running.values()), ""))
            if not standing.waiting:
                self._delete("secret")  # each pod has it
            if begins or not standing.waiting:
                # They are named when the first has come, so that a cluster can start with those there.
                self.report(hosts=self.names, seconds_left=standing.left)
        if standing.waiting:
            self.report(waiting=describe_waiting(self.name, standing.waiting))
        if gone := sorted(standing.ended.keys() - self._lost):
            self._lost.update(gone)
            reasons = [standing.ended[index] for index in gone if standing.ended[index]]
            self.report(lost=[self.names[index] for index in gone], reasons=reasons)

    def _delete(self, kind: str) -> bool:
        """Delete an object, if it was made; return whether it was."""
        if kind not in self._made:
            return False
        options = {"propagation_policy": "Foreground"} if kind == "job" else {}
        with suppress(NotFoundError):
            self.api.call("delete", kind, name=self.name, **options)
        self._made.remove(kind)
        return True

    def _is_there(self) -> bool:
        try:
            self.api.call("read", "job", name=self.name)
        except NbdistError as error:
            return isinstance(error, Silent)
        return True


def with_image(request: PodRequest, own: Manifest) -> PodRequest:
    """Return a request with the image of the notebook's own pod, unless it names one.

    Raises InvalidArgumentError if that pod has several containers.

    >>> with_image(PodRequest(), {"spec": {"containers": [{"name": "notebook", "image": "lab:1"}]}}).image
    'lab:1'
    """
    if request.image or not own:
        return request
    images = {one["name"]: one["image"] for one in own["spec"]["containers"]}
    if len(images) > 1:
        listed = ", ".join(f"{name}: {image}" for name, image in images.items())
        raise InvalidArgumentError(
            f"the notebook's pod has several containers ({listed}): name an image (image=)"
        )
    return replace(request, image=next(iter(images.values())))


def check_reach(address: str) -> None:
    """Raise UnavailableError if this host cannot connect to a pod at an address, as clients must.

    A connection that is refused shows that packets come and go.
    """
    if not address:
        return
    try:
        socket.create_connection((address, CLOSED_PORT), REACH_SECONDS).close()
    except ConnectionRefusedError:
        pass
    except OSError as error:
        raise UnavailableError(
            f"this host cannot connect to the pod at {address} ({error}). {OUTSIDE}"
        ) from None
