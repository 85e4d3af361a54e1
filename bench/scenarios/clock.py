"""A clock that jumps by an hour, forward and back (31)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.kills import FIT, PROGRAMS, Program, trained
from bench.recovery_work import reached, read
from bench.scenarios.frame import CUT_OFF, LEAST, Found, Settings, own_home, until
from bench.scenarios.shims import library

# Adds the seconds that the file ``FAULT_CLOCK`` holds to the time of day; other clocks are as they were.
CLOCK = r"""
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <fcntl.h>
#include <unistd.h>
// The file is read at most every 10 ms.
static long offset() {
    static long known, looked;
    timespec now;
    static auto clock = (int (*)(clockid_t, timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    clock(CLOCK_MONOTONIC, &now);
    long tick = now.tv_sec * 100 + now.tv_nsec / 10000000;
    if (tick == looked) return known;
    looked = tick;
    char text[32] = "";
    const char *path = getenv("FAULT_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return known;
    if (read(file, text, sizeof text - 1) > 0) known = atol(text);
    close(file);
    return known;
}
extern "C" int clock_gettime(clockid_t which, timespec *out) noexcept {
    static auto real = (int (*)(clockid_t, timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int found = real(which, out);
    if (!found && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) out->tv_sec += offset();
    return found;
}
extern "C" int gettimeofday(timeval *out, void *) noexcept {
    timespec now;
    int found = clock_gettime(CLOCK_REALTIME, &now);
    *out = {now.tv_sec, now.tv_nsec / 1000};
    return found;
}
extern "C" time_t time(time_t *out) noexcept {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""
ABANDONED = """
import os
from nbdist.cluster.launch import start_cluster
start_cluster(workers=1, report=None, orphan_timeout={seconds})
os._exit(0)
"""
IDLE = 6.0  # seconds after which a cluster without a client ends


def clock_jumps(found: Found, settings: Settings) -> None:
    """The time of day of a client and its cluster jumps by +1 h and by -1 h in mid-run: nothing notices."""
    shim = library(CLOCK)
    with tempfile.TemporaryDirectory() as folder:
        clock = os.path.join(folder, "clock")
        Path(clock).write_text("0")
        program = f"from bench.scenarios.clock import jumping; jumping({clock!r}, {settings.seed})"
        environment = {**os.environ, "LD_PRELOAD": str(shim), "FAULT_CLOCK": clock}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=400
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    found.figures += told["figures"]
    found.wrong += told["wrong"]


def jumping(clock: str, seed: int) -> None:
    """Make the jumps in this process and the clusters that it starts; print a `Found`."""
    from nbdist.cluster.folder import living

    found, begun = Found(), time.time()

    def jump(seconds: int) -> None:
        Path(clock).write_text(str(seconds))
        until(lambda: abs(time.time() - begun - seconds) < 600, 5, "a jump")

    def disturb(run: Any, cluster: Any, steps: str) -> None:
        def makes_steps() -> None:
            now = run.global_step
            until(lambda: run.poll() or run.global_step > now + 50, 60, "50 more steps")

        def noticed(rank: int, signum: signal.Signals, bound: float) -> None:
            told = len(run.notes)
            os.kill(cluster.tasks[rank].pid, signum)
            took = until(lambda: run.poll() or len(run.notes) > told, 60, "a notice")
            found.within(f"{name} {signum.name} noticed", took, bound)
            until(lambda: run.poll() or "joined" in " ".join(run.notes[told:]), 60, "a new process")

        until(lambda: run.poll() or reached(read(steps), 3), 60, "step 250")
        began = time.monotonic()
        for seconds, signum, bound in ((3600, signal.SIGKILL, 2.0), (-3600, signal.SIGSTOP, CUT_OFF)):
            jump(seconds)
            makes_steps()
            noticed(1, signum, bound)
            makes_steps()
        jump(0)
        until(lambda: run.poll() or len(run.store.replicas) == 3, 10, "points")
        for rank in range(3):
            times = run.store.points(rank, "loss")[2]
            span = float(times.max() - times.min())
            found.expect(span < time.monotonic() - began + 60, f"{name}: curve {rank} spans {span:.0f} s")

    for name in ("async-ps", "all-reduce"):
        program = Program(FIT, 3, PROGRAMS[name].servers, PROGRAMS[name].options)
        outcome = trained(program, disturb, seed, least=LEAST, per_epoch=1)
        found.expect(not outcome.error, f"{name}: {outcome.error[-300:]}")
        found.expect(len(outcome.restarts) == 2, f"{name}: {len(outcome.restarts)} tasks replaced, not 2")
        found.expect(outcome.accuracy > 0.9, f"{name}: accuracy {outcome.accuracy:.3f}")
        found.figures.append(f"accuracy {outcome.accuracy:.3f}")
        found.wrong += outcome.left
    for seconds in (3600, -3600):
        with own_home():
            source = [sys.executable, "-c", ABANDONED.format(seconds=IDLE)]
            subprocess.run(source, stdout=subprocess.DEVNULL, check=True)
            jump(seconds)
            took = until(lambda: not living(), 60, "the end of an idle cluster")
            found.within(f"idle {IDLE:.0f} s and {seconds:+} s: ended", took, IDLE + 6)
            found.expect(took > IDLE - 1, f"an idle cluster ended after {took:.1f} s")
            jump(0)
    print(json.dumps(asdict(found)))
