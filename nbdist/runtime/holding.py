"""A shard that a parameter server holds: its replicas, its creation, the answers to its replicas.

A holding begins with the first replica that asks for it, holds a shard from the chief's initial values on,
and answers each replica the way its gradients come: by a doorbell, or by a push.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.optim import from_config
from nbdist.runtime.answers import REFUSED, STEPPED, STOPPED, Answer
from nbdist.runtime.applied import ServiceLog
from nbdist.runtime.layout import Layout
from nbdist.runtime.links import refused
from nbdist.runtime.mailbox import ANSWER, COUNTERS, Mailbox
from nbdist.runtime.rules import Rules
from nbdist.runtime.shard import ParameterShard
from nbdist.runtime.tables import Table
from nbdist.wire.collective.watch import Watch
from nbdist.wire.frames import Frame
from nbdist.wire.messages import error_frame
from nbdist.wire.peers import Sender
from nbdist.wire.shm import Ringer, Segment

Array = np.ndarray[Any, Any]
Post = Callable[[Callable[[], object]], None]


@dataclass
class Holding:
    """A shard, its replicas, and an answer channel for each; ``post`` calls on the server's thread."""

    name: str
    number: int
    rules: Rules
    layout: Layout
    opener: str
    server: str
    log: ServiceLog
    post: Post
    tables: tuple[Table, ...] = ()
    """Tables beside the layout: the chief fills them part by part, and messages carry single rows."""
    missing: int = 0
    """Rows of the initial tables that the chief has not sent yet."""
    reading: set[int] = field(default_factory=set)
    """Replicas that read the final tables."""
    shard: ParameterShard | None = None
    mailbox: Mailbox | None = None
    note: str = ""
    opening: dict[int, tuple[Sender, dict[str, Any]]] = field(default_factory=dict)
    senders: dict[int, Sender] = field(default_factory=dict)
    ringers: dict[int, Ringer] = field(default_factory=dict)
    leaving: dict[int, Sender] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    called: dict[int, str] = field(default_factory=dict)
    processes: Watch | None = None
    frozen: set[int] = field(default_factory=set)
    _gradients: dict[tuple[int, int], list[Array]] = field(default_factory=dict)

    def make(self, meta: dict[str, Any], initial: tuple[Array, ...], prefix: str) -> None:
        """Make the shard as the chief asks for it, in shared memory if it wants that and there is room."""
        optimizer, shapes = from_config(meta["optimizer"]), [entry.shape for entry in self.layout.entries]
        if [value.shape for value in initial] != shapes:
            raise InvalidArgumentError(
                f"initial values of shapes {[value.shape for value in initial]} for variables of {shapes}"
            )
        memory, counters = self.layout.buffer(), np.zeros(COUNTERS, np.int64)
        tables = [np.zeros(shape, dtype) for _, shape, dtype in self.tables]
        self.missing = sum(len(table) for table in tables)
        if meta["shared"] and not tables:
            try:
                size = Mailbox.size(self.layout, self.rules.replicas)
                self.mailbox = Mailbox(Segment.create(prefix, size), self.layout, self.rules.replicas)
                memory, counters = self.mailbox.parameters, self.mailbox.counters
            except ResourceExhaustedError as error:
                self.note = f"parameters travel over sockets: {error}"
        try:
            for view, value in zip(self.layout.views(memory), initial, strict=True):
                np.copyto(view, value)
            self.shard = ParameterShard(
                self.layout,
                memory,
                counters,
                optimizer,
                self.rules,
                counts=bool(meta["counts"]),
                first=bool(meta["first"]),
                tables=tables,
            )
        except BaseException:  # for example no memory for the optimizer's slots: free all of it
            if self.mailbox is not None:
                self.mailbox.segment.close()
                self.mailbox = None
            raise

    def bytes_for(self, meta: dict[str, Any]) -> int:
        """Return the bytes that the shard takes: parameters, gradients in slots, the optimizer's slots."""
        kept = len(from_config(meta["optimizer"]).get_slot_names())
        tables = sum(prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in self.tables)
        shared = Mailbox.size(self.layout, self.rules.replicas) if meta["shared"] else self.layout.size
        return shared + kept * self.layout.size + (1 + kept) * tables

    def fill(self, table: int, first: int, rows: Array) -> None:
        """Store some of the initial rows of a table."""
        assert self.shard is not None
        array = self.shard.tables.arrays[table]
        inside = 0 <= first <= first + len(rows) <= len(array) and rows.shape[1:] == array.shape[1:]
        if not inside or len(rows) > self.missing:
            raise InvalidArgumentError(f"rows {rows.shape} from {first} on are not part of {array.shape}")
        array[first : first + len(rows)] = rows
        self.missing -= len(rows)

    @property
    def ready(self) -> bool:
        """Whether the initial values are complete."""
        return self.shard is not None and self.missing == 0

    def admit(self, replica: int, listen: Callable[[], str]) -> None:
        """Tell a replica how to reach the shard; ``listen`` returns the name of the server's doorbell."""
        sender, meta = self.opening.pop(replica)
        reply: dict[str, Any] = {"number": self.number, "segment": None, "note": self.note}
        if self.mailbox is not None and meta["bell"]:
            try:
                self.ringers[replica] = Ringer(meta["bell"])
            except (NotFoundError, NotAllowedError):
                reply["note"] = "parameters travel over sockets: the server sees other shared memory"
            else:
                reply |= {"segment": self.mailbox.segment.name, "bell": listen()}
        self.senders[replica], self.called[replica] = sender, str(meta.get("called", ""))
        push(sender, Frame("ps.opened", reply))

    def gradient(self, mailbox: Mailbox, replica: int, slot: int) -> list[Array]:
        """Return what a replica has written to a slot of the shared memory."""
        found = self._gradients.get((replica, slot))
        if found is None:
            found = self.layout.flats(mailbox.gradients[replica][slot])
            self._gradients[replica, slot] = found
        return found

    def ring(self, replica: int, what: int, slot: int) -> None:
        """Ring for a replica of this host."""
        ringer = self.ringers.get(replica)
        if ringer is not None:
            with suppress(ConnectionError):  # it has died: the next look at all replicas finds out
                ringer.ring(ANSWER.pack(what, slot))

    def answer(self, answer: Answer) -> None:
        """Tell a replica, over the way it came, what became of its gradient."""
        replica, token, staleness, what = answer
        if what == STOPPED and self.rules.fails_without(len(self.lost)):
            self.tell(replica, self.trouble())
        elif replica in self.ringers and self.mailbox is not None:
            if what != STEPPED:
                self.mailbox.headers[replica][token][1] = staleness
            self.ring(replica, what, token)
        elif self.shard is not None:
            version = self.shard.version
            meta = {"what": what, "token": token, "staleness": staleness, "version": version}
            self.tell(replica, Frame("ps.applied", meta))

    def tell(self, replica: int, frame: Frame) -> None:
        """Push a frame to a replica, if it is known here; from any thread."""
        sender = self.senders.get(replica)
        if sender is not None:
            self.post(partial(push, sender, frame))

    def all_left(self) -> bool:
        """Whether no further replica is expected."""
        return len(self.leaving.keys() | self.lost) >= self.rules.replicas

    def lose(self, replica: int, *, frozen: bool = False) -> None:
        """Continue without a replica that is dead or ``frozen``; if the others cannot, send them an error.

        The cluster reports deaths. Only this server detects frozen replicas, so it notifies the others.
        """
        assert self.shard is not None
        self.lost.add(replica)
        if frozen:
            self.frozen.add(replica)
            for other in self.senders.keys() - self.lost:
                self.tell(other, Frame("ps.lost", {"replicas": sorted(self.frozen)}))
            self.refuse(replica)  # it may wait for an answer that this completes
        for answer in self.shard.leave(replica, died=True):
            self.answer(answer)
        if self.shard.broken_up and self.rules.fails_without(len(self.lost)):
            for other in self.senders.keys() - self.lost - self.leaving.keys():
                self.tell(other, self.trouble())

    def refuse(self, replica: int) -> None:
        """Notify a replica, over each of its connections, that the others have continued without it."""
        self.ring(replica, REFUSED, 0)
        self.tell(replica, error_frame(refused(replica, self.server)))

    def trouble(self) -> Frame:
        """Return the error that a synchronous step cannot complete, because a replica is dead or frozen."""
        who = ", ".join(f"{replica} {self.called.get(replica, '')}".strip() for replica in sorted(self.lost))
        what = "frozen" if self.lost == self.frozen else "dead"
        return error_frame(
            UnavailableError(
                f"replica {who} is {what}, and a synchronous step takes {self.rules.needed} gradients of the "
                f"{self.rules.replicas} replicas; train without it, or have backups (a smaller aggregate=)"
            )
        )

    def look(self, frozen_seconds: float) -> None:
        """Find replicas that are frozen, or dead while others wait for them. On the server's thread.

        A frozen process is detected by its state: a process that computes, or holds the interpreter for a
        minute in native code, is not frozen. The server evicts a frozen replica even if no other replica
        waits for it, so that all servers of a training decide alike, and refuses its late gradients.
        """
        if self.shard is None:
            return
        staying = set(range(self.rules.replicas)) - self.leaving.keys() - self.lost
        if self.processes is not None:
            for replica in staying.intersection(self.processes.frozen(frozen_seconds)):
                self.lose(replica, frozen=True)
        if not (self.leaving or self.shard.waited_for):
            return
        ended = set() if self.processes is None else set(self.processes.dead())
        if self.processes is not None and self.senders.keys() & self.processes.seen():
            # A replica may die before the first one opens the shard: then the server has no process to
            # watch. If it sees the processes that joined (one PID namespace), an unseen replica is dead.
            ended |= set(self.processes.unseen()) - self.senders.keys()
        for replica in sorted(staying - self.lost):
            if replica in ended or (replica in self.senders and self.is_gone(replica)):
                self.lose(replica)

    def is_gone(self, replica: int) -> bool:
        """Whether a replica that was here has died, as far as can be seen. On the server's thread."""
        ringer = self.ringers.get(replica)
        if ringer is not None:
            return not ringer.heard()
        try:
            self.senders[replica].push(Frame("ps.there"))
        except ConnectionError:
            return True
        return False

    def close(self) -> None:
        """Close the doorbells, the shared memory and the process descriptors."""
        if self.processes is not None:
            self.processes.close()
        for ringer in self.ringers.values():
            ringer.close()
        if self.mailbox is not None:
            self.mailbox.segment.close()

    def require(self, layout: Layout, tables: tuple[Table, ...], rules: Rules, who: str) -> None:
        """Raise InvalidArgumentError, naming what differs, unless a replica asks for what the others do."""
        if layout != self.layout:
            raise InvalidArgumentError(different(self.layout, self.opener, layout, who))
        if tables != self.tables:
            ours, theirs = Layout.of(self.tables), Layout.of(tables)
            raise InvalidArgumentError(different(ours, self.opener, theirs, who))
        if rules != self.rules:
            raise InvalidArgumentError(
                f"{who} asks for {rules} and {self.opener} for {self.rules}; all replicas have to train alike"
            )


def push(sender: Sender, frame: Frame) -> None:
    """Push a frame to a replica that may be dead; runs on the server's thread."""
    with suppress(ConnectionError):  # it has died or been cut off; the cluster reports that to the client
        sender.push(frame)


def different(one: Layout, first: str, other: Layout, who: str) -> str:
    """Return what to say of two layouts that should be equal: the first variable in which they are not."""

    def text(entry: Any) -> str:
        return f"{entry.name} {entry.shape} {entry.dtype}" if entry else "nothing"

    ours, theirs = one.entries, other.entries
    for i in range(max(len(ours), len(theirs))):
        a = ours[i] if i < len(ours) else None
        b = theirs[i] if i < len(theirs) else None
        if a != b:
            return (
                f"the replicas built different models: variable {i} is {text(a)} on {first} "
                f"and {text(b)} on {who}; build the same model on every worker"
            )
    return "the replicas built different models"
