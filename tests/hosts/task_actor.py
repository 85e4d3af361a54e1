"""A task of a cluster on a host, as an engine would be: it opens, joins, trains and runs sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
from actor import say, serve
from hosts_model import fit

from nbdist.cluster.tasks import close_task, join_roster, open_task
from nbdist.distribute.parameter_server import ParameterServerStrategy
from nbdist.errors import NbdistError
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, Variable, placeholder
from nbdist.graph.variables import global_variables_initializer
from nbdist.runs.agent import agent
from nbdist.runtime import task as tasks
from nbdist.runtime.session import Session
from nbdist.train.context import Context, use
from nbdist.train.strategy import Replica
from nbdist.wire.keys import ClusterKeys

held: dict[str, Any] = {}


def open_one(**who: Any) -> dict[str, Any]:
    return open_task(**who)


def join(roster: list[dict[str, Any]], cluster_id: str) -> str:
    name = join_roster(roster, cluster_id)
    agent()
    return name


class Noted(ParameterServerStrategy):
    """Remembers its replica, and says when it is ready to train."""

    def replica(self, *given: Any) -> Replica:
        held["replica"] = super().replica(*given)
        say(held["replica"].transports)
        return held["replica"]


def train(run: str, synchronous: bool, **model: Any) -> dict[str, Any]:
    """Train; answers twice: how the parameters are reached, and what came out."""
    task = tasks.current()
    ranks = [info.rank for info in task.roster if info.job == "worker"]
    context = Context(is_chief=task.rank == ranks[0], seed=7, quiet=True)
    context.strategy = Noted(
        task,
        ranks=ranks,
        run=run,
        prefix=agent().prefix,
        check=context.control.check,
        synchronous=synchronous,
    )
    with use(context):
        try:
            found = fit(**model)
        except NbdistError as error:
            return {"error": [type(error).__name__, str(error)], "steps": context.progress.step}
    return {**found, "steps": context.progress.step}


def served(run: str) -> list[int]:
    """Return, by training of a run that is held here, how many updates it has had."""
    holdings = agent().parameters._holdings
    return [h.shard.updates for name, h in holdings.items() if name.startswith(f"{run}/") and h.shard]


def release(run: str) -> None:
    """What a client does when a run is over."""
    task = tasks.current()
    for info in task.roster:
        task.peer(info.rank).call("run.release", {"run": run})


def session(target: str, keys: dict[str, str], place: str) -> None:
    """Open a session for a product on a device, fed from here."""
    with Graph().as_default() as graph:
        x = placeholder(np.float64, (None, 40), name="x")
        with device(place):
            w = Variable(np.arange(80.0).reshape(40, 2), name="w")
            y = x @ w
        held["session"] = Session(target, graph, keys=ClusterKeys.from_dict(keys), report=lambda line: None)
        held["product"] = x, y
        held["session"].run(global_variables_initializer(graph))


def product(rows: int) -> bool:
    """Run the session; return whether the result is NumPy's."""
    x, y = held["product"]
    fed = np.random.default_rng(rows).normal(size=(rows, 40))
    found = held["session"].run(y, {x: fed})
    return bool(np.allclose(found, fed @ np.arange(80.0).reshape(40, 2)))


def products_for_ever(rows: int) -> None:
    say("begun")
    while True:
        product(rows)


def end_session() -> None:
    held.pop("session").close()


def close() -> None:
    agent().close()
    close_task()


serve({
    f.__name__: f
    for f in (open_one, join, train, served, release, session, product, products_for_ever, end_session, close)
})  # fmt: skip
