"""Splits a sequence of layers into pipeline stages of about equal work. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from nbdist.errors import InvalidArgumentError, choices
from nbdist.numbers import is_whole
from nbdist.train.pipeline import SCHEDULES


@dataclass(frozen=True)
class Pipeline:
    """How a model is spread over tasks: ``stages`` is how many, or the number of layers of each."""

    stages: int | tuple[int, ...] = 1
    micro_batches: int = 1
    schedule: str = "gpipe"

    @classmethod
    def of(cls, stages: Any, micro_batches: Any, schedule: str) -> Pipeline:
        """Return checked settings; without a number of micro-batches, twice as many as stages."""
        if schedule not in SCHEDULES:
            raise InvalidArgumentError(f"no schedule {schedule!r}; {choices(schedule, SCHEDULES)}")
        chosen = tuple(stages) if isinstance(stages, (list, tuple)) else stages
        number = len(chosen) if isinstance(chosen, tuple) else chosen
        for name, value in (("stages", number), ("micro_batches", micro_batches)):
            whole = is_whole(value)
            if not (value is None and name == "micro_batches") and (not whole or value < 1):
                raise InvalidArgumentError(f"{name} is a whole number above 0, got {value!r}")
        if micro_batches is None:
            micro_batches = 2 * number if number > 1 else 1
        return cls(chosen, micro_batches, schedule)

    @property
    def number(self) -> int:
        """How many stages there are."""
        return self.stages if isinstance(self.stages, int) else len(self.stages)

    def assign(self, costs: Sequence[float]) -> list[int]:
        """Return the stage of each layer, given what the layers cost."""
        if isinstance(self.stages, tuple):
            return given(self.stages, len(costs))
        return balanced(costs, self.stages)


def balanced(costs: Sequence[float], stages: int) -> list[int]:
    """Return the stage of each layer: consecutive ones together, none empty, the dearest stage least dear.

    >>> balanced([5, 1, 1, 1, 4], 3)
    [0, 1, 1, 1, 2]
    """
    if stages > len(costs):
        raise InvalidArgumentError(f"{len(costs)} layers cannot be cut into {stages} stages")
    sums = [0.0, *accumulate(costs)]
    # best[k][n]: n layers in k stages: the dearest stage, the sum of squares, and where the last stage begins
    best: list[dict[int, tuple[float, float, int]]] = [{0: (0.0, 0.0, 0)}]
    for k in range(1, stages + 1):
        row: dict[int, tuple[float, float, int]] = {}
        for n in range(k, len(costs) - (stages - k) + 1):
            row[n] = min(
                (max(dearest, sums[n] - sums[start]), squares + (sums[n] - sums[start]) ** 2, start)
                for start, (dearest, squares, _) in best[-1].items()
                if start < n
            )
        best.append(row)
    result = [0] * len(costs)
    end = len(costs)
    for k in range(stages, 0, -1):
        start = best[k][end][2]
        result[start:end] = [k - 1] * (end - start)
        end = start
    return result


def given(counts: Sequence[int], layers: int) -> list[int]:
    """Return the stage of each layer, for stages of so many layers each.

    >>> given([2, 1], 3)
    [0, 0, 1]
    """
    if any(not isinstance(n, int) or n < 1 for n in counts) or sum(counts) != layers:
        raise InvalidArgumentError(
            f"stages={list(counts)!r} are numbers of layers above 0 that add up to the model's {layers}"
        )
    return [stage for stage, n in enumerate(counts) for _ in range(n)]
