"""SIGINT: it ends a body, and never what comes before and after."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from pathlib import Path

import pytest

from nbdist.run.task import signals
from nbdist.run.task.signals import bodies_only, forget, interruptible


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_body_is_interrupted_and_nothing_else() -> None:
    before = signal.getsignal(signal.SIGINT)
    with bodies_only():
        with pytest.raises(KeyboardInterrupt), interruptible():
            interrupt()
        interrupt()  # too late
    assert signal.getsignal(signal.SIGINT) is before


def test_one_that_came_early_is_for_the_body_that_follows() -> None:
    with bodies_only():
        interrupt()
        with pytest.raises(KeyboardInterrupt), interruptible():
            raise AssertionError("it began")
        forget()
        with interruptible():  # this is the next one
            pass


def test_one_for_a_body_that_is_over_is_forgotten() -> None:
    with bodies_only():
        with interruptible():
            pass
        interrupt()
        forget()
        with interruptible():
            pass
    interrupted = False
    try:
        interrupt()
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted


def test_a_thread_without_it_is_as_it_was() -> None:
    done = threading.Event()

    def body() -> None:
        with interruptible():
            done.set()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done.is_set()


def test_the_import_of_a_package_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("installed", "own"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}_module.py").write_text(
            "import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n"
        )
        monkeypatch.syspath_prepend(tmp_path / folder)
    monkeypatch.setattr(signals, "INSTALLED", (str(tmp_path / "installed"),))
    ended = []

    def body() -> None:
        importlib.import_module("installed_module")
        ended.append("import")
        threading.Event().wait(600)  # which the signal ends, within the limit of a test

    with bodies_only():
        with pytest.raises(KeyboardInterrupt), interruptible():
            body()
        with pytest.raises(KeyboardInterrupt), interruptible():
            importlib.import_module("own_module")  # it may train
    assert ended == ["import"]
    assert sys.modules.pop("installed_module").whole
    assert "own_module" not in sys.modules
