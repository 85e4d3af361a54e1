"""What stays of a sweep in the notebook, however it ended: without a kernel, trusted or not, and as HTML."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browser_axe import violations
from browser_lab import Lab, bring_into_view, wait_for_picture
from nbconvert import HTMLExporter
from playwright.sync_api import expect
from sweeps_to_show import GRID, SETUP, count

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SWEEP = """%%sweep n=[0, 1, 2, 3, 4, 5] --metric score --name {name} {flags}
{body}"""
CELLS = [
    SETUP.format(orphan=5),
    SWEEP.format(name="finished", flags="--wait", body="nb.log(score=n / 2)\nscore = n"),
    SWEEP.format(name="ended", flags="", body="import time\nwhile True: nb.log(score=n); time.sleep(0.1)"),
    SWEEP.format(
        name="raises",
        flags="",
        body="if n % 2: raise ValueError('lost <i>it</i>')\nscore = n",
    ),
    SWEEP.format(name="nothing", flags="", body="raise ValueError(f'no <i>{n}</i>')"),
    "sweep.close()\nsweep.wait();",
    "sweep.show()",
]
HEADLINES = {1: "✓ finished", 2: "■ stopped", 3: "✓ finished", 4: "✕ failed"}
VALUELESS = 4  # has nothing to draw
FROZEN = {"image/png", "text/html", "text/plain", "application/vnd.nbdist.sweep+json"}
FRAMED = ".jp-Notebook .jp-RenderedHTML"


@pytest.fixture
def ended(lab: Lab) -> Path:
    """A saved notebook with a sweep that is done, one that was ended, and two in which trials raised."""
    path = lab.write("swept.ipynb", CELLS)
    page = lab.open("swept.ipynb", height=1500)
    lab.run(0)
    lab.run(1)
    lab.run(2)
    grid = lab.output(2).locator(GRID)
    bring_into_view(grid)
    expect(count(grid, "running")).to_have_text("2")
    lab.run(5)
    for number in (3, 4):
        lab.run(number)
        expect(lab.output(number)).to_contain_text(HEADLINES[number])
    expect(page.locator(GRID)).to_have_count(0)
    lab.save()
    return path


def look(lab: Lab, name: str, trials: int, *, fresh: bool = False) -> None:
    """Each sweep's end is there, as a picture, as a table and in words."""
    page = lab.open(name, kernel=False, height=3000, fresh=fresh)
    for number, headline in HEADLINES.items():
        picture = lab.output(number).locator("img[src^='data:image/png']")
        if number == VALUELESS:
            expect(picture).to_have_count(0)
            expect(lab.output(number)).to_contain_text("failed; none has a value")
            expect(lab.output(number)).to_contain_text("no <i>0</i>")
            continue
        expect(picture).to_be_visible()
        wait_for_picture(picture, 500)
        shown = lab.output(number).inner_text()
        assert headline in shown, shown
        expect(lab.output(number)).not_to_contain_text("widget")
    expect(lab.output(3)).to_contain_text("lost <i>it</i>")
    assert page.locator(".jp-OutputArea i, .jp-OutputArea b").count() == 0
    expect(lab.output(1).locator("tbody tr")).to_have_count(trials)


def test_every_end_is_shown_without_a_kernel(lab: Lab, ended: Path, drawing_lab: Lab) -> None:
    notebook: Any = nbformat.read(ended, as_version=4)  # type: ignore[no-untyped-call]
    check_file(ended, notebook)

    # The grid again: a command continues a finished sweep.
    lab.run(1)
    lab.run(6)
    grid = lab.output(6).locator(GRID)
    bring_into_view(grid)
    expect(grid.locator(".nbd-chip")).to_contain_text("finished")
    expect(grid.locator("tbody tr")).to_have_count(6)
    grid.locator("tbody tr").first.locator("button").click()
    trial = grid.get_by_role("region", name="Chosen trial")
    expect(trial).to_contain_text("worker ")
    trial.get_by_role("button", name="Clone…").click()
    form = trial.get_by_role("form", name="Clone with changes")
    form.get_by_role("button", name="Clone", exact=True).click()
    # What the form says of it stands only until the clone has ended, and the picture is there.
    expect(lab.output(6).locator("img[src^='data:image/png']")).to_be_visible()
    expect(lab.output(6)).to_contain_text("7 finished")
    lab.save()

    lab.shut_kernel_down()
    look(lab, "swept.ipynb", 7, fresh=True)  # in a page that has shown none of it live
    wrong = violations(lab.page, FRAMED)
    lab.screenshot("sweep-frozen-trusted")
    lab.theme("JupyterLab Dark")
    wrong += violations(lab.page, FRAMED)
    lab.screenshot("sweep-frozen-trusted-dark")
    lab.theme("JupyterLab Light")
    assert not wrong, "\n".join(sorted(set(wrong)))

    notebook.cells[0].source += "\n"  # no longer what the server has signed
    nbformat.write(notebook, ended.parent / "swept-untrusted.ipynb")  # type: ignore[no-untyped-call]
    look(lab, "swept-untrusted.ipynb", 6)
    lab.screenshot("sweep-frozen-untrusted")
    lab.close()

    look_drawn(drawing_lab, "swept.ipynb")


def look_drawn(lab: Lab, name: str) -> None:
    """Each sweep's end is drawn as its grid, with what failed, and takes no commands."""
    lab.open(name, kernel=False, height=3000)
    for number, headline in HEADLINES.items():
        output = lab.output(number)
        bring_into_view(output)
        expect(output.locator(f"{GRID} .nbd-chip")).to_contain_text(headline.split()[1])
        expect(output.locator(f"{GRID} canvas").first).to_be_visible()
        expect(output.locator("img")).to_have_count(0)
        assert output.locator(".nbs-actions").locator("visible=true").count() == 0
    expect(lab.output(1).locator(f"{GRID} .nbs-table tbody tr")).to_have_count(7)
    expect(lab.output(3)).to_contain_text("lost <i>it</i>")
    expect(lab.output(VALUELESS)).to_contain_text("no <i>0</i>")
    lab.screenshot("sweep-frozen-drawn")


def check_file(path: Path, notebook: Any) -> None:
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    assert "jupyter.widget" not in path.read_text()
    for number in HEADLINES:
        [frozen] = [output.data for output in notebook.cells[number].outputs if "data" in output]
        assert set(frozen) == (FROZEN - {"image/png"} if number == VALUELESS else FROZEN)
        assert len(str(frozen)) < 150_000
        if number == VALUELESS:
            continue
        assert base64.b64decode(frozen["image/png"]).startswith(b"\x89PNG")
    page, _ = HTMLExporter().from_filename(str(path))
    assert len(re.findall(r"<img[^>]*src=.?data:image/png;base64", page)) == len(HEADLINES) - 1
    assert all(headline in page for headline in HEADLINES.values())
    assert "<i>it</i>" not in page
    assert "widget-view" not in page


def test_a_picture_takes_commands_while_the_kernel_lives(drawing_lab: Lab) -> None:
    lab = drawing_lab
    lab.write("commanded.ipynb", [CELLS[0], CELLS[1], "%cluster stop"])
    lab.open("commanded.ipynb", height=1500)
    lab.run(0)
    lab.run(1)
    clone_best(lab, "7finished")  # the page that ran the cell gets the grid, and the picture again
    lab.save()
    lab.open_again("commanded.ipynb")
    clone_best(lab, "8finished")  # by the Jupyter server
    expect(lab.output(1).locator(".nbd-attach")).to_have_count(1)
    expect(lab.output(1).locator(".nbd-attach")).to_be_hidden()
    lab.screenshot("sweep-frozen-commanded")
    lab.run(2)
    lab.shut_kernel_down()
    expect(lab.output(1).locator(".nbs-actions").first).to_be_hidden()
    expect(lab.output(1).locator(".nbd-attach")).to_contain_text("nb.attach(")


def clone_best(lab: Lab, expected: str) -> None:
    """Clone the best trial in the picture, and wait for the end of the clone."""
    picture = lab.output(1).locator(f".nbd-Bundle {GRID}")
    bring_into_view(lab.output(1))
    expect(picture.get_by_role("button", name="Add trials")).to_be_visible()
    picture.locator("tbody tr").first.locator("button").click()
    trial = picture.get_by_role("region", name="Chosen trial")
    trial.get_by_role("button", name="Clone…").click()
    form = trial.get_by_role("form", name="Clone with changes")
    form.get_by_role("button", name="Clone", exact=True).click()
    expect(picture.get_by_role("group", name="Trials by state")).to_contain_text(expected)
    expect(picture.locator(".nbd-chip")).to_contain_text("finished")
