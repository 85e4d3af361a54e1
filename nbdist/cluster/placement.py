"""On which host each task of a cluster runs. Pure.

    slots = worker_slots(read_hosts("a:2,b:2"), workers=None)
    place(slots, ps=1)                                          # ('a', 'a', 'b', 'b', 'a'), by rank

Workers fill the hosts in their order, so that neighbours in rank share a host, as in torchrun and MPI.
Parameter servers and data tasks follow, in turn over the hosts. The client's own host has the name "".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from nbdist.cluster.hosts import Host
from nbdist.errors import InvalidArgumentError
from nbdist.numbers import is_whole


def worker_slots(hosts: Sequence[Host], workers: int | None) -> dict[str, int]:
    """Return how many workers each host gets.

    ``workers`` is their number, None for one in each slot. A host without a number of slots has one, or an
    even part of the workers that are left. Raises InvalidArgumentError if there are more workers than slots.

    >>> worker_slots([Host("a", 2), Host("b", 2)], None)
    {'a': 2, 'b': 2}
    >>> worker_slots([Host("a", 2), Host("b", 2)], 3)
    {'a': 2, 'b': 1}
    >>> worker_slots([Host("a", None), Host("b", None)], 3)
    {'a': 2, 'b': 1}
    """
    if workers is None:
        return {host.name: 1 if host.slots is None else host.slots for host in hosts}
    open_hosts = [host.name for host in hosts if host.slots is None]
    left = workers - sum(host.slots or 0 for host in hosts)
    if left > 0 and not open_hosts:
        slots = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise InvalidArgumentError(
            f"workers={workers} do not fit on the hosts {slots}, which take {workers - left}: give larger "
            "numbers (HOST:N), more hosts, or fewer workers"
        )
    counts = {host.name: host.slots or 0 for host in hosts}
    for number, name in enumerate(open_hosts):
        counts[name] = max(0, left) // len(open_hosts) + (number < max(0, left) % len(open_hosts))
    unused = workers
    for host in hosts:
        counts[host.name] = min(counts[host.name], unused)
        unused -= counts[host.name]
    return counts


def check_least(asked: int | None, workers: int, has_hosts: bool) -> int:
    """Return the number of workers with which a cluster is ready: ``asked``, or all.

    Raises InvalidArgumentError for a number that is not 1 to ``workers``, and for a cluster of one host.

    >>> check_least(None, 4, True), check_least(1, 4, True)
    (4, 1)
    """
    if asked is None:
        return workers
    if not has_hosts:
        raise InvalidArgumentError(
            f"min_workers={asked!r} is for clusters on several hosts, of which some may come later: leave it "
            "out, or give hosts (--launcher ssh --hosts a:2,b:2)"
        )
    if not is_whole(asked, 1, workers):
        raise InvalidArgumentError(
            f"min_workers is a whole number of 1 to {workers}, the workers of all hosts, not {asked!r}"
        )
    return asked


def place(slots: Mapping[str, int], ps: int = 0, data: int = 0) -> tuple[str, ...]:
    """Return the host of each task, by rank; ``slots`` are the workers of each host.

    >>> place({"a": 2, "b": 1}, ps=2)
    ('a', 'a', 'b', 'a', 'b')
    """
    names = list(slots)
    others = [names[number % len(names)] for number in range(ps + data)]
    return (*(name for name in names for _ in range(slots[name])), *others)


def place_more(
    places: Sequence[str], workers: Sequence[str], hosts: Mapping[str, int], more: int
) -> list[str]:
    """Return the hosts of ``more`` workers.

    ``places`` are the hosts of all tasks, ``workers`` those of the workers, and ``hosts`` the number of
    workers that each host may have; each new one goes to the host with the most room.

    >>> place_more(["a", "b", "a"], ["a", "b"], {"a": 2, "b": 2}, 2)
    ['b', 'a']
    """
    used, all_used, found = Counter(workers), Counter(places), []
    for _ in range(more):
        name = max(hosts, key=lambda one: (hosts[one] - used[one], -all_used[one]))
        used[name] += 1
        all_used[name] += 1
        found.append(name)
    return found
