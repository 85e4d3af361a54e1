"""The chart, the table and the files of a timeline."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image
from tiers import matrix

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.timeline import KINDS, Span, Timeline
from nbdist.ui.timeline import gantt
from nbdist.ui.timeline.gantt import HATCHES, THEMES, headline, letters, milliseconds, share, table, text
from nbdist.ui.timeline.view import PICTURE_LIMIT, TimelineView

PARTS = {"data": 1, "wait": 2, "receive": 1, "compute": 5, "send": 1}  # tenths of a millisecond


def step(tasks: int, ps: int = 1, steps: int = 1) -> TimelineView:
    """A training step of some workers that begin one after the other."""
    spans = []
    for worker in range(tasks):
        at = 1000 + worker * 5e-5
        for number in range(7, 7 + steps):
            for kind, tenths in PARTS.items():
                name = f"gradient of replica {worker}" if kind == "send" else kind
                spans.append(
                    Span(f"/job:worker/task:{worker}", "CPU:0", kind, name, at, tenths * 1e-4, number)
                )
                at += tenths * 1e-4
            for server in range(ps):
                name = f"gradient of replica {worker}"
                spans.append(Span(f"/job:ps/task:{server}", "mailbox", "apply", name, at, 1e-4, number))
    jobs = {"worker": tasks, "ps": ps}
    rows = [f"/job:{job}/task:{index}" for job, count in jobs.items() for index in range(count)]
    return TimelineView(spans, rows, title="mnist")


def pixels(png: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def share_of(image: np.ndarray[Any, Any], colour: str) -> float:
    """Return how much of an image has about this colour."""
    wanted = np.array([round(255 * part) for part in to_rgb(colour)])
    return float((np.abs(image - wanted).max(-1) < 12).mean())


LIGHT, DARK = THEMES


@pytest.mark.parametrize(
    ("tasks", "theme"),
    matrix(
        [(1, LIGHT), (16, DARK)],
        rest=[(1, DARK), (3, LIGHT), (3, DARK), (8, LIGHT), (8, DARK), (16, LIGHT)],
    ),
)
def test_every_kind_is_seen_on_its_page(tasks: int, theme: str) -> None:
    image = pixels(step(tasks).png(theme))
    look = THEMES[theme]
    assert share_of(image, look.paper) > 0.3
    for kind in ("data", "compute", "send", "receive", "wait", "apply"):
        assert share_of(image, look.kinds[kind]) > 0.0005, kind
    assert share_of(image, look.kinds["compute"]) > 0.05
    height, width, _ = image.shape
    assert width == pytest.approx(9.4 * 144, abs=2)
    assert height < width * 1.05  # sixteen tasks are still one screen


def test_kinds_differ_by_shade_or_hatching_as_well() -> None:
    assert set(HATCHES) == set(KINDS)
    for theme in THEMES.values():
        assert set(theme.kinds) == set(KINDS)
        plain = [kind for kind in KINDS if not HATCHES[kind]]
        shades = sorted(np.mean(to_rgb(theme.kinds[kind])) for kind in plain)
        assert all(b - a > 0.2 for a, b in pairwise(shades))
    hatched = [HATCHES[kind] for kind in KINDS if HATCHES[kind]]
    assert len(set(hatched)) == len(hatched)


def labels(timeline: Timeline) -> tuple[list[str], list[str], list[str]]:
    """Return the names of rows, what is written beside and in them, and the legend."""
    figure = gantt.draw(timeline, THEMES["light"])
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    keys = [entry.get_text() for legend in figure.legends for entry in legend.get_texts()]
    return names, [one.get_text() for one in axes.texts if one.get_text()], keys


def test_rows_are_tasks_and_lanes_are_named_where_there_are_several() -> None:
    more = Span("/job:worker/task:0", "GPU:1", "compute", "step", 1000.0, 1e-4, 7)
    timeline = Timeline(
        [*step(2).spans, more], ["/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2"]
    )
    names, texts, keys = labels(timeline)
    assert names == ["worker 0 · CPU:0", "GPU:1", "worker 1", "worker 2", "ps 0"]
    assert "nothing on record" in texts
    assert any(text.endswith("% compute") for text in texts)
    assert keys == [kind for kind in KINDS if kind != "drop"]  # no gradient is dropped there


def test_wide_bars_show_their_duration() -> None:
    assert "compute 0.5 ms" in labels(step(1))[1]
    assert "0.5" in labels(step(1, steps=8))[1]
    assert "0.5" not in labels(step(1, steps=60))[1]


@pytest.mark.parametrize(("tasks", "steps", "arrows"), [(2, 1, 2), (3, 20, 60), (8, 20, 0)])
def test_arrows_lead_from_sends_to_the_parameter_server_unless_they_are_too_many(
    tasks: int, steps: int, arrows: int
) -> None:
    (axes,) = gantt.draw(step(tasks, steps=steps), THEMES["light"]).axes
    drawn = [one for one in axes.texts if getattr(one, "arrow_patch", None) is not None]
    assert len(drawn) == arrows
    behind = {one.get_zorder() < 1 for one in drawn}
    assert behind <= {tasks == 3}


def test_a_timeline_of_nothing_is_drawn_too() -> None:
    empty = TimelineView([], ["/job:worker/task:0"])
    assert pixels(empty.png()).size
    assert "worker 0" in text(empty)


@pytest.mark.parametrize("tasks", matrix([1], rest=[14]))
def test_a_notebook_gets_a_picture_a_table_and_text_of_bounded_size(tasks: int) -> None:
    bundle = step(tasks, ps=2, steps=2)._repr_mimebundle_()
    assert set(bundle) == {"image/png", "text/html", "text/plain"}
    assert len(bundle["image/png"]) <= PICTURE_LIMIT * 4 / 3 + 4
    assert sum(map(len, bundle.values())) < 150_000
    assert bundle["image/png"] in bundle["text/html"]
    assert f"worker {tasks - 1}" in bundle["text/plain"]


def test_html_is_whole_and_escaped() -> None:
    timeline = TimelineView([Span("<b>", "x", "compute", "s", 0.0, 1.0, 1)], title='<script>"')
    page = timeline._repr_mimebundle_()["text/html"]
    assert "<script>" not in page
    assert "<b>" not in page
    parser = HTMLParser()
    parser.feed(page)
    parser.close()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert cells == ["1,000"]
    assert 'alt="&lt;script&gt;&quot;' in page


@pytest.mark.slow
def test_saved_by_its_suffix(tmp_path: Path) -> None:
    timeline = step(1)
    assert timeline.save(tmp_path / "a.png").read_bytes() == timeline.png()
    assert pixels(timeline.save(str(tmp_path / "b.png"), theme="dark").read_bytes())[0, 0].max() < 60
    svg = timeline.save(tmp_path / "a.svg").read_text()
    assert "<svg" in svg
    assert svg == timeline.save(tmp_path / "b.svg").read_text()
    assert json.loads(timeline.save(tmp_path / "a.json").read_text())["traceEvents"]


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.PNG2"])
def test_other_formats_raise_and_name_the_valid_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"'{name}' has no format: .*\.png or \.svg.*\.json"):
        step(1).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_unknown_theme() -> None:
    with pytest.raises(InvalidArgumentError, match="no theme 'blue'; choose from light, dark"):
        step(1).png("blue")


def test_a_notebooks_own_style_is_left_alone() -> None:
    import matplotlib

    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30}):
        styled = step(1).png()
        assert matplotlib.rcParams["font.size"] == 30
    assert styled == step(1).png()


def test_the_table_has_milliseconds_by_task_and_kind() -> None:
    assert table(step(2)) == [
        ["ms", "data", "compute", "send", "receive", "wait", "apply"],
        ["worker 0", "0.1", "0.5", "0.1", "0.1", "0.2", ""],
        ["worker 1", "0.1", "0.5", "0.1", "0.1", "0.2", ""],
        ["ps 0", "", "", "", "", "", "0.15"],
    ]


def test_the_headline_names_the_omitted_parts() -> None:
    assert headline(step(1, ps=0, steps=3)) == "mnist · 3 ms"
    assert headline(Timeline([], left_out=1200)) == "timeline · 0 ms · 1,200 earlier spans are left out"


def test_a_chart_of_letters() -> None:
    assert letters(step(1, ps=0), "/job:worker/task:0", 10) == "d..<#####>"
    assert letters(step(1), "/job:ps/task:0", 11) == "          +"
    assert str(step(1)) == text(step(1))


def test_shares_are_of_computing_or_else_of_applying() -> None:
    assert share(step(1, ps=0), "/job:worker/task:0") == "50% compute"
    assert share(step(1), "/job:ps/task:0") == "9% apply"
    assert share(Timeline([], ["a"]), "a") == "0% apply"


def test_parts_of_a_view_are_views() -> None:
    part = step(1).between(1000.0, 1000.0002)
    assert isinstance(part, TimelineView)
    assert part.title == "mnist"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.0, "0"), (1e-6, "0.001"), (0.1234567, "123"), (12.0, "12,000")]
)
def test_milliseconds(seconds: float, words: str) -> None:
    assert milliseconds(seconds) == words
