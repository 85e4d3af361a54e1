"""Why a run is slow, and what has died: `diagnose`, from the run's folder and the processes of its cluster.

    print(diagnose("261120-091512-mnist"))
    straggler: a step of worker 1 takes 2.1 times the others' (compute 40 ms and not 19 ms); the others ...

No task receives a request. Of a run under way the files are looked at twice, so that the times of a step are
those of now; of one that has ended they are averages of the whole run. `findings` decides, and is pure.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from nbdist.json_values import object_in, text, whole
from nbdist.lab.readers.run_detail import progress_files, record_in, shown_of
from nbdist.lab.readers.run_record import SPENT, ReplicaProgress, parse_progress
from nbdist.lab.readers.runs import Item, Runs
from nbdist.lab.readers.tasks import ClusterTasks
from nbdist.run.history import error_line
from nbdist.run.progress import BUSY, PAUSED, RUNNING, SLOW, with_exchange
from nbdist.run.record import ACTIVE, RunRecord
from nbdist.text import in_bytes
from nbdist.ui.frozen.summary import short_task, with_short_tasks

LOOK_SECONDS = 3.0  # between two looks at a run under way, at most; tasks write about once a second
POLL_SECONDS = 0.1
SILENT_SECONDS = 10.0  # without a report of a replica that trains
LEAST_STEPS = 5  # between two looks that are compared; else the whole run is
WAITS, EXCHANGES = 0.25, 0.4  # shares of a step from which waits and transfers are named
LITTLE_DISK = 1 << 30  # bytes that are free
NOTHING = "nothing stands out: no task was lost, and no part of a step is unusually long"
FULL = ("no space left", "disk is full", "disk quota exceeded")  # in the text of an error


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run, or explains its speed.

    - ``kind``: "failed", "lost", "dead", "frozen", "silent", "replaced", "resized", "paused", "straggler",
      "input", "exchange", "wait", "device", "not finite", "left out", "disk" or "log"
    - ``text``: what was found, with its numbers
    - ``advice``: what to do; may be empty
    - ``tasks``: the tasks that it is about
    """

    kind: str
    text: str
    advice: str = ""
    tasks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f". {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Look:
    """What the files of a run say at one time.

    ``reports`` and ``written`` are by replica: what its progress file says, checked and as it is. ``tasks``
    are the rows of its cluster's tasks, as the sidebar shows them; none if the run has ended. ``at`` is in
    seconds since 1970, ``free`` the bytes that are free on the disk of its folder.
    """

    item: Item
    record: RunRecord
    reports: Mapping[int, ReplicaProgress] = field(default_factory=dict)
    written: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    tasks: Sequence[Item] = ()
    at: float = 0.0
    free: int | None = None

    @property
    def active(self) -> bool:
        """Whether the run is under way."""
        return self.item["status"] in ACTIVE

    def name_of(self, replica: int) -> str:
        """Return the short name of a replica's task, such as "worker 1"."""
        workers = self.record.workers
        known = replica < len(workers)
        return short_task(self.record.name_of(workers[replica])) if known else f"replica {replica}"


@dataclass(frozen=True)
class Diagnosis:
    """What was found about a run: its ``status``, ``findings``, the most important first, and ``parts``.

    ``parts`` are the seconds of a step by part ("data", "compute", "exchange", "wait"), the median over the
    replicas; empty if nothing was trained.
    """

    run_id: str
    status: str
    findings: tuple[Finding, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        head = f"{self.run_id}: {self.status}"
        if self.parts:
            parts = (f"{part} {share(self.parts, part):.0%}" for part in self.parts if self.parts[part] > 0)
            head += f" · a step takes {_ms(sum(self.parts.values()))}: {', '.join(parts)}"
        return "\n".join([head, *map(str, self.findings)] if self.findings else [head, NOTHING])


def diagnose(run_id: str, seconds: float = LOOK_SECONDS) -> Diagnosis:
    """Return what is found about a run.

    - ``run_id``: the id of a run of this user
    - ``seconds``: for how long a run under way is looked at, at most

    Raises NotFoundError for an unknown run.
    """
    runs = Runs()
    tasks = ClusterTasks(runs)
    first = look_at(run_id, runs, tasks)
    now, deadline = first, time.monotonic() + seconds
    while now.active and not _has_moved(first, now) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        now = look_at(run_id, runs, tasks)
    _, _, summary = shown_of(now.item, now.record)
    earlier = first if now is not first else None
    found = findings(
        now,
        earlier,
        ended=summary.ended_replicas,
        shown=summary.input,
        warning=summary.warning,
        finals=summary.metrics,
    )
    steps = step_times(now, earlier, summary.ended_replicas).values()
    parts = {part: median(one.get(part, 0.0) for one in steps) for part in SPENT} if steps else {}
    return Diagnosis(now.item["id"], now.item["status"], tuple(found), parts)


def look_at(run_id: str, runs: Runs, tasks: ClusterTasks) -> Look:
    """Read the files of a run once."""
    item = runs.item(run_id)
    record = record_in(item)
    folder = Path(item["folder"])
    contents = progress_files(folder, record)
    under_way = item["status"] in ACTIVE and record.cluster_id is not None
    free = None
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
    return Look(
        item,
        record,
        {at: report for at, content in enumerate(contents) if (report := parse_progress(content))},
        dict(enumerate(map(object_in, contents))),
        tasks.poll(str(record.cluster_id)) if under_way else (),
        time.time(),
        free,
    )


def _has_moved(first: Look, now: Look) -> bool:
    """Whether each replica that trains has made enough steps since the first look."""
    return all(
        one.state != RUNNING or one.step - first.reports[at].step >= LEAST_STEPS
        for at, one in now.reports.items()
        if at in first.reports
    ) and bool(now.reports)


# The decisions. Pure.


def findings(
    now: Look,
    earlier: Look | None = None,
    *,
    ended: Collection[int] = (),
    shown: Mapping[str, Any] | None = None,
    warning: str = "",
    finals: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Return what the looks at a run say.

    - ``earlier``: a look some steps before; None for averages over the whole run
    - ``ended``: the replicas that were lost or have left (`ended_replicas`)
    - ``shown``: the input pipeline of the replica that waits longest (`input_shown`)
    - ``warning``: about GPUs that are not used (`device_warning`)
    - ``finals``: the last value of each metric
    """
    return [
        *_end(now),
        *_disk(now),
        *_tasks(now),
        *_changes(now),
        *_absent(now, ended),
        *_not_finite(now, finals or {}),
        *_times(now, earlier, ended, shown),
        *([Finding("device", warning)] if warning else []),
    ]


def _end(now: Look) -> list[Finding]:
    """Return how the run has ended, or that it is paused."""
    item, found = now.item, []
    status, note = item["status"], item["note"] or ""
    run_id = item["id"]
    resume = f"nbdist runs resume {run_id} continues it from its newest state"
    again = resume if item["can"].get("resume") else "it left no state to continue from (--checkpoint-every)"
    if status in ("failed", "damaged"):
        cause = error_line(item["error"] or "") or "its run.json does not say why"
        found.append(Finding("failed", cause, f"nbdist runs logs {run_id} has its output; {again}"))
    elif status == "lost":
        found.append(Finding("lost", note or "its cluster has ended", again))
    elif status == "paused":
        found.append(Finding("paused", "it is paused", f"nbdist runs resume {run_id} continues it"))
    if note and status not in ("lost", "damaged"):
        found.append(Finding("log", note))
    return found


def _disk(now: Look) -> list[Finding]:
    said = (now.record.error or "").lower()
    where = str(now.item["folder"])
    move = f"make room there (nbdist runs clean shows old runs), or set NBDIST_HOME; the run is in {where}"
    if any(one in said for one in FULL):
        return [Finding("disk", "the run's error says that a disk was full", move)]
    if now.free is not None and now.free < LITTLE_DISK:
        return [Finding("disk", f"only {in_bytes(now.free)} are free on the disk of the run's folder", move)]
    return []


def _tasks(now: Look) -> list[Finding]:
    """Return the tasks of the run's cluster that are dead or frozen."""
    found = []
    members = {now.record.name_of(rank) for rank in now.record.workers}
    for row in now.tasks:
        if row["name"] not in members and row["job"] not in ("ps", "data"):
            continue
        name = short_task(row["name"])
        if row["state"] == "dead":
            remedy = f"nbdist cluster restart {now.record.cluster_id} gives it a new process"
            found.append(Finding("dead", f"{name} is dead: {row['note']}", remedy, (row["name"],)))
        elif row["state"] == "frozen":
            remedy = f"kill -CONT {row['pid']} on {row['host']} continues it"
            found.append(Finding("frozen", f"{name} (pid {row['pid']}) is stopped", remedy, (row["name"],)))
    return found


def _changes(now: Look) -> list[Finding]:
    """Return the tasks that were lost and replaced, and those that were added or have left."""
    found = []
    for one in now.record.restarts:
        task, problem, step = text(one.get("task")), text(one.get("problem")), whole(one.get("step"))
        how = with_short_tasks(text(one.get("lost")) or f"{task} was lost")
        after = f" at step {step:,}" if step is not None else ""
        if problem:
            found.append(Finding("lost", f"{how}; it was not replaced: {problem}", "", (task,)))
        else:
            lost = whole(one.get("lost_updates"))
            what = f", and {lost:,} updates were lost" if lost else ""
            found.append(
                Finding("replaced", f"{how}; a new process took its place{after}{what}", "", (task,))
            )
    replaced = {one.get("task") for one in now.record.restarts}
    for one in now.record.losses:
        if (task := text(one.get("task"))) not in replaced:
            how = with_short_tasks(text(one.get("how")) or f"{task} was lost")
            found.append(Finding("lost", f"{how}; the run continued without it", "", (task,)))
    for one in now.record.resizes:
        task, problem, step = text(one.get("task")), text(one.get("problem")), whole(one.get("step"))
        after = f" at step {step:,}" if step is not None else ""
        change = "joined" if one.get("change") == "grown" else "left"
        said = f"was not added: {problem}" if problem else f"{change}{after}"
        found.append(Finding("resized", f"{short_task(task)} {said}", "", (task,)))
    return found


def _absent(now: Look, ended: Collection[int]) -> list[Finding]:
    """Return replicas that have ended early, or are silent while the run is under way."""
    found = []
    record = now.record
    told = (*record.restarts, *record.losses, *record.resizes)
    known = {task for one in told if (task := text(one.get("task")))}
    for at in sorted(ended):
        rank = now.record.workers[at] if at < len(now.record.workers) else -1
        if now.record.name_of(rank) not in known and at in now.reports:
            step = now.reports[at].step
            said = f"{now.name_of(at)} made no step after {step:,}, while others continued"
            found.append(Finding("lost", said, tasks=(now.record.name_of(rank),)))
    if not now.active:
        return found
    quiet = {
        at: now.at - one.time
        for at, one in now.reports.items()
        if one.state == RUNNING and at not in ended and now.at - one.time > SILENT_SECONDS
    }
    if quiet and len(quiet) == len(now.reports):
        least = min(quiet.values())
        said = f"no replica has made a step for {least:.0f} s"
        advice = "a step takes that long, or they wait for each other: nbdist runs tail shows their output"
        found.append(Finding("silent", said, advice))
    elif quiet:
        for at, seconds in quiet.items():
            said = f"{now.name_of(at)} has reported nothing for {seconds:.0f} s, and others have"
            found.append(Finding("silent", said, tasks=(now.name_of(at),)))
    if not now.reports and now.item["training"] is not False:
        age = now.at - now.item["created"]
        if age > SILENT_SECONDS:
            said = f"it runs for {age:.0f} s, and no replica has trained a step"
            found.append(Finding("silent", said, "its body prepares its data or model, or does not train"))
    return found


def _not_finite(now: Look, finals: Mapping[str, float]) -> list[Finding]:
    found = []
    wrong = [name for name, value in finals.items() if not math.isfinite(value)]
    if wrong:
        advice = "lower the learning rate, clip gradients, or use fit(nan='stop')"
        found.append(Finding("not finite", f"the last {', '.join(wrong)} is no finite number", advice))
    for name, what in (("skipped", "that were no numbers"), ("dropped", "that came too late")):
        count = sum(whole(one.get(name)) or 0 for one in now.written.values())
        if count:
            found.append(Finding("left out", f"{count:,} gradients {what} were left out"))
    return found


def _times(
    now: Look, earlier: Look | None, ended: Collection[int], shown: Mapping[str, Any] | None
) -> list[Finding]:
    """Return what takes the time of a step: a straggler, the data, the transfers, or waits."""
    steps = step_times(now, earlier, ended)
    busy = {at: sum(parts.get(part, 0.0) for part in BUSY) for at, parts in steps.items()}
    found = []
    slow = stragglers(busy)
    for at, times in slow.items():
        parts = steps[at]
        others = [other for other in steps if other not in slow]
        part = max(BUSY, key=lambda one: parts.get(one, 0.0) - median(steps[o].get(one, 0.0) for o in others))
        usual = median(steps[other].get(part, 0.0) for other in others)
        waits = median(share(steps[other], "wait") for other in others)
        said = (
            f"a step of {now.name_of(at)} takes {times:.1f} times the others' ({part} "
            f"{_ms(parts.get(part, 0.0))} and not {_ms(usual)})"
        )
        if waits >= 0.05:
            said += f"; the others wait for {waits:.0%} of their time"
        found.append(Finding("straggler", said, REMEDIES[part], (now.name_of(at),)))
    if shown and "training is the bottleneck" not in shown["verdict"]:
        of = f" (of {shown['task']})" if len(steps) > 1 else ""
        found.append(Finding("input", f"{shown['verdict']}{of}", "; ".join(shown["advice"])))
    elif shown is None and steps and (data := _middle(steps, "data")) >= WAITS:
        found.append(Finding("input", f"{data:.0%} of a step is reading data", REMEDIES["data"]))
    if steps and (moved := _middle(steps, "exchange")) >= EXCHANGES:
        found.append(Finding("exchange", f"{moved:.0%} of a step is transfers", REMEDIES["exchange"]))
    if steps and not slow and (waits := _middle(steps, "wait")) >= WAITS:
        found.append(Finding("wait", f"{waits:.0%} of a step is waiting for others", REMEDIES["wait"]))
    return found


REMEDIES = {
    "data": "prefetch and parallel maps (nb.data.AUTOTUNE), data tasks (--data service), or a faster disk",
    "compute": "look at what else uses its host (nbdist cluster status), or leave it out with --on",
    "exchange": "larger batches, fewer workers, or another strategy: nbdist simulate compares them",
    "wait": "replicas take turns: uneven data, few cores for many tasks, or a slow parameter server",
}


def step_times(now: Look, earlier: Look | None, ended: Collection[int] = ()) -> dict[int, dict[str, float]]:
    """Return the seconds of a step by part, of each replica that trains or has trained, but ``ended`` ones.

    Between the two looks if each replica has made `LEAST_STEPS` there, else since its process began to train:
    none of a run that has continued another one, whose steps its replicas count on.
    """
    known = now.reports.items()
    reports = {at: one for at, one in known if one.step > 0 and one.state != PAUSED and at not in ended}
    before = {} if earlier is None else earlier.reports
    lately = all(
        at in before and one.training == before[at].training and one.step - before[at].step >= LEAST_STEPS
        for at, one in reports.items()
    )
    if now.record.resumed_from and not lately:
        return {}
    found = {}
    for at, one in reports.items():
        steps = max(1, one.step - (before[at].step if lately else began_at(now.record, at)))
        since = before[at].spent if lately else {}
        found[at] = {
            part: max(0.0, seconds - since.get(part, 0.0)) / steps for part, seconds in one.spent.items()
        }
    found = {at: parts for at, parts in found.items() if sum(parts.values()) > 0}
    if any(one.together for one in reports.values()):
        return dict(zip(found, with_exchange(list(found.values())), strict=True))
    return found


def began_at(record: RunRecord, replica: int) -> int:
    """Return the step at which a replica's process has joined: 0, unless it was replaced or added."""
    task = record.name_of(record.workers[replica]) if replica < len(record.workers) else ""
    added = (one for one in record.resizes if one.get("change") == "grown")
    steps = [whole(one.get("step")) for one in (*record.restarts, *added) if one.get("task") == task]
    return max((step for step in steps if step is not None), default=0)


def stragglers(busy: Mapping[int, float]) -> dict[int, float]:
    """Return the replicas whose busy time of a step is longer than the others', with how many times.

    >>> stragglers({0: 0.02, 1: 0.021, 2: 0.05})
    {2: 2.4390243902439024}
    """
    found = {}
    for at, own in busy.items():
        others = [one for other, one in busy.items() if other != at]
        usual = median(others) if others else 0.0
        if usual > 0 and own >= SLOW * usual:
            found[at] = own / usual
    return found


def share(parts: Mapping[str, float], part: str) -> float:
    """Return the share of a step that a part takes."""
    whole_step = sum(parts.values())
    return parts.get(part, 0.0) / whole_step if whole_step > 0 else 0.0


def _middle(steps: Mapping[int, Mapping[str, float]], part: str) -> float:
    return median(share(parts, part) for parts in steps.values())


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
