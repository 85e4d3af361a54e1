"""What a body of ``%%distribute --framework torch`` finds around it: `framework_environment`.

    offer = offered("torch", host)     # when the task is reserved for the run
    with framework_environment(FRAMEWORKS["torch"](), world, control, port):
        ...     # RANK, WORLD_SIZE, MASTER_ADDR, ... are set, as by torchrun

Each run has a rendezvous of its own at the first rank, so that it never meets what an earlier one has left.
The client of a run collects what the tasks offer, versions and a free port, with their reservations, and
compares the versions before a body is sent. The ranks of a sweep's trial exchange this themselves.

How ranks leave a collective call that cannot end, because another rank has failed, has died, or was stopped:

1. A rank that ends, however it ends, closes its connections. The ranks that wait for it get an error and end
   too, and so do those that wait for them. A process that dies does the same: the kernel closes for it.
2. When the run is aborted, each rank breaks its own calls, from a thread of its own: a thread that waits in
   native code sees no signal. After a stop it does so when the client sends its signal, which ends a body
   that runs Python code.
3. Errors that follow from this are reported as such, so that the run shows the one that was first.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from nbdist.errors import AbortedError, UnavailableError
from nbdist.frameworks.base import Framework, Place, free_port, host_of
from nbdist.frameworks.registry import FRAMEWORKS
from nbdist.frameworks.versions import check_versions, installed
from nbdist.runtime.groups import World
from nbdist.text import cut_middle
from nbdist.train.context import Control

STOP_SECONDS = 1.5  # between a stop and the abort of the calls that still wait: when the client signals
LOOK_SECONDS = 0.1  # how often a thread looks for a stop or an abort of the run
MOST_MESSAGE = 300  # characters of a framework's error that are repeated


def offered(name: str, host: str | None) -> dict[str, Any]:
    """Return what the other ranks have to know of a framework on this task.

    That is the ``version``, the name of the ``host``, and, if this is the first rank, a free ``port`` of the
    address ``host``.
    """
    about = installed(FRAMEWORKS[name].package)
    return about if host is None else {**about, "port": free_port(host)}


def release(run: str) -> None:
    """End what frameworks keep of a run, which has ended on all tasks."""
    for framework in FRAMEWORKS.values():
        framework.release(run)


@contextmanager
def framework_environment(
    framework: Framework,
    world: World,
    control: Control,
    port: int | None = None,
    interruptible: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[None]:
    """Provide the environment of a framework to a body, inside a ``with`` that all tasks of the run enter.

    At its end the environment variables are as before, and process groups that the body left open are
    destroyed. ``port`` is what the first rank has `offered`; None for one that the ranks agree on here.
    ``interruptible`` is entered around all but the end.

    Raises what `check_versions` and `Framework.load` raise, AbortedError if the run was aborted,
    KeyboardInterrupt if it was stopped, and UnavailableError if another rank has left a call that this one
    waits in.
    """
    aborted, ended = threading.Event(), False
    try:
        with as_script(), variables_restored() as set_variables, interruptible():
            set_variables(_rendezvous(framework, world, port))
            with _aborted_with(framework, control, aborted):
                yield
        ended = True
    except (Exception, SystemExit) as error:
        follows = aborted.is_set() or framework.is_consequence(error)
        instead: BaseException | None = None
        if control.stop_requested and (follows or isinstance(error, (AbortedError, SystemExit))):
            instead = KeyboardInterrupt("the run was stopped")  # Lightning exits when it is interrupted
        elif control.aborted is not None and follows:
            instead = AbortedError(control.aborted)
        elif follows:
            instead = UnavailableError(
                "another rank has left a collective call that this rank waits in: it has failed, died, or "
                "ended its body. All ranks have to make the same calls. "
                f"{framework.name}: {cut_middle(str(error), MOST_MESSAGE)}"
            )
        if instead is None:
            raise
        raise instead.with_traceback(error.__traceback__) from None
    finally:
        framework.close(ended)


def launcher_variables(place: Place, host: str, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets for every script, and NODE_RANK, which others read.

    >>> place = Place(rank=3, size=4, local_rank=1, local_size=2, node=1, nodes=2, run="r", one_host=False)
    >>> one = launcher_variables(place, "10.0.0.1", 4711)
    >>> one["RANK"], one["LOCAL_RANK"], one["NODE_RANK"], one["MASTER_PORT"]
    ('3', '1', '1', '4711')
    """
    numbers = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "NODE_RANK": place.node,
        "GROUP_RANK": place.node,
        "GROUP_WORLD_SIZE": place.nodes,
        "ROLE_RANK": place.rank,
        "ROLE_WORLD_SIZE": place.size,
        "MASTER_PORT": port,
    }
    texts = {"MASTER_ADDR": host, "ROLE_NAME": "default"}
    return {**{key: str(number) for key, number in numbers.items()}, **texts}


@contextmanager
def variables_restored() -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Return a function that sets environment variables until the end of the ``with``.

    >>> with variables_restored() as set_variables:
    ...     set_variables({"RANK": "0"})
    ...     os.environ["RANK"]
    '0'
    >>> "RANK" in os.environ
    False
    """
    before: dict[str, str | None] = {}

    def set_variables(variables: Mapping[str, str]) -> None:
        before.update({key: os.environ.get(key) for key in variables})
        os.environ.update(variables)

    try:
        yield set_variables
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextmanager
def as_script() -> Iterator[None]:
    """Hide, inside a ``with``, that this process is interactive: launchers start scripts.

    Lightning looks for ``sys.ps1`` when it is imported, and forks processes of its own if it finds it.

    >>> with as_script():
    ...     hasattr(sys, "ps1")
    False
    """
    prompt = sys.__dict__.pop("ps1", None)
    try:
        yield
    finally:
        if prompt is not None:
            sys.ps1 = prompt


def _rendezvous(framework: Framework, world: World, port: int | None) -> dict[str, str]:
    """Load the framework, and return the variables for the body."""
    place, host = Place.of(world), host_of(world.infos[0])
    if port is None:
        about = {**installed(framework.package), "port": free_port(host) if place.rank == 0 else 0}
        every = world.exchange("framework", about)
        check_versions(framework.package, framework.least, [info.name for info in world.infos], every)
        port = int(every[0]["port"])
    framework.load(world.infos[world.index].device)
    return {**launcher_variables(place, host, port), **framework.variables(world, place, host, port)}


@contextmanager
def _aborted_with(framework: Framework, control: Control, aborted: threading.Event) -> Iterator[None]:
    """Abort the framework's calls when the run is aborted or stopped, inside a ``with``; set ``aborted``."""
    over = threading.Event()

    def look() -> None:
        while control.aborted is None and not control.stop_requested:
            if over.wait(LOOK_SECONDS):
                return
        if control.aborted is None and over.wait(STOP_SECONDS):
            return
        aborted.set()
        framework.abort()
        while not over.wait(LOOK_SECONDS):  # the body may begin a call only now
            framework.abort()

    thread = threading.Thread(target=look, name="nbdist framework abort", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
