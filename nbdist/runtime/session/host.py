"""A task's side of sessions: opens an executor for each session that computes here, and stores variables.

Each executor has a thread of its own, so that sessions do not wait for each other, and a long step does not
block the Server.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    UnavailableError,
)
from nbdist.metrics.timeline import Span, Timeline
from nbdist.runtime.session.checkpoint import COPIES_SECONDS, KINDS, VariableFiles
from nbdist.runtime.session.datasets import Sources
from nbdist.runtime.session.executor import (
    CLOSE,
    DONE,
    FAILED,
    REGISTER,
    REGISTERED,
    RELEASE,
    RUN,
    Executor,
    ExecutorConfig,
    lost,
)
from nbdist.runtime.session.program import Containers
from nbdist.runtime.session.protocol import ExecutorRequest, unpack_piece
from nbdist.runtime.session.resources import Client
from nbdist.runtime.session.store import LOOK_EVERY, Store
from nbdist.wire.channel.sender import Address, Message
from nbdist.wire.rpc.envelope import error_frame
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.rpc.server import Caller

if TYPE_CHECKING:
    from nbdist.runtime.server import Server

log = logging.getLogger(__name__)


class SessionHost:
    """The sessions' side of one task. ``kinds`` are the task's devices, such as CPU:0 and GPU:0."""

    def __init__(
        self, config: ExecutorConfig, job: str, index: int, kinds: tuple[str, ...] = ("CPU:0",)
    ) -> None:
        self.config, self.job, self.index, self.kinds = config, job, index, kinds
        self.store = Store()
        self._files = VariableFiles(self.store, job)
        self._executors: set[ExecutorThread] = set()
        self._clients: dict[str, int] = {}
        """By task: the incarnation of the process that has opened executors as a client."""
        self._replaced: set[Client] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def task(self) -> str:
        """The task's name."""
        return f"/job:{self.job}/task:{self.index}"

    @property
    def process(self) -> str:
        """The task's process and host, as text."""
        return f"pid {os.getpid()} on {socket.gethostname()}"

    @property
    def devices(self) -> list[str]:
        """The full names of the task's devices."""
        return [f"/job:{self.job}/replica:0/task:{self.index}/device:{kind}" for kind in self.kinds]

    def open(self, wanted: ExecutorRequest, ready: Callable[[Address | Exception], None]) -> None:
        """Open an executor for a client; ``ready`` gets its address, on the executor's thread."""
        if wanted.device not in self.devices:
            raise InvalidArgumentError(
                f"{self.task} has no device {wanted.device!r}; it has {', '.join(self.devices)}"
            )
        with self._lock:
            if self._closed:
                raise UnavailableError(f"the Server of {self.task} is closed")
            self._admit(wanted.driver)
            sources = next((t.sources for t in self._executors if t.session == wanted.session), None)
            thread = ExecutorThread(self, wanted, sources or Sources(self.store), ready)
            self._executors.add(thread)
        thread.start()

    def _admit(self, client: Client) -> None:
        """Record the process of a client that is a task; refuse one that another process has replaced."""
        if not client.task:
            return
        if client in self._replaced:
            raise FailedPreconditionError(
                f"{client.task} was replaced by another process, which takes part in its place; end this one"
            )
        before = self._clients.get(client.task, client.incarnation)
        if before != client.incarnation:
            self._replaced.add(Client(client.task, before))
        self._clients[client.task] = client.incarnation

    def refuse_late(self, wanted: ExecutorRequest) -> None:
        """Block all further changes by executors of abandoned steps, and of the client's former process."""
        with self._lock:
            late = [t for t in self._executors if t.dispatcher in wanted.given_up]
            former = [t for t in self._executors if t.driver in self._replaced]
        for thread in former + late:
            thread.refuse()
        for thread in former:
            thread.stop()

    def ended(self, thread: ExecutorThread) -> None:
        """Remove an executor; with a session's last one, its datasets and isolated variables."""
        with self._lock:
            self._executors.discard(thread)
            if not any(t.session == thread.session for t in self._executors):
                thread.sources.close()
            prefix = thread.containers.prefix
            if prefix and not any(t.containers.prefix == prefix for t in self._executors):
                self.store.drop_all(prefix)

    def close(self) -> None:
        """End all executors, also in the middle of a step."""
        with self._lock:
            self._closed = True
            threads = list(self._executors)
        self.store.close()
        self._files.close()
        for thread in threads:
            thread.stop()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(5.0)

    def attach(self, server: Server) -> None:
        """Answer sessions' calls to a Server."""

        def open_executor(frame: Frame, sender: Caller) -> None:
            def ready(found: Address | Exception) -> None:
                if isinstance(found, Address):
                    server.post(lambda: sender.reply(Frame("session.executor", found.to_dict())))
                else:
                    server.post(lambda: sender.fail(found, self.task))

            wanted = ExecutorRequest.from_dict(frame.meta)
            check_incarnation(wanted.incarnation)
            self.open(wanted, ready)

        def check_incarnation(incarnation: object) -> None:
            if incarnation != server.incarnation:
                raise AbortedError(
                    f"{self.task} was started again since this session was made, and its variables are lost: "
                    "make a new session and initialise or restore them"
                )

        def answer_later(frame: Frame, sender: Caller) -> None:
            """Answer a request about checkpoints from a thread of its own, since it reads or writes files."""
            check_incarnation(frame.meta.get("incarnation"))
            request = frame.meta["request"]

            def work() -> None:
                try:
                    answer = Frame(frame.kind, self._files.handle(frame.kind, request))
                    server.post(lambda: sender.reply(answer))
                except Exception as error:
                    reason = error
                    server.post(lambda: sender.fail(reason, self.task))

            if frame.kind == "checkpoint.copy":
                server.after(COPIES_SECONDS, lambda: self._files.drop(str(request.get("file"))))
            threading.Thread(target=work, name=f"nbdist {frame.kind} on {self.task}", daemon=True).start()

        def reset(frame: Frame, sender: Caller) -> Frame:
            self.store.reset([str(name) for name in frame.meta["containers"]])
            return Frame("session.was_reset")

        def describe(frame: Frame, sender: Caller) -> Frame:
            return Frame("session.task", {
                "task": self.task,
                "devices": self.devices,
                "prefix": self.config.prefix,
                "incarnation": server.incarnation,
                "resets": self.store.resets,
                "process": self.process,
                "host": self.config.host_identity,
                "clock": time.perf_counter(),
                "cluster": [
                    [job, index, server.cluster.task_address(job, index)]
                    for job in server.cluster.jobs
                    for index in server.cluster.task_indices(job)
                ],
            })  # fmt: skip

        server.on("session.open", open_executor)
        server.on("session.reset", reset)
        server.on("session.describe", describe)
        for kind in KINDS:
            server.on(kind, answer_later)


class ExecutorThread(threading.Thread):
    """An executor for one client, until the client closes it or ends."""

    def __init__(
        self,
        host: SessionHost,
        wanted: ExecutorRequest,
        sources: Sources,
        ready: Callable[[Address | Exception], None],
    ) -> None:
        super().__init__(name=f"nbdist session on {host.task} {secrets.token_hex(2)}", daemon=True)
        self._host, self._wanted, self._ready = host, wanted, ready
        self.session, self.sources = wanted.session, sources
        self.dispatcher, self.driver = wanted.dispatcher, wanted.driver
        self.containers = Containers(host.job, wanted.isolate)
        self._executor: Executor | None = None
        self._stopping = self._refused = False

    def stop(self) -> None:
        """Request the end; may be called from any thread."""
        self._stopping = True
        if self._executor is not None:
            self._executor.receiver.wake()

    def refuse(self) -> None:
        """Block all further changes; may be called from any thread. Waits for a change in progress."""
        self._refused = True
        if self._executor is not None:
            self._executor.fence.close()

    def run(self) -> None:
        """Open the executor and serve the client."""
        try:
            try:
                self._host.refuse_late(self._wanted)
                executor = self._opened()
            except Exception as error:  # the client waits for an answer, whatever it is
                self._ready(error)
                return
            self._ready(executor.address)
            try:
                self._serve(executor)
            except NbdistError as error:  # the client has ended
                log.debug("a session's executor on %s ended: %s", self._host.task, error)
            except Exception:
                log.exception("a session's executor on %s failed", self._host.task)
            finally:
                executor.close()
        finally:
            self._host.ended(self)

    def _opened(self) -> Executor:
        config = replace(self._host.config, transport=self._wanted.transport)
        wanted = self._wanted
        executor = Executor(
            config, self._host.store, self.sources, wanted.resets, wanted.patience, wanted.driver
        )
        try:
            client = executor.sender(self._wanted.client, "the session's client")
        except Exception:
            executor.close()
            raise

        def watch() -> None:
            if self._stopping:
                raise lost(
                    f"{self._host.task} ({self._host.process})",
                    UnavailableError("its Server is being closed"),
                )
            client.check()

        executor.watch, self._executor = watch, executor
        if self._refused:  # before there was an executor
            executor.fence.close()
        return executor

    def _serve(self, executor: Executor) -> None:
        while not self._stopping:
            if not executor.waiting and not executor.pump(LOOK_EVERY):
                executor.watch()
            while executor.waiting:
                message = executor.waiting.popleft()
                if message.kind == CLOSE:
                    return
                self._answer(executor, message)

    def _answer(self, executor: Executor, message: Message) -> None:
        client = executor.sender(self._wanted.client)
        try:
            if message.kind == RUN:
                spans: list[Span] | None = [] if message.meta.get("trace") else None
                results = executor.run(message.plan, message.step, message.arrays, spans)
                meta = None if spans is None else {"spans": Timeline(spans).to_dict()}
                client.send(DONE, message.plan, message.step, message.edge, results, meta)
            elif message.kind == REGISTER:
                piece, executors = unpack_piece(message.meta, message.arrays)
                program = executor.register(message.plan, piece, self.containers, executors)
                sizes = {"buffer_bytes": program.buffer_bytes, "value_bytes": program.value_bytes}
                client.send(REGISTERED, message.plan, message.step, message.edge, meta=sizes)
            elif message.kind == RELEASE:
                executor.release(message.plan)
        except Exception as error:
            meta = error_frame(error, self._host.task).meta
            client.send(FAILED, message.plan, message.step, message.edge, meta=meta)
