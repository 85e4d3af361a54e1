"""JupyterLab whose kernels are forks of one process: `python -m jupyterlab` starts each as a new Python."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def main() -> None:
    """Run JupyterLab with the arguments of this process."""
    sys.path[0] = str(TESTS)
    from forked_kernels import fork_server, forked_kernels
    from jupyterlab.labapp import main as run_lab

    sys.path.pop(0)
    fork_server()  # which imports what kernels need while the first page is loaded
    with forked_kernels():
        sys.exit(run_lab())


if __name__ == "__main__":
    main()
