"""Reads the stacks of tasks' threads without the tasks' help, on their own host.

    client        head's supervisor        host's supervisor        stack process       task
    stacks ─────► ranks of one host ─────► pids ──────────────────► py-spy ───────────► its memory is read
                                                                    or SIGNAL ────────► faulthandler writes
           ◄────────────────────────────── as JSON ◄─────────────── reads, shortens ◄── into a private file

**Why it works for a task that hangs.** `py-spy`, where the host has it and may trace processes, reads the
interpreter's memory from outside, also of a stopped process. Else a signal reaches the handler of Python's
`faulthandler`, which is C: it needs neither the interpreter nor its lock, so that code in C that never
returns does not hold it back. `answer_signal` registers it in each engine before any other code. Nothing
else is asked of the task: not its Server, its main thread, or its memory allocator.

**The signal** is one that no library uses: a real-time signal on Linux, where SIGUSR1 and SIGUSR2 belong to
batch systems, MPI and the JVM. A process without a handler would die of it, so it is only sent where the
kernel says that it is caught (/proc). macOS has no such signals; SIGINFO, which processes ignore by default,
serves there.

A process of its own reads, one at a time for each supervisor: the supervisor must neither wait nor start
threads, and two dumps at once would mix in the file. It is ended after `MOST_SECONDS`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.cluster.stacks import RawThread, parse_dump, parse_py_spy, shortened

if TYPE_CHECKING:
    from nbdist.cluster.supervisor.process import SupervisorProcess

SIGNAL: int = signal.SIGRTMAX - 3 if hasattr(signal, "SIGRTMAX") else getattr(signal, "SIGINFO", 0)
MOST_SECONDS = 15  # for all tasks of a request
PY_SPY_SECONDS = 5.0  # for it to read one process
WRITE_SECONDS = 2.0  # for faulthandler to write a dump
LOOK_SECONDS = 0.01
RANKS_AT_ONCE = 16
"""The most ranks of one request, whose answers have to fit a line of the supervisors' protocol."""
TASK_BYTES = 32 << 10  # of JSON for one task
MOST_DUMP = 1 << 20  # bytes of what py-spy or faulthandler say of one task
MOST_ANSWER = RANKS_AT_ONCE * (TASK_BYTES + 4096)
STOPPED = "stopped"
Reply = dict[str, Any]


def answer_signal(folder: str, rank: int) -> None:
    """Have this process write the stacks of all its threads into a private file at `SIGNAL`."""
    if not SIGNAL:
        return
    file = os.open(dump_path(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)


def dump_path(folder: str | Path, rank: int) -> str:
    """Return the file into which a task writes its stacks."""
    return f"{folder}/stacks-{rank}"


class StackProcess:
    """The supervisor's end of the processes that read stacks, one at a time; see the module's text."""

    def __init__(self, supervisor: SupervisorProcess) -> None:
        self._supervisor = supervisor
        self._pid = 0
        self._connection: socket.socket | None = None
        self._received = b""
        self._waiting: deque[tuple[list[int], Callable[[Reply], None]]] = deque()
        """Requests; the first one is being answered if there is a process."""

    def read(self, ranks: Sequence[int], answered: Callable[[Reply], None]) -> None:
        """Read the stacks of ranks of this host, at the next `begin`; ``answered`` takes them, by rank."""
        if len(ranks) > RANKS_AT_ONCE:
            answered({"error": f"{len(ranks)} stacks at once; the most are {RANKS_AT_ONCE}"})
        else:
            self._waiting.append((list(ranks), answered))

    def close_in_child(self) -> None:
        """Close the connection in a fresh child of the supervisor."""
        if self._connection is not None:
            self._connection.close()

    def begin(self) -> Callable[[], None] | None:
        """Begin with the next request, if none is being answered.

        Returns None, and in a process that is forked for it the function that it has to call.
        """
        if self._pid or not self._waiting:
            return None
        supervisor = self._supervisor
        pids = {rank: pid for pid, rank in supervisor.children.items() if rank in self._waiting[0][0]}
        ours, theirs = socket.socketpair()
        become = partial(serve, theirs, pids, supervisor.folder, supervisor.pid)
        self._pid, child = supervisor.fork_process(become, f"{supervisor.folder}/log/stacks.log")
        if child is not None:
            ours.close()
            return child
        theirs.close()
        ours.setblocking(False)
        self._connection, self._received = ours, b""
        supervisor.selector.register(ours, selectors.EVENT_READ, self._receive)
        return None

    def _receive(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        self._received += received
        if received and len(self._received) <= MOST_ANSWER:
            return
        self._supervisor.selector.unregister(connection)
        connection.close()
        with suppress(ProcessLookupError, PermissionError):  # with a py-spy that is left
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._pid, self._connection = 0, None
        _, answered = self._waiting.popleft()
        try:
            answered({"stacks": json.loads(self._received)})
        except ValueError:
            answered({"error": f"the stacks could not be read within {MOST_SECONDS} s"})


def serve(connection: socket.socket, pids: Mapping[int, int], folder: Path, parent: int) -> None:
    """Read the stacks of these processes, children of ``parent``, and send them. Never returns."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(MOST_SECONDS)
        found = json.dumps(read_stacks(pids, folder, parent)).encode()
        connection.sendall(found)
    finally:
        os._exit(0)


def read_stacks(pids: Mapping[int, int], folder: Path, parent: int) -> dict[str, Reply]:
    """Return the stacks of processes by rank, as plain values (see `nbdist.cluster.stacks`)."""
    states = {rank: state_of(pid, parent) for rank, pid in pids.items()}
    living = {rank: pid for rank, pid in pids.items() if states[rank]}
    found = run_py_spy(living, [rank for rank, state in states.items() if state == STOPPED])
    by = dict.fromkeys(found, "py-spy")
    left = {rank: pid for rank, pid in living.items() if rank not in found and states[rank] != STOPPED}
    for rank, text in request_dumps(left, folder).items():
        if threads := parse_dump(text):
            found[rank], by[rank] = threads, "faulthandler"
    return {
        str(rank): {
            "pid": pid,
            "state": states[rank],
            "by": by.get(rank, ""),
            "threads": shortened(found.get(rank, []), TASK_BYTES),
        }
        for rank, pid in living.items()
    }


def state_of(pid: int, parent: int) -> str:
    """Return psutil's word for the state of a child of ``parent``; "" if there is no such child."""
    import psutil

    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if process.ppid() == parent and (state := process.status()) not in ("zombie", "dead"):
            return STOPPED if state in (STOPPED, "tracing-stop") else str(state)
    return ""


# py-spy, a program of its own.


def find_py_spy() -> str | None:
    """Return the path of py-spy, of this Python's environment or of the PATH; None where there is none."""
    return shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def run_py_spy(pids: Mapping[int, int], stopped: Sequence[int]) -> dict[int, list[RawThread]]:
    """Return the threads of those processes that py-spy can read; none where it is not installed.

    It pauses a process for the moment of the look, which cannot be done with one that is ``stopped``.
    """
    program = find_py_spy()
    if program is None:
        return {}
    running = {}
    for rank, pid in pids.items():
        options = ["--nonblocking"] if rank in stopped else []
        running[rank] = subprocess.Popen(
            [program, "dump", "--json", "--pid", str(pid), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    found, deadline = {}, time.monotonic() + PY_SPY_SECONDS
    for rank, process in running.items():
        try:
            text, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            continue
        if process.returncode == 0 and len(text) <= MOST_DUMP and (threads := parse_py_spy(text)):
            found[rank] = threads
    return found


# faulthandler, in the task's own process.


def request_dumps(pids: Mapping[int, int], folder: Path) -> dict[int, str]:
    """Signal processes, and return what each has written; one that does not write has no entry."""
    asked = [rank for rank, pid in pids.items() if catches(pid) and _empty(dump_path(folder, rank))]
    for rank in asked:
        with suppress(ProcessLookupError):
            os.kill(pids[rank], SIGNAL)
    dumps, deadline = dict.fromkeys(asked, ""), time.monotonic() + WRITE_SECONDS
    complete = set[int]()
    while len(complete) < len(asked) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        for rank in asked:
            before, dumps[rank] = dumps[rank], _read(dump_path(folder, rank))
            if is_whole(dumps[rank]) and dumps[rank] == before:
                complete.add(rank)
    return {rank: text for rank, text in dumps.items() if text}


def catches(pid: int) -> bool:
    """Return whether a process has a handler for `SIGNAL`, of which it would die otherwise."""
    if not SIGNAL:
        return False
    if not hasattr(signal, "SIGRTMAX"):  # SIGINFO, which is ignored without a handler
        return True
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    except (OSError, StopIteration, IndexError):
        return False
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)


def is_whole(text: str) -> bool:
    """Return whether a dump ends as one of a main thread, the last that faulthandler writes.

    >>> is_whole('Current thread 0x7f (most recent call first):\\n  File "a.py", line 8 in <module>\\n')
    True
    """
    last = text.rstrip("\n").rpartition("\n")[2]
    return text.endswith("\n") and last.endswith((" in <module>", " in _run_module_as_main", "  ..."))


def _empty(path: str) -> bool:
    """Empty the file of a task's dump; return whether there is one."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW))
    except OSError:
        return False
    return True


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(MOST_DUMP)
    except OSError:
        return ""
