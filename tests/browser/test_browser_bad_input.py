"""What no run should send, and some do: the view stays alive, and the page with it."""

from __future__ import annotations

import re

import pytest
from browser_lab import LIVE, Lab, bring_into_view, record
from playwright.sync_api import Locator, Page, expect
from test_browser_live import SETUP
from tiers import matrix

pytestmark = pytest.mark.browser

START = "store = RunStore()\nview = LiveView(store, workers({replicas}), {title!r})\ndisplay(view)\n"
END = "\nawait shown_whole(view)"
NOT_NUMBERS = """steps = np.arange(300)
loss = 2 * np.exp(-steps / 80)
loss[50:70], loss[100], loss[101], loss[150:160] = np.nan, np.inf, -np.inf, 3e38
store.extend(0, "loss", steps, loss, steps + 1e9)
store.extend(1, "loss", steps, np.full(300, np.nan), steps + 1e9)
store.extend(0, "accuracy", steps, np.full(300, np.inf), steps + 1e9)
store.extend(0, "mae", steps[:1], [np.nan], [np.nan])"""
MANY_SERIES = """for number in range(10_000):
    store.extend(number % 2, f"metric {number}", [0, 1, 2], [0.0, number, 1.0], [1e9, 1e9, 1e9])"""
MANY_POINTS = """rng = np.random.default_rng(0)
for start in range(0, 1_000_000, 20_000):
    steps = np.arange(start, start + 20_000)
    values = rng.standard_normal(len(steps)) + 5
    values[steps == 777_777] = 30  # one spike in a million
    store.extend(0, "loss", steps, values, 1e9 + steps / 1000)
    view.progress({"step": start})
    view.tick(time.monotonic())
    await asyncio.sleep(0.01)"""
HTML = """bad = "</style><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
store.extend(0, bad, np.arange(9), np.arange(9.0), np.arange(9.0))
store.extend(0, "loss\\x00\\n\\u202e" + "l" * 3000, np.arange(9), np.arange(9.0), np.arange(9.0))
view.progress({"note": bad, "per_replica": {0: {"state": bad, "step": 3}}})"""
TEXT = """view.output(view.head["tasks"][0], "\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07plain\\n")
for percent in range(101):
    view.output(view.head["tasks"][0], f"\\rdone: {percent}%")
view.output(view.head["tasks"][0], "\\nbell\\x07 and <b>bold</b> 🙂\\r\\nlast\\n")"""
CLOCK = """steps = np.arange(400)
times = 1e9 + steps * 0.01
times[100:] -= 3600  # an hour back, and later two days ahead
times[300:] += 172_800
store.extend(0, "loss", steps, np.exp(-steps / 100), times)
view.progress({"elapsed": -5.0, "seconds_left": -3.0, "steps_per_second": np.nan, "step": 7, "total": 0})"""
BAD = {
    "not numbers": (NOT_NUMBERS, 2), "many series": (MANY_SERIES, 2), "many points": (MANY_POINTS, 1),
    "html": (HTML, 1), "text": (TEXT, 1), "clock": (CLOCK, 1),
}  # fmt: skip
WATCH = """() => { let last = performance.now(); window.longest = 0; setInterval(() => {
  const now = performance.now(); window.longest = Math.max(window.longest, now - last); last = now }, 10) }"""


def shown(lab: Lab, number: int) -> Locator:
    """Run a cell while its output is on the screen; returns its view."""
    lab.run(number, wait=False)
    view = lab.output(number).locator(LIVE)
    view.wait_for(state="attached")
    bring_into_view(view)
    lab.wait_done(number)
    return view


def check_alive(page: Page, view: Locator) -> None:
    """Its buttons and keys do what they do."""
    for _ in range(2):
        view.get_by_role("button", name="Log scale").click()
        view.get_by_role("button", name="Wall time").click()
    chart = view.locator(".nbd-plot").first
    chart.focus()
    page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-label", re.compile(r"at step [\d,]+:"))
    view.locator(".nbd-data summary").click()
    expect(view.locator(".nbd-data tbody tr").first).to_be_visible()


@pytest.mark.parametrize(
    "titles",
    matrix([["not numbers", "html", "text", "clock"]], rest=[["many series", "many points"]]),
    ids=" ".join,
)
def test_the_view_survives_bad_input(lab: Lab, titles: list[str]) -> None:
    cells = [
        START.format(replicas=n, title=title) + source + END
        for title, (source, n) in BAD.items()
        if title in titles
    ]
    lab.write("bad.ipynb", [SETUP, *cells])
    page = lab.open("bad.ipynb", height=1200, fresh="many points" in titles)
    if "many points" in titles:
        page.evaluate(WATCH)
    lab.run(0)
    for number, title in enumerate(titles, 1):
        view = shown(lab, number)
        expect(view.locator(".nbd-chip")).to_contain_text("running")
        if title != "text":
            check_alive(page, view)
        bring_into_view(view)
        lab.screenshot(f"bad-{title.replace(' ', '-')}")
        error = page.locator(".jp-OutputArea-output[data-mime-type*='error'], [data-mime-type*='stderr']")
        assert error.all_inner_texts() == []
    assert page.evaluate("window.ran") is None
    assert page.locator(f"{LIVE} img, {LIVE} script, {LIVE} b b").count() == 0
    if "many points" in titles:
        record("bad input: longest that the page stood still, ms", round(page.evaluate("window.longest")))
        points = lab.output(titles.index("many points") + 1).locator(".nbd-data tbody tr").first
        assert "30.0" in points.inner_text()  # the spike
    if "text" in titles:
        text = lab.output(titles.index("text") + 1).locator("pre").inner_text()
        assert text.splitlines()[:2] == ["red plain", "done: 100%"]
        assert "<b>bold</b>" in text
