"""Saves a checkpoint again and again, killed at each call that changes a file.

python killed_saver.py FOLDER       # prints how many calls a save makes, after checking what each kill leaves

Each save is made by a forked child, which ends itself in place of the nth call, or in the middle of it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbdist.checkpoint.folder import open_folder
from nbdist.checkpoint.state import candidates
from nbdist.graph.tensor import Graph, Variable
from nbdist.graph.variables import global_variables_initializer
from nbdist.runtime.session.session import Session
from nbdist.sessions.saver import Saver, latest_checkpoint, load_variable

KILLED = 9
CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir")


def kill_at(number: int, half: bool) -> None:
    """End this process in place of the ``number``-th call; with ``half``, in the middle of it or after it."""
    done = 0

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal done
            changes = name != "open" or args[1] & os.O_CREAT
            done += bool(changes)
            if changes and done == number:
                try:
                    if half and name == "write":
                        call(args[0], bytes(args[1])[: len(args[1]) // 2])
                    elif half:
                        call(*args, **options)
                finally:
                    os._exit(KILLED)
            return call(*args, **options)

        return counted

    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))


def save(folder: Path, step: int, before: Callable[[], None] = lambda: None) -> None:
    """Save a variable with the value ``step``; earlier checkpoints are deleted."""
    with Graph().as_default() as graph, Session(graph=graph) as session:
        Variable([float(step)] * 1000, name="w")
        session.run(global_variables_initializer())
        saver = Saver(max_to_keep=1)
        saver.recover_last_checkpoints(folder / base for base in reversed([*candidates(open_folder(folder))]))
        before()
        saver.save(session, folder / "m", step)


def newest_value(folder: Path) -> float:
    latest = latest_checkpoint(folder)
    assert latest is not None, "no checkpoint loads"
    value = float(load_variable(latest, "w")[-1])
    assert latest.endswith(f"-{value:.0f}"), (latest, value)
    return value


def killed(folder: Path, step: int, number: int, half: bool) -> bool:
    """Save in a child that is killed at a call; return whether it was."""
    child = os.fork()
    if not child:
        try:
            save(folder, step, lambda: kill_at(number, half))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def main(folder: Path) -> int:
    for half in (False, True):
        for number in range(1, 1000):
            shutil.rmtree(folder, ignore_errors=True)
            save(folder, 1)
            again = killed(folder, 2, number, half)
            assert newest_value(folder) in ((1.0, 2.0) if again else (2.0,)), number
            save(folder, 3)
            assert newest_value(folder) == 3.0
            left = sorted(path.name.partition(".")[0] for path in folder.iterdir())
            assert left == ["checkpoint", "m-3", "m-3"], (number, half, sorted(folder.iterdir()))
            if not again:
                break
    return number - 1


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
