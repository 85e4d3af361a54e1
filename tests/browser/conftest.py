"""One Jupyter server of each kind and one Chromium for all browser tests; they end with the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser_lab import Lab, Notebook, start_chromium
from browser_server import NO_SUBSHELLS, NOT_DRAWN, PATIENCE, LabServer
from playwright.sync_api import Browser, expect, sync_playwright

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("lab"), disabled=NOT_DRAWN)
    yield server
    server.close()


@pytest.fixture(scope="session")
def drawing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A JupyterLab that draws saved runs and sweeps, as an installation does."""
    server = LabServer(tmp_path_factory.mktemp("drawing"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = start_chromium(playwright)
        yield browser
        browser.close()


@pytest.fixture
def lab(lab_server: LabServer, chromium: Browser) -> Iterator[Lab]:
    yield from closed_at_end(Lab(lab_server, chromium))


@pytest.fixture
def drawing_lab(drawing_server: LabServer, chromium: Browser) -> Iterator[Lab]:
    yield from closed_at_end(Lab(drawing_server, chromium))


def closed_at_end(opened: Lab) -> Iterator[Lab]:
    """Hand out a notebook's tab, and close it after the test; the test fails if its page had errors."""
    yield opened
    opened.close()
    assert not opened.errors, opened.errors


# The same test in each place where a notebook may be: each has a server of its own, for all its tests.


@pytest.fixture(scope="session", params=["lab", "lab-without-subshells", "notebook"])
def place_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LabServer]:
    if request.param == "lab":
        yield request.getfixturevalue("lab_server")
        return
    folder = tmp_path_factory.mktemp(request.param)
    notebook = request.param == "notebook"
    server = (
        LabServer(folder, "notebook", disabled=NOT_DRAWN)
        if notebook
        else LabServer(folder, settings=NO_SUBSHELLS, disabled=NOT_DRAWN)
    )
    yield server
    server.close()


@pytest.fixture
def place(place_server: LabServer, chromium: Browser) -> Iterator[Lab]:
    """A tab in JupyterLab, in JupyterLab without subshells, or in Notebook 7."""
    kind = Notebook if place_server.application == "notebook" else Lab
    yield from closed_at_end(kind(place_server, chromium))
