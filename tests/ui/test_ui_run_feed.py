import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ui_runs import train

from nbdist.metrics.store import RunStore
from nbdist.ui.widgets.frames import CLOCK, MEAN, TREND
from nbdist.ui.widgets.run_feed import MOST_POINTS, NEW_POINTS, RENEWED_POINTS, Feed, RunUpdate


class Page:
    """What a browser holds, by (replica, series)."""

    def __init__(self) -> None:
        self.curves: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def apply(self, update: RunUpdate) -> None:
        for key in update.replaced:
            self.curves.pop(key, None)
        for part in update.parts:
            for replica, series, step, value in part.tolist():
                self.curves.setdefault((replica, series), []).append((step, value))


def test_new_points_arrive_once_and_in_order(store: RunStore) -> None:
    feed, page = Feed(store), Page()
    feed.plan()
    for start in range(0, 500, 10):
        train(store, 0, start, 10)
        feed.plan()
        page.apply(feed.news(start))
    assert [step for step, _ in page.curves[0, 0]] == list(range(500))


def test_a_curve_in_the_page_stays_bounded_and_keeps_its_ends_and_spikes(store: RunStore) -> None:
    feed, page = Feed(store), Page()
    for start in range(0, 20_000, 100):
        steps = np.arange(start, start + 100)
        values = np.where(steps == 7_777, 50.0, np.sin(steps / 500))
        store.extend(0, "loss", steps, values, steps / 10)
        feed.plan()
        page.apply(feed.news(start / 1000))
        assert all(len(curve) <= MOST_POINTS for curve in page.curves.values())
    curve = page.curves[0, 0]
    assert curve[0][0] == 0
    assert curve[-1][0] > 19_000
    assert (7_777, 50.0) in curve
    assert [step for step, _ in curve] == sorted(step for step, _ in curve)


def test_a_frame_is_small_although_many_replicas_are_fast(store: RunStore) -> None:
    feed, page = Feed(store), Page()
    for round_ in range(25):
        for replica in range(64):
            train(store, replica, round_ * 50, 50)
        if feed.plan():
            page.apply(feed.everything(round_))
            continue
        update = feed.news(round_)
        page.apply(update)
        most = NEW_POINTS + 5 * 64 + RENEWED_POINTS + MOST_POINTS + 400
        assert sum(len(part) for part in update.parts) <= most
    held = [len(curve) for (replica, index), curve in page.curves.items() if replica < 64 and index == 0]
    assert len(held) == 64
    assert max(held) <= feed.budget()
    trends = [len(curve) for (_, index), curve in page.curves.items() if index == TREND]
    assert len(trends) == 64
    assert max(trends) <= feed.trend_budget()


def test_the_mean_is_computed_in_python_and_sent_whole(store: RunStore) -> None:
    feed, page = Feed(store), Page()
    steps = np.arange(100)
    for replica, offset in enumerate([0.0, 1.0]):
        store.extend(replica, "loss", steps, np.full(100, offset), steps / 10)
    feed.plan()
    page.apply(feed.everything(0.0))
    assert page.curves[MEAN, 0] == [(step, 0.5) for step in range(100)]
    assert page.curves[MEAN, CLOCK][-1][0] == 99


def test_the_mean_of_one_replica_is_its_trend(store: RunStore) -> None:
    feed, page = Feed(store), Page()
    train(store, 0, 0, 100)
    feed.plan()
    page.apply(feed.everything(0.0))
    assert set(page.curves) == {(0, 0), (MEAN, 0), (MEAN, CLOCK)}


def test_trends_of_several_replicas_are_smooth(store: RunStore) -> None:
    feed, page = Feed(store), Page()
    rng = np.random.default_rng(0)
    steps = np.arange(50_000)
    course = np.exp(-steps / 10_000)
    for replica in range(3):
        store.extend(replica, "loss", steps, course * rng.gamma(4, 1 / 4, len(steps)), steps / 10)
    feed.plan()
    page.apply(feed.everything(0.0))
    for key in [(0, TREND), (1, TREND), (2, TREND), (MEAN, 0)]:
        at, values = np.array(page.curves[key]).T
        assert len(at) <= 512
        assert at[0] == 0  # the start is there, as single points
        assert np.abs(values - course[at.astype(int)])[at > 300].max() < 0.2
    assert max(value for _, value in page.curves[0, 0]) > 2  # its points are there, with their noise


def test_dropped_points_arrive_with_whole_curves() -> None:
    store = RunStore(recent=64)
    feed, page = Feed(store), Page()
    train(store, 0, 0, 10)
    feed.plan()
    page.apply(feed.everything(0.0))
    train(store, 0, 10, 500)  # far more than the ring holds
    page.apply(feed.news(1.0))
    assert [step for step, _ in page.curves[0, 0]] == list(range(510))


@pytest.mark.parametrize("made", [3_000, 200])
def test_a_lost_replica_does_not_hold_back_the_mean(store: RunStore, made: int) -> None:
    feed, page = Feed(store), Page()
    steps = np.arange(made)  # fast or slow, and soon dropped
    store.extend(2, "loss", steps, np.full(made, 9.0), steps / 100)
    for start in range(0, 1_000, 100):
        for replica in range(2):
            train(store, replica, start, 100)
        feed.lost = frozenset({2} if start >= 500 else ())
        if feed.plan():
            page.apply(feed.everything(start))
        page.apply(feed.news(start))
        last = page.curves[MEAN, 0][-1][0]
        assert last == (min(made - 1, start + 99) if start < 500 else start + 99)
        assert page.curves[MEAN, CLOCK][-1][0] == (max(made - 1, start + 99) if start < 500 else last)
    assert page.curves[2, 0][-1][0] == made - 1  # its own points stay


def test_the_mean_stays_when_all_replicas_are_lost(store: RunStore) -> None:
    train(store, 0, 0, 10)
    feed, page = Feed(store), Page()
    feed.lost = frozenset({0})
    feed.plan()
    page.apply(feed.everything(0.0))
    assert page.curves[MEAN, 0][-1][0] == page.curves[MEAN, CLOCK][-1][0] == 9


@given(
    st.lists(st.tuples(st.integers(0, 500), st.floats(0, 2e9), st.integers(0, 3)), min_size=1, max_size=60)
)
def test_times_never_decrease_whatever_the_clocks_do(points: list[tuple[int, float, int]]) -> None:
    store = RunStore()
    for step, seconds, replica in points:
        store.extend(replica, "loss", [step], [0.5], [seconds])
    feed, page = Feed(store), Page()
    feed.plan()
    page.apply(feed.everything(0.0))
    steps, seconds = zip(*page.curves[MEAN, CLOCK], strict=True)
    assert seconds[0] == 0.0
    assert list(steps) == sorted(steps)
    assert list(seconds) == sorted(seconds)


@pytest.mark.slow
def test_ten_thousand_series_send_six_charts(store: RunStore) -> None:
    for number in range(10_000):
        store.extend(0, f"metric {number}", [1], [0.5], [1e9])
    feed = Feed(store)
    feed.plan()
    assert len(feed.names) == 6
    assert len(feed.everything(0.0).parts) == 6 + 6 + 1  # points, trends and the clock
