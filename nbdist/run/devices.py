"""On which devices a training ran: from where its replicas' arrays were, not from what was asked for.

    run.trained_on      # 'worker 0: NVIDIA H100 80GB HBM3 GPU-8f3a… (GPU:0), 2 workers on CPU (8 cores)'
    run.devices         # {'/job:worker/task:0': ['GPU:0'], ...}

Each replica reports the devices of its parameters' arrays when its training begins (`see_arrays`). A worker
with a GPU whose arrays were in host memory gets a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist.run.progress import ReplicaStanding
from nbdist.runtime.task import TaskInfo

MOST_NAMED = 8  # replicas on GPUs that are named; of more, the models are counted
SHORT = 8  # characters of a GPU's UUID that a line shows


@dataclass(frozen=True)
class ReplicaDevice:
    """Where a replica trained.

    - ``task``: its name, such as /job:worker/task:0
    - ``devices``: of its arrays, such as ("GPU:0",); empty if it has not trained, or not said where
    - ``assigned``: the device that its task was started with
    - ``gpu``, ``model``: UUID and name of its GPU, as far as they are known
    - ``total``: the bytes of its GPU's memory, 0 if unknown
    - ``cores``: how many its process may use; ``host``: the identity of its host
    """

    task: str
    devices: tuple[str, ...] = ()
    assigned: str = "CPU:0"
    gpu: str = ""
    model: str = ""
    total: int = 0
    cores: int = 0
    host: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether any of its arrays was on a GPU."""
        return any(device.startswith("GPU") for device in self.devices)

    @property
    def known_gpu(self) -> dict[str, Any]:
        """What is known of its GPU, by the names that a sample has; empty without one."""
        known = {"id": self.gpu, "model": self.model, "total": self.total}
        return known if self.gpu and self.assigned.startswith("GPU") else {}

    @property
    def name(self) -> str:
        """Its task's name in two words."""
        job, _, index = self.task.removeprefix("/job:").partition("/task:")
        return f"{job} {index}".strip()

    def to_config(self) -> dict[str, Any]:
        """Return plain values for run.json."""
        return {**vars(self), "devices": list(self.devices)}

    @classmethod
    def from_config(cls, entries: object) -> ReplicaDevice | None:
        """Return what `to_config` described; None for invalid values, as of another version."""
        found = entries if isinstance(entries, Mapping) else {}
        texts = {name: found.get(name, "") for name in ("task", "assigned", "gpu", "model", "host")}
        numbers = {name: found.get(name, 0) for name in ("total", "cores")}
        devices = found.get("devices")
        if not isinstance(devices, list) or not all(
            isinstance(one, str) for one in [*devices, *texts.values()]
        ):
            return None
        if not all(isinstance(one, int) for one in numbers.values()):
            return None
        return cls(devices=tuple(devices), **texts, **numbers)


def replica_devices(
    tasks: Sequence[str], infos: Sequence[TaskInfo], replicas: Sequence[ReplicaStanding]
) -> list[ReplicaDevice]:
    """Return where each replica trains; ``infos`` are the tasks of the cluster."""
    known = {info.name: info for info in infos}
    found = []
    for task, replica in zip(tasks, replicas, strict=False):
        info, gpu = known.get(task), replica.gpu or {}
        found.append(
            ReplicaDevice(
                task,
                tuple(replica.devices),
                info.device if info is not None and info.device else "CPU:0",
                str(gpu.get("id", "")),
                str(gpu.get("model", "")),
                int(gpu.get("total") or 0),
                replica.cores,
                info.host if info is not None else "",
            )
        )
    return found


def trained_on(replicas: Iterable[ReplicaDevice]) -> str:
    """Return one line that says where the replicas trained; empty if none has said so.

    >>> trained_on([ReplicaDevice("/job:worker/task:0", ("CPU:0",), cores=8, host="a")] * 3)
    '3 workers on CPU (8 cores)'
    >>> trained_on([ReplicaDevice("/job:worker/task:1", ("GPU:0",), "GPU:0", "GPU-8f3a91bc", "NVIDIA H100")])
    'worker 1: NVIDIA H100 GPU-8f3a… (GPU:0)'
    """
    there = [one for one in replicas if one.devices]
    on_gpu, on_cpu = [one for one in there if one.on_gpu], [one for one in there if not one.on_gpu]
    parts = [f"{one.name}: {_gpu_text(one)}" for one in on_gpu]
    if len(on_gpu) > MOST_NAMED:
        models: dict[str, int] = {}
        for one in on_gpu:
            models[one.model or "GPU"] = models.get(one.model or "GPU", 0) + 1
        parts = [f"{_counted(count, on_gpu)} on {model}" for model, count in models.items()]
    if on_cpu:
        cores = sum({one.host: one.cores for one in on_cpu}.values())
        hosts = len({one.host for one in on_cpu})
        several = f" on {hosts} hosts" if hosts > 1 else ""
        how_many = f" ({cores} {'core' if cores == 1 else 'cores'}{several})" if cores else ""
        parts.append(f"{_counted(len(on_cpu), on_cpu)} on CPU{how_many}")
    return ", ".join(parts)


def device_warning(replicas: Iterable[ReplicaDevice]) -> str:
    """Return a warning about replicas that have a GPU and train on the CPU, with the remedy; else "".

    >>> device_warning([ReplicaDevice("/job:worker/task:0", ("CPU:0",), "GPU:0", "GPU-8f3a91bc")])[:57]
    'worker 0 has GPU-8f3a… and trains on the CPU: the body or'
    """
    wrong = [one for one in replicas if one.assigned.startswith("GPU") and one.devices and not one.on_gpu]
    if not wrong:
        return ""
    named = ", ".join(f"{one.name} has {_short(one) or one.assigned}" for one in wrong[:4])
    more = f" and {len(wrong) - 4} more have GPUs" if len(wrong) > 4 else ""
    verb = "trains" if len(wrong) == 1 else "train"
    return (
        f"{named}{more} and {verb} on the CPU: the body or its strategy names a CPU. Name "
        f"{wrong[0].assigned} there, or no device; a cluster with --gpus none leaves the GPU to others"
    )


def _gpu_text(one: ReplicaDevice) -> str:
    gpus = [device for device in one.devices if device.startswith("GPU")]
    named = " ".join(filter(None, [one.model, _short(one)]))
    devices = " + ".join(one.devices if len(one.devices) > len(gpus) else gpus)
    return f"{named} ({devices})" if named else devices


def _short(one: ReplicaDevice) -> str:
    """Return the beginning of a GPU's UUID; empty for one that is known by its number only."""
    if not one.gpu or one.gpu.isdecimal():
        return ""
    return one.gpu if len(one.gpu) <= SHORT + 1 else f"{one.gpu[:SHORT]}…"


def _counted(count: int, replicas: Sequence[ReplicaDevice]) -> str:
    jobs = {one.name.partition(" ")[0] for one in replicas}
    job = jobs.pop() if len(jobs) == 1 else "replica"
    return f"{count} {job}" + ("" if count == 1 else "s")
