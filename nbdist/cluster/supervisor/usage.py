"""What the tasks of another host use, and that host itself, while someone looks.

    viewer                 head's supervisor           host's supervisor          usage process
    usage ───────────────► what it knows, at once
                           usage, with GPUs ─────────► pids, with GPUs ─────────► measures
                           keeps them ◄─────────────── figures ◄───────────────── figures

The head asks a host only when a viewer asks, and not more often than every `USAGE_SECONDS`. A process of its
own measures on the host, because the driver of a GPU may hang, and the supervisor must neither wait nor start
threads. It is forked at the first request, and ends `UNUSED_SECONDS` after the last: at rest it
costs nothing.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.cluster.supervisor.process import SupervisorProcess

USAGE_SECONDS = 1.5  # between two requests to a host
UNUSED_SECONDS = 20.0  # without a request, until the process ends
GPU_SECONDS = 0.5  # for the driver to answer; a late answer is the next reply's
MEMORY_STEP = 64 << 20  # bytes: the machine's memory is rounded to such
NOT_READ = "its figures cannot be read at the moment"
Reply = dict[str, Any]


class UsageProcess:
    """The supervisor's end of the process that measures; see the module's text."""

    def __init__(self, supervisor: SupervisorProcess) -> None:
        self._supervisor = supervisor
        self._pid = 0
        self._connection: socket.socket | None = None
        self._received = b""
        self._awaited: list[Callable[[Reply], None]] = []

    def measure(
        self, gpus: Mapping[int, str | None], answered: Callable[[Reply], None]
    ) -> Callable[[], None] | None:
        """Measure these pids, each with CUDA's name of its GPU or None; ``answered`` takes the figures.

        Returns None, and in a process that is forked for it the function that it has to call.
        """
        if self._connection is None and (become := self._start()) is not None:
            return become
        assert self._connection is not None
        try:
            self._connection.sendall(
                json.dumps({str(pid): gpu for pid, gpu in gpus.items()}).encode() + b"\n"
            )
            self._awaited.append(answered)
        except OSError:  # it has just ended, or it does not read
            answered({"error": NOT_READ})
        return None

    def reap(self) -> None:
        """Take in that the process has ended; the next request starts another one."""
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = 0
            self._disconnect()

    def close_in_child(self) -> None:
        """Close the connection in a fresh child of the supervisor."""
        if self._connection is not None:
            self._connection.close()

    def _start(self) -> Callable[[], None] | None:
        ours, theirs = socket.socketpair()
        log = f"{self._supervisor.folder}/log/usage.log"
        self._pid, become = self._supervisor.fork_process(partial(serve, theirs), log)
        if become is not None:
            ours.close()
            return become
        theirs.close()
        ours.setblocking(False)
        self._connection, self._received = ours, b""
        self._supervisor.selector.register(ours, selectors.EVENT_READ, self._read)
        return None

    def _read(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:  # `reap` takes its status
            self._supervisor.selector.unregister(connection)
            return
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            self._awaited.pop(0)(json.loads(line))

    def _disconnect(self) -> None:
        if self._connection is None:
            return
        with suppress(KeyError):  # its end was read before
            self._supervisor.selector.unregister(self._connection)
        self._connection.close()
        self._connection = None
        awaited, self._awaited = self._awaited, []
        for answered in awaited:
            answered({"error": NOT_READ})


def serve(connection: socket.socket) -> None:
    """Answer requests until none comes for `UNUSED_SECONDS`, or the supervisor ends. Never returns."""
    meter, received = HostMeter(), b""
    connection.settimeout(UNUSED_SECONDS)
    try:
        while new := connection.recv(1 << 16):
            *lines, received = (received + new).split(b"\n")
            for line in lines:
                wanted = {int(pid): gpu for pid, gpu in json.loads(line).items()}
                connection.sendall(json.dumps(meter.measure(wanted)).encode() + b"\n")
    except OSError:
        pass
    finally:
        os._exit(0)


class HostMeter:
    """Measures processes of this host, their GPUs, and the host itself."""

    def __init__(self) -> None:
        from nbdist.metrics.process_usage import GpuMonitor, LoadMonitor

        self._loads, self._gpus = LoadMonitor(), GpuMonitor()
        self._machine: dict[str, int | None] = {}
        self._thread: threading.Thread | None = None
        self._measured: tuple[dict[int, Any], str | None] = {}, None

    def measure(self, gpus: Mapping[int, str | None]) -> Reply:
        """Return "tasks" (figures by pid), "machine" and "problem" (why its GPUs cannot be measured).

        ``gpus`` has the pids, each with CUDA's name of its GPU or None.
        """
        loads = {pid: load for pid in gpus if (load := self._loads.poll(pid, None)) is not None}
        self._loads.forget_others(gpus.keys())
        used, problem = self._measure_gpus({pid: name for pid, name in gpus.items() if name is not None})
        tasks = {
            str(pid): {"cpu": load.cpu, "memory": load.memory, "frozen": load.frozen, "gpu": used.get(pid)}
            for pid, load in loads.items()
        }
        self._machine = measure_machine(self._machine)
        return {"tasks": tasks, "machine": self._machine, "problem": problem}

    def _measure_gpus(self, wanted: Mapping[int, str]) -> tuple[dict[int, Any], str | None]:
        """Return the GPUs' use by pid, and a problem; a driver that hangs keeps a thread only."""
        if not wanted:
            return {}, None

        def poll() -> None:
            self._measured = self._gpus.poll(wanted)

        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=poll, name="nbdist GPU figures", daemon=True)
            self._thread.start()
        self._thread.join(GPU_SECONDS)
        return ({}, "NVML does not answer") if self._thread.is_alive() else self._measured


def measure_machine(before: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the use of this machine: "cpu" in percent of all its cores, "memory" and "total" in bytes.

    ``before`` are the figures of the call before; the first one has no "cpu".

    >>> sorted(measure_machine({}))
    ['cpu', 'memory', 'total']
    """
    import psutil

    from nbdist.metrics.process_usage import steady

    percent, memory = psutil.cpu_percent(None), psutil.virtual_memory()
    return {
        "cpu": steady(before.get("cpu"), percent) if before else None,
        "memory": steady(before.get("memory"), memory.total - memory.available, MEMORY_STEP),
        "total": int(memory.total),
    }
