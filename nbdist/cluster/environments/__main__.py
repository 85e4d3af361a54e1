"""The command of launcher "ssh" that makes an environment on a host, and then becomes the ssh of that host.

    python -m nbdist.cluster.environments [--env] [--wheels FOLDER] [--modules FOLDER] [--python PATH] HOST

It reads nothing of its standard input: the plan there, which has keys, is for the supervisor that its ssh
starts in the end. JSON lines on standard output are the progress, see `HostCommand`. A failure is one
sentence on standard error, with exit code `SENTENCE`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nbdist.cluster.environments.lock import project_modules, read_lock
from nbdist.cluster.environments.pack import held, write_zip
from nbdist.cluster.environments.receive import KEPT_DAYS
from nbdist.cluster.environments.sync import CarrierEnded, Offer, boot_command, send, shell_exec
from nbdist.cluster.hosts import SENTENCE, ssh_command, why_ssh_ended
from nbdist.cluster.launchers.ssh import OPTIONS
from nbdist.errors import NbdistError
from nbdist.home import home, private_folder

HOST_MODULE = "nbdist.cluster.supervisor.host"


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code if it fails."""
    parser = argparse.ArgumentParser(prog="python -m nbdist.cluster.environments", allow_abbrev=False)
    parser.add_argument("--env", action="store_true", help="make the environment of this Python there")
    parser.add_argument("--wheels", help="a folder of wheels, which are sent")
    parser.add_argument("--modules", type=Path, help="send the Python files below this folder")
    parser.add_argument("--python", help="the path of the Python there")
    parser.add_argument("host", help="the host, as for ssh")
    given = parser.parse_args(arguments)
    host = given.host
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(SENTENCE))

    def report(line: str) -> None:
        print(json.dumps({"waiting": f"host {host}: {line}"}), flush=True)

    try:
        offer = make_offer(given.env, given.wheels, given.modules, given.python, report)
        boot = boot_command(given.python or ("python3" if given.env else sys.executable))
        made = send(offer, ssh_command(host, boot, options=OPTIONS), report)
    except CarrierEnded as ended:
        print(why_ssh_ended(host, ended.status, ended.errors), file=sys.stderr)
        return SENTENCE
    except (NbdistError, OSError) as error:
        print(f"host {host}: {error}", file=sys.stderr)
        return SENTENCE
    print(json.dumps({"hosts": [host]}), flush=True)
    command = shell_exec(made, given.python or sys.executable, ["-m", HOST_MODULE, host])
    argv = ssh_command(host, command, options=OPTIONS)
    return os.execvp(argv[0], argv)


def make_offer(
    env: bool, wheels: str | None, modules: Path | None, python: str | None, report: Callable[[str], object]
) -> Offer:
    """Return what is offered to a host. One process of this user makes it at a time."""
    folder = private_folder(private_folder(home() / "environments") / "sent")
    with held(folder / "lock"):
        for old in folder.glob("*.zip"):  # modules as they were
            if old.stat().st_mtime < time.time() - KEPT_DAYS * 86_400:
                old.unlink()
        lock = read_lock(wheels, folder, report) if env else None
        archive = pack_modules(modules, folder) if modules else None
    return Offer(lock, archive, python)


def pack_modules(modules: Path, folder: Path) -> Path:
    """Return an archive of the Python files below a folder, which is named by its content."""
    files = [(path.relative_to(modules).as_posix(), path.read_bytes()) for path in project_modules(modules)]
    told = hashlib.sha256()
    for name, content in files:
        told.update(f"{name}\n{len(content)}\n".encode() + content)
    return write_zip(folder / f"{told.hexdigest()[:20]}.zip", files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
