"""A shard that a parameter server holds: who uses it, how it is made, and how each is answered.

A holding begins with the first replica that asks for it, holds a shard from the chief's initial values on,
and answers each replica the way its gradients come: by a doorbell, or by a push.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError
from nbdist.optim import from_config
from nbdist.runtime.applied import ServiceLog
from nbdist.runtime.layout import Layout
from nbdist.runtime.mailbox import ANSWER, APPLIED, STOPPED, Mailbox
from nbdist.runtime.shard import Applied, ParameterShard
from nbdist.wire.frames import Frame
from nbdist.wire.peers import Sender
from nbdist.wire.shm import Ringer, Segment

Array = np.ndarray[Any, Any]
Post = Callable[[Callable[[], object]], None]


@dataclass
class Holding:
    """A shard with who uses it and how each is answered; ``post`` runs a function on the server's thread."""

    name: str
    number: int
    replicas: int
    layout: Layout
    first: str
    log: ServiceLog
    post: Post
    shard: ParameterShard | None = None
    mailbox: Mailbox | None = None
    note: str = ""
    opening: dict[int, tuple[Sender, dict[str, Any]]] = field(default_factory=dict)
    senders: dict[int, Sender] = field(default_factory=dict)
    ringers: dict[int, Ringer] = field(default_factory=dict)
    leaving: dict[int, Sender] = field(default_factory=dict)
    _gradients: dict[tuple[int, int], list[Array]] = field(default_factory=dict)

    def make(self, meta: dict[str, Any], initial: tuple[Array, ...], prefix: str) -> None:
        """Make the shard as the chief asks for it, in shared memory if it wants that and there is room."""
        memory, counters = self.layout.buffer(), np.zeros(2, np.int64)
        if meta["shared"]:
            try:
                size = Mailbox.size(self.layout, self.replicas)
                self.mailbox = Mailbox(Segment.create(prefix, size), self.layout, self.replicas)
                memory, counters = self.mailbox.parameters, self.mailbox.counters
            except ResourceExhaustedError as error:
                self.note = f"parameters travel over sockets: {error}"
        for view, value in zip(self.layout.views(memory), initial, strict=True):
            np.copyto(view, value)
        self.shard = ParameterShard(
            self.layout,
            memory,
            counters,
            from_config(meta["optimizer"]),
            replicas=self.replicas,
            synchronous=bool(meta["synchronous"]),
            counts=bool(meta["counts"]),
        )

    def admit(self, replica: int, listen: Callable[[], str]) -> None:
        """Tell a replica how to reach the shard; ``listen`` returns the name of the server's doorbell."""
        sender, meta = self.opening.pop(replica)
        reply: dict[str, Any] = {"number": self.number, "segment": None, "note": self.note}
        if self.mailbox is not None and meta["bell"]:
            try:
                self.ringers[replica] = Ringer(meta["bell"])
            except NotFoundError:
                reply["note"] = "parameters travel over sockets: the server sees other shared memory"
            else:
                reply |= {"segment": self.mailbox.segment.name, "bell": listen()}
        self.senders[replica] = sender
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
            try:
                ringer.ring(ANSWER.pack(what, slot))
            except ConnectionError:
                self.ringers.pop(replica, None)  # it has died; the client is told by the cluster

    def answer(self, applied: Applied) -> None:
        """Tell a replica, over the way it came, what became of its gradient."""
        what = STOPPED if applied.stopped else APPLIED
        if applied.replica in self.ringers and self.mailbox is not None:
            self.mailbox.headers[applied.replica][applied.token][1] = applied.staleness
            self.ring(applied.replica, what, applied.token)
            return
        sender = self.senders.get(applied.replica)
        meta = {"what": what, "token": applied.token, "staleness": applied.staleness}
        if sender is not None:
            self.post(lambda: push(sender, Frame("ps.applied", meta)))

    def close(self) -> None:
        """Let go of the doorbells and the shared memory."""
        for ringer in self.ringers.values():
            ringer.close()
        if self.mailbox is not None:
            self.mailbox.segment.close()

    def require(self, layout: Layout, who: str) -> None:
        """Raise InvalidArgumentError, naming the first variable that differs, unless the models are one."""
        if layout != self.layout:
            raise InvalidArgumentError(different(self.layout, self.first, layout, who))


def push(sender: Sender, frame: Frame) -> None:
    """Push a frame to who may be gone; runs on the server's thread."""
    with suppress(ConnectionError):  # it has died or been cut off; the client is told by the cluster
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
