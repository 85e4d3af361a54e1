"""Seconds from when a page that was loaded anew has its notebook until the curve of its run is back."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from bench.page_lab import NAME, STEP, feeding

REPLICAS, RATE, BEFORE = 16, 100, 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=BEFORE, help="of the run before the reload")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options.seconds, Path(folder))))


def measure(before: float, folder: Path) -> dict[str, float]:
    """Return what a reload takes after ``before`` seconds: until the notebook is ready, and from then on."""
    with feeding(folder, before + 90, REPLICAS, RATE) as lab:
        page = lab.page
        page.wait_for_timeout(1000 * before)
        lab.save()
        reached = page.evaluate(STEP)
        loaded = time.perf_counter()
        page.reload()
        lab.settle(NAME)
        ready = time.perf_counter()
        page.wait_for_function(f"reached => ({STEP})() >= reached", arg=reached)
        back = time.perf_counter()
    return {"curve back": back - ready, "JupyterLab and notebook before that": ready - loaded}


if __name__ == "__main__":
    main()
