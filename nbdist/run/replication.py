"""Where the bodies of a run are: one `Replication` for each kind.

    if REPLICATIONS[options.replication].in_client:      # the notebook's process drives all workers

Checks of options, the record of a run and the choice of what is followed ask these records, not for names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError

DATA = ("client", "workers", "service")


@dataclass(frozen=True)
class Replication:
    """All that the rest of the system asks about a kind of replication.

    - ``in_client``: whether the notebook's process runs the body and drives a tower on each worker; else
      every worker runs it
    - ``data``: what can read the batches, the values of --data; ``reads`` says it in words
    - ``why_fixed``: why no worker can join, leave or be replaced; empty if the strategy decides
    """

    name: str
    in_client: bool
    data: tuple[str, ...]
    reads: str
    why_fixed: str = ""

    def check_data(self, data: str) -> None:
        """Raise InvalidArgumentError if the batches are not read so.

        >>> BETWEEN_GRAPH.check_data("workers")
        Traceback (most recent call last):
        nbdist.errors.InvalidArgumentError: --data workers belongs to --replication in-graph; between-graph, \
each worker reads its own data in any case: drop --data
        """
        if data not in self.data:
            other = next(one.name for one in REPLICATIONS.values() if data in one.data)
            raise InvalidArgumentError(
                f"--data {data} belongs to --replication {other}; {self.name}, {self.reads}"
            )


BETWEEN_GRAPH = Replication(
    "between-graph",
    in_client=False,
    data=("client", "service"),
    reads="each worker reads its own data in any case: drop --data",
)
IN_GRAPH = Replication(
    "in-graph",
    in_client=True,
    data=("client", "workers"),
    reads="this notebook feeds the devices, or with --data workers each reads its own batches",
    why_fixed="the graph of an in-graph run is made for its workers",
)

REPLICATIONS = {one.name: one for one in (BETWEEN_GRAPH, IN_GRAPH)}


def replication_of(options: Mapping[str, Any]) -> Replication:
    """Return the replication of options as a run.json has them; between-graph if they name none.

    >>> replication_of({"replication": "in-graph"}).in_client, replication_of({}).in_client
    (True, False)
    """
    name = options.get("replication")
    return next((one for one in REPLICATIONS.values() if one.name == name), BETWEEN_GRAPH)
