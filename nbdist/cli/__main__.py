"""nbdist on the command line: ``nbdist VERB ...``, ``python -m nbdist VERB ...``.

To add a verb, write its file, with a `click.Command` of its name, and add its row to `VERBS`. The file is
imported when the verb is used: ``nbdist --help`` imports none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from nbdist.cli.text import VerbGroup, ended
from nbdist.errors import InvalidArgumentError, NbdistError

VERBS = {
    "run": "train a script's body on a cluster, and show its progress",
    "sweep": "run a script as trials with different parameters",
    "attach": "follow a run that another process started",
    "runs": "list, show, compare, stop, resume, rename and delete runs",
    "cluster": "start, list, change and stop clusters",
    "simulate": "how long a step would take on 8 to 1,000 workers",
    "tensorboard": "open TensorBoard on the event files of runs",
    "clean": "remove what killed clusters have left, here or on other hosts",
    "doctor": "examine hosts before a cluster starts on them",
    "guide": "one page about this command line, for assistants",
    "mcp": "serve runs to an assistant, by the Model Context Protocol",
}
"""What each verb does, in one line. The verb's file has the same name."""
INTERRUPTED = 130
"""The exit status after Ctrl-C, as a shell gives it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb.

    - ``arguments``: the words of the line after ``nbdist``; None for those of this process

    Returns the exit status: 0; 1 if the verb has failed or has found a problem; 2 for a mistake on the line;
    130 after Ctrl-C.
    """
    words = None if arguments is None else list(arguments)
    try:
        return int(GROUP.main(words, prog_name="nbdist", standalone_mode=False) or 0)
    except click.ClickException as mistake:
        mistake.show()
        return mistake.exit_code
    except NbdistError as error:
        click.echo(ended(error), err=True)
        return 2 if isinstance(error, InvalidArgumentError) else 1
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # of ``nbdist runs list | head``
        sys.stdout = None  # nothing is to be flushed into it at the exit
        return 0


def load(name: str) -> click.Command:
    """Return the command of a verb."""
    command: click.Command = getattr(import_module(f"nbdist.cli.{name}"), name)
    return command


def print_version(context: click.Context, option: click.Parameter, given: bool) -> None:
    """Print the version, for ``--version``."""
    if given:
        from nbdist.home import own_version

        click.echo(own_version())
        context.exit()


GROUP = VerbGroup(
    "nbdist",
    VERBS,
    load,
    help="Distributed training that is interactive: clusters, runs and sweeps from a terminal.\n\n"
    "nbdist VERB --help explains a verb; each has --json for programs.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=print_version,
            help="Print the version.",
        )
    ],
)

if __name__ == "__main__":
    sys.exit(main())
