"""Jupyter Notebook 6 with the versions of Google Colab, in Chromium: its server, one notebook in a tab."""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

import nbformat
from browser_server import PATIENCE
from colab_environment import PYTHON, environment, require_environment
from playwright.sync_api import Browser, Page
from ports import free_port

ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/")
RUN = "n => { Jupyter.notebook.execute_cells([n]) }"
ENDED = """n => { const number = Jupyter.notebook.get_cell(n).input_prompt_number;
  return number !== '*' && (Number(number) ? 'ran' : 'dropped') }"""
READY = "() => window.Jupyter?.notebook?.kernel?.is_connected?.() && !Jupyter.notebook.kernel_busy"


class Notebook6:
    """A server of Notebook 6, and a tab; everything ends with `close`."""

    def __init__(self, folder: Path, browser: Browser) -> None:
        require_environment()
        self.folder, self.token = folder, secrets.token_hex(16)
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [str(PYTHON), "-m", "notebook", "--no-browser", "--allow-root", "--ip=127.0.0.1",
             f"--port={free_port()}",
             f"--NotebookApp.token={self.token}", f"--notebook-dir={folder}"],
            env={**environment(folder / "home"), "JUPYTER_CONFIG_DIR": str(folder / "config"),
                 "JUPYTER_DATA_DIR": str(folder / "data"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime")},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.address = self._address()
        self.page: Page = browser.new_page(viewport={"width": 1100, "height": 1100})
        self.page.set_default_timeout(PATIENCE * 1000)
        self.page.on("pageerror", lambda error: self.errors.append(str(error.stack or error)))

    def _address(self) -> str:
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if found := ADDRESS.search(line):
                return found[1]
        raise RuntimeError(f"Notebook 6 ended before it printed its address:\n{seen}")

    def open(self, name: str, cells: Sequence[str]) -> Page:
        """Write a notebook, open it, and wait for its kernel."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(notebook, self.folder / name)
        self.page.goto(f"{self.address}/notebooks/{name}?token={self.token}")
        self.page.wait_for_function(READY)
        return self.page

    def run(self, cell: int, *, wait: bool = True) -> None:
        """Run the n-th cell; without ``wait`` return while it runs.

        With ``wait`` it is run again if the kernel has dropped it, as it does with what comes right after a
        failure.
        """
        self.page.evaluate(RUN, cell)
        while wait and self._was_dropped(cell):
            self.page.evaluate(RUN, cell)

    def _was_dropped(self, cell: int) -> bool:
        """Wait for the end of a cell; return whether it did not run."""
        end = self.page.wait_for_function(ENDED, arg=cell, timeout=3 * PATIENCE * 1000)
        return bool(end.json_value() == "dropped")

    def save(self, name: str) -> str:
        """Save the notebook and return its text."""
        self.page.evaluate(
            "() => Jupyter.notebook.save_notebook()"
        )  # a promise, which ends when it is written
        return (self.folder / name).read_text()

    def close(self) -> None:
        """Close the tab, end the kernel and the server."""
        self.page.evaluate("window.Jupyter?.notebook?.session?.delete?.()")
        self.page.close()
        self.process.terminate()
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
