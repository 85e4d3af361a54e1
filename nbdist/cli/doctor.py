"""``nbdist doctor --hosts a:2,b:2``: what hinders a cluster on these hosts, before one starts."""

from __future__ import annotations

from typing import Any

from nbdist.cli.verb import Verb
from nbdist.cluster.doctor.examine import examine
from nbdist.ui.flags import DOCTOR_FLAGS


def run(**options: Any) -> int:
    """Print the report; return 1 if a host has a problem."""
    report = examine(**options)
    print(report)
    return 0 if report.passed else 1


VERB = Verb("doctor", "examine hosts before a cluster starts on them", DOCTOR_FLAGS, run)
