"""Sends an environment to a host: what `receive.py` there asks for, through a command that runs Python there.

    offer = Offer(lock, modules=archive)
    made = send(offer, ["ssh", "a", boot_command()], print)      # Made(python="/…/bin/python", ...)

The carrier is ssh here. It may be any command whose standard streams are those of `boot_command` on the host,
such as srun: nothing but this connection is used, and no network of the host but the packages' index.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import nbdist.errors
import nbdist.home
from nbdist.cluster.environments import receive
from nbdist.cluster.environments.lock import Lock, digest
from nbdist.cluster.environments.pack import own_uv
from nbdist.cluster.hosts import shell_word
from nbdist.errors import FailedPreconditionError, NbdistError, UnavailableError
from nbdist.json_values import listed, mapping, object_in, text
from nbdist.text import clip

LONGEST_LINE = 1 << 16  # bytes of what a host says
MOST_STDERR = 1 << 16
END_SECONDS = 5.0

# Runs under any Python 3: it reads the program, and executes it if this Python can.
BOOT = 'import sys,json; exec(json.loads(sys.stdin.buffer.readline().decode())["boot"])'
PROGRAM = """
import types
if sys.version_info < (3, 9):
    print({mark!r} + json.dumps({{"error": "its python3 is %d.%d, and 3.9 is needed to make an environment; "
        "update it" % sys.version_info[:2]}}))
else:
    for name, code in json.loads({modules!r}).items():
        sys.modules[name] = module = types.ModuleType(name)
        exec(compile(code, name, "exec"), module.__dict__)
    sys.modules["nbdist.receive"].main()
"""


@dataclass(frozen=True)
class Made:
    """What is on a host: the Python of its environment, its version, and the folder of the project's modules.

    ``python`` and ``modules`` are "" where they were not asked for. ``reused`` is whether nothing was made.
    """

    python: str
    version: str
    modules: str
    reused: bool


class Offer:
    """What a host can ask for.

    - ``lock``: the packages of an environment; None for none
    - ``modules``: an archive of the project's modules; None for none
    - ``python``: the path of the Python on the hosts; None for one of the lock's version
    """

    def __init__(self, lock: Lock | None, modules: Path | None = None, python: str | None = None) -> None:
        self.paths: list[Path] = []
        self.entries: list[tuple[str, str, int]] = []
        wheels = [self._add(path, f"wheels/{digest(path)[:20]}") for path in lock.local] if lock else []
        wheels += [self._add(path, "wheels/index") for path in lock.wheels] if lock else []
        uv = own_uv() if lock else None
        base = [] if python is None else [python]
        name = lock.hash if lock else ""
        if name and python:
            name += hashlib.sha256(python.encode()).hexdigest()[:8]
        self.order: dict[str, Any] = {
            "platform": receive.own_platform(),
            "hash": name,
            "python": {
                "version": lock.python if lock else "",
                "suffix": lock.suffix if lock else "",
                "paths": base or [str(getattr(sys, "_base_executable", sys.executable))],
                "only": bool(base),
            },
            "requirements": lock.requirements if lock else (),
            "wheels": wheels,
            "index": bool(lock and lock.requirements),
            "variables": lock.variables if lock else {},
            "uv": None if uv is None else self._add(Path(uv), f"uv/{digest(Path(uv))[:20]}"),
            "modules": None if modules is None else self._add(modules, "modules"),
        }
        self.order["files"] = self.entries

    def _add(self, path: Path, folder: str) -> int:
        self.paths.append(path)
        self.entries.append((path.name, folder, path.stat().st_size))
        return len(self.paths) - 1


def boot_command(python: str = "python3") -> str:
    """Return the command of a host's shell that receives the program."""
    return f"{shell_word(python)} -c {shlex.quote(BOOT)}"


def send(offer: Offer, carrier: Sequence[str], report: Callable[[str], object]) -> Made:
    """Have a host make what is offered; return where it is.

    - ``carrier``: the command that runs `boot_command` on the host
    - ``report``: called with lines of progress

    Raises FailedPreconditionError with the host's reason, and CarrierEnded if the carrier ends before.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            carrier, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # its output says why
                process.stdin.write(program_line() + json.dumps(offer.order).encode() + b"\n")
                process.stdin.flush()
            for message in messages(process.stdout):
                if needed := listed(message.get("need")):
                    with suppress(BrokenPipeError):
                        _send_files(offer, [int(index) for index in needed], process.stdin, report)
                if progress := text(message.get("progress"), 300):
                    report(clip(progress, 300))
                if error := text(message.get("error"), 1000):
                    raise FailedPreconditionError(clip(error, 1000))
                if done := mapping(message.get("done")):
                    python, version, modules = (
                        text(done.get(one)) for one in ("python", "version", "modules")
                    )
                    return Made(python, version, modules, bool(done.get("reused")))
            status = process.wait()
            errors.seek(0)
            raise CarrierEnded(status, errors.read(MOST_STDERR).decode(errors="replace"))
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()  # the program on the host ends with it
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            process.stdout.close()


class CarrierEnded(UnavailableError):
    """The command that reaches the host has ended without an answer."""

    def __init__(self, status: int, errors: str) -> None:
        super().__init__(f"the connection ended with status {status}: {errors[-300:]}")
        self.status, self.errors = status, errors


def program_line() -> bytes:
    """Return the program of the host, as the line that `BOOT` reads."""
    sources = {
        "nbdist": "",
        "nbdist.errors": nbdist.errors.__file__,
        "nbdist.home": nbdist.home.__file__,
        "nbdist.receive": receive.__file__,
    }
    modules = {name: path and Path(path).read_text(encoding="utf-8") for name, path in sources.items()}
    program = PROGRAM.format(mark=receive.MARK, modules=json.dumps(modules))
    return json.dumps({"boot": program}).encode() + b"\n"


def messages(stream: IO[bytes]) -> Any:
    """Yield what a host says; lines of its shell are left out."""
    mark = receive.MARK.encode()
    while line := stream.readline(LONGEST_LINE):
        if line.startswith(mark):
            yield object_in(line[len(mark) :])


def _send_files(
    offer: Offer, wanted: Sequence[int], stream: IO[bytes], report: Callable[[str], object]
) -> None:
    known = [index for index in wanted if 0 <= index < len(offer.paths)]
    total = sum(offer.entries[index][2] for index in known)
    report(f"receives {len(known)} file{'s' * (len(known) != 1)} of {total / 1e6:.1f} MB")
    for index in known:
        told, left = hashlib.sha256(), offer.entries[index][2]
        with offer.paths[index].open("rb") as file:
            while left:
                chunk = file.read(min(left, 1 << 20))
                if not chunk:
                    raise NbdistError(f"{offer.paths[index]} has changed while it was sent; start again")
                told.update(chunk)
                stream.write(chunk)
                left -= len(chunk)
        stream.write(told.digest())
    stream.flush()


def shell_exec(made: Made, python: str, arguments: Sequence[str]) -> str:
    """Return the shell's command that becomes a program of a host's Python, with what was made there.

    The host's own PYTHONPATH does not hold in an environment that was made.

    >>> shell_exec(Made("/e/bin/python", "3.11.7", "/m", True), "", ["-m", "x"])
    'exec env PYTHONPATH=/m /e/bin/python -m x'
    """
    if not made.python:  # the modules come before what the host's own variable names
        kept = f"{shlex.quote(made.modules)}${{PYTHONPATH:+:$PYTHONPATH}}"
        inner = f"PYTHONPATH={kept} exec {shlex.join([python, *arguments])}"
        return f"exec /bin/sh -c {shlex.quote(inner)}"  # the user's shell may be another one
    return f"exec {shlex.join(['env', f'PYTHONPATH={made.modules}', made.python, *arguments])}"
