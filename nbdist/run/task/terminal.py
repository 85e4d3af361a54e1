"""What a body finds of a terminal: none to type at. `without_terminal` refuses what would need one.

A worker has no keyboard, and ``quit()``, which IPython puts into the namespace, would end its process. Nor
has it a page for widgets: progress bars print lines that move, as in a terminal, which the view and the saved
output of a run show.
"""

from __future__ import annotations

import builtins
import cmd
import getpass
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

from nbdist.errors import FailedPreconditionError
from nbdist.frameworks.patches import Patches

ASK = "ask in the notebook, and give the body the value: %%distribute --push answer, or nb.launch(..., args)"
REFUSED = {
    "input()": f"input() has no keyboard on a worker: {ASK}",
    "getpass()": f"getpass() has no keyboard on a worker: {ASK}",
    "breakpoint()": "breakpoint() has no keyboard on a worker: print the values, or run these lines "
    "in a cell without %%distribute, where the debugger works",
    "quit()": "quit() would end this worker's process and lose the names of its earlier cells: a body ends "
    "with its last line. To end the cluster: %cluster stop",
}


@contextmanager
def without_terminal() -> Iterator[None]:
    """Have ``input()``, ``breakpoint()`` and ``quit()`` raise FailedPreconditionError, inside a ``with``.

    Progress bars that would be widgets are lines.
    """
    from IPython.core.getipython import get_ipython

    places: list[tuple[Any, str, str]] = [
        (builtins, "input", "input()"),
        (getpass, "getpass", "getpass()"),
        (sys, "breakpointhook", "breakpoint()"),
    ]
    if (shell := get_ipython()) is not None:
        places.append((shell, "ask_exit", "quit()"))
        # By this tqdm.auto and others tell a notebook, which has a page, from other processes of IPython.
        shell.config.pop("IPKernelApp", None)
    before = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, call in places:
        setattr(owner, name, _refuse(REFUSED[call]))
    try:
        with Patches({"tqdm.notebook": _bars_as_lines}):
            yield
    finally:
        for (owner, name, _), value in zip(places, before, strict=True):
            setattr(owner, name, value)


def _bars_as_lines(module: ModuleType, patches: Patches) -> None:
    """Have a body that asks for the bars of notebooks get those of terminals."""
    std = importlib.import_module("tqdm.std")
    for name, kind in (("tqdm", std.tqdm), ("tqdm_notebook", std.tqdm), ("trange", std.trange)):
        patches.replace(module, name, _always(kind))


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda before: value


def _refuse(sentence: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        debugged = sys._getframe(1).f_code.co_filename == cmd.__file__  # pdb.set_trace() asks for a command
        raise FailedPreconditionError(REFUSED["breakpoint()"] if debugged else sentence)

    return refuse
