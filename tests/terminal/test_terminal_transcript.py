import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from nbdist.terminal.transcript import Position, Transcript


def test_a_carriage_return_rewrites_the_line() -> None:
    log = Transcript()
    for percent in range(101):
        log.append(f"\r{percent}%")
    assert log.text() == "100%"
    log.append("\ndone\n")
    assert log.text() == "100%\ndone\n"


def test_a_return_and_a_newline_that_come_apart_end_the_line() -> None:
    log = Transcript()
    log.append("kept\r")
    assert log.text() == "kept"
    log.append("\nnext")
    assert log.text() == "kept\nnext"


def test_of_codes_those_of_colours_stay_even_if_they_come_in_pieces() -> None:
    log = Transcript()
    log.append("\x1b[3")
    log.append("1mred\x1b[0m\x1b[?25")
    log.append("l\n")
    assert log.text() == "\x1b[31mred\x1b[0m\n"


def test_the_oldest_is_cut_at_a_line_and_said_so() -> None:
    log = Transcript(limit=100)
    for line in range(50):
        log.append(f"line {line}\n")
    shown = log.text()
    assert (
        shown.startswith("... 350 characters cut ...\nline 39\n") or "characters cut" in shown.splitlines()[0]
    )
    assert shown.endswith("line 49\n")
    assert all(line.startswith("line ") for line in shown.splitlines()[1:])


def test_one_line_without_end_is_bounded_too() -> None:
    log = Transcript(limit=10_000)
    for _ in range(1000):
        log.append("x" * 1000)
    assert len(log.text()) < 15_000


def test_a_reader_gets_only_what_is_new() -> None:
    log = Transcript()
    log.append("one\ntw")
    _, text, line = log.since(Position())
    position = log.position
    assert (text, line) == ("one\n", "tw")
    log.append("o\nthree\n")
    assert log.since(position)[1:] == ("two\nthree\n", "")


def test_memory_does_not_grow_with_what_was_printed() -> None:
    log = Transcript(limit=20_000)
    tracemalloc.start()
    for _ in range(20_000):
        log.append("a line of fifty characters, more or less, is here\n")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 200_000


@given(st.text(alphabet="ab\r\n"), st.lists(st.integers(0, 50)))
def test_pieces_add_up_to_the_whole(text: str, cuts: list[int]) -> None:
    whole, pieces = Transcript(), Transcript()
    whole.append(text)
    start = 0
    for cut in sorted(cuts):
        pieces.append(text[start:cut])
        start = max(start, cut)
    pieces.append(text[start:])
    assert pieces.text() == whole.text()
