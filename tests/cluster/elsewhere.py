"""Runs programs in processes of their own, forked from this one, which has imported what starts a cluster.

Each line of its input is an order: code, arguments, environment, and the paths of the files for its output.
It prints the exit status of each program.
"""

from __future__ import annotations

import json
import os
import sys

import nbdist.cluster.launch
import nbdist.run.start  # noqa: F401


def run(code: str, arguments: list[str], environment: dict[str, str], files: list[str]) -> None:
    """Run a program in this process, as `python -c` does."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    for number, path in enumerate(files, 1):
        with open(path, "w") as file:
            os.dup2(file.fileno(), number)
    exec(code, {"__name__": "__main__"})


def main() -> None:
    for line in sys.stdin:
        if not (child := os.fork()):
            run(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
