"""The flags of %cluster start, %cluster grow and %%distribute: what each is called, takes and means."""

from __future__ import annotations

from nbdist.runs.options import DATA, REPLICATIONS, STRATEGIES
from nbdist.ui.flags import Flag, grouped, names

START_FLAGS = {
    "--workers": Flag("workers", int, "N", "tasks that train (default 2)"),
    "--ps": Flag("ps", int, "N", "tasks that keep parameters (default 0)"),
    "--launcher": Flag(
        "launcher", str, "local|mpi", "how engines start: plainly (default), or in an MPI world"
    ),
    "--gpus": Flag(
        "gpus", lambda v: int(v) if v.isdigit() else v, "auto|none|N", "GPUs to use, one a worker"
    ),
    "--gpu-memory": Flag("gpu_memory", float, "0.4", "share of its GPU's memory that a worker may take"),
    "--memory": Flag("memory", str, "2G", "what graphs' variables and programs may take on each task"),
    "--threads": Flag("threads", int, "N", "BLAS threads per task (default: cores / tasks)"),
    "--id": Flag("cluster_id", str, "NAME", "a name for the cluster"),
    "--timeout": Flag("timeout", float, "S", "seconds that bring-up may take (default 60)"),
    "--orphan-timeout": Flag(
        "orphan_timeout", float, "S", "seconds it lives without a client (default 60, and 3600 in a run)"
    ),
}
STOP_FLAGS = {"--force": Flag("force", help="even if another notebook started it and has a run on it")}
GROW_FLAGS = {"--workers": Flag("workers", int, "N", "how many workers come or leave (default 1)")}
DISTRIBUTE_FLAGS = grouped({
    "How replicas work together": {
        "--strategy": Flag(
            "strategy", str, "|".join(STRATEGIES),
            "where parameters are, and how steps are made (default: ps if there is one)",
        ),
        "--sync": Flag("synchronous", help="replicas share each batch and step together", value=True),
        "--async": Flag("synchronous", help="each replica goes at its own pace (default of ps)", value=False),
        "--replication": Flag(
            "replication", str, "|".join(REPLICATIONS),
            "a graph on every worker (default), or one for all, driven from here",
        ),
    },
    "With --strategy ps": {
        "--backups": Flag("backups", int, "N", "--sync: of the workers N are backups; late gradients go"),
        "--aggregate": Flag("aggregate", int, "R", "--sync: R gradients make a step (default: one a worker)"),
        "--staleness": Flag("staleness", int, "S", "--async: steps ahead of the slowest that one may be"),
        "--locking": Flag("locking", help="nobody reads parameters in the middle of an update"),
        "--transport": Flag("transport", str, "auto|socket", "how parameters travel"),
    },
    "With --strategy mirrored and multi_worker": {
        "--collective": Flag(
            "collective", str, "auto|shm|ring|hierarchical|nccl|mpi",
            "how gradients are summed, and what nb.collective uses (default: the best)",
        ),
    },
    "With --strategy elastic": {
        "--every": Flag("every", int, "TAU", "steps between two pulls towards the centre (default 10)"),
        "--alpha": Flag("alpha", float, "A", "how far each pull goes (default 0.9 / workers)"),
    },
    "When a worker dies": {
        "--min-workers": Flag(
            "min_workers", int, "N", "go on while N workers are left (mirrored, multi_worker, ps; default 1)"
        ),
    },
    "With --replication in-graph": {
        "--data": Flag("data", str, "|".join(DATA), "who reads the data: this notebook, or each worker"),
    },
    "The run": {
        "--on": Flag("on", str, "worker:0-2", "which tasks run the body (default: all workers)"),
        "--name": Flag("name", str, "NAME", "a name for the run"),
        "--seed": Flag("seed", int, "N", "fixes initial weights and shuffles"),
        "--epochs": Flag("epochs", int, "N", "wins over fit(epochs=...)"),
        "--background": Flag("background", help="return at once; the run goes on, and is `run`", value=True),
        "--live": Flag("live", names, "loss,accuracy", "which curves to show"),
        "--tensorboard": Flag(
            "tensorboard", help="write events too, into the run's folder: tensorboard --logdir FOLDER",
            value=True,
        ),
        "--no-live": Flag("show", help="show no view; what the tasks print is printed", value=False),
        "--push": Flag("push", names, "x,make_model", "values and functions of this notebook, for the cell"),
        "--fetch": Flag("fetch", names, "a,b", "more names to bring home from the chief"),
    },
})  # fmt: skip
