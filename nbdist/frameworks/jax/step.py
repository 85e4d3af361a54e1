"""A loss function of JAX as what the training loop trains: `LossFunction`.

Loss, metrics and gradients of a batch are one jitted function, compiled once for each size of a batch. It
reads the strategy's parameters where they are (DLPack, no copy), and its gradients are copied once, to where
the strategy sends them from. It has ended when its results are read, before anything changes the parameters.
On one device the update is a part of the function: see `JaxReplica`.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from enum import IntEnum
from typing import Any

import numpy as np

from nbdist.data.structure import ElementSpec, leaves_of, rebuild
from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.jax.replica import JaxReplica, makes_updates
from nbdist.frameworks.jax.tree import Parameters, State, copy_from_jax, copy_leaves, shared, to_jax
from nbdist.frameworks.trainable import FrameworkModel
from nbdist.graph.backend import Array
from nbdist.optim import Optimizer
from nbdist.train.replica import Replica

ROWS = 120  # examples of the batch that a loss is recorded for; no other axis is likely to have as many
WORDS = 6  # of 32 bits: the seed and the number of the first example have two each
MASK = (1 << 32) - 1


class LossFunction(FrameworkModel):
    """``loss(params, [state,] batch[, key])`` on the arrays of a pytree, for batches of a given structure.

    - ``loss`` returns the mean over the examples, then the new state if there is one, and a dict of metrics,
      which are means as well, if it has any
    - ``state`` is a pytree that it takes and returns, such as moving averages; None for none
    - ``spec`` is the `ElementSpec` of each array of a batch, in tuples and dicts
    - ``seed`` and ``training`` are what the keys follow from, beside the step and the example
    - ``normalizer`` takes a batch, and returns what the loss divides by; None for the examples
    - ``shared`` says whether batches are shares, whose losses are put together

    Raises InvalidArgumentError if the loss is not one float, or a metric is not one number, and if shares are
    put together whose loss divides by an unknown number.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        parameters: Parameters,
        spec: Any,
        seed: int,
        training: int,
        state: State | None = None,
        normalizer: Callable[[Any], Any] | None = None,
        shared: bool = False,
    ) -> None:
        import jax

        self._normalizer, self._shared = normalizer, shared and normalizer is None
        self._loss, self._parameters, self._state, self._spec = loss, parameters, state, spec
        self.seed, self.training = seed, training
        self.draws, self._takes_train = arguments_of(loss, state is not None)
        super().__init__(parameters.variables, states=[] if state is None else state.variables)
        self.metric_names = self._metric_names()
        self._step, self._measure = jax.jit(self.results_and_gradients), jax.jit(self._measures)
        self._values: list[Any] = []
        self.on_bind: Callable[[Sequence[Array]], object] = lambda values: None
        """Called with the parameters of the strategy before the first step with them."""

    def attach(self, replica: Replica) -> None:
        """Begin to be trained; the optimizer changes these parameters from the first step on."""
        super().attach(replica)
        self.on_bind(replica.values)

    def bind(self, values: Sequence[Array]) -> None:
        """Read these arrays in each step."""
        self._values = [shared(value) for value in values]
        self.on_bind(values)

    def opened(self, batch: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the batch; raise if its arrays have different numbers of examples."""
        if any(len(array) != len(batch[0]) for array in batch):
            raise InvalidArgumentError(
                f"a batch has arrays of shapes {', '.join(str(array.shape) for array in batch)}: the first "
                "axis of each counts the examples, of which each replica takes its share"
            )
        return batch

    def compute(
        self,
        batch: Any,
        gradients: Sequence[Array],
        weight: float,
        loss_scale: float,
        ready: Callable[[int], object],
    ) -> Sequence[Any]:
        """Return loss and metrics of a share, and write its gradients."""
        fed = [to_jax(self.drawn)] if self.draws else []
        states = [array for _, array in self.states]
        values, batch = list(map(to_jax, self._values)), tuple(map(to_jax, batch))
        if self._normalizer is not None:
            weight = self.count(number_of(self._normalizer, rebuild(self._spec, list(batch))), weight)
        results, changed, found = self._step(values, states, batch, np.asarray(weight, np.float32), *fed)
        for number in range(len(gradients) - 1, -1, -1):
            if weight:
                copy_from_jax(gradients[number], found[number])
            else:
                gradients[number].fill(0)
            ready(number)
        copy_leaves(states, changed)
        loss, *metrics = (np.asarray(result) for result in results)  # float() of them takes 30 us
        return [loss if weight else np.zeros_like(loss), *metrics]

    def whole_replica(self, optimizer: Optimizer) -> JaxReplica | None:
        """Return a replica whose step and update are one function, if XLA can compile the update."""
        return JaxReplica(self, optimizer) if makes_updates(optimizer) else None

    def twin(self) -> LossFunction:
        """Return what another replica of this process trains: the same functions, with states of its own."""
        twin = copy(self)
        twin.states = [(name, array.copy()) for name, array in self.states]
        return twin

    def evaluate(self, batches: Any, values: Sequence[Array]) -> dict[str, float]:
        """Return loss and metrics as means over all examples of ``batches``, with these parameters.

        The states are as they are now, and stay so.
        """
        parameters, count, counted = [to_jax(shared(value)) for value in values], 0, 0.0
        sums = np.zeros(1 + len(self.metric_names))
        states = [array for _, array in self.states]
        for element in batches:
            batch = self.prepare(tuple(np.asarray(leaf) for leaf in leaves_of(element)))
            words = (self.draw(0, count),) if self.draws else ()
            found = np.array(self._measure(parameters, states, batch, *words), np.float64)
            rows = number = float(len(batch[0]))
            if self._normalizer is not None:
                number = number_of(self._normalizer, rebuild(self._spec, list(batch)))
            sums += np.where(number, found[0], 0.0) * number, *(found[1:] * rows)
            counted, count = counted + number, count + len(batch[0])
        if not count:
            raise InvalidArgumentError("the validation data have no batch")
        sums /= counted or 1.0, *[count] * len(self.metric_names)
        return dict(zip(["loss", *self.metric_names], sums.tolist(), strict=True))

    def draw(self, step: int, first: int) -> Array:
        """Return the words that the key of a step follows from."""
        seed = self.seed
        words = [seed & MASK, seed >> 32 & MASK, self.training, step, first & MASK, first >> 32]
        return np.array(words, np.uint32)

    def origin(self) -> list[int]:
        """Return the seed, and the number of the training."""
        return [self.seed, self.training]

    def draw_from(self, origin: Sequence[int]) -> None:
        """Draw as a training did that had this origin."""
        self.seed, self.training = origin

    def results_and_gradients(
        self, leaves: Any, states: Any, batch: Any, weight: Any, words: Any = None
    ) -> tuple[Any, Any, Any]:
        """Return (loss, *metrics), the new states, and the gradients times ``weight``."""
        import jax

        def part(leaves: Any) -> Any:  # weighted before it is differentiated: one number, not each gradient
            value, metrics, changed = self._call(leaves, states, batch, words)
            return value * weight, ((value, *(metrics[name] for name in self.metric_names)), changed)

        gradients, (results, changed) = jax.grad(part, has_aux=True)(leaves)
        return results, changed, gradients

    def _measures(self, leaves: Any, states: Any, batch: Any, words: Any = None) -> Any:
        value, metrics, _ = self._call(leaves, states, batch, words, train=False)
        return (value, *(metrics[name] for name in self.metric_names))

    def _call(
        self, leaves: Any, states: Any, batch: Any, words: Any, train: bool = True
    ) -> tuple[Any, Any, list[Any]]:
        """Return loss, metrics and new states."""
        import jax

        state = self._state
        given = [self._parameters.tree(leaves), rebuild(self._spec, list(batch))]
        if state is not None:
            given.insert(1, state.tree(states))
        if words is not None:
            given.append(key_of(words))
        found = self._loss(*given, **({"train": train} if self._takes_train else {}))
        if state is None:
            value, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
            return jax.numpy.asarray(value), metrics, []
        if not isinstance(found, tuple) or len(found) not in (2, 3):
            kind = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
            raise InvalidArgumentError(
                f"loss returned {kind}; with state= it returns (loss, new state), or (loss, new state, "
                "{name: metric})"
            )
        return jax.numpy.asarray(found[0]), found[2] if len(found) == 3 else {}, state.leaves(found[1])

    def _metric_names(self) -> list[str]:
        """Return the names of the metrics, of a call for a batch of `ROWS` that computes nothing."""
        import jax

        dtype_of = jax.dtypes.canonicalize_dtype
        batch = [
            jax.ShapeDtypeStruct([ROWS if n is None else n for n in one.shape], dtype_of(one.dtype))
            for one in leaves_of(self._spec)
        ]
        leaves = [jax.ShapeDtypeStruct(value.shape, value.dtype) for _, value in self.variables]
        states = [jax.ShapeDtypeStruct(value.shape, value.dtype) for _, value in self.states]
        words = jax.ShapeDtypeStruct((WORDS,), np.uint32) if self.draws else None
        with jax.numpy_rank_promotion("warn"), warnings.catch_warnings(record=True) as promoted:
            warnings.simplefilter("always")
            recorded, (value, metrics, _) = jax.make_jaxpr(self._call, return_shape=True)(
                leaves, states, batch, words
            )
        refuse_pairs([str(one.message) for one in promoted])
        if self._shared:
            before = len(leaves) + len(states)
            divides, kinds = followed(recorded.jaxpr, range(before, before + len(batch)))
            if divides:
                raise InvalidArgumentError(
                    "loss divides by a number that it computes from the batch, as a mean over a mask or by "
                    "weights does. Each replica has a share of a batch, and shares are put together by what "
                    "they count: give normalizer=, a function of the batch that returns this number, such as "
                    "lambda batch: batch['mask'].sum(), or lambda batch: len(batch[0]) for the examples"
                )
            named = ["loss", *(f"metric {name!r}" for name in sorted(metrics if metrics else ()))]
            for name, kind in zip(named, kinds, strict=False):
                if kind is Kind.SUM:
                    raise InvalidArgumentError(
                        f"{name} is a sum over the examples of the batch, or has a part that is one. Each "
                        "replica has a share of a batch, and shares are put together as means: take "
                        "jnp.mean(...), or divide by the number of examples, len(x). If it is a mean, give "
                        "normalizer=lambda batch: len(batch[0])"
                    )
        if value.shape or not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
            raise InvalidArgumentError(
                f"loss returned an array of {value.dtype} and shape {shown(value.shape)}, and the loss is "
                "one float, the mean over the examples of the batch: jnp.mean(...). With metrics it returns "
                "(loss, {name: value})"
            )
        if not isinstance(metrics, dict):
            raise InvalidArgumentError(
                f"loss returned metrics of type {type(metrics).__name__}; expected (loss, {{name: value}})"
            )
        for name, one in metrics.items():
            if getattr(one, "shape", ()) != ():
                raise InvalidArgumentError(
                    f"metric {name!r} has shape {shown(one.shape)}, and a metric is one number, the mean "
                    "over the examples of the batch: jnp.mean(...)"
                )
        return sorted(metrics)


def shown(shape: tuple[int, ...]) -> str:
    """Return a shape of the recorded loss, with n for the examples of the batch.

    >>> shown((ROWS,)), shown((ROWS, 3))
    ('(n,)', '(n, 3)')
    """
    return f"({', '.join('n' if size == ROWS else str(size) for size in shape)}{',' * (len(shape) == 1)})"


def refuse_pairs(warned: Iterable[str]) -> None:
    """Raise InvalidArgumentError if arrays (n, 1) and (n,) of n examples were broadcast to (n, n).

    - ``warned``: JAX's warnings of promoted ranks, for a batch of `ROWS`
    """
    for text in warned:
        shapes = {tuple(map(int, re.findall(r"\d+", one))) for one in re.findall(r"\([\d, ]+\)", text)}
        if {(ROWS, 1), (ROWS,)} <= shapes:
            name = text.partition("promotion for ")[2].partition(" ")[0]
            raise InvalidArgumentError(
                f"loss computes {name} of arrays of shapes (n, 1) and (n,), for n examples, and broadcasting "
                "makes (n, n) of them: each output meets the labels of other examples. Give both one shape: "
                "y[:, None], or outputs[:, 0]. Where all pairs are meant, write y[None, :]"
            )


def arguments_of(loss: Callable[..., Any], has_state: bool = False) -> tuple[bool, bool]:
    """Return whether a loss takes a key for random numbers as its last argument, and ``train=``.

    >>> arguments_of(lambda params, batch: 0.0), arguments_of(lambda params, batch, key, train=True: 0.0)
    ((False, False), (True, True))
    """
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):  # a function without a signature
        return False, False
    takes_train = any(one.name == "train" and one.kind != one.POSITIONAL_ONLY for one in parameters)
    needed = [
        one.name
        for one in parameters
        if one.default is one.empty
        and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        and not (takes_train and one.name == "train")
    ]
    given = ["params", *(["state"] if has_state else []), "batch"]
    more = len(needed) - len(given)
    if more not in (0, 1) and not any(one.kind == one.VAR_POSITIONAL for one in parameters):
        raise InvalidArgumentError(
            f"loss takes ({', '.join(given)}), or ({', '.join(given)}, key) if it draws random numbers; this "
            f"one takes ({', '.join(needed)})"
            + ("" if has_state else ". With a state that each step returns anew, give state= as well")
        )
    return more == 1, takes_train


class Kind(IntEnum):
    """What a value of a recorded loss is of: a later kind is that of a result of several."""

    NOTHING = 0
    ROWS = 1
    """Only of the number of examples."""
    BATCH = 2
    MEAN = 3
    """Divided by the number of examples, before or after the sum over them."""
    SUM = 4
    """A sum over the examples, not divided by their number."""


PASSED = (
    "add sub add_any neg copy convert_element_type reshape squeeze expand_dims broadcast_in_dim transpose"
)
LINEAR = {*PASSED.split(), "stop_gradient", "select_n", "mul", "div", "reduce_sum", "dot_general"}
"""Operations of which the sum of results is the result for sums."""


def followed(jaxpr: Any, of_batch: Iterable[int]) -> tuple[bool, list[Kind]]:
    """Return whether a recorded function divides by a number of its batch, and the kinds of its results.

    - ``of_batch``: which arguments are a batch, by number; they have `ROWS` examples, so that what has one
      element was computed from all of them

    The result of a nonlinear operation on a sum, such as its root, counts as of the batch.
    """
    return _followed(
        jaxpr, [Kind.BATCH if n in set(of_batch) else Kind.NOTHING for n in range(len(jaxpr.invars))]
    )


def _followed(jaxpr: Any, given: Sequence[Kind]) -> tuple[bool, list[Kind]]:
    known = {id(one): kind for one, kind in zip(jaxpr.invars, given, strict=True)}

    def kind_of(one: Any) -> Kind:
        return known.get(id(one), Kind.NOTHING) if not hasattr(one, "val") else _kind_of_number(one.val)

    for step in jaxpr.eqns:
        own, name = list(map(kind_of, step.invars)), step.primitive.name
        if name == "div" and own[1] > Kind.ROWS and step.invars[1].aval.size == 1:
            return True, []
        results = [_result(name, own, step)] * len(step.outvars)
        for inner in (getattr(one, "jaxpr", one) for one in step.params.values()):
            # Not the bodies of loops, in which numbers belong to single examples or places.
            is_call = hasattr(inner, "eqns") and name not in ("scan", "while")
            if is_call and len(inner.invars) == len(step.invars):
                divides, results = _followed(inner, own)
                if divides:
                    return True, []
        known |= {id(one): kind for one, kind in zip(step.outvars, results, strict=True)}
    return False, list(map(kind_of, jaxpr.outvars))


def _result(name: str, own: Sequence[Kind], step: Any) -> Kind:
    """Return the kind of the result of an operation, given those of its arguments."""
    kind = max(own, default=Kind.NOTHING)
    has_rows = any(map(_counts_rows, step.outvars[0].aval.shape))
    if kind < Kind.BATCH:
        return Kind.ROWS if has_rows else kind
    if name not in LINEAR:
        return Kind.BATCH
    if name in ("mul", "div") and min(own) == Kind.ROWS:
        return Kind.MEAN
    if name in ("mul", "div", "dot_general") and min(own) >= Kind.BATCH:  # of two values of the batch
        kind = Kind.MEAN if Kind.MEAN in own else Kind.BATCH
    if kind == Kind.BATCH and name in ("reduce_sum", "dot_general") and not has_rows:
        had_rows = any(_counts_rows(size) for one in step.invars for size in one.aval.shape)
        return Kind.SUM if had_rows else kind
    return kind


def _counts_rows(size: int) -> bool:
    return size > 0 and size % ROWS == 0


def _kind_of_number(value: Any) -> Kind:
    """Return `Kind.ROWS` for a multiple of the number of examples, or one divided by it."""
    number = abs(float(value)) if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf" else 0.0
    whole = number if number >= 1 else 1 / number if number else 0.0
    near = round(whole) if np.isfinite(whole) else 0
    return Kind.ROWS if _counts_rows(near) and abs(whole - near) < 1e-5 * near else Kind.NOTHING


def number_of(normalizer: Callable[[Any], Any], batch: Any) -> float:
    """Return what a loss divides by for a batch; raises InvalidArgumentError for a negative number or NaN."""
    number = float(normalizer(batch))
    if not number >= 0:
        raise InvalidArgumentError(f"normalizer returns a number of 0 or more, got {number!r}")
    return number


def key_of(words: Any) -> Any:
    """Return the key of JAX that follows from the words of :meth:`LossFunction.draw`."""
    import jax

    key = jax.random.key(0)
    for number in range(WORDS):
        key = jax.random.fold_in(key, words[number])
    return key


def spec_with_rows(spec: Any) -> Any:
    """Return the spec of batches with any number of examples; raise if they have no axis for them."""
    leaves = leaves_of(spec)
    if not leaves or any(not one.shape for one in leaves):
        raise InvalidArgumentError(
            "the dataset gives single examples, and loss takes batches; call .batch(size) on it"
        )
    return rebuild(spec, [ElementSpec((None, *one.shape[1:]), one.dtype) for one in leaves])
