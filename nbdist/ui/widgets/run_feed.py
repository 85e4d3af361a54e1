"""From the store to the page: which points to send now. Decides; sends nothing."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nbdist.metrics.series import decimate
from nbdist.metrics.store import ENTRY, by_curve
from nbdist.ui.widgets.frames import CLOCK, MEAN, TREND, Records, records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbdist.metrics.store import RunStore

MOST_POINTS = 2_000  # a series, in the page, at any time
ALL_POINTS = 24_000  # a chart, over all its replicas: what a browser redraws ten times a second at ease
NEW_POINTS = 2_000  # appended in one frame: 24 kB
RENEWED_POINTS = 6_000  # in curves that start over, in one frame
TREND_POINTS = 12_000  # in the trends of all replicas together
UNDRAWN = 0xFFFF  # stands where the index of a curve does
MOST_REPLICAS = 64  # with lines of their own; the mean counts them all
MEAN_EVERY, MEAN_LATEST = 0.2, 2.0  # seconds between two means, cheap or dear
MEAN_SHARE = 0.012  # of the kernel's time should go into means and trends


@dataclass
class Sending:
    """Records for one frame; ``replaced`` names the curves that start over with it."""

    parts: list[Records] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)  # (replica, series)


class Feed:
    """Reads a store so that the page never holds more than 2,000 points of a curve.

    New points are appended until a curve is full; then it waits for its turn to be sent anew, thinned by
    the store to half of what it may hold. Means over replicas, and each replica's trend where there are
    several, are sent anew at a calmer pace.
    """

    def __init__(self, store: RunStore, wanted: Iterable[str] | None = None) -> None:
        self.store = store
        self.wanted = None if wanted is None else list(wanted)
        self.charts: list[Chart] = []
        self.names: list[str] = []  # of the curves in the page; an index into it is what a record carries
        self.seen_series = -1
        self.cursor = 0
        self.held: dict[tuple[int, int], int] = defaultdict(int)  # points in the page, by (replica, series)
        self.waiting: dict[tuple[int, int], None] = {}  # curves to be sent anew, in order
        self.lost: frozenset[int] = frozenset()  # replicas that no longer train
        self.changed = False  # points arrived since the last means
        self.means_due = 0.0
        self.spent = 0.0  # seconds of the kernel that trends have taken since the last means

    def plan(self) -> bool:
        """Choose the charts again if series appeared; returns whether the choice changed."""
        if len(self.store.series) == self.seen_series:
            return False
        self.seen_series = len(self.store.series)
        charts = plan_charts(self.store.series, self.wanted)
        changed = charts != self.charts
        self.charts, self.names = charts, [name for chart in charts for name in chart.names]
        return changed

    def choose(self, titles: Iterable[str] | None) -> None:
        """Draw these charts from the next plan on; None are those that plan_charts would choose."""
        self.wanted, self.seen_series = None if titles is None else list(titles), -1

    def budget(self) -> int:
        """Points of one curve that the page may hold, fewer when there are many replicas."""
        return max(100, min(MOST_POINTS, ALL_POINTS // max(1, len(self.drawn()))))

    def trend_budget(self) -> int:
        """Points of one trend, fewer when there are many replicas."""
        trends = len(self.drawn()) * len(self.charts)
        return max(50, TREND_POINTS // max(1, trends))

    def drawn(self) -> list[int]:
        """The replicas that have lines of their own."""
        return sorted(self.store.replicas)[:MOST_REPLICAS]

    def everything(self, now: float) -> Sending:
        """Return all curves from their first point: for a page that is new, or missed a frame."""
        self.plan()
        self.held.clear()
        self.waiting.clear()
        self.read()
        sending = Sending()
        for replica in self.drawn():
            for index in range(len(self.names)):
                self.renew(sending, replica, index)
        self.means_due, self.changed = now, True
        self.add_means(sending, now)
        while self.waiting:
            self.renew_waiting(sending)
        return sending

    def news(self, now: float) -> Sending:
        """Return what the store got since the last call; the means follow at a calmer pace."""
        sending = Sending()
        fresh, starts = by_curve(self.read())
        made = records(fresh["replica"], fresh["series"], fresh["step"], fresh["value"])
        budget, total = self.budget(), len(fresh)
        self.changed = self.changed or total > 0
        firsts = made[["replica", "series"]][starts].tolist()
        for key, (start, end) in zip(firsts, pairwise([*starts.tolist(), total]), strict=True):
            part = made[start:end]
            if total > NEW_POINTS:
                part = part[decimate(fresh["value"][start:end], max(5, len(part) * NEW_POINTS // total))]
            if self.held[key] + len(part) > budget:
                self.waiting[key] = None
            elif key not in self.waiting:
                self.held[key] += len(part)
                sending.parts.append(part)
        self.add_means(sending, now)
        self.renew_waiting(sending)
        return sending

    def read(self) -> NDArray[np.void]:
        """Return the new points of the curves that are drawn, each with the index of its curve as series."""
        index_of = np.full(1 << 16, UNDRAWN, np.uint16)
        for index, name in enumerate(self.names):
            if (number := self.store.number(name)) is not None:
                index_of[number] = index
        read = [np.empty(0, ENTRY)]
        while True:
            cursor, points = self.store.entries_since(self.cursor)
            if cursor == self.cursor:
                return np.concatenate(read)
            if cursor - self.cursor > len(points):
                # Points have left the store's ring unread, so no curve in the page is whole.
                self.waiting.update({key: None for key in self.held if not key[1] & TREND})
            self.cursor = cursor
            points["series"] = index_of[points["series"]]
            points = points[points["series"] != UNDRAWN]
            if len(self.store.replicas) > MOST_REPLICAS:
                points = points[np.isin(points["replica"], self.drawn())]
            read.append(points)

    def renew_waiting(self, sending: Sending) -> None:
        """Send curves anew, the longest waiting first, a few in each frame."""
        sent, began = 0, time.thread_time()
        while self.waiting and sent < RENEWED_POINTS:
            replica, index = next(iter(self.waiting))
            del self.waiting[replica, index]
            self.renew(sending, replica, index)
            sent += self.held[replica, index]
        self.spent += time.thread_time() - began

    def renew(self, sending: Sending, replica: int, index: int) -> None:
        """Send one curve anew; points at half their budget, which leaves room to append to."""
        name = self.names[index & ~TREND]
        if index & TREND:
            steps, values = course(*self.store.trend(replica, name), most=self.trend_budget())
        else:
            steps, values, _ = self.store.points(replica, name, limit=self.budget() // 2)
        if len(steps) or self.held[replica, index]:
            self.held[replica, index] = len(steps)
            sending.replaced.append((replica, index))
            sending.parts.append(records(replica, index, steps, values))

    def add_means(self, sending: Sending, now: float) -> None:
        """Send the mean of each curve and the clock, if they changed and it is time; trends get in line."""
        if not self.changed or now < self.means_due:
            return
        began = time.thread_time()
        self.changed = False
        for index, name in enumerate(self.names):
            steps, values = course(*self.store.aggregate(name, gone=self.lost), most=MOST_POINTS // 2)
            if len(steps):
                sending.replaced.append((MEAN, index))
                sending.parts.append(records(MEAN, index, steps, values))
        if len(self.store.replicas) > 1:  # of one replica the mean is the trend
            trained = [self.names.index(chart.train) for chart in self.charts if chart.train is not None]
            self.waiting.update(
                {(replica, index | TREND): None for replica in self.drawn() for index in trained}
            )
        self.add_clock(sending)
        self.spent += time.thread_time() - began
        self.means_due = now + min(max(MEAN_EVERY, self.spent / MEAN_SHARE), MEAN_LATEST)
        self.spent = 0.0

    def add_clock(self, sending: Sending) -> None:
        """Send seconds against steps, so that the page can put wall time on the x axis.

        They are those of the replica that is furthest, and never fall, whatever the clock of its task did.
        """
        if not self.names:
            return
        name = self.names[0]
        there = [replica for replica in self.store.replicas if replica not in self.lost]
        lasts = [
            (last.step, -replica)
            for replica in there or self.store.replicas
            if (last := self.store.last(replica, name)) is not None
        ]
        if lasts:
            steps, _, times = self.store.points(-max(lasts)[1], name, limit=200)
            order = np.argsort(steps, kind="stable")
            seconds = np.maximum.accumulate(times[order]) - times[order[0]]
            sending.replaced.append((MEAN, CLOCK))
            sending.parts.append(records(MEAN, CLOCK, steps[order], seconds))


# Which series are drawn, and in which chart: a pure decision.

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


# Downsampling of a noisy curve: means of neighbouring points. Pure.

Curve = tuple[NDArray[np.uint32], NDArray[np.float64]]
FEWEST = 32  # points that are left of a noisy curve
QUIET = 0.008  # noise, as a share of the curve's own range, that does not disturb


def course(steps: ArrayLike, values: ArrayLike, most: int = 512) -> Curve:
    """Return (steps, values): pairs of neighbours become their mean until what is left is a line to follow.

    A smooth curve stays as it is, up to ``most`` points. It begins at the first step in any case, and ends
    at the last one.

    >>> steps = np.arange(400)
    >>> len(course(steps, np.exp(-steps / 100))[0]), len(course(steps, np.sin(2 * steps))[0])
    (400, 47)
    """
    steps, values = downsampled(steps, values, most)
    while len(values) >= 2 * FEWEST and noise(values) > QUIET:
        steps, values = downsampled(steps, values, -(-len(values) // 2))
    return steps, values


def downsampled(steps: ArrayLike, values: ArrayLike, most: int) -> Curve:
    """Return (steps, values) of at most ``most`` points, each the mean of neighbours, at the last one's step.

    The start is kept as it is, as far as there is room: the first point, and one for each doubling of the
    distance from it. The points left over at the end join the last mean: a mean of them alone would be
    noisier than the others.

    >>> downsampled([1, 2, 3, 4, 5, 6, 7], [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0], most=4)
    (array([1, 2, 4, 7], dtype=uint32), array([ 1.,  3.,  6., 11.]))
    """
    steps, values = np.asarray(steps, np.uint32), np.asarray(values, np.float64)
    width = -(-len(values) // most)
    if width <= 1:
        return steps, values
    while len(starts := group_starts(steps, width)) > most:
        width += 1
    lengths = np.diff(starts, append=len(values))
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, and that is the answer
        means = np.add.reduceat(values, starts) / lengths
    return steps[starts + lengths - 1], means


def group_starts(steps: NDArray[np.uint32], width: int) -> NDArray[np.intp]:
    """Return where groups of ``width`` neighbours begin; those of the start are narrower, an octave each.

    >>> group_starts(np.arange(16, dtype=np.uint32), 4)
    array([ 0,  1,  3,  4,  8, 12])
    """
    offset = steps.astype(np.float64) - steps[0]
    count = len(steps)
    head = int(np.searchsorted(offset, offset[-1] * width / count))
    octave = np.floor(np.log2(np.maximum(offset[:head], 0) + 1))
    first = np.flatnonzero(np.diff(octave, prepend=-1))
    return np.concatenate([first, np.arange(head, max(head + 1, count - width + 1), width)])


def noise(values: NDArray[np.float64]) -> float:
    """Return how far points lie from the middle of their neighbours, as a share of the curve's range."""
    finite = values[np.abs(values) < 1e100]
    if len(finite) < 3:
        return 0.0
    ordered = np.sort(finite)
    low, high = quantile(ordered, 0.01), quantile(ordered, 0.99)
    off = quantile(np.sort(np.abs(finite[1:-1] - (finite[:-2] + finite[2:]) / 2)), 0.5)
    return off / (high - low) if high > low else 0.0


def quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Return a quantile of sorted values. np.quantile takes ten times as long for a few hundred.

    >>> quantile(np.array([1.0, 2.0, 4.0]), 0.75)
    3.0
    """
    position = share * (len(ordered) - 1)
    below = int(position)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (high - low) * (position - below)
