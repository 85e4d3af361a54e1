"""GPU use, memory, power and temperature, from NVIDIA's library (NVML, ``pip install nbdist[gpu]``).

    sampler = GpuSampler("GPU-8f3a...", shown=print)      # in a task that has a GPU
    sampler.start()                                       # once a second, on a thread of its own
    ...
    sampler.stop()

A figure that a device does not have is left out: a MIG slice has no use of its own, a lost GPU nothing. NVML
is loaded at the first use, by the sampler's thread: a task without a GPU never imports it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

FIRST_SECONDS = 0.2  # before the first one: a short cell measures nothing
FIGURES = ("use", "memory", "power", "temperature")
"""In percent, bytes, watts and degrees Celsius."""
GPU_SERIES = {figure: f"gpu/{figure}" for figure in FIGURES}
"""The names of the figures' series in a run's metrics."""


@dataclass(frozen=True)
class Gpu:
    """What NVML says of one device; None where it has no such figure.

    - ``use``: in percent; ``memory``, ``total``: bytes in use by all processes, and in all
    - ``power``: in watts; ``temperature``: in degrees Celsius
    - ``model``, ``uuid``: such as "NVIDIA H100 80GB HBM3" and "GPU-8f3a..."; empty if unknown
    - ``by_pid``: the bytes of each process, None where the driver does not know them
    """

    use: int | None = None
    memory: int | None = None
    total: int | None = None
    power: float | None = None
    temperature: int | None = None
    model: str = ""
    uuid: str = ""
    by_pid: Mapping[int, int | None] = field(default_factory=dict)


class GpuSampler:
    """Measures the GPU of this process at intervals, until it is stopped; on a thread of its own.

    - ``name``: CUDA's name of the GPU: its number or its UUID
    - ``shown``: receives each sample as plain values: "id", "model", "total" and the `FIGURES` that there are
    - ``record``: receives (name of a series, value) for each figure of a sample
    - ``seconds``: between two samples

    NVML may hang or fail at any time: neither affects the training. A sample that fails is left out.
    """

    def __init__(
        self,
        name: str,
        shown: Callable[[dict[str, Any]], None],
        record: Callable[[str, float], None] = lambda series, value: None,
        seconds: float = 1.0,
    ) -> None:
        self._name, self._shown, self._record, self._seconds = name, shown, record, seconds
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to measure."""
        threading.Thread(target=self._run, name="nbdist GPU sampler", daemon=True).start()

    def stop(self) -> None:
        """End, without waiting for a call of NVML that is under way; its sample is dropped."""
        self._stopped.set()

    def sample(self) -> bool:
        """Measure once; return False if this process can never measure the GPU."""
        nvml, problem = load_nvml()
        if problem is not None:
            self._shown({"id": self._name, "problem": problem})
            return False
        try:
            devices = read_devices(nvml, [self._name])
        except Exception:  # what NVML's wrapper raises when a driver fails; the next sample may succeed
            return True
        gpu = devices.get(self._name)
        if gpu is None or self._stopped.is_set():
            return True
        figures = {name: value for name in FIGURES if (value := getattr(gpu, name)) is not None}
        known = {"id": gpu.uuid or self._name, "model": gpu.model, "total": gpu.total, **figures}
        self._shown({name: value for name, value in known.items() if value not in (None, "")})
        for name, value in figures.items():
            self._record(GPU_SERIES[name], float(value))
        return True

    def _run(self) -> None:
        wait = min(FIRST_SECONDS, self._seconds)
        while not self._stopped.wait(wait):
            if not self.sample():
                return
            wait = self._seconds


def own_gpu(device: str) -> str | None:
    """Return CUDA's name of a GPU of this process, such as the UUID of "GPU:0"; None for a CPU.

    >>> own_gpu("CPU:0")
    """
    kind, _, number = device.partition(":")
    if kind != "GPU":
        return None
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    at = int(number or 0)
    return visible[at] if at < len(visible) else str(at)


def read_devices(nvml: Any, names: Iterable[str]) -> dict[str, Gpu]:
    """Return the devices that NVML knows, by their CUDA names (numbers or UUIDs)."""
    found = {}
    for name in sorted(names):
        try:
            handle = find_device(nvml, name)
        except nvml.NVMLError:  # there is none, or it is lost, or this user may not ask; others are measured
            continue
        if handle is None:
            continue
        memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        use = _or_none(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        milliwatts = _or_none(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        degrees = _or_none(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        listed = _or_none(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        found[name] = Gpu(
            use=None if use is None else int(use.gpu),
            memory=None if memory is None else int(memory.used),
            total=None if memory is None else int(memory.total),
            power=None if milliwatts is None else milliwatts / 1000,
            temperature=None if degrees is None else int(degrees),
            model=_text(_or_none(nvml, nvml.nvmlDeviceGetName, handle)),
            uuid=_text(_or_none(nvml, nvml.nvmlDeviceGetUUID, handle)),
            by_pid={int(one.pid): one.usedGpuMemory for one in listed},
        )
    return found


def find_device(nvml: Any, name: str) -> Any:
    """Return NVML's handle of a device by its CUDA name; None for a number that may be another GPU for CUDA.

    CUDA numbers GPUs from the fastest on, unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and NVML by their place on
    the PCI bus: a number is used only if both orders are the same. Raises NVML's error for a device that it
    does not know.
    """
    if not name.isdecimal():
        return nvml.nvmlDeviceGetHandleByUUID(name)
    handle = nvml.nvmlDeviceGetHandleByIndex(int(name))
    models = set()
    for number in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):  # a lost one
            models.add(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(number)))
    return handle if len(models) <= 1 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else None


def _or_none(nvml: Any, ask: Any, *arguments: Any) -> Any:
    """Return a figure from NVML; None if it has none."""
    try:
        return ask(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


@cache
def load_nvml() -> tuple[Any, str | None]:
    """Return (the initialized library, None), or (None, why it cannot be used). The answer is cached."""
    try:
        import pynvml
    except ImportError:
        return None, 'pynvml is not installed: pip install "nbdist[gpu]"'
    try:
        pynvml.nvmlInit()
    except Exception as error:  # no driver, a wrong version, or no permission
        return None, f"NVML cannot be used here: {error}"
    return pynvml, None
