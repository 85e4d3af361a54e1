"""The command of the launcher "slurm": it starts a host supervisor on each node of a Slurm job.

    python -m nbdist.cluster.launchers.slurm --nodes=2 --partition=gpu --time=2:00:00 < plan

    login host                            nodes
    sbatch ─────────────────────────────► the script of the job, which only holds the nodes
    squeue, until the job runs
    srun --jobid, the plan on its stdin ► the host supervisor, once per node

Within an allocation (SLURM_JOB_ID is set) there is no sbatch: the step runs in that job. Both ways end in the
same `srun`, without the variables of the surrounding job, which would change what its options mean.

The plan is the first line of standard input. It has keys, so srun forwards it on standard input: it is in no
argument, variable or file. Its end of input tells the supervisors that this command has ended. JSON lines on
standard output are the progress:

    {"job": "12", "waiting": "job 12 is pending: it waits for nodes that are free (Resources)"}
    {"job": "12", "hosts": ["n1", "n2"], "cores": 8, "seconds_left": 7199.0}
    {"job": "12", "lost": ["n2"], "reasons": ["host n2: Exited with exit code 1; its last line: no driver"]}

The command lives as long as the step. SIGTERM, SIGINT and SIGHUP end the job (in an allocation, the step). If
it ends early, its standard error is one sentence that says why.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nbdist.cluster.launchers.command import command_line, run_command
from nbdist.cluster.launchers.job import HOST_PROGRAM
from nbdist.cluster.launchers.slurm.launcher import SlurmLauncher
from nbdist.cluster.launchers.slurm.request import SETTINGS, TEMPLATE, JobRequest


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = command_line("slurm", SETTINGS)
    parser.add_argument("--name", default=JobRequest.name, help="the job's name in the queue")
    parser.add_argument("--print-template", action="store_true", help="print the default script of a job")
    parser.add_argument("program", nargs="*", help="what runs on the nodes (default: the host supervisor)")
    given = vars(parser.parse_args(arguments))
    program = given.pop("program") or HOST_PROGRAM
    if given.pop("print_template"):
        print(TEMPLATE, end="")
        return 0
    return run_command(SETTINGS, given, lambda plan: SlurmLauncher(JobRequest(**given), plan, program).run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
