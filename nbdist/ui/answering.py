"""Lets a kernel say what kernel it is while one of our cells awaits.

A page that is loaded anew asks a kernel for that first, and sends it nothing else before it is answered or
three seconds have passed. ipykernel 7.4 hands comms to an awaiting kernel, and keeps every other request for
the end of the cell. So without this a live view comes back late, or not at all where a page waits longer.
"""

from __future__ import annotations

import weakref
from typing import Any

QUESTIONS = ("kernel_info_request", "comm_info_request")
"""Requests that change nothing, so that they may come in the middle of a cell."""
_answering: weakref.WeakSet[Any] = weakref.WeakSet()


def answer_meanwhile(kernel: Any) -> bool:
    """Have a kernel answer such questions at once; whether it can be made to.

    Called on its main thread; another version of ipykernel may not have what this needs, and stays as it is.
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
    """Return the type of a message; empty if that cannot be told, which is for ipykernel to say."""
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
    # A request is over when the kernel says idle; then that the cell goes on.
    kernel._publish_status("idle", "shell", parent=request)
    kernel._publish_status("busy", "shell")
