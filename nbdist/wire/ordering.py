"""What threads of several processes that share memory ask of the processor: an order, and a free core.

data[...] = value; fence(); word[0] = 1         # the writer
while not word[0]: yield_core()                 # the reader
fence(); use(data)
"""

from __future__ import annotations

import os
import threading
import time


def fence() -> None:
    """Keep this thread's reads and writes of shared memory before it apart from those after it.

    x86 keeps the order that most algorithms need by itself; other processors need a fence, as in every lock.
    A later access may move up into one locked section, but not past a second one.
    """
    for lock in (threading.Lock(), threading.Lock()):
        with lock:
            pass


def yield_core() -> None:
    """Yield the core to a thread that waits for it, which may be in the middle of an update."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        time.sleep(0)
