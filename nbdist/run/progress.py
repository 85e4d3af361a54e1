"""How far a run is, from what its replicas say. Pure: the clock is handed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any

from nbdist.metrics.store import RunStore
from nbdist.run.recovery.member import Member, State
from nbdist.run.recovery.replacement import Restart

WINDOW = 3.0  # seconds over which a rate is measured
PAUSED = "paused"
LOST = "lost"
"""The state of a replica that died or does not answer, while training continues on the others."""


STRAGGLER = "straggler"
"""The state of a replica that trains, and is slower than the others."""


SILENT = "silent"
"""The state of a replica that sends no progress while others do; it may be lost."""


SILENT_SECONDS = 2.0
RUNNING = "running"
RESTARTING = "restarting"
"""The state of a replica whose process was replaced, until the new one has joined the training."""


JOINING = "joining"
"""The state of a replica that was added to the run, until it has joined the training."""


LEFT = "left"
"""The state of a replica that has left the run, which continues on the others."""


CUT_SHORT, CALLBACK = "cut short", "by a callback"
OVER = (LOST, LEFT, "finished")
ABSENT = (LOST, RESTARTING, JOINING, LEFT)
SHOWN = {State.LOST: LOST, State.REPLACING: LOST, State.ADDED: JOINING, State.LEFT: LEFT}


def shown(member: Member) -> str:
    """Return the state of a replica whose task is in no training; empty for the one that it says itself."""
    if member.state is State.JOINING or (member.is_new and not member.is_away):
        return RESTARTING if isinstance(member.entry, Restart) else JOINING
    return SHOWN.get(member.state, "")


@dataclass(frozen=True)
class ReplicaStanding:
    """How far one replica is."""

    state: str
    step: int
    steps_per_second: float
    staleness: float | None
    spent: dict[str, float]
    """Seconds of a step by part, on average so far."""
    dropped: int = 0
    """Gradients that came too late for their step."""
    skipped: int = 0
    """Gradients that were no numbers, and left out."""
    rested: float = 0.0
    """Seconds of pauses between two steps."""
    slowness: float | None = None
    """Times the others' step that a straggler's takes; None for those that are none."""
    restart: str = ""
    """When its process was replaced, and at which step the new one joined; of the last replacement."""
    restarts: int = 0
    """How often its process was replaced."""
    change: str = ""
    """When it was added to the run and where it joined, or where it left; of the last such change."""
    begun: int = 0
    """How many of its steps it has left out, because it was added after others had made them."""
    devices: tuple[str, ...] = ()
    """The devices that hold its arrays; empty before it trains."""
    gpu: Mapping[str, Any] | None = None
    """The last sample of its GPU (see `nbdist.metrics.gpu_usage`)."""
    cores: int = 0
    """How many cores its process may use."""
    input: Mapping[str, Any] | None = None
    """What was measured of the dataset that it trains on (see `nbdist.data.bottleneck`)."""
    ended: str = ""
    """What ended its training, if not its data: "cut short" by another replica, or "by a callback"."""
    not_finite: Sequence[Any] = ()
    """The first loss of a loop of its own that is NaN or infinite: name, value in words and step."""


@dataclass(frozen=True)
class Standing:
    """How far a run is.

    ``step`` and ``total`` count updates: synchronous replicas make one together, others one each.
    """

    state: str
    step: int
    total: int | None
    steps_per_second: float
    examples_per_second: float
    seconds_left: float | None
    elapsed: float
    """Seconds since the run began, without pauses."""
    replicas: list[ReplicaStanding]
    learning_rate: float | None = None
    """In force; None where there is no single one."""
    epoch: int | None = None
    """The epoch that the replica is in which has most left, from 1 on; None where no ``fit`` trains."""
    epochs: int | None = None
    """The number of epochs that it trains for."""
    checkpoint: dict[str, Any] | None = None
    """The last one: its number, step, path (None if it failed) and error."""
    servers: tuple[str, ...] = ()
    """What became of each parameter server that died, in words."""
    lost_servers: tuple[str, ...] = ()
    """The names of the parameter servers that were lost, each at every loss."""
    apart: str = ""
    """That ranks of a framework's cell train a model each, and what to do; empty if none is known to."""


@dataclass
class _Replica:
    member: Member | None = None
    """The worker that trains it, if that trains no other."""
    step: int = 0
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    examples: int = 0
    resumed: tuple[int, int] = (0, 0)
    """Steps and examples of earlier runs, which this one continues."""
    said: str = "starting"
    """Its state, as it says itself."""
    spent: dict[str, float] = field(default_factory=dict)
    dropped: int = 0
    skipped: int = 0
    rested: float = 0.0
    paused: float = 0.0
    """Seconds of all its pauses, also of a current one, and of one without a later step."""
    last: float | None = None
    stepped: float = 0.0
    """Seconds of all steps of its present process."""
    past: deque[tuple[float, float, int, int]] = field(default_factory=deque)
    """Times of reports, with the replica's seconds in steps, its steps and its examples."""
    at: float = 0.0
    rate: float | None = None
    before: dict[str, int] = field(default_factory=dict)
    """Counts of the replica's former processes, which add to those of the present one."""
    restart: str = ""
    restarts: int = 0
    change: str = ""
    begun: int = 0
    """Steps that it has left out."""
    devices: tuple[str, ...] = ()
    gpu: Mapping[str, Any] | None = None
    cores: int = 0
    input: Mapping[str, Any] | None = None
    left_out: int | None = None
    """How many of the present training, as it says itself."""
    apart: str = ""
    """What to do about it, if it trains a model of its own beside other ranks."""
    ended: str = ""
    not_finite: Sequence[Any] = ()

    @property
    def state(self) -> str:
        """Its state: that of the worker if it is in no training, else what it says itself."""
        return (shown(self.member) if self.member is not None else "") or self.said

    def counts(self) -> dict[str, int]:
        """Return what former processes have counted, and this one too."""
        return {"examples": self.examples, "skipped": self.skipped, "step": self.step}

    def rates(self) -> tuple[float, float]:
        """Return steps and examples per second over the window.

        A busy client reads several reports at once, so the replica's own clock counts.
        """
        if len(self.past) < 2:
            return 0.0, 0.0
        (t0, own0, s0, e0), (t1, own1, s1, e1) = self.past[0], self.past[-1]
        seconds = max(t1 - t0, own1 - own0)
        return ((s1 - s0) / seconds, (e1 - e0) / seconds) if seconds > 0 else (0.0, 0.0)


REPORTED = {one.name for one in fields(_Replica)} & {one.name for one in fields(ReplicaStanding)}
"""What a replica's standing has as the replica reports it."""


class ProgressTracker:
    """Adds up the progress of all replicas, which ``members`` train, if each of these trains one."""

    def __init__(self, replicas: int, synchronous: bool, members: Sequence[Member] = ()) -> None:
        self.messages = 0
        self.synchronous = synchronous
        self._together = 0
        """Steps that the workers of a synchronous session have counted together."""
        self._latest = [_Replica(members[i] if members else None) for i in range(replicas)]
        self.checkpoint: dict[str, Any] | None = None
        """The last checkpoint that the chief has written, or could not write."""
        self._began: float | None = None
        self._last: float | None = None
        self._stragglers = Stragglers(replicas)
        self._transfers_in_waits = False
        """Whether the time that replicas wait includes that of transfers: a framework's own calls do both."""
        self._rested, self._paused_since = 0.0, None  # type: float, float | None
        self._servers: list[str] = []
        self._lost_servers: list[str] = []

    def update(self, replica: int, progress: dict[str, Any], now: float) -> None:
        """Apply one replica's progress message."""
        self.messages += 1
        self._began = now if self._began is None else self._began
        latest = self._latest[replica]
        own = sum(progress.get("spent", {}).values())
        if latest.state in (LOST, LEFT):  # it was frozen, or has left, and no longer takes part in the run
            return
        if latest.state in (RESTARTING, JOINING) and progress.get("joined") is None:
            return
        if progress.get("together"):
            self.synchronous = True
        if progress.get("needed_workers"):  # a session whose workers make each step together, and count it
            self.synchronous = True
            self._together = max(self._together, progress["global_step"])
        latest.step, latest.total = progress["step"], progress["total"]
        if progress.get("own_steps"):
            latest.step += latest.before.get("step", 0)
        latest.epoch, latest.epochs = progress.get("epoch"), progress.get("epochs")
        latest.said = progress["state"]
        joined, latest.left_out = progress.get("joined"), progress.get("left_out")
        if joined is None:
            steps, examples = progress.get("resumed") or (0, 0)
            latest.resumed = int(steps), int(examples)
            # From before it continued the earlier run, or of a loop of one's own before a training.
            while latest.past and not steps <= latest.past[0][2] <= latest.step:
                latest.past.popleft()
        latest.examples = progress["examples"] + latest.before.get("examples", 0)
        began = latest.resumed[0] if joined is None else joined
        made = max(latest.step - began, 1)
        latest.spent = {part: s / made for part, s in progress.get("spent", {}).items()}
        latest.stepped = own
        latest.dropped = progress.get("dropped", 0)
        latest.skipped = progress.get("skipped", 0) + latest.before.get("skipped", 0)
        latest.rested = progress.get("rested", 0.0)
        latest.paused = max(latest.paused, latest.rested, progress.get("paused", 0.0))
        # A busy client also receives the beginning of a pause late.
        self._began = min(self._began, now - own - latest.paused)
        latest.rate = progress.get("learning_rate")
        latest.devices = tuple(progress.get("devices") or latest.devices)
        latest.gpu, latest.cores = progress.get("gpu") or latest.gpu, progress.get("cores") or latest.cores
        latest.input = progress.get("input") or latest.input
        latest.apart = progress.get("apart") or latest.apart
        latest.not_finite = latest.not_finite or progress.get("not_finite", ())
        latest.ended = (
            CALLBACK if progress.get("ended_early") else CUT_SHORT if progress.get("cut_short") else ""
        )
        self.checkpoint = progress.get("checkpoint") or self.checkpoint
        if latest.said == PAUSED:  # what its rate is measured with stands still
            latest.past = deque((t + now - latest.at, own, s, e) for t, own, s, e in latest.past)
        latest.at = now
        latest.last = self._last = now
        self._transfers_in_waits |= bool(progress.get("together"))
        self._stragglers.update(
            replica,
            latest.step,
            progress.get("spent", {}),
            now,
            progress.get("trainings", 0),
            transfers_in_waits=self._transfers_in_waits,
        )
        if latest.said != PAUSED:
            latest.past.append((now, own, latest.step, latest.examples))
        while len(latest.past) > 2 and now - latest.past[0][0] > WINDOW:
            latest.past.popleft()
        self._note_pause(now)

    def _note_pause(self, now: float) -> None:
        """Keep account of the time for which the run was paused."""
        states = (one.state for one in self._latest)
        training = (state for state in states if state not in (*ABSENT, "finished"))
        if next(training, "") == PAUSED and all(state == PAUSED for state in training):
            self._paused_since = now if self._paused_since is None else self._paused_since
        elif self._paused_since is not None:
            self._rested, self._paused_since = self._rested + now - self._paused_since, None

    def paused(self, now: float) -> float:
        """Return the seconds of pauses so far: those seen here, or those that replicas report.

        The reports count if a pause arrived late, or began before the run was watched.
        """
        seen, reported = self._rested, max((one.paused for one in self._latest), default=0.0)
        if self._paused_since is not None:
            seen += now - self._paused_since
            reported += now - max((one.at for one in self._latest if one.state == PAUSED), default=now)
        return max(seen, reported)

    @property
    def rested(self) -> float:
        """Seconds of pauses between two steps so far; if one replica pauses, the others wait for it."""
        return max((latest.rested for latest in self._latest), default=0.0)

    @property
    def stepped(self) -> float:
        """Seconds of all steps so far, of the replica that has spent most."""
        return max((latest.stepped for latest in self._latest), default=0.0)

    @property
    def examples(self) -> int:
        """Examples that all replicas have trained on in this run, with repetitions."""
        return sum(max(0, latest.examples - latest.resumed[1]) for latest in self._latest)

    @property
    def resumed_steps(self) -> int:
        """Steps of earlier runs, counted as ``standing().step`` counts."""
        steps = [latest.resumed[0] for latest in self._latest]
        return max(steps, default=0) if self.synchronous else sum(steps)

    def set_began(self, when: float) -> None:
        """Set when the run began, on the clock of ``now``: before its first message arrived here."""
        self._began = when

    def lose(self, replica: int, now: float) -> None:
        """Note that a replica is lost, and training continues on the others."""
        self.messages += 1
        latest = self._latest[replica]
        latest.total = latest.step
        latest.past.clear()
        self._stragglers.leave(replica)

    def restart(self, replica: int) -> None:
        """Note that a lost replica has a new process, which is about to join."""
        self.messages += 1
        latest = self._latest[replica]
        latest.before = latest.counts()

    def join(self, replica: int, text: str) -> None:
        """Note that the new process of a replica has joined; ``text`` says when and where."""
        latest = self._latest[replica]
        latest.restart, latest.restarts = text, latest.restarts + 1

    def add(self, replica: int, member: Member) -> None:
        """Note that a replica is added: the next number, or that of one which has left."""
        self.messages += 1
        if replica == len(self._latest):
            self._latest.append(_Replica(member, total=0))
            self._stragglers.add()
        latest = self._latest[replica]
        latest.before = latest.counts()

    def joined(self, replica: int, text: str, step: int) -> None:
        """Note that an added replica has joined, at a step; ``text`` says when and where."""
        latest = self._latest[replica]
        latest.change = text
        before = latest.before["step"]
        missed = max(0, step - before)
        if before and latest.left_out is not None:  # the step at which it had left may not be known exactly
            missed = min(missed, latest.left_out)
        latest.begun += missed

    def leave(self, replica: int, text: str, step: int = 0) -> None:
        """Note that a replica has left after a step, or could not join; ``text`` says where or why."""
        self.messages += 1
        latest = self._latest[replica]
        latest.step = max(latest.step, step)  # its last message may not have arrived
        latest.total, latest.change = latest.step, text
        latest.past.clear()
        self._stragglers.leave(replica)

    def lose_server(self, name: str) -> None:
        """Note that a parameter server is lost, and that a new process takes its place."""
        self.messages += 1
        self._lost_servers.append(name)

    def replace_server(self, text: str) -> None:
        """Note that a parameter server has a new process; ``text`` says what was lost, and for how long."""
        self.messages += 1
        self._servers.append(text)

    def standing(self, now: float, store: RunStore) -> Standing:
        """Return how far the run is."""
        rates = [latest.rates() for latest in self._latest]
        # Replicas that have ended make no steps any more, while others train.
        working = [
            rate for rate, one in zip(rates, self._latest, strict=True) if one.state not in OVER
        ] or rates
        steps = [latest.step for latest in self._latest]
        totals = [latest.total for latest in self._latest]
        known = [t for t in totals if t is not None]
        if self.synchronous:
            step, rate = self._together or max(steps), max((r for r, _ in working), default=0.0)
            total = max(known) if known else None
        else:
            begun = sum(latest.begun for latest in self._latest)
            step, rate = sum(steps) - begun, sum(r for r, _ in working)
            total = sum(known) - begun if len(known) == len(totals) and known else None
        states = {latest.state for latest in self._latest if latest.state not in ABSENT} or {LOST}
        left = (total - step) / rate if total is not None and rate > 0 else None
        spent = [latest.spent for latest in self._latest]
        if self._transfers_in_waits:
            spent = with_exchange(spent)
        epoch, epochs = self._epoch()
        return Standing(
            state=next((state for state in (RUNNING, PAUSED) if state in states), min(states)),
            step=step,
            total=total,
            steps_per_second=rate,
            examples_per_second=sum(e for _, e in working),
            seconds_left=left,
            elapsed=max(0.0, now - self._began - self.paused(now)) if self._began is not None else 0.0,
            replicas=[
                ReplicaStanding(
                    state=self._state(i),
                    steps_per_second=rates[i][0],
                    staleness=_staleness(store, i),
                    slowness=self._slowness(i),
                    **{name: getattr(latest, name) for name in REPORTED} | {"spent": spent[i]},
                )
                for i, latest in enumerate(self._latest)
            ],
            learning_rate=self._rate(),
            epoch=epoch,
            epochs=epochs,
            checkpoint=self.checkpoint,
            servers=tuple(self._servers),
            lost_servers=tuple(self._lost_servers),
            apart=trained_apart([latest.apart for latest in self._latest], over=states <= {*OVER}),
        )

    def _epoch(self) -> tuple[int | None, int | None]:
        """Return the epoch of the run and their number: it has ended an epoch when all its replicas have.

        Those that have ended, or are away, do not count before all have: a callback may have ended one early.
        """
        known = [latest for latest in self._latest if latest.epoch is not None]
        training = [latest for latest in known if latest.state not in (*OVER, *ABSENT)]
        if training:
            last = min(training, key=lambda latest: latest.epoch or 0)
        else:
            last = max(known, key=lambda one: (one.state not in ABSENT, one.epoch or 0), default=_Replica())
        return last.epoch, last.epochs

    def _rate(self) -> float | None:
        rates = {one.rate for one in self._latest if one.rate is not None and one.state not in ABSENT}
        return rates.pop() if len(rates) == 1 else None

    def _state(self, replica: int) -> str:
        """Return a replica's state; SILENT or STRAGGLER if its messages or steps are behind the others'."""
        latest = self._latest[replica]
        if latest.state in (*OVER, RESTARTING, JOINING) or latest.last is None or self._last is None:
            return latest.state
        if self._last - latest.last > SILENT_SECONDS:
            return SILENT
        return STRAGGLER if self._slowness(replica) is not None else latest.state

    def _slowness(self, replica: int) -> float | None:
        return self._stragglers.slowness(replica) if self._latest[replica].state == RUNNING else None


def _staleness(store: RunStore, replica: int) -> float | None:
    if store.number("staleness") is None:
        return None
    last = store.last(replica, "staleness")
    return None if last is None else float(last.value)


def uneven_data(replicas: Sequence[ReplicaStanding], names: Sequence[str], status: str = "finished") -> str:
    """Return which replicas' data ended first, where that ended a training of replicas that step together.

    Empty if none of the replicas that have ended their training was cut short, or if something else ended it.

    >>> cut, whole = ReplicaStanding("finished", 7, 0.0, None, {}, ended=CUT_SHORT), ReplicaStanding(
    ...     "finished", 7, 0.0, None, {})
    >>> uneven_data([cut, whole], ["worker 0", "worker 1"]).partition(":")[0]
    'the data of worker 1 ended after step 7, and the training with it, though worker 0 had more'
    """
    cut = [name for name, one in zip(names, replicas, strict=True) if one.ended == CUT_SHORT]
    first = [one for one in replicas if one.ended != CUT_SHORT]
    if (
        status != "finished"
        or not cut
        or not first
        or any(one.ended == CALLBACK or one.state in ABSENT for one in replicas)
    ):
        return ""
    ended = " and ".join(name for name in names if name not in cut)
    return (
        f"the data of {ended} ended after step {max(one.step for one in first):,}, and the training with "
        f"it, though {' and '.join(cut)} had more: replicas that step together share each batch, so make the "
        "same dataset on every worker"
    )


def first_not_finite(replicas: Sequence[ReplicaStanding], names: Sequence[str]) -> str:
    """Return the first loss that is NaN or infinite, where that ends no training; empty if none is known.

    >>> wrong = [ReplicaStanding("running", 9, 0.0, None, {}, not_finite=("loss", "nan", n)) for n in (5, 4)]
    >>> first_not_finite(wrong, ["worker 0", "worker 1"]).partition(":")[0]
    'loss of worker 1 is nan at step 4'
    """
    found = [(one.not_finite, name) for one, name in zip(replicas, names, strict=False) if one.not_finite]
    if not found:
        return ""
    (loss, value, step), name = min(found, key=lambda one: one[0][2])
    return f"{loss} of {name} is {value} at step {step:,}: a loop that is not nbdist's may continue"


def trained_apart(remedies: Sequence[str], over: bool = True) -> str:
    """Return that ranks train without a process group, given what each would have to do (empty: nothing).

    One that trains by itself has the only model.

    >>> trained_apart(["", "call init_process_group()"])
    ''
    >>> trained_apart(["call init_process_group()"] * 2)
    '2 ranks trained without a process group: each has its own model; call init_process_group()'
    """
    alone = [one for one in remedies if one]
    if len(alone) < 2:
        return ""
    ranks = f"{len(alone)} of {len(remedies)}" if len(alone) < len(remedies) else f"{len(alone)}"
    verb = "trained" if over else "train"
    return f"{ranks} ranks {verb} without a process group: each has its own model; {alone[0]}"


def with_exchange(spent: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return seconds by part with the transfers, which waits include, as "exchange".

    They are the least that any replica waits: the last one to arrive waits for no other.

    >>> with_exchange([{"compute": 1.0, "wait": 4.0}, {"compute": 4.0, "wait": 1.0}])[0]
    {'compute': 1.0, 'wait': 3.0, 'exchange': 1.0}
    """
    least = min((parts["wait"] for parts in spent if parts.get("wait")), default=0.0)
    return [
        {**parts, "wait": parts["wait"] - least, "exchange": least} if parts.get("wait") else parts
        for parts in spent
    ]


# Straggler detection from the replicas' step times. Pure.
#
# A replica says ten times a second how many steps it has made and how long it was busy in all of them: with
# data, computing and exchanging, not waiting. What matters is the time of a step lately: the median over
# intervals between its words, so that one pause for the garbage or a checkpoint says nothing. And its quick
# intervals have to be slow as well: replicas that take turns on too few cores are now quick and now slow.

BUSY = ("data", "compute", "exchange")
STEPS, SECONDS = 10, 0.7
"""What the intervals cover at least."""


SLOW, NORMAL = 1.2, 1.1
"""Times the others' step from which a replica is named, and below which no longer."""


QUICK = 0.25
"""The share of intervals that are quicker than the one that stands for the quick ones."""


IN_A_ROW = 3
"""Consecutive messages that must show a slow replica."""


class Stragglers:
    """Names replicas that are slower than the others: those of 30% within 20 of their steps.

    >>> stragglers = Stragglers(2)
    >>> for tenth in range(20):
    ...     for replica, step in enumerate((0.05, 0.1)):
    ...         stragglers.update(replica, int(0.1 * tenth / step), {"compute": 0.1 * tenth}, 0.1 * tenth)
    >>> stragglers.slowness(0), stragglers.slowness(1)
    (None, 2.0)
    """

    def __init__(self, replicas: int) -> None:
        self._lately = [_Lately() for _ in range(replicas)]

    def update(
        self,
        replica: int,
        step: int,
        spent: Mapping[str, float],
        now: float,
        training: int = 1,
        *,
        transfers_in_waits: bool = False,
    ) -> None:
        """Take in how far a replica is, and its busy seconds so far; only those of one training compare."""
        lately = self._lately[replica]
        if training != lately.training or step < lately.step:
            self._lately[replica] = lately = _Lately(training)
        if not lately.add(step, sum(spent.get(part, 0.0) for part in BUSY), spent.get("wait", 0.0), now):
            return
        known = [one for one in self._lately if one.typical is not None and one.training == training]
        others = [one.typical for one in known if one is not lately and one.typical is not None]
        if others and lately.typical is not None:
            transfer = min(one.waits for one in known) if transfers_in_waits else 0.0
            lately.compare(median(others), transfer)

    def add(self) -> None:
        """Take in one more replica."""
        self._lately.append(_Lately())

    def leave(self, replica: int) -> None:
        """Drop a replica that has ended."""
        self._lately[replica] = _Lately()

    def slowness(self, replica: int) -> float | None:
        """Return how many times the others' step a slow replica's takes; None if it is not slow."""
        lately = self._lately[replica]
        return round(lately.times, 2) if lately.named else None


@dataclass
class _Lately:
    """One replica's last steps."""

    training: int = 0
    step: int = 0
    named: bool = False
    times: float = 1.0
    """How many times the others' step its own takes."""
    typical: float | None = None
    """Seconds of a step; None before enough is known."""
    quick: float = 0.0
    """Seconds of a step in its quick intervals."""
    waits: float = 0.0
    """Seconds that a step waits."""
    _busy: float = 0.0
    _waited: float = 0.0
    _at: float | None = None
    _intervals: deque[tuple[int, float, float, float]] = field(default_factory=deque)
    """Steps, busy and waiting seconds of each, and how long it all took."""
    _steps: int = 0
    _took: float = 0.0
    _in_a_row: int = 0

    def add(self, step: int, busy: float, waited: float, now: float) -> bool:
        """Take in a word; whether an interval has ended with it."""
        if self._at is None:
            self.step, self._busy, self._waited, self._at = step, busy, waited, now
            return False
        steps = step - self.step
        if steps < 1:
            return False
        took = now - self._at
        each = max(0.0, busy - self._busy) / steps
        self._intervals.append((steps, each, max(0.0, waited - self._waited) / steps, took))
        self._steps, self._took = self._steps + steps, self._took + took
        self.step, self._busy, self._waited, self._at = step, busy, waited, now
        oldest, *_, long = self._intervals[0]
        while self._steps - oldest >= STEPS and self._took - long >= SECONDS:  # enough without it
            self._intervals.popleft()
            self._steps, self._took = self._steps - oldest, self._took - long
            oldest, *_, long = self._intervals[0]
        if self._steps >= STEPS and self._took >= SECONDS:
            every = sorted(busy for _, busy, _, _ in self._intervals)
            self.typical, self.quick = median(every), every[int(QUICK * len(every))]
            self.waits = median(waits for _, _, waits, _ in self._intervals)
        return True

    def compare(self, others: float, transfer: float) -> None:
        """Decide, given the busy seconds of the others' step, and those of the transfer in every step."""
        assert self.typical is not None
        others, quick = others + transfer, self.quick + transfer
        self.times = (self.typical + transfer) / others if others > 0 else 1.0
        slow = self.times >= SLOW and quick >= NORMAL * others
        self._in_a_row = self._in_a_row + 1 if slow else 0
        stays = self.named and self.times >= NORMAL and quick >= others
        self.named = self._in_a_row >= IN_A_ROW or stays
