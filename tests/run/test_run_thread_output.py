"""Output of one thread goes to its run; output of other threads is unchanged."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import copy_context
from pathlib import Path

import pytest
from waiting import PATIENCE

from nbdist.run.in_graph.thread import printing_here
from nbdist.run.task.reporting import Output


@contextmanager
def output(path: Path) -> Iterator[Output]:
    found = Output(path)
    yield found
    found.finish()


def test_only_this_thread_prints_to_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = sys.stdout, sys.stderr
    with output(tmp_path / "1") as one:
        with printing_here(one):
            print("mine")
            print("to stderr", file=sys.stderr)
            other = threading.Thread(target=lambda: print("another thread's"))
            other.start()
            other.join()
            mine = threading.Thread(target=copy_context().run, args=(print, "in my name"))
            mine.start()
            mine.join()
            sys.stdout.writelines(["a", "b", "\n"])
            sys.stdout.flush()
        assert one.take() == "mine\n\x1b[220mto stderr\n\x1b[221min my name\nab\n"
    assert (sys.stdout, sys.stderr) == usual
    assert capsys.readouterr().out == "another thread's\n"


def test_two_threads_print_to_two_runs(tmp_path: Path) -> None:
    first, second = Output(tmp_path / "1"), Output(tmp_path / "2")
    both, usual = threading.Barrier(2), sys.stdout

    def body(output: Output, text: str) -> None:
        with printing_here(output):
            both.wait(10)
            for _ in range(100):
                print(text, end="")
            both.wait(10)

    threads = [threading.Thread(target=body, args=pair) for pair in ((first, "x"), (second, "y"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (first.take(), second.take()) == ("x" * 100, "y" * 100)
    assert sys.stdout is usual
    for one in (first, second):
        one.finish()


def test_a_kept_stdout_prints_to_the_notebook_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("of a body")
    with output(tmp_path / "1") as one:
        with printing_here(one):
            held = sys.stdout
            handler = logging.StreamHandler()
            logger.addHandler(handler)
            logger.warning("inside")
        held.write("afterwards\n")
        held.flush()
        logger.warning("outside")
        logger.removeHandler(handler)
        assert one.take() == "\x1b[220minside\n\x1b[221m"
    assert capsys.readouterr() == ("afterwards\n", "outside\n")


def test_a_body_may_redirect_what_it_prints(tmp_path: Path) -> None:
    usual, caught = sys.stdout, io.StringIO()
    with output(tmp_path / "1") as one:
        with printing_here(one):
            with redirect_stdout(caught):
                print("caught")
            print("mine")
        assert one.take() == "mine\n"
    assert caught.getvalue() == "caught\n"
    assert sys.stdout is usual


def test_a_later_redirection_stays_in_effect(tmp_path: Path) -> None:
    usual, caught = sys.stdout, io.StringIO()
    with output(tmp_path / "1") as one:
        around = printing_here(one)
        around.__enter__()
        catching = redirect_stdout(caught)
        catching.__enter__()
        around.__exit__(None, None, None)
        print("caught")
        catching.__exit__(None, None, None)
        assert sys.stdout is not usual  # the restored wrapper forwards to the original
        with printing_here(one):
            print("mine")
        assert sys.stdout is usual
        assert one.take() == "mine\n"
    assert caught.getvalue() == "caught\n"


def test_it_has_the_attributes_of_the_replaced_stream(tmp_path: Path) -> None:
    usual = sys.stdout
    with output(tmp_path / "1") as one, printing_here(one):
        assert sys.stdout.encoding == usual.encoding
        assert not sys.stdout.isatty()
        assert not hasattr(sys.stdout, "no such thing")
