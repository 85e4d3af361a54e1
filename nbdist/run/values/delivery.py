"""Sends pushed values to tasks: each host receives the arrays once, in memory that its tasks share.

client                                  first task of another host          the host's other tasks
SharedFile, written once (its own host)
push.open  push, size ────────────────► SharedFile
push.part  push, at; bytes ───────────► written, 16 MiB at a time
push.close push ──────────────────────► removed
nodes, name of each host's file ──(with the call that runs the body)──────► mapped read-only

The client's own host needs no "push" messages: its tasks map the file that the client wrote. The client
removes the files when the run or the sweep ends; if it was killed, the cluster removes them at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any, Protocol

import numpy as np

from nbdist.errors import InvalidArgumentError, NbdistError, NotFoundError
from nbdist.run.values.push import Packed, build, pack
from nbdist.runtime.server import Handler
from nbdist.runtime.task import TaskInfo
from nbdist.wire.hosts import host_identity
from nbdist.wire.rpc.client import Caller, Peer
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Segment, SharedFile

PART_BYTES = 16 << 20
MOST_BYTES = 1 << 40
PART_SECONDS = 60.0  # for one part, over a slow network


@dataclass
class Given:
    """The inputs of a body: variables by name; for a function its arguments and its closure."""

    names: dict[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    closure: dict[str, Any] = field(default_factory=dict)

    def hold(self, host: str) -> None:
        """Do nothing: there is no shared memory."""

    def open(self, host: str) -> Given:
        """Return it unchanged: a body in the client's own process needs no transfer."""
        return self

    def pack(self) -> Packed | None:
        """Return the description of all inputs; None if there are none."""
        if not (self.names or self.args or self.kwargs or self.closure):
            return None
        parts: dict[str, dict[Any, Any]] = {
            "names": self.names,
            "args": dict(enumerate(self.args)),
            "kwargs": self.kwargs,
            "closure": self.closure,
        }
        return pack({(part, key): v for part, values in parts.items() for key, v in values.items()}, _called)


def _called(key: tuple[str, Any]) -> str:
    """Return the name of a value in error messages."""
    part, name = key
    return str(name) if part == "names" else f"{part}[{name!r}]"


def _given(values: Mapping[tuple[str, Any], Any]) -> Given:
    parts: dict[str, dict[Any, Any]] = {"names": {}, "args": {}, "kwargs": {}, "closure": {}}
    for (part, key), value in values.items():
        parts[part][key] = value
    return Given(parts["names"], tuple(parts["args"].values()), parts["kwargs"], parts["closure"])


def without_closure(body: Any) -> tuple[Any, dict[str, Any]]:
    """Return the function with empty closure cells, and the values of its cells by name.

    >>> def outer(n):
    ...     return lambda: n
    >>> bare, closure = without_closure(outer(3))
    >>> closure, with_closure(bare, closure)()
    ({'n': 3}, 3)
    """
    if not isinstance(body, FunctionType) or not body.__closure__:
        return body, {}
    names = body.__code__.co_freevars
    bare = FunctionType(
        body.__code__,
        body.__globals__,
        body.__name__,
        body.__defaults__,
        tuple(CellType(None) for _ in names),
    )
    bare.__kwdefaults__, bare.__module__, bare.__qualname__ = (
        body.__kwdefaults__,
        body.__module__,
        body.__qualname__,
    )
    closure = {}
    for name, cell in zip(names, body.__closure__, strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            closure[name] = cell.cell_contents
    return bare, closure


def with_closure(body: Any, closure: Mapping[str, Any]) -> Any:
    """Put values into a function's cells; undoes :func:`without_closure`."""
    for name, cell in zip(body.__code__.co_freevars, body.__closure__, strict=True) if closure else ():
        if name in closure:
            cell.cell_contents = closure[name]
    return body


@dataclass
class Pushed:
    """The message to the tasks: the nodes, and the name of each host's shared file by host identity."""

    packed: Packed
    files: dict[str, str]
    _memory: memoryview | None = field(default=None, repr=False, compare=False)

    def hold(self, host: str) -> memoryview:
        """Map the arrays on a task of ``host``, once; the mapping outlives the removal of the file."""
        if self._memory is None:
            memory = memoryview(b"")
            if self.packed.size:
                name = self.files.get(host)
                if name is None:
                    raise NotFoundError(
                        "the pushed arrays were not sent to this task's host, which joined later: start the "
                        "run or the sweep again"
                    )
                memory = Segment.open(name, writable=False).bytes.data
            self._memory = memory
        return self._memory

    def open(self, host: str) -> Given:
        """Return the values on a task of ``host``; large arrays are read-only views of the host's copy."""
        memory = self.hold(host)
        return _given(build(self.packed, memory))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_memory": None}


class Connected(Protocol):
    """The part of a cluster that a delivery uses."""

    def peer(self, rank: int) -> Peer:
        """Return a connection to a task."""


class Delivery:
    """Sends packed values to hosts, and removes them there at the end; from one thread at a time."""

    def __init__(self, push: str, packed: Packed, cluster: Connected, prefix: str) -> None:
        self.pushed = Pushed(packed.nodes(), {})
        self._push, self._packed, self._cluster, self._prefix = push, packed, cluster, prefix
        self._own: SharedFile | None = None
        self._elsewhere: list[int] = []  # ranks that hold the file of their host

    def send(self, tasks: Iterable[TaskInfo], here: str | None = None) -> Pushed:
        """Send the arrays to the hosts of ``tasks`` that do not have them; ``here`` is the client's host.

        Raises ResourceExhaustedError where a host has no room, UnavailableError for a task that does not
        answer.
        """
        here = here or host_identity()
        for info in tasks if self._packed.size else ():
            if info.host in self.pushed.files:
                continue
            if info.host == here:
                self._own = self._own or SharedFile(self._prefix, self._packed.size)
                self._own.write(self._packed.buffers)
                self.pushed.files[info.host] = self._own.name
            else:
                self.pushed.files[info.host] = self._upload(info)
        return self.pushed

    def _upload(self, info: TaskInfo) -> str:
        peer, push = self._cluster.peer(info.rank), self._push
        opened = peer.call("push.open", {"push": push, "size": self._packed.size}, timeout=PART_SECONDS)
        self._elsewhere.append(info.rank)
        for at, data in self._packed.buffers:
            whole = np.frombuffer(data, np.uint8)
            for start in range(0, len(whole), PART_BYTES):
                meta = {"push": push, "at": at + start}
                peer.call("push.part", meta, [whole[start : start + PART_BYTES]], timeout=PART_SECONDS)
        return str(opened.meta["file"])

    def close(self) -> None:
        """Remove the files; tasks keep their mappings. May be called twice."""
        if self._own is not None:
            self._own.close()
        for rank in self._elsewhere:
            with suppress(NbdistError):  # a task that has died: its files are removed with the cluster
                self._cluster.peer(rank).send("push.close", {"push": self._push})
        self._elsewhere = []


class Receiver:
    """A task's side: keeps the files that other hosts' clients send. Handlers run on the Server's thread."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._files: dict[str, SharedFile] = {}

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each kind of message."""
        return {"push.open": self._open, "push.part": self._part, "push.close": self._close}

    def drop(self, push: str) -> None:
        """Remove the file of a push, if there is one."""
        if (file := self._files.pop(push, None)) is not None:
            file.close()

    def close(self) -> None:
        """Remove all files."""
        for push in list(self._files):
            self.drop(push)

    def _open(self, frame: Frame, sender: Caller) -> Frame:
        push, size = frame.meta["push"], frame.meta["size"]
        if not isinstance(push, str) or type(size) is not int or not 0 < size <= MOST_BYTES:
            raise InvalidArgumentError(
                f"push.open takes a name and 1 to {MOST_BYTES:,} bytes, not {size!r:.40}"
            )
        self.drop(push)
        self._files[push] = SharedFile(self._prefix, size)
        return Frame("push.opened", {"file": self._files[push].name})

    def _part(self, frame: Frame, sender: Caller) -> Frame:
        file, at = self._files.get(frame.meta["push"]), frame.meta["at"]
        if file is None or type(at) is not int or len(frame.arrays) != 1:
            raise InvalidArgumentError("push.part follows push.open, with an offset and one array of bytes")
        file.write([(at, memoryview(np.ascontiguousarray(frame.arrays[0]).view(np.uint8).reshape(-1).data))])
        return Frame("push.written")

    def _close(self, frame: Frame, sender: Caller) -> None:
        self.drop(str(frame.meta["push"]))


_NOTHING = object()


@contextmanager
def names_added(namespace: dict[str, Any], names: Mapping[str, Any]) -> Iterator[None]:
    """Add names to a namespace inside a ``with``; at its end restore those that were not rebound.

    >>> space = {"x": 1}
    >>> with names_added(space, {"x": 2, "y": 3, "z": 4}):
    ...     space["z"] = 5
    >>> space
    {'x': 1, 'z': 5}
    """
    before = {name: namespace.get(name, _NOTHING) for name in names}
    namespace.update(names)
    try:
        yield
    finally:
        for name, value in names.items():
            if namespace.get(name, _NOTHING) is not value:
                continue
            if before[name] is _NOTHING:
                del namespace[name]
            else:
                namespace[name] = before[name]


def user_namespace() -> dict[str, Any]:
    """Return the variables of the notebook, or of the script that this process runs."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    found: dict[str, Any] = vars(sys.modules["__main__"]) if shell is None else shell.user_ns
    return found


def missing_name(
    name: str, names: Iterable[str], by_flag: bool, namespace: Mapping[str, Any] | None = None
) -> str:
    """Return the remedy for a name that a body lacks; empty if the notebook lacks it too.

    >>> missing_name("n", ["x"], True, {"n": 3})
    '`n` is defined in the notebook, not on the workers: add --push x,n'
    >>> missing_name("n", [], False, {"n": 3})
    "`n` is defined in the notebook, not on the workers: pass it with push={'n': n}"
    """
    if name not in (user_namespace() if namespace is None else namespace):
        return ""
    both = [*names, name]
    pairs = ", ".join(f"{one!r}: {one}" for one in both)
    how = f"add --push {','.join(both)}" if by_flag else f"pass it with push={{{pairs}}}"
    return f"`{name}` is defined in the notebook, not on the workers: {how}"
