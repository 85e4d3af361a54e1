"""Runs every command of the README on this checkout, exactly as written there; CI calls it.

    python3 scripts/readme_commands.py [--list]

Commands are in the README's `console` blocks. `make demo` and `make test` run to their end.
`make lab` runs until JupyterLab answers on its own address. `make bench` would install TensorFlow, PyTorch
and Ray: instead the benchmarks are listed, and the quickest one is run. A command that is not in COMMANDS
fails: add it there with a way to run it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
LAB_SECONDS = 120.0
QUICKEST = "overhead.program"  # NumPy on both sides, in this process


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the README's commands.")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    given = parser.parse_args()
    commands = written((ROOT / "README.md").read_text())
    unknown = [command for command in commands if command not in COMMANDS]
    if unknown:
        sys.exit(f"README.md has commands that {Path(__file__).name} does not know: {', '.join(unknown)}")
    for command in commands:
        print(f"$ {command}", flush=True)
        if not given.list:
            COMMANDS[command](command)
    return 0


def written(readme: str) -> list[str]:
    """Return the commands of a README's console blocks, in order, each once, without comments.

    >>> written("```console\\nmake demo     # trains\\nmake lab\\n```\\n```python\\nx = 1\\n```")
    ['make demo', 'make lab']
    """
    blocks = re.findall(r"^```console\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return list(dict.fromkeys(filter(None, lines)))


def run(command: str) -> None:
    """Run a command to its end; the script ends with its exit status if it fails."""
    ended = subprocess.run(command, shell=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    if ended.returncode:
        sys.exit(ended.returncode)


def start_lab(command: str) -> None:
    """Run a command until the JupyterLab that it starts serves its page and nbdist's routes, then end it."""
    with tempfile.TemporaryDirectory() as folder:
        # BROWSER=true: a program that opens nothing, so that no text browser takes the terminal.
        environment = os.environ | {"JUPYTER_RUNTIME_DIR": folder, "BROWSER": "true"}
        started = subprocess.Popen(
            command, shell=True, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            server = running_server(Path(folder), started)
            for path in ("lab", "nbdist/api/v1/state"):
                status = answer(server, path)
                print(f"  {server['url']}{path}: {status}", flush=True)
                if status != 200:
                    sys.exit(f"{command!r} started a server that answers {status} to /{path}")
        finally:
            os.killpg(started.pid, signal.SIGTERM)
            started.wait(timeout=30)


def running_server(folder: Path, started: subprocess.Popen[bytes]) -> dict[str, str]:
    """Return the content of the server's file in the runtime folder, once the server answers."""
    deadline = time.monotonic() + LAB_SECONDS
    while time.monotonic() < deadline:
        for path in folder.glob("jpserver-*.json"):
            try:
                server: dict[str, str] = json.loads(path.read_text())
                answer(server, "api/status")
            except (OSError, ValueError):  # half written, or not listening yet
                continue
            return server
        if started.poll() is not None:
            sys.exit(f"JupyterLab ended with status {started.returncode} before it answered")
        time.sleep(0.2)
    sys.exit(f"JupyterLab did not answer within {LAB_SECONDS:.0f} s")


def answer(server: dict[str, str], path: str) -> int:
    """Return the status of a GET with the server's token."""
    request = urllib.request.Request(
        server["url"] + path, headers={"Authorization": f"token {server['token']}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def list_and_run_quickest(_: str) -> None:
    """List the benchmarks and run the quickest; this script does not check its bar."""
    listed = bench()
    if QUICKEST not in listed:
        sys.exit(f"python -m bench does not list {QUICKEST}:\n{listed}")
    report = bench(QUICKEST, "--rounds", "1")
    if not re.search(r"\b(met|NOT MET)\b", report):
        sys.exit(f"python -m bench {QUICKEST} reports no result:\n{report}")
    print(report, flush=True)


def bench(*arguments: str) -> str:
    ended = subprocess.run(
        [PYTHON, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if ended.returncode not in (0, 1):  # 1: a bar is not met
        sys.exit(f"python -m bench {' '.join(arguments)} failed:\n{ended.stderr}")
    return ended.stdout


COMMANDS: dict[str, Callable[[str], None]] = {
    "make demo": run,
    "make test": run,
    "make lab": start_lab,
    "make bench": list_and_run_quickest,
}


if __name__ == "__main__":
    sys.exit(main())
