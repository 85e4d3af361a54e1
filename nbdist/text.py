"""Texts of limited length: `clip` cuts the end off, `cut_middle` leaves the middle out; tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_NAME = 80  # characters


def clip(text: object, limit: int = LONGEST_NAME) -> str:
    """Return a text on one line, of at most ``limit`` characters.

    >>> clip("a b" + chr(10) + "c", 4), clip("abcdefgh", 4)
    ('a b…', 'abc…')
    """
    line = "".join(letter if letter.isprintable() else " " for letter in str(text)[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of equal length as lines with aligned columns; the first row has the headings.

    >>> print(columns([("id", "status"), ("a", "finished")]))
    id  status
    a   finished
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows)


def in_bytes(count: float) -> str:
    """Return bytes for people.

    >>> in_bytes(12), in_bytes(12_345), in_bytes(173_000_000)
    ('12 B', '12 KB', '173 MB')
    """
    for unit in ("B", "KB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def rate(value: float) -> str:
    """Return a rate with three significant digits: 0.123, 12.3, 1,230."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def measured(value: float) -> str:
    """Return a loss, a metric or a learning rate: four decimals, or three significant digits below 0.01.

    >>> measured(0.75), measured(0.00046656), measured(0.0)
    ('0.7500', '0.000467', '0.0000')
    """
    return f"{value:.3g}" if 0 < abs(value) < 0.01 else f"{value:.4f}"


def cut_middle(text: str, limit: int) -> str:
    """Return a text with about ``limit`` characters of its beginning and its end.

    >>> print(cut_middle("first." + "x" * 500 + ".last", 12))
    first.
    ... 499 characters cut ...
    x.last
    """
    half = limit // 2
    if len(text) <= limit:
        return text
    return f"{text[:half]}{cut_note(len(text) - 2 * half)}{text[len(text) - half :]}"


def cut_note(missing: int) -> str:
    """Return the line that replaces ``missing`` characters of a text."""
    return f"\n... {missing:,} characters cut ...\n"
