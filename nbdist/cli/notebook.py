"""Runs a notebook from the command line: its cells one after the other, its outputs in the terminal.

The flags of the line take the place of those of the notebook's lines: ``nbdist run lesson.ipynb --workers 4``
makes of ``%cluster start --workers 2 --ps 1`` the line ``%cluster start --ps 1 --workers=4``.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbdist.cli.text import Answer
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, MissingExtra
from nbdist.ui.flags import DISTRIBUTE_FLAGS, START_FLAGS, Flag

START = re.compile(r"^([ \t]*)%cluster\s+start\b(.*)$", re.MULTILINE)
STOP = re.compile(r"^([ \t]*)%cluster\s+stop\b.*$", re.MULTILINE)
DISTRIBUTE = re.compile(r"\A((?:\s*%%\w+[^\n]*\n)*?\s*)%%distribute\b(.*)$", re.MULTILINE)
STARTS_BY_CODE = re.compile(r"\bstart_cluster\(")


def with_words(line: str, words: Sequence[str], flags: Mapping[str, Flag]) -> str:
    """Return the flags of a magic's line, with these words in the place of those that set the same option.

    >>> with_words("--workers 2 --ps 1", ["--workers=4"], START_FLAGS)
    '--ps 1 --workers=4'
    >>> with_words("--strategy ps --sync", ["--async"], DISTRIBUTE_FLAGS)
    '--strategy ps --async'
    """
    set_by_words = {flags[word.partition("=")[0]].option for word in words}
    try:
        given = shlex.split(line, comments=True)
    except ValueError as error:
        raise InvalidArgumentError(f"the notebook's line {line.strip()!r} cannot be read: {error}") from None
    kept, following = list[str](), iter(given)
    for word in following:
        flag = flags.get(word.partition("=")[0])
        parts = [word]
        if flag is not None and flag.read is not None and "=" not in word:
            parts += [value for value in [next(following, None)] if value is not None]
        if flag is None or flag.option not in set_by_words:
            kept += parts
    return shlex.join([*kept, *words])


def rewritten(sources: Sequence[str], words: Sequence[str], attach: str | None) -> list[str]:
    """Return the cells of a notebook with the flags of a line.

    - ``sources``: the text of each code cell
    - ``words``: flags of %cluster start and of %%distribute, as ``--name=value`` or ``--name``
    - ``attach``: the id of the cluster that takes the place of those which the notebook starts

    Raises InvalidArgumentError for a flag that the notebook has no line for.
    """
    of_start, of_run = list[str](), list[str]()
    for word in words:
        name, _, value = word.partition("=")
        if name == "--min-workers":
            raise InvalidArgumentError(
                f"{word}: %cluster start and %%distribute both have this flag: write it into the notebook"
            )
        if name == "--data" and value.isdecimal():
            of_start.append(word)
            of_run.append("--data=service")
        else:
            (of_run if name in DISTRIBUTE_FLAGS else of_start).append(word)
    starts = any(START.search(text) for text in sources)
    if (of_start or attach) and not starts and any(STARTS_BY_CODE.search(text) for text in sources):
        given = of_start[0] if of_start else "--cluster"
        raise InvalidArgumentError(
            f"the notebook starts its cluster by start_cluster(): change it there, and leave out {given}"
        )
    if of_run and not any(DISTRIBUTE.search(text) for text in sources):
        raise InvalidArgumentError(f"the notebook has no %%distribute cell that {of_run[0]} could change")
    found = [
        DISTRIBUTE.sub(
            lambda line: f"{line[1]}%%distribute {with_words(line[2], of_run, DISTRIBUTE_FLAGS)}".rstrip(),
            START.sub(
                lambda line: (
                    f"{line[1]}%cluster attach {attach}"
                    if attach
                    else f"{line[1]}%cluster start {with_words(line[2], of_start, START_FLAGS)}".rstrip()
                ),
                text,
            ),
        )
        for text in sources
    ]
    if attach:  # it keeps running
        found = [STOP.sub(r"\1%cluster detach", text) for text in found]
    if (of_start or attach) and not starts:
        line = f"attach {attach}" if attach else f"start {shlex.join(of_start)}"
        found.insert(0, f"%load_ext nbdist\n%cluster {line}")
    return found


def run_notebook(path: Path, words: Sequence[str], attach: str | None, output: str | None) -> Answer:
    """Execute a notebook in a kernel of its own, print its outputs, and return how it ended."""
    try:
        import nbformat
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
    except ImportError:
        raise MissingExtra("demo", "a notebook") from None
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:
        raise InvalidArgumentError(f"{path} is not a notebook: {error}") from None
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    sources = rewritten([cell.source for cell in cells], words, attach)
    if len(sources) > len(cells):
        first = nbformat.v4.new_code_cell("")
        notebook.cells.insert(0, first)
        cells.insert(0, first)
    for cell, source in zip(cells, sources, strict=True):
        cell.source = source

    class Client(NotebookClient):  # type: ignore[misc]  # nbclient has no types
        """Prints outputs when they come."""

        def output(self, outs: Any, message: Any, display_id: Any, cell_index: Any) -> Any:
            shown = super().output(outs, message, display_id, cell_index)
            print_output(message["msg_type"], message["content"])
            return shown

    # Other users of this host cannot open its sockets, as they could TCP ports.
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc")
    client = Client(notebook, kernel, timeout=None, resources={"metadata": {"path": str(path.parent)}})
    why, status = "", 0
    try:
        client.execute()
    except CellExecutionError as failed:
        why, status = f"{failed.ename}: {failed.evalue}", 1
    except KeyboardInterrupt:
        why, status = "it was interrupted", 130
    finally:
        if output is not None:
            try:
                nbformat.write(notebook, output)
            except OSError as failure:
                raise FailedPreconditionError(f"{output} cannot be written: {failure.strerror}") from None
    said = f"{path}: {why}" if why else f"{path}: all {len(cells)} cells have run"
    return Answer({"notebook": str(path), "output": output, "error": why, "cells": len(cells)}, said, status)


def print_output(kind: str, content: Mapping[str, Any]) -> None:
    """Print an output of a cell, as far as a terminal shows it."""
    if kind == "stream":
        sys.stdout.write(content["text"])
    elif kind == "error":
        sys.stdout.write("\n".join(content["traceback"]) + "\n")
    elif text := content.get("data", {}).get("text/plain"):
        sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
