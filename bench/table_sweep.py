"""P10: sweeps. Whole sweeps compared with Ray Tune's, and the cost for their driver compared with Optuna."""

from __future__ import annotations

from bench.frame import Bar, Benchmark, Goal, Survey
from bench.script import elsewhere, here

SWEEPS: list[Benchmark | Survey] = [
    *(
        Benchmark(
            f"p10.trials{name}",
            "a sweep of 500 trials on 4 engines that only multiply two numbers, drawn at random",
            "trials/s",
            f"Ray Tune, 60 trials, 4 at a time{more}",
            here("nbdist_trials"),
            elsewhere("ray_tune", *flags, timeout=600),
            bar,
        )
        for name, more, flags, bar in (
            ("", ", as it comes", [], Bar(">=", 100)),
            ("-reuse", ", which may keep its processes", ["--reuse"], None),
        )
    ),
    Survey(
        "p10.busy",
        "12 trials of 10 s on 4 engines: how much of the engines' time is spent in trials",
        (
            Goal("in trials, by the sweep's spans", "%", Bar(">=", 97, "figure")),
            Goal("in trials, by their own clocks", "%", Bar(">=", 97, "figure")),
            Goal("trials not complete", "", Bar("<=", 0, "figure")),
            Goal("first start to last end", "s", None),
        ),
        here("sweep_busy"),
    ),
    Survey(
        "p10.driver",
        "what a sweep costs its driver, engines aside: ms of CPU for each trial of 20 reports",
        (
            Goal("random, 1,000 trials", "ms", None),
            Goal("random, 10,000 trials", "ms", None),
            Goal("grid, 1,000 trials", "ms", None),
            Goal("grid, 10,000 trials", "ms", None),
            Goal("TPE, trial 1,000", "ms", None),
            Goal("rebuild 10,000 trials", "s", Bar("<=", 2, "figure")),
            Goal("rebuild, CPU", "s", None),
        ),
        here("sweep_core"),
    ),
    *(
        Benchmark(
            f"p10.asktell-{sampler}-{trials}-{storage}",
            f"one ask and tell, in log and ledger; {sampler}, after {trials:,} trials",
            "ms",
            f"Optuna, {where}",
            here("nbdist_ask", "--sampler", sampler, "--trials", trials),
            here("optuna_ask", "--sampler", sampler, "--trials", trials, "--storage", storage),
            None,
        )
        for sampler in ("random", "grid", "tpe")
        for trials in (1_000, 10_000)
        for storage, where in (("memory", "in memory only"), ("journal", "with its journal on the disk"))
    ),
    Benchmark(
        "p10.rebuild",
        "10,000 trials without reports read back from the log",
        "s",
        "Optuna, its journal",
        here("nbdist_ask", "--trials", 10_000, "--value", "rebuild"),
        here("optuna_ask", "--trials", 10_000, "--value", "rebuild"),
        None,
    ),
]
