"""Clusters on the nodes of a job of a real Slurm, from its login host."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Actor
from slurm_nodes import LOGIN, SlurmNodes
from waiting import limit

pytestmark = pytest.mark.netns

ACTOR = Path(__file__).parents[1] / "hosts" / "cluster_actor.py"
LEAVE_SECONDS = 30.0
EPOCHS, STEPS = 120, 180  # of the digits, in batches of 8


@pytest.fixture
def client(slurm: SlurmNodes) -> Iterator[Actor]:
    variables = [f"{name}={value}" for name, value in slurm.environment.items()]
    command = [*slurm.inside(LOGIN), "env", "--ignore-environment", *variables, sys.executable, str(ACTOR)]
    actor = Actor(command, "the login host's client")
    try:
        yield actor
        actor.end(LEAVE_SECONDS)
        slurm.run("rm", "-rf", f"{slurm.home}/nbdist/runs")  # what a user keeps, on the client's host alone
    finally:
        actor.kill()


def test_a_cluster_in_a_job_trains_survives_a_node_and_ends(client: Actor, slurm: SlurmNodes) -> None:
    started = client.do(do="start", launcher="slurm", nodes=3, time="30", ps=1, requeue=True)
    assert started["nodes"] == ["n1", "n2", "n3", "n1"], started
    assert started["requeues"]
    assert client.do(do="train", strategy="multi_worker")["error"] is None
    assert client.do(do="train", strategy="ps")["error"] is None
    assert 0 < client.do(do="seconds_left") <= 1800
    slurm.kill("n3")
    *ended, seconds = client.do(do="dead", ranks=[2])
    assert ended == ["host n3 was lost: it has ended, or was cut off from this one"]
    assert seconds < limit(10)
    assert client.do(do="restart")[1:] == ["n1", "n2", "n2", "n1"]
    assert client.do(do="train", strategy="multi_worker")["error"] is None
    assert client.do(do="stop") < limit(5)


@pytest.mark.exhaustive
def test_all_runs_continue_in_the_job_that_follows_a_failed_one(client: Actor, slurm: SlurmNodes) -> None:
    settings = {"nodes": 2, "time": "10", "sbatch": "--no-kill=off"}
    started = client.do(do="start", launcher="slurm", save_before="599s", requeue=True, **settings)
    assert started["nodes"] == ["n1", "n2"]
    (job,) = slurm.jobs()
    other = client.do(do="cell", epochs=EPOCHS, on="worker:1")
    run = client.do(do="cell", epochs=EPOCHS, on="worker:0")
    states = client.do(do="state_of", run=run)
    assert states  # it was started without --checkpoint-every
    slurm.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    assert client.do(do="next_run", run=other).get("error", "") is None
    found = client.do(do="next_run", run=run)
    assert found.get("error", "") is None, found
    assert set(found["nodes"]) <= {"n1", "n2", "n3"}
    assert found["steps"] == EPOCHS * STEPS
    assert found["resumed"] == int(states[0].split("-")[2].split(".")[0])
    assert f"job {job} lost a node; another one is submitted" in found["phases"]
    whole = client.do(do="cell", epochs=EPOCHS, on="worker:0")
    assert found["loss"] == pytest.approx(client.do(do="loss_of", run=whole), rel=1e-6)  # undisturbed
    assert client.do(do="stop") < limit(5)
    for node in ("n1", "n2"):  # what tasks that were killed have left
        subprocess.run([*slurm.inside(node), "rm", "-rf", f"{slurm.home}/nbdist/spool"], check=True)


@pytest.fixture
def urgent(slurm: SlurmNodes) -> Iterator[str]:
    """A partition whose jobs preempt those of the others."""
    slurm.run("scontrol", "create", "PartitionName=urgent", "Nodes=ALL", "PriorityTier=10")
    yield "urgent"
    slurm.run("scontrol", "delete", "PartitionName=urgent")


@pytest.mark.exhaustive
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("time", "save_before"), [("1", "45s"), ("10", "595s")], ids=["limit", "preempted"])
def test_a_run_on_two_hosts_goes_through_a_requeue_as_if_undisturbed(
    client: Actor, slurm: SlurmNodes, urgent: str, time: str, save_before: str
) -> None:
    client.do(do="start", launcher="slurm", nodes=2, time=time, save_before=save_before, requeue=True)
    (job,) = slurm.jobs()
    run = client.do(do="cell", epochs=20, slow_in=job)
    (state,) = client.do(do="state_of", run=run)
    if time != "1":  # else Slurm ends the job, 60 to 90 s after its start
        options = ("--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 8")
        slurm.run("sbatch", f"--partition={urgent}", "--nodes=3", *options)
    why = "reached its time limit of 0:01:00" if time == "1" else "was preempted by a job with precedence"
    client.ask(do="between_jobs", seconds=100)
    started, restarted = client.answer(120)
    assert "waits for the next job of its hosts, on which its tasks start again: wait for that, or" in started
    assert "it starts again on the hosts of the next job: wait for that, or" in restarted
    found = client.do(do="next_run", run=run, seconds=70)
    assert found.get("error", "") is None, found
    assert f"job {job} {why}; another one is submitted" in found["phases"]
    assert found["steps"] == 20 * STEPS
    assert found["resumed"] == int(state.split("-")[2].split(".")[0])
    whole = client.do(do="cell", epochs=20)
    assert found["loss"] == pytest.approx(client.do(do="loss_of", run=whole), rel=1e-6)
    assert client.do(do="stop") < limit(5)
    for node in ("n1", "n2"):  # what tasks that were killed have left
        subprocess.run([*slurm.inside(node), "rm", "-rf", f"{slurm.home}/nbdist/spool"], check=True)


def test_a_job_that_is_refused_or_ends_is_one_sentence(client: Actor, slurm: SlurmNodes) -> None:
    error, text = client.do(do="start", launcher="slurm", nodes=3, partition="nowhere")
    assert error == "UnavailableError"
    assert "invalid partition" in text.lower()


@pytest.mark.skipif(not shutil.which("qsub"), reason="no qsub here: apt-get install slurm-wlm-torque")
def test_a_cluster_in_a_job_of_pbs_trains_and_ends(client: Actor, slurm: SlurmNodes) -> None:
    started = client.do(do="start", launcher="batch", batch_nodes=2, batch_time="30", ps=1)
    assert started["nodes"] == ["n1", "n2", "n1"], started
    assert client.do(do="train", strategy="ps")["error"] is None
    slurm.kill("n2")
    *ended, seconds = client.do(do="dead", ranks=[1])
    assert ended == ["host n2 was lost: it has ended, or was cut off from this one"]
    assert seconds < limit(10)
    assert client.do(do="stop") < limit(5)
