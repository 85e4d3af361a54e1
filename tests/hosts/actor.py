"""The loop of a process on a test host: it reads orders, JSON with "do", and prints an answer to each."""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from nbdist.errors import NbdistError

answers, sys.stdout = sys.stdout, sys.stderr  # prints of other code go to stderr


def send(value: Any) -> None:
    """Print an answer; an order may have several."""
    print(json.dumps(value), file=answers, flush=True)


def receive() -> Any:
    """Return the next line of input."""
    return json.loads(sys.stdin.readline())


def serve(orders: dict[str, Callable[..., Any]]) -> None:
    """Execute orders until the end of the input; an nbdist error is answered as [name, text]."""
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        try:
            value = orders[order.pop("do")](**order)
        except NbdistError as error:
            value = [type(error).__name__, str(error)]
        send(value)
