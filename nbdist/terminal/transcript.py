"""The output of one rank: appended text as a terminal shows it, bounded, at linear cost.

It keeps the codes of colours (see :mod:`nbdist.terminal.ansi`), and no others. Every finished line sets and
resets its colours, so that it is complete without the previous lines, which may have been cut.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from nbdist.terminal.ansi import SGR
from nbdist.terminal.rows import Rows

LIMIT = 200_000  # characters kept per rank


class Position(NamedTuple):
    """A place in a transcript: finished characters and lines, and the retreats that the reader knows."""

    written: int = 0
    ended: int = 0
    retreats: int = 0


class News(NamedTuple):
    """What a reader lacks: how many of its last lines it drops, the finished text after them, open lines."""

    dropped: int
    text: str
    open: str


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
    ended: int = 0  # finished lines, including those that were cut
    lines: deque[str] = field(default_factory=deque)  # finished pieces; cuts are between pieces
    rows: Rows = field(default_factory=Rows)  # the lines that may still change
    retreats: list[Position] = field(default_factory=list)  # where finished lines began to change again

    @property
    def open(self) -> str:
        """The lines that may still change, mostly the one that is being written."""
        return self.rows.shown()

    @property
    def position(self) -> Position:
        """How much is finished."""
        return Position(self.written, self.ended, len(self.retreats))

    def append(self, text: str) -> None:
        r"""Add printed text; ``\r`` starts the current line over."""
        pulled, finished = self.rows.write(text)
        if pulled:
            self._retreat(pulled)
        if finished:
            self.finish("".join(finished))

    def _retreat(self, count: int) -> None:
        """Take back the last finished lines, which change again."""
        self.ended -= count
        while count and self.lines:
            piece = self.lines.pop()
            here = piece.count("\n")
            kept = "" if here <= count else "\n".join(piece.split("\n")[: here - count]) + "\n"
            self.written -= len(piece) - len(kept)
            count -= min(count, here)
            if kept:
                self.lines.append(kept)
        self.retreats.append(self.position)

    def finish(self, piece: str) -> None:
        """Keep a finished piece, dropping the oldest ones beyond the limit."""
        self.written += len(piece)
        self.ended += piece.count("\n")
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

    def since(self, position: Position) -> News:
        """Return what a reader lacks that has the text up to a position; text that was cut is omitted."""
        left = min([position, *self.retreats[position.retreats :]])
        wanted = self.written - max(left.written, self.cut)
        pieces: list[str] = []
        for piece in reversed(self.lines):
            if wanted <= 0:
                break
            pieces.append(piece[-wanted:] if wanted < len(piece) else piece)
            wanted -= len(piece)
        return News(position.ended - left.ended, "".join(reversed(pieces)), self.open)

    def text(self) -> str:
        """Return the kept text with its colours; its first line gives the amount of text that was cut."""
        note = f"... {self.cut:,} characters cut ...\n" if self.cut else ""
        return note + "".join(self.lines) + self.open


def after_code(text: str, position: int) -> int:
    """Return the first position from ``position`` on that does not split a colour's code."""
    code = SGR.match(text, max(0, text.rfind("\x1b", 0, position)))
    return max(position, code.end()) if code else position
