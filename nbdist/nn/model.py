"""Models: compile, fit, evaluate, predict, as in Keras.

model = Sequential([Dense(100, activation="sigmoid"), Dense(10, activation="softmax")])
model.compile(optimizer=SGD(0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(Dataset.from_arrays(x, y).shuffle(len(x)).batch(100), epochs=5)
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nbdist import optim
from nbdist.data import Dataset
from nbdist.data.rows import read_only
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.backend import all_to_host, backend_of, to_device
from nbdist.graph.compile.program import Program
from nbdist.graph.composite import Composite
from nbdist.graph.op import show
from nbdist.graph.scopes import Graph
from nbdist.graph.serialize.onnx import write_onnx
from nbdist.graph.tensor import Tensor, Variable
from nbdist.keras_arguments import KerasAttributes, keras_arguments
from nbdist.nn import batches, calling, losses, saving
from nbdist.nn.layers import Layer, check_layers, layer_from_config
from nbdist.nn.measures import Measure
from nbdist.nn.metrics import get as get_metric
from nbdist.nn.metrics import label as metric_label
from nbdist.nn.network import Network, Objective
from nbdist.nn.stages import Pipeline
from nbdist.optim.precision import LossScale, LossScaleOptimizer, checked_precision, unscaled
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import MODEL, current, use_here
from nbdist.train.custom.api import scoped
from nbdist.train.fit_arguments import fit_counts, own_callbacks
from nbdist.train.loop import train

Array: TypeAlias = np.ndarray[Any, Any]
UNREAD = 100  # batches of an evaluation on a GPU whose sums are read together


class Model(KerasAttributes):
    """Layers that are trained together, in the process that makes the model: the notebook or a task.

    Weights are made at the first use, for the shape of the data, or by :meth:`build`.

    - ``layers``: a list of layers; the output of each is the input of the next. A layer with weights has one
      place in one model. With ``layer.trainable = False`` its weights stay, from the next ``fit`` on
    - ``seed``: fixes the initial weights, a whole number of 0 or more; None takes the run's seed
    - ``stages``: the number of tasks over which the layers are spread where the model is trained in-graph, or
      a list with the number of layers of each
    - ``micro_batches``: the parts into which each batch is cut, so that stages work at the same time; None is
      twice the number of stages
    - ``schedule``: the order of their work, "gpipe" (Huang et al. 2019) or "1f1b" (Narayanan et al. 2019)
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        seed: int | None = None,
        *,
        stages: int | Sequence[int] = 1,
        micro_batches: int | None = None,
        schedule: str = "gpipe",
    ) -> None:
        self.layers = check_layers(layers)
        self.pipeline = Pipeline.of(stages, micro_batches, schedule)
        self.seed = seed
        self.optimizer: optim.Optimizer | None = None
        self.loss: str | dict[str, Any] | None = None
        """The loss by name, with its settings if one is unusual."""
        self.precision: str | None = None
        """The policy that ``compile`` was given; None for the run's."""
        self.metrics: list[str] = []
        """The names of the metrics."""
        self._loss: Measure | None = None
        self._measured: list[tuple[str, Measure]] = []
        self.trainings = 0
        """How often it was trained: random numbers of a training follow from that."""
        self._weights: list[Array] = []
        self._calls = calling.ModelCalls()
        self._made_in = scoped()
        self._network: Network | None = None
        self._objective: Objective | None = None
        self._predictors: dict[int, Program] = {}

    def build(self, input_shape: Sequence[int]) -> Model:
        """Make the weights for examples of ``input_shape`` (without the batch axis); returns the model."""
        self._require_room(input_shape)
        network = self.network_for(input_shape, np.random.default_rng(calling.given_seed(self.seed)))
        own(self, [layer for layer, held in zip(self.layers, network.held, strict=True) if held])
        self.take(network, network.drawn)
        return self

    def _require_room(self, input_shape: Sequence[int]) -> None:
        """Raise ResourceExhaustedError, before values are drawn, if the weights are over the task's limit."""
        task = current().world.task
        store = None if task is None else task.server.sessions.store
        if store is None or store.limit is None:
            return
        sizes = [
            (v, prod(n or 0 for n in v.shape) * v.dtype.itemsize)
            for v in self.network_for(input_shape).variables
        ]
        if not sizes:
            return
        largest, most = max(sizes, key=lambda one: one[1])
        store.require(
            sum(size for _, size in sizes),
            f"the model's weights (the largest is {largest.name} {largest.shape} with {most:,} bytes)",
        )

    def network_for(self, input_shape: Sequence[int], rng: np.random.Generator | None = None) -> Network:
        """Return the layers as a graph for examples of ``input_shape``, with values of ``rng``, if given."""
        shape = tuple(int(n) for n in input_shape)
        return Network(self.layers, shape, rng, self.pipeline, current().precision_of(self.precision))

    def take(self, network: Network, weights: list[Array]) -> None:
        """Set the weights to ``weights``, those of a ``network`` of these layers, without a copy."""
        self._network, self._weights = network, list(weights)
        network.drawn = []
        self._calls = calling.ModelCalls()
        self._objective = None
        self._predictors = {}

    @property
    def trainable(self) -> bool:
        """Whether training changes any weights; setting it sets ``trainable`` of all layers, as in Keras."""
        return any(layer.trainable for layer in self.layers)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for layer in self.layers:
            layer.trainable = bool(value)

    @property
    def compiled_loss(self) -> Measure | None:
        """The loss that the model is compiled with; None before `compile`."""
        return self._loss

    @property
    def compiled_metrics(self) -> dict[str, Measure]:
        """The metrics that the model is compiled with, by name."""
        return dict(self._measured)

    @keras_arguments("compile")
    def compile(
        self,
        optimizer: str | optim.Optimizer = "sgd",
        loss: str | dict[str, Any] | Measure = "sparse_categorical_crossentropy",
        metrics: Sequence[str | dict[str, Any] | Measure] = (),
        precision: str | None = None,
    ) -> None:
        """Choose how to train.

        - ``optimizer``: one of ``nb.optim``, or its name, such as "adam". Several models may have the
          same one: it is settings, and each ``fit`` begins with a state of its own (moments, steps)
        - ``loss``: one of ``nb.nn.losses``, its name, such as "mse", or its config. Cross-entropies take a
          model that ends with "softmax" or "sigmoid"; ``nb.nn.losses.BinaryCrossentropy(from_logits=True)``
          and the like one without an activation. ``fit`` and ``evaluate`` refuse the other
        - ``metrics``: a list of ``nb.nn.metrics``, names, such as "accuracy", or configs
        - ``precision``: "float32", or "mixed_float16" for products and activations in float16, with float32
          weights and a loss scale (``nb.optim.LossScaleOptimizer`` has its settings), or "mixed_bfloat16" for
          bfloat16 under ``--strategy tpu``; None for the run's ``--precision``, which is "float32" by default

        Raises InvalidArgumentError for an unknown name, and for weights that are not float32 in mixed
        precision.

        >>> from nbdist.nn import Dense, Sequential
        >>> model = Sequential([Dense(10, activation="softmax")])
        >>> model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        """
        chosen = optim.get(optimizer)
        if isinstance(metrics, str):
            raise InvalidArgumentError(f"metrics is a list of names, got {metrics!r}; write [{metrics!r}]")
        measured = [(metric_label(m), get_metric(m)) for m in metrics]
        policy = None if precision is None else checked_precision("precision", precision)
        self._loss, self.optimizer, self._measured = losses.get(loss), chosen, measured
        self.precision = policy
        self.loss, self.metrics = self._loss.to_config(), [name for name, _ in measured]
        self._objective = None
        self._made_in = scoped() or self._made_in

    @keras_arguments("fit")
    def fit(
        self,
        data: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        callbacks: Sequence[Callback] = (),
        nan: str = "stop",
    ) -> History:
        """Train, and return the History: the loss and metrics of each epoch.

        The strategy of the surrounding run decides how replicas work together; in the notebook it is one
        device. An interrupt or Stop ends training after the current step.

        - ``data``: a Dataset of batches (x, y), or an array of examples (rows, ...), which are shuffled
        - ``y``: the labels of an array of examples, (rows, ...); None with a Dataset
        - ``epochs``: how often to go through the data, 1 or more
        - ``batch_size``: examples per step of all replicas together, for arrays; None for 32
        - ``steps_per_epoch``: steps of an epoch, 1 or more; it continues where the one before ended. None for
          one pass through the data
        - ``validation_data``: a Dataset of batches or a pair of arrays, evaluated after each epoch, or None
        - ``callbacks``: a list of ``nb.train.Callback``
        - ``nan``: for steps with a NaN or infinite loss or gradient, which are never applied: "stop" raises
          NanLossError, "skip" leaves them out. A gradient that only overflows in mixed precision is neither:
          see ``nb.optim.LossScaleOptimizer``

        Raises InvalidArgumentError for data that do not fit the model, FailedPreconditionError before
        ``compile``, NanLossError, and what callbacks raise.

        >>> import numpy as np
        >>> from nbdist.nn import Dense, Sequential
        >>> model = Sequential([Dense(1, kernel_initializer="zeros")])
        >>> model.compile("sgd", "mse")
        >>> history = model.fit(np.ones((8, 2)), np.zeros((8, 1)), epochs=2, batch_size=4)
        epoch 1: loss 0.0000
        epoch 2: loss 0.0000
        >>> history["loss"]
        [0.0, 0.0]
        """
        epochs, steps_per_epoch = fit_counts(epochs, steps_per_epoch)
        callbacks = own_callbacks(callbacks, self)
        dataset = batches.training_batches(data, y, batch_size)
        batches.require_numbers("fit", dataset)
        self._calls.finish()
        objective = self._objective_for(dataset)
        objective.to_check = batches.one_pass(dataset) if steps_per_epoch is None else math.inf
        check: Callable[[Sequence[Array]], dict[str, float]] | None = None
        if validation_data is not None:
            held_out = batches.evaluation_batches(validation_data)
            with batches.named_in_errors("validation data"):
                batches.require_numbers("fit", held_out)
                objective.check_spec(held_out.element_spec)
                if isinstance(validation_data, (tuple, list)):  # in memory, so all of it is checked
                    objective.check((np.asarray(validation_data[0]), np.asarray(validation_data[1])))

            def validate(values: Sequence[Array]) -> dict[str, float]:
                with batches.named_in_errors("validation data"):
                    return self._evaluate(held_out, objective, values)

            check = validate
        self.trainings += 1
        current().note_fit(self)
        objective.training = self.trainings
        objective.seed = calling.seed_of(self.seed)
        with use_here(self._made_in or current()):
            return train(
                objective,
                dataset,
                unscaled(self._compiled()),
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validate=check,
                callbacks=callbacks,
                nan=nan,
                save=lambda values, folder: saving.save(self, folder / MODEL, objective.all_arrays(values)),
                config=self.to_config,
            )

    @keras_arguments("evaluate")
    def evaluate(self, data: Any, y: Any = None) -> dict[str, float]:
        """Return the mean loss and metrics, by name.

        - ``data``: a Dataset of batches (x, y), or an array of examples (rows, ...)
        - ``y``: the labels of an array of examples; None with a Dataset

        Raises InvalidArgumentError for data that do not fit the model, FailedPreconditionError before
        ``compile``.

        >>> import numpy as np
        >>> from nbdist.nn import Dense, Sequential
        >>> model = Sequential([Dense(2, activation="softmax", kernel_initializer="zeros")])
        >>> model.compile("sgd", "sparse_categorical_crossentropy", ["accuracy"])
        >>> model.evaluate(np.ones((4, 3)), np.array([0, 0, 0, 1]))
        {'loss': 0.6931471824645996, 'accuracy': 0.75}
        """
        dataset = batches.evaluation_batches(data if y is None else (data, y))
        batches.require_numbers("evaluate", dataset)
        objective = self._objective_for(dataset)
        self._calls.refresh()
        return self._evaluate(dataset, objective, objective.arrays)

    @keras_arguments("predict")
    def predict(self, x: Any) -> Array:
        """Return the output for examples ``x`` (rows, ...), an array (rows, outputs...).

        Runs in this process. Raises InvalidArgumentError for examples of another shape than the model's, and
        for a Dataset.
        """
        if isinstance(x, Dataset):
            raise InvalidArgumentError(
                "predict takes an array of examples (rows, ...), not a Dataset: predict each of its batches, "
                "np.concatenate([model.predict(x) for x in dataset])"
            )
        with batches.named_in_errors("predict"):
            x = read_only(x, 0)
        batches.require_number_dtypes("predict", [x.dtype])
        if self._network is None:
            self.build(x.shape[1:])
        network = self._in_its_precision()
        if x.shape[1:] != network.shape:
            raise InvalidArgumentError(
                f"the model takes examples of shape {network.shape}, got an array of shape {x.shape}"
            )
        x = np.ascontiguousarray(x, network.x.dtype)
        weights = self.weights
        out = np.empty((len(x), *(n or 0 for n in network.predicted.shape[1:])), network.predicted.dtype)
        for start in range(0, len(x), batches.PREDICT_ROWS):
            part = x[start : start + batches.PREDICT_ROWS]
            if len(part) not in self._predictors:
                self._predictors[len(part)] = network.prediction(len(part), weights)
            out[start : start + len(part)] = self._predictors[len(part)](part)[0]
        return out

    def __call__(self, x: Any, training: bool = False) -> Any:
        """Return the output for a tensor, as a tensor: layers are recorded in its graph, with variables.

        In a function that ``strategy.run`` runs, ``training`` has layers do what they do in training, and
        optimizers train the model's own weights. In any other graph the variables begin with the weights as
        they are. For an array it is what ``predict`` returns.
        """
        if not isinstance(x, (Tensor, Composite)):
            return calling.predict(self, x, training)
        if self._network is None:
            self.build(calling.example_shape(x))
        self._in_its_precision()
        return self._calls.call(self, x, training)

    @property
    def weights(self) -> list[Array]:
        """The weights, in the order of the layers: the newest values there are."""
        self._calls.refresh()
        return self._weights

    @property
    def variables(self) -> list[Variable]:
        """The weights as variables of the graph that the model was called in, in the order of the layers."""
        return self._calls.variables(self)

    @property
    def trainable_variables(self) -> list[Variable]:
        """Those of the variables that optimizers change."""
        return [v for v in self.variables if v.trainable]

    def get_weights(self) -> list[Array]:
        """Return copies of the weights, in the order of the layers."""
        return [w.copy() for w in self.weights]

    def set_weights(self, weights: Sequence[Array]) -> None:
        """Copy ``weights``, a list of arrays, into the model; InvalidArgumentError for other shapes."""
        if [np.shape(w) for w in weights] != [w.shape for w in self.weights]:
            raise InvalidArgumentError(
                f"the model has weights of shapes {[w.shape for w in self.weights]}, "
                f"got {[np.shape(w) for w in weights]}"
            )
        self._calls.finish()
        for own, value in zip(self.weights, weights, strict=True):
            np.copyto(own, value)

    def count_params(self) -> int:
        """Return the number of weights."""
        return sum(w.size for w in self._weights)

    def summary(self) -> str:
        """Return a table of the layers with their output shapes and numbers of weights."""
        if self._network is None:
            raise FailedPreconditionError(
                "the model has no weights yet: fit it, or call build(input_shape) before summary()"
            )
        rows = [("layer", "output", "weights")]
        for layer, shape, count in zip(self.layers, self._network.outputs, self._network.counts, strict=True):
            rows.append((repr(layer), show(shape), f"{count:,}"))
        rows.append(("total", "", f"{self.count_params():,}"))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)

    @property
    def network(self) -> Network | None:
        """The layers as a graph of their own, once their weights are there."""
        return self._network

    @property
    def graph(self) -> Graph:
        """The model's graph, with its loss and gradients once it was trained; ``nb.show_graph(model)``."""
        if self._network is None:
            raise FailedPreconditionError("the model has no graph yet: fit it, or call build(input_shape)")
        return self._network.graph

    @property
    def loss_scale(self) -> float | None:
        """The scale of the loss as ``fit`` has left it; None before a ``fit`` in mixed precision."""
        scale = None if self._objective is None else self._objective.loss_scale
        return None if scale is None else scale.value

    def to_config(self) -> dict[str, Any]:
        """Return everything but the weights as plain values."""
        return {
            "layers": [layer.to_config() for layer in self.layers],
            "input_shape": list(self._network.shape) if self._network else None,
            "optimizer": self.optimizer.to_config() if self.optimizer else None,
            "loss": self.loss,
            "metrics": [
                name if isinstance(metric.to_config(), str) else metric.to_config()
                for name, metric in self._measured
            ],
            "seed": self.seed,
            "pipeline": asdict(self.pipeline),
            "precision": self.precision,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Model:
        """Return the model of a ``config`` that :meth:`to_config` returned, with new weights."""
        layers = [layer_from_config(c) for c in config["layers"]]
        model = cls(layers, config["seed"], **config.get("pipeline", {}))
        if config["optimizer"] is not None:
            optimizer = optim.from_config(config["optimizer"])
            model.compile(optimizer, config["loss"], config["metrics"], config.get("precision"))
        if config["input_shape"] is not None:
            model.build(config["input_shape"])
        return model

    def save(self, path: Any) -> Any:
        """Write the model to a safetensors file; :func:`nbdist.nn.load` reads it. Return the path.

        - ``path``: a local file, such as "model.safetensors"

        Raises InvalidArgumentError for a name that ends as files of other formats do (".h5", ".keras",
        ".pt"); what writes ".onnx" is :meth:`to_onnx`.
        """
        return saving.save(self, path)

    def to_onnx(self, path: Any) -> Any:
        """Write the model, as ``predict`` computes it, to an ONNX file; return its path.

        - ``path``: a local file. The input is called ``x``, (batch, *example shape); the output
          ``predictions``

        ONNX Runtime and other programs compute it without nbdist. Raises FailedPreconditionError for a model
        without weights, MissingExtra without ``nbdist[onnx]``, InvalidArgumentError for a layer whose op ONNX
        does not have, NotFoundError for a folder that does not exist.
        """
        if self._network is None:
            raise FailedPreconditionError("the model has no weights yet: fit it, or call build(input_shape)")
        network = self._in_its_precision()
        values = dict(zip(network.variables, self.weights, strict=True))
        return write_onnx(path, {"x": network.x}, {"predictions": network.predicted}, values)

    def __repr__(self) -> str:
        count = f", {self.count_params():,} weights" if self._weights else ""
        return f"<{type(self).__name__}: {len(self.layers)} layers{count}>"

    def _compiled(self) -> optim.Optimizer:
        if self.optimizer is None:
            raise FailedPreconditionError("the model is not compiled: call compile(optimizer, loss) first")
        return self.optimizer

    def _objective_for(self, dataset: Dataset) -> Objective:
        self._compiled()
        if self._network is None:
            self.build(batches.example_shape(dataset))
        network = self._in_its_precision()
        if self._objective is None:
            assert self._loss is not None
            self._objective = Objective(network, self._weights, self._loss, self._measured, self._loss_scale)
        return self._objective

    def _in_its_precision(self) -> Network:
        """Return the graph of the layers, made anew if precision or frozen layers were chosen later."""
        network = self._network
        assert network is not None
        trains = [layer.trainable for layer in self.layers]
        if network.trains != trains and self._calls.is_traced:
            raise FailedPreconditionError(
                "layer.trainable was changed after a loop has trained the model, whose steps are recorded "
                "with the old value: set it before the loop, or make the model anew with from_config"
            )
        if network.precision != current().precision_of(self.precision) or network.trains != trains:
            self.take(self.network_for([n or 0 for n in network.shape]), self.weights)
            assert self._network is not None
        return self._network or network

    @property
    def _loss_scale(self) -> LossScale | None:
        """Return the scale that a training in mixed precision begins with."""
        if self._network is None or self._network.precision != "mixed_float16":
            return None
        optimizer = self._compiled()
        return optimizer.loss_scale() if isinstance(optimizer, LossScaleOptimizer) else LossScale()

    def _evaluate(self, dataset: Dataset, objective: Objective, values: Sequence[Array]) -> dict[str, float]:
        xp, names = backend_of(values[0]), ["loss", *self.metrics]
        sums, count = dict.fromkeys(names, 0.0), 0
        programs: dict[Any, Program] = {}
        unread: list[Array] = []  # the sums of batches; on a GPU each read waits for it

        def add_up() -> None:
            for values in all_to_host(unread):
                for name, value in zip(names, values, strict=True):
                    sums[name] += float(value)
            unread.clear()

        training, objective.to_check = objective.to_check, math.inf
        skipped = dataset.skipped
        for batch in dataset.iterate(reuse_buffers=True):
            arrays = objective.prepare(batch if isinstance(batch, tuple) else (batch,))
            arrays = tuple(to_device(a, xp) for a in arrays)
            shapes = tuple(a.shape for a in arrays)
            if shapes not in programs:
                programs[shapes] = objective.evaluation_program(shapes, values)
            unread.append(xp.stack(programs[shapes](*arrays)))  # a copy: the next call overwrites the sums
            if xp is np or len(unread) == UNREAD:
                add_up()
            count += len(arrays[0])
        add_up()
        objective.to_check = training
        if note := dataset.skipped_note(skipped):
            print(f"evaluation: {note}")
        if count == 0:
            raise InvalidArgumentError("there is nothing to evaluate: the data is empty")
        return {name: total / count for name, total in sums.items()}


_OWNERS: weakref.WeakKeyDictionary[Layer, weakref.ref[Model]] = weakref.WeakKeyDictionary()
"""The model that has made the weights of a layer."""


def own(model: Model, layers: Sequence[Layer]) -> None:
    """Note that a model has the weights of layers; InvalidArgumentError if another one has them."""
    for layer in layers:
        before = _OWNERS.get(layer)
        other = None if before is None else before()
        if other is not None and other is not model:
            raise InvalidArgumentError(
                f"{layer!r} is a layer of another model, {other!r}, and models do not share weights: make a "
                "new layer, and copy the weights with get_weights() and set_weights()"
            )
    _OWNERS.update((layer, weakref.ref(model)) for layer in layers)


class Sequential(Model):
    """Layers one after the other; the parameters are those of :class:`Model`.

    >>> from nbdist.nn import Dense
    >>> print(Sequential([Dense(3), Dense(2)]).build((4,)).summary().splitlines()[-1].split())
    ['total', '23']
    """


def load(path: str | Path) -> Model:
    """Return the model that was saved at ``path``.

    Raises NotFoundError if the file does not exist, DataLossError if it is damaged or of another kind; the
    error names the tensor with the wrong checksum. The shapes of the layers are compared with those of the
    file before memory is allocated.

    >>> import tempfile
    >>> from nbdist.nn import Dense
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = Sequential([Dense(2)]).build((3,)).save(folder + "/m.safetensors")
    ...     load(saved)
    <Sequential: 1 layers, 8 weights>
    """
    return saving.read(path, Sequential.from_config)
