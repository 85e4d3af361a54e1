"""The tab of a run that is closed for minutes, and a second one (28)."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.scenarios.frame import TESTS, Found, Settings, until
from bench.script import NotThere

BEGIN = """import os
import nbdist as nb
%load_ext nbdist
nb.start_cluster(workers=2, threads=1, report=lambda line: None)
print("pid of the kernel:", os.getpid())"""
TRAIN = """%%distribute --strategy multi_worker
import time
def slowly(*batch):
    time.sleep(0.01)
    return batch
x, y, _, _ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(nb.data.Dataset.from_arrays(x, y).batch(64).repeat().map(slowly), steps_per_epoch=10, epochs=10**6)
"""
AT = """node => Number(/at [a-z]+ ([\\d,]+)/.exec(node.ariaLabel)?.[1].replaceAll(',', '') ?? -1)"""
MOST_GROWTH = 64.0  # MB of the kernel, and of the page's heap


def closed_tab(found: Found, settings: Settings) -> None:
    """The tab of a run is closed for minutes, then two are opened: both have the whole curve."""
    sys.path[:0] = [str(TESTS / "browser"), str(TESTS)]
    try:
        import psutil
        from browser_lab import LIVE, Lab, bring_into_view, start_chromium, wait_for_curve
        from browser_server import LabServer
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NotThere(f"no browser here: {error}") from None
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        raise NotThere("no Chromium here")

    def at(page: Any) -> int:
        return int(page.locator(f"{LIVE} .nbd-plot").first.evaluate(AT))

    def heap(page: Any) -> float:
        chromium = page.context.new_cdp_session(page)
        for _ in range(2):
            chromium.send("HeapProfiler.collectGarbage")
        return float(chromium.send("Runtime.getHeapUsage")["usedSize"]) / 1e6

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = LabServer(Path(folder))
        try:
            browser = start_chromium(playwright)
            lab = Lab(server, browser)
            lab.write("away.ipynb", [BEGIN, TRAIN])
            page = lab.open("away.ipynb")
            lab.run(0)
            kernel = psutil.Process(int(lab.output(0).inner_text().partition("kernel:")[2]))
            lab.run(1, wait=False)
            wait_for_curve(page)
            page.wait_for_timeout(5_000)
            lab.save()
            left_at, memory, page_memory = at(page), kernel.memory_info().rss / 1e6, heap(page)
            page.close()
            time.sleep(settings.away)
            pages = []
            for _ in range(2):
                begun = time.monotonic()
                pages.append(page := lab.open_again("away.ipynb"))
                view = page.locator(LIVE)
                view.wait_for(state="attached")
                bring_into_view(view)
                wait_for_curve(page)
                found.figures.append(f"curve back {time.monotonic() - begun:.1f} s")
            grown = kernel.memory_info().rss / 1e6 - memory
            for page in pages:
                page.bring_to_front()
                last = at(page)
                until(lambda: at(page) > last, 30, "a curve that grows", page.wait_for_timeout)  # noqa: B023
                page.locator(f"{LIVE} .nbd-plot").first.press("Home")
                until(lambda: 0 <= at(page) < left_at, 30, "its begin", page.wait_for_timeout)  # noqa: B023
                found.figures.append(f"steps {at(page):,} to {last:,}, away from {left_at:,}")
                found.expect(last > left_at + 2 * settings.away, f"the curve ends at {last}")
                found.expect(at(page) <= 2, f"the curve begins at {at(page)}")
            larger = heap(pages[0]) - page_memory
            found.figures.append(f"kernel {grown:+.1f} MB, page {larger:+.1f} MB")
            found.expect(grown < MOST_GROWTH, f"the kernel has grown by {grown:.0f} MB")
            found.expect(larger < MOST_GROWTH, f"the page has grown by {larger:.0f} MB")
            found.wrong += [f"page: {error}" for error in lab.errors]
            lab.close()
            browser.close()
        finally:
            server.close()
