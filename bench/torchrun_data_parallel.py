"""Peer of P15: the same DistributedDataParallel script as in our cell, started by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.script import need_torch
from bench.sync_work import WORKERS, options


def main() -> None:
    options()
    if "LOCAL_RANK" in os.environ:
        rank(Path(os.environ["BENCH_OUTCOME"]))
        return
    with tempfile.TemporaryDirectory() as folder:
        outcome = Path(folder) / "outcome.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        script = [str(WORKERS), "-m", "bench.torchrun_data_parallel", *sys.argv[1:]]
        environment = {**os.environ, "BENCH_OUTCOME": str(outcome), "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run([*torchrun, *script], env=environment, check=True, stdout=subprocess.DEVNULL)
        print(outcome.read_text())


def rank(file: Path) -> None:
    """Be one process of torchrun; the first writes the outcome."""
    need_torch("CPU:0")
    import torch.distributed as dist

    from bench.torch_data_parallel import measured

    dist.init_process_group("gloo")
    outcome = measured(options(), dist.get_rank(), "cpu")
    if dist.get_rank() == 0:
        file.write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
