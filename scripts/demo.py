"""make demo: runs the quickstart notebook without a browser and shows what happens in the terminal.

Leaves the executed notebook and an HTML page in artifacts/, and prints the table of the experiment.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from nbdist.metrics.log import logs_in, read_log
from nbdist.metrics.run_folder import RunFile, run_folder
from nbdist.run.history import runs

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"
ARTIFACTS = ROOT / "artifacts"
CELL_SECONDS = 300


def main() -> int:
    started = time.time()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    shown = Shown(started)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=PrivateKernel,
        timeout=CELL_SECONDS,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        on_cell_start=lambda cell, cell_index: shown.cell(cell),
    )
    print(f"running {NOTEBOOK.relative_to(ROOT)}", flush=True)
    try:
        client.execute()
    except CellExecutionError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    finally:
        shown.close()
        ARTIFACTS.mkdir(exist_ok=True)
        executed = ARTIFACTS / "quickstart.ipynb"
        nbformat.write(notebook, executed)
    page = ARTIFACTS / "quickstart.html"
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0])
    print()
    print(table(notebook))
    print(f"\n{time.time() - started:.0f} s in all")
    print(f"executed notebook  {executed.relative_to(ROOT)}")
    print(f"page               {page.relative_to(ROOT)}")
    return 0


class PrivateKernel(AsyncKernelManager):  # type: ignore[misc]  # jupyter_client is not typed here
    """A kernel with encrypted sockets, if Jupyter supports them."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.transport_encryption = "auto"


class Shown:
    """Prints which cell runs, and the progress of its run, read from the run's logs."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def cell(self, cell: nbformat.NotebookNode) -> None:
        if cell.cell_type == "code":
            first = cell.source.splitlines()[0]
            print(f"  {time.time() - self._started:5.1f} s  {first}", flush=True)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ending.wait(1.0):
            for run in runs()[:1]:
                if run.status == "running" and run.created > self._started:
                    print(f"           {standing(run)}", flush=True)


def standing(run: RunFile) -> str:
    """Return a line about a running run, read from its task logs."""
    steps, loss = 0, float("nan")
    for path in logs_in(run_folder(run.id)):
        log = read_log(path)
        number = next((n for n, name in log.names.items() if name == "loss"), None)
        mine = log.points[log.points["series"] == number]
        if len(mine):
            steps += int(mine["step"][-1])
            loss = float(mine["value"][-1])
    return f"{run.name}: {steps:,} updates, loss {loss:.3f}"


def table(notebook: nbformat.NotebookNode) -> str:
    """Return the output of the cell with the tag "results"."""
    for cell in notebook.cells:
        if "results" in cell.metadata.get("tags", []):
            return "".join(output.get("text", "") for output in cell.outputs).rstrip()
    raise SystemExit("the quickstart has no cell tagged 'results'")


if __name__ == "__main__":
    sys.exit(main())
