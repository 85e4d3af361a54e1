"""%%distribute --background in a real kernel: other cells run during the run."""

from __future__ import annotations

import pytest
from ui_kernel import Kernel
from waiting import PATIENCE, until

pytestmark = pytest.mark.engines

BODY = """
import time
def slowly(x, y):
    time.sleep({pause})
    return x, y
x_train, y_train, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.001), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x_train, y_train).batch(10).map(slowly), epochs={epochs})
"""
ENDLESS = BODY.format(epochs=1_000_000, pause=0.002)
SHORT = BODY.format(epochs=2, pause=0)


def test_a_run_continues_while_other_cells_run_and_can_be_stopped(kernel: Kernel) -> None:
    begun = kernel.run("%%distribute --background --name behind" + ENDLESS)
    assert begun["status"] == "ok"
    kernel.wait_for_training("behind")
    # A cell that awaits lets the loop follow the run, as an idle kernel does.
    awaited = "import asyncio\nwhile not run.store.replicas: await asyncio.sleep(0.005)"
    assert kernel.run(awaited)["status"] == "ok"
    assert kernel.value("run.status, 'model' in globals()") == "('running', False)"
    patient = "from nbdist.run.recovery import shutdown\nshutdown.SIGNAL_AFTER = 60.0\n"  # the word is enough
    assert kernel.run(patient + "run.stop()\nfinished = run.wait()")["status"] == "ok"
    assert kernel.value("run.status, finished is run") == "('stopped', True)"
    assert kernel.value("len(run.model.get_weights()), run.history is not None") == "(2, True)"
    assert kernel.value("model is run.model, history is run.history") == "(True, True)"
    attached = "del model, history\nimport nbdist\nagain = nbdist.attach(run.id)"
    reply = kernel.run(attached)
    assert reply["status"] == "ok", reply
    assert kernel.value("model is again.model, history is again.history") == "(True, True)"


def test_a_run_that_ends_by_itself_has_its_results(kernel: Kernel) -> None:
    assert kernel.run("%%distribute --background --name short" + SHORT)["status"] == "ok"
    assert kernel.run("import asyncio\nwhile not run.over: await asyncio.sleep(0.005)")["status"] == "ok"
    assert kernel.value("run.status, len(run.history['loss'])") == "('finished', 2)"
    assert kernel.value("model is run.model, history is run.history") == "(True, True)"
    assert kernel.run("run.show()")["status"] == "ok"


def test_a_kernel_that_hears_no_page_during_a_cell_runs_in_the_background(kernel: Kernel) -> None:
    deaf = "import nbdist.ui.kernel\nhearing, nbdist.ui.kernel._delivering = nbdist.ui.kernel._delivering, []"
    assert kernel.run(deaf)["status"] == "ok"
    request = kernel.start("%%distribute --name unasked" + ENDLESS)
    assert kernel.reply(request)["status"] == "ok"  # at once
    assert "run.pause(), run.set(learning_rate=...) and run.stop()" in printed(kernel, request)
    assert kernel.value("run.status, run.options.background") == "('running', True)"
    patient = "from nbdist.run.recovery import shutdown\nshutdown.SIGNAL_AFTER = 60.0\n"
    again = "nbdist.ui.kernel._delivering = hearing\nrun.stop()\nfinished = run.wait()"
    assert kernel.run(patient + again)["status"] == "ok"


def printed(kernel: Kernel, request: str) -> str:
    """Return the first text that a cell has printed."""
    while True:
        message = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "stream" and message["parent_header"].get("msg_id") == request:
            return str(message["content"]["text"])


def test_the_view_moves_while_another_cell_computes(kernel: Kernel) -> None:
    begun = kernel.run("%%distribute --background --name moving" + ENDLESS)
    assert begun["status"] == "ok"
    kernel.wait_for_training("moving")
    computes = """import time
view = run.view._display.view
frames, step = view.flow.sequence, run.standing().step
while not (view.flow.sequence > frames and run.standing().step > step):
    time.sleep(0.005)  # the event loop has no time
"""
    reply = kernel.run(computes)
    assert reply["status"] == "ok", reply
    assert kernel.run("run.stop(); run.wait()")["status"] == "ok"
    # It is frozen on the event loop, and its widget is closed.
    shown = "import asyncio\nwhile run.view._display.view: await asyncio.sleep(0.005)"
    assert kernel.run(shown)["status"] == "ok"


def test_a_cell_can_wait_for_a_run_without_a_view(kernel: Kernel) -> None:
    flags = "--background --no-live --name unseen"
    assert kernel.run(f"%%distribute {flags}" + SHORT)["status"] == "ok"
    blocking = "import time\nwhile not run.over: time.sleep(0.005)"  # the event loop has no time
    assert kernel.run(blocking)["status"] == "ok"
    assert kernel.value("run.status, run.standing().epoch") == "('finished', 2)"


def test_what_goes_wrong_is_raised_by_wait(kernel: Kernel) -> None:
    assert kernel.run("%%distribute --background --name wrong\n1 / 0")["status"] == "ok"
    reply = kernel.run("run.wait()")
    assert reply["status"] == "error"
    assert "ZeroDivisionError" in "".join(reply["traceback"])
    assert kernel.run("%%distribute\nprint(nb.task.rank)")["status"] == "ok"


def test_an_interrupt_of_another_cell_leaves_the_run_alone(kernel: Kernel) -> None:
    begun = kernel.run("%%distribute --background --name steady" + ENDLESS)
    assert begun["status"] == "ok"
    kernel.wait_for_training("steady")
    gate = kernel.home / "waits"
    code = f"import asyncio\nopen({str(gate)!r}, 'w').close()\nawait asyncio.Event().wait()"
    waiting = kernel.start(code)
    until(gate.exists)
    kernel.manager.interrupt_kernel()
    assert kernel.reply(waiting)["status"] == "error"
    assert kernel.value("run.status") == "'running'"
    assert kernel.run("run.stop(); run.wait()")["status"] == "ok"
