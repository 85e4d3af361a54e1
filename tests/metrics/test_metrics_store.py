from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.metrics import store as store_module
from nbdist.metrics.log import POINT, Batch, log_path
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.series import Downsampled, decimate, mean_by_step
from nbdist.metrics.store import RunStore, columns_from_logs

VALUES = arrays(
    np.float64,
    st.integers(0, 400),
    elements=st.floats(-5, 5, width=16) | st.sampled_from([np.nan, np.inf, -np.inf]),
)
CUTS = st.lists(st.integers(0, 400), max_size=8)


def filled(values, cuts=(), **options) -> RunStore:
    store = RunStore(**options)
    for part in np.split(np.arange(len(values)), sorted(min(cut, len(values)) for cut in cuts)):
        store.extend(0, "loss", part.astype("u4"), values[part], part / 2)
    return store


@given(VALUES, st.integers(5, 60))
def test_decimation_keeps_first_last_extremes_and_order(values: np.ndarray, limit: int) -> None:
    keep = decimate(values, limit)
    assert len(keep) <= max(limit, 0)
    assert (np.diff(keep) > 0).all()
    if len(values):
        assert (keep[0], keep[-1]) == (0, len(values) - 1)
        kept = values[keep]
        assert np.isnan(kept).any() == np.isnan(values).any()
        if not np.isnan(values).all():
            assert np.nanmin(kept) == np.nanmin(values)
            assert np.nanmax(kept) == np.nanmax(values)


@given(VALUES, CUTS, st.sampled_from([4, 16, 64]))
def test_thinning_does_not_depend_on_how_points_came(
    values: np.ndarray, cuts: list[int], buckets: int
) -> None:
    at_once, in_parts = Downsampled(buckets), Downsampled(buckets)
    steps = np.arange(len(values), dtype="u4")
    at_once.extend(steps, values, steps / 2)
    for part in np.split(steps, sorted(min(cut, len(values)) for cut in cuts)):
        in_parts.extend(part, values[part], part / 2)
        in_parts.kept()
    assert at_once.kept().tobytes() == in_parts.kept().tobytes()
    kept = at_once.kept()
    assert len(kept) <= 3 * buckets + 2
    if len(values):
        assert (kept["step"][0], kept["step"][-1]) == (0, len(values) - 1)
        assert np.isnan(kept["value"]).any() == np.isnan(values).any()
    if not np.isnan(values).all():
        assert np.nanmin(kept["value"]) == np.nanmin(values)
        assert np.nanmax(kept["value"]) == np.nanmax(values)


@given(VALUES, CUTS)
@settings(max_examples=examples(50))
def test_any_split_into_extend_calls_gives_the_same_store(values: np.ndarray, cuts: list[int]) -> None:
    one, other = filled(values), filled(values, cuts)
    if len(values) == 0:
        return
    for ours, theirs in zip(one.points(0, "loss", 50), other.points(0, "loss", 50), strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert str(one.columns()) == str(other.columns())
    assert repr(one.since(0)) == repr(other.since(0))
    assert repr(one.aggregate("loss", 50)) == repr(other.aggregate("loss", 50))
    assert repr(one.last(0, "loss")) == repr(other.last(0, "loss"))


def test_a_series_is_whole_until_it_is_long() -> None:
    values = np.arange(2048.0)
    steps, got, times = filled(values).points(0, "loss", limit=5000)
    assert np.array_equal(got, values)
    assert steps.dtype == np.uint32
    assert times[-1] == 2047 / 2
    store = filled(np.tile(values, 4))
    store.points(0, "loss")
    assert store.dropped > 0


def test_a_spike_in_a_million_points_is_seen() -> None:
    values = np.zeros(1_000_000)
    values[[123_456, 777_777]] = 5, -5
    store = filled(values, cuts=range(0, 1_000_000, 99_991))
    steps, got, _ = store.points(0, "loss", limit=100)
    assert len(steps) <= 100
    assert got[steps == 123_456] == 5
    assert got[steps == 777_777] == -5
    assert store.dropped == 1_000_000 - len(store.columns()["step"])


def test_memory_stays_bounded_however_many_series() -> None:
    store = RunStore(limit=20_000)
    values = np.random.default_rng(0).random(3000)
    for replica in range(20):
        for name in ("loss", "accuracy", "staleness"):
            store.extend(replica, name, np.arange(3000), values, values)
    assert len(store.columns()["step"]) <= 20_000
    assert store.replicas == list(range(20))
    assert store.points(0, "loss")[1].max() == values.max()


def test_since_delivers_every_point_once_in_order() -> None:
    store = RunStore()
    cursor, seen = 0, {}
    rng = np.random.default_rng(0)
    for start in range(0, 5000, 50):
        for replica in (0, 1):
            store.extend(
                replica,
                ["loss", "accuracy"][start % 100 // 50],
                np.arange(start, start + 50),
                rng.random(50),
                np.zeros(50),
            )
        while True:
            new, groups = store.since(cursor, limit=37)
            for replica, series, steps, _ in groups:
                seen.setdefault((replica, store.series[series]), []).extend(steps.tolist())
            if new == cursor:
                break
            assert new - cursor == sum(len(steps) for _, _, steps, _ in groups)
            cursor = new
    assert cursor == 10_000
    assert all(steps == sorted(set(steps)) for steps in seen.values())
    assert sum(map(len, seen.values())) == 10_000


def test_a_reader_that_was_away_sees_the_gap() -> None:
    store = filled(np.arange(1000.0), recent=100)
    new, groups = store.since(0)
    assert new == 1000
    assert [len(steps) for _, _, steps, _ in groups] == [100]
    assert groups[0][2].tolist() == list(range(900, 1000))
    assert store.since(1000) == (1000, [])
    assert store.since(5000) == (1000, [])


@pytest.mark.parametrize("parts", [[70, 60, 120], [30, 100, 3], [100], [250]])
def test_the_ring_wraps(parts: list[int]) -> None:
    store, start = RunStore(recent=100), 0
    for part in parts:
        store.extend(0, "loss", np.arange(start, start + part), np.zeros(part), np.zeros(part))
        start += part
    _, groups = store.since(0)
    assert groups[0][2].tolist() == list(range(max(0, start - 100), start))


def test_the_aggregate_is_the_mean_by_step() -> None:
    store = RunStore()
    store.extend(0, "loss", np.array([0, 10, 20]), np.array([0.0, 10.0, 20.0]), np.zeros(3))
    store.extend(1, "loss", np.array([5, 10]), np.array([15.0, 20.0]), np.zeros(2))
    steps, values = store.aggregate("loss")
    assert steps.tolist() == [0, 5, 10]
    assert values.tolist() == [0.0, 10.0, 15.0]


def test_the_mean_ends_where_the_slowest_replica_is() -> None:
    """Of losses that fall alike, one replica's alone are lower: the mean would fall for no reason."""
    store, replicas = RunStore(), {0: 60, 1: 30, 2: 10}
    for replica, made in replicas.items():
        steps = np.arange(made)
        store.extend(replica, "loss", steps, 2.0 - steps / 100 - replica, np.zeros(made))
    steps, values = store.aggregate("loss")
    np.testing.assert_array_equal(steps, np.arange(10))
    np.testing.assert_allclose(values, 1.0 - np.arange(10) / 100)
    steps, values = store.aggregate("loss", ended_replicas={2})  # was lost at its step 10
    assert steps[-1] == 29
    np.testing.assert_allclose(values[10:], 1.5 - np.arange(10, 30) / 100)
    assert store.aggregate("loss", ended_replicas={0, 1, 2})[0][-1] == 59


@given(st.lists(VALUES.filter(len), min_size=1, max_size=3))
def test_replicas_at_the_same_steps_give_the_plain_mean(curves: list[np.ndarray]) -> None:
    length = min(map(len, curves))
    table = np.array([curve[:length] for curve in curves])
    steps, means = mean_by_step([(np.arange(length, dtype="u4"), row) for row in table], most=1000)
    assert steps.tolist() == list(range(length))
    with np.errstate(invalid="ignore"):
        assert np.allclose(means, table.mean(0), equal_nan=True)


def test_a_repeated_step_counts_with_its_newest_value() -> None:
    steps, means = mean_by_step([(np.array([1, 2, 1]), np.array([0.0, 2.0, 5.0]))], most=10)
    assert steps.tolist() == [1, 2]
    assert means.tolist() == [5.0, 2.0]


def test_many_points_are_averaged_on_a_bounded_grid() -> None:
    curves = [
        (np.arange(start, 100_000, 7, dtype="u4"), np.full(len(range(start, 100_000, 7)), 2.0))
        for start in range(7)
    ]
    steps, means = mean_by_step(curves, most=500)
    assert len(steps) == 500
    assert (steps[0], steps[-1]) == (0, min(int(curve[0][-1]) for curve in curves))
    assert np.allclose(means, 2.0)


def test_what_is_not_there() -> None:
    store = filled(np.arange(3.0))
    assert store.last(7, "loss") is None
    assert [len(part) for part in store.points(7, "loss")] == [0, 0, 0]
    assert store.last(0, "loss") == (2, 2.0, 1.0)
    with pytest.raises(NotFoundError, match="loss"):
        store.points(0, "accuracy")
    assert RunStore().columns()["step"].shape == (0,)
    assert RunStore().since(0) == (0, [])


def test_bad_input_is_named() -> None:
    store = RunStore()
    with pytest.raises(InvalidArgumentError, match=r"'loss'.*\(2,\), \(3,\)"):
        store.extend(0, "loss", np.zeros(2), np.zeros(3), np.zeros(3))
    with pytest.raises(InvalidArgumentError, match="70000"):
        store.extend(70_000, "loss", np.zeros(1), np.zeros(1), np.zeros(1))
    with pytest.raises(InvalidArgumentError, match="limit=3"):
        filled(np.zeros(3)).points(0, "loss", limit=3)


def test_readers_and_writers_at_once() -> None:
    store = RunStore(recent=1000)
    store.extend(0, "loss", np.arange(1), np.zeros(1), np.zeros(1))
    failures: list[BaseException] = []

    def write(replica: int) -> None:
        for start in range(0, 20_000, 100):
            store.extend(replica, "loss", np.arange(start, start + 100), np.arange(100.0), np.zeros(100))

    def read() -> None:
        try:
            cursor = 0
            while any(thread.is_alive() for thread in writers):
                cursor, _ = store.since(cursor)
                for replica in store.replicas:
                    steps, _, _ = store.points(replica, "loss", 100)
                    assert (np.diff(steps.astype(int)) > 0).all()
                store.aggregate("loss", 100)
        except BaseException as failure:
            failures.append(failure)

    writers = [threading.Thread(target=write, args=(replica,)) for replica in (1, 2)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in (*writers, reader):
        thread.join()
    assert not failures
    assert len(store.replicas) == 3


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5, width=16)), max_size=40)
        ),
        max_size=12,
    ),
    st.sampled_from([30, 4096]),
    st.sampled_from([0, 256]),
    st.data(),
)
def test_batches_are_the_same_as_series_one_by_one(
    sent: list[tuple[int, list[tuple[int, float]]]], unsorted: int, many: int, data: st.DataObject
) -> None:
    names = ["loss", "accuracy", "a", "b"]
    one, other = RunStore(limit=1_000), RunStore(limit=1_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "UNSORTED", unsorted)
        patch.setattr(store_module, "UNSORTED_EACH", 0)
        patch.setattr(store_module, "MANY_SERIES", many)
        for number, (replica, rows) in enumerate(sent):
            points = np.zeros(len(rows), POINT)
            points["series"], points["value"] = [r[0] for r in rows], [r[1] for r in rows]
            points["step"], points["time"] = np.arange(len(rows)) + 100 * number, number
            batch = Batch(replica, dict(enumerate(names)), points)
            one.extend_batch(batch)
            for name, steps, values, times in batch.by_series():
                other.extend(replica, name, steps, values, times)
            assert waiting_in(one) <= 3 * unsorted
            if data.draw(st.booleans()):
                for name in data.draw(st.lists(st.sampled_from(names), max_size=2)):
                    if name in other.series:
                        assert repr(one.last(replica, name)) == repr(other.last(replica, name))
                        assert repr(one.points(replica, name)) == repr(other.points(replica, name))
                        assert repr(one.trend(replica, name)) == repr(other.trend(replica, name))
    assert set(one.replicas) >= set(other.replicas)
    assert curves_of(one) == curves_of(other)
    for name in other.series:
        assert repr(one.aggregate(name, 50)) == repr(other.aggregate(name, 50))
    ours, theirs = one.columns(), other.columns()
    order, same = (np.lexsort((c["step"], c["series"].astype(str), c["replica"])) for c in (ours, theirs))
    for name in ours:
        assert np.array_equal(ours[name][order], theirs[name][same])


def test_names_there_is_no_room_for_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_SERIES", 3)
    store = RunStore()
    points = np.zeros(4, POINT)
    points["series"], points["value"] = np.arange(4), np.arange(4)
    store.extend_batch(Batch(0, {0: "a", 1: "b"}, points[:2]))
    store.extend_batch(Batch(1, dict(enumerate("cbda")), points))  # it cannot be known that "c" would fit
    assert store.series == ["a", "b"]
    assert [one.value for one in (store.last(1, "a"), store.last(1, "b")) if one] == [3.0, 1.0]
    assert store.dropped == 2
    store.extend(0, "c", [1], [1.0], [1.0])
    with pytest.raises(InvalidArgumentError, match="65,535 names"):
        store.extend(0, "d", [1], [1.0], [1.0])


def test_curves_there_is_no_room_for_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_CURVES", 2)
    store = RunStore()
    for number, name in enumerate("abc"):
        store.extend(0, name, [1, 2], [number, 1.0], [1.0, 2.0])
    assert store.last(0, "c") is None
    assert len(store.points(0, "c")[0]) == len(store.trend(0, "c")[0]) == len(store.aggregate("c")[0]) == 0
    assert store.dropped == 2
    assert store.series == ["a", "b", "c"]


@pytest.mark.slow
def test_very_many_series_take_little_memory_and_time() -> None:
    store = RunStore()
    names = [f"layer {number}" for number in range(2_500)]
    for step in range(20):
        for replica in range(4):
            points = np.zeros(2_500, POINT)
            points["series"], points["step"] = np.arange(2_500), step
            store.extend_batch(Batch(replica, dict(enumerate(names)), points))
        store.aggregate("layer 7")
    assert waiting_in(store) <= 4 * 16 * 2_500
    assert store.points(3, "layer 7")[0].tolist() == list(range(20))
    assert store.points(3, "layer 9")[0].tolist() == list(range(20))
    assert sum(thinned._points.nbytes for thinned in store._kept.values()) < 15e6


def waiting_in(store: RunStore) -> int:
    return sum(len(points) for waiting in store._ingest._waiting.values() for points in waiting)


def curves_of(store: RunStore) -> dict[tuple[int, str], list[tuple[int, float]]]:
    """All points that are in the ring, by replica and series."""
    names = store.series
    return {
        (replica, names[series]): list(zip(steps.tolist(), values.tolist(), strict=True))
        for replica, series, steps, values in store.since(0)[1]
    }


def test_batches_and_logs_tell_the_same(tmp_path: Path) -> None:
    store = RunStore()
    for replica in (0, 1):
        recorder = Recorder(log_path(tmp_path, replica), replica=replica)
        for step in range(100):
            recorder.add(recorder.series("loss"), step, step / 3)
            recorder.add(recorder.series("accuracy"), step, replica)
        batch = recorder.close()
        assert batch is not None
        store.extend_batch(batch)
    logged, live = columns_from_logs(tmp_path), store.columns()
    order = np.lexsort((live["step"], live["series"].astype(str), live["replica"]))
    for name in logged:
        assert np.array_equal(logged[name], live[name][order]), name
    assert columns_from_logs(tmp_path / "none")["value"].shape == (0,)
