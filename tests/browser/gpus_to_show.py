"""What a notebook's cell imports to show GPUs that are not there: a fake NVML, measured by real samplers."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from fake_pynvml import FakeNvml, NVMLError_NotSupported

from nbdist.data import InputPipeline, StageReading
from nbdist.metrics.gpu_usage import GpuSampler, load_nvml
from nbdist.metrics.store import RunStore
from nbdist.run.devices import ReplicaDevice, device_warning, trained_on
from nbdist.ui.gpus import Gpus, gpus_over_time
from nbdist.ui.input_pipeline import input_shown

BEGAN = 1_764_000_000.0  # seconds since 1970
UUIDS = ("GPU-8f3a91bc-53f0-4a0e-9d4a-1f6c7e2b9a10", "MIG-91bc07d2-6a4e-5b1f-8c3d-2e7f9a0b4c5d")


def slow_input() -> dict[str, Any]:
    """Return the input pipeline of a training that waits for a map."""
    stages = (
        StageReading("from_arrays", "from_arrays", (), 40_000, 0.01),
        StageReading("shuffle", "shuffle(10000)", (0,), 40_000, 0.3),
        StageReading("map", "map(decode_and_augment_the_image)", (1,), 40_000, 9.6, 5.1, 1, False, 2, 0.2),
        StageReading("batch", "batch(100)", (2,), 400, 0.8),
        StageReading("prefetch", "prefetch(auto)", (3,), 400, 0.0, 6.1, 0, False, 8, 0.4, True),
    )
    pipeline = InputPipeline(stages, 400, 10.0, 6.1, 8, training=True)
    shown = input_shown({1: pipeline.to_config()}, [f"/job:worker/task:{n}" for n in range(3)])
    assert shown is not None
    return shown


class Gpus3:
    """Three workers: one with a GPU, one with a MIG slice (memory alone), one whose GPU is not used."""

    def __init__(self, store: RunStore) -> None:
        self.store, self.samples = store, {}  # type: RunStore, dict[int, dict[str, Any]]
        self.nvml = FakeNvml()
        self.step = 0

    def measure(self, count: int, seconds: float = 1.0) -> Gpus:
        """Take ``count`` samples of each GPU, as its task would."""
        sys.modules["pynvml"] = self.nvml.module()
        load_nvml.cache_clear()
        for _ in range(count):
            self.step += 1
            wave = math.sin(self.step / 9)
            busy = self.step % 40 > 6
            self.nvml.use[0] = int(88 + 9 * wave) if busy else 4
            self.nvml.memory = [int((9 + min(self.step, 50)) * 1.2 * 2**30), (6 + self.step % 3) << 30]
            self.nvml.milliwatts[0] = int(1000 * (540 + 90 * wave)) if busy else 120_000
            self.nvml.degrees[0] = int(41 + 26 * (1 - math.exp(-self.step / 30)))
            for replica in (0, 1):
                self._sample(replica, seconds)
        return gpus_over_time(self.store, self.samples)

    def _sample(self, replica: int, seconds: float) -> None:
        def record(series: str, value: float) -> None:
            self.store.extend(replica, series, [self.step], [value], [BEGAN + seconds * self.step])

        self.nvml.fails = {}
        if replica == 1:  # a slice
            names = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature")
            self.nvml.fails = dict.fromkeys(names, NVMLError_NotSupported("Not Supported"))
        found: list[dict[str, Any]] = []
        GpuSampler(f"GPU-{replica}", found.append, record).sample()
        model = found[0]["model"] + (" MIG 1g.10gb" if replica else "")
        self.samples[replica] = {**found[0], "id": UUIDS[replica], "model": model}

    @property
    def devices(self) -> list[ReplicaDevice]:
        """Where the workers train."""
        workers = [f"/job:worker/task:{i}" for i in range(3)]
        on_gpu = [
            ReplicaDevice(workers[i], ("GPU:0",), "GPU:0", UUIDS[i], self.samples[i]["model"]) for i in (0, 1)
        ]
        return [*on_gpu, ReplicaDevice(workers[2], ("CPU:0",), "GPU:0", "GPU-52dd41aa-7", cores=16)]

    @property
    def words(self) -> dict[str, str]:
        """The lines on the devices."""
        return {"trained_on": trained_on(self.devices), "warning": device_warning(self.devices)}
