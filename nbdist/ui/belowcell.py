"""Has what a page asked for show below the cell that made the page's widget, wherever the kernel is by then.

    cell = this_cell()                       # while the cell runs
    run_below(cell, start)                   # later, from a message of its widget

A message of a widget may come in a thread of its own (a subshell), whose event loop ends with the page; what
goes on for long has to live on the kernel's main thread, and what it shows needs the cell to belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def this_cell() -> Mapping[str, Any] | None:
    """Return the request that the kernel is working on in this thread, or None outside of a kernel."""
    shell = _shell()
    return None if shell is None else shell.get_parent() or None


def same_page(cell: Mapping[str, Any] | None) -> bool:
    """Return whether the message that is being handled comes from the page that ran ``cell``.

    A page that was loaded since then no longer follows what the cell shows.
    """
    message = this_cell()
    if cell is None or message is None:
        return True
    return bool(cell["header"].get("session") == message["header"].get("session"))


def run_below(cell: Mapping[str, Any] | None, work: Callable[[], None]) -> None:
    """Do ``work`` on the kernel's main thread as soon as it is free, its output below ``cell``.

    Outside of a kernel it is done here and now.
    """
    shell = _shell()
    if shell is None:
        work()
        return
    shell.kernel.io_loop.add_callback(_as_of_cell, shell, cell, work)


def _as_of_cell(shell: Any, cell: Mapping[str, Any] | None, work: Callable[[], None]) -> None:
    if cell is None or not hasattr(shell, "set_thread_parent"):  # ipykernel before 7.1
        work()
        return
    tokens = shell.set_thread_parent(cell)
    try:
        work()
    finally:
        shell.reset_thread_parent(tokens)


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None
