"""`StepParts` with a clock of its own: which steps are sampled, and how the others are divided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nbdist.frameworks.patches import Patches
from nbdist.frameworks.torch import step_parts
from nbdist.frameworks.torch.step_parts import SHORT_STEP, StepParts, is_sampled

pytestmark = pytest.mark.frameworks  # it imports torch


class Loop:
    """A loop whose batches and computation take what ``clock`` is moved by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(step_parts, "perf_counter", lambda: self.now)
        self.spent = dict.fromkeys(("data", "compute", "wait"), 0.0)
        self.parts = StepParts(self.spent, None)
        self.waits = 0.0
        loop = self

        class Batches:
            def __next__(self) -> None:
                loop.now += loop.waits

        self.module: Any = SimpleNamespace(_BaseDataLoaderIter=Batches)

    def step(self, number: int, data: float, compute: float) -> None:
        self.waits = data
        self.parts.begin()
        self.module._BaseDataLoaderIter().__next__()
        self.now += compute
        self.parts.begin_update()
        self.parts.end(number, computes=False)


def test_short_steps_are_divided_as_the_last_that_was_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, short = Loop(monkeypatch), SHORT_STEP / 10
    with Patches({}) as patches:
        loop.parts.changes["torch.utils.data.dataloader"](loop.module, patches)
        loop.step(1, 3 * short, short)  # the first one is sampled
        assert loop.spent == pytest.approx({"data": 3 * short, "compute": short, "wait": 0})
        apart = next(step for step in range(2, 99) if not is_sampled(step, short))
        for number in range(2, apart + 1):
            loop.step(number, short, 3 * short if number == apart else short)
        last = loop.spent["data"]
        loop.step(apart + 1, 0, SHORT_STEP)
    assert loop.spent["data"] == pytest.approx(last)  # nothing is known of a long step that is not sampled
    assert loop.now == pytest.approx(sum(loop.spent.values()))


def test_one_of_seven_short_steps_is_sampled() -> None:
    sampled = [step for step in range(1, 7001) if is_sampled(step, SHORT_STEP / 2)]
    assert 950 < len(sampled) < 1050
    for period in range(2, 50):  # of the batches of an epoch
        assert len({step % period for step in sampled}) > period / 2
