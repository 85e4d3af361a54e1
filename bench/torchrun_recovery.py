"""Peer of ``bench recovery``: PyTorch's DistributedDataParallel over gloo under torchrun's elastic agent.

The agent starts all workers again when one has died; they continue from the last checkpoint, which the first
one writes every 100 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import timedelta

from bench import recovery_work, work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", choices=["worker", "chief"], default="worker")
    parser.add_argument("--train-in")
    options = parser.parse_args()
    if options.train_in:
        train(options.train_in)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asdict(whole_group(1 if options.kill == "worker" else 0, folder))))


def whole_group(victim: int, folder: str) -> recovery_work.Figures:
    """Start torchrun, kill a worker, and wait until all train again."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=20"]
    command += [f"--nproc-per-node={recovery_work.WORKERS}", "-m", "bench.torchrun_recovery", "--train-in"]
    agent = subprocess.Popen([*command, folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begin, killed_at, found = time.monotonic(), 0.0, None
    try:
        while found is None:
            if agent.poll() is not None or time.monotonic() - begin > recovery_work.LONGEST:
                raise SystemExit("torchrun does not continue")
            steps = recovery_work.read(folder)
            if not killed_at and recovery_work.reached(steps):
                os.kill(next(one.pid for one in reversed(steps) if one.rank == victim), signal.SIGKILL)
                killed_at = time.time()
            elif killed_at:
                found = recovery_work.figures(steps, killed_at, [victim])
            time.sleep(0.01)
    finally:
        agent.send_signal(signal.SIGTERM)  # it ends its workers
        agent.wait()
    return found


def train(folder: str) -> None:
    """Be one worker."""
    import torch
    import torch.distributed as dist
    from torch.nn import CrossEntropyLoss
    from torch.nn.parallel import DistributedDataParallel

    from bench.torch_data_parallel import network

    torch.set_num_threads(1)
    # Without a short timeout a group whose forming has failed hangs for half an hour.
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank, path = dist.get_rank(), os.path.join(folder, "checkpoint.pt")
    x, y = (torch.from_numpy(part) for part in work.data())
    model, loss, step = network("mlp"), CrossEntropyLoss(), 0
    if os.path.exists(path):
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        step = state["step"]
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), work.LEARNING_RATE)
    log = recovery_work.StepLog(folder, rank)
    while True:
        row = work.batch_start(step)
        optimizer.zero_grad()
        loss(parallel(x[row : row + work.BATCH]), y[row : row + work.BATCH].argmax(1)).backward()
        optimizer.step()
        step += 1
        if rank == 0 and step % recovery_work.CHECKPOINT_STEPS == 0:
            torch.save({"model": model.state_dict(), "step": step}, path + ".new")
            os.replace(path + ".new", path)
        log.add(step)


if __name__ == "__main__":
    main()
