"""A fake pynvml with two devices and configurable errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace


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
    processes: list[dict[int, int | None]] = field(default_factory=lambda: [{}, {}])
    fails: dict[str, Exception] = field(default_factory=dict)
    started: int = 0

    def module(self) -> ModuleType:
        """Return the module for ``import pynvml``."""
        module = ModuleType("pynvml")
        for error in (NVMLError, NVMLError_NotFound, NVMLError_InvalidArgument, NVMLError_NotSupported):
            setattr(module, error.__name__, error)
        for name in (
            "nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID",
            "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetComputeRunningProcesses",
        ):  # fmt: skip
            setattr(module, name, self._failing(name))
        return module

    def _failing(self, name: str) -> object:
        def call(*arguments: object) -> object:
            if name in self.fails:
                raise self.fails[name]
            return getattr(self, name)(*arguments)

        return call

    def nvmlInit(self) -> None:
        self.started += 1

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
        return SimpleNamespace(total=self.total, used=5, free=self.total - 5)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        listed = self.processes[handle].items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in listed]
