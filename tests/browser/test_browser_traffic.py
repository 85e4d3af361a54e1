"""What travels between the kernel and a page: no more than is looked at, and nothing is missed for good."""

from __future__ import annotations

import json
import re

import pytest
from browser_lab import LIVE, Lab, record, wait_for_curve
from playwright.sync_api import expect
from test_browser_live import SETUP, starting_with
from tiers import matrix

pytestmark = pytest.mark.browser

BOTH = """store = RunStore()
whole, lossy = LiveView(store, workers(3), "a run"), LossyView(store, workers(3), "a run")
display(whole, lossy)
both = Both(whole, lossy)
await feed(both, store, 3, 3000, seconds=3)
while lossy.lost < 10:  # a slow page is sent few frames
    both.progress({})
    both.tick(time.monotonic())
    await asyncio.sleep(0.02)
for view in (whole, lossy):
    view.finish("finished")
print(lossy.lost, lossy.flow.sequence)"""
DRAWN = """node => [...node.querySelectorAll('canvas')].map(canvas => canvas.toDataURL())"""
SAME = f"views => new Set(views.map(view => ({DRAWN})(view).join())).size === 1"


def test_lost_frames_do_not_change_the_curve(lab: Lab) -> None:
    lab.write("lossy.ipynb", [SETUP, BOTH])
    page = lab.open("lossy.ipynb", height=2400)  # both are seen
    lab.run(0)
    lab.run(1)
    expect(page.locator(LIVE)).to_have_count(2)
    for view in page.locator(LIVE).all():
        view.scroll_into_view_if_needed()
        expect(view.locator(".nbd-chip")).to_contain_text("finished")
        view.locator(".nbd-data summary").click()
        expect(view.locator(".nbd-data tbody tr").first).to_be_visible()
        expect(view.locator(".nbd-data tbody tr").first).to_contain_text("2,999")
    whole, lossy = page.locator(LIVE).all()
    assert whole.locator(".nbd-data").inner_text() == lossy.locator(".nbd-data").inner_text()
    assert len(whole.evaluate(DRAWN)) == 2
    # An opened table may have made the page narrower: each view is drawn again after its resize event.
    page.wait_for_function(SAME, arg=[whole.element_handle(), lossy.element_handle()])
    lost, sent = lab.output(1).locator("[data-mime-type$='stdout']").inner_text().split()
    record("traffic: frames lost on purpose, of", [int(lost), int(sent)])


COUNTED = """sent = []
class Counted(LiveView):
    def send(self, content, buffers=None):
        sent.append((time.monotonic(), sum(map(len, buffers or []))))
        super().send(content, buffers)
store = RunStore()
view = Counted(store, workers(4), "counted")
display(view)
"""


HIDE = """hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
  document.dispatchEvent(new Event('visibilitychange')); return true }"""
# Again in each frame until it is so: before the notebook is laid out there is nothing to scroll.
SCROLL = """hidden => {
  const view = document.querySelector('section.nbdist-live'), area = view.closest('.jp-WindowedPanel-outer');
  const [at, within] = [view.getBoundingClientRect(), area.getBoundingClientRect()];
  if ((at.bottom < within.top || at.top > within.bottom) === hidden) return true;
  area.scrollTo(0, hidden ? area.scrollHeight : 0);
  return false;
}"""


@pytest.mark.parametrize("hide", [SCROLL, HIDE], ids=["scrolled away", "another tab in front"])
def test_a_hidden_page_receives_no_frames_and_catches_up(lab: Lab, hide: str) -> None:
    source = COUNTED + (
        "await feed(view, store, 4, 1000, until=lambda: not view.flow.visible_views)\n"
        "before = len(sent)\n"
        "for part in range(1000, 5000, 100):\n"
        "    add_points(store, 4, part, 100, 5000)\n"
        "    view.output(workers(1)[0], f'at {part}\\n')\n"
        "    view.tick(time.monotonic())\n"
        "    await asyncio.sleep(0.02)\n"
        "print(before, len(sent) - before)\n"
        "while not settled(view):\n"
        "    view.tick(time.monotonic())\n"
        "    await asyncio.sleep(0.02)\n"
    )
    lab.write("hidden.ipynb", [SETUP, source, "pass\n" * 200])
    page = lab.open("hidden.ipynb")
    lab.run(0)
    lab.run(1, wait=False)
    wait_for_curve(page)
    page.wait_for_function(hide, arg=True)
    printed = page.locator(".jp-OutputArea-output[data-mime-type$='stdout']")
    expect(printed).to_have_text(re.compile(r"^\d+ \d+\s*$"))
    before, hidden = (printed.text_content() or "").split()
    page.wait_for_function(hide, arg=False)
    lab.wait_done(1)  # it waits to be seen again
    assert int(before) >= 1
    assert int(hidden) == 0
    chart = page.locator(f"{LIVE} .nbd-plot").first
    expect(chart).to_have_attribute("aria-label", starting_with("loss by step; at step 4,999:"))
    chart.press("Home")
    expect(chart).to_have_attribute("aria-label", re.compile("at step [0-9]{1,2}:"))
    expect(page.locator(f"{LIVE} .nbd-output pre")).to_contain_text("at 1000\nat 1100\nat 1200")


def test_at_most_ten_frames_are_sent_in_a_second(lab: Lab) -> None:
    source = COUNTED + (
        "await feed(view, store, 4, 20_000, seconds=3, until=lambda: settled(view))\n"
        "import json; print(json.dumps(sent))"
    )
    lab.write("counted.ipynb", [SETUP, source])
    lab.open("counted.ipynb")
    lab.run(0)
    lab.run(1)
    sent = json.loads(lab.output(1).locator("[data-mime-type$='stdout']").inner_text())
    times = [at for at, _ in sent]
    most = max(sum(at <= other < at + 1 for other in times) for at in times)
    assert most <= 11  # ten, and the one that a late tick let come early
    record("traffic: frames in the busiest second", most)
    record("traffic: kB of the largest frame", round(max(size for _, size in sent) / 1000, 1))


@pytest.mark.parametrize("tabs", matrix([1], rest=[2]))
def test_a_reopened_tab_has_the_whole_history(lab: Lab, tabs: int) -> None:
    source = (
        "shown = LiveDisplay(store, workers(2), 'a run', total_steps=400)\n"
        "shown.show()\n"
        "await feed(shown, store, 2, 400, until=lambda: Path('seen.txt').exists())\n"
        "shown.finish(summary('a run', 2, 400))\n"
    )
    path = lab.write("tabs.ipynb", [SETUP + "\nfrom pathlib import Path", source])
    (path.parent / "seen.txt").unlink(missing_ok=True)  # of the test with another number of tabs
    first = lab.open("tabs.ipynb")
    lab.run(0)
    lab.run(1, wait=False)
    expect(first.locator(f"{LIVE} .nbd-plot").first).to_have_attribute("aria-label", starting_with("loss"))
    lab.save()
    first.close()
    for _ in range(tabs):  # all of them new
        page = lab.open_again("tabs.ipynb")
        chart = page.locator(f"{LIVE} .nbd-plot").first
        expect(chart).to_have_attribute("aria-label", starting_with("loss by step; at step 399:"))
        page.locator(f"{LIVE} .nbd-data summary").click()
        expect(page.locator(f"{LIVE} .nbd-data tbody tr").first).to_contain_text("400")
    (path.parent / "seen.txt").touch()
    expect(page.locator(f"{LIVE} .nbd-chip")).to_contain_text("finished")  # it has no other output
