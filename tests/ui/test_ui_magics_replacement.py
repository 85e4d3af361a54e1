"""A cell whose body cannot be interrupted, in a real kernel: its task is replaced; the next cell works."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from ui_kernel import Kernel
from waiting import PATIENCE, limit, until

pytestmark = pytest.mark.engines

TICK = """
import asyncio, time
gaps = []
async def tick():
    last = time.monotonic()
    while True:
        await asyncio.sleep(0.01)
        now = time.monotonic()
        gaps.append(now - last)
        last = now
ticking = asyncio.ensure_future(tick())
"""
STUCK = """%%distribute --name stuck --no-live
import signal, time
kept = nb.task.rank
if nb.task.rank == 1:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    open(GATE, "w").close()
    time.sleep(1000)
while True: time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path_factory.mktemp("kernel") / "home")
    assert kernel.run("%load_ext nbdist\n%cluster start --workers 3")["status"] == "ok"
    yield kernel
    kernel.close()


def printed(kernel: Kernel, request: str) -> str:
    """What a cell that is over has printed."""
    text = ""
    while True:
        message = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "stream":
            text += message["content"]["text"]
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return text


def test_a_cell_that_cannot_be_interrupted_ends_and_the_next_one_works(kernel: Kernel) -> None:
    assert kernel.run(TICK)["status"] == "ok"
    gate = kernel.home / "stuck"
    request = kernel.start(STUCK.replace("GATE", repr(str(gate))))
    until(gate.exists)
    begun = time.monotonic()
    kernel.manager.interrupt_kernel()
    reply = kernel.reply(request)
    assert time.monotonic() - begun < limit(6)  # 4.3 s, on a machine that has time
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    text = printed(kernel, request)
    assert "/job:worker/task:1 (pid " in text
    assert "did not stop within 4 s and was replaced: its namespace is new" in text
    assert kernel.value("run.status") == "'stopped'"
    kept = "%%distribute\nthere = nb.collective.all_gather(int('kept' in globals())).tolist()"
    assert kernel.run(kept)["status"] == "ok"
    assert kernel.value("there") == "[1, 0, 1]"
    # The event loop kept running: 0.1 s, on a machine that has time.
    assert float(kernel.value("max(gaps)")) < limit(5)


def test_a_task_is_restarted_by_hand(kernel: Kernel) -> None:
    request = kernel.start("%cluster restart worker:2")
    assert kernel.reply(request)["status"] == "ok"
    text = printed(kernel, request)
    assert text.startswith("restarted in ")
    assert "/job:worker/task:2 (pid " in text
    reply = kernel.run("%cluster restart nobody")
    assert reply["ename"] == "InvalidArgumentError"
    assert "the tasks are worker:0 (rank 0), worker:1 (rank 1), worker:2 (rank 2)" in reply["evalue"]
    kernel.run(
        "import os, signal, time\nimport nbdist as nb\ncluster = nb.Cluster.current()\n"
        "os.kill(cluster.tasks[0].pid, signal.SIGKILL)\nwhile not cluster.dead(): time.sleep(0.005)"
    )
    reply = kernel.run("%%distribute\n1")
    assert "Run without it with --on, or start it again with %cluster restart worker:0" in reply["evalue"]
    assert kernel.run("%cluster restart")["status"] == "ok"
    assert kernel.run("%%distribute\nn = nb.collective.all_gather(nb.task.rank).tolist()")["status"] == "ok"
    assert kernel.value("n") == "[0, 1, 2]"
