"""A task of a cluster on a host, as an engine would be: it opens, joins, trains and runs sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from actor import receive, send, serve
from hosts_model import fit

from nbdist.cluster.task_setup import join_roster, open_task
from nbdist.distribute import (
    CentralStorageStrategy,
    ElasticAveragingStrategy,
    MultiWorkerMirroredStrategy,
    ParameterServerStrategy,
    ShardedStrategy,
    Strategy,
)
from nbdist.errors import NbdistError
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, Variable, placeholder
from nbdist.graph.variables import global_variables_initializer
from nbdist.run.task.agent import agent
from nbdist.runtime import task as tasks
from nbdist.runtime.groups import World
from nbdist.runtime.session.session import Session
from nbdist.train import Callback
from nbdist.train.context import Context, use
from nbdist.train.replica import Replica
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer
from nbdist.wire.shm import remove_all

OF_WORLD: dict[str, Callable[..., Strategy]] = {
    "multi_worker": MultiWorkerMirroredStrategy,
    "elastic": ElasticAveragingStrategy,
    "central": CentralStorageStrategy,
    "sharded": ShardedStrategy,
}
held: dict[str, Any] = {}


def open_one(**fields: Any) -> dict[str, Any]:
    return open_task(**fields)


def join(roster: list[dict[str, Any]], cluster_id: str) -> str:
    name = join_roster(roster, cluster_id)
    agent()
    return name


class Pause(Callback):
    """Reports the end of the third epoch, and waits for a line of input."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        if epoch == 2:
            send("in the middle")
            receive()


def train(run: str, strategy: str, options: dict[str, Any], pause: bool, **model: Any) -> dict[str, Any]:
    """Train; answer with the transports, at a pause, and with the results."""
    task = tasks.current()
    ranks = [info.rank for info in task.roster if info.job == "worker"]
    context = Context(is_chief=task.rank == ranks[0], seed=7, quiet=True)
    context.world = World(task, tuple(ranks), run, context.control.check)
    made = strategy_of(strategy, context, options)
    begin = made.replica

    def begin_and_report(*given: Any) -> Replica:
        replica: Any = begin(*given)
        held["staleness"] = []
        for link in getattr(replica, "_links", ()):
            link.outcome = noting(link.outcome)
        send([link.kind for link in replica._links] if strategy == "ps" else [replica._group.kind])
        return replica

    made.replica = begin_and_report  # type: ignore[method-assign]
    context.strategy = made
    with use(context):
        try:
            found = fit(**model, callbacks=[Pause()] if pause else [])
        except NbdistError as error:
            return {"error": [type(error).__name__, str(error)], "steps": context.progress.step}
    return {**found, "steps": context.progress.step, "staleness": held["staleness"]}


def noting(outcome: Callable[[int], tuple[int, int]]) -> Callable[[int], tuple[int, int]]:
    """Record the staleness of each gradient."""

    def noted(slot: int) -> tuple[int, int]:
        what, staleness = outcome(slot)
        held["staleness"].append(staleness)
        return what, staleness

    return noted


def strategy_of(name: str, context: Context, options: dict[str, Any]) -> Strategy:
    world, task = context.world, tasks.current()
    if name in OF_WORLD:
        return OF_WORLD[name](world=world, **options)
    return ParameterServerStrategy(
        task, ranks=world.ranks, run=world.run, prefix=agent().prefix, check=world.check, **options
    )


def served(run: str) -> list[int]:
    """Return the number of updates of each training of a run on this server."""
    hosted = agent().parameters._hosted
    return [h.shard.updates for name, h in hosted.items() if name.startswith(f"{run}/") and h.shard]


def release(run: str) -> None:
    """Free a run's state on this task, like its client."""
    tasks.current().peer(tasks.current().rank).call("run.release", {"run": run})


def report_lost(first: int, run: str, ranks: list[int]) -> None:
    """Report ended ranks to the first task of a run, like its client."""
    tasks.current().peer(first).call("run.lost", {"run": run, "ranks": ranks})


def ping(rank: int) -> str:
    """Call another task over the cached connection."""
    return str(tasks.current().peer(rank).call("ping").meta["name"])


def knock(address: str) -> str:
    """Call a task with the keys of another cluster."""
    with Peer(address, ClusterKeys.create()) as stranger:
        return stranger.call("ping").kind


def sweep(prefix: str) -> list[str]:
    """Remove the shared files of a cluster's tasks on this host, as after a kill."""
    return remove_all(prefix)


def session(target: str, keys: dict[str, str], place: str) -> None:
    """Open a session for a product on a device, with feeds of this process."""
    with Graph().as_default() as graph:
        x = placeholder(np.float64, (None, 40), name="x")
        with device(place):
            w = Variable(np.arange(80.0).reshape(40, 2), name="w")
            y = x @ w
        held["session"] = Session(target, graph, keys=ClusterKeys.from_dict(keys), report=lambda line: None)
        held["product"] = x, y
        held["session"].run(global_variables_initializer(graph))


def product(rows: int) -> bool:
    """Run the session; return whether the result equals NumPy's."""
    x, y = held["product"]
    fed = np.random.default_rng(rows).normal(size=(rows, 40))
    found = held["session"].run(y, {x: fed})
    return bool(np.allclose(found, fed @ np.arange(80.0).reshape(40, 2)))


def products_for_ever(rows: int) -> None:
    send("begun")
    while True:
        product(rows)


def end_session() -> None:
    held.pop("session").close()


def close() -> None:
    agent().close()
    tasks.current().close()
    tasks.set_current(None)


ORDERS = (
    open_one, join, train, served, release, report_lost, ping, knock, sweep,
    session, product, products_for_ever, end_session, close,
)  # fmt: skip
serve({order.__name__: order for order in ORDERS})
