"""The cost of the sidebar for its page: 100 tasks and 50 runs, all of which change twice a second.

A fake server sends the changes through the panel's stream. The figure is CPU time of the page's main thread.

`python -m bench.sidebar_flow --changes 20` is a shorter measurement.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
# for the JupyterLab, Chromium and fake server of the browser tests
sys.path.insert(0, str(ROOT / "tests" / "browser"))

TASKS, RUNS, CHANGES = 100, 50, 60
PAUSE = 500  # ms between two changes: the server sends no more than two a second
WARM_UP = 6  # uncounted changes: the browser compiles code and creates the rows
PARTS = ("ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
STEP = "document.querySelector('#nbdist-tasks .nbd-Task .nbd-Task-step')?.textContent"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--screenshot", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), options.changes, options.screenshot)))


def measure(folder: Path, changes: int, screenshot: str = "") -> dict[str, float]:
    """Return ms of the main thread for one change: its script, style and layout."""
    with crowded_lab(folder) as (lab, served):
        chromium = lab.page.context.new_cdp_session(lab.page)
        chromium.send("Performance.enable", {"timeDomain": "threadTicks"})
        spent = [change(lab, served, chromium, number) for number in range(WARM_UP + changes)][WARM_UP:]
        still = [cost(lab, chromium) for _ in range(10)]
        last = f"{step_of(WARM_UP + changes - 1):,}"
        lab.page.wait_for_function(f"last => {STEP} === last", arg=last)  # it has not stood still
        if screenshot:
            lab.screenshot(screenshot)
    whole = [sum(each) for each in spent]
    script, style, layout = (median(part) for part in zip(*spent, strict=True))
    return {
        "a change, median": median(whole),
        "a change, the most": max(whole),
        "of it script": script,
        "of it style": style,
        "of it layout": layout,
        "without a change": median(sum(each) for each in still),
    }


def change(lab: Any, served: Any, chromium: Any, number: int) -> tuple[float, ...]:
    """Let every task and run change once; return what that cost."""
    tasks, runs = served.state["tasks"], served.state["runs"]
    for rank, task in enumerate(tasks):
        task |= {"step": step_of(number), "cpu": 90 + (number + rank) % 10}
        task |= {"steps_per_second": 50 + (number + rank) % 17, "memory": (300 + (number + rank) % 9) << 20}
    for place, run in enumerate(runs):
        x, y = run["curve"]["x"], run["curve"]["y"]
        run |= {"step": 430 + number, "value": 1 / (2 + number + place)}
        run |= {"curve": {"x": [*x[1:], x[-1] + 1], "y": [*y[1:], run["value"]]}}
    return cost(lab, chromium, lambda: served.change(tasks=tasks, runs=runs))


def cost(lab: Any, chromium: Any, act: Any = lambda: None) -> tuple[float, ...]:
    """Return ms of script, style and layout between something that is done and half a second later."""
    before = metrics(chromium)
    act()
    lab.page.wait_for_timeout(PAUSE)
    after = metrics(chromium)
    return tuple(1e3 * (after[part] - before[part]) for part in PARTS)


def metrics(chromium: Any) -> dict[str, float]:
    found = chromium.send("Performance.getMetrics")["metrics"]
    return {entry["name"]: float(entry["value"]) for entry in found}


def step_of(number: int) -> int:
    return 5000 + 30 * number


@contextmanager
def crowded_lab(folder: Path) -> Iterator[tuple[Any, Any]]:
    """Yield a JupyterLab that shows the panel, and the invented server that it asks."""
    from browser_lab import Lab, start_chromium
    from browser_server import LabServer
    from playwright.sync_api import sync_playwright
    from sidebar_to_show import Served, crowded, run

    state = crowded(TASKS, RUNS)
    state |= {"sweeps": [], "clusters": state["clusters"][:1]}
    state["runs"] = [run(number, "running") for number in range(RUNS)]
    server = LabServer(folder)
    try:
        with sync_playwright() as playwright:
            browser = start_chromium(playwright)
            lab = Lab(server, browser)
            lab.write("empty.ipynb", ["pass"])
            lab.context = context = browser.new_context(viewport={"width": 1100, "height": 1100})
            served = Served(context, state)
            lab.open_again("empty.ipynb", kernel=False)
            lab.command("nbdist:show-panel")
            lab.page.wait_for_selector("#nbdist-panel .nbd-Task")
            yield lab, served
            lab.close()
            browser.close()
    finally:
        server.close()


if __name__ == "__main__":
    main()
