"""A model's graph: placeholders, variables, predictions, loss, metrics, gradients; and its programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from math import prod
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import all_to_host, backend_of, scoped_device
from nbdist.graph.compile.gathered import Gathered
from nbdist.graph.compile.program import Program, compile_program, value_order
from nbdist.graph.compile.specs import Specs
from nbdist.graph.gradients import Gradient, gradients
from nbdist.graph.op import Shape
from nbdist.graph.sparse import IndexedSlices, dense
from nbdist.graph.tensor import Graph, Placeholder, Tensor, Variable, name_scope, placeholder
from nbdist.nn import losses, precision
from nbdist.nn.layers import BatchNorm, Layer, Training
from nbdist.nn.measures import Measure, one_per_example
from nbdist.nn.stages import Pipeline
from nbdist.optim.precision import BFLOAT16, LossScale
from nbdist.train.context import current
from nbdist.train.trainable import Gathers, ParameterReads, Parts, ProgramSpec, Shapes, Trainable

Array: TypeAlias = np.ndarray[Any, Any]
FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int64)


class Network:
    """Layers as a graph, for inputs of one shape (without the batch axis).

    ``predicted`` is what the model gives; ``trained`` is what it gives in training, the same tensor if no
    layer makes a difference. ``variables`` holds weights and states in the order of the layers; ``drawn`` are
    their initial values. Without ``rng`` the values are not drawn, and take no memory. ``precision`` is the
    policy by which layers compute. With "mixed_bfloat16" they compute in float32, or with ``xla`` in
    bfloat16: then only XLA can run the graph.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        shape: Shape,
        rng: np.random.Generator | None,
        pipeline: Pipeline = Pipeline(),  # noqa: B008 (frozen)
        precision: str = "float32",
        xla: bool = False,
    ) -> None:
        self.precision = precision
        self.layers = layers
        self._computes_in = "float32" if precision == BFLOAT16 and not xla else precision
        self.drawn: list[Array] = []
        self.graph, self.shape, self.pipeline = Graph(), shape, pipeline
        self._made_by: list[list[Tensor]] = [[] for _ in layers]
        self.variables: list[Variable] = []
        self.held: list[dict[str, Variable]] = []
        """Weights and states of each layer, by name."""
        self.frozen: list[Variable] = []
        """The weights of layers with ``trainable = False``."""
        self.trains = [layer.trainable for layer in layers]
        self.outputs: list[Shape] = []
        self.counts: list[int] = []
        with self.graph.as_default():
            dtype = np.dtype(layers[0].input_dtype) if layers else FLOAT
            self.x = placeholder(dtype, (None, *shape), name="x")
            value: Tensor = self.x
            last: str | None = None  # the name of the value's last dimension
            for number, layer in enumerate(layers):
                before = value
                with name_scope(type(layer).__name__.lower()), self._noted(number):
                    self.held.append(self._variables_of(layer, value.shape[1:], rng))
                    if self.held[-1] and any(layer is other for other in layers[:number]):
                        raise InvalidArgumentError(
                            f"{layer!r} stands twice in the list of layers, and layers have weights of their "
                            "own: write a second one in its place. One kernel for two places takes variables "
                            "and strategy.run, or Keras (nb.frameworks.keras)"
                        )
                    value = self._call(layer, value, self.held[-1])
                made, last = last, _last_dimension(layer, before, value, last)
                for v in self.held[-1].values():
                    v.dimensions = _dimensions(v, (before.shape[-1], made), (value.shape[-1], last))
                self.outputs.append(value.shape)
            self.predicted = self._output(value)
            self.draw = placeholder(INT, (4,), name="draw")
            self.training = Training(self.draw)
            self.trained = self._train(layers, self.held)
        self.devices_needed = self._spread(layers)

    def _variables_of(
        self, layer: Layer, shape: Shape, rng: np.random.Generator | None
    ) -> dict[str, Variable]:
        weights, states = layer.build(shape, rng), layer.states(shape)
        made: dict[str, Variable] = {}
        for name, initial in (weights | states).items():
            # The graph has shape and dtype only: the model holds the one copy of the values.
            like = np.broadcast_to(np.zeros((), initial.dtype), initial.shape)
            made[name] = Variable(like, trainable=name in weights and layer.trainable, name=name)
            if name in weights and not layer.trainable:
                self.frozen.append(made[name])
            if rng is not None:
                self.drawn.append(np.require(initial, requirements=["C", "W"]))
        self.variables.extend(made.values())
        precision.check_weights(layer, made, self.precision)
        self.counts.append(sum(prod(n or 0 for n in v.shape) for v in made.values()))
        return made

    def _train(self, layers: Sequence[Layer], held: Sequence[dict[str, Variable]]) -> Tensor:
        if not any(layer.differs_in_training for layer in layers):
            return self.predicted
        value: Tensor = self.x
        with name_scope("training"):
            for number, (layer, weights) in enumerate(zip(layers, held, strict=True)):
                self.training.number = number
                with self._noted(number):
                    value = self._call(layer, value, weights, self.training)
        return self._output(value)

    def _call(
        self, layer: Layer, x: Tensor, weights: dict[str, Variable], training: Training | None = None
    ) -> Tensor:
        return precision.call(layer, x, weights, self._computes_in, training)

    def _output(self, value: Tensor) -> Tensor:
        return precision.output(value, self._computes_in)

    @contextmanager
    def _noted(self, number: int) -> Iterator[None]:
        """Take note of what a layer adds to the graph."""
        begun = len(self.graph.tensors)
        yield
        self._made_by[number] += self.graph.tensors[begun:]

    def _spread(self, layers: Sequence[Layer]) -> int:
        """Say on which of a replica's devices each layer is; return how many devices that takes."""
        split = max((layer.shards for layer in layers), default=1)
        if self.pipeline.number == 1:
            return split
        if split > 1:
            raise InvalidArgumentError("a model has stages= or layers with split=, not both")
        # Multiplications, as far as weights tell: each weight is used once for every place of the output.
        places = [prod(n or 1 for n in shape[1:-1]) for shape in self.outputs]
        costs = [1 + count * n for count, n in zip(self.counts, places, strict=True)]
        for stage, made in zip(self.pipeline.assign(costs), self._made_by, strict=True):
            for t in made:
                t.device = f"/task:{stage}"
        return self.pipeline.number

    @property
    def trainable(self) -> list[Variable]:
        """The weights: what the optimizer changes."""
        return [v for v in self.variables if v.trainable]

    @property
    def normalises_examples(self) -> bool:
        """Whether a trained BatchNorm has one number of each example and channel to take a mean over."""
        return any(
            isinstance(layer, BatchNorm) and layer.trainable and len(shape) == 2
            for layer, shape in zip(self.layers, self.outputs, strict=True)
        )

    def by_variable(self, arrays: Sequence[Array]) -> dict[Variable, Array]:
        """Return the array of each variable, given all in order."""
        return dict(zip(self.variables, arrays, strict=True))

    def prediction(self, rows: int, values: Sequence[Array]) -> Program:
        """Return ``program(x) -> (predictions,)`` for batches of ``rows``."""
        return compile_program(
            [self.predicted],
            feeds=[self.x],
            shapes=[(rows, *self.shape)],
            values=self.by_variable(values),
        )


def _last_dimension(layer: Layer, before: Tensor, after: Tensor, name: str | None) -> str | None:
    """Return the name of the last dimension of a layer's output: its own, or that of what it leaves alone."""
    if layer.dimension is not None:
        return layer.dimension
    mixes = "dimension" in layer.settings or len(before.shape) != len(after.shape)
    return None if mixes or before.shape[-1] != after.shape[-1] else name


def _dimensions(
    variable: Variable, inputs: tuple[int | None, str | None], outputs: tuple[int | None, str | None]
) -> list[str | None]:
    """Return the names of a weight's dimensions: the last is of the outputs, the one before of the inputs."""
    names: list[str | None] = [None] * len(variable.shape)
    for at, (size, name) in ((-1, outputs), (-2, inputs)):
        if len(names) >= -at and variable.shape[at] == size:
            names[at] = name
    return names


@dataclass
class ResidentStates:
    """A model's states on a GPU, while it is trained there."""

    device: str
    arrays: dict[Variable, Any]
    newest: bool = False
    """Whether a step has changed them since they were last on the host."""


class Objective(Trainable):
    """A network with a loss and metrics: what the training loop trains.

    ``measured`` are metrics with what they are called. ``seed`` and ``training`` are what random numbers in
    layers follow from, beside step and example. With a ``loss_scale`` gradients are
    those of the loss times the scale, divided by it.
    """

    def __init__(
        self,
        network: Network,
        weights: list[Array],
        loss: Measure,
        measured: Sequence[tuple[str, Measure]],
        loss_scale: LossScale | None = None,
    ) -> None:
        self.network, self.loss, self.loss_scale = network, loss, loss_scale
        self._weights, self._measured = weights, measured
        self.metric_names = [name for name, _ in measured]
        self.devices_needed = network.devices_needed
        held = network.by_variable(weights)
        self.variables = [(v.name, held[v]) for v in network.trainable]
        self.states = {v: held[v] for v in network.variables if not v.trainable}
        self._resident: ResidentStates | None = None
        self.seed, self.training = 0, 0
        self.fixed = [held[v] for v in network.frozen]
        if not self.variables:
            have = "all layers of the model are frozen" if network.frozen else "the model has no weights"
            raise InvalidArgumentError(f"{have}: there is nothing to train")
        for name, metric in measured:
            if metric.sparse != loss.sparse and not metric.any_labels:
                kind = "class numbers" if loss.sparse else "rows like the predictions"
                raise InvalidArgumentError(
                    f"metric {name!r} does not fit {loss.name}, whose labels are {kind}"
                )
            losses.check_threshold(loss, name, metric, network.predicted)
        with network.graph.as_default():
            predicted = network.predicted
            labels: Shape = predicted.shape[:-1] if loss.sparse else predicted.shape
            self.y: Placeholder = placeholder(INT if loss.sparse else FLOAT, labels, name="y")
            self.scale = placeholder(FLOAT, (), name="scale")
            self._loss: Tensor = one_per_example(loss(self.y, network.trained)).sum() * self.scale
            self._metrics = [metric(self.y, network.trained).mean() for _, metric in measured]
            self._sums = [
                one_per_example(m(self.y, predicted)).sum() for m in (loss, *dict(measured).values())
            ]
            like = np.broadcast_to(np.float32(0), ())
            self._loss_scale = (
                None if loss_scale is None else Variable(like, trainable=False, name="loss_scale")
            )
            self._found = self._of_loss(network.trainable)
            self._gradients = [dense(g) for g in self._found]
        self._tables = tuple(
            i
            for i, g in enumerate(self._found)
            if isinstance(g, IndexedSlices) and self._of_examples(g.indices)
        )
        self._has_known_range = losses.activation_of(network.predicted) is not None
        """Whether the last layer says which values predictions have; else the first batch does."""
        self.draws = any(one is network.draw for one in value_order([self._loss]))
        self.to_check = math.inf
        """How many batches are still to be looked at closely: all of the first pass, for labels are data."""

    @property
    def dimensions(self) -> list[tuple[str | None, ...]]:
        """The names of the dimensions of each weight."""
        return [v.dimensions for v in self.network.trainable]

    @property
    def arrays(self) -> list[Array]:
        """The weights, which training changes."""
        return [array for _, array in self.variables]

    def all_arrays(self, values: Sequence[Array]) -> list[Array]:
        """Return weights and states in the order of the layers, given the weights."""
        self.fetch_states()
        held = dict(zip(self.network.trainable, values, strict=True)) | self.states
        return [held[v] for v in self.network.variables]

    def origin(self) -> list[int]:
        """Return the seed, and the number of the training."""
        return [self.seed, self.training]

    def draw_from(self, origin: Sequence[int]) -> None:
        """Draw as a training did that had this origin."""
        self.seed, self.training = origin

    def twin(self) -> Objective:
        """Return the same for another replica: it has moving averages and such of its own."""
        twin = copy(self)
        twin._resident = None
        twin.states = {v: array.copy() for v, array in self.states.items()}
        twin.loss_scale = None if self.loss_scale is None else self.loss_scale.twin()
        return twin

    def remember(self) -> Callable[[], object]:
        """Return what gives states the values back that they have now."""
        resident = self._resident
        there = resident if resident is not None and resident.newest else None
        arrays = self.states if there is None else there.arrays
        frozen = set(self.network.frozen)
        before = {v: array.copy() for v, array in arrays.items() if v not in frozen}

        def restore() -> None:
            for v, array in before.items():
                np.copyto(arrays[v], array)
            if self._resident is not None:
                self._resident.newest = there is not None

        return restore

    def draw(self, step: int, first: int) -> Array:
        """Return the four numbers that random numbers of a step follow from."""
        return np.array([self.seed, self.training, step, first], np.int64)

    @property
    def tables(self) -> tuple[int, ...]:
        """Numbers of the weights used only through row lookups with indices computed from the examples."""
        return self._tables

    @property
    def parameter_reads(self) -> ParameterReads:
        """What the loss and the metrics read, and what only the gradients do, whatever a batch's shape."""
        numbers: dict[Tensor, int] = {v: number for number, v in enumerate(self.network.trainable)}
        specs, roots = Specs({}), dict[Tensor, Tensor]()
        first = set(value_order([self._loss, *self._metrics]))
        forward, backward = set[int](), set[int]()
        for t in value_order([self._loss, *self._metrics, *self._gradients]):
            roots[t] = roots[t.inputs[0]] if t.op is not None and t.op.view and t.inputs else t
            read = {numbers[roots[i]] for i in specs.reads(t) if roots.get(i) in numbers}
            (forward if t in first else backward).update(read)
        return ParameterReads(frozenset(forward), frozenset(backward))

    def lookups(self, shapes: Shapes) -> Callable[..., tuple[Array, ...]]:
        """Return ``program(x, y)``, which returns the row numbers that a batch looks up in each table."""
        wanted = [self._rows_of(i).indices for i in self._tables]
        program = compile_program(wanted, feeds=[self.network.x], shapes=shapes[:1])
        return lambda x, y: program(x)

    def _rows_of(self, number: int) -> IndexedSlices:
        found = self._found[number]
        assert isinstance(found, IndexedSlices)
        return found

    def _of_examples(self, indices: Tensor) -> bool:
        """Whether a tensor is computed from the examples and constants alone."""
        return not any(
            isinstance(t, (Variable, Placeholder)) and t is not self.network.x for t in value_order([indices])
        )

    def _of_loss(self, variables: list[Variable]) -> list[Gradient]:
        scale = self._loss_scale
        found = gradients(self._loss if scale is None else self._loss * scale, variables)
        missing = [v.name for v, g in zip(variables, found, strict=True) if g is None]
        if missing:
            raise InvalidArgumentError(f"the loss does not depend on {', '.join(missing)}")
        inverse = None if scale is None else 1 / scale
        return [g if inverse is None else g * inverse for g in found if g is not None]

    def training_program(self, spec: ProgramSpec) -> Callable[..., tuple[Array, ...]]:
        """Return ``program(x, y, scale, [draw,] *gradients) -> (loss, *metrics, *rows)``; it moves states."""
        if self.network.precision == BFLOAT16:
            raise InvalidArgumentError(
                f"precision {BFLOAT16!r} is for --strategy tpu, which XLA compiles: NumPy has no bfloat16. "
                "Use 'mixed_float16', or train with nb.distribute.TPUStrategy()"
            )
        if spec.shapes[0][0] == 1 and self.network.normalises_examples:
            current().note_single_example("BatchNorm")
        xp, ready = backend_of(spec.values[0]), spec.ready
        states = self._states_of(xp)
        held = dict(zip(self.network.trainable, spec.values, strict=True)) | states
        if self._loss_scale is not None and self.loss_scale is not None:
            held[self._loss_scale] = self.loss_scale.array(xp)
        updates = self.network.training.updates
        feeds = [self.network.x, self.y, self.scale, *([self.network.draw] if self.draws else [])]
        # What is asked for first is computed first: where gradients are waited for, the last layer's.
        numbered = [(i, g) for i, g in enumerate(self._gradients) if i not in spec.tables]
        wanted = [g for _, g in (numbered if ready is None else numbered[::-1])]
        rows = [self._rows_of(i) for i in spec.tables]
        program = compile_program(
            [self._loss, *self._metrics, *(part for one in rows for part in (one.values, one.indices))],
            feeds=feeds,
            shapes=[*spec.shapes, (), *([(4,)] if self.draws else [])],
            values=held,
            into=[*wanted, *updates.values()],
            xp=xp,
            capture=None,
            written=None
            if ready is None
            else {g: partial(ready, number) for number, g in reversed(numbered)},
            gathered=None if spec.gathers is None else self._gathered(spec.gathers),
        )
        if not updates and ready is None:
            return program
        fed, forward = len(feeds), 1 if ready is None else -1
        # A state is read before it is written: the last call of its update is the only one that writes it.
        targets = [states[v] for v in updates if isinstance(v, Variable)]

        def stateful(*arrays: Array) -> tuple[Array, ...]:
            if xp is not np:
                self._bring_states()
            return program(*arrays[:fed], *arrays[fed:][::forward], *targets)

        return stateful

    def _gathered(self, gathers: Gathers) -> Gathered:
        units: dict[Tensor, int] = {
            v: gathers.units[number] for number, v in enumerate(self.network.trainable)
        }
        return Gathered(units, gathers.need, gathers.release)

    def _states_of(self, xp: ModuleType) -> dict[Variable, Array]:
        """Return the states on the device that this thread works for; a GPU's are those of all programs."""
        if xp is np:
            return self.states
        if self._resident is None or self._resident.device != scoped_device():
            self.fetch_states()
            with_memory = {v: xp.empty(array.shape, array.dtype) for v, array in self.states.items()}
            self._resident = ResidentStates(scoped_device(), with_memory)
        self._bring_states()
        return self._resident.arrays

    def _bring_states(self) -> None:
        """Have the GPU's states be the newest, before a step changes them."""
        resident = self._resident
        if resident is not None and not resident.newest:
            for v, array in resident.arrays.items():
                array.set(self.states[v])
            resident.newest = True

    def fetch_states(self) -> None:
        """Bring states that a GPU has changed to the host, where they may be read and changed."""
        resident = self._resident
        if resident is not None and resident.newest:
            for v, array in zip(resident.arrays, all_to_host(list(resident.arrays.values())), strict=True):
                np.copyto(self.states[v], array)
            resident.newest = False

    def parts(self, xla: bool = False) -> Parts:
        """Return the step as tensors."""
        if self.network.precision == BFLOAT16 and xla and not self.network.graph.half:
            network = self.network
            other = Network(network.layers, network.shape, None, network.pipeline, BFLOAT16, xla=True)
            return Objective(other, self._weights, self.loss, self._measured).parts(xla=True)
        if self.network.precision != "float32" and not xla:
            raise InvalidArgumentError(
                f"in-graph replicas compute in float32, and the model has "
                f"precision={self.network.precision!r}: drop it, or take another strategy, between-graph"
            )
        scale = self.loss_scale
        updates = self.network.training.updates
        pipeline = self.network.pipeline
        return Parts(
            x=self.network.x,
            y=self.y,
            scale=self.scale,
            draw=self.network.draw if self.draws else None,
            loss=self._loss,
            metrics=list(self._metrics),
            weights=self.network.trainable,
            values=self.arrays,
            gradients=list(self._gradients),
            classes=self.network.predicted.shape[-1] if self.loss.sparse else None,
            check_labels=self._check_labels,
            states=dict(self.states),
            updates={v: new for v, new in updates.items() if isinstance(v, Variable)},
            loss_scale=None if scale is None or self._loss_scale is None else (self._loss_scale, scale),
            devices_needed=self.devices_needed,
            stages=pipeline.number,
            micro_batches=pipeline.micro_batches,
            schedule=pipeline.schedule,
        )

    def evaluation_program(self, shapes: Shapes, values: Sequence[Array]) -> Program:
        """Return ``program(x, y) -> (sum of losses, *sums of metrics)``."""
        xp = backend_of(values[0])
        states = self._states_of(xp)
        return compile_program(
            self._sums,
            feeds=[self.network.x, self.y],
            shapes=list(shapes),
            values=dict(zip(self.network.trainable, values, strict=True)) | states,
            xp=xp,
        )

    def prepare(self, batch: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return (x, y) in the dtypes of the graph; ``to_check`` of them are looked at closely."""
        if self.to_check > 0:
            self.to_check -= 1
            self.check(batch)
        x, y = batch
        if x.dtype is not self.network.x.dtype:
            x = x.astype(self.network.x.dtype)
        if y.dtype is not self.y.dtype:
            y = y.astype(self.y.dtype)
        if y.ndim < self.y.ndim:
            y = y[..., None]
        return x, y

    def check_spec(self, spec: Any) -> None:
        """Raise if the shapes or dtypes of a dataset, known before its batches are made, do not fit."""
        parts = spec if isinstance(spec, tuple) else (spec,)
        if len(parts) == 2 and all(hasattr(part, "shape") for part in parts):
            self._check_examples(parts[0].shape)

    def _check_examples(self, shape: Shape) -> None:
        if shape[1:] != self.network.shape and None not in shape[1:]:
            raise InvalidArgumentError(
                f"the model takes examples of shape {self.network.shape}, got {shape[1:]}"
            )

    def check(self, batch: tuple[Array, ...]) -> None:
        """Raise InvalidArgumentError if a batch is not (x, y) as the model takes them."""
        if len(batch) != 2:
            raise InvalidArgumentError(
                f"training takes batches of (x, y), got {len(batch)} array{'s' * (len(batch) != 1)}; "
                "use Dataset.from_arrays(x, y).batch(...)"
            )
        x, y = batch
        self._check_examples(x.shape)
        if len(x) != len(y):
            raise InvalidArgumentError(f"{len(x)} examples come with {len(y)} labels")
        self._check_labels(y)
        if not self._has_known_range and len(x):
            self._has_known_range = True
            found = self.network.prediction(len(x), self._weights)(x.astype(self.network.x.dtype))
            losses.check_probabilities(self.loss, found[0])

    def _check_labels(self, y: Array) -> None:
        predicted = self.network.predicted
        one_output = not self.loss.sparse and predicted.shape[-1] == 1 and y.ndim == predicted.ndim - 1
        losses.check_labels(self.loss, y[..., None] if one_output else y, predicted)
