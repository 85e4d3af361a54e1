"""Host waits, copies and launches of a training step, by Nsight Systems.

    python -m bench.gpu_profile                  # needs nsys in PATH, and a GPU

A step's counts are the difference between a run of few steps and one of more, so that what happens once
(compiling, the first epoch) does not count.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.script import ROOT, not_measured
from bench.sync_work import WORKS

WARM_UP, FEW, MORE = 50, 50, 250
KINDS = {"waits of the host": "Synchronize", "copies": "Memcpy", "launches": "Launch"}
"""What is counted, by a part of the names of CUDA's functions."""


def main() -> None:
    for line in report():
        print(line)


def report() -> Iterator[str]:
    """Yield a line for each work. Raises SystemExit if Nsight Systems is not installed."""
    if shutil.which("nsys") is None:
        raise not_measured("nsys (Nsight Systems) is not installed")
    for work in WORKS:
        few, more = (calls_of(work, steps) for steps in (FEW, MORE))
        yield describe(work, per_step(few, more, MORE - FEW))


def calls_of(work: str, steps: int) -> Counter[str]:
    """Return how often a training of so many steps calls each of CUDA's functions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile"
        training = [sys.executable, "-m", "bench.nbdist_step", "--work", work, "--device", "GPU:0"]
        training += ["--warm-up", str(WARM_UP), "--steps", str(steps)]
        options = ["--trace=cuda", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true"]
        run(["nsys", "profile", *options, "-o", str(path), *training])
        return calls_in(run(["nsys", "stats", "--report=cuda_api_sum", "--format=csv", f"{path}.nsys-rep"]))


def run(command: list[str]) -> str:
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if ended.returncode:
        raise not_measured(f"{command[0]} {command[1]} failed: {ended.stderr[-300:].strip()}")
    return ended.stdout


def calls_in(text: str) -> Counter[str]:
    """Return the number of calls by function, from the CSV of ``nsys stats``."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if "Num Calls" in line), None)
    if head is None:
        raise not_measured(f"nsys stats printed no table of CUDA's functions: {text[-300:].strip()}")
    rows = csv.DictReader(line for line in lines[head:] if line.strip())
    return Counter({row["Name"]: int(row["Num Calls"].replace(",", "")) for row in rows})


def per_step(few: Mapping[str, int], more: Mapping[str, int], steps: int) -> dict[str, float]:
    """Return the calls of a step by function, the most frequent first.

    >>> per_step({"cudaLaunchKernel": 20}, {"cudaLaunchKernel": 50, "cudaFree": 1}, 10)
    {'cudaLaunchKernel': 3.0, 'cudaFree': 0.1}
    """
    found = {name: (calls - few.get(name, 0)) / steps for name, calls in more.items()}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def describe(work: str, calls: Mapping[str, float]) -> str:
    """Return the counts of a step, by kind and function.

    >>> describe("mlp", {"cudaGraphLaunch": 3.0, "cudaStreamSynchronize": 1.0})
    'mlp, a step: 1 waits of the host (cudaStreamSynchronize 1), 0 copies, 3 launches (cudaGraphLaunch 3)'
    """
    parts = []
    for kind, part in KINDS.items():
        own = {name: count for name, count in calls.items() if part in name and count > 0}
        names = ", ".join(f"{name} {count:.3g}" for name, count in own.items())
        parts.append(f"{sum(own.values()):.3g} {kind}" + (f" ({names})" if names else ""))
    return f"{work}, a step: {', '.join(parts)}"


if __name__ == "__main__":
    main()
