"""`Cluster`: a client's handle on a running cluster, and `Members`, its view of the tasks."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nbdist.cluster import task_setup as tasks
from nbdist.cluster.calls import Calls, Sending
from nbdist.cluster.folder import (
    called,
    caller,
    find,
    is_this,
    lives,
    living,
    read_description,
    remove_traces,
    runs_on,
    this_process,
    write_description,
)
from nbdist.cluster.hub import HubEngines, check_versions, close_client, connect_client
from nbdist.cluster.resize import ReplaceTask, check_unused, describe_replacement, find_task, grow, shrink
from nbdist.cluster.supervisor.client import CONTROLLER, SupervisorClient, describe_exit
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TaskDiedError,
    UnavailableError,
)
from nbdist.runtime.session.cluster import forget, know
from nbdist.runtime.task import Roster, TaskInfo, chief_of_roster, find_rank, roster_spec
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer

STOP_SECONDS = 5.0
HUB_SECONDS = 1.0  # for the hub's answer
_latest: Cluster | None = None


class Cluster:
    """A running cluster, seen from a client process.

    `submit` runs functions on the engines' main threads without blocking; `peer` reaches a task's Server
    directly; `dead` finds a dead task within 2 s. All methods may be called while an event loop
    runs in this thread, and from any thread.
    """

    def __init__(
        self,
        folder: Path,
        roster: Roster,
        keys: ClusterKeys,
        supervisor: SupervisorClient,
        client: Any,
        owner: bool,
    ) -> None:
        self.id = folder.name
        self.folder = folder
        self.keys = keys
        self.client = client
        self._supervisor = supervisor
        self._members = Members(roster, keys, supervisor, self._await_hub)
        self._sending = Sending(client)
        self._process = os.getpid()
        self._connections = threading.local()
        self._peers: weakref.WeakSet[Peer] = weakref.WeakSet()
        self._stopped = self._ended = False
        self.active_runs: set[str] = set()
        """Runs that this process has on the cluster; while one goes on, the cluster outlives the process."""
        set_current(self)
        if owner:
            atexit.register(self._stop_at_exit)

    @classmethod
    def attach(cls, id: str | None = None, timeout: float = 10.0) -> Cluster:
        """Connect to a cluster that another process started; without an id, to the latest one."""
        folder = find(id)
        description = read_description(folder)
        check_versions(description["versions"])
        keys = ClusterKeys.load(folder / "keys")
        supervisor = SupervisorClient.connect(folder)
        client = connect_client(folder / "security" / f"ipcontroller-{folder.name}-client.json", timeout)
        roster = tuple(TaskInfo.from_dict(entries) for entries in description["tasks"])
        return cls(folder, roster, keys, supervisor, client, owner=False)

    @classmethod
    def current(cls) -> Cluster:
        """Return the cluster that this process started or attached to last."""
        if _latest is None or _latest._stopped:
            raise NotFoundError(
                "this process has no cluster; start one with %cluster start or "
                "nb.start_cluster(workers=2), or attach to one"
            )
        return _latest

    @property
    def tasks(self) -> list[TaskInfo]:
        """The tasks by rank, with all changes of any client."""
        return self._members.now()

    @property
    def target(self) -> str:
        """What names the cluster for a Session: its chief's Server."""
        chief = chief_of_roster(tuple(self.tasks)) or self.tasks[0]
        return f"nbdist://{chief.address}"

    @property
    def spec(self) -> Any:
        """The ClusterSpec of the tasks' addresses."""
        return roster_spec(tuple(self.tasks))

    @property
    def stopped(self) -> bool:
        """Whether it was stopped or closed here."""
        return self._stopped

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        on: int | Iterable[int] | None = None,
        **named: Any,
    ) -> Calls:
        """Run `function(*arguments, **named)` on the given ranks (default: all); returns at once.

        It runs on each engine's main thread, after what was submitted before. A rank that is dead already
        counts as failed.
        """
        self._check_up()
        ranks = self._members.ranks(on)
        infos = {info.rank: info for info in self.tasks}
        died = partial(self._members.deaths, infos)
        return Calls(self._sending.send(ranks, died(), function, arguments, named), infos, died)

    def run(
        self,
        code: str | Callable[[], Any],
        on: int | Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Run source text or a function on ranks, wait, and return the results in rank order.

        For source text that is the value of its last expression. Raises the first failure.
        """
        if isinstance(code, str):
            return self.submit(tasks.run_source, code, on=on).results(timeout)
        return self.submit(code, on=on).results(timeout)

    def peer(self, rank: int) -> Peer:
        """Return this thread's own connection to the Server of a task, made at the first use.

        Connections are not shared between threads: a long call in one never delays another.
        """
        if self._ended:
            raise UnavailableError(f"rank {rank} has ended: cluster {self.id} was stopped here")
        self._check_up()
        peers: dict[int, Peer] = self._connections.__dict__.setdefault("peers", {})
        info = find_rank(tuple(self.tasks), rank)
        if rank in peers and peers[rank].address != info.address:  # it was replaced
            peers.pop(rank).close()
        if rank not in peers:
            peers[rank] = Peer(info.address, self.keys, name=info.name)
            self._peers.add(peers[rank])
        return peers[rank]

    def signal(self, rank: int, signum: int) -> bool:
        """Send a signal to one engine; whether there was a process to take it."""
        find_rank(tuple(self.tasks), rank)
        return bool(self._supervisor.ask("signal", rank=rank, signum=int(signum))["sent"])

    def restart(
        self, task: int | str | None = None, *, report: Callable[[str], object] = print
    ) -> list[TaskInfo]:
        """Give a task another process under its rank, with its device and environment; return the new task.

        ``task`` is a rank or a name ("worker:1", "/job:worker/task:1"); without one, all tasks that are dead.
        One that lives, or is frozen, is ended first. Its namespace and variables are new, those of all others
        are kept, and who is connected to the old process is told that it is gone. ``report`` hears how long
        it took. Raises FailedPreconditionError while a run is using the task, InvalidArgumentError for one
        that is not there.

            cluster.restart("worker:1")
            restarted in 0.3 s: /job:worker/task:1 (pid 4711 -> 4803)
        """
        self.check_there()
        infos = self.dead() if task is None else [find_task(self.tasks, task)]
        if not infos:
            report(f"no task of cluster {self.id} is dead; name one to restart it, such as worker:0")
            return []
        check_unused(self, infos)
        replacement = self.replace(infos)
        new = replacement.wait()
        report(describe_replacement(replacement))
        return new

    def replace(self, tasks: Sequence[TaskInfo]) -> ReplaceTask:
        """Begin to replace tasks at once, even if a run uses them; `poll` what is returned."""
        self._check_up()
        return ReplaceTask(self, self._supervisor, tasks)

    def grow(self, workers: int = 1, *, report: Callable[[str], object] = print) -> list[TaskInfo]:
        """Start so many more workers, and return them; all tasks then know them, and the next run uses them.

        They have ranks of their own, after those there are, and the next indices of job worker. The others
        keep their namespaces, threads and runs: a run that goes on keeps the tasks that it has. Parameter
        servers do not become more. ``report`` hears how long it took. Raises InvalidArgumentError for a
        number that cannot be, FailedPreconditionError for a cluster in an MPI world, UnavailableError while
        another client changes the cluster or if one does not come up: then the cluster is as it was.

            cluster.grow()
            grown in 0.3 s by /job:worker/task:2 (rank 3, pid 4803): 3 workers, 1 ps
        """
        self.check_there()
        return grow(self, self._supervisor, workers, report)

    def shrink(self, workers: int = 1, *, report: Callable[[str], object] = print) -> list[TaskInfo]:
        """End the last so many workers, and return which they were; the others then know of them no more.

        The first worker, the chief, stays. Raises InvalidArgumentError for a number that cannot be,
        FailedPreconditionError while a run is using one of them or for a cluster in an MPI world.

            cluster.shrink()
            shrunk in 0.1 s by /job:worker/task:2 (pid 4803): 2 workers, 1 ps
        """
        self.check_there()
        return shrink(self, self._supervisor, workers, report)

    def dead(self) -> list[TaskInfo]:
        """Return the tasks with dead processes; takes microseconds, and sends nothing."""
        return self._members.dead()

    def controller_died(self) -> str | None:
        """Return how the controller ended, if it has; the cluster then ends too."""
        return "the cluster was stopped here" if self._ended else self._members.controller_died()

    def status(self) -> list[dict[str, Any]]:
        """Return a row per task: rank, name, host, pid, device, address, state, and how it ended."""
        return self._members.status()

    def stop(self, timeout: float = STOP_SECONDS, *, force: bool = False) -> None:
        """End every process of the cluster and remove its files and shared memory. May be called twice.

        ``timeout`` is in seconds; a frozen cluster process is killed after it. Raises
        FailedPreconditionError, and stops nothing, if another living process started the cluster and a run
        is under way on it, unless ``force`` is set.
        """
        if self._stopped:
            return
        if not force:
            self._check_own()
        self._ended = True  # a monitor of a run that polls now must see the reason
        self._close_connections()
        if not self._supervisor.closed:
            with suppress(UnavailableError, DeadlineExceededError):  # it has died, or is frozen
                self._supervisor.ask("stop", timeout, by=f"it was stopped from another {caller()}")
        if not self._supervisor.wait_closed(timeout):
            self._supervisor.kill()
        self._supervisor.close()
        remove_traces(self.folder, self.id)

    def detach(self) -> None:
        """Disconnect from the cluster, which keeps running for its other clients.

        Without any client it ends after a while (``orphan_timeout`` of `start_cluster`), later if a run is
        under way. `Cluster.attach` connects to it again. Raises FailedPreconditionError while this process
        follows a run on it.

            cluster.detach()
            nb.Cluster.attach(cluster.id)
        """
        self._check_up()
        if self.active_runs:
            raise FailedPreconditionError(
                f"run {', '.join(sorted(self.active_runs))} on cluster {self.id} is followed here: wait for "
                "it or stop it first (run.wait(), run.stop())"
            )
        self.close()

    def _check_own(self) -> None:
        """Raise if another process has started the cluster and has a run on it."""
        try:
            owner = read_description(self.folder).get("owner", {})
        except (NotFoundError, ValueError):  # it is starting or ending
            return
        if not owner or is_this(owner) or not lives(owner):
            return
        runs = [
            run
            for run in runs_on(self.folder, list(self._supervisor.pids.values()))
            if run not in self.active_runs
        ]
        if runs:
            raise FailedPreconditionError(
                f"cluster {self.id} was started from {called(owner)}, and run {', '.join(runs)} is under way "
                "on it: %cluster stop --force (stop(force=True)) ends both; %cluster detach disconnects and "
                "leaves it running"
            )

    def check_there(self) -> None:
        """Raise if the cluster was stopped, here or elsewhere: its tasks can no longer be used or changed."""
        self._check_up()
        if (how := self.controller_died()) is not None:
            raise FailedPreconditionError(
                f"cluster {self.id} has ended: {how}. Start another one with %cluster start"
            )

    def close(self) -> None:
        """Let go of the cluster without ending it: close this process's connections."""
        if not self._stopped:
            self._close_connections()
            self._supervisor.close()

    def own(self) -> None:
        """Have the cluster end with this process, as if it had been started here: its owner is gone."""
        write_description(self.folder, {**read_description(self.folder), "owner": this_process()})
        atexit.unregister(self._stop_at_exit)
        atexit.register(self._stop_at_exit)

    def _close_connections(self) -> None:
        self._stopped = True
        atexit.unregister(self._stop_at_exit)
        for peer in list(self._peers):
            peer.close()
        close_client(self.client)

    def _stop_at_exit(self) -> None:
        if os.getpid() != self._process:  # in a child that this process has forked
            return
        if self.active_runs:
            self.close()
        else:
            self.stop(force=True)

    def _await_hub(self) -> None:
        if not self._stopped:  # a message to a task must not go to its old engine
            HubEngines(self.client).wait(HUB_SECONDS)

    def _check_up(self) -> None:
        if self._stopped:
            raise FailedPreconditionError(
                f"cluster {self.id} was stopped or closed here; start or attach again"
            )

    @property
    def counted(self) -> str:
        """How many tasks it has of each job, in words."""
        jobs: dict[str, int] = {}
        for info in self.tasks:
            jobs[info.job] = jobs.get(info.job, 0) + 1
        return ", ".join(f"{n} {job}{'s' * (job == 'worker' and n > 1)}" for job, n in jobs.items())

    def __repr__(self) -> str:
        return f"<Cluster {self.id}: {self.counted}{' (stopped)' if self._stopped else ''}>"


def stop_cluster(cluster: Cluster | None = None, *, force: bool = False) -> None:
    """Stop a cluster: ``cluster``, or the one that this process started or attached to last.

    Raises NotFoundError if there is none, and FailedPreconditionError for one that another process has
    started and uses, unless ``force`` is set; see `Cluster.stop`.

        nb.start_cluster(workers=2)
        nb.stop_cluster()
    """
    (cluster or Cluster.current()).stop(force=force)


def set_current(cluster: Cluster | None) -> None:
    """Make a cluster the one that `Cluster.current` returns."""
    global _latest
    _latest = cluster


def clusters() -> list[dict[str, Any]]:
    """Return what is known of each of this user's clusters that live, oldest first."""
    from nbdist.cluster.folder import clusters_folder

    found = []
    for name in living():
        try:
            description = read_description(clusters_folder() / name)
        except (NotFoundError, ValueError):
            continue  # it is starting or ending
        found.append(
            {key: description[key] for key in ("id", "created", "workers", "ps", "tasks", "versions")}
        )
    return found


class Members:
    """The tasks as the supervisor reports them; ``changed`` is called before a new roster is used."""

    def __init__(
        self, roster: Roster, keys: ClusterKeys, supervisor: SupervisorClient, changed: Callable[[], object]
    ) -> None:
        self._tasks = list(roster)
        self._lock = threading.RLock()
        self._keys, self._supervisor, self._changed = keys, supervisor, changed
        for info in self._tasks:
            know(f"nbdist://{info.address}", keys)

    def now(self) -> list[TaskInfo]:
        """Return the tasks by rank, with all changes of any client."""
        self._supervisor.ended()
        with self._lock:  # one thread at a time, so that none restores an older roster
            if self._supervisor.roster is not None:
                self._take_roster(self._supervisor.roster)
            return self._tasks

    def dead(self) -> list[TaskInfo]:
        """Return the tasks with dead processes."""
        tasks, ended = self.now(), self._supervisor.ended()
        return [info for info in tasks if info.rank in ended]

    def controller_died(self) -> str | None:
        """Return how the controller ended, if it has."""
        how = self._supervisor.ended().get(CONTROLLER)
        if how is None:
            return self._supervisor.stopping or None  # its tasks end before it
        return describe_exit(how)

    def deaths(self, infos: Mapping[int, TaskInfo]) -> dict[int, TaskDiedError]:
        """Return the errors of those of the tasks that died or left, by rank."""
        current = {info.rank: info for info in self.now()}
        ended = self._supervisor.ended()
        deaths = {}
        for info in infos.values():
            how = ended.get(info.rank) or ended.get(CONTROLLER)
            if info.rank not in current:
                deaths[info.rank] = TaskDiedError(
                    f"{info.name} (pid {info.pid}) has left: the cluster was made smaller"
                )
            elif current[info.rank] != info:
                deaths[info.rank] = TaskDiedError(
                    f"{info.name} (pid {info.pid}) was replaced by pid {current[info.rank].pid}"
                )
            elif how is not None:
                what = "" if info.rank in ended else "the controller of "
                deaths[info.rank] = TaskDiedError(
                    f"{what}{info.name} (pid {how['pid']}) died: {describe_exit(how)}; "
                    f"its log ended with:\n{how['log'].strip() or '(nothing)'}"
                )
        return deaths

    def ranks(self, on: int | Iterable[int] | None) -> list[int]:
        """Return the ranks in order; None means all. Raises InvalidArgumentError for an unknown one."""
        known = [info.rank for info in self.now()]
        if on is None:
            return known
        ranks = [on] if isinstance(on, int) else sorted(set(on))
        unknown = [rank for rank in ranks if rank not in known]
        if unknown or not ranks:
            raise InvalidArgumentError(f"no task has rank {unknown or ranks}; the ranks are {known}")
        return ranks

    def status(self) -> list[dict[str, Any]]:
        """Return a row per task: rank, name, host, pid, device, address, state, and how it ended."""
        tasks, rows = self.now(), []
        ended = self._supervisor.ended()
        for info in tasks:
            how = ended.get(info.rank)
            row = {
                "rank": info.rank,
                "name": info.name,
                "job": info.job,
                "index": info.index,
                "pid": info.pid,
            }
            row |= {"host": info.host, "device": info.device, "address": info.address}
            row |= {"state": "running" if how is None else "dead", "ended": how and describe_exit(how)}
            rows.append(row)
        return rows

    def _take_roster(self, roster: list[dict[str, Any]]) -> None:
        """Take the roster of a membership change."""
        if [entries["incarnation"] for entries in roster] == [info.incarnation for info in self._tasks]:
            return
        self._changed()
        before = self._tasks
        self._tasks = [TaskInfo.from_dict(entries) for entries in roster]
        for old in before:
            if old not in self._tasks:
                forget(f"nbdist://{old.address}")
        for new in self._tasks:
            if new not in before:
                know(f"nbdist://{new.address}", self._keys)
