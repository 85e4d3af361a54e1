from __future__ import annotations

import asyncio
import threading
import time

from nbdist.runs.follow import Pause

LONG = 60.0


def test_a_rest_ends_when_another_thread_wakes_it() -> None:
    pause, began = Pause(), time.monotonic()
    threading.Timer(0.01, pause.wake).start()
    pause.rest(LONG)
    assert time.monotonic() - began < LONG / 2


def test_a_rest_on_a_loop_ends_so_too_and_the_next_is_whole() -> None:
    pause = Pause()

    async def rest() -> tuple[float, float]:
        began = time.monotonic()
        threading.Timer(0.01, pause.wake).start()
        await pause.rest_on_loop(LONG)
        woken = time.monotonic()
        await pause.rest_on_loop(0.02)
        return woken - began, time.monotonic() - woken

    first, second = asyncio.run(rest())
    assert first < LONG / 2
    assert second >= 0.02


def test_who_is_woken_before_the_rest_does_not_rest() -> None:
    pause = Pause()
    pause.wake()
    asyncio.run(pause.rest_on_loop(LONG))
    pause.wake()  # and nobody minds that the loop has ended
    pause.rest(LONG)
    assert not pause._woken.is_set()
