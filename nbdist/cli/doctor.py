"""``nbdist doctor --hosts a:2,b:2``: what hinders a cluster on these hosts, before one starts."""

from __future__ import annotations

from typing import Any

import click

from nbdist.cli.text import Answer, answers, with_flags
from nbdist.cluster.doctor.examine import examine
from nbdist.ui.flags import DOCTOR_FLAGS


@click.command()
@with_flags(DOCTOR_FLAGS)
@answers
def doctor(**options: Any) -> Answer:
    """Examine hosts before a cluster starts on them: from this one to each, and between them.

    Prints what each has and what hinders a cluster there, with what to do. The exit status is 1 if a host
    has a problem.
    """
    report = examine(**options)
    text = str(report)
    return Answer({"passed": report.passed, "lines": text.splitlines()}, text, 0 if report.passed else 1)
