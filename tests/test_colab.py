"""A notebook with Google Colab's versions of Jupyter: the quickstart, a sweep, a cell of PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
from colab_environment import PYTHON, ROOT, ColabKernel, environment, require_environment
from nbclient import NotebookClient

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

SWEEP = """
%%sweep lr=[0.05, 0.5] --metric accuracy --wait
x, y, _, _ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, activation="softmax")])
model.compile(nb.optim.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=100, epochs=2)
""".strip()
BEST = "print('trials', len(sweep.trials), 'best', sweep.best.number)"
GRAPH = """
import numpy as np
v = nb.constant(np.arange(3.0))
print("where", nb.Session().run(np.where(v > 1, np.concatenate([v[:1], v[:2]]), np.dot(v, v))).tolist())
""".strip()
TORCH = """
%%distribute --framework torch --on worker:0-1
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    loss = net(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    nb.log(loss=loss)
total = torch.ones(1); dist.all_reduce(total)
print("ranks", int(total))
""".strip()


def cells() -> list[str]:
    """Return the quickstart's cells, with few epochs, and two others before the cluster stops."""
    notebook = nbformat.read(ROOT / "notebooks" / "01_quickstart.ipynb", as_version=4)
    quickstart = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    short = [
        source.replace("epochs=400", "epochs=8").replace("SGD(0.00007)", "SGD(0.0035)")
        for source in quickstart
    ]
    return [*short, SWEEP, BEST, GRAPH, TORCH, "%cluster stop"]


def test_the_versions_are_those_of_colab() -> None:
    """The bounds of pyproject.toml allow them: pip has resolved them together."""
    require_environment()
    wanted = dict(
        line.split("==")
        for line in (ROOT / "scripts" / "colab.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    versions = f"{{n: m.version(n) for n in {list(wanted)!r}}}"
    ask = f"import importlib.metadata as m, json; print(json.dumps({versions}))"
    found = subprocess.run([PYTHON, "-c", ask], check=True, capture_output=True, text=True).stdout
    assert json.loads(found) == wanted


@pytest.mark.timeout(300)
def test_the_quickstart_a_sweep_and_a_cell_of_pytorch_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_environment()
    for name, value in environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells()])
    NotebookClient(
        notebook,
        kernel_manager_class=ColabKernel,
        timeout=200,
        resources={"metadata": {"path": os.fspath(tmp_path)}},
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    printed = "".join(text_of(output) for output in outputs)
    assert "trials 2 best 1" in printed
    assert "where [5.0, 5.0, 1.0]" in printed  # functions of NumPy in C, which do not tell their parameters
    assert "ranks 2" in printed
    assert "of the test digits" in printed
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    # Three trainings, the quickstart's own figure, the sweep, the cell of PyTorch:
    assert len(pictures) == 6, [
        (cell.source[:30], [sorted(output.get("data", {})) for output in cell.outputs])
        for cell in notebook.cells
    ]
    assert "Error displaying widget" not in json.dumps(notebook)
    # What a front end without nbdist's renderer and without a kernel falls back to is in each of them.
    assert all("text/plain" in output["data"] for output in pictures)


def text_of(output: Any) -> str:
    """Return what an output says as text."""
    return str(output.get("text") or output.get("data", {}).get("text/plain", ""))
