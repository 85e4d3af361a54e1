"""``nbdist attach [RUN]``: follow a run that another process started."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import click

from nbdist.cli.run import outcome
from nbdist.cli.text import Answer, answers
from nbdist.cluster.cluster import Cluster
from nbdist.errors import NotFoundError
from nbdist.run.attach import attach_run
from nbdist.ui.display.run import RunView, show


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--tunnel", metavar="HOST", help="The cluster's head is on HOST, which ssh reaches.")
@answers
def attach(run_id: str | None, tunnel: str | None) -> Answer:
    """Follow a run in this terminal until it ends; by default the latest one that is under way.

    Ctrl-C ends this program, not the run: nbdist runs stop RUN stops it.
    """
    if tunnel is not None:
        Cluster.attach(None, tunnel=tunnel)
    run = attach_run(run_id, make_view=RunView)
    run.shown_by = show
    try:
        if run.over:
            run.show()
        else:
            asyncio.run(run.follow_quietly())
    finally:
        with suppress(NotFoundError):
            Cluster.current().close()
    return outcome(run)
