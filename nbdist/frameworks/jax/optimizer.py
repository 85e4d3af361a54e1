"""An optax GradientTransformation as an optimizer of nbdist: `OptaxOptimizer`.

The strategy hands flat arrays to an optimizer, one after the other; optax takes a pytree. So `apply` waits
until it has been given all arrays of a step, makes the step with one jitted function, and writes parameters
and slots back. Slots are the leaves of optax's state that belong to a parameter, such as Adam's ``mu``: they
are saved, sent to workers that join, and restored as those of other optimizers are. Counts follow from the
number of the step; other leaves, such as a key for noise, stay in this process.

It runs where gradients are averaged on the workers. A parameter server applies optimizers of nbdist only: it
makes them from their names and settings, and a GradientTransformation is functions.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.jax.tree import Parameters, copy_from_jax, name_of, shared, to_jax
from nbdist.graph.backend import Array, backend_of
from nbdist.optim import Optimizer

RATE = "learning_rate"


class OptaxOptimizer(Optimizer):
    """Make the updates of an optax transformation of the parameters.

    The learning rate is known, and can be changed in a training, if the transformation was made by
    ``optax.inject_hyperparams``; else it is NaN here.
    """

    takes_rows = False
    by_element = False  # a part of a chain may read all parameters, as clip_by_global_norm does

    def __init__(self, transformation: Any, parameters: Parameters) -> None:
        import jax

        self._transformation, self._parameters = transformation, parameters
        self._own = threading.local()  # replicas of one process have a thread each, and this in common
        self._update = jax.jit(self._updated)
        self._leaves = _classified(transformation, parameters)
        self._rate = next((one.first for one in self._leaves if one.kind == "rate"), float("nan"))

    @property
    def learning_rate(self) -> float:
        """The rate of the next update; NaN if the transformation does not tell."""
        return self._rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if np.isnan(self._rate) and not np.isnan(rate):
            print(
                "the learning rate stays as it is, in optax's functions: optax.inject_hyperparams(optax.adam)"
                "(learning_rate=0.001) makes an optimizer with one that can be changed"
            )
            return
        self._rate = rate

    @property
    def kept_here(self) -> list[str]:
        """The leaves of optax's state that cannot be saved, by name: no slots, counts or settings."""
        return kept_here(self._leaves)

    def new_slots(self, parameters: Array) -> dict[str, Array]:
        """Return zeros for each leaf of optax's state that a parameter has; the first step fills them."""
        count = 1 + max((one.slot for one in self._leaves if one.kind == "slot"), default=-1)
        return {f"slot{number}": np.zeros_like(parameters) for number in range(count)}

    def config(self, learning_rate: float) -> dict[str, Any]:
        """Return the name, and the state's form: what two trainings must have in common."""
        return {"name": "optax", RATE: learning_rate, "state": [one.name for one in self._leaves]}

    def bind(self, values: Sequence[Array]) -> None:
        """Have the steps of this thread change these arrays, which lie in those that `apply` is given."""
        steps: _Steps | None = getattr(self._own, "steps", None)
        if steps is None or any(a is not b for a, b in zip(steps.values, values, strict=True)):
            self._own.steps = _Steps(list(values))

    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Take one flat array of a step; with the last one, make the step."""
        steps: _Steps = self._own.steps
        steps.add(parameters, gradient, slots)
        if not steps.complete:
            return
        found = steps.take([one for one in self._leaves if one.kind == "slot"])
        state = self._state(steps, found, step)
        params, state = self._update(
            *(list(map(to_jax, one)) for one in (steps.shared, found.gradients, state))
        )
        for target, source in zip(steps.values, params, strict=True):
            copy_from_jax(target, source)
        for one, leaf in zip(self._leaves, state, strict=True):
            if one.kind == "slot":
                copy_from_jax(found.slots[one.slot, one.variable], leaf)
        steps.others = [leaf for one, leaf in zip(self._leaves, state, strict=True) if one.kind == "other"]

    def first_state(self, values: Sequence[Array]) -> tuple[list[dict[str, Array]], list[Array]]:
        """Return the slots of each parameter before the first step, and the leaves that stay here."""
        slots: list[dict[str, Array]] = [self.new_slots(value) for value in values]
        first, others = self._first(values), []
        for one, leaf in zip(self._leaves, first, strict=True):
            if one.kind == "slot":
                np.copyto(slots[one.variable][f"slot{one.slot}"], np.asarray(leaf))
            elif one.kind == "other":
                others.append(leaf)
        return slots, others

    def updated(
        self, values: Any, gradients: Any, slots: Any, others: Any, rate: Any, step: Any
    ) -> tuple[list[Any], list[dict[str, Any]], list[Any]]:
        """Return parameters, slots and other leaves after a step, as values of JAX."""
        left, before = iter(others), list[Any]()
        for one in self._leaves:
            if one.kind == "slot":
                before.append(slots[one.variable][f"slot{one.slot}"])
            elif one.kind == "other":
                before.append(next(left))
            else:
                before.append((step - 1 if one.kind == "count" else rate).astype(one.dtype))
        values, after = self._updated(values, gradients, before)
        new, kept = [dict(slot) for slot in slots], []
        for one, leaf in zip(self._leaves, after, strict=True):
            if one.kind == "slot":
                new[one.variable][f"slot{one.slot}"] = leaf
            elif one.kind == "other":
                kept.append(leaf)
        return values, new, kept

    def _first(self, values: Sequence[Any]) -> list[Any]:
        """Return the leaves of optax's state before the first step."""
        import jax

        found = self._transformation.init(self._parameters.trained_tree(list(map(to_jax, values))))
        return jax.tree.leaves(found)  # type: ignore[no-any-return]  # jax is Any to mypy here

    def _state(self, steps: _Steps, found: _Step, step: int) -> list[Any]:
        """Return the leaves of optax's state before a step."""
        first = self._first(steps.values) if steps.others is None else None
        others = iter(steps.others or ())
        leaves: list[Any] = []
        for number, one in enumerate(self._leaves):
            if one.kind == "slot":
                slot = found.slots[one.slot, one.variable]
                if first is not None and step == 1:  # not every slot begins with zeros
                    copy_from_jax(slot, first[number])
                leaves.append(slot)
            elif one.kind == "count":
                leaves.append(np.asarray(step - 1, one.dtype))
            elif one.kind == "rate":
                leaves.append(np.asarray(self._rate, one.dtype))
            else:
                leaves.append(next(others) if first is None else first[number])
        return leaves

    def _updated(self, params: Any, gradients: Any, leaves: Any) -> Any:
        """Return parameters and the leaves of the state after a step; both are lists."""
        import jax
        import optax

        tree = self._parameters.trained_tree
        before = tree(params)
        structure = jax.tree.structure(jax.eval_shape(self._transformation.init, before))
        state = jax.tree.unflatten(structure, leaves)
        updates, state = self._transformation.update(tree(gradients), state, before)
        return jax.tree.leaves(optax.apply_updates(before, updates)), jax.tree.leaves(state)


@dataclass(frozen=True)
class _Leaf:
    """A leaf of optax's state: a "slot" of a variable, a "count", the "rate", or an "other"."""

    name: str
    kind: str
    dtype: Any
    slot: int = 0
    variable: int = 0
    first: float = 0.0


def _classified(transformation: Any, parameters: Parameters) -> list[_Leaf]:
    """Return what each leaf of a transformation's state is, in order."""
    import jax
    import optax

    if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
        raise InvalidArgumentError(
            f"optimizer is {transformation!r}; expected a name, such as 'adam', one of nb.optim, or a "
            "GradientTransformation of optax, such as optax.adam(0.001)"
        )
    values = [value for _, value in parameters.variables]
    tree = parameters.trained_tree(values)
    state = transformation.init(tree)
    numbers = parameters.trained_tree(list(range(len(values))))
    owners = optax.tree_utils.tree_map_params(
        transformation, lambda _, number: number, state, numbers, transform_non_params=lambda _: -1
    )
    leaves, counts = [], dict[int, int]()
    found = jax.tree_util.tree_flatten_with_path(state)[0]
    for (path, leaf), owner in zip(found, jax.tree.leaves(owners), strict=True):
        name, dtype = name_of(path), np.dtype(leaf.dtype)
        own = values[owner] if owner >= 0 else None
        if own is not None and leaf.shape == own.shape and dtype == own.dtype:
            slot = counts[owner] = counts.get(owner, -1) + 1
            leaves.append(_Leaf(name, "slot", dtype, slot, owner))
        elif name.endswith(f"hyperparams/{RATE}"):
            leaves.append(_Leaf(name, "rate", dtype, first=float(leaf)))
        elif name.rpartition("/")[2] == "count" and not leaf.shape and dtype.kind in "iu":
            leaves.append(_Leaf(name, "count", dtype))
        else:
            leaves.append(_Leaf(name, "other", dtype))
    if kept_here(leaves):  # such as MultiSteps's mini_step: a count may be of some steps only
        leaves = [replace(one, kind="other") if one.kind == "count" else one for one in leaves]
    return leaves


def kept_here(leaves: Sequence[_Leaf]) -> list[str]:
    """Return the names of leaves that are neither of a parameter, nor follow from step and settings."""
    return [one.name for one in leaves if one.kind == "other" and "hyperparams/" not in one.name]


@dataclass
class _Step:
    """The arrays of a step, for each variable."""

    gradients: list[Array]
    slots: dict[tuple[int, int], Array]


@dataclass
class _Steps:
    """The steps of one replica: its parameters, and the flat arrays of the step that is under way."""

    values: list[Array]
    others: list[Any] | None = None
    """The leaves of optax's state that are neither slots nor counts, from the first step on."""
    _given: list[tuple[Array, Array, dict[str, Array]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shared = [shared(value) for value in self.values]

    def add(self, parameters: Array, gradient: Array, slots: dict[str, Array]) -> None:
        """Add a flat array of parameters, with its gradient and slots."""
        self._given.append((parameters, gradient, slots))

    @property
    def complete(self) -> bool:
        """Whether every parameter is in a flat array that was added."""
        return all(any(place_in(value, one[0]) is not None for one in self._given) for value in self.values)

    def take(self, leaves: Sequence[_Leaf]) -> _Step:
        """Return the gradients and slots of a complete step, and begin the next."""
        given, self._given = self._given, []
        places = []
        for value in self.values:
            found = ((number, place_in(value, flat)) for number, (flat, _, _) in enumerate(given))
            places.append(next((number, at) for number, at in found if at is not None))

        def part(flat: Array, variable: int) -> Array:
            value, at = self.values[variable], places[variable][1]
            return flat[at : at + value.size].reshape(value.shape)

        gradients = [part(given[number][1], i) for i, (number, _) in enumerate(places)]
        slots = {
            (one.slot, one.variable): part(given[places[one.variable][0]][2][f"slot{one.slot}"], one.variable)
            for one in leaves
        }
        return _Step(gradients, slots)


def place_in(array: Array, flat: Array) -> int | None:
    """Return the first element of ``array`` in the memory of a flat array; None if it is not there.

    >>> flat = np.zeros(10)
    >>> place_in(flat[4:6], flat), place_in(np.zeros(2), flat)
    (4, None)
    """
    distance = _address(array) - _address(flat)
    inside = distance >= 0 and distance + array.nbytes <= flat.nbytes and array.dtype == flat.dtype
    return distance // flat.itemsize if inside else None


def _address(array: Any) -> int:
    """Return where the memory of an array of NumPy or CuPy begins."""
    return int(array.ctypes.data if backend_of(array) is np else array.data.ptr)
