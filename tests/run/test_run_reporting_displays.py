"""Objects that bodies display: their media types reach the view, bounded, under the task's name."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist.cluster.cluster import Cluster
from nbdist.errors import InvalidArgumentError
from nbdist.run.attach import attach_run
from nbdist.run.displays import DISPLAY_LIMIT, MOST_DISPLAYS, Displayed, keep, stored
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.run.task.reporting import Output
from nbdist.ui.display import objects

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
def test_a_displayed_object_is_shown_with_its_task_and_kept(cluster: Cluster) -> None:
    view = Shown()
    run = start_run(BODY, Options(on="worker:1"), cluster=cluster, make_view=lambda run: view).wait()
    assert {task for task, _ in view.displays} == {"/job:worker/task:1"}
    shown = {one.key: one for _, one in view.displays}  # the newest state of each
    assert [one.data.get("text/html") for one in shown.values()] == ["<b>after</b>", None, "<i>last</i>"]
    assert "'a text'" in view.text
    assert "HTML object" not in view.text, "it is shown, not printed"
    (figure,) = [one for one in shown.values() if "image/png" in one.data]
    assert base64.b64decode(figure.data["image/png"]).startswith(b"\x89PNG")
    assert [(one.key, one.data) for one in run.displays()] == [(key, one.data) for key, one in shown.items()]
    assert [path.stat().st_mode & 0o777 for path in (run.folder / "displays").iterdir()] == [0o600] * 3
    later = Shown()
    attach_run(run.id, make_view=lambda run: later)
    assert [(task, one.key) for task, one in later.displays] == [("/job:worker/task:1", key) for key in shown]


def out(tmp_path: Path) -> Output:
    return Output(tmp_path / "output.log")


def test_displays_are_bounded_with_a_note(tmp_path: Path) -> None:
    output = out(tmp_path)
    output.display(Displayed({"text/plain": "big", "text/html": "x" * (DISPLAY_LIMIT + 1)}))
    assert not output.take_displays()
    assert "big\n[an object is not displayed: it has 4,194,305 bytes" in output.take()
    for name in ["bar", *[""] * (MOST_DISPLAYS + 3), "late"]:
        output.display(Displayed({"text/plain": "small", "image/png": "AAAA"}, name))
    assert len(output.take_displays()) == MOST_DISPLAYS - 1
    assert output.take().count(f"this task has displayed {MOST_DISPLAYS} objects") == 6
    for step in range(1000):
        for name in ("bar", "late"):
            output.display(Displayed({"text/plain": "bar", "text/html": str(step)}, name, update=True))
    (last,) = output.take_displays()
    assert last.data["text/html"] == "999", "of changes to one object the newest is enough"
    assert output.take() == "", "one that is not shown has left its sentence"
    output.display(Displayed({"text/plain": "code", "application/javascript": "alert(1)"}))
    assert not output.take_displays(), "only the listed types travel"
    assert output.take() == "code\n"
    output.finish()


def test_what_a_folder_has_is_checked(tmp_path: Path) -> None:
    keep(tmp_path, Displayed({"text/html": "<b>2</b>"}, key="1-7-2"))
    keep(tmp_path, Displayed({"text/html": "<b>1</b>"}, key="0-9-1"))
    keep(tmp_path, Displayed({"text/html": "<b>\udce9</b>"}, key="0-7-10"))
    folder = tmp_path / "displays"
    (folder / "0-7-3.json").write_text("[")
    (folder / "0-7-4.json").write_text('{"data": {"application/javascript": "alert(1)", "text/plain": "x"}}')
    (folder / "0-7-5.json").symlink_to(folder / "0-9-1.json")
    (folder / "notes.txt").write_text("mine")
    assert [(one.key, one.data["text/html"]) for one in stored(tmp_path)] == [
        ("0-7-10", "<b>?</b>"), ("1-7-2", "<b>2</b>"), ("0-9-1", "<b>1</b>"),
    ]  # fmt: skip
    assert stored(tmp_path / "elsewhere") == []


def test_a_folder_that_cannot_be_written_is_noted_once(tmp_path: Path) -> None:
    output = out(tmp_path)
    (tmp_path / "displays").symlink_to(tmp_path)
    for number in range(2):
        output.keep(Displayed({"text/html": "<b>1</b>"}, key=f"0-7-{number}"))
    assert output.take().count("a displayed object cannot be kept in") == 1
    output.finish()


@pytest.mark.parametrize(
    "meta",
    [
        {"types": ["text/html"], "key": "../x"},
        {"types": ["text/html", "image/png"], "key": "0-1-1"},
        {"types": ["application/javascript"], "key": "0-1-1"},
        {"key": "0-1-1"},
    ],
)
def test_a_message_that_no_task_sends_is_refused(meta: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Displayed.received(meta, [np.frombuffer(b"<b>1</b>", np.uint8)])


def test_without_a_kernel_the_text_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = Displayed({"text/html": "<b>x</b>", "text/plain": "<x>"}, key="2-1-1")
    objects.DisplayedObjects(tmp_path).show("/job:worker/task:2", shown)
    assert capsys.readouterr().out == "[worker 2] <x>\n"


class Page:
    """The outputs of a cell, by display id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: dict[str, dict[str, str]] = {}
        monkeypatch.setattr(objects.ipython, "publish_display_data", self.publish)
        monkeypatch.setattr(objects, "get_ipython", lambda: type("Shell", (), {"kernel": 1})())

    def publish(self, data: dict[str, str], transient: Any = None, update: bool = False) -> None:
        name = (transient or {}).get("display_id", str(len(self.outputs)))
        assert (name in self.outputs) == update
        self.outputs[name] = data

    def html(self) -> list[str | None]:
        return [data.get("text/html") for data in self.outputs.values()]


def html(text: str, key: str) -> Displayed:
    return Displayed({"text/html": text}, key=key)


def test_in_a_kernel_it_is_displayed_below_the_tasks_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page, shown = Page(monkeypatch), objects.DisplayedObjects(tmp_path)
    shown.show("<b>", html("<i>x</i>", "0-1-1"))
    assert page.html() == ["<small>&lt;b&gt;</small>", "<i>x</i>"]
    shown.show("<b>", html("<i>y</i>", "0-1-1"))
    assert page.html() == ["<small>&lt;b&gt;</small>", "<i>y</i>"]


def test_equal_objects_of_several_tasks_are_shown_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page, shown = Page(monkeypatch), objects.DisplayedObjects(tmp_path)
    one, two = "/job:worker/task:0", "/job:worker/task:1"
    shown.show(one, html("same", "0-1-1"))
    shown.show(two, html("same", "1-1-1"))
    assert page.html() == ["<small>worker 0, worker 1</small>", "same"]
    shown.show(one, html("same", "0-1-2"))  # a second time by the same task
    assert page.html()[2:] == ["<small>worker 0</small>", "same"]
    shown.show(two, html("new", "1-1-1"))  # it changes on one of them
    assert page.html()[4:] == ["<small>worker 1</small>", "new"]
    for rank, task in enumerate((one, two)):  # each of these may be updated
        shown.show(task, Displayed({"text/html": "bar"}, "bar", key=f"{rank}-1-3"))
    assert page.html()[6:] == ["<small>worker 0</small>", "bar", "<small>worker 1</small>", "bar"]


def test_a_cell_shows_so_many_objects_and_then_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page, shown = Page(monkeypatch), objects.DisplayedObjects(tmp_path)
    monkeypatch.setattr(objects, "MOST_SHOWN", 2)
    for number in range(5):
        shown.show("/job:worker/task:0", html(f"object {number}", f"0-1-{number}"))
    assert [text for text in page.html() if text and text.startswith("object")] == ["object 0", "object 1"]
    assert str(page.html()[-1]).startswith("<small>[this cell shows 2 objects of its tasks; others are in")
    assert len(page.outputs) == 5
