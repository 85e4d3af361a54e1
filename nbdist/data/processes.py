"""Maps in processes of their own, for functions that hold Python's lock; elements travel in shared memory.

    for block in mapped(upstream, rows, function, workers=4, deterministic=True, run): ...

Design. The processes are forked when a pass begins, so that any function of the notebook is there without
being sent. Each has two requests in flight: it works on one while the other waits, or its result is read. A
request and its result lie in memory that both have mapped (a file without a name, which grows with the
elements); a socket pair carries their sizes only, a few bytes, so that neither side ever waits to write.
Elements are encoded as in `encoding`: nothing is pickled. The consumer reads results in the order of the
elements. A process ends when the pass ends, fails or is dropped: it is killed, for it holds nothing; and it
ends by itself within a second when its parent has ended.
"""

from __future__ import annotations

import builtins
import gc
import mmap
import os
import signal
import socket
import struct
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from nbdist import errors
from nbdist.data.blocks import Block, Blocks, Pass, RunsAhead
from nbdist.data.elements import apply, kept
from nbdist.data.encoding import ALIGNMENT, decode, encode, write
from nbdist.data.rows import Rows
from nbdist.errors import UnavailableError

IN_FLIGHT = 2  # elements of each process
PARENT_SECONDS = 1.0  # how often a process that waits checks that its parent lives
_MESSAGE = struct.Struct("<BBdQQ")  # slot, whether it is an error, seconds, bytes of the head, bytes in all


def mapped(
    upstream: Blocks,
    rows: Rows | None,
    function: Callable[..., Any],
    workers: int,
    deterministic: bool,
    on_error: str,
    run: Pass,
) -> Iterator[Block]:
    """Yield ``function`` of each element, made by processes; as they are ready if not ``deterministic``."""
    processes: list[MapProcess] = []

    def stop() -> None:
        while processes:
            processes.pop().stop()

    def received(ready: MapProcess) -> Block:
        before = ready.seconds
        result, error = ready.receive()
        if run.counter is not None:
            run.counter.called(ready.seconds - before)
        if error is None:
            return [result]
        run.leave_out(error, on_error)
        return []

    with run.resources.held(stop):
        processes.extend(MapProcess(function) for _ in range(workers))
        everyone = list(processes)
        waiting: deque[MapProcess] = deque()
        free = deque(everyone * IN_FLIGHT)
        ahead = RunsAhead(run)
        opened: deque[dict[int, int] | None] = deque()
        for number, element in enumerate(kept(upstream, rows, ahead.run)):
            if not free:
                ready = waiting.popleft() if deterministic else _first_ready(waiting)
                block = received(ready)
                ahead.take(opened.popleft())
                yield block
                free.append(ready)
            worker = free.popleft()
            worker.send(number, element)
            opened.append(ahead.opened())
            waiting.append(worker)
        while waiting:
            ready = waiting.popleft() if deterministic else _first_ready(waiting)
            block = received(ready)
            ahead.take(opened.popleft())
            yield block


def _first_ready(waiting: deque[MapProcess]) -> MapProcess:
    """Take a process with a result out of ``waiting``."""
    found = wait([one.connection for one in dict.fromkeys(waiting)])
    ready = next(one for one in waiting if one.connection in found)
    waiting.remove(ready)
    return ready


class MapProcess:
    """A process that applies a function to elements, in the order in which they are sent."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = getattr(function, "__name__", type(function).__name__)
        self._requests = [SharedMemory() for _ in range(IN_FLIGHT)]
        self._results = [SharedMemory() for _ in range(IN_FLIGHT)]
        self._numbers: deque[int] = deque()
        self._slot = 0
        self.seconds = 0.0
        """For which it has worked on the results that were received."""
        own, other = (Connection(end.detach()) for end in socket.socketpair())
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where other threads run
            self.pid = os.fork()
        if self.pid == 0:
            own.close()
            _serve(function, other, self._requests, self._results, parent)
        other.close()
        self.connection = own

    def send(self, number: int, element: Any) -> None:
        """Send an element, the ``number``-th of the pass."""
        sizes = self._requests[self._slot].store(element)
        self._numbers.append(number)
        try:
            self.connection.send_bytes(_MESSAGE.pack(self._slot, 0, 0.0, *sizes))
        except OSError:
            raise self._died() from None
        self._slot = (self._slot + 1) % IN_FLIGHT

    def receive(self) -> tuple[Any, Exception | None]:
        """Return the result of the earliest element in flight, or None and what the function has raised."""
        try:
            slot, failed, seconds, *sizes = _MESSAGE.unpack(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise self._died() from None
        number = self._numbers.popleft()
        self.seconds += seconds
        result = self._results[slot].load(*sizes)
        if failed:
            error = rebuilt_error(*result)
            error.add_note(f"raised by {self._name} for element {number} of this pass (the first is 0)")
            return None, error
        return result, None

    def stop(self) -> None:
        """End the process. A thread that waits for it finds the connection at its end."""
        with _no_process():
            os.kill(self.pid, signal.SIGKILL)
        with _no_process():
            os.waitpid(self.pid, 0)
        for memory in (*self._requests, *self._results):
            memory.close()

    def _died(self) -> UnavailableError:
        return UnavailableError(
            f"a process of map({self._name}, workers=...) has ended while it had element {self._numbers[0]} "
            "of this pass: it may have used too much memory, or crashed in a library; try num_parallel_calls "
            "(threads) instead, or fewer workers"
        )


class _no_process:  # reads as contextlib.suppress
    """Suppresses that a process has ended, or that another has waited for it."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return isinstance(error, (ProcessLookupError, ChildProcessError))


class SharedMemory:
    """Memory for one element, which grows; shared with the processes that are forked after it was made."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.fdopen(os.memfd_create("nbdist-data"), "r+b", buffering=0)
        else:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._map: mmap.mmap | None = None

    def store(self, element: Any) -> tuple[int, int]:
        """Write an element; return the bytes of its head, and of all."""
        head, arrays, size = encode(element)
        start = -(-len(head) // ALIGNMENT) * ALIGNMENT
        total = start + size
        memory = self._mapped(total, grows=True)
        memory[: len(head)] = head
        write(memory[start:], arrays)
        return len(head), total

    def load(self, head: int, total: int) -> Any:
        """Return the element that the other side has written, copied."""
        memory = self._mapped(total, grows=False)
        start = -(-head // ALIGNMENT) * ALIGNMENT
        return decode(bytes(memory[:head]), memory[start:total], copy=True)

    def close(self) -> None:
        """Close the file; its memory is given back when no view of it is left."""
        self._file.close()
        self._map = None

    def _mapped(self, size: int, *, grows: bool) -> memoryview:
        if self._map is None or len(self._map) < size:
            if grows and os.fstat(self._file.fileno()).st_size < size:
                self._file.truncate(size + size // 4)
            self._map = mmap.mmap(self._file.fileno(), 0)  # views of the one before keep it
        return memoryview(self._map)


def _serve(
    function: Callable[..., Any],
    connection: Connection[Any, Any],
    requests: list[SharedMemory],
    results: list[SharedMemory],
    parent: int,
) -> None:
    """Answer requests until the parent ends; the body of the forked process, which never returns."""
    try:
        gc.freeze()  # what was there before the fork is the parent's to finalize
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            while not connection.poll(PARENT_SECONDS):
                if os.getppid() != parent:
                    return
            slot, _, _, *sizes = _MESSAGE.unpack(connection.recv_bytes())
            failed, began = 0, time.perf_counter()
            try:
                found = results[slot].store(apply(function, requests[slot].load(*sizes)))
            except Exception as error:
                failed = 1
                where = traceback.format_exc()
                found = results[slot].store((type(error).__name__, str(error), where))
            connection.send_bytes(_MESSAGE.pack(slot, failed, time.perf_counter() - began, *found))
    except (EOFError, OSError):
        return
    finally:
        os._exit(0)


def rebuilt_error(name: str, text: str, where: str) -> Exception:
    """Return an exception of the other process: of its class if that is built in or nbdist's."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            error = kind(text.strip("'") if kind is KeyError else text)
        except TypeError:
            error = RuntimeError(f"{name}: {text}")
    else:
        error = RuntimeError(f"{name}: {text}")
    error.add_note(where)
    return error
