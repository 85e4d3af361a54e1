"""The pages of a run and of a sweep follow the server while the kernel is busy and after its end."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from browser_axe import violations
from browser_lab import Lab
from playwright.sync_api import Locator, Page, expect
from sweeps_to_show import GRID
from tiers import matrix

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SETUP = """import nbdist as nb
%load_ext nbdist
nb.start_cluster(workers=2, orphan_timeout=600, report=lambda line: None);"""
SWEEP = """%%sweep n=[0, 1, 2, 3, 4, 5] --metric score --name six --wait
nb.log(score=n / 2)
score = n"""
TRAIN = """%%distribute --seed 1 --name unending
import time
def slowly(*batch):
    time.sleep(0.02)  # the page needs the cores, too
    return batch
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(50).map(slowly), epochs=1_000_000)"""
PAGE = ".nbd-Page:visible"
REACHED = "/at [a-z]+ ([0-9,]+)/.exec(document.querySelector('.nbd-Page .nbd-plot')?.ariaLabel ?? '')"
FURTHER = f"seen => {{ const at = {REACHED}; return at && Number(at[1].replaceAll(',', '')) > seen }}"
NOTEBOOK = "[...window.jupyterapp.shell.widgets('main')].find(one => one.sessionContext)"


def reached(page: Page) -> int:
    """The last step of the page's first chart."""
    return int(
        page.evaluate(f"(() => {{ const at = {REACHED}; return at ? at[1] : '0' }})()").replace(",", "")
    )


def continues(page: Page) -> None:
    """Wait until the curve is longer."""
    page.wait_for_function(FURTHER, arg=reached(page))


Looks = dict[str, tuple[int, ...]]
ALL: Looks = {"JupyterLab Dark": (320, 1100), "JupyterLab Light": (700, 1400)}
OF_RUN: Looks = {"JupyterLab Light": (1400,), "JupyterLab Dark": (320,)}
OF_SWEEP: Looks = {"JupyterLab Light": (320, 1400)}  # in the dark it is the grid of a saved sweep


@pytest.mark.parametrize(
    ("run_looks", "sweep_looks"),
    matrix([(OF_RUN, OF_SWEEP)], rest=[(ALL, ALL)]),
    ids=["some looks", "all looks"],
)
def test_pages_of_a_run_and_a_sweep_need_no_kernel(
    drawing_lab: Lab, run_looks: Looks, sweep_looks: Looks
) -> None:
    lab = drawing_lab
    lab.write("paged.ipynb", [SETUP, SWEEP, TRAIN])
    page = lab.open("paged.ipynb", height=1400)
    lab.run(0)
    lab.run(1)
    expect(lab.output(1).locator(f".nbd-Bundle {GRID} .nbd-chip")).to_contain_text("finished")
    lab.run(2, wait=False)
    page.wait_for_selector("section.nbdist-live", state="attached")
    [folder] = lab.server.home.glob("runs/*-unending")
    lab.command("application:set-mode", {"mode": "multiple-document"})

    # While the kernel is busy with the run.
    lab.command("nbdist:open-run", {"id": folder.name})
    shown = page.locator(PAGE)
    expect(shown.locator(".nbd-plot").first).to_have_attribute("aria-label", re.compile("at [a-z]+ [1-9]"))
    expect(shown.locator(".nbd-chip")).to_contain_text("running")
    expect(shown).to_contain_text("nb.nn.Dense(10")
    continues(page)
    shown.get_by_role("button", name="Charts").click()
    shown.get_by_label("Choose charts").get_by_label("step_ms").check()
    expect(shown.locator(".nbd-plot")).to_have_count(2)
    shown.get_by_label("Choose charts").press("Escape")
    shown.get_by_role("button", name="Log scale").click()
    shown.locator(".nbd-plot").first.press("+")
    lab.screenshot("page-run-busy")

    # Without a kernel the run continues, and its page is updated with the same zoom.
    page.evaluate(f"{NOTEBOOK}.sessionContext.shutdown().then(() => null)")
    page.wait_for_function(FURTHER, arg=reached(page) + 50)
    expect(shown.get_by_role("button", name="Show all")).to_be_visible()
    expect(shown.get_by_role("button", name="Log scale")).to_have_attribute("aria-pressed", "true")
    stop_run(page, shown)
    expect(shown.locator(".nbd-chip")).to_contain_text("stopped")

    check_files(page, shown, folder)
    for_everyone(lab, "page-run", run_looks)
    check_sweep(lab, sweep_looks)

    # One page for each, which are back after a reload.
    lab.command("nbdist:open-run", {"id": folder.name})
    expect(page.locator(".nbd-Page")).to_have_count(2)
    page.evaluate(f"{NOTEBOOK}.context.save()")
    page.reload()
    page.wait_for_function("window.jupyterapp?.shell && !document.querySelector('.jp-SplashScreen, #galaxy')")
    for name in ("unending", "six"):
        expect(page.locator(".lm-TabBar-tabLabel", has_text=name)).to_have_count(1)
    page.evaluate("window.jupyterapp.restored.then(() => null)")  # which activates the page that was in front
    lab.command("nbdist:open-run", {"id": folder.name})
    expect(page.locator(".nbd-Page")).to_have_count(2)
    expect(page.locator(f"{PAGE} .nbd-title")).to_have_text("unending")
    expect(page.locator(f"{PAGE} .nbd-plot canvas").first).to_be_visible()

    shutil.rmtree(folder)
    expect(page.locator(f"{PAGE} > [role=status]")).to_contain_text("There is no run")
    expect(page.locator(f"{PAGE} .nbd-plot canvas").first).to_be_visible()  # what it has drawn stays


def stop_run(page: Page, shown: Locator) -> None:
    shown.get_by_role("button", name="Stop the run").click()
    sure = page.locator(".jp-Dialog .jp-mod-accept")
    expect(sure.or_(shown.locator(".nbd-chip[data-state='stopped']"))).to_be_visible()
    if sure.is_visible():
        sure.click()


def check_files(page: Page, shown: Locator, folder: Path) -> None:
    """The run's files are listed, and are what is downloaded."""
    shown.get_by_text("Files", exact=True).click()
    with page.expect_download() as download:
        shown.get_by_role("link", name="run.json").click()
    got = json.loads(Path(download.value.path()).read_text())
    assert got["id"] == folder.name
    for title in ("Options", "Tasks", "Versions"):
        shown.get_by_text(title, exact=True).click()
    expect(shown).to_contain_text("numpy")
    expect(shown).to_contain_text("worker 1")


def for_everyone(lab: Lab, name: str, looks: Looks) -> None:
    """Nothing keeps people out, and nothing sticks out, in these themes and at these widths."""
    wrong: list[str] = []
    for theme, widths in looks.items():
        lab.theme(theme)
        for width in widths:
            lab.resize(width, 1400)
            lab.screenshot(f"{name}-{theme.split()[1].lower()}-{width}")
            beside = lab.page.locator(PAGE).evaluate("node => node.scrollWidth - node.clientWidth")
            wrong += [f"{beside} px beside the page at {width}"] if beside > 0 else []
        wrong += violations(lab.page, ".nbd-Page:not(.lm-mod-hidden *)")
    assert not wrong, "\n".join(wrong)


def check_sweep(lab: Lab, looks: Looks) -> None:
    """A sweep is chosen from a list, and its grid has all trials and no commands."""
    page = lab.page
    page.evaluate("window.jupyterapp.commands.execute('nbdist:open-grid'), null")
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("six")
    dialog.get_by_role("button", name="OK").click()
    grid = page.locator(f"{PAGE} {GRID}")
    expect(grid.locator(".nbd-chip")).to_contain_text("finished")
    expect(grid.locator("tbody tr")).to_have_count(6)
    expect(grid.locator(".nbs-actions:visible")).to_have_count(0)
    grid.locator("tbody tr button").first.click()
    expect(grid.get_by_role("region", name="Chosen trial")).to_contain_text("the best so far")
    for_everyone(lab, "page-sweep", looks)
