"""A task's Server: one thread that answers the other tasks and the client.

    server = Server.create_local_server()
    server.on("add", lambda frame, sender: Frame("sum", {}, (frame.arrays[0] + 1,)))
    Peer(server.address, server.keys).call("add", arrays=[np.zeros(3)])

Handlers, timers and posted functions all run on that thread, one after the other: what they share needs no
lock. Work that takes long does not belong there.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.graph.backend import device_kind
from nbdist.home import own_version
from nbdist.runtime.session.cluster import add_target, remove_target, set_local_host
from nbdist.runtime.session.executor import ExecutorConfig
from nbdist.runtime.session.host import SessionHost
from nbdist.runtime.spec import ClusterSpec, chief_of, read_tf_config
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.rpc.server import Caller, Listener
from nbdist.wire.shm import own_prefix, remove_abandoned

Handler = Callable[[Frame, Caller], Frame | None]
log = logging.getLogger(__name__)


class Server:
    """One task of a cluster: listens at the task's address and answers calls by their kind.

    - ``cluster``: a ClusterSpec, or a dict of it: job names with lists of addresses (host:port). A port of 0,
      or an address without one, lets the system choose
    - ``job_name``: the task's job; None if the cluster has only one
    - ``task_index``: the task's number in its job, from 0; None if the job has only one
    - ``start``: whether the Server answers from now on; else call ``start()``
    - ``keys``: the cluster's :class:`~nbdist.wire.keys.ClusterKeys` (``nb.ClusterKeys``), which authenticate
      and encrypt every connection (CURVE): the same for all Servers and Sessions of a cluster. None makes new
      ones, and then only clients with ``server.keys`` can connect
    - ``host``: the address of the network interface to listen on; by default only this host can connect
    - ``devices``: the devices on which sessions compute here: "CPU:0", and "GPU:0" and so on for GPUs of this
      process (CUDA_VISIBLE_DEVICES selects them). CuPy is loaded when a session first uses one
    - ``segment_prefix``: the beginning of the names of shared memory files; None for one of this process,
      after removing files of processes that have died

    Raises InvalidArgumentError for a task that the cluster lacks and for other devices than CPU:i and GPU:i,
    FailedPreconditionError for a port in use.

        nb.ClusterKeys.create().save("keys.json")                  # once; mode 0600
        keys = nb.ClusterKeys.load("keys.json")                    # in each process
        server = nb.Server(cluster, "worker", 0, keys=keys)
        nb.Session("nbdist://10.0.0.1:2222", keys=keys)            # a client elsewhere
    """

    def __init__(
        self,
        cluster: ClusterSpec | dict[str, Any],
        job_name: str | None = None,
        task_index: int | None = None,
        start: bool = True,
        *,
        keys: ClusterKeys | None = None,
        host: str = "127.0.0.1",
        devices: Sequence[str] = ("CPU:0",),
        segment_prefix: str | None = None,
    ) -> None:
        self.cluster = ClusterSpec(cluster)
        self.job, self.index = choose_task(self.cluster, job_name, task_index)
        kinds = tuple(dict.fromkeys(device_kind(one) for one in devices))
        self.keys = keys or ClusterKeys.create()
        self.incarnation = secrets.randbits(63)
        port = _port_of(self.cluster.task_address(self.job, self.index))
        self._listener = Listener(self.keys, host, port)
        self.address = self._listener.address
        self._handlers: dict[str, Handler] = {"ping": self._answer_ping}
        self._posted: deque[Callable[[], object]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._listener.wake_on(self._wake_in)
        # When the thread's sleep ends by itself; -inf while it is awake: it looks at posts before it sleeps.
        self._sleeps_until = -math.inf
        self._stopping = False
        self._closed = threading.Event()
        self._closing = threading.Lock()
        self._thread: threading.Thread | None = None
        if segment_prefix is None:
            remove_abandoned()
        prefix = segment_prefix or own_prefix()
        config = ExecutorConfig(self.keys, host_identity(), prefix, host)
        self.sessions = SessionHost(config, self.job, self.index, kinds)
        """The sessions' side of this task: its devices, and the variables that live here."""
        self.sessions.attach(self)
        add_target(self.target, self.keys)
        set_local_host(self.target, self.sessions)
        if start:
            self.start()

    @classmethod
    def from_tf_config(
        cls,
        text: str | None = None,
        *,
        keys: ClusterKeys | None = None,
        devices: Sequence[str] = ("CPU:0",),
    ) -> Server:
        """Return a started Server of the task that TF_CONFIG names, for programs outside of notebooks.

        An engine of a cluster has a Server already: ``nb.task.server``.

        - ``text``: TF_CONFIG, JSON with ``cluster`` (addresses by job) and ``task`` (``type`` and ``index``);
          None for the environment variable
        - ``keys``: the cluster's keys; None for the file that the environment variable NBDIST_KEYS names
        - ``devices``: the devices on which sessions compute here, such as ("CPU:0", "GPU:0")

        The Server listens on all interfaces if its address is not one of this host's loopback. Raises
        InvalidArgumentError without a cluster, a task or keys.

            {"cluster": {"ps": ["a:2222"], "worker": ["b:2222"]}, "task": {"type": "ps", "index": 0}}
        """
        config = read_tf_config(text)
        cluster, task = ClusterSpec.from_tf_config(text), config.get("task")
        if not cluster or not isinstance(task, dict) or "type" not in task or "index" not in task:
            raise InvalidArgumentError(
                "TF_CONFIG has to name a cluster and a task of it: "
                '{"cluster": {"ps": ["host:port"], "worker": [...]}, "task": {"type": "ps", "index": 0}}'
            )
        if keys is None:
            path = os.environ.get("NBDIST_KEYS")
            if not path:
                raise InvalidArgumentError(
                    "the tasks of a cluster share keys: write them once with "
                    'nb.ClusterKeys.create().save("keys.json"), copy the file to each host, and set '
                    "NBDIST_KEYS to its path"
                )
            keys = ClusterKeys.load(path)
        job, index = str(task["type"]), int(task["index"])
        interface = cluster.task_address(job, index).rpartition(":")[0]
        local = interface in ("", "localhost") or interface.startswith("127.")
        host = "127.0.0.1" if local else "0.0.0.0"
        return cls(cluster, job, index, keys=keys, host=host, devices=devices)

    @classmethod
    def create_local_server(cls) -> Server:
        """Return a started Server of a cluster of one task, for this process alone."""
        return cls({"local": ["127.0.0.1:0"]})

    @property
    def target(self) -> str:
        """What names this Server for a Session."""
        return f"nbdist://{self.address}"

    @property
    def name(self) -> str:
        """The task's name, such as /job:worker/task:1."""
        return f"/job:{self.job}/task:{self.index}"

    @property
    def is_chief(self) -> bool:
        """Whether this is the chief's task: the chief job's, else worker 0."""
        return chief_of(self.cluster) == (self.job, self.index)

    def start(self) -> None:
        """Begin to answer; a second start changes nothing."""
        if self._closed.is_set():
            raise FailedPreconditionError(f"the Server of {self.name} is closed; make another")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"nbdist {self.name}", daemon=True)
            self._thread.start()

    def on(self, kind: str, handler: Handler) -> None:
        """Answer calls of `kind` with `handler(frame, sender)`, on the Server's thread.

        What it returns is the reply; None means that it replies later through `sender.reply`, or never. An
        exception becomes the caller's error. A second handler replaces the first.
        """
        self._handlers[kind] = handler

    def off(self, kind: str) -> None:
        """Stop answering calls of `kind`."""
        self._handlers.pop(kind, None)

    def post(self, function: Callable[[], object]) -> None:
        """Run `function` on the Server's thread soon; may be called from any thread."""
        self._post(function, -math.inf)

    def every(self, seconds: float, function: Callable[[], object]) -> Callable[[], None]:
        """Run `function` on the Server's thread every `seconds`; returns a function that ends it."""
        if not seconds > 0:
            raise InvalidArgumentError(f"every() takes more than 0 seconds, not {seconds}")
        active = True

        def cancel() -> None:
            nonlocal active
            active = False

        def fire() -> None:
            if active:
                self.after(seconds, fire)
                function()

        self.after(seconds, fire)
        return cancel

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run `function` once on the Server's thread, in `seconds`; may be called from any thread."""
        due = time.monotonic() + seconds
        self._post(lambda: heapq.heappush(self._timers, (due, next(self._order), function)), due)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the Server is closed, `timeout` seconds at most; return whether it is."""
        return self._closed.wait(timeout)

    def close(self) -> None:
        """Stop answering and free the port. May be called twice, and from a handler."""
        self._stopping = True
        self.sessions.close()
        remove_target(self.target)
        if self._thread is None:
            self._release()
        elif self._thread is threading.current_thread():
            pass  # the loop ends after this handler
        else:
            self._wake()
            self._thread.join(5.0)

    def _serve(self) -> None:
        try:
            while not self._stopping:
                while self._timers and self._timers[0][0] <= time.monotonic():
                    self._guarded(heapq.heappop(self._timers)[2])
                for _ in range(len(self._posted)):
                    self._guarded(self._posted.popleft())
                if self._sleep():
                    self._answer_messages()
        finally:
            self._release()

    def _sleep(self) -> bool:
        """Wait for a message, a post or a timer that is due; return whether a message is there."""
        self._sleeps_until = until = self._timers[0][0] if self._timers else math.inf
        # Read after that: a post from now on wakes this thread.
        left = 0.0 if self._posted else max(0.0, until - time.monotonic())
        waiting = self._listener.poll(None if left == math.inf else left)
        self._sleeps_until = -math.inf
        return waiting

    def _answer_messages(self) -> None:
        for _ in range(64):  # then look at timers and posts again
            message = self._listener.receive()
            if message is None or self._stopping:
                return
            self._answer(*message)

    def _answer(self, sender: Caller, frame: Frame) -> None:
        handler = self._handlers.get(frame.kind)
        try:
            if handler is None:
                raise NotFoundError(
                    f"{self.name} answers no {frame.kind!r}; it knows {sorted(self._handlers)}"
                )
            reply = handler(frame, sender)
            if reply is not None:
                sender.reply(reply)
        except Exception as error:  # a handler's failure belongs to its caller; the thread continues
            log.debug("handler of %r failed on %s", frame.kind, self.name, exc_info=True)
            sender.fail(error, self.name)

    def _answer_ping(self, frame: Frame, sender: Caller) -> Frame:
        identity = {"job": self.job, "index": self.index, "name": self.name, "pid": os.getpid()}
        return Frame("pong", {**identity, "incarnation": self.incarnation, "version": own_version()})

    def _guarded(self, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception:
            log.exception("a function on the thread of %s failed", self.name)

    def _post(self, function: Callable[[], object], due: float) -> None:
        """Have the thread run a function when it wakes next, and wake it if it would sleep beyond ``due``."""
        self._posted.append(function)
        if due < self._sleeps_until:
            self._wake()

    def _wake(self) -> None:
        # Not while the pipe is being closed, nor after: its number may be another file's by then.
        with self._closing, suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._closed.is_set():
                os.write(self._wake_out, b".")

    def _release(self) -> None:
        with self._closing:
            if not self._closed.is_set():
                self._listener.close()
                os.close(self._wake_in)
                os.close(self._wake_out)
                self._closed.set()


def choose_task(cluster: ClusterSpec, job_name: str | None, task_index: int | None) -> tuple[str, int]:
    """Return (job, index), filling in what there is only one of."""
    if not cluster:
        raise InvalidArgumentError("a Server needs a cluster with at least one job")
    if job_name is None:
        if len(cluster.jobs) != 1:
            raise InvalidArgumentError(f"job_name is needed, for the cluster has the jobs {cluster.jobs}")
        job_name = cluster.jobs[0]
    indices = cluster.task_indices(job_name)
    if task_index is None:
        if len(indices) != 1:
            raise InvalidArgumentError(f"task_index is needed, for job {job_name!r} has tasks {indices}")
        task_index = indices[0]
    cluster.task_address(job_name, task_index)
    return job_name, task_index


def _port_of(address: str) -> int:
    port = address.rpartition(":")[2] if ":" in address else "0"
    if not port.isdigit() or int(port) > 65535:
        raise InvalidArgumentError(f"the address {address!r} is not 'host:port' with a port of 0 to 65535")
    return int(port)
