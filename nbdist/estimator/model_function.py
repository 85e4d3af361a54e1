"""A model function, recorded for a mode: its training step under a strategy, and its forward pass.

    training = TrainingFunction(model, store, strategy's graph)
    strategy.run(training.step(names), (share, features, labels))      # {"loss": ..., name: ...}
    forward = Forward(model, "predict", values)
    forward(features, None)                                            # {name: array}

The function is called once for each form of its arguments and each set of values that hooks fetch; all of
these recordings have one set of variables, in a `VariableStore`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, NotFoundError, choices
from nbdist.estimator.spec import EstimatorSpec, ModeKeys
from nbdist.graph.backend import Array
from nbdist.graph.compile.program import compile_program
from nbdist.graph.scopes import Graph, default_graph, name_scope
from nbdist.graph.sparse import dense
from nbdist.graph.tensor import Tensor, Variable, placeholder
from nbdist.graph.variables import VariableStore, get_or_create_global_step
from nbdist.summary import SummaryOp
from nbdist.summary.values import Written
from nbdist.train.custom.trace import form_of, tracing, tree_leaves, tree_map

ARGUMENTS = ("features", "labels", "mode", "params", "config")
MOST_PROGRAMS = 64  # of one forward pass


class ModelFunction:
    """Calls the user's function with those of its arguments that it takes.

    - ``function``: ``model_fn(features, labels, mode, params, config)``; all but ``features`` may be left out
    - ``params``: what it gets as ``params``
    - ``config``: what it gets as ``config``
    """

    def __init__(self, function: Callable[..., Any], params: Any, config: Any) -> None:
        if not callable(function):
            raise InvalidArgumentError(
                f"model_fn is a function of (features, labels, mode, params), not {function!r}"
            )
        self.name = getattr(function, "__name__", "model_fn")
        self._function, self._known = function, {"params": params, "config": config}
        self._takes = _arguments("model_fn", function, ARGUMENTS)
        if "features" not in self._takes:
            raise InvalidArgumentError(f"{self.name} takes no argument 'features'; it takes {self._takes}")

    def __call__(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        """Record the model in the default graph, and return its spec."""
        given = {"features": features, "labels": labels, "mode": mode, **self._known}
        try:
            spec = self._function(**{name: given[name] for name in self._takes})
        except Exception as error:
            if labels is None and mode != ModeKeys.PREDICT and "labels" in self._takes:
                error.add_note(
                    f"({self.name} got labels=None: the elements of input_fn's dataset are no pairs)"
                )
            raise
        if not isinstance(spec, EstimatorSpec):
            raise InvalidArgumentError(f"{self.name} returns an EstimatorSpec, and has returned {spec!r}")
        if spec.mode != mode:
            raise InvalidArgumentError(
                f"{self.name} was called with mode {mode!r}, and has returned a spec with {spec.mode!r}"
            )
        return spec


def call_input_fn(input_fn: Callable[..., Any], mode: str, params: Any, config: Any) -> Any:
    """Call an input function with those of ``mode``, ``params`` and ``config`` that it takes."""
    given = {"mode": mode, "params": params, "config": config}
    return input_fn(**{name: given[name] for name in _arguments("input_fn", input_fn, tuple(given))})


def _arguments(what: str, function: Callable[..., Any], known: Sequence[str]) -> list[str]:
    taken = []
    for name, one in inspect.signature(function).parameters.items():
        if one.kind is one.VAR_KEYWORD:
            return list(known)
        if name in known:
            taken.append(name)
        elif one.default is one.empty and one.kind is not one.VAR_POSITIONAL:
            raise InvalidArgumentError(
                f"{what} has an argument {name!r}, and gets only {', '.join(known)}; {choices(name, known)}"
            )
    return taken


@dataclass
class Recording:
    """One recording of a model function: its spec, and its tensors by names that all recordings share."""

    spec: EstimatorSpec
    scope: str
    tensors: dict[str, Tensor]
    summaries: dict[str, tuple[str, Callable[[Any], Written]]]
    """By tag: the name of the summarized tensor, and what makes the written value of the computed one."""

    def name_of(self, tensor: Tensor) -> str:
        """Return a tensor's name below the recording's scope."""
        return tensor.name.removeprefix(self.scope)


class TrainingFunction:
    """The training step of a model function, for ``strategy.run``.

    - ``model``: the function
    - ``store``: the variables of all recordings
    - ``global_step``: what the step has to count
    """

    def __init__(self, model: ModelFunction, store: VariableStore, global_step: Variable) -> None:
        self.model, self.store, self.global_step = model, store, global_step
        self._optimizers: list[Any] = []
        self._steps: dict[tuple[str, ...], Callable[..., Any]] = {}
        self.first: Recording | None = None
        """The first recording: its spec has the hooks."""

    def step(self, names: Sequence[str] = ()) -> Callable[..., Any]:
        """Return ``step(share, features, labels)``, which returns the loss and the tensors of these names.

        ``share`` is which part of the global batch the replica has, one float32; None if replicas train
        independently.
        """
        key = tuple(sorted(set(names)))
        if key not in self._steps:
            self._steps[key] = self._make(key)
        return self._steps[key]

    def _make(self, names: tuple[str, ...]) -> Callable[..., Any]:
        def train_step(share: Any, features: Any, labels: Any) -> dict[str, Any]:
            rules = tracing()
            assert rules is not None
            rules.share, rules.optimizers = share, self._optimizers
            found = record(self.model, self.store, features, labels, ModeKeys.TRAIN)
            if self.first is None:
                self.first = found
            if not any(one.counter is self.global_step for one in rules.trace.applied):
                raise InvalidArgumentError(
                    f"{self.model.name}: train_op counts no step; give minimize the global step: "
                    "optimizer.minimize(loss, global_step=nb.train.get_or_create_global_step())"
                )
            missing = [name for name in names if name not in found.tensors]
            if missing:
                raise InvalidArgumentError(
                    f"{self.model.name} has no tensor {missing[0]!r}; {choices(missing[0], found.tensors)}"
                )
            return {"loss": found.spec.loss, **{name: found.tensors[name] for name in names}}

        return train_step


def record(model: ModelFunction, store: VariableStore, features: Any, labels: Any, mode: str) -> Recording:
    """Record a model function in the default graph, below its current name scope."""
    graph = default_graph()
    scope, begun = graph.scope.name, len(graph.tensors)
    summaries, graph.summaries = graph.summaries, []
    try:
        with store.recording():
            spec = model(features, labels, mode)
        own: list[SummaryOp] = graph.summaries
    finally:
        graph.summaries = summaries
    names = {t.name.removeprefix(scope): t for t in graph.tensors[begun:]}
    tensors = {name: t for name, t in names.items() if not name.startswith("gradients/")}
    found = Recording(spec, scope, tensors, {})
    for one in own:
        for part in one.parts:
            name = found.name_of(part.tensor)
            found.tensors.setdefault(name, part.tensor)  # a variable, which an earlier recording has made
            found.summaries[part.tag.removeprefix(scope)] = name, part.make
    return found


class Forward:
    """A model's forward pass with given values of its variables, on this process.

    - ``model``: the function
    - ``mode``: "eval" or "predict"
    - ``seed``: the graph's
    """

    def __init__(self, model: ModelFunction, mode: str, seed: int = 0) -> None:
        self._model, self._mode = model, mode
        self._given: Mapping[str, Array] = {}
        self._where = ""
        self._graph, self._store = Graph(), VariableStore()
        self._graph.seed = seed
        self._values: dict[Variable, Array] = {}
        self._programs: dict[Any, tuple[Any, Any]] = {}
        self._kept: list[Any] = []

    def __call__(self, features: Any, labels: Any, pick: Callable[[EstimatorSpec], Any]) -> Any:
        """Return what ``pick`` takes of the spec, a pytree of tensors, as arrays for one batch."""
        arrays = [np.asarray(a) for a in tree_leaves((features, labels)) if a is not None]
        for array in arrays:
            if array.dtype.kind not in "biufc":
                raise InvalidArgumentError(
                    f"features and labels are numbers, got {array.dtype}: map them to numbers in input_fn, "
                    "for example with nb.estimator.transform_features(columns)"
                )
        form = form_of(tree_map(lambda one: None if one is None else np.asarray(one), (features, labels)))
        key = (form, tuple(a.shape for a in arrays))
        if key not in self._programs:
            if len(self._programs) >= MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = self._compile(features, labels, pick, [a.shape for a in arrays])
        program, tree = self._programs[key]
        results = iter(program(*arrays))
        return tree_map(lambda t: None if t is None else np.array(next(results)), tree)

    def load(self, values: Mapping[str, Array], where: str) -> None:
        """Give the variables other values, by name; ``where`` says where they are from, for errors."""
        self._given, self._where = values, where
        self._take_values()

    def open(
        self, features: Mapping[str, Array], given_of: Callable[[dict[str, Tensor]], Any]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[Variable, Array]]:
        """Return inputs and predictions by name, for any number of examples, and the values of variables.

        - ``features``: the inputs of one batch by name
        - ``given_of``: returns what the function takes, of the inputs
        """
        with self._graph.as_default():
            get_or_create_global_step()
            with name_scope(self._mode):
                inputs: dict[str, Tensor] = {
                    name: placeholder(array.dtype, (None, *array.shape[1:]), name=name)
                    for name, array in features.items()
                }
                try:
                    found = record(
                        self._model, self._store, given_of(inputs), None, self._mode
                    ).spec.predictions
                except (TypeError, InvalidArgumentError) as error:
                    error.add_note(
                        f"({self._model.name} is exported for batches of any size: it must not use the first "
                        "size of a shape as a number; reshape takes -1)"
                    )
                    raise
        self._take_values()
        outputs = found if isinstance(found, dict) else {"predictions": found}
        return inputs, {name: dense(t) for name, t in outputs.items()}, self._values

    def _compile(
        self,
        features: Any,
        labels: Any,
        pick: Callable[[EstimatorSpec], Any],
        shapes: Sequence[tuple[int, ...]],
    ) -> tuple[Any, Any]:
        feeds: list[Tensor] = []

        def fed(value: Any) -> Any:
            if value is None:
                return None
            array = np.asarray(value)
            feeds.append(placeholder(array.dtype, array.shape, name=f"argument_{len(feeds)}"))
            return feeds[-1]

        with self._graph.as_default():
            get_or_create_global_step()
            with name_scope(self._mode):
                fed_features, fed_labels = tree_map(fed, (features, labels))
                spec = record(self._model, self._store, fed_features, fed_labels, self._mode).spec
                tree = tree_map(lambda t: t if t is None else dense(t), pick(spec))
        self._take_values()
        wanted = [t for t in tree_leaves(tree) if t is not None]
        return compile_program(wanted, feeds=feeds, shapes=shapes, values=self._values), tree

    def _take_values(self) -> None:
        named = {**self._store.all()}
        for variable in self._graph.variables():
            if variable.name == "global_step":
                named["global_step"] = variable
        for name, variable in named.items():
            if name not in self._given:
                raise NotFoundError(lacks(self._model, name, self._where))
            value = self._given[name]
            if value.shape != variable.shape:
                raise InvalidArgumentError(
                    f"variable {name!r} has the shape {variable.shape}, and {value.shape} in {self._where}"
                )
            if variable in self._values:  # programs have this array
                np.copyto(self._values[variable], value)
            else:
                self._values[variable] = np.array(value, variable.dtype)


def lacks(model: ModelFunction, variable: str, where: str) -> str:
    """Return why a checkpoint does not fit a model function: it has no value for a variable."""
    return (
        f"{model.name} has a variable {variable!r}, which {where} lacks: it was made by another model_fn, "
        "or with other params"
    )
