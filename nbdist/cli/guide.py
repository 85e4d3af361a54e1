"""``nbdist guide``: how to drive the command line, on one page, for assistants and for people in a hurry."""

from __future__ import annotations

from importlib.resources import files

import click

from nbdist.cli.text import Answer, answers


@click.command()
@answers
def guide() -> Answer:
    """Print one page about this command line: what to call for what, how to read its answers, what to avoid.

    It is written for assistants, which read it before they call anything else, and it fits people as well.
    """
    text = guide_text()
    return Answer({"guide": text}, text.rstrip())


def guide_text() -> str:
    """Return the page, in Markdown."""
    return files("nbdist.cli").joinpath("guide.md").read_text("utf-8")
