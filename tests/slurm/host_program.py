"""Stands for a host supervisor: it reads the plan, says where it is, and ends at SIGTERM or the input's end.

A plan with "exit" ends it with that code; it ends by itself when the file "leave" of the plan is there.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path


def end(number: int, frame: object) -> None:
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
plan = json.loads(sys.stdin.readline())
names = ("SLURM_JOB_ID", "SLURM_PROCID", "CUDA_VISIBLE_DEVICES", "SLURM_CPUS_ON_NODE")
here = {"name": socket.gethostname(), "cwd": os.getcwd(), **{name: os.environ.get(name) for name in names}}
print(json.dumps({"up": plan["cluster"], "key": len(plan["key"]), **here}), flush=True)
if "exit" in plan:
    print(plan["last"], file=sys.stderr)
    sys.exit(plan["exit"])
leave = Path(plan.get("leave", "/nowhere"))
while not leave.exists():
    if select.select([sys.stdin], [], [], 0.05)[0]:
        break
