"""The command of a launcher: its line, the plan on its standard input, and its end by a signal.

    parser = command_line("slurm", SETTINGS)
    sys.exit(run_command(SETTINGS, given, lambda plan: SlurmLauncher(request, plan).run))

It ends with a sentence on its standard error if it cannot go on: with 75 if another job may, else with 1. It
ends with 143 after SIGTERM, SIGINT or SIGHUP, when it has ended what it had started.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nbdist.cluster.launchers.spec import JOB_OVER, LauncherSetting
from nbdist.errors import InvalidArgumentError, NbdistError, UnavailableError

LONGEST_LINE = 1 << 20  # bytes
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def command_line(launcher: str, settings: Sequence[LauncherSetting]) -> argparse.ArgumentParser:
    """Return a parser of the launcher's settings, as flags.

    >>> parser = command_line("slurm", [LauncherSetting("nodes", "number of nodes", int)])
    >>> vars(parser.parse_args(["--nodes=2"]))
    {'nodes': 2}
    """
    program = f"python -m nbdist.cluster.launchers.{launcher}"
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    for one in settings:
        parser.add_argument(
            one.flag, type=one.read or str, metavar=one.shows, default=one.default, help=one.help
        )
    return parser


def run_command(
    settings: Sequence[LauncherSetting],
    given: Mapping[str, Any],
    start: Callable[[bytes], Callable[[], None]],
) -> int:
    """Check the settings, read the plan, and run the launcher; return the exit code.

    ``start(plan)`` returns the function that runs until the hosts have ended. It, too, may raise an
    NbdistError, whose text is printed.
    """

    def take_plan() -> None:
        check_settings(settings, given)
        plan = sys.stdin.buffer.readline(LONGEST_LINE)
        if not plan.endswith(b"\n"):
            raise InvalidArgumentError(
                f"the plan, one line of at most {LONGEST_LINE:,} bytes, is expected on stdin"
            )
        run = start(plan)
        end_at_signals()
        run()

    return exit_code(take_plan)


def exit_code(run: Callable[[], None]) -> int:
    """Run what a command does; return its exit code. The text of an NbdistError is printed."""
    try:
        run()
    except NbdistError as error:
        print(error, file=sys.stderr)
        return JOB_OVER if isinstance(error, JobIsOverError) else 1
    except (Ended, BrokenPipeError):  # the pipe of a reader that has ended
        return 128 + signal.SIGTERM
    return 0


def check_settings(settings: Sequence[LauncherSetting], given: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError for an invalid value among the settings that are given."""
    for one in settings:
        if given[one.name] != one.default:
            one.check(given[one.name])


class JobIsOverError(UnavailableError):
    """The job is over through no fault of its own: another one may follow."""


class Ended(BaseException):
    """A signal asks this command to end."""


def end_at_signals() -> None:
    """Let the first of the signals that end this command raise `Ended`; the others are ignored."""

    def handle(number: int, frame: object) -> None:
        for one in END_SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise Ended

    for number in END_SIGNALS:
        signal.signal(number, handle)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back the signals that end this command, until the job or the process that starts is known."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
