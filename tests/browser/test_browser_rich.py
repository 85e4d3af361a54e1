"""What workers print and display, in a notebook and on the run's page: figures, HTML, bars, stderr."""

from __future__ import annotations

import pytest
from browser_lab import LIVE, Lab, bring_into_view, until, wait_for_picture
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SETUP = """import nbdist as nb
%load_ext nbdist
nb.start_cluster(workers=2, orphan_timeout=600, report=lambda line: None);"""
RICH = """%%distribute --name rich
import sys, time, pathlib
import matplotlib.pyplot as plt
from IPython.display import HTML, Markdown, SVG, display
print("printed", "\\x1b[32mgreen\\x1b[0m", "\\x1b[1;35mbold\\x1b[0m")
print("a warning", file=sys.stderr)
sys.stdout.write("outer 1%\\ninner 1%\\n")
plt.plot([3, 1, 2]); plt.title("the same"); plt.show()
plt.plot([1, nb.task.rank]); plt.title(f"of {nb.task.rank}"); plt.show()
if nb.task.is_chief:
    display(HTML("<table><tr><td>1</td></tr></table><img src='no' onerror='window.ran=1'>"))
    display(Markdown("**strong** $x^2$"))
    circle = "<circle cx='9' cy='9' r='8'/>"
    display(SVG(f"<svg xmlns='http://www.w3.org/2000/svg' width='60' height='20'>{circle}</svg>"))
while not pathlib.Path(GATE).exists():
    time.sleep(0.02)
sys.stdout.write("\\x1b[2A\\r\\x1b[2Kouter 100%\\n\\r\\x1b[2Kinner 100%\\nended\\n")
while not pathlib.Path(GATE + "-2").exists():
    time.sleep(0.02)"""
PAGE = ".nbd-Page:visible"


@pytest.mark.timeout(240)
def test_rich_output_is_seen_live_saved_and_on_the_runs_page(drawing_lab: Lab) -> None:
    lab = drawing_lab
    gates = [lab.server.notebooks / name for name in ("gate", "gate-2")]
    for gate in gates:
        gate.unlink(missing_ok=True)
    lab.write("rich.ipynb", [SETUP, RICH.replace("GATE", repr(str(gates[0])))])
    page = lab.open("rich.ipynb", height=1700)
    lab.run(0)
    lab.run(1, wait=False)

    live = page.locator(f"{LIVE} .nbd-output .nbd-section")
    expect(live).to_have_count(2)
    texts = live.locator("pre")
    expect(texts.first).to_contain_text("inner 1%")
    expect(texts.first.locator(".nbd-stderr")).to_have_text("a warning\n")
    expect(texts.first.locator(".nbd-ink-2")).to_have_text("green")
    output = lab.output(1)
    expect(output.locator(".jp-RenderedImage img")).to_have_count(3)  # one that both have, and one of each
    expect(
        output.locator("small", has_text="worker 0, worker 1").or_(
            output.locator("small", has_text="worker 1, worker 0")
        )
    ).to_have_count(1)
    lab.screenshot("rich-live")
    gates[0].touch()
    for text in texts.all():
        expect(text).to_contain_text("outer 100%\ninner 100%\nended")
        expect(text).not_to_contain_text("1%\ninner 1%")

    lab.theme("JupyterLab Dark")
    lab.resize(420, 1700)
    bring_into_view(live.first)
    assert texts.first.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
    lab.screenshot("rich-live-dark")
    gates[1].touch()
    lab.wait_done(1)
    saved = output.locator("details pre")
    expect(saved).to_have_count(2)
    expect(saved.first).to_contain_text("a warning\nouter 100%\ninner 100%\nended")
    expect(output.locator(".jp-RenderedImage img")).to_have_count(3)
    assert page.evaluate("window.ran") == 1  # a cell's output is the user's own
    lab.screenshot("rich-saved")

    # The page of the run reads files, which may come from elsewhere: no script runs.
    page.evaluate("delete window.ran")
    [folder] = lab.server.home.glob("runs/*-rich")
    lab.command("nbdist:open-run", {"id": folder.name})
    shown = page.locator(PAGE)
    displays = shown.locator(".nbd-Page-display")
    expect(displays).to_have_count(7)
    expect(displays.locator("table")).to_have_count(1)
    expect(displays.locator("strong")).to_have_text("strong")
    until(page, lambda: displays.locator("img[src^='data:image/svg']").count() == 1)
    wait_for_picture(displays.locator("img").first, 100)
    assert page.evaluate("window.ran") is None
    expect(shown.locator("pre .nbd-stderr").first).to_have_text("a warning")
    for theme, width in (("JupyterLab Dark", 420), ("JupyterLab Light", 1200)):
        lab.theme(theme)
        lab.resize(width, 1700)
        bring_into_view(displays.first)
        assert displays.first.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
        lab.screenshot(f"rich-page-{'dark' if 'Dark' in theme else 'light'}")
