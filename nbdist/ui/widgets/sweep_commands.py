"""Takes commands from the picture of a finished sweep, as long as the kernel that ran the sweep lives.

    take_commands(sweep)     # before the picture is shown

A saved output cannot be a widget: a page without its kernel would show an error in its place. So the drawing
in JupyterLab asks its notebook's kernel for a comm of the sweep's target (`target_of`), and sends through it
the commands of `nbdist.ui.widgets.sweep`. The kernel opens no comm by itself: a page that does not know the
target would report it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from nbdist.trials.sweep import Sweep
from nbdist.ui.widgets.sweep import answer

_taking: weakref.WeakSet[Sweep] = weakref.WeakSet()


def target_of(sweep: str) -> str:
    """Return the name of the comms that take commands for a sweep, given the sweep's id.

    >>> target_of("mnist-3f2a")
    'nbdist.sweep.mnist-3f2a'
    """
    return f"nbdist.sweep.{sweep}"


def take_commands(sweep: Sweep) -> None:
    """Answer the commands that pages send to a sweep, as long as anything in this kernel holds the sweep.

    Without the package comm (ipykernel before 6.18), and outside a kernel, nothing can be answered.
    """
    if sweep in _taking:
        return
    try:
        import comm
    except ImportError:
        return
    channel: Any = comm.create_comm(target_name=target_of(sweep.id), primary=False)
    handle = weakref.ref(sweep)

    def take(message: Mapping[str, Any]) -> None:
        held, content = handle(), message["content"]["data"]
        if held is not None and isinstance(content, dict):
            channel.send(answer(held, content))

    channel.on_msg(take)
    comm.get_comm_manager().register_comm(channel)
    weakref.finalize(sweep, channel.close).atexit = False  # the pages then hide the commands
    _taking.add(sweep)
