"""The store of torch.distributed for one run: on the first rank's task, behind the cluster's keys.

    values = StoreService(task.server)                # on each task; the first rank's has the values of a run
    store = connect_store(peer, run, check)           # on each rank: a torch.distributed.Store
    with rendezvous_at(store, port):                  # what init_process_group() finds here

A TCPStore, which torchrun serves, answers every user that can connect to its port: they read and set its
keys. The calls of this store are messages between tasks, which prove that they hold the cluster's keys. No
port is opened for it, and a rank that waits for a key leaves the wait when its run is aborted.
"""

from __future__ import annotations

import importlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np

from nbdist.errors import AbortedError
from nbdist.runtime.server import Server
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.rpc.server import Caller

REQUEST = "torch.store"
CALL_SECONDS = 60.0  # for an answer of a task that is busy
FIRST_LOOK, LAST_LOOK = 0.001, 0.05  # seconds between two looks for a key that is not there yet
KEPT_RUNS = 64  # that have ended and are remembered


class StoreService:
    """Answers the calls of `connect_store`, for the runs of which this task is the first rank.

    All calls come from the Server's thread.
    """

    def __init__(self, server: Server) -> None:
        self._runs: dict[str, dict[str, bytes]] = {}
        self._past: deque[str] = deque(maxlen=KEPT_RUNS)
        server.on(REQUEST, self._answer)

    def drop_run(self, run: str) -> None:
        """Drop the values of a run; a rank that asks for one later gets an error."""
        if self._runs.pop(run, None) is not None:
            self._past.append(run)

    def _answer(self, frame: Frame, sender: Caller) -> Frame:
        run, keys = str(frame.meta["run"]), [str(key) for key in frame.meta["keys"]]
        if run in self._past:
            raise AbortedError(f"run {run} has ended: its store is gone")
        given = [bytes(array) for array in frame.arrays]
        count, values = apply(self._runs.setdefault(run, {}), str(frame.meta["do"]), keys, given)
        return Frame(REQUEST, {"count": count}, tuple(np.frombuffer(value, np.uint8) for value in values))


def apply(values: dict[str, bytes], do: str, keys: list[str], given: list[bytes]) -> tuple[int, list[bytes]]:
    """Do one call of a store; return its number and its values. What waits for a key asks "get" again.

    >>> values = {}
    >>> apply(values, "add", ["ranks"], [b"2"]), apply(values, "add", ["ranks"], [b"1"])
    ((2, []), (3, []))
    >>> apply(values, "compare", ["ranks"], [b"3", b"0"]), apply(values, "get", ["ranks", "other"], [])
    ((0, [b'0']), (1, [b'0']))
    """
    key = keys[0] if keys else ""
    match do:
        case "set":
            values.update(zip(keys, given, strict=True))
        case "append":
            values[key] = values.get(key, b"") + given[0]
        case "add":
            values[key] = str(int(values.get(key, b"0")) + int(given[0])).encode()
            return int(values[key]), []
        case "compare":  # torch's rule: a key that is not there is set if nothing is expected of it
            if values.get(key, b"") == given[0]:
                values[key] = given[1]
            return 0, [values.get(key, given[0])]
        case "delete":
            return int(values.pop(key, None) is not None), []
        case "list":
            return len(values), [name.encode() for name in values]
        case _:  # "get"
            found = [values[name] for name in keys if name in values]
            return len(found), found
    return 0, []


def connect_store(peer: Peer, run: str, check: Callable[[], None]) -> Any:
    """Return a torch.distributed.Store with the values of a run, which are on the task of ``peer``.

    ``check`` is called while a call waits for a key, and raises to end it. The store's methods raise what
    ``check`` raises, torch's DistStoreError if a key is not there in time, and UnavailableError if the task
    of the first rank is lost.
    """
    from torch.distributed import DistStoreError, Store

    def ask(do: str, keys: list[str], *given: bytes | str) -> tuple[int, list[bytes]]:
        arrays = [np.frombuffer(one.encode() if isinstance(one, str) else one, np.uint8) for one in given]
        answer = peer.call(REQUEST, {"run": run, "do": do, "keys": keys}, arrays, CALL_SECONDS)
        return int(answer.meta["count"]), [bytes(array) for array in answer.arrays]

    class TaskStore(Store):  # type: ignore[misc]  # torch is Any to mypy here
        """Torch calls some methods by their names in Python, and others by those in C++."""

        def set(self, key: str, value: bytes | str) -> None:
            ask("set", [key], value)

        def get(self, key: str) -> bytes:
            return self._await([key], self.timeout.total_seconds())[0]

        def multi_get(self, keys: list[str]) -> list[bytes]:
            return self._await(keys, self.timeout.total_seconds())

        def multi_set(self, keys: list[str], values: list[bytes | str]) -> None:
            ask("set", keys, *values)

        def append(self, key: str, value: bytes | str) -> None:
            ask("append", [key], value)

        def add(self, key: str, value: int) -> int:
            return ask("add", [key], str(value))[0]

        def compare_set(self, key: str, expected_value: bytes | str, desired_value: bytes | str) -> bytes:
            return ask("compare", [key], expected_value, desired_value)[1][0]

        def check(self, keys: list[str]) -> bool:
            return ask("get", keys)[0] == len(keys)

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            self._await(keys, (self.timeout if timeout is None else timeout).total_seconds())

        def delete_key(self, key: str) -> bool:
            return bool(ask("delete", [key])[0])

        def num_keys(self) -> int:
            return ask("list", [])[0]

        def list_keys(self) -> list[str]:
            return [name.decode() for name in ask("list", [])[1]]

        def clone(self) -> Any:
            copy = TaskStore()
            copy.set_timeout(self.timeout)
            return copy

        compareSet, deleteKey, getNumKeys, listKeys = compare_set, delete_key, num_keys, list_keys

        def _await(self, keys: list[str], seconds: float) -> list[bytes]:
            until, pause = time.monotonic() + seconds, FIRST_LOOK
            while True:
                count, values = ask("get", keys)
                if count == len(keys):
                    return values
                check()
                if time.monotonic() > until:
                    raise DistStoreError(f"wait timeout after {seconds:g} s, keys: {', '.join(keys)}")
                time.sleep(pause)
                pause = min(2 * pause, LAST_LOOK)

    return TaskStore()


@contextmanager
def rendezvous_at(store: Any, port: int) -> Iterator[None]:
    """Have ``init_process_group()`` use ``store``, inside a ``with``; also ``tcp://`` with this ``port``.

    Each group has keys of its own: a body that destroys its group can make another one.
    """
    from torch.distributed import PrefixStore

    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    before, groups = dict(handlers), 0

    def rendezvous(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
        nonlocal groups
        parts = urlparse(url)
        if parts.scheme == "tcp" and parts.port != port:
            yield from before["tcp"](url, **options)
            return
        asked = parse_qs(parts.query)
        rank, size = (
            int(asked[name][0] if name in asked else os.environ[name.upper()])
            for name in ("rank", "world_size")
        )
        groups += 1
        yield PrefixStore(f"group {groups}", store), rank, size
        raise RuntimeError("a process group of this run cannot be formed a second time from one rendezvous")

    handlers.update(env=rendezvous, tcp=rendezvous)
    try:
        yield
    finally:
        handlers.update(before)
