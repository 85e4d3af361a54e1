"""A kernel in which a cell awaits hears its page, says what kernel it is, and stays busy and interruptible.

Once with the newest ipykernel, which delivers a part of it itself, and once with Google Colab's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ipykernel.ipkernel import IPythonKernel
from ui_kernel import Kernel
from waiting import PATIENCE, until

from nbdist.ui.kernel import COMMS, QUESTIONS, deliver_while_busy, delivers_itself

pytestmark = pytest.mark.engines

# As the cell of a run does, it looks around now and then: ipykernel's handler of an interrupt queues what is
# to be done without waking the event loop, which runs it with the next timer or message.
WAIT = """
import asyncio
from nbdist.ui.kernel import deliver_while_busy
able = [deliver_while_busy(get_ipython().kernel) for twice in range(2)]
heard = []
def opened(comm, message):
    comm.on_msg(lambda message: heard.append(message["content"]["data"]["say"]))
get_ipython().kernel.comm_manager.register_target("test", opened)
open({gate!r}, "w").close()
while not heard:
    await asyncio.sleep(0.05)
print("the page says", heard)
while True:
    await asyncio.sleep(0.05)
"""


@pytest.fixture(params=[False, True], ids=["newest", "colab"])
def kernel(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path / "home", colab=request.param)
    kernel.home.mkdir(mode=0o700, exist_ok=True)
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel()


def states(kernel: Kernel, request: str) -> list[str]:
    """The kernel's states up to the first one after a request was answered, for all requests."""
    found: list[str] = []
    answered = False
    while True:
        message = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] != "status":
            continue
        found.append(message["content"]["execution_state"])
        if answered:
            return found
        answered = message["parent_header"].get("msg_id") == request and found[-1] == "idle"


def tell(kernel: Kernel, kind: str, **content: object) -> None:
    """Send a message of a widget."""
    kernel.client.shell_channel.send(kernel.client.session.msg(kind, {"comm_id": "one", **content}))


def printed_by(kernel: Kernel, request: str) -> str:
    """Return the next text that a cell prints."""
    while True:
        message = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "stream" and message["parent_header"].get("msg_id") == request:
            return str(message["content"]["text"])


def test_questions_are_answered_while_a_cell_awaits(kernel: Kernel) -> None:
    gate = kernel.home / "gate"
    waiting = kernel.start(WAIT.format(gate=str(gate)))
    until(gate.exists)
    asked = kernel.client.kernel_info()
    assert kernel.reply(asked)["implementation"] == "ipython"
    assert states(kernel, asked)[-2:] == ["idle", "busy"]  # the cell continues
    assert kernel.reply(kernel.client.comm_info())["comms"] == {}
    tell(kernel, "comm_open", target_name="test", data={})
    tell(kernel, "comm_msg", data={"say": "stop"})
    assert printed_by(kernel, waiting) == "the page says ['stop']\n"
    assert "one" in kernel.reply(kernel.client.comm_info())["comms"]
    later = kernel.start("1 + 1")  # which is no question
    kernel.manager.interrupt_kernel()
    assert kernel.reply(waiting)["status"] == "error"
    assert kernel.reply(later)["status"] == "ok"
    assert kernel.value("able") == "[True, True]"
    assert kernel.reply(kernel.client.kernel_info())["status"] == "ok"


def test_what_ipykernel_delivers_itself_is_left_to_it() -> None:
    class Newest:
        async def shell_main(self, subshell: str | None, message: object) -> None:
            if message in {"comm_open", "comm_msg", "comm_close"}:
                return

    class Next:
        async def shell_main(self, subshell: str | None, message: object) -> None:
            if message in {"comm_open", "comm_msg", "comm_close", "kernel_info_request", "comm_info_request"}:
                return

        shell_channel_thread = None  # it may be built otherwise

    assert [kind for kind in (*COMMS, *QUESTIONS) if delivers_itself(Newest(), kind)] == [*COMMS]
    assert not deliver_while_busy(Newest())
    assert deliver_while_busy(Next())
    assert not deliver_while_busy(object())


def test_the_installed_ipykernel_delivers_comms_itself() -> None:
    """If this fails, ipykernel has changed: see the table of nbdist/ui/kernel.py."""
    kernel = object.__new__(IPythonKernel)
    delivered = [kind for kind in (*COMMS, *QUESTIONS) if delivers_itself(kernel, kind)]
    assert delivered[: len(COMMS)] == [*COMMS]
