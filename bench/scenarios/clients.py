"""Faults of a client: a kernel that restarts, interrupts in a collective, another version (10, 18, 27)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.kills import left_over, resources
from bench.notebook import CellError, Notebook
from bench.scenarios.frame import CUT_OFF, Found, Settings, own_home, small_cluster, until

BACK = 3.0  # seconds until an interrupted cell has ended
ENDLESS = """%%distribute --no-live
import time
import numpy as np
value = np.full({size}, nb.task.index + 100.0)
nb.collective.barrier()
open({mark!r} + str(nb.task.index), "w").close()
if {absent} and nb.task.index == 1:
    time.sleep(600)
while True:
    nb.collective.all_reduce(value, "sum")
"""
SUMS = """%%distribute --no-live
import numpy as np
sums = [float(nb.collective.all_reduce(np.full(50_000, nb.task.index + n), "sum").max()) for n in range(50)]
assert sums == [3.0 + 3 * n for n in range(50)], sums
print("right on", nb.task.index)
"""


def interrupts(found: Found, settings: Settings) -> None:
    """A cell inside of collectives is interrupted twice: it ends, and the next cell's sums are right."""
    with own_home() as home, Notebook() as notebook:
        notebook.run("%load_ext nbdist")
        notebook.run("import nbdist as nb; nb.start_cluster(workers=3, threads=1, report=lambda line: None)")
        for name, absent in (("in calls", False), ("rank 1 absent", True)):
            mark, sent = os.path.join(home, f"{absent}-"), list[float]()

            def interrupt(mark: str = mark, sent: list[float] = sent) -> None:
                ready = all(Path(f"{mark}{rank}").exists() for rank in range(3))
                if ready and (not sent or (len(sent) == 1 and time.monotonic() > sent[0] + 0.2)):
                    sent.append(time.monotonic())
                    os.kill(notebook.pid, signal.SIGINT)

            try:
                notebook.run(ENDLESS.format(size=100_000, mark=mark, absent=absent), 60, interrupt)
            except CellError as error:  # the cell may say that it was interrupted
                found.expect("Interrupt" in str(error), f"{name}: {str(error)[-200:]}")
            found.expect(len(sent) == 2, f"{name}: {len(sent)} interrupts")
            found.within(name, time.monotonic() - sent[0] if sent else 0.0, BACK)
            seconds, printed = notebook.run(SUMS)
            found.expect(printed.count("right on") == 3, f"{name}: the next cell prints {printed!r}")
            found.figures.append(f"next cell {seconds:.2f} s")
        notebook.run("%cluster stop")


# 10: a kernel that restarts, and the magic that runs again.

WAITS = """%%distribute --background --no-live
import os, time
while not os.path.exists({end!r}):
    time.sleep(0.01)
"""


def kernel_restarts(found: Found, settings: Settings) -> None:
    """A kernel is killed and started again, and %cluster start runs again: there is never a second cluster.

    An idle cluster of the same shape and one with a run are used again, one of another shape is ended, and
    so is one that was starting.
    """
    from nbdist.cluster.folder import clusters_folder, living

    with own_home() as home, Notebook({"JPY_SESSION_NAME": "faults.ipynb"}) as notebook:
        before, most, end = resources(), 0, os.path.join(home, "end")

        def count() -> None:
            nonlocal most
            most = max(most, len(living()))

        def start(workers: int) -> tuple[float, str]:
            notebook.run("%load_ext nbdist")
            seconds, _ = notebook.run(f"%cluster start --workers {workers}", while_running=count)
            return seconds, " ".join(living())

        def restart() -> None:
            notebook.manager.restart_kernel(now=True)
            notebook.kernel.wait_for_ready(timeout=60)

        def expect_one(what: str) -> None:
            found.expect(most <= 1, f"{what}: {most} clusters at once")

        _, first = start(2)
        restart()
        seconds, again = start(2)
        expect_one("idle")
        found.within("adopted", seconds, CUT_OFF)
        found.expect(again == first, f"idle: {again} in place of {first}")
        notebook.run(WAITS.format(end=end))
        restart()
        _, busy = start(1)
        found.expect(busy == first, f"with a run: {busy} in place of {first}")
        expect_one("with a run")
        Path(end).touch()
        restart()
        until(lambda: not any(clusters_folder().glob("*/busy/*")), 30, "the end of the run")
        seconds, other = start(1)
        found.within("another shape", seconds, CUT_OFF)
        found.expect(other != first, "a cluster of another shape was used again")
        expect_one("another shape")
        notebook.run("%cluster stop")
        notebook.kernel.execute("%cluster start --workers 2")
        until(lambda: any(clusters_folder().glob("*")), 30, "a start")
        restart()
        begun = time.monotonic()
        start(2)
        until(lambda: len([*clusters_folder().glob("*")]) == 1, 30, "the end of a half-started cluster")
        found.within("half-started one ended", time.monotonic() - begun, CUT_OFF)
        name = " ".join(living())
        notebook.run("%cluster stop")
    found.wrong += left_over(before, home, name)


# 27: a client of another version.

OTHER = """
import sys
from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError
try:
    Cluster.attach({id!r})
except FailedPreconditionError as error:
    print(error)
"""


def other_versions(found: Found, settings: Settings) -> None:
    """A client with the metadata of another version of nbdist, then of NumPy, attaches to a cluster."""
    with small_cluster(found, workers=2) as (cluster, home):
        for package, version in (("nbdist", "9.9.9"), ("numpy", "7.0.0")):
            shown = version.split(".")[0] if package == "numpy" else version
            metadata = Path(home, package, f"{package}-{version}.dist-info")
            metadata.mkdir(parents=True)
            (metadata / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
            )
            path = os.pathsep.join([str(metadata.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
            begun = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", OTHER.format(id=cluster.id)],
                env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            found.within(f"{package} {version} refused", time.monotonic() - begun, CUT_OFF)
            rows = [line.split() for line in done.stdout.splitlines()]
            table = ["here", "cluster"] in rows and [row[0] for row in rows[2:]]
            found.expect(
                table == ["nbdist", "python", "numpy", "ipyparallel"],
                f"{package}: no table in {done.stdout + done.stderr[-200:]!r}",
            )
            found.expect(any(row[:2] == [package, shown] for row in rows), f"{package}: {done.stdout!r}")
            found.expect(cluster.run("1 + 1") == [2, 2], f"{package}: the cluster does not work")
