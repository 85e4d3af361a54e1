"""A side of a benchmark as a script of its own process, which prints one JSON line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.frame import Outcome

ROOT = Path(__file__).parent.parent
NOT_MEASURED = "not measured: "
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class NotThere(Exception):
    """A side has not been written, or cannot run here."""


def not_measured(why: str) -> SystemExit:
    """Return what a script raises if it cannot run here: the reason is printed in place of a figure."""
    return SystemExit(f"{NOT_MEASURED}{why}")


def need_torch(device: str) -> tuple[Any, str]:
    """Return PyTorch and its name of a device, with float32 products that are not rounded to TF32."""
    try:
        import torch
    except ImportError:
        raise not_measured("torch is not installed") from None
    if not device.startswith("GPU"):
        torch.set_num_threads(1)
        return torch, "cpu"
    if not torch.cuda.is_available():
        raise not_measured("torch is installed without CUDA")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return torch, f"cuda:{device.partition(':')[2] or 0}"


def need_jax(device: str) -> Any:
    """Return JAX: in one thread of the CPU, or on a GPU, with float32 products not rounded to TF32."""
    on_gpu = device.startswith("GPU")
    if not on_gpu:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    try:
        import jax
    except ImportError:
        raise not_measured("jax is not installed") from None
    if on_gpu and jax.default_backend() != "gpu":
        raise not_measured("jax is installed without CUDA")
    if on_gpu:
        jax.config.update("jax_default_matmul_precision", "highest")
    return jax


@dataclass(frozen=True)
class Side:
    """One side: ``bench/<module>.py`` of a checkout, run to its end by an interpreter."""

    python: str
    module: str
    arguments: tuple[object, ...] = ()
    timeout: float = 300
    root: Path = ROOT

    def __call__(self) -> Outcome:
        """Run the script; return the JSON object on the last line of its output."""
        if not (self.root / "bench" / f"{self.module}.py").is_file():
            raise NotThere(f"bench/{self.module}.py is not written yet")
        process = subprocess.Popen(
            [self.python, "-m", f"bench.{self.module}", *map(str, self.arguments)],
            cwd=self.root,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": python_path(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that a script that hangs can be ended with everything it started
        )
        try:
            output, errors = process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise NotThere(f"bench/{self.module}.py did not end within {self.timeout:g} s") from None
        if (last := errors.strip().rpartition("\n")[2]).startswith(NOT_MEASURED):
            raise NotThere(last.removeprefix(NOT_MEASURED))
        if process.returncode or not output.strip():
            raise NotThere(f"bench/{self.module}.py failed:\n{errors[-2000:]}")
        result: Outcome = json.loads(output.strip().splitlines()[-1])
        return result


def here(module: str, *arguments: object, timeout: float = 300) -> Side:
    """Return the side that this interpreter runs: nbdist, and peers that it depends on itself (the same
    NumPy, the same ipyparallel)."""
    return Side(sys.executable, module, arguments, timeout)


def elsewhere(module: str, *arguments: object, timeout: float = 300) -> Side:
    """Return the side that NBDIST_PEERS_PYTHON runs, or this interpreter."""
    return Side(os.environ.get("NBDIST_PEERS_PYTHON", sys.executable), module, arguments, timeout)


def python_path(root: Path = ROOT) -> str:
    """Return where a script finds modules: its checkout first, then where this process does."""
    return os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
