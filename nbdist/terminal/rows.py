r"""The lines of a terminal that a program may still rewrite, `Rows`, and a log of what they become.

Progress bars return to the start of their line (``\r``), or move up to it if there are several of them
(``ESC[A``; tqdm with ``position``, rich). A line is finished when the cursor is below it and no program moves
up any more; of these all but the last `HEIGHT` are finished in any case, as lines that have left a screen.

A line's rest behind the cursor is not kept: text after a return takes the place of the whole line, as bars
write it.
"""

from __future__ import annotations

import re
from collections import deque

from nbdist.terminal.ansi import Style, coloured, ending, plain

HEIGHT = 30  # lines of the screen, at least those of rich (25)
LONGEST = 4_000  # characters of a line that can be rewritten
CONTROL = re.compile(r"\n|\r|\x1b\[([0-9]{0,4})([ABEFGJK])")
REWRITES = re.compile(r"\r(?!\n)|\x1b\[[0-9]{0,4}[ABEFGJK]")
UNFINISHED = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]*)?$")  # an escape code, of which the rest comes later
DEFAULT = Style()


class Rows:
    r"""The lines that may still change, with the codes of their colours.

    >>> rows = Rows()
    >>> rows.write("one\n10%\r20%")
    (0, ['one\n'])
    >>> rows.write("\ntwo\n\x1b[2A\r30%\n"), rows.shown()
    ((0, []), '30%\ntwo\n')
    """

    def __init__(self) -> None:
        self.rows = [""]
        self.at = 0
        """The cursor's line of these."""
        self.style = DEFAULT
        """The colours at the cursor."""
        self.returned = False
        """Whether the next text starts the cursor's line over."""
        self._recent: deque[str] = deque(maxlen=HEIGHT)  # finished lines, to which a program may move up
        self._below = HEIGHT + 1  # lines since a program moved up
        self.unfinished = ""
        """The begin of an escape code, of which the rest comes with the next text."""

    def write(self, text: str) -> tuple[int, list[str]]:
        """Write text; return how many finished lines may change again, the last ones, and what is finished.

        What is finished are lines with their newline, and pieces of a line that is too long.
        """
        text = self.unfinished + text.replace("\r\n", "\n")
        self.unfinished = ""
        if "\x1b" in text and (found := UNFINISHED.search(text)):
            text, self.unfinished = text[: found.start()], found[0]
        finished: list[str] = []
        pulled = start = 0
        if len(self.rows) == 1 and not self.returned and "\r" not in text and "\x1b" not in text:
            self._write_plain(text, finished)
            return 0, finished
        for found in CONTROL.finditer(text):
            self._put(text[start : found.start()])
            start = found.end()
            if found[0] == "\n":
                self._newline(finished)
            elif found[0] == "\r":
                self.returned = True
            else:
                pulled += self._move(found[2], found[1], finished)
        self._put(text[start:])
        self._bound(finished)
        return pulled, finished

    def shown(self) -> str:
        """Return the lines that may change; each sets and resets its colours."""
        return "\n".join(map(self_contained, self.rows))

    def end(self) -> list[str]:
        """Return the lines that may change as finished ones, the last without a newline, and begin anew."""
        lines = [self_contained(row) for row in self.rows]
        self.rows, self.at, self.returned, self._below = [self.style.code()], 0, False, HEIGHT + 1
        return [*(f"{line}\n" for line in lines[:-1]), lines[-1]]

    def _write_plain(self, text: str, finished: list[str]) -> None:
        """Write text without control codes: most of what programs print."""
        first, *lines = text.split("\n")
        self.rows[0] += first
        if lines:
            start = self.style.code()
            whole = [self.rows[0], *(start + one for one in lines[:-1])]
            whole = [f"{self_contained(one)}\n" for one in whole]
            finished.extend(whole)
            self._recent.extend(whole[-HEIGHT:])
            self.rows[0] = start + lines[-1]
            self._below += len(lines)
        self._bound(finished)

    def _put(self, piece: str) -> None:
        if not piece:
            return
        if self.returned and plain(piece):
            self.rows[self.at], self.returned = self.style.code(), False
        if not self.returned:
            self.rows[self.at] += piece
        if "\x1b" in piece:
            self.style = ending(piece, self.style)

    def _newline(self, finished: list[str]) -> None:
        self.at += 1
        self._below += 1
        self.returned = self.at < len(self.rows)
        if not self.returned:
            self.rows.append(self.style.code())
        while self.at > (HEIGHT if self._below <= HEIGHT else 0):
            finished.append(self_contained(self.rows.pop(0)) + "\n")
            self._recent.append(finished[-1])
            self.at -= 1

    def _move(self, kind: str, argument: str, finished: list[str]) -> int:
        """Move the cursor or erase; return how many finished lines have become rows again."""
        count, pulled = int(argument or 1) or 1, 0
        if kind in "AF":
            pulled = self._move_up(count, finished)
        elif kind in "BE":
            self.at = min(self.at + count, len(self.rows) - 1)
        if kind in "EF" or (kind == "G" and count == 1):
            self.returned = True
        if kind == "K" and (argument == "2" or (argument in ("", "0") and self.returned)):
            self.rows[self.at], self.returned = self.style.code(), True
        if kind == "J" and argument in ("", "0") and self.returned:
            self.rows[self.at] = self.style.code()
            del self.rows[self.at + 1 :]
        return pulled

    def _move_up(self, count: int, finished: list[str]) -> int:
        missing = min(max(0, count - self.at), len(self._recent))
        lines = [self._recent.pop() for _ in range(missing)][::-1]
        again = min(missing, len(finished))  # nobody has seen these
        del finished[len(finished) - again :]
        self.rows[:0] = [line[:-1] for line in lines]
        self.at = max(0, self.at + missing - count)
        self._below = 0
        return missing - again

    def _bound(self, finished: list[str]) -> None:
        """Finish the lines, and a piece of the last one, if one is too long to be rewritten."""
        if max(map(len, self.rows)) > LONGEST:
            finished.extend(self.end())
            self._recent.clear()


def self_contained(row: str) -> str:
    r"""Return a line with the codes of its colours alone, reset at its end.

    >>> self_contained("\x1b[32m20%\x1b[2K"), self_contained("\x1b[32m"), self_contained("20%")
    ('\x1b[32m20%\x1b[0m', '', '20%')
    """
    if "\x1b" not in row:
        return plain(row)
    if not plain(row):
        return ""
    return coloured(row) + ending(row, DEFAULT).reset()


class CondensedLog:
    r"""What of printed text is written to a log file: lines, and of those that change the newest state.

    A file only grows, so that a state in it is overwritten by the codes of a terminal. Text without such
    lines is written as it is, at once; a state at most every ``seconds``, and at the end.

    >>> log = CondensedLog(seconds=5.0)
    >>> log.add("begun\n", 0.0), log.add("1%", 0.1), log.add("\r2%", 0.2), log.add("\r3%", 0.3)
    ('begun\n', '1%', '\r2%', '')
    >>> log.add("\r100%\nended\n", 0.4), log.end()
    ('\r100%\nended\n', '')
    """

    def __init__(self, seconds: float) -> None:
        self._rows, self._seconds, self._due = Rows(), seconds, float("-inf")
        self._has_state = True  # the file has the lines that may change, as they are now
        self._lines, self._above = 1, 0  # of them in the file, now or before: all, and those above its cursor

    def add(self, text: str, now: float) -> str:
        """Return what is to be appended to the file at ``now`` (s); without text this may be a late state."""
        if not text and self._has_state:
            return ""
        rows = self._rows
        text = rows.unfinished + text
        rows.unfinished = ""
        pulled, finished = rows.write(text)
        if self._has_state and REWRITES.search(text) is None:
            self._lines, self._above = len(rows.rows), rows.at
            return text[: len(text) - len(rows.unfinished)]
        self._has_state = False
        if pulled:
            self._lines, self._above = max(self._lines, 1) + pulled, self._above + pulled
        new = ""
        if finished:
            new = self._erase(finished[0]) + "".join(finished)
            self._lines = self._above = 0
        if now >= self._due:
            self._due = now + self._seconds
            new += self._state()
        return new

    def end(self) -> str:
        """Return what is to be appended at the end."""
        return "" if self._has_state else self._state()

    def _state(self) -> str:
        """Return the lines that may change in the place of those in the file, and the way to the cursor."""
        rows = self._rows
        lines = self._erase(rows.rows[0]) + rows.shown()
        up = len(rows.rows) - 1 - rows.at
        self._has_state, self._lines, self._above = True, len(rows.rows), rows.at
        return lines + f"\x1b[{up}A" * bool(up) + "\r" * rows.returned + rows.style.code()

    def _erase(self, first: str) -> str:
        """Return what removes the lines in the file, where ``first`` takes the place of the first one."""
        if self._lines > 1:
            return "\r" + f"\x1b[{self._above}A" * bool(self._above) + "\x1b[J"
        return "" if not self._lines else "\r" if plain(first) else "\r\x1b[K"
