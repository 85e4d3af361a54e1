"""``nbdist runs list|show|tail|diagnose|export|stop|...``: the runs of this user.

A run is named by its id, or by a part of it that no other run has.
"""

from __future__ import annotations

import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from nbdist.cli.text import Answer, VerbGroup, answers, as_text
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.lab.actions.__main__ import pause_run, resume_run, set_run, stop_run
from nbdist.lab.readers.diagnosis import diagnose as diagnosed
from nbdist.lab.readers.run_detail import outputs, record_in, run_details, shown_of
from nbdist.lab.readers.runs import Runs
from nbdist.metrics.run_folder import STATUSES, duration, run_folder
from nbdist.run.export.registry import EXPORTERS, all_settings
from nbdist.run.export.spec import PATH
from nbdist.run.history import (
    MOST_NAMED,
    NO_MATCH,
    NONE,
    ListedRun,
    clean,
    delete_run,
    read_labels,
    table,
    write_labels,
)
from nbdist.run.history import (
    runs as listed_runs,
)
from nbdist.run.record import is_under_way
from nbdist.terminal.ansi import ERROR, OWN, USUAL, by_stream
from nbdist.text import columns, in_bytes, measured, rate
from nbdist.ui.compare.comparison import compare as compare_runs
from nbdist.ui.compare.curves import AXES, By
from nbdist.ui.frozen.render import text
from nbdist.ui.frozen.run import ALONE

VERBS = {
    "list": "the runs, the newest first",
    "show": "the options, code, metrics and output of a run",
    "logs": "what the tasks of a run have printed",
    "tail": "how far a run is, and the last lines of its output",
    "diagnose": "why a run is slow, and what has died",
    "compare": "what differs between runs, and their final and best metrics",
    "export": "write a run to trackio, wandb, mlflow, or into files",
    "stop": "stop runs; they keep what they have",
    "pause": "pause a run between two steps",
    "resume": "end a pause, or continue a run that has ended from its newest state",
    "set": "change the learning rate of a run",
    "rename": "give a run another name",
    "tag": "add tags to a run, or remove them",
    "note": "write a note about a run",
    "delete": "delete runs with all their files",
    "clean": "delete old runs, or show which",
}
LIMIT = 20
LINES = 10
MOST_LINES = 10_000
POLL_SECONDS = 0.2
CHUNK = 1 << 16

runs = VerbGroup("runs", VERBS, lambda name: COMMANDS[name], help="List, show, change and delete runs.")
a_run = click.argument("run_id", metavar="RUN")
some_runs = click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)


def report(line: str) -> None:
    """Print a line of progress, on stderr."""
    click.echo(line, err=True)


def find(name: str) -> ListedRun:
    """Return the run of an id, or of a part of one that no other run has.

    Raises NotFoundError, and InvalidArgumentError if several runs fit; both name some.
    """
    known = [run for run in listed_runs() if isinstance(run, ListedRun)]
    exact = [run for run in known if run.id == name]
    fits = exact or [run for run in known if name in run.id]
    named = ", ".join(run.id for run in (fits or known)[:MOST_NAMED])
    if not fits:
        raise NotFoundError(
            f"no run {name!r}; the latest are {named or '(none)'}; nbdist runs list lists all"
        )
    if len(fits) > 1:
        raise InvalidArgumentError(f"{len(fits)} runs fit {name!r}: {named}; give more of the id")
    return fits[0]


def row_of(run: ListedRun) -> dict[str, Any]:
    """Return what programs read of a run."""
    names = ("id", "name", "kind", "status", "created", "ended", "paused", "trained", "resumed_from", "error")
    return {name: getattr(run, name) for name in names} | {
        "tags": run.tags, "note": run.remark, "cluster": run.cluster.get("id"), "options": run.options,
    }  # fmt: skip


@click.command("list")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--status", type=click.Choice(STATUSES), help="Only runs of this status.")
@click.option("--tag", metavar="TAG", help="Only runs that have this tag.")
@click.option(
    "--trained/--plain", default=None, help="Only runs that train or log metrics, or only plain cells."
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True, help="The newest so many."
)
@click.option("--all", "all_of_them", is_flag=True, help="All of them, whatever --limit is.")
@click.option(
    "--folder",
    metavar="PATH",
    help="The runs of another machine: a folder of runs, or a zip file of run.export.",
)
@answers
def list_runs(
    words: tuple[str, ...],
    status: str | None,
    tag: str | None,
    trained: bool | None,
    limit: int,
    all_of_them: bool,
    folder: str | None,
) -> Answer:
    """List runs, the newest first. WORDs are looked for in ids, names, tags and notes."""
    found = listed_runs(" ".join(words) or None, status=status, tag=tag, trained=trained, folder=folder)
    shown = [run for run in (found if all_of_them else found[:limit]) if isinstance(run, ListedRun)]
    if not shown:
        return Answer([], NO_MATCH if found.none == NO_MATCH else NONE)
    lines = [columns(table(shown))]
    if len(found) > len(shown):
        lines.append(f"and {len(found) - len(shown):,} older: --all lists them, --limit N more of them")
    return Answer([row_of(run) for run in shown], "\n".join(lines))


@click.command()
@a_run
@click.option("--code", is_flag=True, help="Also print the run's code.")
@answers
def show(run_id: str, code: bool) -> Answer:
    """Show a run: its line, its final and best metrics, what happened to its workers, and its output."""
    known = find(run_id)
    reader = Runs()
    details = run_details(known.id, reader)
    item, record = reader.item(known.id), record_in(reader.item(known.id))
    _, _, summary = shown_of(item, record)
    printed = {one["task"]: one["text"] for one in details["output"]}
    lines = [
        text(replace(summary, outputs=printed, error=details["error"] or None), ALONE),
        columns(
            [
                ("folder", str(details["folder"])),
                ("line", details["first_line"] or "(a function)"),
                ("seed", str(details["seed"])),
                ("versions", ", ".join(f"{name} {version}" for name, version in details["versions"].items())),
                *([("tags", ", ".join(known.tags))] if known.tags else []),
                *([("note", known.remark)] if known.remark else []),
            ]
        ),
    ]
    if code:
        lines.append(details["code"])
    return Answer(details | {"metrics": summary.metrics}, "\n\n".join(lines))


@click.command()
@a_run
@click.option("--task", metavar="worker:1", help="Only this task; default: all, one after the other.")
@click.option("-f", "--follow", is_flag=True, help="Continue until the run ends, as tail -f does.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def logs(run_id: str, task: str | None, follow: bool, as_json: bool) -> int:
    """Print what the tasks of a run have printed."""
    known = find(run_id)
    names = {path: name for name, path in output_files(known.id).items()}
    wanted = {path: name for path, name in names.items() if task is None or short(name) == short(task)}
    if task is not None and not wanted:
        there = ", ".join(short(name) for name in names.values()) or "none has printed anything"
        raise NotFoundError(f"run {known.id} has no output of {task!r}; there is that of {there}")
    if as_json and follow:
        raise InvalidArgumentError("--json prints one document: leave out --follow")
    if as_json:
        read = {short(name): path.read_text("utf-8", "replace") for path, name in wanted.items()}
        texts = {name: OWN.sub("", text) for name, text in read.items()}
        click.echo(as_text(texts))
        return 0
    if not follow:
        for path, name in wanted.items():
            if len(wanted) > 1:
                click.echo(f"==> {short(name)} <==")
            with path.open("rb") as file:
                copy(file)
        if not wanted:
            report(f"no task of run {known.id} has printed anything")
        return 0
    follow_output(known.id, task, {})
    return 0


def follow_output(run_id: str, task: str | None, places: dict[Path, int]) -> None:
    """Print what the tasks of a run print, from these places in its files on, until it has ended."""
    while True:
        going = is_under_way(find(run_id))  # before the files: what came until then is printed
        for name, path in output_files(run_id).items():
            if task is None or short(name) == short(task):
                with path.open("rb") as file:
                    file.seek(places.get(path, 0))
                    copy(file)
                    places[path] = file.tell()
        if not going or not run_folder(run_id).is_dir():
            return
        time.sleep(POLL_SECONDS)


@click.command()
@a_run
@click.option("--task", metavar="worker:1", help="Only this task; default: all, one after the other.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(1, MOST_LINES),
    default=LINES,
    show_default=True,
    help="The last lines of each task.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue until the run ends, as tail -f does.")
@answers
def tail(run_id: str, task: str | None, lines: int, follow: bool) -> Answer:
    """Show how far a run is, and the last lines that its tasks have printed."""
    known = find(run_id)
    item = Runs().item(known.id)
    places = {path: path.stat().st_size for path in output_files(known.id).values()}
    printed = {short(one["task"]): one["text"] for one in outputs(Path(item["folder"]), record_in(item))}
    wanted = {name: text for name, text in printed.items() if task is None or name == short(task)}
    if task is not None and not wanted:
        there = ", ".join(printed) or "none has printed anything"
        raise NotFoundError(f"run {known.id} has no output of {task!r}; there is that of {there}")
    ends = {name: text.splitlines()[-lines:] for name, text in wanted.items()}
    value = {"id": known.id, **{name: item[name] for name in PROGRESS}, "output": ends}
    shown = [progress_line(item)]
    for name, last in ends.items():
        shown += [f"==> {name} <=="] * (len(ends) > 1) + last
    return Answer(
        value,
        "\n".join(shown),
        then=(lambda: follow_output(known.id, task, places)) if follow else None,
    )


PROGRESS = (
    "status", "step", "total", "steps_per_second", "seconds_left", "learning_rate", "metric", "value",
    "error_line", "note",
)  # fmt: skip


def progress_line(item: Mapping[str, Any]) -> str:
    """Return how far a run is, in one line.

    >>> item = dict.fromkeys(PROGRESS) | {"id": "r1", "status": "running", "step": 1200, "total": 3600}
    >>> progress_line(item | {"steps_per_second": 37.25, "seconds_left": 65, "metric": "loss", "value": 0.25})
    'r1: running · step 1,200 of 3,600 · 37.2 steps/s · 1 min 05 s left · loss 0.2500'
    """
    parts = [f"{item['id']}: {item['status']}"]
    if item["step"] is not None:
        parts.append(f"step {item['step']:,}" + (f" of {item['total']:,}" if item["total"] else ""))
    if item["steps_per_second"] is not None:
        parts.append(f"{rate(item['steps_per_second'])} steps/s")
    if item["seconds_left"] is not None:
        parts.append(f"{duration(item['seconds_left'])} left")
    if item["value"] is not None:
        parts.append(f"{item['metric']} {measured(item['value'])}")
    return " · ".join([*parts, *filter(None, (item["error_line"], item["note"]))])


@click.command()
@a_run
@answers
def diagnose(run_id: str) -> Answer:
    """Say why a run is slow, and what has died: lost tasks, stragglers, slow input, waits, full disks.

    It reads the run's folder and the processes of its cluster, and asks no task. A run under way is looked at
    for up to 3 s.
    """
    known = find(run_id)
    found = diagnosed(known.id)
    value = {
        "id": known.id,
        "status": found.status,
        "findings": [vars(one) | {"tasks": list(one.tasks)} for one in found.findings],
        "step": found.parts,
    }
    return Answer(value, str(found))


def short(task: str) -> str:
    """Return the short name of a task.

    >>> short("/job:worker/task:1"), short("worker:1")
    ('worker:1', 'worker:1')
    """
    return task.removeprefix("/job:").replace("/task", "")


def output_files(run_id: str) -> dict[str, Path]:
    """Return the files of what each task of a run has printed, by the task's name."""
    reader = Runs()
    record = record_in(reader.item(run_id))
    folder = run_folder(run_id)
    if record.in_graph:
        files = {"/job:client/task:0": folder / "output-0000.log"}
    else:
        files = {record.name_of(rank): folder / f"output-{rank:04d}.log" for rank in record.workers}
    return {name: path for name, path in files.items() if path.is_file() and not path.is_symlink()}


def copy(file: BinaryIO) -> None:
    """Copy the rest of a file to stdout, and to stderr what its task has printed there."""
    decoder = getincrementaldecoder("utf-8")("replace")
    code = rest = ""
    while part := file.read(CHUNK):
        text = code + rest + decoder.decode(part)
        end = text.rfind("\x1b", max(0, len(text) - len(ERROR) + 1))  # a code of which the rest comes
        text, rest = (text[:end], text[end:]) if end >= 0 else (text, "")
        for stderr, piece in by_stream(text):
            stream = sys.stderr if stderr else sys.stdout
            stream.write(piece)
            stream.flush()
        code = ERROR if text.rfind(ERROR) > text.rfind(USUAL) else ""
    sys.stdout.write(OWN.sub("", rest))
    sys.stdout.flush()


@click.command()
@some_runs
@click.option(
    "--by",
    type=click.Choice(list(AXES)),
    default="step",
    show_default=True,
    help="Axis of the picture.",
)
@click.option("--picture", metavar="FILE", help="Save the curves: .png, .svg or .pdf.")
@answers
def compare(run_ids: tuple[str, ...], by: By, picture: str | None) -> Answer:
    """Print what differs between runs, their final and best metrics, and the difference of their code."""
    found = compare_runs([find(one) for one in run_ids], by=by)
    if picture is not None:
        found.save(picture)
    value = {
        "runs": [one.id for one in found.runs],
        "differences": found.differences,
        "metrics": found.metrics,
        "notes": found.notes,
        "picture": picture,
    }
    return Answer(value, repr(found))


def export_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the settings of all exporters as options."""
    for name, (setting, owners) in reversed(all_settings().items()):
        told = (
            f"{setting.help} ({', '.join(owners)})" if name != PATH else "The file, or the folder, to write."
        )
        option = click.option(f"--{name.replace('_', '-')}", metavar=setting.shows, help=told)
        command = option(command)
    return command


@click.command()
@some_runs
@click.option(
    "--to",
    "targets",
    multiple=True,
    metavar="TARGET",
    help=f"One of {', '.join(EXPORTERS)}; may be repeated.",
)
@export_settings
@click.option("--replace", is_flag=True, help="Write it again in the place of an earlier export.")
@click.option("--no-files", is_flag=True, help="Leave out checkpoints and artifacts.")
@answers
def export(
    run_ids: tuple[str, ...], targets: tuple[str, ...], replace: bool, no_files: bool, **settings: str | None
) -> Answer:
    """Write runs to experiment trackers, or into files: all points, what they were, their checkpoints."""
    known = [find(one) for one in run_ids]
    path = settings.pop(PATH)
    if path is not None and len(known) * max(1, len(targets)) > 1:
        raise InvalidArgumentError(
            f"--path {path} is for one run and one target, not for {len(known)} and {len(targets)}"
        )
    found = [
        run.export(path, to=to, replace=replace, files=not no_files, **settings)
        for run in known
        for to in targets or (None,)
    ]
    return Answer([vars(one) for one in found], "\n".join(map(repr, found)))


def acts(name: str, act: Callable[..., None], text: str, done: str) -> click.Command:
    """Return the verb that performs an action of the sidebar on runs."""

    @click.command(name, help=text)
    @some_runs
    @answers
    def perform(run_ids: tuple[str, ...], **settings: Any) -> Answer:
        known = [find(one) for one in run_ids]
        ended = [] if name == "resume" else [one for one in known if not is_under_way(one)]
        if ended:
            names = ", ".join(f"{one.id} ({one.status})" for one in ended)
            raise FailedPreconditionError(f"no run under way: {names}")
        found = [run.id for run in known]
        for one in found:
            act(report, id=one, **settings)
        return Answer({"runs": found}, "\n".join(f"run {one} {done}" for one in found))

    return perform


resume = acts(
    "resume",
    resume_run,
    "End a pause, or start a run that has ended again from its newest state, as a new run.",
    "continues",
)
resume.params.append(
    click.Option(["--only-paused"], is_flag=True, help="Only end a pause: do not start a run that has ended.")
)


@click.command("set")
@a_run
@click.option(
    "--learning-rate", type=click.FloatRange(min=0.0), required=True, help="The rate from the next step on."
)
@answers
def set_rate(run_id: str, learning_rate: float) -> Answer:
    """Change the learning rate of a run that is under way."""
    known = find(run_id)
    set_run(report, id=known.id, learning_rate=learning_rate)
    return Answer(
        {"id": known.id, "learning_rate": learning_rate}, f"run {known.id} trains at {learning_rate:g}"
    )


@click.command()
@a_run
@click.argument("name")
@answers
def rename(run_id: str, name: str) -> Answer:
    """Give a run another name; its id stays. "" restores the name that it was started with."""
    return labelled(find(run_id).id, name=name)


@click.command()
@a_run
@click.argument("tags", metavar="TAG...", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Remove the tags.")
@answers
def tag(run_id: str, tags: tuple[str, ...], remove: bool) -> Answer:
    """Add tags to a run; nbdist runs list --tag TAG lists the runs that have one."""
    known = find(run_id)
    there = read_labels(run_folder(known.id)).tags
    kept = tuple(one for one in there if one not in tags) if remove else (*there, *tags)
    return labelled(known.id, tags=kept)


@click.command()
@a_run
@click.argument("text")
@answers
def note(run_id: str, text: str) -> Answer:
    """Write a note about a run, in the place of the one before; "" removes it."""
    return labelled(find(run_id).id, note=text)


def labelled(run_id: str, **changes: Any) -> Answer:
    """Change the labels of a run."""
    labels = write_labels(run_id, **changes)
    return Answer({"id": run_id, "name": labels.name, "tags": labels.tags, "note": labels.note}, "")


@click.command()
@some_runs
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@answers
def delete(run_ids: tuple[str, ...], yes: bool) -> Answer:
    """Delete runs with all their files: logs, checkpoints, results. This cannot be undone."""
    found = [find(one) for one in run_ids]
    size = sum(one.bytes for one in found)
    if not yes:
        names = "\n".join(f"  {one.id}  {one.name}" for one in found)
        click.confirm(f"{names}\ndelete {len(found)} run(s), {in_bytes(size)}?", abort=True, err=True)
    freed = sum(delete_run(one.id) for one in found)
    value = {"deleted": [one.id for one in found], "bytes": freed}
    return Answer(value, f"deleted {len(found)} run(s), {in_bytes(freed)}")


@click.command("clean")
@click.option("--older-than", metavar="30d", help="Age since a run ended: 90min, 12h, 30d, 2w.")
@click.option("--keep", type=click.IntRange(min=0), help="The newest so many stay, at any age.")
@click.option("-y", "--yes", is_flag=True, help="Delete them; without it they are only listed.")
@answers
def clean_runs(older_than: str | None, keep: int | None, yes: bool) -> Answer:
    """Delete old runs with all their files, or show which ones. Runs under way are kept."""
    found = clean(older_than, keep, dry_run=not yes)
    shown = repr(found).replace("to delete these runs, add dry_run=False", "to delete these runs, add --yes")
    return Answer({"runs": list(found), "bytes": found.bytes, "deleted": yes}, shown)


COMMANDS: dict[str, click.Command] = {
    "list": list_runs,
    "show": show,
    "logs": logs,
    "tail": tail,
    "diagnose": diagnose,
    "compare": compare,
    "export": export,
    "stop": acts("stop", stop_run, "Stop runs that are under way; they keep what they have.", "is stopped"),
    "pause": acts("pause", pause_run, "Pause runs between two steps.", "is paused"),
    "resume": resume,
    "set": set_rate,
    "rename": rename,
    "tag": tag,
    "note": note,
    "delete": delete,
    "clean": clean_runs,
}
