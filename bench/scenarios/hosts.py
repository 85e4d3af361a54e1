"""Faults between two hosts, which are network namespaces: a partition, resets, slowness (13, 14, 15)."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.scenarios.frame import CUT_OFF, TESTS, Found, Settings, small_cluster, until
from bench.script import NotThere

SYNC, ASYNC = {"synchronous": True}, {"synchronous": False}
SILENT = b"/job:ps/task:0 (pid "  # begins the line of a replica whose server does not answer
SERVED = {"ps0": "a", "worker0": "a", "worker1": "b"}


@contextmanager
def hosts_of_tests(names: str = "ab") -> Iterator[Any]:
    """Yield hosts of tests/hosts; nothing may be left in their shared memory."""
    sys.path[:0] = [str(TESTS / "hosts"), str(TESTS)]
    from host_namespaces import NotHere, TwoHosts, why_not

    if why := why_not():
        raise NotThere(why)
    hosts = TwoHosts(names)
    try:
        yield hosts
        left = [name for host in names for name in hosts.shared_files(host)]
        assert not left, f"left in shared memory: {left}"
    except NotHere as why:
        raise NotThere(str(why)) from None
    finally:
        hosts.close()


def silent_partition(found: Found, settings: Settings) -> None:
    """Host b is off the network in mid-run, and on it again: both sides err, no update counts twice.

    An asynchronous worker says that its server is silent, and raises when it has waited for a new process.
    """
    with hosts_of_tests() as hosts:
        from hosts_cluster import HostsCluster
        from hosts_model import assert_alike, fit_alone

        from nbdist.distribute.served_training import NEW_SECONDS

        def cut(cluster: HostsCluster) -> float:
            hosts.cut("b")
            cluster.resume()
            return time.monotonic()

        def raised(what: str, cluster: HostsCluster, name: str, begun: float, bound: float = CUT_OFF) -> Any:
            answer = cluster[name].answer()
            found.expect("error" in answer, f"{what} {name} ended without an error")
            found.within(f"{what} {name}", time.monotonic() - begun, bound)
            return answer

        cluster = HostsCluster(hosts, SERVED)
        cluster.begin("ps", SYNC, epochs=10, pause=True)
        begun = cut(cluster)
        for name in cluster.workers:
            raised("sync", cluster, name, begun)
        run, made = cluster.run, cluster["ps0"].do(do="served", run=cluster.run)
        hosts.heal("b")
        cluster.begin("ps", SYNC)
        for result in cluster.results():
            assert_alike(result, fit_alone())
        later = cluster["ps0"].do(do="served", run=run)
        found.expect(later == made, f"updates {made} became {later} after the link was whole again")
        cluster["ps0"].do(do="release", run=run)

        cluster.begin("ps", ASYNC, epochs=30, pause=True)
        begun, remote = cut(cluster), cluster["worker1"]
        until(
            lambda: SILENT in os.pread(remote._stderr.fileno(), 1 << 20, 0), 60, "a word of the silent server"
        )
        found.within("async worker1 says so", time.monotonic() - begun, CUT_OFF)
        lost = raised("async", cluster, "worker1", begun, CUT_OFF + NEW_SECONDS)
        hosts.heal("b")
        near = cluster["worker0"].answer()
        theirs = near["global_step"] - near["steps"]
        found.figures.append(f"{theirs} of {lost['steps']} updates of the lost worker")
        found.expect(near["steps"] == 90, f"the near worker made {near['steps']} steps of 90")
        found.expect(lost["steps"] - 2 <= theirs <= lost["steps"], f"{theirs} of {lost['steps']} updates")
        cluster.close()

        cluster = HostsCluster(hosts, {"worker0": "a", "worker1": "a", "worker2": "b"})
        cluster.begin("multi_worker", {}, pause=True, epochs=6)
        begun = cut(cluster)
        raised("all-reduce", cluster, "worker2", begun)
        for name in ("worker0", "worker1"):
            assert_alike(cluster[name].answer(), fit_alone(epochs=6))
        found.within("the others' end", time.monotonic() - begun, 15.0)
        hosts.heal("b")
        cluster.begin("multi_worker", {})
        for result in cluster.results():
            assert_alike(result, fit_alone())
        cluster.close()


def resets_in_mid_frame(found: Found, settings: Settings) -> None:
    """A proxy resets a worker's connections inside of three gradients: each is applied once."""
    with hosts_of_tests() as hosts:
        from hosts_cluster import HostsCluster
        from hosts_model import assert_alike, fit_alone

        model = {"epochs": 8, "width": 10_000}
        for name, rules in (("sync", SYNC), ("async", ASYNC)):
            cluster = HostsCluster(hosts, SERVED, through_proxy={"worker1": "ps0"})
            cluster.begin("ps", rules, pause=True, **model)
            proxy = cluster.proxies["worker1"]
            proxy.do(do="reset_after", sizes=[100_000, 300_000, 1_000_000])
            cluster.resume()
            for result in cluster.results():
                if rules is SYNC:
                    assert_alike(result, fit_alone(**model))
                steps = 24 if rules is SYNC else 48
                found.expect(result.get("global_step") == steps, f"{name}: {str(result)[:200]}")
            resets = proxy.do(do="resets")
            found.expect(resets == 3, f"{name}: {resets} resets of 3")
            found.figures.append(f"{name} {resets} resets, {steps} updates of {steps}")
            cluster.close()


SLOW = """
import time
import numpy as np
x, y, _, _ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(32, "sigmoid"), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
def work(*batch):
    time.sleep(0.02)
    return batch
data = nb.data.Dataset.from_arrays(x, y).batch(64, drop_remainder=True).repeat().map(work)
model.fit(data, steps_per_epoch=10, epochs=1_000_000)
"""


def slow_replica_and_link(found: Found, settings: Settings) -> None:
    """A worker is stopped most of the time, then a link has 4 Mbit/s: the bound on staleness holds."""
    sys.path[:0] = [str(TESTS / "hosts"), str(TESTS)]
    from staleness import most_stale

    from nbdist.run.options import Options
    from nbdist.run.start import start_run
    from nbdist.runtime.ps.sync import Rules

    most = most_stale(Rules(replicas=3, staleness=2))
    assert most is not None
    with small_cluster(found, ps=1) as (cluster, _):
        run = start_run(SLOW, Options(strategy="ps", staleness=2), cluster=cluster)
        until(lambda: run.poll() or run.global_step > 60, 60, "a training")
        over = threading.Event()
        pid = cluster.tasks[1].pid

        def halt() -> None:
            while not over.wait(0.01):
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.09)
                os.kill(pid, signal.SIGCONT)

        thread = threading.Thread(target=halt)
        thread.start()
        try:
            named = until(
                lambda: run.poll() or run.standing().replicas[1].state == "straggler", 30, "a named straggler"
            )
            until(lambda: run.poll() or run.global_step > 300, 60, "300 updates")
            states = [replica.state for replica in run.standing().replicas]
            slowness = run.standing().replicas[1].slowness or 0.0
        finally:
            over.set()
            thread.join()
        run.stop()
        until(run.poll, 30, "the end")
        stale = max(int(run.store.points(rank, "staleness")[1].max()) for rank in range(3))
        found.figures.append(
            f"straggler named after {named:.1f} s ({slowness:.1f}x), staleness {stale} of {most}"
        )
        found.expect(states.count("straggler") == 1, f"states {states}")
        found.expect(stale <= most, f"staleness {stale} is above {most}")
        found.expect(run.error is None, f"ended with {run.error}")
    with hosts_of_tests() as hosts:
        from hosts_cluster import HostsCluster

        most = most_stale(Rules(replicas=2, staleness=1)) or 0
        cluster = HostsCluster(hosts, SERVED)
        hosts.slow("b", rate="4mbit")
        cluster.begin("ps", {**ASYNC, "staleness": 1}, width=5_000, epochs=2)
        results = cluster.results()
        stale = max(max(result["staleness"]) for result in results)
        found.figures.append(f"4 Mbit/s: staleness {stale} of {most}")
        found.expect(stale <= most, f"staleness {stale} is above {most}")
        found.expect(all(result["global_step"] == 12 for result in results), f"{results}"[:200])
        cluster.close()
