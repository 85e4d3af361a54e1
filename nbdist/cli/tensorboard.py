"""``nbdist tensorboard [RUN...]``: TensorBoard on the event files of runs."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from nbdist.cli.runs import find
from nbdist.errors import FailedPreconditionError, MissingExtra
from nbdist.metrics.event_file import FOLDER
from nbdist.metrics.run_folder import run_folder, runs_folder


@click.command()
@click.argument("run_ids", metavar="[RUN]...", nargs=-1)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=6006,
    show_default=True,
    help="Port on this host, on loopback only.",
)
def tensorboard(run_ids: tuple[str, ...], port: int) -> None:
    """Open TensorBoard on the event files of runs, or of all runs, until Ctrl-C.

    Event files are those of runs with --tensorboard, and of nb.summary. JupyterLab's sidebar shows any run
    in TensorBoard, with a page that only you can open; TensorBoard itself lets every user of this host read.
    """
    try:
        import_module("tensorboard.main")
    except ImportError:
        raise MissingExtra("tensorboard", "nbdist tensorboard") from None
    folders = [run_folder(find(one).id) for one in run_ids] or [runs_folder()]
    if run_ids and (empty := [folder.name for folder in folders if not (folder / FOLDER).is_dir()]):
        raise FailedPreconditionError(
            f"run {', '.join(empty)} has no event files: run it with --tensorboard, or open it in the sidebar"
        )
    where = (
        ["--logdir_spec", ",".join(f"{folder.name}:{folder / FOLDER}" for folder in folders)]
        if run_ids
        else ["--logdir", str(folders[0])]
    )
    command = [sys.executable, "-m", "tensorboard.main", *where, "--host", "127.0.0.1", "--port", str(port)]
    os.execv(command[0], command)
