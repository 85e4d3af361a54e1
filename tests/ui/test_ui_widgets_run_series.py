import json

import pytest
from ui_runs import SentView, train

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.store import RunStore
from nbdist.ui.widgets.run_feed import LISTED, MOST_CHARTS, Available, chosen


def test_ten_thousand_series_are_a_short_message() -> None:
    available, series = Available(), [f"metric {n}" for n in range(10_000)]
    first = available.news(series, now=0.0)
    assert first is not None
    assert (first["count"], len(first["titles"])) == (10_000, LISTED)
    assert len(json.dumps(first)) < 6_000
    series.append("one more")
    assert available.news(series, now=0.5) is None  # too soon
    assert available.news(series, now=1.0) == {"count": 10_001, "most": MOST_CHARTS}  # the list is the same
    assert available.news(series, now=9.0) is None
    again = available.news(series, now=9.0, anew=True)
    assert again == {**first, "count": 10_001}


@pytest.mark.parametrize("titles", ["loss", None, [1], [["loss"]], ["loss"] * (MOST_CHARTS + 1)])
def test_a_choice_must_be_a_short_list_of_titles(titles: object) -> None:
    with pytest.raises(InvalidArgumentError):
        chosen(titles, ["loss"])


def test_a_title_without_a_series_is_refused_by_name() -> None:
    assert chosen(["loss", "mae"], ["mae", "val_loss"]) == ["loss", "mae"]
    with pytest.raises(InvalidArgumentError, match="no series is called 'rmse'"):
        chosen(["rmse"], ["mae"])


@pytest.fixture
def view(store: RunStore) -> SentView:
    for name in ("loss", "mae", "staleness", "val_mae"):
        train(store, 0, 0, 10, name)
    made = SentView(store, ["/job:worker/task:0"], charts=["loss"])
    made.page_says("ready")
    made.tick(0.0)
    made.page_says("ack", 1)
    return made


def drawn(view: SentView) -> list[str]:
    return [chart["title"] for chart in view.sent[-1][0]["head"]["charts"]]


def test_the_page_receives_the_charts_and_chooses(view: SentView) -> None:
    assert drawn(view) == ["loss"]
    assert view.sent[-1][0]["available"]["titles"] == ["loss", "mae", "staleness"]
    view.page_says("charts", titles=["staleness", "mae"])
    view.tick(0.2)
    content, buffer = view.sent[-1]
    assert drawn(view) == ["staleness", "mae"]
    assert "available" not in content
    assert len(buffer) > 4 + 3 * 10 * 12  # with all their points
    view.page_says("ack", 2)
    view.page_says("charts", titles=[])
    view.tick(0.4)
    assert drawn(view) == ["loss"]  # what --live had named


def test_an_invalid_choice_is_reported(view: SentView) -> None:
    view.page_says("charts", titles=["<b>"])
    view.tick(0.2)
    assert view.sent[-1][0]["progress"]["problem"]["text"] == "charts: no series is called '<b>'"


def test_charts_are_chosen_after_the_end_as_well(view: SentView) -> None:
    view.finish("finished")
    view.page_says("ack", 2)
    view.page_says("charts", titles=["mae"])
    assert drawn(view) == ["mae"]


def test_later_series_are_sent(view: SentView, store: RunStore) -> None:
    train(store, 0, 0, 10, "rmse")
    view.tick(5.0)
    assert view.sent[-1][0]["available"]["titles"] == ["loss", "mae", "rmse", "staleness"]
