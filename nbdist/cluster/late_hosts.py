"""Hosts that come when their cluster is ready already: their workers are added to it.

    LateHosts(cluster, supervisor, {"c": 2}, {}, explain, print).start()

A thread of the client that has started the cluster waits for them. It adds the workers of each host as
`Cluster.grow` does, so that a running training takes them in between two steps. A host that cannot be started
is tried again every `RETRY_SECONDS`, and its reason is reported whenever it is another one. Another client's
change of the tasks goes first.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from nbdist.cluster.description import read_description
from nbdist.cluster.hub import check_host_versions
from nbdist.cluster.resize import ScaleUp, describe_scale_up, plan_more
from nbdist.cluster.resources import resources_of
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.errors import NbdistError, UnavailableError

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

RETRY_SECONDS = 10.0  # between two attempts to start a host's supervisor
LOOK_SECONDS = 0.2  # between two looks for hosts that have come


class LateHosts(threading.Thread):
    """Adds the workers of hosts that come late; ``slots`` is how many each of them takes, by its name.

    ``reasons`` are those of hosts that could not be started at first. ``explain(host, code, errors)`` returns
    why the command of a host has ended. ``report`` is called with a text for each host, on this thread. It
    ends when no host is awaited, or with the cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        supervisor: SupervisorClient,
        slots: Mapping[str, int],
        reasons: Mapping[str, str],
        explain: Callable[[str, int, str], str],
        report: Callable[[str], object],
    ) -> None:
        super().__init__(name=f"nbdist hosts {cluster.id}", daemon=True)
        self._cluster = weakref.ref(cluster)
        self._supervisor = supervisor
        self._awaited = dict(slots)
        self._reasons = dict(reasons)
        self._explain, self._report = explain, report
        self._retry = dict.fromkeys(reasons, time.monotonic() + RETRY_SECONDS)
        self._pause = threading.Event()

    def run(self) -> None:
        """Wait for the hosts."""
        while self._awaited and not self._supervisor.closed:
            self._supervisor.ended()  # takes in what has arrived
            for failed in self._supervisor.take("command_ended"):
                for host in failed["hosts"]:
                    self._note(host, self._explain(host, failed["code"], failed["errors"]))
                    self._retry[host] = time.monotonic() + RETRY_SECONDS
            for waiting in self._supervisor.take("waiting"):
                self._report(waiting["reason"])
            for host in [name for name in self._awaited if name in self._supervisor.hosts]:
                self._join(host)
            due = [name for name, at in self._retry.items() if time.monotonic() > at]
            if due := [name for name in due if self._retry.pop(name) and name in self._awaited]:
                with suppress(NbdistError):  # the cluster ends
                    self._supervisor.ask("bring_up", hosts=due)
            self._pause.wait(LOOK_SECONDS)

    def _note(self, host: str, why: str) -> None:
        if host in self._awaited and self._reasons.get(host) != why:
            self._reasons[host] = why
            self._report(why)

    def _join(self, host: str) -> None:
        cluster = self._cluster()
        if cluster is None or cluster.stopped:
            self._awaited.clear()
            return
        try:
            report = self._supervisor.hosts[host]
            check_host_versions({host: report["versions"]})
            asked = read_description(cluster.folder).asked
            found = {host: resources_of(report, asked.get("gpus", "auto"))}
            slots = {host: self._awaited[host]}
            change = ScaleUp(
                cluster, self._supervisor, plan_more(cluster.tasks, slots[host], asked, found, slots)
            )
            change.wait()
        except UnavailableError:  # another client changes the cluster, or the host has been lost again
            self._pause.wait(LOOK_SECONDS)
        except NbdistError as error:
            self._awaited.pop(host)
            self._report(f"host {host} has come, and its workers could not be added: {error}")
        else:
            self._awaited.pop(host)
            self._report(f"host {host} has come: {describe_scale_up(change, cluster)}")
