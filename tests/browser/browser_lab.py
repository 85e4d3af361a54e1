"""A notebook in a headless Chromium, for tests that look at what a user sees."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from browser_server import PATIENCE, ROOT, LabServer
from playwright.sync_api import Browser, BrowserContext, Dialog, Locator, Page, Playwright, ViewportSize

ARTIFACTS = ROOT / "artifacts"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
OPENED = (
    "name => { const panel = window.jupyterapp?.shell?.currentWidget; return panel?.context?.path === name"
    " && panel.context.isReady && panel.content.widgets.length > 0 }"
)  # the notebook of that name is in the tab

LIVE = "section.nbdist-live"


def wait_for_curve(page: Page) -> None:
    """Bring the run's view onto the screen, without which nothing is sent, and wait for its points."""
    page.wait_for_selector(LIVE, state="attached")
    page.locator(LIVE).first.evaluate("node => node.scrollIntoView({block: 'start'})")
    page.wait_for_function(
        f"() => /at [a-z]+ [1-9]/.test(document.querySelector('{LIVE} .nbd-plot')?.ariaLabel)"
    )


def record(name: str, value: object) -> None:
    """Write a figure that was measured into artifacts/latencies.json; nothing is asserted of it."""
    ARTIFACTS.mkdir(exist_ok=True)
    path = ARTIFACTS / "latencies.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, name: value}, indent=1, sort_keys=True) + "\n")
    print(f"{name}: {value}")


def start_chromium(playwright: Playwright) -> Browser:
    """Start the system's Chromium with a fresh profile; a test run without one must not pass."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise RuntimeError("no Chromium here: install it (`apt install chromium`) to run the browser tests")
    return playwright.chromium.launch(executable_path=path, args=FLAGS)


class Lab:
    """One notebook in one tab of the browser."""

    def __init__(self, server: LabServer, browser: Browser) -> None:
        self.server = server
        self.browser = browser
        self.context: BrowserContext | None = None
        self.errors: list[str] = []

    def write(self, name: str, cells: Sequence[str]) -> Path:
        """Write a notebook of code cells."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        notebook.metadata["kernelspec"] = {
            "name": "python3", "display_name": "Python 3", "language": "python",
        }  # fmt: skip
        path = self.server.notebooks / name
        nbformat.write(notebook, path)
        return path

    def open(
        self, name: str, *, width: int = 1100, height: int = 1100, scale: float = 1, kernel: bool = True
    ) -> Page:
        """Open a notebook in a new tab (which replaces the last one), with a kernel or without."""
        self.close()
        viewport: ViewportSize = {"width": width, "height": height}
        self.context = self.browser.new_context(viewport=viewport, device_scale_factor=scale)
        self.context.set_default_timeout(PATIENCE * 1000)
        page = self.open_again(name, kernel=kernel)
        if kernel:
            self.wait_idle()
        return page

    def open_again(self, name: str, *, kernel: bool = True) -> Page:
        """Open a notebook in one more tab; its kernel, if it has one, continues."""
        assert self.context is not None
        page = self.page = self.listened(self.context.new_page(), kernel)
        # In a workspace of its own: a second tab in one would be sent elsewhere while the test looks at it.
        workspace = f"workspaces/{secrets.token_hex(4)}"
        page.goto(f"{self.server.address}/lab/{workspace}?token={self.server.token}")
        self.settle(name, kernel=kernel)
        return page

    def listened(self, page: Page, kernel: bool) -> Page:
        """Note what goes wrong in a tab."""
        page.on("pageerror", lambda error: self._note(str(error.stack or error), kernel))

        def dismiss(dialog: Dialog) -> None:
            self.errors.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("dialog", dismiss)
        return page

    def settle(self, name: str, *, kernel: bool = True) -> None:
        """Wait for JupyterLab in a tab that was just loaded, and open the notebook in it."""
        page = self.page
        page.wait_for_function(
            "window.jupyterapp?.shell && !document.querySelector('.jp-SplashScreen, #galaxy')"
        )
        page.evaluate("window.jupyterapp.restored")
        self.command("application:set-mode", {"mode": "single-document"})
        page.evaluate("window.jupyterapp.shell.collapseLeft(), window.jupyterapp.shell.collapseRight()")
        start = {} if kernel else {"kernelPreference": {"shouldStart": False, "canStart": False}}
        self.command("docmanager:open", {"path": name, "factory": "Notebook", **start})
        page.wait_for_function(OPENED, arg=name)

    def _note(self, error: str, kernel: bool) -> None:
        # The widget manager itself stumbles over a notebook that has no session at all; and Notebook 7 over
        # settings of parts that it does not have.
        if "/notebook_core." in error and "reading 'schema'" in error:
            return
        if kernel or "/@jupyter-widgets/jupyterlab-manager/" not in error:
            self.errors.append(error)

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Execute a command of JupyterLab."""
        self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)",
            [name, arguments or {}],
        )

    def run(self, cell: int, *, wait: bool = True, timeout: float = PATIENCE) -> None:
        """Run the n-th cell; without ``wait`` return while it runs."""
        self.page.evaluate(
            # Without the focus: a notebook would take it some frames later, when it has scrolled to the cell,
            # and from whatever the test has opened by then.
            "n => { const panel = window.jupyterapp.shell.currentWidget; document.activeElement?.blur();"
            " panel.content.deselectAll(); panel.content.activeCellIndex = n;"
            " window.jupyterapp.commands.execute('notebook:run-cell', {activate: false}); return null }",
            cell,
        )
        if wait:
            self.wait_done(cell, timeout)

    def run_after_error(self, cell: int) -> None:
        """Run the n-th cell, again if the kernel still drops what came after a failure."""
        ran = "n => window.jupyterapp.shell.currentWidget.content.widgets[n].model.executionCount !== null"
        while True:
            self.run(cell, wait=False)
            self.page.wait_for_function(
                "n => !window.jupyterapp.shell.currentWidget.content.widgets[n].node"
                ".querySelector('.jp-InputPrompt').textContent.includes('*')",
                arg=cell,
            )
            if self.page.evaluate(ran, cell):
                return

    def wait_done(self, cell: int, timeout: float = PATIENCE) -> None:
        """Wait until the n-th cell has ended."""
        self.page.wait_for_function(
            "n => { const cell = window.jupyterapp.shell.currentWidget.content.widgets[n];"
            " return !cell.node.querySelector('.jp-InputPrompt').textContent.includes('*')"
            " && cell.model.executionCount !== null }",
            arg=cell, timeout=timeout * 1000,
        )  # fmt: skip

    def wait_idle(self, timeout: float = PATIENCE) -> None:
        """Wait until the notebook's kernel is idle."""
        self.page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'",
            timeout=timeout * 1000,
        )

    def output(self, cell: int) -> Locator:
        """Where the n-th cell's output is."""
        return self.page.locator(".jp-Notebook-cell").nth(cell).locator(".jp-Cell-outputArea")

    def save(self) -> None:
        """Save the notebook."""
        self.page.evaluate("window.jupyterapp.shell.currentWidget.context.save()")

    def shut_kernel_down(self) -> None:
        """End the notebook's kernel."""
        self.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")

    def theme(self, name: str) -> None:
        """Switch to "JupyterLab Dark" or "JupyterLab Light"."""
        self.command("apputils:change-theme", {"theme": name})
        light = str("Light" in name).lower()
        self.page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def screenshot(self, name: str) -> Path:
        """Write a picture of the tab into artifacts/."""
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        path = ARTIFACTS / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    def close(self) -> None:
        """Close the tab and end its kernel."""
        if self.context is not None:
            self.context.close()
            self.context = None
            self.server.end_kernels()


class Notebook(Lab):
    """One notebook in Jupyter Notebook 7, which is built from the same parts as JupyterLab."""

    def open_again(self, name: str, *, kernel: bool = True) -> Page:
        """Open a notebook in one more tab; its kernel, if it has one, continues."""
        assert self.context is not None
        page = self.page = self.listened(self.context.new_page(), kernel)
        page.goto(f"{self.server.address}/notebooks/{name}?token={self.server.token}")
        self.settle(name, kernel=kernel)
        return page

    def settle(self, name: str, *, kernel: bool = True) -> None:
        """Wait for the notebook in a tab that was just loaded."""
        self.page.wait_for_function(OPENED, arg=name)
