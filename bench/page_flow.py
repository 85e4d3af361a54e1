"""P13: 64 replicas of 100 points a second in a live view, in JupyterLab in a headless Chromium, for minutes.

`python -m bench.page_flow --minutes 1 --profile 20` also prints where the main thread spends its time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.page_lab import STEP, feeding

MINUTES = float(os.environ.get("BENCH_MINUTES", "10"))
REPLICAS, RATE = 64, 100
OBSERVE = (
    "() => { window.longTasks = []; window.longTaskObserver = new PerformanceObserver(list => {"
    " for (const entry of list.getEntries()) window.longTasks.push(entry.duration) });"
    " window.longTaskObserver.observe({type: 'longtask'}) }"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--replicas", type=int, default=REPLICAS)
    parser.add_argument(
        "--profile", type=int, default=0, help="seconds to profile; the profile is printed to stderr"
    )
    parser.add_argument("--screenshot", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.minutes, options.replicas, Path(folder), options.profile, options.screenshot)
    print(json.dumps(found))


def measure(
    minutes: float, replicas: int, folder: Path, profiled: int = 0, screenshot: str = ""
) -> dict[str, float]:
    """Return the figures of P13; the first minute (the first fifth of a short measurement) is not counted."""
    whole = 60.0 * minutes
    warm_up = min(60.0, whole / 5)
    with feeding(folder, whole + 5, replicas, RATE) as lab:
        page = lab.page
        page.wait_for_timeout(1000 * warm_up)
        chromium = page.context.new_cdp_session(page)
        chromium.send("Performance.enable")
        heap, step = used(chromium), page.evaluate(STEP)
        page.evaluate(OBSERVE)
        begin, busy = time.monotonic(), task_seconds(chromium)
        if profiled:
            print_profile(chromium, profiled)
        while (left := whole - warm_up - (time.monotonic() - begin)) > 0:
            page.wait_for_timeout(min(1000.0, 1000 * left))
        lasted = time.monotonic() - begin
        busy = task_seconds(chromium) - busy
        tasks = page.evaluate("() => (window.longTaskObserver.disconnect(), window.longTasks)")
        if page.evaluate(STEP) <= step:
            raise RuntimeError(f"the curve stood still at step {step}: nothing was measured")
        if screenshot:
            lab.screenshot(screenshot)
        grown = used(chromium) - heap
        lab.wait_done(0)
        printed = re.search(r"frames a second: ([\d.]+)", lab.output(0).inner_text())
    return {
        "time in tasks over 50 ms": 100 * sum(tasks) / 1e3 / lasted,
        "heap growth": grown / 1e6,
        "longest task": max(tasks, default=0.0),
        "frames": float(printed[1]) if printed else 0.0,
        "main thread busy": 100 * busy / lasted,
    }


def used(chromium: Any) -> int:
    """Return the bytes of the page's heap that are in use, after collecting garbage."""
    for _ in range(2):
        chromium.send("HeapProfiler.collectGarbage")
    return int(chromium.send("Runtime.getHeapUsage")["usedSize"])


def task_seconds(chromium: Any) -> float:
    """Return the seconds that the main thread has been busy so far."""
    metrics = {entry["name"]: entry["value"] for entry in chromium.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def print_profile(chromium: Any, seconds: int) -> None:
    """Print where the main thread spends its time, by function, in per cent."""
    chromium.send("Profiler.enable")
    chromium.send("Profiler.setSamplingInterval", {"interval": 500})
    chromium.send("Profiler.start")
    time.sleep(seconds)
    profile = chromium.send("Profiler.stop")["profile"]
    for name, share in shares(profile).most_common(30):
        print(f"{share:6.2f}% {name}", file=sys.stderr)


def shares(profile: dict[str, Any]) -> Counter[str]:
    """Return each function's own share of a profile's time, in per cent."""
    names = {}
    for node in profile["nodes"]:
        frame = node["callFrame"]
        where = f"{frame['url'].rsplit('/', 1)[-1][-40:]}:{frame['lineNumber'] + 1}"
        names[node["id"]] = f"{frame['functionName'] or '(anonymous)'} {where}"
    spent: Counter[str] = Counter()
    for node, delta in zip(profile["samples"], profile["timeDeltas"], strict=True):
        spent[names[node]] += delta
    whole = sum(spent.values())
    return Counter({name: 100 * share / whole for name, share in spent.items()})


if __name__ == "__main__":
    main()
