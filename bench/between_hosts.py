"""What crosses a link between hosts, and how fast: ``python -m bench hosts.1gbit hosts.10gbit``.

Hosts are network namespaces, each with a link of a rate in both directions (tbf). A share is a part of what
the link carries at best, counted in bytes of arrays: 2 (n - 1) / n of an array for each host of a ring.
Beside each stands what the simulation predicts from one measurement without a limit: the ring's, which says
how much processor time a byte takes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from statistics import median
from typing import Any

from bench.scenarios.hosts import hosts_of_tests
from bench.script import ROOT, not_measured
from nbdist.distribute.simulation import Cost, all_reduce_s, simulate

BYTES, CALLS, TURNS = 40_000_000, 3, 3
SCRIPT = str(ROOT / "bench" / "hosts_rank.py")
PORT = 29_511
UNLIMITED = "200gbit"
PAYLOAD = 1448 / 1514  # the part of an Ethernet frame that TCP carries
SERVED, PLAIN = "ps, push and pull", "plain TCP"
RINGS = {"ring, 2 hosts": "ab", "ring, 3 hosts": "abc"}
HIERARCHICAL = {"hierarchical, 2 hosts of 2": "aabb"}
GLOO = {"gloo, 2 hosts": "ab", "gloo, 3 hosts": "abc", "gloo, 2 hosts of 2": "aabb"}
PREDICTED = (*RINGS, *HIERARCHICAL, SERVED)
SHARES = (*PREDICTED, *GLOO, PLAIN)
STEPS = {"backward pass": (True, False), "all-reduce": (False, True), "both": (True, True)}
HIDDEN = "gradients beside the backward pass"
Times = list[list[float]]
Work = Callable[[], Times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gbit", type=float, required=True, help="the rate of each host's link, Gbit/s")
    parser.add_argument("--bytes", type=int, default=BYTES)
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    if find_spec("torch") is None:
        raise not_measured("torch is not installed, whose gloo is measured beside")
    print(json.dumps(measure(options.gbit, options.bytes, options.turns)))


def measure(gbit: float, nbytes: int = BYTES, turns: int = TURNS) -> dict[str, float]:
    """Return the figures of `goals`, by name."""
    free: dict[str, Times] = {"ring, 2 hosts": []}
    found: dict[str, Times] = {name: [] for name in (*SHARES, *STEPS)}
    with hosts_of_tests("abc") as hosts:
        works = contenders(hosts, nbytes, gbit)
        for _ in range(turns):
            for rate, times in ((UNLIMITED, free), (f"{round(gbit * 1000)}mbit", found)):
                for host in "abc":
                    hosts.link(host, rate)
                for name, calls in times.items():
                    calls += works[name]()
    seconds = {name: median(call[0] for call in calls) for name, calls in found.items()}
    expected = predictions(gbit, nbytes, median(call[0] for call in free["ring, 2 hosts"]))
    shortest = min(seconds["backward pass"], seconds["all-reduce"])
    return {
        **{name: crossing(name, nbytes) / (gbit * 1e9 / 8) / seconds[name] for name in SHARES},
        **{cores(name): median(call[1] / call[0] for call in found[name]) for name in PREDICTED},
        **{measured(name): 1e3 * seconds[name] for name in PREDICTED},
        **{predicted(name): 1e3 * expected[name] for name in PREDICTED},
        **{off(name): abs(expected[name] / seconds[name] - 1) for name in PREDICTED},
        HIDDEN: (seconds["backward pass"] + seconds["all-reduce"] - seconds["both"]) / shortest,
    }


def cores(name: str) -> str:
    """Return the name of a figure: how many cores are in use meanwhile."""
    return f"{name}: cores"


def measured(name: str) -> str:
    """Return the name of a figure: how long a call takes."""
    return f"{name}: measured"


def predicted(name: str) -> str:
    """Return the name of a figure: how long a call would take."""
    return f"{name}: predicted"


def off(name: str) -> str:
    """Return the name of a figure: by how much the prediction is wrong."""
    return f"{name}: prediction off by"


def crossing(name: str, nbytes: int) -> float:
    """Return the bytes of arrays that each host has to send at least, one way after the other for a ps.

    >>> crossing("ring, 3 hosts", 30), crossing("hierarchical, 2 hosts of 2", 30), crossing(SERVED, 30)
    (40.0, 30.0, 60)
    """
    if name in (SERVED, PLAIN):
        return 2 * nbytes if name == SERVED else nbytes
    hosts = 3 if "3 hosts" in name else 2
    return 2 * (hosts - 1) / hosts * nbytes


def predictions(gbit: float, nbytes: int, ring: float) -> dict[str, float]:
    """Return the seconds that the simulation expects, given those of a ring of two without a limit."""
    cost = Cost(compute_s=1e-9, spread=0, link_bytes_per_s=1e12, socket_s_per_byte=0)
    per_byte = (ring - all_reduce_s("ring", [0, 1], nbytes, cost)) / (2 * nbytes)
    cost = replace(cost, link_bytes_per_s=gbit * 1e9 / 8 * PAYLOAD, socket_s_per_byte=max(per_byte, 0.0))
    served = simulate("ps_sync", 1, 1, cost=cost, variables=[nbytes], apart=True)
    found = {SERVED: served.critical_path_s}
    for name, places in {**RINGS, **HIERARCHICAL}.items():
        # All hosts share the cores and the memory of this one; the two ranks of the ring had a core each.
        crowd = max(1.0, len(places) / min(2, len(os.sched_getaffinity(0))))
        shared = replace(
            cost,
            message_s=cost.message_s * crowd,
            socket_s_per_byte=cost.socket_s_per_byte * crowd,
            memory_bytes_per_s=cost.memory_bytes_per_s / len(set(places)),
        )
        hosts = ["abc".index(place) for place in places]
        found[name] = all_reduce_s(name.partition(",")[0], hosts, nbytes, shared)
    return found


def contenders(hosts: Any, nbytes: int, gbit: float) -> dict[str, Work]:
    """Return by name what returns the seconds, and the CPU seconds of all ranks, of some calls."""
    from host_namespaces import ADDRESSES
    from hosts_group import Group

    def together(group: Group, **order: Any) -> Times:
        ranks = group.all(**order)
        return [[max(s for s, _ in call), sum(c for _, c in call)] for call in zip(*ranks, strict=True)]

    def reduced(group: Group, order: str = "all_reduce") -> Work:
        return lambda: together(group, do=order, nbytes=nbytes, calls=CALLS)

    def formed(places: str, kind: str) -> Group:
        group = Group(hosts, places, SCRIPT)
        assert group.form(kind) == {kind}
        return group

    def gloo(places: str, port: int) -> Work:
        group = Group(hosts, places, SCRIPT)
        for rank, one in enumerate(group.ranks):
            one.ask(do="meet_gloo", rank=rank, size=len(places), address=f"{ADDRESSES['a']}:{port}")
        assert all(group.answers())
        return reduced(group, "all_reduce_gloo")

    def stepped(group: Group, computes: bool, reduces: bool) -> Work:
        order = {"do": "step", "computes": computes, "reduces": reduces, "calls": CALLS}
        return lambda: together(group, **order)

    here, there = (hosts.run(host, SCRIPT) for host in "ab")
    port = here.do(do="listen", host=ADDRESSES["a"], nbytes=nbytes)
    plain = {"do": "plain_tcp", "host": ADDRESSES["a"], "port": port, "nbytes": nbytes, "calls": CALLS}
    keys = Group(hosts, "", SCRIPT).keys.to_dict()
    address = here.do(do="serve_parameters", host=ADDRESSES["a"], keys=keys)
    assert there.do(do="open_shard", address=address, keys=keys, nbytes=nbytes) == "socket"
    training = formed("ab", "ring")
    training.all(do="prepare", nbytes=nbytes, seconds=8 * nbytes / (gbit * 1e9))
    return {
        **{name: reduced(formed(places, "ring")) for name, places in RINGS.items()},
        **{name: reduced(formed(places, "hierarchical")) for name, places in HIERARCHICAL.items()},
        SERVED: lambda: there.do(do="push_and_pull", calls=CALLS),
        **{name: gloo(places, PORT + number) for number, (name, places) in enumerate(GLOO.items())},
        PLAIN: lambda: there.do(**plain),
        **{name: stepped(training, *parts) for name, parts in STEPS.items()},
    }


if __name__ == "__main__":
    main()
