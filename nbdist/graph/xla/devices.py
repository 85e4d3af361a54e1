"""JAX, which is loaded when it is first used, and its devices in this process."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from nbdist.errors import MissingExtra


def jax_module() -> Any:
    """Return jax; MissingExtra if it is not installed."""
    try:
        import jax
    except ImportError as error:
        raise MissingExtra("jax", "programs for XLA (TPU devices)") from error
    return jax


def wide_types() -> AbstractContextManager[Any]:
    """A context in which JAX keeps 64-bit dtypes in this thread; by default it makes 32-bit ones of them."""
    return jax_module().enable_x64(True)  # type: ignore[no-any-return]


def devices_of_host(count: int) -> list[Any]:
    """Return so many devices that JAX makes of this host's CPU."""
    jax = jax_module()
    if len(jax.local_devices(backend="cpu")) != count:
        from jax.extend.backend import clear_backends

        clear_backends()  # the number is read when a backend opens
        jax.config.update("jax_num_cpu_devices", count)
    return list(jax.local_devices(backend="cpu"))
