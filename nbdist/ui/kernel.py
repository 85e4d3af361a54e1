"""Answers a page's requests for the kernel's info while an nbdist cell awaits.

A reloaded page first sends such a request, and sends nothing else until it has the answer or three seconds
have passed. ipykernel 7.4 delivers comm messages to an awaiting kernel, but queues every other request until
the cell ends. Without this module, a reloaded page shows a live view late, or never if it waits longer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core.getipython import get_ipython

QUESTIONS = ("kernel_info_request", "comm_info_request")
"""Read-only requests, which are safe to answer while a cell runs."""


_answering: weakref.WeakSet[Any] = weakref.WeakSet()


def answer_while_busy(kernel: Any) -> bool:
    """Have a kernel answer `QUESTIONS` while a cell awaits; return whether that is possible.

    Called on its main thread. A version of ipykernel without the internals that this needs stays unchanged.
    """
    if kernel in _answering:
        return True
    manager: Any = getattr(getattr(kernel, "shell_channel_thread", None), "manager", None)
    lock = getattr(kernel, "_main_asyncio_lock", None)
    if lock is None or not hasattr(manager, "set_on_recv_callback"):
        return False

    async def take(subshell: str | None, message: list[Any]) -> None:
        if subshell is None and lock.locked() and _kind(kernel, message) in QUESTIONS:
            await _answer(kernel, manager, message)
        else:
            await kernel.shell_main(subshell, message)

    manager.set_on_recv_callback(take)
    _answering.add(kernel)
    return True


def _kind(kernel: Any, message: list[Any]) -> str:
    """Return the type of a message; "" for a malformed message, which ipykernel reports."""
    try:
        _, frames = kernel.session.feed_identities(message, copy=False)
        return str(kernel.session.deserialize(frames, content=False, copy=False)["header"]["msg_type"])
    except (ValueError, KeyError, TypeError):
        return ""


async def _answer(kernel: Any, manager: Any, message: list[Any]) -> None:
    identities, frames = kernel.session.feed_identities(message, copy=False)
    request = kernel.session.deserialize(frames, content=True, copy=False)
    channel = manager.get_subshell_to_shell_channel_socket(None)
    await kernel.shell_handlers[request["header"]["msg_type"]](channel, identities, request)
    # "idle" ends the request on the page; the cell continues, so the kernel is busy again.
    kernel._publish_status("idle", "shell", parent=request)
    kernel._publish_status("busy", "shell")


# Shows the results of a page's request below the cell that made the page's widget, even while the kernel
# runs another cell.
#
#     cell = this_cell()                       # while the cell runs
#     run_below(cell, start)                   # later, from a message of its widget
#
# A widget's message may arrive in a separate thread (a subshell) with an event loop that ends with the page.
# Long work must run on the kernel's main thread, and its output must be assigned to its cell.


def this_cell() -> Mapping[str, Any] | None:
    """Return the request that the kernel processes in this thread, or None outside a kernel."""
    shell = _shell()
    return None if shell is None else shell.get_parent() or None


def same_page(cell: Mapping[str, Any] | None) -> bool:
    """Return whether the current message comes from the page that ran ``cell``.

    A page that was loaded later does not show new output of that cell.
    """
    message = this_cell()
    if cell is None or message is None:
        return True
    return bool(cell["header"].get("session") == message["header"].get("session"))


def run_below(cell: Mapping[str, Any] | None, work: Callable[[], None]) -> None:
    """Run ``work`` on the kernel's main thread as soon as it is free, with its output below ``cell``.

    Outside a kernel, it runs immediately on this thread.
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


def leaving() -> bool:
    """Return whether the kernel is shutting down or restarting; False without a kernel.

    Runs continue without the kernel then.
    """
    return bool(getattr(get_ipython(), "exit_now", False))
