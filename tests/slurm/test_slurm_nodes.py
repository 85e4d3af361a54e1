"""The Slurm of the tests is a real one: names, addresses, GPUs, and a node that dies."""

from __future__ import annotations

import pytest
from slurm_nodes import ADDRESSES, NODES, SlurmNodes
from waiting import until

pytestmark = pytest.mark.netns


def test_a_step_runs_on_each_node_with_its_name_address_and_gpus(slurm: SlurmNodes) -> None:
    script = "echo $(hostname) $(hostname -i) $CUDA_VISIBLE_DEVICES $(ls /proc | grep -c '^[0-9]')"
    lines = slurm.run("srun", "--nodes=3", "--gpus-per-node=2", "sh", "-c", script).stdout.splitlines()
    found = {name: (address, gpus) for name, address, gpus, _ in map(str.split, lines)}
    assert found == {node: (ADDRESSES[node], "0,1") for node in NODES}
    # A node sees its own processes only.
    assert all(int(line.split()[3]) < 12 for line in lines), lines


def test_a_node_that_dies_is_down_and_comes_back(slurm: SlurmNodes) -> None:
    job = slurm.run(
        "sbatch", "--parsable", "--nodelist=n2", "--no-requeue", "--output=/dev/null", "--wrap=sleep 1000"
    )
    until(lambda: slurm.jobs() == {job.stdout.strip(): "RUNNING"}, describe=slurm.logs)
    slurm.kill("n2")
    until(lambda: slurm.states()["n2"].startswith("down"), describe=slurm.states)
    until(lambda: not slurm.jobs(), describe=slurm.jobs)
    slurm.revive("n2")
    assert slurm.run("srun", "--nodelist=n2", "hostname").stdout == "n2\n"
