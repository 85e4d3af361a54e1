"""The driver and the trial servers on an unreliable simulated cluster: every trial ends once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trials_simulated import Clock, Simulated

from nbdist.errors import NbdistError
from nbdist.sweep import commands
from nbdist.sweep.event_log import EventLog, read_events
from nbdist.sweep.events import Event
from nbdist.sweep.space import Space
from nbdist.sweep.start import open_sweep
from nbdist.sweep.state import Ledger
from nbdist.trials import driver as driver_file
from nbdist.trials import driver as pressing_file
from nbdist.trials import trial_worker as server_file
from nbdist.trials import workers as engine_file
from nbdist.trials.driver import Driver
from nbdist.trials.protocol import SweepSpec
from nbdist.trials.store import Record
from nbdist.trials.workers import Engines


class Play:
    """A sweep that is driven step by step, with random faults."""

    def __init__(self, folder: Path, dice: Random, per_trial: int, calm: bool) -> None:
        self.dice, self.calm, self.path = dice, calm, folder / "sweep.log"
        self.clock = Clock()
        self.cluster = Simulated(3, dice)
        self.cluster.twice = calm and per_trial == 1
        opened = open_sweep(
            Space({"width": list(range(6))}), metric="accuracy", sampler="grid", seed=3, per_trial=per_trial,
            now=1.0, pruner="median",
        )  # fmt: skip
        log = EventLog.create(self.path)
        log.append(opened)
        self.record = Record(folder, log, Ledger(opened), None)
        self.known = self.path.stat().st_size  # the size when the driver started
        self.driver = self.drive(taken_over=False)

    def drive(self, taken_over: bool) -> Driver:
        spec = SweepSpec("sweep", "/nowhere", "accuracy")
        engines = Engines(cast(Any, self.cluster), spec, "body", range(3))
        engines.wait = lambda wake, seconds: self.pass_time()  # type: ignore[method-assign]
        driver = Driver(self.record, engines, taken_over, lambda: None)
        if taken_over:
            driver._recover()
        return driver

    def pass_time(self) -> None:
        self.clock.now += self.dice.choice([0.001, 0.05, 0.25])
        for _ in range(self.dice.randrange(8)):
            self.dice.choice([self.cluster.deliver, self.cluster.work])()

    def look(self) -> bool:
        self.driver._poll()
        over = self.driver._act()
        self.pass_time()
        return over

    def shake(self) -> None:
        """Cause a random fault, or poll the driver."""
        cluster, dice = self.cluster, self.dice
        what = dice.randrange(12)
        rank = dice.randrange(3)
        if what == 0:
            self.driver_dies()
        elif what == 1:
            cluster.cut()
        elif what == 2 and not self.calm:
            cluster.kill(rank)
        elif what == 3 and not self.calm:
            cluster.engines[rank].frozen = True
            self.clock.now += dice.choice([0.0, 20.0])
        elif what in (4, 5):
            cluster.engines[rank].frozen = False
            cluster.restart(rank)
        elif what == 6:
            self.command()
        else:
            self.look()

    def command(self) -> None:
        ledger, dice = self.record.ledger, self.dice
        number = dice.randrange(8)
        command: Callable[[], list[Event]] = dice.choice(
            [
                lambda: commands.stop(ledger, number, 2.0),
                lambda: commands.retry(ledger, number, 2.0),
                lambda: commands.clone(ledger, number, {}, 2.0) if len(ledger.trials) < 9 else [],
                lambda: commands.promote(ledger, number, 2.0, per_trial=dice.choice([1, 2])),
            ]
        )
        try:
            self.record.write(*command())
        except NbdistError:  # refused in this state
            return

    def driver_dies(self) -> None:
        os.close(self.driver._wake_in)
        os.close(self.driver._wake_out)
        self.driver._wake_in = self.driver._wake_out = -1
        self.record.log.close()
        self.cluster.driver_dies()
        self.clock.now += 0.001
        size = self.path.stat().st_size
        if size > self.known and self.dice.random() < 0.3:  # a torn record
            os.truncate(self.path, max(self.known, size - self.dice.randrange(1, 12)))
        log = EventLog.reopen(self.path)
        self.known = self.path.stat().st_size
        self.record = Record(self.path.parent, log, Ledger.of(log.found.events), None)
        self.driver = self.drive(taken_over=True)

    def finish(self) -> None:
        """Repair all engines, and run the sweep to its end."""
        for rank, engine in enumerate(self.cluster.engines):
            engine.frozen = False
            self.cluster.restart(rank)
        for _ in range(20_000):
            if self.look():
                return
        ledger = self.record.ledger
        raise AssertionError(f"the sweep did not end: {ledger.counts}, {self.driver.engines._all}")

    def close(self) -> None:
        for descriptor in (self.driver._wake_in, self.driver._wake_out):
            if descriptor >= 0:
                os.close(descriptor)
        self.record.log.close()


def facts(ledger: Ledger) -> Any:
    trials = [
        (one.number, one.state, one.attempt, one.value, one.ranks, one.lost, one.error, one.stopping)
        for one in ledger.trials.values()
    ]
    curves = {number: (curve.steps, curve.values) for number, curve in ledger.reports.curves.items()}
    return trials, ledger.counts, ledger.spans, ledger.history, ledger.wanted, curves, ledger.improvements


@pytest.mark.parametrize(("per_trial", "calm"), [(1, True), (1, False), (2, True), (2, False)])
@settings(max_examples=examples(100), derandomize=True)  # fixed seeds; more were run by hand
@given(seed=st.integers(0, 2**32))
def test_after_any_faults_every_trial_ends_once(seed: int, per_trial: int, calm: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        dice = Random(seed)
        play = Play(Path(folder), dice, per_trial, calm)
        for module in (server_file, driver_file, engine_file, pressing_file):
            patch.setattr(module, "time", play.clock)
        patch.setattr(engine_file, "_with_server", set())
        patch.setattr(os, "fsync", lambda descriptor: None)  # the host does not end
        try:
            for _ in range(dice.randrange(250)):
                play.shake()
            play.finish()
            ledger = play.record.ledger
            assert ledger.sampled == 6
            assert not ledger.running
            assert not ledger.waiting
            assert all(trial.over for trial in ledger.trials.values())
            assert all(trial.lost < 2 for trial in ledger.trials.values() if trial.state != "failed")
            assert facts(Ledger.of(read_events(play.path).events)) == facts(ledger)
        finally:
            play.close()
