"""The teaching notebooks: saved without outputs, and run without errors.

The first tier trains less where a notebook computes for long, in kernels that are forked and so start
quickly; the second one runs such a notebook as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from forked_kernels import forked_kernels
from notebook_cells import FOLDER, printed, read, run_cells
from tiers import exhaustive

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SAYS = {  # texts that the outputs must contain
    "02_clusters_devices_and_the_graph.ipynb": ["is not initialised", "Singular matrix", "cannot be placed"],
    "03_in_graph_between_graph_and_splitting_a_model.ipynb": ["largest difference", "task's limit"],
    "04_synchronous_asynchronous_and_the_slow_worker.ipynb": ["gradients dropped", "taken: 15.0", "bound 2"],
    "05_six_strategies_one_model.ipynb": [
        "differ from the chief's: 0 of 3",
        "do not agree on collective",
        "updates: 96",
    ],
    "06_watching_and_steering_a_run.ipynb": [
        "on at 0.1: loss",
        "the run is running",
        "the model is here: True",
    ],
    "07_tuning_with_a_grid_you_can_touch.ipynb": [
        "hidden 128, batch 256: 90% is first reached",
        "of the steps that 30 whole trials would have made",
        "and continued to step 2160",
    ],
    "08_when_a_task_dies.ipynb": [
        "died: killed by SIGKILL",
        "joined at step",
        "540 updates; without a death 540",
        "120 updates; without a death 120",
        "restored from its replica on /job:ps/task:1",
        "steps lost; largest difference of a weight at the end: 0.0",
    ],
    "09_input_pipelines.ipynb": [
        "the batches are the same",
        "largest difference of a weight: 0.0",
        "FILE: 719 and 719 examples",
        "359 examples read, 1 left out",
    ],
    "10_estimators_and_tensorboard.ipynb": [
        "multi_worker       accuracy 0.9",
        "exported",
        "histograms ['w']",
        "wide and deep  accuracy",
    ],
    "11_your_pytorch_cell_on_four_workers.ipynb": [
        "test accuracy 0.9",
        "RANK 3, LOCAL_RANK 3, NODE_RANK 0, WORLD_SIZE 4",
        "row 30 has the label 11",
        "4 ranks; the same processes: True",
        "all-reduce        75 updates, test accuracy 0.9",
        "parameter server  120 updates, test accuracy 0.",
    ],
    "12_one_model_on_a_mesh_of_devices.ipynb": [
        "test accuracy 0.9",
        "from one device: ",
        "rounding only: True",
        "both           {'all-reduce': 2",
    ],
    "13_from_two_cores_to_a_slurm_allocation.ipynb": [
        "No Slurm answers",
        "rounding only: True",
        "died: killed by SIGKILL",
        "120 steps; without a loss 120",
        "running, on 3 workers",
    ],
    "14_which_of_these_runs_is_better.ipynb": [
        "wide - narrow: +0.0",
        "by chance in 1% of all cases",
        "loss below 0.5 at step",
        "finds digit",
    ],
}
SHORTER = {
    "03_in_graph_between_graph_and_splitting_a_model.ipynb": {
        "--epochs 5 ": "--epochs 2 ",
        "epochs=5,": "epochs=2,",
        "range(101)": "range(26)",
        "range(100)": "range(20)",
    },
    "04_synchronous_asynchronous_and_the_slow_worker.ipynb": {
        "epochs=3,": "epochs=1,",
        "epochs=9,": "epochs=3,",
    },
    "05_six_strategies_one_model.ipynb": {
        "epochs=6,": "epochs=3,",
        "range(6)": "range(3)",
        '"epochs": 2': '"epochs": 1',
        "step=90,": "step=40,",
        "epoch == 2": "epoch == 1",
        "updates: 96": "updates: 48",
    },
    "06_watching_and_steering_a_run.ipynb": {
        "reach(150)": "reach(40)",
        "changed_at + 200": "changed_at + 60",
        "epochs=8)": "epochs=3)",
    },
    "07_tuning_with_a_grid_you_can_touch.ipynb": {
        "points=6": "points=3",
        "epochs=8,": "epochs=4,",
        "sweep.add(12)": "sweep.add(4)",
        "--trials 30": "--trials 18",
        "that 30 whole trials": "that 18 whole trials",
        "epochs=60,": "epochs=12,",
        "and continued to step 2160": "and continued to step 432",
    },
    "08_when_a_task_dies.ipynb": {
        "time.sleep(0.02)": "time.sleep(0.01)",
        '{"epochs": 6}': '{"epochs": 4}',
        "step=100)": "step=40)",
        "3 * 30 * 6": "3 * 30 * 4",
        "540": "360",
        "last_step=800": "last_step=320",
        "save_checkpoint_steps=150": "save_checkpoint_steps=60",
        "step=350": "step=140",
        "(20, 60)": "(20,)",
    },
    "09_input_pipelines.ipynb": {
        "test_labels = nb.data.digits()\n": (
            "test_labels = nb.data.digits()\nimages, labels = images[:96], labels[:96]\n"
        ),
        "FILE: 719 and 719 examples": "FILE: 48 and 48 examples",
        "359 examples read, 1 left out": "23 examples read, 1 left out",
    },
    "11_your_pytorch_cell_on_four_workers.ipynb": {  # each worker's import of torch takes 5 s of CPU
        "--workers 4": "--workers 2",
        "dist.get_rank() == 2": "dist.get_rank() == 1",
        "RANK 3, LOCAL_RANK 3, NODE_RANK 0, WORLD_SIZE 4": "RANK 1, LOCAL_RANK 1, NODE_RANK 0, WORLD_SIZE 2",
        "4 ranks": "2 ranks",
        "parameter server  120 updates": "parameter server  60 updates",
    },
}
"""Texts of notebooks and of what they print, and the first tier's instead of them."""
MARKS = {  # four workers import torch, which takes 20 s of CPU; XLA compiles for 10 s
    "11_your_pytorch_cell_on_four_workers.ipynb": [pytest.mark.frameworks, pytest.mark.timeout(300)],
    "12_one_model_on_a_mesh_of_devices.ipynb": [pytest.mark.frameworks, pytest.mark.timeout(300)],
    # the first tier runs it on Slurm: tests/slurm/test_slurm_notebook.py
    "13_from_two_cores_to_a_slurm_allocation.ipynb": [exhaustive],
}
IN_A_BROWSER = "01_quickstart.ipynb"  # which test_browser_quickstart runs


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_without_outputs(path: Path) -> None:
    nbformat.validate(read(path))
    for cell in read(path).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_its_cluster_for_what_is_to_be_tried(path: Path) -> None:
    """After Run All the reader is at the end, where the exercises are: no last cell ends the cluster."""
    last = read(path).cells[-1]
    assert (last.cell_type, "## Try it" in last.source, "`%cluster stop`" in last.source) == (
        "markdown",
        True,
        True,
    )


def shortened(name: str, text: str) -> str:
    """Return a cell's text, or an expected one, with its changes for the first tier."""
    for old, new in SHORTER.get(name, {}).items():
        text = text.replace(old, new)
    return text


@pytest.mark.engines
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=MARKS.get(path.name, ()), id=path.stem)
        for path in NOTEBOOKS
        if path.name != IN_A_BROWSER
    ],
)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, says = read(path), SAYS[path.name]
    everything = "".join(cell.source for cell in notebook.cells) + "".join(says)
    for old in SHORTER.get(path.name, {}):
        assert old in everything, f"{path.name} has no {old!r} (any more)"
    for cell in notebook.cells:
        cell.source = shortened(path.name, cell.source)
    with forked_kernels():
        run_notebook(notebook, [shortened(path.name, text) for text in says], tmp_path, monkeypatch)


@exhaustive
@pytest.mark.engines
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.name in SHORTER], ids=lambda path: path.stem
)
def test_a_long_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_notebook(read(path), SAYS[path.name], tmp_path, monkeypatch)


def run_notebook(notebook: Any, says: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every cell in a new kernel; an error stops it with the cell's traceback."""
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = run_cells([*notebook.cells, nbformat.v4.new_code_cell("%cluster stop")], tmp_path)
    shown = [output for cell in cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
    text = printed(cells)
    for part in says:
        assert part in text
