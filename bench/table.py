"""The benchmarks, in the order and with the bars of the project's performance goals."""

from __future__ import annotations

from bench import between_hosts, hosts_start, many_hosts
from bench.allreduce_work import SIZES
from bench.frame import Bar, Benchmark, Goal, Survey, close
from bench.input_work import WORKS
from bench.script import elsewhere, here
from bench.table_gpu import GPU_BENCHMARKS, REHEARSAL
from bench.table_sweep import SWEEPS
from nbdist.wire.collective.nccl import has_driver

# Both sides make the same number of updates on the same data from the same weights. Asynchronous workers
# apply them in a different order each time, which changes the figures in the third digit.
TRAINED = close(0.02)
EXACT = close(1e-4)

LINK_BARS = {
    **dict.fromkeys(between_hosts.RINGS, Bar(">=", 0.9, "figure")),
    between_hosts.SERVED: Bar(">=", 0.8, "figure"),
    "predicted": Bar("<=", 0.2, "figure"),
}

BENCHMARKS: list[Benchmark | Survey] = [
    *(
        Benchmark(
            f"p1.tensorflow-{workers}",
            f"asynchronous parameter server, 784-100-10 sigmoid, batch 100, 1 ps, {workers} worker(s)",
            "steps/s",
            "TensorFlow",
            here("nbdist_async_ps", "--workers", workers, "--value", "rate"),
            elsewhere("tensorflow_async_ps", "--workers", workers),
            Bar(">=", 5) if workers == 3 else None,
            TRAINED,
        )
        for workers in (3, 2, 1)
    ),
    Benchmark(
        "p1.cores",
        "the same, 3 workers, against all cores doing nothing but plain NumPy steps",
        "steps/s",
        "cores / NumPy step",
        here("nbdist_async_ps", "--workers", 3, "--value", "rate"),
        here("numpy_mlp", "--value", "rate-of-all-cores", "--updates", 3 * 1050),
        Bar(">=", 0.75),
        TRAINED,
    ),
    Benchmark(
        "p2",
        "asynchronous parameter server step, 1 worker, over the plain step",
        "ms/step",
        "NumPy",
        here("nbdist_async_ps", "--workers", 1, "--value", "step"),
        here("numpy_mlp", "--value", "step", "--updates", 1050),
        Bar("<=", 1.25),
        TRAINED,
    ),
    Benchmark(
        "price.recovery-ps",
        "what recovery costs when nothing fails: p1 with 2 workers, over the same with --max-restarts 0",
        "steps/s",
        "without recovery",
        here("nbdist_async_ps", "--workers", 2, "--value", "rate"),
        here("nbdist_async_ps", "--workers", 2, "--value", "rate", "--max-restarts", 0),
        Bar(">=", 0.99),
        TRAINED,
    ),
    Benchmark(
        "price.recovery-multi_worker",
        "what recovery costs when nothing fails: the MLP of p4, over the same with --max-restarts 0",
        "images/s",
        "without recovery",
        here("nbdist_multi_worker", "--work", "mlp"),
        here("nbdist_multi_worker", "--work", "mlp", "--max-restarts", 0),
        Bar(">=", 0.99),
        EXACT,
    ),
    *(
        Benchmark(
            f"ps.replicas-{workers}",
            f"the same on 2 ps with a replica of each, over the same without, {workers} worker(s)",
            "steps/s",
            "without replicas",
            here("nbdist_async_ps", "--workers", workers, "--ps", 2, "--ps-replicas", 1, "--value", "rate"),
            here("nbdist_async_ps", "--workers", workers, "--ps", 2, "--value", "rate"),
            None,
            TRAINED,
        )
        for workers in (2, 1)
    ),
    *(
        Benchmark(
            f"data.service-{tasks}",
            f"a slow Python map, 1 worker on one core: {tasks} data task(s), against none",
            "examples/s",
            "without data tasks",
            here("nbdist_data_service", "--data", tasks),
            here("nbdist_data_service"),
            None,
        )
        for tasks in (1, 2)
    ),
    *(
        Benchmark(
            f"{key}.{peer.split('_')[0]}",
            f"synchronous, {what}, batch 50 for each of 2 workers",
            "images/s",
            name,
            here("nbdist_multi_worker", "--work", work),
            elsewhere(peer, "--work", work),
            Bar(">=", bar),
            close(2e-3) if work == "cnn" else EXACT,  # Adam turns rounding into steps
        )
        for key, work, what, bars in (
            (
                "p3",
                "cnn",
                "28x28 CNN (Conv 32, Conv 64, max pool, Dense 64, Dense 10), Adam amsgrad",
                (1.4, 0.9),
            ),
            ("p4", "mlp", "784-100-10 sigmoid, SGD", (20, 4)),
        )
        for (peer, name), bar in zip(
            (
                ("tensorflow_multi_worker", "TensorFlow, MultiWorkerMirroredStrategy"),
                ("torch_data_parallel", "PyTorch, DistributedDataParallel over gloo"),
            ),
            bars,
        )
    ),
    *(
        Benchmark(
            f"p15.{work}",
            f"a PyTorch module, {what}, batch 50 for each of 2 workers, multi_worker",
            "images/s",
            "PyTorch, DistributedDataParallel over gloo",
            here("nbdist_torch", "--work", work),
            here("torch_data_parallel", "--work", work),
            Bar(">=", bar),
            close(2e-3) if work == "cnn" else EXACT,
        )
        for work, what, bar in (("cnn", "the CNN of p3", 1.05), ("mlp", "the MLP of p4", 1.5))
    ),
    *(
        Benchmark(
            f"p15.plain-{work}",
            "DistributedDataParallel over gloo, as it is: in our cell, against torchrun",
            "images/s",
            "torchrun",
            here("nbdist_torch", "--work", work, "--plain"),
            here("torchrun_data_parallel", "--work", work),
            Bar(">=", 0.98),
            EXACT,
        )
        for work in ("cnn", "mlp")
    ),
    Benchmark(
        "p16",
        "gradients of a PyTorch module to an asynchronous parameter server, the MLP of p1, 1 ps, 3 workers",
        "steps/s",
        "TensorFlow",
        here("nbdist_torch", "--work", "ps"),
        elsewhere("tensorflow_async_ps", "--workers", 3),
        Bar(">=", 3),
        TRAINED,
    ),
    Benchmark(
        "p5.mlp",
        "one-device step, 784-100-10 sigmoid, batch 100, SGD, through our graph",
        "ms/step",
        "NumPy by hand",
        here("nbdist_mlp", "--updates", 2050),
        here("numpy_mlp", "--value", "step", "--updates", 2050),
        Bar("<=", 1.10),
        EXACT,
    ),
    Benchmark(
        "p5.cnn",
        "one-device step, 28x28 CNN (Conv 32, Conv 64, max pool, Dense 64, Dense 10), batch 50, Adam amsgrad",
        "ms/step",
        "PyTorch, one thread",
        here("nbdist_cnn", "--updates", 60),
        elsewhere("torch_cnn", "--updates", 60),
        Bar("<=", 1.25),
        close(1e-3),
    ),
    *(
        Benchmark(
            f"jax.{work}",
            f"one device, {what}, SGD, batch 100: fit of a function of JAX",
            "images/s",
            "plain JAX, one jitted step with donated parameters",
            here("nbdist_jax_step", "--work", work, "--warm-up", warm_up, "--steps", steps),
            elsewhere("jax_step", "--work", work, "--warm-up", warm_up, "--steps", steps),
            Bar(">=", 0.95),
            close(1e-3) if work == "cnn" else EXACT,
        )
        for work, what, warm_up, steps in (
            ("cnn", "the CNN of p3", 2, 10),
            ("mlp", "the MLP of p4", 50, 1000),
        )
    ),
    Benchmark(
        "overhead.program",
        "200 small ops as one program: what a call costs above NumPy's own",
        "µs/op",
        "NumPy calls with out=, by hand",
        here("nbdist_calls"),
        here("numpy_calls"),
        Bar("<=", 1.5, "difference"),
        EXACT,
    ),
    Benchmark(
        "overhead.session",
        "the same through Session.run, in this process",
        "µs/op",
        "NumPy calls with out=, by hand",
        here("nbdist_calls", "--through", "session"),
        here("numpy_calls"),
        Bar("<=", 1.5, "difference"),
        EXACT,
    ),
    *(
        Benchmark(
            f"p6.{peer}-{size}-{ranks}{'-symmetric' * symmetric}",
            f"all-reduce of {size} of float32 in place, {ranks} ranks on one host"
            + ", in a symmetric buffer of nbdist, as its buckets are" * symmetric,
            "us/call",
            name,
            here("nbdist_allreduce", "--ranks", ranks, "--bytes", nbytes, *["--symmetric"] * symmetric),
            elsewhere(f"{peer}_allreduce", "--ranks", ranks, "--bytes", nbytes),
            Bar("<=", bar),
            EXACT,
        )
        for peer, name, bars in (
            ("gloo", "PyTorch, gloo", (0.1, 0.1, 0.1, 0.2, 0.4)),
            ("mpich", "MPICH, mpi4py", (1, 1, 1, 1, 1)),
        )
        for symmetric in (False, True)
        for ranks in (2, 4)
        for (size, nbytes), bar in zip(SIZES.items(), bars)
    ),
    *(
        Benchmark(
            f"p6.mpi-{size}-2",
            f"all-reduce of {size} of float32 in place by kind mpi, 2 ranks on one host",
            "us/call",
            "MPICH, mpi4py",
            here("nbdist_mpi_allreduce", "--ranks", 2, "--bytes", SIZES[size]),
            elsewhere("mpich_allreduce", "--ranks", 2, "--bytes", SIZES[size]),
            Bar("<=", 2),
            EXACT,
        )
        for size in ("4KB", "1MB", "40MB")
    ),
    *(
        Benchmark(
            f"chain.{value}",
            f"the gradient of gelu(x + bias) for 8192 x 512 floats, in blocks: {value}",
            unit,
            "each op whole",
            here("nbdist_chain", "--value", value),
            here("nbdist_chain", "--value", value, "--whole"),
            Bar("<=", bar),
            EXACT,
        )
        for value, unit, bar in (("time", "ms", 1.0), ("memory", "MB", 0.25))
    ),
    *(
        Benchmark(
            f"p7.{work}",
            what,
            "us/step",
            "TensorFlow",
            here("nbdist_in_graph", "--work", work),
            elsewhere("tensorflow_in_graph", "--work", work),
            Bar("<=", bar),
            close(1e-3),
        )
        for work, what, bar in (
            ("scalar", "in-graph: a scalar from task 0 to task 1 and back, client on task 0", 0.3),
            ("product", "in-graph: feed 4 MB, product of 1000x1000 on the other task, fetch", 0.8),
        )
    ),
    Benchmark(
        "p11.step",
        "training step on 1,000 rows of a 10,000,000 x 20 embedding over 3 ps",
        "ms/step",
        "the same with 100,000 rows",
        here("nbdist_embedding"),
        here("nbdist_embedding", "--rows", 100_000),
        Bar("<=", 1.1),
    ),
    Benchmark(
        "p11.memory",
        "growth of all tasks' peak memory in that training",
        "bytes",
        "the table itself",
        here("nbdist_embedding", "--value", "memory"),
        lambda: {"value": 10_000_000 * 20 * 4, "check": {"the loss fell": True}},
        Bar("<=", 1.1),
    ),
    Benchmark(
        "p8.ipyparallel",
        "bring-up of 4 tasks until the first training step",
        "s",
        "ipyparallel as it comes",
        here("nbdist_start"),
        here("ipyparallel_start"),
        Bar("<=", 0.4),
    ),
    Benchmark(
        "p8.ray",
        "bring-up of 4 tasks until the first training step",
        "s",
        "Ray, 4 actors",
        here("nbdist_start"),
        elsewhere("ray_start"),
        Bar("<=", 0.8),
    ),
    *(
        Benchmark(
            f"push.{key}",
            "1 GiB of arrays from the notebook to 4 workers of its host, until each has read all of them",
            "s",
            name,
            here("nbdist_push"),
            peer,
            Bar("<=", bar),
        )
        for key, name, peer, bar in (
            ("ipyparallel", "ipyparallel, push", here("ipyparallel_push"), 0.33),
            ("ray", "Ray, put and 4 gets", elsewhere("ray_push"), 1.2),
        )
    ),
    *(
        Benchmark(
            f"p9.{name}",
            f"a cell on 4 engines that does nothing{what}, from its request until the kernel is idle",
            "ms",
            "%%px, ipyparallel as it comes",
            here("cell", "--with", "distribute", *ours),
            here("cell", "--with", "px"),
            Bar("<=", 1.2),
        )
        for name, what, ours in (
            ("live", ", with the live view", []),
            ("no-live", ", with --no-live", ["--flags=--no-live"]),
        )
    ),
    Benchmark(
        "p15.cell",
        "a cell on 4 engines that does nothing, with --framework torch --no-live",
        "ms",
        "a cell of ours without --framework",
        here("cell", "--with", "distribute", "--flags=--no-live --framework torch"),
        here("cell", "--with", "distribute", "--flags=--no-live"),
        Bar("<=", 5, "difference"),
    ),
    Benchmark(
        "p9.print",
        "a cell on 4 engines that prints a line, with the live view, until the kernel is idle",
        "ms",
        "%%px, ipyparallel as it comes",
        here("cell", "--with", "distribute", "--body", "print"),
        here("cell", "--with", "px", "--body", "print"),
        Bar("<=", 1.2),
    ),
    *SWEEPS,
    Survey(
        "p12",
        "8 tasks that record 1,000 points a second each, on their way to disk and to a page",
        (
            Goal("points lost on disk", "", Bar("<=", 0, "figure")),
            Goal("step time, recorded against not", "%", Bar("<=", 101, "figure")),
            Goal("the same, medians", "%", None),
            Goal("messages to the browser", "a second", Bar("<=", 12, "figure")),
            Goal("CPU of the kernel", "% of a core", Bar("<=", 5, "figure")),
            Goal("points recorded", "a second and task", None),
        ),
        here("points_flow", timeout=600),
    ),
    Survey(
        "p13",
        "64 replicas of 100 points a second in a live view in JupyterLab, 10 minutes (BENCH_MINUTES)",
        (
            Goal("time in tasks over 50 ms", "%", Bar("<=", 1, "figure")),
            Goal("heap growth", "MB", Bar("<=", 20, "figure")),
            Goal("longest task", "ms", None),
            Goal("frames", "a second", None),
            Goal("main thread busy", "%", None),
        ),
        here("page_flow", timeout=3600),
        most=1,
    ),
    Survey(
        "reload",
        "a page is loaded anew, 20 s into a run of 16 replicas: until the curve is there again, to its end",
        (
            Goal("curve back", "s after the notebook is there", Bar("<=", 2, "figure")),
            Goal("JupyterLab and notebook before that", "s", None),
        ),
        here("page_reload"),
    ),
    Survey(
        "lab.idle",
        "CPU of the Jupyter server while nothing changes, with 100 idle tasks and 50 runs to be listed",
        (
            Goal("a page open", "% of a core", Bar("<=", 2, "figure")),
            Goal("no page open", "% of a core", None),
            Goal("messages to the page", "a minute", None),
        ),
        here("lab_idle", timeout=900),
    ),
    Survey(
        "lab.panel",
        "the sidebar's panel with 100 tasks and 50 runs, all of which change twice a second: its main thread",
        (
            Goal("a change, median", "ms", Bar("<=", 16, "figure")),
            Goal("a change, the most", "ms", None),
            Goal("of it script", "ms", None),
            Goal("of it style", "ms", None),
            Goal("of it layout", "ms", None),
            Goal("without a change", "ms", None),
        ),
        here("sidebar_flow", timeout=600),
    ),
    *(
        Benchmark(
            f"p14.{name}-{tasks}",
            f"a step of asynchronous training on {tasks} tasks, and its messages, alike on both sides{more}",
            "ms of a core",
            "the simulation",
            here("scaling", "--tasks", tasks, "--value", "step", "--transport", transport),
            here("scaling", "--tasks", tasks, "--value", "step", "--transport", transport, "--simulated"),
            None,
        )
        for name, transport, tasks, more in (
            *(("step", "auto", tasks, "") for tasks in (4, 8, 16)),
            ("sockets", "socket", 4, "; over sockets, simulated with the server on another host"),
        )
    ),
    *(
        Benchmark(
            f"p14.start-{tasks}",
            f"bring-up of {tasks} tasks until every worker has trained a step",
            "s",
            "4 tasks",
            here("scaling", "--tasks", tasks, "--value", "start"),
            here("scaling", "--tasks", 4, "--value", "start"),
            Bar("<=", tasks / 4),
        )
        for tasks in (8, 16)
    ),
    *(
        Benchmark(
            f"p17.{work.name}.{peer.partition('_')[0]}",
            f"input pipeline, batches of {work.batch}: {work.what}",
            "elements/s",
            name,
            here("nbdist_input", work.name),
            elsewhere(peer, work.name),
            Bar(
                ">=", 0.8 if peer == "tensorflow_input" and work.name in ("examples", "jpeg", "png") else 1.0
            ),
            close(1e-3),
        )
        for work in WORKS.values()
        for peer, name in (
            ("tensorflow_input", "TensorFlow, tf.data"),
            ("torch_input", "PyTorch, DataLoader"),
        )
    ),
    *(
        Benchmark(
            f"p18.{value}.{peer.partition('_')[0]}{'-3' if ps else ''}",
            f"{what} a table of 10,000,000 x 20 float32 (800 MB), {'3 ps' if ps else 'one process'}",
            "s",
            f"{name}, one process",
            here("nbdist_checkpoint", "--value", value, "--ps", ps),
            elsewhere(peer, "--value", value),
            Bar("<=", 1.0),
        )
        for value, what in (("save", "save, with fsync,"), ("restore", "restore"))
        for peer, name in (
            ("torch_checkpoint", "torch.distributed.checkpoint"),
            ("tensorflow_saver", "TensorFlow's Saver"),
        )
        for ps in (0, 3)
    ),
    Benchmark(
        "p18.blocked",
        "the same on 3 ps: how long training stops while the table is saved in the background",
        "s",
        "the whole save",
        here("nbdist_checkpoint", "--value", "blocked", "--ps", 3),
        here("nbdist_checkpoint", "--value", "save", "--ps", 3),
        None,
    ),
    *(
        Benchmark(
            f"p20.{value}-{workers}",
            f"sharded optimizer state (ZeRO-1): {what}, 8.4 million parameters, Adam, {workers} worker(s)",
            unit,
            "multi_worker",
            here("nbdist_sharded", "--strategy", "sharded", "--workers", workers, "--value", value),
            here("nbdist_sharded", "--strategy", "multi_worker", "--workers", workers, "--value", value),
            Bar("<=", most),
            TRAINED,
        )
        for value, what, unit, bars in (
            ("memory", "memory of a training on a worker", "MB", {1: 1.05, 2: 0.8, 4: 0.7}),
            ("step", "a step", "ms", {1: 1.05, 2: 1.1, 4: 1.1}),
        )
        for workers, most in bars.items()
    ),
    *(
        Benchmark(
            f"p20.{value}-{workers}-stage{stage}{'-torch' if whose == 'torch' else ''}",
            f"{what} of ZeRO-{stage}, 8 layers, 8.4 million parameters, Adam, {workers} worker(s)",
            unit,
            "multi_worker",
            here("nbdist_sharded", "--strategy", "sharded", *given, "--value", value),
            here("nbdist_sharded", "--strategy", "multi_worker", *given, "--value", value),
            Bar("<=", most),
            TRAINED,
        )
        for stage, whose, value, what, unit, bars in (
            (2, "nn", "memory", "memory of a training on a worker", "MB", {1: 1.05, 2: 0.75, 4: 0.6}),
            (2, "nn", "step", "a step", "ms", {1: 1.05, 2: 1.15, 4: 1.15}),
            (3, "nn", "memory", "memory of a training on a worker", "MB", {1: 1.05, 2: 0.65, 4: 0.4}),
            (3, "nn", "step", "a step", "ms", {1: 1.05, 2: 1.5, 4: 1.5}),
            (
                3,
                "torch",
                "memory",
                "memory of a training of PyTorch on a worker",
                "MB",
                {1: 1.05, 2: 0.75, 4: 0.6},
            ),
            (3, "torch", "step", "a step of PyTorch", "ms", {1: 1.05, 2: 1.5, 4: 1.5}),
        )
        for workers, most in bars.items()
        for given in [("--stage", stage, "--workers", workers, "--model", whose)]
    ),
    *(
        Survey(
            f"hosts.{gbit}gbit",
            f"40 MB between hosts with links of {gbit} Gbit/s: parts of what the link carries",
            (
                *(Goal(name, "of the link", bars.get(name)) for name in between_hosts.SHARES),
                *(Goal(between_hosts.cores(name), "", None) for name in between_hosts.PREDICTED),
                *(
                    goal
                    for name in between_hosts.PREDICTED
                    for goal in (
                        Goal(between_hosts.measured(name), "ms", None),
                        Goal(between_hosts.predicted(name), "ms", None),
                        Goal(between_hosts.off(name), "", bars.get("predicted")),
                    )
                ),
                Goal(between_hosts.HIDDEN, "of the shorter", None),
            ),
            here("between_hosts", "--gbit", gbit, timeout=600),
        )
        # At 10 Gbit/s the two cores that all hosts share are the limit, so that these figures have no bars.
        for gbit, bars in ((1, LINK_BARS), (10, dict[str, Bar]()))
    ),
    Benchmark(
        "hosts.start",
        "from nothing to the first step on 3 hosts with an sshd each, one worker on each",
        "s",
        "torchrun",
        here("hosts_start", "nbdist"),
        elsewhere("hosts_start", "torchrun"),
        None,
    ),
    Survey(
        "hosts.step",
        "the first step on 3 hosts with an sshd each, after they are up",
        (
            Goal(hosts_start.UP, "s", None),
            Goal(hosts_start.STEP, "s", Bar("<=", 5, "figure")),
        ),
        here("hosts_start", "nbdist", "--figures"),
    ),
    Survey(
        "hosts.64",
        "64 supervisors of hosts, simulated by processes of this host, and their head",
        (
            Goal(many_hosts.JOINED, "s", None),
            Goal(many_hosts.MEMORY, "MB", None),
            Goal(many_hosts.REST, "s of a core per min", Bar("<=", 3, "figure")),
            Goal(many_hosts.LOST, "s", Bar("<=", 10, "figure")),
            Goal(many_hosts.STOPPED, "s", Bar("<=", 5, "figure")),
        ),
        here("many_hosts", "--count", 64),
    ),
    *GPU_BENCHMARKS,
]


def chosen(names: list[str]) -> list[Benchmark | Survey]:
    """Return the benchmarks that ``names`` selects: by key, by the part before its first dot, or "all".

    All leaves out those that need a GPU on a host without one.
    """
    every = {b.key for b in BENCHMARKS if b not in GPU_BENCHMARKS or REHEARSAL or has_driver()}
    picked = [
        b
        for b in BENCHMARKS
        if any((n == "all" and b.key in every) or n == b.key or b.key.startswith(f"{n}.") for n in names)
    ]
    known = {b.key for b in BENCHMARKS} | {b.key.split(".")[0] for b in BENCHMARKS} | {"all"}
    for name in names:
        if name not in known:
            raise SystemExit(f"no benchmark {name!r}; choose from {', '.join(sorted(known))}")
    return picked
