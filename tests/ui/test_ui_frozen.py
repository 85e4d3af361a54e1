import base64
import io
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import nbformat
import numpy as np
import pytest
from PIL import Image
from tiers import matrix
from ui_runs import train

from nbdist.metrics.run_events import Event
from nbdist.metrics.store import RunStore
from nbdist.ui.frozen.run import RUN, frozen, run_data
from nbdist.ui.frozen.summary import Summary
from nbdist.ui.widgets.run_feed import plan_charts

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>$\\frac{"
LIMIT = 150_000


def summary(**changes: object) -> Summary:
    about = {
        "run_id": "r1",
        "title": "digits",
        "state": "finished",
        "tasks": ["/job:worker/task:0"],
        **changes,
    }
    return Summary(**about)  # type: ignore[arg-type]


def bytes_in_a_notebook(bundle: dict[str, object]) -> int:
    """The size in a file, where the items of a JSON list take a line each."""
    output = nbformat.v4.new_output("display_data", data=bundle)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=[output])])
    return len(nbformat.writes(notebook).encode())


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of fewer dots, for tests of other things."""
    monkeypatch.setattr("nbdist.ui.frozen.run_figure.SHARPEST", 50)


def test_it_holds_picture_table_text_and_data(store: RunStore) -> None:
    for replica in range(3):
        train(store, replica, 0, 500)
    train(store, 0, 0, 500, "accuracy")
    bundle = frozen(
        store,
        summary(step=500, seconds=3.2, metrics={"loss": 0.0123}, outputs={"/job:worker/task:0": "hi\n"}),
    )
    picture = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    assert picture.width > 800
    assert bundle["image/png"] in bundle["text/html"]
    assert "0.0123" in bundle["text/html"]
    assert "worker 0" in bundle["text/html"]
    assert "✓ finished · 500 steps" in bundle["text/plain"]
    data = bundle[RUN]
    mean = next(s for s in data["series"] if s["replica"] == "mean" and s["name"] == "loss")
    assert len(mean["steps"].split()) == len(mean["values"].split()) <= 500
    assert float(mean["values"].split()[0]) > 0.95
    kinds = [(s["replica"], s["kind"]) for s in data["series"] if s["name"] == "loss"]
    assert kinds == [("mean", "trend"), *((r, "trend") for r in range(3)), *((r, "points") for r in range(3))]
    assert data["left_out"] == 0


def test_the_charts_are_those_that_were_wanted(store: RunStore, coarse: None) -> None:
    for name in ("loss", "mae", "staleness"):
        train(store, 0, 0, 10, name)

    def titles(wanted: list[str] | None) -> list[str]:
        return [chart["title"] for chart in frozen(store, summary(), wanted)[RUN]["charts"]]

    assert titles(None) == ["loss", "mae"]
    assert titles(["staleness", "loss"]) == ["staleness", "loss"]
    assert titles(["absent"]) == ["loss", "mae"]


def test_a_run_that_failed_says_why(store: RunStore, coarse: None) -> None:
    train(store, 0, 0, 10)
    about = summary(state="failed", error="ValueError on /job:worker/task:1: <x> & y")
    bundle = frozen(store, about)
    assert "<code>ValueError on /job:worker/task:1: &lt;x&gt; &amp; y</code>" in bundle["text/html"]
    assert "✕ failed" in bundle["text/html"]
    assert "ValueError on /job:worker/task:1: <x> & y" in bundle["text/plain"]
    assert bundle["image/png"]  # what was trained until then


def test_a_run_without_metrics_shows_its_output_only(store: RunStore) -> None:
    bundle = frozen(store, summary(outputs={"/job:worker/task:0": "hello\n", "/job:worker/task:1": ""}))
    assert "image/png" not in bundle
    assert "<img" not in bundle["text/html"]
    assert "hello" in bundle["text/html"]
    assert "[worker 0]\nhello" in bundle["text/plain"]
    assert "worker 1" not in bundle["text/plain"]
    assert "digits" not in bundle["text/html"] + bundle["text/plain"]  # nor a headline, as with %%px
    assert RUN not in bundle
    silent = frozen(store, summary())
    assert "finished" in silent["text/html"]
    failed = frozen(store, summary(state="failed", error="ValueError on worker 1: 7"))
    assert "digits" in failed["text/plain"]


def test_marks_and_the_checkpoint_are_drawn_and_said(store: RunStore, coarse: None) -> None:
    train(store, 0, 0, 100)
    marks = [Event(1e9, 20, "rate", "learning rate 0.1 → 0.01", 2), Event(2e9, 50, "checkpoint", HOSTILE)]
    plain = frozen(store, summary(step=100))
    bundle = frozen(store, summary(step=100, total=200, marks=marks, checkpoint="/runs/m/<step>"))
    assert bundle["image/png"] != plain["image/png"]
    assert "◆ 20 (epoch 2) learning rate 0.1 → 0.01 · ▼ 50 &lt;script" in bundle["text/html"]
    assert "<code>/runs/m/&lt;step&gt;</code>" in bundle["text/html"]
    assert "checkpoint: /runs/m/<step>" in bundle["text/plain"]
    assert bundle[RUN]["marks"][0] == {
        "time": 1e9, "step": 20, "kind": "rate", "text": "learning rate 0.1 → 0.01", "epoch": 2, "rank": None,
    }  # fmt: skip
    assert (bundle[RUN]["total"], bundle[RUN]["checkpoint"]) == (200, "/runs/m/<step>")


def test_everything_is_escaped(store: RunStore, coarse: None) -> None:
    store.extend(0, HOSTILE, [1, 2], [0.1, 0.2], [1e9, 1e9])
    about = summary(
        title=HOSTILE, state=HOSTILE, tasks=[HOSTILE], error=HOSTILE,
        metrics={HOSTILE: 1.0}, outputs={HOSTILE: HOSTILE}, rows=[{HOSTILE: HOSTILE}],
    )  # fmt: skip
    html = frozen(store, about)["text/html"]
    tags = set(re.findall(r"<(\w+)", html))
    assert tags <= {
        "p",
        "strong",
        "small",
        "code",
        "pre",
        "img",
        "table",
        "tbody",
        "thead",
        "tr",
        "th",
        "td",
        "details",
        "summary",
    }
    assert "onerror" not in re.sub(r"&lt;.*?&gt;", "", html)


def very_much() -> tuple[RunStore, Summary]:
    store = RunStore()
    rng = np.random.default_rng(0)
    for number in range(2_000):
        store.extend(0, f"metric {number} {'n' * 100}", np.arange(20), rng.normal(size=20), np.full(20, 1e9))
    for replica in range(24):
        steps = np.arange(15_000)
        store.extend(replica, "loss", steps, rng.normal(size=15_000), np.full(15_000, 1e9))
    return store, summary(
        title="t" * 10_000,
        tasks=[f"/job:worker/task:{n}" for n in range(500)],
        metrics={f"metric {n} {'é' * 200}": float(n) for n in range(2_000)},
        outputs={f"/job:worker/task:{n}": '<é😀"\n' * 40_000 for n in range(100)},
        rows=[{f"column {c} {'x' * 200}": "é" * 1000 for c in range(50)} for _ in range(500)],
        error="&" * 100_000,
    )


def not_finite() -> tuple[RunStore, Summary]:
    store = RunStore()
    values = np.tile([np.nan, np.inf, -np.inf, 1e307, -1e307], 200)
    for replica in range(3):
        store.extend(replica, "loss", np.arange(1000), values, np.full(1000, 1e9))
    store.extend(0, "accuracy", np.arange(10), np.full(10, np.nan), np.full(10, 1e9))
    return store, summary(metrics={"loss": float("nan"), "accuracy": float("inf")}, seconds=float("nan"))


def noise_only() -> tuple[RunStore, Summary]:
    store = RunStore()
    rng = np.random.default_rng(0)
    for name in ("loss", "accuracy", "mae", "rmse", "auc", "top5"):
        for replica in range(8):
            store.extend(replica, name, np.arange(4000), rng.normal(size=4000), np.full(4000, 1e9))
    return store, summary()


def long_output() -> tuple[RunStore, Summary]:
    return RunStore(), summary(outputs={f"/job:worker/task:{n}": "<&>\x00\u2028" * 50_000 for n in range(4)})


@cache
def frozen_case(case: Callable[[], tuple[RunStore, Summary]]) -> dict[str, Any]:
    return frozen(*case())


@pytest.mark.parametrize(
    "case",
    matrix([pytest.param(very_much, marks=pytest.mark.slow), not_finite, long_output], rest=[noise_only]),
)
def test_it_stays_small_whatever_the_run_was(case) -> None:  # type: ignore[no-untyped-def]
    bundle = frozen_case(case)
    assert bytes_in_a_notebook(bundle) < LIMIT
    assert len(json.dumps(bundle, allow_nan=False)) < LIMIT


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_saved_curves_tell_what_was_seen(replicas: int, coarse: None) -> None:
    store, steps = RunStore(), np.arange(100_000)
    noise = np.random.default_rng(0).gamma(40, 1 / 40, (replicas, len(steps)))
    for replica in range(replicas):  # it falls within its first hundred steps
        loss = (2 * np.exp(-steps / 30) + 0.1) * noise[replica]
        store.extend(replica, "loss", steps, loss, 1e9 + steps / 1e3)
    tasks = [f"/job:worker/task:{replica}" for replica in range(replicas)]
    bundle = frozen(store, summary(tasks=tasks))
    for series in bundle[RUN]["series"]:
        at = np.array(series["steps"].split(), int)
        values = np.array(series["values"].split(), float)
        assert (at[0], at[-1]) == (0, 99_999)
        assert len(at) >= 150
        assert values[0] > 1.3  # where it began, and on the way down
        if series["kind"] == "trend":
            assert ((at > 0) & (at < 100)).sum() >= 5
            drawn = np.interp([50, 100, 1000, 50_000], at, values)
            assert np.abs(drawn - 2 * np.exp(-np.array([50, 100, 1000, 50_000]) / 30) - 0.1).max() < 0.35


@pytest.mark.slow
def test_what_is_cut_is_said() -> None:
    bundle = frozen_case(very_much)
    for form in (bundle["text/html"], bundle["text/plain"]):
        assert "characters cut" in form
        assert re.search(r"and 1,9\d\d more metrics", form)
        assert re.search(r"and 4\d\d more rows", form)
        assert re.search(r"and \d+ more tasks with output", form)
    store, about = noise_only()
    assert run_data(store, plan_charts(store.series), about, limit=9_000)["left_out"] > 0


def test_it_does_not_touch_pyplot(store: RunStore, coarse: None) -> None:
    import sys

    sys.modules.pop("matplotlib.pyplot", None)
    train(store, 0, 0, 10)
    frozen(store, summary())
    assert "matplotlib.pyplot" not in sys.modules
