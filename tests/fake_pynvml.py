"""A fake pynvml with two devices and configurable errors; calls are bound to the installed one's signatures.

The package nvidia-ml-py can be imported without a GPU and without a driver.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

try:
    import pynvml as installed
except ImportError:  # calls are not checked then; the extra `test` has it
    FUNCTIONS: dict[str, Any] = {}
    NVML_TEMPERATURE_GPU = 0
else:
    FUNCTIONS = {name: one for name, one in vars(installed).items() if inspect.isfunction(one)}
    NVML_TEMPERATURE_GPU = installed.NVML_TEMPERATURE_GPU


class NVMLError(Exception):
    """The base class of NVML's errors."""


class NVMLError_NotFound(NVMLError):
    """No such device."""


class NVMLError_InvalidArgument(NVMLError):
    """Invalid device name."""


class NVMLError_NotSupported(NVMLError):
    """The device has no such figure."""


@dataclass
class FakeNvml:
    """The devices' figures; ``fails`` maps functions to the errors that they raise."""

    use: list[int] = field(default_factory=lambda: [10, 90])
    total: int = 80 << 30
    memory: list[int] = field(default_factory=lambda: [5 << 30, 40 << 30])
    milliwatts: list[int] = field(default_factory=lambda: [98_500, 612_000])
    degrees: list[int] = field(default_factory=lambda: [41, 67])
    processes: list[dict[int, int | None]] = field(default_factory=lambda: [{}, {}])
    fails: dict[str, Exception] = field(default_factory=dict)
    models: list[str] = field(default_factory=lambda: ["NVIDIA H100 80GB HBM3"] * 2)
    started: int = 0

    def module(self) -> ModuleType:
        """Return the module for ``import pynvml``."""
        module = ModuleType("pynvml")
        module.NVML_TEMPERATURE_GPU = NVML_TEMPERATURE_GPU  # type: ignore[attr-defined]
        for error in (NVMLError, NVMLError_NotFound, NVMLError_InvalidArgument, NVMLError_NotSupported):
            setattr(module, error.__name__, error)
        for name in (
            "nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID",
            "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature",
            "nvmlDeviceGetName", "nvmlDeviceGetUUID",
        ):  # fmt: skip
            setattr(module, name, self._failing(name))
        return module

    def _failing(self, name: str) -> object:
        def call(*arguments: Any) -> object:
            if FUNCTIONS:
                inspect.signature(FUNCTIONS[name]).bind(*arguments)
            if name in self.fails:
                raise self.fails[name]
            return getattr(self, name)(*arguments)

        return call

    def nvmlInit(self) -> None:
        self.started += 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.use)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if not 0 <= index < len(self.use):
            raise NVMLError_InvalidArgument("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        if name not in ("GPU-0", "GPU-1"):
            raise NVMLError_NotFound("Not Found")
        return int(name[4:])

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.use[handle], memory=3)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        used = self.memory[handle]
        return SimpleNamespace(total=self.total, used=used, free=self.total - used)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self.milliwatts[handle]

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == NVML_TEMPERATURE_GPU
        return self.degrees[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.models[handle]

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        listed = self.processes[handle].items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in listed]
