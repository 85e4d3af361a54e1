"""The frames that a task keeps of a body that failed: which, how long, and what is shown of them."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbdist.cli.__main__ import main
from nbdist.cluster import post_mortem
from nbdist.cluster.cluster import set_current
from nbdist.cluster.post_mortem import (
    LONGEST_LOCAL,
    MOST_FRAMES,
    PostMortem,
    check_expression,
    keeping_failure,
    look,
    shown_value,
)
from nbdist.data import Dataset
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    WorkerError,
)
from nbdist.ui.api import launch
from nbdist.ui.magics import DistributedMagics

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster


class Held:
    """An object whose end a test can see."""


class Unshown:
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    post_mortem.forget()


CALLER: dict[str, Any] = {}
CALL = "def call(keeping, body, names):\n    with keeping('r1'):\n        exec(body, names)"
exec(compile(CALL, "<nbdist test>", "exec"), CALLER)  # what calls a body is code of nbdist


def fail(source: str, file: str = "<distribute r1>", **names: Any) -> PostMortem:
    """Run a body that fails, as a task does; return what it keeps."""
    with pytest.raises(Exception):  # noqa: B017
        CALLER["call"](keeping_failure, compile(source, file, "exec"), names)
    return PostMortem.of("worker:1", look())


AVERAGE = """
def average(rows):
    scale = 3
    return scale * sum(rows) / len(rows)
average([])
"""


def test_frames_are_listed_from_the_body_on_and_the_innermost_is_chosen() -> None:
    found = fail(AVERAGE)
    assert [(frame.line, frame.function) for frame in found.frames] == [(5, "<module>"), (4, "average")]
    assert (found.error, found.run, found.chosen) == ("ZeroDivisionError: division by zero", "r1", 1)
    assert str(found).startswith(
        "worker:1 failed in run r1: ZeroDivisionError: division by zero\n  0  > body"
    )
    shown = PostMortem.of("worker:1", look(values=True), values=True)
    assert shown.locals == {"rows": "[]", "scale": "3"}
    assert str(shown) == "frame 1, line 4 of the body, in average:\n  rows = []\n  scale = 3"
    outer = PostMortem.of("worker:1", look(0, values=True), values=True)
    assert outer.locals is not None
    assert [*outer.locals] == ["average"]


def test_an_expression_sees_local_and_global_names_and_what_it_prints_is_returned() -> None:
    fail(AVERAGE, offset=2)
    found = PostMortem.of("worker:1", look(expression="[scale + offset for _ in range(2)], print('x')"))
    assert str(found) == "x\n([5, 5], None)"
    with pytest.raises(WorkerError, match=r"NameError: .*\n\nraised by 'nope' in frame 1 of worker:1"):
        PostMortem.of("worker:1", look(expression="nope"), expression="nope")
    assert PostMortem.of("worker:1", look(0, expression="offset")).value == "2"


@pytest.mark.parametrize("wrong", ["x = 1", "", "(", "a\0b", "(" * 5000])
def test_what_is_not_an_expression_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not an expression"):
        check_expression(wrong)


def test_values_of_nbdist_are_let_go_and_cannot_be_asked_for() -> None:
    source = """
def wrong(x):
    raise ValueError(x)
dataset = Dataset.from_arrays(rows).map(wrong)
[*dataset]
"""
    found = fail(source, Dataset=Dataset, rows=np.zeros(3))
    origins = [frame.origin for frame in found.frames]
    assert (origins[0], origins[-1]) == ("body", "body")
    inside = origins.index("nbdist")
    failure = post_mortem._failure
    assert failure is not None
    assert not failure.frames[inside][0].f_locals
    with pytest.raises(InvalidArgumentError, match="choose one of yours, 0, "):
        PostMortem.of("worker:1", look(inside, values=True), values=True)
    for frame in (-1, 99):
        with pytest.raises(InvalidArgumentError, match=f"no frame {frame}: the frames are 0 to"):
            PostMortem.of("worker:1", look(frame))


def test_frames_are_kept_until_the_next_body_begins() -> None:
    held = []

    def make() -> Held:
        one = Held()
        held.append(weakref.ref(one))
        return one

    fail("def f():\n    one = make()\n    raise ValueError\nf()", make=make)
    assert held[0]() is not None
    with keeping_failure("r2"):
        assert held[0]() is None
    with pytest.raises(NotFoundError, match="keeps no frames"):
        PostMortem.of("worker:1", look())
    with pytest.raises(KeyboardInterrupt), keeping_failure("r3"):  # a body that was stopped has not failed
        raise KeyboardInterrupt
    assert look() == {}


def test_what_is_kept_and_shown_is_bounded() -> None:
    found = fail("def f(n):\n    f(n + 1)\nf(0)")
    assert len(found.frames) == MOST_FRAMES
    assert len(json.dumps(look(values=True))) < 1 << 17
    assert len(shown_value("x" * 10**6, LONGEST_LOCAL)) <= LONGEST_LOCAL
    assert len(shown_value({n: [n] * 10**5 for n in range(99)}, 10_000)) < 11_000
    assert shown_value(np.zeros((4, 5)), 60).startswith("ndarray float64 (4, 5): array([[0., 0.")
    assert shown_value([Unshown()], 99) == "(a list that cannot be shown: ValueError: no text)"
    with pytest.raises(NotFoundError, match="failed outside of code of yours, in run r1: NameError"):
        fail("missing()", file="<nbdist test>")


# With engines.

FAILS = """
def average(rows):
    return sum(rows) / len(rows)
if nb.task.index == 1:
    average([])
"""


@pytest.mark.engines
def test_a_failed_rank_is_looked_into(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkerError, match="ZeroDivisionError") as raised:
        launch(FAILS, cluster=cluster, live=False)
    assert raised.value.__notes__[0].startswith("%cluster debug worker:1 shows its frames")
    capsys.readouterr()
    set_current(cluster)
    DistributedMagics().cluster("debug worker:1")
    listed = capsys.readouterr().out
    assert "> body, line 3, in average" in listed
    assert "return sum(rows) / len(rows)" in listed
    DistributedMagics().cluster('debug worker:1 -e "len(rows)"')
    assert capsys.readouterr().out == "0\n"
    line = ["cluster", "debug", "worker:1", "--cluster", cluster.id]
    assert main([*line, "--frame", "1", "--locals"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  rows = []"]
    assert main([*line, "-e", "rows == []", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == "True"
    with pytest.raises(WorkerError, match="TimeoutError: it took longer than"):
        cluster.debug("worker:1", expression="__import__('time').sleep(60)", timeout=0.05)
    assert cluster.debug(1, expression="1 + 1").value == "2"  # the task is free again
    with pytest.raises(NotFoundError, match="worker:0 keeps no frames"):
        cluster.debug("worker:0")
    set_current(cluster)  # the command line has attached to it, and disconnected
    for wrong, said in (("debug", "needs a task"), ("debug worker:1 -e x=1", "is not an expression")):
        with pytest.raises(InvalidArgumentError, match=said):
            DistributedMagics().cluster(wrong)
    run = launch("import time\nwhile True: time.sleep(0.01)", cluster=cluster, background=True, live=False)
    try:
        with pytest.raises(FailedPreconditionError, match="worker:1 runs a body of run"):
            cluster.debug("worker:1")
    finally:
        run.interrupt()
        run.wait()
