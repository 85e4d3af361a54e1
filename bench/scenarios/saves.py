"""A process that is killed at each call of a save that changes a file (23)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from bench.scenarios.frame import TESTS, Found, Settings
from bench.scenarios.shims import library

# Once ``fault_arm(n, half)`` was called, the process is killed in place of the nth call that changes a file,
# or, with ``half``, in the middle of it or after it.
SAVES = r"""
#include <atomic>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>
static std::atomic<long> left;  // calls until the kill; below 1 for none
static bool in_half;
extern "C" void fault_arm(long number, int half) { in_half = half, left = number; }
static bool due() { return left > 0 && --left == 0; }
static void die() { for (;;) kill(getpid(), SIGKILL); }
static bool is_file(int file) {
    struct stat found;
    return !fstat(file, &found) && (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode));
}
template <class... T> static long pass(const char *name, bool changes, T... given) {
    auto real = (long (*)(T...))dlsym(RTLD_NEXT, name);
    if (!changes || !due()) return real(given...);
    if (in_half) real(given...);
    die();
    return 0;
}
#define NAMED(result, shim, name, parameters) \
    extern "C" result shim parameters __asm__(name); \
    extern "C" result shim parameters
NAMED(long, shim_write, "write", (int file, const char *data, size_t size)) {
    return pass("write", left > 0 && is_file(file), file, data, in_half && left == 1 ? size / 2 : size);
}
NAMED(int, shim_fsync, "fsync", (int file)) { return pass("fsync", true, file); }
NAMED(int, shim_sync, "fdatasync", (int file)) { return pass("fdatasync", true, file); }
NAMED(int, shim_rename, "rename", (const char *a, const char *b)) { return pass("rename", true, a, b); }
NAMED(int, shim_unlink, "unlink", (const char *path)) { return pass("unlink", true, path); }
NAMED(int, shim_mkdir, "mkdir", (const char *path, mode_t mode)) { return pass("mkdir", true, path, mode); }
NAMED(int, shim_open, "open", (const char *path, int flags, mode_t mode)) {
    return pass("open", flags & O_CREAT, path, flags, mode);
}
NAMED(int, shim_open64, "open64", (const char *path, int flags, mode_t mode)) {
    return pass("open64", flags & O_CREAT, path, flags, mode);
}
"""
KILLED_SAVES = """
import ctypes, os, sys
from pathlib import Path
sys.path[:0] = {paths}
import killed_saver
arm = ctypes.CDLL(None).fault_arm
killed_saver.kill_at, killed_saver.KILLED = (lambda number, half: arm(number, half)), -9
print(killed_saver.main(Path({folder!r})))
"""
KILLED_STATES = """
import ctypes, os, shutil
from pathlib import Path
import numpy as np
from nbdist import nn
from nbdist.checkpoint.manager import parse_interval, state_files
from nbdist.train import Callback
from nbdist.train.context import Context, use_here
from nbdist.train.resume import TrainingStates
folder = Path({folder!r})
arm = ctypes.CDLL(None).fault_arm
x, y = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32), np.arange(20) % 3
class Written(Callback):
    def on_epoch_end(self, epoch, logs):
        states._wait()
def train():
    global states
    states = TrainingStates(folder, parse_interval(1), read=state_files(folder))
    context = Context(seed=5, quiet=True)
    context.states = states
    with use_here(context):
        model = nn.Sequential([nn.Dense(5, "tanh"), nn.Dense(3, "softmax")], seed=5)
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=20, epochs=5, callbacks=[Written()])
    return model.get_weights()
def anew():
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
anew()
whole = train()
for half in (0, 1):
    for number in range(1, 1000):
        anew()
        child = os.fork()
        if not child:
            arm(number, half)
            train()
            os._exit(0)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
        before = state_files(folder)
        again = train()
        assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True)), (number, half)
        assert states.error is None and sorted(folder.iterdir()) == sorted(state_files(folder)), number
        if not died:
            break
        assert not states.fallbacks or len(before) > len(states.fallbacks), states.fallbacks
print(number - 1)
"""


def killed_saves(found: Found, settings: Settings) -> None:
    """A process is killed in place of each call of a save that changes a file, in the middle, and after it.

    The newest complete checkpoint loads, the next save works, and a training that continues from its newest
    state ends with the weights of one that was not killed.
    """
    shim, paths = library(SAVES), [str(TESTS / "runtime")]
    for name, source in (("a saver", KILLED_SAVES), ("a training's states", KILLED_STATES)):
        with tempfile.TemporaryDirectory() as folder:
            program = source.format(paths=paths, folder=os.path.join(folder, "saved"))
            environment = {**os.environ, "LD_PRELOAD": str(shim)}
            done = subprocess.run(
                [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300
            )
        found.expect(done.returncode == 0, f"{name}: {done.stderr.strip()[-300:]}")
        calls = int((done.stdout.split() or ["0"])[-1])
        found.expect(calls >= 5, f"{name}: {calls} calls change a file")
        found.figures.append(f"{name}: {2 * calls} kills at {calls} calls")
