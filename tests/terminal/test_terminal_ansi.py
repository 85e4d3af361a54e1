"""Terminal colours: the same cases as in the front end, self-contained lines, and saved output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.terminal.ansi import Style, coloured, ending, plain, spans
from nbdist.terminal.transcript import Transcript
from nbdist.ui.frozen import render

CASES = json.loads((Path(__file__).parent / "ansi_cases.json").read_text())
LETTERS = ("bold", "dim", "italic", "underline", "inverse", "strike", "stderr")
CODES = [
    "\x1b[31m",
    "\x1b[1;44m",
    "\x1b[0m",
    "\x1b[7m",
    "\x1b[38;5;208m",
    "\x1b[220m",
    "\x1b[221m",
    "a",
    "b",
    "\n",
    "\x1b[2K",
    "\r",
]


def classes(style: Style) -> str:
    names = [
        f"nbd-{name}-{tone}" for name, tone in (("ink", style.ink), ("ground", style.ground)) if tone >= 0
    ]
    return " ".join(names + [f"nbd-{name}" for name in LETTERS if getattr(style, name)])


@pytest.mark.parametrize(("text", "expected"), CASES, ids=range(len(CASES)))
def test_codes_are_read_as_in_the_front_end(text: str, expected: list[list[str]]) -> None:
    assert [[classes(style), piece] for style, piece in spans(text)] == expected
    assert [[classes(style), piece] for style, piece in spans(coloured(text))] == expected
    assert plain(text) == "".join(piece for _, piece in expected)


@given(st.lists(st.sampled_from(CODES)).map("".join))
def test_a_styles_own_code_makes_that_style(text: str) -> None:
    style = ending(text, Style())
    assert ending(style.code(), Style()) == style


@given(st.lists(st.sampled_from(CODES[:-2])).map("".join), st.lists(st.integers(0, 60)))
def test_each_line_of_a_transcript_stands_alone(text: str, cuts: list[int]) -> None:
    log, start = Transcript(), 0
    for cut in sorted(cuts):
        log.append(text[start:cut])
        start = max(start, cut)
    log.append(text[start:])
    lines = log.text().split("\n")
    assert all(ending(line, Style()) == Style() for line in lines)
    one_by_one = [pair for line in lines for pair in [*spans(line), (None, "\n")]]
    letters = [(style, letter) for style, piece in one_by_one for letter in piece if letter != "\n"]
    assert letters == [(s, letter) for s, piece in spans(text) for letter in piece if letter != "\n"]


def test_a_colour_that_is_reset_before_a_carriage_return_ends_there() -> None:
    log = Transcript()
    log.append("\x1b[31mred\nold\x1b[0m\rnew")
    assert list(spans(log.text())) == [(Style(ink=1), "red"), (Style(), "\nnew")]


@pytest.mark.parametrize("limit", range(100, 120))
def test_a_cut_never_splits_a_code(limit: int) -> None:
    log = Transcript(limit=limit)
    for _ in range(60):
        log.finish("\x1b[1;31mred\x1b[0m" * 6)
    assert set(plain(log.text()).split("\n")[1]) <= set("red")


def test_saved_html_has_colours_in_its_room_and_saved_text_has_none() -> None:
    printed = "".join(f"\x1b[3{at % 8}m<line {at}>\x1b[0m\n" for at in range(2_000))
    saved = render.output("/job:worker/task:0", printed, 4_000)
    assert len(json.dumps(saved)) <= 4_000
    assert "&lt;line 0&gt;</span>" in saved
    assert "&lt;line 1999&gt;</span>" in saved
    assert "characters cut" in saved
    assert saved.count("<span") == saved.count("</span>") > 10
    assert "\x1b" not in saved
    text = "".join(render.outputs_as_text({"/job:worker/task:0": printed}, 4_000))
    assert "<line 0>" in text
    assert "\x1b" not in text
    assert "[3" not in text


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(pair, 16) / 255 for pair in re.findall("..", colour.lstrip("#"))]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05

    low, high = sorted((light(one), light(other)))
    return high / low


@pytest.mark.parametrize("tone", range(8))
def test_saved_colours_are_seen_on_light_and_on_dark_pages(tone: int) -> None:
    colour = Style(ink=tone).css().removeprefix("color:")
    assert contrast(colour, "#ffffff") >= 3.9
    assert contrast(colour, "#111111") >= 3.9


def test_saved_output_tells_stderr_from_stdout() -> None:
    log = Transcript()
    log.append("out\n\x1b[220m\x1b[1mwarning\x1b[0m: slow\nlast")
    log.append("ly\x1b[221m\nout\n")
    assert log.text().count("\x1b[220m") == log.text().count("\x1b[221m") == 2, "each line stands alone"
    html = render.output("/job:worker/task:0", log.text(), 4_000)
    assert "background-color:#cb48441f" in html
    assert html.index("<pre>out") < html.index("warning") < html.index("lastly</span>\nout")
    (text,) = render.outputs_as_text({"/job:worker/task:0": log.text()}, 4_000)
    assert text == "[worker 0]\nout\nstderr: warning: slow\nstderr: lastly\nout"
