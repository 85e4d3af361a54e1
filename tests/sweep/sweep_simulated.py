"""A simulated sweep without engines or a clock: a driver and fake engines that a random generator drives."""

from __future__ import annotations

from random import Random

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.sweep import commands
from nbdist.sweep.events import (
    Asked,
    Created,
    Ended,
    Event,
    Pruned,
    Reported,
    Retried,
    Started,
    Stopped,
)
from nbdist.sweep.scheduler import Scheduler
from nbdist.sweep.space import Space
from nbdist.sweep.state import Ledger


class Simulation:
    """A driver that writes each event, applies it, then acts on it; and engines that follow it."""

    def __init__(self, created: Created, engines: int, dice: Random) -> None:
        self.dice = dice
        self.now = 1.0
        self.log: list[Event] = []
        self.alive = set(range(engines))
        self.at_work: dict[tuple[int, int], tuple[int, ...]] = {}  # (number, attempt) -> ranks, on engines
        self.steps: dict[tuple[int, int], int] = {}
        self.stopping: set[tuple[int, int]] = set()
        self.ever_started: set[tuple[int, int]] = set()
        self.spaces = [created.space]
        self.ledger = Ledger(created)
        self.scheduler = Scheduler(self.ledger)
        self.log.append(created)

    def free(self) -> set[int]:
        return self.alive - {rank for ranks in self.at_work.values() for rank in ranks}

    def write(self, event: Event, act: bool = True) -> None:
        self.log.append(event)
        assert self.ledger.apply(event), f"{event} changed nothing"
        if not act:
            return
        if isinstance(event, Started):
            key = (event.number, event.attempt)
            assert key not in self.ever_started, "an attempt was started twice"
            assert event.number not in {number for number, _ in self.at_work}, "a trial runs twice"
            assert set(event.ranks) <= self.free(), "an engine has two trials"
            assert len(event.ranks) == self.scheduler.need(self.ledger.trials[event.number])
            self.ever_started.add(key)
            self.at_work[key] = event.ranks
            self.steps[key] = 0
        elif isinstance(event, (Pruned, Stopped)):
            self.stopping.add((event.number, event.attempt))

    def pump(self) -> None:
        """Start what can be started, and check that no engine idles while there is work for it."""
        while (event := self.scheduler.next(self.free(), len(self.alive), self.now)) is not None:
            assert isinstance(event, (Asked, Started))
            self.write(event)
        ledger = self.ledger
        if ledger.paused or ledger.closed:
            return
        needs = [self.scheduler.need(ledger.trials[number]) for number in ledger.waiting]
        held = [need for need in needs if ledger.created.per_trial < need <= len(self.alive)]
        if ledger.left and not self.scheduler._over():
            needs.append(ledger.created.per_trial)
        assert held or all(need > len(self.free()) for need in needs), "an engine idles while there is work"

    def report(self) -> None:
        if not self.at_work:
            return
        key = self.dice.choice(sorted(self.at_work))
        self.steps[key] += 1
        value = self.dice.choice([self.dice.random(), 0.5, float("nan")])
        event = Reported(*key, self.steps[key], value, self.now)
        self.write(event)
        pruned = self.scheduler.judge(event, self.now)
        if pruned:
            self.write(pruned)

    def finish(self, key: tuple[int, int] | None = None) -> None:
        if not self.at_work:
            return
        key = key or self.dice.choice(sorted(self.at_work))
        del self.at_work[key]
        state = "stopped" if key in self.stopping else self.dice.choice(["finished", "finished", "failed"])
        values = {"accuracy": self.dice.random()} if state == "finished" and self.dice.random() < 0.8 else {}
        ended = self.scheduler.end(*key, state, self.now, values, "" if state != "failed" else "raised")
        assert ended is not None
        self.write(ended)
        again = self.scheduler.end(*key, "finished", self.now, {"accuracy": 1.0})
        assert again is None, "an end was taken twice"

    def death(self) -> None:
        if not self.alive:
            return
        dead = set(self.dice.sample(sorted(self.alive), self.dice.randint(1, len(self.alive))))
        self.alive -= dead
        lost = [key for key, ranks in self.at_work.items() if dead & set(ranks)]
        for key in lost:
            del self.at_work[key]
        for event in self.scheduler.died(dead, self.now):
            self.write(event)
        for key in lost:  # reports of a dead engine are ignored
            assert self.scheduler.end(*key, "finished", self.now, {"accuracy": 1.0}) is None
            assert not self.ledger.apply(Reported(*key, 99, 0.5, self.now))
            self.ledger.late -= 1

    def replace(self) -> None:
        self.alive |= {self.dice.randint(0, 3)}

    def driver_death(self) -> None:
        """The driver dies, perhaps between a record and its action; another takes over from the log."""
        event = self.scheduler.next(self.free(), len(self.alive), self.now)
        if event is not None and self.dice.random() < 0.7:
            self.write(event, act=False)
        if self.dice.random() < 0.3 and len(self.log) > 1:
            self.log.pop()  # after a power failure: the last record is torn
        self.ledger = Ledger.of(self.log)
        self.scheduler = Scheduler(self.ledger)
        events, strays = self.scheduler.recover(self.at_work, self.now)
        for event in events:
            assert isinstance(event, (Started, Retried, Ended))
            self.write(event, act=False)  # adopted trials run already
        for key in strays:
            del self.at_work[key]
        for number in self.ledger.running:
            assert (number, self.ledger.trials[number].attempt) in self.at_work, "left running"
        for number in self.ledger.running:  # repeat the stops of the dead driver
            trial = self.ledger.trials[number]
            if trial.stopping:
                self.stopping.add((number, trial.attempt))

    def command(self) -> None:
        ledger, now, dice = self.ledger, self.now, self.dice
        number = dice.randint(0, max(ledger.next_number, 1))
        space = dice.choice(
            [
                Space({"lr": [0.1, 0.2, 0.3], "width": [32, 64]}),
                Space({"lr": [0.1], "width": [32, 64, 128]}),
                Space({"lr": [0.1, 0.4], "opt": ["sgd", "adam"]}),
            ]
        )
        try:
            events = dice.choice(
                [
                    lambda: commands.stop(ledger, number, now),
                    lambda: commands.retry(ledger, number, now),
                    lambda: commands.clone(ledger, number, {"lr": 0.7}, now),
                    lambda: commands.promote(ledger, number, now, per_trial=dice.choice([None, 1, 3])),
                    lambda: commands.pause(ledger, now),
                    lambda: commands.resume(ledger, now),
                    lambda: commands.resume(ledger, now),
                    lambda: commands.add(ledger, 2, now),
                    lambda: commands.edit(ledger, space, now, dice.choice(["finish", "stop"])),
                    lambda: commands.close(ledger, now) if dice.random() < 0.1 else [],
                ]
            )()
        except (FailedPreconditionError, InvalidArgumentError, LookupError):
            return
        for event in events:
            self.write(event)

    def drain(self) -> None:
        """Run all trials to their end, with enough engines."""
        self.alive |= set(range(4))
        for event in commands.resume(self.ledger, self.now) if not self.ledger.closed else []:
            self.write(event)
        for _ in range(10_000):
            self.now += 1
            self.pump()
            if not self.at_work:
                return
            self.finish()
        raise AssertionError("the sweep does not end")


def state_of(ledger: Ledger) -> dict[str, object]:
    """Return the public state of a ledger, to compare two."""
    trials = {
        number: {name: repr(getattr(trial, name)) for name in trial.__slots__}
        for number, trial in ledger.trials.items()
    }
    curves = {n: (c.steps, repr(c.values), c.count) for n, c in ledger.reports.curves.items()}
    seen = (
        "space", "spaces", "counts", "wanted", "next_number", "sampled", "paused", "closed", "best_value",
    )  # fmt: skip
    return {
        "trials": trials,
        "curves": curves,
        "history": repr(ledger.history),
        "spans": ledger.spans,
        "improvements": ledger.improvements,
        "queues": (list(ledger.waiting), list(ledger.running)),
        **{name: getattr(ledger, name) for name in seen},
    }
