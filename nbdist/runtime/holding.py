"""A shard that a parameter server holds: who uses it, how it is made, and how each is answered.

A holding begins with the first replica that asks for it, holds a shard from the chief's initial values on,
and answers each replica the way its gradients come: by a doorbell, or by a push.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError, UnavailableError
from nbdist.optim import from_config
from nbdist.runtime.answers import STEPPED, STOPPED, Answer
from nbdist.runtime.applied import ServiceLog
from nbdist.runtime.layout import Layout
from nbdist.runtime.mailbox import ANSWER, COUNTERS, Mailbox
from nbdist.runtime.rules import Rules
from nbdist.runtime.shard import ParameterShard
from nbdist.wire.frames import Frame
from nbdist.wire.messages import error_frame
from nbdist.wire.peers import Sender
from nbdist.wire.shm import Ringer, Segment

Array = np.ndarray[Any, Any]
Post = Callable[[Callable[[], object]], None]


@dataclass
class Holding:
    """A shard with who uses it and how each is answered; ``post`` runs a function on the server's thread."""

    name: str
    number: int
    rules: Rules
    layout: Layout
    opener: str
    log: ServiceLog
    post: Post
    shard: ParameterShard | None = None
    mailbox: Mailbox | None = None
    note: str = ""
    opening: dict[int, tuple[Sender, dict[str, Any]]] = field(default_factory=dict)
    senders: dict[int, Sender] = field(default_factory=dict)
    ringers: dict[int, Ringer] = field(default_factory=dict)
    leaving: dict[int, Sender] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    called: dict[int, str] = field(default_factory=dict)
    _gradients: dict[tuple[int, int], list[Array]] = field(default_factory=dict)

    def make(self, meta: dict[str, Any], initial: tuple[Array, ...], prefix: str) -> None:
        """Make the shard as the chief asks for it, in shared memory if it wants that and there is room."""
        memory, counters = self.layout.buffer(), np.zeros(COUNTERS, np.int64)
        if meta["shared"]:
            try:
                size = Mailbox.size(self.layout, self.rules.replicas)
                self.mailbox = Mailbox(Segment.create(prefix, size), self.layout, self.rules.replicas)
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
            self.rules,
            counts=bool(meta["counts"]),
            first=bool(meta["first"]),
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
        """Whether nobody is expected any more."""
        return len(self.leaving.keys() | self.lost) >= self.rules.replicas

    def lose(self, replica: int) -> None:
        """Go on without a replica that has died; if the others cannot, they are told so."""
        assert self.shard is not None
        self.lost.add(replica)
        for answer in self.shard.leave(replica, died=True):
            self.answer(answer)
        if self.shard.broken_up and self.rules.fails_without(len(self.lost)):
            for other in self.senders.keys() - self.lost - self.leaving.keys():
                self.tell(other, self.trouble())

    def trouble(self) -> Frame:
        """Return the error that a synchronous step cannot complete, because a replica has died."""
        who = ", ".join(f"{replica} {self.called.get(replica, '')}".strip() for replica in sorted(self.lost))
        return error_frame(
            UnavailableError(
                f"replica {who} is gone, and a synchronous step takes {self.rules.needed} gradients of the "
                f"{self.rules.replicas} replicas; train without it, or have backups (a smaller aggregate=)"
            )
        )

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
        """Let go of the doorbells and the shared memory."""
        for ringer in self.ringers.values():
            ringer.close()
        if self.mailbox is not None:
            self.mailbox.segment.close()

    def require(self, layout: Layout, rules: Rules, who: str) -> None:
        """Raise InvalidArgumentError, naming what differs, unless a replica asks for what the others do."""
        if layout != self.layout:
            raise InvalidArgumentError(different(self.layout, self.opener, layout, who))
        if rules != self.rules:
            raise InvalidArgumentError(
                f"{who} asks for {rules} and {self.opener} for {self.rules}; all replicas have to train alike"
            )


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
