"""%%distribute inside a real kernel: interrupts, errors, two cells at once. No front end."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from ui_kernel import Kernel
from waiting import PATIENCE, limit

pytestmark = pytest.mark.engines

FOREVER = """%%distribute --strategy ps --seed 1 --name forever
import time
def slowly(x, y):
    time.sleep(0.002)
    return x, y
x_train, y_train, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.001), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x_train, y_train).batch(10).map(slowly), epochs=1_000_000)
"""


def test_an_interrupt_stops_at_a_step_and_keeps_what_was_trained(kernel: Kernel) -> None:
    request = kernel.start(FOREVER)
    kernel.wait_for_training("forever")
    begun = time.monotonic()
    kernel.manager.interrupt_kernel()
    reply = kernel.reply(request)
    assert time.monotonic() - begun < limit(5)
    assert reply["status"] == "error"
    assert reply["ename"] == "KeyboardInterrupt"
    assert kernel.value("run.status") == "'stopped'"
    assert kernel.value("model.predict(x_test).shape") == "(359, 10)"
    assert kernel.value("run.global_step > 0") == "True"
    assert kernel.run("%%distribute\nprint(nb.task.rank)")["status"] == "ok"


def test_a_second_cell_waits_for_the_first(kernel: Kernel) -> None:
    gate = kernel.home / "open"
    first = kernel.start(
        f"%%distribute --name first\nimport os, time\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nmark = 1"
    )
    second = kernel.start("%%distribute --name second\nmark += 1")
    gate.touch()
    assert kernel.reply(first)["status"] == "ok"
    assert kernel.reply(second)["status"] == "ok"
    assert kernel.value("mark") == "2"


def test_an_error_on_one_rank_is_what_the_cell_shows(kernel: Kernel) -> None:
    reply = kernel.run("%%distribute\nif nb.task.rank == 1:\n    raise LookupError('lost')")
    assert reply["status"] == "error"
    assert reply["ename"] == "WorkerError"
    shown = "\n".join(reply["traceback"])
    assert shown.startswith("Traceback (most recent call last):")
    assert "LookupError: lost" in shown
    assert "/job:worker/task:1" in shown
    assert "await_distribute" not in shown
    assert kernel.run("%%distribute\nprint(1)")["status"] == "ok"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("%%distribute --stratgy ps\n1", "did you mean --strategy?"),
        ("%%distribute --strategy pss\n1", "choose from ps, mirrored, multi_worker"),
        ("%%distribute --on worker:7\n1", "no task 7"),
        ("%%distribute\n   ", "the body is empty"),
        ("%%distribute --strategy ps\nx = 1", "the body never trained"),
        ("%cluster begin", "The valid ones are start, status, stacks, debug, attach, detach, grow, shrink"),
        ("%cluster start --workers 2", "is up already"),
        ("%%distribute\nx = (", "SyntaxError"),
    ],
)
def test_bad_input_is_a_short_clear_error(kernel: Kernel, code: str, wanted: str) -> None:
    reply = kernel.run(code)
    assert reply["status"] == "error"
    shown = "\n".join(reply["traceback"])
    assert wanted in shown
    assert len(shown.splitlines()) < 12
    assert kernel.run("%%distribute\nprint(1)")["status"] == "ok"


# In-graph: the body is on a thread of the kernel.


def in_graph(body: str, flags: str = "") -> str:
    return f"%%distribute --replication in-graph {flags}\n{body}"


def outputs(kernel: Kernel, request: str) -> list[dict[str, Any]]:
    """What a request has shown: its messages, until the kernel is idle after it."""
    found: list[dict[str, Any]] = []
    while True:
        message = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if message["parent_header"].get("msg_id") == request:
            found.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found


def stream(messages: list[dict[str, Any]]) -> str:
    return "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")


def test_an_in_graph_cell_is_at_home_in_the_notebook(kernel: Kernel) -> None:
    kernel.run("import numpy as np\nx, y = np.eye(6, 4, dtype=np.float32), np.arange(6) % 3\nheld = []")
    body = FOREVER.partition("\n")[2].replace("epochs=1_000_000", "epochs=2")
    body += "def double(n): return 2 * n\nheld.append(nb.task.name)\nclass Thing: pass"
    reply = kernel.run(in_graph(body, "--sync --no-live"))
    assert reply["status"] == "ok", reply
    assert kernel.value("held, double(4), Thing.__module__") == "(['/job:client/task:0'], 8, '__main__')"
    assert (
        kernel.value("model is run.model, history is run.history, run.status") == "(True, True, 'finished')"
    )
    assert kernel.value("model.predict(x_test).shape") == "(359, 10)"
    assert kernel.run("nb.task")["ename"] == "NoTaskError"


def test_what_an_in_graph_body_shows_belongs_to_its_cell(kernel: Kernel) -> None:
    body = (
        "import threading\nfrom IPython.display import display\nprint('hello')\n"
        "one = threading.Thread(target=lambda: print('from a thread'))\none.start()\none.join()\n"
        "display({'text/plain': 'shown'}, raw=True)"
    )
    request = kernel.start(in_graph(body, "--no-live"))
    found = outputs(kernel, request)
    assert kernel.reply(request)["status"] == "ok"
    assert sorted(stream(found).splitlines()) == ["[client 0] hello", "from a thread"]
    shown = [m["content"]["data"]["text/plain"] for m in found if m["msg_type"] == "display_data"]
    assert shown == ["shown"]
    assert kernel.value("type(__import__('sys').stdout).__name__") == "'OutStream'"


def test_an_interrupt_of_an_in_graph_cell_keeps_what_was_trained(kernel: Kernel) -> None:
    request = kernel.start(in_graph(FOREVER.partition("\n")[2], "--name awaited"))
    kernel.wait_for_training("awaited")
    begun = time.monotonic()
    kernel.manager.interrupt_kernel()
    reply = kernel.reply(request)
    assert time.monotonic() - begun < limit(5)
    assert reply["ename"] == "KeyboardInterrupt"
    assert kernel.value("run.status, model.predict(x_test).shape") == "('stopped', (359, 10))"
    assert kernel.run(in_graph("print(1)"))["status"] == "ok"


def test_an_interrupt_of_a_blocking_in_graph_call(kernel: Kernel) -> None:
    code = (
        f"body = {FOREVER.partition(chr(10))[2]!r}\n"
        "again = nb.launch(body, replication='in-graph', sync=True, name='blocking')\nprint('ended')"
    )
    request = kernel.start("import nbdist as nb\n" + code)
    kernel.wait_for_training("blocking")
    kernel.manager.interrupt_kernel()
    assert kernel.reply(request)["status"] == "ok"  # a stopped run is what the call returns
    assert kernel.value("again.status, again.model is model") == "('stopped', True)"


@pytest.mark.parametrize(
    ("body", "ename"),
    [
        ("while True: pass", "KeyboardInterrupt"),
        ("open({pipe!r}).close()", "UnavailableError"),  # nothing reaches it there
    ],
)
def test_an_in_graph_body_that_does_not_listen(kernel: Kernel, body: str, ename: str) -> None:
    pipe = kernel.home / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    request = kernel.start(in_graph(f"print('begun')\n{body.format(pipe=str(pipe))}", "--no-live"))
    while True:  # until it has begun
        message = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "stream" and "begun" in message["content"]["text"]:
            break
    begun = time.monotonic()
    kernel.manager.interrupt_kernel()
    reply = kernel.reply(request)
    assert time.monotonic() - begun < limit(6.5)
    assert reply["ename"] == ename, reply
    os.close(os.open(pipe, os.O_RDWR))  # the cell that waits for it continues
    assert kernel.run("%%distribute\nprint(nb.task.rank)")["status"] == "ok"
    assert kernel.run(in_graph("print(1)"))["status"] == "ok"


def test_an_error_of_an_in_graph_body_is_what_the_cell_shows(kernel: Kernel) -> None:
    reply = kernel.run(in_graph("x = 1\nraise LookupError('lost')"))
    assert reply["ename"] == "WorkerError"
    shown = "\n".join(reply["traceback"])
    assert shown.startswith("Traceback (most recent call last):")
    assert "raise LookupError('lost')" in shown
    assert "raised on /job:client/task:0" in shown
    assert "bodythread" not in shown
