"""The devices of JAX in this process: TPUs, or parts of the host's CPU that stand in for them.

    tpu_devices()                       # [TpuDevice(id=0), ...]: TPU:0, TPU:1 and so on
    array = on_device(np.zeros(3), "TPU:1")

Host devices stand in for TPUs where the user asks for them, in JAX's own words:
``XLA_FLAGS=--xla_force_host_platform_device_count=8``. They share the cores of the host.
"""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager
from typing import Any

from nbdist.errors import InvalidArgumentError, MissingExtra
from nbdist.graph.backend import Array

HOST_DEVICES = "xla_force_host_platform_device_count"
_tpus: list[Any] = []
"""The devices of this process for sessions, once one has asked. They stay the same if others are opened."""


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


def wanted_host_devices(flags: str) -> int:
    """Return how many devices of the host's CPU the value of XLA_FLAGS asks for; 0 if it does not say.

    >>> wanted_host_devices("--xla_dump_to=/tmp/x --xla_force_host_platform_device_count=8")
    8
    """
    found = re.search(rf"--{HOST_DEVICES}=(\d+)", flags)
    return int(found[1]) if found else 0


def devices_of_host(count: int) -> list[Any]:
    """Return so many devices that JAX makes of this host's CPU."""
    jax = jax_module()
    if len(jax.local_devices(backend="cpu")) != count:
        from jax.extend.backend import clear_backends

        clear_backends()  # the number is read when a backend opens
        jax.config.update("jax_num_cpu_devices", count)
    return list(jax.local_devices(backend="cpu"))


def tpu_devices() -> list[Any]:
    """Return JAX's devices of this process that are TPU:0, TPU:1 and so on; an empty list without any.

    Takes seconds at the first call, which loads JAX and opens the devices.
    """
    if not _tpus:
        jax = jax_module()
        found = [device for device in jax.local_devices() if device.platform == "tpu"]
        count = wanted_host_devices(os.environ.get("XLA_FLAGS", ""))
        _tpus[:] = found or (devices_of_host(count) if count else [])
    return list(_tpus)


def why_no_tpu() -> str:
    """Return why this process has no TPU, in words; an empty text if it has one."""
    try:
        if tpu_devices():
            return ""
    except MissingExtra as error:
        return str(error)
    except RuntimeError as error:  # of JAX: a TPU that another process has, say
        return f"JAX cannot open its devices: {str(error).splitlines()[0]}"
    return f"JAX has no TPU; XLA_FLAGS=--{HOST_DEVICES}=8, set before the process starts, makes 8 of its CPU"


def tpu_device(name: str) -> Any:
    """Return the device of JAX that "TPU:1" names; InvalidArgumentError if this process does not have it."""
    devices, number = tpu_devices(), int(name.partition(":")[2] or 0)
    if number >= len(devices):
        raise InvalidArgumentError(f"this process has no device {name!r}; it has {len(devices)} TPU devices")
    return devices[number]


def on_device(array: Array, name: str) -> Any:
    """Return an array of JAX with these values on a device such as "TPU:0"; MemoryError without room."""
    jax = jax_module()
    try:
        with wide_types():
            return jax.block_until_ready(jax.device_put(array, tpu_device(name)))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise MemoryError(str(error).splitlines()[0]) from error
        raise
