"""The runs of this user: ``nb.runs()``, their names, tags and notes, their deletion, ``nb.clean``.

id                   name        status    started           duration  workers  size    error
261121-063226-a-b-3  a b [3]     finished  2026-11-21 06:32  8.3 s     3        1.2 MB
261121-063017-a-b-2  a b [2]     failed    2026-11-21 06:30  1.2 s     2        12 KB   ValueError: late

Names, tags and notes have a file of their own, ``labels.json`` in the run's folder. ``run.json`` belongs to
the client that drives the run: it rewrites the file from its own memory when the run ends, and would lose a
name that another process wrote.

A run is deleted in two steps: its folder is renamed to a hidden name, which is atomic, so that no reader
finds an incomplete run; then its files are removed. The next deletion removes folders that a crash left
between the two steps.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, TypeVar, overload

from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    choices,
)
from nbdist.home import refuse_link
from nbdist.metrics.run_events import Event, read_events
from nbdist.metrics.run_folder import (
    ARTIFACTS,
    STATUSES,
    RunFile,
    duration,
    is_id,
    read_run,
    read_run_in,
    run_folder,
    runs_folder,
    write_whole_file,
)
from nbdist.metrics.table import as_columns, parts_from_logs
from nbdist.metrics.table import table as as_table
from nbdist.numbers import is_whole
from nbdist.run.archive import opened
from nbdist.run.record import ACTIVE, is_under_way, under_way_of
from nbdist.text import clip, columns, in_bytes

if TYPE_CHECKING:
    from nbdist.run.export.spec import Exported

Row = TypeVar("Row")

MOST_SHOWN = 20
MOST_NAMED = 5  # runs in an error
LONGEST_ERROR = 80  # characters
CELL_LINE = re.compile(r'  File "<distribute [^"]*>", line (\d{1,9})')
TASK = re.compile(r"/job:(\w+)/task:(\d+)")
NONE = "no runs yet"
NO_MATCH = "no run matches; nb.runs() lists all"

LABELS = "labels.json"
MOST_LABELS = 64 << 10  # bytes of the file
LONGEST_NAME, LONGEST_TAG, LONGEST_NOTE = 200, 64, 10_000  # characters
MOST_TAGS = 32

MOST_FILES = 100_000  # of a folder that are counted
DELETED = ".deleted-"  # prefix of a folder that is being deleted
EMPTY_LOG = 64  # bytes; a metrics log without a point is smaller
AGE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*(s|min|h|d|w)")
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


# Names, tags and notes.


@dataclass(frozen=True)
class Labels:
    """A user's name, tags and note of a run. With an empty name the run has the name it was started with."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""


def read_labels(folder: Path) -> Labels:
    """Return a run's labels; if the file cannot be read, the note gives the reason."""
    try:
        descriptor = os.open(f"{folder}/{LABELS}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = json.loads(file.read(MOST_LABELS + 1))
        return checked_labels(found["name"], found["tags"], found["note"])
    except FileNotFoundError:
        return Labels()
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        return Labels(
            note=f"{LABELS} is damaged ({type(error).__name__}); a new name, tag or note replaces it"
        )


def write_labels(run_id: str, **changes: Any) -> Labels:
    """Change a run's ``name``, ``tags`` or ``note`` and return all labels; raises InvalidArgumentError."""
    return write_labels_in(run_folder(run_id), **changes)


def write_labels_in(folder: Path, **changes: Any) -> Labels:
    """Do what `write_labels` does in a run's folder, wherever it is."""
    refuse_link(folder)
    if not folder.is_dir():
        raise NotFoundError(f"no run {folder.name!r} in {folder.parent}; nb.runs() lists all runs")
    labels = replace(read_labels(folder), **changes)
    labels = checked_labels(labels.name, labels.tags, labels.note)
    write_whole_file(folder / LABELS, json.dumps(vars(labels)).encode())
    return labels


def checked_labels(name: object, tags: object, note: object) -> Labels:
    """Return labels of valid values; raises InvalidArgumentError that names the invalid one.

    >>> checked_labels("baseline", ["lr 0.1", "lr 0.1"], "")
    Labels(name='baseline', tags=('lr 0.1',), note='')
    """
    if (
        not isinstance(name, str)
        or len(name) > LONGEST_NAME
        or not (name.isprintable() and name == name.strip())
    ):
        raise InvalidArgumentError(
            f"a run's name is one line of at most {LONGEST_NAME} characters, not {name!r:.80}"
        )
    if not isinstance(tags, list | tuple) or len(tags) > MOST_TAGS:
        raise InvalidArgumentError(f"a run has at most {MOST_TAGS} tags, not {tags!r:.80}")
    for tag in tags:
        valid = (
            isinstance(tag, str) and 0 < len(tag) <= LONGEST_TAG and tag.isprintable() and tag == tag.strip()
        )
        if not valid or "," in tag:
            raise InvalidArgumentError(
                f"a tag is one to {LONGEST_TAG} characters without a comma, not {tag!r:.80}"
            )
    if not isinstance(note, str) or len(note) > LONGEST_NOTE or "\0" in note:
        raise InvalidArgumentError(f"a note is text of at most {LONGEST_NOTE:,} characters, not {note!r:.80}")
    for text in (name, *tags, note):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"{text!r:.80} has half of a letter (a lone surrogate)") from None
    return Labels(name, tuple(dict.fromkeys(tags)), note)


class Labelled:
    """Operations on any run by its ``folder``: rename, tag, note, export, delete."""

    id: str
    folder: Path

    def rename(self, name: str) -> None:
        """Give the run another name; its id stays.

        - ``name``: one line of at most 200 characters; "" restores the name that it was started with

        Raises InvalidArgumentError for another value, NotFoundError if the run was deleted.

        Example::

            run.rename("baseline, two workers")
        """
        self._write(name=name)

    def tag(self, *tags: str) -> None:
        """Add tags; ``nb.runs(tag="baseline")`` lists the runs that have one.

        - ``tags``: each of 1 to 64 characters, without a comma; at most 32 for a run

        Raises InvalidArgumentError, NotFoundError.
        """
        self._write(tags=(*self.labels.tags, *tags))

    def untag(self, *tags: str) -> None:
        """Remove tags; those that the run does not have are ignored. Raises NotFoundError."""
        self._write(tags=tuple(tag for tag in self.labels.tags if tag not in tags))

    def note(self, text: str) -> None:
        """Write a note about the run, in the place of the one before.

        - ``text``: at most 10,000 characters, in as many lines as you like; "" removes the note

        Raises InvalidArgumentError, NotFoundError.
        """
        self._write(note=text)

    def delete(self) -> None:
        """Delete the run with all its files: logs, checkpoints, results. This cannot be undone.

        Raises FailedPreconditionError while it is under way, NotFoundError if it was deleted before.
        """
        delete_run(self.id)

    def export(
        self,
        path: str | Path | None = None,
        *,
        to: str | None = None,
        replace: bool = False,
        files: bool = True,
        **settings: str | None,
    ) -> Exported:
        """Write the run to an experiment tracker, or into files: all points, what it was, its checkpoints.

        A path that ends in .zip takes the run with all its files, which ``nb.runs("digits.zip")`` opens, here
        or on another machine.

        It is read from the run's folder, on this machine: the tasks are not asked, and the run may have ended
        long ago. An interrupt ends the export, and what it had written is removed.

        - ``path``: the file of "zip" or "parquet", the folder of "tensorboard", the folder in which "wandb"
          makes its own; None is ``exports`` in the run's folder, and the current one for "wandb" and "zip". A
          path that ends with .zip or .parquet needs no ``to``
        - ``to``: "zip", "trackio", "wandb", "mlflow", "tensorboard" or "parquet"
        - ``replace``: True writes it again in the place of an earlier export of this run
        - ``files``: False leaves out checkpoints and artifacts, which "wandb" and "mlflow" take
        - ``settings``: those of the target, as texts: ``project`` (trackio, wandb), ``entity`` and ``mode``,
          "offline" or "online" (wandb), ``experiment`` and ``tracking_uri`` (mlflow)

        Where several replicas have points, the names of series say the replica: "loss/replica 1".

        Returns an `Exported`, which says where it is, how to open it and what the target cannot hold. Raises
        InvalidArgumentError for an unknown target or setting, MissingExtra if its package is not installed,
        FailedPreconditionError if the run was exported before, StorageError if a file cannot be written,
        UnavailableError for an error of the target.

        Example::

            run.export("digits.zip", files=False)
            run.export("points.parquet")
            run.export(to="mlflow", experiment="digits", tracking_uri="sqlite:///mlflow.db")
        """
        from nbdist.run.export.export import export_run  # the table of exporters has modules of its own
        from nbdist.run.export.registry import exporter_of

        self._fetch_files()
        record = listed(self.folder)
        if record is None:
            raise NotFoundError(f"no run {self.id!r}; nb.runs() lists all runs")
        target = exporter_of(path).name if to is None else to
        given = settings | ({} if path is None else {"path": os.fspath(path)})
        return export_run(
            record, self.folder, target, given,
            name=record.name, tags=record.tags, note=record.remark, replace=replace, files=files,
        )  # fmt: skip

    @property
    def events(self) -> EventList:
        """What happened in the run, by time, each an `Event` with time, step, kind, text, epoch and rank.

        Its kinds are changes of the learning rate ("rate" by the user, "schedule" by a schedule or a
        callback), "pause" and "resume", "checkpoint", "state" (``--checkpoint-every``), and tasks that were
        "lost", "replaced", "joined" or "left". It shows itself as a table. Of a run that was deleted: none.

        Example::

            [event.step for event in run.events if event.kind == "lost"]
        """
        return EventList(read_events(self.folder))

    @property
    def artifacts(self) -> dict[str, Path]:
        """The files that ``nb.save_artifact`` has saved in the body, by name: the paths of their copies here.

        Those of other replicas than the chief begin with the task, as "worker-1/confusion.png". Of workers on
        other hosts all are here when the run has ended.
        """
        folder = self.folder / ARTIFACTS
        found = sorted(Path(root, name) for root, _, names in os.walk(folder) for name in names)
        names = ((path.relative_to(folder), path) for path in found if not path.is_symlink())
        return {
            name.as_posix(): path
            for name, path in names
            if not any(part.startswith(".") for part in name.parts)
        }

    @property
    def labels(self) -> Labels:
        """The name, tags and note that users have given it."""
        return read_labels(self.folder)

    def _write(self, **changes: Any) -> None:
        self._show(write_labels_in(self.folder, **changes))

    def _show(self, labels: Labels) -> None:
        """Update this object with labels that were just written."""

    def _fetch_files(self) -> None:
        """Copy what tasks on other hosts have written so far, where this object can."""


# The list.


@dataclass(frozen=True, repr=False)
class ListedRun(Labelled, RunFile):
    """A run of ``nb.runs()``: the content of its run.json, with the user's name for it.

    ``tags`` are the user's tags, ``remark`` is the user's note, ``bytes`` the size of its files on disk,
    ``folder`` is where they are. ``archive`` is the zip file that they come from, "" for none: such a run
    can be read, and its labels cannot be changed.
    """

    tags: tuple[str, ...] = ()
    remark: str = ""
    folder: Path = Path()
    archive: str = ""

    @property
    def bytes(self) -> int:
        """Bytes that its files take on disk."""
        return disk_bytes(self.folder)

    @property
    def trains(self) -> bool:
        """Whether it trains or logs metrics; a plain cell does neither."""
        return trains(self, self.folder)

    def metrics(self) -> Any:
        """Return all points in its logs: a DataFrame if pandas is installed, else a dict of NumPy columns.

        The columns are ``replica``, ``series`` (the name), ``step``, ``value`` and ``time`` (seconds since
        1970), as those of the run of a cell. Raises DataLossError for a log that cannot be read.
        """
        return as_table(as_columns(parts_from_logs(self.folder)))

    def delete(self) -> None:
        """Delete the run with all its files: logs, checkpoints, results. This cannot be undone.

        Raises FailedPreconditionError while it is under way, and for a run in a zip file; NotFoundError if it
        was deleted before.
        """
        self._check_writable("deleted: delete the zip file")
        if self.folder.parent == runs_folder():
            delete_run(self.id)
            return
        if self.status in ACTIVE:
            raise FailedPreconditionError(
                f"run {self.id} is {self.status} according to its run.json, and may be under way on another "
                f"machine: stop it there; or delete its folder {self.folder}"
            )
        delete_folder(self.folder)

    def _write(self, **changes: Any) -> None:
        self._check_writable(f"changed: unpack it into {runs_folder()}, and it is a run of yours")
        super()._write(**changes)

    def _check_writable(self, what: str) -> None:
        if self.archive:
            raise FailedPreconditionError(f"run {self.id} is in {self.archive}, and cannot be {what}")

    def _show(self, labels: Labels) -> None:
        shown = {"name": labels.name or self.name, "tags": labels.tags, "remark": labels.note}
        for name, value in shown.items():
            object.__setattr__(self, name, value)  # frozen for users; this is the file's content, read again


class TableList(list[Row]):
    """A list that shows as a table of its first twenty rows.

    ``none`` is shown for an empty list, ``older`` is the code that returns the rows after the first twenty,
    ``opens`` is the last line.
    """

    none = ""
    older = ""
    opens = ""
    more_are = "older"

    def cells(self, rows: list[Row]) -> list[tuple[str, ...]]:
        """Return the cells of these rows, headings first."""
        raise NotImplementedError

    @overload
    def __getitem__(self, at: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> Self: ...

    def __getitem__(self, at: SupportsIndex | slice) -> Row | Self:
        if not isinstance(at, slice):
            return super().__getitem__(at)
        part = type(self)(super().__getitem__(at))
        part.none, part.older, part.opens = self.none, self.older, self.opens
        return part

    def __repr__(self) -> str:
        if not self:
            return self.none
        return f"{columns(self.cells(self[:MOST_SHOWN]))}\n{self._last_line()}"

    def _repr_html_(self) -> str:
        if not self:
            return self.none
        first, *rest = [
            "".join(f"<td>{escape(cell)}</td>" for cell in cells) for cells in self.cells(self[:MOST_SHOWN])
        ]
        head, rows = first.replace("td>", "th>"), "".join(f"<tr>{cells}</tr>" for cells in rest)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f"{table}{escape(self._last_line())}"

    def _last_line(self) -> str:
        more = len(self) - MOST_SHOWN
        return f"and {more:,} {self.more_are}: {self.older}; {self.opens}" if more > 0 else self.opens


class EventList(TableList[Event]):
    """The events of a run, by time."""

    none = "nothing has happened: no change, pause, checkpoint, state or loss was recorded"
    older = f"run.events[{MOST_SHOWN}:]"
    opens = "each has time, step, kind, text, epoch and rank"
    more_are = "later"

    def cells(self, rows: list[Event]) -> list[tuple[str, ...]]:
        """Return the cells of a table of events."""
        found = [
            (
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.time)),
                f"{one.step:,}",
                "" if one.epoch is None else f"{one.epoch:,}",
                one.kind,
                one.text,
            )
            for one in rows
        ]
        return [("time", "step", "epoch", "kind", "what"), *found]


class RunList(TableList[RunFile]):
    """The runs of ``nb.runs()``."""

    none = NONE
    older = f"nb.runs()[{MOST_SHOWN}:]"
    opens = "nb.attach(id) opens a run"

    def cells(self, rows: list[RunFile]) -> list[tuple[str, ...]]:
        """Return the cells of a table of runs."""
        return table(rows)


def known_run(run_id: str, asked: str = "") -> RunFile:
    """Return the record of a run. Raises NotFoundError, with the latest ones, for an unknown id.

    ``asked`` begins the error: what names the run.
    """
    try:
        return read_run(run_id)
    except NotFoundError:
        latest = ", ".join(run.id for run in runs()[:MOST_NAMED]) or "(none)"
        raise NotFoundError(
            f"{asked}no run {run_id!r}; the latest are {latest}, nb.runs() lists all"
        ) from None


def runs(
    find: str | None = None,
    *,
    status: str | None = None,
    tag: str | None = None,
    trained: bool | None = None,
    folder: str | Path | None = None,
) -> RunList:
    """Return the runs of this user, or those in a folder or a zip file; see ``nb.runs``."""
    if status is not None and status not in STATUSES:
        raise InvalidArgumentError(f"no run status {status!r}; {choices(status, STATUSES)}")
    place, archive = (runs_folder(), "") if folder is None else place_of(folder)
    folders = folders_in(place)
    if folder is not None and not folders and place.name != "runs":
        raise NotFoundError(
            f"no runs in {os.fspath(folder)}: give the folder of a run, with a run.json in it, a folder of "
            "such folders, an NBDIST_HOME, or a zip file of run.export"
        )
    known = (listed(one, archive) for one in folders)
    words = (find or "").lower().split()
    found = RunList(
        run
        for run in known
        if run is not None
        and status in (None, run.status)
        and (tag is None or tag in run.tags)
        and trained in (None, run.trains)
        and all(word in " ".join((run.id, run.name, *run.tags, run.remark)).lower() for word in words)
    )
    found.sort(key=lambda run: (run.created, run.id), reverse=True)
    if (find, status, tag, trained) != (None, None, None, None):
        found.none = NO_MATCH
    return found


def place_of(given: str | Path) -> tuple[Path, str]:
    """Return the folder that has the runs of a folder or a zip file, and the path of the zip file, or ""."""
    path = Path(given).expanduser().absolute()
    if path.is_dir():
        archive = ""
    elif path.is_file():
        path, archive = opened(path), str(path)
    else:
        raise NotFoundError(
            f"no folder or zip file {os.fspath(given)!r:.300}; words to find begin with no '/', './' or '~', "
            "and do not end in .zip"
        )
    below = path / "runs"  # of an NBDIST_HOME
    return (below if below.is_dir() and not (path / "run.json").is_file() else path), archive


def folders_in(place: Path) -> list[Path]:
    """Return the folders of runs in a folder, which may be that of one run itself."""
    if (place / "run.json").is_file():
        return [place]
    names = (one.name for one in os.scandir(place) if is_id(one.name))
    return [place / name for name in names if os.path.isfile(f"{place}/{name}/run.json")]  # a Path costs more


def listed(folder: Path, archive: str = "") -> ListedRun | None:
    """Return the record of a run folder; if run.json cannot be read, one with status "damaged".

    None if it was removed just now, if its name is not a run id, or if it is a link: then it is not a run's
    folder. ``archive`` is the zip file that it comes from.
    """
    if os.path.islink(folder) or not is_id(folder.name):
        return None
    try:
        record = read_run_in(folder)
    except NotFoundError:
        return None
    except DataLossError as error:
        try:
            changed = folder.stat().st_mtime
        except FileNotFoundError:
            return None
        record = RunFile(folder.name, status="damaged", error=str(error), created=changed)
    labels = read_labels(folder)
    known = {**vars(record), "name": labels.name or record.name}
    return ListedRun(**known, tags=labels.tags, remark=labels.note, folder=folder, archive=archive)


def trains(record: RunFile, folder: Path) -> bool:
    """Return whether a run trains or logs metrics, according to its files."""
    if record.trained is not None:
        return record.trained
    asked = record.options.get("strategy") or record.options.get("epochs")
    return bool(asked) or any(size_of(log) > EMPTY_LOG for log in folder.glob("metrics-*.log"))


def table(found: Sequence[RunFile]) -> list[tuple[str, ...]]:
    """Return the cells of a table of runs, headings first; columns that are empty for all are left out."""
    head = ("id", "name", "status", "started", "duration", "workers", "size", "tags", "resumed from", "error")
    rows = [row(run) for run in found]
    always = ("id", "status", "started", "duration", "workers", "error")
    kept = [at for at, name in enumerate(head) if name in always or any(cells[at] for cells in rows)]
    # A lone surrogate, for example from a damaged file, can be neither printed nor sent to a page.
    return [tuple(cells[at].encode(errors="replace").decode() for at in kept) for cells in (head, *rows)]


def row(run: RunFile) -> tuple[str, ...]:
    """Return a run's cells, as text; values of an unexpected type are left out."""
    workers = run.cluster.get("workers") if isinstance(run.cluster, Mapping) else None
    size = run.bytes if isinstance(run, ListedRun) else 0
    return (
        run.id,
        clip(run.name, LONGEST_ERROR),
        run.status,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created)),
        "" if run.ended is None else duration(max(0.0, run.ended - run.created - run.paused)),
        str(len(workers)) if isinstance(workers, Sequence) else "",
        in_bytes(size) if size else "",
        ", ".join(run.tags) if isinstance(run, ListedRun) else "",
        run.resumed_from,
        error_line(run.error),
    )


def error_line(error: str) -> str:
    r"""Return an error in one line: the exception, the cell's line and the task.

    >>> error = 'Traceback (most recent call last):\n  File "<distribute a>", line 4\nValueError: late\n\n'
    >>> error_line(error + "raised on /job:worker/task:1 (pid 7)")
    'ValueError: late (line 4, worker 1)'
    """
    text, _, where = error.strip().partition("\n\nraised on ")
    lines = text.splitlines() or [""]
    # The exception follows the last indented line of a traceback; its message may have more lines.
    indented = max((at for at, line in enumerate(lines) if line.startswith("  ")), default=-1)
    traced = lines[0].startswith(("Traceback", "  File"))
    raised = lines[min(indented + 1, len(lines) - 1)] if traced else lines[0]
    raised = clip(raised.removeprefix("nbdist.errors."), LONGEST_ERROR)
    number = [int(found[1]) for line in lines if traced and (found := CELL_LINE.match(line))]
    task = TASK.match(where)
    places = [f"line {number[-1]}"] if number else []
    places += [f"{task[1]} {task[2]}"] if task else []
    return f"{raised} ({', '.join(places)})" if places else raised


# Disk use and deletion.


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder and those below it; no link is followed."""
    total = count = 0
    for root, _, names in os.walk(folder):
        for name in names:
            total += size_of(Path(root, name))
            count += 1
            if count >= MOST_FILES:
                return total
    return total


def size_of(path: Path) -> int:
    """Return the bytes of a file, 0 if it was removed."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def delete_run(run_id: str) -> int:
    """Delete a run's folder and return the bytes that its files took.

    Raises FailedPreconditionError while it is under way, NotFoundError if the run does not exist.
    """
    folder = run_folder(run_id)
    if folder.is_symlink() or not folder.is_dir():
        raise NotFoundError(f"no run {run_id!r} in {folder.parent}; nb.runs() lists all runs")
    with suppress(DataLossError, NotFoundError):  # a damaged one can be deleted
        if is_under_way(read_run(run_id)):
            raise FailedPreconditionError(
                f"run {run_id} is under way: stop it first, with nb.attach({run_id!r}).stop() or in the panel"
            )
    return delete_folder(folder)


def delete_folder(folder: Path) -> int:
    """Delete the folder of a run, wherever it is, and return the bytes that its files took."""
    refuse_link(folder)
    if not folder.is_dir():
        raise NotFoundError(f"no run {folder.name!r} in {folder.parent}; it was deleted before")
    size = disk_bytes(folder)
    hidden = folder.with_name(f"{DELETED}{folder.name}-{secrets.token_hex(4)}")
    folder.rename(hidden)
    for left in folder.parent.glob(f"{DELETED}*"):  # also folders that a crash left
        shutil.rmtree(left, ignore_errors=True)  # another deletion may remove the same at this moment
    if hidden.exists():
        raise UnavailableError(
            f"run {folder.name} is deleted, but files of it are left in {hidden}: remove that folder"
        )
    return size


class CleanUp(list[str]):
    """The ids of the runs that `clean` has deleted, or would delete; ``bytes`` is their size on disk."""

    def __init__(self, ids: Iterable[str], size: int, dry_run: bool, under_way: Sequence[str]) -> None:
        super().__init__(ids)
        self.bytes, self.dry_run, self.under_way = size, dry_run, list(under_way)

    def __repr__(self) -> str:
        runs = "1 run" if len(self) == 1 else f"{len(self):,} runs"
        lines = [f"{'would delete' if self.dry_run else 'deleted'} {runs}, {in_bytes(self.bytes)}"]
        lines += [f"  {name}" for name in self[:MOST_SHOWN]]
        lines += [f"  and {len(self) - MOST_SHOWN:,} more"] if len(self) > MOST_SHOWN else []
        lines += [f"kept {name}: it is under way" for name in self.under_way]
        lines += ["dry run: to delete these runs, add dry_run=False"] if self.dry_run and self else []
        return "\n".join(lines)


def clean(
    older_than: float | str | timedelta | None = None, keep: int | None = None, dry_run: bool = True
) -> CleanUp:
    """Delete old runs with all their files, or show which ones would be deleted. Runs under way are kept.

    Sweeps are not deleted: their logs and checkpoints stay in ``NBDIST_HOME/sweeps``.

    - ``older_than``: age since a run ended (or started, if its end is unknown): seconds, a timedelta, or
      a text such as "90 min", "12h", "30d" or "2w"; None for any age
    - ``keep``: number of newest runs to keep, at any age; None for none. Give at least one of these two
    - ``dry_run``: True only shows what would be deleted; False deletes it, which cannot be undone

    Returns the ids, as a list that shows the disk space; raises InvalidArgumentError for other values.

    Example::

        nb.clean(older_than="30d", keep=20)                  # shows them
        nb.clean(older_than="30d", keep=20, dry_run=False)   # deletes them
    """
    if keep is not None and not is_whole(keep, 0):
        raise InvalidArgumentError(f"keep is a whole number of runs, 0 or more, not {keep!r:.60}")
    if not isinstance(dry_run, bool):
        raise InvalidArgumentError(f"dry_run is True or False, not {dry_run!r:.60}")
    age = None if older_than is None else age_of(older_than)
    all_runs = runs()
    if age is None and keep is None:
        used = in_bytes(disk_bytes(runs_folder()))
        raise InvalidArgumentError(
            f"say which runs to delete: older_than='30d', keep=20, or both; {len(all_runs):,} runs take "
            f"{used} in {runs_folder()}"
        )
    now = time.time()
    old = [run for run in all_runs[keep or 0 :] if age is None or now - (run.ended or run.created) > age]
    going = [run.id for run in under_way_of(old)]
    deleted, size = [], 0
    for run in old:
        if run.id in going:
            continue
        try:
            size += disk_bytes(run_folder(run.id)) if dry_run else delete_run(run.id)
        except (NotFoundError, InvalidArgumentError):  # it is deleted by now, or its name is not a run id
            continue
        deleted.append(run.id)
    return CleanUp(deleted, size, dry_run, going)


def age_of(value: float | str | timedelta) -> float:
    """Return an age in seconds; raises InvalidArgumentError.

    >>> age_of("90 min"), age_of("2w"), age_of(60), age_of(timedelta(days=1))
    (5400.0, 1209600.0, 60.0, 86400.0)
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str) and (found := AGE.fullmatch(value.strip())):
        return float(found[1]) * SECONDS[found[2]]
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    raise InvalidArgumentError(
        f"older_than is a number of seconds, a timedelta, or a text such as '90 min', '12h', '30d' or '2w', "
        f"not {value!r:.60}"
    )
