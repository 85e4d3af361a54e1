"""P18's peer: torch.distributed.checkpoint, whose files are synchronized by default."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from statistics import median

import torch
import torch.distributed.checkpoint as checkpoint

ROWS, WIDTH, TIMES = 10_000_000, 20, 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--value", choices=["save", "restore"], default="save")
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    table = torch.rand(options.rows, WIDTH)
    before = table[[0, options.rows - 1]].clone()
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(TIMES + 1):
            path = os.path.join(folder, str(number))
            os.sync()
            begin = time.perf_counter()
            checkpoint.save({"table": table}, checkpoint_id=path, no_dist=True)
            took = time.perf_counter() - begin
            if options.value == "restore":
                begin = time.perf_counter()
                checkpoint.load({"table": table}, checkpoint_id=path, no_dist=True)
                took = time.perf_counter() - begin
            times.append(took)
        same = bool(torch.equal(table[[0, options.rows - 1]], before))
    print(json.dumps({"value": median(times[1:]), "check": {"the rows are the same": same}}))


if __name__ == "__main__":
    main()
