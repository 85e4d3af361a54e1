"""Lines that programs rewrite: bars of tqdm and rich, readers that see the newest state, and log files."""

from __future__ import annotations

import io
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.terminal.ansi import plain
from nbdist.terminal.rows import HEIGHT, LONGEST, CondensedLog, Rows
from nbdist.terminal.transcript import Position, Transcript

WORDS = [
    "a", "bc", "\n", "\r", "\r\n", "\x1b[A", "\x1b[2A", "\x1b[2K", "\x1b[K", "\x1b[J", "\x1b[1B",
    "\x1b[31m", "\x1b[0m",
]  # fmt: skip
PRINTED = st.lists(st.tuples(st.lists(st.sampled_from(WORDS)).map("".join), st.floats(0, 3)))


def shown(*pieces: str) -> str:
    log = Transcript()
    for piece in pieces:
        log.append(piece)
    return log.text()


def test_a_program_moves_up_to_lines_that_were_finished() -> None:
    log = Transcript()
    log.append("begun\na 1%\nb 1%\n")
    before = log.position
    assert log.since(Position()) == (0, "begun\na 1%\nb 1%\n", "")
    log.append("\x1b[2A\r\x1b[2Ka 2%\n\r\x1b[2Kb 2%\n")
    assert log.since(before) == (2, "", "a 2%\nb 2%\n")
    log.append("ended\n" * (HEIGHT + 1))
    assert log.text() == "begun\na 2%\nb 2%\n" + "ended\n" * (HEIGHT + 1)
    assert log.open == "", "no program moves up any more"


def test_a_move_above_the_first_line_stays_there() -> None:
    assert shown("a\x1b[9A\rb") == "b"
    assert shown("a\n" * (HEIGHT + 5), "\x1b[99A\rb").startswith("a\n" * 5 + "b\na\n")


def test_an_erased_line_is_empty_and_what_is_below_can_be_removed() -> None:
    assert shown("bar\r\x1b[2K") == ""
    assert shown("bar\r\x1b[K") == ""
    assert shown("bar\x1b[K") == "bar"
    assert shown("a\nb\nc\x1b[2A\r\x1b[J") == ""


@given(st.lists(st.sampled_from(WORDS)).map("".join), st.lists(st.integers(0, 60)))
def test_pieces_add_up_to_the_whole_with_every_code(text: str, cuts: list[int]) -> None:
    cuts = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert shown(*(text[a:b] for a, b in itertools.pairwise(cuts))) == shown(text)


@given(PRINTED)
def test_a_reader_of_the_news_has_the_whole(pieces: list[tuple[str, float]]) -> None:
    log, lines, position = Transcript(), [""], Position()
    for text, _ in pieces:
        log.append(text)
        dropped, new, _ = log.since(position)
        position = log.position
        have = "".join(lines)
        kept = have.split("\n")[: have.count("\n") - dropped] if dropped else []
        lines = ["".join(f"{line}\n" for line in kept) if dropped else have, new]
    assert "".join(lines) + log.open == log.text()


@given(PRINTED)
def test_a_condensed_log_shows_what_the_text_shows(pieces: list[tuple[str, float]]) -> None:
    log, file, now = CondensedLog(seconds=5.0), [], 0.0
    for text, seconds in pieces:
        now += seconds
        file.append(log.add(text, now))
    file.append(log.end())
    whole, condensed = shown(*(text for text, _ in pieces)), shown("".join(file))
    assert plain(condensed) == plain(whole)


def test_a_log_of_a_long_bar_has_few_states_and_every_line() -> None:
    log, file = CondensedLog(seconds=5.0), []
    for tenth in range(36_000):  # an hour
        file.append(log.add(f"\r{tenth / 360:.0f}%|{'#' * 60}| {tenth}/36000", tenth / 10))
        if tenth % 9000 == 0:
            file.append(log.add(f"\r{' ' * 70}\repoch {tenth}\n", tenth / 10))
    file.append(log.add("\nended\n", 3600.0))
    text = "".join(file)
    assert len(text) < 100_000
    assert text.count("epoch") == 4
    assert shown(text).splitlines() == [
        *(f"epoch {n * 9000}" for n in range(4)),
        *shown("\r100%|" + "#" * 60 + "| 35999/36000\nended").splitlines(),
    ]


def test_text_without_bars_is_written_as_it_is_and_at_once() -> None:
    log = CondensedLog(seconds=5.0)
    pieces = ["one\ntw", "o\x1b[31mred\n", "\x1b[", "0mthree\r\n"]
    assert "".join(log.add(piece, 0.0) for piece in pieces) + log.end() == "".join(pieces)
    assert log.add("", 9.0) == ""


def test_a_state_that_was_left_out_is_written_later() -> None:
    log = CondensedLog(seconds=5.0)
    given = [("\r1%", 0.0), ("\r2%", 0.1), ("", 1.0), ("", 5.1), ("", 20.0)]
    assert [log.add(text, now) for text, now in given] == ["\r1%", "", "", "\r2%", ""]


def test_one_line_without_end_is_bounded_even_if_a_program_returns_to_it() -> None:
    rows = Rows()
    for _ in range(10):
        rows.write("\r" + "x" * 3_000)
        rows.write("y" * 3_000)
    assert len(rows.shown()) <= LONGEST


def test_bars_of_rich_are_a_line_each() -> None:
    progress = pytest.importorskip("rich.progress")
    console = pytest.importorskip("rich.console")
    file = io.StringIO()
    screen = console.Console(file=file, force_terminal=True, width=60)
    with progress.Progress(console=screen, auto_refresh=False) as bars:
        tasks = [bars.add_task(name, total=4) for name in ("first", "second")]
        for step in range(4):
            for task in tasks:
                bars.advance(task)
            bars.refresh()
            if step == 1:
                screen.print("between")
    print("ended", file=file)
    lines = plain(shown(file.getvalue())).splitlines()
    assert [line.split()[0] for line in lines] == ["between", "first", "second", "ended"]
    assert all("100%" in line for line in lines[1:3])


def test_bars_of_tqdm_at_positions_are_a_line_each() -> None:
    tqdm = pytest.importorskip("tqdm")
    file = io.StringIO()
    options = {"file": file, "total": 3, "mininterval": 0, "ncols": 60}
    outer = tqdm.tqdm(desc="outer", position=0, **options)
    inner = tqdm.tqdm(desc="inner", position=1, **options)
    for _ in range(3):
        inner.update()
        outer.update()
    during = shown(file.getvalue()).splitlines()
    assert [line.partition("|")[0] for line in during] == ["outer: 100%", "inner: 100%"]
    inner.close()  # a bar that ends moves above those that do not
    outer.close()
    print("ended", file=file)
    lines = shown(file.getvalue()).splitlines()
    assert [line.partition(":")[0] for line in lines if line] == ["inner", "outer", "ended"]
    assert all("3/3" in line for line in lines[:2])


def test_much_plain_text_costs_little() -> None:
    log, began = CondensedLog(seconds=5.0), time.process_time()
    for _ in range(20):
        log.add("a line of fifty characters, more or less, is here\n" * 20_000, 0.0)
    assert time.process_time() - began < 20, "quadratic cost would take minutes"
