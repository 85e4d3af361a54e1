"""Libraries that stand between a process and the C library: a clock that jumps, and a save that is killed.

    path = library(CLOCK)                     # compiled once, into a folder of this user
    os.environ["LD_PRELOAD"] = str(path)      # for the processes that are started from now on

`CLOCK` adds the seconds that a file holds (its path is in ``FAULT_CLOCK``) to the time of day; clocks that
cannot be set are as they were. `SAVES` kills its process in place of the nth call that changes a file, or,
with ``half``, in the middle of it or after it, once ``fault_arm(n, half)`` was called.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.script import NotThere

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


def library(source: str) -> Path:
    """Compile a library, unless this user has it already; return its path. Raises NotThere without g++."""
    if shutil.which("g++") is None:
        raise NotThere("no g++ here to compile the library that stands before the C library")
    folder = Path(tempfile.gettempdir()) / f"nbdist-shims-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set TMPDIR")
    path = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-ldl", "-o", str(draft)]
        subprocess.run(["g++", *flags], input=source, text=True, check=True)
        draft.replace(path)
    return path
