"""Arrays for code that writes in place, while JAX traces it: each write makes a new value.

    p = FunctionalArray(tracer)
    np.multiply(p, 0.9, out=p)          # the code of an optimizer, as it is
    p[:2] = 0
    p.value                             # a tracer of the new value

JAX's arrays cannot be changed, and NumPy's code for training changes its arrays. A `FunctionalArray` takes
NumPy's functions (NEP 13, NEP 18), has jax.numpy compute them, and keeps the newest value. A part of one
writes to the whole. PyTorch calls this functionalization.

As in NumPy, a number of its own (a learning rate, a count of steps) does not change the dtype of an array
that it is combined with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbdist.errors import InvalidArgumentError
from nbdist.graph.xla.devices import jax_module


class FunctionalArray(NDArrayOperatorsMixin):
    """A value of JAX behind NumPy's interface; it can be written to."""

    def __init__(self, value: Any, whole: FunctionalArray | None = None, key: Any = None) -> None:
        self._value, self._whole, self._key = value, whole, key

    @property
    def value(self) -> Any:
        """The newest value, an array or a tracer of JAX."""
        return self._value if self._whole is None else self._whole.value[self._key]

    def write(self, new: Any) -> None:
        """Make ``new`` the value, in this array's shape and dtype."""
        old = self.value
        new = jax_module().numpy.broadcast_to(_plain(new), old.shape).astype(old.dtype)
        if self._whole is None:
            self._value = new
        else:
            self._whole.write(self._whole.value.at[self._key].set(new))

    def __getitem__(self, key: Any) -> FunctionalArray:
        whole = isinstance(key, slice) and key.indices(len(self)) == (0, len(self), 1)
        return self if whole or key is Ellipsis else FunctionalArray(None, self, key)

    def __setitem__(self, key: Any, new: Any) -> None:
        self[key].write(new)

    def __len__(self) -> int:
        return len(self.value)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, where: Any = True, **how: Any
    ) -> Any:
        xp = jax_module().numpy
        function = getattr(xp, ufunc.__name__)
        function = function if method == "__call__" else getattr(function, method)
        result = function(*_of_one_dtype(inputs), **how)
        if out is None:
            return FunctionalArray(result)
        (target,) = out
        target.write(result if where is True else xp.where(_plain(where), result, target.value))
        return target

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.copyto:
            target, source, *_ = args
            return target.write(source)
        names = [*func.__module__.split(".")[1:], func.__name__]
        function = reduce(getattr, names, jax_module().numpy)
        out = kwargs.pop("out", None)
        result = function(*map(_plain, args), **{key: _plain(one) for key, one in kwargs.items()})
        if out is None:
            return FunctionalArray(result)
        return out.write(result) or out

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.value, name)
        if not callable(found):
            return found
        return lambda *args, **how: FunctionalArray(found(*map(_plain, args), **how))

    def fill(self, number: Any) -> None:
        """Write one number everywhere."""
        self.write(number)

    def _concrete(self, *_: Any) -> Any:
        raise InvalidArgumentError(
            "the code decides by a value of an array, which XLA compiles before there are values; compute "
            "both cases and choose with np.where"
        )

    __bool__ = __float__ = __int__ = __index__ = _concrete


def updated(
    optimizer: Any, value: Any, gradient: Any, slots: Mapping[str, Any], step: Any, flat: bool = True
) -> tuple[Any, dict[str, Any]]:
    """Return a parameter and its slots after an update, by the optimizer's own code.

    ``optimizer`` has a learning rate that is a `FunctionalArray`, as is ``step``, the update's number. It
    gets everything ``flat``, as everywhere, but for what is split among devices: its parts would have to be
    brought together.
    """
    shape = (-1,) if flat else value.shape
    p, g = (FunctionalArray(one.reshape(shape)) for one in (value, gradient))
    state = {name: FunctionalArray(one.reshape(shape)) for name, one in slots.items()}
    optimizer.apply(p, g, state, step)
    after = {name: one.value.reshape(slots[name].shape) for name, one in state.items()}
    return p.value.reshape(value.shape), after


def prepared(
    optimizer: Any, values: Sequence[Any], gradients: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return all parameters and gradients of an update as `Optimizer.update` prepares them.

    ``optimizer`` has a learning rate that is a `FunctionalArray`. `require_compilable` says what is left out.
    """
    xp = jax_module().numpy
    if optimizer.clipvalue:
        gradients = [xp.clip(one, -optimizer.clipvalue, optimizer.clipvalue) for one in gradients]
    elif largest := optimizer.clipnorm or optimizer.global_clipnorm:
        squares = [xp.sum(xp.square(one)) for one in gradients]
        squares = [sum(squares)] * len(squares) if optimizer.global_clipnorm else squares
        factors = [largest / xp.maximum(xp.sqrt(one), largest) for one in squares]
        gradients = [one * by.astype(one.dtype) for one, by in zip(gradients, factors, strict=True)]
    if optimizer.weight_decay and not optimizer.decays_itself:
        kept = [FunctionalArray(one) for one in values]
        for one in kept:
            optimizer.decay(one)
        values = [one.value for one in kept]
    return values, gradients


def require_compilable(optimizer: Any) -> None:
    """Raise InvalidArgumentError for an optimizer with an update that XLA does not compile."""
    for name, given in (
        ("gradient_accumulation_steps", optimizer.gradient_accumulation_steps),
        ("exclude_from_weight_decay", ", ".join(optimizer.excluded)),
    ):
        if given:
            raise InvalidArgumentError(
                f"{type(optimizer).__name__}: under strategy tpu, and of JAX on one device, XLA compiles a "
                f"step with its update, which has no {name} ({given}): drop it, or take --strategy "
                "multi_worker"
            )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, FunctionalArray) else value


def _of_one_dtype(inputs: tuple[Any, ...]) -> list[Any]:
    """Return operands for jax.numpy: single floating-point numbers in the dtype of the arrays beside them."""
    found = [_plain(one) for one in inputs]
    arrays = [one.dtype for one in found if np.ndim(one) and one.dtype.kind == "f"]
    if not arrays:
        return found
    dtype = np.result_type(*arrays)
    return [
        jax_module().numpy.asarray(one, dtype)
        if np.ndim(one) == 0 and np.result_type(one).kind == "f"
        else one
        for one in found
    ]
