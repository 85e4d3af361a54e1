"""A notebook that runs without a page, as by `jupyter nbconvert --execute`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from forked_kernels import forked_kernels
from nbconvert.preprocessors import ExecutePreprocessor
from test_browser_live import cells, check_saved

pytestmark = pytest.mark.browser


def test_an_executed_notebook_holds_the_frozen_output_and_no_widget(tmp_path: Path) -> None:
    setup, run, freeze = cells(seconds=0.5)
    sources = [setup, run + freeze]
    notebook: Any = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[nbformat.v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    )
    with forked_kernels():
        ExecutePreprocessor(kernel_name="python3").preprocess(notebook, {"metadata": {"path": str(tmp_path)}})
    nbformat.write(notebook, path := tmp_path / "run.ipynb")  # type: ignore[no-untyped-call]
    check_saved(path)
