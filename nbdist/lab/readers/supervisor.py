"""What a cluster's keeper says of its tasks: which processes live, which have ended, and how.

Only the keeper knows how a process has ended, and that a pid is still the task's own (it has not reaped it).
It is asked over one remembered connection, with "watch", which does not keep a cluster alive. Nothing here
waits for one that hangs: its answer, whenever it comes, is taken in at a later look. When anything has
happened the keeper is asked anew for the whole truth, so that no event needs to be understood here.
"""

from __future__ import annotations

import json
import select
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from nbdist.cluster.supervisor.process import short_path
from nbdist.lab.readers.cluster_file import TaskSeen, parse_tasks, whole

PATIENCE_SECONDS = 0.05  # for an answer, once: a keeper that lives needs a thousandth of it
RETRY_SECONDS = 5.0  # between two tries to reach one that cannot be reached
MOST_HEARD = 16 << 20  # bytes without an end of line
QUESTION = b'{"id": 1, "request": "watch"}\n'


@dataclass(frozen=True)
class Word:
    """What a keeper has said last."""

    pids: Mapping[int, int] = field(default_factory=dict)
    """The processes that live, by rank; -1 is the controller."""
    exits: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """How those have ended that do not, by rank."""
    stopping: bool = False
    tasks: tuple[TaskSeen, ...] | None = None
    """The tasks, once some have come, left or been replaced: what counts before the cluster's file does."""


def parse_word(message: object) -> Word | None:
    """Return what an answer of a keeper says, or None if it is none; whatever it holds, nothing is raised.

    >>> parse_word({"reply": 1, "pids": {"0": 17}, "exits": {}, "stopping": False}).pids
    {0: 17}
    """
    if not isinstance(message, dict) or "reply" not in message:
        return None
    pids, exits = message.get("pids"), message.get("exits")
    if not isinstance(pids, dict) or not isinstance(exits, dict):
        return None
    ranks = {str(key): rank for key in {*pids, *exits} if (rank := _rank(key)) is not None}
    return Word(
        {ranks[key]: pid for key in pids if key in ranks and (pid := whole(pids[key]))},
        {ranks[key]: exits[key] for key in exits if key in ranks and isinstance(exits[key], dict)},
        message.get("stopping") is True,
        parse_tasks(message.get("tasks")),
    )


def _rank(key: object) -> int | None:
    with suppress(ValueError):
        if isinstance(key, str) and len(key) < 10:
            return int(key)
    return None


class KeeperWord:
    """A connection to one cluster's keeper that is never waited for longer than a moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._word: Word | None = None
        self._socket: socket.socket | None = None
        self._heard = b""
        self._asked = self._fresh = False  # a question is out; it has not been waited for
        self._retry_at = 0.0

    @property
    def connected(self) -> bool:
        """Whether the keeper holds the other end: then it lives."""
        return self._socket is not None

    def hear(self, patience: float = PATIENCE_SECONDS) -> Word | None:
        """Return what the keeper says now; None if it does not answer, or cannot be reached."""
        self._take_in()
        if self._socket is None and time.monotonic() >= self._retry_at:
            self._connect()
        if self._fresh:
            self._fresh = False  # if it hangs, that is not waited for again
            self._take_in(patience)
        return self._word

    def close(self) -> None:
        """Hang up, and forget what was said."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._word, self._heard = None, None, b""
        self._asked = self._fresh = False

    def __del__(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _connect(self) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)  # connecting waits as well, when a frozen keeper's queue is full
        try:
            with short_path(self.folder) as short:
                if not stat.S_ISSOCK((self.folder / "keeper.sock").lstat().st_mode):
                    raise FileNotFoundError
                one.connect(f"{short}/keeper.sock")
        except OSError:
            one.close()
            return
        self._socket = one
        self._ask()

    def _ask(self) -> None:
        assert self._socket is not None
        self._word = None
        try:
            self._socket.sendall(QUESTION)
            self._asked = self._fresh = True
        except OSError:  # BlockingIOError too: it has not read for a long time
            self.close()

    def _take_in(self, patience: float = 0.0) -> None:
        """Take in all that has come; for an answer wait up to ``patience`` seconds."""
        deadline = time.monotonic() + patience
        while self._socket is not None:
            try:
                heard = self._socket.recv(1 << 18)
            except BlockingIOError:
                if self._word is None and self._wait(deadline - time.monotonic()):
                    continue
                return
            except OSError:
                heard = b""
            if not heard or len(self._heard) > MOST_HEARD:
                self.close()
                return
            *lines, self._heard = (self._heard + heard).split(b"\n")
            for line in lines:
                self._note(line)

    def _wait(self, seconds: float) -> bool:
        if seconds <= 0 or self._socket is None:
            return False
        poll = select.poll()  # select() would fail in a process with more than 1,024 open files
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(ceil(seconds * 1000)))

    def _note(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(message, dict) and "reply" in message:
            self._asked = False
            self._word = parse_word(message)
        elif not self._asked and self._socket is not None:
            self._ask()
