"""A notebook in a headless Chromium, for tests that look at what a user sees."""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import nbformat
import pytest
from browser_server import NO_SUBSHELLS, NOT_DRAWN, PATIENCE, ROOT, LabServer
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Dialog,
    Error,
    Locator,
    Page,
    Playwright,
    ViewportSize,
)

ARTIFACTS = ROOT / "artifacts"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
LAID_OUT = "width => innerWidth === width && Math.abs(window.jupyterapp.shell.node.clientWidth - width) < 1"
OPENED = (
    "name => { const panel = window.jupyterapp?.shell?.currentWidget; return panel?.context?.path === name"
    " && panel.context.isReady && panel.content.widgets.length > 0 }"
)  # the notebook of that name is in the tab

# Without the focus: a notebook would take it some frames later, when it has scrolled to the cell, and from
# whatever the test has opened by then.
RUN = """n => {
  const panel = window.jupyterapp.shell.currentWidget, cell = panel.content.widgets[n];
  document.activeElement?.blur();
  panel.content.deselectAll();
  panel.content.activeCellIndex = n;
  delete cell.node.dataset.ended;
  const end = () => { cell.node.dataset.ended = cell.model?.executionCount ? 'ran' : 'dropped' };
  window.jupyterapp.commands.execute('notebook:run-cell', {activate: false}).then(end, end);
}"""
ENDED = "n => window.jupyterapp.shell.currentWidget.content.widgets[n].node.dataset.ended"

# The page's configuration is changed before JupyterLab reads it: its scripts are deferred.
CONFIGURE = """document.addEventListener('readystatechange', () => {
  const node = document.getElementById('jupyter-config-data');
  if (!node) return;
  const config = JSON.parse(node.textContent);
  const known = config.disabledExtensions ?? [];
  config.disabledExtensions = [...(Array.isArray(known) ? known : Object.keys(known)), ...NAMES];
  config.buildAvailable = config.buildCheck = false; // or the server starts Node.js for each page
  // The server adds to a page of Notebook 7 what a JupyterLab was last asked to open.
  if (location.pathname.startsWith('/notebooks')) delete config.treePath;
  node.textContent = JSON.stringify(config);
}, {once: true})"""
LOADED = "window.jupyterapp?.shell && !document.querySelector('.jp-SplashScreen, #galaxy')"
# Ends what a test has opened in a JupyterLab that others use as well; false if they cannot use it.
LEAVE = """async () => {
  const {shell, commands} = window.jupyterapp;
  for (const area of ['main', 'down']) for (const widget of [...shell.widgets(area)]) {
    await widget.sessionContext?.shutdown().catch(() => null);
    widget.dispose();
  }
  localStorage.clear(); sessionStorage.clear();
  delete window.first;
  if (document.body.dataset.jpThemeLight !== 'true')
    await commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'});
  return !document.querySelector('.jp-Dialog, .lm-Menu');
}"""
ALONE = """() => { const {shell} = window.jupyterapp, {currentWidget} = shell;
  for (const one of [...shell.widgets('main')]) if (one !== currentWidget) one.dispose() }"""

FAILED = pytest.StashKey[bool]()  # of a test's item
LIVE = "section.nbdist-live"
POLL = 50  # milliseconds between two looks of a long wait: a page that looks in each frame also draws each
# JupyterLab lays a notebook out after it is there and has its size: what was scrolled to before moves away.
AT_REST = """async (node, block) => {
  let top;
  do {
    top = node.getBoundingClientRect().top;
    node.scrollIntoView({block});
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  } while (Math.abs(node.getBoundingClientRect().top - top) > 1);
}"""


def bring_into_view(shown: Locator, block: str = "start") -> None:
    """Scroll to something, and wait until it stays there: the page may still be laid out."""
    shown.evaluate(AT_REST, block)


def until(page: Page, condition: Callable[[], object]) -> None:
    """Wait for what the page does not show; it goes on meanwhile, and its requests are answered."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)


def wait_for_picture(picture: Locator, wider: int) -> None:
    """Wait until an image is there, decoded, and wider than so many pixels."""
    picture.page.wait_for_function(
        "([image, wider]) => image.complete && image.naturalWidth > wider",
        arg=[picture.element_handle(), wider],
    )


def wait_for_curve(page: Page) -> None:
    """Bring the run's view onto the screen, without which nothing is sent, and wait for its points."""
    page.wait_for_selector(LIVE, state="attached")
    bring_into_view(page.locator(LIVE).first)
    page.wait_for_function(
        f"() => /at [a-z]+ [1-9]/.test(document.querySelector('{LIVE} .nbd-plot')?.ariaLabel)", polling=POLL
    )


def record(name: str, value: object) -> None:
    """Write a figure that was measured into artifacts/latencies.json; nothing is asserted of it."""
    ARTIFACTS.mkdir(exist_ok=True)
    with (ARTIFACTS / "latencies.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other test processes write into it, too
        file.seek(0)
        known = json.loads(file.read() or "{}")
        file.truncate(0)
        file.write(json.dumps({**known, name: value}, indent=1, sort_keys=True) + "\n")
    print(f"{name}: {value}")


def start_chromium(playwright: Playwright) -> Browser:
    """Start the system's Chromium with a fresh profile; a test run without one must not pass."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise RuntimeError("no Chromium here: install it (`apt install chromium`) to run the browser tests")
    return playwright.chromium.launch(executable_path=path, args=FLAGS)


@dataclass
class Tab:
    """A browser tab with a loaded JupyterLab."""

    context: BrowserContext
    page: Page
    alone: bool
    """Whether the context has no pages of others."""
    errors: list[str] = field(default_factory=list)
    """What goes wrong in the tab is added here."""
    kernel: bool = True
    more: list[Page] = field(default_factory=list)
    """Further pages that the test has opened."""


class Lab:
    """One notebook in one tab of the browser.

    A Lab that ``keeps`` tabs uses a loaded JupyterLab of the server again, and leaves it for the next Lab: to
    load one takes most of a short test's processor time.
    """

    application: ClassVar[str] = "jupyterlab"

    def __init__(
        self,
        server: LabServer,
        browser: Browser,
        *,
        draws: bool = True,
        subshells: bool = True,
        keeps: bool = False,
    ) -> None:
        self.server = server
        self.browser = browser
        self.draws = draws
        self.subshells = subshells
        self.keeps = keeps
        self.fresh = True
        self.tab: Tab | None = None
        self.errors: list[str] = []

    @property
    def context(self) -> BrowserContext | None:
        """The context of the open tab."""
        return None if self.tab is None else self.tab.context

    @context.setter
    def context(self, context: BrowserContext) -> None:
        self.tab = Tab(context, context.new_page(), True, self.errors)

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
        self,
        name: str,
        *,
        width: int = 1100,
        height: int = 1100,
        scale: float = 1,
        kernel: bool = True,
        fresh: bool = False,
    ) -> Page:
        """Open a notebook in place of the last one, with a kernel or without.

        A ``fresh`` tab is one that no test has used, and none will use again.
        """
        self.close()
        viewport: ViewportSize = {"width": width, "height": height}
        self.fresh = fresh or not self.keeps
        kept = None if self.fresh else self.server.tabs.pop(self.kind, None)
        if kept is not None:
            self.tab = kept
            kept.errors, kept.kernel, self.page = self.errors, kernel, kept.page
            self.page.bring_to_front()  # a page behind another gets no events of its focus
            self.page.set_viewport_size(viewport)
            self.settle(name, kernel=kernel)
            self.page.evaluate(ALONE)  # without the launcher, which came when nothing else was open
        elif self.keeps:
            context = self.server.context = self.server.context or self.new_context(viewport)
            self.tab = Tab(context, context.new_page(), False, self.errors)
            self.tab.page.set_viewport_size(viewport)
            self.open_again(name, kernel=kernel)
        else:
            self.context = self.new_context(viewport, scale)
            self.open_again(name, kernel=kernel)
        if kernel:
            self.wait_idle()
        self.server.wait_ended()
        return self.page

    def new_context(self, viewport: ViewportSize, scale: float = 1) -> BrowserContext:
        """Return a new context of the browser, with nothing in its cache."""
        context = self.browser.new_context(viewport=viewport, device_scale_factor=scale)
        context.set_default_timeout(PATIENCE * 1000)
        return context

    @property
    def kind(self) -> str:
        """The kind of tab; all tabs of a kind are alike."""
        return f"{self.application}, {self.draws}, {self.subshells}"

    def open_again(self, name: str, *, kernel: bool = True) -> Page:
        """Open a notebook in one more tab; its kernel, if it has one, continues."""
        page = self.page = self.new_page(kernel)
        # In a workspace of its own: a second tab in one would be sent elsewhere while the test looks at it.
        workspace = f"workspaces/{secrets.token_hex(4)}"
        with self.server.settings({} if self.subshells else NO_SUBSHELLS):
            page.goto(f"{self.server.address}/lab/{workspace}?token={self.server.token}")
            self.settle(name, kernel=kernel)
        return page

    def new_page(self, kernel: bool) -> Page:
        """Return a page in the context, in which nothing is loaded."""
        assert self.tab is not None
        tab = self.tab
        tab.kernel = kernel
        page, size = tab.page, tab.page.viewport_size
        if page.is_closed() or page.url != "about:blank":
            page = tab.context.new_page()
            if tab.page.is_closed():
                tab.page = page  # which takes its place, for the next test, too
            else:
                tab.more.append(page)
            if size is not None:
                page.set_viewport_size(size)
        page.add_init_script(CONFIGURE.replace("NAMES", json.dumps([] if self.draws else NOT_DRAWN)))
        return self.listened(page, tab)

    @staticmethod
    def listened(page: Page, tab: Tab) -> Page:
        """Note what goes wrong in a tab."""
        page.on("pageerror", lambda error: note(str(error.stack or error), tab))

        def dismiss(dialog: Dialog) -> None:
            tab.errors.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("dialog", dismiss)
        return page

    def settle(self, name: str, *, kernel: bool = True) -> None:
        """Wait for JupyterLab in a tab that was just loaded, and open the notebook in it."""
        page = self.page
        page.wait_for_function(LOADED, polling=POLL)
        page.evaluate("window.jupyterapp.restored")
        self.command("application:set-mode", {"mode": "single-document"})
        page.evaluate("window.jupyterapp.shell.collapseLeft(), window.jupyterapp.shell.collapseRight()")
        start = {} if kernel else {"kernelPreference": {"shouldStart": False, "canStart": False}}
        self.command("docmanager:open", {"path": name, "factory": "Notebook", **start})
        page.wait_for_function(OPENED, arg=name)

    def resize(self, width: int, height: int) -> None:
        """Give the tab another size, and wait until JupyterLab is laid out in it."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_function(LAID_OUT, arg=width)
        self.page.evaluate(FRAMES)

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Execute a command of JupyterLab."""
        self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)",
            [name, arguments or {}],
        )

    def run(self, cell: int, *, wait: bool = True, timeout: float = PATIENCE) -> None:
        """Run the n-th cell; without ``wait`` return while it runs.

        With ``wait`` it is run again if the kernel has dropped it, as it does with what comes right after a
        failure: how long it does so depends on the machine.
        """
        deadline = time.monotonic() + timeout
        self.page.evaluate(RUN, cell)
        while wait and self._was_dropped(cell, timeout):
            assert time.monotonic() < deadline, "the kernel runs no cell"
            self.page.evaluate(RUN, cell)

    def _was_dropped(self, cell: int, timeout: float) -> bool:
        """Wait for the end of a cell; return whether it did not run."""
        end = self.page.wait_for_function(ENDED, arg=cell, timeout=timeout * 1000, polling=POLL)
        return bool(end.json_value() == "dropped")

    def wait_done(self, cell: int, timeout: float = PATIENCE) -> None:
        """Wait until the n-th cell has ended."""
        self.page.wait_for_function(
            "n => { const cell = window.jupyterapp.shell.currentWidget.content.widgets[n];"
            " return !cell.node.querySelector('.jp-InputPrompt').textContent.includes('*')"
            " && cell.model.executionCount !== null }",
            arg=cell, timeout=timeout * 1000, polling=POLL,
        )  # fmt: skip

    def wait_idle(self, timeout: float = PATIENCE) -> None:
        """Wait until the notebook's kernel is idle."""
        self.page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'",
            timeout=timeout * 1000,
            polling=POLL,
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
        if self.page.evaluate("document.body.dataset.jpThemeLight === 'true'") == ("Light" in name):
            return
        self.command("apputils:change-theme", {"theme": name})
        light = str("Light" in name).lower()
        self.page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def screenshot(self, name: str) -> Path:
        """Write a picture of the tab into artifacts/, unless this server's pictures are not wanted."""
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.evaluate(FRAMES)
        path = ARTIFACTS / f"{name}.png"
        if self.server.pictures:
            self.page.screenshot(path=path)
        return path

    def close(self, *, keep: bool = True) -> None:
        """Close the notebook and end its kernel; without ``keep`` no other test gets the tab."""
        tab, self.tab = self.tab, None
        if tab is None:
            return
        if tab.alone:
            tab.context.close()
        elif not (keep and self._left_for_others(tab)):
            for page in (tab.page, *tab.more):
                page.close()
        self.server.end_kernels()

    def end_tabs(self, tab: Tab | None = None) -> None:
        """Close all pages but the first one."""
        tab = tab or self.tab
        assert tab is not None
        while tab.more:
            tab.more.pop().close()
        self.page = tab.page

    def _left_for_others(self, tab: Tab) -> bool:
        """Clean a tab up, and keep it for the next test."""
        if self.fresh or self.kind in self.server.tabs or tab.page.is_closed():
            return False
        tab.errors = []
        with suppress(Error):
            self.end_tabs(tab)
            tab.page.emulate_media(
                media="null", reduced_motion="null", forced_colors="null", color_scheme="null"
            )
            if tab.page.evaluate(LEAVE):
                self.server.tabs[self.kind] = tab
                return True
        return False


def note(error: str, tab: Tab) -> None:
    """Add an error of a page to the tab's."""
    # The widget manager itself stumbles over a notebook that has no session at all, or whose session ends
    # while it asks; JupyterLab over a kernel that ends before it has made a subshell; and Notebook 7 over
    # settings of parts that it does not have.
    manager = "/@jupyter-widgets/jupyterlab-manager/" in error
    if (
        (manager and (not tab.kernel or "reading 'kernel'" in error))
        or "Canceled future for create_subshell_request message" in error
        or ("/notebook_core." in error and "reading 'schema'" in error)
    ):
        return
    tab.errors.append(error)


class Notebook(Lab):
    """One notebook in Jupyter Notebook 7, which is built from the same parts as JupyterLab."""

    application = "notebook"

    def open_again(self, name: str, *, kernel: bool = True) -> Page:
        """Open a notebook in one more tab; its kernel, if it has one, continues."""
        self.fresh = True  # a page of Notebook 7 is one notebook
        page = self.page = self.new_page(kernel)
        page.goto(f"{self.server.address}/notebooks/{name}?token={self.server.token}")
        self.settle(name, kernel=kernel)
        return page

    def settle(self, name: str, *, kernel: bool = True) -> None:
        """Wait for the notebook in a tab that was just loaded."""
        self.page.wait_for_function(OPENED, arg=name)
