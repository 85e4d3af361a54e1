"""MPI worlds for tests: rank processes, and groups with calls that run in them.

A test's threads have one RemoteGroup per rank. It forwards each call to that rank's process, with arrays of
the same bytes, strides and overlaps.
"""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import numpy as np
from collective_worlds import members
from fake_cupy import DeviceArray, FakeCupy

from nbdist.cluster.launchers.mpi import HostRanks, ProcessManager
from nbdist.wire.collective.call import is_on_device

SECONDS = 30.0
Array = np.ndarray[Any, Any]


class MpiWorld:
    """A world of processes that `start` starts; a thread of this process answers their MPI requests."""

    def __init__(self, ranks: int) -> None:
        self._manager = ProcessManager(HostRanks.alone(ranks))
        self._left = ranks
        self._thread = threading.Thread(target=self._answer, daemon=True)

    def start(self, rank: int, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a rank's process."""
        descriptors = (self._manager.descriptor(rank), *options.pop("pass_fds", ()))
        environment = {**os.environ, **self._manager.environment(rank)}
        started = subprocess.Popen(command, env=environment, pass_fds=descriptors, **options)
        self._manager.hand_over(rank)
        self._left -= 1
        if not self._left:
            self._thread.start()
        return started

    def close(self) -> None:
        """End the world; its processes have ended."""
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def _answer(self) -> None:
        while connections := list(self._manager.connections.values()):
            for one in select.select(connections, [], [])[0]:
                self._manager.answer(one)


class RemoteRank:
    """A process that is one rank of a world and takes part in any number of groups."""

    def __init__(self, world: MpiWorld, rank: int) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
            os.environ["PYTHONPATH"], before = path, os.environ.get("PYTHONPATH")
            try:
                self.process = world.start(rank, command, pass_fds=(theirs.fileno(),))
            finally:
                if before is None:
                    del os.environ["PYTHONPATH"]
                else:
                    os.environ["PYTHONPATH"] = before
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._answers: dict[int, SimpleQueue[tuple[str, Any]]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, what: str, *values: Any, check: Callable[[], None] | None = None) -> Any:
        """Execute a method in the process; `check` is called here whenever the process calls its check."""
        number = next(self._numbers)
        answers = self._answers[number] = SimpleQueue()
        raised: BaseException | None = None
        self._send(number, what, *values)
        while True:
            kind, value = answers.get(timeout=SECONDS)
            if kind == "check":
                try:
                    assert check is not None
                    check()
                    self._send(number, "continue", None)
                except BaseException as error:
                    raised = error
                    self._send(number, "continue", error)
                continue
            del self._answers[number]
            if kind == "raised":
                raise raised if raised is not None and type(raised) is type(value) else value
            return value

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self.process.kill()
        self.process.wait()

    def _send(self, *message: Any) -> None:
        with self._sending:
            self._pipe.send(message)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, kind, value = self._pipe.recv()
                self._answers[number].put((kind, value))


class RemoteGroup:
    """One rank of a group in the rank's own process; has the interface of a Collective."""

    kind = "mpi"

    def __init__(self, remote: RemoteRank, rank: int, size: int, check: Callable[[], None] | None) -> None:
        self._remote, self.rank, self.size, self._check = remote, rank, size, check
        self.number = -1

    @property
    def sequence(self) -> int:
        return int(self._remote.ask("sequence", self.number))

    def all_reduce(self, x: Any, op: str = "mean", out: Any = None) -> Any:
        return self._call("all_reduce", x, out, op)

    def reduce_scatter(self, x: Any, op: str = "mean", out: Any = None) -> Any:
        return self._call("reduce_scatter", x, out, op)

    def all_gather(self, x: Any, out: Any = None) -> Any:
        return self._call("all_gather", x, out)

    def broadcast(self, x: Any, root: int = 0, out: Any = None) -> Any:
        return self._call("broadcast", x, out, root)

    def symmetric_buffer(self, shape: Sequence[int], dtype: Any) -> Array:
        return np.zeros(tuple(shape), dtype)

    def barrier(self) -> None:
        self._remote.ask("plain", self.number, "barrier", (), check=self._check)

    def abort(self, reason: str) -> None:
        self._remote.ask("plain", self.number, "abort", (reason,))

    def check(self) -> None:
        self._remote.ask("plain", self.number, "check", ())

    def close(self) -> None:
        self._remote.ask("plain", self.number, "close", ())

    def __enter__(self) -> RemoteGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def _call(self, what: str, x: Any, out: Any, *more: Any) -> Any:
        wholes: list[Array] = []
        views = [packed(one, wholes) for one in (x, out)]
        result, changed = self._remote.ask(
            "call",
            self.number,
            what,
            [memory_of(one) for one in wholes],
            views,
            more,
            np.geterr(),
            check=self._check,
        )
        if out is None:
            return type(x)(result) if is_on_device(x) else result
        for whole, new in zip(wholes, changed):
            memory_of(whole)[...] = new
        return out


def packed(one: Any, wholes: list[Array]) -> Any:
    """Return an array as a view of its base array, for pickling."""
    if is_on_device(one):
        return ("on a device", type(one).__name__, packed(one.host, wholes))
    if not isinstance(one, np.ndarray) or one.dtype.hasobject:
        return ("as it is", one)
    whole = one
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    number = next((at for at, known in enumerate(wholes) if known is whole), len(wholes))
    if number == len(wholes):
        wholes.append(whole)
    at = one.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return ("view", number, at, one.shape, one.dtype, one.strides)


def memory_of(whole: Array) -> Array:
    """Return the bytes of an array that owns its memory, for pickling."""
    return whole.ravel(order="K").view(np.uint8)


def unpacked(view: Any, wholes: Sequence[Array]) -> Any:
    if view[0] == "as it is":
        return view[1]
    if view[0] == "on a device":
        kind = type(view[1], (DeviceArray,), {"__module__": "cupy"})
        return kind(unpacked(view[2], wholes))
    _, number, at, shape, dtype, strides = view
    return np.ndarray(shape, dtype, wholes[number].data, at, strides)


def remote_groups(
    ranks: Sequence[RemoteRank],
    check: Callable[[], None] | None = None,
    hosts: Sequence[str] = (),
    **options: Any,
) -> list[RemoteGroup]:
    """Form a group of some ranks of a world."""
    everyone = [replace(one, **options) for one in members(hosts or ["here"] * len(ranks))]
    groups = [RemoteGroup(remote, rank, len(ranks), check) for rank, remote in enumerate(ranks)]

    def each(work: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * len(ranks)

        def run(rank: int) -> None:
            results[rank] = work(rank)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        return results

    made = each(lambda rank: ranks[rank].ask("make_endpoint", everyone[rank], check is not None))
    infos = [info for _, info in made]
    numbers = [number for number, _ in made]
    joined = each(lambda rank: ranks[rank].ask("join", numbers[rank], infos, check=check))
    assert joined == ["mpi"] * len(ranks)
    for group, number in zip(groups, numbers):
        group.number = number
    return groups


class Server:
    """The server in a rank's process: executes each request in its own thread."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe, self._sending = pipe, threading.Lock()
        self._groups: dict[int, Any] = {}
        self._here = threading.local()
        self._answers: dict[int, SimpleQueue[Any]] = {}

    def run(self) -> None:
        with suppress(EOFError):
            while True:
                number, what, *values = self._pipe.recv()
                if what == "continue":
                    self._answers[number].put(values[0])
                else:
                    self._answers[number] = SimpleQueue()
                    threading.Thread(target=self._answer, args=(number, what, values), daemon=True).start()
        os._exit(0)

    def _answer(self, number: int, what: str, values: list[Any]) -> None:
        self._here.number = number
        try:
            answer = ("done", getattr(self, what)(*values))
        except BaseException as error:
            answer = ("raised", error)
        self._send(number, *answer)

    def _send(self, *message: Any) -> None:
        with self._sending:
            self._pipe.send(message)

    def _check(self) -> None:
        number = self._here.number
        self._send(number, "check", None)
        error = self._answers[number].get()
        if error is not None:
            raise error

    def make_endpoint(self, member: Any, checks: bool) -> tuple[int, Any]:
        from nbdist.wire.collective.mpi.collective import MpiEndpoint

        endpoint = MpiEndpoint(replace(member, check=self._check if checks else None))
        number = len(self._groups)
        self._groups[number] = endpoint
        return number, endpoint.info

    def join(self, number: int, infos: Any, timeout: float = SECONDS) -> str:
        self._groups[number] = self._groups[number].join(infos, timeout)
        return str(self._groups[number].kind)

    def sequence(self, number: int) -> int:
        return int(self._groups[number].sequence)

    def notes(self, number: int) -> list[str]:
        return list(self._groups[number].notes)

    def open_count(self) -> int:
        from nbdist.wire.collective.mpi import transport

        transport.free_closed()
        return len(transport._open_transports)

    def open_stray_receive(self) -> None:
        from mpi4py import MPI

        self._stray = MPI.COMM_WORLD.Irecv(bytearray(1 << 20), MPI.ANY_SOURCE, MPI.ANY_TAG)

    def close_stray_receive(self) -> bool:
        untouched = not self._stray.Test()
        self._stray.Cancel()
        self._stray.Wait()
        return untouched

    def plain(self, number: int, what: str, arguments: tuple[Any, ...]) -> None:
        getattr(self._groups[number], what)(*arguments)

    def call(self, number: int, what: str, wholes: Any, views: Any, more: Any, errors: Any) -> Any:
        x, out = (unpacked(view, wholes) for view in views)
        if is_on_device(x) or is_on_device(out):
            sys.modules["cupy"] = FakeCupy()
        with np.errstate(**errors):
            result = getattr(self._groups[number], what)(x, *more, out=out)
        if out is not None:
            return None, wholes
        return (result.host if isinstance(result, DeviceArray) else result), []


if __name__ == "__main__":
    from nbdist.wire.collective.mpi.world import enter_world

    enter_world(finalize=False)  # as engines do; it waits for all ranks
    Server(Connection(int(sys.argv[1]))).run()
