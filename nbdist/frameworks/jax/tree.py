"""Pytrees as named arrays: `Parameters`, which are trained, and `State`, which a step returns anew.

    parameters = Parameters.of({"dense": {"w": w, "b": b}})
    parameters.variables                    # [("dense/b", array), ("dense/w", array)], copies on the host
    parameters.tree(leaves)                 # the same pytree with these leaves

Arrays of float32 and float64 are trained. What else a module of equinox or flax holds, such as functions and
sizes, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array, backend_of
from nbdist.runtime.layout import ALIGNMENT

TRAINED = (np.float32, np.float64)


@dataclass(frozen=True)
class State:
    """The arrays of a pytree that each step returns anew, such as moving averages, by name."""

    variables: list[tuple[str, Array]]
    structure: Any
    keys: dict[int, Any]
    """Which of them are keys for random numbers, here as plain numbers, and how JAX makes these."""

    @classmethod
    def of(cls, state: Any) -> State:
        """Return those of ``state``: arrays of any type in dicts, lists, tuples and modules.

        Raises InvalidArgumentError for a leaf that is neither an array nor a number.
        """
        import jax

        found, structure = jax.tree_util.tree_flatten_with_path(state)
        variables, keys = [], {}
        for number, (path, leaf) in enumerate(found):
            name = f"state/{name_of(path)}"
            if not isinstance(leaf, (np.ndarray, np.generic, jax.Array, bool, int, float, complex)):
                raise InvalidArgumentError(
                    f"{name} is a {type(leaf).__name__}, and a state has arrays: keep it out of state, and "
                    "have loss read it from around it"
                )
            if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
                keys[number], leaf = jax.random.key_impl(leaf), jax.random.key_data(leaf)
            variables.append((name, np.array(jax.numpy.asarray(leaf), order="C")))
        return cls(variables, structure, keys)

    def tree(self, arrays: Sequence[Any]) -> Any:
        """Return the pytree with these arrays, as a loss takes it."""
        import jax

        leaves = list(arrays)
        for number, impl in self.keys.items():
            leaves[number] = jax.random.wrap_key_data(leaves[number], impl=impl)
        return jax.tree.unflatten(self.structure, leaves)

    def leaves(self, state: Any) -> list[Any]:
        """Return the arrays of a state that a loss has returned; raise if it has another form."""
        import jax

        leaves: list[Any]
        leaves, structure = jax.tree.flatten(state)
        if structure != self.structure:
            raise InvalidArgumentError(
                f"loss returned the state {structure}, and took {self.structure}: it returns a pytree of the "
                "same form, as flax's apply(..., mutable=[...]) and haiku's apply do"
            )
        for number in self.keys:
            leaves[number] = jax.random.key_data(leaves[number])
        for (name, own), leaf in zip(self.variables, leaves, strict=True):
            found = jax.numpy.asarray(leaf)
            if (found.shape, found.dtype) != (own.shape, own.dtype):
                raise InvalidArgumentError(
                    f"loss returned {name} as {found.dtype} of shape {found.shape}, and took {own.dtype} of "
                    f"shape {own.shape}: a state keeps its types and shapes, new.astype(old.dtype)"
                )
        return leaves

    def arrays(self) -> Any:
        """Return the pytree with the newest values, as arrays of JAX."""
        import jax.numpy as jnp

        return self.tree([jnp.array(value) for _, value in self.variables])


@dataclass(frozen=True)
class Parameters:
    """The trained arrays of a pytree, by name, and how to put a pytree together of others in their place."""

    variables: list[tuple[str, Array]]
    tree: Callable[[Sequence[Any]], Any]
    """Returns the pytree with these arrays in place of the trained ones, in their order."""
    trained_tree: Callable[[Sequence[Any]], Any]
    """Returns the same with None in place of all that is not trained."""

    @classmethod
    def of(cls, params: Any) -> Parameters:
        """Return those of ``params``: arrays of JAX or NumPy in dicts, lists, tuples and modules.

        Raises InvalidArgumentError for a leaf of a plain container that cannot be trained, for arrays of
        float16, bfloat16 or complex numbers, and if there is nothing to train.
        """
        import jax

        found, structure = jax.tree_util.tree_flatten_with_path(params)
        leaves = [leaf for _, leaf in found]
        trained = [i for i, (path, leaf) in enumerate(found) if _is_trained(path, leaf)]
        if not trained:
            raise InvalidArgumentError(
                "params has no array of float32 or float64: there is nothing to train. It is a pytree of "
                'arrays, such as {"w": jnp.zeros((3, 2))}, or a module of equinox or flax'
            )
        # Canonical dtypes: float64 is float32 unless jax_enable_x64 is on.
        values = [np.array(jax.numpy.asarray(leaves[i]), order="C") for i in trained]
        names = [name_of(found[i][0]) for i in trained]

        def tree(others: Sequence[Any], arrays: Sequence[Any]) -> Any:
            together = list(others)
            for i, array in zip(trained, arrays, strict=True):
                together[i] = array
            return jax.tree_util.tree_unflatten(structure, together)

        nothing = [None] * len(leaves)
        return cls(list(zip(names, values, strict=True)), partial(tree, leaves), partial(tree, nothing))

    def arrays(self) -> Any:
        """Return the pytree with the newest values, as arrays of JAX."""
        import jax.numpy as jnp

        return self.tree([jnp.array(value) for _, value in self.variables])


def state_dict(params: Any) -> dict[str, Array]:
    """Return the trained arrays of a pytree by name, as copies of NumPy, which are returned as a result.

    Raises InvalidArgumentError as `Parameters.of` does.
    """
    return dict(Parameters.of(params).variables)


def load_state_dict(params: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the pytree ``params`` with other values of its trained arrays, given by name.

    Raises InvalidArgumentError unless ``arrays`` has just these names, with arrays of the same shapes.
    """
    import jax.numpy as jnp

    found = Parameters.of(params)
    own = {name: value.shape for name, value in found.variables}
    theirs = {name: np.shape(array) for name, array in arrays.items()}
    if own != theirs:
        differs = min(name for name in {*own, *theirs} if own.get(name) != theirs.get(name))
        raise InvalidArgumentError(
            f"{differs} has shape {own.get(differs, 'nothing')} in params and "
            f"{theirs.get(differs, 'nothing')} in arrays: load what state_dict returned for a pytree of the "
            "same form"
        )
    return found.tree([jnp.array(arrays[name], value.dtype) for name, value in found.variables])


def shared(array: Array) -> Any:
    """Return an array of JAX in the memory of ``array``, or ``array`` itself where JAX needs a copy.

    JAX takes its arrays to be constant: nothing may change ``array`` while a computation reads it.
    """
    import jax

    if backend_of(array) is not np:  # CuPy's: `to_jax` shares it in each step
        return array
    if array.ctypes.data % ALIGNMENT or not array.flags.writeable or not array.size:
        return array
    return jax.dlpack.from_dlpack(array, copy=False)


def to_jax(array: Any) -> Any:
    """Return an array in the form that a jitted function takes.

    Those of NumPy and JAX are as they are; CuPy's is a view by DLPack (no copy; float64 becomes float32 where
    JAX has no 64-bit types). DLPack makes JAX's stream wait for CuPy's.
    """
    import jax

    if isinstance(array, (np.ndarray, jax.Array)) or not hasattr(array, "__cuda_array_interface__"):
        return array
    narrow = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)  # float64 may be off
    return jax.dlpack.from_dlpack(narrow)


def copy_from_jax(target: Array, found: Any, factor: float = 1.0) -> None:
    """Copy ``factor`` times an array of JAX into ``target``, of NumPy or CuPy and of the same shape."""
    xp = backend_of(target)
    source = np.asarray(found) if xp is np else xp.from_dlpack(found)
    if factor == 1.0:
        target[...] = source
    else:
        xp.multiply(source, factor, out=target)


def copy_leaves(targets: Any, sources: Any) -> None:
    """Copy the arrays of a pytree of JAX into those of one of NumPy."""
    import jax

    for target, source in zip(jax.tree.leaves(targets), jax.tree.leaves(sources), strict=True):
        np.copyto(target, np.asarray(source))


def name_of(path: Sequence[Any]) -> str:
    """Return the name of a leaf by its path of keys: "dense/w"."""
    parts = (
        next((str(getattr(key, kind)) for kind in ("key", "name", "idx") if hasattr(key, kind)), str(key))
        for key in path
    )
    return "/".join(parts) or "params"


def _is_trained(path: Sequence[Any], leaf: Any) -> bool:
    """Return whether a leaf is trained; raise if it would have to be, and cannot be."""
    import jax

    is_array = isinstance(leaf, (np.ndarray, np.generic, jax.Array))
    name = name_of(path)
    if type(leaf).__module__.partition(".")[0] == "torch":
        raise InvalidArgumentError(
            f"{name} is a {type(leaf).__name__} of torch, and this trains arrays of JAX: call "
            "nb.frameworks.torch.fit for a module of torch, or convert it with jnp.asarray(tensor.numpy())"
        )
    if is_array and leaf.dtype in TRAINED:
        return True
    narrow = is_array and jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)  # float16, complex, ...
    of_module = any(hasattr(key, "name") for key in path)  # attributes; also those of a NamedTuple
    if not narrow and (of_module or not (is_array or isinstance(leaf, (bool, int, float, complex)))):
        return False
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        return False
    kind = str(leaf.dtype) if is_array else f"a number of Python, {leaf!r}"
    raise InvalidArgumentError(
        f"{name} is {kind}, and parameters are arrays of float32 or float64. "
        + (
            f"Keep it in float32 and compute in {kind} inside loss: x.astype(jnp.{kind})"
            if narrow and "complex" not in kind
            else "If it is to be trained, convert it with jnp.asarray(value, jnp.float32); else leave it out "
            "of params, and have loss read it from around it"
        )
    )


def array_of(value: Any) -> Array:
    """Return an array of JAX as one of NumPy; InvalidArgumentError if it is not all in this process."""
    try:
        return np.asarray(value)
    except Exception as error:  # it spans other processes, was donated, is traced, or holds keys
        raise InvalidArgumentError(f"an array of JAX stays where it is: {error}") from None
