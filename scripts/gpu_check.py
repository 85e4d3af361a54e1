"""make gpu: tests, checks, benchmarks and a profile of all that runs on a GPU, and one report file.

    python scripts/gpu_check.py                    # on a machine with a GPU
    python scripts/gpu_check.py --on-cpu           # rehearses it with NumPy: what needs a GPU is left out
    python scripts/gpu_check.py --only "torch: fit" --report torch.txt      # some of the checks

1. The checks, a PASS or FAIL line each: CUDA, its compiler and NCCL; every op and kernel against NumPy; a
   compiled program, also as a CUDA graph; `fit` on one GPU, by NCCL on all of this process, and in float16; a
   cluster with a worker for each GPU, with its environment, cores, memory limit and NCCL; NVML. Then
   trainings on a worker (gpu_trainings.py), and of PyTorch, JAX and Keras (gpu_torch.py, gpu_jax.py), of
   which those that are not installed are left out.
2. The tests that need a GPU.
3. The benchmarks g1 (a step against PyTorch), g2 (all-reduce against NCCL), g3 (training on two GPUs
   against PyTorch's DDP) and g4 (models of PyTorch and JAX on one GPU against their own loops), see
   bench/table_gpu.py. What cannot be measured here is said.
4. Host waits, copies and launches of a step, by Nsight Systems.

The exit status is 1 if a check or a test fails, or if both sides of a benchmark computed different things,
and 2 on a host without a GPU: there is nothing to report then.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_jax
import gpu_torch
import gpu_trainings
import numpy as np
from gpu_machine import Machine, Report, require

import nbdist as nb
from nbdist.cluster.gpus import list_gpus
from nbdist.graph.backend import backend, to_host
from nbdist.graph.compile.capture import SWITCH, notes_to
from nbdist.graph.compile.program import compile_program
from nbdist.graph.op import OPS, Spec
from nbdist.metrics.run_folder import versions
from nbdist.train.callbacks import Callback

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "artifacts" / "gpu-report.txt"
EPOCHS = 8
HIGHEST_SCALE = 2.0**24  # gradients overflow at it


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--on-cpu", action="store_true", help="rehearse the checks with NumPy")
    parser.add_argument("--report", type=Path, default=REPORT, help=f"the report file (default {REPORT})")
    parser.add_argument("--tests", default="tests", help="where to look for tests that need a GPU")
    parser.add_argument("--benchmarks", nargs="*", default=["g1", "g2", "g3", "g4"], help="which to run")
    parser.add_argument("--only", nargs="+", metavar="CHECK", help="run these checks, and nothing else")
    parser.add_argument("--leave-out", nargs="+", metavar="CHECK", default=[], help="leave these checks out")
    options = parser.parse_args(arguments)
    for name in {*(options.only or ()), *options.leave_out} - set(CHECKS):
        parser.error(f"no check {name!r}; they are {', '.join(CHECKS)}")
    if not options.on_cpu and not list_gpus():
        parser.error(
            "this host has no GPU that this process may use (see nvidia-smi -L and CUDA_VISIBLE_DEVICES); "
            "--on-cpu rehearses the checks with NumPy"
        )
    machine = Machine(backend("CPU:0" if options.on_cpu else "GPU:0"))
    report = Report()
    report.say(f"nbdist GPU check, {time.strftime('%Y-%m-%d %H:%M')}, {platform.platform()}")
    if not machine.on_gpu:
        report.say("REHEARSAL WITHOUT A GPU: it shows that this script works, and nothing about a GPU")
    report.say(", ".join(f"{name} {version}" for name, version in versions().items()))
    chosen = [one for one in options.only or CHECKS if one not in options.leave_out]
    for name in chosen:
        if not machine.on_gpu and name in ONLY_ON_GPU:
            continue
        if absent := [one for one in NEEDS.get(name, ()) if importlib.util.find_spec(one) is None]:
            report.say(f"{name} is left out: not installed: {', '.join(absent)}")
        else:
            report.run(name, CHECKS[name], machine)
    if options.only is None:
        report.run("tests that need a GPU", lambda machine: run_tests(options.tests), machine)
        if options.benchmarks:
            run_benchmarks(report, machine, options.benchmarks)
        run_profile(report)
    options.report.parent.mkdir(exist_ok=True)
    options.report.write_text("\n".join(report.lines) + "\n")
    print(f"report: {options.report}")
    return 1 if report.failed else 0


def check_cuda(machine: Machine) -> str:
    """The driver, CUDA's compiler with its headers, and NCCL."""
    xp = machine.xp
    require(float((xp.arange(5, dtype="f4") * 2).sum()) == 20, "a kernel computes another sum")
    nccl = importlib.import_module("cupy.cuda.nccl")
    require(nccl.available, "CuPy finds no NCCL")
    runtime = xp.cuda.runtime
    names = [runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())]
    return f"{', '.join(names)}; driver {runtime.driverGetVersion()}, NCCL {nccl.get_version()}"


def check_ops(machine: Machine) -> str:
    """Every op's examples against NumPy, as a function and into planned memory."""
    sys.path.insert(0, str(ROOT / "tests"))
    from op_inputs import examples_of

    xp, calls, wrong = machine.xp, 0, []
    for name, op in OPS.items():
        for example in examples_of(name):
            specs = [Spec(np.shape(a), np.asarray(a).dtype) for a in example.inputs]
            spec = op.spec(*specs, **example.attrs)
            expected = op.forward(np, *map(np.array, example.inputs), **example.attrs)
            for into in (False, True) if op.into else (False,):
                calls += 1
                given = [xp.array(a) for a in example.inputs]
                try:
                    if op.into and into:
                        found = xp.full(spec.shape, 7, spec.dtype)
                        # Scratch memory is for NumPy's kernels.
                        dtype = op.scratch(*specs, **example.attrs) if op.scratch and xp is np else None
                        scratch = [xp.empty(spec.shape, dtype)] if dtype else []
                        op.into(xp, **example.attrs)(*given, *scratch, found)
                    else:
                        found = op.forward(xp, *given, **example.attrs)
                    require(found.dtype == spec.dtype, f"dtype {found.dtype}, not {spec.dtype}")
                    close = np.allclose(
                        np.asarray(to_host(xp.asarray(found))), expected, rtol=1e-5, atol=1e-8, equal_nan=True
                    )
                    require(close, "other values than NumPy's")
                except Exception as error:
                    wrong.append(f"{name}{' into' if into else ''}: {error}")
    require(not wrong, f"{len(wrong)} of {calls} calls: " + " | ".join(dict.fromkeys(w[:90] for w in wrong)))
    return f"{calls} calls"


def check_kernels(machine: Machine) -> str:
    """Dropout bit for bit, 20 steps of every optimizer, and fused ops in three dtypes, against NumPy."""
    rng, xp = np.random.default_rng(0), machine.xp
    draw = np.array([7, 1, 3, 2**61 - 1], np.int64)
    masks = [
        to_host(
            OPS["dropout_mask"].forward(on, on.zeros((9, 33), "f4"), on.asarray(draw), rate=0.3, number=2)
        )
        for on in (np, xp)
    ]
    require(np.array_equal(masks[0], masks[1]), "dropout keeps other elements")
    for rule in (
        nb.optim.SGD(0.1), nb.optim.SGD(0.1, momentum=0.9), nb.optim.SGD(0.1, momentum=0.9, nesterov=True),
        nb.optim.Adam(0.01), nb.optim.Adam(0.01, amsgrad=True), nb.optim.AdamW(0.01), nb.optim.RMSprop(0.01),
        nb.optim.RMSprop(0.01, momentum=0.5, centered=True), nb.optim.Adagrad(0.1),
    ):  # fmt: skip
        p = rng.normal(size=1000).astype(np.float32)
        slots, ours = rule.new_slots(p), xp.asarray(p)
        theirs = {name: xp.asarray(array) for name, array in slots.items()}
        for step in range(1, 21):
            g = rng.normal(size=1000).astype(np.float32)
            rule.apply(ours, xp.asarray(g), theirs, step)
            rule.apply(p, g, slots, step)
        require(np.allclose(to_host(ours), p, rtol=1e-4, atol=1e-5), f"{rule} has another result")
    for dtype in (np.float16, np.float32, np.float64):
        with nb.Graph().as_default():
            x = nb.placeholder(dtype, (40, 70))
            y = nb.nn.functional.gelu(x - nb.nn.functional.softmax(x))
        batch = rng.normal(size=(40, 70)).astype(dtype)
        found = [
            to_host(compile_program([y], feeds=[x], shapes=[(40, 70)], xp=on)(on.asarray(batch))[0])
            for on in (np, xp)
        ]
        margin = 8 * float(np.finfo(dtype).eps)
        close = np.allclose(found[0], found[1], rtol=margin, atol=margin)
        require(close, f"gelu and softmax in {np.dtype(dtype)} have other values")
    return "dropout, 9 optimizers, fused ops"


def check_program(machine: Machine, **how: Any) -> str:
    """A compiled program with gradients, in several calls."""
    rows = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    with nb.Graph().as_default():
        x = nb.placeholder(np.float32, (64, 32))
        w = nb.Variable(np.full((32, 8), 0.1, np.float32))
        loss = np.mean(np.square(np.tanh(x @ w) - 0.5))
        gradients = nb.gradients(loss, [w])
    results = []
    for xp, options in ((np, {}), (machine.xp, how)):
        values = {w: xp.full((32, 8), 0.1, np.float32)}
        program = compile_program(
            [loss], feeds=[x], shapes=[(64, 32)], values=values, into=gradients, xp=xp, **options
        )
        into = xp.empty((32, 8), np.float32)
        for call in range(4):
            (value,) = program(xp.asarray(rows * (call + 1)), into)
        results.append((float(value), to_host(into)))
    (a, g), (b, h) = results
    require(np.isclose(a, b, rtol=1e-4) and np.allclose(g, h, atol=1e-5), f"loss {b}, not {a}")
    return f"loss {b:.6f}"


def check_capture(machine: Machine) -> str:
    """The same program as CUDA graphs, and `fit` with and without them: weights are equal."""
    notes: list[str] = []
    with notes_to(notes.append):
        found = check_program(machine, capture=True)
    require(len(notes) == 1 and "CUDA graph" in notes[0], f"one note about CUDA graphs, not {notes}")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 16)).astype(np.float32), rng.integers(0, 5, 600)  # the last batch is smaller
    weights, before = [], os.environ.get(SWITCH)
    try:
        for chosen in ("0", "1"):
            os.environ[SWITCH] = chosen
            with nb.distribute.MirroredStrategy(machine.devices[:1]).scope():
                layers = [nb.nn.Dense(64, "gelu"), nb.nn.Dropout(0.3), nb.nn.Dense(5, "softmax")]
                model = nb.nn.Sequential([nb.nn.BatchNorm(), *layers], seed=1)
                model.compile(nb.optim.Adam(0.01), "sparse_categorical_crossentropy")
            model.fit(nb.data.Dataset.from_arrays(x, y).batch(64), epochs=3)
            weights.append(model.get_weights())
    finally:
        os.environ.pop(SWITCH)
        if before is not None:
            os.environ[SWITCH] = before
    for number, (plain, captured) in enumerate(zip(*weights, strict=True)):
        apart = float(np.max(np.abs(plain - captured)))
        require(np.allclose(plain, captured, rtol=1e-3, atol=1e-4), f"weights {number} are {apart} apart")
    return f"{found}; {notes[0]}"


def check_fit(machine: Machine, devices: Sequence[str]) -> str:
    """``fit`` with dropout: each device has computed, and several by NCCL what one of them does."""
    losses, weights, kind, milliseconds, _ = fit(devices)
    require(losses[-1] < losses[0], f"the loss did not fall: {losses}")
    for number in range(len(devices) if machine.on_gpu else 0):
        with machine.xp.cuda.Device(number):
            used = machine.xp.get_default_memory_pool().total_bytes()
        require(used > 0, f"nothing was computed on GPU {number}")
    if len(devices) > 1:
        wanted = "nccl" if machine.on_gpu else "local"
        require(kind == wanted, f"gradients by all-reduce {kind}, not {wanted}")
        apart = max(float(np.max(np.abs(a - b))) for a, b in zip(weights, fit(devices[:1])[1], strict=True))
        require(apart < 1e-4, f"weights are {apart} apart from those of one device")
    return f"{milliseconds:.2f} ms a step{f', all-reduce by {kind}' if kind else ''}"


def check_mixed_precision(machine: Machine) -> str:
    """``fit`` in float16 learns what it does in float32, after steps that overflow and are left out."""
    single, mixed = fit(machine.devices), fit(machine.devices, "mixed_float16")
    require(mixed[4] is not None and 1 < mixed[4] < HIGHEST_SCALE, f"the loss scale is {mixed[4]}")
    apart = abs(mixed[0][-1] - single[0][-1])
    require(apart < 0.05, f"the last loss is {mixed[0][-1]}, and {single[0][-1]} in float32")
    require(all(w.dtype == np.float32 and np.isfinite(w).all() for w in mixed[1]), "weights are not float32")
    of_mixed, of_single = (f"loss {run[0][-1]:.4f} and {run[3]:.2f} ms a step" for run in (mixed, single))
    return f"{of_mixed}; in float32 {of_single}"


class EpochClock(Callback):
    """The times at which epochs have ended; the first one compiles."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self.ends.append(time.perf_counter())


def fit(
    devices: Sequence[str], precision: str = "float32"
) -> tuple[list[float], list[Any], str, float, float | None]:
    """Return losses and weights of ``fit``, the kind of its all-reduce if any, milliseconds a step, and the
    loss scale in mixed precision.
    """
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(512, 64)).astype(np.float32), rng.integers(0, 10, 512)
    with nb.distribute.MirroredStrategy(list(devices)).scope():
        layers = [nb.nn.Dense(256, "relu"), nb.nn.Dropout(0.2), nb.nn.Dense(10, "softmax")]
        model = nb.nn.Sequential(layers, seed=1)
        optimizer = nb.optim.LossScaleOptimizer(nb.optim.SGD(0.01), initial_scale=HIGHEST_SCALE)
        model.compile(optimizer, "sparse_categorical_crossentropy", precision=precision)
    clock, said = EpochClock(), io.StringIO()
    with contextlib.redirect_stdout(said):
        data = nb.data.Dataset.from_arrays(x, y).batch(64)
        losses = model.fit(data, epochs=EPOCHS, callbacks=[clock]).history["loss"]
    found = re.search(r"gradients by all-reduce \((\w+)\)", said.getvalue())
    milliseconds = float(np.median(np.diff(clock.ends))) / (len(x) // 64) * 1e3
    return losses, model.get_weights(), found[1] if found else "", milliseconds, model.loss_scale


ON_WORKER = """
import os
from nbdist.graph.backend import backend

xp, size = backend(nb.task.device), nb.collective.size()
for dtype in ("f2", "f4", "f8", "i8"):
    x = xp.full(1 << 20, nb.collective.rank() + 1.0, dtype)
    total = float(nb.collective.all_reduce(x, "sum")[-1])
    if total != size * (size + 1) / 2:
        raise RuntimeError(f"the sum of {dtype} is {total}")
rows = nb.collective.reduce_scatter(xp.ones((size + 1, 3), "f4"), "sum")  # an uneven share
if float(rows.sum()) != size * rows.size:
    raise RuntimeError(f"reduce_scatter gave {rows}")
limit = xp.get_default_memory_pool().get_limit() if nb.task.device.startswith("GPU") else 0
cores = os.environ.get("NBDIST_CORES", "all")
found = [nb.collective.kind(), nb.task.device, os.environ["CUDA_VISIBLE_DEVICES"], limit, cores]
"""


KILLED = """
import os, signal
from nbdist.graph.backend import backend

x = backend(nb.task.device).ones(1 << 24 if nb.task.device.startswith("GPU") else 1 << 18, "f4")
for step in range({steps}):
    nb.collective.all_reduce(x, "mean", out=x)
if nb.collective.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
nb.collective.all_reduce(x, "mean", out=x)
"""
NOTICED_SECONDS = 10.0


def check_killed_peer(cluster: nb.Cluster) -> str:
    """Kill a worker before the first all-reduce of a group and in the middle; the others must report it."""
    took = []
    for steps in (0, 20):
        begun = time.perf_counter()
        try:
            nb.launch(KILLED.format(steps=steps), cluster=cluster, live=False)
        except nb.errors.TaskDiedError:
            took.append(time.perf_counter() - begun)
        else:
            raise RuntimeError("the death of a worker was not reported")
        require(took[-1] < NOTICED_SECONDS, f"the others waited {took[-1]:.1f} s for a dead worker")
        cluster.restart(report=lambda line: None)
    return f"a killed peer is noticed, after {took[0]:.1f} and {took[1]:.1f} s with 20 calls"


def check_cluster(machine: Machine) -> str:
    """A worker for each GPU, its environment, its memory limit, and NCCL between workers."""
    count = max(len(list_gpus()), 1) if machine.on_gpu else 2
    gpus = "auto" if machine.on_gpu else "none"
    cluster = nb.start_cluster(workers=count, gpus=gpus, gpu_memory=0.5, report=None)
    try:
        run = nb.launch(ON_WORKER, fetch=("found",), cluster=cluster, live=False)
        kind, device, visible, limit, cores = run.results["found"]
        killed = check_killed_peer(cluster) if count > 1 else "one worker: no peer to kill"
    finally:
        cluster.stop()
    require(not machine.on_gpu or count == 1 or kind == "nccl", f"collective {kind}, not nccl")
    if machine.on_gpu:
        half = machine.xp.cuda.runtime.memGetInfo()[1] // 2
        require(device == "GPU:0" and abs(limit - half) <= 1, f"{device}, memory limit {limit}, not {half}")
    first = f"the first has {device} ({visible}), {limit:,} bytes, cores {cores}"
    return f"{count} workers by {kind}; {first}; {killed}"


def check_nvml(machine: Machine) -> str:
    """Use and memory of the GPUs."""
    from nbdist.metrics.process_usage import GpuMonitor

    wanted = {os.getpid(): list_gpus()[0]}
    found, problem = GpuMonitor().poll(wanted)
    require(problem is None, str(problem))
    return str(found[os.getpid()])


def run_tests(folder: str) -> str:
    """The tests with the marker gpu; without a GPU they are skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "gpu", folder]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    lines = ended.stdout.strip().splitlines() or [ended.stderr.strip()]
    require(ended.returncode == 0, "\n".join(lines[-20:]))
    return lines[-1].strip("= ")


def run_benchmarks(report: Report, machine: Machine, names: Sequence[str]) -> None:
    """Run benchmarks; their lines go into the report."""
    command = [sys.executable, "-m", "bench", *names, "--rounds", "5" if machine.on_gpu else "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {} if machine.on_gpu else {"NBDIST_BENCH_REHEARSAL": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            report.say(line.rstrip())
            report.failed += line.startswith("Traceback") or "DIFFERENT RESULTS" in line


def run_profile(report: Report) -> None:
    """Count what a step waits for, by Nsight Systems."""
    sys.path.insert(0, str(ROOT))
    from bench import gpu_profile

    try:
        for line in gpu_profile.report():
            report.say(f"profile: {line}")
    except SystemExit as problem:
        report.say(f"profile: {problem}")


CHECKS: dict[str, Callable[[Machine], object]] = {
    "cuda": check_cuda,
    "ops": check_ops,
    "kernels": check_kernels,
    "program": check_program,
    "CUDA graph": check_capture,
    "fit on one device": lambda machine: check_fit(machine, machine.devices[:1]),
    "fit on all devices": lambda machine: check_fit(machine, machine.devices),
    "fit in mixed precision": check_mixed_precision,
    "cluster and NCCL": check_cluster,
    "NVML": check_nvml,
    **gpu_trainings.CHECKS,
    **gpu_torch.CHECKS,
    **gpu_jax.JAX_CHECKS,
    **gpu_jax.KERAS_CHECKS,
}
NEEDS = {
    **dict.fromkeys(gpu_torch.CHECKS, ("torch",)),
    **dict.fromkeys(gpu_jax.JAX_CHECKS, ("jax",)),
    "keras on torch": ("keras", "torch"),
    "keras on jax": ("keras", "jax"),
}
"""The packages that checks need beside nbdist's own."""
ONLY_ON_GPU = {"cuda", "kernels", "CUDA graph", "NVML"}

if __name__ == "__main__":
    sys.exit(main())
