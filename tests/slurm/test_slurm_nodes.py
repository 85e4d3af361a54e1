"""The Slurm of the tests is a real one, and says what our functions expect of it."""

from __future__ import annotations

import sys

import pytest
from node_lists import NODE_LISTS
from slurm_nodes import ADDRESSES, NODES, SlurmNodes
from tiers import exhaustive
from waiting import until

pytestmark = pytest.mark.netns


def test_a_step_runs_on_each_node_with_its_name_address_and_gpus(slurm: SlurmNodes) -> None:
    script = "echo $(hostname) $(hostname -i) $CUDA_VISIBLE_DEVICES $(ls /proc | grep -c '^[0-9]')"
    lines = slurm.run("srun", "--nodes=3", "--gpus-per-node=2", "sh", "-c", script).stdout.splitlines()
    found = {name: (address, gpus) for name, address, gpus, _ in map(str.split, lines)}
    assert found == {node: (ADDRESSES[node], "0,1") for node in NODES}
    # A node sees its own processes only.
    assert all(int(line.split()[3]) < 12 for line in lines), lines


@exhaustive
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


def test_each_host_has_a_home_and_shared_memory_of_its_own(slurm: SlurmNodes) -> None:
    script = "mkdir -p $NBDIST_HOME && hostname > $NBDIST_HOME/name && touch /dev/shm/nbdist-$(hostname)"
    slurm.run("srun", "--nodes=3", "sh", "-c", script)
    for node in NODES:
        name = slurm.home / "nbdist" / "name"
        assert slurm.files(node) == [f"/dev/shm/nbdist-{node}", str(name)]
        assert slurm.run("cat", str(name), host=node).stdout == f"{node}\n"
    assert slurm.files("login") == []
    slurm.run("srun", "--nodes=3", "sh", "-c", "rm -r $NBDIST_HOME /dev/shm/nbdist-*")


def test_lists_of_nodes_are_expanded_as_slurm_does(slurm: SlurmNodes) -> None:
    for text, names in NODE_LISTS:
        if text:
            assert slurm.run("scontrol", "show", "hostnames", text).stdout.split() == names, text


def test_a_process_in_a_job_knows_the_time_that_is_left(slurm: SlurmNodes) -> None:
    module = "nbdist.cluster.launchers.slurm.launcher"
    command = (sys.executable, "-c", f"from {module} import wall_time_left as left; print(left())")
    assert slurm.run(*command).stdout == "None\n"
    assert 285 < float(slurm.run("srun", "--time=5", *command).stdout) <= 300
    assert slurm.run("srun", *command).stdout == "None\n"  # in a partition without a limit
    assert 285 < float(slurm.run("srun", "--partition=short", *command).stdout) <= 300
