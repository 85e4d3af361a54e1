"""The other hosts of a cluster, as the head's supervisor sees them: their tasks are started, signalled and
watched through the supervisor of each.

    head's supervisor                                       host b
    HostCommand (ssh b …) ── the plan, on stdin ──────────► python -m nbdist.cluster.supervisor.host
    join ◄───────────────── host: name, cores, GPUs … ───── (through the relay, as all that follows)
    start, signal ───────── rank, environment ────────────► forks, signals
    exit, busy ◄─────────── rank, pid, code, log … ──────── reaps
    Coordinator ◄─────────► launcher: a message ◄─────────► Launcher

A request to a host is answered later, so each has a function that takes the answer. A host that is lost
answers all of them with an error, and its tasks count as ended.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from nbdist.cluster.affinity import CORES_VARIABLE, format_cores, worker_cores
from nbdist.cluster.folder import mark_busy, unmark_busy
from nbdist.cluster.launchers.spec import JOB_OVER
from nbdist.cluster.parent import end_with_parent
from nbdist.cluster.supervisor.usage import USAGE_SECONDS
from nbdist.cluster.time_limits import save_time
from nbdist.json_values import listed, mapping, number, text

if TYPE_CHECKING:
    from nbdist.cluster.launchers.spec import Coordinator, HostCommand
    from nbdist.cluster.supervisor.process import SupervisorProcess

Reply = dict[str, Any]
Answered = Callable[[Reply], None]
STDERR_TAIL = 4000  # bytes of a command's error output that its end carries
COMMAND_PERIODS = 10  # of `GRACE_SECONDS`
LONGEST_REASON, LONGEST_NAME = 1000, 200  # characters
NO_GPU = "-1"  # CUDA_VISIBLE_DEVICES of a task without one
MOST_OUTPUT = 1 << 16  # bytes of a line of a command's output


def gpus_in_use(tasks: Sequence[dict[str, Any]], host: str) -> Counter[str]:
    """Return how many of the tasks on a host have each GPU, by CUDA's name."""
    own = (one["environment"] for one in tasks if one.get("host", "") == host)
    return Counter(one.get("CUDA_VISIBLE_DEVICES") for one in own)


@dataclass(eq=False)
class RemoteHost:
    """Another host, whose supervisor has joined; ``report`` is what it says about itself."""

    name: str
    report: dict[str, Any]
    connection: socket.socket
    tasks: dict[int, int] = field(default_factory=dict)
    """The pids of its living tasks, by rank."""
    awaited: dict[int, Answered] = field(default_factory=dict)
    next_id: int = 0
    usage: Reply = field(default_factory=dict)
    """What its tasks and itself use, as it has said last."""
    measured: float = -math.inf
    measures: bool = False
    """Whether it was asked for it, and has not answered."""
    refused: bool = False
    """Whether it cannot have tasks."""
    ending: bool = False
    """Whether it ends its tasks and itself, as at the end of its job."""


class Hosts:
    """The hosts of one cluster and the commands that bring their supervisors up."""

    def __init__(self, supervisor: SupervisorProcess) -> None:
        self._supervisor = supervisor
        self.by_name: dict[str, RemoteHost] = {}
        self.by_connection: dict[socket.socket, RemoteHost] = {}
        self.lost: set[str] = set()  # the names of hosts that had joined, and are there no more
        self.commands: list[Command] = []
        self.plan: dict[str, Any] = {}  # what a host's supervisor has to know, for its standard input
        self.ends: float | None = None  # when the hosts' job ends, in seconds since 1970
        self.awaits_job = False  # whether another job was submitted, and none of its hosts has joined
        self.served: set[str] = set()  # hosts that have had tasks, or cannot have any
        self._jobs = 1  # how many jobs had the hosts
        self._brought_up = 0.0  # when the first command was started, in seconds since 1970
        self._periods = 0  # grace periods that have passed since the cluster was to end
        self.relay = 0  # the pid of the relay's process
        self._coordinator: Coordinator | None = None

    def fork_relay(self, run: Callable[[], None], log: str) -> Callable[[], None] | None:
        """Fork the relay's process; return None, and in the child the function that it has to call."""
        pid, become = self._supervisor.fork_process(run, log)
        self.relay = pid
        return become

    def bring_up(self, names: Sequence[str]) -> None:
        """Run the commands that start the supervisors of hosts, each with the plan on its standard input.

        Hosts that are there, or whose command runs, are left out: several clients may ask for the same ones.
        """
        if self._supervisor.kill_at is not None:  # those that run have been told to end
            return
        spec = self._supervisor.launcher_spec
        assert spec is not None
        self._brought_up = self._brought_up or time.time()
        there = {*self.by_name, *self.awaited()}
        missing = [name for name in names if name not in there]
        for one in spec.commands(self._supervisor.plan["settings"], missing) if missing else ():
            try:
                self.commands.append(Command(one, self.plan, self._supervisor))
            except OSError as error:
                self.report_end(one.hosts, 127, f"{one.argv[0]}: {error.strerror}")

    def rename(self, before: Sequence[str], names: Sequence[str], ends: float | None) -> None:
        """Take the real names of hosts, and when their job ends, in seconds since 1970, if that is known."""
        plan, self.ends = self._supervisor.plan, ends
        plan["hosts"] = [*(name for name in plan["hosts"] if name not in before), *names]
        self._supervisor.broadcast(
            {"event": "hosts", "before": list(before), "names": list(names), "ends": ends}
        )

    def awaited(self) -> list[str]:
        """Return the hosts that have neither joined nor failed."""
        return [name for command in self.commands for name in command.hosts if name not in self.by_name]

    def late(self) -> list[str]:
        """Return the hosts of the plan that never had a task, and may have some when they come.

        None are late in a second job: its tasks start on the hosts that are there (`NextJob`).
        """
        hosts = self._supervisor.plan.get("hosts", ()) if self._jobs == 1 else ()
        return [name for name in hosts if name not in self.served]

    def note_tasks(self) -> None:
        """Note which hosts the tasks of the plan are on."""
        self.served.update(task.get("host", "") for task in self._supervisor.plan["tasks"])

    def join(self, request: dict[str, Any], client: socket.socket) -> Reply:
        """Take the supervisor of another host; the reply is what its engines need to connect."""
        report = dict(request["report"])
        name = str(report["name"])
        # Its clock showed a time between the one of its command's start and now, unless it is wrong.
        clock = number(report.pop("clock", None)) or time.time()
        report["ahead"] = min(0.0, clock - self._brought_up) + max(0.0, clock - time.time())
        if name in self.by_name or self._supervisor.kill_at is not None:
            return {"error": f"host {name} has joined already, or the cluster is ending"}
        host = RemoteHost(name, report, client)
        self.by_name[name] = self.by_connection[client] = host
        self.lost.discard(name)
        self.awaits_job = False
        self._supervisor.idle_timeout.used = time.monotonic()
        plan = self._supervisor.plan
        engine = {**self._supervisor.engine_connection, "interface": f"tcp://{report['head']}"}
        self._supervisor.broadcast({"event": "host", **report})
        return {"connection": engine, "timeout": plan["timeout"]}

    def receive(self, host: RemoteHost, message: dict[str, Any]) -> None:
        """Take a reply or an event of a host's supervisor."""
        if "reply" in message:
            answered = host.awaited.pop(int(message["reply"] or 0), None)
            if answered is not None:
                answered(message)
            return
        match message.get("event"):
            case "stopping":
                host.ending = True
            case "exit":
                rank, pid = int(message["rank"]), int(message["pid"])
                if host.tasks.get(rank) == pid:
                    del host.tasks[rank]
                    self._supervisor.report_exit(rank, {**message, "host": host.name})
            case "busy":
                rank, run = int(message["rank"]), str(message["run"])
                if rank in host.tasks:
                    if run:
                        mark_busy(self._supervisor.folder, rank, run)
                    else:
                        unmark_busy(self._supervisor.folder, rank)
            case "launcher" if self._coordinator is not None:
                try:
                    messages = self._coordinator.receive(host.name, message["message"])
                except Exception as error:
                    self._supervisor.stop(f"host {host.name}: {error}")
                else:
                    self._tell(messages, lambda reply: None)

    def coordinate(self, places: Sequence[str], answered: Answered) -> None:
        """Make the launcher's `Coordinator` of a new cluster, and have it tell the hosts what they need.

        ``places`` are the hosts of the tasks, by rank; ``answered`` takes the error of one that refuses.
        """
        spec = self._supervisor.launcher_spec
        if spec is None or spec.coordinate is None:
            answered({})
            return
        self._coordinator = spec.coordinate(places)
        self._tell(self._coordinator.begin(), answered)

    def _tell(self, messages: Mapping[str, Any], answered: Answered) -> None:
        """Send messages to launchers, by their hosts' names; ``answered`` is called once, at the end."""
        left, errors = set(messages), list[str]()

        def take(name: str, reply: Reply) -> None:
            if "error" in reply:
                errors.append(f"host {name}: {reply['error']}")
            left.discard(name)
            if not left:
                answered({"error": "; ".join(errors)} if errors else {})

        for name, message in messages.items():
            if (host := self.by_name.get(name)) is None:
                take(name, {"error": "it is not there"})
            else:
                self.ask(host, "launcher", partial(take, name), message=message)
        if not messages:
            answered({})

    def ask(self, host: RemoteHost, request: str, answered: Answered, **entries: Any) -> None:
        """Send a request to a host; ``answered`` takes the reply, which has "error" if it failed."""
        host.next_id += 1
        host.awaited[host.next_id] = answered
        self._supervisor.send(host.connection, {"id": host.next_id, "request": request, **entries})

    def usage(self) -> list[Reply]:
        """Return what the hosts and their tasks use, as each has said last; ask them for newer figures.

        An entry has the host's "name", the seconds since it has answered ("age"), and the figures of
        `nbdist.cluster.supervisor.usage`. Hosts that have not answered yet have none.
        """
        now = time.monotonic()
        for host in [*self.by_name.values()]:
            if not host.measures and now - host.measured >= USAGE_SECONDS:
                self._measure(host)
        known = [host for host in self.by_name.values() if host.usage]
        return [{**host.usage, "name": host.name, "age": now - host.measured} for host in known]

    def _measure(self, host: RemoteHost) -> None:
        def measured(reply: Reply) -> None:
            host.measures = False
            if "error" not in reply:
                host.usage, host.measured = reply, time.monotonic()

        tasks = self._supervisor.plan["tasks"]
        visible = {one["rank"]: one["environment"].get("CUDA_VISIBLE_DEVICES", NO_GPU) for one in tasks}
        host.measures = True
        gpus = {rank: gpu for rank in host.tasks if (gpu := visible.get(rank, NO_GPU)) != NO_GPU}
        self.ask(host, "measure", measured, gpus=gpus)

    def start(self, name: str, task: dict[str, Any], answered: Answered) -> None:
        """Start a task's process on a host."""
        host = self.by_name.get(name)
        if host is None:
            answered({"error": f"host {name} is not there"})
            return

        def started(reply: Reply) -> None:
            if "pid" in reply:
                host.tasks[int(task["rank"])] = int(reply["pid"])
                self._supervisor.exits.pop(int(task["rank"]), None)
                self._supervisor.broadcast({"event": "forked", "pids": self._supervisor.pids()})
            answered(reply)

        sent = {"rank": task["rank"], "environment": task["environment"]}
        if (at := save_time(self.ends, self._supervisor.plan.get("save_before", 0.0))) is not None:
            sent["save_in"] = at - time.time()  # the clock of the host may show another time
        self.ask(host, "start", started, task=sent)

    def relocate(self, tasks: Sequence[dict[str, Any]], task: dict[str, Any]) -> str:
        """Move a task whose host is lost to the host with the fewest tasks; return a note, "" for no move.

        Raises LookupError with the reason if no host, or no GPU, is left for it.
        """
        lost = task.get("host", "")
        environment = task["environment"]
        had_gpu = environment.get("CUDA_VISIBLE_DEVICES", NO_GPU) != NO_GPU
        if not lost or self._has_place(lost, environment["CUDA_VISIBLE_DEVICES"] if had_gpu else None):
            return ""
        versions = self._supervisor.plan["versions"]
        up = [host for host in self.by_name.values() if not host.ending]
        usable = [host for host in up if host.report["versions"] == versions]
        places = [host for host in usable if host.report["gpus"] or not had_gpu]
        on_host = Counter(one.get("host", "") for one in tasks)
        if not places and self.between_jobs:
            raise LookupError(
                f"its host {lost} was lost, and it starts again on the hosts of the next job: wait for that, "
                "or end the cluster with %cluster stop"
            )
        if not places:
            raise LookupError(
                f"its host {lost} was lost, and no other host{' with a GPU' if had_gpu else ''} is left: "
                "start a new cluster (%cluster stop, %cluster start), and resume the run from its last state"
            )
        order = self._supervisor.plan["hosts"]
        host = min(places, key=lambda one: (on_host[one.name], order.index(one.name)))
        task["gpus"] = next(
            (one["gpus"] for one in tasks if one.get("host") == host.name), list(host.report["gpus"])
        )
        task["host"] = host.name
        environment.pop(CORES_VARIABLE, None)
        if had_gpu:
            used = gpus_in_use([one for one in tasks if one is not task], host.name)
            own = min(task["gpus"], key=lambda name: used[name])
            environment["CUDA_VISIBLE_DEVICES"] = own
            # It shares the cores near its GPU with the workers that divided them at the start.
            (cores,) = worker_cores(1, [own], host.report["topology"])
            if cores:
                environment[CORES_VARIABLE] = format_cores(cores)
        return f"its host {lost} was lost: its process is on {host.name} now"

    def _has_place(self, name: str, gpu: str | None) -> bool:
        """Return whether a host is there, and still has a GPU: another job may have others of it."""
        host = self.by_name.get(name)
        return host is not None and not host.ending and (gpu is None or gpu in host.report["gpus"])

    def find(self, rank: int) -> RemoteHost | None:
        """Return the host on which the task of a rank lives; None for one of the head, or none."""
        return next((host for host in self.by_name.values() if rank in host.tasks), None)

    def pids(self) -> dict[int, int]:
        """Return the pids of all living tasks on other hosts, by rank."""
        return {rank: pid for host in self.by_name.values() for rank, pid in host.tasks.items()}

    def disconnected(self, client: socket.socket) -> None:
        """Take the tasks of a host for ended, whose supervisor has ended or is not heard any more."""
        host = self.by_connection.pop(client, None)
        if host is None:
            return
        del self.by_name[host.name]
        why = f"host {host.name} was lost: it has ended, or was cut off from this one"
        for answered in [*host.awaited.values()]:
            answered({"error": why})
        if not host.refused:
            self.lost.add(host.name)
        lost = {"name": host.name, "reason": why, "refused": host.refused}
        self._supervisor.broadcast({"event": "host_lost", **lost})
        for rank, pid in host.tasks.items():
            ended = {"rank": rank, "pid": pid, "code": None, "signal": None, "time": time.time(), "log": ""}
            self._supervisor.report_exit(rank, {**ended, "by": why, "host": host.name})

    def stop(self, reason: str) -> None:
        """Have all hosts end their tasks and their supervisors."""
        for host in [*self.by_name.values()]:
            self.ask(host, "stop", lambda reply: None, by=reason)
        for command in self.commands:
            if self.by_name.keys().isdisjoint(command.hosts):  # it has not begun yet
                command.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End what has not ended in a grace period: first commands by SIGTERM, then the hosts that are left.

        A command gets `COMMAND_PERIODS` for what it has to end elsewhere, such as a job that it submits.
        """
        self._periods += 1
        for command in self.commands:
            if self._periods == 1:
                command.signal(signal.SIGTERM)
            elif self._periods > COMMAND_PERIODS:
                command.signal(signal.SIGKILL)
        if self._periods > 1:  # a host that does not answer ends its tasks by itself, as one that is cut off
            for client in [*self.by_connection]:
                self._supervisor.remove_client(client)

    def reap(self) -> None:
        """Take in which commands have ended, and end the cluster if the relay has."""
        if self.relay and os.waitpid(self.relay, os.WNOHANG)[0]:
            self.relay = 0
            self._supervisor.stop("the process that connects this host to the others has ended")
        plan = self._supervisor.plan
        for command in [*self.commands]:
            code = command.poll()
            if code is not None:
                self.commands.remove(command)
                errors = command.errors.decode(errors="replace")
                if code == JOB_OVER and plan.get("requeue") and self._supervisor.kill_at is None:
                    self._submit_again(command.hosts, errors)
                else:
                    self.report_end(command.hosts, code, errors)

    def _submit_again(self, hosts: Sequence[str], errors: str) -> None:
        """Run the command of hosts again, whose job is over; their tasks have ended."""
        for name in hosts:
            if (host := self.by_name.get(name)) is not None:
                self._supervisor.remove_client(host.connection)
        why = (errors.strip().splitlines() or ["the job of the hosts is over"])[-1][-LONGEST_REASON:]
        self.ends, self.awaits_job = None, True
        self._jobs += 1
        said = {"hosts": list(hosts), "reason": f"{why}; another one is submitted"}
        for event in ("next_job", "waiting"):
            self._supervisor.broadcast({"event": event, **said})
        self.bring_up(hosts)

    @property
    def between_jobs(self) -> bool:
        """Whether no host is left, and another job is submitted, or may be when the last one has ended."""
        ended = all(host.ending for host in self.by_name.values())
        return bool(self._supervisor.plan.get("requeue") and self.commands and ended)

    @property
    def ended(self) -> bool:
        """Whether no host and no command is left."""
        return not self.by_name and not self.commands

    def close_in_child(self) -> None:
        """Close the descriptors of the commands in a fresh child of the supervisor."""
        for command in self.commands:
            command.close()

    def end_relay(self) -> None:
        """End the relay, when nothing is left to say."""
        if self.relay:
            with suppress(ProcessLookupError):
                os.kill(self.relay, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.relay, 0)

    def report_end(self, hosts: Sequence[str], code: int, errors: str) -> None:
        """Report why hosts have not come: how their command has ended, or what it says of them."""
        self.awaits_job = False
        missing = [name for name in hosts if name not in self.by_name]
        end = {"hosts": missing, "code": code, "errors": errors[-STDERR_TAIL:]}
        self._supervisor.broadcast({"event": "command_ended", **end})


class Command:
    """A running `HostCommand`; lines of JSON on its output are events for the clients."""

    def __init__(self, command: HostCommand, plan: dict[str, Any], supervisor: SupervisorProcess) -> None:
        self.hosts = command.hosts
        self.errors = b""
        self._output = b""
        self._supervisor = supervisor
        self._process = subprocess.Popen(
            command.argv,
            env={**os.environ, **command.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent,  # where it cannot, the command ends when its hosts do
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with suppress(BrokenPipeError):  # it has ended already; its errors say why
            self._process.stdin.write(json.dumps(plan).encode() + b"\n")  # smaller than a pipe's buffer
            self._process.stdin.flush()
        self._pipes = [self._process.stdout, self._process.stderr]
        for pipe, take in zip(self._pipes, (self._take_output, self._take_errors), strict=True):
            os.set_blocking(pipe.fileno(), False)
            supervisor.selector.register(pipe, selectors.EVENT_READ, partial(self._read, take))

    def poll(self) -> int | None:
        """Return the exit code once it has ended."""
        code = self._process.poll()
        if code is not None:
            for pipe in [*self._pipes]:  # what it has written last
                self._read(self._take_errors if pipe is self._process.stderr else self._take_output, pipe)
            self.close()
        return code

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Close its pipes."""
        for pipe in self._pipes:
            with suppress(KeyError, ValueError):
                self._supervisor.selector.unregister(pipe)
            pipe.close()
        self._pipes.clear()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _read(self, take: Callable[[bytes], None], pipe: Any) -> None:
        try:
            # Once, as much as a pipe holds: one that prints without end must not keep the supervisor here.
            received = os.read(pipe.fileno(), 1 << 16)
        except (BlockingIOError, ValueError):
            return
        if received:
            take(received)
            return
        self._supervisor.selector.unregister(pipe)
        self._pipes.remove(pipe)
        pipe.close()

    def _take_errors(self, received: bytes) -> None:
        self.errors = (self.errors + received)[-STDERR_TAIL:]

    def _take_output(self, received: bytes) -> None:
        *lines, rest = (self._output + received).split(b"\n")
        self._output = rest[-MOST_OUTPUT:]
        for line in lines:
            with suppress(ValueError, TypeError):  # a login shell's greeting, for example
                self._take_progress(mapping(json.loads(line)))

    def _take_progress(self, message: Mapping[str, Any]) -> None:
        hosts = self._supervisor.hosts
        if reason := text(message.get("waiting"), LONGEST_REASON):
            self._supervisor.broadcast({"event": "waiting", "hosts": list(self.hosts), "reason": reason})
        if left := text(message.get("left"), LONGEST_REASON):
            self._supervisor.broadcast({"event": "left", "reason": left})
        names = [name for one in listed(message.get("hosts")) if (name := text(one, LONGEST_NAME))]
        if names:
            seconds = number(message.get("seconds_left"))
            hosts.rename(self.hosts, names, None if seconds is None else time.time() + seconds)
            self.hosts = tuple(names)
        reasons = iter(listed(message.get("reasons")))
        for name in map(str, listed(message.get("lost"))):
            reason = text(next(reasons, None), LONGEST_REASON) or f"host {name} was lost"
            if (host := hosts.by_name.get(name)) is not None:
                self._supervisor.remove_client(host.connection)
            elif name in self.hosts:
                self.hosts = tuple(one for one in self.hosts if one != name)
                hosts.report_end((name,), 1, reason)
