from __future__ import annotations

import asyncio
import threading
import time

from nbdist.run.follow import WakeableSleep

LONG = 60.0


def test_a_sleep_ends_when_another_thread_wakes_it() -> None:
    sleeper, began = WakeableSleep(), time.monotonic()
    threading.Timer(0.01, sleeper.wake).start()
    sleeper.sleep(LONG)
    assert time.monotonic() - began < LONG / 2


def test_a_sleep_on_a_loop_ends_too_and_the_next_is_whole() -> None:
    sleeper = WakeableSleep()

    async def sleep() -> tuple[float, float]:
        began = time.monotonic()
        threading.Timer(0.01, sleeper.wake).start()
        await sleeper.sleep_on_loop(LONG)
        woken = time.monotonic()
        await sleeper.sleep_on_loop(0.02)
        return woken - began, time.monotonic() - woken

    first, second = asyncio.run(sleep())
    assert first < LONG / 2
    assert second >= 0.02


def test_a_wake_before_the_sleep_ends_it_at_once() -> None:
    sleeper = WakeableSleep()
    sleeper.wake()
    asyncio.run(sleeper.sleep_on_loop(LONG))
    sleeper.wake()  # the loop has ended; that raises nothing
    sleeper.sleep(LONG)
    assert not sleeper._woken.is_set()
