"""The tasks of a cluster for one session: their devices, their executors, and the dispatcher of steps."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotAllowedError,
    UnavailableError,
)
from nbdist.graph.device import DeviceSpec
from nbdist.metrics.timeline_parts import shift_by_asking
from nbdist.runtime.session.checkpoint import PendingRequest, start_work
from nbdist.runtime.session.datasets import Sources
from nbdist.runtime.session.dispatch import StepDispatcher
from nbdist.runtime.session.executor import Executor, ExecutorConfig, lost
from nbdist.runtime.session.host import SessionHost
from nbdist.runtime.session.program import Containers
from nbdist.runtime.session.protocol import ExecutorRequest
from nbdist.runtime.session.resources import Client
from nbdist.runtime.session.store import Store
from nbdist.wire.channel.sender import Address
from nbdist.wire.hosts import address_towards, host_identity
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame

REPORT_EVERY = 5.0
REQUEST_SECONDS = (
    86_400.0  # for a request that takes as long as its files are large; a death is noticed at once
)
_keys: dict[str, ClusterKeys] = {}
_uses: dict[str, Callable[[], object]] = {}
_here: dict[str, SessionHost] = {}


def add_target(target: str, keys: ClusterKeys, use: Callable[[], object] | None = None) -> None:
    """Register the keys of a target; called by each owner of a cluster or a Server.

    ``use`` is called when a session uses the target, and while one waits for it; it raises if the cluster has
    ended.
    """
    _keys[target] = keys
    if use is not None:
        _uses[target] = use


def set_local_host(target: str, host: SessionHost) -> None:
    """Register a target that is this process."""
    _here[target] = host


def remove_target(target: str) -> None:
    """Remove a closed target."""
    _keys.pop(target, None)
    _uses.pop(target, None)
    _here.pop(target, None)


class ClusterEngine:
    """The tasks of a target's cluster; waits up to ``timeout`` seconds for one that does not answer.

    ``patience`` is how many seconds an op may wait for what other sessions do.
    """

    def __init__(
        self,
        target: str,
        *,
        isolate: bool,
        timeout: float,
        keys: ClusterKeys | None,
        report: Callable[[str], object],
        transport: Literal["auto", "socket"] = "auto",
        patience: float | None = None,
    ) -> None:
        self._keys = keys or _keys.get(target) or _unknown(target)
        self.use = _uses.get(target, _without_limit)
        """Called when a step begins, and while one is waited for; raises if the cluster has ended."""
        self._timeout, self._report, self._transport = timeout, report, transport
        self._patience = patience
        self._session = secrets.token_hex(6)
        self.container_prefix = f"isolated-{self._session}/" if isolate else ""
        """What the names of an isolated session's containers begin with; empty for a shared one."""
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._given_up: list[str] = []
        self._addresses: dict[str, str] = {}
        self._sources: Sources | None = None
        self._described: dict[str, dict[str, Any]] = {}
        address = target.removeprefix("nbdist://")
        try:
            first = self._ask(address, target)
        except BaseException:
            self.close()
            raise
        for job, index, where in first["cluster"]:
            self._addresses[f"/job:{job}/task:{index}"] = where
        self._addresses[first["task"]] = address
        self._described[first["task"]] = first
        self._first = first
        self.own = _here.get(target)
        self._store = self.own.store if self.own is not None else Store()
        self._sources = Sources(self._store)
        self.default: str = first["devices"][0]
        self._client = Client() if self.own is None else Client(self.own.task, int(first["incarnation"]))

    @property
    def isolated(self) -> bool:
        """Whether the variables are this session's own."""
        return bool(self.container_prefix)

    @property
    def devices(self) -> list[str]:
        """The devices of all tasks; what a task that was not asked yet has is taken to be a CPU."""
        found: list[str] = []
        for name in self._addresses:
            described = self._described.get(name)
            job, index = name.removeprefix("/job:").split("/task:")
            found += (
                described["devices"] if described else [f"/job:{job}/replica:0/task:{index}/device:CPU:0"]
            )
        return found

    def describe_tasks(self, wanted: Sequence[str]) -> None:
        """Request the devices of the tasks that device texts (such as /job:ps) name.

        Tasks that are not needed get no request: they may have ended.
        """
        for spec in map(DeviceSpec.from_string, wanted):
            if (spec.job, spec.task) == (None, None) or spec.covers(DeviceSpec.from_string(self.default)):
                continue
            for name, address in self._addresses.items():
                task = DeviceSpec.from_string(name)
                if spec.job not in (None, task.job) or spec.task not in (None, task.task):
                    continue
                if name not in self._described:
                    self._described[name] = self._ask(address, name)
                if any(spec.covers(DeviceSpec.from_string(d)) for d in self._described[name]["devices"]):
                    break

    def dispatcher(self) -> StepDispatcher:
        """Open a dispatcher of steps.

        Raises FailedPreconditionError for a client that the tasks cannot reach.
        """
        if self.own is None and self._keys.proxy:
            raise FailedPreconditionError(
                "the tasks would send their results to this process, and a tunnel does not lead to it: open "
                "the Session on a task (cluster.run, or a body of %%distribute)"
            )
        host = address_towards(self._addresses.values()) if self.own is None else self.own.config.host
        config = ExecutorConfig(self._keys, host_identity(), self._first["prefix"], host, self._transport)
        assert self._sources is not None
        if self.own is not None:
            executor = Executor(
                config, self._store, self._sources, self._first["resets"], self._patience, self._client
            )
            return StepDispatcher(
                executor, Containers(self.own.job, self.container_prefix), self.default, self
            )
        return StepDispatcher(Executor(config, self._store, self._sources), Containers("client"), None, self)

    def reset(self, containers: Sequence[str]) -> None:
        """Empty containers on every task that is there; UnavailableError if one is not."""
        failures: list[UnavailableError] = []
        for name, address in self._addresses.items():
            try:
                given = {"containers": list(containers)}
                self._call(address, name, "session.reset", given, timeout=self._timeout)
            except UnavailableError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Close the connections; this removes data and isolated variables on this task."""
        with self._lock:
            for peer in self._peers.values():
                peer.close()
        if self._sources is not None:
            self._sources.close()
        if self.container_prefix and self.own is not None:
            self.own.store.drop_all(self.container_prefix)

    def open_executor(self, device: str, client: Address, dispatcher: str) -> tuple[Address, str]:
        """Open an executor for a dispatcher's device; return its address and its name for errors."""
        name, address = self._task_of(device)
        if name not in self._described:
            self._described[name] = self._ask(address, name)
        described = self._described[name]
        wanted = ExecutorRequest(
            client,
            dispatcher,
            device,
            self._session,
            self.container_prefix,
            self._transport,
            described["incarnation"],
            described["resets"],
            self._patience,
            tuple(self._given_up),
            self._client.task,
            self._client.incarnation,
        )
        label = f"{name} ({described['process']})"
        try:
            reply = self._call(address, name, "session.open", wanted.to_dict())
        except UnavailableError as error:
            raise lost(label, error) from None
        return Address.from_dict(reply.meta), label

    def task_of(self, device: str) -> str:
        """Return the name of the task that has a device."""
        return self._task_of(device)[0]

    def start_request(self, task: str, kind: str, request: dict[str, Any]) -> PendingRequest:
        """Send a request to a task that may take minutes; return without waiting."""
        if task not in self._described:
            self._described[task] = self._ask(self._addresses[task], task)
        meta = {"request": request, "incarnation": self._described[task]["incarnation"]}

        def work() -> dict[str, Any]:
            with Peer(self._addresses[task], self._keys, name=task) as peer:
                peer.wait_connected()  # from here on a death is noticed at once, however long the call takes
                return peer.call(kind, meta, timeout=REQUEST_SECONDS).meta

        return start_work(work)

    def check(self, device: str) -> None:
        """Raise UnavailableError if the connection to a device's task has broken; called in a wait."""
        self.use()
        peer = self._peers.get(self._task_of(device)[1])
        if peer is not None:
            peer.check()

    def give_up(self, dispatcher: str) -> None:
        """Record that a dispatcher has abandoned a step: tasks refuse late changes of its steps."""
        self._given_up.append(dispatcher)

    def clock_shift(self, device: str) -> float:
        """Return the seconds to add to the clock of a device's task to get this process's; 0 on this host.

        Processes of a host share a clock. Another host's clock is requested; the error is at most half a
        round trip.
        """
        name, address = self._task_of(device)
        if self._described.get(name, {}).get("host", host_identity()) == host_identity():
            return 0.0
        return shift_by_asking(lambda: float(self._call(address, name, "session.describe").meta["clock"]))

    def _task_of(self, device: str) -> tuple[str, str]:
        parts = device.strip("/").split("/")
        name = f"/{parts[0]}/{parts[2]}"
        return name, self._addresses[name]

    def _peer(self, address: str, name: str) -> Peer:
        with self._lock:
            if address not in self._peers:
                self._peers[address] = Peer(address, self._keys, name=name)
            peer = self._peers[address]
        with suppress(UnavailableError):  # it was lost before, and may be there again
            peer.check()
        return peer

    def _call(
        self,
        address: str,
        name: str,
        kind: str,
        meta: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Frame:
        peer = self._peer(address, name)
        try:
            return peer.call(kind, meta, timeout=timeout)
        except KeyboardInterrupt:  # perhaps in the middle of a message
            with self._lock:
                self._peers.pop(address, None)
            peer.close()
            raise

    def _ask(self, address: str, name: str) -> dict[str, Any]:
        """Return a task's description of itself; wait for one that does not answer, and report the wait."""
        begun = reported = time.monotonic()
        while True:
            self.use()
            left = begun + self._timeout - time.monotonic()
            try:
                return self._call(address, name, "session.describe", timeout=min(max(left, 0.05), 1.0)).meta
            except NotAllowedError:
                raise
            except UnavailableError as error:
                if left <= 0:
                    raise DeadlineExceededError(
                        f"{name} at {address} did not answer within {self._timeout:g} s; see whether its "
                        f"process is alive (%cluster shows it). The last try: {error}"
                    ) from None
                if time.monotonic() - reported >= REPORT_EVERY:
                    reported = time.monotonic()
                    self._report(f"waiting for {name} at {address} ({reported - begun:.0f} s)")


def _without_limit() -> None:
    """Count the use of a target that no cluster of this process has."""


def _unknown(target: str) -> ClusterKeys:
    if not target.startswith("nbdist://"):
        raise InvalidArgumentError(
            f"no target {target!r}; a target is server.target or cluster.target (nbdist://host:port), or '' "
            "for this process"
        )
    raise InvalidArgumentError(
        f"the keys of {target} are not known here: it is neither a Server of this process nor of a "
        "cluster that this process has started or attached (%cluster attach); or give keys=..."
    )
