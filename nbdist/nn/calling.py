"""Calls of models on tensors: the model's layers are added to another graph, with variables there.

In a strategy's graph the variables *are* the model's weights: the model
fetches their newest values whenever it is read.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.op import show
from nbdist.graph.scopes import Graph, Scope, default_graph, name_scope
from nbdist.graph.sparse import dense
from nbdist.graph.tensor import Tensor, Variable, placeholder
from nbdist.nn import precision
from nbdist.nn.layers import Training
from nbdist.nn.saving import save
from nbdist.train.context import current
from nbdist.train.custom.trace import Draw, tracing

if TYPE_CHECKING:
    from nbdist.nn.model import Model
    from nbdist.nn.network import Network


@dataclass(frozen=True)
class ModelCopy:
    """A model in one graph: variables of each layer by name, and what its random numbers follow from."""

    held: list[dict[str, Variable]]
    seed: int
    training: int

    @property
    def variables(self) -> list[Variable]:
        """All of them, in the order of the layers."""
        return [v for ones in self.held for v in ones.values()]


class ModelCalls:
    """The graphs that a model was called in, for as long as it keeps the weights that it has."""

    def __init__(self) -> None:
        self._recorded: dict[Graph, ModelCopy] = {}

    def call(self, model: Model, x: Any, training: bool) -> Tensor:
        """Record the layers, and the new values of their states."""
        value: Tensor = dense(x)
        network = _network(model, value)
        found, trace = self._in(model, network, value.graph), tracing()
        if value.dtype != network.x.dtype:
            value = value.astype(network.x.dtype)
        # Of no examples there is no mean, nor anything to drop.
        if (
            not training
            or value.shape[0] == 0
            or not any(layer.differs_in_training for layer in model.layers)
        ):
            for layer, weights in zip(model.layers, found.held, strict=True):
                with name_scope(type(layer).__name__.lower()):
                    value = precision.call(layer, value, weights, network.precision)
            return precision.output(value, network.precision)
        if trace is None:
            raise FailedPreconditionError(
                "model(x, training=True): layers draw and keep averages in a function that strategy.run "
                "runs; call it there, or with training=False"
            )
        if model not in trace.trace.draws:
            fed = placeholder(np.int64, (4,), name="draw")
            trace.trace.draws[model] = Draw(fed, found.seed, found.training)
        context = Training(trace.trace.draws[model].fed)
        for number, (layer, weights) in enumerate(zip(model.layers, found.held, strict=True)):
            context.number = number
            with name_scope(type(layer).__name__.lower()):
                value = precision.call(layer, value, weights, network.precision, context)
        for state, moved in context.updates.items():
            assert isinstance(state, Variable)
            state.assign(moved)
        return precision.output(value, network.precision)

    def variables(self, model: Model) -> list[Variable]:
        """Return the variables of the graph that is recorded now, or of the only one there is."""
        network, graph = model.network, default_graph()
        if network is not None and (tracing() is not None or graph in self._recorded):
            return self._in(model, network, graph).variables
        if len(self._recorded) == 1:
            return next(iter(self._recorded.values())).variables
        raise FailedPreconditionError(
            f"the model has variables in {len(self._recorded)} graphs; call it on a tensor, and ask where "
            "that graph is recorded: in the function that strategy.run runs"
        )

    @property
    def is_traced(self) -> bool:
        """Whether loops of one's own train the model's variables."""
        return any(graph.owner is not None for graph in self._recorded)

    def refresh(self) -> None:
        """Fetch the newest weights."""
        for graph in self._recorded:
            if graph.owner is not None and graph.rules is None:
                graph.owner.refresh()

    def finish(self) -> None:
        """Fetch the final weights, before another training changes them."""
        for graph in self._recorded:
            if graph.owner is not None:
                graph.owner.finish()

    def _in(self, model: Model, network: Network, graph: Graph) -> ModelCopy:
        store = graph.store
        first = store is not None and store.first_call(self)
        if graph in self._recorded:
            if store is not None and first:  # other models of this recording get their names of before
                for layer in model.layers:
                    store.layer_scope(type(layer).__name__.lower())
            return self._recorded[graph]
        self.finish()  # where it was trained before: there is one that has its newest weights
        held: list[dict[str, Variable]] = []
        arrays = iter(model.weights)
        for layer, ones in zip(model.layers, network.held, strict=True):
            kind = type(layer).__name__.lower()
            with _layer_scope(graph, kind):
                held.append(
                    {
                        name: _variable(graph, name, v, next(arrays), v.trainable or v in network.frozen)
                        for name, v in ones.items()
                    }
                )
        model.trainings += 1
        current().note_fit(model)
        found = ModelCopy(held, seed_of(model.seed), model.trainings)
        if graph.owner is not None and store is None:
            graph.owner.host_values.update(zip(found.variables, model.weights, strict=True))
            graph.owner.savers.append((found.variables, partial(_save, weakref.ref(model))))
        self._recorded[graph] = found
        return found


def _save(model: weakref.ref[Model], weights: Sequence[np.ndarray[Any, Any]], path: Path) -> bool:
    """Write a model with these weights; whether it is still there."""
    found = model()
    if found is not None:
        save(found, path, weights)
    return found is not None


def predict(model: Model, x: Any, training: bool) -> Any:
    """Return the predictions for an array."""
    if training:
        raise InvalidArgumentError(
            "model(array, training=True): a model is trained by fit, or on tensors, in a function that "
            "strategy.run(function, args) runs"
        )
    return model.predict(x)


def seed_of(wanted: int | None) -> int:
    """Return the seed of a training: the model's, the run's, or a random one."""
    seed = given_seed(wanted)
    return int(np.random.default_rng(seed).integers(1 << 62)) if seed is None else int(seed)


def given_seed(wanted: int | None) -> int | None:
    """Return a model's own seed, or that of the model function that makes it, or the run's if it has one."""
    if wanted is not None:
        return wanted
    graph = default_graph()
    return current().seed if graph.store is None else graph.store.model_seed(graph.seed)


@contextlib.contextmanager
def _layer_scope(graph: Graph, kind: str) -> Iterator[None]:
    """The scope of a layer's variables: a new one in the graph, or that of an earlier recording."""
    if graph.store is not None:
        with graph.within(graph.store.layer_scope(kind)):
            yield
    else:
        with graph.within(Scope()), name_scope(kind):
            yield


def _variable(
    graph: Graph, name: str, like: Variable, value: np.ndarray[Any, Any], is_weight: bool
) -> Variable:
    # Each replica moves states by its own part of the batch; the client gets the first one's, as in fit.
    own = {} if is_weight else {"aggregation": "only_first_replica", "synchronization": "on_read"}
    new = partial(Variable, value, trainable=like.trainable, name=name, **own)
    found = new() if graph.store is None else graph.store.get(name, value.shape, value.dtype, new)
    assert isinstance(found, Variable)
    found.dimensions = like.dimensions
    return found


def example_shape(x: Any) -> tuple[int, ...]:
    """Return the shape of one example of a batch, or raise if it is not known."""
    if not x.shape or None in x.shape[1:]:
        raise InvalidArgumentError(
            f"the model takes a batch of examples of one known shape, got {show(x.shape)}"
        )
    return tuple(int(n or 0) for n in x.shape[1:])


def _network(model: Model, x: Tensor) -> Network:
    network = model.network
    assert network is not None
    if x.shape[1:] != network.shape:
        raise InvalidArgumentError(
            f"the model takes examples of shape {show(network.shape)}, got a batch of {show(x.shape)}"
        )
    return network
