"""What it means that a replica assigns a variable, and that one is read outside of replicas. Pure.

A variable that is alike on all replicas (mirrored) stays so: values that replicas assign are brought together
first. One that is synchronised on reading is each replica's own, and brought together when it is read.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from nbdist.errors import InvalidArgumentError
from nbdist.graph.replicated import VariableAggregation, VariableSynchronization
from nbdist.graph.tensor import Variable

How: TypeAlias = Literal["own", "sum", "mean", "first"]
"""How replicas' values are combined: each keeps its own; or all receive the sum, the mean or the first's."""


OF = {
    VariableAggregation.SUM: "sum",
    VariableAggregation.MEAN: "mean",
    VariableAggregation.ONLY_FIRST_REPLICA: "first",
}
APART = (VariableSynchronization.ON_READ, VariableSynchronization.NONE)


def apart(variable: Variable) -> bool:
    """Whether each replica has a value of its own."""
    return variable.synchronization in APART


def assigned(variable: Variable, replicas: int) -> How:
    """Return how values that replicas assign are combined; raises if that is not declared."""
    if replicas == 1 or apart(variable):
        return "own"
    if variable.aggregation is VariableAggregation.NONE:
        raise InvalidArgumentError(
            f"variable {variable.name!r} is assigned in a function that {replicas} replicas run, which may "
            "have different values: declare how they are combined with Variable(..., aggregation='sum', "
            "'mean' or 'only_first_replica'), or let each keep its own with synchronization='on_read'"
        )
    return OF[variable.aggregation]  # type: ignore[return-value]  # the table's values are among them


def read(variable: Variable, replicas: int) -> How:
    """Return how replicas' values are combined outside of them; raises if that is not declared."""
    if replicas == 1 or not apart(variable):
        return "own"
    if variable.aggregation is VariableAggregation.NONE:
        raise InvalidArgumentError(
            f"variable {variable.name!r} has a value on each of {replicas} replicas, and it is not "
            "declared how to combine them: give Variable(aggregation='sum', 'mean' or 'only_first_replica')"
        )
    return OF[variable.aggregation]  # type: ignore[return-value]  # the table's values are among them
