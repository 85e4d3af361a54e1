"""`Feed`: selects the points of a run's store for the next frame; the caller sends them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.gpu_usage import GPU_SERIES
from nbdist.metrics.names import EPOCH, OF_TRAINING
from nbdist.metrics.series import decimate
from nbdist.metrics.store import ENTRY, RunStore, by_curve
from nbdist.text import clip
from nbdist.ui.widgets.frames import CLOCK, EPOCHS, MEAN, TREND, Records, records

MOST_POINTS = 2_000  # per curve in the page
ALL_POINTS = 24_000  # per chart, over all replicas: a browser redraws them ten times a second
NEW_POINTS = 2_000  # appended in one frame: 24 kB
RENEWED_POINTS = 6_000  # in one frame, of curves that are sent again from their first point
TREND_POINTS = 12_000  # in the trends of all replicas together
UNDRAWN = 0xFFFF  # in place of a curve's index: the curve is not drawn
MOST_REPLICAS = 64  # that have curves of their own; the mean includes all replicas
MEAN_EVERY, MEAN_LATEST = 0.2, 2.0  # shortest and longest interval between two means, in seconds
MEAN_SHARE = 0.012  # share of the kernel's time for means and trends


@dataclass
class RunUpdate:
    """Records for one frame; curves in ``replaced`` are sent from their first point."""

    parts: list[Records] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)  # (replica, series)


class Feed:
    """Reads a store; the page holds at most 2,000 points of each curve.

    New points are appended until a curve is full. It is then queued, and sent again from its first point,
    thinned by the store to half of its budget. Means over replicas, and the trend of each of several
    replicas, are sent as a whole, at longer intervals.
    """

    def __init__(self, store: RunStore, wanted: Iterable[str] | None = None) -> None:
        self.store = store
        self.wanted = None if wanted is None else list(wanted)
        self.charts: list[Chart] = []
        self.names: list[str] = []  # of the curves in the page; a record contains an index into it
        self.seen_series = -1
        self.cursor = 0
        self.held: dict[tuple[int, int], int] = defaultdict(int)  # points in the page, by (replica, series)
        self.waiting: dict[tuple[int, int], None] = {}  # curves to send again, in order
        self.lost: frozenset[int] = frozenset()  # replicas that no longer train
        self.changed = False  # points arrived since the last means
        self.means_due = 0.0
        self.spent = 0.0  # seconds of the kernel that trends have taken since the last means

    def plan(self) -> bool:
        """Choose the charts again if series were added; return whether the choice has changed."""
        if len(self.store.series) == self.seen_series:
            return False
        self.seen_series = len(self.store.series)
        charts = plan_charts(self.store.series, self.wanted)
        changed = charts != self.charts
        self.charts, self.names = charts, [name for chart in charts for name in chart.names]
        return changed

    def choose(self, titles: Iterable[str] | None) -> None:
        """Draw these charts from the next `plan` on; None means the choice of `plan_charts`."""
        self.wanted, self.seen_series = None if titles is None else list(titles), -1

    def budget(self) -> int:
        """Return the number of points of one curve that the page may hold; it falls with more replicas."""
        return max(100, min(MOST_POINTS, ALL_POINTS // max(1, len(self.drawn()))))

    def trend_budget(self) -> int:
        """Return the number of points of one trend; it falls with more replicas."""
        trends = len(self.drawn()) * len(self.charts)
        return max(50, TREND_POINTS // max(1, trends))

    def drawn(self) -> list[int]:
        """Return the replicas that have curves of their own."""
        return sorted(self.store.replicas)[:MOST_REPLICAS]

    def everything(self, now: float) -> RunUpdate:
        """Return all curves from their first point, for a page that is new or has missed a frame."""
        self.plan()
        self.held.clear()
        self.waiting.clear()
        self.read()
        update = RunUpdate()
        for replica in self.drawn():
            for index in range(len(self.names)):
                self.renew(update, replica, index)
        self.means_due, self.changed = now, True
        self.add_means(update, now)
        while self.waiting:
            self.renew_waiting(update)
        return update

    def news(self, now: float) -> RunUpdate:
        """Return the points added since the last call; means are included at longer intervals."""
        update = RunUpdate()
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
                update.parts.append(part)
        self.add_means(update, now)
        self.renew_waiting(update)
        return update

    def read(self) -> NDArray[np.void]:
        """Return the new points of the curves that are drawn; their ``series`` is the index of the curve."""
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
                # The store's ring buffer has dropped unread points, so no curve in the page is complete.
                self.waiting.update({key: None for key in self.held if not key[1] & TREND})
            self.cursor = cursor
            points["series"] = index_of[points["series"]]
            points = points[points["series"] != UNDRAWN]
            if len(self.store.replicas) > MOST_REPLICAS:
                points = points[np.isin(points["replica"], self.drawn())]
            read.append(points)

    def renew_waiting(self, update: RunUpdate) -> None:
        """Add queued curves, the oldest first, up to `RENEWED_POINTS`."""
        sent, began = 0, time.thread_time()
        while self.waiting and sent < RENEWED_POINTS:
            replica, index = next(iter(self.waiting))
            del self.waiting[replica, index]
            self.renew(update, replica, index)
            sent += self.held[replica, index]
        self.spent += time.thread_time() - began

    def renew(self, update: RunUpdate, replica: int, index: int) -> None:
        """Add one curve from its first point, thinned to half its budget, which leaves room to append."""
        name = self.names[index & ~TREND]
        if index & TREND:
            steps, values = course(*self.store.trend(replica, name), most=self.trend_budget())
        else:
            steps, values, _ = self.store.points(replica, name, limit=self.budget() // 2)
        if len(steps) or self.held[replica, index]:
            self.held[replica, index] = len(steps)
            update.replaced.append((replica, index))
            update.parts.append(records(replica, index, steps, values))

    def add_means(self, update: RunUpdate, now: float) -> None:
        """Add the mean of each curve and the clock, if they have changed and are due; queue the trends."""
        if not self.changed or now < self.means_due:
            return
        began = time.thread_time()
        self.changed = False
        for index, name in enumerate(self.names):
            steps, values = course(
                *self.store.aggregate(name, ended_replicas=self.lost), most=MOST_POINTS // 2
            )
            if len(steps):
                update.replaced.append((MEAN, index))
                update.parts.append(records(MEAN, index, steps, values))
        if len(self.store.replicas) > 1:  # with one replica the mean is its trend
            trained = [self.names.index(chart.train) for chart in self.charts if chart.train is not None]
            self.waiting.update(
                {(replica, index | TREND): None for replica in self.drawn() for index in trained}
            )
        # The time in seconds of each step, so that the page can show wall time on the x axis.
        if self.names and (found := clock_of(self.store, self.names[0], self.lost)) is not None:
            update.replaced.append((MEAN, CLOCK))
            update.parts.append(records(MEAN, CLOCK, *found))
        if self.names and (epochs := epochs_of(self.store)) is not None:
            update.replaced.append((MEAN, EPOCHS))
            update.parts.append(records(MEAN, EPOCHS, *epochs))
        self.spent += time.thread_time() - began
        self.means_due = now + min(max(MEAN_EVERY, self.spent / MEAN_SHARE), MEAN_LATEST)
        self.spent = 0.0


def clock_of(
    store: RunStore, name: str, lost: Collection[int] = ()
) -> tuple[NDArray[np.uint32], NDArray[np.float64]] | None:
    """Return some steps of a series, and the seconds from the first of them to each; None without points.

    The times are those of the replica with the highest step that is not ``lost``. They never decrease, even
    if its clock was set back.
    """
    alive = [replica for replica in store.replicas if replica not in lost]
    lasts = [
        (last.step, -replica)
        for replica in alive or store.replicas
        if (last := store.last(replica, name)) is not None
    ]
    if not lasts:
        return None
    steps, _, times = store.points(-max(lasts)[1], name, limit=200)
    order = np.argsort(steps, kind="stable")
    return steps[order], np.maximum.accumulate(times[order]) - times[order[0]]


def epochs_of(store: RunStore) -> tuple[NDArray[np.uint32], NDArray[np.float64]] | None:
    """Return some steps, and the number of the epoch that begins after each; None in loops without epochs.

    They are those of the first replica that has any, and ascend: of a second training the epochs count anew.
    """
    if store.number(EPOCH) is None:
        return None
    for replica in store.replicas:
        steps, epochs, _ = store.points(replica, EPOCH, limit=200)
        if len(steps):
            last = np.append(np.diff(steps.astype(np.int64)) > 0, True)  # one of several at a step
            return steps[last], epochs[last]
    return None


# The choice of the charts and their series.

MOST_CHARTS = 6  # drawn at a time; the run's folder and `run.metrics()` have every series
NOT_CURVES = frozenset(
    {
        *OF_TRAINING, "staleness", "step_ms", "data_ms", "compute_ms", "exchange_ms", "wait_ms",
        *GPU_SERIES.values(),
    }
)  # fmt: skip
"""Series without a chart of their own, until a page chooses them."""
VALIDATION = "val_"


@dataclass(frozen=True)
class Chart:
    """One set of axes: a series on training data, the same on validation data, or both."""

    title: str
    train: str | None
    validation: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The series of the chart."""
        return tuple(name for name in (self.train, self.validation) if name is not None)


def plan_charts(series: Sequence[str], wanted: Iterable[str] | None = None) -> list[Chart]:
    """Return the charts for these series: loss first, then accuracy, then by first appearance.

    ``wanted`` (from ``--live``) gives the charts and their order instead.

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
    """Return the titles of all charts of these series, in the order of `plan_charts`.

    >>> chart_titles(["step_ms", "mae", "val_loss", "loss"])
    ['loss', 'mae', 'step_ms']
    """
    titles = dict.fromkeys(name.removeprefix(VALIDATION) or name for name in series if name != EPOCH)
    order = {title: place for place, title in enumerate(("loss", "accuracy", *OF_TRAINING))}
    return sorted(titles, key=lambda title: (title in NOT_CURVES, title not in order, order.get(title, 0)))


# The charts that a page can choose from, where a run has more series than are drawn.

LISTED = 200  # titles that the page receives; it can choose any other chart by its name
EVERY = 1.0  # seconds between two lists: a run may add thousands of series


class Available:
    """The list of available charts that the page has.

    >>> Available().news(["loss", "val_loss", "mae"], now=0.0)
    {'count': 2, 'most': 6, 'titles': ['loss', 'mae']}
    """

    def __init__(self) -> None:
        self.series = 0
        self.titles: list[str] = []
        self.due = float("-inf")

    def news(self, series: Sequence[str], now: float, *, anew: bool = False) -> dict[str, Any] | None:
        """Return the changes, or the whole list if ``anew``.

        Return None without changes, and within `EVERY` seconds of the last list.
        """
        if not anew and (len(series) == self.series or now < self.due):
            return None
        self.series, self.due = len(series), now + EVERY
        titles = chart_titles(series)
        news: dict[str, Any] = {"count": len(titles), "most": MOST_CHARTS}
        if anew or titles[:LISTED] != self.titles:
            self.titles = news["titles"] = titles[:LISTED]
        return news


def chosen(titles: object, series: Sequence[str]) -> list[str]:
    """Return the titles that a page has chosen; raise InvalidArgumentError for others than known titles."""
    if not isinstance(titles, list) or not all(isinstance(title, str) for title in titles):
        raise InvalidArgumentError(f"charts are chosen by a list of titles, not {clip(titles)}")
    if len(titles) > MOST_CHARTS:
        raise InvalidArgumentError(f"at most {MOST_CHARTS} charts are drawn at a time, not {len(titles)}")
    known = set(series)
    for title in titles:
        if not {title, VALIDATION + title} & known:
            raise InvalidArgumentError(f"no series is called {clip(title)!r}")
    return titles


# Downsampling of a noisy curve: means of neighbouring points.

Curve = tuple[NDArray[np.uint32], NDArray[np.float64]]
FEWEST = 32  # points that a noisy curve keeps
QUIET = 0.008  # noise below which a curve stays as it is, as a share of its range


def course(steps: ArrayLike, values: ArrayLike, most: int = 512) -> Curve:
    """Return (steps, values): neighbouring points are averaged in pairs until the noise is below `QUIET`.

    A smooth curve keeps up to ``most`` points. The first and the last step are always kept.

    >>> steps = np.arange(400)
    >>> len(course(steps, np.exp(-steps / 100))[0]), len(course(steps, np.sin(2 * steps))[0])
    (400, 47)
    """
    steps, values = downsampled(steps, values, most)
    while len(values) >= 2 * FEWEST and noise(values) > QUIET:
        steps, values = downsampled(steps, values, -(-len(values) // 2))
    return steps, values


def downsampled(steps: ArrayLike, values: ArrayLike, most: int) -> Curve:
    """Return at most ``most`` points: means of neighbouring values, each at the last step of its group.

    The first groups are narrower: the first point, then one point for each doubling of the distance from it.
    The points left over at the end belong to the last group: the mean of fewer points would be noisier.

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
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN
        means = np.add.reduceat(values, starts) / lengths
    return steps[starts + lengths - 1], means


def group_starts(steps: NDArray[np.uint32], width: int) -> NDArray[np.intp]:
    """Return the first index of each group of ``width`` points; at the start each octave is one group.

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
    """Return the median distance of points from the mean of their neighbours, as a share of the range."""
    finite = values[np.abs(values) < 1e100]
    if len(finite) < 3:
        return 0.0
    ordered = np.sort(finite)
    low, high = quantile(ordered, 0.01), quantile(ordered, 0.99)
    off = quantile(np.sort(np.abs(finite[1:-1] - (finite[:-2] + finite[2:]) / 2)), 0.5)
    return off / (high - low) if high > low else 0.0


def quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Return a quantile of sorted values; ten times as fast as np.quantile for a few hundred values.

    >>> quantile(np.array([1.0, 2.0, 4.0]), 0.75)
    3.0
    """
    position = share * (len(ordered) - 1)
    below = int(position)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (high - low) * (position - below)
