"""A sweep to look at, without engines: a ledger that receives events; and what a page makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from nbdist.errors import NbdistError
from nbdist.sweep.events import (
    Asked,
    Cloned,
    Created,
    Ended,
    Event,
    Promoted,
    Pruned,
    Reported,
    Retried,
    SpaceEdited,
    Started,
    Stopped,
)
from nbdist.sweep.space import Space, integer, log, when
from nbdist.sweep.state import Ledger
from nbdist.ui.widgets.sweep import SweepView

BEGAN = 1_800_000_000.0
SPACE = Space({"lr": log(1e-4, 1e-1), "hidden": [32, 64, 128], "opt": ["sgd", "adam"]})
WIDER = Space({**SPACE, "momentum": when([0.0, 0.9], opt="sgd"), "depth": integer(1, 3)})


class Engine(NamedTuple):
    rank: int
    name: str
    state: Any
    number: int | None


class ShownSweep:
    """Has the interface of a sweep's handle; ``executed`` lists the commands and queries."""

    def __init__(self, space: Space = SPACE, trials: int = 24, **created: Any) -> None:
        self.id, self.name = "261120-2130-mnist", "mnist"
        self.state, self.over = "running", False
        self.lock = RLock()
        self.ledger = Ledger(Created(BEGAN, space, trials, seed=7, **{"metric": "val_accuracy", **created}))
        self.touched: list[int] = []
        self.trouble: str | None = None
        self.error: NbdistError | None = None
        self.size = 2
        self.engine_names: dict[int, str] = {}
        self.executed: list[tuple[str, dict[str, Any]]] = []
        self.refuses: Exception | None = None

    def tell(self, *events: Event) -> ShownSweep:
        for event in events:
            self.ledger.apply(event)
            if (number := getattr(event, "number", None)) is not None:
                self.touched.append(number)
        return self

    def run(
        self,
        number: int,
        parameters: dict[str, Any],
        curve: list[float],
        state: Any = "finished",
        **ended: Any,
    ) -> ShownSweep:
        """Have one trial from its start to its end, ten seconds after the one before it."""
        at = BEGAN + 10 * number
        self.tell(
            Asked(at, number, parameters, 2**60 + number), Started(at, number, 1, (number % self.size,))
        )
        self.tell(*(Reported(number, 1, step, value, at + step) for step, value in enumerate(curve, 1)))
        if state == "pruned":
            self.tell(Pruned(at + 8, number, 1, len(curve)))
        last = ended.pop("value", curve[-1] if curve else None)
        return self.tell(Ended(at + 9, number, 1, state, last, **ended))

    def end(self, state: str = "finished") -> ShownSweep:
        self.state, self.over = state, True
        return self

    def engines(self) -> list[Engine]:
        runs = {rank: n for n in self.ledger.running for rank in self.ledger.trials[n].ranks}
        return [
            Engine(rank, f"/job:worker/task:{rank}", "busy" if rank in runs else "free", runs.get(rank))
            for rank in range(self.size)
        ]

    def command(self, name: str, /, **arguments: Any) -> list[Event]:
        self._execute(name, arguments)
        return [Cloned(BEGAN, 99, {}, 0, arguments["number"])] if name == "clone" else []

    def _execute(self, name: str, arguments: dict[str, Any]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.executed.append((name, arguments))

    def output(self, number: int) -> str:
        self._execute("output", {"number": number})
        return "epoch 1\n"

    def as_code(self, number: int) -> str:
        self._execute("cell", {"number": number})
        return "lr = 0.01\n"


class SentGrid(SweepView):
    """A grid whose page is the test."""

    def __init__(self, sweep: ShownSweep) -> None:
        self.sent: list[tuple[dict[str, Any], bytes]] = []
        self.answers: list[dict[str, Any]] = []
        self.wall = BEGAN
        super().__init__(sweep, lambda: self.wall)

    def send(self, content: dict[str, Any], buffers: Any = None) -> None:
        if content["kind"] == "answer":
            self.answers.append(content)
        else:
            self.sent.append((content, buffers[0]))

    def page_says(
        self, kind: str, sequence: int = 0, view: str = "tab", visible: bool = True, **more: Any
    ) -> None:
        said = {"kind": kind, "sequence": sequence, "view": view, "visible": visible, **more}
        self._handle_custom_msg(said, [])


class GridModel:
    """What a page knows, as widget/src/sweep/model.js has it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.head: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.trials: dict[int, dict[str, Any]] = {}
        self.curves: dict[int, list[bytes]] = {}
        self.spans: list[Any] = []
        self.best: list[Any] = []

    def apply(self, content: dict[str, Any], points: bytes) -> None:
        if content["snapshot"]:
            self.clear()
        self.head = content.get("head", self.head)
        self.status = content.get("status", self.status)
        columns = content.get("trials", {"number": []})
        for row, number in enumerate(columns["number"]):
            trial = self.trials.setdefault(number, {})
            for name, column in columns.items():
                if isinstance(column, dict):
                    assert all(len(one) == len(columns["number"]) for one in column.values())
                    trial.setdefault(name, {}).update({key: one[row] for key, one in column.items()})
                else:
                    assert len(column) == len(columns["number"])
                    trial[name] = column[row]
        for number in content.get("replaced", ()):
            del self.curves[number]
        points_sent = content.get("points", {"number": [], "count": []})
        assert len(points) == 8 * sum(points_sent["count"])
        for number, count in zip(points_sent["number"], points_sent["count"], strict=True):
            taken, points = points[: 8 * count], points[8 * count :]
            curve = self.curves.setdefault(number, [])
            curve += [taken[at : at + 8] for at in range(0, len(taken), 8)]
        self.spans += content.get("spans", ())
        self.best += content.get("best", ())

    def seen(self) -> dict[str, Any]:
        """Everything, to compare two; a parameter or metric that a trial has not is left out."""
        return {
            "head": self.head,
            "trials": {number: tidy(trial) for number, trial in self.trials.items()},
            "curves": {number: curve for number, curve in self.curves.items() if curve},
            "spans": self.spans,
            "best": self.best,
        }

    def curve(self, number: int) -> list[tuple[float, float]]:
        return [tuple(np.frombuffer(point, "<f4").tolist()) for point in self.curves.get(number, [])]


class GridPage:
    """One view in a page, connected to a grid; ``loses`` decides about each frame."""

    def __init__(self, view: SentGrid, loses: Callable[[], bool] = lambda: False) -> None:
        self.view, self.loses = view, loses
        self.model = GridModel()
        self.sequence = self.lost = 0
        self.view.page_says("ready")

    def take_all(self) -> None:
        while self.view.sent:
            content, points = self.view.sent.pop(0)
            if self.loses():
                self.lost += 1
            elif content["snapshot"] or content["sequence"] == self.sequence + 1 > 1:
                self.sequence = content["sequence"]
                self.model.apply(content, points)
                self.view.page_says("ack", self.sequence)
            else:
                self.sequence = 0
                self.ask()

    def ask(self) -> None:
        self.view.page_says("snapshot", self.sequence)


def tidy(trial: dict[str, Any]) -> dict[str, Any]:
    maps = {"parameters", "metrics"}
    return {
        name: {key: one for key, one in value.items() if one is not None} if name in maps else value
        for name, value in trial.items()
    }


def random_event(sweep: ShownSweep, dice: Random, now: float) -> list[Event]:
    """Return something that may happen next; a ledger does not take all of it."""
    ledger = sweep.ledger
    number = dice.randint(0, max(0, ledger.next_number - 1))
    trial = ledger.trials.get(number)
    attempt = trial.attempt if trial else 1
    value = dice.choice([dice.random(), -0.0, math.nan, math.inf, 1e300])
    new = ledger.next_number
    start = len(ledger.reports.curves[number].steps) if number in ledger.reports.curves else 0
    return dice.choice(
        [
            lambda: [Asked(now, new, ledger.space.fill(lambda _, one: one.draw(dice.random())), new)],
            lambda: [Started(now, number, attempt + 1, (dice.randint(0, 1),))],
            lambda: [Started(now, number, attempt + 1, (0, 1))],
            lambda: [
                Reported(number, attempt, start + step, dice.random(), now)
                for step in range(dice.choice([1, 5, 70, 300]))
            ],
            lambda: [Reported(number, attempt, dice.randint(0, start + 2), value, now)],
            lambda: [Pruned(now, number, attempt, 3)],
            lambda: [Stopped(now, number, attempt)],
            lambda: [Ended(now, number, attempt, "finished", value, {"val_accuracy": 0.5, "loss": value})],
            lambda: [
                Ended(now, number, attempt, dice.choice(["pruned", "stopped", "failed"]), None, {}, "x\ny")
            ],
            lambda: [Retried(now, number, "asked")],
            lambda: [Promoted(now, number, per_trial=2)],
            lambda: [Cloned(now, new, {"lr": 0.5, "hidden": (1, 2)}, new, number)],
            lambda: [SpaceEdited(now, dice.choice([SPACE, WIDER]))],
        ]
    )()
