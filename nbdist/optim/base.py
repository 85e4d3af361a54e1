"""`Optimizer`, the base class: updates arrays in place, and makes the ops that do so in a graph.

An optimizer changes one flat parameter array in place, from one flat gradient of the same length. It runs
wherever the parameters live: in the worker on one device, in the parameter server's task otherwise.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import backend_of
from nbdist.graph.ops.rows import check_rows, summed_rows
from nbdist.graph.tensor import Tensor, Variable
from nbdist.keras_arguments import KerasAttributes
from nbdist.numbers import is_whole
from nbdist.optim import training
from nbdist.optim.schedules import SCHEDULES, LearningRateSchedule

Array = np.ndarray[Any, Any]
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
ACCUMULATED = "accumulated"
"""The slot with the sum of the gradients since the last update."""
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
    - ``weight_decay``: each variable loses ``learning_rate * weight_decay`` of itself before an update, 0 or
      more; None for none. Variables that :meth:`exclude_from_weight_decay` names keep it
    - ``clipnorm``: the largest norm of each variable's gradient, above 0; ``global_clipnorm``: that of all
      gradients together; ``clipvalue``: the largest absolute value of their elements. At most one of them. It
      is the gradient of an update that is clipped: the sum over replicas in step
    - ``gradient_accumulation_steps``: of how many steps the mean gradient makes an update, a whole number of
      2 or more; None for each. Steps between two updates count for schedules, as in Keras

    Which of these a strategy cannot do, it says. Raises InvalidArgumentError for a setting that is not a
    number or is out of range.
    """

    learning_rate: Any = 0.01
    use_locking: bool = field(default=False, kw_only=True, repr=False)
    weight_decay: float | None = field(default=None, kw_only=True, repr=False)
    clipnorm: float | None = field(default=None, kw_only=True, repr=False)
    clipvalue: float | None = field(default=None, kw_only=True, repr=False)
    global_clipnorm: float | None = field(default=None, kw_only=True, repr=False)
    gradient_accumulation_steps: int | None = field(default=None, kw_only=True, repr=False)
    slots: ClassVar[tuple[str, ...]] = ()
    counts_steps: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True
    """Whether ``apply_rows`` may be called with rows that differ from replica to replica."""
    by_element: ClassVar[bool] = True
    """Whether ``apply`` may be called with any part of the parameters."""
    decays_itself: ClassVar[bool] = False
    """Whether ``apply`` decays the parameters by ``weight_decay``."""
    limits: ClassVar[Mapping[str, float]] = {}
    """What the settings that are numbers of 0 or more stay below, by their names."""
    schedule: LearningRateSchedule | None = field(default=None, init=False, repr=False)
    """The schedule that a training follows, in which ``learning_rate`` is the number that it says now."""
    excluded: tuple[str, ...] = field(default=(), init=False, repr=False)
    """Patterns of the names of variables that do not decay."""
    factor: float = field(default=1.0, init=False, repr=False)
    """What multiplies the rates of the schedule; infinite while ``learning_rate`` holds in their place."""

    def __post_init__(self) -> None:
        if not isinstance(self.learning_rate, Tensor) and not callable(self.learning_rate):
            self.learning_rate = number("learning_rate", self.learning_rate)
        for name, below in self.limits.items():
            setattr(self, name, number(name, getattr(self, name), below))
        if self.weight_decay is not None:
            self.weight_decay = number("weight_decay", self.weight_decay)
        given = [name for name in CLIPS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidArgumentError(f"{type(self).__name__} takes one of {', '.join(given)}, not several")
        for name in given:
            setattr(self, name, number(name, getattr(self, name)))
            if getattr(self, name) == 0:
                raise InvalidArgumentError(f"{name} must be above 0: with 0 no gradient is left")
        steps = self.gradient_accumulation_steps
        if steps is not None and not is_whole(steps, 2):
            raise InvalidArgumentError(
                f"gradient_accumulation_steps is a whole number of 2 or more, or None, got {steps!r}"
            )

    @abstractmethod
    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Make a step: change ``parameters`` in place.

        - ``parameters``: a flat array, float32 or float64
        - ``gradient``: an array of the same length and dtype, which is only read
        - ``slots``: the arrays of ``new_slots(parameters)``, by name, changed in place
        - ``step``: the number of the step, from 1; in a graph on a GPU an array of one there

        The arrays are those of one GPU, or of NumPy. NumPy's functions take both; each call is a kernel.
        """

    def exclude_from_weight_decay(
        self, var_list: Iterable[Any] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Have some variables keep their values, where ``weight_decay`` is set.

        - ``var_list``: variables; None for none
        - ``var_names``: regular expressions, of which one is found in the name of a variable, such as "bias"
          or "gamma|beta"; None for none. Weights of a model are called ``dense/kernel``, ``dense_1/bias``

        A training raises InvalidArgumentError for what fits no variable.

        >>> from nbdist.optim import SGD
        >>> optimizer = SGD(0.1, weight_decay=0.01)
        >>> optimizer.exclude_from_weight_decay(var_names=["bias"])
        >>> optimizer.decays("dense/kernel"), optimizer.decays("dense/bias")
        (True, False)
        """
        if isinstance(var_names, str):
            raise InvalidArgumentError(
                f"exclude_from_weight_decay: var_names is a list, such as [{var_names!r}]"
            )
        names = [f"^{re.escape(one.name)}$" for one in var_list or ()]
        for pattern in var_names or ():
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise InvalidArgumentError(
                    f"exclude_from_weight_decay: {pattern!r} is no regular expression: {error}"
                ) from None
            names.append(pattern)
        self.excluded = (*self.excluded, *names)

    def decays(self, name: str) -> bool:
        """Return whether a variable of this name decays."""
        return bool(self.weight_decay) and not any(re.search(one, name) for one in self.excluded)

    def check_names(self, names: Sequence[str]) -> None:
        """Raise InvalidArgumentError where what is excluded from the decay fits none of these variables."""
        for pattern in self.excluded:
            if not any(re.search(pattern, name) for name in names):
                raise InvalidArgumentError(
                    f"exclude_from_weight_decay: {pattern!r} fits no variable; there are {', '.join(names)}"
                )

    @property
    def is_plain(self) -> bool:
        """Whether an update is `apply` alone: nothing is clipped, accumulated, or decays by its name."""
        return not (
            self.clips
            or self.gradient_accumulation_steps
            or (self.weight_decay and (self.excluded or not self.decays_itself))
        )

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped."""
        return any(getattr(self, name) for name in CLIPS)

    def settings_beside(self) -> str:
        """Return in words what an update does beside `apply`, such as "clipnorm=1.0"."""
        names = (*CLIPS, "gradient_accumulation_steps", "weight_decay")
        own = [name for name in names if getattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in own)

    def update(
        self,
        flats: Sequence[tuple[Array, Array, dict[str, Array]]],
        step: int,
        parts: Callable[[], Sequence[Part]],
        squares: Array | None = None,
    ) -> None:
        """Make a step as a whole: accumulate, clip, decay, and `apply`, in Keras's order.

        - ``flats``: parameters, gradients and slots, as `apply` takes them; gradients are written over
        - ``step``: the number of the step, from 1
        - ``parts``: returns these by variable, as views, which clipping and decay need
        - ``squares``: of each variable the sum of the squares of its gradient, where others have parts of it;
          None where ``parts`` are whole
        """
        rule = self
        if not self.is_plain:
            if not self._accumulated(flats, step):
                return
            known = parts()
            self._clip(known, squares)
            rule = self._decayed(known)
        for parameters, gradient, slots in flats:
            own = {name: one for name, one in slots.items() if name != ACCUMULATED}
            rule.apply(parameters, gradient, own, step)

    def _accumulated(self, flats: Sequence[tuple[Array, Array, dict[str, Array]]], step: int) -> bool:
        """Return whether this step makes an update; its gradient is then the mean of all since the last."""
        count = self.gradient_accumulation_steps
        if not count:
            return True
        for _, gradient, slots in flats:
            total = slots[ACCUMULATED]
            if step % count:
                np.add(total, gradient, out=total)
            else:
                np.add(gradient, total, out=gradient)
                np.divide(gradient, count, out=gradient)
                total.fill(0)
        return step % count == 0

    def _clip(self, parts: Sequence[Part], squares: Array | None) -> None:
        if self.clipvalue:
            for part in parts:
                np.clip(part.gradient, -self.clipvalue, self.clipvalue, out=part.gradient)
        largest = self.clipnorm or self.global_clipnorm
        if not largest:
            return
        found = squares_of(parts) if squares is None else squares
        if self.global_clipnorm:
            found = np.full_like(found, found.sum())
        for part in parts:
            norm = math.sqrt(found[part.variable])
            if norm > largest:
                np.multiply(part.gradient, largest / norm, out=part.gradient)

    def _decayed(self, parts: Sequence[Part]) -> Optimizer:
        """Decay the variables that do; return what makes the update after that."""
        if not self.weight_decay or (self.decays_itself and not self.excluded):
            return self
        for part in parts:
            if self.decays(part.name):
                np.multiply(part.parameters, 1 - self.learning_rate * self.weight_decay, out=part.parameters)
        rule = copy(self)
        rule.weight_decay = 0.0
        return rule

    def decay(self, parameters: Array) -> None:
        """Decay a variable before an update, where `apply` does not."""
        if self.weight_decay and not self.decays_itself:
            np.multiply(parameters, 1 - self.learning_rate * self.weight_decay, out=parameters)

    def all_slots(self, parameters: Array) -> dict[str, Array]:
        """Return `new_slots`, and the sum of gradients where they are accumulated."""
        found = self.new_slots(parameters)
        if self.gradient_accumulation_steps:
            found[ACCUMULATED] = np.zeros_like(parameters)
        return found

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
        self.decay(rows.reshape(-1))
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
        return found | ({"excluded": list(self.excluded)} if self.excluded else {})

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
        return list(self.all_slots(np.zeros(1)))

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


class Part(NamedTuple):
    """What an update changes of one variable: all of it, or a part that lies together."""

    variable: int
    """The variable's number."""
    name: str
    parameters: Array
    gradient: Array


def squares_of(parts: Sequence[Part], variables: int | None = None) -> Array:
    """Return the sum of the squares of the gradients, by the numbers of the ``variables``.

    >>> squares_of([Part(0, "w", np.zeros(2), np.array([3.0, 4.0])), Part(1, "b", np.zeros(1), np.ones(1))])
    array([25.,  1.])
    """
    count = max((part.variable for part in parts), default=-1) + 1 if variables is None else variables
    found = np.zeros(count)
    for part in parts:
        flat = part.gradient.reshape(-1)
        with np.errstate(all="ignore"):
            total = float(flat.dot(flat))
        if not math.isfinite(total):  # squares that a float32 does not hold
            total = float((flat.astype(np.float64) ** 2).sum())
        found[part.variable] += total
    return found


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
