"""The space editor in a notebook: built with the keyboard and sliders, started, shown twice, for everyone."""

from __future__ import annotations

import pytest
from browser_axe import violations
from browser_lab import Lab, bring_into_view
from playwright.sync_api import Locator, Page, expect
from tiers import matrix

pytestmark = pytest.mark.browser

EDITOR = "section.nbdist-space"
SETUP = """from nbdist.ui.space_editor.editor import SpaceEditor
editor = SpaceEditor({space!r}, trials=12)
started = []
def start(one):
    started.append(one.space)
    print("begun with", one.count, "trials")
editor.on_start(start)
editor"""
FULL = (
    "lr=log(0.0001, 0.1, points=4) hidden=[32, 64, 128] batch=int(16, 128, step=16) "
    "opt=['sgd', 'adam'] momentum=when(uniform(0.0, 0.99), opt='sgd') epochs=5"
)


def shown(lab: Lab, name: str, space: str | None, *more: str, width: int = 1100) -> Locator:
    lab.write(name, [SETUP.format(space=space), *more])
    page = lab.open(name, width=width, height=1300)
    lab.run(0)
    editor = page.locator(EDITOR).first
    expect(editor.get_by_role("button", name="Add a parameter")).to_be_visible()
    return editor


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def parameter(editor: Locator, name: str) -> Locator:
    return editor.get_by_role("group", name=f"Parameter {name}", exact=True)


def test_a_space_is_built_and_started_with_the_keyboard(lab: Lab) -> None:
    editor = shown(lab, "space.ipynb", None, "print(*started)")
    page = lab.page
    add = editor.get_by_role("button", name="Add a parameter")
    start = editor.get_by_role("button", name="Start")
    expect(editor).to_contain_text("the space is empty")
    expect(start).to_have_attribute("aria-disabled", "true")

    add.focus()
    press(page, "Enter")
    name = parameter(editor, "p1").get_by_label("Name")
    expect(name).to_be_focused()
    page.keyboard.type("lr")
    lr = parameter(editor, "lr")
    slider = lr.get_by_role("slider", name="From")
    slider.focus()
    press(page, "ArrowLeft", "ArrowLeft", "ArrowLeft")
    expect(lr.get_by_role("textbox", name="From")).to_have_value("0.00001")
    press(page, "Tab")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("1e-3")
    expect(slider).to_have_attribute("aria-valuetext", "1e-3")

    add.focus()
    press(page, "Enter")
    expect(parameter(editor, "p1").get_by_label("Name")).to_be_focused()
    page.keyboard.type("hidden")
    press(page, "Tab", "c")  # choice
    hidden = parameter(editor, "hidden")
    hidden.get_by_label("Values").fill("32, 64, 64")
    expect(hidden).to_contain_text("64 stands twice in [32, 64, 64]; drop one")
    expect(start).to_have_attribute("aria-disabled", "true")
    hidden.get_by_label("Values").fill("32, 64")
    expect(hidden.get_by_role("listitem")).to_have_text(["32number", "64number"])

    for known, kind in [("opt", "choice"), ("momentum", "uniform")]:
        add.click()
        expect(parameter(editor, "p1").get_by_label("Name")).to_be_focused()
        page.keyboard.type(known)
        parameter(editor, known).get_by_label("Distribution").select_option(label=kind)
    parameter(editor, "opt").get_by_label("Values").fill("sgd, adam")
    momentum = parameter(editor, "momentum")
    high = momentum.get_by_role("slider", name="To")
    expect(high).to_have_attribute("aria-valuetext", "1")
    high.focus()
    press(page, "ArrowLeft")
    momentum.get_by_label("Only when").select_option(label="opt")
    expect(momentum.get_by_role("checkbox", name="'sgd'")).to_be_checked()
    momentum.get_by_role("checkbox", name="'adam'").press("Space")
    expect(editor.locator("pre")).to_contain_text("opt=['sgd', 'adam'])")
    momentum.get_by_role("checkbox", name="'adam'").press("Space")

    wanted = (
        "lr=log(0.001, 0.1) hidden=[32, 64] opt=['sgd', 'adam'] "
        "momentum=when(uniform(0.0, 0.99), opt=['sgd'])"
    )
    expect(editor.locator("pre")).to_have_text(wanted)
    editor.get_by_label("How many").fill("24")
    expect(editor).to_contain_text("24 trials.")
    start.focus()
    expect(start).to_have_text("Start 24 trials")
    press(page, "Enter")
    expect(editor).to_contain_text("Started.")
    expect(lab.output(0)).to_contain_text("begun with 24 trials")  # below the editor, in its own cell
    lab.run(1)
    expect(lab.output(1)).to_have_text(wanted)


def test_a_grid_shows_its_number_of_points(lab: Lab) -> None:
    editor = shown(lab, "space-grid.ipynb", "lr=log(0.001, 0.1) hidden=[32, 64, 128]")
    editor.get_by_label("How many").fill("")
    editor.get_by_label("Sampler").select_option("grid")
    lr = parameter(editor, "lr")
    expect(lr).to_contain_text("a grid needs to know how many values")
    lr.get_by_label("Grid points").fill("4")
    expect(editor).to_contain_text("The grid has 12 points: 12 trials.")
    expect(editor.get_by_role("button", name="Start 12 trials")).not_to_have_attribute(
        "aria-disabled", "true"
    )


def test_two_views_stay_in_sync_and_rows_are_moved(lab: Lab) -> None:
    shown(lab, "space-twice.ipynb", FULL, "editor", "editor.space = 'width=[1, 2]'", "1 / 0")
    page = lab.page
    lab.run(1)
    first, second = page.locator(EDITOR).nth(0), page.locator(EDITOR).nth(1)
    field = parameter(first, "epochs").get_by_label("Value", exact=True)
    field.fill("7")
    expect(parameter(second, "epochs").get_by_label("Value", exact=True)).to_have_value("7")
    up = parameter(second, "hidden").get_by_role("button", name="Move hidden up")
    up.press("Enter")
    expect(first.locator("pre")).to_contain_text("hidden=[32, 64, 128] lr=log")
    expect(up).to_be_focused()
    parameter(first, "opt").get_by_role("button", name="Remove opt").press("Enter")
    expect(parameter(second, "momentum")).to_contain_text("depends on opt, which is not in the space")
    expect(parameter(first, "momentum").get_by_role("button", name="Remove momentum")).to_be_focused()
    lab.run(2)
    for view in (first, second):
        expect(view.locator("pre")).to_have_text("width=[1, 2]")


def test_errors_are_shown_and_html_stays_text(lab: Lab) -> None:
    lab.write("space-wrong.ipynb", [
        SETUP.format(space="opt=['<img src=x onerror=alert(1)>', 'adam']"),
        "editor.on_start(lambda one: 1 / 0)",
    ])  # fmt: skip
    page = lab.open("space-wrong.ipynb")
    lab.run(0)
    lab.run(1)
    editor = page.locator(EDITOR)
    expect(editor.locator("li").first).to_contain_text("<img src=x onerror=alert(1)>")
    editor.get_by_role("button", name="Start").click()
    expect(editor.get_by_role("alert")).to_contain_text("ZeroDivisionError: division by zero")
    parameter(editor, "opt").get_by_label("Name").fill("<b>x</b>")
    expect(editor.get_by_role("status").filter(has_text="cannot name a parameter")).to_contain_text(
        "'<b>x</b>'"
    )


SHOWING = """import asyncio, threading
def show(one):
    asyncio.get_running_loop()  # of the main thread: a view continues on it after the message
    assert threading.current_thread() is threading.main_thread()
    display({"text/plain": "a live view"}, raw=True, display_id="sweep")
    print("printed beside it")
editor.on_start(show)"""
FREEZE = """from IPython.display import update_display
update_display({"text/plain": "frozen"}, raw=True, display_id="sweep")"""


@pytest.mark.parametrize("place", matrix(["lab"], rest=["lab-without-subshells", "notebook"]), indirect=True)
def test_the_output_of_start_is_below_the_editor_and_can_be_frozen(place: Lab) -> None:
    editor = shown(place, "space-below.ipynb", "a=[1, 2]", SHOWING, FREEZE)
    place.run(1)
    editor.get_by_role("button", name="Start").click()
    below = place.output(0)
    expect(below).to_contain_text("a live view")
    expect(below).to_contain_text("printed beside it")
    expect(editor).to_contain_text("Started.")
    place.run(2)
    expect(below).to_contain_text("frozen")
    expect(place.output(1)).to_have_text("")


def test_a_page_loaded_later_has_the_editor_and_names_what_it_cannot_show(lab: Lab) -> None:
    first = shown(lab, "space-later.ipynb", "a=[1, 2]", "print(*started)")
    lab.save()
    page = lab.open_again("space-later.ipynb")
    editor = page.locator(EDITOR)
    parameter(editor, "a").get_by_label("Name").fill("width")
    expect(parameter(first, "width")).to_be_attached()  # both tabs are in step
    editor.get_by_role("button", name="Start").click()
    expect(editor).to_contain_text("This page was loaded after the editor's cell ran")
    lab.run(1)
    expect(lab.output(1)).to_have_text("width=[1, 2]")


@pytest.mark.parametrize("width", matrix([320], rest=[760, 1200]))
def test_axe_finds_nothing(lab: Lab, width: int) -> None:
    editor = shown(lab, f"space-axe-{width}.ipynb", FULL, width=width)
    page = lab.page
    bring_into_view(editor)
    found = {"right": violations(page, EDITOR)}
    lab.screenshot(f"space-right-{width}")
    parameter(editor, "lr").get_by_role("textbox", name="From").fill("1")
    parameter(editor, "opt").get_by_label("Values").fill("sgd, nan")
    expect(editor.get_by_role("button", name="Start")).to_have_attribute("aria-disabled", "true")
    expect(parameter(editor, "opt")).to_contain_text("nan cannot be a value")
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        lab.theme(theme)
        found[theme] = violations(page, EDITOR)
        lab.screenshot(f"space-{theme.split()[1].lower()}-{width}")
    wrong = {f"{when}: {text}" for when, texts in found.items() for text in texts}
    assert not wrong, "\n".join(sorted(wrong))
    assert editor.evaluate("node => node.scrollWidth <= node.clientWidth + 1")


SWEEP = """%load_ext nbdist
%cluster start --workers 2
import nbdist as nb
def trial(width):
    return {"loss": 1.0 / width}
editor = nb.SpaceEditor({"width": [1, 2, 4, 8]}, trial=trial, sampler="grid", metric="loss", direction="min")
editor"""
BEST = """best = editor.sweep.wait().best
print("best", best.parameters, "of", editor.sweep.ledger.counts["finished"])"""


def test_start_runs_a_sweep_and_its_grid_is_below_the_editor(lab: Lab) -> None:
    lab.write("space-sweep.ipynb", [SWEEP, BEST, "%cluster stop"])
    page = lab.open("space-sweep.ipynb", height=1300)
    lab.run(0)
    editor = page.locator(EDITOR)
    editor.get_by_role("button", name="Start 4 trials").click()
    expect(editor).to_contain_text("Started sweep")
    lab.run(1)
    expect(lab.output(1)).to_contain_text("best {'width': 8} of 4")
    expect(lab.output(0).locator("img, section.nbdist-sweep").first).to_be_visible()
    expect(editor).to_be_visible()
    lab.screenshot("space-sweep")
    lab.run(2)
