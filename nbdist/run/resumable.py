"""What a run leaves in its folder so that it can be resumed: the states of its trainings, and its body.

    state-0001-000000000120.safetensors     see nbdist.checkpoint.manager; written by the chief
    body.bin (0600)                         source text and inputs of the body; written by the client
    body.txt                                instead of it: why the body could not be recorded

``%%distribute --resume ID`` needs the states only: the cell gives the body again. ``run.resume()`` and the
sidebar also need the body. Nothing is pickled: a function is recorded as its source text, or as the name
under which it is imported, and inputs are plain values, arrays and models (see
`nbdist.run.values.outcome.pack`). The Jupyter server looks for the names of these files only.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from nbdist.checkpoint.manager import state_files
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
    ResourceExhaustedError,
)
from nbdist.json_values import listed
from nbdist.metrics.run_folder import BODY, NO_BODY, RunFile, read_run, run_folder, write_whole_file
from nbdist.run.history import known_run
from nbdist.run.options import Options
from nbdist.run.record import ACTIVE, RunRecord, is_under_way
from nbdist.run.values.delivery import Given
from nbdist.run.values.outcome import decode, encode, pack, unpack
from nbdist.runtime.task import TaskInfo

LONGEST_WHY = 1000  # characters
LARGEST_BODY = 1 << 30  # bytes of the record
MOST_RESUMED = 1000  # runs, each of which continues the one before it


def continued(options: Options) -> tuple[Options, list[Path]]:
    """Return options with what they take from the run that they resume, and that run's states."""
    if options.resume is None:
        return options, []
    record, states = resumable_run(options.resume)
    seed = record.seed if options.seed is None else options.seed
    every = options.checkpoint_every or record.options.get("checkpoint_every")
    return replace(options, seed=seed, checkpoint_every=every), states


def resumable_run(run_id: str) -> tuple[RunFile, list[Path]]:
    """Return the record of a run that can be continued, and its states, the newest first.

    If it has left none, they are those of the run that it has resumed.

    Raises NotFoundError for an unknown id, FailedPreconditionError if the run is under way or has no state.
    """
    record = known_run(run_id, "--resume: ")
    if is_under_way(record):
        raise FailedPreconditionError(
            f"run {run_id} is under way: follow it with nb.attach({run_id!r}), or stop it first"
        )
    states, last = state_files(run_folder(run_id)), record
    with suppress(NbdistError):  # a run that it resumed was deleted, say
        for _ in range(MOST_RESUMED):
            if states or not last.resumed_from:
                break
            last = read_run(last.resumed_from)
            states = state_files(run_folder(last.id))
    if not states:
        asked = record.options.get("checkpoint_every")
        why = (
            "it ended before the first state was written"
            if asked
            else "it was started without --checkpoint-every"
        )
        status = "lost" if record.status in ACTIVE else record.status
        raise FailedPreconditionError(
            f"run {run_id} has ended ({status}) and left no state to continue from: {why}. Start it anew "
            f"with --checkpoint-every {asked or '30s'}"
        )
    return record, states


# The body.


@dataclass(frozen=True)
class RecordedBody:
    """A body as its run's folder has it: the text or the function, and its inputs."""

    body: str | Callable[..., Any]
    given: Given = field(default_factory=Given)
    first_line: int = 1


def record_body(folder: Path, body: str | Callable[..., Any], given: Given, first_line: int) -> None:
    """Write a body and its inputs into a run's folder, or why it cannot be recorded; raises OSError."""
    try:
        found: dict[str, Any] = {"body": _described(body), "first_line": first_line}
        found["names"] = {name: _packed(name, value) for name, value in given.names.items()}
        found["args"] = [_packed(f"args[{i}]", value) for i, value in enumerate(given.args)]
        found["kwargs"] = {name: _packed(f"kwargs[{name!r}]", value) for name, value in given.kwargs.items()}
    except InvalidArgumentError as error:
        write_whole_file(folder / NO_BODY, str(error).encode(errors="replace"))
        return
    write_whole_file(folder / BODY, b"".join(encode(found)))


def read_body(folder: Path) -> RecordedBody:
    """Return the body that a run's folder has.

    Raises FailedPreconditionError, with the remedy, if it could not be recorded or cannot be made again.
    """
    try:
        found = _read(folder)
        body = _made(found["body"], folder.name)
        return RecordedBody(body, _inputs_in(found), int(found["first_line"]))
    except (DataLossError, NotFoundError) as error:
        why = str(error)
    except Exception as error:  # the source of a function runs: any error
        why = f"its body cannot be made again: {type(error).__name__}: {error}"
    raise FailedPreconditionError(
        f"run {folder.name} cannot be started from its folder: {why}. {REMEDY(folder)}"
    )


REMEDY: Callable[[Path], str] = lambda folder: (
    f"Continue it where its body is: %%distribute --resume {folder.name} in the cell, or "
    f"nb.launch(body, resume={folder.name!r})"
)


def _packed(name: str, value: Any) -> dict[str, Any]:
    try:
        packed = pack(value)
        encode(packed)
        return packed
    except (InvalidArgumentError, ResourceExhaustedError):
        raise InvalidArgumentError(
            f"its input {name} is a {type(value).__name__}, which is not recorded: plain values, arrays and "
            "models are"
        ) from None


def _read(folder: Path) -> dict[str, Any]:
    """Return what a run's folder has of its body.

    Raises NotFoundError, with the reason, if it was not recorded, DataLossError if it cannot be read.
    """
    path = folder / BODY
    try:
        if path.stat().st_size > LARGEST_BODY:
            raise DataLossError(f"{path} is damaged: it has over {LARGEST_BODY:,} bytes")
        return decode(path.read_bytes())
    except FileNotFoundError:
        why = "its body was not recorded, as --checkpoint-every does"
        with suppress(OSError):
            why = (folder / NO_BODY).read_text(errors="replace")[:LONGEST_WHY]
        raise NotFoundError(why) from None
    except OSError as error:
        raise DataLossError(f"{path} cannot be read: {error.strerror}") from None
    except DataLossError as error:
        raise DataLossError(f"{path} is damaged: {error}") from None


def _inputs_in(found: dict[str, Any]) -> Given:
    """Return the inputs of the body that `_read` has returned; damage raises any error."""
    return Given(
        {name: unpack(packed) for name, packed in found["names"].items()},
        tuple(unpack(packed) for packed in found["args"]),
        {name: unpack(packed) for name, packed in found["kwargs"].items()},
    )


def _described(body: str | Callable[..., Any]) -> dict[str, Any]:
    """Return a body as plain values; InvalidArgumentError says why it cannot be recorded."""
    if isinstance(body, str):
        return {"kind": "text", "source": body}
    name = getattr(body, "__qualname__", "")
    if not isinstance(body, FunctionType):
        raise InvalidArgumentError(f"its body is a {type(body).__name__}, and only functions are recorded")
    if body.__closure__:
        names = ", ".join(body.__code__.co_freevars)
        raise InvalidArgumentError(
            f"its body {name} is a function that uses {names} of the function around it"
        )
    module = sys.modules.get(body.__module__)
    if body.__module__ != "__main__" and getattr(module, name, None) is body:
        return {"kind": "import", "module": body.__module__, "name": name}
    try:
        source = textwrap.dedent(inspect.getsource(body))
        (tree,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError):
        raise InvalidArgumentError(f"its body {name} is a function without source text") from None
    if not isinstance(tree, ast.FunctionDef) or tree.name != body.__name__:
        raise InvalidArgumentError(f"its body {name} is not the function of one def")
    return {"kind": "function", "source": source, "name": tree.name}


def _made(described: dict[str, Any], run: str) -> str | Callable[..., Any]:
    """Return the body that was described. The source of a function runs here, in a namespace of its own."""
    if described["kind"] == "text":
        return str(described["source"])
    name, found = str(described["name"]), None
    if described["kind"] == "import":
        found = getattr(import_module(str(described["module"])), name)
    else:
        source, file = str(described["source"]), f"<body of {run}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        namespace = {"__name__": "__main__", "nb": import_module("nbdist")}
        exec(compile(source, file, "exec"), namespace)
        found = namespace[name]
    if not callable(found):
        raise DataLossError(f"its body {name} is not a function")
    return found  # type: ignore[no-any-return]


# What run.json says of the run's options and tasks


def options_of(record: RunFile) -> Options:
    """Return a run's options from its run.json, without those that this version does not know."""
    known = {one.name for one in fields(Options)}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in record.options.items()
        if name in known
    }
    return Options(**given)


def members_of(record: RunFile) -> list[TaskInfo]:
    """Return the tasks of a run's cluster from its run.json; an old one has only their names."""
    run = RunRecord.of(record)
    if "members" in record.cluster:
        if len(run.members) != len(listed(record.cluster["members"])):
            raise DataLossError(
                f"{run_folder(record.id) / 'run.json'} is damaged: a member of its cluster is not a task "
                "description with a job, an index and a rank of its own"
            )
        return list(run.members.values())
    names = [name for name in run.task_names if not name.startswith("/job:client/")]
    return [named_task(name, rank) for rank, name in enumerate(names)]


def named_task(name: str, rank: int) -> TaskInfo:
    """Return a task of which only the name and the rank are known."""
    _, job, task = name.split("/")
    return TaskInfo(job.partition(":")[2], int(task.partition(":")[2]), rank, "", 0, "", "", 0)
