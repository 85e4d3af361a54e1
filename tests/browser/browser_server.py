"""A JupyterLab with Jupyter Notebook 7 of our own, on a free port, that ends with the tests."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
from ports import free_port

if TYPE_CHECKING:
    from browser_lab import Tab
    from playwright.sync_api import BrowserContext

ROOT = Path(__file__).parents[2]
PATIENCE = float(os.environ.get("PYTEST_TIMEOUT", 120)) / 2
"""Seconds for whatever a page is to show: half of a test's limit, which follows the machine's speed."""
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/lab\?token=")
OWN_FOLDERS = (
    "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR", "NBDIST_HOME",
)  # fmt: skip
QUIET = {  # settings that keep dialogs and outside calls away
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
# A saved output is then its picture, as it is where our extension is not: most tests look at that.
NOT_DRAWN = ["nbdist:renderers"]
NO_SUBSHELLS = {"apputils-extension/kernels-settings": {"commsOverSubshells": "disabled"}}


class LabServer:
    """A `jupyter lab`, which serves Notebook 7 too, with its own configuration, run and workspace folders."""

    def __init__(self, folder: Path, *, forks: bool = False) -> None:
        """Start it. With ``forks`` its kernels are forks of one process, which costs less time."""
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        self.home = folder / "nbdist_home"
        self.folder = folder
        self.pictures = True
        self.ending: list[psutil.Process] = []
        """Processes of clusters that were told to end."""
        self.tabs: dict[str, Tab] = {}
        """Loaded tabs that no test uses now, by their kind."""
        self.context: BrowserContext | None = None
        """What these tabs share: a cache of files and of compiled code."""
        for plugin, values in QUIET.items():
            path = self._settings_of(plugin)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        self.token = secrets.token_hex(16)
        environment = {
            **os.environ,
            **{name: str(folder / name.lower()) for name in OWN_FOLDERS},
            "JUPYTER_TOKEN": self.token,
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "OPENBLAS_NUM_THREADS": "1",
        }
        program = [str(Path(__file__).with_name("forking_lab.py"))] if forks else ["-m", "jupyterlab"]
        self.process = subprocess.Popen(
            [sys.executable, *program, "--no-browser", "--allow-root", "--expose-app-in-browser",
             "--JupyterNotebookApp.expose_app_in_browser=True", "--ip=127.0.0.1",
             f"--ServerApp.port={free_port()}", "--LabApp.collaborative=False",
             f"--ServerApp.root_dir={self.notebooks}"],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.log: list[str] = []
        self.address = self._read_address()
        self._reader = threading.Thread(target=self._read_rest, daemon=True)
        self._reader.start()

    def _read_address(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            if found := ADDRESS.search(line):
                return found[1]
        raise RuntimeError("Jupyter ended before it printed its address:\n" + "".join(self.log))

    def _read_rest(self) -> None:
        assert self.process.stdout is not None
        self.log.extend(self.process.stdout)

    def _settings_of(self, plugin: str) -> Path:
        return self.folder / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"

    @contextmanager
    def settings(self, settings: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
        """Add settings of plugins for the pages that are loaded in the block."""
        for plugin, values in settings.items():
            self._settings_of(plugin).write_text(json.dumps(values))
        try:
            yield
        finally:
            for plugin in settings:
                self._settings_of(plugin).unlink()

    def engines(self) -> list[psutil.Process]:
        """The living processes of the clusters that this server's notebooks have started."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it may end while it is looked at
                ours = process.environ().get("NBDIST_HOME") == str(self.home)
                # Not by what Python is called: it may stand in a folder of that name, the server's own, too.
                engine = ours and "nbdist" in " ".join(process.cmdline()[1:])
                if engine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end_kernels(self) -> None:
        """End all kernels and runs; a run that a failed test has left would train for an hour."""
        for kernel in self._list_kernels():
            self._ask("DELETE", f"/api/kernels/{kernel['id']}")
        for process in self.engines():
            with suppress(psutil.NoSuchProcess):
                process.terminate()
                self.ending.append(process)

    def wait_ended(self) -> None:
        """Wait for the end of the clusters that an earlier test has left: a page would show them, too."""
        _, left = psutil.wait_procs(self.ending, timeout=PATIENCE)
        assert not left, f"they do not end: {left}"
        self.ending.clear()

    def _list_kernels(self) -> Any:
        """Return the kernels. While one starts, Jupyter Server answers 500: it has no last activity yet."""
        deadline, pause = time.monotonic() + PATIENCE, threading.Event()
        while True:
            try:
                return self._ask("GET", "/api/kernels")
            except HTTPError as error:
                if error.code != 500 or time.monotonic() > deadline:
                    raise
            pause.wait(0.1)

    def _ask(self, method: str, path: str) -> Any:
        headers = {"Authorization": f"token {self.token}"}
        request = Request(self.address + path, method=method, headers=headers)
        with urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or "null")

    def close(self) -> None:
        """End the server, and with it its kernels."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
