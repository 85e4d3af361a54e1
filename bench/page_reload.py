"""Seconds from when a page that was loaded anew has its notebook until the curve of its run is back.

JupyterLab 4.6 sends nothing to a kernel that is busy with a cell before its own Kernel Info Timeout is over:
3 s, or what its settings say, at least 1 s. It is measured with both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from bench.page_lab import NAME, STEP, feeding

REPLICAS, RATE, BEFORE = 16, 100, 20.0
SHORT = {"apputils-extension/kernels-settings": {"kernelInfoTimeout": 1000}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=BEFORE, help="of the run before the reload")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain = measure(options.seconds, Path(folder) / "plain")
        short = measure(options.seconds, Path(folder) / "short", SHORT)
    print(
        json.dumps(
            {
                "curve back": plain["back"],
                "curve back, Kernel Info Timeout 1 s": short["back"],
                "JupyterLab and notebook before that": plain["ready"],
            }
        )
    )


def measure(
    before: float, folder: Path, settings: dict[str, dict[str, object]] | None = None
) -> dict[str, float]:
    """Return what a reload takes after ``before`` seconds: until the notebook is ready, and from then on."""
    with feeding(folder, before + 90, REPLICAS, RATE, settings) as lab:
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
    return {"ready": ready - loaded, "back": back - ready}


if __name__ == "__main__":
    main()
