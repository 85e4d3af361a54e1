"""One Jupyter server and one Chromium for all browser tests of a process; they end with the session."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from browser_lab import FAILED, Lab, Notebook, start_chromium
from browser_server import PATIENCE, LabServer
from playwright.sync_api import Browser, expect, sync_playwright

expect.set_options(timeout=PATIENCE * 1000)

LONGEST = (
    "lab_commands", "frozen", "quickstart", "resume", "sidebar_looks", "sweep_frozen", "pages",
    "sweep_actions", "renderer", "sweep_for_all", "reattach", "space_editor", "traffic", "sidebar", "live",
    "runs", "graph", "colab", "controls", "gpus", "sweep_reattach", "cells", "sweep_grid",
)  # fmt: skip
"""The files that take longest, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first: at the end no process is left alone with one."""
    places = {f"test_browser_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure: no other test gets the tab."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[LabServer]:
    first_tier = "not exhaustive" in pytestconfig.option.markexpr
    # The kernels of the first tier are forks: the start of a new one is Jupyter's, and takes 2 s of CPU.
    server = LabServer(tmp_path_factory.mktemp("lab"), forks=first_tier)
    # Pictures are for people, and nothing is asserted of them; the first tier has no time for them.
    server.pictures = not first_tier
    yield server
    server.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = start_chromium(playwright)
        yield browser
        browser.close()


@pytest.fixture
def lab(lab_server: LabServer, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A JupyterLab where a saved output is its picture, as it is where our extension is not."""
    yield from closed_at_end(Lab(lab_server, chromium, draws=False, keeps=True), request)


@pytest.fixture
def drawing_lab(lab_server: LabServer, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A JupyterLab that draws saved runs and sweeps, as an installation does."""
    yield from closed_at_end(Lab(lab_server, chromium, keeps=True), request)


def closed_at_end(opened: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Hand out a notebook's tab, and close it after the test; the test fails if its page had errors."""
    yield opened
    opened.close(keep=not request.node.stash.get(FAILED, False))
    assert not opened.errors, opened.errors


@pytest.fixture(params=["lab", "lab-without-subshells", "notebook"])
def place(lab_server: LabServer, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A tab in JupyterLab, in JupyterLab without subshells, or in Notebook 7."""
    kind = Notebook if request.param == "notebook" else Lab
    subshells = request.param != "lab-without-subshells"
    yield from closed_at_end(
        kind(lab_server, chromium, draws=False, subshells=subshells, keeps=True), request
    )
