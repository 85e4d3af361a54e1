"""What the sidebar shows in tests of its looks: an invented server's state, answered in the page itself."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import BrowserContext, Route, WebSocketRoute

API = "/nbdist/api/v1"
MIDNIGHT = 1_790_000_000.0
MEGABYTE = 1 << 20
Item = dict[str, Any]

ABOUT: Item = {
    "version": 1, "nbdist": "0.1.0", "cores": 2, "gpus": 0, "launchers": ["local", "ssh"],
    "launcher_forms": {
        "local": {"help": "plain engines on this host", "elsewhere": False, "settings": []},
        "ssh": {
            "help": "engines on other hosts, by ssh", "elsewhere": True,
            "settings": [
                {"name": "hosts", "help": "the hosts, and how many workers each has", "shows": "A:2,B:2|FILE",
                 "default": None},
                {"name": "python", "help": "the Python of the hosts", "shows": "PATH", "default": None},
                {"name": "sync_env", "help": "make the notebook's environment on each host", "shows": "",
                 "default": False, "switch": True},
            ],
        },
    },
    "nvml": "no NVIDIA driver is loaded", "tensorboard": None, "home": "/home/user/nbdist", "problem": None,
}  # fmt: skip


def cluster(name: str, **others: Any) -> Item:
    item = {
        "id": name, "kind": "nbdist", "title": name, "state": "running", "launcher": "local", "workers": 2,
        "ps": 0, "engines": 2, "created": MIDNIGHT, "owner": None, "detached": True, "dead": [], "runs": [],
        "hosts": [], "ends": None, "unused_ends": None, "attach": f"%load_ext nbdist\n%cluster attach {name}",
        "can": {"stop": True, "grow": True, "shrink": True, "restart": True}, "why": {}, "lines": [],
        "error": None,
    }  # fmt: skip
    return {**item, **others}


HOSTS: list[Item] = [
    {"name": "gpu1", "address": "10.0.0.1", "cores": 64, "gpus": 8, "state": "up", "tasks": 4,
     "machine": {"cpu": 37, "memory": 98304 * MEGABYTE, "total": 524288 * MEGABYTE}},
    {"name": "gpu2", "address": "10.0.0.2", "cores": 64, "gpus": 8, "state": "up", "tasks": 4},
    {"name": "gpu3", "address": None, "cores": None, "gpus": None, "state": "lost", "tasks": 4},
    {"name": "gpu4", "address": None, "cores": None, "gpus": None, "state": "absent", "tasks": 0},
]  # fmt: skip


def task(rank: int, **others: Any) -> Item:
    item = {
        "cluster": "many", "rank": rank, "name": f"/job:worker/task:{rank}", "job": "worker", "index": rank,
        "host": "this machine", "pid": 4000 + rank, "device": "/device:CPU:0", "state": "running", "cpu": 97,
        "memory": 312 * MEGABYTE, "gpu": None, "run": "run-0", "step": 1200 + rank, "steps_per_second": 56.3,
        "straggler": None, "note": None,
    }  # fmt: skip
    return {**item, **others}


def run(number: int, status: str = "finished", **others: Any) -> Item:
    going = status in ("preparing", "running", "paused")
    item = {
        "id": f"run-{number}", "name": f"digits {number}", "status": status,
        "created": MIDNIGHT - 3600 * number, "ended": None if going else MIDNIGHT - 3600 * number + 60,
        "paused": 0.0,
        "cluster": "many", "strategy": "MultiWorkerMirroredStrategy", "replicas": 4, "step": 430,
        "total": 1000, "seconds_left": 75 if going else None, "steps_per_second": 56.3 if going else None,
        "metric": "loss", "value": 0.1234,
        "curve": {"x": list(range(60)), "y": [2 / (1 + x / 5) + x % 5 / 50 for x in range(60)]},
        "error": "the loss is NaN at step 430" if status == "failed" else None,
        "error_line": "NanLossError: the loss is NaN (line 7, worker 1)" if status == "failed" else None,
        "tags": ["baseline"] if number == 2 else [], "remark": None, "training": True, "bytes": None,
        "note": "12 bytes at the end of metrics-0001.log make no record" if status == "damaged" else None,
        "session": "train.ipynb", "folder": "/home/user/nbdist/run/r", "browse": None,
        "tensorboard": number % 2 == 0, "attach": "import nbdist as nb\nnb.attach('r')",
        "can": {"stop": going}, "why": {} if going else {"stop": "it has ended"},
    }  # fmt: skip
    return {**item, **others}


def sweep(number: int, state: str = "running", **others: Any) -> Item:
    item = {
        "id": f"sweep-{number}", "name": f"rates {number}", "state": state,
        "created": MIDNIGHT - 1000 * number, "metric": "accuracy", "direction": "max", "wanted": 20,
        "counts": {"waiting": 6, "running": 2, "finished": 9, "pruned": 3, "stopped": 0, "failed": 0},
        "best": {"number": 7, "value": 0.9812, "parameters": {"rate": 0.0123, "units": 64, "kind": "adam"}},
        "curve": {"x": [0, 5, 10, 30, 60], "y": [0.5, 0.7, 0.9, 0.95, 0.98]}, "cluster": "many",
        "session": "sweep.ipynb", "note": None, "error": None, "attach": "nb.attach('s')",
        "can": {"stop": True, "pause": state == "running", "resume": state == "paused"}, "why": {},
    }  # fmt: skip
    return {**item, **others}


def crowded(tasks: int = 100, runs: int = 50) -> Item:
    """Return the state of a server with much to tell: every kind of state is in it."""
    ended = ("finished", "failed", "stopped", "lost", "damaged")
    rows = [task(rank) for rank in range(tasks)]
    rows[2] |= {"straggler": 1.4}
    rows[3] |= {"state": "dead", "note": "ended by signal 9", "cpu": None, "memory": None}
    rows[4] |= {"state": "waiting"}
    return {
        "version": 1, "cluster": "many", "tasks": rows, "problems": ["12 more runs are not listed"],
        "clusters": [
            cluster("many", workers=tasks, ps=1, runs=["run-0"], dead=["worker:3"],
                    owner={"pid": 1, "session": "work/train.ipynb", "alive": True}, detached=False),
            cluster("new", state="starting", lines=["controller 0.4 s", "1 of 2 engines is up"], can={}),
            cluster("mpi", state="failed", launcher="mpi", error="mpiexec is not here: apt install mpich"),
            cluster("ipp:default:x", title="default", kind="ipyparallel", workers=None, ps=None, engines=4,
                    detached=False, can={"stop": True}, why={"grow": "ipyparallel started it"}),
        ],
        "runs": [run(0, "running"), run(1, "paused", total=None, seconds_left=None)]
        + [run(number, ended[number % 5]) for number in range(2, runs)],
        "sweeps": [sweep(0), sweep(1, "paused"), sweep(2, "finished", best=None)],
    }  # fmt: skip


class Served:
    """A fake server for the pages of a browser's context: its answers, and the requests that it received."""

    refuse = ""
    """The answer to every action; none is executed."""

    def __init__(self, context: BrowserContext, state: Item) -> None:
        self.state = state
        self.requests: list[tuple[str, str, Any]] = []
        self.streams: list[WebSocketRoute] = []
        context.route(f"**{API}*", self._answer)
        context.route(f"**{API}/**", self._answer)
        context.route_web_socket(f"**{API}/stream*", self._open)

    def change(self, **parts: list[Item]) -> None:
        """Tell the pages that these items have changed."""
        changes = {part: {"set": items, "removed": []} for part, items in parts.items()}
        for stream in self.streams:
            stream.send(json.dumps({"kind": "changes", **changes}))

    def begin_again(self) -> None:
        """Forget all requests, and send the whole state to the pages."""
        self.refuse = ""
        self.requests.clear()
        for stream in self.streams:
            stream.send(json.dumps({"kind": "state", **self.state}))

    def _open(self, stream: WebSocketRoute) -> None:
        stream.on_message(lambda message: None)
        self.streams.append(stream)
        stream.send(json.dumps({"kind": "state", **self.state}))

    def _answer(self, route: Route) -> None:
        request = route.request
        path = request.url.split(API, 1)[1].split("?")[0].strip("/")
        if request.method == "GET" and path in ("", "state"):
            route.fulfill(json=self.state if path else ABOUT)
            return
        if request.method == "GET" and path.startswith("runs/"):
            route.fulfill(json=next(one for one in self.state["runs"] if one["id"] == path.split("/")[1]))
            return
        self.requests.append((request.method, path, request.post_data_json))
        if self.refuse:
            route.fulfill(status=409, json={"message": self.refuse, "reason": None})
        else:
            route.fulfill(status=202, json={})
