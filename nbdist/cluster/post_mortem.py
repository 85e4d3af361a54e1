"""The frames of the body that failed last on a task, and a look into them: `PostMortem`.

    task       keeping_failure(run)   keeps the frames of what a body raises, until the next body begins there
    client     cluster.debug(...)     lists them; shows the values of one; evaluates an expression there

Frames hold their values, which may be large. What a task keeps is dropped when its next body begins, and ends
with its process. Frames of nbdist's own code are listed, and their values let go at once: they hold shared
memory and connections of a run that has ended.

An expression runs on the main thread of the task, like any call of its clients, which have the cluster's key.
"""

from __future__ import annotations

import gc
import io
import linecache
import reprlib
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from nbdist.cluster.code_origin import NBDIST, USERS, origin
from nbdist.cluster.stacks import LONGEST_CODE, Frame, line_here
from nbdist.cluster.supervisor.engine import replies_only
from nbdist.errors import InvalidArgumentError, NotFoundError, WorkerError
from nbdist.json_values import listed, mapping, text, whole
from nbdist.text import clip, cut_middle

MOST_FRAMES = 200
MOST_VALUES = 200
LONGEST_LOCAL, LONGEST_VALUE, LONGEST_MESSAGE = 400, 20_000, 1000  # characters
HIDDEN = "__"
"""What names begin with that are Python's and IPython's own, in the namespace of a body."""

# On the task.


@dataclass
class _Failure:
    run: str
    error: str
    frames: list[tuple[FrameType, int]]
    """From the outermost one of the user's on, each with the number of its line."""


_failure: _Failure | None = None


@contextmanager
def keeping_failure(run: str) -> Iterator[None]:
    """Keep the frames of what a body of ``run`` raises; drop those of the body before."""
    forget()
    try:
        yield
    except Exception as error:
        keep(error, run)
        raise


def forget() -> None:
    """Drop the frames that are kept, and what only they hold."""
    global _failure
    if _failure is not None:
        _failure = None
        gc.collect()  # an error and its frames refer to each other


def keep(error: BaseException, run: str) -> None:
    """Keep the frames of an error."""
    global _failure
    found = list[tuple[FrameType, int]]()
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        whose = origin(frame.f_code.co_filename)
        if whose == NBDIST:
            with suppress(RuntimeError):  # it has not ended
                frame.clear()
        if found or whose in USERS:
            found.append((frame, trace.tb_lineno))
        trace = trace.tb_next
    message = f"{type(error).__name__}: {_text_of(error)}".removesuffix(": ")
    _failure = _Failure(run, cut_middle(message, LONGEST_MESSAGE), _without_middle(found))


def _without_middle(frames: list[tuple[FrameType, int]]) -> list[tuple[FrameType, int]]:
    """Return at most `MOST_FRAMES` frames: of an endless recursion its begin and its end."""
    half = MOST_FRAMES // 2
    return frames if len(frames) <= MOST_FRAMES else [*frames[:half], *frames[-half:]]


@replies_only
def look(
    frame: int | None = None, values: bool = False, expression: str | None = None, seconds: float = 30.0
) -> dict[str, Any]:
    """Return what is kept of the last failure as plain values; {} if nothing is. Runs on an engine.

    ``frame`` is the number of the frame that is looked into: by default the innermost one of the user's.
    ``values`` asks for its local values, ``expression`` for the value of an expression there, which is
    interrupted after so many ``seconds``.
    """
    if (failure := _failure) is None:
        return {}
    frames = [_described(*one) for one in failure.frames]
    users = [n for n, one in enumerate(frames) if one["origin"] in USERS]
    chosen = frame if frame is not None else users[-1] if users else 0
    found: dict[str, Any] = {"run": failure.run, "error": failure.error, "frames": frames, "chosen": chosen}
    if 0 <= chosen < len(frames) and frames[chosen]["origin"] != NBDIST:
        inside = failure.frames[chosen][0]
        with limited(seconds):
            if values:
                found["locals"] = _locals_of(inside)
            if expression is not None:
                found |= _evaluated(expression, inside)
    return found


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer, on the main thread; elsewhere there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s, and was interrupted")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _described(frame: FrameType, line: int) -> dict[str, Any]:
    code = frame.f_code
    shown = clip(linecache.getline(code.co_filename, line).strip(), LONGEST_CODE)
    name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    return {
        "origin": origin(code.co_filename),
        "file": code.co_filename,
        "line": line,
        "function": name,
        "code": shown,
    }


def _locals_of(frame: FrameType) -> dict[str, Any]:
    """Return the values of a frame as text, by name, and how many names are left out.

    At the top level of a body these are all names of the task; those that the code reads come first.
    """
    names = [name for name in frame.f_locals if not name.startswith(HIDDEN)]
    if frame.f_code.co_name == "<module>":
        names = [name for name in frame.f_code.co_names if name in frame.f_locals]
    shown = names[:MOST_VALUES]
    values = {name: shown_value(frame.f_locals[name], LONGEST_LOCAL) for name in shown}
    return {"values": values, "left_out": len(names) - len(shown)}


def _evaluated(expression: str, frame: FrameType) -> dict[str, Any]:
    """Return the value of an expression in a frame as text, what it printed, and its error."""
    printed = io.StringIO()
    answer: dict[str, Any] = {}
    # One namespace of both: else a comprehension in the expression would not see the local names.
    names = {**frame.f_globals, **frame.f_locals}
    try:
        with redirect_stdout(printed):
            value = eval(compile(expression.strip(), "<debug>", "eval"), names)
            answer["value"] = shown_value(value, LONGEST_VALUE)
    except (Exception, KeyboardInterrupt) as error:
        answer["raised"] = cut_middle(f"{type(error).__name__}: {_text_of(error)}", LONGEST_MESSAGE)
    return answer | {"printed": cut_middle(printed.getvalue(), LONGEST_VALUE)}


class _Short(reprlib.Repr):
    """The representation of containers, of their first entries alone."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = self.maxdict = 50
        self.maxstring = self.maxother = LONGEST_VALUE
        self.maxlevel = 4

    def repr_instance(self, value: Any, level: int) -> str:
        return repr(value)  # errors too: `shown_value` says them


def shown_value(value: Any, most: int) -> str:
    """Return a value as text of at most about ``most`` characters, arrays with their type and shape.

    >>> import numpy as np
    >>> shown_value([1] * 1000, 60), shown_value(np.zeros((2, 3), np.float32), 30)
    ('[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1…', 'ndarray float32 (2, 3): array…')
    """
    try:
        found = _Short().repr(value)
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None and not isinstance(value, type):
            found = f"{type(value).__name__} {dtype} {tuple(shape)}: {found}"
    except Exception as error:
        found = f"(a {type(value).__name__} that cannot be shown: {type(error).__name__}: {_text_of(error)})"
    if most <= LONGEST_LOCAL:
        return clip(" ".join(found[: 4 * most].split()), most)
    return cut_middle(found, most)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unprintable:
        return f"(its message cannot be printed: {type(unprintable).__name__})"


# On the client.


def check_expression(expression: str | None) -> None:
    """Raise InvalidArgumentError for a text that is not a Python expression.

    >>> check_expression("len(rows)"), check_expression(None)
    (None, None)
    """
    if expression is None:
        return
    try:
        compile(expression.strip(), "<debug>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = getattr(error, "msg", None) or str(error)
        raise InvalidArgumentError(
            f"{expression!r} is not an expression ({why}): a value is evaluated, such as len(rows), and no "
            "statement is run"
        ) from None


class PostMortem:
    """The frames of the body that failed last on a task; its text is what was asked for.

    - ``task``, ``run``, ``error``: the task's short name, the run's id, the error and its message
    - ``frames``: a `Frame` of each call, the outermost one of the user's first; ``codes``: their lines
    - ``chosen``: the number of the frame that was looked into
    - ``locals``: its values as text, by name; None if they were not asked for
    - ``value``, ``printed``: of the expression, as text; None if there was none
    """

    def __init__(self, task: str, answer: Mapping[str, Any]) -> None:
        self.task = task
        self.run, self.error = text(answer.get("run"), 200), text(answer.get("error"), 2 * LONGEST_MESSAGE)
        rows = [mapping(one) for one in listed(answer.get("frames"))]
        self.frames = [
            Frame(
                text(one.get("file")), whole(one.get("line")) or 0, text(one.get("function")), one["origin"]
            )
            for one in rows
        ]
        self.codes = [
            text(one.get("code"), LONGEST_CODE) or clip(line_here(frame).strip(), LONGEST_CODE)
            for frame, one in zip(self.frames, rows, strict=True)
        ]
        self.chosen = int(answer["chosen"])
        known = mapping(answer.get("locals"))
        self.locals: Mapping[str, str] | None = mapping(known.get("values")) if known else None
        self.left_out = whole(known.get("left_out")) or 0
        self.value: str | None = answer.get("value")
        self.printed: str | None = answer.get("printed")

    @classmethod
    def of(
        cls, task: str, answer: Mapping[str, Any], values: bool = False, expression: str | None = None
    ) -> PostMortem:
        """Return what a task has answered that was asked for ``values`` or for an ``expression``.

        Raises NotFoundError if it keeps no failure, InvalidArgumentError for a frame that there is not or
        that has no values, and WorkerError with what the expression has raised.
        """
        if not answer:
            raise NotFoundError(
                f"{task} keeps no frames: no body has failed in its process, or another one has begun since"
            )
        found = cls(task, answer)
        if not found.frames:
            raise NotFoundError(f"{task} failed outside of code of yours, in run {found.run}: {found.error}")
        if not 0 <= found.chosen < len(found.frames):
            raise InvalidArgumentError(
                f"{task} has no frame {found.chosen}: the frames are 0 to {len(found.frames) - 1}"
            )
        asked = expression is not None or values
        if asked and found.frames[found.chosen].origin == NBDIST:
            raise InvalidArgumentError(
                f"frame {found.chosen} of {task} is in nbdist ({found.frames[found.chosen].place}), which "
                f"keeps no values of its own: choose one of yours, {found.users}"
            )
        if raised := answer.get("raised"):
            raise WorkerError(
                f"{found.printed or ''}{raised}\n\nraised by {expression!r} in frame {found.chosen} of "
                f"{task} ({found.frames[found.chosen].place})"
            )
        return found

    @property
    def users(self) -> str:
        """The numbers of the frames of the user's own code."""
        return ", ".join(str(n) for n, frame in enumerate(self.frames) if frame.is_users)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        frames = [{**vars(frame), "code": code} for frame, code in zip(self.frames, self.codes, strict=True)]
        own = {name: value for name, value in vars(self).items() if name not in ("frames", "codes")}
        return {**own, "frames": frames}

    def __str__(self) -> str:
        parts = [self._listing()] if self.locals is None and self.value is None else []
        if self.locals is not None:
            parts.append(self._values(self.locals))
        if self.value is not None:
            parts.append(f"{self.printed or ''}{self.value}")
        return "\n".join(parts)

    __repr__ = __str__

    def _listing(self) -> str:
        numbered = [
            f"{n:>3}  {frame.row(code)}"
            for n, (frame, code) in enumerate(zip(self.frames, self.codes, strict=True))
        ]
        return "\n".join([
            f"{self.task} failed in run {self.run}: {self.error}",
            *numbered,
            f"values of frame {self.chosen}: --locals; of another one: --frame N --locals",
            'an expression there: -e "..."',
        ])  # fmt: skip

    def _values(self, values: Mapping[str, str]) -> str:
        rows = [f"  {name} = {value}" for name, value in values.items()] or ["  (no values)"]
        if self.left_out:
            rows.append(f"  {self.left_out} more names are left out")
        return "\n".join([f"frame {self.chosen}, {self.frames[self.chosen].place}:", *rows])
