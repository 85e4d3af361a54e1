"""Delivers a page's messages while an nbdist cell awaits.

ipykernel queues the messages of a page until the cell ends: all of them before 7.4, then all but those of
comms. The buttons of a live view would have no effect during its own cell, and a reloaded page would show the
view late, or never: it first requests the kernel's info, and sends nothing else until it has the answer or
three seconds have passed.

    ipykernel      delivers itself     this module adds
    6.17 to 6.31   nothing             comms and questions, before the queue of messages
    7.0 to 7.3     nothing             comms and questions, before the lock that a cell holds
    7.4            comms               questions, in the same place
    later          `delivers_itself`   the rest
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Collection, Mapping
from types import CodeType
from typing import Any

from IPython.core.getipython import get_ipython

QUESTIONS = ("kernel_info_request", "comm_info_request")
"""Read-only requests, which are safe to answer while a cell runs."""
COMMS = ("comm_open", "comm_msg", "comm_close")
"""What a widget in a page sends."""

_delivering: weakref.WeakSet[Any] = weakref.WeakSet()


def deliver_while_busy(kernel: Any) -> bool:
    """Have a kernel deliver COMMS and QUESTIONS while a cell awaits; return whether that is possible.

    Called on its main thread. A kernel without the internals of ipykernel that this needs stays unchanged.
    """
    if kernel in _delivering:
        return True
    missing = {kind for kind in (*COMMS, *QUESTIONS) if not delivers_itself(kernel, kind)}
    manager: Any = getattr(getattr(kernel, "shell_channel_thread", None), "manager", None)
    if missing and hasattr(manager, "set_on_recv_callback"):
        _pass_lock(kernel, manager, missing)
    elif missing and hasattr(getattr(kernel, "shell_stream", None), "on_recv"):
        _pass_queue(kernel, missing)
    elif missing:
        return False
    _delivering.add(kernel)
    return True


def hears_page(kernel: Any) -> bool:
    """Return whether the buttons of a view act while its cell runs in this kernel."""
    return kernel in _delivering


def delivers_itself(kernel: Any, kind: str) -> bool:
    """Return whether this version of ipykernel delivers messages of a type while a cell runs.

    It then names the type where it waits for the lock, as 7.4 does for comms.
    """
    function = getattr(type(kernel), "shell_main", None)
    return function is not None and kind in _texts(function.__code__)


def _texts(code: CodeType) -> set[str]:
    """Return the texts among the constants of a function."""
    found: set[str] = set()
    left: list[Any] = [code]
    while left:
        one = left.pop()
        if isinstance(one, CodeType):
            left += one.co_consts
        elif isinstance(one, tuple | frozenset):
            left += one
        elif isinstance(one, str):
            found.add(one)
    return found


def _pass_lock(kernel: Any, manager: Any, kinds: Collection[str]) -> None:
    """From ipykernel 7 on a cell holds a lock, and the next message of the main shell waits for it."""
    cells = _running_cells(kernel)

    async def take(subshell: str | None, message: list[Any]) -> None:
        if subshell is None and cells and _kind(kernel, message) in kinds:
            await _deliver(kernel, manager.get_subshell_to_shell_channel_socket(None), message, cells[-1])
        else:
            await kernel.shell_main(subshell, message)

    manager.set_on_recv_callback(take)


def _pass_queue(kernel: Any, kinds: Collection[str]) -> None:
    """Before ipykernel 7 a message waits in a queue until the one before it has been handled."""
    cells = _running_cells(kernel)

    def take(message: list[Any]) -> None:
        if cells and _kind(kernel, message) in kinds:
            kernel.io_loop.add_callback(_deliver, kernel, kernel.shell_stream, message, cells[-1])
        else:
            kernel.schedule_dispatch(kernel.dispatch_shell, message)

    kernel.shell_stream.on_recv(take, copy=False)


def _running_cells(kernel: Any) -> list[tuple[Any, Any]]:
    """Return a list that has, from now on, page and request of the cell that runs in the main shell.

    It runs one now, the cell that loads nbdist.
    """
    execute: Callable[..., Any] = kernel.shell_handlers["execute_request"]
    from_7_on = hasattr(kernel, "_shell_parent_ident")
    page = kernel._shell_parent_ident.get() if from_7_on else kernel._parent_ident["shell"]
    cells = [(page, kernel.get_parent("shell"))]

    def first_ended(*_: Any) -> None:
        kernel.shell.events.unregister("post_run_cell", first_ended)
        del cells[0]

    async def run_cell(channel: Any, page: Any, request: Any) -> None:
        in_main = request["header"].get("subshell_id") is None
        if in_main:
            cells.append((page, request))
        try:
            answer = execute(channel, page, request)
            if inspect.isawaitable(answer):
                await answer
        finally:
            if in_main:
                cells.remove((page, request))

    kernel.shell.events.register("post_run_cell", first_ended)
    kernel.shell_handlers["execute_request"] = run_cell
    return cells


def _kind(kernel: Any, message: list[Any]) -> str:
    """Return the type of a message; "" for a malformed message, which ipykernel reports."""
    try:
        _, frames = kernel.session.feed_identities(message, copy=False)
        return str(kernel.session.deserialize(frames, content=False, copy=False)["header"]["msg_type"])
    except (ValueError, KeyError, TypeError):
        return ""


async def _deliver(kernel: Any, channel: Any, message: list[Any], cell: tuple[Any, Any]) -> None:
    """Handle a message now; what the cell shows stays below the cell."""
    page, frames = kernel.session.feed_identities(message, copy=False)
    request = kernel.session.deserialize(frames, content=True, copy=False)
    kernel.set_parent(page, request, channel="shell")
    try:
        answer = kernel.shell_handlers[request["header"]["msg_type"]](channel, page, request)
        if inspect.isawaitable(answer):
            await answer
    except Exception:  # as in ipykernel: it is in the log, and the kernel continues
        kernel.log.error("Exception in message handler:", exc_info=True)
    finally:
        kernel.set_parent(*cell, channel="shell")
    # "idle" ends the request on the page; the cell continues, so the kernel is busy again.
    kernel._publish_status("idle", "shell", parent=request)
    kernel._publish_status("busy", "shell", parent=cell[1])


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
    shell = get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


def leaving() -> bool:
    """Return whether the kernel is shutting down or restarting; False without a kernel.

    Runs continue without the kernel then.
    """
    return bool(getattr(get_ipython(), "exit_now", False))
