"""The command of the launcher "slurm", on a real Slurm."""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from launcher_command import COMMAND, HOST_PROGRAM, KEY, PLAN, running
from slurm_nodes import NODES, SlurmNodes
from waiting import limit, until

from nbdist.cluster.launchers.slurm.request import SETTINGS, TEMPLATE, JobRequest
from nbdist.cluster.launchers.spec import JOB_OVER, command_of

pytestmark = pytest.mark.netns

# The same script, but the job ends when it has had no step for 0.6 s.
HASTY = TEMPLATE.replace("sleep 30", "sleep 0.2").replace("-lt 20", "-lt 3")


def hold_all(slurm: SlurmNodes) -> str:
    """Submit a job that takes all nodes; return its number when it runs."""
    job = slurm.run(
        "sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1000"
    ).stdout.strip()
    until(lambda: slurm.jobs().get(job) == "RUNNING", describe=slurm.logs)
    return job


def test_a_program_runs_on_each_node_of_a_new_job(slurm: SlurmNodes) -> None:
    asked = JobRequest(nodes=2, partition="short", time="3", gres="gpu:1", cores=2, name="nbdist-c1")
    told = [*command_of("slurm", SETTINGS, vars(asked)), f"--name={asked.name}"]
    with running(slurm, command=told) as command:
        started = command.one("hosts")
        assert started["hosts"] == ["n1", "n2"]
        assert started["cores"] == 4
        assert 0 < started["seconds_left"] <= 180
        up = {line["host"]: line for line in command.until("up", 2)}
        for host, line in up.items():
            assert (line["name"], line["up"], line["key"]) == (host, "c1", len(KEY))
            assert (line["SLURM_JOB_ID"], line["job"]) == (started["job"],) * 2
            assert (line["CUDA_VISIBLE_DEVICES"], line["SLURM_CPUS_ON_NODE"]) == ("0", "2")
        assert command.end() == (143, "")


def test_the_plan_is_in_no_argument_variable_or_file(slurm: SlurmNodes) -> None:
    with running(slurm, "--nodes=3") as command:
        command.until("up", 3)
        texts = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if b"slurm" in (process / "cmdline").read_bytes():
                    texts += [(process / name).read_bytes() for name in ("cmdline", "environ")]
        texts += [path.read_bytes() for path in slurm.folder.rglob("*") if path.is_file()]
        assert len(texts) > 20
        assert not any(KEY.encode() in text for text in texts)


def test_it_ends_with_the_programs(slurm: SlurmNodes, tmp_path: Path) -> None:
    leave = tmp_path / "leave"
    with running(slurm, "--nodes=2", leave=str(leave)) as command:
        command.until("up", 2)
        leave.touch()
        assert command.ended() == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_job(slurm: SlurmNodes, number: int) -> None:
    with running(slurm, "--nodes=2") as command:
        command.until("up", 2)
        begun = time.monotonic()
        assert command.end(number) == (143, "")
        until(lambda: not slurm.jobs() and not slurm.processes())
        assert time.monotonic() - begun < limit(5)


def test_a_signal_ends_a_job_that_waits(slurm: SlurmNodes) -> None:
    other = hold_all(slurm)
    with running(slurm, "--nodes=1") as command:
        waiting = command.one("waiting")
        assert waiting["waiting"].startswith(f"job {waiting['job']} is pending: ")
        assert command.end() == (143, "")
        assert slurm.jobs() == {other: "RUNNING"}
    slurm.run("scancel", other)


def test_a_waiting_job_says_why_and_starts_when_nodes_are_free(slurm: SlurmNodes) -> None:
    other = hold_all(slurm)
    with running(slurm, "--nodes=2-3") as command:
        while "free" not in command.one("waiting")["waiting"]:
            pass
        assert "it waits for nodes that are free (Resources)" in command.lines[-1]["waiting"]
        slurm.run("scancel", other)
        assert len(command.one("hosts")["hosts"]) in (2, 3)


def test_the_end_of_the_command_by_sigkill_ends_the_step_and_the_job(
    slurm: SlurmNodes, tmp_path: Path
) -> None:
    template = tmp_path / "job.sh"
    template.write_text(HASTY)
    with running(slurm, "--nodes=2", f"--template={template}") as command:
        command.until("up", 2)
        assert command.end(signal.SIGKILL) == (-signal.SIGKILL, "")
        until(lambda: not slurm.processes(), describe=slurm.processes)
        until(lambda: not slurm.jobs(), describe=slurm.logs)


@pytest.mark.parametrize(
    ("settings", "program", "said"),
    [
        (["--partition=nope"], HOST_PROGRAM, "sbatch: Batch job submission failed: Invalid partition name"),
        (["--nodes=4"], HOST_PROGRAM, "will not start: it asks for more nodes than its partition gives"),
        (["--partition=short", "--time=10"], HOST_PROGRAM, "more time than its partition allows"),
        (["--cores=99"], HOST_PROGRAM, "cores=99: no node of partition debug has more than 4; ask for 4 at"),
        (["--gres=fpga:1"], HOST_PROGRAM, "sbatch: Invalid generic resource (gres) specification"),
        (["--sbatch=--qos high"], HOST_PROGRAM, "write options as --qos=high, not 'high' alone"),
        (["--sbatch=--colour=red"], HOST_PROGRAM, "sbatch: unrecognized option '--colour=red'"),
        (["--time=soon"], HOST_PROGRAM, "time 'soon' is none of Slurm's forms"),
        (["--template=/no/job.sh"], HOST_PROGRAM, "template '/no/job.sh' is not a file; --print-template"),
        ([], ["/no/python"], "n1: there is no /no/python; the nodes need the notebook's Python"),
        ([], [sys.executable, "-c", "import absent"], "ModuleNotFoundError: No module named 'absent'"),
        ([], ["sh", "-c", "kill -9 $$"], "n1: Killed"),
    ],
)  # fmt: skip
def test_what_does_not_start_is_one_sentence(
    slurm: SlurmNodes, settings: list[str], program: list[str], said: str
) -> None:
    begun = time.monotonic()
    with running(slurm, *settings, program=program) as command:
        code, error = command.ended()
    assert code == 1
    assert said in error
    assert len(error.splitlines()) == 1
    assert time.monotonic() - begun < limit(10)


def test_the_first_host_that_fails_names_itself_and_its_last_line(slurm: SlurmNodes) -> None:
    with running(slurm, "--nodes=2", exit=3, last="no GPU driver here") as command:
        code, error = command.ended()
    assert code == 1
    assert "failed. n" in error
    assert "Exited with exit code 3; its last line: no GPU driver here" in error


def test_a_host_that_does_not_come_is_reported_and_the_others_go_on(slurm: SlurmNodes) -> None:
    words = 'test $SLURM_PROCID = 1 && { echo "no GPU driver here" >&2; exit 3; }; exec "$@"'
    program = ["sh", "-c", words, "sh", *HOST_PROGRAM]
    with running(slurm, "--nodes=3", program=program) as command:
        job = command.one("hosts")["job"]
        lost = command.one("lost")
        reason = "Exited with exit code 3; its last line: no GPU driver here"
        assert lost == {"job": job, "lost": ["n2"], "reasons": [f"host n2: {reason}"]}
        until(lambda: len(slurm.processes()) >= 2 and slurm.jobs() == {job: "RUNNING"})
        assert command.end() == (143, "")


def test_a_job_that_is_cancelled_says_so(slurm: SlurmNodes) -> None:
    with running(slurm, "--nodes=2") as command:
        job = command.until("up", 2)[0]["job"]
        slurm.run("scancel", job)
        assert command.ended() == (1, f"job {job} was cancelled, by scancel or an administrator")


def test_a_node_that_dies_is_reported_and_the_others_go_on(slurm: SlurmNodes) -> None:
    with running(slurm, "--nodes=3") as command:
        job = command.until("up", 3)[0]["job"]
        slurm.kill("n1")  # where the job's script runs
        reason = "Slurm says that the node has failed"
        assert command.one("lost") == {"job": job, "lost": ["n1"], "reasons": [f"host n1: {reason}"]}
        assert slurm.jobs() == {job: "RUNNING"}
        assert sorted(line.split()[-1] for line in slurm.processes()) == [HOST_PROGRAM[-1]] * 2
        assert command.end() == (143, "")


def test_slurm_does_not_put_a_job_back_into_the_queue(slurm: SlurmNodes) -> None:
    with running(slurm) as command:
        job = command.one("up")["job"]
        assert (
            "Requested operation is presently disabled"
            in slurm.run("scontrol", "requeue", job, check=False).stderr
        )


def test_the_time_limit_ends_a_job(slurm: SlurmNodes) -> None:
    with running(slurm, "--time=1") as command:
        job = command.one("up")["job"]
        # Slurm looks for such jobs twice a minute.
        slurm.run("scontrol", "update", f"JobId={job}", "EndTime=now+1seconds")
        assert command.ended() == (JOB_OVER, f"job {job} reached its time limit of 0:01:00")


def test_a_template_is_obeyed_and_settings_have_precedence(slurm: SlurmNodes, tmp_path: Path) -> None:
    default = slurm.run(*COMMAND, "--print-template").stdout
    assert default == TEMPLATE
    template = tmp_path / "job.sh"
    template.write_text(default.replace("#SBATCH --no-kill", "#SBATCH --partition=short\n#SBATCH --nodes=3"))
    with running(slurm, f"--template={template}", "--nodes=1") as command:
        job = command.one("up")["job"]
        found = slurm.run("squeue", "-h", "-j", job, "-o", "%P %D %j").stdout.strip()
        assert found == "short 1 nbdist"


def test_slurm_that_does_not_answer_is_asked_again(slurm: SlurmNodes) -> None:
    other = hold_all(slurm)
    with running(slurm, "--nodes=1") as command:
        command.one("waiting")
        slurm.stop_controller()
        while "does not answer" not in command.one("waiting")["waiting"]:
            pass
        slurm.start_controller()
        slurm.run("scancel", other)
        command.one("up")
        assert command.end() == (143, "")


# Within an allocation.


def in_allocation(slurm: SlurmNodes, folder: Path, *settings: str, before: str = "") -> str:
    """Submit a job that runs the command on its first node; return its number."""
    plan = folder / "plan"
    plan.write_text(json.dumps(PLAN) + "\n")
    script = folder / "allocation.sh"
    words = " ".join([*COMMAND, *settings, "--", *HOST_PROGRAM])
    script.write_text(
        f"#!/bin/sh\n{before}\n{words} < {plan} > {folder}/out 2> {folder}/err\n"
        f"echo $? > {folder}/ending\nmv {folder}/ending {folder}/code\nexec sleep 1000\n"
    )
    options = ("--nodes=3", "--ntasks-per-node=2", "--mem-per-cpu=10", "--time=4", f"--output={folder}/log")
    return slurm.run("sbatch", "--parsable", *options, str(script)).stdout.strip()


def lines(path: Path, word: str) -> list[dict[str, object]]:
    """Return the complete lines of progress in a file that have a word."""
    text = path.read_text() if path.exists() else ""
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in found if word in line]


def test_in_an_allocation_it_runs_a_step_beside_the_others(slurm: SlurmNodes, tmp_path: Path) -> None:
    # Another step has all cores, as that of a Jupyter which srun has started.
    job = in_allocation(slurm, tmp_path, before="srun --output=/dev/null sleep 1000 &")
    out = tmp_path / "out"
    until(lambda: len(lines(out, "up")) == 3, describe=lambda: (out.read_text(), slurm.logs()))
    assert [line["hosts"] for line in lines(out, "hosts")] == [list(NODES)]
    assert {line["job"] for line in lines(out, "up")} == {job}
    assert {line["SLURM_CPUS_ON_NODE"] for line in lines(out, "up")} == {"2"}
    [own] = [line for line in slurm.processes() if "launchers.slurm" in line]
    slurm.run(
        "nsenter", f"--target={own.split()[0]}", "--pid", "--mount", "pkill", "-TERM", "-f", "launchers.slurm"
    )
    until((tmp_path / "code").exists)
    assert (tmp_path / "code").read_text() == "143\n"
    # The allocation and its other step are the user's.
    assert slurm.jobs() == {job: "RUNNING"}
    assert set(slurm.run("squeue", "-h", "-s", "-o", "%j").stdout.split()) == {"batch", "sleep"}
    slurm.run("scancel", job)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--partition=short", "--time=5"], "partition, time: this process runs in job {job}, which has its"),
        (["--nodes=4"], "nodes=4, and job {job} has 3: n1, n2, n3"),
    ],
)
def test_an_allocation_refuses_what_it_cannot_obey(
    slurm: SlurmNodes, tmp_path: Path, settings: list[str], said: str
) -> None:
    job = in_allocation(slurm, tmp_path, *settings)
    until((tmp_path / "code").exists, describe=slurm.logs)
    assert said.format(job=job) in (tmp_path / "err").read_text()
    assert (tmp_path / "code").read_text() == "1\n"
    slurm.run("scancel", job)


def test_an_allocation_that_is_over_is_named(slurm: SlurmNodes) -> None:
    with running(slurm, environment={"SLURM_JOB_ID": "999999"}) as command:
        assert command.ended() == (1, "job 999999 is not known to Slurm, or not any more")


def test_a_step_of_an_old_slurm_says_what_holds_the_cores(slurm: SlurmNodes) -> None:
    """Before 20.11 steps could not share cores; a step without --overlap waits as it did then."""
    program = (
        "from nbdist.cluster.launchers.slurm import __main__, launcher\n"
        "launcher.OVERLAP, launcher.BUSY_SECONDS = (99, 1), 1\n"
        "import sys; sys.exit(__main__.main(sys.argv[1:]))"
    )
    other = hold_all(slurm)
    step = slurm.start("srun", f"--jobid={other}", "--exact", "--ntasks=12", "--nodes=3", "sleep", "1000")
    until(lambda: "sleep" in slurm.run("squeue", "-h", "-s", "-o", "%j").stdout.split())
    until(lambda: len([line for line in slurm.processes() if "sleep 1000" in line]) == 13)
    done = slurm.run(
        sys.executable, "-c", program, "--", "true",
        env={**slurm.environment, "SLURM_JOB_ID": other}, input="{}\n", stdin=None, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"the step of job {other} failed. another step holds its cores" in done.stderr
    slurm.run("scancel", other)
    step.wait()
