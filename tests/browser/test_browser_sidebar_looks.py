"""How the sidebar looks and where it may be: narrow and wide, light and dark, left and right."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from browser_axe import violations
from browser_lab import Lab, Notebook, until
from browser_server import LabServer
from playwright.sync_api import Browser, Locator, Page, Request, expect
from sidebar_to_show import HOSTS, MEGABYTE, MIDNIGHT, Served, crowded, task
from tiers import exhaustive, matrix

pytestmark = pytest.mark.browser

PANEL = "#nbdist-panel"
TASKS = 30  # what axe-core looks at costs time
WIDEN = (
    "width => { const split = window.jupyterapp.shell._hsplitPanel, whole = split.node.clientWidth;"
    " split.setRelativeSizes([width / whole, 1 - width / whole, 0]) }"
)
TASKS_WIDE = "width => { document.querySelector('#nbdist-tasks').style.width = width }"
FOCUS = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"


Shown = tuple[Lab, Served]


@pytest.fixture(scope="module")
def opened(lab_server: LabServer, chromium: Browser) -> Iterator[Shown]:
    """A JupyterLab with the panel open; its server reports many tasks and runs."""
    lab = Lab(lab_server, chromium, draws=False)
    lab.write("empty.ipynb", ["pass"])
    lab.context = lab.new_context({"width": 1000, "height": 1000})
    invented = Served(lab.context, crowded(TASKS, runs=15))
    lab.open_again("empty.ipynb", kernel=False)
    show_panel(lab)
    yield lab, invented
    lab.close()
    assert not lab.errors, lab.errors


def show_panel(lab: Lab) -> None:
    lab.command("nbdist:show-panel")
    expect(lab.page.locator(f"{PANEL} .nbd-Task")).to_have_count(TASKS)


@pytest.fixture
def served(opened: Shown) -> Shown:
    """The panel as it is first seen, but for its width."""
    lab, invented = opened
    invented.begin_again()
    lab.page.locator("#nbdist-clusters .nbd-Row-name").filter(has_text="many").first.click()
    show_panel(lab)
    return opened


@pytest.fixture
def reloaded(opened: Shown) -> Iterator[Shown]:
    """A page of its own that shows the panel."""
    lab, _ = opened
    lab.open_again("empty.ipynb", kernel=False)
    show_panel(lab)
    yield opened
    lab.end_tabs()


def visible_columns(page: Page) -> list[str]:
    heads: Locator = page.locator(".nbd-Tasks-head [role=columnheader]")
    return [head.inner_text() for head in heads.all() if head.is_visible()]


def test_many_items_are_readable_in_both_themes_narrow_and_wide(served: Shown) -> None:
    lab, _ = served
    page = lab.page
    columns = {}
    for theme in ("Light", "Dark"):
        lab.theme(f"JupyterLab {theme}")
        for width in (220, 500):  # JupyterLab itself makes it no narrower than 250
            page.evaluate(WIDEN, width)
            lab.screenshot(f"sidebar-{theme.lower()}-{width}")
            columns[width] = visible_columns(page)
        assert violations(page, f"{PANEL}, .nbd-Status") == []
    lab.theme("JupyterLab Light")  # the server keeps it, for the tests that follow
    assert columns[220][:4] == ["Task", "State", "/s", "CPU"]
    assert "Mem" not in columns[220]
    assert {"CPU", "Mem", "Step", "Host"} <= set(columns[500])
    expect(page.locator(".nbd-Status")).to_have_text("nbdist: 3 clusters · 2 runs · 2 sweeps")


@pytest.mark.parametrize("step", matrix([60], rest=[7]))
def test_no_width_breaks_the_rows_of_tasks(served: Shown, step: int) -> None:
    lab, invented = served
    page = lab.page
    history = [int(45 + 40 * math.sin(n / 3)) for n in range(30)]
    gpu = {"use": 45, "memory": 3000 * MEGABYTE, "total": 81920 * MEGABYTE, "power": 610, "temperature": 67}
    heights, titles = {}, set()  # type: dict[int, set[int]], set[str]
    without = invented.state["tasks"][5:]
    gpus = [task(rank, gpu={**gpu, "history": history}) for rank in range(TASKS)]
    for tasks, lines in ((without, 0), (gpus, TASKS)):
        invented.change(tasks=tasks)
        expect(page.locator(".nbd-Task-gpu")).to_have_count(lines)
        for width in range(250, 850, step):
            page.evaluate(TASKS_WIDE, f"{width}px")
            height = page.locator(".nbd-Task").nth(10).evaluate("node => node.offsetHeight")
            heights.setdefault(lines, set()).add(height)
        titles |= set(visible_columns(page))
    page.evaluate(TASKS_WIDE, "")
    assert heights[0] == {22}
    assert max(heights[TASKS]) < 3 * 22  # the line of a GPU wraps once in a narrow panel
    assert {"CPU", "Host", "PID", "Device"} <= titles
    for theme in ("Dark", "Light"):
        lab.theme(f"JupyterLab {theme}")
        for width in (250, 500):
            page.evaluate(WIDEN, width)
            lab.screenshot(f"sidebar-gpus-{theme.lower()}-{width}")
    assert violations(page, PANEL) == []


def test_tasks_of_several_hosts_stand_below_their_host(served: Shown) -> None:
    lab, invented = served
    page = lab.page
    there = {**invented.state["clusters"][0], "launcher": "ssh", "hosts": HOSTS, "ends": MIDNIGHT}
    rows = [{**one, "host": HOSTS[one["rank"] % 3]["name"]} for one in invented.state["tasks"]]
    invented.change(clusters=[there], tasks=rows)
    heads = page.locator(".nbd-Tasks-host")
    expect(heads).to_have_count(3)
    assert [text.split() for text in heads.all_inner_texts()] == [
        ["gpu1", "64", "cores", "·", "8", "GPUs", "CPU", "37%", "Memory", "96", "GB", "/", "512", "GB"],
        ["gpu2", "64", "cores", "·", "8", "GPUs"], ["gpu3", "lost"],
    ]  # fmt: skip
    assert "Host" not in visible_columns(page)
    first = page.locator(".nbd-Row").filter(has_text="many").first
    expect(first).to_contain_text("not there: gpu4")
    for theme in ("Dark", "Light"):
        lab.theme(f"JupyterLab {theme}")
        for width in (250, 500):
            page.evaluate(WIDEN, width)
            lab.screenshot(f"sidebar-hosts-{theme.lower()}-{width}")
        assert violations(page, PANEL) == []
    before = invented.state  # for the tests that follow
    invented.change(clusters=before["clusters"][:1], tasks=before["tasks"])
    expect(heads).to_have_count(0)


def test_the_keyboard_reaches_everything_and_the_form_keeps_typed_values(served: Shown) -> None:
    lab, invented = served
    page, keys = lab.page, lab.page.keyboard
    page.locator(PANEL).get_by_role("button", name="Start a cluster…").first.focus()
    seen = []
    for _ in range(24):
        keys.press("Tab")
        seen.append(str(page.evaluate(FOCUS)))
    assert {"many", "Stop the cluster", "digits 0", "Open TensorBoard", "rates 0"} <= set(seen)
    page.locator("#nbdist-clusters .nbd-Row-name").first.focus()
    keys.press("ArrowDown")  # chooses that cluster, too
    page.wait_for_function(f"() => ({FOCUS}) === 'new'")
    expect(page.locator("#nbdist-tasks .nbd-Empty")).to_have_text("new is starting.")

    page.locator(PANEL).get_by_role("button", name="Start a cluster…").first.focus()
    keys.press("Enter")
    expect(page.locator("#nbd-start-workers")).to_be_focused()
    invented.refuse = "there is no room for it"
    keys.type("90")
    keys.press("Enter")
    expect(page.locator(".jp-Dialog [role=alert]")).to_have_text(invented.refuse)
    assert page.locator("#nbd-start-workers").input_value() == "90"
    assert invented.requests[0][2]["workers"] == 90
    lab.screenshot("sidebar-form")
    assert violations(page, ".jp-Dialog-content") == []
    # The launcher's own settings are in the form, and hosts decide how many workers they take.
    page.locator("#nbd-start-launcher").select_option("ssh")
    page.get_by_label("Hosts").fill("gpu1:4,gpu2:4")
    lab.screenshot("sidebar-form-ssh")
    assert violations(page, ".jp-Dialog-content") == []
    page.get_by_label("Hosts").press("Enter")
    page.wait_for_function("() => document.querySelector('.jp-Dialog [aria-busy]').ariaBusy === 'false'")
    until(page, lambda: len(invented.requests) == 2)
    asked = invented.requests[1][2]
    assert (asked["launcher"], asked["workers"], asked["settings"]) == (
        "ssh", None, {"hosts": "gpu1:4,gpu2:4"},
    )  # fmt: skip
    keys.press("Escape")
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    expect(page.locator(PANEL).get_by_role("button", name="Start a cluster…").first).to_be_focused()


def test_each_button_sends_its_request(served: Shown) -> None:
    lab, invented = served
    page = lab.page

    def press(section: str, text: str, action: str, answer: str = "", *, sends: bool = True) -> None:
        before = len(invented.requests)
        row = page.locator(f"#nbdist-{section} [data-row]").filter(has_text=text).first
        row.locator(f'[data-action="{action}"]').click()
        if answer:
            page.locator(".jp-Dialog").get_by_role("button", name=answer, exact=True).click()
        until(page, lambda: len(invented.requests) == before + sends)
        expect(page.locator(f"{PANEL} [aria-busy=true]")).to_have_count(0)

    press("clusters", "many", "grow", "OK")
    press("clusters", "many", "restart")
    press("tasks", "worker 3", "restart")
    press("clusters", "many", "stop", "Stop")
    press("clusters", "mpi", "dismiss")
    press("runs", "digits 0", "stop", "Stop")
    press("sweeps", "rates 0", "pause")
    press("sweeps", "rates 1", "resume")
    assert invented.requests == [
        ("POST", "clusters/many/grow", {"workers": 1}),
        ("POST", "clusters/many/restart", {"task": None}),
        ("POST", "clusters/many/restart", {"task": "worker:3"}),
        ("DELETE", "clusters/many", None),
        ("DELETE", "clusters/mpi", None),
        ("POST", "runs/run-0/stop", {}),
        ("POST", "sweeps/sweep-0/pause", {}),
        ("POST", "sweeps/sweep-1/resume", {}),
    ]
    invented.refuse = "its cluster process does not answer"
    press("clusters", "many", "restart")
    expect(page.locator("#nbdist-clusters [role=alert]").first).to_contain_text(invented.refuse)
    press("clusters", "many", "dismiss-error", sends=False)
    expect(page.locator("#nbdist-clusters").get_by_text(invented.refuse)).to_have_count(0)


def test_a_run_is_managed_by_its_menu_and_the_keyboard(served: Shown) -> None:
    lab, invented = served
    page, keys = lab.page, lab.page.keyboard
    page.locator(".jp-Notebook").first.click()
    lab.command("nbdist:show-panel")
    page.wait_for_function(f"document.querySelector('{PANEL}').contains(document.activeElement)")
    row = page.locator("#nbdist-runs [data-row='run-2']")
    expect(row).to_contain_text("baseline")
    row.locator('[data-action="more"]').focus()
    keys.press("Enter")
    menu = page.locator(".lm-Menu")
    expect(menu.get_by_role("menuitem")).to_have_text(
        ["Rename a Run…", "Tag a Run…", "Write a Note about a Run…", "Delete a Run…", "Delete Old Runs…"]
    )
    lab.screenshot("sidebar-run-menu")
    keys.press("ArrowDown")
    keys.press("Enter")
    page.locator(".jp-Dialog input").fill("two workers")
    keys.press("Enter")
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    until(page, lambda: invented.requests == [("POST", "runs/run-2/labels", {"name": "two workers"})])


def test_a_reload_keeps_its_side_the_chosen_cluster_and_the_folded_sections(reloaded: Shown) -> None:
    lab, _ = reloaded
    page = lab.page
    chosen = page.locator("#nbdist-clusters [aria-current=true]")
    folded = page.locator(f"{PANEL} .lm-AccordionPanel-title[aria-expanded=false]")
    expect(chosen).to_have_text("many")
    assert page.evaluate(SIDE) == "left"
    page.locator(f'.jp-SideBar li[data-id="{PANEL[1:]}"]').click(button="right")
    with page.expect_response(lambda response: response.ok and kept_right(response.request)):
        page.get_by_role("menuitem", name="Switch Sidebar Side").click()
    page.wait_for_function(f"{SIDE} === 'right'")
    with page.expect_response(lambda response: response.ok and kept_choice(response.request) == "new"):
        page.locator("#nbdist-clusters .nbd-Row-name").filter(has_text="new").click()
    with page.expect_response(lambda response: response.ok and kept_folded(response.request)):
        page.locator(f"{PANEL} .lm-AccordionPanel-title").filter(has_text="Sweeps").click()
    expect(folded).to_have_text("Sweeps")
    lab.save()  # or the page asks whether it may be left
    page.reload()
    page.wait_for_function(f"window.jupyterapp?.shell && {SIDE} === 'right'")
    expect(page.locator(PANEL)).to_be_visible()
    expect(chosen).to_have_text("new")
    expect(page.locator("#nbdist-tasks .nbd-Empty")).to_have_text("new is starting.")
    expect(folded).to_have_text("Sweeps")


def kept_by(request: Request) -> dict[str, Any]:
    """What a page has kept with its workspace by this request, if it is one for that."""
    if request.method != "PUT" or "/api/workspaces/" not in request.url or request.post_data is None:
        return {}
    return dict(json.loads(request.post_data)["data"])


def kept_right(request: Request) -> bool:
    """Whether a page has its workspace kept with the panel on the right, and not how it was before."""
    return PANEL[1:] in json.dumps(kept_by(request).get("layout-restorer:data", {}).get("right", {}))


def kept_choice(request: Request) -> str | None:
    """Which cluster a page has kept as the chosen one."""
    return kept_by(request).get("nbdist:chosen-cluster")


def kept_folded(request: Request) -> bool:
    """Whether a page has its workspace kept with a section of the panel folded, on whichever side it is."""
    layout = kept_by(request).get("layout-restorer:data", {})
    sides = [layout.get(side, {}).get("widgetStates", {}) for side in ("left", "right")]
    return any(False in side.get(PANEL[1:], {}).get("expansionStates", []) for side in sides)


SIDE = (
    "['left', 'right'].find(side => [...window.jupyterapp.shell.widgets(side)]"
    ".some(widget => widget.id === 'nbdist-panel'))"
)


@exhaustive
def test_jupyter_notebook_has_it_beside_its_notebook(lab_server: LabServer, chromium: Browser) -> None:
    notebook = Notebook(lab_server, chromium)
    try:
        notebook.write("beside.ipynb", ["pass"])
        page = notebook.open("beside.ipynb", kernel=False)
        notebook.command("nbdist:show-panel")
        expect(page.locator(PANEL)).to_be_visible()
        expect(page.locator("#nbdist-clusters")).to_contain_text("%cluster start")
        notebook.screenshot("sidebar-notebook")
    finally:
        notebook.close()
    assert not notebook.errors, notebook.errors
