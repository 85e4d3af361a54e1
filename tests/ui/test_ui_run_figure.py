import numpy as np

from nbdist.metrics.store import RunStore
from nbdist.ui.frozen.run_figure import EACH, draw, y_range
from nbdist.ui.frozen.summary import axis_words
from nbdist.ui.widgets.run_feed import plan_charts

TASKS = ["/job:worker/task:0", "/job:worker/task:1"]
STEPS = np.arange(20_000)


def noisy(replicas: int, spoiled: float | None = None) -> RunStore:
    """A loss that falls from 2 to 1 under much noise, with one bad value in the middle."""
    store, rng = RunStore(), np.random.default_rng(0)
    for replica in range(replicas):
        loss = (1 + np.exp(-STEPS / 4000)) * rng.gamma(9, 1 / 9, len(STEPS))
        if spoiled is not None:
            loss[10_000] = spoiled
        store.extend(replica, "loss", STEPS, loss, 1e9 + STEPS / 1000)
    return store


def lines_of(store: RunStore) -> dict[str, np.ndarray]:
    [axes] = draw(store, plan_charts(store.series), TASKS).axes
    return {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.get_lines()}


def test_several_replicas_have_pale_points_a_line_each_and_a_mean() -> None:
    lines = lines_of(noisy(2))
    assert list(lines) == [EACH, "worker 0", "worker 1", "mean over replicas"]
    assert lines[EACH].max() > 4
    assert lines["mean over replicas"][10:].max() < 2.1  # the first ones are single points


def test_the_mean_ends_where_the_slowest_replica_is_unless_it_was_lost() -> None:
    store = RunStore()
    for replica, made in enumerate((40, 25)):
        store.extend(replica, "loss", np.arange(made), np.ones(made), np.arange(made) / 10)

    def last(ended: tuple[int, ...]) -> int:
        [axes] = draw(store, plan_charts(store.series), TASKS, ended_replicas=ended).axes
        return int(axes.get_lines()[-1].get_xdata()[-1])

    assert (last(()), last((1,))) == (24, 39)


def test_one_replica_has_a_training_line_over_its_points() -> None:
    assert list(lines_of(noisy(1))) == [EACH, "training"]


def test_a_single_spike_leaves_the_plot() -> None:
    store = noisy(1, spoiled=1e6)
    [axes] = draw(store, plan_charts(store.series), TASKS).axes
    assert axes.get_ylim()[1] < 10


def test_what_is_not_finite_is_a_gap() -> None:
    for value in (np.nan, np.inf, -np.inf):
        lines = lines_of(noisy(2, spoiled=value))
        gaps = np.isnan(lines["mean over replicas"])
        assert 1 <= gaps.sum() <= 3
        assert np.isnan(lines[EACH]).any()


def test_the_axis_says_what_it_counts() -> None:
    store = noisy(2)
    charts = plan_charts(store.series)
    [axes] = draw(store, charts, TASKS, axis_words("updates", 2)).axes
    assert axes.get_xlabel() == "step (per replica)"


def test_a_line_of_three_points_is_shown_whole() -> None:
    assert y_range([np.array([0.0, 1.0, 2.0])], []) == (-0.12, 2.12)
