"""A real kernel without a front end, for tests of what its cells do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from colab_environment import BlockingColabKernel as ColabKernel
from colab_environment import environment as environment_of_colab
from colab_environment import require_environment
from forked_kernels import forked_kernels
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from waiting import PATIENCE, until

from nbdist.metrics.log import read_log


class Kernel:
    """A kernel with a cluster, and what its cells answer."""

    def __init__(self, home: Path, colab: bool = False) -> None:
        """Start it; with ``colab`` it has the versions of Google Colab."""
        self.home = home
        if colab:
            require_environment()
            self.manager: Any = ColabKernel()
            self.manager.start_kernel(env=environment_of_colab(home))
        else:
            self.manager = KernelManager(kernel_name="python3")
            self.manager.transport_encryption = "auto"
            environment = {**os.environ, "NBDIST_HOME": str(home), "OPENBLAS_NUM_THREADS": "1"}
            with forked_kernels():
                self.manager.start_kernel(env=environment)
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def start(self, code: str) -> str:
        # What follows an error at once would be aborted, as a cell after a failed one is.
        return str(self.client.execute(code, stop_on_error=False))

    def reply(self, request: str, timeout: float = PATIENCE) -> dict[str, Any]:
        """The reply to a request; others' are kept waiting in order, as the kernel answers in order."""
        while True:
            message = self.client.get_shell_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") == request:
                return dict(message["content"])

    def run(self, code: str, timeout: float = PATIENCE) -> dict[str, Any]:
        return self.reply(self.start(code), timeout)

    def value(self, expression: str) -> str:
        """What an expression is in the kernel."""
        request = self.client.execute("", user_expressions={"x": expression})
        found = self.reply(request)["user_expressions"]["x"]
        assert found["status"] == "ok", found
        return str(found["data"]["text/plain"])

    def wait_for_training(self, name: str) -> None:
        """Wait until each of the two workers of a run has logged steps."""

        def trains() -> bool:
            logs = [read_log(path) for path in self.home.glob(f"runs/*-{name}/metrics-*.log")]
            return len(logs) == 2 and all(len(log.points) for log in logs)

        until(trains)

    def close(self) -> None:
        self.run("%cluster stop")
        self.client.stop_channels()
        self.manager.shutdown_kernel()
