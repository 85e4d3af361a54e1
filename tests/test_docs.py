"""The code of README and docs: the blocks of a page run in order, in one new kernel."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if BLOCK.search(page.read_text())
]
OTHER_KERNEL = "# in a new notebook, after the kernel has ended\n"
"""The first line of a block that another kernel runs; the blocks after it run there, too."""


def kernels(page: str) -> list[list[str]]:
    """Return a page's blocks, by the kernel that runs them."""
    found: list[list[str]] = [[]]
    for block in BLOCK.findall(page):
        if block.startswith(OTHER_KERNEL):
            found.append([])
        found[-1].append(block)
    return found


def test_the_first_block_of_a_page_imports_what_it_uses() -> None:
    assert PAGES
    for page in PAGES:
        for blocks in kernels(page.read_text()):
            assert re.search(r"^(import nbdist as nb|%load_ext nbdist)$", blocks[0], re.MULTILINE), page.name


@pytest.mark.engines
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    for blocks in kernels(page.read_text()):
        notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(block) for block in blocks])
        folder = {"metadata": {"path": os.fspath(tmp_path)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
