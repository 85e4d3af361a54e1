"""Threads that read for the event loop: results, errors and hanging calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from waiting import PATIENCE

from nbdist.errors import DeadlineExceededError, UnavailableError
from nbdist.lab.service import within
from nbdist.lab.worker import Worker


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def _threads_of(name: str) -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(f"{name}-")]


def test_results_and_errors_come_back() -> None:
    async def main() -> None:
        worker = Worker("test")
        assert await worker.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await worker.run(divmod, 7, 0)
        worker.close()

    asyncio.run(main())


def test_threads_exist_only_while_there_is_work() -> None:
    async def main() -> None:
        worker = Worker("threads-of-this-test", threads=3)
        assert not _threads_of("threads-of-this-test")
        await asyncio.gather(*(worker.run(int) for _ in range(20)))
        threads = _threads_of("threads-of-this-test")
        assert 1 <= len(threads) <= 3
        assert all(thread.daemon for thread in threads)
        worker.close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    asyncio.run(main())


def test_a_hanging_call_blocks_no_other(gate: threading.Event) -> None:
    async def main() -> None:
        worker = Worker("test", threads=2)
        hanging = asyncio.create_task(worker.run(gate.wait))
        await asyncio.sleep(0)  # the task begins, and has a thread
        assert await worker.run(int) == 0
        gate.set()
        await hanging
        worker.close()

    asyncio.run(main())


def test_a_call_past_its_deadline_is_refused_and_not_queued(gate: threading.Event) -> None:
    async def main() -> None:
        worker = Worker("test", waiting=2)
        for _ in range(3):
            with pytest.raises(DeadlineExceededError, match="the disk of nbdist's folder is slow"):
                await within(0.01, worker.run(gate.wait))
        with pytest.raises(UnavailableError, match="too many reads are waiting"):
            await worker.run(int)
        gate.set()
        async with asyncio.timeout(30):
            while True:
                with suppress(UnavailableError):
                    assert await worker.run(int) == 0
                    break
                await asyncio.sleep(0.001)  # the calls before it end on their threads
        worker.close()

    asyncio.run(main())


def test_an_ended_loop_gets_no_result(gate: threading.Event) -> None:
    async def main() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(worker.run(gate.wait), 0.01)

    worker = Worker("test")
    asyncio.run(main())
    gate.set()
    worker.close()
