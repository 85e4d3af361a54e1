"""The poller polls while a page is visible, one poll at a time, and sends each page its changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from waiting import until_async

from nbdist.lab import service
from nbdist.lab.service import ChangeSender, Poller
from nbdist.lab.state import Snapshot


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACTIVE_SECONDS", "IDLE_SECONDS", "MIN_SECONDS", "SEND_SECONDS"):
        monkeypatch.setattr(service, name, 0.001)


@dataclass
class FakePage:
    cluster: str | None = None
    visible: bool = True
    states: list[dict[str, Any]] = field(default_factory=list)

    def offer(self, state: dict[str, Any]) -> None:
        self.states.append(state)


class FakePoll:
    """Answers each poll with its number; polls wait for ``open``."""

    def __init__(self) -> None:
        self.asked: list[frozenset[str]] = []
        self.concurrent = self.most = 0
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, clusters: frozenset[str]) -> Snapshot:
        self.asked.append(clusters)
        self.concurrent += 1
        self.most = max(self.most, self.concurrent)
        await self.open.wait()
        self.concurrent -= 1
        lists: dict[str, Any] = {"clusters": [], "runs": [], "sweeps": [], "problems": [str(len(self.asked))]}
        return Snapshot(lists, {one: ([{"rank": 0}], []) for one in clusters})


def test_without_visible_pages_nothing_is_polled() -> None:
    async def main() -> None:
        polls = FakePoll()
        poller = Poller(polls)
        hidden, page = FakePage(visible=False), FakePage()
        poller.join(hidden)
        assert not poller.running
        poller.join(page)
        await until_async(lambda: len(page.states) > 2)
        page.visible = False
        poller.wake()
        await until_async(lambda: not poller.running)
        page.visible = True
        poller.wake()
        assert poller.running
        poller.leave(page)
        await until_async(lambda: not poller.running)
        assert not hidden.states
        await poller.close()

    asyncio.run(main())


def test_a_hanging_poll_is_not_repeated() -> None:
    async def main() -> None:
        polls = FakePoll()
        polls.open.clear()
        poller = Poller(polls)
        pages = [FakePage() for _ in range(5)]
        for page in pages:
            poller.join(page)
            poller.wake()
            await asyncio.sleep(0.002)
        assert len(polls.asked) == 1
        polls.open.set()
        await until_async(lambda: all(page.states for page in pages))
        assert polls.most == 1
        await poller.close()

    asyncio.run(main())


def test_each_page_gets_the_tasks_of_its_own_cluster() -> None:
    async def main() -> None:
        polls = FakePoll()
        poller = Poller(polls)
        one, two, three = FakePage("a"), FakePage("b"), FakePage()
        for page in (one, two, three):
            poller.join(page)
        await until_async(lambda: one.states and two.states and three.states)
        assert frozenset("ab") in polls.asked
        assert [page.states[-1]["cluster"] for page in (one, two, three)] == ["a", "b", None]
        assert [len(page.states[-1]["tasks"]) for page in (one, two, three)] == [1, 1, 0]
        two.cluster = "c"  # during a poll for the former cluster
        poller.wake()
        await until_async(lambda: two.states[-1]["cluster"] == "c")
        assert two.states[-1]["tasks"]
        await poller.close()

    asyncio.run(main())


def test_a_failed_poll_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        polls = FakePoll()

        async def fail(clusters: frozenset[str]) -> Snapshot:
            if not polls.asked:
                polls.asked.append(clusters)
                raise ZeroDivisionError
            return await polls(clusters)

        poller, page = Poller(fail), FakePage()
        poller.join(page)
        await until_async(lambda: page.states)
        await poller.close()

    asyncio.run(main())
    assert "ZeroDivisionError" in caplog.text


def test_a_slow_page_gets_merged_changes() -> None:
    async def main() -> None:
        sent: list[dict[str, Any]] = []
        taken = asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            await taken.wait()

        sender = ChangeSender(send)
        sender.offer({"problems": ["0"]})
        await until_async(lambda: sent)
        for number in range(1, 1000):  # the page does not read
            sender.offer({"problems": [str(number)]})
        await asyncio.sleep(0.01)
        assert len(sent) == 1
        taken.set()
        await until_async(lambda: len(sent) == 2)
        sender.offer({"problems": ["999"]})
        await asyncio.sleep(0.01)
        assert sent == [
            {"kind": "state", "problems": ["0"]},
            {"kind": "changes", "problems": ["999"]},
        ]

    asyncio.run(main())


def test_messages_have_a_minimum_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SEND_SECONDS", 0.05)

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        at: list[float] = []

        async def send(message: dict[str, Any]) -> None:
            at.append(clock())

        sender = ChangeSender(send)
        number = 0
        while len(at) < 3:
            number += 1
            sender.offer({"problems": [str(number)]})
            await asyncio.sleep(0.001)
        assert min(at[1] - at[0], at[2] - at[1]) >= 0.05

    asyncio.run(main())


def test_messages_for_a_hidden_page_are_dropped() -> None:
    async def main() -> None:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        sender = ChangeSender(send)
        sender.offer({"problems": []})
        sender.drop()
        await asyncio.sleep(0.01)
        assert not sent

    asyncio.run(main())
