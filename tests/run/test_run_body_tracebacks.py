"""Tracebacks of body errors show the user's lines and the message."""

from __future__ import annotations

from typing import Any

import pytest

from nbdist.cluster.code_origin import OWN
from nbdist.errors import InvalidArgumentError
from nbdist.run.task.body import describe_error
from nbdist.train.context import Control
from nbdist.wire.collective.local import thread_group


def traceback_of(code: str, **names: Any) -> list[str]:
    """Return the lines of a body error's traceback as the client receives it."""
    try:
        exec(compile(code, "<distribute run-1>", "exec"), names)
    except BaseException as error:
        lines: list[str] = describe_error(error, Control())["traceback"].splitlines()
        return lines
    raise AssertionError("nothing was raised")


def files(lines: list[str]) -> list[str]:
    return [line.split('"')[1] for line in lines if line.startswith('  File "')]


def test_an_error_of_nbdist_ends_with_the_users_line() -> None:
    (group,) = thread_group(["here"])
    lines = traceback_of(
        "def reduce(group):\n    group.all_reduce([1.0], 'median')\nreduce(group)", group=group
    )
    assert lines[0] == "Traceback (most recent call last):"
    assert files(lines) == ["<distribute run-1>", "<distribute run-1>"]
    assert lines[-1].startswith("nbdist.errors.InvalidArgumentError: no op 'median'; choose from sum,")


def test_any_other_error_keeps_all_frames() -> None:
    class Odd:
        def __array__(self, *_: Any) -> Any:
            raise RuntimeError("no array")

    (group,) = thread_group(["here"])
    lines = traceback_of("group.all_reduce(odd, 'sum')", group=group, odd=Odd())
    assert any(path.endswith("/nbdist/wire/collective/base.py") for path in files(lines))
    assert lines[-1] == "RuntimeError: no array"


def test_missing_memory_is_shown_at_the_users_line() -> None:
    ours: dict[str, Any] = {}
    exec(compile("def draw(): raise MemoryError('no room')", f"{OWN}nn/draw.py", "exec"), ours)
    lines = traceback_of("draw()", draw=ours["draw"])
    assert files(lines) == ["<distribute run-1>"]
    assert lines[-1] == "MemoryError: no room"


def test_a_user_function_that_nbdist_calls_is_kept() -> None:
    (group,) = thread_group(["here"])
    code = (
        "class Mine:\n    def __array__(self, *_):\n        group.broadcast(1, root=5)\n"
        "group.all_reduce(Mine(), 'sum')"
    )
    lines = traceback_of(code, group=group)
    assert files(lines) == ["<distribute run-1>"] * 2, "and not the lines between the two"
    assert lines[-1].startswith("nbdist.errors.InvalidArgumentError: broadcast(root=5)")


def nbdist_functions(code: str) -> Any:
    """Return the functions of code compiled under a file name of nbdist."""
    names: dict[str, Any] = {"InvalidArgumentError": InvalidArgumentError}
    exec(compile(code, OWN + "somewhere.py", "exec"), names)
    return names


CALL = """
def call(function):
    try:
        function()
    except ValueError as error:
        raise InvalidArgumentError("what nbdist makes of it") {how}
def look():
    raise ValueError("what nbdist met with")
"""


@pytest.mark.parametrize(("how", "phrase"), [("", "During handling"), ("from error", "direct cause")])
def test_a_cause_in_user_code_is_kept(how: str, phrase: str) -> None:
    code = "def mine():\n    raise ValueError('my mistake')\ncall(mine)"
    text = "\n".join(traceback_of(code, call=nbdist_functions(CALL.format(how=how))["call"]))
    assert phrase in text
    assert "line 2, in mine" in text
    assert text.endswith("nbdist.errors.InvalidArgumentError: what nbdist makes of it")


def test_a_cause_inside_nbdist_is_left_out() -> None:
    parts = nbdist_functions(CALL.format(how=""))
    lines = traceback_of("call(look)", call=parts["call"], look=parts["look"])
    assert files(lines) == ["<distribute run-1>"]
    assert "what nbdist met with" not in "\n".join(lines)


def test_a_context_manager_of_nbdist_leaves_no_frame() -> None:
    code = (
        "from contextlib import contextmanager\n@contextmanager\ndef about():\n    try:\n        yield\n"
        "    except InvalidArgumentError as error:\n"
        "        raise InvalidArgumentError(f'validation data: {error}') from None\n"
        "def fit():\n    with about():\n        raise InvalidArgumentError('width 30')"
    )
    lines = traceback_of("fit()", fit=nbdist_functions(code)["fit"])
    assert files(lines) == ["<distribute run-1>"]
    assert lines[-1] == "nbdist.errors.InvalidArgumentError: validation data: width 30"
