"""Which GPUs workers get, with a fake of NVIDIA's library, and the check that CuPy computes on them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
from waiting import PATIENCE

from nbdist.cluster import gpus
from nbdist.cluster.gpus import choose_gpus, gpu_problem, list_gpus, require_gpus, visible_devices
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.resources import plan_tasks
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MissingExtra,
    TaskDiedError,
    UnavailableError,
)
from nbdist.home import home


class NVMLError(Exception):
    """The base class of NVML's errors."""


class FakeNvml(ModuleType):
    """NVML with three cards; MIG divides the second one into two slices."""

    NVMLError = NVMLError
    nvmlDeviceGetCount = staticmethod(lambda: 3)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda number: number)
    nvmlDeviceGetMaxMigDeviceCount = staticmethod(lambda card: 7)
    nvmlDeviceGetUUID = staticmethod(lambda device: f"MIG-{device}" if device > 9 else f"GPU-{device}")

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.nvmlInit = self.nvmlShutdown = lambda: None

    @staticmethod
    def nvmlDeviceGetMigMode(card: int) -> tuple[int, int]:
        if card == 0:
            raise NVMLError("Not Supported")
        return (1, 1) if card == 1 else (0, 0)

    @staticmethod
    def nvmlDeviceGetMigDeviceHandleByIndex(card: int, place: int) -> int:
        if place not in (0, 3):
            raise NVMLError("Not Found")
        return 10 * card + place


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr(gpus, "has_driver", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("variable", "names"),
    [
        (None, "GPU-0 MIG-10 MIG-13 GPU-2"),
        ("-1", ""),
        ("2,0", "2 0"),
        ("2, 3", "2"),
        ("MIG-10,MIG-13,GPU-0,GPU-2", "MIG-10 MIG-13 GPU-0 GPU-2"),
    ],
)
def test_gpus_have_uuids_unless_numbers_are_visible(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, names: str
) -> None:
    """NVML counts cards, and a MIG card is used slice by slice, each of which CUDA knows by UUID only."""
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert list_gpus() == tuple(names.split())


def test_a_host_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "has_driver", lambda: False)
    assert list_gpus() == ()
    monkeypatch.setattr(gpus, "_by_nvml", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert list_gpus() == ()


@pytest.mark.usefixtures("nvml")
def test_a_driver_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without GPUs would train on the CPU without a word."""

    def failing() -> None:
        raise NVMLError("Driver/library version mismatch")

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", failing)
    with pytest.raises(UnavailableError, match=r"version mismatch\. Check nvidia-smi; gpus='none' uses"):
        list_gpus()


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("", ""),
        ("-1", ""),
        ("0", "0"),
        ("0,1", "0 1"),
        ("2, 3", "2 3"),
        ("0,-1,1", "0"),
        ("GPU-8f", "GPU-8f"),
    ],
)
def test_what_cuda_visible_devices_leaves(variable: str, names: str) -> None:
    assert visible_devices(variable) == tuple(names.split())


def test_how_many_gpus() -> None:
    present = ("0", "GPU-8f", "5")
    assert choose_gpus("auto", present) == present
    assert choose_gpus("none", present) == choose_gpus(0, present) == ()
    assert choose_gpus(2, present) == choose_gpus("2", present) == ("0", "GPU-8f")
    with pytest.raises(InvalidArgumentError, match="this host has 3 GPUs"):
        choose_gpus(4, present)
    for bad in ("many", -1, "", 1.5, None, True, "GPU-8f,1"):
        with pytest.raises(InvalidArgumentError, match="'auto', 'none', a number, or UUIDs"):
            choose_gpus(bad, present)  # type: ignore[arg-type]


def test_gpus_by_uuid() -> None:
    present = ("GPU-8f1", "MIG-9", "GPU-8f2")
    assert choose_gpus("GPU-8f2,MIG-9", present) == ("GPU-8f2", "MIG-9")
    with pytest.raises(InvalidArgumentError, match="'GPU-8f' names 2 GPUs of this host, which has"):
        choose_gpus("GPU-8f", present)
    with pytest.raises(InvalidArgumentError, match=r"'MIG-7' is not a GPU of this host, which has no GPU"):
        choose_gpus("MIG-7", ())


@pytest.mark.parametrize(("share", "limit"), [(0.004, "0.4%"), (0.125, "12.5%"), (1, "100%")])
def test_a_share_of_memory_is_exact(share: float, limit: str) -> None:
    """0% would be no limit for CuPy."""
    (plan,) = plan_tasks(1, cores=1, gpus=("GPU-1",), gpu_memory=share)
    assert plan.environment["CUPY_GPU_MEMORY_LIMIT"] == limit


def test_gpus_without_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find_spec", lambda name: None)
    require_gpus(())
    with pytest.raises(MissingExtra, match="pip install"):
        require_gpus(["0"])


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("print('{}')", ""),
        ("""print('{"problem": "cudaErrorInsufficientDriver"}')""", "needs driver 580"),
        ("""print('{"problem": "cannot open cuda_fp16.h"}')""", "headers are missing"),
        ("""print('{"problem": "an unknown one"}')""", "an unknown one"),
        ("raise SystemExit(3)", "ended with status 3"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_explained(
    monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    sees_it = "import os; assert os.environ['CUDA_VISIBLE_DEVICES'] == '7'"
    monkeypatch.setattr(gpus, "CHECK", f"{sees_it}\n{code}")
    monkeypatch.setattr(gpus, "_usable", set())
    if problem:
        with pytest.raises(UnavailableError, match=rf"^GPU 7 cannot be used: .*{problem}.*gpus='none'"):
            require_gpus(["7", "7"])
    else:
        require_gpus(["7"])
        monkeypatch.setattr(gpus, "CHECK", "raise SystemExit(3)")
        require_gpus(["7"])  # a child process has checked it


def test_the_first_gpu_is_checked_alone_and_the_others_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's kernel is in the cache before the others need it."""
    together, checked = threading.Barrier(2), []

    def check(gpu: str) -> str:
        checked.append(gpu)
        if gpu in "12":
            together.wait(PATIENCE)
        return {"2": "no driver", "8": "no memory"}.get(gpu, "")

    monkeypatch.setattr(gpus, "gpu_problem", check)
    with pytest.raises(UnavailableError, match="GPU 2 cannot be used: no driver"):
        require_gpus(["0", "1", "0", "2"])
    assert (checked[0], sorted(checked)) == ("0", ["0", "1", "2"])
    with pytest.raises(UnavailableError, match="GPU 8 cannot be used: no memory"):
        require_gpus(["8"])


def test_a_gpu_is_checked_again_once_its_problem_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_usable", set())
    monkeypatch.setattr(gpus, "CHECK", """print('{"problem": "OutOfMemoryError: Out of memory"}')""")
    assert "nvidia-smi" in gpu_problem("7")
    monkeypatch.setattr(gpus, "CHECK", "print('{}')")
    assert gpu_problem("7") == ""


def test_the_check_itself_fails_without_a_gpu() -> None:
    """The real check, with a name that no machine has."""
    assert "CUDARuntimeError" in gpu_problem("GPU-missing")


LOSE_GPU = """
from nbdist.run.task.body import end_without_gpu

class CUDARuntimeError(RuntimeError):
    pass

end_without_gpu("worker 1", CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected"))
"""


@pytest.mark.engines
def test_a_task_whose_gpu_is_lost_gets_another_one(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs that CUDA does not know: no process of the cluster loads it here."""
    monkeypatch.setattr("nbdist.cluster.launch.list_gpus", lambda: ("GPU-a", "GPU-b", "GPU-c"))
    monkeypatch.setattr("nbdist.cluster.launch.require_gpus", lambda names: None)
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    cluster = start_cluster(workers=2, report=None)
    try:
        environment = "import os; [os.environ[n] for n in ('CUDA_VISIBLE_DEVICES', 'CUPY_CACHE_DIR')]"
        kernels = str(home() / "kernels")
        assert cluster.run(environment) == [["GPU-a", kernels], ["GPU-b", kernels]]
        assert os.stat(kernels).st_mode & 0o777 == 0o700
        died = r"because its GPU is lost[\s\S]*worker 1: its GPU is lost: cudaErrorNoDevice"
        said: list[str] = []
        with pytest.raises(TaskDiedError, match=died):
            cluster.run(LOSE_GPU, on=1)
        cluster.restart("worker:1", report=said.append)
        assert "/job:worker/task:1: GPU GPU-b is lost: its process has GPU-c now" in said[-1]
        assert cluster.run(environment, on=1) == [["GPU-c", kernels]]
        with pytest.raises(TaskDiedError, match=died):
            cluster.run(LOSE_GPU, on=1)
        with pytest.raises(FailedPreconditionError, match="GPU-c is lost, and the cluster has no other"):
            cluster.restart("worker:1", report=said.append)
    finally:
        cluster.stop()
