"""``python -m nbdist.lab.actions``: does one action on a cluster, a run or a sweep.

The Jupyter server starts it, so that nothing that takes long, or may break, happens in the server itself.

stdin     one line of JSON: {"do": "start", ...}; when it is closed, the server is gone and this gives up
stdout    lines of JSON: {"line": text} as it goes, at the end {"done": true} or {"error": text}
"""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NbdistError, NotFoundError
from nbdist.home import home_path

if TYPE_CHECKING:
    from nbdist.run.run import Run

Say = Callable[[str], object]
MOST_BYTES = 64 << 10  # of a request
LONGEST = 500  # characters of a line
STOP_SECONDS = 45.0  # for a run to stop; its tasks are signalled, and replaced if need be, long before
EFFECT_SECONDS = 30.0  # limit for a pause, a resume or a learning rate to take effect, after the current step


def main() -> int:
    """Do what stdin asks for."""
    words = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no word of ours

    def say(**word: Any) -> None:
        with suppress(BrokenPipeError):  # the server is gone; who watches stdin ends this
            words.write(json.dumps(word) + "\n")

    signal.signal(signal.SIGTERM, give_up)
    request = json.loads(read_line(0))
    threading.Thread(target=end_with_server, args=(0,), daemon=True).start()
    try:
        DOES[request.pop("do")](lambda line: say(line=str(line)[:LONGEST]), **request)
    except NbdistError as error:
        say(error=str(error))
    except KeyboardInterrupt:
        say(error="it was given up")
    except OSError as error:
        traceback.print_exc()
        say(error=unusable(error))
    except Exception as error:
        traceback.print_exc()
        say(error=f"{type(error).__name__}: {error}"[: LONGEST * 4])
    else:
        say(done=True)
        return 0
    return 1


def unusable(error: OSError) -> str:
    """Say what a disk or folder refuses, where, and what to do.

    >>> unusable(OSError(28, "No space left on device", "/home/ada/nbdist"))
    '/home/ada/nbdist: No space left on device; make room there, or set NBDIST_HOME to another folder'
    """
    where = error.filename or home_path()
    first = "make room there, or " if error.errno == errno.ENOSPC else ""
    return f"{where}: {error.strerror or error}; {first}set NBDIST_HOME to another folder"


def start(say: Say, *, id: str, **options: Any) -> None:
    """Start a cluster that runs until it is stopped."""
    from nbdist.cluster.launch import start_cluster

    start_cluster(cluster_id=id, detached=True, report=say, **options).close()


def stop(say: Say, *, id: str) -> None:
    """End a cluster, whichever versions it runs."""
    from nbdist.cluster.adopt import end
    from nbdist.cluster.folder import clusters_folder, living

    if id in living():  # which removes what dead ones have left
        end(clusters_folder() / id, "it was stopped in the Clusters and Runs panel")


def stop_parallel(say: Say, *, profile: str, id: str) -> None:
    """End a cluster of ipyparallel's own."""
    import ipyparallel

    try:
        cluster = ipyparallel.Cluster.from_file(profile=profile, cluster_id=id)
    except FileNotFoundError:
        raise NotFoundError(f"ipyparallel has no cluster {id!r} in profile {profile!r} any more") from None
    cluster.stop_cluster_sync()
    cluster.remove_cluster_file()


def forget_parallel(say: Say, *, profile: str, id: str) -> None:
    """Remove the file of a cluster of ipyparallel's own that has ended."""
    import ipyparallel

    ipyparallel.Cluster(profile=profile, cluster_id=id).remove_cluster_file()


def grow(say: Say, *, id: str, workers: int) -> None:
    """Give a cluster so many workers more."""
    from nbdist.cluster.cluster import Cluster

    cluster = Cluster.attach(id)
    try:
        cluster.grow(workers, report=say)
    finally:
        cluster.close()


def shrink(say: Say, *, id: str, workers: int) -> None:
    """End the last so many workers of a cluster."""
    from nbdist.cluster.cluster import Cluster

    cluster = Cluster.attach(id)
    try:
        cluster.shrink(workers, report=say)
    finally:
        cluster.close()


def restart(say: Say, *, id: str, task: str | None) -> None:
    """Give a task another process; None stands for all that are dead."""
    from nbdist.cluster.cluster import Cluster

    cluster = Cluster.attach(id)
    try:
        cluster.restart(task, report=say)
    finally:
        cluster.close()


def stop_run(say: Say, *, id: str) -> None:
    """Stop a run; it still belongs to the notebook that started it."""
    from nbdist.metrics.run_folder import read_run
    from nbdist.run.finish import ENDED

    with attached(id) as run:
        run.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while read_run(id).status not in ENDED and not run.poll():
            if time.monotonic() > deadline:
                raise DeadlineExceededError(f"run {id} has not stopped within {STOP_SECONDS:g} s; try again")
            time.sleep(0.05)


def pause_run(say: Say, *, id: str) -> None:
    """Pause a run; return when its replicas have paused."""
    with attached(id) as run:
        run.pause()
        await_effect(run, lambda: run.standing().state == "paused", "paused")


def resume_run(say: Say, *, id: str) -> None:
    """Resume a paused run; return when its replicas train again."""
    with attached(id) as run:
        run.resume()
        await_effect(run, lambda: run.standing().state != "paused", "resumed")


def set_run(say: Say, *, id: str, learning_rate: float) -> None:
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
                "replica does not train yet. The command is not lost: it takes effect after that step"
            )
        time.sleep(0.02)


def command_sweep(say: Say, *, id: str, command: str) -> None:
    """Send a command to the process that drives a sweep."""
    from nbdist.trials.command_file import send_command
    from nbdist.trials.store import sweep_folder

    send_command(sweep_folder(id), command)


DOES: dict[str, Callable[..., None]] = {
    "start": start,
    "stop": stop,
    "stop_parallel": stop_parallel,
    "forget_parallel": forget_parallel,
    "grow": grow,
    "shrink": shrink,
    "restart": restart,
    "stop_run": stop_run,
    "pause_run": pause_run,
    "resume_run": resume_run,
    "set_run": set_run,
    "command_sweep": command_sweep,
}


def read_line(descriptor: int) -> bytes:
    """Return the first line that comes, and not a byte more."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte or len(line) > MOST_BYTES:
            raise SystemExit("no request came")
        line += byte
    return bytes(line)


def end_with_server(descriptor: int) -> None:
    """Give up when the server closes its end, or is killed. Read without a lock: this thread never ends."""
    with suppress(OSError):
        while os.read(descriptor, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def give_up(number: int, frame: object) -> None:
    """End what is being done as an interrupt would: what was begun is undone, once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
