"""Which series are drawn, and in which chart: a pure decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_CHARTS = 6  # more would not be looked at; the run's folder and `run.metrics()` have every series
NOT_CURVES = frozenset({"staleness", "step_ms", "data_ms", "compute_ms", "exchange_ms", "wait_ms"})
VALIDATION = "val_"


@dataclass(frozen=True)
class Chart:
    """One set of axes: a series on training data, the same on validation data, or both."""

    title: str
    train: str | None
    validation: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The series in it."""
        return tuple(name for name in (self.train, self.validation) if name is not None)


def plan_charts(series: Sequence[str], wanted: Iterable[str] | None = None) -> list[Chart]:
    """Return the charts for these series: loss first, then accuracy, then by first appearance.

    ``wanted`` (from ``--live``) names the charts instead, in its own order.

    >>> [chart.title for chart in plan_charts(["step_ms", "mae", "val_loss", "loss"])]
    ['loss', 'mae']
    """
    known = set(series)
    if wanted is None:
        order = chart_titles([name for name in series if name not in NOT_CURVES])
    else:
        order = [title for title in dict.fromkeys(wanted) if {title, VALIDATION + title} & known]
    return [
        Chart(
            title,
            title if title in known else None,
            VALIDATION + title if VALIDATION + title in known else None,
        )
        for title in order[:MOST_CHARTS]
    ]


def chart_titles(series: Sequence[str]) -> list[str]:
    """Return the titles of all charts that can be drawn of these series, in the order of their plan.

    >>> chart_titles(["step_ms", "mae", "val_loss", "loss"])
    ['loss', 'mae', 'step_ms']
    """
    titles = dict.fromkeys(name.removeprefix(VALIDATION) or name for name in series)
    return sorted(titles, key=lambda title: (title != "loss", title != "accuracy", title in NOT_CURVES))
