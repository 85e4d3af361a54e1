"""A kernel in which a cell awaits says what kernel it is, and stays busy and interruptible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ui_kernel import Kernel
from waiting import until

pytestmark = pytest.mark.engines

# As the cell of a run does, it looks around now and then: ipykernel's handler of an interrupt queues what is
# to be done without waking the event loop, which runs it with the next timer or message.
WAIT = """
import asyncio
from nbdist.ui.kernel import answer_while_busy
able = [answer_while_busy(get_ipython().kernel) for twice in range(2)]
open({gate!r}, "w").close()
while True:
    await asyncio.sleep(0.05)
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel()


def states(kernel: Kernel, request: str) -> list[str]:
    """The kernel's states up to the first one after a request was answered, for all requests."""
    found: list[str] = []
    answered = False
    while True:
        message = kernel.client.get_iopub_msg(timeout=30)
        if message["msg_type"] != "status":
            continue
        found.append(message["content"]["execution_state"])
        if answered:
            return found
        answered = message["parent_header"].get("msg_id") == request and found[-1] == "idle"


def test_questions_are_answered_while_a_cell_awaits(kernel: Kernel) -> None:
    gate = kernel.home / "gate"
    waiting = kernel.start(WAIT.format(gate=str(gate)))
    until(gate.exists)
    asked = kernel.client.kernel_info()
    assert kernel.reply(asked)["implementation"] == "ipython"
    assert states(kernel, asked)[-2:] == ["idle", "busy"]  # the cell continues
    assert kernel.reply(kernel.client.comm_info())["comms"] == {}
    later = kernel.start("1 + 1")  # which is no question
    kernel.manager.interrupt_kernel()
    assert kernel.reply(waiting)["status"] == "error"
    assert kernel.reply(later)["status"] == "ok"
    assert kernel.value("able") == "[True, True]"
    assert kernel.reply(kernel.client.kernel_info())["status"] == "ok"
