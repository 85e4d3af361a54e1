"""Hosts that come when their cluster is ready already: their workers are added to it.

    LateHosts.begin(cluster, supervisor, print)

The head's supervisor knows which hosts never had a task, and runs the commands that start them. A thread of
each client, the one that has started the cluster and those that have attached to it, waits for these hosts.
It adds the workers of each as `Cluster.grow` does, so that a running training takes them in between two
steps. A host that cannot be started is tried again every `RETRY_SECONDS`, and its reason is reported whenever
it is another one. Of several clients one adds the workers: the supervisor lets one client at a time change
the tasks, and refuses ranks that another one has just given to tasks.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from nbdist.cluster.description import read_description
from nbdist.cluster.doctor.judge import CORE, judge_joined
from nbdist.cluster.doctor.observe import software
from nbdist.cluster.launchers.registry import find_launcher
from nbdist.cluster.resize import ScaleUp, describe_scale_up, plan_more
from nbdist.cluster.resources import resources_of
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NbdistError, UnavailableError

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.cluster.launchers.spec import LauncherSpec

RETRY_SECONDS = 3.0  # between two attempts to start a host's supervisor
LOOK_SECONDS = 0.2  # between two looks for hosts that have come


class LateHosts(threading.Thread):
    """Adds the workers of hosts that come late; ``slots`` is how many each of them takes, by its name.

    ``reasons`` has the hosts that no command starts now, and why, as far as this client knows. ``report`` is
    called with a text for each host, on this thread. It ends when no host is awaited, or with the cluster.
    """

    @classmethod
    def begin(
        cls,
        cluster: Cluster,
        supervisor: SupervisorClient,
        report: Callable[[str], object],
        reasons: Mapping[str, str] | None = None,
    ) -> LateHosts | None:
        """Wait for the hosts of a cluster that never had a task; return None if there are none."""
        status = supervisor.ask("watch")
        late = set(status.get("late", ()))
        if not late:
            return None
        description = read_description(cluster.folder)
        launcher = find_launcher(description.launcher)
        comes = {*status["awaited"], *supervisor.hosts}
        slots = {name: count for name, count in description.slots.items() if name in late and count}
        slots = {name: count for name, count in slots.items() if name in comes or launcher.tries_again}
        why = {name: (reasons or {}).get(name, "") for name in slots if name not in comes}
        found = cls(cluster, supervisor, slots, why, launcher, report)
        found.start()
        return found

    def __init__(
        self,
        cluster: Cluster,
        supervisor: SupervisorClient,
        slots: Mapping[str, int],
        reasons: Mapping[str, str],
        launcher: LauncherSpec,
        report: Callable[[str], object],
    ) -> None:
        super().__init__(name=f"nbdist hosts {cluster.id}", daemon=True)
        self._cluster = weakref.ref(cluster)
        self._supervisor = supervisor
        self._awaited = dict(slots)
        self._reasons = dict(reasons)
        self._launcher, self._report = launcher, report
        self._tried = dict.fromkeys(reasons, time.monotonic())
        self._pause = threading.Event()

    def run(self) -> None:
        """Wait for the hosts."""
        while self._awaited and not self._supervisor.closed:
            self._supervisor.ended()  # takes in what has arrived
            if self._supervisor.awaits_job:  # `NextJob` starts tasks on all hosts that come
                self._awaited.clear()
            for failed in self._supervisor.take("command_ended"):
                for host in failed["hosts"]:
                    self._note(host, self._launcher.explain(host, failed["code"], failed["errors"]))
                    if not self._launcher.tries_again:
                        self._awaited.pop(host, None)
                    self._tried[host] = time.monotonic()
            for waiting in self._supervisor.take("waiting"):
                self._report(waiting["reason"])
            due = [name for name, at in self._tried.items() if time.monotonic() > at + RETRY_SECONDS]
            for host in [name for name in self._awaited if name in self._supervisor.hosts]:
                if host not in self._tried or host in due:
                    self._tried.pop(host, None)
                    self._join(host)
            again = [name for name in due if name in self._awaited and name not in self._supervisor.hosts]
            for host in again:
                del self._tried[host]
            if again and self._launcher.tries_again:
                with suppress(NbdistError):  # the cluster ends
                    self._supervisor.ask("bring_up", hosts=again)
            self._pause.wait(LOOK_SECONDS)

    @property
    def awaited(self) -> list[str]:
        """The names of the hosts that have not come yet."""
        return list(self._awaited)

    def _note(self, host: str, why: str) -> None:
        if host in self._awaited and self._reasons.get(host) != why:
            self._reasons[host] = why
            self._report(why)

    def _join(self, host: str) -> None:
        cluster = self._cluster()
        if cluster is None or cluster.stopped:
            self._awaited.clear()
            return
        if any(info.node == host for info in cluster.tasks):
            self._awaited.pop(host)
            self._report(f"host {host} has come, and has tasks already")
            return
        change: ScaleUp | None = None
        reports = dict(self._supervisor.hosts)
        if (report := reports.pop(host, None)) is None:  # it has been lost again
            return
        try:
            asked = read_description(cluster.folder).asked
            reports[host] = report
            refused, notes = judge_joined(reports, software(CORE), named=bool(asked.get("hosts")))
            if host in refused:
                self._supervisor.ask("refuse_hosts", hosts=[host])
                raise FailedPreconditionError(refused[host].partition(": ")[2])
            if host in notes:
                self._report(notes[host])
            slots = {host: self._awaited[host]}
            found = {host: resources_of(report, asked.get("gpus", "auto"), slots[host])}
            plans = plan_more(cluster.tasks, slots[host], asked, found, slots)
            change = ScaleUp(cluster, self._supervisor, plans)
            change.wait()
        except (UnavailableError, DeadlineExceededError, KeyError) as error:
            if change is not None and change.begun:  # else another client is changing the cluster
                self._note(host, f"host {host} has come, and its workers could not be added yet: {error}")
                self._tried[host] = time.monotonic()
        except NbdistError as error:
            self._awaited.pop(host)
            self._report(f"host {host} has come, and its workers could not be added: {error}")
        else:
            self._awaited.pop(host)
            self._report(f"host {host} has come: {describe_scale_up(change, cluster)}")


def describe_awaited(hosts: Sequence[str]) -> str:
    """Return the message that names hosts that have not come yet.

    >>> describe_awaited(["b", "c"])
    'b, c may come later, and join then'
    """
    return f"{', '.join(hosts)} may come later, and join{'' if len(hosts) > 1 else 's'} then"
