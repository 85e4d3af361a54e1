"""The checks of `make gpu`, rehearsed with NumPy, so that they run when a GPU is at hand."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cupy import FakeCupy, bytes_made
from fake_nccl import FakeNccl
from tiers import exhaustive

from nbdist.graph import backend

OTHERS = (
    "strategies on a worker", "strategies on a shared GPU", "torch: fit", "torch: fit on a shared GPU",
    "torch: settings and loops", "torch: steering", "torch: cells", "jax: fit", "jax: fit on a shared GPU",
    "jax: cells", "keras on torch", "keras on jax",
)  # fmt: skip
"""Checks that take long, and are tested elsewhere as trainings on CPUs."""
SCRIPT = Path(__file__).parent.parent / "scripts" / "gpu_check.py"


@pytest.mark.engines
@pytest.mark.timeout(400)
def test_every_check_that_needs_no_gpu_passes(tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    tests = "tests/wire/collective/test_collective_nccl_gpu.py"  # one that is skipped without a GPU
    command = [sys.executable, str(SCRIPT), "--on-cpu", "--report", str(report)]
    command += ["--benchmarks", "g2", "--tests", tests, "--leave-out", *OTHERS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    text = report.read_text()
    assert text.splitlines()[1].startswith("REHEARSAL WITHOUT A GPU")
    assert "both sides computed the same" in text
    assert "profile: not measured: nsys" in text
    lines = [line for line in report.read_text().splitlines() if line.startswith(("PASS", "FAIL"))]
    assert [line.partition(":")[0] for line in lines] == [
        "PASS ops", "PASS program", "PASS fit on one device", "PASS fit on all devices",
        "PASS fit in mixed precision", "PASS cluster and NCCL", "PASS sessions and Estimators",
        "PASS a run, seen and steered", "PASS tests that need a GPU",
    ]  # fmt: skip


@exhaustive  # the frame of checks is the same as above, the trainings are those of tests/frameworks
@pytest.mark.engines
@pytest.mark.frameworks
@pytest.mark.timeout(400)
def test_the_checks_of_torch_pass_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--on-cpu", "--report", str(tmp_path / "report.txt"), "--only"]
    command += ["torch: settings and loops"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_all_cases_of_a_check_run_though_one_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    run_all = importlib.import_module("gpu_machine").run_all
    assert run_all({"a": lambda: "0.1 s", "b": lambda: ""}) == "a 0.1 s, b"
    with pytest.raises(RuntimeError, match="1 of 2: a: ZeroDivisionError: division by zero"):
        run_all({"a": lambda: 1 / 0, "b": lambda: "0.2 s"})
    said = capsys.readouterr()
    assert "b 0.2 s" in said.out
    assert "Traceback" in said.err


def test_a_check_that_does_not_exist_is_an_error_that_lists_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module("gpu_check").main(["--on-cpu", "--only", "torch"])
    assert "no check 'torch'; they are cuda, ops" in capsys.readouterr().err


def test_without_a_gpu_the_script_says_so_and_writes_no_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module("gpu_check").main(["--report", str(tmp_path / "report")])
    assert "no GPU that this process may use" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_check_of_several_gpus_requires_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    module, nccl = FakeCupy(), FakeNccl()
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
    gpu_check = importlib.import_module("gpu_check")
    machine = gpu_check.Machine(module)
    bytes_made.clear()
    assert "all-reduce by nccl" in gpu_check.check_fit(machine, machine.devices)
    assert "in float32" in gpu_check.check_mixed_precision(machine)
    with pytest.raises(RuntimeError, match="nothing was computed on GPU 2"):
        gpu_check.check_fit(machine, ["GPU:0", "GPU:1", "GPU:1"])
    monkeypatch.setattr(nccl, "available", False)
    with pytest.raises(RuntimeError, match="all-reduce local, not nccl"):
        gpu_check.check_fit(machine, machine.devices)


def test_the_check_of_kernels_passes_on_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    module = FakeCupy()
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    gpu_check = importlib.import_module("gpu_check")
    assert gpu_check.check_kernels(gpu_check.Machine(module)).startswith("dropout, 9 optimizers")


def test_the_check_of_cuda_graphs_passes_on_a_stand_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    module = FakeCupy()
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    monkeypatch.setitem(sys.modules, "cupy", module)
    gpu_check = importlib.import_module("gpu_check")
    found = gpu_check.check_capture(gpu_check.Machine(module))
    assert "runs as 1 CUDA graph; not recorded: 2 calls of matmul" in found
    assert "runs as" in capsys.readouterr().out  # `fit` says it, too
