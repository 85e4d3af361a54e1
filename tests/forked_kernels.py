"""Kernels that are forked from a process that has imported what notebooks import: 2 s of CPU less for each.

    with forked_kernels():
        NotebookClient(notebook, kernel_name="python3").execute()

Run as a program, this module is that process. Each line of its input is an order for a kernel: the arguments
of its application, its environment and its folder. The kernel prints its process id when it leads a session.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

import psutil

IMPORTED = (
    "ipykernel.kernelapp", "ipykernel.zmqshell", "IPython.core.completerlib", "IPython.extensions.storemagic",
    "matplotlib.pyplot", "pandas", "nbdist.cluster.launch", "nbdist.run.start", "nbdist.data", "nbdist.nn",
    "nbdist.optim", "nbdist.train", "nbdist.distribute", "nbdist.estimator", "nbdist.trials",
)  # fmt: skip
"""Not ipywidgets, nor the modules of nbdist that import it: it looks for its kernel when it is imported."""
LAUNCHER = "ipykernel_launcher"  # the module in the command of a kernel


class Kernel:
    """What jupyter_client uses of a kernel's process, which is a child of another one."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)

    def poll(self) -> int | None:
        """Return None while it runs. Its exit status is unknown here."""
        return None if self._process.is_running() else 0

    def wait(self) -> int:
        self._process.wait()
        return 0

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # Jupyter sends one to a dead kernel before it starts another
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextmanager
def forked_kernels() -> Iterator[None]:
    """Let the kernels that this process starts be forks, until the block ends."""
    from jupyter_client.provisioning import local_provisioner

    with patched(local_provisioner, "launch_kernel", launch):
        yield


def launch(command: list[str], *, env: dict[str, str], cwd: str | None = None, **options: Any) -> Kernel:
    """Start a kernel, as `jupyter_client.launcher.launch_kernel` does."""
    server = fork_server()
    assert server.stdin is not None
    assert server.stdout is not None
    arguments = command[command.index(LAUNCHER) + 1 :]
    order = {"arguments": arguments, "environment": env, "folder": cwd or os.getcwd()}
    server.stdin.write(json.dumps(order) + "\n")
    server.stdin.flush()
    if not (answer := server.stdout.readline()):
        raise RuntimeError(f"the process that forks kernels has ended: {server.wait()}")
    return Kernel(int(answer))


def living_kernels() -> list[str]:
    """Return the kernels of this process that run; /proc does not show the environment they were given."""
    if not fork_server.cache_info().currsize:
        return []
    found = []
    for one in psutil.Process(fork_server().pid).children():
        with suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            if one.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{one.pid} a forked kernel")
    return found


@cache
def fork_server() -> subprocess.Popen[str]:
    """Start the process that forks. It ends with this one, which closes its input."""
    environment = {name: value for name, value in os.environ.items() if name != "NBDIST_HOME"}
    command = [sys.executable, __file__]
    server = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)
    return server


@contextmanager
def patched(module: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute until the block ends."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def serve() -> None:
    """Fork a kernel for each order, until the input ends."""
    sys.path.pop(0)  # the folder of this file
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as the kernel does
    for name in IMPORTED:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system removes ended kernels
    gc.freeze()
    while line := sys.stdin.readline():
        if not os.fork():
            become_kernel(**json.loads(line))
            return


def become_kernel(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Be a kernel in this process."""
    from ipykernel.kernelapp import IPKernelApp

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    print(os.getpid(), flush=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [LAUNCHER, *arguments]
    ends_with_server = f"--IPKernelApp.parent_handle={os.getppid()}"
    IPKernelApp.launch_instance(argv=[*arguments, ends_with_server])


if __name__ == "__main__":
    serve()
