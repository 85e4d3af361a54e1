"""The lab extension's commands in a real JupyterLab: they need no kernel, and leave cells as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from browser_lab import Lab, until
from browser_server import ROOT
from playwright.sync_api import Locator, Page, TimeoutError, expect
from tiers import exhaustive

sys.path.append(str(ROOT / "tests" / "lab"))

from tensorboard_runs import make_run

pytestmark = [pytest.mark.browser, pytest.mark.engines]

BUTTON = "[data-jp-item-name='nbdist-run-distributed'] jp-button"
ATTACH = "import nbdist as nb\n%load_ext nbdist\n%cluster attach three"
TRAIN = """# a small network
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(50), epochs=2)"""
FIELD = "[id='jp-SettingsEditor-nbdist:plugin_%s']"
COMMANDS = "window.jupyterapp.commands"
NOTEBOOK = "window.jupyterapp.shell.currentWidget.content"
KERNEL = "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel"
# The page asks the server for its sessions now, and not in some seconds. A kernel that is only out of reach
# is one that it tries to reach again: a cell that is run then waits for it.
KERNEL_ENDED = f"window.jupyterapp.serviceManager.sessions.refreshRunning().then(() => !{KERNEL})"
# The page itself waits for a notification: it disappears after three seconds, so a poll may miss it.
NOTICE = """text => {
  window.noticed = false;
  const all = document.getElementsByClassName('Toastify__toast');
  const look = () => (window.noticed ||= [...all].some(one => one.textContent.includes(text)));
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""
# The palette shows what was typed in the next frame, and forgets it when it closes.
FILTERED = """(field, text) => new Promise(
  done => requestAnimationFrame(() => requestAnimationFrame(() => done(field.value === text))))"""


def sources(page: Page) -> list[str]:
    """What the notebook's cells hold."""
    found = page.evaluate(f"{NOTEBOOK}.model.toJSON().cells.map(cell => [cell.source].flat().join(''))")
    return [str(source) for source in found]


def wait_for_cells(page: Page, count: int) -> None:
    """Wait for a notebook with so many cells."""
    page.wait_for_function(
        "count => window.jupyterapp.shell.currentWidget?.content?.model?.cells?.length === count", arg=count
    )


def activate(page: Page, cell: int) -> None:
    """Make a cell the active one."""
    page.evaluate(
        f"n => {{ {NOTEBOOK}.deselectAll(); {NOTEBOOK}.activeCellIndex = n;"
        f" {NOTEBOOK}.mode = 'command'; {NOTEBOOK}.node.focus() }}",
        cell,
    )


def execute(page: Page, name: str, **arguments: Any) -> str:
    """Execute a command as the panel does; return what it says went wrong."""
    return str(
        page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => '', e => e.message)",
            [name, {**arguments, "quiet": True}],
        )
    )


def workers(page: Page) -> list[int]:
    """How many workers each cluster has."""
    script = "fetch('/nbdist/api/v1/state').then(answer => answer.json())"
    return [cluster["workers"] for cluster in page.evaluate(script)["clusters"] if cluster["can"]["stop"]]


def toast(page: Page, click: Locator, text: str) -> None:
    """Click, wait for a notification with this text, and take it away."""
    page.evaluate(NOTICE, text)
    click.click()
    page.wait_for_function("window.noticed")
    found = page.locator(".Toastify__toast").filter(has_text=text)
    found.get_by_role("button", name="Hide notification").evaluate_all("all => all.map(one => one.click())")
    expect(found).to_have_count(0)


def in_palette(page: Page, text: str) -> Locator:
    """Open the palette, type, and return what it shows."""
    field, opened = page.locator(".lm-CommandPalette-input"), False
    while not opened:  # a notebook that is just there may take the focus, and a palette without it closes
        page.evaluate(f"{COMMANDS}.execute('apputils:activate-command-palette').then(() => null)")
        with suppress(TimeoutError):
            field.fill(text, timeout=3000)
            opened = field.evaluate(FILTERED, text)
    return page.locator(".lm-CommandPalette-item .lm-CommandPalette-itemLabel")


def values_of(lab: Lab) -> Path:
    """Where the user's settings of nbdist are kept."""
    return lab.server.notebooks.parent / "settings" / "nbdist" / "plugin.jupyterlab-settings"


@pytest.fixture
def own_settings(lab: Lab) -> Iterator[Lab]:
    """A JupyterLab; its nbdist settings are restored afterwards."""
    yield lab
    lab.close()
    values_of(lab).unlink(missing_ok=True)


def test_a_cell_runs_on_workers_by_button_and_by_key(lab: Lab) -> None:
    lab.write(
        "wrapped.ipynb", [TRAIN, "where = nb.task.name", "%%bash\nls", "print(run.status, len(x_test))"]
    )
    page = lab.open("wrapped.ipynb")
    activate(page, 0)
    page.evaluate(f"{NOTEBOOK}.activeCell.editor.setCursorPosition({{line: 2, column: 7}})")
    page.locator(BUTTON).click()
    lab.wait_done(0)
    assert "Error" not in lab.output(0).inner_text()
    assert sources(page)[0] == f"%%distribute\n{TRAIN}"
    position = page.evaluate(f"{NOTEBOOK}.widgets[0].editor.getCursorPosition()")
    assert (position["line"], position["column"]) == (3, 7)
    lab.screenshot("commands-run-distributed")

    activate(page, 1)
    page.keyboard.press("Control+Shift+Enter")
    lab.wait_done(1)
    assert sources(page)[1] == "%%distribute\nwhere = nb.task.name"
    lab.run(3)
    assert "finished 359" in lab.output(3).inner_text()

    # In a cell's editor the usual key takes the line away again.
    activate(page, 0)
    page.keyboard.press("Enter")
    expect(page.locator(".jp-Notebook-cell.jp-mod-active .cm-content")).to_be_focused()
    page.keyboard.press("Control+z")
    until(page, lambda: sources(page)[0] == TRAIN)

    # What cannot be wrapped stays as it is, and is not run.
    activate(page, 2)
    toast(page, page.locator(BUTTON), "begins with %%bash")
    assert sources(page)[2] == "%%bash\nls"
    lab.command("notebook:change-cell-to-markdown")
    toast(page, page.locator(BUTTON), "Only code cells")


def test_attach_code_goes_below_the_active_cell_whatever_the_kernel_does(lab: Lab) -> None:
    lab.write("busy.ipynb", ["print('begun'); import time; time.sleep(1000)", "last = 1"])
    page = lab.open("busy.ipynb")
    before = sources(page)
    lab.run(0, wait=False)
    # Not for the kernel's status, which is "idle" again when it has answered something beside the cell.
    expect(lab.output(0)).to_have_text("begun")
    activate(page, 0)
    assert execute(page, "nbdist:insert-attach", code=ATTACH) == ""
    assert sources(page) == [before[0], ATTACH, before[1]]
    assert page.evaluate(f"{NOTEBOOK}.activeCellIndex") == 1
    lab.command("notebook:undo-cell-action")
    assert sources(page) == before

    lab.server.end_kernels()  # not through the page
    until(page, lambda: page.evaluate(KERNEL_ENDED))
    activate(page, 1)
    assert execute(page, "nbdist:insert-attach", code=ATTACH) == ""
    assert sources(page) == [*before, ATTACH]
    # To run a cell there a new kernel is started, as for any cell.
    activate(page, 1)
    page.locator(BUTTON).click()
    lab.wait_done(1)
    assert sources(page)[1] == f"%%distribute\n{before[1]}"
    assert "Error" not in lab.output(1).inner_text()


def test_without_a_notebook_attach_code_opens_one(own_settings: Lab) -> None:
    lab = own_settings
    values_of(lab).parent.mkdir(exist_ok=True)
    values_of(lab).write_text('{"attachRuns": true}')
    lab.write("closed.ipynb", ["1"])
    page = lab.open("closed.ipynb", kernel=False, fresh=True)
    page.evaluate("window.jupyterapp.shell.currentWidget.dispose()")
    page.evaluate("window.jupyterapp.commands.execute('nbdist:insert-attach', {code: 'attached = 1'}); null")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("No notebook is open")
    lab.screenshot("commands-no-notebook")
    dialog.get_by_role("button", name="New notebook").click()
    wait_for_cells(page, 2)
    assert sources(page) == ["attached = 1", ""]
    lab.wait_done(0)  # as the settings have it
    assert execute(page, "nbdist:insert-attach", code="attached + 1") == ""
    lab.wait_done(1)
    assert "2" in lab.output(1).inner_text()


def test_the_palette_has_the_commands(lab: Lab) -> None:
    lab.write("palette.ipynb", ["1"])
    page = lab.open("palette.ipynb")
    expect(in_palette(page, "nbdist").filter(has_text="Run Cell Distributed")).to_be_visible()
    labels = page.locator(".lm-CommandPalette-itemLabel").all_inner_texts()
    for label in ["Stop a Cluster…", "Add Workers to a Cluster…", "Restart a Task…", "Stop a Run…",
                  "Open the Folder of a Run…", "Open a Run in TensorBoard…", "New Distributed Notebook",
                  "Refresh Clusters and Runs", "Show Clusters and Runs", "Start a Cluster…"]:  # fmt: skip
        assert labels.count(label) == 1, labels
    lab.screenshot("commands-palette")
    page.keyboard.press("Escape")
    page.get_by_role("menuitem", name="Run", exact=True).click()
    expect(page.locator(".lm-Menu-item").filter(has_text="Run Cell Distributed")).to_be_visible()
    page.keyboard.press("Escape")


def test_a_cluster_in_use_is_stopped_only_after_a_confirmation(lab: Lab) -> None:
    lab.write("owner.ipynb", ["%load_ext nbdist\n%cluster start --workers 1"])
    page = lab.open("owner.ipynb")
    lab.run(0)
    in_palette(page, "Add Workers").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Choose a cluster")
    dialog.get_by_role("button", name="OK").click()
    field, accept = dialog.get_by_label("How many more"), dialog.get_by_role("button", name="OK")
    field.fill("0")
    expect(accept).to_be_disabled()
    lab.screenshot("commands-grow-cluster")
    field.fill("1")
    toast(page, accept, "Adding 1 worker to")
    until(page, lambda: workers(page) == [2])

    in_palette(page, "Stop a Cluster").first.click()
    dialog.get_by_role("button", name="OK").click()
    expect(dialog).to_contain_text("owner.ipynb is open and uses it.")
    lab.screenshot("commands-stop-cluster")
    toast(page, dialog.get_by_role("button", name="Stop"), "is being stopped")
    until(page, lambda: not lab.server.engines())


def test_a_run_is_shown_in_tensorboard_and_its_files_are_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(lab.server.home))
    run = make_run(own=False, steps=5)
    lab.write("board.ipynb", ["1"])
    page = lab.open("board.ipynb", kernel=False)
    lab.command("nbdist:show-panel")
    expect(page.locator(f"#nbdist-runs [data-row='{run}']")).to_be_visible()
    context = page.context
    pages = context.pages
    in_palette(page, "Open a Run in TensorBoard").first.click()
    with context.expect_page() as opened:  # the newest run: its events are made now
        page.get_by_role("dialog").get_by_role("button", name="OK").click()
    expect(opened.value).to_have_title("TensorBoard")
    expect(opened.value.locator("tb-webapp")).to_be_visible()
    opened.value.close()

    # What fails leaves no empty tab behind.
    assert "no-such-run" in execute(page, "nbdist:open-tensorboard", id="no-such-run")
    until(page, lambda: context.pages == pages)

    # The folder is not below Jupyter's own: the run's page has its files.
    assert execute(page, "nbdist:open-folder", id=run) == ""
    page.wait_for_function("id => window.jupyterapp.shell.currentWidget?.content?.itemId === id", arg=run)


def test_the_launchers_card_opens_a_notebook_that_is_ready(lab: Lab) -> None:
    lab.write("before.ipynb", ["1"])
    page = lab.open("before.ipynb", kernel=False)
    lab.command("launcher:create")
    card = page.locator(".jp-LauncherCard").filter(has_text="Distributed notebook")
    expect(card).to_be_visible()
    lab.screenshot("commands-launcher")
    card.click()
    wait_for_cells(page, 10)
    lab.wait_idle()
    lab.run(1)
    assert page.evaluate(f"{NOTEBOOK}.widgets[1].model.outputs.length") == 0
    lab.screenshot("commands-ready-notebook")


def test_settings_apply_immediately(own_settings: Lab) -> None:
    lab = own_settings
    lab.write("set.ipynb", ["print('here')"])
    page = lab.open("set.ipynb", fresh=True)
    lab.command("settingeditor:open", {"query": "nbdist"})
    expect(page.get_by_text("How many workers the form for a new cluster begins with.")).to_be_visible()
    lab.screenshot("commands-settings")
    page.locator(FIELD % "flags").fill("--name from-the-settings")
    page.locator(FIELD % "workers").fill("0")
    expect(page.locator(".jp-SettingsEditor, .jp-SettingsPanel")).to_contain_text("must be >= 1")
    lab.screenshot("commands-settings-unfit")
    page.locator(FIELD % "workers").fill("3")
    status = page.locator(".nbd-Status")
    expect(status).to_have_count(1)
    page.locator(FIELD % "showStatus").uncheck()
    expect(status).to_have_count(0)
    kept = values_of(lab)
    until(page, lambda: kept.exists() and '"workers": 3' in kept.read_text())
    page.evaluate("window.jupyterapp.commands.execute('nbdist:start-cluster'); null")
    field = page.get_by_role("dialog").get_by_label("Workers")
    expect(field).to_have_value("3")
    expect(field).to_be_focused()  # a dialog takes the focus, and with it the keys, after it is drawn
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    lab.command("docmanager:open", {"path": "set.ipynb"})
    wait_for_cells(page, 1)  # it is opened before it is the current one
    activate(page, 0)
    page.locator(BUTTON).click()
    until(page, lambda: sources(page) == ["%%distribute --name from-the-settings\nprint('here')"])


@exhaustive  # labextension/test/settings.test.ts
def test_invalid_settings_are_ignored(own_settings: Lab) -> None:
    lab = own_settings
    values_of(lab).parent.mkdir(exist_ok=True)
    values_of(lab).write_text('{"workers": 0, "flags": "--name unfit"}')
    lab.write("unfit.ipynb", ["print('here')"])
    page = lab.open("unfit.ipynb", fresh=True)
    page.locator(BUTTON).click()
    lab.wait_done(0)
    assert sources(page) == ["%%distribute\nprint('here')"]  # the server takes the whole file for none


@exhaustive  # Notebook 7 is shown with the renderer, and live with the sweep's commands
@pytest.mark.parametrize("place", ["notebook"], indirect=True)
def test_jupyter_notebook_has_them_too(place: Lab, tmp_path: Path) -> None:
    place.write("seven.ipynb", ["print(nb.task.name)"])
    page = place.open("seven.ipynb")
    page.locator(BUTTON).click()
    place.wait_done(0)
    assert sources(page) == ["%%distribute\nprint(nb.task.name)"]
    expect(place.output(0)).to_contain_text("/job:worker/task:1")
    assert execute(page, "nbdist:insert-attach", code=ATTACH) == ""
    assert sources(page)[1] == ATTACH
    expect(in_palette(page, "nbdist").filter(has_text="Stop a Cluster")).to_be_visible()
    place.screenshot("commands-notebook7")
