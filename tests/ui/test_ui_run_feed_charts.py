from nbdist.ui.widgets.run_feed import MOST_CHARTS, Chart, plan_charts


def test_a_series_and_its_validation_share_a_chart() -> None:
    charts = plan_charts(["val_accuracy", "loss", "accuracy", "staleness", "val_loss"])
    assert charts == [Chart("loss", "loss", "val_loss"), Chart("accuracy", "accuracy", "val_accuracy")]


def test_a_series_that_is_called_as_the_prefix_is_one_of_its_own() -> None:
    assert plan_charts(["val_", "val_loss"]) == [Chart("loss", None, "val_loss"), Chart("val_", "val_", None)]


def test_no_series_no_charts() -> None:
    assert plan_charts([]) == plan_charts(["step_ms"]) == []


def test_the_user_names_the_charts() -> None:
    charts = plan_charts(["loss", "mae", "staleness"], ["staleness", "mae", "absent"])
    assert [chart.title for chart in charts] == ["staleness", "mae"]


def test_ten_thousand_series_are_not_drawn() -> None:
    assert len(plan_charts([f"m{n}" for n in range(10_000)])) == MOST_CHARTS
