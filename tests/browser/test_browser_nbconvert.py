"""A notebook that runs without a page: `jupyter nbconvert --execute`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browser_server import ROOT
from test_browser_live import cells, check_saved

pytestmark = pytest.mark.browser


def test_an_executed_notebook_holds_the_frozen_output_and_no_widget(tmp_path: Path) -> None:
    setup, run, freeze = cells(seconds=0.5)
    sources = [setup, run + freeze]
    notebook: Any = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[nbformat.v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    )
    path = tmp_path / "run.ipynb"
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")},
        check=True,
        capture_output=True,
        timeout=100,
    )
    check_saved(path)
