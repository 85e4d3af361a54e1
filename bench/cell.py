"""Both sides of P9: the cost of an empty cell on 4 engines, in a notebook's kernel.

`python -m bench.cell --with distribute`, `--with px` (ipyparallel's magic and cluster, with their defaults).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from itertools import pairwise
from statistics import median

from bench.notebook import Notebook

ENGINES, CELLS, WARM_UP = 4, 30, 5
START = {
    "distribute": ("%load_ext nbdist", f"%cluster start --workers {ENGINES}"),
    "px": (
        "import ipyparallel",
        f"cluster = ipyparallel.Cluster(n={ENGINES})",
        "client = cluster.start_and_connect_sync(activate=True)",
    ),
}
STOP = {"distribute": "%cluster stop", "px": "cluster.stop_cluster_sync(); client.close()"}
BODIES = {"pass": "pass", "print": "print('one of four')"}
PRINT_PID = "import os; print('pid', os.getpid())"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with", dest="magic", choices=list(START), required=True)
    parser.add_argument("--flags", default="", help="of the magic, such as=--no-live")
    parser.add_argument("--body", choices=list(BODIES), default="pass")
    parser.add_argument("--cells", type=int, default=CELLS)
    options = parser.parse_args()
    magic = f"%%{options.magic} {options.flags}".strip()
    with tempfile.TemporaryDirectory() as home:
        print(json.dumps(measure(options.magic, magic, BODIES[options.body], options.cells, home)))


def measure(side: str, magic: str, body: str, cells: int, home: str) -> dict[str, object]:
    """Return the ms that a cell takes, and whether it ran on every engine."""
    own = {"NBDIST_HOME": os.path.join(home, "nbdist"), "IPYTHONDIR": os.path.join(home, "ipython")}
    with Notebook(own) as notebook:
        for line in START[side]:
            notebook.run(line)
        try:
            pids = pids_in(notebook.run(f"{magic}\n{PRINT_PID}")[1])
            seconds = [notebook.run(f"{magic}\n{body}")[0] for _ in range(WARM_UP + cells)]
        finally:
            notebook.run(STOP[side])
    return {"value": 1e3 * median(seconds[WARM_UP:]), "check": {"engines": len(pids)}}


def pids_in(printed: str) -> set[str]:
    """Return the process ids that the engines have printed."""
    words = printed.split()
    return {after for word, after in pairwise(words) if word == "pid"}


if __name__ == "__main__":
    main()
