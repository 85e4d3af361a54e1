"""Variable aggregation and synchronization: how several replicas read and change one variable.

While a strategy traces the step of its replicas, the graph has `ReplicaRules`: they define how the step reads
and changes a variable. Any other graph has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nbdist.errors import InvalidArgumentError, choices

if TYPE_CHECKING:
    from nbdist.graph.tensor import Tensor, Variable


class VariableAggregation(StrEnum):
    """How the values that replicas assign to one variable, or have when it is read, are combined."""

    NONE = "none"
    SUM = "sum"
    MEAN = "mean"
    ONLY_FIRST_REPLICA = "only_first_replica"


class VariableSynchronization(StrEnum):
    """When the values of replicas are combined: as they are assigned, or when they are read outside.

    AUTO and ON_WRITE keep one value, the same on all replicas; ON_READ and NONE one for each replica.
    """

    AUTO = "auto"
    NONE = "none"
    ON_WRITE = "on_write"
    ON_READ = "on_read"


class ReplicaRules(Protocol):
    """Replaces reads and changes of variables, by assignments and optimizers."""

    def read(self, variable: Variable) -> Tensor:
        """Return the variable's value as it is now."""

    def change(self, variable: Variable, op_name: str, value: Any) -> Tensor:
        """Return the variable's value after an op that changes it."""

    def watch(self, loss: Tensor) -> None:
        """Record a loss that is minimized: the step fails if it is NaN or infinite."""

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the part that a loss has in the sum over all replicas, which is minimized."""

    def loss_scale(self, optimizer: Any) -> Tensor:
        """Return the scale of an optimizer's loss in this step, one float32."""

    def update(
        self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]], counter: Variable | None, name: str
    ) -> Tensor:
        """Take gradients with their variables; return an op that stands for the update."""


class VariableOwner(Protocol):
    """A strategy that owns the values of a graph's variables, instead of a session."""

    host_values: dict[Variable, Any]
    """Host arrays with the variables' values; not current while an optimizer trains."""
    savers: list[tuple[Sequence[Variable], Callable[[Sequence[Any], Path], bool]]]
    """Writes a model to a file, given its weights; returns False if it does not exist."""

    def host_value(self, variable: Variable) -> Any:
        """Return a variable's host array, made with its initial value at the first call."""

    def evaluate(self, tensor: Any, feeds: Any) -> Any:
        """Return the value of a tensor; runs the assignments that it depends on."""

    def refresh(self) -> None:
        """Fetch the newest values into the host arrays."""

    def finish(self) -> None:
        """Fetch the final values; a later step begins a new training."""


Kind = TypeVar("Kind", bound=StrEnum)


def checked(what: str, kind: type[Kind], value: Any) -> Kind:
    """Return a member of an enumeration, given as member or name; None is the first one.

    >>> checked("aggregation", VariableAggregation, "sum")
    <VariableAggregation.SUM: 'sum'>
    """
    if value is None:
        return next(iter(kind))
    try:
        return kind(value.lower() if isinstance(value, str) else value)
    except ValueError:
        raise InvalidArgumentError(f"no {what} {value!r}; {choices(value, kind)}") from None
