"""The output of one rank: appended text with carriage returns applied, bounded, at linear cost.

It keeps the terminal codes of colours (see :mod:`nbdist.ui.ansi`) and drops others. Every finished line sets
and resets its colours, so that it is complete without the previous lines, which may have been cut.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nbdist.ui.ansi import SGR, Style, coloured, ending, plain

RESET = "\x1b[0m"
DEFAULT = Style()

LIMIT = 200_000  # characters kept per rank
OPEN_LIMIT = 4_000  # a carriage return no longer rewrites a line longer than this


@dataclass
class Transcript:
    r"""The last 200,000 characters of a rank's output.

    >>> log = Transcript()
    >>> log.append("step 1\rstep 2\rstep 3\ndone")
    >>> log.text()
    'step 3\ndone'
    """

    limit: int = LIMIT
    cut: int = 0  # characters dropped from the start
    written: int = 0  # characters of finished lines, including those that were cut
    lines: deque[str] = field(default_factory=deque)  # finished pieces; cuts are between pieces
    open: str = ""  # the unfinished line
    style: Style = DEFAULT  # at the start of that line

    def append(self, text: str) -> None:
        r"""Add printed text; ``\r`` starts the current line over."""
        finished, newline, rest = text.replace("\r\n", "\n").rpartition("\n")
        if newline:
            self.finish("\n".join(map(self.shown, (self.open + finished).split("\n"))) + "\n")
            self.open = ""
        # Only the open line is rewritten, so the cost of a call does not grow with the transcript.
        overwritten, self.open = latest_return(self.open + rest)
        self.style = ending(overwritten, self.style)
        if len(self.open) > OPEN_LIMIT:
            self.finish(self.shown(self.open))
            self.open = ""

    def shown(self, line: str) -> str:
        """Return a line as a terminal shows it, and keep its last style for the next line."""
        start = self.style
        self.style = ending(line, start)
        return self_contained(line, start)

    def finish(self, piece: str) -> None:
        """Keep a finished piece, dropping the oldest ones beyond the limit."""
        self.written += len(piece)
        self.lines.append(piece)
        kept = self.written - self.cut
        while kept > self.limit:
            oldest = self.lines.popleft()
            over = kept - self.limit
            if over < len(oldest):
                start = oldest.find("\n", over - 1) + 1 or after_code(oldest, over)
                self.lines.appendleft(oldest[start:])
                dropped = start
            else:
                dropped = len(oldest)
            self.cut += dropped
            kept -= dropped

    def since(self, position: int) -> tuple[int, str, str]:
        """Return (new position, finished text after ``position``, the open line).

        A position is a count of finished characters; text that has been cut since then is omitted.
        """
        wanted = self.written - max(position, self.cut)
        pieces: list[str] = []
        for piece in reversed(self.lines):
            if wanted <= 0:
                break
            pieces.append(piece[-wanted:] if wanted < len(piece) else piece)
            wanted -= len(piece)
        return self.written, "".join(reversed(pieces)), self_contained(self.open, self.style)

    def text(self) -> str:
        """Return the kept text with its colours; its first line gives the amount of text that was cut."""
        note = f"... {self.cut:,} characters cut ...\n" if self.cut else ""
        return note + "".join(self.lines) + self_contained(self.open, self.style)


def self_contained(line: str, style: Style) -> str:
    r"""Return a line that begins in ``style`` as a terminal shows it, with the codes of its colours.

    >>> self_contained("10%\r\x1b[32m20%", Style())
    '\x1b[32m20%\x1b[0m'
    """
    if "\x1b" not in line and style == DEFAULT:
        return plain(after_returns(line))
    overwritten, rest = latest_return(line.rstrip("\r"))
    style = ending(overwritten, style)
    shown = coloured(rest)
    reset = RESET if ending(rest, style) != DEFAULT else ""
    return style.code() + shown + reset if plain(shown) else ""


def after_code(text: str, position: int) -> int:
    """Return the first position from ``position`` on that does not split a colour's code."""
    code = SGR.match(text, max(0, text.rfind("\x1b", 0, position)))
    return max(position, code.end()) if code else position


def after_returns(line: str) -> str:
    """Return the text after a line's last carriage return, which a terminal shows."""
    return line.rstrip("\r").rpartition("\r")[2]


def latest_return(line: str) -> tuple[str, str]:
    """Split off overwritten text; keep a carriage return without text after it."""
    shown = after_returns(line)
    kept = shown + "\r" if line.endswith("\r") else shown
    return line[: len(line) - len(kept)], kept
