"""Objects that bodies display: their media types reach the view, bounded, under the task's name."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from nbdist.cluster.cluster import Cluster
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.run.task.reporting import DISPLAY_LIMIT, MOST_DISPLAYS, Displayed, Output
from nbdist.ui.display import run as views

BODY = """
from IPython.display import HTML, display
import matplotlib
from matplotlib.figure import Figure
display("a text")
handle = display(HTML(f"<b>{nb.task.rank}</b>"), display_id=True)
handle.update(HTML("<b>after</b>"))
figure = Figure()
figure.subplots().plot([1, 2])
display(figure)
HTML("<i>last</i>")
"""


class Shown:
    """A view that keeps the objects that it receives."""

    def __init__(self) -> None:
        self.displays: list[tuple[str, Displayed]] = []
        self.text = ""

    def tick(self) -> None: ...
    def progress(self, standing: Any) -> None: ...
    def end(self, run: Any) -> None: ...

    def output(self, task: str, text: str) -> None:
        self.text += text

    def display(self, task: str, shown: Displayed) -> None:
        self.displays.append((task, shown))


@pytest.mark.engines
def test_a_displayed_object_is_shown_with_its_task(cluster: Cluster) -> None:
    view = Shown()
    start_run(BODY, Options(on="worker:1"), cluster=cluster, make_view=lambda run: view).wait()
    assert {task for task, _ in view.displays} == {"/job:worker/task:1"}
    first, *others = [shown for _, shown in view.displays]
    assert first.data["text/html"].startswith("<b>")
    assert first.name
    assert [one.name for one in others if one.update] == [first.name]
    assert [one.data["text/html"] for one in others if one.update] == ["<b>after</b>"]
    assert others[-1].data["text/html"] == "<i>last</i>"
    assert "'a text'" in view.text
    assert "HTML object" not in view.text, "it is shown, not printed"
    (figure,) = [one for one in others if "image/png" in one.data]
    assert base64.b64decode(figure.data["image/png"]).startswith(b"\x89PNG")


def out(tmp_path: Path) -> Output:
    return Output(tmp_path / "output.log")


def test_displays_are_bounded_with_a_note(tmp_path: Path) -> None:
    output = out(tmp_path)
    output.display(Displayed({"text/plain": "big", "text/html": "x" * (DISPLAY_LIMIT + 1)}))
    assert not output.take_displays()
    assert "big\n[an object is not displayed: it has 4,194,305 bytes" in output.take()
    for _ in range(MOST_DISPLAYS + 5):
        output.display(Displayed({"text/plain": "small", "image/png": "AAAA"}))
    assert len(output.take_displays()) == MOST_DISPLAYS - 1
    assert output.take().count(f"this task has displayed {MOST_DISPLAYS} objects") == 6
    for step in range(1000):
        output.display(Displayed({"text/plain": "", "text/html": str(step)}, "bar", update=True))
    (last,) = output.take_displays()
    assert last.data["text/html"] == "999", "of changes to one object the newest is enough"
    output.display(Displayed({"text/plain": "code", "application/javascript": "alert(1)"}))
    assert not output.take_displays(), "only the listed types travel"
    assert output.take() == "code\n"
    output.finish()


def test_without_a_kernel_the_text_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    views.show_displayed("/job:worker/task:2", Displayed({"text/html": "<b>x</b>", "text/plain": "<x>"}))
    assert capsys.readouterr().out == "[worker 2] <x>\n"


def test_in_a_kernel_it_is_displayed_below_the_tasks_name(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[dict[str, str], dict[str, Any]]] = []
    monkeypatch.setattr(views.ipython, "publish_display_data", lambda data, **more: sent.append((data, more)))
    monkeypatch.setattr(views, "get_ipython", lambda: type("Shell", (), {"kernel": 1})())
    views.show_displayed("<b>", Displayed({"text/html": "<i>x</i>"}, "bar"))
    assert sent[0][0] == {"text/plain": "<b>:", "text/html": "<small>&lt;b&gt;</small>"}
    assert sent[1] == ({"text/html": "<i>x</i>"}, {"transient": {"display_id": "bar"}, "update": False})
    views.show_displayed("<b>", Displayed({"text/html": "<i>y</i>"}, "bar", update=True))
    assert len(sent) == 3
    assert sent[2][1]["update"]
