"""The GPUs of a run in a real JupyterLab: live, saved as a table, and drawn again without a kernel."""

from __future__ import annotations

import re

import pytest
from browser_axe import violations
from browser_lab import LIVE, Lab, bring_into_view
from playwright.sync_api import expect
from test_browser_live import SETTLED, SETUP
from tiers import matrix

pytestmark = pytest.mark.browser

SEEN = "gpus-seen"
Looks = dict[str, list[int]]
GPUS = f"{LIVE} .nbd-gpus"
RUN = """from dataclasses import replace
from pathlib import Path
from gpus_to_show import Gpus3, slow_input
shown, gpus = LiveDisplay(store, workers(3), "digits on GPUs", total_steps=600), Gpus3(store)
shown.show()
await looked_at(shown)
shown.put("gpus", gpus.measure(150))
shown.progress(gpus.words | {{"input": slow_input()}})
await feed(shown, store, 3, 600, seconds=0.5, until=lambda: drawn(shown) and Path({seen!r}).exists())
over_time = gpus.measure(30)
shown.finish(replace(summary("digits on GPUs", 3, 600), gpus=over_time, input=slow_input(), **gpus.words))
"""
# JupyterLab lays a notebook out after the window has its size; a place scrolled to before moves out of sight.
AS_WIDE = """selector => {
  const {right} = document.querySelector(selector).getBoundingClientRect();
  return right <= innerWidth && innerWidth - right < 100; }"""
WIDE_ENOUGH = """(selector) => [...document.querySelectorAll(`${selector} *`)].filter(node => {
  const [box, view] = [node.getBoundingClientRect(), node.closest('.nbdist-live').getBoundingClientRect()];
  return box.width && (box.left < view.left - 1 || box.right > view.right + 1);
}).map(node => node.outerHTML.slice(0, 120))"""


def look(lab: Lab, name: str, looks: Looks) -> None:
    """Take pictures in themes and at widths; all is within the view, and accessible."""
    for theme, widths in looks.items():
        lab.theme(f"JupyterLab {theme}")
        for width in widths:
            lab.resize(width, 1300)
            lab.page.wait_for_function(AS_WIDE, arg=LIVE)
            lab.page.wait_for_function(SETTLED)
            bring_into_view(lab.page.locator(GPUS), "center")
            expect(lab.page.locator(GPUS)).to_be_in_viewport()
            lab.screenshot(f"gpus-{name}-{theme.lower()}-{width}")
            assert lab.page.evaluate(WIDE_ENOUGH, GPUS) == []
        assert violations(lab.page, LIVE) == []


FEW: tuple[Looks, Looks] = {"Dark": [430, 1100]}, {"Light": [430, 1100]}  # of the live and of the saved view
ALL: tuple[Looks, Looks] = (FEW[0] | FEW[1],) * 2


@pytest.mark.parametrize(
    "looks", matrix([pytest.param(FEW)], rest=[pytest.param(ALL)]), ids=["some looks", "all looks"]
)
def test_gpus_are_seen_live_saved_and_without_a_kernel(
    lab: Lab, drawing_lab: Lab, looks: tuple[Looks, Looks]
) -> None:
    seen = lab.server.notebooks / SEEN
    seen.unlink(missing_ok=True)
    lab.write("gpus.ipynb", [SETUP, RUN.format(seen=str(seen))])
    page = lab.open("gpus.ipynb")
    lab.run(0)
    lab.run(1, wait=False)
    rows = page.locator(f"{GPUS} .nbd-gpu")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("NVIDIA H100 80GB HBM3")
    expect(rows.first.locator("svg")).to_have_count(4)
    expect(rows.nth(1).locator("svg")).to_have_count(1)  # a MIG slice has its memory
    expect(page.locator(f"{LIVE} .nbd-devices")).to_contain_text("GPU-8f3a… (GPU:0)")
    expect(page.locator(f"{LIVE} .nbd-warning")).to_contain_text(
        "worker 2 has GPU-52dd… and trains on the CPU"
    )
    slow = page.locator(f"{LIVE} .nbd-input")
    expect(slow.locator("summary")).to_contain_text(
        "worker 1: map(decode_and_augment_the_image) is the bottleneck"
    )
    slow.locator("summary").click()
    expect(slow.locator("tr.nbd-slowest")).to_have_text(re.compile("1 thread.*4,000.*96%.*0.2 of 2"))
    expect(slow.locator("li").first).to_contain_text("num_parallel_calls=nb.data.AUTOTUNE")
    look(lab, "live", looks[0])

    bring_into_view(
        page.locator(GPUS), "center"
    )  # a view out of sight draws nothing, and the cell waits until it has
    seen.touch()
    lab.wait_done(1)
    expect(page.locator(LIVE)).to_have_count(0)
    expect(lab.output(1)).to_contain_text("trained on worker 0: NVIDIA H100 80GB HBM3 GPU-8f3a… (GPU:0)")
    expect(lab.output(1).locator("table").nth(-2)).to_contain_text("peak temperature")
    expect(lab.output(1).locator("details").first).to_contain_text("training waits for data 61% of the time")
    lab.save()
    bring_into_view(page.locator(".jp-OutputArea table").last, "center")
    lab.screenshot("gpus-saved-table")
    lab.shut_kernel_down()
    lab.close()

    page = drawing_lab.open("gpus.ipynb", kernel=False, height=1300)
    bring_into_view(drawing_lab.output(1))
    expect(page.locator(f"{GPUS} .nbd-gpu")).to_have_count(2)
    expect(page.locator(GPUS)).to_contain_text("over 2 min 59 s")
    expect(page.locator(GPUS)).to_contain_text("use, mean")
    expect(page.get_by_text("trained on worker 0")).to_have_count(1)  # in the view, and not below it again
    look(drawing_lab, "saved", looks[1])
