r"""Parses terminal colours, SGR codes (ECMA-48), into styled pieces of text.

Only colours and letter styles are kept; codes that move the cursor or set a title are dropped. Two codes are
nbdist's own, and mean nothing to a terminal: what is between them was printed to stderr. All colours
are mapped to the eight of ANSI, which each page draws in its own tones, because the tones of a dark terminal
are hard to read on a white page. ``widget/src/text/ansi.js`` is the same parser, and
``tests/terminal/ansi_cases.json`` tests both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
SGR = re.compile(r"\x1b\[([0-9;:]{0,64})m")
DEFAULT = -1  # the page's own colour
ERROR, USUAL = "\x1b[220m", "\x1b[221m"
"""The begin and the end of what was printed to stderr; a reset of all styles does not end it."""
OWN = re.compile(r"\x1b\[22([01])m")

# SGR number -> the style's fields that it sets
TABLE: dict[int, dict[str, int | bool]] = {
    1: {"bold": True}, 2: {"dim": True}, 3: {"italic": True}, 4: {"underline": True}, 7: {"inverse": True},
    9: {"strike": True}, 21: {"underline": True}, 22: {"bold": False, "dim": False}, 23: {"italic": False},
    24: {"underline": False}, 27: {"inverse": False}, 29: {"strike": False}, 39: {"ink": DEFAULT},
    49: {"ground": DEFAULT}, 220: {"stderr": True}, 221: {"stderr": False},
    **{start + tone: {"ink": tone} for start in (30, 90) for tone in range(8)},
    **{start + tone: {"ground": tone} for start in (40, 100) for tone in range(8)},
}  # fmt: skip
LETTERS = ((1, "bold"), (2, "dim"), (3, "italic"), (4, "underline"), (7, "inverse"), (9, "strike"))
EXTENDED = {38: "ink", 48: "ground"}  # followed by 5 and one of 256 colours, or by 2 and red, green, blue
LEVELS = (0, 95, 135, 175, 215, 255)  # of the 6 x 6 x 6 colours in the 256

# Black and white are tones of grey. Each tone has about the same contrast to white and to black, because
# saved HTML has one colour for light and dark pages.
TONES = ("#76797f", "#cb4844", "#2f8552", "#93731a", "#3d78c2", "#a657b5", "#1f8390", "#76797f")


class Style(NamedTuple):
    """A text's style; colours are 0 to 7: black, red, green, yellow, blue, magenta, cyan, white."""

    ink: int = DEFAULT
    ground: int = DEFAULT
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    inverse: bool = False
    strike: bool = False
    stderr: bool = False

    def after(self, parameters: str) -> Style:
        """Return the style after an SGR code with these parameters; unknown parameters are ignored.

        >>> Style().after("1;31") == Style(ink=1, bold=True), Style(ink=1).after("0") == Style()
        (True, True)
        """
        style = self
        groups = iter(parameters.split(";"))
        for group in groups:
            first, *more = [int(part or 0) for part in group.split(":")]
            if first in EXTENDED:
                if not more:  # the semicolon form: the colour's numbers are in the next groups
                    kind = number(next(groups, ""))
                    more = [kind, *(number(next(groups, "")) for _ in range({5: 1, 2: 3}.get(kind, 0)))]
                tone = nearest(more)
                style = style if tone is None else style._replace(**{EXTENDED[first]: tone})  # type: ignore[arg-type]
            elif first == 0:
                style = Style(stderr=style.stderr)
            elif first == 4 and more[:1] == [0]:
                style = style._replace(underline=False)
            else:
                style = style._replace(**TABLE.get(first, {}))  # type: ignore[arg-type]
        return style

    def code(self) -> str:
        r"""Return the SGR code that sets this style from the default one; "" for the default itself.

        >>> Style(ink=1, bold=True).code()
        '\x1b[1;31m'
        """
        numbers = [at for at, name in LETTERS if getattr(self, name)]
        numbers += [30 + self.ink] if self.ink >= 0 else []
        numbers += [40 + self.ground] if self.ground >= 0 else []
        return ERROR * self.stderr + (f"\x1b[{';'.join(map(str, numbers))}m" if numbers else "")

    def reset(self) -> str:
        r"""Return the codes that end this style; "" for the default one.

        >>> Style(ink=1, stderr=True).reset()
        '\x1b[0m\x1b[221m'
        """
        return "\x1b[0m" * (self._replace(stderr=False) != Style()) + USUAL * self.stderr

    def css(self) -> str:
        """Return inline CSS that is readable on light and dark pages; "" for the default.

        >>> Style(ink=1, bold=True).css()
        'color:#cb4844;font-weight:bold'
        """
        ink, ground = (self.ground, self.ink) if self.inverse else (self.ink, self.ground)
        if self.inverse and self.ink < 0:
            ground = 7
        if self.dim and ink < 0:
            ink = 0
        rules = [f"color:{TONES[ink]}"] if ink >= 0 else []
        rules += [f"background-color:{TONES[ground]}40"] if ground >= 0 else []
        rules += [f"background-color:{TONES[1]}1f"] if self.stderr and ground < 0 else []
        rules += ["font-weight:bold"] if self.bold else []
        rules += ["font-style:italic"] if self.italic else []
        lines = [name for name, on in (("underline", self.underline), ("line-through", self.strike)) if on]
        rules += [f"text-decoration:{' '.join(lines)}"] if lines else []
        return ";".join(rules)


def number(group: str) -> int:
    """Return the first number of a group of parameters; an empty one is 0."""
    return int(group.split(":")[0] or 0)


def nearest(colour: list[int]) -> int | None:
    """Return the tone of 0 to 7 for ``[5, index]`` or ``[2, ..., red, green, blue]``; None for others.

    >>> nearest([5, 208]), nearest([2, 20, 20, 200]), nearest([2])
    (3, 4, None)
    """
    match colour:
        case [5, index] if index < 16:
            return index % 8
        case [5, index] if index < 232:
            index -= 16
            rgb = [LEVELS[index // 36], LEVELS[index // 6 % 6], LEVELS[index % 6]]
        case [5, index] if index < 256:
            rgb = [8 + 10 * (index - 232)] * 3
        case [2, _, _, _, *_] if max(colour[-3:]) < 256:
            rgb = colour[-3:]
        case _:
            return None
    high, low = max(rgb), min(rgb)
    if high - low < 48:
        return 0 if high < 160 else 7
    return sum(bit for bit, level in zip((1, 2, 4), rgb) if 2 * level > high + low)


def spans(text: str) -> Iterator[tuple[Style, str]]:
    r"""Yield pieces of text with their styles; neighbours differ in style, and none is empty.

    >>> [(style.ink, piece) for style, piece in spans("a\x1b[31mred\x1b[0m\x1b[2K b")]
    [(-1, 'a'), (1, 'red'), (-1, ' b')]
    """
    style, held, kept = Style(), Style(), ""
    at = 0
    while at <= len(text):
        found = SGR.search(text, at)
        piece = plain(text[at : found.start() if found else len(text)])
        if piece:
            if style != held and kept:
                yield held, kept
                kept = ""
            held, kept = style, kept + piece
        if found is None:
            break
        style, at = style.after(found[1]), found.end()
    if kept:
        yield held, kept


def ending(text: str, style: Style) -> Style:
    """Return the style at the end of a text that begins in ``style``."""
    for found in SGR.finditer(text):
        style = style.after(found[1])
    return style


def coloured(text: str) -> str:
    """Drop all codes and control characters except those of colours and letter styles."""
    parts = SGR.split(text)  # text and parameters alternate
    parts[::2] = map(plain, parts[::2])
    parts[1::2] = [f"\x1b[{part}m" for part in parts[1::2]]
    return "".join(parts)


def plain(text: str) -> str:
    r"""Drop terminal colours and control characters.

    >>> plain("\x1b[1mbold\x1b[0m")
    'bold'
    """
    return text if text.isprintable() else CONTROLS.sub("", ESCAPES.sub("", text))


def by_stream(text: str) -> Iterator[tuple[bool, str]]:
    r"""Yield pieces of text, and whether each was printed to stderr, without nbdist's own codes.

    >>> list(by_stream("out\x1b[220merr\n\x1b[221mout"))
    [(False, 'out'), (True, 'err\n'), (False, 'out')]
    """
    first, *rest = OWN.split(text)
    pieces = [("1", first), *zip(rest[::2], rest[1::2], strict=True)]
    return ((mark == "0", piece) for mark, piece in pieces if piece)


def is_stderr(line: str) -> bool:
    """Return whether a line, or a part of it that can be seen, was printed to stderr."""
    return ERROR in line and any(stderr and bool(plain(piece).strip()) for stderr, piece in by_stream(line))


def marked(text: str) -> str:
    r"""Return plain text in which lines of stderr say so.

    >>> marked("one\n\x1b[220mtwo\x1b[221m\n")
    'one\nstderr: two\n'
    """
    if ERROR not in text:
        return plain(text)
    lines = text.split("\n")
    return "\n".join(f"stderr: {plain(line)}" if is_stderr(line) else plain(line) for line in lines)


def part(pieces: Iterable[tuple[Style, str]], start: int, stop: int) -> list[tuple[Style, str]]:
    """Return the pieces from character ``start`` to ``stop``.

    >>> part([(Style(), "abc"), (Style(ink=1), "def")], 1, 4) == [(Style(), "bc"), (Style(ink=1), "d")]
    True
    """
    found, at = [], 0
    for style, piece in pieces:
        if kept := piece[max(0, start - at) : max(0, stop - at)]:
            found.append((style, kept))
        at += len(piece)
    return found


def styled(pieces: Iterable[tuple[Style, str]]) -> str:
    r"""Return the pieces as escaped HTML with inline colours.

    >>> styled(spans("\x1b[31m<red>\x1b[0m"))
    '<span style="color:#cb4844">&lt;red&gt;</span>'
    """
    return "".join(
        f'<span style="{css}">{escape(piece)}</span>' if (css := style.css()) else escape(piece)
        for style, piece in pieces
    )
