"""ipyparallel's controller in one process, which starts fast and is closed to other users.

`run_controller` is what the supervisor's first child runs. It differs from the stock controller as follows:

- Its schedulers are threads (C proxies) and the heart monitor beats on the hub's own loop: one process
  instead of nine.
- Ports and keys are chosen before it starts, so that engines and client connect while it does.
- Hearts beat every 20 ms (at growing intervals) until all engines have registered, then every
  second: an engine counts as registered only at a beat, and the stock period is 3 s. An engine that
  registers later makes them beat fast again.
- The supervisor reports which engines have ended, so that their ids are free at once. Missed heartbeats
  alone do not end an engine: one that is stopped in a debugger or swapped out continues later.
- The hub gets no copy of the engines' output and status, which it would drop.
- Calls and results are not stored: the clients have them, and the hub's memory stays constant.
"""

from __future__ import annotations

import os
import socket
import time
from types import SimpleNamespace
from typing import Any

import zmq
from ipyparallel import util
from ipyparallel.controller import app as controller_app
from ipyparallel.controller import heartmonitor
from tornado.ioloop import IOLoop, PeriodicCallback
from traitlets.config import Config
from zmq.eventloop.zmqstream import ZMQStream

from nbdist.cluster.supervisor.engine import HEARTBEAT_SECONDS

FIRST_BEAT_MS = 20
SLOWER = 1.1  # a busy host may need longer than two beats to answer one
NEVER = 1 << 30  # beats that an engine may miss: 34 years
LOOPBACK = "127.0.0.1"
ENGINE_CHANNELS = ("control", "mux", "task", "iopub", "hb_ping", "hb_pong")
CLIENT_CHANNELS = ("control", "mux", "task", "iopub", "notification", "broadcast")


def choose_ports(
    engines: str = LOOPBACK, clients: str = LOOPBACK
) -> tuple[dict[str, Any], list[socket.socket]]:
    """Return free ports for every channel of a controller, and the sockets that hold them.

    The channels of engines listen on the address ``engines``, those of clients on the address ``clients``. A
    port that is bound and not listened on can be bound again (SO_REUSEADDR), and the system gives it to no
    other process. Close the sockets when the controller listens.
    """
    held: list[socket.socket] = []

    def port(host: str) -> int:
        held.append(hold_port(host))
        return int(held[-1].getsockname()[1])

    registration = port(clients)
    engine: dict[str, Any] = {"interface": f"tcp://{engines}"}
    engine |= {"registration": registration if engines == clients else port(engines)}
    engine |= {**{name: port(engines) for name in ENGINE_CHANNELS}, "broadcast": [port(engines)]}
    client: dict[str, Any] = {
        "interface": f"tcp://{clients}",
        "registration": registration,
        "task_scheme": "leastload",
    }
    client |= {name: port(clients) for name in CLIENT_CHANNELS}
    return {"engine": engine, "client": client}, held


def hold_port(host: str) -> socket.socket:
    """Return a socket that holds a free port of an address until it is closed."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((host, 0))
    return one


def connection_for(side: dict[str, Any], key: str, public: str) -> dict[str, Any]:
    """Return what an engine or a client needs to connect, as ipyparallel's connection files hold it."""
    return {
        **side,
        "ssh": "",
        "key": key,
        "curve_serverkey": public,
        "location": socket.gethostname(),
        "pack": "json",
        "unpack": "json",
        "signature_scheme": "hmac-sha256",
    }


def run_controller(
    ports: dict[str, Any],
    key: str,
    public: str,
    secret: str,
    cluster_id: str,
    folder: str,
    engines: int,
    ended: int,
) -> None:
    """Run the controller until a signal ends it. Runs in a fresh fork, before any thread.

    The supervisor writes the ranks of engines that have ended to the pipe ``ended``, one a line.
    """
    os.umask(0o077)  # ipyparallel narrows its connection files only after it has written them
    config = Config()
    config.ProfileDir.location = folder
    config.Session.key = key.encode()
    config.IPController.log_level = 30
    config.IPController.use_threads = True
    config.IPController.broadcast_scheduler_depth = 0
    config.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"
    config.IPController.curve_publickey = public.encode()
    config.IPController.curve_secretkey = secret.encode()
    config.IPController.enable_curve = True
    if ports["engine"]["registration"] != ports["client"]["registration"]:
        config.IPController.engine_ip = "0.0.0.0"  # another than the clients': the hub binds both
    config.HeartMonitor.period = int(HEARTBEAT_SECONDS * 1000)
    EagerHeartMonitor.expected_engines = engines
    # The stock controller sleeps for 0.25 s and waits for nothing in it.
    controller_app.time = SimpleNamespace(sleep=lambda seconds: None)
    controller_app.Process = HeartbeatOnLoop  # the one process left when schedulers are threads
    controller = controller_app.IPController.instance(
        config=config, cluster_id=cluster_id, engine_info=ports["engine"], client_info=ports["client"]
    )
    controller.initialize(argv=[])
    controller.log.setLevel(controller.log_level)  # traitlets makes all records, and its handlers drop them
    monitor = controller.hub.monitor.socket
    for topic in (b"in", b"out", b"tracktask", b"heartmonitor"):
        monitor.setsockopt(zmq.SUBSCRIBE, topic)
    monitor.setsockopt(zmq.UNSUBSCRIBE, b"")  # no copy of all that engines publish
    IOLoop.current().add_callback(forget_ended_engines, controller.hub, ended)
    controller.start()


def forget_ended_engines(hub: Any, ended: int) -> None:
    """Have the hub remove the engines whose ranks arrive from the pipe ``ended``."""
    stranded = hub._handle_stranded_msgs

    def receive(descriptor: int, events: int) -> None:
        lines = os.read(descriptor, 4096)
        if not lines:
            IOLoop.current().remove_handler(descriptor)
        for rank in map(int, lines.splitlines()):
            engine = hub.engines.get(rank)
            hub.unregister_engine(b"supervisor", {"content": {"id": rank}})
            if engine is not None:
                EagerHeartMonitor.ended.add(engine.uuid.encode())
                stranded(rank, engine.uuid)
                hub.queues[rank] = []

    # The hub calls this again later. By then messages to the engine that has replaced the dead one, under
    # the same id, would count as messages that the dead one has left.
    hub._handle_stranded_msgs = lambda id, uuid: None if id in hub.engines else stranded(id, uuid)
    IOLoop.current().add_handler(ended, receive, IOLoop.READ)


class EagerHeartMonitor(heartmonitor.HeartMonitor):  # type: ignore[misc]  # ipyparallel has no types
    """Beats fast until every expected engine has answered once, then at its period."""

    max_heartmonitor_misses = NEVER
    expected_engines = 0
    ended: set[bytes] = set()
    """The hearts of engines that have ended, until the next beat."""
    eager = True
    hub_listens = False
    hub: Any = None

    def start(self) -> None:
        """Start beating, fast. (The stock start would wait for the hub, which runs on this same loop.)"""
        self.pong_stream.on_recv(self.handle_pong)
        self.tic = time.monotonic()
        self.caller = PeriodicCallback(self.beat, FIRST_BEAT_MS)
        self.caller.start()

    def beat(self) -> None:
        """Send one beat; beat slower once all engines have registered."""
        if not self.hub_listens:  # what is sent before would be lost
            self.hub_listens = bool(self.monitor_stream.socket.poll(0))
            return
        self.hearts -= self.ended
        self.ended.clear()
        super().beat()
        if not self.eager:
            return
        if len(self.hearts) < self.expected_engines or self.hub.incoming_registrations:
            self.caller.callback_time = min(self.period, self.caller.callback_time * SLOWER)
        else:
            self.eager = False
            self.expected_engines = 0  # the cluster may become smaller later
            self.caller.callback_time = self.period

    def hurry(self) -> None:
        """Beat fast again, for an engine that registers."""
        if not self.eager:
            self.eager = True
            self.caller.stop()
            self.caller.callback_time = FIRST_BEAT_MS
            self.caller.start()


class HeartbeatOnLoop:
    """Replaces the process that ipyparallel starts for the heart monitor: it beats on the hub's loop."""

    def __init__(self, target: Any, kwargs: dict[str, Any], daemon: bool) -> None:
        self.arguments = kwargs

    def start(self) -> None:
        """Bind the heart's sockets and begin as soon as the loop runs."""
        IOLoop.current().add_callback(self._begin)

    def terminate(self) -> None:
        """Do nothing: the loop that it beats on is ending."""

    def _begin(self) -> None:
        given = self.arguments
        curve = {name: given[name] for name in ("curve_publickey", "curve_secretkey")}
        controller = controller_app.IPController.instance()
        context: zmq.Context[Any] = zmq.Context.instance()
        ping, pong, monitor = (context.socket(kind) for kind in (zmq.PUB, zmq.ROUTER, zmq.XPUB))
        util.set_hwm(pong, 0)
        util.bind(ping, given["ping_url"], **curve)
        util.bind(pong, given["pong_url"], **curve)
        util.connect(monitor, given["monitor_url"], **curve, curve_serverkey=given["curve_publickey"])
        self.monitor = EagerHeartMonitor(
            ping_stream=ZMQStream(ping),
            pong_stream=ZMQStream(pong),
            monitor_stream=ZMQStream(monitor),
            config=given["config"],
            log=controller.log,
        )
        self.monitor.hub = hub = controller.hub
        register = hub.query_handlers["registration_request"]

        def hurried(ident: Any, message: Any) -> Any:
            self.monitor.hurry()
            return register(ident, message)

        hub.query_handlers["registration_request"] = hurried
        self.monitor.start()
