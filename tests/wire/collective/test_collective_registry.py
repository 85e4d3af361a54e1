"""The choice of a collective, and groups that cannot be formed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from collective_worlds import members

from nbdist.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError
from nbdist.wire.collective.base import Collective, Member
from nbdist.wire.collective.registry import choose, form
from nbdist.wire.collective.shm import segment
from nbdist.wire.collective.shm.collective import ShmEndpoint
from nbdist.wire.shm import Segment, shared_folder

Infos = list[dict[str, Any]]


class Table:
    """Exchanges the ranks' endpoint infos, as a caller of `form` does."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=20)
        self._infos: Infos = [{}] * size

    def exchange(self, rank: int) -> Callable[[dict[str, Any]], Sequence[dict[str, Any]]]:
        def give(info: dict[str, Any]) -> Infos:
            self._infos[rank] = info
            self._barrier.wait()
            infos = list(self._infos)
            self._barrier.wait()
            return infos

        return give


def formed_by_all(everyone: Sequence[Member], **options: Any) -> list[Collective]:
    table = Table(len(everyone))
    with ThreadPoolExecutor(len(everyone)) as pool:
        return list(pool.map(lambda one: form(one, table.exchange(one.rank), **options), everyone))


def left(member: Member) -> list[str]:
    return [path.name for path in shared_folder().glob(f"{member.prefix}*")]


@pytest.mark.parametrize(
    ("hosts", "kind"),
    [(["a"], "local"), (["a", "a"], "shm"), (["a", "b"], "ring"), (["a", "b", "b"], "hierarchical")],
)
def test_auto_chooses_by_the_hosts(hosts: list[str], kind: str) -> None:
    groups = formed_by_all(members(hosts))
    assert {group.kind for group in groups} == {kind}
    with ThreadPoolExecutor(len(groups)) as pool:
        sums = list(pool.map(lambda group: group.all_reduce(group.rank + 1, "sum"), groups))
    assert sums == [sum(range(len(hosts) + 1))] * len(hosts)
    for group in groups:
        group.close()


def test_a_named_collective_has_to_be_possible() -> None:
    assert choose(["a", "a"], "ring") == "ring"
    with pytest.raises(InvalidArgumentError, match="no collective 'pigeon'; choose from auto, local, shm"):
        choose(["a"], "pigeon")
    with pytest.raises(InvalidArgumentError, match="ranks of one host"):
        choose(["a", "b"], "shm")
    with pytest.raises(InvalidArgumentError, match="for one rank, not 2"):
        choose(["a", "a"], "local")
    with pytest.raises(InvalidArgumentError, match="3 of 2 hosts and 2 names"):
        replace(members(["a", "b"])[0], rank=3)


def test_all_ranks_use_sockets_if_shared_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    create = Segment.create
    made: list[int] = []

    def full(prefix: str, size: int) -> Segment:
        made.append(size)
        if len(made) == 2:
            raise ResourceExhaustedError("no room for 2 MB")
        return create(prefix, size)

    monkeypatch.setattr(segment.Segment, "create", full)
    everyone = members(["a"] * 3)
    groups = formed_by_all(everyone)
    assert [group.kind for group in groups] == ["ring"] * 3
    assert all("no room for 2 MB" in group.notes[0] for group in groups)
    assert left(everyone[0]) == []
    for group in groups:
        group.close()
    made.clear()
    with pytest.raises(ResourceExhaustedError, match="collective 'shm' is not available: /job:worker/task"):
        formed_by_all(everyone, kind="shm")


def test_an_info_of_another_incarnation_is_refused() -> None:
    one, other = members(["a", "a"])
    endpoints = [ShmEndpoint(one), ShmEndpoint(replace(other, incarnation=other.incarnation + 1))]
    infos = [endpoint.info for endpoint in endpoints]
    for endpoint in endpoints:
        with pytest.raises(UnavailableError, match=r"rank \d \(/job:worker/task:\d\) is of incarnation"):
            endpoint.join(infos)
    assert left(one) == []


@pytest.mark.parametrize("kind", ["shm", "ring"])
def test_a_rank_that_does_not_join_is_named(kind: str) -> None:
    from nbdist.wire.collective.registry import COLLECTIVES

    everyone = members(["a", "a"])
    endpoints = [COLLECTIVES[kind].make(member) for member in everyone]
    infos = [endpoint.info for endpoint in endpoints]
    with pytest.raises(TimeoutError, match=r"rank 1 \(/job:worker/task:1\)"):
        endpoints[0].join(infos, timeout=0.1)
    endpoints[1].close()
    assert left(everyone[0]) == []
