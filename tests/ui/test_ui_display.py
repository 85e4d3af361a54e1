import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from ui_runs import train

from nbdist.metrics.store import RunStore
from nbdist.ui.display.run import LiveDisplay, place
from nbdist.ui.frozen.run import RUN
from nbdist.ui.frozen.summary import Summary

TASKS = ["/job:worker/task:0", "/job:worker/task:1"]


def test_outside_of_a_kernel_it_is_a_terminal() -> None:
    assert place() == "terminal"


@pytest.mark.parametrize(("notebook", "where"), [(True, "page"), (False, "terminal")])
def test_a_notebook_of_marimo_is_a_page(notebook: bool, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    marimo = SimpleNamespace(running_in_notebook=lambda: notebook)  # False in a script that imports it
    monkeypatch.setitem(sys.modules, "marimo", marimo)
    assert place() == where


def test_a_terminal_gets_lines_and_nothing_graphical(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    shown = LiveDisplay(store, TASKS, "digits", total_steps=100, report=lines.append)
    shown.show()
    for step in range(100):
        train(store, 0, step, 1)
        shown.progress({"state": "running", "step": step, "total": 100, "steps_per_second": 10.0})
        shown.tick(step / 10)
    shown.output(TASKS[1], "one\ntw")
    shown.output(TASKS[1], "o\nthree")
    shown.finish(Summary("r1", "digits", "finished", TASKS, step=100, metrics={"loss": 0.5}))
    assert lines[0] == "digits: running · 0 / 100 steps · loss 1 · 10 steps/s"
    assert len([line for line in lines if line.startswith("digits: running")]) == 5
    assert lines[5:8] == ["[worker 1] one", "[worker 1] two", "[worker 1] three"]
    assert lines[-1] == "digits  ✓ finished · 100 steps  (r1)\n\nloss (last epoch)  0.5"
    assert capsys.readouterr().out == ""


def test_what_is_over_at_once_is_shown_once(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("IPython.display.display", lambda o, **k: said.append("display"))
    monkeypatch.setattr("IPython.display.update_display", lambda o, **k: said.append("update"))
    short = LiveDisplay(store, TASKS, "digits", where="page")
    short.show(after=60.0)
    short.tick()
    short.finish(Summary("r1", "digits", "finished", TASKS))
    assert said == ["display"]

    longer = LiveDisplay(store, TASKS, "digits", where="page")
    longer.show(after=60.0)
    longer.progress({"state": "running"})
    longer.tick(time.monotonic() + 61.0)
    assert longer.view is not None
    assert longer.view.status["state"] == "running"
    longer.finish(Summary("r1", "digits", "finished", TASKS))
    assert said == ["display", "display", "update"]


def test_the_frozen_output_replaces_the_widget(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, object, str]] = []
    monkeypatch.setattr(
        "IPython.display.display", lambda o, **k: said.append(("display", o, k["display_id"]))
    )
    monkeypatch.setattr(
        "IPython.display.update_display", lambda o, **k: said.append(("update", o, k["display_id"]))
    )
    shown = LiveDisplay(store, TASKS, "digits", where="page")
    shown.show()
    view = shown.view
    assert view is not None
    shown.output(TASKS[0], "hello\n")
    shown.finish(Summary("r1", "digits", "failed", TASKS, error="ValueError: 7"))
    (first, _, place_of_widget), (second, bundle, place_of_bundle) = said
    assert (first, second) == ("display", "update")
    assert place_of_widget == place_of_bundle
    assert "hello" in bundle["text/html"]  # type: ignore[index]
    assert "ValueError: 7" in bundle["text/plain"]  # type: ignore[index]
    assert view.comm is None
    assert shown.view is None


def test_what_stays_has_the_charts_that_the_page_chose(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: None)
    monkeypatch.setattr("IPython.display.update_display", lambda bundle, **_: said.append(bundle))
    for name in ("loss", "mae"):
        train(store, 0, 0, 10, name)
    shown = LiveDisplay(store, TASKS, "digits", where="page")
    shown.show()
    assert shown.view is not None
    shown.view._handle_custom_msg({"kind": "charts", "titles": ["mae"], "view": "tab"}, [])
    shown.finish(Summary("r1", "digits", "stopped", TASKS))
    assert [chart["title"] for chart in said[0][RUN]["charts"]] == ["mae"]
