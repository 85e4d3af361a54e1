"""The data service over real sockets and shared memory, with both ends in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from waiting import until

from nbdist.data import Dataset
from nbdist.data.parts import with_passes
from nbdist.errors import AbortedError, InvalidArgumentError
from nbdist.runtime.data.reader import PassReader, Source
from nbdist.runtime.data.service import READ_AHEAD, DataService
from nbdist.runtime.server import Server
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.client import Peer


@dataclass
class DataTask:
    server: Server
    service: DataService
    info: TaskInfo


@dataclass
class Fixture:
    """Data tasks, and what a worker does with them."""

    tasks: list[DataTask]
    notes: list[str] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)

    def source(self, dataset: Dataset, name: str = "d", **changes: Any) -> Source:
        def deliver(info: TaskInfo) -> None:
            task = next(one for one in self.tasks if one.info == info)
            self.delivered.append(info.name)
            task.service.add("run", name, dataset)

        found = Source(
            tasks=lambda: [one.info for one in self.tasks],
            connect=lambda info: Peer(info.address, self._keys(info), name=info.name),
            deliver=deliver,
            host="here",
            check=lambda: None,
            note=self.notes.append,
            run="run",
            dataset=name,
        )
        return replace(found, **changes)

    def served(self, dataset: Dataset, **changes: Any) -> Dataset:
        return with_passes(dataset, PassReader(dataset, self.source(dataset, **changes)).read)

    def _keys(self, info: TaskInfo) -> Any:
        return next(one.server.keys for one in self.tasks if one.info == info)


@pytest.fixture
def two() -> Iterator[Fixture]:
    tasks = []
    for index in range(2):
        server = Server.create_local_server()
        info = TaskInfo("data", index, index, "here", 1, server.address, "CPU:0", 70 + index)
        tasks.append(DataTask(server, DataService(server, f"nbdist-test{index}"), info))
    yield Fixture(list(tasks))
    for one in tasks:
        one.service.close()
        one.server.close()


def plain(elements: Any) -> list[Any]:
    def of(element: Any) -> Any:
        if isinstance(element, tuple):
            return tuple(map(of, element))
        if isinstance(element, dict):
            return {key: of(part) for key, part in element.items()}
        return (type(element).__name__, np.asarray(element).dtype.str, np.asarray(element).tolist())

    return [of(element) for element in elements]


MAKERS: dict[str, Callable[[], Dataset]] = {
    "divided": lambda: Dataset.range(20).shuffle(8).map(lambda n: (n, {"t": str(n), "b": b"x"})).batch(3),
    "not divided": lambda: Dataset.range(9).map(lambda n: n * 2).shuffle(4).repeat(2),
    "nothing": lambda: Dataset.range(0).batch(2),
}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_passes_and_their_positions_are_those_made_here(two: Fixture, name: str, shared: bool) -> None:
    here = MAKERS[name]().with_seed(7)
    there = two.served(here, host="here" if shared else "elsewhere")
    for _ in range(3):
        assert plain(there) == plain(here)
        assert there.opened == here.opened
    assert len(two.delivered) == len(set(two.delivered)), "once to each task"
    assert not two.notes


def test_a_pass_is_made_ahead_up_to_a_bound_and_shared_by_replicas_in_step(two: Fixture) -> None:
    made: list[int] = []
    two.tasks.pop()

    def make() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    dataset = Dataset.from_generator(make)
    with closing(iter(two.served(dataset))) as one, closing(iter(two.served(dataset))) as other:  # type: ignore[type-var]  # generators close
        assert next(one) == 0
        until(lambda: len(made) > READ_AHEAD)
        assert next(other) == 0
        assert [next(one) for _ in range(3)] == [1, 2, 3]
        assert made == list(range(READ_AHEAD + 1)), "the other one has taken nothing"
        assert [next(other) for _ in range(3)] == [1, 2, 3]
        assert next(one) == 4
    until(lambda: not two.tasks[0].service._passes)


def test_a_reader_in_another_group_has_a_pass_of_its_own(two: Fixture) -> None:
    two.tasks.pop()
    dataset = Dataset.range(40)
    with closing(iter(two.served(dataset, group="slow"))) as slow:  # type: ignore[type-var]  # generators close
        assert next(slow) == 0
        assert list(two.served(dataset, group="fast")) == list(range(40))


def test_the_place_is_kept_when_tasks_are_lost(two: Fixture) -> None:
    dataset = Dataset.range(60).shuffle(30).map(lambda n: n * 3).batch(2).with_seed(5)
    expected = plain(dataset.iterate(epoch=0))
    served = two.served(dataset)
    got = []
    for number, element in enumerate(served):
        got.append(element)
        if number in (7, 17):
            lost = two.tasks[-1 if number == 7 else 0]
            lost.service.close()
            lost.server.close()
    assert plain(got) == expected
    assert served.opened == (1,)
    assert [note.partition(" ")[0] for note in two.notes] == ["/job:data/task:1", "/job:data/task:0"]
    assert two.notes[1].endswith("of the pass")
    assert "this worker itself continues" in two.notes[1]


def test_errors_skipped_records_and_an_abort_reach_the_worker(two: Fixture, tmp_path: Any) -> None:
    def fails(n: Any) -> Any:
        raise KeyError(f"no {n}")

    with pytest.raises(KeyError, match="no 0") as caught:
        list(two.served(Dataset.range(3).map(fails)))
    assert any("on /job:local/task:0, which reads" in note for note in caught.value.__notes__)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3\n5,6\n")
    rows = two.served(Dataset.csv(tmp_path / "a.csv", on_error="skip"), name="rows")
    assert len(list(rows)) == 2
    assert rows.skipped == 1
    assert "line 3" in rows.skipped_note()

    def stop() -> None:
        raise AbortedError("the run has failed")

    with pytest.raises(AbortedError):
        list(two.served(Dataset.range(3), name="other", check=stop))
    with pytest.raises(InvalidArgumentError, match="cannot leave its process"):
        list(two.served(Dataset.from_generator(lambda: [object()]), name="objects"))


def test_a_request_for_no_pass_is_refused(two: Fixture) -> None:
    task = two.tasks[0]
    good: dict[str, Any] = {
        "run": "run", "dataset": "d", "group": "", "opened": [], "seed": [],
        "parts": 2, "index": 0, "first": 0, "shared": True,
    }  # fmt: skip
    bad: Sequence[dict[str, Any]] = ({"index": 2}, {"first": -1}, {"opened": ["1"]}, {"parts": 0})
    with Peer(task.info.address, task.server.keys) as peer:
        for change in bad:
            with pytest.raises(InvalidArgumentError, match="a part of several"):
                peer.call("data.open", {**good, **change})
