"""The code of README and docs: the blocks of a page run in order, in one new kernel.

The first tier trains for fewer epochs where a page trains for long, in kernels that are forked and so start
quickly; the second one runs such a page as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from forked_kernels import forked_kernels
from tiers import exhaustive

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if BLOCK.search(page.read_text())
]
OTHER_KERNEL = "# in a new notebook, after the kernel has ended\n"
"""The first line of a block that another kernel runs; the blocks after it run there, too."""
SHORTER = {
    "README": {
        "%cluster start --workers 3 ": "%cluster start --workers 2 ",  # each imports torch
        ".batch(100), epochs=5)": ".batch(100), epochs=1)",
        "range(5)": "range(1)",
        "CrossEntropyLoss(), epochs=5)": "CrossEntropyLoss(), epochs=1)",
        "model.fit(batches, epochs=120, ": "model.fit(batches, epochs=1, ",
        "model.fit(batches, epochs=20)": "model.fit(batches, epochs=1)",
        "run.wait_until(step=100)": "run.wait_until(step=10)",
        "--trials 24 ": "--trials 6 ",
        "batch_size=batch, epochs=60, ": "batch_size=batch, epochs=4, ",
        "sweep.add(8)": "sweep.add(2)",
        "epochs=80)": "epochs=6)",
    },
    "estimator": {
        "save_checkpoints_steps=100": "save_checkpoints_steps=25",
        "max_steps=200": "max_steps=50",
        "max_steps=400": "max_steps=100",
        "max_steps=800": "max_steps=200",
        "max_steps=300": "max_steps=50",
    },
    "framework-models": {"workers=2": "workers=1"},  # each imports torch and jax; README has two
    "frameworks": {"workers=2": "workers=1"},
    "live": {"epochs=300": "epochs=30"},
    "runs": {"batch_size=50, epochs=20)": "batch_size=50, epochs=4)", "step=570": "step=100"},
    "tpu": {".batch(256), epochs=3": ".batch(256, drop_remainder=True), epochs=1"},  # compiles one shape
    "workers": {"(20_000, 32)": "(2_000, 32)", "trials=20": "trials=4", "--trials 20": "--trials 4"},
}
"""Texts of pages, and what the first tier runs instead of them."""


def shortened(page: Path) -> str:
    """Return a page's text with its changes for the first tier."""
    text = page.read_text()
    for old, new in SHORTER.get(page.stem, {}).items():
        assert old in text, f"{page.name} has no {old!r} (any more)"
        text = text.replace(old, new)
    return text


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


def test_the_first_tests_are_quoted_as_they_are() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    named = re.findall(r"`(tests/\w+/test_(?:first_\w+|\w+_first)\.py)`", page)
    blocks = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(set(named)) == 4
    files = [(ROOT / name).read_text() for name in named]
    for block in blocks:
        assert any(block.strip() in text for text in files), block


@pytest.mark.engines
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forked_kernels():
        run_blocks(shortened(page), tmp_path, monkeypatch)


@exhaustive
@pytest.mark.engines
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in SHORTER], ids=lambda page: page.stem)
def test_a_page_that_trains_for_long_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_blocks(page.read_text(), tmp_path, monkeypatch)


def run_blocks(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    for blocks in kernels(page):
        notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(block) for block in blocks])
        folder = {"metadata": {"path": os.fspath(tmp_path)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
