"""`Optimizer`, the base class: updates arrays in place, and makes the ops that do so in a graph.

An optimizer changes one flat parameter array in place, from one flat gradient of the same length. It runs
wherever the parameters live: in the worker on one device, in the parameter server's task otherwise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import backend_of
from nbdist.graph.ops.rows import check_rows, summed_rows
from nbdist.graph.tensor import Tensor, Variable
from nbdist.keras_arguments import KerasAttributes
from nbdist.optim import training
from nbdist.optim.schedules import SCHEDULES, LearningRateSchedule

Array = np.ndarray[Any, Any]
BLOCK = 1 << 16
"""Elements worked on at once: what is computed in between stays in a cache, and calls cost little."""


@dataclass
class Optimizer(KerasAttributes, ABC):
    """How a gradient changes parameters.

    To write one, subclass it and define ``apply``. ``slots`` names the arrays of the parameters' size that it
    keeps between steps, zeros at first (or override ``new_slots``); ``counts_steps`` is whether ``apply``
    needs the number of the step.

    In a graph ``minimize`` adds an op for each variable, on the variable's device, which changes it and its
    slots in place. A gradient that holds rows of a table changes only these rows and their slots' rows.

    - ``learning_rate``: a finite number of 0 or more, or one of ``nb.optim.schedules``. In a graph
      (``minimize``, ``apply_gradients``) also a tensor of one number, or a function: of no argument, called
      when the op is made, or of the number of steps so far, a tensor that counts from 0; it returns a number
      or a tensor: ``SGD(lambda step: 0.1 * 0.5 ** (step // 100))``
    - ``use_locking``: whether the change of a variable in a graph, with its slots, is atomic for all
      sessions, at the cost of a copy of each variable that is sent to another task. Without it sessions
      that change a variable at the same time may overwrite some elements of each other's changes (a few in
      100,000 for large arrays), and a read may return a partial change; global steps are exact in any case.
      Changes of several variables are not atomic together

    Raises InvalidArgumentError for a setting that is not a number or is out of range.
    """

    learning_rate: Any = 0.01
    use_locking: bool = field(default=False, kw_only=True, repr=False)
    slots: ClassVar[tuple[str, ...]] = ()
    counts_steps: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True
    """Whether ``apply_rows`` may be called with rows that differ from replica to replica."""
    by_element: ClassVar[bool] = True
    """Whether ``apply`` may be called with any part of the parameters."""
    limits: ClassVar[Mapping[str, float]] = {}
    """What the settings that are numbers of 0 or more stay below, by their names."""
    schedule: LearningRateSchedule | None = field(default=None, init=False, repr=False)
    """The schedule that a training follows, in which ``learning_rate`` is the number that it says now."""
    factor: float = field(default=1.0, init=False, repr=False)
    """What multiplies the rates of the schedule; infinite while ``learning_rate`` holds in their place."""

    def __post_init__(self) -> None:
        if not isinstance(self.learning_rate, Tensor) and not callable(self.learning_rate):
            self.learning_rate = number("learning_rate", self.learning_rate)
        for name, below in self.limits.items():
            setattr(self, name, number(name, getattr(self, name), below))

    @abstractmethod
    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Make a step: change ``parameters`` in place.

        - ``parameters``: a flat array, float32 or float64
        - ``gradient``: an array of the same length and dtype, which is only read
        - ``slots``: the arrays of ``new_slots(parameters)``, by name, changed in place
        - ``step``: the number of the step, from 1; in a graph on a GPU an array of one there

        The arrays are those of one GPU, or of NumPy. NumPy's functions take both; each call is a kernel.
        """

    def apply_rows(
        self, table: Array, values: Array, indices: Array, slots: dict[str, Array], step: int
    ) -> None:
        """Change the rows of ``table`` at ``indices`` by gradients ``values``, and their rows of ``slots``.

        Rows that occur several times are added up first. All other rows and their slots do not change: the
        time does not depend on the size of the table. ``step`` counts from 1. Raises
        InvalidArgumentError for an index outside the table.
        """
        check_rows(indices, len(table))
        at, total = summed_rows(backend_of(table), values, indices)
        if len(at) == 0:
            return
        rows, kept = table[at], {name: array[at] for name, array in slots.items()}
        flat = {name: array.reshape(-1) for name, array in kept.items()}
        self.apply(rows.reshape(-1), total.reshape(-1), flat, step)
        table[at] = rows
        for name, changed in kept.items():
            slots[name][at] = changed

    def new_slots(self, parameters: Array) -> dict[str, Array]:
        """Return the initial slots for ``parameters``: arrays of their size, by name."""
        return {name: np.zeros_like(parameters) for name in self.slots}

    def to_config(self) -> dict[str, Any]:
        """Return name and settings as plain values, for :func:`from_config`.

        InvalidArgumentError where the learning rate is a tensor, or a function that is no schedule.
        """
        rate = self.learning_rate
        kinds = SCHEDULES.values()
        if isinstance(rate, Tensor) or (callable(rate) and type(rate) not in kinds):
            raise InvalidArgumentError(
                f"learning_rate is {rate!r}, which works in graphs (minimize, apply_gradients); give a "
                "number here, or one of nb.optim.schedules"
            )
        found = self.config(rate.to_config() if isinstance(rate, LearningRateSchedule) else rate)
        if self.schedule is not None:
            found |= {"schedule": self.schedule.to_config(), "factor": self.factor}
        return found

    def in_training(self) -> Optimizer:
        """Return what a training takes: a copy whose rate is a number, if this one's is a schedule."""
        if not isinstance(self.learning_rate, LearningRateSchedule):
            return self
        own = copy(self)
        own.schedule, own.learning_rate = self.learning_rate, self.learning_rate(0)
        return own

    def follow(self, updates: int) -> None:
        """Make the update after so many others at its rate, if there is a schedule."""
        if self.schedule is not None and self.factor != math.inf:
            self.learning_rate = self.schedule(updates) * self.factor

    def config(self, learning_rate: Any) -> dict[str, Any]:
        """Return name and settings as plain values, with ``learning_rate`` in place of the own one."""
        settings = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.init and (not one.kw_only or getattr(self, one.name) != one.default)  # that is left out
        }
        settings["learning_rate"] = learning_rate
        return {"name": type(self).__name__, **settings}

    def minimize(
        self,
        loss: Any,
        global_step: Variable | None = None,
        var_list: Any = None,
        grad_loss: Any = None,
        name: str | None = None,
    ) -> Tensor:
        """Return the op that makes a step: it computes the gradients of ``loss`` and applies them.

        - ``loss``: a floating point tensor; the gradients are those of the sum of its elements
        - ``global_step``: an integer variable to which each step adds 1; None for none
        - ``var_list``: the variables to change; None for all trainable ones of the graph
        - ``grad_loss``: the gradient of ``loss``, of its shape; None for ones
        - ``name``: the name of the op; None for the optimizer's class

        Raises InvalidArgumentError for a loss that depends on none of the variables.

        >>> from nbdist.graph.tensor import Graph
        >>> from nbdist.optim import SGD
        >>> with Graph().as_default():
        ...     w = Variable(np.ones(3), name="w")
        ...     SGD(0.1).minimize(np.sum(w * w)).name
        'SGD'
        """
        return training.minimize(self, loss, global_step, var_list, grad_loss, name)

    def compute_gradients(self, loss: Any, var_list: Any = None, grad_loss: Any = None) -> training.Pairs:
        """Return (gradient, variable) for each variable; None as gradient if ``loss`` does not depend on it.

        ``loss``, ``var_list`` and ``grad_loss`` are those of :meth:`minimize`. A partitioned variable has a
        pair for each shard.
        """
        return training.compute_gradients(loss, var_list, grad_loss)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Return the op that applies gradients to variables, then adds 1 to ``global_step``.

        - ``grads_and_vars``: pairs as :meth:`compute_gradients` returns them; those without gradient are left
          out
        - ``global_step``: an integer variable; None for none (an optimizer that needs the number of the step
          then counts by itself)
        - ``name``: the name of the op; None for the optimizer's class

        Raises InvalidArgumentError (a ValueError) without any gradient, or for a variable of another graph.
        """
        return training.apply_gradients(self, grads_and_vars, global_step, name)

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots of each variable."""
        return list(self.new_slots(np.zeros(1)))

    def get_slot(self, variable: Variable, name: str) -> Variable:
        """Return the slot ``name`` of a graph's ``variable``; InvalidArgumentError if there is none."""
        if name not in self.get_slot_names():
            kept = ", ".join(self.get_slot_names()) or "nothing"
            raise InvalidArgumentError(f"{type(self).__name__} keeps {kept} for a variable, not {name!r}")
        return training.slots_of(self, variable)[name]

    @cached_property
    def graph_state(self) -> training.OptimizerState:
        """The variables that this optimizer has made in graphs; copies do not have them."""
        return training.OptimizerState()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "graph_state"}


def scratch(parameters: Array) -> Array:
    """Return an array for what is computed in between, as long as a block of ``blocks``."""
    return np.empty_like(parameters[: block_of(parameters)])


def blocks(*arrays: Array) -> Iterator[list[Array]]:
    """Yield parts of flat arrays of one length, so small that a few of them stay in the nearest caches."""
    size = block_of(arrays[0])
    for start in range(0, len(arrays[0]), size):
        yield [array[start : start + size] for array in arrays]


def block_of(array: Array) -> int:
    """Return how many elements are worked on at once: all that XLA compiles, which fuses the calls itself."""
    return BLOCK if isinstance(array, np.ndarray) else max(len(array), 1)


def number(name: str, value: Any, below: float = math.inf) -> float:
    """Return ``value`` as a Python float (NumPy's would widen float32 arrays) if it is in range."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidArgumentError(f"{name} is a number, got {value!r}")
    if not 0 <= value < below:
        bounds = "0 or more and finite" if below == math.inf else f"at least 0 and below {below}"
        raise InvalidArgumentError(f"{name} must be {bounds}, got {value!r}")
    return float(value)
