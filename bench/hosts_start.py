"""From nothing to a training's first step on three hosts with an sshd each, by nbdist or by torchrun.

    python -m bench.hosts_start nbdist       # start_cluster(launcher="ssh"), then launch
    python -m bench.hosts_start torchrun     # ssh to each host, which runs torchrun with one process

Hosts are network namespaces (tests/hosts/ssh_hosts.py), and their sshds run before the clock starts. The side
itself, `SIDES`, runs on the head.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.frame import Outcome
from bench.scenarios.frame import TESTS
from bench.script import ROOT, NotThere, not_measured

NAMES = ["host1", "host2", "host3"]
MASTER = ("--master-addr", NAMES[0], "--master-port", "29555")
UP, STEP = "all hosts are up", "first step after that"
BODY = """
import numpy as np
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
model.fit(nb.data.Dataset.from_arrays(np.ones((24, 4)), np.arange(24) % 10).batch(24))
"""
SECONDS = 120.0  # until a side counts as hanging


def nbdist() -> Outcome:
    """Start a cluster of a worker on each host, and train one step."""
    import nbdist as nb

    launch, start = nb.launch, nb.start_cluster  # loaded before the clock starts
    begun = time.perf_counter()
    cluster = start(launcher="ssh", hosts=",".join(f"{name}:1" for name in NAMES), report=None)
    try:
        up = time.perf_counter() - begun
        launch(BODY, strategy="multi_worker", live=False, cluster=cluster)
        value = time.perf_counter() - begun
        check = cluster.run("import nbdist; nbdist.task.rank")
    finally:
        cluster.stop()
    return {"value": value, "check": check, "figures": {UP: up, STEP: value - up}}


def torchrun() -> Outcome:
    """Run torchrun on each host through ssh; each process prints its rank after one step."""
    script = str(ROOT / "bench" / "torchrun_step.py")
    begun, commands = time.perf_counter(), []
    for number, name in enumerate(NAMES):
        there = ["torchrun", "--nnodes", str(len(NAMES)), "--nproc-per-node", "1", *MASTER]
        commands.append(
            subprocess.Popen(
                ["ssh", name, *there, "--node-rank", str(number), script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    # The step ends on all hosts together: its all-reduce is a barrier.
    assert commands[0].stdout is not None
    first = commands[0].stdout.readline()
    value = time.perf_counter() - begun
    printed = [first, *(command.communicate(timeout=SECONDS)[0] for command in commands[1:])]
    commands[0].communicate(timeout=SECONDS)
    assert not any(command.returncode for command in commands), printed
    return {"value": value, "check": [int(rank) for rank in printed]}


SIDES = {side.__name__: side for side in (nbdist, torchrun)}


def measure(side: str) -> Outcome:
    """Run a side on the head of three hosts; nothing of it may be left on them."""
    sys.path[:0] = [str(TESTS / "hosts"), str(TESTS)]
    from ssh_hosts import HEAD, SshHosts, why_not

    if why := why_not():
        raise NotThere(why)
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)
        hosts = SshHosts(Path(temporary), len(NAMES))
        try:
            # A host's first Python reads its modules from the disk; both sides find them in memory.
            for name in NAMES:
                hosts.at(name, sys.executable, "-c", "import " + ("torch" if side == "torchrun" else side))
            done = hosts.at(HEAD, sys.executable, "-m", "bench.hosts_start", side, "--on-head")
            # sshd ends a connection's process a moment after the client has gone.
            left = [line for name in NAMES for line in hosts.processes(name, 5.0)]
            assert not left, f"left: {left}"
        finally:
            hosts.close()
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--on-head", action="store_true", help="the hosts are there, and this is their head")
    parser.add_argument("--figures", action="store_true", help="print the parts of the time alone")
    options = parser.parse_args()
    try:
        found = SIDES[options.side]() if options.on_head else measure(options.side)
    except NotThere as why:
        raise not_measured(str(why)) from None
    print(json.dumps(found["figures"] if options.figures else found))


if __name__ == "__main__":
    main()
