"""Peer of P10: trivial trials a second in Ray Tune, as a user writes them, 4 at a time; Ray is up already.

It writes its results as it does by default, but into a temporary folder. Its printed progress is off, as our
side has no view, and so are its usage statistics.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

SLOTS = 4
TRIALS = 60  # each is a process of its own, with a second of CPU: more of them take as much longer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--reuse", action="store_true", help="keep a trial's process for the next one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        import ray

        ray.init(
            num_cpus=SLOTS,
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
        )
        try:
            print(json.dumps(measured(options.trials, options.reuse, folder)))
        finally:
            ended()


def trial(config: dict[str, float]) -> None:
    from ray import tune

    tune.report({"val": config["lr"] * config["width"]})


def measured(trials: int, reuse: bool, folder: str) -> dict[str, object]:
    """Return the trials a second, and whether each of them has the expected result."""
    from ray import tune

    tuner = tune.Tuner(
        trial,
        param_space={"lr": tune.loguniform(1e-4, 1e-1), "width": tune.choice([32, 64, 128])},
        tune_config=tune.TuneConfig(
            num_samples=trials, max_concurrent_trials=SLOTS, metric="val", mode="max", reuse_actors=reuse
        ),
        run_config=tune.RunConfig(name="trivial", storage_path=os.path.join(folder, "results"), verbose=0),
    )
    begin = time.perf_counter()
    results = tuner.fit()
    seconds = time.perf_counter() - begin
    right = [one.config and one.metrics["val"] == one.config["lr"] * one.config["width"] for one in results]
    return {
        "value": trials / seconds,
        "check": {"all complete": len(right) == trials and not results.num_errors, "all right": all(right)},
    }


def ended(patience: float = 20.0) -> None:
    """End Ray, and wait until none of its processes is left: they would write on into its folder."""
    import psutil  # which Ray brings along
    import ray

    started = psutil.Process().children(recursive=True)
    ray.shutdown()
    _, left = psutil.wait_procs(started, timeout=patience)
    for process in left:
        process.kill()
    if left:
        print(f"killed {len(left)} processes that Ray had left", file=sys.stderr)


if __name__ == "__main__":
    main()
