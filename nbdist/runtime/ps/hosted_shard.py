"""The state of one shard on its server, and of the replicas that train it: `HostedShard`. Without handlers.

    hosted = HostedShard(name, number, rules, layout, ...)
    hosted.opening[replica] = ...            # until the chief's initial values are there
    hosted.make(meta, initial, prefix)       # or make_again, from a standby
    hosted.admit(replica, listen)            # its mailbox or socket, and an answer
    hosted.answer_all(answers)               # what the shard's rules have decided
    hosted.look(seconds); hosted.lose(replica); hosted.rejoin(replica, pid)

:mod:`nbdist.runtime.ps.service` receives the replicas' messages, and calls it on the server's thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    choices,
)
from nbdist.optim import from_config
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import refused
from nbdist.runtime.ps.mailbox import ANSWER, COUNTERS, GLOBAL_STEP, Mailbox
from nbdist.runtime.ps.replicator import Replicator
from nbdist.runtime.ps.restore import Offer, Restoration, newest, restoration
from nbdist.runtime.ps.shard import ParameterShard
from nbdist.runtime.ps.standby import FoundStandby
from nbdist.runtime.ps.sync import REFUSED, STEPPED, STOPPED, Answer, Rules
from nbdist.runtime.ps.trace import ServiceLog
from nbdist.runtime.tables import Table
from nbdist.wire.collective.shm.sync import ProcessMonitor
from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.envelope import error_frame
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Ringer, Segment

Array = np.ndarray[Any, Any]
RECONNECT_SECONDS = 0.5  # for a replica to connect again after a reset
FIRST_OFFER_SECONDS = 30.0  # for the first of them, while the chief's new process waits
AWAIT_SECONDS = 300.0  # for the new process of a dead or frozen replica, which may load its data first
CUT_OFF_SECONDS = 40.0  # likewise, of a replica on another host: its connection is lost, and it may be alive
Post = Callable[[Callable[[], object]], None]


@dataclass
class SocketGradient:
    """A gradient that came through a socket, and the answers to it."""

    number: int
    answers: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class StandbyLocation:
    """Where the standby of a shard is: on the task of ``rank``; the shard is on that of rank ``of``."""

    rank: int
    of: int
    shared: bool
    """Whether it may use shared memory."""

    def key(self, shard: str) -> str:
        """Return what the standby's task calls a shard: each server has one of the same name."""
        return f"{shard}/{self.of}"


@dataclass
class HostedShard:
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
    """Rows of the initial tables, and slots, that the chief has not sent yet."""
    reading: set[int] = field(default_factory=set)
    """Replicas that read the final tables."""
    shard: ParameterShard | None = None
    mailbox: Mailbox | None = None
    note: str = ""
    opening: dict[int, tuple[Caller, dict[str, Any]]] = field(default_factory=dict)
    senders: dict[int, Caller] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The number of each replica's last gradient that came through a socket."""
    recent: dict[int, dict[int, SocketGradient]] = field(default_factory=lambda: defaultdict(dict))
    """By replica and token: the last gradient, and the answers to it, which may be lost with a connection."""
    gone_since: dict[int, float] = field(default_factory=dict)
    """Replicas whose connection is lost, and since when."""
    ringers: dict[int, Ringer] = field(default_factory=dict)
    leaving: dict[int, Caller] = field(default_factory=dict)
    offers: dict[int, Offer] = field(default_factory=dict)
    """Copies that replicas have of a shard whose former server died."""
    gathers_since: float | None = None
    chief_waits_since: float = 0.0
    """When the chief's new process opened the shard, if it has; it has no initial values to give."""
    restoration: Restoration | None = None
    """What the shard continues with: its replica was asked for its copy, or has sent it."""
    lost: set[int] = field(default_factory=set)
    awaited: dict[int, float] = field(default_factory=dict)
    """Lost replicas that the training waits for, and until when; they are not in ``lost``."""
    abandoned: set[int] = field(default_factory=set)
    """Replicas of ``lost`` that the training has waited for in vain."""
    informed: set[int] = field(default_factory=set)
    """Replicas that were last sent a list of awaited ones (ps.awaited) that was not empty."""
    called: dict[int, str] = field(default_factory=dict)
    processes: ProcessMonitor | None = None
    frozen: dict[int, int] = field(default_factory=dict)
    """Frozen replicas, and their processes."""
    incarnations: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """How often the process of each replica was replaced; messages of earlier ones are refused."""
    standby: StandbyLocation | None = None
    replicator: Replicator | None = None
    about: dict[str, Any] = field(default_factory=dict)
    """The request that the shard was made from."""
    asked_standby: bool = False
    asks_standby: bool = False
    """Whether the standby was asked for the state, and has not answered yet."""
    found: FoundStandby | None = None
    adopted: FoundStandby | None = None
    """What the shard was restored from, until its replicator continues with it."""
    restored: dict[str, Any] | None = None
    """How the shard was restored from its standby, for the replicas."""
    _gradients: dict[tuple[int, int], list[Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Continue without the spare replicas until each is added."""
        self._spare = set(range(self.rules.first, self.rules.replicas))
        self.lost |= self._spare

    def take_spare(self, replica: int) -> None:
        """Expect gradients of an added replica that opens the shard on a new server."""
        if replica in self.lost & self._spare:
            self.lost.discard(replica)
            if self.shard is not None:
                self.shard.join(replica)

    @property
    def lineage(self) -> tuple[int, int, int]:
        """What is known of former processes: how many, the gradients that they applied, the step before."""
        done = self.restoration
        if done is None:
            return 0, 0, 0 if self.shard is None else self.shard.before
        return done.generation, done.base, done.began

    def offer_of_standby(self, found: FoundStandby) -> Offer:
        """Return what the standby has as an offer; of equally new copies it is preferred."""
        generation, base, began = found.lineage
        updates, step = int(found.counts["updates"]), int(found.counts["global_step"])
        return Offer(-1, updates, updates, step, 0, generation=generation, base=base, began=began)

    def found_is_newest(self) -> bool:
        """Whether no replica has a newer copy than the standby, which its primary may have given up."""
        if self.found is None:
            return False
        return newest([*self.offers.values(), self.offer_of_standby(self.found)]).replica < 0

    @property
    def is_lost(self) -> bool:
        """Whether no copy of a replica restores the shard: it has tables, or is of a synchronous loop.

        Replicas of a synchronous ``fit``, which await lost ones, make the step again. Before the first update
        the chief's initial values restore it in any case.
        """
        trained = any(offer.known or offer.version for offer in self.offers.values())
        return trained and (bool(self.tables) or (self.rules.synchronous and not self.rules.awaits))

    def loss(self) -> UnavailableError:
        """Return the error of a shard that is lost."""
        why = "no worker has all rows of its tables" if self.tables else "its steps were synchronous"
        return UnavailableError(
            f"the former process of {self.server} and its replica (--ps-replicas 1) died together, and {why}"
            f": the parameters of {self.name} are lost. Run the cell again; a run with --checkpoint-every "
            "can be resumed"
        )

    def make_again(self, meta: dict[str, Any], found: FoundStandby, prefix: str) -> None:
        """Make the shard of the state that its standby had."""
        offers = self.offers | {-1: self.offer_of_standby(found)}
        known = restoration(offers, self.rules.replicas, self.rules.spare)
        zeros = tuple(self.layout.views(self.layout.buffer()))
        self.make({**meta, "restored": None}, zeros, prefix)
        shard = self.shard
        assert shard is not None
        with shard.lock:
            for own, theirs in zip(shard.buffers(), found.buffers, strict=True):
                np.copyto(own, theirs)
            shard.continue_from(found.counts)
        generation, base, began = found.lineage
        self.missing, self.adopted = 0, found
        self.restoration = replace(known, generation=generation, base=base, began=began)
        self.restored = {
            "lost": known.lost, "global_step": int(shard.counters[GLOBAL_STEP]), "standby": found.info.name,
        }  # fmt: skip

    def when_replicated(self, act: Callable[[], object]) -> None:
        """Call a function once the standby has all updates so far; at once if there is none."""
        if self.replicator is None:
            act()
        else:
            self.replicator.hold(act)

    def make(self, meta: dict[str, Any], initial: tuple[Array, ...], prefix: str) -> None:
        """Make the shard as the chief requested it, in shared memory if it wants that and there is room."""
        self.about = meta
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
                size = Mailbox.size(self.layout, self.rules.first)
                self.mailbox = Mailbox(Segment.create(prefix, size), self.layout, self.rules.first)
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
                before=int(meta.get("restored") or 0),
            )
            for replica in self.lost & self._spare:
                self.shard.leave(replica, died=True)
            if self.restoration is not None:
                self.shard.restore(self.restoration)
            if meta.get("restored") is not None:
                kept = optimizer.get_slot_names()
                self.missing += len(kept) * (1 + self.missing)
        except BaseException:  # for example no memory for the optimizer's slots: free all of it
            if self.mailbox is not None:
                self.mailbox.segment.close()
                self.mailbox = None
            raise

    def bytes_for(self, meta: dict[str, Any]) -> int:
        """Return the bytes that the shard takes: parameters, gradients in slots, the optimizer's slots."""
        kept = len(from_config(meta["optimizer"]).get_slot_names())
        tables = sum(prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in self.tables)
        shared = Mailbox.size(self.layout, self.rules.first) if meta["shared"] else self.layout.size
        return shared + kept * self.layout.size + (1 + kept) * tables

    def fill_slot(self, slot: str, buffer: Array) -> None:
        """Store a slot of the optimizer, in bytes laid out as the parameters are."""
        assert self.shard is not None
        if buffer.nbytes != self.layout.size or buffer.dtype != np.uint8 or not self.missing:
            raise InvalidArgumentError(
                f"a slot of {buffer.nbytes} bytes for a shard of {self.layout.size}, of which {self.missing} "
                "parts are missing"
            )
        for kept, flat in zip(self.shard.slots, self.layout.flats(np.array(buffer)), strict=True):
            if slot not in kept:
                raise InvalidArgumentError(f"no slot {slot!r}; {choices(slot, kept)}")
            np.copyto(kept[slot], flat)
        self.missing -= 1

    def fill(self, table: int, first: int, rows: Array, slot: str = "") -> None:
        """Store some of the initial rows of a table, or of a slot of it."""
        assert self.shard is not None
        array = self.shard.tables.arrays[table]
        if slot:
            slots = self.shard.tables.slots[table]
            if slot not in slots:
                raise InvalidArgumentError(f"no slot {slot!r}; {choices(slot, slots)}")
            array = slots[slot]
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
        assert self.shard is not None
        sender, meta = self.opening.pop(replica)
        reply: dict[str, Any] = {"number": self.number, "segment": None, "note": self.note}
        reply |= {"incarnation": self.incarnations[replica], "counted": self.shard.counted[replica]}
        reply["place"] = self.shard.place_of(replica)
        is_added = replica in self._spare
        reply["made"] = self.shard.statistics.made[replica] if is_added else reply["place"]
        reply["version"] = self.shard.version
        reply["generation"], reply["base"], reply["began"] = self.lineage
        reply |= {"serial": self.shard.serials[replica], "restored": self.restored}
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

    def answer_all(self, answers: Sequence[Answer]) -> None:
        """Send answers to their replicas."""
        for answer in answers:
            self.answer(answer)

    def answer(self, answer: Answer) -> None:
        """Tell a replica, over the way it came, what became of its gradient."""
        replica, token, staleness, what = answer
        if what == STOPPED and self.rules.fails_without(len(self.lost)):
            self.tell(replica, error_frame(self.trouble()))
        elif replica in self.ringers and self.mailbox is not None:
            if what != STEPPED:
                self.mailbox.headers[replica][token][1] = staleness
            self.ring(replica, what, token)
        elif self.shard is not None:
            gradient = self.recent[replica].get(token)
            meta = {"what": what, "token": token, "staleness": staleness, "version": self.shard.version}
            if gradient is not None:
                meta["number"] = gradient.number
                gradient.answers.append(meta)
                self.tell(replica, Frame("ps.applied", meta))

    def receive(self, replica: int, token: int, number: int) -> bool:
        """Return whether to take a gradient that came through a socket.

        If its connection is reset, a replica may send it twice, or a later one before it.
        """
        if number != self.received[replica] + 1:
            return False
        self.received[replica] = number
        self.recent[replica][token] = SocketGradient(number)
        return True

    def reconnect(self, replica: int, sender: Caller) -> dict[str, Any]:
        """Continue with a replica over a new connection; return what it may have missed."""
        self.senders[replica] = sender  # before the answers are read: later ones are sent to it
        self.gone_since.pop(replica, None)
        answers = [meta for gradient in list(self.recent[replica].values()) for meta in gradient.answers]
        version = 0 if self.shard is None else self.shard.version
        known = {"received": self.received[replica], "answers": answers, "version": version}
        return known | {"frozen": sorted(self.frozen.items())}

    def tell(self, replica: int, frame: Frame) -> None:
        """Push a frame to a replica, if it is known here; from any thread."""
        sender = self.senders.get(replica)
        if sender is not None:
            self.post(partial(push, sender, frame))

    @property
    def restoring(self) -> bool:
        """Whether a living replica was asked for its copy."""
        return self.restoration is not None and self.restoration.replica in self.offers

    def lacks_values(self, now: float) -> bool:
        """Whether the chief's new process waits for values that no replica has.

        The server may be new as well: then the replicas that trained with the former one offer theirs. A
        replica that opens the shard for the first time has none.
        """
        chief = self.opening.get(0)
        if chief is None or not chief[1].get("rejoins"):
            return False
        if self.restoration is not None or self.offers or self.asks_standby or self.found is not None:
            return False
        if self.shard is not None:  # the former process ended while it gave them, part by part
            return True
        others = [meta for replica, (_, meta) in self.opening.items() if replica]
        began = any(not meta.get("rejoins") for meta in others)
        everyone = len(self.opening) >= self.rules.first
        return began or everyone or now - self.chief_waits_since >= FIRST_OFFER_SECONDS

    def all_offered(self) -> bool:
        """Whether no other replica that lives can offer a copy."""
        dead = set() if self.processes is None or self.needs_all else set(self.processes.dead())
        return len(self.opening.keys() | dead | self.lost) >= self.rules.replicas

    @property
    def needs_all(self) -> bool:
        """Whether each replica opens a shard whose server died before it is restored.

        Those that make each step together do: a slower one may have the newest copy, and the others cannot
        make the step of an older one without it. A dead one is awaited, and its new process opens it.
        """
        return self.rules.synchronous and not self.rules.backups

    def drop_gone_offers(self) -> None:
        """Forget the offers of replicas that have died since."""
        for replica in list(self.offers):
            try:
                self.opening[replica][0].push(Frame("ps.there"))
            except ConnectionError:
                del self.offers[replica], self.opening[replica]

    def all_left(self) -> bool:
        """Whether no further replica is expected."""
        waits = self.shard is not None and not self.shard.broken_up and not self.rules.backups
        gone = self.leaving.keys() | self.lost | (set() if waits else self.awaited.keys())
        return len(gone) >= self.rules.replicas

    def lose(self, replica: int, *, frozen: bool = False, seconds: float = AWAIT_SECONDS) -> None:
        """Continue without a replica that is dead or ``frozen``; if the others cannot, send them an error.

        If the rules await its new process, the others wait for that for some ``seconds``. The cluster reports
        deaths. Only this server detects frozen replicas, so it notifies the others.
        """
        assert self.shard is not None
        if self.rules.awaits and seconds:
            self.awaited[replica] = time.monotonic() + seconds
        else:
            self.lost.add(replica)
        self.gone_since.pop(replica, None)
        if frozen:
            assert self.processes is not None
            self.frozen[replica] = self.processes.pid_of(replica)
            for other in self.senders.keys() - self.lost - self.awaited.keys():
                self.tell(other, Frame("ps.lost", {"frozen": sorted(self.frozen.items())}))
            self.refuse(replica)  # it may wait for an answer that this completes
        answers = self.shard.leave(replica, died=True)
        if replica in self.lost and self.rules.awaits:
            answers += self.shard.abandon(replica)
        self.when_replicated(partial(self.answer_all, answers))
        self._fail_others()
        self.announce_awaited()

    def _fail_others(self) -> None:
        """Send the other replicas an error if their step cannot complete."""
        if self.fails:
            for other in self.senders.keys() - self.lost - self.leaving.keys():
                self.tell(other, error_frame(self.trouble()))

    def abandon(self, replica: int) -> None:
        """Wait no longer for the new process of a lost replica."""
        assert self.shard is not None
        del self.awaited[replica]
        self.lost.add(replica)
        self.abandoned.add(replica)
        for answer in self.shard.abandon(replica):
            self.answer(answer)
        self._fail_others()

    def announce_awaited(self) -> None:
        """Send the other replicas which lost ones their step waits for."""
        awaited = sorted(self.awaited) if self.shard is not None and self.shard.is_held_up else []
        for other in self.senders.keys() - self.lost - self.awaited.keys():
            if awaited or other in self.informed:
                self.tell(other, Frame("ps.awaited", {"replicas": awaited}))
        self.informed = set(self.senders) if awaited else set()

    def rejoin(self, replica: int, pid: int) -> None:
        """Expect the process ``pid`` in place of a replica's former one, and refuse that one's messages."""
        if self.processes is not None:
            self.processes.replace(replica, pid)
        if replica not in self.senders and replica not in self.lost and replica not in self.awaited:
            return  # the former process has not reached this shard
        self.incarnations[replica] += 1
        self.refuse(replica)
        for known in (self.senders, self.received, self.recent, self.gone_since):
            known.pop(replica, None)
        if (ringer := self.ringers.pop(replica, None)) is not None:
            ringer.close()
        self.lost.discard(replica)
        self.awaited.pop(replica, None)
        self.frozen.pop(replica, None)
        self.leaving.pop(replica, None)
        if self.shard is not None:
            self.shard.join(replica)
            self.announce_awaited()

    def refuse(self, replica: int) -> None:
        """Notify a replica, over each of its connections, that the others have continued without it."""
        self.ring(replica, REFUSED, 0)
        self.tell(replica, error_frame(refused(replica, self.server)))

    @property
    def fails(self) -> bool:
        """Whether a synchronous step cannot complete, because replicas are dead or frozen."""
        broken_up = self.shard is not None and self.shard.broken_up
        return broken_up and self.rules.fails_without(len(self.lost))

    def trouble(self) -> UnavailableError:
        """Return the error that a synchronous step cannot complete, because a replica is dead or frozen."""
        each = (f"{replica} {self.called.get(replica, '')}".strip() for replica in sorted(self.lost))
        what = "frozen" if self.lost == self.frozen.keys() else "dead"
        if self.abandoned:
            what += ", no new process has joined in its place in time"
        return UnavailableError(
            f"replica {', '.join(each)} is {what}, and a synchronous step takes "
            f"{self.rules.needed} gradients of the {self.rules.replicas} replicas; train without "
            "it, or have backups (a smaller aggregate=)"
        )

    def look(self, frozen_seconds: float) -> bool:
        """Find replicas that are frozen, or dead while others wait for them. On the server's thread.

        Return whether a connection was found lost just now: its replica may connect again.

        A frozen process is detected by its state: a process that computes, or holds the interpreter for a
        minute in native code, is not frozen. The server evicts a frozen replica even if no other replica
        waits for it, so that all servers of a training decide alike, and refuses its late gradients.
        """
        if self.shard is None:
            return False
        staying = set(range(self.rules.replicas)) - self.leaving.keys() - self.lost - self.awaited.keys()
        now = time.monotonic()
        for replica in [one for one, until in self.awaited.items() if now > until]:
            self.abandon(replica)
        if self.processes is not None:
            for replica in staying.intersection(self.processes.frozen(frozen_seconds)):
                self.lose(replica, frozen=True)
        if not (self.leaving or self.shard.waited_for):
            self.gone_since.clear()
            return False
        known = set(self.gone_since)
        ended = set() if self.processes is None else set(self.processes.dead())
        if self.processes is not None and self.senders.keys() & self.processes.seen():
            # A replica may die before the first one opens the shard: then the server has no process to
            # watch. If it sees the processes that joined (one PID namespace), an unseen replica is dead.
            ended |= set(self.processes.unseen()) - self.senders.keys()
        for replica in sorted(staying - self.lost - self.awaited.keys()):
            if replica in ended:
                self.lose(replica)
            elif replica in self.senders and self.stays_gone(replica):
                watched = self.processes is not None and replica in self.processes.seen()
                self.lose(replica, seconds=0 if watched else CUT_OFF_SECONDS)
        return bool(self.gone_since.keys() - known)

    def stays_gone(self, replica: int) -> bool:
        """Whether a replica has died, or has not connected again in time after its connection was lost."""
        if not self.is_gone(replica):
            self.gone_since.pop(replica, None)
            return False
        now = time.monotonic()
        if replica in self.ringers and not self.rules.awaits:
            return True  # else its process may end just now, which tells a death from an end of its body
        return now - self.gone_since.setdefault(replica, now) >= RECONNECT_SECONDS

    def is_gone(self, replica: int) -> bool:
        """Whether a replica that was here has died, as far as can be seen. On the server's thread."""
        ringer = self.ringers.get(replica)
        if ringer is not None:
            return not ringer.has_reader()
        try:
            self.senders[replica].push(Frame("ps.there"))
        except ConnectionError:
            return True
        return False

    def close(self) -> None:
        """Close the doorbells, the shared memory, the process descriptors, and drop the standby."""
        if self.replicator is not None:
            self.replicator.close()
        for one in (self.found, self.adopted):
            if one is not None and one.segment is not None:
                one.segment.close()
        if self.processes is not None:
            self.processes.close()
        for ringer in self.ringers.values():
            ringer.close()
        if self.mailbox is not None:
            self.mailbox.segment.close()

    def require(self, layout: Layout, tables: tuple[Table, ...], rules: Rules, asker: str) -> None:
        """Raise InvalidArgumentError, naming the difference, unless a replica opens what the others did."""
        if layout != self.layout:
            raise InvalidArgumentError(different(self.layout, self.opener, layout, asker))
        if tables != self.tables:
            ours, theirs = Layout.of(self.tables), Layout.of(tables)
            raise InvalidArgumentError(different(ours, self.opener, theirs, asker))
        if rules != self.rules:
            raise InvalidArgumentError(
                f"{asker} asks for {rules} and {self.opener} for {self.rules}; all replicas have to train "
                "alike"
            )


def push(sender: Caller, frame: Frame) -> None:
    """Push a frame to a replica that may be dead; runs on the server's thread."""
    with suppress(ConnectionError):  # it has died or been cut off; the cluster reports that to the client
        sender.push(frame)


def different(one: Layout, first: str, other: Layout, asker: str) -> str:
    """Return the error for two layouts that should be equal: the first variable in which they differ."""

    def text(entry: Any) -> str:
        return f"{entry.name} {entry.shape} {entry.dtype}" if entry else "nothing"

    ours, theirs = one.entries, other.entries
    for i in range(max(len(ours), len(theirs))):
        a = ours[i] if i < len(ours) else None
        b = theirs[i] if i < len(theirs) else None
        if a != b:
            return (
                f"the replicas built different models: variable {i} is {text(a)} on {first} "
                f"and {text(b)} on {asker}; build the same model on every worker"
            )
    return "the replicas built different models"
