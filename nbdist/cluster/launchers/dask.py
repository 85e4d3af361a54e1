"""Launcher "dask": the tasks are on the hosts of a Dask cluster that is up, one supervisor on each.

    %cluster start --launcher dask --scheduler tls://10.0.0.1:8786 --workers 4

A supervisor belongs to an actor on one worker of its host: it ends with that worker, and with the command
(`existing_cluster.py`). Several workers on a machine are one host. Certificates are those of Dask's own
configuration.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import re
import sys
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers.existing_cluster import (
    ANSWER_SECONDS,
    ExistingCluster,
    SupervisorActor,
    find_hosts,
    host_command,
    machine,
    one_for_each,
    require_port,
    run_command,
    said,
    why_not,
)
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.spec import LauncherSetting, LauncherSpec
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MissingExtra,
    UnavailableError,
)

CONNECT_SECONDS = 8.0  # for the scheduler to answer
LOOK_SECONDS = 5.0  # between two looks whether a busy worker is still there
Result = TypeVar("Result")
ENCRYPTED = ("tls://", "wss://")


def require_dask() -> None:
    """Raise MissingExtra without Dask's distributed."""
    if find_spec("distributed") is None:
        raise MissingExtra("dask", "launcher 'dask'")


def check_scheduler(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is the address of a scheduler.

    >>> check_scheduler("10.0.0.1:8786")
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: scheduler is its address, as tls://10.0.0.1:8786, not '10.0.0.1:8786'
    """
    if not isinstance(value, str) or not re.fullmatch(r"[a-z]{2,10}://[^\s/]+:\d{1,5}", value):
        raise InvalidArgumentError(f"scheduler is its address, as tls://10.0.0.1:8786, not {value!r}")


class DaskCluster(ExistingCluster):
    """The hosts of a Dask cluster."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        require_dask()
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # one sentence is the cause
        warnings.simplefilter("ignore")
        from distributed import Client

        self.address = settings["scheduler"]
        require_port("Dask", self.address, "`dask scheduler`")
        try:
            self.client = Client(self.address, timeout=CONNECT_SECONDS, name="nbdist")
        except (OSError, TypeError, ValueError, RuntimeError) as error:
            raise UnavailableError(
                f"Dask at {self.address} does not take this process ({said(error)}): check the address, and "
                "for tls:// the certificates of Dask's configuration (distributed.comm.tls)"
            ) from None
        if not self.address.startswith(ENCRYPTED):
            self.notice = (
                f"Dask at {self.address} does not use TLS: any process that reaches that port can run "
                "programs on its hosts"
            )
        self.actors: dict[str, Any] = {}
        try:
            self.workers = self._find_workers()
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """Return the names of the hosts."""
        return list(self.workers)

    def start(self, name: str) -> Future[str]:
        """Make an actor on one worker of a host; see `ExistingCluster.start`."""
        if name not in self.workers:
            raise UnavailableError(f"Dask at {self.address} has no worker there any more")
        return self._begin(self._make_actor(name))

    async def _make_actor(self, name: str) -> str:
        worker = self.workers[name]
        future = self.client.submit(
            SupervisorActor, name, actor=True, workers=[worker], allow_other_workers=False,
            pure=False, retries=0,
        )  # fmt: skip
        while name not in self.actors:
            try:
                self.actors[name] = await asyncio.wait_for(future, LOOK_SECONDS)
            except TimeoutError:
                if worker not in await self.client.nthreads():
                    raise UnavailableError(f"{worker} has ended before it was free") from None
        return str(await self.actors[name].public_key())

    def dial(self, name: str, addresses: Sequence[str]) -> Future[str]:
        """Let a host's actor connect to this command."""

        async def dial() -> str:
            return str(await self.actors[name].dial(list(addresses)))

        return self._begin(dial())

    def busy(self, names: Sequence[str]) -> str:
        """Return which workers are not free yet."""
        busy = ", ".join(f"{self.workers[name]} on {name}" for name in names)
        return f"Dask starts the supervisors of these workers when they are free: {busy}"

    def _begin(self, call: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a call on the thread of the client, which does not block there."""
        return asyncio.run_coroutine_threadsafe(call, self.client.loop.asyncio_loop)

    def close(self) -> None:
        """Release the actors."""
        self.actors.clear()
        with suppress(Exception):  # a scheduler that has ended
            self.client.close(timeout=2)

    def _find_workers(self) -> dict[str, str]:
        workers = list(self.client.nthreads())
        if not workers:
            raise FailedPreconditionError(
                f"Dask at {self.address} has no workers: start some (`dask worker {self.address}`)"
            )
        pythons = self._answers(platform.python_version, workers)
        if other := other_python(pythons):
            raise FailedPreconditionError(other)
        machines = self._answers(machine, list(pythons))
        if silent := [worker for worker in workers if worker not in machines]:
            said = f"not answered within {ANSWER_SECONDS:g} s, and are not used: {', '.join(silent)}"
            if not machines:
                raise UnavailableError(f"all workers of Dask at {self.address} have {said}")
            self.notice = "; ".join(filter(None, [self.notice, f"some workers of Dask have {said}"]))
        load = {worker: len(tasks) for worker, tasks in self.client.processing().items()}
        return one_for_each(machines, load)

    def _answers(self, function: Callable[[], Result], workers: Sequence[str]) -> dict[str, Result]:
        """Return what a function returns on those of the workers that answer."""

        async def ask(worker: str) -> Any:
            with suppress(TimeoutError):
                answers = self.client.run(function, workers=[worker], on_error="return")
                return (await asyncio.wait_for(answers, ANSWER_SECONDS)).get(worker)

        async def ask_all() -> list[Any]:
            return await asyncio.gather(*map(ask, workers))

        found = dict(zip(workers, self._begin(ask_all()).result(), strict=True))
        for worker, answer in found.items():
            if isinstance(answer, BaseException):
                raise FailedPreconditionError(f"the worker {worker} of Dask {why_not(answer)}")
        return {worker: answer for worker, answer in found.items() if answer is not None}


def other_python(pythons: Mapping[str, str]) -> str:
    """Return a sentence about the first worker with another Python than this process, "" for none.

    >>> other_python({"tcp://a:1": "2.7.18"})[:46]
    'the worker tcp://a:1 of Dask has Python 2.7.18'
    """
    own = ".".join(map(str, sys.version_info[:2]))
    for worker, version in pythons.items():
        if not version.startswith(f"{own}."):
            return (
                f"the worker {worker} of Dask has Python {version}, and this host {own}: the code of cells "
                "needs the same one; start the workers with it"
            )
    return ""


def dask_hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return the hosts of the Dask cluster; InvalidArgumentError without a scheduler."""
    if settings["scheduler"] is None:
        raise InvalidArgumentError(
            "launcher 'dask' needs the address of a scheduler: scheduler='tls://10.0.0.1:8786' (--scheduler)"
        )
    require_dask()
    return find_hosts("dask", SETTINGS, settings)


SETTINGS = (
    LauncherSetting("scheduler", "the scheduler's address", shows="tls://HOST:PORT", check=check_scheduler),
)

SPEC = LauncherSpec(
    "dask",
    help="engines on the hosts of a Dask cluster",
    make=ForkLauncher,
    check=require_dask,
    settings=SETTINGS,
    tries_again=True,
    hosts=dask_hosts,
    commands=partial(host_command, "dask", SETTINGS),
)

if __name__ == "__main__":
    sys.exit(run_command("dask", SETTINGS, DaskCluster, sys.argv[1:]))
