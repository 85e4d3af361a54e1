"""What a process on a host does: it reads orders, tables with "do", a line each, and answers with a line."""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from nbdist.errors import NbdistError

answers, sys.stdout = sys.stdout, sys.stderr  # what code prints is no answer


def say(value: Any) -> None:
    """Answer, as often as one likes before the order is done."""
    print(json.dumps(value), file=answers, flush=True)


def hear() -> Any:
    """Return the next line."""
    return json.loads(sys.stdin.readline())


def serve(orders: dict[str, Callable[..., Any]]) -> None:
    """Do what is asked until nobody asks any more; an error of nbdist is the answer [its name, its text]."""
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        try:
            value = orders[order.pop("do")](**order)
        except NbdistError as error:
            value = [type(error).__name__, str(error)]
        say(value)
