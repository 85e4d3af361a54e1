"""Ranks that train together do what users ask after one and the same step, whenever they learn of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import AbortedError
from nbdist.frameworks.steps import StepBoundary
from nbdist.train.context import Checkpoints, Context


@dataclass
class Model:
    """Takes note of the steps after which something was done."""

    boundary: StepBoundary = field(init=False)
    rates: list[tuple[int, float]] = field(default_factory=list)
    refuses: str = ""

    def set_learning_rate(self, rate: float) -> None:
        self.rates.append((self.boundary.steps, rate))

    def save(self, folder: Path) -> Path:
        if self.refuses:
            raise ValueError(self.refuses)
        (folder / "model.safetensors").write_bytes(b"")
        return folder / "model.safetensors"


def ranks_of(count: int) -> list[tuple[Context, Model]]:
    found = []
    for rank in range(count):
        context, model = Context(is_chief=rank == 0), Model()
        model.boundary = StepBoundary(context, model, together=lambda: count > 1)
        found.append((context, model))
    others = [context.control for context, _ in found[1:]]
    found[0][0].plan_everywhere = lambda plan: [control.add_plan(plan) for control in others]
    return found


@given(
    ahead=st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=6, max_size=6),
    tells=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=3, max_size=3),
)
def test_all_ranks_act_after_one_step(ahead: list[list[bool]], tells: list[tuple[int, int]]) -> None:
    """``ahead``: whether a rank ends a step before the chief; ``tells``: when a rank receives the message."""
    ranks = ranks_of(3)
    stopped: dict[int, int] = {}
    for step, first in enumerate(ahead):
        order = [rank for rank in (1, 2) if first[rank - 1]]
        order += [0, *(rank for rank in (1, 2) if not first[rank - 1])]
        for rank in order:
            context, model = ranks[rank]
            if (step, 0) <= tells[rank] and step == tells[rank][0]:
                context.control.set_rate(0.5)
                context.control.stop_requested = True
            if rank not in stopped:
                try:
                    model.boundary.after_step()
                except AbortedError:
                    stopped[rank] = model.boundary.steps
    assert len(stopped) == 3
    assert len(set(stopped.values())) == 1
    assert [model.rates for _, model in ranks] == [[(stopped[0], 0.5)]] * 3


def test_a_rank_by_itself_acts_at_once_and_reports_a_checkpoint_that_fails(tmp_path: Path) -> None:
    [(context, model)] = ranks_of(1)
    context.checkpoints = Checkpoints(tmp_path / "checkpoints")
    context.progress.step = 7
    context.control.ask_checkpoint(1)
    model.boundary.after_step()
    assert context.progress.checkpoint == {
        "number": 1, "step": 7, "error": None,
        "path": str(tmp_path / "checkpoints" / "step-7" / "model.safetensors"),
    }  # fmt: skip
    model.refuses, context.progress.step = "no module", 8
    context.control.ask_checkpoint(2)
    model.boundary.after_step()
    assert "ValueError: no module" in context.progress.checkpoint["error"]
    context.control.stop_requested = True
    with pytest.raises(AbortedError):
        model.boundary.after_step()
