"""The command of the launcher "batch": it starts a host supervisor on each node of a job of a batch system.

    python -m nbdist.cluster.launchers.batch --batch-nodes=2 --queue=gpu --batch-time=2:00:00 < plan

    login host                            nodes
    qsub, bsub or condor_submit ────────► the script of the job, which only holds the nodes
    qstat, bjobs or condor_q, until the job runs
    ssh to each node, the plan on stdin ► the host supervisor

Within a job (PBS_JOBID, JOB_ID or LSB_JOBID is set) nothing is submitted. `nbdist.cluster.launchers.batch.
systems` has a row for each system; progress, signals and errors are those of the launcher "slurm".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nbdist.cluster.launchers.batch.launcher import BatchLauncher
from nbdist.cluster.launchers.batch.request import SETTINGS, find_system
from nbdist.cluster.launchers.batch.systems import BatchRequest
from nbdist.cluster.launchers.command import command_line, run_command
from nbdist.cluster.launchers.job import HOST_PROGRAM
from nbdist.errors import NbdistError


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = command_line("batch", SETTINGS)
    parser.add_argument("--name", default=BatchRequest.name, help="the job's name in the queue")
    parser.add_argument("--print-template", action="store_true", help="print the default script of a job")
    parser.add_argument("program", nargs="*", help="what runs on the nodes (default: the host supervisor)")
    given = vars(parser.parse_args(arguments))
    program = given.pop("program") or HOST_PROGRAM
    if given.pop("print_template"):
        try:
            print(find_system(BatchRequest(**given)).template, end="")
        except NbdistError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    return run_command(SETTINGS, given, lambda plan: BatchLauncher(BatchRequest(**given), plan, program).run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
