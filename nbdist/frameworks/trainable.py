"""`FrameworkModel`: a model of another framework as the training loop and every strategy take it.

A strategy has the parameters and the places for gradients, as NumPy arrays (CuPy's on a GPU) in its buffers.
A framework computes with these arrays, and writes gradients into them. It implements two methods:

    class Mine(FrameworkModel):
        def bind(self, values):
            ...             # compute with these arrays from now on; the strategy changes them in place
        def compute(self, batch, gradients, weight, loss_scale, ready):
            loss = ...      # of a replica's share of a batch; then for each parameter, the last layer first:
            gradients[number][...] = weight * gradient
            ready(number)   # written: an all-reduce may begin with it, while other gradients are computed
            return loss, *metrics

    model = Mine([("weight", array), ("bias", array)])     # arrays that end with the trained values
    train(model, dataset, optimizer, epochs=3)             # of nbdist.train.loop, under the run's strategy

A step of ``train`` is: ``pull``, ``prepare`` and ``compute``, ``push``. ``prepare`` has a usable default for
batches of arrays: a framework overrides ``opened`` where it reads its own data. A framework without memory
that others can change (JAX) takes the values in ``bind`` as they are at each ``compute``. A model that
``draws`` random numbers overrides ``draw``, and finds its result in ``drawn`` during ``compute``.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.checkpoint.tensor_file import TensorFile, write_tensors
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.train.context import MODEL, Context
from nbdist.train.resume import MODEL as ABOUT_MODEL
from nbdist.train.trainable import Gathers, Parts, Program, ProgramSpec, Trainable

NAMES = "arrays"


class FrameworkModel(Trainable):
    """Parameters by name, and a framework's function for their gradients.

    - ``variables``: names and arrays of all parameters, float32 or float64, in one order on all replicas;
      they have the initial values, and the trained ones at the end
    - ``metric_names``: what ``compute`` returns after the loss
    - ``states``: names and arrays of any dtype that a step changes without gradients, such as moving means.
      Each replica has its own; the chief's are kept in checkpoints
    """

    def __init__(
        self,
        variables: Sequence[tuple[str, Array]],
        metric_names: Sequence[str] = (),
        states: Sequence[tuple[str, Array]] = (),
    ) -> None:
        if not variables:
            raise InvalidArgumentError("the model has no parameters to train")
        self.variables, self.metric_names, self.states = list(variables), list(metric_names), list(states)
        self.drawn: Any = None
        """During ``compute``, what ``draw`` has returned for the step, if the model ``draws``."""
        self._examples, self._structure, self._weight = 0, None, 1.0

    @abstractmethod
    def bind(self, values: Sequence[Array]) -> None:
        """Compute with these arrays as the parameters from now on; a strategy changes them in place."""

    @abstractmethod
    def compute(
        self,
        batch: Any,
        gradients: Sequence[Array],
        weight: float,
        loss_scale: float,
        ready: Callable[[int], object],
    ) -> Sequence[Any]:
        """Return loss and metrics of one replica's share of a batch, and write its gradients.

        - ``batch``: nested tuples and dicts of arrays, as ``opened`` has returned them
        - ``gradients``: an array for each parameter, to be overwritten with its gradient times ``weight``:
          the share's part of the whole batch. Zeros for a parameter that the loss does not depend on
        - ``weight``: examples of the share by those of the batch, above 0 and at most 1. A loss that counts
          something else than examples calls `count` first, and takes the weight that it returns
        - ``loss_scale``: multiplies the loss before its gradients are computed, and divides these (mixed
          precision); 1 without
        - ``ready``: called with the number of each parameter whose gradient is written, in any order; it
          need not be called

        The loss is the mean over the share's examples, a number, neither weighted nor scaled.
        """

    def count(self, counted: float, weight: float) -> float:
        """Note what the loss of this share counts, in place of its examples; return the share's weight.

        That is ``weight`` where replicas do not weigh shares (`Trainable.weighs`).
        """
        if counted == self._examples:
            return weight
        self.counted = counted
        if self.weighs:
            self._weight = weight * counted / self._examples
            return self._weight
        return weight

    def gather_with(self, gathers: Gathers) -> None:
        """Have each parameter be there while it is read; only a model with ``parameter_reads`` is asked."""
        raise NotImplementedError(f"{type(self).__name__} computes with all parameters at one time")

    def opened(self, batch: tuple[Array, ...]) -> Any:
        """Return one replica's share of a batch, read and in the form that ``compute`` takes."""
        return batch

    def prepare(self, batch: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the arrays of a share of a batch, in order."""
        self._examples = len(batch[0])
        self._structure = opened = self.opened(batch)
        leaves = leaves_of(opened)
        for leaf in leaves:
            dtype = leaf.dtype if isinstance(leaf, np.ndarray) else np.dtype(object)
            # Those of JAX, such as bfloat16 and int4, are types that another package has added: 2.
            if dtype.kind not in "biufc" and dtype.isbuiltin != 2:
                kind = f"an array of {leaf.dtype}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
                raise InvalidArgumentError(
                    f"training takes batches of arrays of numbers, got one with {kind}: encode it as "
                    "numbers, or leave it out of the batch"
                )
        return tuple(leaves)

    def training_program(self, spec: ProgramSpec) -> Program:
        """Return ``program(*batch, scale, [drawn,] *gradients) -> (loss, *metrics)``."""
        self.bind(spec.values)
        if spec.gathers is not None:
            self.gather_with(spec.gathers)
        count, mark = len(spec.shapes), spec.ready or _unmarked
        fed = count + 1 + self.draws

        def program(*arrays: Any) -> tuple[Any, ...]:
            batch = rebuild(self._structure, list(arrays[:count]))
            weight = float(arrays[count]) * self._examples
            loss_scale = 1.0 if self.loss_scale is None else self.loss_scale.value
            self.drawn = arrays[count + 1] if self.draws else None
            self.counted, self._weight = None, weight
            loss, *metrics = self.compute(batch, arrays[fed:], weight, loss_scale, mark)
            return (np.float64(loss * self._weight), *map(np.float64, metrics))

        return program

    def all_arrays(self, values: Sequence[Array]) -> list[Array]:
        """Return the parameters, then the states."""
        self.fetch_states()
        return [*values, *(array for _, array in self.states)]

    def to_config(self) -> dict[str, Any]:
        """Return the names of parameters and states, in order: what a state of the training says of it."""
        return {NAMES: [name for name, _ in (*self.variables, *self.states)]}

    def write(self, values: Sequence[Array], folder: Path) -> Path:
        """Write a checkpoint: ``values`` for the parameters, and the states, by name."""
        path = folder / MODEL
        write_tensors(path, dict(zip(self.to_config()[NAMES], self.all_arrays(values), strict=True)), {})
        return path

    def remember(self) -> Callable[[], object]:
        """Return what gives the states the values back that they have now."""
        changing = [array for _, array in self.states if not any(array is one for one in self.fixed)]
        before = [array.copy() for array in changing]

        def restore() -> None:
            for array, kept in zip(changing, before, strict=True):
                np.copyto(array, kept)

        return restore

    def parts(self, xla: bool = False) -> Parts:
        """Raise InvalidArgumentError: there is no graph that another program could be made of."""
        raise InvalidArgumentError(
            "--strategy tpu compiles models of nb.nn, whose steps are graphs, and this one is of another "
            "framework: take --strategy multi_worker, or another one (jax.jit and a mesh of your own use "
            "all devices in a plain cell)"
        )

    def twin(self) -> Trainable:
        """Raise InvalidArgumentError: a framework's model is one object, for one replica of a process."""
        raise InvalidArgumentError(
            "a model of another framework is trained by one replica in each process: use a strategy of a "
            "run's workers, without devices="
        )


def weights_in(path: Path) -> dict[str, Array] | None:
    """Return parameters and states by name, from the state of a training of a `FrameworkModel`.

    None if the training was of another model. Raises DataLossError for a file that is damaged.
    """
    with TensorFile(path, "the state of a training") as file:
        try:
            names = json.loads(file.texts[ABOUT_MODEL]).get(NAMES)
            known = None if names is None else [str(name) for name in names]
        except (LookupError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise file.damaged(error) from None
        return None if known is None else {name: file.read(f"{i:04d}", name) for i, name in enumerate(known)}


def _unmarked(number: int) -> None:
    """Do nothing: the strategy takes gradients when all are there."""


def require_float32(context: Context, instead: str) -> None:
    """Raise InvalidArgumentError for ``--precision`` where nothing obeys it; ``instead``: what to do."""
    if context.options.precision != "float32":
        raise InvalidArgumentError(
            f"--precision {context.options.precision} is for models of nbdist and nb.frameworks.torch.fit: "
            f"drop it, and {instead}; a model of nbdist beside this one takes compile(precision=)"
        )


def require_strategy(context: Context, what: str) -> None:
    """Raise InvalidArgumentError in a cell whose framework distributes by itself, for ``what``."""
    if context.framework is not None:
        raise InvalidArgumentError(
            f"this cell has --framework {context.framework}, in which {context.framework} distributes by "
            f"calls of its own, and {what} trains under a strategy of nbdist: write --strategy multi_worker, "
            "or another one, in place of --framework"
        )
