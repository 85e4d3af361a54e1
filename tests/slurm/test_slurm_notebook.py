"""The notebook "from two cores to a Slurm allocation", on the login host of a real Slurm."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from notebook_cells import FOLDER, printed, read, run_cells
from slurm_nodes import LOGIN, SlurmNodes
from waiting import until

pytestmark = pytest.mark.netns

NOTEBOOK = FOLDER / "13_from_two_cores_to_a_slurm_allocation.ipynb"
AFTER_RESTART = "run = nb.attach()"  # begins the cell that a new kernel runs, after the first one
STOP = "%cluster\n%cluster stop"


@pytest.fixture
def run_on_login(
    slurm: SlurmNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Any]]:
    """Return a function that runs cells in a new kernel on the login host."""
    variables = [f"{name}={value}" for name, value in slurm.environment.items()]
    kernel = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    command = [*slurm.inside(LOGIN), "env", "--ignore-environment", *variables, *kernel]
    folder = slurm.folder / "jupyter"  # its path is short, as those of sockets have to be
    spec = folder / "kernels" / LOGIN / "kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text(json.dumps({"argv": command, "display_name": LOGIN, "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(folder))

    def run(cells: list[Any], before: Callable[[Any], None] = lambda cell: None) -> list[Any]:
        return run_cells(cells, tmp_path, kernel=LOGIN, sockets=str(folder / "kernel"), before=before)

    return run


def test_the_notebook_of_slurm(slurm: SlurmNodes, run_on_login: Callable[..., list[Any]]) -> None:
    cells = [cell for cell in read(NOTEBOOK).cells if cell.cell_type == "code"]
    (again,) = (number for number, cell in enumerate(cells) if cell.source.startswith(AFTER_RESTART))
    here, there = (cell.source.split("\n", 1)[1] for cell in cells if "-strategy multi_worker" in cell.source)
    assert here == there, "the notebook says that it is the same cell"

    def fill_the_queue(cell: Any) -> None:
        """Let another job have all nodes until the cell that starts the cluster has said that it waits."""
        if "--launcher slurm" in cell.source:
            options = ("--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1000")
            job = slurm.run("sbatch", "--parsable", *options).stdout.strip()
            until(lambda: slurm.jobs() == {job: "RUNNING"}, describe=slurm.logs)
            threading.Thread(target=free, args=(cell, job)).start()

    def free(cell: Any, job: str) -> None:
        try:
            until(lambda: "(Resources)" in printed([cell]))
        finally:
            slurm.run("scancel", job)

    said = printed(run_on_login(cells[:again], fill_the_queue))
    # The kernel has ended while its last run was under way, as at a restart.
    (job,) = slurm.jobs().values()
    assert job == "RUNNING"
    stop = nbformat.v4.new_code_cell(STOP)
    said += printed(run_on_login([cells[0], *cells[again:], stop]))
    assert said.count("75 steps, test accuracy 0.9") == 2
    assert "the work of 0." in said, "the simulation advises against nodes for the small network"
    assert "3   idle n[1-3]" in said
    assert "is pending: it waits for nodes that are free (Resources)" in said
    assert re.findall(r"job ends in (\d+) min", said) == ["29"] * 3
    assert [said.count(f"host {node} (10.92.7.{node[1]}): ") for node in ("n1", "n2", "n3")] == [3, 3, 1]
    assert "rounding only: True" in said
    assert (
        "died: host n3 was lost: it has ended, or was cut off from this one; training continued on 2" in said
    )
    assert re.search(r"it was replaced after .* s, joined at step \d+ \(restart 1 of 3\)", said)
    assert "120 steps; without a loss 120" in said
    assert said.count("host n3: lost; its tasks are on other hosts") == 2
    assert re.search(r"at step \d+, running, on 3 workers", said)
    until(lambda: not slurm.jobs(), describe=slurm.jobs)  # the cluster has given the nodes back
    slurm.run("rm", "-rf", f"{slurm.home}/nbdist/runs")  # what a user keeps, on the login host alone
    # What the lost node still had of its run, and what only a new cluster there or this command removes.
    slurm.run("rm", "-rf", f"{slurm.home}/nbdist/spool", host="n3")
    slurm.run(sys.executable, "-m", "nbdist.cli", "clean", host="n3")
