"""Modules of the user's own that were edited after a task imported them: reloaded, or told about.

    watch_imports()                              # once in a process
    settle_edits(autoreloaded(), context.note)   # before each body

A task lives through many cells and keeps what the first of them imported, so an edit would be ignored
silently. If the notebook reloads such modules (``%autoreload``), its tasks do so as well.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Mapping
from functools import cache, wraps
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

ALL = "*"
_times: dict[str, float] = {}
"""When each source file that this process has imported had been changed last, by its path."""
_unsorted: list[str] = []
"""Paths of ``_times`` that were imported since `edited_modules` looked last."""
_own: set[str] = set()
"""Those that belong to no package that is installed."""


def watch_imports() -> None:
    """From now on, keep the time of last change of each source file that is imported."""
    path_stats = SourceFileLoader.path_stats
    if hasattr(path_stats, "__wrapped__"):
        return

    @wraps(path_stats)
    def noted(self: SourceFileLoader, path: str) -> Mapping[str, Any]:
        found = path_stats(self, path)
        _unsorted.append(path)
        _times[path] = found["mtime"]
        return found

    SourceFileLoader.path_stats = noted  # type: ignore[method-assign]


def autoreloaded() -> tuple[str, ...]:
    """Return which modules the notebook reloads once they are edited, as ``%aimport`` writes it.

    That is names, ``*`` for all others, and ``-name`` for one that is not reloaded; empty without
    ``%autoreload``.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    magics = None if shell is None else shell.magics_manager.registry.get("AutoreloadMagics")
    reloader = getattr(magics, "_reloader", None)
    if reloader is None or not reloader.enabled:
        return ()
    every = [ALL] if reloader.check_all else []
    return (*every, *sorted(reloader.modules), *(f"-{name}" for name in sorted(reloader.skip_modules)))


def settle_edits(reloaded: Collection[str], note: Callable[[str], object]) -> None:
    """Reload the edited modules that ``reloaded`` names as `autoreloaded` does; say that the others stay.

    ``note`` takes what is said.
    """
    left = []
    for name in edited_modules():
        if f"-{name}" in reloaded or not {ALL, name} & set(reloaded):
            left.append(name)
        elif problem := _reload(name):
            note(f"{name} was edited and cannot be reloaded, so the workers keep the old one: {problem}")
    if left:
        was, it = ("were", "them") if len(left) > 1 else ("was", "it")
        note(
            f"{', '.join(left)} {was} edited after the workers imported {it}, and they keep the old code: "
            "run `%load_ext autoreload` and `%autoreload 2` in the notebook, which its workers obey, or "
            f"importlib.reload({left[0]}) in this cell"
        )


def edited_modules() -> list[str]:
    """Return the names of imported modules whose files have another time than at their import."""
    while _unsorted:
        if not _is_installed(path := _unsorted.pop()):
            _own.add(path)
    changed = {path for path in _own if _has_changed(path)}
    if not changed:  # mostly: the modules of a process are many
        return []
    return [name for name, module in [*sys.modules.items()] if getattr(module, "__file__", None) in changed]


def _has_changed(path: str) -> bool:
    try:
        return os.stat(path).st_mtime != _times[path]
    except OSError:  # moved or deleted
        return False


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to Python, to a package that is installed, or to nbdist."""
    return file.startswith(_places())


@cache
def _places() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    places = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(f"{place}{os.sep}" for place in (*places, Path(__file__).parents[2]))


def _reload(name: str) -> str:
    """Reload a module in place; return why it cannot be, empty if it is.

    Functions and classes that cells have imported from it, and objects of these classes, get the new code.
    """
    from IPython.extensions.autoreload import superreload

    module = sys.modules[name]
    before = _times[str(module.__file__)]
    try:
        superreload(module, importlib.reload, {})
    except Exception as error:
        _times[str(module.__file__)] = before  # so that the next body gets the note again
        return f"{type(error).__name__}: {error}"
    return ""
