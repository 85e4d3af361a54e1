"""Lets a kernel say what kernel it is while one of our cells awaits.

A reloaded page requests that from a kernel first, and sends it nothing else before it is answered or
three seconds have passed. ipykernel 7.4 hands comms to an awaiting kernel, and keeps every other request for
the end of the cell. So without this a live view comes back late, or not at all where a page waits longer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core.getipython import get_ipython

QUESTIONS = ("kernel_info_request", "comm_info_request")
"""Requests that change nothing, so that they may come in the middle of a cell."""


_answering: weakref.WeakSet[Any] = weakref.WeakSet()


def answer_while_busy(kernel: Any) -> bool:
    """Have a kernel answer such requests while a cell awaits; return whether that is possible.

    Called on its main thread. Another version of ipykernel may lack what this needs: it is left unchanged.
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
    """Return the type of a message; empty for a malformed one, which ipykernel reports."""
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
    # A request is over when the kernel is idle; then the cell continues.
    kernel._publish_status("idle", "shell", parent=request)
    kernel._publish_status("busy", "shell")


# Shows results of a page's request below the cell that made the page's widget, whatever the kernel runs
# then.
#
#     cell = this_cell()                       # while the cell runs
#     run_below(cell, start)                   # later, from a message of its widget
#
# A message of a widget may come in a thread of its own (a subshell), whose event loop ends with the page;
# long work has to run on the kernel's main thread, and its output needs the cell that it belongs to.


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


# Whether this kernel is shutting down, so that its runs continue without it.


def leaving() -> bool:
    """Return whether the kernel has a request to end or restart; False without a kernel."""
    return bool(getattr(get_ipython(), "exit_now", False))
