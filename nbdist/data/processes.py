"""Maps in processes of their own, for functions that hold Python's lock; elements travel in shared memory.

    for block in mapped(upstream, rows, function, workers=4, deterministic=True, run): ...

Design. The processes are forked when a pass begins, so that any function of the notebook is there without
being sent. Each has two requests in flight: it works on one while the other waits, or its result is read. A
request has as many elements as take the function some milliseconds, so that waking the other side costs
little of that; the i-th element always goes to process i modulo their number. A request and its result lie in
memory that both have mapped (a file without a name, which grows with the elements); a socket pair carries
their sizes only, a few bytes, so that neither side ever waits to write. Elements are encoded as in
`encoding`: nothing is pickled. The consumer reads results in the order of the elements. A process ends when
the pass ends, fails or is dropped: it is killed, for it holds nothing; and it ends by itself within a second
when its parent has ended. A fork copies its parent's random generators, so each process seeds them anew: by
the parent's state, the number of the pass, and its own number (`random_state`).
"""

from __future__ import annotations

import builtins
import gc
import mmap
import os
import random
import signal
import socket
import struct
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

from nbdist import errors
from nbdist.data.blocks import Block, Blocks, Pass, RunsAhead
from nbdist.data.elements import apply, kept, noted
from nbdist.data.encoding import ALIGNMENT, decode, encode, write
from nbdist.data.meter import StageCounter, name_of
from nbdist.data.random_state import reseed
from nbdist.data.rows import Rows
from nbdist.errors import UnavailableError

Result: TypeAlias = tuple[Any, Exception | None]  # what the function returned, or what it raised
IN_FLIGHT = 2  # requests of each process
REQUEST_SECONDS = 1e-2  # of the function: elements of a request take about as long
REQUEST_BYTES = 4 << 20  # of its elements or results, about
MOST = 64  # elements of a request
PARENT_SECONDS = 1.0  # how often a process that waits checks that its parent lives
_MESSAGE = struct.Struct("<BQQd")  # slot, bytes of the head, bytes in all, seconds of the function


def mapped(
    upstream: Blocks,
    rows: Rows | None,
    function: Callable[..., Any],
    workers: int,
    deterministic: bool,
    on_error: str,
    place: int,
    token: int,
    run: Pass,
) -> Iterator[Block]:
    """Yield ``function`` of each element, made by processes; as they are ready if not ``deterministic``.

    ``place`` is the map's number in its pipeline: with it, each map draws random numbers of its own.
    """
    drawing = (run.opening(token), place, *run.branch)
    processes: list[MapProcess] = []

    def stop() -> None:
        while processes:
            processes.pop().stop()

    def delivered(results: list[Result]) -> Iterator[Block]:
        block: list[Any] = []
        for value, error in results:
            opened = requests.opened.popleft()
            if opened is not None:
                if block:
                    yield block
                block = []
                ahead.take(opened)
            if error is None:
                block.append(value)
            else:
                if block:
                    yield block
                block = []
                run.leave_out(error, on_error)
        if block:
            yield block

    with run.resources.held(stop):
        processes.extend(MapProcess(function, (*drawing, number)) for number in range(workers))
        ahead = RunsAhead(run)
        requests = _Requests(enumerate(kept(upstream, rows, ahead.run)), ahead, run.counter)
        make = _in_order if deterministic else _as_ready
        for results in make(list(processes), requests):
            yield from delivered(results)


class _Requests:
    """Takes elements for requests, as many as the function is quick."""

    def __init__(
        self, incoming: Iterator[tuple[int, Any]], ahead: RunsAhead, counter: StageCounter | None
    ) -> None:
        self._incoming, self._ahead, self._counter, self._size = incoming, ahead, counter, 1
        self.opened: deque[dict[int, int] | None] = deque()
        """For each element in flight, the openings that its consumer counts when it takes it."""

    def taken(self, processes: int) -> list[tuple[int, Any]]:
        """Return the elements of a request for each of ``processes``, fewer if the source is slow."""
        found: list[tuple[int, Any]] = []
        until = time.perf_counter() + REQUEST_SECONDS
        for one in self._incoming:
            found.append(one)
            self.opened.append(self._ahead.opened())
            whole = len(found) % processes == 0
            if whole and (len(found) == self._size * processes or time.perf_counter() > until):
                break
        return found

    def answered(self, count: int, size: int, seconds: float) -> None:
        """Learn from an answer: to how many elements, of how many bytes, after how many seconds."""
        if self._counter is not None:
            self._counter.called(seconds)
        allowed = min(
            REQUEST_SECONDS * count / max(seconds, 1e-9), REQUEST_BYTES * count / max(size, 1), MOST
        )
        self._size = max(1, min(int(allowed), 4 * self._size))


def _in_order(processes: list[MapProcess], requests: _Requests) -> Iterator[list[Result]]:
    """Yield results in the order of the elements: in rounds, of a request to each process."""
    rounds: deque[int] = deque()  # elements of each

    def begin() -> None:
        taken = requests.taken(len(processes))
        for index, process in enumerate(processes):
            if part := taken[index :: len(processes)]:
                process.send(part)
        if taken:
            rounds.append(len(taken))

    for _ in range(IN_FLIGHT):
        begin()
    while rounds:
        count = rounds.popleft()
        parts = [process.receive(requests) for process in processes[:count]]
        yield [parts[place % len(parts)][place // len(parts)] for place in range(count)]
        begin()


def _as_ready(processes: list[MapProcess], requests: _Requests) -> Iterator[list[Result]]:
    """Yield results of whichever process is ready."""
    waiting: deque[MapProcess] = deque()

    def begin(process: MapProcess) -> None:
        if taken := requests.taken(1):
            process.send(taken)
            waiting.append(process)

    for process in processes * IN_FLIGHT:
        begin(process)
    while waiting:
        ready = _first_ready(waiting)
        yield ready.receive(requests)
        begin(ready)


def _first_ready(waiting: deque[MapProcess]) -> MapProcess:
    """Take a process with a result out of ``waiting``."""
    found = wait([one.connection for one in dict.fromkeys(waiting)])
    ready = next(one for one in waiting if one.connection in found)
    waiting.remove(ready)
    return ready


class MapProcess:
    """A process that applies a function to elements, in the order in which they are sent.

    What it draws at random follows from the generators here and from ``numbers``.
    """

    def __init__(self, function: Callable[..., Any], numbers: Sequence[int]) -> None:
        self._function = function
        self._requests = [SharedMemory() for _ in range(IN_FLIGHT)]
        self._results = [SharedMemory() for _ in range(IN_FLIGHT)]
        self._numbers: deque[list[int]] = deque()  # of the elements of each request
        self._slot = 0
        own, other = (Connection(end.detach()) for end in socket.socketpair())
        parent, python = os.getpid(), random.getstate()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where other threads run
            self.pid = os.fork()
        if self.pid == 0:
            own.close()
            _serve(function, other, self._requests, self._results, parent, python, numbers)
        other.close()
        self.connection = own

    def send(self, elements: list[tuple[int, Any]]) -> None:
        """Send elements with their numbers in the pass."""
        sizes = self._requests[self._slot].store([element for _, element in elements])
        self._numbers.append([number for number, _ in elements])
        try:
            self.connection.send_bytes(_MESSAGE.pack(self._slot, *sizes, 0.0))
        except OSError:
            raise self._died() from None
        self._slot = (self._slot + 1) % IN_FLIGHT

    def receive(self, requests: _Requests) -> list[Result]:
        """Return the results of the earliest elements in flight, and tell ``requests`` what they took."""
        try:
            slot, head, total, seconds = _MESSAGE.unpack(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise self._died() from None
        numbers = self._numbers.popleft()
        results = self._results[slot].load(head, total)
        requests.answered(len(numbers), total, seconds)
        return [self._result(number, *one) for number, one in zip(numbers, results, strict=True)]

    def _result(self, number: int, failed: int, value: Any) -> Result:
        if not failed:
            return value, None
        return None, noted(rebuilt_error(*value), self._function, number)

    def stop(self) -> None:
        """End the process. A thread that waits for it finds the connection at its end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # another thread has waited for it
            os.waitpid(self.pid, 0)
        for memory in (*self._requests, *self._results):
            memory.close()

    def _died(self) -> UnavailableError:
        first, *_, last = 2 * self._numbers[0]
        which = f"element {first}" if first == last else f"elements {first} to {last}"
        return UnavailableError(
            f"a process of map({name_of(self._function)}, workers=...) has ended while it had {which} "
            "of this pass: it may have used too much memory, or crashed in a library; try num_parallel_calls "
            "(threads) instead, or fewer workers"
        )


class SharedMemory:
    """Memory for the elements of a request, which grows.

    It is shared with the processes that are forked after it was made.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.fdopen(os.memfd_create("nbdist-data"), "r+b", buffering=0)
        else:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._map: mmap.mmap | None = None

    def store(self, element: Any) -> tuple[int, int]:
        """Write elements; return the bytes of their head, and of all."""
        head, arrays, size = encode(element)
        start = -(-len(head) // ALIGNMENT) * ALIGNMENT
        total = start + size
        memory = self._mapped(total, grows=True)
        memory[: len(head)] = head
        write(memory[start:], arrays)
        return len(head), total

    def load(self, head: int, total: int) -> Any:
        """Return the elements that the other side has written, copied."""
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
    python: object,
    numbers: Sequence[int],
) -> None:
    """Answer requests until the parent ends; the body of the forked process, which never returns."""
    try:
        gc.freeze()  # what was there before the fork is the parent's to finalize
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        reseed(function, python, numbers)
        while True:
            while not connection.poll(PARENT_SECONDS):
                if os.getppid() != parent:
                    return
            slot, head, total, _ = _MESSAGE.unpack(connection.recv_bytes())
            begun = time.perf_counter()
            answers = [_answer(function, element) for element in requests[slot].load(head, total)]
            seconds = time.perf_counter() - begun
            try:
                found = results[slot].store(answers)
            except Exception:  # one of them cannot leave the process
                found = results[slot].store([_checked(answer) for answer in answers])
            connection.send_bytes(_MESSAGE.pack(slot, *found, seconds))
    except (EOFError, OSError):
        return
    finally:
        os._exit(0)


def _answer(function: Callable[..., Any], element: Any) -> tuple[int, Any]:
    """Return (0, result), or (1, what describes the error)."""
    try:
        return 0, apply(function, element)
    except Exception as error:
        return 1, (type(error).__name__, str(error), traceback.format_exc())


def _checked(answer: tuple[int, Any]) -> tuple[int, Any]:
    """Return an answer, or the error why it cannot be encoded."""
    try:
        encode(answer)
    except Exception as error:
        return 1, (type(error).__name__, str(error), traceback.format_exc())
    return answer


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
