"""``python -m nbdist.lab.actions``: performs one action on a cluster or a run in a child process.

The Jupyter server starts it (`manager.perform`), so that slow or failing code does not run in the server.

stdin     one line of JSON: {"do": "start", ...}; at its end (the server has ended) the action is cancelled
stdout    lines of JSON: {"line": text} for progress, at the end {"done": true} or {"error": text}
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NbdistError, NotFoundError
from nbdist.lab.actions.status import disk_error

if TYPE_CHECKING:
    from nbdist.run.run import Run

Report = Callable[[str], object]
MAX_BYTES = 64 << 10  # of a request
LONGEST = 500  # characters of a line
STOP_SECONDS = 45.0  # for a run to stop; its tasks are signalled, and replaced if need be, long before
EFFECT_SECONDS = 30.0  # limit for a pause, a resume or a learning rate to take effect, after the current step


def main() -> int:
    """Perform the action that stdin requests."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the messages

    def send(**message: Any) -> None:
        with suppress(BrokenPipeError):  # the server has ended: `end_with_server` cancels the action
            output.write(json.dumps(message) + "\n")

    signal.signal(signal.SIGTERM, cancel)
    request = json.loads(read_line(0))
    threading.Thread(target=end_with_server, args=(0,), daemon=True).start()
    try:
        ACTIONS[request.pop("do")](lambda line: send(line=str(line)[:LONGEST]), **request)
    except NbdistError as error:
        send(error=str(error))
    except KeyboardInterrupt:
        send(error="it was cancelled")
    except OSError as error:
        traceback.print_exc()
        send(error=disk_error(error))
    except Exception as error:
        traceback.print_exc()
        send(error=f"{type(error).__name__}: {error}"[: LONGEST * 4])
    else:
        send(done=True)
        return 0
    return 1


def start(report: Report, *, id: str, **options: Any) -> None:
    """Start a cluster that runs until it is stopped."""
    from nbdist.cluster.launch import start_cluster

    start_cluster(cluster_id=id, detached=True, report=report, **options).close()


def stop(report: Report, *, id: str) -> None:
    """Stop a cluster, whichever versions it runs."""
    from nbdist.cluster.folder import living
    from nbdist.run.stop import end_cluster

    if id in living():  # it also removes the files of dead clusters
        for sentence in end_cluster(id, "it was stopped in the Clusters and Runs panel"):
            report(sentence)


def stop_parallel(report: Report, *, profile: str, id: str) -> None:
    """Stop a cluster that ipyparallel started."""
    import ipyparallel

    try:
        cluster = ipyparallel.Cluster.from_file(profile=profile, cluster_id=id)
    except FileNotFoundError:
        raise NotFoundError(f"no ipyparallel cluster {id!r} in profile {profile!r} (any more)") from None
    cluster.stop_cluster_sync()
    cluster.remove_cluster_file()


def forget_parallel(report: Report, *, profile: str, id: str) -> None:
    """Remove the file of an ipyparallel cluster that has ended."""
    import ipyparallel

    ipyparallel.Cluster(profile=profile, cluster_id=id).remove_cluster_file()


def change(command: str, report: Report, *, id: str, **what: Any) -> None:
    """Change a cluster by one of its methods: ``grow``, ``shrink`` or ``restart``."""
    from nbdist.cluster.cluster import Cluster

    with closing(Cluster.attach(id)) as cluster:
        getattr(cluster, command)(**what, report=report)


def stop_run(report: Report, *, id: str) -> None:
    """Stop a run, and wait until it has ended."""
    from nbdist.metrics.run_folder import read_run
    from nbdist.run.finish import ENDED

    with attached(id) as run:
        run.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while read_run(id).status not in ENDED and not run.poll():
            if time.monotonic() > deadline:
                raise DeadlineExceededError(f"run {id} has not stopped within {STOP_SECONDS:g} s; try again")
            time.sleep(0.05)


def pause_run(report: Report, *, id: str) -> None:
    """Pause a run; return when its replicas have paused."""
    with attached(id) as run:
        run.pause()
        await_effect(run, lambda: run.standing().state == "paused", "paused")


def resume_run(report: Report, *, id: str, only_paused: bool = False) -> None:
    """Resume a paused run, or start one that has ended again; return when its replicas train.

    With ``only_paused`` one that has ended is refused: no code starts.
    """
    from nbdist.metrics.run_folder import read_run
    from nbdist.run.record import is_under_way

    if not is_under_way(record := read_run(id)):
        if only_paused:
            raise FailedPreconditionError(f"run {id} has ended ({record.status}): there is no pause to end")
        start_again(report, id)
        return
    with attached(id) as run:
        run.resume()
        await_effect(run, lambda: run.standing().state != "paused", "resumed")


def start_again(report: Report, id: str) -> None:
    """Start a run that has ended again; return when its bodies run, and let it continue without this process.

    It runs on its own cluster, or on a new one that is stopped by the user.
    """
    from nbdist.cluster.cluster import Cluster
    from nbdist.run.start import resume_run as start_run_again

    try:
        run = start_run_again(id, report=report, detached=True)
        report(f"run {run.id} continues run {id}")
        deadline = time.monotonic() + EFFECT_SECONDS
        while not run.standing().step and not run.poll() and time.monotonic() < deadline:
            time.sleep(0.02)
        if run.error is not None:
            raise run.error
    finally:
        with suppress(NotFoundError):
            Cluster.current().close()


def set_run(report: Report, *, id: str, learning_rate: float) -> None:
    """Change a run's learning rate; return when its replicas train at that rate."""

    def changed() -> bool:
        rate = run.standing().learning_rate
        return rate is not None and math.isclose(rate, learning_rate, rel_tol=1e-6)

    with attached(id) as run:
        run.set(learning_rate=learning_rate)
        await_effect(run, changed, f"taken the learning rate {learning_rate:g}")


@contextmanager
def attached(id: str) -> Iterator[Run]:
    """Attach to a run and its cluster, inside a ``with``."""
    from nbdist.cluster.cluster import Cluster
    from nbdist.run.attach import attach_run

    run = attach_run(id)
    try:
        yield run
    finally:
        with suppress(NotFoundError):
            Cluster.current().close()


def await_effect(run: Run, condition: Callable[[], bool], effect: str) -> None:
    """Wait until a command to a run's replicas has taken effect between two of their steps."""
    deadline = time.monotonic() + EFFECT_SECONDS
    while not condition():
        if run.poll():
            raise FailedPreconditionError(f"run {run.id} ended ({run.status}) before it had {effect}")
        if time.monotonic() > deadline:
            raise DeadlineExceededError(
                f"run {run.id} has not {effect} within {EFFECT_SECONDS:g} s: a step of it takes longer, or a "
                "replica does not train yet. The command stays pending: it takes effect after that step"
            )
        time.sleep(0.02)


ACTIONS: dict[str, Callable[..., None]] = {
    "start": start,
    "stop": stop,
    "stop_parallel": stop_parallel,
    "forget_parallel": forget_parallel,
    **{command: partial(change, command) for command in ("grow", "shrink", "restart")},
    "stop_run": stop_run,
    "pause_run": pause_run,
    "resume_run": resume_run,
    "set_run": set_run,
}


def read_line(descriptor: int) -> bytes:
    """Return the first line, and read no byte beyond it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte or len(line) > MAX_BYTES:
            raise SystemExit("no request on stdin")
        line += byte
    return bytes(line)


def end_with_server(descriptor: int) -> None:
    """Cancel the action when stdin ends: the server has closed it, or died."""
    with suppress(OSError):
        while os.read(descriptor, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def cancel(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt in the action, once, so that it undoes what it has begun."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
