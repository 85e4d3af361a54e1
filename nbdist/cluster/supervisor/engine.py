"""What a forked process does to become an ipyparallel engine with a fixed rank: `run_engine`."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ipykernel.iostream import OutStream

from nbdist.cluster.affinity import CORES_VARIABLE, bind_this_process
from nbdist.cluster.folder import FOLDER_VARIABLE
from nbdist.cluster.resources import blas_threads, set_blas_threads
from nbdist.cluster.supervisor.stacks import answer_signal

Function = TypeVar("Function", bound=Callable[..., Any])
HEARTBEAT_SECONDS = 1.0  # between the controller's beats once all engines are there
CONTROLLER_MISSES = 10  # missed beats after which an engine takes the controller for dead, and exits
RECONNECT_MS = 10  # the controller binds while the engines start; ZeroMQ's own 100 ms would add up
REPLY_ONLY = "nbdist_reply_only"  # in a call's metadata: see `replies_only`
ENGINE_PACKAGES = (
    "asyncio",
    "ipykernel",
    "ipyparallel",
    "IPython",
    "jupyter_client",
    "tornado",
    "traitlets",
    "zmq",
)


def run_engine(
    rank: int,
    environment: Mapping[str, str],
    connection: dict[str, Any],
    folder: str,
    timeout: float,
    enter: Callable[[], None] = lambda: None,
) -> None:
    """Run the engine with id `rank` until a signal ends it. Runs in a fresh fork, before any thread.

    `enter` is called when the environment is set, for example to enter an MPI world.
    """
    answer_signal(folder, rank)
    os.environ.update(environment)
    os.environ[FOLDER_VARIABLE] = folder
    if CORES_VARIABLE in environment:
        bind_this_process(environment[CORES_VARIABLE])  # before a thread starts: each has its own affinity
    threads = environment.get("OPENBLAS_NUM_THREADS")
    # The parent process has loaded OpenBLAS, and perhaps before it had these variables: ask the library.
    if threads is not None and blas_threads() != int(threads):
        set_blas_threads(int(threads))
    sys.argv = [""]  # as in a notebook's own process, a body that parses arguments finds none of its parent's
    enter()
    import numpy as np

    np.random.seed()  # NumPy's global state was copied from the parent
    # To the engine's own log file: sys.stderr belongs to the notebook, or to the body that runs.
    logging.getLogger("nbdist").addHandler(logging.StreamHandler(sys.__stderr__))
    import zmq
    from ipyparallel.engine import app
    from traitlets.config import Config

    if sys.warnoptions:  # PYTHONWARNINGS=error is for the user's code
        warnings.filterwarnings("ignore", module=rf"({'|'.join(ENGINE_PACKAGES)})(\.|$)")
    config = Config()
    config.ProfileDir.location = folder
    config.IPEngine.log_level = 30
    config.IPEngine.id = rank
    config.IPEngine.timeout = timeout
    config.IPEngine.enable_nanny = False  # the supervisor signals this process and reports its exit
    config.IPEngine.out_stream_factory = "nbdist.cluster.supervisor.engine.EngineStream"
    config.IPEngine.max_heartbeat_misses = CONTROLLER_MISSES
    zmq.Context.instance().setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    app.Kernel = without_status_of_calls(app.Kernel)
    engine = app.IPEngine.instance(config=config, connection_info_env=json.dumps(connection))
    engine.initialize(argv=[])
    engine.log.setLevel(engine.log_level)  # traitlets leaves that to the handlers, after the records are made
    try:
        engine.start()
    except RuntimeError as error:
        if "Event loop stopped" not in str(error):  # tornado raises this when a signal has ended the loop
            raise


def replies_only(function: Function) -> Function:
    """Mark a function that publishes nothing on an engine: no output, no displays, and no errors but its own.

    A caller waits for its reply only, and engines publish no status for the call.
    """
    setattr(function, REPLY_ONLY, True)
    return function


def without_status_of_calls(kernel: type[Any]) -> type[Any]:
    """Return an engine's kernel that does not publish that it is busy and idle for a call of `CallSender`.

    The status would be two messages for each call and engine, through two threads, the controller and the
    client, and would be read nowhere: the reply says that the call is over.
    """

    class EngineKernel(kernel):  # type: ignore[misc]  # the type is a variable
        def _publish_status(self, status: str, channel: str, parent: dict[str, Any] | None = None) -> None:
            metadata = (parent or self.get_parent(channel)).get("metadata", {})
            if not metadata.get(REPLY_ONLY):
                super()._publish_status(status, channel, parent)

    return EngineKernel


class EngineStream(OutStream):  # type: ignore[misc]  # ipykernel has no types
    """An engine's sys.stdout or sys.stderr; `flush` costs nothing when nothing waits to be sent.

    A kernel flushes both streams twice for each call, and each flush switches to another thread and back,
    which a short cell on several engines notices. The output of a run's body takes another path.
    """

    _written = _sent = 0

    def write(self, string: str) -> int | None:
        """Write text; returns the number of characters."""
        self._written += 1
        written: int | None = super().write(string)
        return written

    def flush(self) -> None:
        """Send what waits, if anything does, and wait until it is sent."""
        if self._sent != self._written:
            super().flush()

    def _flush(self) -> None:
        written = self._written
        super()._flush()
        self._sent = written
