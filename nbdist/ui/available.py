"""The charts that a page can choose from, where a run has more series than are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.ui.chartplan import MOST_CHARTS, VALIDATION, chart_titles
from nbdist.ui.shorten import clip

LISTED = 200  # titles that the page is told; it can ask for any other by its name
EVERY = 1.0  # seconds between two lists, for series may appear by the thousand


class Available:
    """What the page was told.

    >>> Available().news(["loss", "val_loss", "mae"], now=0.0)
    {'count': 2, 'most': 6, 'titles': ['loss', 'mae']}
    """

    def __init__(self) -> None:
        self.series = 0
        self.titles: list[str] = []
        self.due = float("-inf")

    def news(self, series: Sequence[str], now: float, *, anew: bool = False) -> dict[str, Any] | None:
        """Return what has changed, or all of it ``anew``; None if nothing has, or it was told just now."""
        if not anew and (len(series) == self.series or now < self.due):
            return None
        self.series, self.due = len(series), now + EVERY
        titles = chart_titles(series)
        news: dict[str, Any] = {"count": len(titles), "most": MOST_CHARTS}
        if anew or titles[:LISTED] != self.titles:
            self.titles = news["titles"] = titles[:LISTED]
        return news


def chosen(titles: object, series: Sequence[str]) -> list[str]:
    """Return the titles that a page wants drawn; InvalidArgumentError or NotFoundError if they cannot be."""
    if not isinstance(titles, list) or not all(isinstance(title, str) for title in titles):
        raise InvalidArgumentError(f"charts are chosen by a list of titles, not {clip(titles)}")
    if len(titles) > MOST_CHARTS:
        raise InvalidArgumentError(f"at most {MOST_CHARTS} charts are drawn at a time, not {len(titles)}")
    known = set(series)
    for title in titles:
        if not {title, VALIDATION + title} & known:
            raise NotFoundError(f"no series is called {clip(title)!r}")
    return titles
