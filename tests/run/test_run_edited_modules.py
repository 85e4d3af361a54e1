"""Modules that are edited between two bodies: reloaded if the notebook reloads its own, told about if not."""

from __future__ import annotations

import importlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace

import pytest

from nbdist.cluster.cluster import Cluster
from nbdist.run.task import edited_modules as tested
from nbdist.run.task.edited_modules import autoreloaded, edited_modules, settle_edits, watch_imports
from nbdist.ui.api import launch

Edit = Callable[[str], None]
NAME = "nbdist_edited_example"


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """Write the module anew, each time with another time of last change."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(SourceFileLoader, "path_stats", SourceFileLoader.path_stats)
    monkeypatch.setattr(tested, "_times", {})
    monkeypatch.setattr(tested, "_unsorted", [])
    monkeypatch.setattr(tested, "_own", set())
    times = iter(range(1_000_000_000, 2_000_000_000, 10))

    def write(text: str) -> None:
        path = tmp_path / f"{NAME}.py"
        path.write_text(text)
        os.utime(path, (then := next(times), then))

    yield write
    sys.modules.pop(NAME, None)


@pytest.fixture
def module(edit: Edit) -> Callable[[], object]:
    """The first version, imported as a body would import it."""
    watch_imports()
    edit("def f():\n    return 'old'\n")
    importlib.invalidate_caches()
    found = importlib.import_module(NAME)
    return lambda: found.f()


def test_an_edited_module_is_told_of_and_keeps_its_code(edit: Edit, module: Callable[[], object]) -> None:
    notes: list[str] = []
    settle_edits((), notes.append)
    assert notes == []
    edit("def f():\n    return 'new'\n")
    settle_edits((), notes.append)
    settle_edits((f"-{NAME}", "*"), notes.append)
    assert len(notes) == 2
    assert all(note.startswith(f"{NAME} was edited after the workers imported it") for note in notes)
    assert module() == "old"


@pytest.mark.parametrize("which", [("*",), (NAME,)])
def test_it_is_reloaded_if_the_notebook_reloads_it(
    edit: Edit, module: Callable[[], object], which: tuple[str, ...]
) -> None:
    before = sys.modules[NAME].f
    edit("def f():\n    return 'new'\n")
    settle_edits(which, pytest.fail)
    assert module() == before() == "new"  # a function that a cell has imported from it, too
    assert edited_modules() == []


def test_what_cannot_be_reloaded_is_told_each_time(edit: Edit, module: Callable[[], object]) -> None:
    edit("def f(:\n")
    notes: list[str] = []
    settle_edits(("*",), notes.append)
    settle_edits(("*",), notes.append)
    assert len(notes) == 2
    assert all("cannot be reloaded, so the workers keep the old one: SyntaxError" in note for note in notes)
    assert module() == "old"


def test_a_reload_by_hand_settles_it(edit: Edit, module: Callable[[], object]) -> None:
    edit("def f():\n    return 'new'\n")
    importlib.reload(sys.modules[NAME])
    assert edited_modules() == []
    assert module() == "new"


def test_installed_and_deleted_files_are_left_alone(
    edit: Edit, module: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit("def f():\n    return 'new'\n")
    looked = list[str](tested._unsorted)
    with monkeypatch.context() as patch:
        patch.setattr(tested.sysconfig, "get_paths", lambda: defaultdict(lambda: str(tmp_path)))
        tested._places.cache_clear()
        assert edited_modules() == []
    tested._places.cache_clear()
    tested._unsorted += looked
    assert edited_modules() == [NAME]
    (tmp_path / f"{NAME}.py").unlink()
    assert edited_modules() == []


@pytest.mark.parametrize(
    ("reloader", "found"),
    [
        (None, ()),
        (SimpleNamespace(enabled=False, check_all=True, modules={}, skip_modules={}), ()),
        (SimpleNamespace(enabled=True, check_all=True, modules={}, skip_modules={"b": True}), ("*", "-b")),
        (SimpleNamespace(enabled=True, check_all=False, modules={"a": True}, skip_modules={}), ("a",)),
    ],
)
def test_what_the_notebook_reloads(
    monkeypatch: pytest.MonkeyPatch, reloader: SimpleNamespace | None, found: tuple[str, ...]
) -> None:
    registry = {} if reloader is None else {"AutoreloadMagics": SimpleNamespace(_reloader=reloader)}
    shell = SimpleNamespace(magics_manager=SimpleNamespace(registry=registry))
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    assert autoreloaded() == found


def test_the_reloader_of_ipython_has_what_is_read_of_it() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.extensions.autoreload import AutoreloadMagics

    reloader = AutoreloadMagics(InteractiveShell())._reloader
    assert reloader.enabled is False
    assert {type(reloader.modules), type(reloader.skip_modules)} == {dict}
    assert isinstance(reloader.check_all, bool)


@pytest.mark.engines
def test_workers_are_told_and_reload(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "nbdist_edited_on_workers"
    launch(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})", cluster=cluster, live=False)
    seen = []
    for number, reloaded in enumerate([(), (), ("*",)]):
        path = tmp_path / f"{name}.py"
        path.write_text(f"value = {number}\n")
        os.utime(path, (number * 10, number * 10))
        monkeypatch.setattr("nbdist.run.start.autoreloaded", lambda reloaded=reloaded: reloaded)
        run = launch(f"import {name}\nx = {name}.value", cluster=cluster, live=False, fetch=["x"])
        seen.append((run.results["x"], "was edited after" in capsys.readouterr().out))
    assert seen == [(0, False), (0, True), (2, False)]
    launch(f"sys.path.remove({str(tmp_path)!r})", cluster=cluster, live=False)
