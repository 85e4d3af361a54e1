"""Launcher "dask": the tasks are on the hosts of a Dask cluster that is up, one supervisor on each.

    %cluster start --launcher dask --scheduler tls://10.0.0.1:8786 --workers 4

A supervisor belongs to an actor on one worker of its host: it ends with that worker, and with the command
(`nodes.py`). Several workers on a machine are one host. Certificates are those of Dask's own configuration.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.nodes import (
    BUSY_SECONDS,
    JOIN_SECONDS,
    Failed,
    NodeProcess,
    Nodes,
    answers,
    find_hosts,
    host_command,
    machine,
    one_for_each,
    require_port,
    run_command,
    said,
    why_not,
)
from nbdist.cluster.launchers.spec import LauncherSetting, LauncherSpec
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MissingExtra,
    UnavailableError,
)

CONNECT_SECONDS = 8.0  # for the scheduler to answer
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


class DaskNodes(Nodes):
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

    def start(self, names: Sequence[str], waiting: Callable[[str], None], failed: Failed) -> dict[str, str]:
        """Make an actor on one worker of each host; see `Nodes.start`."""
        from distributed import wait

        for name in names:
            if name not in self.workers:
                failed(name, f"Dask at {self.address} has no worker there any more")
        futures = {
            name: self.client.submit(
                NodeProcess, name, actor=True, workers=[self.workers[name]], allow_other_workers=False,
                pure=False, retries=0,
            )
            for name in names
            if name in self.workers
        }  # fmt: skip
        begun, told = time.monotonic(), False
        for name, future in futures.items():
            while not future.done():
                with suppress(TimeoutError):
                    wait(future, timeout=0.5)
                if not told and time.monotonic() > begun + BUSY_SECONDS:
                    told = True
                    waiting(
                        f"the worker {self.workers[name]} of Dask on host {name} is busy; it is next there"
                    )
        self.actors = self._answers(futures, failed)
        return self._answers({name: actor.public_key() for name, actor in self.actors.items()}, failed)

    def dial(self, addresses: Mapping[str, Sequence[str]], failed: Failed) -> None:
        """Let the actors connect to this command."""
        asked = {name: self.actors[name].dial(list(given)) for name, given in addresses.items()}
        for name, why in self._answers(asked, failed).items():
            if why:
                failed(name, why)

    def _answers(self, asked: Mapping[str, Any], failed: Failed) -> dict[str, Any]:
        return answers(asked, lambda one: one.result(timeout=JOIN_SECONDS), "worker", failed)

    def close(self) -> None:
        """Release the actors."""
        self.actors.clear()
        with suppress(Exception):  # a scheduler that has ended
            self.client.close(timeout=2)

    def _find_workers(self) -> dict[str, str]:
        found = self.client.get_versions()["workers"]
        if not found:
            raise FailedPreconditionError(
                f"Dask at {self.address} has no workers: start some (`dask worker {self.address}`)"
            )
        pythons = {worker: entry["host"]["python"] for worker, entry in found.items()}
        if other := other_python(pythons):
            raise FailedPreconditionError(other)
        answers = self.client.run(machine, on_error="return")
        for worker, answer in answers.items():
            if isinstance(answer, BaseException):
                raise FailedPreconditionError(f"the worker {worker} of Dask {why_not(answer)}")
        return one_for_each(answers)


def other_python(pythons: Mapping[str, str]) -> str:
    """Return a sentence about the first worker with another Python than this process, "" for none.

    >>> other_python({"tcp://a:1": "2.7.18.final.0"})[:46]
    'the worker tcp://a:1 of Dask has Python 2.7.18'
    """
    own = ".".join(map(str, sys.version_info[:2]))
    for worker, version in pythons.items():
        number = ".".join(version.split(".")[:3])
        if not version.startswith(f"{own}."):
            return (
                f"the worker {worker} of Dask has Python {number}, and this host {own}: the code of cells "
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
    sys.exit(run_command("dask", SETTINGS, DaskNodes, sys.argv[1:]))
