"""Why a run is slow, and what has died, from its folder."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_folders import RunFolder, losses

from nbdist.cli.__main__ import main
from nbdist.errors import NotFoundError
from nbdist.lab.readers.diagnosis import LEAST_STEPS, Finding, Look, diagnose, findings, step_times
from nbdist.lab.readers.run_record import ReplicaProgress
from nbdist.run.record import RunRecord

RUN = "261120-091512-mnist"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))


def members(workers: int) -> dict[str, Any]:
    same = {"job": "worker", "host": "h", "pid": 1, "address": "a:1", "device": "CPU:0"}
    tasks = [{**same, "index": i, "rank": i, "incarnation": i} for i in range(workers)]
    return {"id": "c", "workers": list(range(workers)), "members": tasks}


def look(*reports: dict[str, Any], status: str = "running", **more: Any) -> Look:
    """A look at a run whose replicas have made 100 steps of these seconds."""
    written = "running" if status == "lost" else status
    record = RunRecord(RUN, status=written, cluster=members(len(reports)), **more.pop("record", {}))
    item = {"id": RUN, "status": status, "note": None, "error": record.error, "can": {}, "training": True,
            "created": 0.0, "folder": "/runs/r"}  # fmt: skip
    replicas = {}
    for at, one in enumerate(reports):
        state, step, when = one.pop("state", "running"), one.pop("step", 100), one.pop("time", 1_000.0)
        spent = {part: step * seconds for part, seconds in one.items()}
        replicas[at] = ReplicaProgress(state, step, None, 1, spent, when)
    return Look(item | more.pop("item", {}), record, replicas, at=1_000.0, **more)


def kinds(found: list[Finding]) -> list[str]:
    return [one.kind for one in found]


def test_even_replicas_have_no_finding() -> None:
    assert findings(look({"compute": 0.02}, {"compute": 0.021}, {"compute": 0.019})) == []


def test_a_straggler_is_named_with_the_part_that_is_long() -> None:
    slow = look(
        {"compute": 0.01, "wait": 0.02}, {"compute": 0.01, "wait": 0.02}, {"compute": 0.01, "data": 0.02}
    )
    (found,) = findings(slow)
    assert found.kind == "straggler"
    assert found.tasks == ("worker 2",)
    assert found.text == (
        "a step of worker 2 takes 3.0 times the others' (data 20 ms and not 0 ms); the others wait for 67% "
        "of their time"
    )


def test_a_run_under_way_is_judged_by_its_last_steps() -> None:
    """Both were slow at their first steps; only worker 1 still is."""
    before = look({"compute": 0.5, "step": 10}, {"compute": 0.5, "step": 10})
    now = look({"compute": 0.06}, {"compute": 0.15})
    assert step_times(now, before)[0]["compute"] == pytest.approx((6 - 5) / 90)
    assert kinds(findings(now, before)) == ["straggler"]
    assert kinds(findings(now, None)) == ["straggler"]
    even = look({"compute": 0.06}, {"compute": 0.0605})
    assert kinds(findings(even, before)) == []
    barely = look({"compute": 0.5, "step": 10 + LEAST_STEPS - 1}, {"compute": 0.5, "step": 90})
    assert step_times(barely, before)[1]["compute"] == pytest.approx(0.5)  # too few steps to compare


def test_a_replaced_worker_counts_from_where_it_joined() -> None:
    restart = {
        "task": "/job:worker/task:1",
        "lost": "worker 1 was killed by signal 9",
        "step": 90,
        "number": 1,
    }
    now = look({"compute": 0.02}, {"compute": 0.002}, record={"restarts": [restart]})
    assert step_times(now, None)[1]["compute"] == pytest.approx(0.02)
    (found,) = findings(now)
    assert found.kind == "replaced"
    assert found.text == "worker 1 was killed by signal 9; a new process took its place at step 90"
    failed = findings(
        look(record={"restarts": [restart | {"problem": "no restarts are left", "step": None}]})
    )
    assert failed[0].text == "worker 1 was killed by signal 9; it was not replaced: no restarts are left"


def test_waits_transfers_and_input() -> None:
    assert kinds(findings(look({"compute": 0.01, "wait": 0.01}, {"compute": 0.01, "wait": 0.01}))) == ["wait"]
    assert kinds(findings(look({"compute": 0.01, "exchange": 0.01}))) == ["exchange"]
    assert kinds(findings(look({"compute": 0.01, "data": 0.01}))) == ["input"]
    shown = {"task": "worker 1", "verdict": "map(f) is the bottleneck: busy 93%", "advice": ["a", "b"]}
    (found,) = findings(look({"compute": 0.01}), shown=shown)
    assert (found.text, found.advice) == ("map(f) is the bottleneck: busy 93%", "a; b")
    shown["verdict"] = "training is the bottleneck: it waits for data 1% of the time"
    assert findings(look({"compute": 0.01}), shown=shown) == []


def test_the_end_is_explained() -> None:
    failed = look(status="failed", record={"error": "ValueError: late"})
    (found,) = findings(failed)
    assert (found.kind, found.text) == ("failed", "ValueError: late")
    assert "it left no state" in found.advice
    (found,) = findings(
        look(status="lost", item={"note": "its cluster c has ended", "can": {"resume": True}})
    )
    assert found.text == "its cluster c has ended"
    assert f"nbdist runs resume {RUN}" in found.advice
    assert kinds(findings(look({"state": "paused", "compute": 0.1}, status="paused"))) == ["paused"]


def test_full_and_almost_full_disks() -> None:
    full = look(
        status="failed", record={"error": "ResourceExhaustedError: [Errno 28] No space left on device"}
    )
    assert kinds(findings(full)) == ["failed", "disk"]
    assert "runs clean" in findings(full)[1].advice
    (found,) = findings(look({"compute": 0.1}, free=100_000_000))
    assert found.text.startswith("only 100.0 MB are free") or found.text.startswith("only 100 MB are free")
    assert findings(look({"compute": 0.1}, free=1 << 40)) == []


def test_dead_frozen_and_silent_tasks() -> None:
    row = {"name": "/job:worker/task:1", "job": "worker", "pid": 7, "host": "h", "note": "killed by signal 9"}
    dead = findings(look({"compute": 0.1}, {"compute": 0.1}, tasks=[row | {"state": "dead"}]))
    assert [(one.kind, one.text) for one in dead] == [("dead", "worker 1 is dead: killed by signal 9")]
    frozen = findings(look({"compute": 0.1}, {"compute": 0.1}, tasks=[row | {"state": "frozen"}]))
    assert frozen[0].advice == "kill -CONT 7 on h continues it"
    one = findings(look({"compute": 0.1}, {"compute": 0.1, "time": 970.0}))
    assert [found.text for found in one] == ["worker 1 has reported nothing for 30 s, and others have"]
    both = findings(look({"compute": 0.1, "time": 975.0}, {"compute": 0.1, "time": 970.0}))
    assert [found.text for found in both] == ["no replica has made a step for 25 s"]
    assert kinds(findings(look())) == ["silent"]  # started long ago, and trains no step


def test_lost_and_left_replicas() -> None:
    run = look({"compute": 0.1}, {"compute": 0.1, "step": 40, "time": 500.0})
    (found,) = findings(run, ended={1})
    assert (found.kind, found.text) == ("lost", "worker 1 made no step after 40, while others continued")
    left = {"task": "/job:worker/task:1", "change": "shrunk", "step": 40}
    told = replace(run, record=replace(run.record, resizes=[left]))
    (found,) = findings(told, ended={1})
    assert (found.kind, found.text) == ("resized", "worker 1 left at step 40")


def test_a_lost_worker_that_was_not_replaced() -> None:
    loss = {"task": "/job:worker/task:1", "how": "/job:worker/task:1 died: killed by SIGKILL", "at": 900.0}
    run = look({"compute": 0.1}, {"compute": 0.1, "step": 40, "time": 500.0}, record={"losses": [loss]})
    (found,) = findings(run, ended={1})
    assert (found.kind, found.text) == (
        "lost", "worker 1 died: killed by SIGKILL; the run continued without it",
    )  # fmt: skip
    again = {"task": "/job:worker/task:1", "lost": loss["how"], "step": 30}
    replaced = replace(run, record=replace(run.record, restarts=[again]))
    assert kinds(findings(replaced, ended={1})) == ["replaced"]


def test_numbers_that_are_none() -> None:
    run = look({"compute": 0.1}, written={0: {"skipped": 3, "dropped": 1_200}})
    found = findings(run, finals={"loss": float("nan"), "accuracy": 0.5}, warning="worker 0 has a GPU")
    assert kinds(found) == ["not finite", "left out", "left out", "device"]
    assert found[0].text == "the last loss is no finite number"
    assert found[2].text == "1,200 gradients that came too late were left out"


def test_damaged_fields_are_left_out() -> None:
    wrong = {"restarts": [{"task": 3, "lost": None, "step": "x"}], "resizes": [{"change": {}}]}
    assert len(findings(look({"compute": 0.1}, record=wrong))) == 2


def test_from_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder(RUN, status="failed", ended=time.time(), error="ValueError: late")
    for rank in (0, 1):
        run.log(rank, losses(20))
        run.progress(rank, 20, spent={"compute": 0.2 + rank * 0.2, "wait": 0.2 - rank * 0.2})
    found = diagnose(RUN)
    assert [one.kind for one in found.findings] == ["failed", "straggler"]
    assert sum(found.parts.values()) == pytest.approx(0.02)
    assert main(["runs", "diagnose", "mnist"]) == 0
    head, failed, slow = capsys.readouterr().out.splitlines()
    assert head == f"{RUN}: failed · a step takes 20 ms: compute 75%, wait 25%"
    assert failed.startswith("failed: ValueError: late. ")
    assert slow.startswith("straggler: a step of worker 1 takes 2.0 times the others'")
    assert main(["runs", "diagnose", "mnist", "--json"]) == 0
    assert [one["kind"] for one in json.loads(capsys.readouterr().out)["findings"]] == ["failed", "straggler"]
    with pytest.raises(NotFoundError):
        diagnose("261120-gone")


def test_a_run_without_files(capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder(RUN, status="finished", ended=time.time(), cluster="c1").raw("progress-0000.json", "rubbish")
    assert main(["runs", "diagnose", RUN]) == 0
    assert "nothing stands out" in capsys.readouterr().out
